//! Directory read-ahead over a source that counts its calls and holds them up.

use std::collections::BTreeSet;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::clock::Clock;
use crate::dcache::{NodeId, ROOT};
use crate::fs::{Coherence, Fs, Lookup, Options, Readahead};
use crate::source::fake::{Call, FakeSource, FsConfig, Point, Site};
use crate::source::{Kind, Time};
use crate::sync::Arc;

/// Longer than anything takes; then a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Calls that listing one of these directories takes: its names, and the end.
const BATCHES: u64 = 2;

/// Calls that are held up, by name, until they are let go.
#[derive(Default)]
struct Gate {
    state: Mutex<Held>,
    changed: Condvar,
}

#[derive(Default)]
struct Held {
    /// Names of lookups to hold up.
    names: BTreeSet<Vec<u8>>,
    /// Lookups that are held up by name.
    stuck: usize,
    inside: usize,
    most: usize,
    /// Lookups are held up until so many are there at once.
    together: usize,
}

impl Gate {
    fn pass(&self, site: &Site<'_>) {
        if (site.call, site.point) != (Call::StatAt, Point::Before) {
            return;
        }
        let mut held = self.state.lock();
        held.inside += 1;
        held.most = held.most.max(held.inside);
        self.changed.notify_all();
        let end = Instant::now() + PATIENCE;
        let waits = |h: &Held| h.names.contains(site.name) || h.most < h.together;
        let stuck = usize::from(held.names.contains(site.name));
        held.stuck += stuck;
        while waits(&held) && Instant::now() < end {
            self.changed.wait_until(&mut held, end);
        }
        held.inside -= 1;
        held.stuck -= stuck;
    }

    fn hold(&self, name: &str) {
        self.state.lock().names.insert(name.into());
    }

    fn release(&self) {
        self.state.lock().names.clear();
        self.changed.notify_all();
    }

    /// Waits until so many lookups are held up by name.
    #[track_caller]
    fn wait_stuck(&self, count: usize) {
        let mut held = self.state.lock();
        let end = Instant::now() + PATIENCE;
        while held.stuck < count {
            let late = self.changed.wait_until(&mut held, end).timed_out();
            assert!(!late, "{} of {count} calls came", held.stuck);
        }
    }
}

/// A mount with its pool.
struct Bed {
    fs: Arc<Fs<FakeSource>>,
    source: FakeSource,
    clock: Clock,
    gate: Arc<Gate>,
    pool: Option<JoinHandle<()>>,
}

impl Bed {
    fn mount(threads: usize, change: impl FnOnce(&mut Options), dirs: usize, files: usize) -> Self {
        let source = FakeSource::new(FsConfig::default());
        source.clock().set(Time {
            sec: 0,
            nsec: 1_000_000,
        });
        for d in 0..dirs {
            source.edit().mkdir(format!("d{d}")).unwrap();
            for f in 0..files {
                source.edit().create(format!("d{d}/f{f}"), b"").unwrap();
            }
        }
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(60));
        source.clock().advance(Duration::from_secs(60));
        let mut options = Options {
            coherence: Coherence::Frozen,
            readahead: Readahead::Threads(threads),
            ..Options::default()
        };
        change(&mut options);
        let fs = Fs::with_clock(source.clone(), options, clock.clone()).unwrap();
        let (fs, gate) = (Arc::new(fs), Arc::new(Gate::default()));
        let at = gate.clone();
        source.set_hook(move |site| at.pass(site));
        let reader = fs.clone();
        let pool = Some(std::thread::spawn(move || reader.read_ahead()));
        Self {
            fs,
            source,
            clock,
            gate,
            pool,
        }
    }

    fn stat(&self, what: &str) -> u64 {
        self.fs.stats()["readahead"][what].as_u64().unwrap()
    }

    #[track_caller]
    fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(
                Instant::now() < end,
                "{what}: {}",
                self.fs.stats()["readahead"]
            );
            std::thread::yield_now();
        }
    }

    /// Nothing is left to do.
    #[track_caller]
    fn idle(&self) {
        self.until("idle", |b| b.stat("queued") + b.stat("in_flight") == 0);
    }

    /// Reads a directory as the kernel does; the names.
    fn read(&self, nodeid: NodeId) -> Vec<(Vec<u8>, Kind)> {
        read(&self.fs, nodeid)
    }

    fn lookup(&self, parent: NodeId, name: &str) -> Option<NodeId> {
        match self.fs.lookup(parent, name.as_bytes()).unwrap() {
            Lookup::Entry(entry) => {
                self.fs.forget(entry.nodeid, 1);
                Some(entry.nodeid)
            }
            Lookup::Negative(_) => None,
        }
    }

    /// `find -printf %s`; how many names.
    fn walk(&self, nodeid: NodeId) -> usize {
        let names = self.read(nodeid);
        let below = names.iter().map(|(name, kind)| {
            let name = std::str::from_utf8(name).unwrap();
            let child = self.lookup(nodeid, name).expect("it was listed");
            match kind {
                Kind::Directory => 1 + self.walk(child),
                _ => 1,
            }
        });
        below.sum()
    }

    /// Ends the mount: the pool returns, nothing leaks.
    fn end(mut self) {
        self.gate.release();
        self.fs.stop_reading_ahead();
        self.pool.take().unwrap().join().unwrap();
        self.fs.check().unwrap();
        assert!(self.fs.end().is_empty(), "leaked");
    }
}

fn read(fs: &Fs<FakeSource>, nodeid: NodeId) -> Vec<(Vec<u8>, Kind)> {
    let mut names = Vec::new();
    let taken = fs.readdir(nodeid, 0, false, &mut |e| {
        if !matches!(e.name, b"." | b"..") {
            names.push((e.name.to_vec(), e.kind));
        }
        true
    });
    taken.unwrap();
    names
}

/// Reading the root fills all beneath, several calls at once, each made once; a walk then
/// asks the source nothing.
#[test]
fn a_directory_that_is_read_has_its_subdirectories_filled() {
    let bed = Bed::mount(4, |_| {}, 8, 10);
    bed.gate.state.lock().together = 4;
    bed.read(ROOT);
    bed.until("filled", |b| b.stat("filled") == 8);
    bed.idle();
    assert_eq!(bed.gate.state.lock().most, 4, "calls at once");
    assert_eq!(bed.source.count(Call::List), 9 * BATCHES);
    assert_eq!(bed.source.count(Call::StatAt), 88);
    let before = bed.source.count_all();
    assert_eq!(bed.walk(ROOT), 88);
    assert_eq!(bed.source.count_all(), before);
    bed.end();
}

/// A walk that runs beside the pool repeats none of its calls, and is not repeated.
#[test]
fn a_walk_beside_the_pool_asks_once() {
    let bed = Bed::mount(4, |_| {}, 40, 20);
    assert_eq!(bed.walk(ROOT), 840);
    bed.idle();
    assert_eq!(bed.source.count(Call::List), 41 * BATCHES);
    assert_eq!(bed.source.count(Call::StatAt), 840);
    bed.end();
}

/// A request for the name that the pool is asking for waits for its answer.
#[test]
fn a_request_waits_for_what_is_being_filled() {
    let bed = Bed::mount(1, |_| {}, 1, 3);
    bed.gate.hold("d0");
    bed.read(ROOT);
    bed.gate.wait_stuck(1);
    let fs = bed.fs.clone();
    let asking = std::thread::spawn(move || match fs.lookup(ROOT, b"d0") {
        Ok(Lookup::Entry(entry)) => fs.forget(entry.nodeid, 1),
        other => panic!("{other:?}"),
    });
    bed.until("it waits", |b| b.stat("waited") == 1);
    bed.gate.release();
    asking.join().unwrap();
    bed.idle();
    assert_eq!(bed.source.count(Call::StatAt), 4);
    bed.end();
}

/// A reader of the directory that the pool lists waits for its listing.
#[test]
fn a_reader_waits_for_what_is_being_listed() {
    let bed = Bed::mount(1, |_| {}, 1, 3);
    let d0 = bed.lookup(ROOT, "d0").unwrap();
    let (begun, began) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel();
    bed.source
        .pause(Call::List, Point::Before, BATCHES, move || {
            begun.send(()).unwrap();
            released.recv_timeout(PATIENCE).unwrap();
        });
    bed.read(ROOT);
    began.recv_timeout(PATIENCE).unwrap();
    let fs = bed.fs.clone();
    let reader = std::thread::spawn(move || read(&fs, d0).len());
    bed.until("it waits", |b| b.stat("waited") == 1);
    release.send(()).unwrap();
    assert_eq!(reader.join().unwrap(), 3);
    bed.idle();
    assert_eq!(bed.source.count(Call::List), 2 * BATCHES);
    bed.end();
}

/// While a request is at the source on its own, the pool begins nothing.
#[test]
fn a_request_comes_first() {
    let bed = Bed::mount(1, |_| {}, 2, 20);
    let d1 = bed.lookup(ROOT, "d1").unwrap();
    bed.gate.hold("f0");
    bed.read(ROOT);
    bed.gate.wait_stuck(1);
    bed.gate.hold("absent");
    let fs = bed.fs.clone();
    let asking = std::thread::spawn(move || fs.lookup(d1, b"absent").unwrap());
    bed.gate.wait_stuck(2);
    bed.gate.state.lock().names.remove(&b"f0"[..]);
    bed.gate.changed.notify_all();
    bed.until("its call ended", |b| b.stat("in_flight") == 0);
    let before = bed.source.count_all();
    assert!(bed.stat("queued") > 0);
    assert_eq!(bed.stat("in_flight"), 0);
    assert_eq!(bed.source.count_all(), before);
    bed.gate.release();
    asking.join().unwrap();
    bed.until("filled", |b| b.stat("filled") == 2);
    bed.idle();
    bed.end();
}

/// At the limit of the queue the farthest goes.
#[test]
fn the_queue_is_bounded() {
    let bed = Bed::mount(1, |_| {}, 5000, 0);
    bed.read(ROOT);
    bed.until("dropped", |b| b.stat("dropped") >= 900);
    // Four calls each, and 256 ahead of the reader.
    bed.until("the window is used up", |b| b.stat("filled") >= 64);
    bed.until("stopped", |b| b.stat("in_flight") == 0);
    assert_eq!(bed.stat("filled"), 64, "ahead of the reader");
    assert!(bed.stat("queued") <= 4096);
    bed.end();
}

/// A reader that has left: what waits is dropped.
#[test]
fn a_reader_that_leaves_stops_it() {
    let bed = Bed::mount(2, |_| {}, 30, 2);
    bed.gate.hold("d9");
    bed.gate.hold("f0");
    bed.read(ROOT);
    bed.gate.wait_stuck(2);
    bed.clock.advance(Duration::from_secs(3));
    bed.gate.release();
    bed.idle();
    assert!(bed.stat("dropped") > 0);
    assert!(bed.source.count(Call::List) < 31 * BATCHES);
    // The next one is served as the first was.
    assert_eq!(bed.walk(ROOT), 90);
    bed.idle();
    bed.end();
}

/// At the budget it stops.
#[test]
fn the_budget_stops_it() {
    let bed = Bed::mount(2, |o| o.cache_size = 128 << 10, 200, 50);
    bed.read(ROOT);
    bed.until("dropped", |b| b.stat("dropped") > 0);
    bed.idle();
    assert!(bed.source.count(Call::List) < 201 * BATCHES);
    bed.end();
}

/// At the end of the mount the pool returns with the calls that are under way.
#[test]
fn the_end_of_the_mount_stops_it() {
    let mut bed = Bed::mount(3, |_| {}, 30, 5);
    for name in ["d3", "d4", "d5"] {
        bed.gate.hold(name);
    }
    bed.read(ROOT);
    bed.gate.wait_stuck(3);
    let before = bed.source.count_all();
    bed.fs.stop_reading_ahead();
    bed.gate.release();
    bed.pool.take().unwrap().join().unwrap();
    assert_eq!(bed.source.count_all(), before);
    assert!(bed.fs.end().is_empty());
}

/// What was changed while the pool read it is not kept.
#[test]
fn what_changes_meanwhile_is_not_kept() {
    let bed = Bed::mount(1, |o| o.coherence = Coherence::Watch, 1, 1);
    let (source, fs) = (bed.source.clone(), bed.fs.clone());
    bed.source.pause(Call::StatAt, Point::Read, 1, move || {
        source.edit().unlink("d0/f0").unwrap();
        fs.follow();
    });
    bed.read(ROOT);
    bed.until("filled", |b| b.stat("filled") == 1);
    bed.idle();
    assert_eq!(bed.source.pauses(), 0);
    let d0 = bed.lookup(ROOT, "d0").unwrap();
    assert_eq!(bed.lookup(d0, "f0"), None);
    bed.end();
}

/// What was filled is believed for the ttl and no longer.
#[test]
fn what_is_filled_is_believed_for_the_ttl() {
    let bed = Bed::mount(2, |o| o.coherence = Coherence::Ttl, 2, 2);
    bed.read(ROOT);
    bed.until("filled", |b| b.stat("filled") == 2);
    bed.idle();
    let d0 = bed.lookup(ROOT, "d0").unwrap();
    bed.source.edit().unlink("d0/f0").unwrap();
    let second = Duration::from_millis(1001);
    bed.clock.advance(second);
    bed.source.clock().advance(second);
    assert_eq!(bed.lookup(d0, "f0"), None);
    assert_eq!(bed.read(d0).len(), 1);
    bed.end();
}

/// Of a large directory the rest is looked up when somebody asks for some of it.
#[test]
fn the_rest_of_a_large_directory_waits_for_a_lookup() {
    let bed = Bed::mount(2, |_| {}, 1, 1000);
    let d0 = bed.lookup(ROOT, "d0").unwrap();
    bed.read(d0);
    bed.idle();
    let first = bed.source.count(Call::StatAt);
    assert!(first < 300, "{first}");
    bed.lookup(d0, "f998");
    bed.lookup(d0, "f999");
    bed.until("names", |b| b.stat("names") >= 1000);
    bed.idle();
    assert_eq!(bed.source.count(Call::StatAt), 1001);
    bed.end();
}

/// It can be switched off, and is where the source is fast.
#[test]
fn it_can_be_off() {
    for mode in [Readahead::Off, Readahead::Auto] {
        let bed = Bed::mount(1, |o| o.readahead = mode, 5, 5);
        assert_eq!(bed.walk(ROOT), 30);
        assert_eq!(bed.stat("names") + bed.stat("queued"), 0, "{mode:?}");
        bed.end();
    }
}
