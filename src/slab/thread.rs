//! Numbers of living threads, and what a thread leaves behind at its end.
//!
//! What it is for: the seats of [`super::page::PerThread`] are found by a small
//! number that no two living threads share (invariant S5); a thread that ends
//! empties its seats.
//!
//! Its contract: [`current`] is [`NONE`] until the thread's first [`enroll`]
//! and again once the thread's end has begun. A number goes to another thread
//! together with its seats, so whoever has the number empties them at his end.
//! [`Enrolled::retire`] runs no code of an object's type, so that it cannot
//! lead back into a cache; [`Enrolled::settle`] may, and runs when the number
//! is given up.
//!
//! What it does not do: it starts no thread and waits for none.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Weak;

use crate::sync::thread_local;

/// No number: the thread has no seats.
pub(super) const NONE: usize = usize::MAX;

/// A thread's number, which no other living thread has; stays with its thread.
pub(super) struct Number(usize, PhantomData<*const ()>);

impl Number {
    /// The number.
    pub(super) fn get(&self) -> usize {
        self.0
    }
}

/// A cache in which a thread has a seat.
pub(super) trait Enrolled: Send + Sync {
    /// Moves what the calling thread's seat holds to where all threads find
    /// it; the thread's number is `me`.
    fn retire(&self, me: &Number);
    /// Puts away what `retire` moved.
    fn settle(&self);
    /// Whether the cache has ended.
    fn ended(&self) -> bool;
}

thread_local! {
    // Apart from the number, because a value with a destructor is slower to reach.
    static STAY: RefCell<Stay> = RefCell::new(Stay::begin());
}

/// The caches in which a number has a seat. A cache that is gone had nothing there.
type Seats = Vec<Weak<dyn Enrolled>>;

/// The calling thread's number, or [`NONE`].
#[inline]
pub(super) fn current() -> usize {
    own::number()
}

/// A number that spreads threads over shards; unlike [`current`], every thread has one at once.
pub(super) fn hint() -> usize {
    own::hint()
}

/// What a thread knows of itself, also while it ends.
#[cfg(not(feature = "loom"))]
mod own {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::{NONE, Seats};

    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(NONE) };
        static HINT: Cell<usize> = const { Cell::new(NONE) };
    }
    static HINTS: AtomicUsize = AtomicUsize::new(0);

    /// Numbers that no thread has, with the seats that belong to them, and the next new one.
    static NUMBERS: Mutex<(BTreeMap<usize, Seats>, usize)> = Mutex::new((BTreeMap::new(), 0));

    fn numbers() -> MutexGuard<'static, (BTreeMap<usize, Seats>, usize)> {
        NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for the calling thread. The least comes first, so that few seats are ever made.
    pub(super) fn claim() -> (usize, Seats) {
        let mut numbers = numbers();
        let (number, seats) = numbers.0.pop_first().unwrap_or_else(|| {
            numbers.1 += 1;
            (numbers.1 - 1, Vec::new())
        });
        NUMBER.with(|own| own.set(number));
        (number, seats)
    }

    /// The calling thread does without its number from now on.
    pub(super) fn renounce() {
        NUMBER.with(|own| own.set(NONE));
    }

    /// Lets another thread have the number.
    pub(super) fn release(number: usize, seats: Seats) {
        numbers().0.insert(number, seats);
    }

    #[inline]
    pub(super) fn number() -> usize {
        NUMBER.with(Cell::get)
    }

    pub(super) fn hint() -> usize {
        HINT.with(|hint| {
            if hint.get() == NONE {
                hint.set(HINTS.fetch_add(1, Relaxed));
            }
            hint.get()
        })
    }
}

/// The same for loom: its thread-locals all go at a thread's end, it sees no
/// order between a number's two threads, and executions must not differ. So
/// numbers and hints are those of loom's threads, and are used once.
#[cfg(feature = "loom")]
mod own {
    use std::cell::Cell;

    use super::{NONE, Seats};

    loom::thread_local! {
        static NUMBER: Cell<usize> = Cell::new(NONE);
    }

    pub(super) fn claim() -> (usize, Seats) {
        let number = hint();
        NUMBER.with(|own| own.set(number));
        (number, Vec::new())
    }

    pub(super) fn renounce() {
        // Refused when it is gone, and then it is NONE.
        NUMBER.try_with(|own| own.set(NONE)).ok();
    }

    pub(super) fn release(_: usize, _: Seats) {}

    pub(super) fn number() -> usize {
        NUMBER.try_with(Cell::get).unwrap_or(NONE)
    }

    pub(super) fn hint() -> usize {
        let id = format!("{:?}", loom::thread::current().id());
        let digits = id.bytes().filter(u8::is_ascii_digit);
        digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'))
    }
}

/// Notes that the calling thread takes a seat in `cache`. False if it cannot
/// any more, because it is ending.
pub(super) fn enroll(cache: Weak<dyn Enrolled>) -> bool {
    let ended = STAY.try_with(|stay| {
        // Borrowed only if a destructor of an ended cache's object led here: a later call will do.
        let mut stay = stay.try_borrow_mut().ok()?;
        let stay = &mut *stay;
        stay.seats.retain(|cache| cache.strong_count() > 0);
        if !stay.seats.iter().any(|seat| seat.ptr_eq(&cache)) {
            stay.seats.push(cache);
        }
        let seats = stay.seats.iter().filter_map(Weak::upgrade);
        let ended: Vec<_> = seats.filter(|cache| cache.ended()).collect();
        // Nobody else can reach what this thread holds of a cache that has ended since.
        ended.iter().for_each(|cache| cache.retire(&stay.number));
        Some(ended)
    });
    let Ok(Some(ended)) = ended else { return false };
    ended.into_iter().for_each(|cache| cache.settle());
    true
}

/// A thread's time with a number.
struct Stay {
    number: Number,
    seats: Seats,
}

impl Stay {
    fn begin() -> Self {
        let (number, seats) = own::claim();
        Self {
            number: Number(number, PhantomData),
            seats,
        }
    }
}

/// Ends the calling thread's stay now. loom lets others join a thread before
/// its thread-locals go, so a thread that is to be joined ends with this.
#[cfg(all(test, feature = "loom"))]
pub(super) fn leave() {
    let over = Stay {
        number: Number(NONE, PhantomData),
        seats: Vec::new(),
    };
    drop(STAY.with(|stay| stay.replace(over)));
}

impl Drop for Stay {
    fn drop(&mut self) {
        if self.number.get() == NONE {
            return;
        }
        own::renounce();
        let caches: Vec<_> = self.seats.iter().filter_map(Weak::upgrade).collect();
        caches.iter().for_each(|cache| cache.retire(&self.number));
        own::release(self.number.get(), std::mem::take(&mut self.seats));
        caches.into_iter().for_each(|cache| cache.settle());
    }
}
