//! Events of changes in the fake tree, as inotify(7) would give them.
//!
//! A watch is on an object, whatever leads to it; an event names the entry by which
//! the change was made; what is told of an object's own change of links, nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

use super::object::Object;
use super::world::Node;
use crate::error::{Errno, Result};
use crate::source::watch::{Change, Event, WatchId, Watcher};

/// Events that wait for whoever follows them.
#[derive(Default)]
pub(super) struct Events {
    queue: Mutex<Queue>,
    ready: Condvar,
}

struct Queue {
    events: VecDeque<Event>,
    watched: HashMap<u64, Weak<Object>>,
    next_watch: u64,
    next_cookie: u32,
    /// More events than this are lost.
    limit: usize,
    max_watches: usize,
    /// Whoever asks for the next event waits for it.
    waits: bool,
    closed: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            events: VecDeque::new(),
            watched: HashMap::new(),
            next_watch: 1,
            next_cookie: 1,
            limit: 16_384,
            max_watches: usize::MAX,
            waits: false,
            closed: false,
        }
    }
}

impl Events {
    pub(super) fn set_limits(&self, events: usize, watches: usize) {
        let mut queue = self.queue.lock();
        (queue.limit, queue.max_watches) = (events, watches);
    }

    pub(super) fn set_waits(&self, waits: bool) {
        self.queue.lock().waits = waits;
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.lock().events.len()
    }

    /// A number that pairs the halves of a rename.
    fn cookie(&self) -> u32 {
        let mut queue = self.queue.lock();
        queue.next_cookie += 1;
        queue.next_cookie - 1
    }

    fn push(&self, event: Event) {
        let mut queue = self.queue.lock();
        if queue.events.back() == Some(&event) {
            return;
        }
        if queue.events.len() < queue.limit {
            queue.events.push_back(event);
        } else if queue.events.back() != Some(&Event::Overflow) {
            queue.events.push_back(Event::Overflow);
        }
        drop(queue);
        self.ready.notify_all();
    }

    /// Something happened to `name` in `dir`.
    pub(super) fn name(&self, dir: &Object, name: &[u8], change: Change) {
        let watch = dir.state().watch;
        if let Some(watch) = watch {
            self.push(Event::Name {
                watch: WatchId::Other(watch),
                name: name.into(),
                change,
            });
        }
    }

    /// A name was moved.
    pub(super) fn moved(&self, from: (&Object, &[u8]), to: (&Object, &[u8])) {
        let cookie = self.cookie();
        self.name(from.0, from.1, Change::MovedFrom(cookie));
        self.name(to.0, to.1, Change::MovedTo(cookie));
    }

    /// The attributes of an object changed, by way of `node`.
    pub(super) fn attributes(&self, node: &Node) {
        let watch = node.object.state().watch;
        if let Some(watch) = watch {
            self.push(Event::Itself {
                watch: WatchId::Other(watch),
            });
        }
        self.of_name(node, Change::Attributes);
    }

    /// The contents of an object changed, by way of `node`.
    pub(super) fn contents(&self, node: &Node) {
        self.of_name(node, Change::Contents);
    }

    fn of_name(&self, node: &Node, change: Change) {
        if let Some((dir, name)) = node.place.get() {
            self.name(&dir, &name, change);
        }
    }

    /// A watched object is no more.
    pub(super) fn ended(&self, watch: u64) {
        self.queue.lock().watched.remove(&watch);
        self.push(Event::Ended {
            watch: WatchId::Other(watch),
        });
    }
}

/// The watcher of a fake source.
pub(super) struct FakeWatcher(pub(super) Arc<Events>);

impl Watcher<Node> for FakeWatcher {
    fn add(&self, dir: &Node) -> Result<WatchId> {
        if !dir.object.is_dir() {
            return Err(Errno::NOTDIR);
        }
        let there = dir.object.state().watch;
        if let Some(watch) = there {
            return Ok(WatchId::Other(watch));
        }
        let mut queue = self.0.queue.lock();
        if queue.watched.len() >= queue.max_watches {
            return Err(Errno::NOSPC);
        }
        let watch = queue.next_watch;
        queue.next_watch += 1;
        queue.watched.insert(watch, Arc::downgrade(&dir.object));
        drop(queue);
        dir.object.state().watch = Some(watch);
        Ok(WatchId::Other(watch))
    }

    fn remove(&self, watch: WatchId) {
        let WatchId::Other(watch) = watch else {
            return;
        };
        let object = self.0.queue.lock().watched.get(&watch).cloned();
        if let Some(object) = object.and_then(|object| object.upgrade()) {
            object.state().watch = None;
            self.0.ended(watch);
        }
    }

    fn next(&self) -> Result<Option<Vec<Event>>> {
        let mut queue = self.0.queue.lock();
        while queue.waits && !queue.closed && queue.events.is_empty() {
            self.0.ready.wait(&mut queue);
        }
        let events: Vec<Event> = queue.events.drain(..).collect();
        Ok((!events.is_empty() && !queue.closed).then_some(events))
    }

    fn close(&self) {
        self.0.queue.lock().closed = true;
        self.0.ready.notify_all();
    }
}
