//! Inodes: the objects that the kernel knows by nodeid (floor F3).
//!
//! Purpose: one [`Inode`] for each object of the source that is cached, whatever
//! its names; the table from nodeid to inode; reference counts of both sides.
//!
//! Contract. An inode lives while `pins` (ours: each dentry that names it, each
//! dentry below it, each [`InodeRef`], each open file) or `nlookup` (the
//! kernel's, undone by FORGET) is not zero. A count is raised from zero only
//! under the guard of the nodeid's shard of `nodes`, and an inode is taken out
//! only under that shard's write guard (I3). Lock order: `nodes` shard, then
//! the inode's slab; a dentry's slab may be held around the latter alone.
//!
//! It does not know names; dentries do.

use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use parking_lot::{Condvar, Mutex};

use super::attr::{Attrs, PackedAttr, pack_time};
use super::devices::{Device, Devices, NodeId, ROOT};
use super::ids::IdHash;
use super::{DentryId, Dir};
use crate::clock::Millis;
use crate::error::{Errno, Result};
use crate::slab::{ObjId, ObjTable, Registry, SlabFlags};
use crate::source::{Attr, FsTraits, Kind, SourceId};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Names an inode while it lives.
pub type InodeId = ObjId;

bitflags::bitflags! {
    /// What else is to be said of an inode.
    #[derive(Clone, Copy, Debug)]
    struct Flags: u8 {
        /// `nodes` leads here; not once the number was reused.
        const HASHED = 1;
        /// Data, and with it size and times, may change without a word to us.
        const VOLATILE = 2;
        /// The generation tells the birth time.
        const BORN = 4;
        /// The attributes are kept whole in `Attrs`.
        const WIDE = 8;
        /// More references of the kernel's are in `Inodes::carried`.
        const CARRIED = 16;
        /// When the attributes were read, or later, it had no extended attribute.
        const PLAIN = 32;
        /// The birth time became known after the generation was given, and is in
        /// `Inodes::late_births`.
        const LATE = 64;
    }
}

/// One object of the source.
pub struct Inode {
    nodeid: NodeId,
    dir: Option<Arc<Dir>>,
    attr: PackedAttr,
    nlookup: u32,
    generation: u32,
    pins: u32,
    /// One of the names; more of them, if any, are in `Dcache::links`.
    pub(super) alias: Option<DentryId>,
    /// Grows when the attributes become void, so that an answer on its way is too.
    attr_voided: u16,
    kind: Kind,
    flags: Flags,
}

impl Inode {
    fn new(nodeid: NodeId, generation: u32, kind: Kind, is_born: bool) -> Self {
        let mut flags = Flags::HASHED;
        flags.set(Flags::BORN, is_born);
        Self {
            nodeid,
            dir: (kind == Kind::Directory).then(|| Arc::new(Dir::default())),
            attr: PackedAttr::default(),
            nlookup: 0,
            generation,
            pins: 1,
            alias: None,
            attr_voided: 0,
            kind,
            flags,
        }
    }

    /// FUSE's number.
    pub fn nodeid(&self) -> NodeId {
        self.nodeid
    }

    /// Tells objects that had the same nodeid one after the other apart.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// What it is; never changes.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The kernel's references, as far as they are counted here: 0 only if there is none.
    pub fn nlookup(&self) -> u64 {
        u64::from(self.nlookup)
    }

    /// Our references.
    pub fn pins(&self) -> u32 {
        self.pins
    }

    /// State of the names below it, for a directory.
    pub fn dir(&self) -> Option<&Arc<Dir>> {
        self.dir.as_ref()
    }

    /// Whether data may change past us, so that attributes are never to be believed.
    pub fn volatile(&self) -> bool {
        self.flags.contains(Flags::VOLATILE)
    }

    /// Data may change past us from now on, or not any more; whether that is new.
    pub fn set_volatile(&mut self, volatile: bool) -> bool {
        self.attr.forget();
        self.flags.remove(Flags::PLAIN);
        let before = self.volatile();
        self.flags.set(Flags::VOLATILE, volatile);
        before != volatile
    }

    /// The attributes must be read anew before they are used.
    pub fn forget_attr(&mut self) {
        self.attr.forget();
        self.flags.remove(Flags::PLAIN);
        self.attr_voided = self.attr_voided.wrapping_add(1);
    }

    /// Whether it has no extended attribute, as surely as the attributes are what they were.
    pub fn is_plain(&self) -> bool {
        self.flags.contains(Flags::PLAIN)
    }

    /// It was asked for its extended attributes at `asked`, since `moment`, and had none: kept
    /// with the attributes, if these are known, no younger, and did not become void meanwhile.
    pub fn set_plain(&mut self, moment: u16, asked: Millis) {
        let good = self.attr_voided == moment && (1..=asked).contains(&self.attr.at());
        self.flags.set(Flags::PLAIN, good);
    }

    /// To be called before attributes are read from the source.
    pub fn attr_moment(&self) -> u16 {
        self.attr_voided
    }

    /// Whether its nodeid leads to it; not once the number was reused.
    pub(super) fn is_hashed(&self) -> bool {
        self.flags.contains(Flags::HASHED)
    }
}

/// All inodes of a mount.
pub struct Inodes {
    table: ObjTable<Inode>,
    /// By nodeid.
    nodes: IdHash,
    attrs: Attrs,
    /// Directories among them.
    dirs: AtomicUsize,
    /// References of the kernel's that an inode's own count has no room for.
    carried: DashMap<InodeId, u64>,
    /// Birth times of inodes with [`Flags::LATE`].
    late_births: DashMap<InodeId, u64>,
    /// Birth times, by which tests tell objects apart; at rest the generation stands for them.
    #[cfg(test)]
    births: DashMap<InodeId, u64>,
    /// Maps identities to nodeids.
    pub devices: Devices,
    root: InodeId,
    /// Who waits for a FORGET, and by what.
    waiters: AtomicUsize,
    forgotten: (Mutex<()>, Condvar),
}

impl Inodes {
    pub(super) fn new(registry: &Registry, root: &Attr, traits: FsTraits) -> Result<Self> {
        let table = ObjTable::create(registry, "inode", SlabFlags::empty());
        let devices = Devices::new(&root.id, traits);
        let btime = trusted_btime(root, &devices.get(0));
        let inode = Inode::new(ROOT, generation_of(btime, root.kind), root.kind, btime != 0);
        let id = table.insert(inode).map_err(|_| Errno::NOMEM)?;
        let nodes = IdHash::new();
        nodes.lock(hash_of(ROOT)).insert(id, |_| hash_of(ROOT));
        Ok(Self {
            table,
            nodes,
            attrs: Attrs::new(),
            dirs: AtomicUsize::new(1),
            carried: DashMap::with_shard_amount(4),
            late_births: DashMap::with_shard_amount(4),
            #[cfg(test)]
            births: DashMap::from_iter([(id, btime)]),
            devices,
            root: id,
            waiters: AtomicUsize::new(0),
            forgotten: (Mutex::new(()), Condvar::new()),
        })
    }

    /// The root, which lives as long as the mount.
    pub fn root(&self) -> InodeId {
        self.root
    }

    /// Calls `f` with the inode of a nodeid, under the guard of its shard.
    fn with_hashed<R>(&self, nodeid: NodeId, f: impl FnOnce(InodeId) -> R) -> Option<R> {
        self.nodes
            .with(hash_of(nodeid), |id| self.has_nodeid(id, nodeid), f)
    }

    fn has_nodeid(&self, id: InodeId, nodeid: NodeId) -> bool {
        self.with(id, |i| i.nodeid) == Some(nodeid)
    }

    /// The hash under which an inode is found, which lives as long as it is.
    fn hash_of_id(&self, id: InodeId) -> u64 {
        hash_of(self.with(id, |i| i.nodeid).expect("I3: hashed inodes live"))
    }

    /// The inode with that nodeid, not pinned: it may be gone at once. See
    /// [`Inodes::get`].
    pub fn find(&self, nodeid: NodeId) -> Option<InodeId> {
        self.with_hashed(nodeid, |id| id)
    }

    /// Finds or makes the inode that `attr` is of and takes the attributes over.
    ///
    /// A cached inode with the same nodeid that is another object (the number was
    /// reused) loses the nodeid to the new one, which gets another generation and
    /// inherits the kernel's references: FORGETs name the nodeid only.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn iget(&self, attr: &Attr, device: u16) -> Result<InodeRef<'_>> {
        let btime = trusted_btime(attr, &self.devices.get(device));
        let nodeid = self.devices.nodeid(device, &attr.id);
        let pin_same = |id| {
            self.with_mut(id, |inode| {
                let same = self.is_same(id, inode, attr.kind, btime);
                inode.pins += u32::from(same);
                if same && btime != 0 && !inode.flags.intersects(Flags::BORN | Flags::LATE) {
                    inode.flags.insert(Flags::LATE);
                    self.late_births.insert(id, btime);
                    #[cfg(test)]
                    self.births.insert(id, btime);
                }
                same
            })
        };
        let found = self.with_hashed(nodeid, |id| (pin_same(id) == Some(true)).then_some(id));
        if let Some(id) = found.flatten() {
            return Ok(InodeRef { inodes: self, id });
        }
        let mut fresh = Inode::new(
            nodeid,
            generation_of(btime, attr.kind),
            attr.kind,
            btime != 0,
        );
        let is_dir = usize::from(fresh.dir.is_some());
        let mut shard = self.nodes.lock(hash_of(nodeid));
        let Some(old) = shard.find(|id| self.has_nodeid(id, nodeid)) else {
            let id = self.table.insert(fresh).map_err(|_| Errno::NOMEM)?;
            self.dirs.fetch_add(is_dir, Ordering::Relaxed);
            #[cfg(test)]
            self.births.insert(id, btime);
            shard.insert(id, |id| self.hash_of_id(id));
            return Ok(InodeRef { inodes: self, id });
        };
        if pin_same(old) == Some(true) {
            // Somebody made it since we looked.
            return Ok(InodeRef {
                inodes: self,
                id: old,
            });
        }
        let generation = self.with(old, |i| i.generation);
        if generation == Some(fresh.generation) {
            // It then says no birth time.
            fresh.generation = fresh.generation.wrapping_add(1);
            fresh.flags.remove(Flags::BORN);
        }
        let id = self.table.insert(fresh).map_err(|_| Errno::NOMEM)?;
        let mut inode = self.table.write(old).expect("I3: hashed inodes live");
        let nlookup = std::mem::take(&mut inode.nlookup);
        let carried = inode.flags & Flags::CARRIED;
        inode.flags.remove(Flags::HASHED | Flags::CARRIED);
        let unused = inode.pins == 0;
        drop(inode);
        self.with_mut(id, |inode| {
            inode.nlookup = nlookup;
            inode.flags |= carried;
        });
        if let Some((_, more)) = self.carried.remove(&old) {
            self.carried.insert(id, more);
        }
        self.dirs.fetch_add(is_dir, Ordering::Relaxed);
        #[cfg(test)]
        self.births.insert(id, btime);
        shard.replace(old, id);
        drop(shard);
        if unused {
            self.free(old);
        }
        Ok(InodeRef { inodes: self, id })
    }

    /// Whether `attr` is of the inode `id` and not of another object.
    pub fn is_object(&self, id: InodeId, attr: &Attr, device: u16) -> bool {
        let btime = trusted_btime(attr, &self.devices.get(device));
        let nodeid = self.devices.nodeid(device, &attr.id);
        self.with(id, |i| {
            i.nodeid == nodeid && self.is_same(id, i, attr.kind, btime)
        })
        .unwrap_or(false)
    }

    /// Whether an inode is the object of its nodeid with that kind and birth time (0: unknown),
    /// and not an earlier one that had the number.
    fn is_same(&self, id: InodeId, inode: &Inode, kind: Kind, btime: u64) -> bool {
        let flags = inode.flags;
        let same_birth = match btime {
            0 => true,
            _ if flags.contains(Flags::BORN) => inode.generation == generation_of(btime, kind),
            _ if flags.contains(Flags::LATE) => {
                self.late_births.get(&id).is_none_or(|late| *late == btime)
            }
            _ => true,
        };
        inode.kind == kind && same_birth
    }

    /// Reads an inode; `None` if it is gone.
    pub fn with<R>(&self, id: InodeId, f: impl FnOnce(&Inode) -> R) -> Option<R> {
        self.table.read(id).map(|inode| f(&inode))
    }

    /// Changes an inode; `None` if it is gone.
    pub fn with_mut<R>(&self, id: InodeId, f: impl FnOnce(&mut Inode) -> R) -> Option<R> {
        self.table.write(id).map(|mut inode| f(&mut inode))
    }

    /// The inode of a nodeid, pinned: a reference of the kernel's does not keep an
    /// inode whose number is given to another object meanwhile.
    pub fn get(&self, nodeid: NodeId) -> Option<InodeRef<'_>> {
        self.with_hashed(nodeid, |id| self.pin(id)).flatten()
    }

    /// Pins the inode `id` if `dir` is still its directory state.
    pub fn get_dir(&self, id: InodeId, dir: &Arc<Dir>) -> Option<InodeRef<'_>> {
        let nodeid = self.with(id, |i| i.nodeid)?;
        let same = |found| {
            let is_dir = |i: &Inode| i.dir().is_some_and(|d| Arc::ptr_eq(d, dir));
            let same = found == id && self.with(id, is_dir) == Some(true);
            same.then(|| self.pin(id)).flatten()
        };
        self.with_hashed(nodeid, same).flatten()
    }

    /// The cached attributes of an inode and when they were read; `None` when not known.
    /// The birth time is not among them.
    pub fn attr(&self, id: InodeId) -> Option<(Attr, Millis)> {
        let (attr, at, nodeid) = self.with(id, |inode| {
            let at = inode.attr.at();
            let is_wide = inode.flags.contains(Flags::WIDE);
            let attr = (at != 0)
                .then(|| self.attrs.unpack(id, inode.kind, &inode.attr, is_wide))
                .flatten();
            (attr, at, inode.nodeid)
        })?;
        let (index, ino) = self.devices.origin(nodeid);
        let (dev, mnt) = self.devices.get(index).ids();
        #[cfg(test)]
        let btime = self
            .births
            .get(&id)
            .and_then(|b| (*b != 0).then(|| super::attr::unpack_time(*b)));
        #[cfg(not(test))]
        let btime = None;
        let id = SourceId {
            dev,
            mnt,
            ino,
            btime,
        };
        attr.map(|attr| (Attr { id, ..attr }, at))
    }

    /// Takes over attributes of an inode read at `now`.
    pub fn set_attr(&self, id: InodeId, attr: &Attr, now: Millis) {
        self.with_mut(id, |inode| self.keep_attr(id, inode, attr, now));
    }

    /// Takes over attributes of an inode that were read since `moment`, unless they became
    /// void meanwhile; whether they were good.
    pub fn set_attr_since(&self, id: InodeId, attr: &Attr, now: Millis, moment: u16) -> bool {
        let good = self.with_mut(id, |inode| {
            let good = inode.attr_voided == moment;
            if good {
                self.keep_attr(id, inode, attr, now);
            }
            good
        });
        good == Some(true)
    }

    fn keep_attr(&self, id: InodeId, inode: &mut Inode, attr: &Attr, now: Millis) {
        if inode.volatile() {
            inode.attr.forget();
            return;
        }
        let (packed, is_wide) = self.attrs.keep(id, attr, now);
        inode.attr = packed;
        if inode.flags.contains(Flags::WIDE) && !is_wide {
            self.attrs.free(id);
        }
        inode.flags.set(Flags::WIDE, is_wide);
        inode.flags.remove(Flags::PLAIN);
    }

    /// Index of an inode's device in [`Devices`].
    pub fn device(&self, id: InodeId) -> Option<u16> {
        let nodeid = self.with(id, |i| i.nodeid)?;
        Some(self.devices.origin(nodeid).0)
    }

    /// Pins an inode that something else keeps meanwhile: a pin, or the guard of its
    /// nodeid's shard (I3).
    pub fn pin(&self, id: InodeId) -> Option<InodeRef<'_>> {
        self.with_mut(id, |inode| inode.pins += 1)?;
        Some(InodeRef { inodes: self, id })
    }

    /// Pins an inode that something else pins already, unless its number was reused.
    pub(super) fn pin_hashed(&self, id: InodeId) -> Option<InodeRef<'_>> {
        let hashed = self.with_mut(id, |inode| {
            inode.pins += u32::from(inode.is_hashed());
            inode.is_hashed()
        });
        (hashed == Some(true)).then(|| InodeRef { inodes: self, id })
    }

    /// Takes a pin back that [`InodeRef::into_pin`] left.
    pub fn unpin(&self, id: InodeId) {
        let Some(mut inode) = self.table.write(id) else {
            return;
        };
        assert!(inode.pins > 0, "I1: pins balance");
        inode.pins -= 1;
        let (nodeid, hashed) = (inode.nodeid, inode.is_hashed());
        let unused = inode.pins == 0 && inode.nlookup == 0;
        drop(inode);
        if unused && hashed {
            self.reap(nodeid, id);
        } else if unused {
            // Unhashed: nobody can find it, so the last pin is the last anything.
            self.free(id);
        }
    }

    /// FORGET: the kernel gives `n` references back.
    pub fn forget(&self, nodeid: NodeId, n: u64) {
        let Some(id) = self.find(nodeid) else { return };
        let unused = self.with_mut(id, |inode| {
            self.give_back(id, inode, n);
            inode.nlookup == 0 && inode.pins == 0
        });
        if unused == Some(true) {
            self.reap(nodeid, id);
        }
        if self.waiters.load(Ordering::SeqCst) > 0 {
            let _waiting = self.forgotten.0.lock();
            self.forgotten.1.notify_all();
        }
    }

    /// Waits up to `bound` until the kernel has forgotten the object whose number `attr`'s
    /// has been given. The kernel would make it bad, and whoever is on the way to it would
    /// be told EIO; without that number it is looked for and found to be gone.
    ///
    /// Preconditions: no lock is held.
    pub fn wait_forgotten(&self, attr: &Attr, device: u16, bound: Duration) {
        let nodeid = self.devices.nodeid(device, &attr.id);
        let held = || {
            let id = self.find(nodeid)?;
            let held = self.with(id, |i| i.nlookup > 0)?;
            (held && !self.is_object(id, attr, device)).then_some(())
        };
        if held().is_none() {
            return;
        }
        let end = Instant::now() + bound;
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let mut waiting = self.forgotten.0.lock();
        while held().is_some() {
            if self.forgotten.1.wait_until(&mut waiting, end).timed_out() {
                break;
            }
        }
        drop(waiting);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// One more reference of the kernel's.
    fn take(&self, id: InodeId, inode: &mut Inode) {
        if inode.nlookup == u32::MAX {
            inode.nlookup -= CARRY;
            *self.carried.entry(id).or_default() += u64::from(CARRY);
            inode.flags.insert(Flags::CARRIED);
        }
        inode.nlookup += 1;
    }

    /// `n` references of the kernel's less.
    fn give_back(&self, id: InodeId, inode: &mut Inode, n: u64) {
        let carried = match inode.flags.contains(Flags::CARRIED) {
            true => self.carried.remove(&id).map_or(0, |(_, more)| more),
            false => 0,
        };
        let have = carried + u64::from(inode.nlookup);
        debug_assert!(have >= n, "I4: nlookup balances");
        let left = have.saturating_sub(n);
        inode.nlookup = left.min(u64::from(u32::MAX)) as u32;
        let carried = left - u64::from(inode.nlookup);
        inode.flags.set(Flags::CARRIED, carried > 0);
        if carried > 0 {
            self.carried.insert(id, carried);
        }
    }

    /// Frees an inode if it is still unused.
    fn reap(&self, nodeid: NodeId, id: InodeId) {
        let mut shard = self.nodes.lock(hash_of(nodeid));
        let unused = self.with(id, |i| i.pins == 0 && i.nlookup == 0 && i.nodeid == nodeid);
        let gone = unused == Some(true) && shard.remove(id);
        drop(shard);
        if gone {
            self.free(id);
        }
    }

    /// Frees an inode that nothing leads to.
    fn free(&self, id: InodeId) {
        let Some(gone) = self.table.remove(id) else {
            return;
        };
        if gone.flags.contains(Flags::WIDE) {
            self.attrs.free(id);
        }
        if gone.flags.contains(Flags::LATE) {
            self.late_births.remove(&id);
        }
        self.dirs
            .fetch_sub(usize::from(gone.dir.is_some()), Ordering::Relaxed);
    }

    /// Inodes alive.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none; not before the mount has ended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ids of all inodes at some moment during the call.
    pub fn ids(&self) -> Vec<InodeId> {
        let mut ids = Vec::with_capacity(self.len());
        for slab in 0..self.table.slab_count() {
            self.table.scan_slab(slab, |id, _| ids.push(id));
        }
        ids
    }

    /// The directories among them.
    pub fn dirs(&self) -> Vec<Arc<Dir>> {
        let mut dirs = Vec::new();
        for slab in 0..self.table.slab_count() {
            self.table
                .scan_slab(slab, |_, inode| dirs.extend(inode.dir.clone()));
        }
        dirs
    }

    /// Bytes held: the table from nodeid to inode and the directories' states included.
    pub fn bytes(&self) -> usize {
        let dirs = self.dirs.load(Ordering::Relaxed) * (size_of::<Dir>() + ARC_OVERHEAD);
        dirs + self.table.bytes() + self.nodes.bytes() + self.attrs.bytes()
    }

    /// Gives free memory back to the system.
    pub fn shrink(&self) {
        self.table.shrink();
        self.nodes.shrink(|id| self.hash_of_id(id));
    }

    /// The end of the mount: the kernel's references are void.
    pub(super) fn end(&self) {
        for id in self.ids() {
            let nodeid = self.with_mut(id, |inode| {
                inode.nlookup = 0;
                inode.flags.remove(Flags::CARRIED);
                inode.nodeid
            });
            if id == self.root {
                self.unpin(id);
            } else if let Some(nodeid) = nodeid {
                self.reap(nodeid, id);
            }
        }
    }
}

/// References that are carried over at once.
const CARRY: u32 = 1 << 31;

/// Counts and the allocator's own, for each thing on the heap.
const ARC_OVERHEAD: usize = 32;

fn hash_of(nodeid: NodeId) -> u64 {
    foldhash::fast::FixedState::with_seed(0x6e6f_6465).hash_one(nodeid)
}

/// The birth time if it can tell a reused number apart, else 0.
fn trusted_btime(attr: &Attr, device: &Device) -> u64 {
    match attr.id.btime {
        Some(btime) if device.traits.birth_times => pack_time(btime).unwrap_or(0),
        _ => 0,
    }
}

/// The generation of an object: the same on each mount, another one for another
/// object with its number (up to a chance of 2^-32, which `iget` rules out for
/// neighbours).
fn generation_of(btime: u64, kind: Kind) -> u32 {
    let mixed = (btime ^ kind as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}

/// A pinned inode; dropping it is iput.
pub struct InodeRef<'a> {
    inodes: &'a Inodes,
    id: InodeId,
}

impl InodeRef<'_> {
    /// Its id, valid at least while this pin is held.
    pub fn id(&self) -> InodeId {
        self.id
    }

    /// Turns the pin into a reference of the kernel's: to be called once for each
    /// reply that carries the nodeid (I4). Returns (nodeid, generation).
    ///
    /// # Errors
    /// ESTALE if the nodeid is another object's by now: a FORGET would go there.
    pub fn into_lookup(self) -> Result<(NodeId, u32)> {
        let counted = self.inodes.with_mut(self.id, |inode| {
            if !inode.is_hashed() {
                return None;
            }
            self.inodes.take(self.id, inode);
            Some((inode.nodeid, inode.generation))
        });
        counted.expect("I3: pinned inodes live").ok_or(Errno::STALE)
    }

    /// Keeps the pin beyond this guard; [`Inodes::unpin`] ends it.
    pub fn into_pin(self) -> InodeId {
        let id = self.id;
        std::mem::forget(self);
        id
    }
}

impl Drop for InodeRef<'_> {
    fn drop(&mut self) {
        self.inodes.unpin(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::SlabOptions;
    use crate::source::Time;

    #[test]
    fn inodes_are_compact() {
        assert_eq!(size_of::<Inode>(), 80);
    }

    fn attr(ino: u64) -> Attr {
        Attr {
            id: SourceId {
                dev: 1,
                mnt: 1,
                ino,
                btime: Some(Time { sec: 7, nsec: 0 }),
            },
            kind: Kind::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
        }
    }

    fn inodes() -> Inodes {
        let traits = FsTraits {
            stable_cookies: true,
            remote: false,
            birth_times: true,
            lists_all: true,
            name: "fake",
        };
        let registry = Registry::with_options(SlabOptions::default());
        Inodes::new(&registry, &attr(2), traits).expect("memory")
    }

    #[test]
    fn the_kernel_may_hold_more_references_than_32_bits_count() {
        let inodes = inodes();
        let inode = inodes.iget(&attr(10), 0).expect("memory");
        let id = inode.id();
        let (nodeid, _) = inode.into_lookup().expect("hashed");
        inodes.with_mut(id, |i| i.nlookup = u32::MAX);
        for _ in 0..2 {
            inodes
                .get(nodeid)
                .expect("alive")
                .into_lookup()
                .expect("hashed");
        }
        inodes.forget(nodeid, 1 << 31);
        assert!(inodes.with(id, |i| i.nlookup > 0).expect("alive"));
        inodes.forget(nodeid, u64::from(u32::MAX) + 1 - (1 << 31));
        assert!(inodes.with(id, |i| i.nlookup > 0).expect("alive"));
        // The number is another object's now, which inherits them.
        let mut later = attr(10);
        later.id.btime = Some(Time { sec: 8, nsec: 0 });
        let other = inodes.iget(&later, 0).expect("memory").into_pin();
        assert_ne!(id, other);
        inodes.forget(nodeid, 1);
        assert!(!inodes.with(other, |i| i.nlookup > 0).expect("pinned"));
        inodes.unpin(other);
        assert_eq!((inodes.len(), inodes.nodes.len()), (1, 1));
    }

    #[test]
    fn what_does_not_fit_is_kept_whole_and_let_go_of() {
        let inodes = inodes();
        let huge = Attr {
            size: u64::MAX,
            ..attr(10)
        };
        let id = inodes.iget(&huge, 0).expect("memory").into_pin();
        inodes.set_attr(id, &huge, 5);
        assert_eq!(inodes.attr(id), Some((huge, 5)));
        inodes.set_attr(id, &attr(10), 5);
        assert_eq!(
            (inodes.attr(id), inodes.attrs.bytes()),
            (Some((attr(10), 5)), 0)
        );
        inodes.set_attr(id, &huge, 5);
        inodes.unpin(id);
        assert_eq!(inodes.attrs.bytes(), 0);
    }
}
