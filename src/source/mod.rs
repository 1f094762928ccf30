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

pub mod fake;
pub mod host;

use std::ffi::CStr;

use crate::error::Result;

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

/// The mirrored tree.
pub trait Source: Send + Sync + 'static {
    /// A pinned object, cheap to clone.
    type Node: Clone + Send + Sync + 'static;
    /// An open file.
    type File: Send + Sync + 'static;

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

    /// Opens a pinned regular file. `flags` are open(2)'s; O_CREAT, O_EXCL and
    /// O_NOFOLLOW are ignored.
    fn open(&self, node: &Self::Node, flags: u32) -> Result<Self::File>;

    /// Reads at `offset` into `buf`; fewer bytes than asked only at the end of the file.
    fn read(&self, file: &Self::File, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// lseek(2) with SEEK_DATA (3) or SEEK_HOLE (4).
    fn lseek(&self, file: &Self::File, offset: u64, whence: u32) -> Result<u64>;

    /// Value of an extended attribute, written to `buf`; its length. With an
    /// empty `buf` only the length.
    fn getxattr(&self, node: &Self::Node, name: &CStr, buf: &mut [u8]) -> Result<usize>;

    /// Names of the extended attributes, each with its NUL, written to `buf`;
    /// their length. With an empty `buf` only the length.
    fn listxattr(&self, node: &Self::Node, buf: &mut [u8]) -> Result<usize>;

    /// Calls made so far, by kind; for `.nameifs/stats`.
    fn calls(&self) -> Vec<(&'static str, u64)>;
}
