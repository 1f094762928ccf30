//! The dentry cache follows the changes that this mount makes (floor F4).
//!
//! Contract: called after the source has made the change, by the request that made
//! it; the kernel holds the directory's own lock meanwhile, so no lookup below it
//! is under way but a revalidation, whose answer is void by [`DirGuard::change`].

use super::Namei;
use crate::clock::Asked;
use crate::dcache::{Added, DirGuard, InodeId, InodeRef, Moment};
use crate::error::{Errno, Result};
use crate::name::{Filename, QStr};
use crate::source::{Attr, Source};
use crate::sync::Arc;

/// RENAME_EXCHANGE of renameat2(2).
const EXCHANGE: u32 = 2;
/// RENAME_WHITEOUT of renameat2(2).
const WHITEOUT: u32 = 4;

impl<S: Source> Namei<S> {
    /// `name` below `parent` is now the object that `attr`, read since `moment`, is of;
    /// with it, whether the attributes may be believed.
    ///
    /// # Errors
    /// ESTALE if the directory is gone, ENOMEM.
    pub fn created(
        &self,
        parent: InodeId,
        node: &S::Node,
        name: &Filename,
        attr: &Attr,
        (moment, asked): (Moment, Asked),
    ) -> Result<(InodeRef<'_>, bool)> {
        let inode = self.iget(attr, node, name)?;
        let dir = self.dir(parent)?;
        let mut guard = dir.lock();
        let quiet = guard.unchanged_since(moment);
        // Not cached for want of memory: looked up again when it is needed.
        let name = QStr::new(name.as_bytes())?;
        let _ = self.dcache.set(parent, &mut guard, name, Some(&inode));
        // Else somebody else's change was told of since: maybe of this very object.
        match quiet {
            true => self.dcache.inodes.set_attr(inode.id(), attr, asked.at),
            false => self.changed(inode.id()),
        }
        drop(guard);
        self.changed(parent);
        self.added(parent, Added::Kept);
        Ok((inode, quiet))
    }

    /// A change of `name` below `parent` failed, or what became of it could not be read:
    /// the source said what the cache did not know, or may have done half of it.
    pub fn doubt_name(&self, parent: InodeId, name: QStr<'_>) {
        let Ok(dir) = self.dir(parent) else { return };
        self.dcache.doubt(parent, &mut dir.lock(), name);
        self.changed(parent);
        if let Some(inode) = self.dcache.peek(parent, name) {
            self.changed(inode.id());
        }
    }

    /// `name` below `parent` is no more.
    ///
    /// # Errors
    /// ESTALE if the directory is gone.
    pub fn removed(&self, parent: InodeId, name: QStr<'_>) -> Result<()> {
        let dir = self.dir(parent)?;
        let mut guard = dir.lock();
        if let Some(inode) = self.dcache.peek(parent, name) {
            // Its links and ctime are others now; a directory has none any more.
            self.changed(inode.id());
            self.nodes.remove(self.key(inode.id()));
        }
        let _ = self.dcache.set(parent, &mut guard, name, None);
        drop(guard);
        self.changed(parent);
        Ok(())
    }

    /// `old` below `old_parent` was renamed to `new` below `new_parent`, with
    /// renameat2(2)'s flags.
    ///
    /// # Errors
    /// ESTALE if a directory is gone.
    pub fn renamed(
        &self,
        (old_parent, old): (InodeId, QStr<'_>),
        (new_parent, new): (InodeId, QStr<'_>),
        flags: u32,
    ) -> Result<()> {
        let (old_dir, new_dir) = (self.dir(old_parent)?, self.dir(new_parent)?);
        // Two directory locks are taken in the order of their addresses.
        let mut guards: (DirGuard<'_>, Option<DirGuard<'_>>) = if old_parent == new_parent {
            (old_dir.lock(), None)
        } else if Arc::as_ptr(&old_dir) < Arc::as_ptr(&new_dir) {
            let old = old_dir.lock();
            (old, Some(new_dir.lock()))
        } else {
            let new = new_dir.lock();
            (old_dir.lock(), Some(new))
        };
        let moved = self.dcache.peek(old_parent, old);
        let replaced = self.dcache.peek(new_parent, new);
        let exchanged = flags & EXCHANGE != 0;
        for inode in [&moved, &replaced].into_iter().flatten() {
            self.changed(inode.id());
        }
        if !exchanged && let Some(inode) = &replaced {
            self.nodes.remove(self.key(inode.id()));
        }
        let renaming = self.dcache.rename_write();
        let now_old = if exchanged { replaced.as_ref() } else { None };
        // What is not known stays unknown: with EXCHANGE and WHITEOUT something is
        // there that was not looked up; and if both were names of one file, nothing
        // was done at all. A directory has one name.
        let was_dir = moved.as_ref().is_some_and(|i| self.dir(i.id()).is_ok());
        let known_old = if exchanged {
            replaced.is_some()
        } else {
            was_dir && flags & WHITEOUT == 0
        };
        let (old_guard, new_guard) = (&mut guards.0, guards.1.as_mut());
        match new_guard {
            Some(guard) => self.now_is(new_parent, guard, new, moved.is_some(), moved.as_ref()),
            None => self.now_is(new_parent, old_guard, new, moved.is_some(), moved.as_ref()),
        }
        self.now_is(old_parent, old_guard, old, known_old, now_old);
        drop(renaming);
        drop(guards);
        self.changed(old_parent);
        self.changed(new_parent);
        Ok(())
    }

    fn now_is(
        &self,
        parent: InodeId,
        guard: &mut DirGuard<'_>,
        name: QStr<'_>,
        known: bool,
        inode: Option<&InodeRef<'_>>,
    ) {
        if known {
            let _ = self.dcache.set(parent, guard, name, inode);
        } else {
            guard.change();
            self.dcache.remove(parent, guard, name);
        }
    }

    /// Looks whether `name` below `parent` is the object `inode`, and caches it if so.
    pub fn find_again(&self, inode: &InodeRef<'_>, parent: InodeId, name: QStr<'_>) {
        let found = || -> Result<bool> {
            let dir = self.dir(parent)?;
            let moment = dir.begin();
            let filename = self.names.getname_from(name.as_bytes())?;
            let attr = self
                .source
                .stat_at(&self.node(parent)?, filename.as_cstr())?;
            let same = self.is_object(inode.id(), &attr);
            if same {
                self.dcache
                    .add(parent, &mut dir.lock(), name, Some(inode), moment);
            }
            Ok(same)
        };
        if let Err(e) = found() {
            tracing::trace!(error = %e, "a moved name is gone again");
        }
    }

    /// A directory that the kernel refers to is gone from where it was: if it has another
    /// name beside the old one, that is the one by which it is reached from now on. Whoever
    /// works in it goes on working in it.
    pub(super) fn find_renamed(&self, inode: &InodeRef<'_>, parent: InodeId, node: &S::Node) {
        let wanted = self.dcache.inodes.with(inode.id(), |i| {
            (i.dir().is_some() && i.nlookup() > 0).then_some(i.nodeid())
        });
        let device = self.dcache.inodes.device(inode.id());
        let (Some(device), Some(nodeid)) = (device, wanted.flatten()) else {
            return;
        };
        let devices = &self.dcache.inodes.devices;
        let mut found: Option<Vec<u8>> = None;
        let listed = self.source.list(node, 0, &mut |entry| {
            let same = devices.d_ino(device, entry.ino) == nodeid;
            if same && !matches!(entry.name, b"." | b"..") {
                found = Some(entry.name.to_vec());
            }
            found.is_none()
        });
        if let (Ok(_), Some(name)) = (listed, found)
            && let Ok(name) = QStr::new(&name)
        {
            self.find_again(inode, parent, name);
        }
    }

    /// The attributes of an inode are not what they were.
    pub fn changed(&self, inode: InodeId) {
        self.dcache.inodes.with_mut(inode, |i| i.forget_attr());
    }

    /// Keeps [`Errno::NOENT`] and the like for names apart from a directory that is gone.
    ///
    /// # Errors
    /// As [`Namei::node`].
    pub fn dir_node(&self, parent: InodeId) -> Result<S::Node> {
        self.dir(parent)?;
        self.node(parent)
            .map_err(|e| if e == Errno::NOENT { Errno::STALE } else { e })
    }
}
