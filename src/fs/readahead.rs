//! Directory read-ahead: what is to be filled next (floor F5).
//!
//! Purpose: a walk over a slow source is bound by round trips, one after the other. When
//! a directory is read from the source, its names and then its subdirectories are queued,
//! and a pool of threads ([`super::fill`]) fills them side by side, so that the reader
//! finds them cached.
//!
//! Contract. The queue stands in the order in which a depth-first reader comes by, and is
//! bounded: at [`QUEUE`] what is farthest goes. How far the pool may be ahead of the
//! reader is a window that doubles with each directory that the reader finds filled, as
//! with the read-ahead of files; within the ttl where names are believed for a ttl. A
//! directory is read and a name looked up by one thread at a time, so a request waits for
//! what is being filled instead of asking twice, and takes out of the queue what it asks
//! for first. While a request is at the source on its own, the pool begins nothing. A
//! reader that has not read a directory for [`LEAVE`] has left: the queue is dropped, as
//! it is when the budget is reached.
//!
//! One lock, a leaf; no source is called under it.

mod state;

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::clock::Clock;
use crate::dcache::{Dir, InodeId, Listing, NodeId};
use crate::source::Kind;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(super) use state::{Filling, Place, Read, Unit};
use state::{Item, Known, Names, Stage, State, hash, names_of};

/// Whether directories are read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readahead {
    /// Never.
    Off,
    /// Where the source's calls are measured to be slow, by 32 threads.
    Auto,
    /// Always, by so many threads.
    Threads(usize),
}

/// Threads of the pool unless chosen. They wait for the source nearly all the time.
pub const THREADS: usize = 32;
/// Directories that may wait.
pub const QUEUE: usize = 4096;
/// A reader that read no directory for so long has left.
pub const LEAVE: Duration = Duration::from_secs(2);
/// Names of a directory that are looked up unasked; the kernel asks for about so many
/// attributes when a directory is read. Of the rest only subdirectories are, until
/// somebody asks for others.
pub const FIRST: usize = 256;
/// Calls that the pool may be ahead of the reader, at first and at most.
const WINDOW: (usize, usize) = (256, 16 << 10);
/// Calls that reading one directory takes, about.
const LIST_COST: usize = 4;
/// A call of the source that takes so long is slow.
const SLOW: Duration = Duration::from_micros(150);
/// Slow directories one after another from which on [`Readahead::Auto`] reads ahead: one
/// on a remote filesystem; elsewhere it could as well have been a busy machine.
const STREAK: (u32, u32) = (1, 4);
/// Lookups in a directory after which the rest of its names is looked up.
const CURIOUS: u32 = 2;
/// Directories whose rest is remembered.
const TAILS: usize = 16;

/// Counted for `.nameifs/stats`.
#[derive(Debug, Default)]
pub struct Counters {
    /// Threads that run.
    pub threads: AtomicU64,
    /// Directories read by the pool.
    pub filled: AtomicU64,
    /// Names looked up by the pool.
    pub names: AtomicU64,
    /// Directories read by a reader that the pool had read, or was reading.
    pub hits: AtomicU64,
    /// Requests that waited for what the pool, or another request, was asking for.
    pub waited: AtomicU64,
    /// Directories taken from the queue undone.
    pub dropped: AtomicU64,
}

/// The queue and the window of one mount.
pub struct Queue {
    mode: Readahead,
    clock: Clock,
    /// How long what is filled is believed, if not for ever.
    believed: Option<Duration>,
    state: Mutex<State>,
    /// Something to do, or the end.
    ready: Condvar,
    /// Something was done that a request may wait for.
    done: Condvar,
    /// Anything is queued or under way.
    active: AtomicBool,
    /// See [`STREAK`].
    slow: AtomicUsize,
    /// What a call of the source takes, smoothed.
    latency_us: AtomicU64,
    /// Counted for `.nameifs/stats`.
    pub counters: Counters,
}

impl Queue {
    /// An empty queue; what is filled is `believed` for so long, `None` for ever.
    pub fn new(mode: Readahead, clock: Clock, believed: Option<Duration>) -> Self {
        Self {
            mode,
            clock,
            believed,
            state: Mutex::new(State::new()),
            ready: Condvar::new(),
            done: Condvar::new(),
            active: AtomicBool::new(false),
            slow: AtomicUsize::new(0),
            latency_us: AtomicU64::new(0),
            counters: Counters::default(),
        }
    }

    /// Threads that are to fill.
    pub fn threads(&self) -> usize {
        match self.mode {
            Readahead::Off => 0,
            Readahead::Auto => THREADS,
            Readahead::Threads(n) => n,
        }
    }

    /// Waiting, and under way.
    pub fn load(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.queue.len(), state.busy)
    }

    fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    fn note_active(&self, state: &State) {
        let idle = state.queue.is_empty() && state.busy == 0 && state.tails.is_empty();
        self.active
            .store(!(idle && state.listing.is_empty()), Ordering::Release);
    }

    /// Reading one directory took so long, on a `remote` filesystem or another: whether
    /// that calls for read-ahead.
    pub(super) fn is_slow(&self, took: Duration, remote: bool) -> bool {
        let call = took / LIST_COST as u32;
        let slow = call >= SLOW;
        let before = self.latency_us.load(Ordering::Relaxed);
        let now = call.as_micros() as u64;
        let smooth = if before == 0 {
            now
        } else {
            (7 * before + now) / 8
        };
        self.latency_us.store(smooth, Ordering::Relaxed);
        let streak = match slow {
            true => (self.slow.load(Ordering::Relaxed) + 1).min(8),
            false => self.slow.load(Ordering::Relaxed).saturating_sub(2),
        };
        self.slow.store(streak, Ordering::Relaxed);
        let enough = if remote { STREAK.0 } else { STREAK.1 };
        match self.mode {
            Readahead::Off => false,
            Readahead::Auto => streak >= enough as usize,
            Readahead::Threads(_) => true,
        }
    }

    /// Calls that may be ahead at most: half of what the pool can do while it is believed.
    fn most(&self) -> usize {
        let Some(believed) = self.believed else {
            return WINDOW.1;
        };
        let call = self.latency_us.load(Ordering::Relaxed).max(1);
        let calls = believed.as_micros() as u64 / 2 * self.threads() as u64 / call;
        (calls as usize).clamp(WINDOW.0, WINDOW.1)
    }

    /// A request reads a directory, from its start or on. Waits while another thread lists
    /// it; then nobody else does until the answer is dropped.
    pub(super) fn read(&self, nodeid: NodeId, cookie: u64, plus: bool) -> Option<Turn<'_>> {
        if self.mode == Readahead::Off || (cookie != 0 && !self.is_active()) {
            return None;
        }
        let mut state = self.state.lock();
        state.last_read = self.clock.now();
        if cookie != 0 {
            if plus {
                self.ask_rest(&mut state, nodeid, CURIOUS);
            }
            return None;
        }
        let mut waited = false;
        while state.listing.contains(&nodeid) {
            self.note_waiting(&mut waited);
            self.done.wait(&mut state);
        }
        let known = state.known.remove(&nodeid);
        let hit = waited || known.as_ref().is_some_and(|k| k.stage != Stage::Queued);
        let place = match known {
            Some(known) => {
                if hit {
                    state.window = (2 * state.window).min(self.most());
                }
                state.come_by(nodeid, known)
            }
            None => {
                state.readers = state.readers.wrapping_sub(1);
                Place::from([state.readers])
            }
        };
        self.counters
            .hits
            .fetch_add(u64::from(hit), Ordering::Relaxed);
        state.listing.push(nodeid);
        self.note_active(&state);
        self.wake(&state);
        drop(state);
        Some(Turn {
            queue: self,
            nodeid,
            place,
            began: Instant::now(),
        })
    }

    /// A directory was listed by a thread of the pool, or could not be.
    pub(super) fn listed(&self, nodeid: NodeId, place: &Place, read: Option<Read>) {
        let mut state = self.state.lock();
        state.busy -= 1;
        state.unlist(nodeid);
        match read {
            Some(read) => self.fill(&mut state, nodeid, place, read),
            None => {
                let cost = state.known.remove(&nodeid).map_or(0, |k| k.cost);
                state.spent = state.spent.saturating_sub(cost);
            }
        }
        self.finish(&state);
    }

    fn finish(&self, state: &State) {
        self.note_active(state);
        self.done.notify_all();
        self.wake(state);
    }

    /// Wakes a thread of the pool if there is anything for it; it wakes the next one.
    fn wake(&self, state: &State) {
        if state.holds() {
            self.ready.notify_one();
        }
    }

    /// Queues the names of a directory.
    fn fill(&self, state: &mut State, nodeid: NodeId, place: &Place, read: Read) {
        if state.closed {
            state.known.remove(&nodeid);
            return;
        }
        let wanted = |n: usize, kind| n < FIRST || matches!(kind, None | Some(Kind::Directory));
        let (names, whole) = names_of(&read.listing, wanted);
        self.queue_names(state, nodeid, place, read, names, whole);
    }

    fn queue_names(
        &self,
        state: &mut State,
        nodeid: NodeId,
        place: &Place,
        read: Read,
        names: Names,
        whole: bool,
    ) {
        let filling = Arc::new(Filling {
            nodeid,
            id: read.id,
            dir: read.dir,
            listing: read.listing,
            place: place.clone(),
            left: AtomicUsize::new(names.len()),
            whole,
        });
        let known = state.known.entry(nodeid).or_insert_with(|| Known {
            place: place.clone(),
            stage: Stage::Filling,
            cost: 0,
            read: true,
        });
        known.stage = Stage::Filling;
        if names.is_empty() {
            state.filled(&filling);
        } else {
            state
                .queue
                .insert(place.clone(), Item::Names(filling, names));
            self.trim(state);
        }
    }

    /// A directory was found below one that is filled.
    pub(super) fn found(&self, nodeid: NodeId, place: &Place) {
        let mut state = self.state.lock();
        // Whoever lists it queues its names.
        let listed = state.listing.contains(&nodeid);
        if state.closed || listed || state.known.contains_key(&nodeid) {
            return;
        }
        let known = Known {
            place: place.clone(),
            stage: Stage::Queued,
            cost: 0,
            read: false,
        };
        state.known.insert(nodeid, known);
        state.queue.insert(place.clone(), Item::Dir(nodeid));
        self.trim(&mut state);
        drop(state);
        self.ready.notify_one();
    }

    /// At the limit the farthest goes.
    fn trim(&self, state: &mut State) {
        while state.queue.len() > QUEUE {
            if let Some((_, item)) = state.queue.pop_last() {
                state.forget(&item);
                self.counters.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A name was looked up by the pool; whether the directory has all its names now.
    pub(super) fn looked_up(&self, filling: &Arc<Filling>, name: &[u8]) -> bool {
        let mut state = self.state.lock();
        state.busy -= 1;
        state.land(filling.nodeid, hash(name));
        let last = filling.left.fetch_sub(1, Ordering::Relaxed) == 1;
        if last {
            state.filled(filling);
        }
        self.finish(&state);
        last && filling.whole
    }

    /// A request looks a name up. Waits while the pool does.
    pub(super) fn look(&self, nodeid: NodeId, name: &[u8], how: Look) -> Option<Flight<'_>> {
        if !self.is_active() {
            return None;
        }
        let flight = (nodeid, hash(name));
        let mut state = self.state.lock();
        if how == Look::Request {
            self.ask_rest(&mut state, nodeid, 1);
        }
        let mut waited = false;
        while state.flights.contains(&flight) {
            self.note_waiting(&mut waited);
            self.done.wait(&mut state);
        }
        state.flights.push(flight);
        // Whoever reads what is being filled wants it filled.
        let helped = |k: &Known| k.stage == Stage::Filling;
        let alone = how == Look::Request && !state.known.get(&nodeid).is_some_and(helped);
        state.alone += usize::from(alone);
        Some(Flight {
            queue: self,
            flight: Some(flight),
            alone,
        })
    }

    /// A request is at the source; the pool begins nothing until the answer is dropped.
    pub(super) fn alone(&self) -> Option<Flight<'_>> {
        if !self.is_active() {
            return None;
        }
        self.state.lock().alone += 1;
        Some(Flight {
            queue: self,
            flight: None,
            alone: true,
        })
    }

    fn note_waiting(&self, waited: &mut bool) {
        let first = !std::mem::replace(waited, true);
        let waits = &self.counters.waited;
        waits.fetch_add(u64::from(first), Ordering::Relaxed);
    }

    /// Names that were left out are asked for.
    fn ask_rest(&self, state: &mut State, nodeid: NodeId, asked: u32) {
        let found = state.tails.iter().position(|(f, _)| f.nodeid == nodeid);
        let Some(at) = found else { return };
        state.tails[at].1 += asked;
        if state.tails[at].1 < CURIOUS {
            return;
        }
        let Some((tail, _)) = state.tails.remove(at) else {
            return;
        };
        let rest = |n: usize, kind| n >= FIRST && !matches!(kind, None | Some(Kind::Directory));
        let (names, _) = names_of(&tail.listing, rest);
        let read = Read {
            id: tail.id,
            dir: tail.dir.clone(),
            listing: tail.listing.clone(),
        };
        self.queue_names(state, nodeid, &tail.place, read, names, true);
        self.note_active(state);
        self.ready.notify_one();
    }

    /// What is to be done next; waits for it. `None` at the end of the mount.
    pub(super) fn next(&self) -> Option<Unit> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            let idle = Duration::from_millis(self.clock.now().saturating_sub(state.last_read));
            if idle >= LEAVE && state.holds() {
                self.clear(&mut state);
            }
            if let Some(unit) = state.take() {
                state.busy += 1;
                self.note_active(&state);
                if !state.queue.is_empty() {
                    self.ready.notify_one();
                }
                return Some(unit);
            }
            if state.holds() {
                let left = LEAVE.saturating_sub(idle);
                self.ready.wait_for(&mut state, left);
            } else {
                self.ready.wait(&mut state);
            }
        }
    }

    /// Drops all that waits: the budget is reached.
    pub(super) fn stop(&self) {
        self.clear(&mut self.state.lock());
    }

    fn clear(&self, state: &mut State) {
        let dropped = state.queue.len() as u64;
        self.counters.dropped.fetch_add(dropped, Ordering::Relaxed);
        state.queue.clear();
        state.known.clear();
        state.ahead.clear();
        state.tails.clear();
        (state.spent, state.window) = (0, WINDOW.0);
        self.note_active(state);
    }

    /// The mount ends: the pool's threads return.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.clear(&mut state);
        drop(state);
        self.ready.notify_all();
    }

    /// Waits for the first thing to do; whether there is one, and not the end.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while !state.closed && state.queue.is_empty() {
            self.ready.wait(&mut state);
        }
        !state.closed
    }
}

/// Who looks a name up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// LOOKUP.
    Request,
    /// READDIRPLUS, name by name.
    Listing,
}

/// A request that reads a directory; nobody else lists it until this is dropped.
pub(super) struct Turn<'a> {
    queue: &'a Queue,
    nodeid: NodeId,
    place: Place,
    began: Instant,
}

impl Turn<'_> {
    /// It was read from the source, which was slow or not: its names are queued.
    pub(super) fn listed(&self, id: InodeId, dir: &Arc<Dir>, listing: &Arc<Listing>, remote: bool) {
        if !self.queue.is_slow(self.began.elapsed(), remote) {
            return;
        }
        let mut state = self.queue.state.lock();
        let (nodeid, place) = (self.nodeid, &self.place);
        let (dir, listing) = (dir.clone(), listing.clone());
        let read = Read { id, dir, listing };
        self.queue.fill(&mut state, nodeid, place, read);
        self.queue.finish(&state);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.unlist(self.nodeid);
        self.queue.finish(&state);
    }
}

/// A request at the source.
pub(super) struct Flight<'a> {
    queue: &'a Queue,
    flight: Option<(NodeId, u64)>,
    alone: bool,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.alone -= usize::from(self.alone);
        if let Some((nodeid, hash)) = self.flight {
            state.land(nodeid, hash);
            self.queue.done.notify_all();
        }
        if state.alone == 0 {
            self.queue.ready.notify_one();
        }
    }
}
