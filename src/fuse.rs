//! The FUSE transport (floor F6): the only file that speaks fuser's types.
//!
//! Purpose: decode a request, make one call of [`Fs`], encode its answer. The
//! notifier thread tells the kernel what [`crate::notice::Notices`] holds.
//!
//! Contract: no logic. Handlers run on the session's threads; none of them tells
//! the kernel anything (the kernel would wait for the very lock that it holds for
//! the request).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, BackingId, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, Notifier, OpenFlags, ReplyAttr,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, Session, SessionACL, SessionUnmounter,
    WriteFlags,
};
use parking_lot::Mutex;
use tracing::{debug, error, info, trace_span, warn};

use crate::dcache::ROOT;
use crate::error::{Errno, level};
use crate::fs::{Coherence, Entry, FileId, Fs, Lookup, Op, Readdirplus, Stat};
use crate::notice::{Notice, Notices};
use crate::source::{Attr, Kind, Source, Time};
use crate::sync::Arc;

/// How the mount itself is made.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// What /proc/mounts shows as the mounted device.
    pub fsname: String,
    /// The kernel refuses every change.
    pub read_only: bool,
    /// set-user-id has no effect.
    pub nosuid: bool,
    /// Device nodes have no effect.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
    /// Times of access are not kept.
    pub noatime: bool,
    /// Every user may enter.
    pub allow_other: bool,
    /// Root may enter beside the owner.
    pub allow_root: bool,
    /// Unmounted when the daemon dies.
    pub auto_unmount: bool,
    /// Threads that serve requests.
    pub threads: usize,
}

impl MountOptions {
    fn config(&self) -> fuser::Config {
        let mut list = vec![
            MountOption::FSName(self.fsname.clone()),
            MountOption::Subtype("nameifs".into()),
            MountOption::DefaultPermissions,
        ];
        let flags = [
            (self.read_only, MountOption::RO),
            (self.nosuid, MountOption::NoSuid),
            (self.nodev, MountOption::NoDev),
            (self.noexec, MountOption::NoExec),
            (self.noatime, MountOption::NoAtime),
            (self.auto_unmount, MountOption::AutoUnmount),
        ];
        list.extend(
            flags
                .into_iter()
                .filter(|(on, _)| *on)
                .map(|(_, option)| option),
        );
        let mut config = fuser::Config::default();
        config.mount_options = list;
        config.acl = match (self.allow_other, self.allow_root) {
            (true, _) => SessionACL::All,
            (false, true) => SessionACL::RootAndOwner,
            (false, false) => SessionACL::Owner,
        };
        config.n_threads = Some(self.threads.max(2));
        config.clone_fd = true;
        config
    }
}

/// A mount whose kernel side is ready; [`Mounted::serve`] answers its requests.
pub struct Mounted<S>
where
    S: Source,
    S::File: AsFd,
{
    session: Session<Transport<S>>,
    fs: Arc<Fs<S>>,
    notifier: JoinHandle<()>,
}

/// Unmounts from another thread.
pub struct Unmounter(SessionUnmounter);

impl Unmounter {
    /// Unmounts.
    ///
    /// # Errors
    /// EBUSY while somebody uses the mount, and umount(2)'s.
    pub fn unmount(&mut self) -> io::Result<()> {
        self.0.unmount()
    }
}

/// Mounts `fs` at `mountpoint`.
///
/// # Errors
/// Those of mount(2) and fusermount3.
pub fn mount<S>(fs: Fs<S>, mountpoint: &Path, options: &MountOptions) -> io::Result<Mounted<S>>
where
    S: Source,
    S::File: AsFd,
{
    let fs = Arc::new(fs);
    let transport = Transport {
        fs: fs.clone(),
        backing: Mutex::default(),
    };
    let session = Session::new(transport, mountpoint, &options.config())?;
    if let Some(dev) = own_device(mountpoint) {
        fs.namei().set_own_dev(dev);
    }
    let notifier = session.notifier();
    let notified = fs.clone();
    let notifier = std::thread::Builder::new()
        .name("notifier".into())
        .spawn(move || notify(&notified, &notifier))?;
    Ok(Mounted {
        session,
        fs,
        notifier,
    })
}

impl<S> Mounted<S>
where
    S: Source,
    S::File: AsFd,
{
    /// What unmounts while [`Mounted::serve`] is busy.
    pub fn unmounter(&mut self) -> Unmounter {
        Unmounter(self.session.unmount_callable())
    }

    /// The filesystem.
    pub fn fs(&self) -> &Arc<Fs<S>> {
        &self.fs
    }

    /// Answers requests until the filesystem is unmounted, then gives everything back.
    ///
    /// # Errors
    /// Of the FUSE device, and objects that leaked.
    pub fn serve(self) -> io::Result<()> {
        let served = self.session.run();
        self.fs.notices().close();
        if self.notifier.join().is_err() {
            warn!("the notifier thread panicked");
        }
        let leaked = self.fs.end();
        for cache in &leaked {
            error!(
                cache = cache.name,
                objects = cache.active_objs,
                "objects leaked"
            );
        }
        info!(leaked = leaked.len(), "unmounted");
        served?;
        match leaked.first() {
            None => Ok(()),
            Some(c) => Err(io::Error::other(format!(
                "{} objects of {} leaked",
                c.active_objs, c.name
            ))),
        }
    }
}

/// `st_dev` of what is mounted at `mountpoint`, without asking that mount, in the
/// form of [`crate::source::SourceId::dev`].
fn own_device(mountpoint: &Path) -> Option<u64> {
    let path = mountpoint.canonicalize().ok()?;
    let mountinfo = std::fs::read("/proc/self/mountinfo").ok()?;
    let shown = escape_mount_path(path.as_os_str().as_bytes());
    mountinfo.split(|&b| b == b'\n').rev().find_map(|line| {
        let mut fields = line.split(|&b| b == b' ');
        let dev = fields.nth(2)?;
        (fields.nth(1)? == &shown[..]).then_some(())?;
        let (major, minor) = std::str::from_utf8(dev).ok()?.split_once(':')?;
        Some(major.parse::<u64>().ok()? << 32 | minor.parse::<u64>().ok()?)
    })
}

/// A path as mountinfo shows it: space, tab, newline and backslash in octal.
fn escape_mount_path(path: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(path.len());
    for &b in path {
        match b {
            b' ' | b'\t' | b'\n' | b'\\' => shown.extend(format!("\\{b:03o}").bytes()),
            _ => shown.push(b),
        }
    }
    shown
}

/// The notifier thread: tells the kernel what it must not believe any more. It
/// holds no lock and serves no request, for the kernel takes the directory's lock
/// to follow an invalidation.
fn notify<S: Source>(fs: &Fs<S>, notifier: &Notifier) {
    let notices: Arc<Notices> = fs.notices();
    let entry = |parent, name: &[u8]| {
        if let Err(e) = notifier.inval_entry(INodeNo(parent), OsStr::from_bytes(name)) {
            debug!(parent, error = %e, "inval_entry");
        }
    };
    let inode = |nodeid| {
        if let Err(e) = notifier.inval_inode(INodeNo(nodeid), 0, 0) {
            debug!(nodeid, error = %e, "inval_inode");
        }
    };
    let dcache = &fs.namei().dcache;
    while let Some(notice) = notices.pop() {
        match notice {
            Notice::Entry { parent, name } => entry(parent, &name),
            Notice::Inode { nodeid } => inode(nodeid),
            Notice::Reclaim { names } => {
                let mut left = names;
                dcache.for_each_name(|parent, name| {
                    if left > 0 {
                        left -= 1;
                        entry(parent, name.as_bytes());
                    }
                });
                fs.namei().stay_in_budget();
            }
            Notice::Everything => {
                dcache.for_each_name(|parent, name| entry(parent, name.as_bytes()));
                for id in dcache.inodes.ids() {
                    if let Some(nodeid) = dcache.inodes.with(id, |i| i.nodeid()) {
                        inode(nodeid);
                    }
                }
            }
        }
    }
}

/// Backing files of passthrough; the kernel wants one for all opens of an inode.
#[derive(Default)]
struct Backing {
    of_inode: HashMap<(u64, u32), (BackingId, usize)>,
    of_file: HashMap<u64, (u64, u32)>,
    /// The kernel or our privileges do not allow it.
    refused: bool,
}

/// Translates between fuser and [`Fs`].
struct Transport<S: Source> {
    fs: Arc<Fs<S>>,
    backing: Mutex<Backing>,
}

fn kind_of(kind: Kind) -> FileType {
    match kind {
        Kind::Fifo => FileType::NamedPipe,
        Kind::CharDevice => FileType::CharDevice,
        Kind::Directory => FileType::Directory,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::Regular => FileType::RegularFile,
        Kind::Symlink => FileType::Symlink,
        Kind::Socket => FileType::Socket,
    }
}

fn system_time(t: Time) -> SystemTime {
    let whole = match u64::try_from(t.sec) {
        Ok(sec) => UNIX_EPOCH.checked_add(Duration::from_secs(sec)),
        Err(_) => UNIX_EPOCH.checked_sub(Duration::from_secs(t.sec.unsigned_abs())),
    };
    whole.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(t.nsec.into())
}

fn file_attr(ino: u64, a: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: a.size,
        blocks: a.blocks,
        atime: system_time(a.atime),
        mtime: system_time(a.mtime),
        ctime: system_time(a.ctime),
        crtime: UNIX_EPOCH,
        kind: kind_of(a.kind),
        perm: a.perm,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: a.blksize,
        flags: 0,
    }
}

/// The attributes of an absent name: nodeid 0 with a timeout is how the kernel
/// learns to remember an absence.
fn negative_attr() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// An errno for the wire; notes it in the log as loud as it deserves.
fn wire(e: Errno) -> fuser::Errno {
    let number = e.raw_os_error();
    match level(e) {
        tracing::Level::WARN => warn!(errno = number, "{e}"),
        tracing::Level::DEBUG => debug!(errno = number, "{e}"),
        _ => tracing::trace!(errno = number, "{e}"),
    }
    fuser::Errno::from_i32(number)
}

fn reply_entry(reply: ReplyEntry, e: &Entry) {
    // The number in an entry is both nodeid and st_ino.
    let attr = file_attr(e.nodeid, &e.attr);
    reply.entry_with_ttls(
        &e.attr_ttl,
        &e.name_ttl,
        &attr,
        Generation(e.generation.into()),
    );
}

fn reply_stat(reply: ReplyAttr, s: &Stat) {
    reply.attr(&s.ttl, &file_attr(s.ino, &s.attr));
}

/// Room for the data of one READ, per thread, so that none is allocated for each.
fn with_read_buffer<R>(size: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    thread_local! {
        static BUFFER: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        f(&mut buffer[..size])
    })
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
    /// Registers the backing file of an open file; whether data goes past us.
    fn back(&self, id: FileId, key: (u64, u32), reply: &ReplyOpen) -> bool {
        let mut backing = self.backing.lock();
        if backing.refused {
            return false;
        }
        if let Some((_, opens)) = backing.of_inode.get_mut(&key) {
            *opens += 1;
        } else {
            let made = self
                .fs
                .with_file(id, |file| reply.open_backing(file.as_fd()));
            match made {
                Ok(Ok(backing_id)) => {
                    backing.of_inode.insert(key, (backing_id, 1));
                }
                Ok(Err(e)) => {
                    if e.raw_os_error() == Some(libc::EPERM) {
                        info!(
                            "no passthrough: it needs CAP_SYS_ADMIN; data goes through the daemon"
                        );
                        backing.refused = true;
                    }
                    debug!(error = %e, "no passthrough");
                    return false;
                }
                Err(_) => return false,
            }
        }
        backing.of_file.insert(id.0, key);
        true
    }

    fn unback(&self, id: FileId) {
        let mut backing = self.backing.lock();
        let Some(key) = backing.of_file.remove(&id.0) else {
            return;
        };
        if let Some((_, opens)) = backing.of_inode.get_mut(&key) {
            *opens -= 1;
            if *opens == 0 {
                backing.of_inode.remove(&key);
            }
        }
    }
}

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
        if options.coherence != Coherence::Strict {
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
        let fh = FileHandle(opened.id.0);
        if let Some(key) = opened.passthrough
            && self.back(opened.id, key, &reply)
        {
            let backing = self.backing.lock();
            let (backing_id, _) = &backing.of_inode[&key];
            return reply.opened_passthrough(fh, FopenFlags::empty(), backing_id);
        }
        let mut how = FopenFlags::empty();
        how.set(FopenFlags::FOPEN_DIRECT_IO, opened.direct_io);
        how.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
        reply.opened(fh, how);
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
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _span = trace_span!("write", unique = req.unique().0, ino = ino.0, offset).entered();
        self.fs.requests.count(Op::Write);
        reply!(reply, self.fs.write(FileId(fh.0), offset, data), n => reply.written(n as u32));
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.fs.requests.count(Op::Flush);
        // Nothing is held back here; after this answer the kernel asks no more.
        reply.error(fuser::Errno::ENOSYS);
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
        self.unback(FileId(fh.0));
        self.fs.release(FileId(fh.0));
        reply.ok();
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.fs.requests.count(Op::Opendir);
        if self.fs.options().coherence == Coherence::Strict {
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
            reply!(reply, self.fs.listxattr(ino.0, buf), n => match size {
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
