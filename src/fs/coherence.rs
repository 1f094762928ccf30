//! Following changes made beneath the mount (floor F5).
//!
//! Contract: one thread follows events, in their order. For each, our caches first and
//! the kernel second, so that whoever is told and looks at once sees the change.
//! It holds at most a directory's lock, and none when it leaves a notice.

use smallvec::SmallVec;

use super::{Coherence, Fs};
use crate::dcache::{Dir, InodeId, InodeRef, NodeId};
use crate::name::QStr;
use crate::namei::{Own, Watches};
use crate::notice::Notice;
use crate::source::Source;
use crate::source::watch::{Change, Event, WatchId};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// Directories that a watch is on; mostly one.
type Watched<'a> = SmallVec<[(InodeRef<'a>, Arc<Dir>); 1]>;

/// A name that was moved away, until it is seen where to.
struct Moved {
    watch: WatchId,
    name: Box<[u8]>,
    cookie: u32,
}

impl<S: Source> Fs<S> {
    /// Follows events until the mount ends. To be run by a thread of its own.
    pub fn follow(&self) {
        let Some(watches) = self.namei.watches() else {
            return;
        };
        loop {
            match watches.watcher().next() {
                Ok(Some(events)) => self.follow_events(watches, events),
                Ok(None) => return,
                Err(e) => {
                    tracing::error!(error = %e, "no more events; every name is believed for the ttl");
                    return self.distrust_watches(watches);
                }
            }
        }
    }

    /// The mount ends: [`Fs::follow`] returns.
    pub fn stop_following(&self) {
        if let Some(watches) = self.namei.watches() {
            watches.watcher().close();
        }
    }

    /// The directories, pinned, that a watch is on: without it one might be freed while
    /// its event is followed, and another take its place.
    fn pinned(&self, dirs: SmallVec<[(InodeId, Arc<Dir>); 1]>) -> Watched<'_> {
        let inodes = &self.namei.dcache.inodes;
        dirs.into_iter()
            .filter_map(|(id, dir)| Some((inodes.get_dir(id, &dir)?, dir)))
            .collect()
    }

    /// No events come any more: directories are believed for the ttl from now on.
    fn distrust_watches(&self, watches: &Watches<S::Node>) {
        watches.lost();
        for dir in self.namei.dcache.inodes.dirs() {
            dir.unwatch();
        }
        self.drop_caches();
    }

    fn follow_events(&self, watches: &Watches<S::Node>, events: Vec<Event>) {
        watches
            .events
            .fetch_add(events.len() as u64, Ordering::Relaxed);
        let mut moved: Option<Moved> = None;
        for event in events {
            // The two halves of a rename stand next to each other.
            if let Some(from) = moved.take() {
                if let Event::Name {
                    watch,
                    name,
                    change: Change::MovedTo(cookie),
                } = &event
                    && *cookie == from.cookie
                {
                    self.follow_rename(watches, &from, *watch, name);
                    continue;
                }
                self.follow_name(watches, from.watch, &from.name, Own::MovedFrom);
            }
            match event {
                Event::Name {
                    watch,
                    name,
                    change,
                } => match change {
                    Change::Created => self.follow_name(watches, watch, &name, Own::Created),
                    Change::Deleted => self.follow_name(watches, watch, &name, Own::Deleted),
                    Change::MovedTo(_) => self.follow_name(watches, watch, &name, Own::MovedTo),
                    Change::MovedFrom(cookie) => {
                        moved = Some(Moved {
                            watch,
                            name,
                            cookie,
                        })
                    }
                    Change::Attributes => self.follow_attr(watches, watch, &name, false),
                    Change::Contents => self.follow_attr(watches, watch, &name, true),
                },
                Event::Itself { watch } => {
                    for (inode, _) in self.pinned(watches.dirs(watch)) {
                        self.namei.changed(inode.id());
                        self.tell_attr(inode.id(), inode.id(), false);
                    }
                }
                Event::Ended { watch } => {
                    for (inode, dir) in self.pinned(watches.ended(watch)) {
                        dir.unwatch();
                        self.forget_below(inode.id());
                    }
                }
                Event::Overflow => {
                    tracing::warn!("events were lost; everything is looked up anew");
                    watches.lost();
                    self.drop_caches();
                }
            }
        }
        if let Some(from) = moved {
            self.follow_name(watches, from.watch, &from.name, Own::MovedFrom);
        }
    }

    /// `name` below a watched directory is not what it was.
    fn follow_name(&self, watches: &Watches<S::Node>, watch: WatchId, name: &[u8], how: Own) {
        let Ok(q) = QStr::new(name) else { return };
        for (pinned, dir) in self.pinned(watches.dirs(watch)) {
            let inode = pinned.id();
            if watches.take(inode, how, name) {
                continue;
            }
            let child = self.namei.dcache.peek(inode, q);
            {
                let mut guard = dir.lock();
                if child.is_some() && matches!(how, Own::Created | Own::MovedTo) {
                    // It may have been looked up before its event came: its object must
                    // stay within reach.
                    self.namei.dcache.doubt_name(inode, &guard, q);
                } else {
                    self.namei.dcache.remove(inode, &mut guard, q);
                }
                guard.change();
            }
            self.namei.changed(inode);
            let Some(parent) = self.nodeid(inode) else {
                continue;
            };
            match child.as_ref().and_then(|child| self.nodeid(child.id())) {
                Some(nodeid) if how == Own::Deleted => {
                    let name = name.into();
                    self.notices().push(Notice::Removed {
                        parent,
                        child: nodeid,
                        name,
                    });
                }
                _ => self.notices().push(Notice::Entry {
                    parent,
                    name: name.into(),
                }),
            }
            self.notices().push(Notice::Inode { nodeid: parent });
            if let Some(child) = child {
                // Links and ctime are others; it may have other names.
                self.namei.changed(child.id());
                self.tell_attr(inode, child.id(), false);
            }
        }
    }

    /// A rename whose both ends are watched: the dentry moves, identity and all
    fn follow_rename(
        &self,
        watches: &Watches<S::Node>,
        from: &Moved,
        to_watch: WatchId,
        to_name: &[u8],
    ) {
        let olds = self.pinned(watches.dirs(from.watch));
        let news = self.pinned(watches.dirs(to_watch));
        let pair = (&olds[..], &news[..]);
        let ([(old_dir, _)], [(new_dir, _)]) = pair else {
            // A directory that shows in several places: each is looked up anew.
            self.follow_name(watches, from.watch, &from.name, Own::MovedFrom);
            return self.follow_name(watches, to_watch, to_name, Own::MovedTo);
        };
        let (old_dir, new_dir) = (old_dir.id(), new_dir.id());
        let own_from = watches.take(old_dir, Own::MovedFrom, &from.name);
        let own_to = watches.take(new_dir, Own::MovedTo, to_name);
        if own_from && own_to {
            return;
        }
        let (Ok(old), Ok(new)) = (QStr::new(&from.name), QStr::new(to_name)) else {
            return;
        };
        let moved = self.namei.dcache.peek(old_dir, old);
        let replaced = self.namei.dcache.peek(new_dir, new);
        self.namei.forget(old_dir, old);
        self.namei.forget(new_dir, new);
        if let Some(moved) = &moved {
            // Without a name the object could not be reached until it is looked up. The
            // event alone does not tell which it has by now: it may be half an exchange.
            self.namei.find_again(moved, new_dir, new);
        }
        for dir in [old_dir, new_dir] {
            self.namei.changed(dir);
        }
        for (dir, name) in [(old_dir, &from.name[..]), (new_dir, to_name)] {
            let Some(parent) = self.nodeid(dir) else {
                continue;
            };
            self.notices().push(Notice::Entry {
                parent,
                name: name.into(),
            });
            self.notices().push(Notice::Inode { nodeid: parent });
        }
        for inode in [moved, replaced].into_iter().flatten() {
            self.namei.changed(inode.id());
            self.tell_attr(new_dir, inode.id(), false);
        }
    }

    /// Attributes or contents of `name` below a watched directory changed.
    fn follow_attr(&self, watches: &Watches<S::Node>, watch: WatchId, name: &[u8], data: bool) {
        let Ok(q) = QStr::new(name) else { return };
        for (pinned, dir) in self.pinned(watches.dirs(watch)) {
            let inode = pinned.id();
            let child = {
                let mut guard = dir.lock();
                guard.change_attr();
                self.namei.dcache.peek(inode, q)
            };
            let Some(child_pin) = child else { continue };
            let child = child_pin.id();
            self.namei.changed(child);
            // Of what is open for writing the kernel believes no attribute, and its
            // data goes past both caches; to take them back at each write of our own
            // would cost and help nobody.
            let volatile = self.is_volatile(child);
            if !(volatile && (self.options.passthrough || !data)) {
                self.tell_attr(inode, child, data);
            }
        }
    }

    fn tell_attr(&self, parent: InodeId, inode: InodeId, data: bool) {
        if let (Some(parent), Some(nodeid)) = (self.nodeid(parent), self.nodeid(inode)) {
            self.notices().push(Notice::Attr {
                parent,
                nodeid,
                data,
            });
        }
    }

    pub(super) fn nodeid(&self, inode: InodeId) -> Option<NodeId> {
        self.namei.dcache.inodes.with(inode, |i| i.nodeid())
    }

    /// Everything below a directory is looked up anew, in the kernel too.
    fn forget_below(&self, inode: InodeId) {
        let Some(parent) = self.nodeid(inode) else {
            return;
        };
        self.namei.dcache.for_each_name(|nodeid, name, _| {
            if nodeid == parent {
                self.notices().push(Notice::Entry {
                    parent,
                    name: name.as_bytes().into(),
                });
            }
        });
        self.namei.changed(inode);
        self.notices().push(Notice::Inode { nodeid: parent });
    }

    /// This mount is about to change `name`, and its events are no news; undone when
    /// the guard is dropped without [`Expected::done`].
    pub(super) fn expect(&self, inode: InodeId, own: Own, name: &[u8]) -> Expected<'_, S> {
        let dir: Option<Arc<Dir>> = self.namei.dir(inode).ok();
        if self.coherence() == Coherence::Watch
            && let (Some(watches), Some(dir)) = (self.namei.watches(), &dir)
        {
            watches.expect(inode, dir, own, name);
        }
        Expected {
            fs: self,
            of: Some((inode, own, name.into())),
        }
    }
}

/// Events that are expected of a change under way.
pub(super) struct Expected<'a, S: Source> {
    fs: &'a Fs<S>,
    of: Option<(InodeId, Own, Box<[u8]>)>,
}

impl<S: Source> Expected<'_, S> {
    /// The change was made; its event will come.
    pub(super) fn done(mut self) {
        self.of = None;
    }
}

impl<S: Source> Drop for Expected<'_, S> {
    fn drop(&mut self) {
        if let (Some((inode, own, name)), Some(watches)) = (self.of.take(), self.fs.namei.watches())
        {
            watches.take(inode, own, &name);
        }
    }
}
