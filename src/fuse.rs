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
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, BackingId, BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, FileType,
    Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner,
    MountOption, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, Session, SessionACL, SessionUnmounter, TimeOrNow,
    WriteFlags,
};
use parking_lot::Mutex;
use tracing::{debug, error, info, trace_span, warn};

use crate::dcache::ROOT;
use crate::error::{Errno, level};
use crate::fs::{Coherence, Entry, FileId, Fs, Lookup, Op, Opened, Readdirplus, Stat};
use crate::notice::{Notice, Notices};
use crate::source::creds::Creds;
use crate::source::{Attr, Caller, Kind, SetAttr, SetTime, Source, Time, WriteHow};
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
    let doubter = Arc::new(OnceLock::new());
    let transport = Transport {
        fs: fs.clone(),
        backing: Mutex::default(),
        doubter: doubter.clone(),
    };
    let session = Session::new(transport, mountpoint, &options.config())?;
    // Set before the first request is answered.
    let _ = doubter.set(session.notifier());
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

/// How the data of an open inode goes; one way for all who have it open, because the
/// kernel refuses to mix page cache and passthrough.
enum Way {
    /// Past us, to this file.
    Past(Arc<BackingId>),
    /// Through us.
    Through,
}

/// The ways of the inodes that are open, with the number of opens.
#[derive(Default)]
struct Backing {
    of_inode: HashMap<(u64, u32), (Way, usize)>,
    of_file: HashMap<u64, (u64, u32)>,
    /// The kernel or our privileges do not allow passthrough.
    refused: bool,
}

impl Backing {
    /// One more open of an inode; its backing file, if data goes past us.
    fn open(
        &mut self,
        opened: &Opened,
        key: (u64, u32),
        open_backing: impl FnOnce() -> io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        self.of_file.insert(opened.id.0, key);
        if let Some((way, opens)) = self.of_inode.get_mut(&key) {
            *opens += 1;
            return match way {
                Way::Past(id) => Some(id.clone()),
                Way::Through => None,
            };
        }
        let way = if self.refused || !opened.passthrough {
            Way::Through
        } else {
            match open_backing() {
                Ok(id) => Way::Past(Arc::new(id)),
                Err(e) => {
                    if e.raw_os_error() == Some(libc::EPERM) {
                        info!(
                            "no passthrough: it needs CAP_SYS_ADMIN; data goes through the daemon"
                        );
                        self.refused = true;
                    }
                    debug!(error = %e, "no passthrough");
                    Way::Through
                }
            }
        };
        let id = match &way {
            Way::Past(id) => Some(id.clone()),
            Way::Through => None,
        };
        self.of_inode.insert(key, (way, 1));
        id
    }

    /// A file was closed for good.
    fn release(&mut self, id: FileId) {
        let Some(key) = self.of_file.remove(&id.0) else {
            return;
        };
        if let Some((_, opens)) = self.of_inode.get_mut(&key) {
            *opens -= 1;
            if *opens == 0 {
                self.of_inode.remove(&key);
            }
        }
    }
}

/// Translates between fuser and [`Fs`].
struct Transport<S: Source> {
    fs: Arc<Fs<S>>,
    backing: Mutex<Backing>,
    doubter: Arc<OnceLock<Notifier>>,
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
    /// What is behind an open file: the flags of the reply and, if data goes past us,
    /// the backing file.
    fn behind(
        &self,
        nodeid: u64,
        opened: &Opened,
        open_backing: impl FnOnce(&S::File) -> io::Result<BackingId>,
    ) -> (FopenFlags, Option<Arc<BackingId>>) {
        if opened.doubt_attr
            && let Some(doubter) = self.doubter.get()
            // Attributes alone: for these the kernel takes no lock, so they can be
            // taken back before the file is open.
            && let Err(e) = doubter.inval_inode(INodeNo(nodeid), -1, 0)
        {
            debug!(nodeid, error = %e, "inval_inode");
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

fn caller(req: &Request, umask: u32) -> Caller {
    Caller {
        uid: req.uid(),
        gid: req.gid(),
        pid: req.pid(),
        umask,
    }
}

/// A time from the wire. fuser 0.18 makes a time before 1970 of its parts by taking
/// the nanoseconds away instead of adding them; undone here.
fn set_time(t: TimeOrNow) -> SetTime {
    let t = match t {
        TimeOrNow::Now => return SetTime::Now,
        TimeOrNow::SpecificTime(t) => t,
    };
    SetTime::At(match t.duration_since(UNIX_EPOCH) {
        Ok(d) => Time {
            sec: d.as_secs() as i64,
            nsec: d.subsec_nanos(),
        },
        Err(before) => {
            let d = before.duration();
            Time {
                sec: -(d.as_secs() as i64),
                nsec: d.subsec_nanos(),
            }
        }
    })
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
        // The umask is the source's to apply, after its default ACL; and it decides
        // what a write takes from set-user-id and set-group-id.
        flags |= InitFlags::FUSE_DONT_MASK | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
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
            kill_suid: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
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
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.fs.requests.count(Op::Fallocate);
        let done = self
            .fs
            .fallocate(ino.0, FileId(fh.0), mode as u32, offset, length);
        reply!(reply, done, () => reply.ok());
    }

    fn copy_file_range(
        &self,
        _req: &Request,
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
        let done = self.fs.copy_range((FileId(fh_in.0), offset_in), to, len);
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
        self.backing.lock().release(FileId(fh.0));
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
