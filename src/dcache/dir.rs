//! What is known of a directory as a whole (floor F3).
//!
//! Purpose: the directory lock, the counters that tell a stale fill from a good
//! one, and the cached listing.
//!
//! Contract. `changes` grows with each change of a name below. Whoever reads names
//! from the source takes [`Dir::begin`] first and hands the number back when the
//! result is to be cached: if it grew meanwhile, the result is void. `epoch` grows
//! when all names below become doubtful at once. Both move only under the
//! directory lock; they are read without it.
//!
//! It does not read the source.

use std::any::Any;

use super::listing::{Compact, Listing};
use crate::clock::Millis;
use crate::source::Time;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard};

/// A moment in the history of a directory; see [`Dir::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u64);

/// What a directory's own attributes said when its names were known to be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Its mtime.
    pub mtime: Time,
    /// Its ctime; a change of names always moves it, nobody can set it back.
    pub ctime: Time,
    /// Taken so soon after the ctime that a later change may bear the same time.
    pub racy: bool,
}

/// State of the names below one directory.
#[derive(Default)]
pub struct Dir {
    changes: AtomicU64,
    epoch: AtomicU32,
    /// When the names were last proved right; 0 when never.
    checked: AtomicU64,
    /// Changes below are told of.
    watched: AtomicBool,
    state: Mutex<DirState>,
    /// Ends the watch when it is dropped, with the directory at the latest.
    tie: Mutex<Option<Tie>>,
}

/// What ends a watch when it is dropped.
pub type Tie = Box<dyn Any + Send + Sync>;

/// What the directory lock guards besides the names themselves.
#[derive(Debug, Default)]
pub struct DirState {
    /// See [`Stamp`]; none before the first check.
    pub stamp: Option<Stamp>,
    /// The whole listing, if it is cached.
    listing: Option<Kept>,
}

/// A whole listing as it is kept.
#[derive(Clone, Debug)]
pub enum Kept {
    /// With the names.
    Names(Arc<Listing>),
    /// By the dentries that have the names.
    Dentries(Arc<Compact>),
}

impl Kept {
    fn bytes(&self) -> usize {
        match self {
            Self::Names(listing) => listing.bytes(),
            Self::Dentries(compact) => compact.bytes(),
        }
    }
}

impl Dir {
    /// To be called before names are read from the source.
    pub fn begin(&self) -> Moment {
        Moment(self.changes.load(Ordering::Acquire))
    }

    /// Names stamped with another epoch are doubtful.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// When the names were last proved right; 0 when never.
    pub fn checked(&self) -> Millis {
        self.checked.load(Ordering::Acquire)
    }

    /// Takes the directory lock. Preconditions: no lock of rank 20 or above is held.
    pub fn lock(&self) -> DirGuard<'_> {
        DirGuard {
            dir: self,
            state: self.state.lock(),
        }
    }

    /// Takes the directory lock if it is free; for those who go against the order.
    pub fn try_lock(&self) -> Option<DirGuard<'_>> {
        Some(DirGuard {
            dir: self,
            state: self.state.try_lock()?,
        })
    }

    /// Whether changes below are told of.
    pub fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// Changes below are told of from now on, until `tie` is dropped. What was cached
    /// before is doubtful: nobody told of its changes.
    pub fn set_watched(&self, tie: Tie) {
        self.lock().doubt();
        let old = self.tie.lock().replace(tie);
        self.watched.store(true, Ordering::Release);
        drop(old);
    }

    /// Changes below are not told of any more; what is cached is doubtful.
    pub fn unwatch(&self) {
        self.watched.store(false, Ordering::Release);
        let tie = self.tie.lock().take();
        self.lock().doubt();
        drop(tie);
    }

    /// The cached listing.
    pub fn listing(&self) -> Option<Kept> {
        self.state.lock().listing.clone()
    }
}

/// The held directory lock; functions that need it ask for it as a witness.
pub struct DirGuard<'a> {
    dir: &'a Dir,
    /// What the lock guards.
    pub state: MutexGuard<'a, DirState>,
}

impl DirGuard<'_> {
    /// Whether nothing changed since `moment`.
    pub fn unchanged_since(&self, moment: Moment) -> bool {
        self.dir.begin() == moment
    }

    /// The epoch, for stamping a name.
    pub fn epoch(&self) -> u32 {
        self.dir.epoch()
    }

    /// A name below changed: fills under way are void, the listing is gone.
    pub fn change(&mut self) {
        self.dir.changes.fetch_add(1, Ordering::AcqRel);
        self.state.listing = None;
    }

    /// Attributes of something below changed: fills under way are void.
    pub fn change_attr(&mut self) {
        self.dir.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// All names below are doubtful from now on.
    pub fn doubt(&mut self) {
        self.dir.epoch.fetch_add(1, Ordering::AcqRel);
        self.state.stamp = None;
        self.dir.checked.store(0, Ordering::Release);
        self.change();
    }

    /// The names were right at `now`, when the directory looked like `stamp`.
    pub fn prove(&mut self, stamp: Stamp, now: Millis) {
        self.state.stamp = Some(stamp);
        self.dir.checked.store(now, Ordering::Release);
    }

    /// Caches a whole listing that was begun at `moment`; whether it was good.
    pub fn set_listing(&mut self, listing: Arc<Listing>, moment: Moment) -> bool {
        let good = self.unchanged_since(moment);
        if good {
            self.state.listing = Some(Kept::Names(listing));
        }
        good
    }

    /// Whether `listing` is the one that is cached.
    pub fn is_listing(&self, listing: &Kept) -> bool {
        match (&self.state.listing, listing) {
            (Some(Kept::Names(a)), Kept::Names(b)) => Arc::ptr_eq(a, b),
            (Some(Kept::Dentries(a)), Kept::Dentries(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Keeps the cached listing by its dentries from now on.
    pub fn compact_listing(&mut self, compact: Compact) {
        self.state.listing = Some(Kept::Dentries(Arc::new(compact)));
    }

    /// A dentry below goes: a listing that is kept by dentries goes with it.
    pub fn forget_dentry(&mut self) {
        if matches!(self.state.listing, Some(Kept::Dentries(_))) {
            self.state.listing = None;
        }
    }

    /// Caches a listing again that [`DirGuard::doubt`] dropped under the same lock.
    pub fn restore_listing(&mut self, listing: Arc<Listing>) {
        self.state.listing = Some(Kept::Names(listing));
    }

    /// Drops the listing alone, to save memory.
    pub fn drop_listing(&mut self) -> usize {
        self.state.listing.take().map_or(0, |l| l.bytes())
    }
}

/// A name or a listing that is read while an event tells of a change, under loom: the
/// source changes first and tells then, as inotify does.
#[cfg(test)]
#[cfg(feature = "loom")]
mod races {
    use loom::thread;

    use super::*;
    use crate::source::{Kind, RawEntry};
    use crate::sync::atomic::Ordering::SeqCst;

    /// What is on the source, and what the cache says it is; 0: nothing cached.
    #[derive(Default)]
    struct World {
        dir: Dir,
        source: AtomicU64,
        cached: AtomicU64,
    }

    impl World {
        fn new() -> Arc<Self> {
            let world = Self::default();
            world.source.store(1, SeqCst);
            Arc::new(world)
        }

        /// `lookup_slow`: reads, and caches if nothing was told of meanwhile.
        fn fill(&self) {
            let moment = self.dir.begin();
            let seen = self.source.load(SeqCst);
            let guard = self.dir.lock();
            if guard.unchanged_since(moment) {
                self.cached.store(seen, SeqCst);
            }
        }

        /// A change beneath, and the event about it.
        fn change(&self) {
            self.source.store(2, SeqCst);
            let mut guard = self.dir.lock();
            guard.change();
            self.cached.store(0, SeqCst);
        }

        fn check(&self) {
            let cached = self.cached.load(SeqCst);
            assert!(cached == 0 || cached == self.source.load(SeqCst), "stale");
        }
    }

    #[test]
    fn loom_a_lookup_and_an_invalidation() {
        loom::model(|| {
            let world = World::new();
            let looking = world.clone();
            let looker = thread::spawn(move || looking.fill());
            world.change();
            looker.join().unwrap();
            world.check();
        });
    }

    #[test]
    fn loom_two_lookups_and_an_invalidation() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let world = World::new();
            let lookers =
                [world.clone(), world.clone()].map(|world| thread::spawn(move || world.fill()));
            world.change();
            lookers
                .into_iter()
                .for_each(|looker| looker.join().unwrap());
            world.check();
        });
    }

    /// A listing, told apart by how many names it has.
    fn listing(names: u64) -> Arc<Listing> {
        let mut listing = Listing::default();
        for n in 0..names {
            listing.push(RawEntry {
                ino: n + 1,
                kind: Some(Kind::Regular),
                cookie: n + 1,
                name: b"n",
            });
        }
        Arc::new(listing)
    }

    #[test]
    fn loom_a_listing_and_an_event() {
        loom::model(|| {
            let world = World::new();
            let reading = world.clone();
            let reader = thread::spawn(move || {
                let moment = reading.dir.begin();
                let read = listing(reading.source.load(SeqCst));
                reading.dir.lock().set_listing(read, moment);
            });
            world.change();
            reader.join().unwrap();
            let kept = world.dir.listing().map(|kept| match kept {
                Kept::Names(listing) => listing.len() as u64,
                Kept::Dentries(_) => unreachable!("nobody made it compact"),
            });
            assert!(
                kept.is_none_or(|len| len == world.source.load(SeqCst)),
                "stale"
            );
        });
    }

    /// A watch that is set while names are read: what was read before it is doubtful.
    #[test]
    fn loom_a_watch_that_comes_late() {
        loom::model(|| {
            let world = World::new();
            let reading = world.clone();
            let reader = thread::spawn(move || reading.fill());
            let epoch = world.dir.epoch();
            world.dir.set_watched(Box::new(()));
            world.change();
            reader.join().unwrap();
            assert_ne!(
                world.dir.epoch(),
                epoch,
                "what was cached before is doubtful"
            );
            world.check();
        });
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    #[test]
    fn a_change_voids_the_fill_that_began_before_it() {
        let dir = Dir::default();
        let moment = dir.begin();
        dir.lock().change();
        assert!(!dir.lock().set_listing(Arc::new(Listing::default()), moment));
        assert!(dir.listing().is_none());
        let moment = dir.begin();
        assert!(dir.lock().set_listing(Arc::new(Listing::default()), moment));
        assert!(dir.listing().is_some());
        dir.lock().change();
        assert!(dir.listing().is_none());
    }
}
