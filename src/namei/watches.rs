//! Which directories are watched, and which events are our own doing (floor F4).
//!
//! Contract: a directory is watched from before its names are read until its inode is
//! freed. The table is changed together with the watcher, under one lock, so that a
//! watch is not ended that was just added again.

use std::collections::HashMap;
use std::sync::Weak;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::dcache::{Dir, InodeId};
use crate::error::{Errno, Result};
use crate::source::watch::{WatchId, Watcher};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};

type Watched = SmallVec<[(InodeId, Weak<Dir>); 1]>;

/// Where, what and which name.
type OwnChange = (InodeId, Own, Box<[u8]>);

/// The watches of one mount.
pub struct Watches<N> {
    table: Arc<Table<N>>,
    limit: usize,
    /// Directories that could not be watched; they are believed for the ttl.
    pub refused: AtomicU64,
    /// Times that events were lost.
    pub overflows: AtomicU64,
    /// Events followed.
    pub events: AtomicU64,
}

struct Table<N> {
    watcher: Arc<dyn Watcher<N>>,
    dirs: Mutex<HashMap<WatchId, Watched>>,
    own: Mutex<HashMap<OwnChange, u32>>,
}

/// Kinds of change that this mount makes and whose events are no news. Each such event
/// comes exactly once, so they can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Own {
    /// A name came to be.
    Created,
    /// A name is gone.
    Deleted,
    /// A name was moved away.
    MovedFrom,
    /// A name was moved here.
    MovedTo,
}

/// Ends a watch when its directory is no longer cached.
struct Tie<N> {
    table: Arc<Table<N>>,
    watch: WatchId,
    inode: InodeId,
}

impl<N> Drop for Tie<N> {
    fn drop(&mut self) {
        // What was expected of it does not come any more.
        self.table.own.lock().retain(|key, _| key.0 != self.inode);
        let mut dirs = self.table.dirs.lock();
        let Some(watched) = dirs.get_mut(&self.watch) else {
            return;
        };
        watched.retain(|(_, dir)| dir.strong_count() > 0);
        if watched.is_empty() {
            dirs.remove(&self.watch);
            self.table.watcher.remove(self.watch);
        }
    }
}

impl<N: 'static> Watches<N> {
    /// At most `limit` watches of `watcher`.
    pub fn new(watcher: Arc<dyn Watcher<N>>, limit: usize) -> Self {
        Self {
            table: Arc::new(Table {
                watcher,
                dirs: Mutex::default(),
                own: Mutex::default(),
            }),
            limit,
            refused: AtomicU64::new(0),
            overflows: AtomicU64::new(0),
            events: AtomicU64::new(0),
        }
    }

    /// Who tells of changes.
    pub fn watcher(&self) -> &dyn Watcher<N> {
        &*self.table.watcher
    }

    /// Watches now, and at most.
    pub fn counts(&self) -> (usize, usize) {
        (self.table.dirs.lock().len(), self.limit)
    }

    /// Watches a directory, for as long as it is cached; whether it is watched now.
    ///
    /// # Errors
    /// Those of the watcher; ENOSPC at the limit.
    pub fn watch(&self, inode: InodeId, dir: &Arc<Dir>, node: &N) -> Result<()> {
        let mut dirs = self.table.dirs.lock();
        if dirs.len() >= self.limit {
            return Err(Errno::NOSPC);
        }
        let watch = self.table.watcher.add(node)?;
        dirs.entry(watch)
            .or_default()
            .push((inode, Arc::downgrade(dir)));
        drop(dirs);
        let tie = Box::new(Tie {
            table: self.table.clone(),
            watch,
            inode,
        });
        dir.set_watched(tie);
        Ok(())
    }

    /// A directory could not be watched; whether that is the first one.
    pub fn refuse(&self) -> bool {
        self.refused.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// The directories that a watch is on.
    pub fn dirs(&self, watch: WatchId) -> SmallVec<[(InodeId, Arc<Dir>); 1]> {
        let dirs = self.table.dirs.lock();
        let watched = dirs.get(&watch).into_iter().flatten();
        watched
            .filter_map(|(inode, dir)| Some((*inode, dir.upgrade()?)))
            .collect()
    }

    /// A watch ended by itself; the directories that it was on.
    pub fn ended(&self, watch: WatchId) -> SmallVec<[(InodeId, Arc<Dir>); 1]> {
        let dirs = self.dirs(watch);
        self.table.dirs.lock().remove(&watch);
        dirs
    }

    /// This mount is about to change `name` below a directory.
    pub fn expect(&self, inode: InodeId, dir: &Dir, own: Own, name: &[u8]) {
        if dir.is_watched() {
            *self
                .table
                .own
                .lock()
                .entry((inode, own, name.into()))
                .or_default() += 1;
        }
    }

    /// It did not, or the event came: whether one was expected.
    pub fn take(&self, inode: InodeId, own: Own, name: &[u8]) -> bool {
        let mut expected = self.table.own.lock();
        let key = (inode, own, Box::from(name));
        match expected.get_mut(&key) {
            None => false,
            Some(1) => {
                expected.remove(&key);
                true
            }
            Some(n) => {
                *n -= 1;
                true
            }
        }
    }

    /// Events were lost: those that were expected will not come.
    pub fn lost(&self) {
        self.table.own.lock().clear();
        self.overflows.fetch_add(1, Ordering::Relaxed);
    }
}
