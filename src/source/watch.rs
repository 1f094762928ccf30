//! Events of changes in the mirrored tree (floor F3).
//!
//! Purpose: a [`Watcher`] is told which directories matter and says what changed in
//! them, whoever changed it. inotify(7): no privilege, one watch for each directory.
//!
//! Contract: [`Watcher::next`] is called by one thread; the rest by any. A watch is
//! added *before* the directory is read, so that no change falls between.
//!
//! It does not know what is cached.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::error::{Errno, Result};

/// Names a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WatchId {
    /// inotify's number.
    Inotify(WatchDescriptor),
    /// Another watcher's number.
    Other(u64),
}

/// What happened to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// It came to be.
    Created,
    /// It is gone.
    Deleted,
    /// It was moved away; the number pairs it with [`Change::MovedTo`].
    MovedFrom(u32),
    /// It was moved here.
    MovedTo(u32),
    /// The attributes of what it names changed.
    Attributes,
    /// The contents of what it names changed, or may have.
    Contents,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// In the watched directory something happened to `name`.
    Name {
        /// The directory's watch.
        watch: WatchId,
        /// The name.
        name: Box<[u8]>,
        /// What happened.
        change: Change,
    },
    /// The attributes of the watched directory itself changed.
    Itself {
        /// Its watch.
        watch: WatchId,
    },
    /// The directory is watched no more: deleted, unmounted, or by our own wish.
    Ended {
        /// Its watch.
        watch: WatchId,
    },
    /// Events were lost: anything may have changed anywhere.
    Overflow,
}

/// Tells of changes.
pub trait Watcher<N>: Send + Sync {
    /// Watches a directory.
    ///
    /// # Errors
    /// ENOSPC at the limit of watches.
    fn add(&self, dir: &N) -> Result<WatchId>;

    /// Ends a watch.
    fn remove(&self, watch: WatchId);

    /// Waits for events; `None` once closed.
    ///
    /// # Errors
    /// read(2)'s.
    fn next(&self) -> Result<Option<Vec<Event>>>;

    /// Nobody wants to know any more.
    fn close(&self);
}

/// inotify(7).
pub struct InotifyWatcher {
    inotify: Inotify,
    /// Readable once closed.
    closed: OwnedFd,
}

impl InotifyWatcher {
    /// A watcher without watches.
    ///
    /// # Errors
    /// EMFILE at the limit of instances.
    pub fn new() -> Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
        Ok(Self {
            inotify: inotify.map_err(|e| Errno::from_raw_os_error(e as i32))?,
            closed: eventfd(0, EventfdFlags::CLOEXEC)?,
        })
    }
}

/// IN_EXCL_UNLINK of inotify(7).
const EXCL_UNLINK: AddWatchFlags = AddWatchFlags::from_bits_retain(0x0400_0000);

fn mask() -> AddWatchFlags {
    AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_MODIFY
        // Writes through a mapping show by this alone.
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_ONLYDIR
        // Of what has no name any more nothing is cached by name.
        | EXCL_UNLINK
}

impl<N: std::ops::Deref<Target = OwnedFd>> Watcher<N> for InotifyWatcher {
    fn add(&self, dir: &N) -> Result<WatchId> {
        let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let added = self.inotify.add_watch(&*path, mask());
        let watch = added.map_err(|e| Errno::from_raw_os_error(e as i32))?;
        Ok(WatchId::Inotify(watch))
    }

    fn remove(&self, watch: WatchId) {
        if let WatchId::Inotify(watch) = watch {
            // EINVAL if it ended by itself.
            let _ = self.inotify.rm_watch(watch);
        }
    }

    fn next(&self) -> Result<Option<Vec<Event>>> {
        loop {
            let inotify = self.inotify.as_fd();
            let mut fds = [
                PollFd::new(&inotify, PollFlags::IN),
                PollFd::new(&self.closed, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
            if fds[1].revents().contains(PollFlags::IN) {
                return Ok(None);
            }
            match self.inotify.read_events() {
                Ok(events) => return Ok(Some(events.iter().filter_map(event_of).collect())),
                Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {}
                Err(e) => return Err(Errno::from_raw_os_error(e as i32)),
            }
        }
    }

    fn close(&self) {
        let _ = rustix::io::write(&self.closed, &1u64.to_ne_bytes());
    }
}

fn event_of(event: &InotifyEvent) -> Option<Event> {
    let (watch, mask) = (WatchId::Inotify(event.wd), event.mask);
    let has = |flags| mask.intersects(flags);
    if has(AddWatchFlags::IN_Q_OVERFLOW) {
        return Some(Event::Overflow);
    }
    let ended =
        AddWatchFlags::IN_IGNORED | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_UNMOUNT;
    if has(ended) {
        return Some(Event::Ended { watch });
    }
    let Some(name) = &event.name else {
        return has(AddWatchFlags::IN_ATTRIB).then_some(Event::Itself { watch });
    };
    let change = if has(AddWatchFlags::IN_CREATE) {
        Change::Created
    } else if has(AddWatchFlags::IN_DELETE) {
        Change::Deleted
    } else if has(AddWatchFlags::IN_MOVED_FROM) {
        Change::MovedFrom(event.cookie)
    } else if has(AddWatchFlags::IN_MOVED_TO) {
        Change::MovedTo(event.cookie)
    } else if has(AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE) {
        Change::Contents
    } else {
        Change::Attributes
    };
    Some(Event::Name {
        watch,
        name: name.as_bytes().into(),
        change,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Waits for the next event but what comes before it from opening.
    fn next(watcher: &InotifyWatcher) -> Vec<Event> {
        let watcher: &dyn Watcher<Arc<OwnedFd>> = watcher;
        watcher.next().expect("readable").expect("open")
    }

    #[test]
    fn each_kind_of_change_is_told_and_closing_ends_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let fd: Arc<OwnedFd> = Arc::new(std::fs::File::open(dir.path()).expect("open").into());
        let watcher = InotifyWatcher::new().expect("inotify");
        let watch = Watcher::add(&watcher, &fd).expect("a watch");
        let path = |name: &str| dir.path().join(name);
        let name = |name: &str, change| Event::Name {
            watch,
            name: name.as_bytes().into(),
            change,
        };
        std::fs::write(path("a"), "x").expect("write");
        let seen = next(&watcher);
        assert_eq!(seen[0], name("a", Change::Created));
        assert!(seen.contains(&name("a", Change::Contents)));
        std::fs::rename(path("a"), path("b")).expect("rename");
        let seen = next(&watcher);
        match &seen[..] {
            [
                Event::Name {
                    change: Change::MovedFrom(from),
                    ..
                },
                Event::Name {
                    change: Change::MovedTo(to),
                    ..
                },
            ] => assert_eq!(from, to),
            other => panic!("{other:?}"),
        }
        std::fs::remove_file(path("b")).expect("unlink");
        assert_eq!(next(&watcher), [name("b", Change::Deleted)]);
        // A directory that somebody has open is not gone when it is removed.
        drop(fd);
        std::fs::remove_dir(dir.path()).expect("rmdir");
        assert_eq!(next(&watcher).last(), Some(&Event::Ended { watch }));
        Watcher::<Arc<OwnedFd>>::close(&watcher);
        let closed: &dyn Watcher<Arc<OwnedFd>> = &watcher;
        assert_eq!(closed.next(), Ok(None));
    }
}
