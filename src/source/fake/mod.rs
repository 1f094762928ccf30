//! A source in memory, for tests and benches.
//!
//! Purpose: a tree that behaves as a host's directory does, whose clock, faults
//! and races are the test's to decide: hard links, symlinks and every other
//! kind, extended attributes, sparse files, several filesystems and mounts,
//! reuse of inode numbers, stable or unstable directory cookies.
//!
//! Contract: [`FakeSource`] is a handle; clones are the same tree. Changes by
//! "another process" go through [`FakeSource::edit`]; they are not counted as
//! calls and no fault hits them. Each call and each edit is one step to all
//! others, except that a listing is read in batches ([`FakeSource::set_batch`]).
//! Hooks run with no lock held. Nothing sleeps; time is [`FakeSource::clock`].
//!
//! It checks no permission, as for root.

mod calls;
mod clock;
mod data;
mod edit;
mod events;
mod locks;
mod object;
#[cfg(test)]
mod tests;
mod tree;
mod world;
mod write;
#[cfg(test)]
mod write_tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use self::calls::Calls;
use self::world::World;
use super::Time;
use crate::error::{Errno, Result};
use crate::sync::{Mutex, MutexGuard};

pub use self::calls::{Call, Point, Site};
pub use self::clock::Clock;
pub use self::edit::Edit;
pub use self::object::{Births, Cookies, FsConfig};
pub use self::world::{Node, RenameFlags};

/// An in-memory tree; see the module.
#[derive(Clone)]
pub struct FakeSource {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<Clock>,
    calls: Calls,
    batch: AtomicUsize,
    /// Files opened so far.
    opened: AtomicU64,
    root: Node,
    world: Mutex<World>,
}

/// An open file of a [`FakeSource`]; it survives its names.
pub struct File {
    node: Node,
    flags: u32,
    /// Tells whose locks are whose.
    number: u64,
}

impl Drop for File {
    fn drop(&mut self) {
        self.node.object.state().locks.release(self.number);
        if write::is_written(self.flags) {
            // IN_CLOSE_WRITE.
            self.node.events().contents(&self.node);
        }
    }
}

impl File {
    /// The object that is open.
    pub fn node(&self) -> &Node {
        &self.node
    }
}

impl Default for FakeSource {
    fn default() -> Self {
        Self::new(FsConfig::default())
    }
}

impl FakeSource {
    /// An empty directory on a filesystem of its own. The clock stands at one day after 1970.
    pub fn new(config: FsConfig) -> Self {
        let clock = Arc::new(Clock::new(Time {
            sec: 86_400,
            nsec: 0,
        }));
        let world = World::new(clock.clone(), config);
        let root = world.root.clone();
        let (batch, opened) = (AtomicUsize::new(128), AtomicU64::new(0));
        let world = Mutex::new(world);
        Self {
            shared: Arc::new(Shared {
                clock,
                calls: Calls::new(),
                batch,
                opened,
                root,
                world,
            }),
        }
    }

    /// The clock all time stamps are taken from.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.shared.clock
    }

    /// Changes the tree as another process would.
    pub fn edit(&self) -> Edit<'_> {
        Edit::new(self)
    }

    /// How the filesystem that holds the root behaves.
    pub fn config(&self) -> FsConfig {
        self.shared.root.object.fs.config()
    }

    /// Changes how the filesystem that holds the root behaves.
    pub fn configure(&self, change: impl FnOnce(&mut FsConfig)) {
        change(&mut self.shared.root.object.fs.config.lock());
    }

    /// Entries that a listing reads in one step (at least 1); a host's buffer holds some hundreds.
    pub fn set_batch(&self, entries: usize) {
        self.shared.batch.store(entries.max(1), Ordering::Relaxed);
    }

    /// After `passes` more calls of this kind, one fails.
    pub fn fail_after(&self, call: Call, passes: u64, errno: Errno) {
        self.shared
            .calls
            .add_fault(Some(call), passes, errno, false);
    }

    /// After `passes` more calls of any kind, one fails.
    pub fn fail_any_after(&self, passes: u64, errno: Errno) {
        self.shared.calls.add_fault(None, passes, errno, false);
    }

    /// After `passes` more calls of this kind (any, if `None`) all fail, until [`Self::heal`].
    pub fn fail_from(&self, call: Option<Call>, passes: u64, errno: Errno) {
        self.shared.calls.add_fault(call, passes, errno, true);
    }

    /// Faults that have struck so far.
    pub fn struck(&self) -> u64 {
        self.shared.calls.struck()
    }

    /// Takes back all faults that have not struck and those that last.
    pub fn heal(&self) {
        self.shared.calls.heal();
    }

    /// Runs `hook` at every point of every call, until [`Self::clear_hook`].
    pub fn set_hook(&self, hook: impl Fn(&Site<'_>) + Send + Sync + 'static) {
        self.shared.calls.set_hook(Some(Arc::new(hook)));
    }

    /// Runs no hook from now on.
    pub fn clear_hook(&self) {
        self.shared.calls.set_hook(None);
    }

    /// Runs `run` once, in the call of this kind (any, if `None`) after `passes` others,
    /// at `point`.
    pub fn pause(
        &self,
        call: impl Into<Option<Call>>,
        point: Point,
        passes: u64,
        run: impl FnOnce() + Send + 'static,
    ) {
        let run = Box::new(run);
        self.shared.calls.add_pause(call.into(), point, passes, run);
    }

    /// Takes back all pauses that have not run yet.
    pub fn clear_pauses(&self) {
        self.shared.calls.clear_pauses();
    }

    /// Pauses that have not run yet.
    pub fn pauses(&self) -> usize {
        self.shared.calls.pauses()
    }

    /// At most so many events wait, then one that says that some were lost; and at most so
    /// many directories are watched.
    pub fn set_event_limits(&self, events: usize, watches: usize) {
        self.world().events.set_limits(events, watches);
    }

    /// Whoever follows events waits for the next one; else it is told the end when there
    /// is none, so that one thread can do both.
    pub fn set_event_waits(&self, waits: bool) {
        self.world().events.set_waits(waits);
    }

    /// Events that nobody has followed yet.
    pub fn waiting_events(&self) -> usize {
        self.world().events.waiting()
    }

    /// Calls of one kind so far.
    pub fn count(&self, call: Call) -> u64 {
        self.shared.calls.count(call)
    }

    /// Calls of all kinds so far.
    pub fn count_all(&self) -> u64 {
        Call::ALL.iter().map(|call| self.count(*call)).sum()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.shared.world.lock()
    }

    /// One call: counted, hooked, subject to faults, and one step.
    fn call<R>(
        &self,
        call: Call,
        name: &[u8],
        read: impl FnOnce(&mut World) -> Result<R>,
    ) -> Result<R> {
        self.shared.calls.enter(call, name)?;
        let answer = read(&mut self.world());
        self.shared.calls.at(call, Point::Read, name);
        answer
    }
}
