//! The dentry cache (floor F3).
//!
//! Purpose: which name below which directory is which inode, or is known to be
//! absent. After fs/dcache.c and include/linux/dcache.h, with their words.
//!
//! Contract. Names below a directory change only under that directory's lock
//! ([`Dir::lock`]); they are looked up without it. Lock order, outermost first:
//!
//! ```text
//! Dir.lock                 two directories: by address        [20]
//!   Dcache.rename_mutex                                       [25]
//!   Dcache.links                                              [30]
//!     dashmap shard of `hash` or `nodes` (one at a time)      [40]
//!       dentry's slab, then inode's slab                      [50, 60]
//! ```
//!
//! Invariants (numbers as in ARCHITECTURE.md): a dentry pins the inode of its
//! parent and its own (I1); what the hash leads to has the key it is hashed
//! under (I2).
//!
//! It does not read the source and decides nothing about freshness in time.

mod attr;
mod compact;
mod devices;
mod dir;
mod ids;
mod inode;
mod listing;
mod shrink;

pub use compact::PART;
pub use devices::{Device, Devices, NodeId, ROOT, VIRTUAL};
pub use dir::{Dir, DirGuard, DirState, Kept, Moment, Stamp};
pub use inode::{Inode, InodeId, InodeRef, Inodes};
pub use listing::{Compact, Entries, Listing};
pub use shrink::{Absent, CachedName, Sweep};

use std::collections::HashMap;
use std::num::NonZeroU8;

use parking_lot::{Mutex, MutexGuard};

use self::ids::IdHash;
use crate::error::{Errno, Result};
use crate::name::{Filename, NameHash, QStr};
use crate::slab::{ObjId, ObjTable, Registry, SlabFlags};
use crate::source::{Attr, FsTraits};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Names a dentry while it lives.
pub type DentryId = ObjId;

/// Names up to this length are part of the dentry (DNAME_INLINE_LEN).
const DNAME_INLINE: usize = 22;
/// Longest name (NAME_MAX).
const DNAME_MAX: usize = 255;

/// Bytes of an external name. The length comes first: as it is never 0, a vacant place
/// in a slab is told by it and needs no room of its own.
struct Bytes<const N: usize> {
    len: NonZeroU8,
    bytes: [u8; N],
}

impl<const N: usize> Bytes<N> {
    fn new(name: &[u8]) -> Self {
        let mut bytes = [0; N];
        bytes[..name.len()].copy_from_slice(name);
        let len = NonZeroU8::new(name.len() as u8).expect("a long name");
        Self { len, bytes }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len.get())]
    }
}

/// A name, inline or in one of the external caches.
enum DName {
    Inline(u8, [u8; DNAME_INLINE]),
    External32(ObjId),
    External64(ObjId),
    External256(ObjId),
}

/// A name below a directory and what it is: an inode or nothing (negative).
pub struct Dentry {
    name: DName,
    parent: InodeId,
    inode: Option<InodeId>,
    epoch: u32,
    /// Used since the clock hand last passed.
    referenced: AtomicBool,
    /// Chosen by the shrinker: not to be found any more.
    dead: bool,
}

/// How a new dentry is filled in: the arms of the experiment of 2007.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DentryInit {
    /// Each field is set.
    #[default]
    Fields,
    /// All of it is set to zero first, then what is not zero.
    Zero,
}

impl DentryInit {
    /// `d_alloc`'s fields, at one place in memory.
    fn fill(self, new: Dentry) -> Dentry {
        match self {
            Self::Fields => new,
            Self::Zero => {
                let mut dentry = Dentry {
                    name: DName::Inline(0, [0; DNAME_INLINE]),
                    inode: None,
                    epoch: 0,
                    referenced: AtomicBool::new(false),
                    dead: false,
                    ..new
                };
                // Keeps the compiler from leaving out what is overwritten at once.
                std::hint::black_box(&mut dentry);
                dentry.name = new.name;
                dentry.inode = new.inode;
                dentry.epoch = new.epoch;
                dentry.referenced = new.referenced;
                dentry
            }
        }
    }
}

/// What the cache says of a name.
pub enum Cached<'a> {
    /// It is this inode.
    Positive(InodeRef<'a>),
    /// It is known to be absent.
    Negative,
}

/// What became of an answer that was to be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It is cached.
    Kept,
    /// It is cached, and the cache held something else for that name: a change
    /// beneath went unseen so far.
    Contradicted,
    /// A change came between, or there was no memory: good for a reply, not kept.
    Void,
}

/// Paths built meanwhile are in doubt ([`Dcache::rename_write`]).
pub struct RenameGuard<'a> {
    dcache: &'a Dcache,
    _alone: MutexGuard<'a, ()>,
}

impl Drop for RenameGuard<'_> {
    fn drop(&mut self) {
        self.dcache.rename_seq.fetch_add(1, Ordering::AcqRel);
    }
}

/// Counters for `.nameifs/stats` and dentry-state.
#[derive(Debug, Default)]
pub struct Counters {
    /// Lookups answered by a positive dentry.
    pub hits: AtomicU64,
    /// Lookups answered by a negative dentry.
    pub negative_hits: AtomicU64,
    /// Lookups that had to ask the source.
    pub misses: AtomicU64,
    /// Negative dentries alive.
    pub negative: AtomicU64,
    /// Dentries freed by the shrinker.
    pub reclaimed: AtomicU64,
    /// Bytes of cached listings; each [`Listing`] adds and takes back its own.
    pub listing_bytes: Arc<AtomicU64>,
}

/// All dentries of a mount, and its inodes.
pub struct Dcache {
    /// The inodes.
    pub inodes: Inodes,
    /// Counters.
    pub counters: Counters,
    dentries: ObjTable<Dentry>,
    external32: ObjTable<Bytes<31>>,
    external64: ObjTable<Bytes<63>>,
    external256: ObjTable<Bytes<DNAME_MAX>>,
    /// By parent and name.
    hash: IdHash,
    name_hash: NameHash,
    /// Further names of inodes that have several: `Inode::alias` holds one.
    links: Mutex<HashMap<InodeId, Vec<DentryId>>>,
    /// Grows before and after a rename: an even and unchanged value means that a
    /// path was built from one state of the tree (I10, `rename_lock`).
    rename_seq: AtomicU64,
    /// One rename at a time moves `rename_seq`.
    rename_mutex: Mutex<()>,
    hand: AtomicU64,
    init: DentryInit,
}

impl Dcache {
    /// Creates the caches in `registry`, with the root's inode.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(
        registry: &Registry,
        root: &Attr,
        traits: FsTraits,
        init: DentryInit,
    ) -> Result<Self> {
        Ok(Self {
            dentries: ObjTable::create(registry, "dentry", SlabFlags::empty()),
            inodes: Inodes::new(registry, root, traits)?,
            external32: ObjTable::create(registry, "dname-32", SlabFlags::empty()),
            external64: ObjTable::create(registry, "dname-64", SlabFlags::empty()),
            external256: ObjTable::create(registry, "dname-256", SlabFlags::empty()),
            counters: Counters::default(),
            hash: IdHash::new(),
            name_hash: NameHash::default(),
            links: Mutex::new(HashMap::new()),
            rename_seq: AtomicU64::new(0),
            rename_mutex: Mutex::new(()),
            hand: AtomicU64::new(0),
            init,
        })
    }

    fn hash_of(&self, parent: InodeId, name: &[u8]) -> u64 {
        self.name_hash.below(parent.get(), name)
    }

    /// The hash under which a dentry is found.
    fn hash_of_id(&self, id: DentryId) -> u64 {
        let dentry = self.dentries.read(id).expect("I2: hashed dentries live");
        self.with_name(&dentry.name, |name| self.hash_of(dentry.parent, name))
    }

    fn is_it(&self, dentry: &Dentry, parent: InodeId, name: &[u8]) -> bool {
        dentry.parent == parent && self.with_name(&dentry.name, |bytes| bytes == name)
    }

    /// Whether the dentry `id` is `name` below `parent`.
    fn has_name(&self, id: DentryId, parent: InodeId, name: &[u8]) -> bool {
        let dentry = self.dentries.read(id);
        dentry.is_some_and(|d| self.is_it(&d, parent, name))
    }

    /// The dentry of `name` below `parent`, if hashed.
    fn find(&self, parent: InodeId, name: &[u8]) -> Option<DentryId> {
        let is_it = |id| self.has_name(id, parent, name);
        self.hash.with(self.hash_of(parent, name), is_it, |id| id)
    }

    /// Whether a name is cached, doubtful or not.
    pub fn is_cached(&self, parent: InodeId, name: QStr<'_>) -> bool {
        self.find(parent, name.as_bytes()).is_some()
    }

    /// d_lookup: what the cache says of a name that is not doubtful.
    pub fn lookup(&self, parent: InodeId, dir: &Dir, name: QStr<'_>) -> Option<Cached<'_>> {
        let name = name.as_bytes();
        let mut found = None;
        let is_it = |id| {
            let dentry = self.dentries.read(id);
            let is_it = dentry.as_ref().is_some_and(|d| self.is_it(d, parent, name));
            found = dentry.filter(|_| is_it);
            is_it
        };
        self.hash.with(self.hash_of(parent, name), is_it, |_| ())?;
        let dentry = found?;
        if dentry.dead || dentry.epoch != dir.epoch() {
            return None;
        }
        if !dentry.referenced.load(Ordering::Relaxed) {
            dentry.referenced.store(true, Ordering::Relaxed);
        }
        match dentry.inode {
            // The dentry's own pin holds the inode while the slab is locked. Where its
            // number was reused it is gone from the source, and so is the name.
            Some(inode) => self.inodes.pin_hashed(inode).map(Cached::Positive),
            None => Some(Cached::Negative),
        }
    }

    /// d_add: caches what the source said of `name` at `moment`. Preconditions: the
    /// caller pins `parent`.
    pub fn add(
        &self,
        parent: InodeId,
        guard: &mut DirGuard<'_>,
        name: QStr<'_>,
        inode: Option<&InodeRef<'_>>,
        moment: Moment,
    ) -> Added {
        if !guard.unchanged_since(moment) {
            // The answer is given all the same, so the object needs a name by which it is
            // reached: one that nobody believes.
            if inode.is_some() && self.find(parent, name.as_bytes()).is_none() {
                let doubtful = guard.epoch().wrapping_sub(1);
                let _ = self.instantiate_at(parent, doubtful, name, inode);
            }
            return Added::Void;
        }
        match self.instantiate(parent, guard, name, inode) {
            Ok(false) => Added::Kept,
            Ok(true) => {
                guard.change();
                Added::Contradicted
            }
            Err(_) => Added::Void,
        }
    }

    /// d_instantiate and d_delete: what `name` is from now on, by a change that this
    /// mount made or was told of. Fills under way become void. Preconditions: the caller
    /// pins `parent`.
    ///
    /// # Errors
    /// ENOMEM: the name is then not cached.
    pub fn set(
        &self,
        parent: InodeId,
        guard: &mut DirGuard<'_>,
        name: QStr<'_>,
        inode: Option<&InodeRef<'_>>,
    ) -> Result<()> {
        guard.change();
        match self.instantiate(parent, guard, name, inode) {
            Ok(_) => Ok(()),
            Err(e) => {
                self.remove(parent, guard, name);
                Err(e)
            }
        }
    }

    /// Makes `name` what it is; whether the cache held it for something else.
    fn instantiate(
        &self,
        parent: InodeId,
        guard: &DirGuard<'_>,
        name: QStr<'_>,
        inode: Option<&InodeRef<'_>>,
    ) -> Result<bool> {
        self.instantiate_at(parent, guard.epoch(), name, inode)
    }

    /// The name is not believed any more, but still leads to its object. Preconditions:
    /// the directory lock.
    pub fn doubt_name(&self, parent: InodeId, guard: &DirGuard<'_>, name: QStr<'_>) {
        if let Some(id) = self.find(parent, name.as_bytes())
            && let Some(mut dentry) = self.dentries.write(id)
        {
            dentry.epoch = guard.epoch().wrapping_sub(1);
        }
    }

    fn instantiate_at(
        &self,
        parent: InodeId,
        epoch: u32,
        name: QStr<'_>,
        inode: Option<&InodeRef<'_>>,
    ) -> Result<bool> {
        let inode = inode.map(InodeRef::id);
        let bytes = name.as_bytes();
        if let Some(id) = self.find(parent, bytes) {
            let same = self.dentries.write(id).is_some_and(|mut dentry| {
                dentry.epoch = epoch;
                *dentry.referenced.get_mut() = true;
                dentry.inode == inode
            });
            if !same {
                self.attach(id, inode);
                let mut dentry = self.dentries.write(id).expect("I2: hashed dentries live");
                let old = std::mem::replace(&mut dentry.inode, inode);
                drop(dentry);
                self.detach(id, old);
            }
            return Ok(!same);
        }
        let parent_pin = self.inodes.pin(parent).ok_or(Errno::STALE)?;
        let dentry = Dentry {
            name: self.alloc_name(bytes)?,
            parent,
            inode,
            epoch,
            referenced: AtomicBool::new(true),
            dead: false,
        };
        let id = match self.dentries.insert(self.init.fill(dentry)) {
            Ok(id) => id,
            Err(_) => return Err(Errno::NOMEM),
        };
        parent_pin.into_pin();
        self.attach(id, inode);
        let mut shard = self.hash.lock(self.hash_of(parent, bytes));
        shard.insert(id, |id| self.hash_of_id(id));
        drop(shard);
        Ok(false)
    }

    /// Makes dentry `id` a name of `inode`, or counts it as negative. Preconditions: the
    /// caller pins `inode`.
    fn attach(&self, id: DentryId, inode: Option<InodeId>) {
        let Some(inode) = inode else {
            self.counters.negative.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let pin = self.inodes.pin(inode).expect("I3: pinned inodes live");
        pin.into_pin();
        let mut links = self.links.lock();
        let taken = self.inodes.with_mut(inode, |i| match i.alias {
            None => {
                i.alias = Some(id);
                false
            }
            Some(_) => true,
        });
        if taken == Some(true) {
            links.entry(inode).or_default().push(id);
        }
    }

    /// Undoes [`Dcache::attach`].
    fn detach(&self, id: DentryId, inode: Option<InodeId>) {
        let Some(inode) = inode else {
            self.counters.negative.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        {
            let mut links = self.links.lock();
            let was_first = self.inodes.with(inode, |i| i.alias == Some(id)) == Some(true);
            let mut next = None;
            if let Some(more) = links.get_mut(&inode) {
                if was_first {
                    next = more.pop();
                } else {
                    more.retain(|&other| other != id);
                }
                if more.is_empty() {
                    links.remove(&inode);
                }
            }
            if was_first {
                self.inodes.with_mut(inode, |i| i.alias = next);
            }
        }
        self.inodes.unpin(inode);
    }

    /// A name is to be looked up anew; until then it still leads to its inode for those
    /// who climb from there.
    pub fn doubt(&self, parent: InodeId, guard: &mut DirGuard<'_>, name: QStr<'_>) {
        guard.change();
        self.doubt_name(parent, guard, name);
    }

    /// d_drop: forgets a name; whether it was cached. Does not count as a change.
    pub fn remove(&self, parent: InodeId, guard: &mut DirGuard<'_>, name: QStr<'_>) -> bool {
        let Some(id) = self.find(parent, name.as_bytes()) else {
            return false;
        };
        guard.forget_dentry();
        self.hash
            .lock(self.hash_of(parent, name.as_bytes()))
            .remove(id);
        self.free(id);
        true
    }

    /// Frees an unhashed dentry.
    fn free(&self, id: DentryId) {
        let dentry = self.dentries.remove(id).expect("unhashed once, freed once");
        match dentry.name {
            DName::Inline(..) => {}
            DName::External32(name) => drop(self.external32.remove(name)),
            DName::External64(name) => drop(self.external64.remove(name)),
            DName::External256(name) => drop(self.external256.remove(name)),
        }
        self.detach(id, dentry.inode);
        self.inodes.unpin(dentry.parent);
    }

    /// All names of an inode that are cached, as (parent, name), each handed to `f`
    /// until one returns `Some`.
    pub fn aliases<R>(
        &self,
        inode: InodeId,
        mut f: impl FnMut(InodeId, &[u8]) -> Option<R>,
    ) -> Option<R> {
        let mut ids: smallvec::SmallVec<[DentryId; 4]> = smallvec::SmallVec::new();
        {
            let links = self.links.lock();
            ids.extend(self.inodes.with(inode, |i| i.alias).flatten());
            if let Some(more) = links.get(&inode) {
                ids.extend_from_slice(more);
            }
        }
        let mut copy = [0; DNAME_MAX];
        for id in ids {
            // The dentry may have become another one since: then it says so itself.
            let Some((parent, len)) = self.dentries.read(id).and_then(|d| {
                (d.inode == Some(inode)).then(|| (d.parent, self.copy_name(&d.name, &mut copy)))
            }) else {
                continue;
            };
            if let Some(found) = f(parent, &copy[..len]) {
                return Some(found);
            }
        }
        None
    }

    /// One step up: the parent of one name of `inode`, the name put in front of
    /// `path`. `Ok(None)` if no name is cached.
    ///
    /// # Errors
    /// ENAMETOOLONG if the name does not fit in front of `path`.
    pub fn step_up(&self, inode: InodeId, path: &mut Filename) -> Result<Option<InodeId>> {
        self.aliases(inode, |parent, name| {
            Some(if path.prepend(name) {
                Ok(parent)
            } else {
                Err(Errno::NAMETOOLONG)
            })
        })
        .transpose()
    }

    /// d_path: the path of a directory or file from the root, in `path`.
    ///
    /// # Errors
    /// ESTALE if no name leads from the root to it, ENAMETOOLONG.
    pub fn d_path(&self, inode: InodeId, path: &mut Filename) -> Result<()> {
        loop {
            let seq = self.rename_read();
            path.reset();
            let mut at = inode;
            while at != self.inodes.root() {
                at = self.step_up(at, path)?.ok_or(Errno::STALE)?;
            }
            if self.rename_retry(seq) {
                continue;
            }
            return Ok(());
        }
    }

    /// Begins to build a path.
    pub fn rename_read(&self) -> u64 {
        loop {
            let seq = self.rename_seq.load(Ordering::Acquire);
            if seq & 1 == 0 {
                return seq;
            }
            std::hint::spin_loop();
        }
    }

    /// Whether a rename came since [`Dcache::rename_read`], so that a path is in doubt.
    pub fn rename_retry(&self, seq: u64) -> bool {
        self.rename_seq.load(Ordering::Acquire) != seq
    }

    /// A rename begins; it has ended when the guard is dropped. Preconditions: the
    /// directory locks of both names are held (d_move).
    pub fn rename_write(&self) -> RenameGuard<'_> {
        let alone = self.rename_mutex.lock();
        self.rename_seq.fetch_add(1, Ordering::AcqRel);
        RenameGuard {
            dcache: self,
            _alone: alone,
        }
    }

    /// The inode of a cached name, doubtful or not.
    pub fn peek(&self, parent: InodeId, name: QStr<'_>) -> Option<InodeRef<'_>> {
        let name = name.as_bytes();
        let id = self.find(parent, name)?;
        let dentry = self.dentries.read(id)?;
        // The dentry's own pin holds the inode while its slab is locked.
        self.is_it(&dentry, parent, name)
            .then_some(dentry.inode?)
            .and_then(|inode| self.inodes.pin(inode))
    }

    fn alloc_name(&self, name: &[u8]) -> Result<DName> {
        let stored = match name.len() {
            n if n <= DNAME_INLINE => {
                let mut buf = [0; DNAME_INLINE];
                buf[..n].copy_from_slice(name);
                return Ok(DName::Inline(n as u8, buf));
            }
            DNAME_INLINE..=31 => self
                .external32
                .insert(Bytes::new(name))
                .map(DName::External32),
            32..=63 => self
                .external64
                .insert(Bytes::new(name))
                .map(DName::External64),
            _ => self
                .external256
                .insert(Bytes::new(name))
                .map(DName::External256),
        };
        stored.map_err(|_| Errno::NOMEM)
    }

    /// Calls `f` with the bytes of a name; with none where the name was freed meanwhile.
    fn with_name<R>(&self, dname: &DName, f: impl FnOnce(&[u8]) -> R) -> R {
        match *dname {
            DName::Inline(len, ref buf) => f(&buf[..usize::from(len)]),
            DName::External32(id) => match self.external32.read(id) {
                Some(name) => f(name.as_bytes()),
                None => f(&[]),
            },
            DName::External64(id) => match self.external64.read(id) {
                Some(name) => f(name.as_bytes()),
                None => f(&[]),
            },
            DName::External256(id) => match self.external256.read(id) {
                Some(name) => f(name.as_bytes()),
                None => f(&[]),
            },
        }
    }

    /// Copies a name out; its length.
    fn copy_name(&self, dname: &DName, to: &mut [u8; DNAME_MAX]) -> usize {
        self.with_name(dname, |name| {
            to[..name.len()].copy_from_slice(name);
            name.len()
        })
    }

    /// Dentries alive.
    pub fn len(&self) -> usize {
        self.dentries.len()
    }

    /// Whether no name is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dentries_are_compact() {
        assert!(size_of::<Dentry>() <= 40, "{}", size_of::<Dentry>());
    }
}
