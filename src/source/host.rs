//! The host's directory as a source (floor F3), by rustix.
//!
//! Purpose: the only file that makes system calls on the mirrored tree.
//!
//! Contract: a [`HostSource::Node`] is an O_PATH descriptor. Paths are resolved
//! beneath a descriptor with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and
//! RESOLVE_NO_MAGICLINKS (openat2(2)), so no swapped symlink leads out of the tree.
//!
//! It does not cache and does not retry.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::FcntlArg;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, FlockOperation, IFlags, Mode, OFlags, RawDir,
    RenameFlags, ResolveFlags, SeekFrom, Statx, StatxFlags, StatxTimestamp, Timespec, Timestamps,
    XattrFlags,
};
use rustix::io::ReadWriteFlags;
use rustix::process::{Gid, Uid};

use super::creds::Creds;
use super::watch::{InotifyWatcher, Watcher};
use super::{
    Attr, Caller, FsTraits, Handle, Kind, LockKind, LockRange, RawEntry, SetAttr, SetTime, Source,
    SourceId, StatFs, Time, WriteHow,
};
use crate::error::{Errno, Result};
use crate::ioctl::Fsxattr;

const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// STATX_MNT_ID_UNIQUE (Linux 6.8): a number that no later mount gets.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// What statx is asked for: the basic fields, the birth time and the mount.
const STATX_MASK: StatxFlags = StatxFlags::BASIC_STATS
    .union(StatxFlags::BTIME)
    .union(StatxFlags::MNT_ID)
    .union(MNT_ID_UNIQUE);

macro_rules! calls {
    ($($variant:ident $name:literal,)*) => {
        /// Kinds of call, counted for `.nameifs/stats`.
        #[derive(Clone, Copy)]
        #[repr(usize)]
        enum Call { $($variant,)* }

        const CALL_NAMES: &[&str] = &[$($name,)*];
    };
}

calls! {
    Openat2 "openat2", Statx "statx", Readlink "readlink", Getdents "getdents",
    Statfs "statfs", Open "open", Pread "pread", Lseek "lseek", Getxattr "getxattr",
    Listxattr "listxattr", Create "create", Mknod "mknod", Mkdir "mkdir", Symlink "symlink",
    Link "link", Unlink "unlink", Rmdir "rmdir", Rename "rename", Setattr "setattr",
    Pwrite "pwrite", Fsync "fsync", Fallocate "fallocate", CopyRange "copy_file_range",
    Setxattr "setxattr", Removexattr "removexattr", Ioctl "ioctl", Lock "lock",
}

/// A directory of this host.
pub struct HostSource {
    root: Arc<OwnedFd>,
    creds: Creds,
    calls: [AtomicU64; CALL_NAMES.len()],
}

impl HostSource {
    /// Opens the directory. To be done before mounting, so that a mount over the
    /// source itself still sees the source.
    ///
    /// # Errors
    /// Those of open(2); ENOTDIR when it is no directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self {
            root: Arc::new(root),
            creds: Creds::of_process(),
            calls: std::array::from_fn(|_| AtomicU64::new(0)),
        })
    }

    fn count(&self, call: Call) {
        self.calls[call as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Opens a node anew with access; an O_PATH descriptor itself gives none.
    fn reopen(&self, node: &OwnedFd, flags: OFlags) -> Result<OwnedFd> {
        self.count(Call::Open);
        // The magic link is followed on purpose: it leads to the pinned object
        // and nowhere else.
        rustix::fs::open(
            fd_path(node).as_cstr(),
            flags | OFlags::CLOEXEC,
            Mode::empty(),
        )
    }

    /// Changes data as one who may not leave set-user-id and set-group-id standing, where
    /// there are any. Which of them fall the source decides, by the caller's groups.
    fn unprivileged<R>(
        &self,
        file: &OwnedFd,
        caller: &Caller,
        f: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        if caller.uid == 0 || self.stat_file(file)?.perm & 0o6000 == 0 {
            return f();
        }
        self.creds.act(caller, f)
    }

    fn statx(&self, dir: &OwnedFd, name: &CStr, flags: AtFlags) -> Result<Attr> {
        self.count(Call::Statx);
        let flags = flags | AtFlags::NO_AUTOMOUNT;
        attr_of(&rustix::fs::statx(dir, name, flags, STATX_MASK)?)
    }
}

fn fd_of<'a>(of: Handle<'a, Arc<OwnedFd>, OwnedFd>) -> &'a OwnedFd {
    match of {
        Handle::Node(node) => node,
        Handle::File(file) => file,
    }
}

/// `/proc/self/fd/N` in a buffer on the stack.
struct FdPath([u8; 32], usize);

impl FdPath {
    fn as_cstr(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.0[..=self.1]).expect("one NUL, at the end")
    }
}

fn fd_path(fd: &OwnedFd) -> FdPath {
    use std::io::Write;
    let mut path = FdPath([0; 32], 0);
    let mut cursor = io::Cursor::new(&mut path.0[..31]);
    write!(cursor, "/proc/self/fd/{}", fd.as_raw_fd()).expect("14 and at most 10 bytes fit");
    path.1 = cursor.position() as usize;
    path
}

fn time_of(t: StatxTimestamp) -> Time {
    Time {
        sec: t.tv_sec,
        nsec: t.tv_nsec,
    }
}

fn attr_of(x: &Statx) -> Result<Attr> {
    let mode = u32::from(x.stx_mode);
    let has = |flag: StatxFlags| x.stx_mask & flag.bits() != 0;
    Ok(Attr {
        id: SourceId {
            dev: u64::from(x.stx_dev_major) << 32 | u64::from(x.stx_dev_minor),
            mnt: if has(StatxFlags::MNT_ID.union(MNT_ID_UNIQUE)) {
                x.stx_mnt_id
            } else {
                0
            },
            ino: x.stx_ino,
            btime: has(StatxFlags::BTIME).then(|| time_of(x.stx_btime)),
        },
        kind: Kind::from_mode(mode).ok_or(Errno::IO)?,
        perm: (mode & 0o7777) as u16,
        nlink: x.stx_nlink,
        uid: x.stx_uid,
        gid: x.stx_gid,
        rdev: encode_dev(x.stx_rdev_major, x.stx_rdev_minor),
        size: x.stx_size,
        blocks: x.stx_blocks,
        blksize: x.stx_blksize,
        atime: time_of(x.stx_atime),
        mtime: time_of(x.stx_mtime),
        ctime: time_of(x.stx_ctime),
    })
}

/// The 32-bit form of a device number on the FUSE wire (`new_encode_dev`).
fn encode_dev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// f_type values of statfs(2) whose behaviour is known (magic.h).
fn traits_of(f_type: u64) -> FsTraits {
    let known = |name, stable_cookies, remote| FsTraits {
        stable_cookies,
        remote,
        birth_times: matches!(name, "ext4" | "xfs" | "btrfs" | "tmpfs" | "f2fs"),
        lists_all: matches!(
            name,
            "ext4" | "xfs" | "btrfs" | "tmpfs" | "f2fs" | "squashfs" | "overlay" | "nfs" | "ceph"
        ),
        name,
    };
    match f_type & 0xffff_ffff {
        0xef53 => known("ext4", true, false),
        0x5846_5342 => known("xfs", true, false),
        0x9123_683e => known("btrfs", true, false),
        0x0102_1994 => known("tmpfs", true, false),
        0xf2f5_2010 => known("f2fs", true, false),
        0x2fc1_2fc1 => known("zfs", true, false),
        0x794c_7630 => known("overlay", false, false),
        0x4d44 => known("vfat", false, false),
        0x2011_bab0 => known("exfat", false, false),
        0x7371_7368 => known("squashfs", true, false),
        0x9660 => known("iso9660", true, false),
        0x6969 => known("nfs", true, true),
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => known("smb", false, true),
        0x0102_1997 => known("9p", false, true),
        0x00c3_6400 => known("ceph", false, true),
        0x6573_5546 => known("fuse", false, true),
        0x9fa0 => known("proc", false, true),
        0x6265_6572 => known("sysfs", false, true),
        _ => known("unknown", false, true),
    }
}

impl Source for HostSource {
    type Node = Arc<OwnedFd>;
    type File = OwnedFd;

    fn watcher(&self) -> Result<Option<Arc<dyn Watcher<Self::Node>>>> {
        Ok(Some(Arc::new(InotifyWatcher::new()?)))
    }

    fn root(&self) -> Self::Node {
        self.root.clone()
    }

    fn open_node(&self, base: &Self::Node, path: &CStr) -> Result<Self::Node> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            self.count(Call::Openat2);
            match rustix::fs::openat2(base, path, flags, Mode::empty(), BENEATH) {
                Ok(fd) => return Ok(Arc::new(fd)),
                // A rename or mount anywhere while BENEATH was being proved
                // (openat2(2)): ask again, as the manual says.
                Err(Errno::AGAIN) => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn stat(&self, node: &Self::Node) -> Result<Attr> {
        self.statx(node, c"", AtFlags::EMPTY_PATH)
    }

    fn stat_at(&self, dir: &Self::Node, name: &CStr) -> Result<Attr> {
        self.statx(dir, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn stat_file(&self, file: &Self::File) -> Result<Attr> {
        self.statx(file, c"", AtFlags::EMPTY_PATH)
    }

    fn readlink(&self, node: &Self::Node, buf: &mut [u8]) -> Result<usize> {
        self.count(Call::Readlink);
        rustix::fs::readlinkat_raw(node, c"", buf)
    }

    fn list(
        &self,
        dir: &Self::Node,
        cookie: u64,
        sink: &mut dyn FnMut(RawEntry<'_>) -> bool,
    ) -> Result<bool> {
        // Times of access are the readers', not the mirror's; not every owner
        // may ask for that.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = match self.reopen(dir, flags | OFlags::NOATIME) {
            Err(Errno::PERM) => self.reopen(dir, flags)?,
            other => other?,
        };
        if cookie != 0 {
            rustix::fs::seek(&fd, SeekFrom::Start(cookie))?;
        }
        let mut buf = Vec::with_capacity(64 << 10);
        let mut entries = RawDir::new(&fd, buf.spare_capacity_mut());
        while let Some(entry) = {
            if entries.is_buffer_empty() {
                self.count(Call::Getdents);
            }
            entries.next()
        } {
            let entry = entry?;
            let taken = sink(RawEntry {
                ino: entry.ino(),
                kind: kind_of(entry.file_type()),
                cookie: entry.next_entry_cookie(),
                name: entry.file_name().to_bytes(),
            });
            if !taken {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn fs_traits(&self, node: &Self::Node) -> Result<FsTraits> {
        self.count(Call::Statfs);
        Ok(traits_of(rustix::fs::fstatfs(node)?.f_type as u64))
    }

    fn statfs(&self, node: &Self::Node) -> Result<StatFs> {
        self.count(Call::Statfs);
        let s = rustix::fs::fstatfs(node)?;
        Ok(StatFs {
            bsize: s.f_bsize as u64,
            frsize: s.f_frsize as u64,
            blocks: s.f_blocks,
            bfree: s.f_bfree,
            bavail: s.f_bavail,
            files: s.f_files,
            ffree: s.f_ffree,
            namelen: s.f_namelen as u64,
        })
    }

    fn open(&self, of: Handle<'_, Self::Node, Self::File>, flags: u32) -> Result<Self::File> {
        let appends = flags & libc::O_APPEND as u32 != 0;
        let flags = open_flags(flags);
        match self.reopen(fd_of(of), flags) {
            // O_NOATIME is for the owner only, and the owner of the caller's
            // process is not ours: the data matters more than its access time.
            Err(Errno::PERM) if flags.contains(OFlags::NOATIME) => {
                self.reopen(fd_of(of), flags - OFlags::NOATIME)
            }
            // An append-only file is opened for nothing else.
            Err(Errno::PERM) if appends => self.reopen(fd_of(of), flags | OFlags::APPEND),
            other => other,
        }
    }

    fn read(&self, file: &Self::File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            self.count(Call::Pread);
            match rustix::io::pread(file, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn lseek(&self, file: &Self::File, offset: u64, whence: u32) -> Result<u64> {
        self.count(Call::Lseek);
        let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)? as u64;
        rustix::fs::seek(
            file,
            match whence {
                3 => SeekFrom::Data(offset),
                4 => SeekFrom::Hole(offset),
                _ => return Err(Errno::INVAL),
            },
        )
    }

    fn getxattr(
        &self,
        of: Handle<'_, Self::Node, Self::File>,
        name: &CStr,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.count(Call::Getxattr);
        let path = fd_path(fd_of(of));
        // rustix answers 0 where there is no room, and has another call for the length.
        match buf.is_empty() {
            true => rustix::fs::getxattr_query(path.as_cstr(), name),
            false => rustix::fs::getxattr(path.as_cstr(), name, buf),
        }
    }

    fn listxattr(&self, of: Handle<'_, Self::Node, Self::File>, buf: &mut [u8]) -> Result<usize> {
        self.count(Call::Listxattr);
        let path = fd_path(fd_of(of));
        match buf.is_empty() {
            true => rustix::fs::listxattr_query(path.as_cstr()),
            false => rustix::fs::listxattr(path.as_cstr(), buf),
        }
    }

    fn open_at(
        &self,
        dir: &Self::Node,
        name: &CStr,
        flags: u32,
        caller: &Caller,
    ) -> Result<Self::File> {
        self.count(Call::Open);
        let flags = open_flags(flags) | OFlags::NOFOLLOW;
        self.creds.act(caller, || {
            rustix::fs::openat(dir, name, flags, Mode::empty())
        })
    }

    fn create(
        &self,
        dir: &Self::Node,
        name: &CStr,
        flags: u32,
        mode: u32,
        caller: &Caller,
    ) -> Result<Self::File> {
        self.count(Call::Create);
        let flags = open_flags(flags) | OFlags::from_bits_retain(flags & libc::O_EXCL as u32);
        let flags = flags | OFlags::CREATE | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        self.creds
            .act(caller, || rustix::fs::openat(dir, name, flags, mode))
    }

    fn tmpfile(
        &self,
        dir: &Self::Node,
        flags: u32,
        mode: u32,
        caller: &Caller,
    ) -> Result<Self::File> {
        self.count(Call::Create);
        // With O_EXCL it can never be given a name.
        let flags = open_flags(flags) | OFlags::from_bits_retain(flags & libc::O_EXCL as u32);
        let flags = flags | OFlags::TMPFILE;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        self.creds
            .act(caller, || rustix::fs::openat(dir, c".", flags, mode))
    }

    fn mknod(
        &self,
        dir: &Self::Node,
        name: &CStr,
        mode: u32,
        rdev: u32,
        caller: &Caller,
    ) -> Result<()> {
        self.count(Call::Mknod);
        let kind = FileType::from_raw_mode(mode);
        let (mode, dev) = (Mode::from_raw_mode(mode & 0o7777), decode_dev(rdev));
        self.creds
            .act(caller, || rustix::fs::mknodat(dir, name, kind, mode, dev))
    }

    fn mkdir(&self, dir: &Self::Node, name: &CStr, mode: u32, caller: &Caller) -> Result<()> {
        self.count(Call::Mkdir);
        let mode = Mode::from_raw_mode(mode & 0o7777);
        self.creds
            .act(caller, || rustix::fs::mkdirat(dir, name, mode))
    }

    fn symlink(&self, dir: &Self::Node, name: &CStr, target: &CStr, caller: &Caller) -> Result<()> {
        self.count(Call::Symlink);
        self.creds
            .act(caller, || rustix::fs::symlinkat(target, dir, name))
    }

    fn link(
        &self,
        of: Handle<'_, Self::Node, Self::File>,
        dir: &Self::Node,
        name: &CStr,
        caller: &Caller,
    ) -> Result<()> {
        self.count(Call::Link);
        // The magic link leads to the pinned object, a symlink itself included; an
        // empty path would need a capability that the caller does not have.
        self.creds.act(caller, || {
            let old = fd_path(fd_of(of));
            rustix::fs::linkat(CWD, old.as_cstr(), dir, name, AtFlags::SYMLINK_FOLLOW)
        })
    }

    fn unlink(&self, dir: &Self::Node, name: &CStr, caller: &Caller) -> Result<()> {
        self.count(Call::Unlink);
        self.creds
            .act(caller, || rustix::fs::unlinkat(dir, name, AtFlags::empty()))
    }

    fn rmdir(&self, dir: &Self::Node, name: &CStr, caller: &Caller) -> Result<()> {
        self.count(Call::Rmdir);
        self.creds.act(caller, || {
            rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
        })
    }

    fn rename(
        &self,
        from: (&Self::Node, &CStr),
        to: (&Self::Node, &CStr),
        flags: u32,
        caller: &Caller,
    ) -> Result<()> {
        self.count(Call::Rename);
        let flags = RenameFlags::from_bits_retain(flags);
        self.creds.act(caller, || {
            rustix::fs::renameat_with(from.0, from.1, to.0, to.1, flags)
        })
    }

    fn setattr(
        &self,
        of: Handle<'_, Self::Node, Self::File>,
        change: &SetAttr,
        caller: &Caller,
    ) -> Result<()> {
        self.count(Call::Setattr);
        let fd = fd_of(of);
        let path = fd_path(fd);
        self.creds.act(caller, || {
            if let Some(size) = change.size {
                match of {
                    Handle::File(file) => rustix::fs::ftruncate(file, size)?,
                    Handle::Node(_) => truncate(path.as_cstr(), size)?,
                }
            }
            if change.uid.is_some() || change.gid.is_some() {
                let uid = change.uid.map(Uid::from_raw);
                let gid = change.gid.map(Gid::from_raw);
                rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)?;
            }
            if let Some(perm) = change.perm {
                rustix::fs::chmod(path.as_cstr(), Mode::from_raw_mode(perm.into()))?;
            }
            if change.atime.is_some() || change.mtime.is_some() {
                let times = Timestamps {
                    last_access: timespec(change.atime),
                    last_modification: timespec(change.mtime),
                };
                rustix::fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH)?;
            }
            Ok(())
        })
    }

    fn write(&self, file: &Self::File, offset: u64, data: &[u8], how: WriteHow) -> Result<usize> {
        // RWF_APPEND (0x10) instead of O_APPEND on the descriptor: whether to append
        // is a matter of each write, and what comes from a mapping never does.
        let mut flags = ReadWriteFlags::empty();
        flags.set(ReadWriteFlags::from_bits_retain(0x10), how.append);
        let full_sync = how.sync & libc::O_SYNC as u32 == libc::O_SYNC as u32;
        flags.set(ReadWriteFlags::SYNC, full_sync);
        flags.set(ReadWriteFlags::DSYNC, how.sync != 0 && !full_sync);
        let now = rustix::fs::fcntl_getfl(file)?;
        if now.contains(OFlags::DIRECT) != how.direct {
            let mut wanted = now;
            wanted.set(OFlags::DIRECT, how.direct);
            rustix::fs::fcntl_setfl(file, wanted)?;
        }
        let write_all = |data: &[u8]| {
            let mut done = 0;
            while done < data.len() {
                self.count(Call::Pwrite);
                let rest = [io::IoSlice::new(&data[done..])];
                match rustix::io::pwritev2(file, &rest, offset + done as u64, flags) {
                    Ok(0) => break,
                    Ok(n) => done += n,
                    Err(Errno::INTR) => {}
                    Err(_) if done > 0 => break,
                    Err(e) => return Err(e),
                }
            }
            Ok(done)
        };
        // Past the page cache memory has to be aligned, which what comes from the kernel
        // is not.
        let write = || match how.direct {
            true => with_aligned(data.len(), |aligned| {
                aligned.copy_from_slice(data);
                write_all(aligned)
            }),
            false => write_all(data),
        };
        match how.kill_suid {
            None => write(),
            // Root, but without the right.
            Some(writer) if writer.uid == 0 => self.creds.without_fsetid(write),
            Some(writer) => self.unprivileged(file, &writer, write),
        }
    }

    fn fsync(&self, file: &Self::File, data_only: bool) -> Result<()> {
        self.count(Call::Fsync);
        if data_only {
            rustix::fs::fdatasync(file)
        } else {
            rustix::fs::fsync(file)
        }
    }

    fn fsync_dir(&self, dir: &Self::Node) -> Result<()> {
        let fd = self.reopen(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.count(Call::Fsync);
        rustix::fs::fsync(fd)
    }

    fn fallocate(
        &self,
        file: &Self::File,
        mode: u32,
        offset: u64,
        len: u64,
        caller: &Caller,
    ) -> Result<()> {
        self.count(Call::Fallocate);
        let flags = FallocateFlags::from_bits_retain(mode);
        self.unprivileged(file, caller, || {
            rustix::fs::fallocate(file, flags, offset, len)
        })
    }

    fn copy_range(
        &self,
        (from, mut from_at): (&Self::File, u64),
        (to, mut to_at): (&Self::File, u64),
        len: u64,
        caller: &Caller,
    ) -> Result<u64> {
        self.count(Call::CopyRange);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let n = self.unprivileged(to, caller, || {
            rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len)
        })?;
        Ok(n as u64)
    }

    fn setxattr(
        &self,
        of: Handle<'_, Self::Node, Self::File>,
        name: &CStr,
        value: &[u8],
        flags: u32,
        caller: &Caller,
    ) -> Result<()> {
        self.count(Call::Setxattr);
        let flags = XattrFlags::from_bits_retain(flags);
        let path = fd_path(fd_of(of));
        self.creds.act(caller, || {
            rustix::fs::setxattr(path.as_cstr(), name, value, flags)
        })
    }

    fn removexattr(
        &self,
        of: Handle<'_, Self::Node, Self::File>,
        name: &CStr,
        caller: &Caller,
    ) -> Result<()> {
        self.count(Call::Removexattr);
        let path = fd_path(fd_of(of));
        self.creds
            .act(caller, || rustix::fs::removexattr(path.as_cstr(), name))
    }

    fn flags(&self, file: &Self::File) -> Result<u32> {
        self.count(Call::Ioctl);
        rustix::fs::ioctl_getflags(file).map(|flags| flags.bits())
    }

    fn set_flags(&self, file: &Self::File, flags: u32, caller: &Caller) -> Result<()> {
        self.count(Call::Ioctl);
        let flags = IFlags::from_bits_retain(flags);
        self.creds
            .act(caller, || rustix::fs::ioctl_setflags(file, flags))
    }

    fn fsxattr(&self, file: &Self::File) -> Result<Fsxattr> {
        self.count(Call::Ioctl);
        crate::ioctl::fsxattr(file)
    }

    fn set_fsxattr(&self, file: &Self::File, to: Fsxattr, caller: &Caller) -> Result<()> {
        self.count(Call::Ioctl);
        self.creds
            .act(caller, || crate::ioctl::set_fsxattr(file, to))
    }

    fn flock(&self, file: &Self::File, kind: LockKind) -> Result<()> {
        self.count(Call::Lock);
        let operation = match kind {
            LockKind::Read => FlockOperation::NonBlockingLockShared,
            LockKind::Write => FlockOperation::NonBlockingLockExclusive,
            LockKind::Unlock => FlockOperation::NonBlockingUnlock,
        };
        rustix::fs::flock(file, operation)
    }

    fn lock(&self, file: &Self::File, range: LockRange) -> Result<()> {
        self.count(Call::Lock);
        let lock = flock_of(range);
        nix::fcntl::fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).map_err(errno)?;
        Ok(())
    }

    fn find_lock(
        &self,
        file: &Self::File,
        range: LockRange,
    ) -> Result<Option<(LockRange, Option<u32>)>> {
        self.count(Call::Lock);
        let mut lock = flock_of(range);
        nix::fcntl::fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).map_err(errno)?;
        let kind = match i32::from(lock.l_type) {
            libc::F_RDLCK => LockKind::Read,
            libc::F_WRLCK => LockKind::Write,
            _ => return Ok(None),
        };
        let start = lock.l_start as u64;
        let end = match lock.l_len {
            0 => i64::MAX as u64,
            len => start + len as u64 - 1,
        };
        let pid = u32::try_from(lock.l_pid).ok();
        Ok(Some((LockRange { kind, start, end }, pid)))
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        let counts = self.calls.iter().map(|c| c.load(Ordering::Relaxed));
        CALL_NAMES.iter().copied().zip(counts).collect()
    }
}

/// Room that starts on a page, as O_DIRECT wants it; one for each thread.
fn with_aligned<R>(len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    const PAGE: usize = 4096;
    thread_local! {
        static ROOM: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    ROOM.with_borrow_mut(|room| {
        if room.len() < len + PAGE {
            room.resize(len + PAGE, 0);
        }
        let start = room.as_ptr().align_offset(PAGE);
        f(&mut room[start..start + len])
    })
}

/// open(2)'s flags without those that are the caller's own business or were carried
/// out already; appending is a matter of each write.
fn open_flags(flags: u32) -> OFlags {
    let dropped = OFlags::CREATE
        | OFlags::EXCL
        | OFlags::NOFOLLOW
        | OFlags::NOCTTY
        | OFlags::APPEND
        | OFlags::PATH
        | OFlags::TMPFILE
        | OFlags::CLOEXEC;
    (OFlags::from_bits_retain(flags) - dropped) | OFlags::CLOEXEC
}

/// truncate(2) by path, for an object that is not open: the caller's permission is
/// asked by the path, as truncate(2) itself does.
fn truncate(path: &CStr, size: u64) -> Result<()> {
    let size = i64::try_from(size).map_err(|_| Errno::FBIG)?;
    nix::unistd::truncate(path, size).map_err(errno)
}

fn timespec(t: Option<SetTime>) -> Timespec {
    match t {
        None => Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        Some(SetTime::Now) => Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_NOW,
        },
        Some(SetTime::At(t)) => Timespec {
            tv_sec: t.sec,
            tv_nsec: t.nsec.into(),
        },
    }
}

fn errno(e: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(e as i32)
}

fn flock_of(range: LockRange) -> libc::flock {
    let kind = match range.kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    let to_the_end = range.end >= i64::MAX as u64;
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: range.start as i64,
        l_len: if to_the_end {
            0
        } else {
            (range.end - range.start + 1) as i64
        },
        l_pid: 0,
    }
}

/// Undoes [`encode_dev`].
fn decode_dev(rdev: u32) -> u64 {
    rustix::fs::makedev(
        (rdev >> 8) & 0xfff,
        (rdev & 0xff) | ((rdev >> 12) & 0xfff00),
    )
}

fn kind_of(t: FileType) -> Option<Kind> {
    use FileType as T;
    Some(match t {
        T::RegularFile => Kind::Regular,
        T::Directory => Kind::Directory,
        T::Symlink => Kind::Symlink,
        T::Fifo => Kind::Fifo,
        T::Socket => Kind::Socket,
        T::CharacterDevice => Kind::CharDevice,
        T::BlockDevice => Kind::BlockDevice,
        T::Unknown => return None,
    })
}
