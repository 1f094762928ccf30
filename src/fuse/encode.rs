//! Plain values to and from the structures of the device (floor F6).

use std::time::Duration;

use super::abi;
use super::device::Reply;
use crate::fs::{DirEntry, Entry, Stat};
use crate::source::{self, Caller, LockKind, LockRange, SetAttr, SetTime, StatFs, Time};

fn attr(ino: u64, a: &source::Attr) -> abi::Attr {
    abi::Attr {
        ino,
        size: a.size,
        blocks: a.blocks,
        atime: a.atime.sec,
        mtime: a.mtime.sec,
        ctime: a.ctime.sec,
        atimensec: a.atime.nsec,
        mtimensec: a.mtime.nsec,
        ctimensec: a.ctime.nsec,
        mode: mode(a),
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: a.blksize,
        flags: 0,
    }
}

fn mode(a: &source::Attr) -> u32 {
    a.kind.mode_bits() | u32::from(a.perm)
}

/// The kernel takes what does not fit into its clock for the longest time there is.
fn split(ttl: Duration) -> (u64, u32) {
    (ttl.as_secs(), ttl.subsec_nanos())
}

pub(super) fn entry(e: &Entry) -> abi::EntryOut {
    let (entry_valid, entry_valid_nsec) = split(e.name_ttl);
    let (attr_valid, attr_valid_nsec) = split(e.attr_ttl);
    abi::EntryOut {
        nodeid: e.nodeid,
        generation: e.generation.into(),
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: attr(e.ino, &e.attr),
    }
}

/// An absent name: nodeid 0 with a timeout is how the kernel learns to remember an
/// absence.
pub(super) fn negative(ttl: Duration) -> abi::EntryOut {
    let (entry_valid, entry_valid_nsec) = split(ttl);
    abi::EntryOut {
        entry_valid,
        entry_valid_nsec,
        ..abi::EntryOut::default()
    }
}

pub(super) fn stat(s: &Stat) -> abi::AttrOut {
    let (attr_valid, attr_valid_nsec) = split(s.ttl);
    abi::AttrOut {
        attr_valid,
        attr_valid_nsec,
        dummy: 0,
        attr: attr(s.ino, &s.attr),
    }
}

pub(super) fn statx(s: &Stat) -> abi::StatxOut {
    let time = |t: Time| abi::SxTime {
        tv_sec: t.sec,
        tv_nsec: t.nsec,
        reserved: 0,
    };
    let (attr_valid, attr_valid_nsec) = split(s.ttl);
    let a = &s.attr;
    let born = a.id.btime;
    abi::StatxOut {
        attr_valid,
        attr_valid_nsec,
        stat: abi::Statx {
            mask: abi::STATX_BASIC_STATS | born.map_or(0, |_| abi::STATX_BTIME),
            blksize: a.blksize,
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            mode: mode(a) as u16,
            ino: s.ino,
            size: a.size,
            blocks: a.blocks,
            atime: time(a.atime),
            btime: time(born.unwrap_or_default()),
            ctime: time(a.ctime),
            mtime: time(a.mtime),
            rdev_major: a.rdev >> 8 & 0xfff,
            rdev_minor: a.rdev & 0xff | a.rdev >> 12 & 0xfff00,
            ..abi::Statx::default()
        },
        ..abi::StatxOut::default()
    }
}

pub(super) fn statfs(s: &StatFs) -> abi::StatfsOut {
    abi::StatfsOut {
        blocks: s.blocks,
        bfree: s.bfree,
        bavail: s.bavail,
        files: s.files,
        ffree: s.ffree,
        bsize: s.bsize as u32,
        namelen: s.namelen as u32,
        frsize: s.frsize as u32,
        ..abi::StatfsOut::default()
    }
}

/// Appends an entry of a listing, with its attributes if `plus`, unless the reply would
/// exceed `size`; whether it did not.
pub(super) fn dirent(reply: &mut Reply, size: usize, plus: bool, e: &DirEntry<'_>) -> bool {
    let head = if plus { size_of::<abi::EntryOut>() } else { 0 };
    let len = (head + size_of::<abi::Dirent>() + e.name.len()).next_multiple_of(8);
    if reply.len() + len > size {
        return false;
    }
    if plus {
        // Without a nodeid the kernel takes the name alone.
        reply.put(&e.entry.as_ref().map(entry).unwrap_or_default());
    }
    reply.put(&abi::Dirent {
        ino: e.ino,
        off: e.cookie,
        namelen: e.name.len() as u32,
        kind: e.kind.mode_bits() >> 12,
    });
    reply.put_bytes(e.name);
    reply.pad();
    true
}

pub(super) fn caller(header: &abi::InHeader, umask: u32) -> Caller {
    Caller {
        uid: header.uid,
        gid: header.gid,
        pid: header.pid,
        umask,
    }
}

pub(super) fn change(s: &abi::SetattrIn) -> SetAttr {
    let has = |bit| s.valid & bit != 0;
    let time = |bit, now, sec, nsec| match (has(bit), has(now)) {
        (false, _) => None,
        (true, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(Time { sec, nsec })),
    };
    SetAttr {
        perm: has(abi::FATTR_MODE).then_some((s.mode & 0o7777) as u16),
        uid: has(abi::FATTR_UID).then_some(s.uid),
        gid: has(abi::FATTR_GID).then_some(s.gid),
        size: has(abi::FATTR_SIZE).then_some(s.size),
        atime: time(abi::FATTR_ATIME, abi::FATTR_ATIME_NOW, s.atime, s.atimensec),
        mtime: time(abi::FATTR_MTIME, abi::FATTR_MTIME_NOW, s.mtime, s.mtimensec),
    }
}

/// A lock on the wire; `None` if it is none.
pub(super) fn lock(l: &abi::FileLock) -> Option<LockRange> {
    let kind = match l.kind as i32 {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return None,
    };
    (l.start <= l.end).then_some(LockRange {
        kind,
        start: l.start,
        end: l.end,
    })
}

pub(super) fn lock_kind(kind: LockKind) -> u32 {
    let kind = match kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    kind as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Attr, Kind, SourceId};

    fn device() -> Attr {
        Attr {
            id: SourceId {
                dev: 0,
                mnt: 0,
                ino: 7,
                btime: None,
            },
            kind: Kind::CharDevice,
            perm: 0o640,
            nlink: 1,
            uid: 1,
            gid: 2,
            // 0xabc : 0x12345
            rdev: 0x45 | 0xabc << 8 | 0x123 << 20,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: Time { sec: -5, nsec: 1 },
            mtime: Time {
                sec: i64::MIN,
                nsec: 0,
            },
            ctime: Time::default(),
        }
    }

    #[test]
    fn statx_has_what_stat_has_and_a_birth_time_if_there_is_one() {
        let mut s = Stat {
            ino: 7,
            attr: device(),
            ttl: Duration::from_millis(1500),
        };
        let out = statx(&s);
        assert_eq!(out.stat.mask, abi::STATX_BASIC_STATS);
        assert_eq!((out.attr_valid, out.attr_valid_nsec), (1, 500_000_000));
        assert_eq!((out.stat.rdev_major, out.stat.rdev_minor), (0xabc, 0x12345));
        assert_eq!(u32::from(out.stat.mode), libc::S_IFCHR | 0o640);
        assert_eq!((out.stat.atime.tv_sec, out.stat.atime.tv_nsec), (-5, 1));
        s.attr.id.btime = Some(Time { sec: 3, nsec: 4 });
        let out = statx(&s);
        assert_eq!(out.stat.mask & abi::STATX_BTIME, abi::STATX_BTIME);
        assert_eq!((out.stat.btime.tv_sec, out.stat.btime.tv_nsec), (3, 4));
        assert_eq!(stat(&s).attr.mtime, i64::MIN);
    }

    #[test]
    fn what_is_to_be_changed_is_what_is_marked() {
        let all = abi::SetattrIn {
            mode: 0o100_644,
            uid: 1,
            gid: 2,
            size: 3,
            mtime: -4,
            mtimensec: 5,
            ..abi::SetattrIn::default()
        };
        assert_eq!(change(&all), SetAttr::default());
        let valid = abi::FATTR_MODE | abi::FATTR_MTIME | abi::FATTR_ATIME | abi::FATTR_ATIME_NOW;
        let some = change(&abi::SetattrIn { valid, ..all });
        assert_eq!(
            some,
            SetAttr {
                perm: Some(0o644),
                atime: Some(SetTime::Now),
                mtime: Some(SetTime::At(Time { sec: -4, nsec: 5 })),
                ..SetAttr::default()
            }
        );
    }
}
