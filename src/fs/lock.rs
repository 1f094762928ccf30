//! Locks of fcntl(2) and flock(2) (floor F5), shared with those who work on the source
//! directly.
//!
//! Contract. Each owner of locks of fcntl (a process or an open file description, to the
//! kernel) that holds some on an inode has an open file description of its own on the
//! source, whose locks (F_OFD_SETLK) stand for the owner's; closing it gives them all
//! back, as close(2) of any descriptor does. At most [`OWNER_LIMIT`] owners; one more gets
//! ENOLCK. A lock of flock is one of the source's open file itself.
//!
//! The kernel tells of a descriptor that is closed (FLUSH) before close(2) returns, but of
//! the last one (RELEASE) only some time later. Who asks for a lock in between, without
//! wanting to wait, waits for that news, up to [`RELEASE_WAIT`].

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::waiters::{Answer, Waiter, Waiters, Want, in_the_way};
use super::{FileId, Fs};
use crate::dcache::{InodeId, NodeId};
use crate::error::{Errno, Result};
use crate::source::{Handle, LockKind, LockRange, Source};
use crate::sync::Arc;

/// Owners of locks at one time; each costs a descriptor.
pub const OWNER_LIMIT: usize = 4096;
/// How long the news of a last close may take.
const RELEASE_WAIT: Duration = Duration::from_millis(50);

/// Who asks for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockOwner {
    /// The kernel's number for the owner.
    pub id: u64,
    /// Process that asks; 0 if it is not visible from here.
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
    /// The open file that the last lock was asked for by. Owners that have only that one
    /// (F_OFD_SETLK) give all back when it is closed for good.
    by: FileId,
}

/// An open file that locks were asked for by.
struct Holder {
    inode: InodeId,
    /// When a descriptor of it was closed last, the last one for all that is known.
    closed: Option<Instant>,
}

/// Why a lock was not had, and the description to try again with, if that is any use.
type Refused<F> = (Errno, Option<Arc<F>>);

/// The locks held through this mount.
pub(super) struct Locks<F> {
    owned: Mutex<HashMap<(InodeId, u64), Owned<F>>>,
    holders: Mutex<HashMap<FileId, Holder>>,
    waiters: Waiters<F>,
}

impl<F: Send + Sync + 'static> Locks<F> {
    pub(super) fn new() -> Self {
        Self {
            owned: Mutex::default(),
            holders: Mutex::default(),
            waiters: Waiters::new(),
        }
    }

    /// An owner gives back all it holds on an inode.
    fn forget(&self, inode: InodeId, owner: u64) {
        let gone = self.owned.lock().remove(&(inode, owner));
        // Closing may block; not under the lock.
        if gone.is_some() {
            drop(gone);
            self.waiters.given_back();
        }
    }

    /// A lock was had by way of an open file.
    fn held(&self, id: FileId, inode: InodeId) {
        let holder = Holder {
            inode,
            closed: None,
        };
        self.holders.lock().insert(id, holder);
    }

    /// When the news of a last close is to be waited for no longer, if it may be due for
    /// an open file of `inode` other than `id`. Each close is waited for once.
    fn release_due(&self, inode: InodeId, id: FileId) -> Option<Instant> {
        let mut holders = self.holders.lock();
        let others = holders
            .iter_mut()
            .filter(|(other, h)| **other != id && h.inode == inode);
        let closed = others.filter_map(|(_, h)| h.closed.take()).max()?;
        drop(holders);
        let until = closed + RELEASE_WAIT;
        (until > Instant::now()).then_some(until)
    }

    /// Whether locks were asked for by an open file.
    pub(super) fn is_holder(&self, id: FileId) -> bool {
        self.holders.lock().contains_key(&id)
    }

    /// An open file of the source was closed for good; with it go the locks of owners that
    /// are known by nothing else.
    pub(super) fn released(&self, id: FileId) {
        if !self.is_holder(id) {
            return;
        }
        let mut owned = self.owned.lock();
        let gone: Vec<_> = owned.extract_if(|_, o| o.by == id).collect();
        drop(owned);
        drop(gone);
        // Last: until then it says that the news is due.
        self.holders.lock().remove(&id);
        self.waiters.given_back();
    }

    /// Owners and waiters now.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.owned.lock().len(), self.waiters.len())
    }

    /// The end of the mount.
    pub(super) fn end(&self) {
        self.waiters.end();
        self.owned.lock().clear();
        self.holders.lock().clear();
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
                found.by = id;
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
            by: id,
        });
        Ok(entry.file.clone())
    }

    /// SETLK and, with `wait`, the number of the request that waits, SETLKW: takes,
    /// changes or gives back a lock of fcntl(2). `answer` is called now or, if the lock
    /// must be waited for, later from another thread.
    pub fn setlk(
        self: &Arc<Self>,
        nodeid: NodeId,
        id: FileId,
        owner: LockOwner,
        range: LockRange,
        wait: Option<u64>,
        answer: Answer,
    ) {
        let tried = self.try_lock(nodeid, id, owner, range);
        self.settle(nodeid, id, Want::Range(range), tried, wait, answer);
    }

    /// SETLK and SETLKW for flock(2), with the same arguments.
    pub fn flock(
        self: &Arc<Self>,
        nodeid: NodeId,
        id: FileId,
        kind: LockKind,
        wait: Option<u64>,
        answer: Answer,
    ) {
        let want = Want::Whole(kind);
        let tried = match self.files.file(id) {
            // A virtual file.
            Err(Errno::BADF) => Err((Errno::NOLCK, None)),
            Ok(file) => want
                .take(&self.namei.source, &file)
                .map_err(|e| (e, Some(file))),
            Err(e) => Err((e, None)),
        };
        if tried.is_ok() && kind == LockKind::Unlock {
            self.locks.waiters.given_back();
        }
        self.settle(nodeid, id, want, tried, wait, answer);
    }

    /// Answers after the first try, or sees to it that there are more.
    fn settle(
        self: &Arc<Self>,
        nodeid: NodeId,
        id: FileId,
        want: Want,
        tried: core::result::Result<(), Refused<S::File>>,
        wait: Option<u64>,
        answer: Answer,
    ) {
        let inode = self.namei.dcache.inodes.find(nodeid);
        let (file, until) = match tried {
            Ok(()) => {
                if let (Some(inode), true) = (inode, want.takes()) {
                    self.locks.held(id, inode);
                }
                return answer(Ok(()));
            }
            Err((e, Some(file))) if in_the_way(e) => {
                let due = inode.and_then(|inode| self.locks.release_due(inode, id));
                match (wait, due) {
                    (Some(_), _) => (file, None),
                    (None, Some(until)) => (file, Some(until)),
                    // The news may have come since the first try.
                    (None, None) => {
                        let again = want.take(&self.namei.source, &file);
                        if let (Ok(()), Some(inode)) = (again, inode) {
                            self.locks.held(id, inode);
                        }
                        return answer(again);
                    }
                }
            }
            Err((e, _)) => return answer(Err(e)),
        };
        let locks = self.clone();
        let answer = Box::new(move |done: Result<()>| {
            if let (Ok(()), Some(inode)) = (done, inode) {
                locks.locks.held(id, inode);
            }
            answer(done);
        });
        let waiter = Waiter {
            file,
            want,
            // No request has the number 0.
            unique: wait.unwrap_or(0),
            until,
            answer,
        };
        let fs = self.clone();
        self.locks
            .waiters
            .wait(waiter, move || fs.locks.waiters.serve(&fs.namei.source));
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
            let done = self.namei.source.lock(&file, range);
            self.locks.waiters.given_back();
            return done.map_err(|e| (e, None));
        }
        let file = self.lock_file(inode, id, owner).map_err(|e| (e, None))?;
        self.namei
            .source
            .lock(&file, range)
            .map_err(|e| (e, Some(file)))
    }

    /// INTERRUPT: the request of that number is to be given up. Of those that can be, only
    /// waiting for a lock takes long.
    pub fn interrupt(&self, unique: u64) {
        self.locks.waiters.interrupt(unique);
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

    /// FLUSH: a descriptor of an open file was closed by `owner`, and with it all its locks
    /// are gone.
    ///
    /// # Errors
    /// None; the kernel would tell them to close(2).
    pub fn flush(&self, nodeid: NodeId, id: FileId, owner: u64) -> Result<()> {
        if let Some(inode) = self.namei.dcache.inodes.find(nodeid) {
            self.locks.forget(inode, owner);
        }
        if let Some(holder) = self.locks.holders.lock().get_mut(&id) {
            holder.closed = Some(Instant::now());
        }
        Ok(())
    }
}
