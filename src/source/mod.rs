//! The mirrored tree behind a trait (floor F3).
//!
//! Purpose: everything above asks a [`Source`] and never the operating system,
//! so that the same code runs over the host's directory and over the in-memory
//! fake of the model tests.
//!
//! Contract: no lock of ours is needed; every call may block. A [`Source::Node`]
//! pins one object whatever happens to its names; holding few of them is the
//! caller's business (`namei` keeps a bounded LRU). Names are passed as C
//! strings in a borrowed name buffer, one component unless said otherwise.
//!
//! It does not cache, does not know nodeids, and decides no permission.

#[cfg(not(feature = "loom"))]
pub mod creds;
#[cfg(not(feature = "loom"))]
pub mod fake;
#[cfg(not(feature = "loom"))]
pub mod host;
pub mod watch;

use std::ffi::CStr;

use crate::error::{Errno, Result};
use crate::ioctl::Fsxattr;
use crate::sync::Arc;

/// What an object is; `S_IFMT` without its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// FIFO.
    Fifo = 1,
    /// Character device.
    CharDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device.
    BlockDevice = 6,
    /// Regular file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Unix domain socket.
    Socket = 12,
}

impl Kind {
    /// The kind in a `st_mode`.
    pub fn from_mode(mode: u32) -> Option<Self> {
        Self::from_dtype((mode >> 12 & 0o17) as u8)
    }

    /// The kind in a `d_type`; `None` for DT_UNKNOWN.
    pub fn from_dtype(dtype: u8) -> Option<Self> {
        Some(match dtype {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// The `S_IFMT` bits.
    pub fn mode_bits(self) -> u32 {
        u32::from(self as u8) << 12
    }
}

/// A point in time as the source stores it. Ordered; may lie before 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970, negative before.
    pub sec: i64,
    /// Nanoseconds, 0 to 999,999,999, always counted forward from `sec`.
    pub nsec: u32,
}

/// Which object of the source an attribute belongs to.
///
/// The number alone identifies nothing: numbers repeat on other devices, every
/// mount of one device shows them again, and a freed number is reused. The birth
/// time tells reuse apart where the source has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId {
    /// `st_dev` (differs between btrfs subvolumes of one mount).
    pub dev: u64,
    /// The mount the object was reached through (differs between bind mounts of one device).
    pub mnt: u64,
    /// `st_ino`.
    pub ino: u64,
    /// Birth time, where the source has one.
    pub btime: Option<Time>,
}

/// Attributes of one object, as statx(2) gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Which object.
    pub id: SourceId,
    /// What it is.
    pub kind: Kind,
    /// Permission bits, 0 to 07777.
    pub perm: u16,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, in the kernel's 32-bit encoding of `dev_t`.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Preferred block size of I/O in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of the attributes.
    pub ctime: Time,
}

/// One entry of a directory as the source lists it; `.` and `..` included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEntry<'a> {
    /// `d_ino`: of the covered directory where something is mounted.
    pub ino: u64,
    /// `d_type`, if known.
    pub kind: Option<Kind>,
    /// `d_off`: where the entry after this one starts.
    pub cookie: u64,
    /// The name, without a terminator.
    pub name: &'a [u8],
}

/// How the filesystem beneath a directory behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsTraits {
    /// `d_off` values hold across opens and changes, as telldir(3) users hope.
    pub stable_cookies: bool,
    /// Changes can come from another host, so no event tells of them.
    pub remote: bool,
    /// An object keeps its birth time for life, so another birth time under the
    /// same number is another object.
    pub birth_times: bool,
    /// Every name that is there is listed, but for those that servers hide by a dot or a tilde.
    pub lists_all: bool,
    /// The filesystem's name for logs, such as `ext4`.
    pub name: &'static str,
}

/// Figures of statfs(2), for the filesystem that holds an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Block size in bytes.
    pub bsize: u64,
    /// Unit of the three block counts, in bytes.
    pub frsize: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for others than root.
    pub bavail: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Longest name in bytes.
    pub namelen: u64,
}

/// Who asks for a change: the source decides for them, not for the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Thread, by which the supplementary groups are found; 0 if it is not visible
    /// from here.
    pub pid: u32,
    /// Its umask, for what creates.
    pub umask: u32,
}

/// A pinned object or an open file.
#[derive(Debug)]
pub enum Handle<'a, N, F> {
    /// The object.
    Node(&'a N),
    /// The open file.
    File(&'a F),
}

impl<N, F> Clone for Handle<'_, N, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N, F> Copy for Handle<'_, N, F> {}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The source's present time.
    Now,
    /// This one.
    At(Time),
}

/// Attributes to be changed; `None` is left as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, 0 to 07777.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
}

/// How bytes are to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteHow {
    /// At the end, wherever that is by now (O_APPEND).
    pub append: bool,
    /// Past the page cache (O_DIRECT).
    pub direct: bool,
    /// Each write is to be durable: O_DSYNC or O_SYNC, as open(2)'s bits.
    pub sync: u32,
    /// The writer, where it may not leave set-user-id and set-group-id standing.
    pub kill_suid: Option<Caller>,
}

/// What a lock does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Shared (F_RDLCK).
    Read,
    /// Exclusive (F_WRLCK).
    Write,
    /// Given back (F_UNLCK).
    Unlock,
}

/// Bytes to be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// How.
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Last byte; the largest offset for "to the end, wherever that is".
    pub end: u64,
}

/// The mirrored tree. What changes it is answered EROFS by a source that cannot be
/// changed.
#[allow(unused_variables)] // the names of the defaults' parameters are documentation
pub trait Source: Send + Sync + 'static {
    /// A pinned object, cheap to clone.
    type Node: Clone + Send + Sync + 'static;
    /// An open file.
    type File: Send + Sync + 'static;

    /// Who tells of changes in this tree, if anybody can.
    ///
    /// # Errors
    /// EMFILE at the system's limit.
    fn watcher(&self) -> Result<Option<Arc<dyn watch::Watcher<Self::Node>>>> {
        Ok(None)
    }

    /// The directory that is mirrored.
    fn root(&self) -> Self::Node;

    /// Pins the object at `path` (one or more components, relative, no `.` or
    /// `..`) below `base`. Never leaves the tree and follows no symlink, the
    /// last component's neither.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ELOOP (a symlink on the way), EXDEV (out of the tree),
    /// EACCES, EMFILE.
    fn open_node(&self, base: &Self::Node, path: &CStr) -> Result<Self::Node>;

    /// Attributes of a pinned object.
    fn stat(&self, node: &Self::Node) -> Result<Attr>;

    /// Attributes of the object that `name` is in `dir`; a symlink's own.
    fn stat_at(&self, dir: &Self::Node, name: &CStr) -> Result<Attr>;

    /// Attributes of an open file, its name gone or not.
    fn stat_file(&self, file: &Self::File) -> Result<Attr>;

    /// Attributes of either.
    fn stat_of(&self, of: Handle<'_, Self::Node, Self::File>) -> Result<Attr> {
        match of {
            Handle::Node(node) => self.stat(node),
            Handle::File(file) => self.stat_file(file),
        }
    }

    /// Target of a pinned symlink, written to `buf`; its length.
    fn readlink(&self, node: &Self::Node, buf: &mut [u8]) -> Result<usize>;

    /// Lists `dir` from `cookie` (0: the start) in the source's order until `sink`
    /// answers `false` or the end; whether the end was reached.
    ///
    /// An entry for which `sink` answers `false` was not taken.
    fn list(
        &self,
        dir: &Self::Node,
        cookie: u64,
        sink: &mut dyn FnMut(RawEntry<'_>) -> bool,
    ) -> Result<bool>;

    /// How the filesystem that holds `node` behaves.
    fn fs_traits(&self, node: &Self::Node) -> Result<FsTraits>;

    /// Figures of the filesystem that holds `node`.
    fn statfs(&self, node: &Self::Node) -> Result<StatFs>;

    /// Opens an object anew. `flags` are open(2)'s; O_CREAT, O_EXCL, O_NOFOLLOW and
    /// O_APPEND are ignored.
    fn open(&self, of: Handle<'_, Self::Node, Self::File>, flags: u32) -> Result<Self::File>;

    /// Reads at `offset` into `buf`; fewer bytes than asked only at the end of the file.
    fn read(&self, file: &Self::File, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// lseek(2) with SEEK_DATA (3) or SEEK_HOLE (4).
    fn lseek(&self, file: &Self::File, offset: u64, whence: u32) -> Result<u64>;

    /// Value of an extended attribute, written to `buf`; its length. With an
    /// empty `buf` only the length.
    fn getxattr(
        &self,
        of: Handle<'_, Self::Node, Self::File>,
        name: &CStr,
        buf: &mut [u8],
    ) -> Result<usize>;

    /// Names of the extended attributes, each with its NUL, written to `buf`;
    /// their length. With an empty `buf` only the length.
    fn listxattr(&self, of: Handle<'_, Self::Node, Self::File>, buf: &mut [u8]) -> Result<usize>;

    /// Opens what `name` is in `dir`, never following a symlink.
    ///
    /// # Errors
    /// ENOENT, ELOOP (a symlink is there), and open(2)'s.
    fn open_at(
        &self,
        dir: &Self::Node,
        name: &CStr,
        flags: u32,
        caller: &Caller,
    ) -> Result<Self::File> {
        Err(Errno::ROFS)
    }

    /// Creates a regular file and opens it with open(2)'s `flags`; opens the one that
    /// is there already unless O_EXCL is among them. Never follows a symlink.
    ///
    /// # Errors
    /// EEXIST, ELOOP (a symlink is there), and open(2)'s.
    fn create(
        &self,
        dir: &Self::Node,
        name: &CStr,
        flags: u32,
        mode: u32,
        caller: &Caller,
    ) -> Result<Self::File> {
        Err(Errno::ROFS)
    }

    /// Creates a regular file without a name in `dir` and opens it with open(2)'s `flags`
    /// (O_TMPFILE).
    ///
    /// # Errors
    /// EOPNOTSUPP where that cannot be, and open(2)'s.
    fn tmpfile(
        &self,
        dir: &Self::Node,
        flags: u32,
        mode: u32,
        caller: &Caller,
    ) -> Result<Self::File> {
        Err(Errno::OPNOTSUPP)
    }

    /// mknod(2); `mode` holds the kind, `rdev` a device number in the kernel's 32-bit
    /// encoding.
    fn mknod(
        &self,
        dir: &Self::Node,
        name: &CStr,
        mode: u32,
        rdev: u32,
        caller: &Caller,
    ) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// mkdir(2).
    fn mkdir(&self, dir: &Self::Node, name: &CStr, mode: u32, caller: &Caller) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// symlink(2).
    fn symlink(&self, dir: &Self::Node, name: &CStr, target: &CStr, caller: &Caller) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// link(2): a further name for a pinned object, a symlink itself included.
    fn link(
        &self,
        of: Handle<'_, Self::Node, Self::File>,
        dir: &Self::Node,
        name: &CStr,
        caller: &Caller,
    ) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// unlink(2).
    fn unlink(&self, dir: &Self::Node, name: &CStr, caller: &Caller) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// rmdir(2).
    fn rmdir(&self, dir: &Self::Node, name: &CStr, caller: &Caller) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// renameat2(2) with its flags.
    fn rename(
        &self,
        from: (&Self::Node, &CStr),
        to: (&Self::Node, &CStr),
        flags: u32,
        caller: &Caller,
    ) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// Changes attributes of a pinned object, or of an open file.
    fn setattr(
        &self,
        of: Handle<'_, Self::Node, Self::File>,
        change: &SetAttr,
        caller: &Caller,
    ) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// Writes all of `data` at `offset`, or at the end if `how.append`; bytes written.
    fn write(&self, file: &Self::File, offset: u64, data: &[u8], how: WriteHow) -> Result<usize> {
        Err(Errno::ROFS)
    }

    /// fsync(2), or fdatasync(2) if `data_only`.
    fn fsync(&self, file: &Self::File, data_only: bool) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// fsync(2) of a pinned directory.
    fn fsync_dir(&self, dir: &Self::Node) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// fallocate(2) with its mode.
    fn fallocate(
        &self,
        file: &Self::File,
        mode: u32,
        offset: u64,
        len: u64,
        caller: &Caller,
    ) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// copy_file_range(2); bytes copied.
    fn copy_range(
        &self,
        from: (&Self::File, u64),
        to: (&Self::File, u64),
        len: u64,
        caller: &Caller,
    ) -> Result<u64> {
        Err(Errno::ROFS)
    }

    /// setxattr(2) with its flags.
    fn setxattr(
        &self,
        of: Handle<'_, Self::Node, Self::File>,
        name: &CStr,
        value: &[u8],
        flags: u32,
        caller: &Caller,
    ) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// removexattr(2).
    fn removexattr(
        &self,
        of: Handle<'_, Self::Node, Self::File>,
        name: &CStr,
        caller: &Caller,
    ) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// The inode flags of chattr(1), as FS_IOC_GETFLAGS gives them.
    fn flags(&self, file: &Self::File) -> Result<u32> {
        Err(Errno::ROFS)
    }

    /// Sets the inode flags, as FS_IOC_SETFLAGS does.
    fn set_flags(&self, file: &Self::File, flags: u32, caller: &Caller) -> Result<()> {
        Err(Errno::ROFS)
    }

    /// FS_IOC_FSGETXATTR.
    ///
    /// # Errors
    /// ENOTTY where there is no such thing.
    fn fsxattr(&self, file: &Self::File) -> Result<Fsxattr> {
        Err(Errno::NOTTY)
    }

    /// FS_IOC_FSSETXATTR.
    ///
    /// # Errors
    /// ENOTTY where there is no such thing, and EROFS.
    fn set_fsxattr(&self, file: &Self::File, to: Fsxattr, caller: &Caller) -> Result<()> {
        Err(Errno::NOTTY)
    }

    /// Takes, changes or gives back a lock of this open file description, without
    /// waiting (F_OFD_SETLK).
    ///
    /// # Errors
    /// EAGAIN if another's is in the way, EBADF if the file was not opened for it.
    fn lock(&self, file: &Self::File, range: LockRange) -> Result<()> {
        Err(Errno::NOLCK)
    }

    /// Takes, changes or gives back the lock of flock(2) of this open file description,
    /// without waiting.
    ///
    /// # Errors
    /// EAGAIN if another's is in the way.
    fn flock(&self, file: &Self::File, kind: LockKind) -> Result<()> {
        Err(Errno::NOLCK)
    }

    /// A lock of another's that is in the way (F_OFD_GETLK), and who holds it: `None`
    /// where that is an open file description and no process.
    fn find_lock(
        &self,
        file: &Self::File,
        range: LockRange,
    ) -> Result<Option<(LockRange, Option<u32>)>> {
        Err(Errno::NOLCK)
    }

    /// Calls made so far, by kind; for `.nameifs/stats`.
    fn calls(&self) -> Vec<(&'static str, u64)>;
}
