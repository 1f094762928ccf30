//! Magazines and their depot (Bonwick and Adams, "Magazines and Vmem", 2001).
//!
//! What it is for: a thread takes and gives back rounds (here: handles of free
//! objects) without a lock or an atomic read-modify-write, and meets other
//! threads only once per [`ROUNDS`] operations. Linux calls a magazine a sheaf
//! and the depot a barn.
//!
//! Its contract: a thread's two magazines lie in one array. The paper's
//! *previous* magazine is the lower half and *loaded* the upper one, so that
//! the paper's exchange of the two is no work at all and one number, the
//! count of rounds, says everything. A full array gives its older half to the
//! depot, an empty one gets a full magazine from there; either way at least
//! `ROUNDS` operations pass before the next visit. Magazines keep travelling
//! as whole boxes; their rounds are moved outside the depot's lock, in one
//! run, which lets the processor fetch another core's lines side by side. In
//! the depot they are linked through themselves, so that a visit waits for
//! two lines of another core, the lock's and the first of the magazine.
//!
//! The count is written by the owner with plain stores and read by anyone.
//! Rounds between an array and the depot are in neither count.
//!
//! What it does not do: it makes no objects and decides no policy.

use std::cell::Cell;

use super::page::Mine;
use crate::sync::atomic::Ordering::Relaxed;

/// Rounds of one magazine. Fewer under loom and Miri, so that few steps reach the depot.
pub(super) const ROUNDS: usize = if cfg!(feature = "loom") {
    2
} else if cfg!(miri) {
    8
} else {
    128
};

/// A full or empty magazine on its way.
pub(super) type Magazine<H> = Box<Case<H>>;

/// Its lines are its own, so that no neighbour takes them away.
#[repr(C, align(64))]
pub(super) struct Case<H> {
    /// The one below it in the depot.
    below: Option<Magazine<H>>,
    pub(super) rounds: [Option<H>; ROUNDS],
}

/// A thread's loaded and previous magazines, and an empty one to hand on.
pub(super) struct Rounds<H> {
    rounds: [Cell<Option<H>>; 2 * ROUNDS],
    spare: Cell<Option<Magazine<H>>>,
}

impl<H> Rounds<H> {
    /// Two empty magazines.
    pub(super) fn new() -> Self {
        Self {
            rounds: [const { Cell::new(None) }; 2 * ROUNDS],
            spare: Cell::new(None),
        }
    }
}

impl<H> Mine<'_, Rounds<H>> {
    /// Takes the round put in last.
    ///
    /// The count is stored before the round is touched, because the next
    /// operation waits for the count alone. Nobody else uses the rounds.
    #[inline]
    pub(super) fn pop(&self) -> Option<H> {
        let top = self.count().load(Relaxed).wrapping_sub(1);
        let place = self.own().rounds.get(top)?;
        self.count().store(top, Relaxed);
        place.take()
    }

    /// Puts a round in, or gives it back if both magazines are full.
    #[inline]
    pub(super) fn push(&self, round: H) -> Result<(), H> {
        let top = self.count().load(Relaxed);
        let Some(place) = self.own().rounds.get(top) else {
            return Err(round);
        };
        self.count().store(top + 1, Relaxed);
        place.set(Some(round));
        Ok(())
    }

    /// Fills a magazine with the older half of a full array.
    pub(super) fn unload(&self) -> Magazine<H> {
        let rounds = &self.own().rounds;
        let mut magazine = self.own().spare.take().unwrap_or_else(empty);
        for (place, round) in magazine.rounds.iter_mut().zip(rounds) {
            *place = round.take();
        }
        for (low, high) in rounds.iter().zip(&rounds[ROUNDS..]) {
            low.set(high.take());
        }
        self.count().store(ROUNDS, Relaxed);
        magazine
    }

    /// Empties a full magazine into an empty array and keeps it.
    pub(super) fn load(&self, mut magazine: Magazine<H>) {
        for (place, round) in self.own().rounds.iter().zip(&mut magazine.rounds) {
            place.set(round.take());
        }
        self.count().store(ROUNDS, Relaxed);
        self.own().spare.set(Some(magazine));
    }

    /// The empty magazine, if there is one.
    pub(super) fn spare(&self) -> Option<Magazine<H>> {
        self.own().spare.take()
    }

    /// Keeps an empty magazine.
    pub(super) fn keep(&self, magazine: Option<Magazine<H>>) {
        self.own().spare.set(magazine);
    }
}

fn empty<H>() -> Magazine<H> {
    Box::new(Case {
        below: None,
        rounds: [const { None }; ROUNDS],
    })
}

/// Magazines linked through themselves: a visit changes the top alone.
struct Stack<H> {
    top: Option<Magazine<H>>,
    len: usize,
}

impl<H> Stack<H> {
    fn new() -> Self {
        Self { top: None, len: 0 }
    }

    fn push(&mut self, mut magazine: Magazine<H>) {
        magazine.below = self.top.take();
        self.top = Some(magazine);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<Magazine<H>> {
        let mut magazine = self.top.take()?;
        self.top = magazine.below.take();
        self.len -= 1;
        Some(magazine)
    }
}

/// One by one: a magazine that dropped those below it would recurse.
impl<H> Drop for Stack<H> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// Full and empty magazines of all threads; lives under its cache's lock.
pub(super) struct Depot<H> {
    full: Stack<H>,
    empty: Stack<H>,
    capacity: usize,
}

impl<H> Depot<H> {
    /// A depot for at most `capacity` full magazines.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            full: Stack::new(),
            empty: Stack::new(),
            capacity,
        }
    }

    /// Full magazines that it may hold.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Rounds that it holds.
    pub(super) fn rounds(&self) -> usize {
        self.full.len * ROUNDS
    }

    /// Takes a full magazine in exchange for an empty one.
    pub(super) fn take_full(
        &mut self,
        spare: Option<Magazine<H>>,
    ) -> (Option<Magazine<H>>, Option<Magazine<H>>) {
        let Some(full) = self.full.pop() else {
            return (None, spare);
        };
        if let Some(spare) = spare.filter(|_| self.empty.len < self.capacity) {
            self.empty.push(spare);
        }
        (Some(full), None)
    }

    /// Takes a full magazine in, if there is room, and gives an empty one for it.
    pub(super) fn put_full(
        &mut self,
        full: Magazine<H>,
    ) -> Result<Option<Magazine<H>>, Magazine<H>> {
        if self.full.len >= self.capacity {
            return Err(full);
        }
        self.full.push(full);
        Ok(self.empty.pop())
    }

    /// Everything it holds.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = H> {
        self.empty = Stack::new();
        let mut full = std::mem::replace(&mut self.full, Stack::new());
        std::iter::from_fn(move || full.pop())
            .flat_map(|magazine| magazine.rounds.into_iter().flatten())
    }
}
