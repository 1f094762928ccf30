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
//! nodeid and `st_ino` are one number on the wire (fuser), so the nodeid is the
//! source's inode number wherever that is unique; see [`Devices`].
//!
//! It does not know names; dentries do.

use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::{Condvar, Mutex, RwLock};

use super::{DentryId, Dir};
use crate::clock::Millis;
use crate::error::{Errno, Result};
use crate::slab::{ObjId, ObjTable, Registry, SlabFlags};
use crate::source::{Attr, FsTraits, Kind, SourceId, Time};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// FUSE's number for an object of this mount.
pub type NodeId = u64;

/// Names an inode while it lives.
pub type InodeId = ObjId;

/// The nodeid of the mount's root (fuse.h).
pub const ROOT: NodeId = 1;

/// Nodeids with this bit are not inode numbers of the root's device.
const FOREIGN: NodeId = 1 << 63;
/// Inode numbers below this fit beside a device index.
const INO_LIMIT: u64 = 1 << 48;
/// Device "index" of objects whose number fits nowhere: numbered as met.
const REMAPPED: NodeId = FOREIGN | 0x7fff << 48;
/// First nodeid of the virtual files.
pub const VIRTUAL: NodeId = FOREIGN | 0x7ffe << 48;
/// Devices that get an index; objects of later ones are numbered as met.
const DEVICE_LIMIT: usize = 0x7ff0;

/// One filesystem beneath the source, as reached through one mount.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    dev: u64,
    mnt: u64,
    /// How it behaves.
    pub traits: FsTraits,
}

impl Device {
    /// `st_dev` and mount of its objects.
    pub fn ids(&self) -> (u64, u64) {
        (self.dev, self.mnt)
    }
}

/// Maps the source's identities to nodeids.
///
/// * An object of the root's device keeps its inode number (below 2^63; not 0
///   and not 1, which is FUSE's root).
/// * An object of another device, or of the same device under another mount
///   (a bind mount shows the same numbers again, btrfs subvolumes start at 256
///   each), has the device's index in the bits 48 to 62 and bit 63 set.
/// * What fits neither way is numbered in the order it was met.
///
/// An index is never given to a second device during one mount.
pub struct Devices {
    /// With their indexes; the root's, which is 0, first.
    list: RwLock<Vec<(u16, Device)>>,
    root_ino: u64,
    remapped: DashMap<(u64, u64, u64), NodeId>,
    next_remapped: AtomicU64,
}

impl Devices {
    fn new(root: &SourceId, traits: FsTraits) -> Self {
        let root_device = Device {
            dev: root.dev,
            mnt: root.mnt,
            traits,
        };
        Self {
            list: RwLock::new(vec![(0, root_device)]),
            root_ino: root.ino,
            remapped: DashMap::new(),
            next_remapped: AtomicU64::new(REMAPPED + 1),
        }
    }

    /// The index of the device that holds `id`, if it was met before.
    pub fn index_of(&self, id: &SourceId) -> Option<u16> {
        let list = self.list.read();
        list.iter()
            .find(|(_, d)| d.ids() == (id.dev, id.mnt))
            .map(|&(index, _)| index)
    }

    /// The index of the device that holds `id`, which behaves as `traits` says. It follows
    /// from the device and not from the order of meeting, so that numbers are the same
    /// whoever looks where first; only two devices with one hash are told apart by order.
    pub fn add(&self, id: &SourceId, traits: FsTraits) -> u16 {
        let mut list = self.list.write();
        if let Some(&(index, _)) = list.iter().find(|(_, d)| d.ids() == (id.dev, id.mnt)) {
            return index;
        }
        if list.len() >= DEVICE_LIMIT {
            // The last device's traits stand for the newcomer's; its numbers are remapped,
            // so nothing is mistaken for another object.
            return list.last().map_or(0, |&(index, _)| index);
        }
        let hash =
            foldhash::quality::FixedState::with_seed(0x6465_7669_6365).hash_one((id.dev, id.mnt));
        let mut index = 1 + (hash % (DEVICE_LIMIT as u64 - 1)) as u16;
        while list.iter().any(|&(taken, _)| taken == index) {
            index = 1 + index % (DEVICE_LIMIT as u16 - 1);
        }
        list.push((
            index,
            Device {
                dev: id.dev,
                mnt: id.mnt,
                traits,
            },
        ));
        index
    }

    /// The device with that index.
    pub fn get(&self, index: u16) -> Device {
        let list = self.list.read();
        let found = list.iter().find(|&&(at, _)| at == index);
        found.expect("an index is given out for good").1
    }

    /// The nodeid of the object `id` of the device `index`.
    fn nodeid(&self, index: u16, id: &SourceId) -> NodeId {
        let device = self.get(index);
        let known = device.dev == id.dev && device.mnt == id.mnt;
        self.nodeid_by_number(index, id.ino, known)
            .unwrap_or_else(|| {
                *self
                    .remapped
                    .entry((id.dev, id.mnt, id.ino))
                    .or_insert_with(|| self.next_remapped.fetch_add(1, Ordering::Relaxed))
            })
    }

    fn nodeid_by_number(&self, index: u16, ino: u64, known: bool) -> Option<NodeId> {
        match index {
            0 if known && ino == self.root_ino => Some(ROOT),
            0 if known && ino > ROOT && ino < FOREIGN => Some(ino),
            1.. if known && ino != 0 && ino < INO_LIMIT => {
                Some(FOREIGN | u64::from(index) << 48 | ino)
            }
            _ => None,
        }
    }

    /// `d_ino` of an entry in a directory of device `index`: the number that stat
    /// of the name would show, as far as the listing can tell.
    pub fn d_ino(&self, index: u16, ino: u64) -> u64 {
        if index == 0 && ino == self.root_ino {
            return ino;
        }
        self.nodeid_by_number(index, ino, true).unwrap_or_else(|| {
            let device = self.get(index);
            self.nodeid(
                index,
                &SourceId {
                    dev: device.dev,
                    mnt: device.mnt,
                    ino,
                    btime: None,
                },
            )
        })
    }

    /// The `st_ino` that goes with a nodeid: they differ for the root alone.
    pub fn st_ino(&self, nodeid: NodeId) -> u64 {
        if nodeid == ROOT {
            self.root_ino
        } else {
            nodeid
        }
    }

    /// The devices met so far.
    pub fn list(&self) -> Vec<Device> {
        self.list.read().iter().map(|&(_, device)| device).collect()
    }
}

/// A time in 64 bits: seconds biased so that the range of ext4's 34-bit
/// timestamps (1901 to 2446) fits, nanoseconds below.
fn pack_time(t: Time) -> Option<u64> {
    let sec = t.sec.checked_add(1 << 31)?;
    (0..1 << 34)
        .contains(&sec)
        .then_some((sec as u64) << 30 | u64::from(t.nsec))
}

fn unpack_time(t: u64) -> Time {
    Time {
        sec: (t >> 30) as i64 - (1 << 31),
        nsec: (t & ((1 << 30) - 1)) as u32,
    }
}

/// [`Attr`] without identity and kind, in 56 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct PackedAttr {
    size: u64,
    blocks: u64,
    atime: u64,
    mtime: u64,
    ctime: u64,
    nlink: u32,
    uid: u32,
    gid: u32,
    rdev: u32,
    perm: u16,
    blksize_log2: u8,
}

impl PackedAttr {
    /// `None` if a value is beyond the packed ranges; it is then not cached.
    fn pack(a: &Attr) -> Option<Self> {
        a.blksize.is_power_of_two().then_some(())?;
        Some(Self {
            size: a.size,
            blocks: a.blocks,
            atime: pack_time(a.atime)?,
            mtime: pack_time(a.mtime)?,
            ctime: pack_time(a.ctime)?,
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            rdev: a.rdev,
            perm: a.perm,
            blksize_log2: a.blksize.trailing_zeros() as u8,
        })
    }
}

/// One object of the source.
pub struct Inode {
    nodeid: NodeId,
    nlookup: u64,
    /// Birth time, packed; 0 where there is none to be trusted.
    btime: u64,
    ino: u64,
    attr: PackedAttr,
    /// When `attr` was read; 0 when it must not be used.
    attr_at: Millis,
    dir: Option<Arc<Dir>>,
    generation: u32,
    pins: u32,
    /// Grows when the attributes become void, so that an answer on its way is too.
    attr_voided: u32,
    /// One of the names; more of them, if any, are in `Dcache::links`.
    pub(super) alias: Option<DentryId>,
    device: u16,
    kind: Kind,
    /// Whether `nodes` leads here; not once the number was reused.
    hashed: bool,
    /// Data, and with it size and times, may change without a word to us.
    volatile: bool,
}

impl Inode {
    fn new(nodeid: NodeId, generation: u32, attr: &Attr, device: u16, btime: u64) -> Self {
        Self {
            nodeid,
            nlookup: 0,
            btime,
            ino: attr.id.ino,
            attr: PackedAttr::default(),
            attr_at: 0,
            dir: (attr.kind == Kind::Directory).then(|| Arc::new(Dir::default())),
            generation,
            pins: 1,
            attr_voided: 0,
            alias: None,
            device,
            kind: attr.kind,
            hashed: true,
            volatile: false,
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

    /// Index of its device in [`Devices`].
    pub fn device(&self) -> u16 {
        self.device
    }

    /// The kernel's references.
    pub fn nlookup(&self) -> u64 {
        self.nlookup
    }

    /// Our references.
    pub fn pins(&self) -> u32 {
        self.pins
    }

    /// State of the names below it, for a directory.
    pub fn dir(&self) -> Option<&Arc<Dir>> {
        self.dir.as_ref()
    }

    /// The cached attributes and when they were read; `None` when not known.
    pub fn attr(&self, devices: &Devices) -> Option<(Attr, Millis)> {
        if self.attr_at == 0 {
            return None;
        }
        let a = &self.attr;
        let device = devices.get(self.device);
        let attr = Attr {
            id: SourceId {
                dev: device.dev,
                mnt: device.mnt,
                ino: self.ino,
                btime: (self.btime != 0).then(|| unpack_time(self.btime)),
            },
            kind: self.kind,
            perm: a.perm,
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            rdev: a.rdev,
            size: a.size,
            blocks: a.blocks,
            blksize: 1 << a.blksize_log2,
            atime: unpack_time(a.atime),
            mtime: unpack_time(a.mtime),
            ctime: unpack_time(a.ctime),
        };
        Some((attr, self.attr_at))
    }

    /// Takes over attributes read at `now`.
    pub fn set_attr(&mut self, attr: &Attr, now: Millis) {
        match PackedAttr::pack(attr) {
            Some(packed) if !self.volatile => (self.attr, self.attr_at) = (packed, now),
            _ => self.attr_at = 0,
        }
    }

    /// Whether data may change past us, so that attributes are never to be believed.
    pub fn volatile(&self) -> bool {
        self.volatile
    }

    /// Data may change past us from now on, or not any more; whether that is new.
    pub fn set_volatile(&mut self, volatile: bool) -> bool {
        self.attr_at = 0;
        std::mem::replace(&mut self.volatile, volatile) != volatile
    }

    /// The attributes must be read anew before they are used.
    pub fn forget_attr(&mut self) {
        self.attr_at = 0;
        self.attr_voided = self.attr_voided.wrapping_add(1);
    }

    /// To be called before attributes are read from the source.
    pub fn attr_moment(&self) -> u32 {
        self.attr_voided
    }

    /// Takes over attributes that were read since `moment`, unless they became void
    /// meanwhile; whether they were good.
    pub fn set_attr_since(&mut self, attr: &Attr, now: Millis, moment: u32) -> bool {
        let good = self.attr_voided == moment;
        if good {
            self.set_attr(attr, now);
        }
        good
    }

    /// Whether `attr` is of this very object and not of a later one with its number.
    fn is_object(&self, attr: &Attr, btime: u64) -> bool {
        self.ino == attr.id.ino
            && self.kind == attr.kind
            && (self.btime == btime || self.btime == 0 || btime == 0)
    }
}

/// All inodes of a mount.
pub struct Inodes {
    table: ObjTable<Inode>,
    nodes: DashMap<NodeId, InodeId>,
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
        let inode = Inode::new(ROOT, generation_of(btime, root.kind), root, 0, btime);
        let id = table.insert(inode).map_err(|_| Errno::NOMEM)?;
        let nodes = DashMap::new();
        nodes.insert(ROOT, id);
        Ok(Self {
            table,
            nodes,
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

    /// The inode with that nodeid, not pinned: it may be gone at once. See
    /// [`Inodes::get`].
    pub fn find(&self, nodeid: NodeId) -> Option<InodeId> {
        self.nodes.get(&nodeid).map(|e| *e)
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
        if let Some(found) = self.nodes.get(&nodeid) {
            let id = *found;
            let mut inode = self.table.write(id).expect("I3: hashed inodes live");
            if inode.is_object(attr, btime) {
                inode.pins += 1;
                if inode.btime == 0 {
                    inode.btime = btime;
                }
                return Ok(InodeRef { inodes: self, id });
            }
        }
        let mut fresh = Inode::new(nodeid, generation_of(btime, attr.kind), attr, device, btime);
        match self.nodes.entry(nodeid) {
            Entry::Vacant(vacant) => {
                let id = self.table.insert(fresh).map_err(|_| Errno::NOMEM)?;
                vacant.insert(id);
                Ok(InodeRef { inodes: self, id })
            }
            Entry::Occupied(mut occupied) => {
                let old = *occupied.get();
                let mut inode = self.table.write(old).expect("I3: hashed inodes live");
                if inode.is_object(attr, btime) {
                    // Somebody made it since we looked.
                    inode.pins += 1;
                    return Ok(InodeRef {
                        inodes: self,
                        id: old,
                    });
                }
                if fresh.generation == inode.generation {
                    fresh.generation = fresh.generation.wrapping_add(1);
                }
                fresh.nlookup = std::mem::take(&mut inode.nlookup);
                inode.hashed = false;
                let unused = inode.pins == 0;
                drop(inode);
                let id = self.table.insert(fresh).map_err(|_| Errno::NOMEM)?;
                occupied.insert(id);
                drop(occupied);
                if unused {
                    self.table.remove(old);
                }
                Ok(InodeRef { inodes: self, id })
            }
        }
    }

    /// Whether `attr` is of the inode `id` and not of another object.
    pub fn is_object(&self, id: InodeId, attr: &Attr, device: u16) -> bool {
        let btime = trusted_btime(attr, &self.devices.get(device));
        let nodeid = self.devices.nodeid(device, &attr.id);
        self.with(id, |i| i.nodeid == nodeid && i.is_object(attr, btime))
            .unwrap_or(false)
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
        let found = self.nodes.get(&nodeid)?;
        self.pin(*found)
    }

    /// Pins the inode `id` if `dir` is still its directory state.
    pub fn get_dir(&self, id: InodeId, dir: &Arc<Dir>) -> Option<InodeRef<'_>> {
        let nodeid = self.with(id, |i| i.nodeid)?;
        let found = self.nodes.get(&nodeid).filter(|found| **found == id)?;
        let same = self.with(*found, |i| i.dir().is_some_and(|d| Arc::ptr_eq(d, dir)));
        (same == Some(true)).then(|| self.pin(*found)).flatten()
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
            inode.pins += u32::from(inode.hashed);
            inode.hashed
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
        let (nodeid, hashed) = (inode.nodeid, inode.hashed);
        let unused = inode.pins == 0 && inode.nlookup == 0;
        drop(inode);
        if unused && hashed {
            self.reap(nodeid, id);
        } else if unused {
            // Unhashed: nobody can find it, so the last pin is the last anything.
            self.table.remove(id);
        }
    }

    /// FORGET: the kernel gives `n` references back.
    pub fn forget(&self, nodeid: NodeId, n: u64) {
        let Some(id) = self.find(nodeid) else { return };
        let unused = self.with_mut(id, |inode| {
            debug_assert!(inode.nlookup >= n, "I4: nlookup balances");
            inode.nlookup = inode.nlookup.saturating_sub(n);
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

    /// Frees an inode if it is still unused.
    fn reap(&self, nodeid: NodeId, id: InodeId) {
        let gone = self.nodes.remove_if(&nodeid, |_, &v| {
            v == id
                && self
                    .with(id, |i| i.pins == 0 && i.nlookup == 0)
                    .unwrap_or(false)
        });
        if gone.is_some() {
            self.table.remove(id);
        }
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

    /// Bytes held, the table from nodeid to inode included.
    pub fn bytes(&self) -> usize {
        self.table.bytes() + self.nodes.capacity() * 17
    }

    /// Gives free memory back to the system.
    pub fn shrink(&self) {
        self.table.shrink();
        self.nodes.shrink_to_fit();
    }

    /// The end of the mount: the kernel's references are void.
    pub(super) fn end(&self) {
        for id in self.ids() {
            let nodeid = self.with_mut(id, |inode| {
                inode.nlookup = 0;
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
            inode.nlookup += u64::from(inode.hashed);
            inode.hashed.then_some((inode.nodeid, inode.generation))
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

    #[test]
    fn times_keep_their_value_or_are_not_packed() {
        for (sec, nsec) in [
            (0, 0),
            (-1, 999_999_999),
            (-(1 << 31), 0),
            ((1 << 34) - (1 << 31) - 1, 7),
        ] {
            let t = Time { sec, nsec };
            assert_eq!(pack_time(t).map(unpack_time), Some(t));
        }
        for sec in [-(1i64 << 31) - 1, (1 << 34) - (1 << 31), i64::MAX, i64::MIN] {
            assert_eq!(pack_time(Time { sec, nsec: 0 }), None);
        }
    }

    #[test]
    fn inodes_are_compact() {
        assert!(size_of::<Inode>() <= 144, "{}", size_of::<Inode>());
    }
}
