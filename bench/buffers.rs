//! The four supplies of name buffers, alone: borrow, touch, give back.

use std::collections::VecDeque;
use std::fmt;
use std::hint::black_box;
use std::io;
use std::mem::MaybeUninit;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use nameifs::slab::{KmemCache, Obj, Registry, SlabFlags};

/// Bytes of a name buffer.
const PATH_MAX: usize = 4096;

/// Buffers alive at once in a burst: more than a magazine holds.
const BURST: usize = 128;

/// Where buffers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// Mapped and unmapped each time.
    Page,
    /// The C library.
    Malloc,
    /// The slab cache without magazines.
    Slab,
    /// The slab cache with magazines.
    Magazine,
}

impl Supply {
    /// In the order of the columns.
    pub const ALL: [Supply; 4] = [Supply::Page, Supply::Malloc, Supply::Slab, Supply::Magazine];
}

impl fmt::Display for Supply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Supply::Page => "page",
            Supply::Malloc => "malloc",
            Supply::Slab => "slab",
            Supply::Magazine => "magazine",
        })
    }
}

/// How they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One at a time.
    OneThread,
    /// One at a time on each of two threads; the slower thread counts.
    TwoThreads,
    /// 128 borrowed, then 128 given back.
    Burst,
    /// Borrowed on one thread, given back on another; both sides count.
    OtherThread,
}

impl Pattern {
    /// In the order of the rows.
    pub const ALL: [Pattern; 4] = [
        Pattern::OneThread,
        Pattern::TwoThreads,
        Pattern::Burst,
        Pattern::OtherThread,
    ];
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pattern::OneThread => "one thread",
            Pattern::TwoThreads => "two threads",
            Pattern::Burst => "burst of 128",
            Pattern::OtherThread => "freed elsewhere",
        })
    }
}

/// One supply.
trait Buffers: Clone + Send + Sync + 'static {
    type Buffer: Send + 'static;

    /// Borrows a buffer and touches it.
    fn get(&self) -> io::Result<Self::Buffer>;
}

#[derive(Clone)]
struct Pages;

impl Buffers for Pages {
    type Buffer = MmapMut;

    fn get(&self) -> io::Result<MmapMut> {
        let mut page = MmapMut::map_anon(PATH_MAX)?;
        page[0] = 1;
        Ok(page)
    }
}

#[derive(Clone)]
struct Malloc;

impl Buffers for Malloc {
    type Buffer = Box<[MaybeUninit<u8>]>;

    #[inline]
    fn get(&self) -> io::Result<Self::Buffer> {
        let mut buffer = Box::new_uninit_slice(PATH_MAX);
        buffer[0].write(1);
        Ok(black_box(buffer))
    }
}

/// An object of the cache.
#[repr(C, align(64))]
struct Name([u8; PATH_MAX]);

/// A cache and the registry that it is in.
#[derive(Clone)]
struct Slab(
    KmemCache<Name>,
    #[allow(dead_code, reason = "kept alive")] Arc<Registry>,
);

impl Slab {
    fn new(flags: SlabFlags) -> Self {
        let registry = Registry::new();
        let flags = flags | SlabFlags::HWCACHE_ALIGN;
        let cache = KmemCache::create(&registry, "getname_cache", flags, || Name([0; PATH_MAX]));
        Self(cache, registry)
    }
}

impl Buffers for Slab {
    type Buffer = Obj<Name>;

    #[inline]
    fn get(&self) -> io::Result<Obj<Name>> {
        let mut name = self.0.alloc().map_err(|_| io::ErrorKind::OutOfMemory)?;
        name.0[0] = 1;
        Ok(name)
    }
}

/// A supply that can be measured.
pub trait Measure {
    /// Nanoseconds per buffer, over `count` of them.
    fn measure(&self, pattern: Pattern, count: usize) -> io::Result<f64>;

    /// How many buffers take about 20 milliseconds.
    fn calibrate(&self, pattern: Pattern) -> io::Result<usize> {
        let mut count = 1024;
        loop {
            let nanos = self.measure(pattern, count)? * count as f64;
            if nanos > 2e6 || count >= 1 << 24 {
                return Ok(((count as f64 * 2e7 / nanos) as usize).clamp(1024, 1 << 26));
            }
            count *= 4;
        }
    }
}

/// All of them, in the order of `Supply::ALL`.
pub fn supplies() -> Vec<Box<dyn Measure>> {
    vec![
        Box::new(Pages),
        Box::new(Malloc),
        Box::new(Slab::new(SlabFlags::empty())),
        Box::new(Slab::new(SlabFlags::MAGAZINES)),
    ]
}

impl<B: Buffers> Measure for B {
    fn measure(&self, pattern: Pattern, count: usize) -> io::Result<f64> {
        let count = count.next_multiple_of(BURST);
        let elapsed = match pattern {
            Pattern::OneThread => one_by_one(self, count)?,
            Pattern::TwoThreads => two_threads(self, count)?,
            Pattern::Burst => bursts(self, count)?,
            Pattern::OtherThread => other_thread(self, count)?,
        };
        Ok(elapsed.as_nanos() as f64 / count as f64)
    }
}

#[inline(never)]
fn one_by_one<B: Buffers>(supply: &B, count: usize) -> io::Result<Duration> {
    let start = Instant::now();
    for _ in 0..count {
        drop(black_box(supply.get()?));
    }
    Ok(start.elapsed())
}

fn two_threads<B: Buffers>(supply: &B, count: usize) -> io::Result<Duration> {
    let barrier = Barrier::new(2);
    let work = || {
        // The thread's own first steps (a magazine, an arena) are not measured.
        one_by_one(supply, 256)?;
        barrier.wait();
        one_by_one(supply, count)
    };
    thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        let mut slower = Duration::ZERO;
        for thread in threads {
            let elapsed = thread
                .join()
                .map_err(|_| io::Error::other("a thread panicked"))??;
            slower = slower.max(elapsed);
        }
        Ok(slower)
    })
}

fn bursts<B: Buffers>(supply: &B, count: usize) -> io::Result<Duration> {
    let mut held = VecDeque::with_capacity(BURST);
    let start = Instant::now();
    for _ in 0..count.div_ceil(BURST) {
        for _ in 0..BURST {
            held.push_back(supply.get()?);
        }
        held.clear();
    }
    Ok(start.elapsed())
}

/// Batches travel through a channel; only borrowing and giving back are timed.
fn other_thread<B: Buffers>(supply: &B, count: usize) -> io::Result<Duration> {
    let (full, arriving) = mpsc::sync_channel::<Vec<B::Buffer>>(2);
    let (empty, returning) = mpsc::sync_channel::<Vec<B::Buffer>>(4);
    let consumer = thread::spawn(move || {
        let mut elapsed = Duration::ZERO;
        for mut batch in arriving {
            let start = Instant::now();
            batch.clear();
            elapsed += start.elapsed();
            if empty.send(batch).is_err() {
                break;
            }
        }
        elapsed
    });
    let mut elapsed = Duration::ZERO;
    for number in 0..count.div_ceil(BURST) {
        let mut batch = match number {
            0..3 => Vec::with_capacity(BURST),
            _ => returning.recv().map_err(io::Error::other)?,
        };
        let start = Instant::now();
        for _ in 0..BURST {
            batch.push(supply.get()?);
        }
        elapsed += start.elapsed();
        full.send(batch)
            .map_err(|_| io::Error::other("the other thread ended"))?;
    }
    drop(full);
    // What comes back is empty; the channel must not be full when the last batch does.
    while returning.recv().is_ok() {}
    let freeing = consumer
        .join()
        .map_err(|_| io::Error::other("a thread panicked"))?;
    Ok(elapsed + freeing)
}
