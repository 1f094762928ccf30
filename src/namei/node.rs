//! Objects by their names (floor F4): descriptors and attributes.
//!
//! Contract: what a name leads to is compared with the inode before it is used (I10); a
//! name that leads elsewhere is dropped. No lock is held around a call of the source.

use std::time::Duration;

use super::{Asked, Coherence, Namei};
use crate::dcache::{Inode, InodeId, Stamp};
use crate::error::{Errno, Result};
use crate::name::{Filename, QStr};
use crate::notice::Notice;
use crate::source::{Attr, Kind, Source};

impl<S: Source> Namei<S> {
    /// A descriptor of an inode: of a directory from the LRU if it is there.
    ///
    /// # Errors
    /// ESTALE if no cached name leads to this very object any more, and the
    /// source's.
    pub fn node(&self, inode: InodeId) -> Result<S::Node> {
        self.with_descriptors(|| self.find_node(inode))
    }

    /// Calls `f`, and once more with all cached descriptors closed if there were too many.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn with_descriptors<R>(&self, mut f: impl FnMut() -> Result<R>) -> Result<R> {
        match f() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.nodes.clear();
                f()
            }
            other => other,
        }
    }

    fn find_node(&self, inode: InodeId) -> Result<S::Node> {
        if inode == self.dcache.inodes.root() {
            return Ok(self.source.root());
        }
        let key = self
            .dcache
            .inodes
            .with(inode, |i| (i.nodeid(), i.generation(), i.kind()));
        let (nodeid, generation, kind) = key.ok_or(Errno::STALE)?;
        if kind != Kind::Directory {
            return self.open_by_name(inode);
        }
        if let Some(node) = self.nodes.get((nodeid, generation)) {
            return Ok(node);
        }
        let node = self.open_by_path(inode)?;
        self.nodes.insert((nodeid, generation), node.clone());
        Ok(node)
    }

    /// Opens a directory by its path below the nearest ancestor with a descriptor.
    fn open_by_path(&self, inode: InodeId) -> Result<S::Node> {
        let mut path = self.names.getname()?;
        // What the components of `path` lead to, the last one first.
        let mut chain: smallvec::SmallVec<[InodeId; 16]> = smallvec::SmallVec::new();
        'climb: loop {
            let seq = self.dcache.rename_read();
            path.reset();
            chain.clear();
            let mut at = inode;
            let base = loop {
                if at == self.dcache.inodes.root() {
                    break self.source.root();
                }
                if at != inode
                    && let Some(node) = self.nodes.get(self.key(at))
                {
                    break node;
                }
                if chain.contains(&at) {
                    // Parents that were seen at different times go round in a circle.
                    chain.iter().for_each(|&id| self.forget_names(id));
                    return Err(Errno::STALE);
                }
                match self.dcache.step_up(at, &mut path) {
                    Ok(Some(parent)) => {
                        chain.push(at);
                        at = parent;
                    }
                    Ok(None) => {
                        // Nothing leads to `at`; perhaps another name leads to `inode`.
                        let first = path.as_bytes().split(|&byte| byte == b'/').next();
                        let name = self.names.getname_from(first.unwrap_or_default())?;
                        if chain.is_empty() || !self.forget_name(at, &name) {
                            return Err(Errno::STALE);
                        }
                        continue 'climb;
                    }
                    // The path is longer than a buffer: the rest of it first.
                    Err(_) => break self.node(at)?,
                }
            };
            if self.dcache.rename_retry(seq) {
                continue;
            }
            let opened = self.source.open_node(&base, path.as_cstr());
            match opened.and_then(|node| Ok((self.source.stat(&node)?, node))) {
                Ok((attr, node)) if self.is_object(inode, &attr) => return Ok(node),
                Err(e) if gone_is_stale(e) != Errno::STALE => return Err(e),
                // Some name on the way is not what it was.
                _ => {
                    if let Some(node) = self.prune(at, base, &path, &chain)? {
                        return Ok(node);
                    }
                }
            }
        }
    }

    /// Drops the first name of `path` below `at`, open as `base`, that does not lead
    /// where the cache says, and takes up the one it has now in the same directory; `chain`
    /// is what the cache says, the last one first. If there is no such name any more, the
    /// last object.
    ///
    /// # Errors
    /// ESTALE if the name was not even cached any more, and the source's.
    fn prune(
        &self,
        mut at: InodeId,
        base: S::Node,
        path: &Filename,
        chain: &[InodeId],
    ) -> Result<Option<S::Node>> {
        let mut node = base;
        let components = path.as_bytes().split(|&byte| byte == b'/');
        for (component, &child) in components.zip(chain.iter().rev()) {
            let name = self.names.getname_from(component)?;
            let opened = self.source.open_node(&node, name.as_cstr());
            match opened.and_then(|node| Ok((self.source.stat(&node)?, node))) {
                Ok((attr, next)) if self.is_object(child, &attr) => (at, node) = (child, next),
                Err(e) if gone_is_stale(e) != Errno::STALE => return Err(e),
                _ => {
                    let qstr = QStr::new(name.as_bytes())?;
                    let gone = self.dcache.peek(at, qstr);
                    if !self.forget(at, qstr) {
                        return Err(Errno::STALE);
                    }
                    if let Some(gone) = &gone {
                        self.find_renamed(gone, at, &node);
                    }
                    return Ok(None);
                }
            }
        }
        Ok(Some(node))
    }

    /// Opens an object by any of its names that still leads to it.
    fn open_by_name(&self, inode: InodeId) -> Result<S::Node> {
        self.by_any_name(inode, |dir, name| {
            let node = self.source.open_node(dir, name.as_cstr())?;
            let attr = self.source.stat(&node)?;
            Ok((attr, node))
        })
        .map(|(_, node)| node)
    }

    /// Calls `f` with each name of an inode until the attributes it returns are the
    /// inode's own. Names that lead elsewhere are dropped.
    fn by_any_name<R>(
        &self,
        inode: InodeId,
        f: impl Fn(&S::Node, &Filename) -> Result<(Attr, R)>,
    ) -> Result<(Attr, R)> {
        let mut names: smallvec::SmallVec<[(InodeId, Filename); 1]> = smallvec::SmallVec::new();
        self.dcache.aliases(inode, |parent, name| {
            // Beyond a handful of dead names it is not worth the memory.
            match self.names.getname_from(name) {
                Ok(filename) if names.len() < 8 => {
                    names.push((parent, filename));
                    None
                }
                _ => Some(()),
            }
        });
        for (parent, filename) in &names {
            // A parent that cannot be reached says nothing about the name in it.
            let dir = match self.node(*parent) {
                Err(Errno::STALE) => continue,
                other => other?,
            };
            let tried = f(&dir, filename).map_err(gone_is_stale);
            match tried {
                Ok((attr, r)) if self.is_object(inode, &attr) => return Ok((attr, r)),
                Ok(_) | Err(Errno::STALE) => {
                    self.forget_name(*parent, filename);
                }
                Err(e) => return Err(e),
            }
        }
        Err(Errno::STALE)
    }

    /// Drops a name that did not lead where the cache said, and the listing with it;
    /// whether it was cached.
    fn forget_name(&self, parent: InodeId, name: &Filename) -> bool {
        QStr::new(name.as_bytes()).is_ok_and(|name| self.forget(parent, name))
    }

    /// Drops a name and the listing that it is in, here and in the kernel; whether it was
    /// cached.
    pub fn forget(&self, parent: InodeId, name: QStr<'_>) -> bool {
        let Ok(dir) = self.dir(parent) else {
            return false;
        };
        let mut guard = dir.lock();
        let was_cached = self.dcache.remove(parent, &mut guard, name);
        guard.change();
        drop(guard);
        if was_cached && let Some(nodeid) = self.dcache.inodes.with(parent, |i| i.nodeid()) {
            let name = name.as_bytes().into();
            self.notices.doubt(nodeid);
            self.notices.push(Notice::Entry {
                parent: nodeid,
                name,
            });
            self.notices.push(Notice::Inode { nodeid });
        }
        was_cached
    }

    /// Drops all names of an inode.
    fn forget_names(&self, inode: InodeId) {
        let Ok(mut path) = self.names.getname() else {
            return;
        };
        while let Ok(Some(parent)) = self.dcache.step_up(inode, &mut path) {
            if !self.forget_name(parent, &path) {
                return;
            }
            path.reset();
        }
    }

    /// Attributes of an inode and how much longer they may be believed.
    ///
    /// # Errors
    /// ESTALE if no cached name leads to it any more, and the source's.
    pub fn getattr(&self, inode: InodeId) -> Result<(Attr, Duration)> {
        if let Some((attr, at)) = self.dcache.inodes.attr(inode) {
            let left = self.attr_left(inode, &attr, None, at, self.clock.now());
            if !left.is_zero() {
                return Ok((attr, left));
            }
        }
        self.read_attr(inode)
    }

    /// As [`Namei::getattr`], read from the source whatever is cached, with the birth time.
    ///
    /// # Errors
    /// As [`Namei::getattr`].
    pub fn read_attr(&self, inode: InodeId) -> Result<(Attr, Duration)> {
        let mut moment = self.attr_moment(inode);
        let kind = self.dcache.inodes.with(inode, |i| i.kind());
        let kind = kind.ok_or(Errno::STALE)?;
        let attr = if kind == Kind::Directory {
            let node = self.node(inode)?;
            self.ensure_watch(inode, &self.dir(inode)?, &node);
            moment = self.attr_moment(inode);
            let attr = self.source.stat(&node)?;
            self.still_named(inode, &attr)?;
            attr
        } else {
            self.by_any_name(inode, |dir, name| {
                Ok((self.source.stat_at(dir, name.as_cstr())?, ()))
            })?
            .0
        };
        self.compare_stamp(inode, &attr);
        Ok((attr, self.took_attr_since(inode, &attr, moment)))
    }

    /// Whether an inode is known to have no extended attribute: what changes them changes the
    /// ctime and is told of, so that is believed as long as the attributes are.
    pub fn is_plain(&self, inode: InodeId) -> bool {
        let inodes = &self.dcache.inodes;
        inodes.with(inode, Inode::is_plain) == Some(true)
            && inodes.attr(inode).is_some_and(|(attr, at)| {
                let now = self.clock.now();
                !self.attr_left(inode, &attr, None, at, now).is_zero()
            })
    }

    /// A directory's own attributes tell whether its names are as they were proved. The
    /// kernel keeps a listing as long as the mtime that it knows stays the same, so it
    /// must not get a listing that is older than the attributes.
    pub(super) fn compare_stamp(&self, inode: InodeId, attr: &Attr) {
        if attr.kind != Kind::Directory {
            return;
        }
        let Ok(dir) = self.dir(inode) else { return };
        if dir.is_watched() || self.policy.coherence == Coherence::Frozen {
            return;
        }
        let mut guard = dir.lock();
        let other = |s: Stamp| s.mtime != attr.mtime || s.ctime != attr.ctime;
        if guard.state.stamp.is_some_and(other) {
            guard.doubt();
        }
    }

    /// To be called before attributes of an inode are read from the source.
    pub fn attr_moment(&self, inode: InodeId) -> (u16, Asked) {
        let moment = self.dcache.inodes.with(inode, |i| i.attr_moment());
        (moment.unwrap_or_default(), self.clock.asked())
    }

    /// Takes over attributes that were read since `moment`; how long they may be believed.
    pub fn took_attr_since(
        &self,
        inode: InodeId,
        attr: &Attr,
        (moment, asked): (u16, Asked),
    ) -> Duration {
        let inodes = &self.dcache.inodes;
        match inodes.set_attr_since(inode, attr, asked.at, moment) {
            true => self.attr_fresh(inode, attr, None, asked),
            false => Duration::ZERO,
        }
    }

    /// What to answer when the source found a directory itself gone (ENOENT): nothing
    /// leads to it any more.
    pub fn gone(&self, inode: InodeId, e: Errno) -> Errno {
        if e != Errno::NOENT || inode == self.dcache.inodes.root() {
            return e;
        }
        self.nodes.remove(self.key(inode));
        self.forget_names(inode);
        Errno::STALE
    }

    /// Attributes that were read through a descriptor are of an object that still has a
    /// name; else nothing leads to it any more.
    ///
    /// # Errors
    /// ESTALE.
    pub fn still_named(&self, inode: InodeId, attr: &Attr) -> Result<()> {
        match attr.nlink {
            0 if inode != self.dcache.inodes.root() => Err(self.gone(inode, Errno::NOENT)),
            _ => Ok(()),
        }
    }

    pub(super) fn key(&self, inode: InodeId) -> (u64, u32) {
        self.dcache
            .inodes
            .with(inode, |i| (i.nodeid(), i.generation()))
            .unwrap_or_default()
    }
}

/// A request for a *node* whose name leads nowhere is answered ESTALE, so that the
/// kernel looks the name up again; ENOENT would be taken for an answer.
fn gone_is_stale(e: Errno) -> Errno {
    match e {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => Errno::STALE,
        other => other,
    }
}
