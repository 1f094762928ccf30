//! Two threads on a CPU each, and what a cache line takes from one to the other.

use std::hint::{black_box, spin_loop};
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Nanoseconds of one sample, per object.
pub fn per_object(start: Instant, count: usize) -> f64 {
    start.elapsed().as_nanos() as f64 / count as f64
}

/// Waits for a few instructions' time, then for the scheduler.
pub fn wait(mut ready: impl FnMut() -> bool) {
    let mut turns = 0;
    while !ready() {
        turns += 1;
        if turns < 500 {
            spin_loop()
        } else {
            thread::yield_now()
        }
    }
}

/// Keeps the calling thread on one CPU until dropped. Two threads that the scheduler puts on
/// one would measure the scheduler.
struct Pinned;
impl Pinned {
    fn to(which: usize) -> Self {
        let cpus: Vec<_> = (0..CpuSet::MAX_CPU)
            .filter(|&cpu| all_cpus().is_set(cpu))
            .collect();
        let mut one = CpuSet::new();
        one.set(cpus[which % cpus.len()]);
        sched_setaffinity(None, &one).expect("a CPU that was allowed");
        Self
    }
}
impl Drop for Pinned {
    fn drop(&mut self) {
        sched_setaffinity(None, all_cpus()).expect("CPUs that were allowed");
    }
}

/// The CPUs that the bench may use.
fn all_cpus() -> &'static CpuSet {
    static ALL: OnceLock<CpuSet> = OnceLock::new();
    ALL.get_or_init(|| sched_getaffinity(None).expect("own thread"))
}

/// Runs both on a CPU each.
pub fn apart<A, B: Send>(here: impl FnOnce() -> A, there: impl FnOnce() -> B + Send) -> (A, B) {
    let _pinned = Pinned::to(0);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let _pinned = Pinned::to(1);
            there()
        });
        (here(), other.join().expect("no panic"))
    })
}

/// On lines of its own; processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
pub struct Apart<T>(pub T);

/// Nanoseconds from one CPU to the other, for a line that nothing else goes beside.
pub fn line_alone(count: usize) -> f64 {
    let turn = Apart(AtomicUsize::new(0));
    let play = |first: usize| {
        let start = Instant::now();
        for turns in (first..count).step_by(2) {
            wait(|| turn.0.load(Acquire) == turns);
            turn.0.store(turns + 1, Release);
        }
        per_object(start, count)
    };
    apart(|| play(0), || play(1)).0
}

/// The same for each of many lines that are read side by side.
pub fn line_among(count: usize) -> f64 {
    const LINES: usize = 256;
    let lines: Vec<Apart<AtomicUsize>> = (0..LINES).map(|_| Apart::default()).collect();
    let turn = Apart(AtomicUsize::new(0));
    let runs = (count / LINES).max(1);
    let read = || {
        let mut spent = Duration::ZERO;
        for run in 0..runs {
            wait(|| turn.0.load(Acquire) == 2 * run + 1);
            let start = Instant::now();
            black_box(lines.iter().map(|line| line.0.load(Relaxed)).sum::<usize>());
            spent += start.elapsed();
            turn.0.store(2 * run + 2, Release);
        }
        spent.as_nanos() as f64 / (runs * LINES) as f64
    };
    let write = || {
        for run in 0..runs {
            wait(|| turn.0.load(Acquire) == 2 * run);
            lines.iter().for_each(|line| line.0.store(run, Relaxed));
            turn.0.store(2 * run + 1, Release);
        }
    };
    apart(read, write).0
}
