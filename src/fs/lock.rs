//! fcntl(2) locks (floor F5), shared with those who work on the source directly.
//!
//! Contract. Each owner (a process, to the kernel) that holds locks on an inode has an
//! open file description of its own on the source, whose locks (F_OFD_SETLK) stand
//! for the owner's; closing it gives them all back, as close(2) of any descriptor
//! does. At most [`OWNER_LIMIT`] owners; one more gets ENOLCK.
//!
//! Who waits for a lock occupies no thread that serves requests: one thread tries for
//! all who wait, at most [`WAITER_LIMIT`]. It also looks whether a signal waits for
//! the waiting thread, and lets it go with EINTR: fuser passes no FUSE_INTERRUPT on,
//! without which not even SIGKILL would end the wait.
//!
//! flock(2) stays with the kernel of this mount; fuser does not tell it from these.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{FileId, Fs};
use crate::dcache::{InodeId, NodeId};
use crate::error::{Errno, Result};
use crate::source::{Handle, LockKind, LockRange, Source};
use crate::sync::Arc;

/// Owners of locks at one time; each costs a descriptor.
pub const OWNER_LIMIT: usize = 4096;
/// Waiters at one time.
pub const WAITER_LIMIT: usize = 4096;
/// Pauses between two tries of those who wait, growing from the first to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

/// Who asks for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockOwner {
    /// The kernel's number for the owner.
    pub id: u64,
    /// Thread that asks; 0 if it is not visible from here.
    pub pid: u32,
}

/// A lock that stands in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What is locked, and how.
    pub range: LockRange,
    /// Who holds it; 0 if that is not known.
    pub pid: u32,
}

struct Owned<F> {
    file: Arc<F>,
    pid: u32,
}

/// Why a lock was not had, and the description to try again with, if that is any use.
type Refused<F> = (Errno, Option<Arc<F>>);

/// How a waiter is told.
type Answer = Box<dyn FnOnce(Result<()>) + Send>;

struct Waiter<F> {
    file: Arc<F>,
    range: LockRange,
    pid: u32,
    answer: Answer,
}

/// The locks held through this mount.
pub(super) struct Locks<F> {
    owned: Mutex<HashMap<(InodeId, u64), Owned<F>>>,
    waiters: Mutex<Waiting<F>>,
    arrived: Condvar,
}

struct Waiting<F> {
    list: Vec<Waiter<F>>,
    /// The thread that tries for them runs.
    served: bool,
    closed: bool,
}

impl<F: Send + Sync + 'static> Locks<F> {
    pub(super) fn new() -> Self {
        Self {
            owned: Mutex::default(),
            waiters: Mutex::new(Waiting {
                list: Vec::new(),
                served: false,
                closed: false,
            }),
            arrived: Condvar::new(),
        }
    }

    /// An owner gives back all it holds on an inode.
    pub(super) fn forget(&self, inode: InodeId, owner: u64) {
        let gone = self.owned.lock().remove(&(inode, owner));
        // Closing may block; not under the lock.
        drop(gone);
    }

    /// Owners and waiters now.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.owned.lock().len(), self.waiters.lock().list.len())
    }

    /// The end of the mount.
    pub(super) fn end(&self) {
        let mut waiters = self.waiters.lock();
        waiters.closed = true;
        let list = std::mem::take(&mut waiters.list);
        drop(waiters);
        self.arrived.notify_all();
        list.into_iter().for_each(|w| (w.answer)(Err(Errno::INTR)));
        self.owned.lock().clear();
    }
}

impl<S: Source> Fs<S> {
    /// The open file description that stands for an owner.
    fn lock_file(&self, inode: InodeId, id: FileId, owner: LockOwner) -> Result<Arc<S::File>> {
        let key = (inode, owner.id);
        {
            let mut owned = self.locks.owned.lock();
            if let Some(found) = owned.get_mut(&key) {
                found.pid = owner.pid;
                return Ok(found.file.clone());
            }
            if owned.len() >= OWNER_LIMIT {
                return Err(Errno::NOLCK);
            }
        }
        let source = &self.namei.source;
        let opened = self.files.with_file(id, |file| {
            // A lock for writing needs a descriptor that can write; where that is not
            // to be had, one that can read serves locks for reading.
            source
                .open(Handle::File(file), libc::O_RDWR as u32)
                .or_else(|_| source.open(Handle::File(file), libc::O_RDONLY as u32))
                .or_else(|_| source.open(Handle::File(file), libc::O_WRONLY as u32))
        })??;
        let file = Arc::new(opened);
        let mut owned = self.locks.owned.lock();
        let entry = owned.entry(key).or_insert(Owned {
            file,
            pid: owner.pid,
        });
        Ok(entry.file.clone())
    }

    /// SETLK and, with `wait`, SETLKW: takes, changes or gives back a lock; `answer` is
    /// called now or, if the lock must be waited for, later from another thread.
    pub fn setlk(
        self: &Arc<Self>,
        nodeid: NodeId,
        id: FileId,
        owner: LockOwner,
        range: LockRange,
        wait: bool,
        answer: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let tried = self.try_lock(nodeid, id, owner, range);
        match tried {
            Err((Errno::AGAIN | Errno::ACCESS, Some(file))) if wait => {
                let answer = Box::new(answer);
                self.wait_for_lock(Waiter {
                    file,
                    range,
                    pid: owner.pid,
                    answer,
                });
            }
            Err((e, _)) => answer(Err(e)),
            Ok(()) => answer(Ok(())),
        }
    }

    fn try_lock(
        &self,
        nodeid: NodeId,
        id: FileId,
        owner: LockOwner,
        range: LockRange,
    ) -> core::result::Result<(), Refused<S::File>> {
        let pinned = self.inode(nodeid).map_err(|e| (e, None))?;
        let inode = pinned.id();
        if range.kind == LockKind::Unlock {
            let held = self
                .locks
                .owned
                .lock()
                .get(&(inode, owner.id))
                .map(|o| o.file.clone());
            let Some(file) = held else { return Ok(()) };
            if range.start == 0 && range.end >= i64::MAX as u64 {
                self.locks.forget(inode, owner.id);
                return Ok(());
            }
            return self.namei.source.lock(&file, range).map_err(|e| (e, None));
        }
        let file = self.lock_file(inode, id, owner).map_err(|e| (e, None))?;
        self.namei
            .source
            .lock(&file, range)
            .map_err(|e| (e, Some(file)))
    }

    fn wait_for_lock(self: &Arc<Self>, waiter: Waiter<S::File>) {
        let mut waiters = self.locks.waiters.lock();
        if waiters.closed || waiters.list.len() >= WAITER_LIMIT {
            drop(waiters);
            return (waiter.answer)(Err(Errno::NOLCK));
        }
        waiters.list.push(waiter);
        if !waiters.served {
            let fs = self.clone();
            let started = std::thread::Builder::new()
                .name("locks".into())
                .spawn(move || fs.serve_waiters());
            waiters.served = started.is_ok();
            if let Err(e) = started {
                tracing::warn!(error = %e, "no thread for those who wait for locks");
                let list = std::mem::take(&mut waiters.list);
                drop(waiters);
                list.into_iter().for_each(|w| (w.answer)(Err(Errno::NOLCK)));
                return;
            }
        }
        drop(waiters);
        self.locks.arrived.notify_one();
    }

    /// The thread that tries for all who wait; ends when nobody waits any more.
    fn serve_waiters(&self) {
        let mut pause = PAUSE.0;
        loop {
            let list = {
                let mut waiters = self.locks.waiters.lock();
                if waiters.list.is_empty() {
                    waiters.served = false;
                    return;
                }
                std::mem::take(&mut waiters.list)
            };
            let before = list.len();
            let mut left = Vec::with_capacity(before);
            for waiter in list {
                match self.namei.source.lock(&waiter.file, waiter.range) {
                    Err(Errno::AGAIN | Errno::ACCESS) if !has_signal(waiter.pid) => {
                        left.push(waiter);
                    }
                    Err(Errno::AGAIN | Errno::ACCESS) => (waiter.answer)(Err(Errno::INTR)),
                    other => (waiter.answer)(other),
                }
            }
            pause = if left.len() < before {
                PAUSE.0
            } else {
                (pause * 2).min(PAUSE.1)
            };
            let mut waiters = self.locks.waiters.lock();
            if waiters.closed {
                drop(waiters);
                return left.into_iter().for_each(|w| (w.answer)(Err(Errno::INTR)));
            }
            left.append(&mut waiters.list);
            waiters.list = left;
            // Locks held on the source tell nobody when they go: hence tries in time.
            self.locks.arrived.wait_for(&mut waiters, pause);
        }
    }

    /// GETLK: what stands in the way of a lock; `None` if nothing does.
    ///
    /// # Errors
    /// EBADF, ENOLCK, and fcntl(2)'s.
    pub fn getlk(
        &self,
        nodeid: NodeId,
        id: FileId,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<Option<Conflict>> {
        let pinned = self.inode(nodeid)?;
        let inode = pinned.id();
        let had = self.locks.owned.lock().contains_key(&(inode, owner.id));
        let file = self.lock_file(inode, id, owner)?;
        let found = self.namei.source.find_lock(&file, range);
        drop(file);
        if !had {
            self.locks.forget(inode, owner.id);
        }
        let Some((range, pid)) = found? else {
            return Ok(None);
        };
        // Our own descriptions have no process to show; their owners do.
        let pid = pid.unwrap_or_else(|| {
            let owned = self.locks.owned.lock();
            let other = owned.iter().find(|(k, _)| k.0 == inode && k.1 != owner.id);
            other.map_or(0, |(_, o)| o.pid)
        });
        Ok(Some(Conflict { range, pid }))
    }

    /// FLUSH: a descriptor of `owner` was closed, and with it all its locks are gone.
    ///
    /// # Errors
    /// ESTALE.
    pub fn flush(&self, nodeid: NodeId, owner: u64) -> Result<()> {
        if let Some(inode) = self.namei.dcache.inodes.find(nodeid) {
            self.locks.forget(inode, owner);
        }
        Ok(())
    }
}

/// Whether a signal waits for a thread that it neither blocks nor ignores.
fn has_signal(pid: u32) -> bool {
    if pid == 0 {
        return false;
    }
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        // Gone: nobody waits any more.
        return true;
    };
    deliverable(&status)
}

fn deliverable(status: &str) -> bool {
    let mask = |field: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(field));
        line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .unwrap_or(0)
    };
    let pending = mask("SigPnd:") | mask("ShdPnd:");
    pending & !mask("SigBlk:") & !mask("SigIgn:") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_counts_unless_blocked_or_ignored() {
        let status = |pending, blocked, ignored| {
            format!("SigPnd:\t0\nShdPnd:\t{pending}\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\n")
        };
        assert!(deliverable(&status("0000000000000100", "0", "0")));
        assert!(!deliverable(&status(
            "0000000000000100",
            "0000000000000100",
            "0"
        )));
        assert!(!deliverable(&status(
            "0000000000000100",
            "0",
            "0000000000000100"
        )));
        assert!(!deliverable(&status("0", "0", "0")));
    }
}
