//! Plain values to and from fuser's (floor F6).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, Generation, INodeNo, ReplyAttr, ReplyEntry, Request, TimeOrNow};
use tracing::{debug, warn};

use crate::error::{Errno, level};
use crate::fs::{Entry, Stat};
use crate::source::{Attr, Caller, Kind, LockKind, LockRange, SetTime, Time};

pub(super) fn kind_of(kind: Kind) -> FileType {
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

pub(super) fn system_time(t: Time) -> SystemTime {
    let whole = match u64::try_from(t.sec) {
        Ok(sec) => UNIX_EPOCH.checked_add(Duration::from_secs(sec)),
        Err(_) => UNIX_EPOCH.checked_sub(Duration::from_secs(t.sec.unsigned_abs())),
    };
    whole.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(t.nsec.into())
}

pub(super) fn file_attr(ino: u64, a: &Attr) -> FileAttr {
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
pub(super) fn negative_attr() -> FileAttr {
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
pub(super) fn wire(e: Errno) -> fuser::Errno {
    let number = e.raw_os_error();
    match level(e) {
        tracing::Level::WARN => warn!(errno = number, "{e}"),
        tracing::Level::DEBUG => debug!(errno = number, "{e}"),
        _ => tracing::trace!(errno = number, "{e}"),
    }
    fuser::Errno::from_i32(number)
}

pub(super) fn reply_entry(reply: ReplyEntry, e: &Entry) {
    // The number in an entry is both nodeid and st_ino.
    let attr = file_attr(e.nodeid, &e.attr);
    reply.entry_with_ttls(
        &e.attr_ttl,
        &e.name_ttl,
        &attr,
        Generation(e.generation.into()),
    );
}

pub(super) fn reply_stat(reply: ReplyAttr, s: &Stat) {
    reply.attr(&s.ttl, &file_attr(s.ino, &s.attr));
}

/// Room for the data of one READ, per thread, so that none is allocated for each.
pub(super) fn with_read_buffer<R>(size: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    thread_local! {
        static BUFFER: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    BUFFER.with_borrow_mut(|buffer| {
        // Aligned, for reads past the page cache.
        if buffer.len() < size + 4096 {
            buffer.resize(size + 4096, 0);
        }
        let start = buffer.as_ptr().align_offset(4096);
        f(&mut buffer[start..][..size])
    })
}

pub(super) fn caller(req: &Request, umask: u32) -> Caller {
    Caller {
        uid: req.uid(),
        gid: req.gid(),
        pid: req.pid(),
        umask,
    }
}

/// A time from the wire. fuser 0.18 makes a time before 1970 of its parts by taking
/// the nanoseconds away instead of adding them; undone here.
pub(super) fn set_time(t: TimeOrNow) -> SetTime {
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

/// A lock on the wire; `None` for a type that is none.
pub(super) fn lock_range(typ: i32, start: u64, end: u64) -> Option<LockRange> {
    let kind = match typ {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return None,
    };
    (start <= end).then_some(LockRange { kind, start, end })
}

pub(super) fn lock_type(kind: LockKind) -> i32 {
    match kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    }
}
