//! Requests (floor F6): decode, one call of [`Fs`], encode.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BackingId, BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use tracing::{debug, info, trace_span};

use super::backing::Backing;
use super::wire::{
    caller, file_attr, kind_of, lock_range, lock_type, negative_attr, reply_entry, reply_stat,
    set_time, wire, with_read_buffer,
};
use crate::dcache::ROOT;
use crate::fs::{self, Coherence, FileId, Fs, Lookup, Op, Opened, Readdirplus};
use crate::source::creds::Creds;
use crate::source::{SetAttr, Source, WriteHow};
use crate::sync::Arc;

/// Translates between fuser and [`Fs`].
pub(super) struct Transport<S: Source> {
    fs: Arc<Fs<S>>,
    backing: Mutex<Backing>,
}

impl<S: Source> Transport<S> {
    pub(super) fn new(fs: Arc<Fs<S>>) -> Self {
        Self {
            fs,
            backing: Mutex::default(),
        }
    }
}

/// Answers a request that returns nothing or an error.
macro_rules! reply {
    ($reply:expr, $result:expr, $value:pat => $ok:expr) => {
        match $result {
            Ok($value) => $ok,
            Err(e) => $reply.error(wire(e)),
        }
    };
}

impl<S> Transport<S>
where
    S: Source,
    S::File: AsFd,
{
    /// What is behind an open file: the flags of the reply and, if data goes past us,
    /// the backing file.
    fn behind(
        &self,
        nodeid: u64,
        opened: &Opened,
        open_backing: impl FnOnce(&S::File) -> io::Result<BackingId>,
    ) -> (FopenFlags, Option<Arc<BackingId>>) {
        if opened.doubt_attr {
            self.fs.notices().doubt(nodeid);
        }
        let backing = opened.inode.and_then(|key| {
            self.backing.lock().open(opened, key, || {
                // The kernel writes to it with the rights that it is registered with:
                // set-user-id and set-group-id are not to survive that.
                let made = Creds::of_process()
                    .without_fsetid(|| Ok(self.fs.with_file(opened.id, open_backing)));
                made.and_then(|made| made).unwrap_or_else(|e| Err(e.into()))
            })
        });
        let mut how = FopenFlags::empty();
        how.set(FopenFlags::FOPEN_DIRECT_IO, opened.direct_io);
        let keep = opened.keep_cache && backing.is_none();
        how.set(FopenFlags::FOPEN_KEEP_CACHE, keep);
        (how, backing)
    }
}

/// FS_IOC_GETFLAGS and FS_IOC_SETFLAGS (linux/fs.h), which chattr(1) uses.
const GETFLAGS: u32 = 0x8008_6601;
const SETFLAGS: u32 = 0x4008_6602;

impl<S> Filesystem for Transport<S>
where
    S: Source,
    S::File: AsFd,
{
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.fs.requests.count(Op::Init);
        let options = self.fs.options();
        // Without it the kernel serialises lookups below one directory.
        let mut flags = InitFlags::FUSE_PARALLEL_DIROPS | InitFlags::FUSE_AUTO_INVAL_DATA;
        if self.fs.coherence() != Coherence::Strict {
            flags |= InitFlags::FUSE_NO_OPENDIR_SUPPORT | InitFlags::FUSE_CACHE_SYMLINKS;
        }
        flags |= match options.readdirplus {
            Readdirplus::Auto => InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO,
            Readdirplus::Always => InitFlags::FUSE_DO_READDIRPLUS,
            Readdirplus::Never => InitFlags::empty(),
        };
        if options.passthrough && config.capabilities().contains(InitFlags::FUSE_PASSTHROUGH) {
            flags |= InitFlags::FUSE_PASSTHROUGH;
            if config.set_max_stack_depth(1).is_err() {
                debug!("no stacking depth for passthrough");
            }
        } else {
            self.backing.get_mut().refused = true;
        }
        // The umask is the source's to apply, after its default ACL; and it decides
        // what a write takes from set-user-id and set-group-id.
        flags |= InitFlags::FUSE_DONT_MASK | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        // Locks are held on the source, where others see them.
        flags |= InitFlags::FUSE_POSIX_LOCKS;
        if options.xattr {
            flags |= InitFlags::FUSE_POSIX_ACL;
        }
        if let Err(missing) = config.add_capabilities(flags) {
            info!(?missing, "this kernel lacks FUSE features");
            // Those that are there are asked for all the same.
            let _ = config.add_capabilities(flags - missing);
        }
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _span =
            trace_span!("lookup", unique = req.unique().0, parent = parent.0, ?name).entered();
        self.fs.requests.count(Op::Lookup);
        match self.fs.lookup(parent.0, name.as_bytes()) {
            Ok(Lookup::Entry(e)) => reply_entry(reply, &e),
            Ok(Lookup::Negative(ttl)) if ttl.is_zero() => reply.error(fuser::Errno::ENOENT),
            Ok(Lookup::Negative(ttl)) => {
                reply.entry_with_ttls(&Duration::ZERO, &ttl, &negative_attr(), Generation(0));
            }
            Err(e) => reply.error(wire(e)),
        }
    }

    // fuser does not export the type that a handler of BATCH_FORGET takes; each
    // node of a batch comes here.
    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.fs.requests.count(Op::Forget);
        self.fs.forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let _span = trace_span!("getattr", unique = req.unique().0, ino = ino.0).entered();
        self.fs.requests.count(Op::Getattr);
        let file = fh.map(|fh| FileId(fh.0));
        reply!(reply, self.fs.getattr(ino.0, file), stat => reply_stat(reply, &stat));
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let _span = trace_span!("readlink", unique = req.unique().0, ino = ino.0).entered();
        self.fs.requests.count(Op::Readlink);
        reply!(reply, self.fs.readlink(ino.0), target => reply.data(&target));
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _span = trace_span!("open", unique = req.unique().0, ino = ino.0).entered();
        self.fs.requests.count(Op::Open);
        let opened = match self.fs.open(ino.0, flags.0 as u32) {
            Ok(opened) => opened,
            Err(e) => return reply.error(wire(e)),
        };
        let (how, backing) = self.behind(ino.0, &opened, |f| reply.open_backing(f.as_fd()));
        match backing {
            Some(id) => reply.opened_passthrough(FileHandle(opened.id.0), how, &id),
            None => reply.opened(FileHandle(opened.id.0), how),
        }
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _span =
            trace_span!("read", unique = req.unique().0, ino = ino.0, offset, size).entered();
        self.fs.requests.count(Op::Read);
        with_read_buffer(size as usize, |buf| {
            reply!(reply, self.fs.read(FileId(fh.0), offset, buf), n => reply.data(&buf[..n]));
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _span = trace_span!("write", unique = req.unique().0, ino = ino.0, offset).entered();
        self.fs.requests.count(Op::Write);
        // What comes from a mapping has its place, whichever descriptor it comes by.
        let mapped = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let how = WriteHow {
            append: flags.0 & libc::O_APPEND != 0 && !mapped,
            direct: flags.0 & libc::O_DIRECT != 0 && !mapped,
            sync: (flags.0 & libc::O_SYNC) as u32,
            kill_suid: write_flags
                .contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID)
                .then(|| caller(req, 0)),
        };
        let written = self.fs.write(ino.0, FileId(fh.0), offset, data, how);
        reply!(reply, written, n => reply.written(n as u32));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let _span =
            trace_span!("mknod", unique = req.unique().0, parent = parent.0, ?name).entered();
        self.fs.requests.count(Op::Mknod);
        let made = self
            .fs
            .mknod(parent.0, name.as_bytes(), mode, rdev, &caller(req, umask));
        reply!(reply, made, entry => reply_entry(reply, &entry));
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let _span =
            trace_span!("mkdir", unique = req.unique().0, parent = parent.0, ?name).entered();
        self.fs.requests.count(Op::Mkdir);
        let made = self
            .fs
            .mkdir(parent.0, name.as_bytes(), mode, &caller(req, umask));
        reply!(reply, made, entry => reply_entry(reply, &entry));
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let _span =
            trace_span!("symlink", unique = req.unique().0, parent = parent.0, ?name).entered();
        self.fs.requests.count(Op::Symlink);
        let target = target.as_os_str().as_bytes();
        let made = self
            .fs
            .symlink(parent.0, name.as_bytes(), target, &caller(req, 0));
        reply!(reply, made, entry => reply_entry(reply, &entry));
    }

    fn link(&self, req: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _span = trace_span!("link", unique = req.unique().0, ino = ino.0, ?name).entered();
        self.fs.requests.count(Op::Link);
        let made = self
            .fs
            .link(ino.0, parent.0, name.as_bytes(), &caller(req, 0));
        reply!(reply, made, entry => reply_entry(reply, &entry));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _span =
            trace_span!("create", unique = req.unique().0, parent = parent.0, ?name).entered();
        self.fs.requests.count(Op::Create);
        let caller = caller(req, umask);
        let made = self
            .fs
            .create(parent.0, name.as_bytes(), flags as u32, mode, &caller);
        let (entry, opened) = match made {
            Ok(made) => made,
            Err(e) => return reply.error(wire(e)),
        };
        let (how, backing) = self.behind(entry.nodeid, &opened, |f| reply.open_backing(f.as_fd()));
        let (attr, fh) = (
            file_attr(entry.nodeid, &entry.attr),
            FileHandle(opened.id.0),
        );
        // One timeout for both is all there is in this reply.
        let ttl = entry.name_ttl.min(entry.attr_ttl);
        let generation = Generation(entry.generation.into());
        match backing {
            Some(id) => reply.created_passthrough(&ttl, &attr, generation, fh, how, &id),
            None => reply.created(&ttl, &attr, generation, fh, how),
        }
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _span =
            trace_span!("unlink", unique = req.unique().0, parent = parent.0, ?name).entered();
        self.fs.requests.count(Op::Unlink);
        let done = self.fs.unlink(parent.0, name.as_bytes(), &caller(req, 0));
        reply!(reply, done, () => reply.ok());
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _span =
            trace_span!("rmdir", unique = req.unique().0, parent = parent.0, ?name).entered();
        self.fs.requests.count(Op::Rmdir);
        let done = self.fs.rmdir(parent.0, name.as_bytes(), &caller(req, 0));
        reply!(reply, done, () => reply.ok());
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _span =
            trace_span!("rename", unique = req.unique().0, parent = parent.0, ?name).entered();
        self.fs.requests.count(if flags.is_empty() {
            Op::Rename
        } else {
            Op::Rename2
        });
        let (old, new) = (
            (parent.0, name.as_bytes()),
            (newparent.0, newname.as_bytes()),
        );
        let done = self.fs.rename(old, new, flags.bits(), &caller(req, 0));
        reply!(reply, done, () => reply.ok());
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _span = trace_span!("setattr", unique = req.unique().0, ino = ino.0).entered();
        self.fs.requests.count(Op::Setattr);
        let change = SetAttr {
            perm: mode.map(|m| (m & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        let file = fh.map(|fh| FileId(fh.0));
        let done = self.fs.setattr(ino.0, file, &change, &caller(req, 0));
        reply!(reply, done, stat => reply_stat(reply, &stat));
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.fs.requests.count(Op::Fsync);
        reply!(reply, self.fs.fsync(FileId(fh.0), datasync), () => reply.ok());
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.fs.requests.count(Op::Fsyncdir);
        reply!(reply, self.fs.fsync_dir(ino.0), () => reply.ok());
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.fs.requests.count(Op::Fallocate);
        let caller = caller(req, 0);
        let done = self
            .fs
            .fallocate(ino.0, FileId(fh.0), mode as u32, offset, length, &caller);
        reply!(reply, done, () => reply.ok());
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.fs.requests.count(Op::CopyFileRange);
        // The reply counts in 32 bits.
        let len = len.min(1 << 30);
        let to = (ino_out.0, FileId(fh_out.0), offset_out);
        let from = (FileId(fh_in.0), offset_in);
        let done = self.fs.copy_range(from, to, len, &caller(req, 0));
        reply!(reply, done, n => reply.written(n as u32));
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let _span = trace_span!("setxattr", unique = req.unique().0, ino = ino.0, ?name).entered();
        self.fs.requests.count(Op::Setxattr);
        if !self.fs.options().xattr {
            return reply.error(fuser::Errno::ENOSYS);
        }
        let (name, caller) = (name.as_bytes(), caller(req, 0));
        let done = self.fs.setxattr(ino.0, name, value, flags as u32, &caller);
        reply!(reply, done, () => reply.ok());
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _span =
            trace_span!("removexattr", unique = req.unique().0, ino = ino.0, ?name).entered();
        self.fs.requests.count(Op::Removexattr);
        if !self.fs.options().xattr {
            return reply.error(fuser::Errno::ENOSYS);
        }
        let done = self.fs.removexattr(ino.0, name.as_bytes(), &caller(req, 0));
        reply!(reply, done, () => reply.ok());
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.fs.requests.count(Op::Ioctl);
        let id = FileId(fh.0);
        match (cmd, in_data.first_chunk::<4>()) {
            (GETFLAGS, _) => reply!(reply, self.fs.flags(ino.0, id), flags => {
                reply.ioctl(0, &flags.to_ne_bytes());
            }),
            (SETFLAGS, Some(flags)) => {
                let flags = u32::from_ne_bytes(*flags);
                let done = self.fs.set_flags(ino.0, id, flags, &caller(req, 0));
                reply!(reply, done, () => reply.ioctl(0, &[]));
            }
            _ => reply.error(fuser::Errno::ENOTTY),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.fs.requests.count(Op::Flush);
        reply!(reply, self.fs.flush(ino.0, lock_owner.0), () => reply.ok());
    }

    fn getlk(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        self.fs.requests.count(Op::Getlk);
        let owner = fs::LockOwner {
            id: lock_owner.0,
            pid,
        };
        let Some(range) = lock_range(typ, start, end) else {
            return reply.error(fuser::Errno::EINVAL);
        };
        reply!(reply, self.fs.getlk(ino.0, FileId(fh.0), owner, range), found => match found {
            Some(c) => reply.locked(c.range.start, c.range.end, lock_type(c.range.kind), c.pid),
            None => reply.locked(0, 0, libc::F_UNLCK, 0),
        });
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        _pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        self.fs
            .requests
            .count(if sleep { Op::Setlkw } else { Op::Setlk });
        // The thread that waits is the one whose signals matter.
        let owner = fs::LockOwner {
            id: lock_owner.0,
            pid: req.pid(),
        };
        let Some(range) = lock_range(typ, start, end) else {
            return reply.error(fuser::Errno::EINVAL);
        };
        self.fs.setlk(
            ino.0,
            FileId(fh.0),
            owner,
            range,
            sleep,
            |done| match done {
                Ok(()) => reply.ok(),
                Err(e) => reply.error(wire(e)),
            },
        );
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.fs.requests.count(Op::Release);
        self.backing.lock().release(FileId(fh.0));
        self.fs.release(FileId(fh.0));
        reply.ok();
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.fs.requests.count(Op::Opendir);
        if self.fs.coherence() == Coherence::Strict {
            // Handles with no cache flag: each listing is the source's own.
            return reply.opened(FileHandle(0), FopenFlags::empty());
        }
        // After this answer the kernel neither opens nor releases directories any
        // more, and caches their listings until they are invalidated.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.fs.requests.count(Op::Releasedir);
        reply.ok();
    }

    fn readdir(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let _span = trace_span!("readdir", unique = req.unique().0, ino = ino.0, offset).entered();
        self.fs.requests.count(Op::Readdir);
        let mut any = false;
        let result = self.fs.readdir(ino.0, offset, false, &mut |e| {
            let full = reply.add(
                INodeNo(e.ino),
                e.cookie,
                kind_of(e.kind),
                OsStr::from_bytes(e.name),
            );
            any |= !full;
            !full
        });
        match result {
            Err(e) if !any => reply.error(wire(e)),
            // What was listed before the error is good; the next request meets it again.
            _ => reply.ok(),
        }
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _span =
            trace_span!("readdirplus", unique = req.unique().0, ino = ino.0, offset).entered();
        self.fs.requests.count(Op::Readdirplus);
        let mut any = false;
        let result = self.fs.readdir(ino.0, offset, true, &mut |e| {
            let (attr, generation, ttl) = match &e.entry {
                Some(entry) => (
                    file_attr(entry.nodeid, &entry.attr),
                    entry.generation,
                    // One timeout for both is all there is in this reply.
                    entry.name_ttl.min(entry.attr_ttl),
                ),
                // The kernel instantiates neither `.` nor `..`.
                None => {
                    let attr = FileAttr {
                        ino: INodeNo(e.ino),
                        kind: kind_of(e.kind),
                        ..negative_attr()
                    };
                    (attr, 0, Duration::ZERO)
                }
            };
            let name = OsStr::from_bytes(e.name);
            let generation = Generation(generation.into());
            let full = reply.add(INodeNo(e.ino), e.cookie, name, &ttl, &attr, generation);
            any |= !full;
            !full
        });
        match result {
            Err(e) if !any => reply.error(wire(e)),
            _ => reply.ok(),
        }
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.fs.requests.count(Op::Statfs);
        // The root's is asked for with nodeid 0 on old kernels.
        let nodeid = if ino.0 == 0 { ROOT } else { ino.0 };
        reply!(reply, self.fs.statfs(nodeid), s => reply.statfs(
            s.blocks, s.bfree, s.bavail, s.files, s.ffree,
            s.bsize as u32, s.namelen as u32, s.frsize as u32,
        ));
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _span = trace_span!("getxattr", unique = req.unique().0, ino = ino.0, ?name).entered();
        self.fs.requests.count(Op::Getxattr);
        if !self.fs.options().xattr {
            return reply.error(fuser::Errno::ENOSYS);
        }
        with_read_buffer(size as usize, |buf| {
            reply!(reply, self.fs.getxattr(ino.0, name.as_bytes(), buf), n => match size {
                0 => reply.size(n as u32),
                _ => reply.data(&buf[..n]),
            });
        });
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _span = trace_span!("listxattr", unique = req.unique().0, ino = ino.0).entered();
        self.fs.requests.count(Op::Listxattr);
        if !self.fs.options().xattr {
            return reply.error(fuser::Errno::ENOSYS);
        }
        with_read_buffer(size as usize, |buf| {
            reply!(reply, self.fs.listxattr(ino.0, req.uid(), buf), n => match size {
                0 => reply.size(n as u32),
                _ => reply.data(&buf[..n]),
            });
        });
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        self.fs.requests.count(Op::Access);
        // The kernel checks by itself (default_permissions) and never asks.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.fs.requests.count(Op::Lseek);
        let Ok(at) = u64::try_from(offset) else {
            return reply.error(fuser::Errno::ENXIO);
        };
        reply!(reply, self.fs.lseek(FileId(fh.0), at, whence as u32), to => reply.offset(to as i64));
    }
}
