//! Giving memory back (floor F3).
//!
//! Purpose: when the budget is exceeded, unused dentries go, the longest unused
//! first as far as a CLOCK hand can tell (second chance); the hand runs over the
//! slabs, so that whole slabs come free.
//!
//! Contract. The hand goes from dentry to directory, against the lock order, and
//! so takes a directory lock only if it is free. Never freed: a dentry whose inode
//! the kernel, an open file or a name below still refers to, because the path to
//! it is built from its names.
//!
//! It does not ask the kernel to forget; `fs` does.

use super::{DNAME_MAX, Dcache, DentryId, InodeId, QStr};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// A name below a directory and what it is.
pub type CachedName = (InodeId, Box<[u8]>, Option<InodeId>);

/// What a pass of the hand should do with what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Spare what was used since the last pass.
    SecondChance,
    /// Spare what is not doubtful: names of the present epoch of their directory.
    Doubtful,
}

/// Takes a name that the kernel may hold although it refers to nothing of ours: an absence, or
/// an object whose number is another's by now. Nodeid of the directory, name.
pub type Absent<'a> = dyn FnMut(super::NodeId, &[u8]) + 'a;

impl Dcache {
    /// Bytes that the caches hold, tables and listings included.
    pub fn bytes(&self) -> usize {
        self.dentries.bytes()
            + self.external32.bytes()
            + self.external64.bytes()
            + self.external256.bytes()
            + self.hash.bytes()
            + self.inodes.bytes()
            + self.counters.listing_bytes.load(Ordering::Relaxed) as usize
    }

    /// Dentries that nothing needs, so that the hand could free them: an estimate, for
    /// dentry-state.
    pub fn unused(&self) -> usize {
        let mut unused = 0;
        for slab in 0..self.dentries.slab_count() {
            self.dentries.scan_slab(slab, |_, d| {
                let used = d.inode.is_some_and(|inode| {
                    self.inodes
                        .with(inode, |i| i.nlookup() > 0 || i.pins() > 1)
                        .unwrap_or(false)
                });
                unused += usize::from(!used);
            });
        }
        unused
    }

    /// Moves the hand until `count` dentries are freed or it has gone round twice (for
    /// what is doubtful: until a round frees nothing, as a directory's name comes free
    /// only after those below it); how many were freed. Those of which no reference
    /// of the kernel's tells are handed to `absent`, as it may still hold them.
    pub fn scan(&self, count: usize, sweep: Sweep, absent: &mut Absent<'_>) -> usize {
        let (mut freed, mut round) = (0, 0);
        loop {
            let before = freed;
            let slabs = self.dentries.slab_count() as u64;
            for _ in 0..slabs {
                if freed >= count {
                    break;
                }
                let slab = self.hand.fetch_add(1, Ordering::Relaxed) % slabs;
                freed += self.scan_slab(slab as usize, sweep, absent);
            }
            round += 1;
            let again = match sweep {
                Sweep::SecondChance => round < 2,
                Sweep::Doubtful => freed > before,
            };
            if freed >= count || !again {
                break;
            }
        }
        self.counters
            .reclaimed
            .fetch_add(freed as u64, Ordering::Relaxed);
        freed
    }

    fn scan_slab(&self, slab: usize, sweep: Sweep, absent: &mut Absent<'_>) -> usize {
        let mut victims = Vec::new();
        self.dentries.scan_slab(slab, |id, dentry| {
            let spared =
                sweep == Sweep::SecondChance && dentry.referenced.swap(false, Ordering::Relaxed);
            if !spared {
                victims.push((id, dentry.parent));
            }
        });
        victims
            .into_iter()
            .filter(|&(id, parent)| self.evict(id, parent, sweep, absent))
            .count()
    }

    /// Frees a dentry below `parent` if nothing needs it.
    fn evict(&self, id: DentryId, parent: InodeId, sweep: Sweep, absent: &mut Absent<'_>) -> bool {
        let Some(dir) = self.inodes.with(parent, |i| i.dir().cloned()).flatten() else {
            return false;
        };
        let Some(mut guard) = dir.try_lock() else {
            return false;
        };
        let mut name = [0; DNAME_MAX];
        let (len, silent) = {
            // Under the directory lock nobody else changes or frees a dentry below
            // it; under its slab's lock nobody finds it and pins the inode.
            let links = self.links.lock();
            let Some(mut dentry) = self.dentries.write(id) else {
                return false;
            };
            // The directory is held by the dentry; it may be another with the same id.
            let locked = |i: &super::Inode| i.dir().is_some_and(|d| Arc::ptr_eq(d, &dir));
            let same = dentry.parent == parent && self.inodes.with(parent, locked) == Some(true);
            if !same || dentry.dead {
                return false;
            }
            if sweep == Sweep::Doubtful && dentry.epoch == dir.epoch() {
                return false;
            }
            if let Some(inode) = dentry.inode {
                let names = 1 + links.get(&inode).map_or(0, Vec::len) as u32;
                let unused = self
                    .inodes
                    .with(inode, |i| i.nlookup() == 0 && i.pins() == names);
                if unused != Some(true) {
                    return false;
                }
            }
            dentry.dead = true;
            guard.forget_dentry();
            // References of the kernel's go with the number, its name for the object stays.
            let is_told = |inode| self.inodes.with(inode, |i| i.is_hashed()) == Some(true);
            let silent = !dentry.inode.is_some_and(is_told);
            (self.copy_name(&dentry.name, &mut name), silent)
        };
        if silent && let Some(nodeid) = self.inodes.with(parent, |i| i.nodeid()) {
            absent(nodeid, &name[..len]);
        }
        self.hash
            .lock(self.hash_of(parent, &name[..len]))
            .remove(id);
        self.free(id);
        true
    }

    /// Drops cached listings until `bytes` are freed or none is left; how many
    /// bytes were freed.
    pub fn drop_listings(&self, bytes: usize) -> usize {
        let mut freed = 0;
        for dir in self.inodes.dirs() {
            if freed >= bytes {
                break;
            }
            freed += dir.try_lock().map_or(0, |mut guard| guard.drop_listing());
        }
        freed
    }

    /// Everything that is cached is doubtful from now on: names, listings,
    /// attributes.
    pub fn doubt_all(&self) {
        for dir in self.inodes.dirs() {
            dir.lock().doubt();
        }
        for id in self.inodes.ids() {
            self.inodes.with_mut(id, |inode| inode.forget_attr());
        }
    }

    /// Gives free memory back to the system.
    pub fn shrink(&self) {
        self.dentries.shrink();
        self.external32.shrink();
        self.external64.shrink();
        self.external256.shrink();
        self.hash.shrink(|id| self.hash_of_id(id));
        self.inodes.shrink();
    }

    /// Cached names at some moment during the call, each handed to `f` with the nodeid of
    /// its parent and whether it is a directory, without any lock held.
    pub fn for_each_name(&self, mut f: impl FnMut(super::NodeId, QStr<'_>, bool)) {
        let mut names: Vec<CachedName> = Vec::new();
        for slab in 0..self.dentries.slab_count() {
            self.dentries.scan_slab(slab, |_, d| {
                let mut name = [0; DNAME_MAX];
                let len = self.copy_name(&d.name, &mut name);
                names.push((d.parent, name[..len].into(), d.inode));
            });
            for (parent, name, inode) in names.drain(..) {
                let nodeid = self.inodes.with(parent, |i| i.nodeid());
                let dir = inode.and_then(|inode| self.inodes.with(inode, |i| i.dir().is_some()));
                if let (Some(nodeid), Ok(name)) = (nodeid, QStr::new(&name)) {
                    f(nodeid, name, dir == Some(true));
                }
            }
        }
    }

    /// Cached names below a directory, however deep, at some moment during the call:
    /// parent, name and what it is. A walk over all dentries.
    pub fn names_below(&self, top: InodeId) -> Vec<CachedName> {
        let mut below: std::collections::HashMap<InodeId, Vec<CachedName>> =
            std::collections::HashMap::new();
        for slab in 0..self.dentries.slab_count() {
            self.dentries.scan_slab(slab, |_, d| {
                let mut name = [0; DNAME_MAX];
                let len = self.copy_name(&d.name, &mut name);
                let cached = (d.parent, name[..len].into(), d.inode);
                below.entry(d.parent).or_default().push(cached);
            });
        }
        let (mut found, mut todo) = (Vec::new(), vec![top]);
        while let Some(parent) = todo.pop() {
            let names = below.remove(&parent).unwrap_or_default();
            todo.extend(names.iter().filter_map(|(_, _, inode)| *inode));
            found.extend(names);
        }
        found
    }

    /// The end of the mount: nothing refers to anything any more. What is then
    /// still in use was leaked.
    pub fn end(&self) {
        for slab in 0..self.dentries.slab_count() {
            let mut ids = Vec::new();
            self.dentries.scan_slab(slab, |id, _| ids.push(id));
            ids.into_iter().for_each(|id| self.free(id));
        }
        self.hash.clear();
        self.inodes.end();
    }

    /// Whether the invariants hold; for tests, with no request under way.
    ///
    /// # Errors
    /// Says what does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut pins: std::collections::HashMap<InodeId, u32> = [(self.inodes.root(), 1)].into();
        let (mut negative, mut alive) = (0, 0);
        let mut names = Vec::new();
        for slab in 0..self.dentries.slab_count() {
            self.dentries.scan_slab(slab, |id, d| {
                let mut name = [0; DNAME_MAX];
                let len = self.copy_name(&d.name, &mut name);
                names.push((id, d.parent, name[..len].to_vec(), d.inode));
            });
        }
        for (id, parent, name, inode) in names {
            alive += 1;
            *pins.entry(parent).or_default() += 1;
            match inode {
                Some(inode) => *pins.entry(inode).or_default() += 1,
                None => negative += 1,
            }
            if self.find(parent, &name) != Some(id) {
                return Err(format!(
                    "I2: {:?} is not found by its key",
                    String::from_utf8_lossy(&name)
                ));
            }
            if let Some(inode) = inode {
                let named = self.aliases(inode, |p, n| (p == parent && n == name).then_some(()));
                if named.is_none() {
                    return Err(format!("I6: inode {inode:?} does not know its name"));
                }
            }
        }
        if alive != self.hash.len() {
            return Err(format!("I2: {alive} dentries, {} hashed", self.hash.len()));
        }
        if negative != self.counters.negative.load(Ordering::Relaxed) {
            return Err(format!(
                "{negative} negative dentries are counted otherwise"
            ));
        }
        for id in self.inodes.ids() {
            let (has, nlookup) = self
                .inodes
                .with(id, |i| (i.pins(), i.nlookup()))
                .unwrap_or((0, 0));
            let wants = pins.remove(&id).unwrap_or(0);
            if has < wants || (has == 0 && nlookup == 0) {
                return Err(format!(
                    "I1: inode {id:?} has {has} pins of {wants}, nlookup {nlookup}"
                ));
            }
        }
        for id in self.inodes.ids() {
            let dir = self.inodes.with(id, |i| i.dir().cloned()).flatten();
            if dir.is_some_and(|dir| !self.check_listing(id, &dir)) {
                return Err(format!(
                    "I12: the listing of inode {id:?} is of other dentries"
                ));
            }
        }
        match pins.keys().next() {
            Some(id) => Err(format!("I1: inode {id:?} is gone but named")),
            None => Ok(()),
        }
    }
}
