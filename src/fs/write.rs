//! Changes (floor F5): each is made by the source, for the caller, and then followed
//! by the dentry cache.

use std::time::Duration;

use super::{Coherence, Entry, FileId, Fs, Opened, Stat};
use crate::clock::Asked;
use crate::dcache::{Dir, InodeId, InodeRef, Moment, NodeId};
use crate::error::{Errno, Result};
use crate::ioctl::Fsxattr;
use crate::name::{Filename, QStr};
use crate::namei::{Found, Own};
use crate::notice::Notice;
use crate::source::{Attr, Caller, Handle, Kind, SetAttr, Source, WriteHow};

/// Where a name is to be changed: everything a change needs of it.
struct Place<'a, N> {
    /// Keeps the directory.
    _pin: InodeRef<'a>,
    parent: InodeId,
    node: N,
    name: Filename,
}

impl<S: Source> Fs<S> {
    /// The place of `name` below `parent`, if it may be changed at all.
    fn place(&self, parent: NodeId, name: &[u8]) -> Result<Place<'_, S::Node>> {
        self.writable()?;
        QStr::new(name)?;
        if self.virt.lookup(parent, name).is_some() {
            // The virtual files are nobody's to change.
            return Err(Errno::PERM);
        }
        let pin = self.inode(parent)?;
        let parent = pin.id();
        let node = self.namei.dir_node(parent)?;
        Ok(Place {
            _pin: pin,
            parent,
            node,
            name: self.namei.names.getname_from(name)?,
        })
    }

    /// A change at a place failed: what is cached of it is looked up anew.
    fn failed(&self, place: &Place<'_, S::Node>, e: Errno) -> Errno {
        if let Ok(name) = QStr::new(place.name.as_bytes()) {
            self.namei.doubt_name(place.parent, name);
        }
        e
    }

    /// A change was made at a place, and then its outcome could not be read: the kernel,
    /// which is told of an error, has to look anew as well.
    fn unsure(&self, place: &Place<'_, S::Node>, e: Errno) -> Errno {
        if let Some(parent) = self.nodeid(place.parent) {
            let name = place.name.as_bytes().into();
            self.notices().push(Notice::Entry { parent, name });
            self.notices().push(Notice::Inode { nodeid: parent });
        }
        self.failed(place, e)
    }

    /// What was made at a place, as a reply.
    fn made(&self, place: &Place<'_, S::Node>) -> Result<Entry> {
        let dir = self.namei.dir(place.parent)?;
        let moment = (dir.begin(), self.namei.clock.asked());
        let attr = self.namei.source.stat_at(&place.node, place.name.as_cstr());
        attr.and_then(|attr| self.followed(place, &dir, attr, moment))
            .map_err(|e| self.unsure(place, e))
    }

    /// The dentry cache follows what was made at a place; the reply.
    fn followed(
        &self,
        place: &Place<'_, S::Node>,
        dir: &Dir,
        attr: Attr,
        moment: (Moment, Asked),
    ) -> Result<Entry> {
        let created = self
            .namei
            .created(place.parent, &place.node, &place.name, &attr, moment);
        let (inode, quiet) = created?;
        let name_left = self.namei.name_fresh(dir, moment.1);
        // Of a new directory nobody tells yet: it is watched when it is looked at.
        let told = self.coherence() != Coherence::Watch
            || self.namei.dir(inode.id()).is_ok_and(|dir| dir.is_watched())
            || attr.kind != Kind::Directory;
        if !told {
            self.namei.changed(inode.id());
        }
        let attr_left = match quiet && told {
            true => self
                .namei
                .attr_fresh(inode.id(), &attr, Some(dir), moment.1),
            false => Duration::ZERO,
        };
        self.reply_with(Found::Positive {
            inode,
            attr,
            name_left,
            attr_left,
        })
    }

    /// MKNOD; `mode` holds the kind.
    ///
    /// # Errors
    /// EROFS, EEXIST, EPERM, ENOSPC, and mknod(2)'s.
    pub fn mknod(
        &self,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        rdev: u32,
        caller: &Caller,
    ) -> Result<Entry> {
        let place = self.place(parent, name)?;
        let event = self.expect(place.parent, Own::Created, name);
        let source = &self.namei.source;
        let done = source.mknod(&place.node, place.name.as_cstr(), mode, rdev, caller);
        done.map_err(|e| self.failed(&place, e))?;
        event.done();
        self.made(&place)
    }

    /// MKDIR.
    ///
    /// # Errors
    /// EROFS, EEXIST, ENOSPC, and mkdir(2)'s.
    pub fn mkdir(&self, parent: NodeId, name: &[u8], mode: u32, caller: &Caller) -> Result<Entry> {
        let place = self.place(parent, name)?;
        let event = self.expect(place.parent, Own::Created, name);
        let done = self
            .namei
            .source
            .mkdir(&place.node, place.name.as_cstr(), mode, caller);
        done.map_err(|e| self.failed(&place, e))?;
        event.done();
        self.made(&place)
    }

    /// SYMLINK.
    ///
    /// # Errors
    /// EROFS, EEXIST, ENAMETOOLONG, and symlink(2)'s.
    pub fn symlink(
        &self,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
        caller: &Caller,
    ) -> Result<Entry> {
        let place = self.place(parent, name)?;
        let target = self.namei.names.getname_from(target)?;
        let event = self.expect(place.parent, Own::Created, name);
        let source = &self.namei.source;
        let done = source.symlink(&place.node, place.name.as_cstr(), target.as_cstr(), caller);
        done.map_err(|e| self.failed(&place, e))?;
        event.done();
        self.made(&place)
    }

    /// LINK: a further name for `nodeid`.
    ///
    /// # Errors
    /// EROFS, EEXIST, EMLINK, EPERM, EXDEV, and link(2)'s.
    pub fn link(
        &self,
        nodeid: NodeId,
        parent: NodeId,
        name: &[u8],
        caller: &Caller,
    ) -> Result<Entry> {
        let place = self.place(parent, name)?;
        let pinned = self.inode(nodeid)?;
        let inode = pinned.id();
        let event = self.expect(place.parent, Own::Created, name);
        self.with_handle(inode, None, |of| {
            self.namei
                .source
                .link(of, &place.node, place.name.as_cstr(), caller)
        })
        .map_err(|e| {
            self.namei.changed(inode);
            self.failed(&place, e)
        })?;
        event.done();
        self.namei.changed(inode);
        self.made(&place)
    }

    /// CREATE: makes a regular file if there is none, and opens it.
    ///
    /// # Errors
    /// EROFS, EEXIST with O_EXCL, ESTALE if something else is there by now, and
    /// open(2)'s.
    pub fn create(
        &self,
        parent: NodeId,
        name: &[u8],
        flags: u32,
        mode: u32,
        caller: &Caller,
    ) -> Result<(Entry, Opened)> {
        let place = self.place(parent, name)?;
        let file = self
            .create_file(&place, name, flags, mode, caller)
            .map_err(|e| match self.failed(&place, e) {
                // A symlink has come in between: the kernel has to look again.
                Errno::LOOP => Errno::STALE,
                other => other,
            })?;
        let dir = self.namei.dir(place.parent)?;
        let moment = (dir.begin(), self.namei.clock.asked());
        let attr = self.namei.source.stat_file(&file);
        let attr = attr.map_err(|e| self.unsure(&place, e))?;
        let mut entry = self
            .followed(&place, &dir, attr, moment)
            .map_err(|e| self.unsure(&place, e))?;
        let opened = self
            .inode(entry.nodeid)
            .and_then(|inode| self.opened(inode.id(), file, &attr, flags))
            .inspect_err(|_| self.forget(entry.nodeid, 1))?;
        if self
            .inode(entry.nodeid)
            .is_ok_and(|inode| self.is_volatile(inode.id()))
        {
            entry.attr_ttl = Duration::ZERO;
        }
        Ok((entry, opened))
    }

    /// TMPFILE: makes a regular file without a name in a directory, and opens it.
    ///
    /// # Errors
    /// EROFS, EOPNOTSUPP where the source has no such files, and open(2)'s.
    pub fn tmpfile(
        &self,
        parent: NodeId,
        flags: u32,
        mode: u32,
        caller: &Caller,
    ) -> Result<(Entry, Opened)> {
        self.writable()?;
        if Self::is_virtual(parent) {
            return Err(Errno::PERM);
        }
        let pinned = self.inode(parent)?;
        let source = &self.namei.source;
        let node = self.namei.dir_node(pinned.id())?;
        let file = source.tmpfile(&node, flags, mode, caller)?;
        let asked = self.namei.clock.asked();
        let attr = source.stat_file(&file)?;
        let inode = self.namei.iget_nameless(&attr)?;
        let id = inode.id();
        let mut entry = self.reply_with(Found::Positive {
            inode,
            attr,
            name_left: Duration::ZERO,
            attr_left: self.namei.attr_fresh(id, &attr, None, asked),
        })?;
        let opened = self
            .opened(id, file, &attr, flags)
            .inspect_err(|_| self.forget(entry.nodeid, 1))?;
        // Its data may change past us.
        entry.attr_ttl = Duration::ZERO;
        Ok((entry, opened))
    }

    /// Opens the file that is there, or makes it; an event comes of the latter alone, so
    /// which it was has to be known.
    fn create_file(
        &self,
        place: &Place<'_, S::Node>,
        name: &[u8],
        flags: u32,
        mode: u32,
        caller: &Caller,
    ) -> Result<S::File> {
        const EXCL: u32 = libc::O_EXCL as u32;
        let (source, cname) = (&self.namei.source, place.name.as_cstr());
        loop {
            let event = self.expect(place.parent, Own::Created, name);
            match source.create(&place.node, cname, flags | EXCL, mode, caller) {
                Ok(file) => {
                    event.done();
                    return Ok(file);
                }
                Err(Errno::EXIST) if flags & EXCL == 0 => drop(event),
                Err(e) => return Err(e),
            }
            match source.open_at(&place.node, cname, flags, caller) {
                // Gone again: once more.
                Err(Errno::NOENT) => {}
                other => return other,
            }
        }
    }

    /// UNLINK.
    ///
    /// # Errors
    /// EROFS, ENOENT, EISDIR, EPERM, and unlink(2)'s.
    pub fn unlink(&self, parent: NodeId, name: &[u8], caller: &Caller) -> Result<()> {
        let place = self.place(parent, name)?;
        let event = self.expect(place.parent, Own::Deleted, name);
        let done = self
            .namei
            .source
            .unlink(&place.node, place.name.as_cstr(), caller);
        done.map_err(|e| self.failed(&place, e))?;
        event.done();
        self.namei.removed(place.parent, QStr::new(name)?)
    }

    /// RMDIR. Whether the directory is empty is for the source to say.
    ///
    /// # Errors
    /// EROFS, ENOENT, ENOTEMPTY, ENOTDIR, EBUSY, and rmdir(2)'s.
    pub fn rmdir(&self, parent: NodeId, name: &[u8], caller: &Caller) -> Result<()> {
        let place = self.place(parent, name)?;
        let event = self.expect(place.parent, Own::Deleted, name);
        let done = self
            .namei
            .source
            .rmdir(&place.node, place.name.as_cstr(), caller);
        done.map_err(|e| self.failed(&place, e))?;
        event.done();
        self.namei.removed(place.parent, QStr::new(name)?)
    }

    /// RENAME and RENAME2, with renameat2(2)'s flags.
    ///
    /// # Errors
    /// EROFS, ENOENT, EEXIST with NOREPLACE, EINVAL for flags that the source does
    /// not know, and rename(2)'s.
    pub fn rename(
        &self,
        (old_parent, old): (NodeId, &[u8]),
        (new_parent, new): (NodeId, &[u8]),
        flags: u32,
        caller: &Caller,
    ) -> Result<()> {
        const NOREPLACE: u32 = 1;
        let from = self.place(old_parent, old)?;
        let to = self.place(new_parent, new)?;
        let (old_q, new_q) = (QStr::new(old)?, QStr::new(new)?);
        let peek = |parent, name| self.namei.dcache.peek(parent, name).map(|inode| inode.id());
        let moved = peek(from.parent, old_q);
        // Two names of one file: nothing is renamed and no event comes. That, and what
        // EXCHANGE and WHITEOUT do, is left to the events to tell.
        let plain = flags & !NOREPLACE == 0;
        let known = moved.is_some() && moved != peek(to.parent, new_q);
        let events = (plain && known).then(|| {
            let from_event = self.expect(from.parent, Own::MovedFrom, old);
            (from_event, self.expect(to.parent, Own::MovedTo, new))
        });
        let done = self.namei.source.rename(
            (&from.node, from.name.as_cstr()),
            (&to.node, to.name.as_cstr()),
            flags,
            caller,
        );
        done.map_err(|e| self.failed(&to, self.failed(&from, e)))?;
        if let Some((from_event, to_event)) = events {
            from_event.done();
            to_event.done();
        }
        self.namei
            .renamed((from.parent, old_q), (to.parent, new_q), flags)
    }

    /// SETATTR, through an open file if `file` is given.
    ///
    /// # Errors
    /// EROFS, EPERM, ESTALE if the object is gone, and those of chmod(2), chown(2),
    /// truncate(2) and utimensat(2).
    pub fn setattr(
        &self,
        nodeid: NodeId,
        file: Option<FileId>,
        change: &SetAttr,
        caller: &Caller,
    ) -> Result<Stat> {
        if let Some(stat) = self.virt.getattr(nodeid) {
            // `echo 1 > drop_caches` truncates first.
            let harmless = SetAttr {
                size: None,
                atime: None,
                mtime: None,
                ..*change
            };
            return if harmless == SetAttr::default() {
                Ok(stat)
            } else {
                Err(Errno::PERM)
            };
        }
        self.writable()?;
        let pinned = self.inode(nodeid)?;
        let inode = pinned.id();
        let source = &self.namei.source;
        let (attr, moment) = self.with_handle(inode, file, |of| {
            if let (Handle::Node(node), Ok(dir)) = (of, self.namei.dir(inode)) {
                // Its attributes are told of by its own watch.
                self.namei.ensure_watch(inode, &dir, node);
            }
            let done = source.setattr(of, change, caller);
            // Even if it failed one of several changes may have been made.
            self.namei.changed(inode);
            done?;
            let moment = self.namei.attr_moment(inode);
            let attr = source.stat_of(of)?;
            if let Handle::Node(_) = of {
                // It lost its name meanwhile: the name's new object is meant.
                self.namei.still_named(inode, &attr)?;
            }
            Ok((attr, moment))
        })?;
        let left = self.namei.took_attr_since(inode, &attr, moment);
        Ok(self.stat_of(nodeid, inode, attr, left))
    }

    /// WRITE; bytes written.
    ///
    /// # Errors
    /// EBADF, ENOSPC, EFBIG, and write(2)'s.
    pub fn write(
        &self,
        nodeid: NodeId,
        id: FileId,
        offset: u64,
        data: &[u8],
        how: WriteHow,
    ) -> Result<usize> {
        if let Some(file) = self.files.virtual_file(id) {
            return self.virt_write(&file, data);
        }
        self.writable()?;
        let written = self
            .files
            .with_file(id, |f| self.namei.source.write(f, offset, data, how))?;
        self.changed_data(nodeid);
        written
    }

    /// What is cached of an object's attributes is void after its data changed.
    fn changed_data(&self, nodeid: NodeId) {
        if let Some(inode) = self.namei.dcache.inodes.find(nodeid) {
            self.namei.changed(inode);
        }
    }

    /// FSYNC.
    ///
    /// # Errors
    /// EBADF, EIO, ENOSPC, and fsync(2)'s.
    pub fn fsync(&self, id: FileId, data_only: bool) -> Result<()> {
        if self.files.virtual_file(id).is_some() {
            return Ok(());
        }
        self.files
            .with_file(id, |f| self.namei.source.fsync(f, data_only))?
    }

    /// FSYNCDIR.
    ///
    /// # Errors
    /// ESTALE, and fsync(2)'s.
    pub fn fsync_dir(&self, nodeid: NodeId) -> Result<()> {
        if Self::is_virtual(nodeid) {
            return Ok(());
        }
        let node = self.namei.dir_node(self.inode(nodeid)?.id())?;
        self.namei.source.fsync_dir(&node)
    }

    /// FALLOCATE with fallocate(2)'s mode.
    ///
    /// # Errors
    /// EOPNOTSUPP for a mode that the source does not know, ENOSPC, and fallocate(2)'s.
    pub fn fallocate(
        &self,
        nodeid: NodeId,
        id: FileId,
        mode: u32,
        offset: u64,
        len: u64,
        caller: &Caller,
    ) -> Result<()> {
        self.writable()?;
        let source = &self.namei.source;
        let done = self
            .files
            .with_file(id, |f| source.fallocate(f, mode, offset, len, caller))?;
        self.changed_data(nodeid);
        done
    }

    /// COPY_FILE_RANGE; bytes copied.
    ///
    /// # Errors
    /// EXDEV and EOPNOTSUPP, on which the kernel copies by itself, and
    /// copy_file_range(2)'s.
    pub fn copy_range(
        &self,
        from: (FileId, u64),
        to: (NodeId, FileId, u64),
        len: u64,
        caller: &Caller,
    ) -> Result<u64> {
        self.writable()?;
        let (nodeid, to_id, to_at) = to;
        let source = &self.namei.source;
        let done = self.files.with_file(from.0, |f| {
            self.files.with_file(to_id, |t| {
                source.copy_range((f, from.1), (t, to_at), len, caller)
            })
        })??;
        self.changed_data(nodeid);
        done
    }

    /// SETXATTR with setxattr(2)'s flags.
    ///
    /// # Errors
    /// EROFS, EEXIST, ENODATA, ENOSPC, EOPNOTSUPP, and setxattr(2)'s.
    pub fn setxattr(
        &self,
        nodeid: NodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        caller: &Caller,
    ) -> Result<()> {
        self.xattr(nodeid, name, |of, name| {
            self.namei
                .source
                .setxattr(of, name.as_cstr(), value, flags, caller)
        })
    }

    /// REMOVEXATTR.
    ///
    /// # Errors
    /// EROFS, ENODATA, EOPNOTSUPP, and removexattr(2)'s.
    pub fn removexattr(&self, nodeid: NodeId, name: &[u8], caller: &Caller) -> Result<()> {
        self.xattr(nodeid, name, |of, name| {
            self.namei.source.removexattr(of, name.as_cstr(), caller)
        })
    }

    fn xattr(
        &self,
        nodeid: NodeId,
        name: &[u8],
        change: impl FnOnce(Handle<'_, S::Node, S::File>, &Filename) -> Result<()>,
    ) -> Result<()> {
        self.writable()?;
        if Self::is_virtual(nodeid) {
            return Err(Errno::PERM);
        }
        let name = self.namei.names.getname_from(name)?;
        let pinned = self.inode(nodeid)?;
        let inode = pinned.id();
        let done = self.with_handle(inode, None, |of| change(of, &name));
        // An ACL is part of the mode.
        self.namei.changed(inode);
        done
    }

    /// FS_IOC_GETFLAGS, of an open file or of a directory.
    ///
    /// # Errors
    /// ENOTTY where the source has no such flags, ESTALE.
    pub fn flags(&self, nodeid: NodeId, id: FileId) -> Result<u32> {
        self.with_opened(nodeid, id, |f| self.namei.source.flags(f))
    }

    /// FS_IOC_SETFLAGS, of an open file or of a directory.
    ///
    /// # Errors
    /// EROFS, EPERM, ENOTTY where the source has no such flags, ESTALE.
    pub fn set_flags(&self, nodeid: NodeId, id: FileId, flags: u32, caller: &Caller) -> Result<()> {
        self.writable()?;
        let done = self.with_opened(nodeid, id, |f| {
            self.namei.source.set_flags(f, flags, caller)
        });
        self.changed_data(nodeid);
        done
    }

    /// FS_IOC_FSGETXATTR, of an open file or of a directory.
    ///
    /// # Errors
    /// ENOTTY where the source has no such thing, ESTALE.
    pub fn fsxattr(&self, nodeid: NodeId, id: FileId) -> Result<Fsxattr> {
        self.with_opened(nodeid, id, |f| self.namei.source.fsxattr(f))
    }

    /// FS_IOC_FSSETXATTR, of an open file or of a directory.
    ///
    /// # Errors
    /// EROFS, EPERM, EINVAL, ENOTTY where the source has no such thing, ESTALE.
    pub fn set_fsxattr(
        &self,
        nodeid: NodeId,
        id: FileId,
        to: Fsxattr,
        caller: &Caller,
    ) -> Result<()> {
        self.writable()?;
        let done = self.with_opened(nodeid, id, |f| self.namei.source.set_fsxattr(f, to, caller));
        self.changed_data(nodeid);
        done
    }

    /// Calls `f` with an open file, opened for the purpose if need be.
    fn with_opened<R>(
        &self,
        nodeid: NodeId,
        id: FileId,
        f: impl FnOnce(&S::File) -> Result<R>,
    ) -> Result<R> {
        if Self::is_virtual(nodeid) {
            return Err(Errno::NOTTY);
        }
        let pinned = self.inode(nodeid)?;
        let inode = pinned.id();
        let flags = (libc::O_RDONLY | libc::O_NONBLOCK) as u32;
        self.with_handle(inode, Some(id), |of| match of {
            Handle::File(file) => f(file),
            Handle::Node(_) => f(&self.namei.source.open(of, flags)?),
        })
    }
}
