//! A source that makes up its tree as it is asked: millions of names without a disk.
//!
//! Every directory holds the same number of files; directory `d` holds the directories
//! `8 d + 1` to `8 d + 8`, as far as there are so many. All attributes follow from the
//! number, and so do the names, whose lengths are spread as the profile says.

use std::ffi::CStr;

use nameifs::error::{Errno, Result};
use nameifs::source::{Attr, FsTraits, Handle, Kind, RawEntry, Source, SourceId, StatFs, Time};

/// How long the names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// As headers and C sources: 12 bytes on average, one in twenty above 22.
    Short,
    /// As packages of a distribution: 20 bytes on average, one in three above 22.
    Long,
}

/// Directories in a directory.
const FAN: u64 = 8;
/// Names that one directory's number is followed by: itself and its files.
const STRIDE: u64 = 16;
/// Files in each directory.
pub const FILES: u64 = 11;

/// The generated tree.
pub struct Generated {
    dirs: u64,
    profile: Profile,
}

fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    n ^ n >> 29
}

impl Generated {
    /// A tree of about `names` names.
    pub fn new(names: u64, profile: Profile) -> Self {
        Self {
            dirs: (names / (FILES + 1)).max(1),
            profile,
        }
    }

    /// Directories, the root among them.
    pub fn dirs(&self) -> u64 {
        self.dirs
    }

    /// Names below the root.
    pub fn names(&self) -> u64 {
        self.dirs * (FILES + 1) - 1
    }

    /// The inode number of directory `dir`.
    pub fn ino(dir: u64) -> u64 {
        2 + dir * STRIDE
    }

    fn children(&self, dir: u64) -> std::ops::Range<u64> {
        (FAN * dir + 1).min(self.dirs)..(FAN * dir + 1 + FAN).min(self.dirs)
    }

    /// Writes the name of the `index`th entry of directory `dir`; its length.
    pub fn name(&self, dir: u64, index: u64, buf: &mut [u8; 64]) -> usize {
        let hash = mix(dir * STRIDE + index + 1);
        let len = match self.profile {
            Profile::Short if hash.is_multiple_of(20) => 23 + hash / 20 % 20,
            Profile::Short => 4 + hash / 20 % 16,
            Profile::Long if hash.is_multiple_of(3) => 23 + hash / 20 % 16,
            Profile::Long => 8 + hash / 20 % 15,
        };
        let len = len as usize;
        let mut letters = hash;
        for byte in &mut buf[..len] {
            *byte = b'a' + (letters % 26) as u8;
            letters = mix(letters);
        }
        buf[0] = b'A' + index as u8;
        len
    }

    fn attr(&self, ino: u64) -> Attr {
        let file = (ino - 2) % STRIDE;
        let hash = mix(ino);
        let time = |n: u64| Time {
            sec: 1_600_000_000 + (hash % 100_000_000) as i64 + n as i64,
            nsec: (mix(hash + n) % 1_000_000_000) as u32,
        };
        let dir = (ino - 2) / STRIDE;
        let is_dir = file == 0;
        let size = if is_dir { 4096 } else { hash % 100_000 };
        Attr {
            id: SourceId {
                dev: 1,
                mnt: 1,
                ino,
                btime: Some(time(0)),
            },
            kind: if is_dir {
                Kind::Directory
            } else {
                Kind::Regular
            },
            perm: if is_dir { 0o755 } else { 0o644 },
            nlink: if is_dir {
                2 + self.children(dir).count() as u32
            } else {
                1
            },
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: size.div_ceil(4096) * 8,
            blksize: 4096,
            atime: time(2),
            mtime: time(0),
            ctime: time(1),
        }
    }

    /// The inode number of the `index`th entry.
    fn entry(&self, dir: u64, index: u64) -> Option<u64> {
        if index < FILES {
            return Some(Self::ino(dir) + 1 + index);
        }
        let child = self.children(dir).start + index - FILES;
        self.children(dir)
            .contains(&child)
            .then(|| Self::ino(child))
    }
}

impl Source for Generated {
    type Node = u64;
    type File = ();

    fn root(&self) -> u64 {
        Self::ino(0)
    }

    fn open_node(&self, base: &u64, path: &CStr) -> Result<u64> {
        let mut at = *base;
        for name in path.to_bytes().split(|&b| b == b'/') {
            let dir = (at - 2) / STRIDE;
            let index = u64::from(name.first().ok_or(Errno::NOENT)?.wrapping_sub(b'A'));
            let mut buf = [0; 64];
            let found = (index < FILES + FAN)
                .then(|| self.entry(dir, index))
                .flatten()
                .ok_or(Errno::NOENT)?;
            let len = self.name(dir, index, &mut buf);
            if &buf[..len] != name {
                return Err(Errno::NOENT);
            }
            at = found;
        }
        Ok(at)
    }

    fn stat(&self, node: &u64) -> Result<Attr> {
        Ok(self.attr(*node))
    }

    fn stat_at(&self, dir: &u64, name: &CStr) -> Result<Attr> {
        self.open_node(dir, name).map(|ino| self.attr(ino))
    }

    fn stat_file(&self, (): &()) -> Result<Attr> {
        Err(Errno::BADF)
    }

    fn readlink(&self, _: &u64, _: &mut [u8]) -> Result<usize> {
        Err(Errno::INVAL)
    }

    fn list(
        &self,
        dir: &u64,
        cookie: u64,
        sink: &mut dyn FnMut(RawEntry<'_>) -> bool,
    ) -> Result<bool> {
        let number = (dir - 2) / STRIDE;
        let mut buf = [0; 64];
        for place in cookie & 0xff.. {
            let (ino, kind, len) = match place {
                0 => (*dir, Kind::Directory, 1),
                1 => (*dir, Kind::Directory, 2),
                _ => {
                    let Some(ino) = self.entry(number, place - 2) else {
                        return Ok(true);
                    };
                    let len = self.name(number, place - 2, &mut buf);
                    let is_dir = place - 2 >= FILES;
                    let kind = if is_dir {
                        Kind::Directory
                    } else {
                        Kind::Regular
                    };
                    (ino, kind, len)
                }
            };
            let name = match place {
                0 => b"." as &[u8],
                1 => b"..",
                _ => &buf[..len],
            };
            // As a filesystem with hashed directories: large numbers that ascend.
            let cookie = (place + 1) << 56 | (mix(dir + place) >> 17) << 8 | (place + 1);
            let entry = RawEntry {
                ino,
                kind: Some(kind),
                cookie,
                name,
            };
            if !sink(entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn fs_traits(&self, _: &u64) -> Result<FsTraits> {
        Ok(FsTraits {
            stable_cookies: true,
            remote: false,
            birth_times: true,
            lists_all: true,
            name: "generated",
        })
    }

    fn statfs(&self, _: &u64) -> Result<StatFs> {
        Ok(StatFs::default())
    }

    fn open(&self, _: Handle<'_, u64, ()>, _: u32) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn read(&self, (): &(), _: u64, _: &mut [u8]) -> Result<usize> {
        Err(Errno::BADF)
    }

    fn lseek(&self, (): &(), _: u64, _: u32) -> Result<u64> {
        Err(Errno::BADF)
    }

    fn getxattr(&self, _: Handle<'_, u64, ()>, _: &CStr, _: &mut [u8]) -> Result<usize> {
        Err(Errno::NODATA)
    }

    fn listxattr(&self, _: Handle<'_, u64, ()>, _: &mut [u8]) -> Result<usize> {
        Ok(0)
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
