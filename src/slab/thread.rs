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

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, Weak};

use crate::sync::thread_local;

/// No number: the thread has no seats.
pub(super) const NONE: usize = usize::MAX;

/// A cache in which a thread has a seat.
pub(super) trait Enrolled: Send + Sync {
    /// Moves what the calling thread's seat holds to where all threads find it.
    fn retire(&self);
    /// Puts away what `retire` moved.
    fn settle(&self);
    /// Whether the cache has ended.
    fn ended(&self) -> bool;
}

#[cfg(not(feature = "loom"))]
thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
    static HINT: Cell<usize> = const { Cell::new(NONE) };
}
#[cfg(feature = "loom")]
thread_local! {
    static NUMBER: Cell<usize> = Cell::new(NONE);
    static HINT: Cell<usize> = Cell::new(NONE);
}
thread_local! {
    // Apart from NUMBER, because a value with a destructor is slower to reach.
    static STAY: RefCell<Stay> = RefCell::new(Stay::begin());
}

/// The next thread's hint.
static HINTS: AtomicUsize = AtomicUsize::new(0);

/// Numbers that no thread has, with the seats that belong to them, and the next new one.
static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers {
    free: BTreeMap::new(),
    next: 0,
});

struct Numbers {
    free: BTreeMap<usize, Seats>,
    next: usize,
}

/// The caches in which a number has a seat. A cache that is gone had nothing there.
type Seats = Vec<Weak<dyn Enrolled>>;

/// The calling thread's number, or [`NONE`].
#[inline]
pub(super) fn current() -> usize {
    NUMBER.with(Cell::get)
}

/// A number that spreads threads over shards; unlike [`current`], every thread has one at once.
pub(super) fn hint() -> usize {
    HINT.with(|hint| {
        if hint.get() == NONE {
            hint.set(HINTS.fetch_add(1, Relaxed));
        }
        hint.get()
    })
}

/// Notes that the calling thread takes a seat in `cache`. False if it cannot
/// any more, because it is ending.
pub(super) fn enroll(cache: Weak<dyn Enrolled>) -> bool {
    let ended = STAY.try_with(|stay| {
        // Borrowed only if a destructor of an ended cache's object led here: a later call will do.
        let mut stay = stay.try_borrow_mut().ok()?;
        stay.seats.retain(|cache| cache.strong_count() > 0);
        if !stay.seats.iter().any(|seat| seat.ptr_eq(&cache)) {
            stay.seats.push(cache);
        }
        Some(
            stay.seats
                .iter()
                .filter_map(Weak::upgrade)
                .filter(|cache| cache.ended())
                .collect::<Vec<_>>(),
        )
    });
    let Ok(Some(ended)) = ended else { return false };
    // Nobody else can reach what this thread holds of a cache that has ended since.
    for cache in ended {
        cache.retire();
        cache.settle();
    }
    true
}

/// A thread's time with a number.
struct Stay {
    number: usize,
    seats: Seats,
}

impl Stay {
    fn begin() -> Self {
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, seats) = numbers.free.pop_first().unwrap_or_else(|| {
            numbers.next += 1;
            (numbers.next - 1, Vec::new())
        });
        NUMBER.with(|n| n.set(number));
        Self { number, seats }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let caches: Vec<_> = self.seats.iter().filter_map(Weak::upgrade).collect();
        for cache in &caches {
            cache.retire();
        }
        NUMBER.with(|n| n.set(NONE));
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        numbers
            .free
            .insert(self.number, std::mem::take(&mut self.seats));
        drop(numbers);
        for cache in caches {
            cache.settle();
        }
    }
}
