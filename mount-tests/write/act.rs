//! What each step of the reference test does.

use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};

use nix::fcntl::FcntlArg;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    Access, AtFlags, CWD, Dir, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags,
    RenameFlags, SeekFrom, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::steps::{HANDLE_OPS, Op, SLOTS, Step};
use super::world::{World, raw};
use crate::posix::outcome;

type Said = Result<String, Errno>;

/// Without set-user-id and set-group-id: those that a file gets while it is open fall by
/// root's passed-through writes too. `users` has tests of them.
const MODES: [u32; 8] = [0o666, 0o777, 0o600, 0o644, 0o755, 0o444, 0o000, 0o1777];
const TIMES: [(i64, i64); 8] = [
    (-1, 999_999_999),
    (-315_619_200, 5),
    (0, 0),
    (100, 1),
    (951_827_696, 123_456_789),
    (4_102_444_800, 0),
    (-2_147_483_648, 0),
    (5_000_000_000, 999_999_999),
];
const OWNERS: [(u32, u32); 5] = [(0, 0), (1, 2), (65534, 65534), (1000, 100), (0, 7)];
const XATTRS: [&str; 3] = ["user.one", "user.two", "user.a.longer.name"];

const UTIME_NOW: i64 = rustix::fs::UTIME_NOW;
const UTIME_OMIT: i64 = rustix::fs::UTIME_OMIT;

fn time((tv_sec, tv_nsec): (i64, i64)) -> Timespec {
    Timespec { tv_sec, tv_nsec }
}

fn times(access: (i64, i64), modification: (i64, i64)) -> Timestamps {
    Timestamps {
        last_access: time(access),
        last_modification: time(modification),
    }
}

/// Bytes that tell where they come from.
fn pattern(step: &Step, length: usize) -> Vec<u8> {
    let text = format!("{}/{} ", step.slot, step.n);
    text.bytes().cycle().take(length).collect()
}

/// Bytes at an address that direct writes take.
fn aligned(step: &Step, length: usize) -> (Vec<u8>, usize) {
    let mut buf = vec![0; length + 4096];
    let at = buf.as_ptr().align_offset(4096);
    buf[at..at + length].copy_from_slice(&pattern(step, length));
    (buf, at)
}

/// An access list of owner, a user, group, mask and others.
fn acl(n: usize, minimal: bool) -> Vec<u8> {
    let permissions = |i: usize| ((n >> (3 * i)) & 7) as u16;
    let mut list: Vec<(u16, u16, u32)> = vec![(1, permissions(0), u32::MAX)];
    if !minimal {
        list.push((2, permissions(1), 1));
    }
    list.push((4, permissions(2), u32::MAX));
    if !minimal {
        list.push((8, 7, 10));
        list.push((16, permissions(3), u32::MAX));
    }
    list.push((32, permissions(1), u32::MAX));
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, bits, id) in list {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(bits.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn unit(result: Result<(), Errno>) -> Said {
    result.map(|()| String::new())
}

impl World {
    /// Does a step; answers what a program would see of it.
    pub fn act(&mut self, step: &Step) -> String {
        let at = self.root.join(step.at.path());
        let to = self.root.join(step.to.path());
        let done = self
            .open(step, &at)
            .or_else(|| names(step, &at, &to))
            .or_else(|| attributes(step, &at))
            .or_else(|| self.of_handle(step))
            .or_else(|| self.others(step, &at, &to))
            .or_else(|| self.behind(step))
            .unwrap_or_else(|| panic!("{:?} is done nowhere", step.op));
        match done {
            Ok(text) => text,
            Err(e) => outcome::<()>(Err(e)),
        }
    }

    fn open(&mut self, step: &Step, at: &Path) -> Option<Said> {
        let create = OFlags::CREATE;
        let flags = match step.op {
            Op::CreateWrite => create | OFlags::WRONLY,
            Op::CreateReadWrite => create | OFlags::RDWR,
            Op::CreateExclusive => create | OFlags::RDWR | OFlags::EXCL,
            Op::CreateTruncate => create | OFlags::RDWR | OFlags::TRUNC,
            Op::CreateAppend => create | OFlags::RDWR | OFlags::APPEND,
            Op::CreateSync => create | OFlags::RDWR | OFlags::SYNC,
            Op::CreateDataSync => create | OFlags::RDWR | OFlags::DSYNC,
            Op::CreateDirect => create | OFlags::RDWR | OFlags::DIRECT,
            Op::CreateNofollow => create | OFlags::RDWR | OFlags::NOFOLLOW,
            Op::CreateDirectory => create | OFlags::DIRECTORY,
            Op::CreateReadOnly => create | OFlags::RDONLY,
            // A mode that forbids what the descriptor may do.
            Op::CreateNoAccess => create | OFlags::RDWR | OFlags::EXCL,
            Op::OpenRead | Op::OpenBelow => OFlags::RDONLY,
            Op::OpenWrite => OFlags::WRONLY,
            Op::OpenReadWrite => OFlags::RDWR,
            Op::OpenTruncate => OFlags::RDWR | OFlags::TRUNC,
            Op::OpenAppend => OFlags::RDWR | OFlags::APPEND,
            Op::OpenDirect => OFlags::RDWR | OFlags::DIRECT,
            Op::OpenPath => OFlags::PATH,
            Op::OpenNofollow => OFlags::RDONLY | OFlags::NOFOLLOW,
            Op::OpenDirectory => OFlags::DIRECTORY,
            Op::OpenNoatime => OFlags::RDONLY | OFlags::NOATIME,
            _ => return None,
        };
        let mode = match step.op {
            Op::CreateNoAccess => 0,
            _ => MODES[step.n % MODES.len()],
        };
        let path = match step.op {
            Op::OpenBelow => self.below.join(step.at.path()),
            _ => at.to_owned(),
        };
        // Nobody is at the other end of a fifo.
        let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Some(
            rustix::fs::open(&path, flags, Mode::from_raw_mode(mode)).map(|fd| {
                self.slots[step.slot] = Some(fd);
                String::new()
            }),
        )
    }

    fn of_handle(&mut self, step: &Step) -> Option<Said> {
        let next = (step.slot + 1 + step.n % (SLOTS - 1)) % SLOTS;
        if HANDLE_OPS.contains(&step.op) {
            let Some(fd) = &self.slots[step.slot] else {
                return Some(Ok("no file".into()));
            };
            let to = self.root.join(step.to.path());
            let next = self.slots[next].as_ref();
            return data(fd, next, step, self.plain).or_else(|| state(fd, step, &to));
        }
        Some(match step.op {
            Op::Close => {
                self.slots[step.slot] = None;
                Ok(String::new())
            }
            Op::Dup => match &self.slots[step.slot] {
                None => Ok("no file".into()),
                Some(fd) => rustix::io::fcntl_dupfd_cloexec(fd, 3).map(|fd| {
                    self.slots[next] = Some(fd);
                    String::new()
                }),
            },
            _ => return None,
        })
    }

    fn others(&mut self, step: &Step, at: &Path, to: &Path) -> Option<Said> {
        let slot = step.slot.to_string();
        let (offset, text) = ((step.n % 3000).to_string(), format!("map{}", step.n));
        let length = (16_384).to_string();
        Some(match step.op {
            Op::MapStore | Op::MapLoad => {
                if !fs::metadata(at).is_ok_and(|m| m.is_file() && m.len() > 0) {
                    return Some(Ok("nothing to map".into()));
                }
                let said = self.helper.ask_path("map", "own", at, &["1"]);
                if said != "ok" {
                    return Some(Ok(said));
                }
                self.helper.ask(&["unmap", "own"]);
                let size = fs::metadata(at).expect("it was there").len().to_string();
                let mut said = vec![self.helper.ask_path("map", "own", at, &[&size])];
                if step.op == Op::MapStore {
                    said.push(self.helper.ask(&["store", "own", &offset, &text]));
                    said.push(self.helper.ask(&["msync", "own"]));
                }
                said.push(self.helper.ask(&["mapped", "own", "0", "64"]));
                said.push(self.helper.ask(&["unmap", "own"]));
                Ok(said.join(" "))
            }
            Op::MapKeep => {
                if !fs::metadata(at).is_ok_and(|m| m.is_file() && m.len() >= 16_384) {
                    return Some(Ok("too small to map".into()));
                }
                Ok(self.helper.ask_path("map", &slot, at, &[&length]))
            }
            Op::MapKept => {
                let mut said = vec![self.helper.ask(&["mapped", &slot, &offset, "100"])];
                if step.n.is_multiple_of(2) {
                    said.push(self.helper.ask(&["store", &slot, &offset, &text]));
                    said.push(self.helper.ask(&["msync", &slot]));
                }
                Ok(said.join(" "))
            }
            Op::CopyFile => fs::copy(at, to).map(|n| n.to_string()).map_err(raw),
            Op::Stat => fs::metadata(at)
                .map(|m| format!("{:?} {}", m.file_type(), m.permissions().readonly()))
                .map_err(raw),
            Op::StatHere => {
                rustix::fs::statvfs(at).map(|s| format!("{} {}", s.f_namemax, s.f_bsize))
            }
            Op::Access => {
                let how = Access::from_bits_truncate(step.n as u32 % 8);
                unit(rustix::fs::access(at, how))
            }
            Op::Readlink => {
                rustix::fs::readlink(at, Vec::new()).map(|t| t.to_string_lossy().into_owned())
            }
            Op::List => listed(at, |_, _| Ok(())),
            Op::ListRemoving => listed(at, |dir, name| {
                match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
                    Err(Errno::ISDIR) => Ok(()),
                    other => other,
                }
            }),
            // A whole tree, though not the one that all is in.
            Op::RemoveTree if step.at.path() == "." => Ok(String::new()),
            Op::RemoveTree => unit(fs::remove_dir_all(at).map_err(raw)),
            // Of this thread alone, which has its own since the test began.
            Op::Umask => {
                let mask = [0o022, 0, 0o077, 0o027][step.n % 4];
                rustix::process::umask(Mode::from_raw_mode(mask));
                Ok(String::new())
            }
            _ => return None,
        })
    }

    fn behind(&mut self, step: &Step) -> Option<Said> {
        let at = self.below.join(step.at.path());
        let to = self.below.join(step.to.path());
        let text = pattern(step, step.n % 5000);
        let temporary = self.below.join("temporary");
        Some(unit(match step.op {
            Op::BelowCreate => fs::File::create_new(&at).map(drop).map_err(raw),
            Op::BelowWrite => regular(&at).and_then(|()| fs::write(&at, &text).map_err(raw)),
            Op::BelowAppend => regular(&at).and_then(|()| {
                let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
                let fd = rustix::fs::open(&at, flags, Mode::empty())?;
                rustix::io::write(&fd, &text).map(drop)
            }),
            Op::BelowUnlink => rustix::fs::unlink(&at),
            Op::BelowRename => rustix::fs::rename(&at, &to),
            Op::BelowReplace => {
                let put = fs::write(&temporary, &text).map_err(raw);
                let put = put.and_then(|()| rustix::fs::rename(&temporary, &at));
                let _ = fs::remove_file(&temporary);
                put
            }
            Op::BelowMkdir => rustix::fs::mkdir(&at, Mode::from_raw_mode(0o755)),
            Op::BelowRmdir => rustix::fs::rmdir(&at),
            Op::BelowChmod => {
                let mode = Mode::from_raw_mode(MODES[step.n % MODES.len()]);
                rustix::fs::chmod(&at, mode)
            }
            Op::BelowTruncate => regular(&at).and_then(|()| {
                let fd = rustix::fs::open(&at, OFlags::WRONLY, Mode::empty())?;
                rustix::fs::ftruncate(&fd, step.n as u64 % 9000)
            }),
            Op::BelowTimes => {
                let time = TIMES[step.n % TIMES.len()];
                let follow = AtFlags::empty();
                rustix::fs::utimensat(CWD, &at, &times(time, time), follow)
            }
            Op::BelowSymlink => rustix::fs::symlinkat(step.to.path(), CWD, &at),
            Op::BelowXattr => rustix::fs::lsetxattr(
                &at,
                XATTRS[step.n % 3],
                &text[..text.len() % 200],
                XattrFlags::empty(),
            ),
            Op::BelowLink => rustix::fs::linkat(CWD, &at, CWD, &to, AtFlags::empty()),
            Op::BelowExchange => {
                rustix::fs::renameat_with(CWD, &at, CWD, &to, RenameFlags::EXCHANGE)
            }
            _ => return None,
        }))
    }
}

/// Only files are written by name: a fifo would wait.
fn regular(path: &Path) -> Result<(), Errno> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() => Ok(()),
        Ok(_) => Err(Errno::INVAL),
        Err(e) => Err(raw(e)),
    }
}

/// The names in a directory, and what is done with each while it is read.
fn listed(
    at: &Path,
    mut each: impl FnMut(BorrowedFd<'_>, &std::ffi::CStr) -> Result<(), Errno>,
) -> Said {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(at, flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&fd)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let done = outcome(each(fd.as_fd(), name));
        names.push(format!(
            "{} {:?} {done}",
            name.to_string_lossy(),
            entry.file_type()
        ));
    }
    names.sort();
    Ok(names.join(", "))
}

fn names(step: &Step, at: &Path, to: &Path) -> Option<Said> {
    let mode = Mode::from_raw_mode(MODES[step.n % MODES.len()]);
    let node = |kind, dev| rustix::fs::mknodat(CWD, at, kind, mode, dev);
    let rename = |flags| rustix::fs::renameat_with(CWD, at, CWD, to, flags);
    let targets = ["f", "a", "../c", "g", "l", "../f", "."];
    Some(unit(match step.op {
        Op::MknodFile => node(FileType::RegularFile, 0),
        Op::MknodFifo => node(FileType::Fifo, 0),
        Op::MknodSocket => node(FileType::Socket, 0),
        Op::MknodChar => node(FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        Op::MknodBlock => node(FileType::BlockDevice, rustix::fs::makedev(259, 70_000)),
        Op::Mkdir => rustix::fs::mkdir(at, mode),
        Op::MkdirSetgid => rustix::fs::mkdir(at, Mode::from_raw_mode(0o2775))
            .and_then(|()| rustix::fs::chmod(at, Mode::from_raw_mode(0o2775))),
        Op::Unlink => rustix::fs::unlink(at),
        Op::Rmdir => rustix::fs::rmdir(at),
        Op::Symlink => rustix::fs::symlinkat(targets[step.n % targets.len()], CWD, at),
        Op::SymlinkDangling => rustix::fs::symlinkat("no/such/name", CWD, at),
        Op::SymlinkSlash => rustix::fs::symlinkat("f", CWD, at.join("")),
        Op::Link => rustix::fs::linkat(CWD, at, CWD, to, AtFlags::empty()),
        Op::LinkFollow => rustix::fs::linkat(CWD, at, CWD, to, AtFlags::SYMLINK_FOLLOW),
        Op::Rename => rustix::fs::rename(at, to),
        Op::RenameNoReplace => rename(RenameFlags::NOREPLACE),
        Op::RenameExchange => rename(RenameFlags::EXCHANGE),
        // ext4 moves the time of the directory even where it refuses this.
        Op::RenameWhiteout if to.is_dir() => Ok(()),
        Op::RenameWhiteout => rename(RenameFlags::WHITEOUT),
        Op::RenameIntoSelf => rustix::fs::rename(at, at.join("inside")),
        _ => return None,
    }))
}

fn attributes(step: &Step, at: &Path) -> Option<Said> {
    let n = step.n;
    let mode = Mode::from_raw_mode(MODES[n % MODES.len()]);
    let (uid, gid) = OWNERS[n % OWNERS.len()];
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    let follow = AtFlags::empty();
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    let chown = |uid, gid, how| rustix::fs::chownat(CWD, at, uid, gid, how);
    let set = |t: Timestamps, how| rustix::fs::utimensat(CWD, at, &t, how);
    let far = TIMES[n % TIMES.len()];
    let other = TIMES[(n + 3) % TIMES.len()];
    let value = pattern(step, [0, 5, 200, 1500][n % 4]);
    let xattr = |name: &str, how| rustix::fs::setxattr(at, name, &value, how);
    let truncate = |length: usize| {
        let path = PathBuf::from(at);
        nix::unistd::truncate(&path, length as i64).map_err(|e| Errno::from_raw_os_error(e as i32))
    };
    Some(unit(match step.op {
        Op::Chmod => rustix::fs::chmod(at, mode),
        Op::ChmodNofollow => rustix::fs::chmodat(CWD, at, mode, nofollow),
        Op::Chown => chown(uid, gid, follow),
        Op::ChownGroup => chown(None, gid, follow),
        Op::ChownNobody => chown(None, None, follow),
        Op::Lchown => chown(uid, gid, nofollow),
        Op::Truncate => truncate(n % 7000),
        Op::TruncateGrow => truncate(20_000 + n * 20),
        Op::TimesNow => set(times((0, UTIME_NOW), (0, UTIME_NOW)), follow),
        Op::TimesOmit => set(times((0, UTIME_OMIT), (0, UTIME_OMIT)), follow),
        Op::TimesExplicit => set(times(far, other), follow),
        Op::TimesOld => set(times(TIMES[1], TIMES[0]), follow),
        Op::TimesMixed => set(times((0, UTIME_NOW), far), follow),
        Op::TimesSymlink => set(times(far, other), nofollow),
        Op::TimesInvalid => set(times((0, 1_000_000_000), far), follow),
        Op::SetXattr => xattr(XATTRS[n % 3], XattrFlags::empty()),
        Op::CreateXattr => xattr(XATTRS[n % 3], XattrFlags::CREATE),
        Op::ReplaceXattr => xattr(XATTRS[n % 3], XattrFlags::REPLACE),
        Op::TrustedXattr => xattr("trusted.one", XattrFlags::empty()),
        Op::BadXattr => xattr(
            ["user.", "none.x", "x", "system.x"][n % 4],
            XattrFlags::empty(),
        ),
        Op::LinkXattr => {
            let name = ["user.one", "trusted.one"][n % 2];
            rustix::fs::lsetxattr(at, name, &value, XattrFlags::empty())
        }
        Op::RemoveXattr => rustix::fs::removexattr(at, XATTRS[n % 3]),
        Op::AclAccess | Op::AclMinimal | Op::AclDefault => {
            let name = match step.op {
                Op::AclDefault => "system.posix_acl_default",
                _ => "system.posix_acl_access",
            };
            let list = acl(n, step.op == Op::AclMinimal);
            rustix::fs::setxattr(at, name, &list, XattrFlags::empty())
        }
        Op::AclRemove => {
            let names = ["system.posix_acl_access", "system.posix_acl_default"];
            rustix::fs::removexattr(at, names[n % 2])
        }
        _ => return None,
    }))
}

fn lock(step: &Step) -> libc::flock {
    let kind = match step.op {
        Op::LockRead => libc::F_RDLCK,
        Op::Unlock => libc::F_UNLCK,
        _ => libc::F_WRLCK,
    };
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: (step.n % 5) as i64 * 10,
        l_len: (step.n % 3) as i64 * 15,
        l_pid: 0,
    }
}

/// Steps on what an open file holds.
fn data(fd: &OwnedFd, next: Option<&OwnedFd>, step: &Step, plain: bool) -> Option<Said> {
    let n = step.n;
    let write_at = |offset: usize, length: usize| {
        // Blocks for those that are open for direct writes.
        let direct = rustix::fs::fcntl_getfl(fd)?.contains(OFlags::DIRECT);
        let (offset, length) = if direct {
            (offset / 4096 * 4096, length.next_multiple_of(4096))
        } else {
            (offset, length)
        };
        let (buf, at) = aligned(step, length);
        rustix::io::pwrite(fd, &buf[at..at + length], offset as u64).map(|n| n.to_string())
    };
    let read = |n: usize, buf: &[u8]| format!("{n} {}", buf[..n.min(24)].escape_ascii());
    let allocate = |flags, offset: usize, length: usize| {
        unit(rustix::fs::fallocate(
            fd,
            flags,
            offset as u64,
            length as u64,
        ))
    };
    let keep = FallocateFlags::KEEP_SIZE;
    let regular = rustix::fs::fstat(fd).is_ok_and(|s| s.st_mode & libc::S_IFMT == libc::S_IFREG);
    let seek = |from| rustix::fs::seek(fd, from).map(|n| n.to_string());
    let shift = |flags| {
        // FUSE carries neither; a mount says so and changes nothing.
        if plain {
            return Err(Errno::OPNOTSUPP);
        }
        match allocate(flags, 4096, 4096) {
            Err(
                Errno::OPNOTSUPP
                | Errno::BADF
                | Errno::NODEV
                | Errno::SPIPE
                | Errno::ISDIR
                | Errno::PERM,
            ) => Err(Errno::OPNOTSUPP),
            other => other,
        }
    };
    // Direct reads and writes at odd places and from odd addresses are refused by the
    // source only, as a passed-through file is not open for direct ones.
    let flags = |fd: &OwnedFd| rustix::fs::fcntl_getfl(fd).unwrap_or(OFlags::empty());
    let direct = flags(fd).contains(OFlags::DIRECT);
    let odd = match step.op {
        Op::Write | Op::Read | Op::WriteVector | Op::ReadVector => direct,
        Op::WriteAt | Op::WriteMuch | Op::WriteFar | Op::WriteNothing => {
            direct && flags(fd).contains(OFlags::APPEND)
        }
        Op::CopyRange | Op::CopySelf | Op::Sendfile => {
            direct || next.is_some_and(|fd| flags(fd).contains(OFlags::DIRECT))
        }
        _ => false,
    };
    if odd {
        return Some(Ok("direct".into()));
    }
    Some(match step.op {
        Op::Ftruncate => unit(rustix::fs::ftruncate(fd, n as u64 % 7000)),
        Op::FtruncateGrow => unit(rustix::fs::ftruncate(fd, 20_000 + n as u64 * 20)),
        Op::Write => {
            let (buf, at) = aligned(step, 4096);
            rustix::io::write(fd, &buf[at..at + 4096]).map(|n| n.to_string())
        }
        Op::WriteAt => write_at(n % 6000, n % 3000),
        Op::WriteFar => write_at(100_000 + n, 100),
        Op::WriteMuch => write_at(n % 5000, 70_000),
        Op::WriteNothing => write_at(n, 0),
        Op::WriteVector => {
            let bytes = pattern(step, 300);
            let parts = [IoSlice::new(&bytes[..100]), IoSlice::new(&bytes[100..])];
            rustix::io::pwritev(fd, &parts, n as u64).map(|n| n.to_string())
        }
        Op::Read => {
            let (mut buf, at) = aligned(step, 4096);
            let buf = &mut buf[at..at + 4096];
            rustix::io::read(fd, &mut *buf).map(|n| read(n, buf))
        }
        Op::ReadAt => {
            let (mut buf, at) = aligned(step, 4096);
            let buf = &mut buf[at..at + 4096];
            let offset = (n % 5 * 4096) as u64;
            rustix::io::pread(fd, &mut *buf, offset).map(|n| read(n, buf))
        }
        Op::ReadVector => {
            let (mut a, mut b) = ([0; 10], [0; 50]);
            let done = {
                let mut parts = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
                rustix::io::preadv(fd, &mut parts, n as u64 % 3000)
            };
            done.map(|n| format!("{n} {} {}", a.escape_ascii(), b.escape_ascii()))
        }
        // On anything else the answer is about nothing.
        Op::SeekTo | Op::SeekEnd | Op::SeekData | Op::SeekHole if !regular => Ok("no data".into()),
        Op::SeekTo => seek(SeekFrom::Start(n as u64 % 9000 / 512 * 512)),
        Op::SeekEnd => seek(SeekFrom::End(-(n as i64 % 100))),
        Op::SeekData => seek(SeekFrom::Data(n as u64 * 8)),
        Op::SeekHole => seek(SeekFrom::Hole(n as u64 * 8)),
        Op::Allocate => allocate(FallocateFlags::empty(), n, 1 + n % 9000),
        Op::AllocateKeep => allocate(keep, n, 1 + n % 9000),
        Op::Punch => allocate(FallocateFlags::PUNCH_HOLE | keep, n % 5000, 1 + n % 9000),
        Op::Zero => allocate(FallocateFlags::ZERO_RANGE, n % 5000, 1 + n % 9000),
        Op::ZeroKeep => allocate(FallocateFlags::ZERO_RANGE | keep, n % 5000, 1 + n % 9000),
        Op::Collapse => shift(FallocateFlags::COLLAPSE_RANGE),
        Op::Insert => shift(FallocateFlags::INSERT_RANGE),
        Op::CopyRange | Op::CopySelf | Op::Sendfile => {
            let next = if step.op == Op::CopySelf {
                Some(fd)
            } else {
                next
            };
            let Some(next) = next else {
                return Some(Ok("no second file".into()));
            };
            if step.op == Op::Sendfile {
                let done = rustix::fs::sendfile(next, fd, Some(&mut 0), 1 + n % 3000);
                return Some(done.map(|n| n.to_string()));
            }
            let (mut from, mut to) = (n as u64 % 3000, 4096 + n as u64 % 700);
            let length = 1 + n % 900;
            let done =
                rustix::fs::copy_file_range(fd, Some(&mut from), next, Some(&mut to), length);
            done.map(|n| format!("{n} {from} {to}"))
        }
        _ => return None,
    })
}

/// Steps on an open file itself.
fn state(fd: &OwnedFd, step: &Step, to: &Path) -> Option<Said> {
    let n = step.n;
    let mode = Mode::from_raw_mode(MODES[n % MODES.len()]);
    let (uid, gid) = OWNERS[n % OWNERS.len()];
    let flag = |flag: OFlags| {
        let mut flags = rustix::fs::fcntl_getfl(fd)?;
        flags.toggle(flag);
        unit(rustix::fs::fcntl_setfl(fd, flags))
    };
    Some(match step.op {
        Op::SetAppend => flag(OFlags::APPEND),
        Op::SetDirect => flag(OFlags::DIRECT),
        Op::LinkHandle => {
            let from = format!("/proc/self/fd/{}", fd.as_raw_fd());
            unit(rustix::fs::linkat(
                CWD,
                from,
                CWD,
                to,
                AtFlags::SYMLINK_FOLLOW,
            ))
        }
        Op::LinkEmptyPath => unit(rustix::fs::linkat(fd, "", CWD, to, AtFlags::EMPTY_PATH)),
        Op::Fchmod => unit(rustix::fs::fchmod(fd, mode)),
        Op::Fchown => {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            unit(rustix::fs::fchown(fd, uid, gid))
        }
        Op::FdTimes => {
            let t = times((0, UTIME_OMIT), TIMES[n % TIMES.len()]);
            unit(rustix::fs::futimens(fd, &t))
        }
        Op::Fsync => unit(rustix::fs::fsync(fd)),
        Op::Fdatasync => unit(rustix::fs::fdatasync(fd)),
        Op::FsyncDirectory => unit(rustix::fs::fsync(fd)),
        Op::Syncfs => unit(rustix::fs::syncfs(fd)),
        Op::SetXattrHandle => {
            let value = pattern(step, n % 100);
            unit(rustix::fs::fsetxattr(
                fd,
                XATTRS[n % 3],
                &value,
                XattrFlags::empty(),
            ))
        }
        Op::LockRead | Op::LockWrite | Op::Unlock => {
            let done = nix::fcntl::fcntl(fd, FcntlArg::F_OFD_SETLK(&lock(step)));
            unit(
                done.map(drop)
                    .map_err(|e| Errno::from_raw_os_error(e as i32)),
            )
        }
        Op::LockAsk => {
            let mut asked = lock(step);
            let done = nix::fcntl::fcntl(fd, FcntlArg::F_OFD_GETLK(&mut asked));
            let (kind, start, length) = (asked.l_type, asked.l_start, asked.l_len);
            done.map(|_| match i32::from(kind) {
                libc::F_UNLCK => "free".into(),
                _ => format!("{kind} {start} {length}"),
            })
            .map_err(|e| Errno::from_raw_os_error(e as i32))
        }
        Op::Flock => {
            let how = [
                FlockOperation::NonBlockingLockShared,
                FlockOperation::NonBlockingLockExclusive,
                FlockOperation::NonBlockingUnlock,
            ];
            unit(rustix::fs::flock(fd, how[n % 3]))
        }
        Op::StatHandle => rustix::fs::fstat(fd).map(|s| format!("{:o} {}", s.st_mode, s.st_size)),
        Op::ListHandle => listed(
            &PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())),
            |_, _| Ok(()),
        ),
        _ => return None,
    })
}
