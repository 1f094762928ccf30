//! What a process sees: the kernel answers from what it holds, as long as it was told
//! that it may, and follows the notices.
//!
//! Played in the way that is worst for us: what is invalidated is dropped, and not one
//! name more, but for the absences below an invalidated directory.

use std::collections::BTreeMap;
use std::time::Duration;

use super::kernel::{Kernel, Known};
use crate::clock::Millis;
use crate::dcache::NodeId;
use crate::error::{Errno, Result};
use crate::fs::{Coherence, Entry};
use crate::namei::FOREVER;
use crate::notice::Notice;
use crate::source::{Attr, Kind, Time};

/// A name that the kernel holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    known: Option<Known>,
    until: Millis,
}

/// A listing that the kernel holds, and the directory's mtime as it knew it then.
struct Listing {
    names: BTreeMap<Vec<u8>, Kind>,
    mtime: Time,
}

/// The kernel's caches.
#[derive(Default)]
pub(super) struct Cache {
    names: BTreeMap<(NodeId, Vec<u8>), Held>,
    attrs: BTreeMap<NodeId, (Attr, Millis)>,
    listings: BTreeMap<NodeId, Listing>,
}

impl Kernel {
    fn until(&self, left: Duration) -> Millis {
        if left >= FOREVER {
            return Millis::MAX;
        }
        self.now() + left.as_millis() as u64
    }

    /// A reply named an object.
    pub(super) fn hold_entry(&mut self, dir: Known, name: &[u8], entry: &Entry) {
        self.make_bad(entry);
        let known = Some(self.known(entry));
        let until = self.until(entry.name_ttl);
        let key = (dir.nodeid, name.to_vec());
        self.cache.names.insert(key, Held { known, until });
        self.hold_attr(entry.nodeid, entry.attr, entry.attr_ttl);
    }

    /// A reply with the number of an object that the kernel knows, but of another
    /// generation: the old inode is bad, and a name that leads to it is looked up anew
    /// (`fuse_iget`, `fuse_dentry_revalidate`).
    fn make_bad(&mut self, entry: &Entry) {
        let bad = |known: Known| known.nodeid == entry.nodeid && known.id != entry.attr.id;
        let before = self.cache.names.len();
        self.cache
            .names
            .retain(|_, held| !held.known.is_some_and(bad));
        if self.cache.names.len() != before {
            self.cache.names.retain(|(dir, _), _| *dir != entry.nodeid);
            self.let_go_of(entry.nodeid);
        }
    }

    /// A reply said that a name is absent.
    pub(super) fn hold_absence(&mut self, dir: Known, name: &[u8], left: Duration) {
        let (known, until) = (None, self.until(left));
        let key = (dir.nodeid, name.to_vec());
        self.cache.names.insert(key, Held { known, until });
    }

    /// A reply told attributes.
    pub(super) fn hold_attr(&mut self, nodeid: NodeId, attr: Attr, left: Duration) {
        let until = self.until(left);
        self.cache.attrs.insert(nodeid, (attr, until));
    }

    /// The kernel asked for a change of a name itself, and so knows better.
    pub(super) fn let_go(&mut self, dir: Known, name: &[u8]) {
        self.cache.names.remove(&(dir.nodeid, name.to_vec()));
        self.let_go_of(dir.nodeid);
    }

    /// ... of an object.
    pub(super) fn let_go_of(&mut self, nodeid: NodeId) {
        self.cache.attrs.remove(&nodeid);
        self.cache.listings.remove(&nodeid);
    }

    /// d_move: the kernel holds what it held of the old name for the new one.
    pub(super) fn hold_moved(&mut self, old: (Known, &[u8]), new: (Known, &[u8]), exchange: bool) {
        let keys = [old, new].map(|(dir, name)| (dir.nodeid, name.to_vec()));
        let [from, to] = keys.clone().map(|key| self.cache.names.remove(&key));
        let [old_key, new_key] = keys;
        for held in [from, to].into_iter().flatten() {
            if let Some(known) = held.known {
                self.let_go_of(known.nodeid);
            }
        }
        if let Some(held) = from {
            self.cache.names.insert(new_key, held);
        }
        if let (Some(held), true) = (to, exchange) {
            self.cache.names.insert(old_key, held);
        }
        self.let_go_of(old.0.nodeid);
        self.let_go_of(new.0.nodeid);
    }

    /// What `name` is, from the kernel's cache if it may.
    fn see(&mut self, dir: Known, name: &[u8], anew: bool) -> Result<Option<Known>> {
        let held = self.cache.names.get(&(dir.nodeid, name.to_vec()));
        match held {
            Some(held) if held.until > self.now() && !anew => Ok(held.known),
            _ => self.lookup(dir, name),
        }
    }

    fn see_path(&mut self, path: &[u8], anew: bool) -> Result<Option<Known>> {
        let mut known = self.root();
        for name in path.split(|byte| *byte == b'/').filter(|n| !n.is_empty()) {
            if known.kind != Kind::Directory {
                return Ok(None);
            }
            match self.see(known, name, anew)? {
                Some(next) => known = next,
                None => return Ok(None),
            }
        }
        Ok(Some(known))
    }

    /// Once from the caches; after ESTALE once more with everything asked anew.
    fn twice<R>(&mut self, mut f: impl FnMut(&mut Self, bool) -> Result<R>) -> Result<R> {
        match f(self, false) {
            Err(Errno::STALE) => f(self, true),
            other => other,
        }
    }

    fn see_attr(&mut self, known: Known) -> Result<Attr> {
        match self.cache.attrs.get(&known.nodeid) {
            Some((attr, until)) if *until > self.now() => Ok(*attr),
            _ => self.getattr(known, None),
        }
    }

    /// What `path` leads to.
    pub(super) fn user_walk(&mut self, path: &[u8]) -> Result<Option<Known>> {
        self.twice(|kernel, anew| kernel.see_path(path, anew))
    }

    /// stat(2).
    pub(super) fn user_stat(&mut self, path: &[u8]) -> Result<Option<Attr>> {
        self.twice(|kernel, anew| match kernel.see_path(path, anew)? {
            Some(known) => kernel.see_attr(known).map(Some),
            None => Ok(None),
        })
    }

    /// readdir(3), with what the names are; `None` if there is no directory. Once more
    /// from the path on where the directory was replaced after it had been found.
    pub(super) fn user_list(
        &mut self,
        path: &[u8],
        plus: bool,
    ) -> Result<Option<BTreeMap<Vec<u8>, Kind>>> {
        self.twice(|kernel, anew| {
            let found = kernel.see_path(path, anew)?;
            match found.filter(|dir| dir.kind == Kind::Directory) {
                Some(dir) => kernel.see_list(dir, plus).map(Some),
                None => Ok(None),
            }
        })
    }

    fn see_list(&mut self, dir: Known, plus: bool) -> Result<BTreeMap<Vec<u8>, Kind>> {
        // In strict mode directories are opened, and then nothing of them is kept.
        let kept = self.fs.options().coherence != Coherence::Strict;
        let mtime = match kept {
            true => Some(self.see_attr(dir)?.mtime),
            false => None,
        };
        if let (Some(mtime), Some(held)) = (mtime, self.cache.listings.get(&dir.nodeid))
            && held.mtime == mtime
        {
            return Ok(held.names.clone());
        }
        let listed = self.list(dir, 64, plus)?;
        let names: BTreeMap<Vec<u8>, Kind> = listed
            .into_iter()
            .map(|(name, (kind, _))| (name, kind))
            .collect();
        if let Some(mtime) = mtime {
            let names = names.clone();
            self.cache
                .listings
                .insert(dir.nodeid, Listing { names, mtime });
        }
        Ok(names)
    }

    /// FUSE_NOTIFY_INVAL_ENTRY.
    fn inval_entry(&mut self, parent: NodeId, name: &[u8]) {
        let held = self.cache.names.remove(&(parent, name.to_vec()));
        if let Some(known) = held.and_then(|held| held.known) {
            let below = |dir: NodeId| dir == known.nodeid;
            self.cache
                .names
                .retain(|(dir, _), held| !below(*dir) || held.known.is_some());
        }
        self.cache.listings.remove(&parent);
    }

    /// Carries out the notices that wait, as the notifier thread does.
    pub(super) fn deliver(&mut self) {
        while let Some(notice) = self.fs.notices().try_pop() {
            match notice {
                Notice::Entry { parent, name } | Notice::Removed { parent, name, .. } => {
                    self.inval_entry(parent, &name);
                }
                Notice::Inode { nodeid } => self.let_go_of(nodeid),
                Notice::Attr { nodeid, .. } => drop(self.cache.attrs.remove(&nodeid)),
                Notice::Reclaim { names } => {
                    let all = self.names_of_the_mount();
                    for (parent, name) in all.into_iter().take(names) {
                        self.inval_entry(parent, &name);
                    }
                    self.fs.namei().reclaim(names);
                }
                Notice::Everything => {
                    for (parent, name) in self.names_of_the_mount() {
                        self.inval_entry(parent, &name);
                    }
                    let inodes = &self.fs.namei().dcache.inodes;
                    let nodeids: Vec<NodeId> = inodes
                        .ids()
                        .into_iter()
                        .filter_map(|id| inodes.with(id, |i| i.nodeid()))
                        .collect();
                    nodeids
                        .into_iter()
                        .for_each(|nodeid| self.let_go_of(nodeid));
                    self.fs.dropped();
                }
            }
        }
    }

    fn names_of_the_mount(&self) -> Vec<(NodeId, Vec<u8>)> {
        let mut names = Vec::new();
        let dcache = &self.fs.namei().dcache;
        dcache.for_each_name(|parent, name, _| names.push((parent, name.as_bytes().to_vec())));
        names
    }

    /// The kernel forgot an object, and all it held of it.
    pub(super) fn evict(&mut self, nodeid: NodeId) {
        let of = |known: Option<Known>| known.is_some_and(|known| known.nodeid == nodeid);
        self.cache
            .names
            .retain(|(dir, _), held| *dir != nodeid && !of(held.known));
        self.let_go_of(nodeid);
    }

    /// Everything that came from behind has been followed and told.
    pub(super) fn quiet(&mut self) {
        loop {
            self.fs.follow();
            self.deliver();
            if self.source.waiting_events() == 0 && self.fs.notices().pending() == 0 {
                break;
            }
        }
        self.quiet_at = self.now();
    }
}
