//! What a cached name costs: nothing. Counted by the kernel's own tracepoint and
//! by `.nameifs/stats`, which must agree.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::harness::{Mounted, Setup, quiet_machine};
use crate::need;
use crate::observe::{Counts, Referee, Stats};
use crate::run::{run, until};

/// Past this a change bears another time than the one before.
const TICK: Duration = Duration::from_millis(100);

/// Both counters over one mount.
struct Counters<'a> {
    mounted: &'a Mounted,
    referee: Referee,
    stats: fs::File,
    /// What the stats and the kernel had counted at the start.
    before: (Counts, Counts),
}

impl<'a> Counters<'a> {
    /// Counts from now on. The stats are read through one descriptor that stays
    /// open, so that reading them costs one READ and nothing else.
    fn start(mounted: &'a Mounted) -> Self {
        let stats = fs::File::open(mounted.at(".nameifs/stats")).expect("stats are there");
        let referee = Referee::start(mounted.minor());
        // Whoever forks has our descriptor for a moment, and the kernel sends a FLUSH when
        // it is gone again: nothing else may have come while both are read.
        let same_moment = || {
            let earlier = referee.count();
            let ours = read_stats(&stats).requests();
            let kernel = referee.count();
            let between = kernel.since(&earlier).comparable();
            (between.total() == 1 && between.of("READ") == 1).then_some((ours, kernel))
        };
        let before = until(Duration::from_secs(10), same_moment).expect("a quiet moment");
        Self {
            mounted,
            referee,
            stats,
            before,
        }
    }

    /// What the kernel sent since.
    fn kernel(&self) -> Counts {
        self.referee.count().since(&self.before.1)
    }

    /// Panics unless both counted the same, opcode by opcode. RELEASE is sent
    /// without anybody waiting for it, hence the patience.
    #[track_caller]
    fn agree(&self) {
        let mut last = None;
        let same = until(Duration::from_secs(5), || {
            let kernel = self.kernel().comparable();
            let mut ours = read_stats(&self.stats)
                .requests()
                .since(&self.before.0)
                .comparable();
            // Reading the stats is a READ: one was counted after the kernel was asked,
            // whichever end of the request the daemon counts at.
            let reads = ours.0.entry("READ".into()).or_default();
            *reads -= 1;
            let ours = ours.comparable();
            let equal = kernel == ours;
            last = Some((kernel, ours));
            equal.then_some(())
        });
        if same.is_none() {
            let (kernel, ours) = last.expect("it was asked");
            let at = self.mounted.path().display();
            panic!("{at}: the kernel sent {kernel:?}, the stats have {ours:?}");
        }
    }
}

fn read_stats(file: &fs::File) -> Stats {
    let mut buf = vec![0; 64 * 1024];
    let len = file.read_at(&mut buf, 0).expect("stats are readable");
    Stats::parse(&buf[..len]).unwrap_or_else(|e| panic!("{e}"))
}

fn walk(mounted: &Mounted, words: &[&str]) -> usize {
    run(&mut mounted.inside(words)).clean().stdout.len()
}

const WALKS: [&[&str]; 3] = [
    &["find", "."],
    &["find", ".", "-printf", "%s %p\\n"],
    &["du", "-s", "."],
];

/// A warm `find`, `find -printf %s` and `du` over /usr in `frozen` send no request
/// at all. Warm is the third walk: the second refreshes what the first one's
/// reading did to the directories' access times.
#[test]
fn warm_walk_in_frozen() {
    need!(Root);
    let mounted = Setup::mode("frozen").source(Path::new("/usr")).mount();
    let _quiet = quiet_machine();
    let mut lengths = Vec::new();
    for words in WALKS {
        for _ in 0..2 {
            lengths.push(walk(&mounted, words));
        }
    }
    let warm_walks = || {
        for (i, words) in WALKS.iter().enumerate() {
            assert_eq!(
                walk(&mounted, words),
                lengths[2 * i],
                "{words:?} found something else"
            );
        }
    };
    let referee = Referee::start(mounted.minor());
    let kernel = referee.undisturbed(warm_walks);
    assert_eq!(kernel.total(), 0, "requests of a warm walk: {kernel:?}");
    drop(referee);
    let counters = Counters::start(&mounted);
    warm_walks();
    counters.agree();
    drop(counters);
    mounted.unmount();
}

/// Two warm walks at once send none either.
#[test]
fn two_warm_walks_in_frozen() {
    need!(Root);
    let mounted = Setup::mode("frozen")
        .source(Path::new("/usr/include"))
        .mount();
    let _quiet = quiet_machine();
    for _ in 0..2 {
        walk(&mounted, WALKS[1]);
    }
    let referee = Referee::start(mounted.minor());
    let kernel = referee.undisturbed(|| {
        std::thread::scope(|scope| {
            let walks = [WALKS[1]; 2].map(|words| scope.spawn(|| walk(&mounted, words)));
            let found = walks.map(|w| w.join().expect("a walk"));
            assert_eq!(found[0], found[1]);
        });
    });
    assert_eq!(kernel.total(), 0, "requests of two warm walks: {kernel:?}");
    drop(referee);
    mounted.unmount();
}

/// The referee itself: in `strict` every walk sends requests, and both counters
/// see the same ones, cold and warm, names, data and attributes.
#[test]
fn counters_agree_when_busy() {
    need!(Root);
    for mode in ["strict", "ttl", "frozen"] {
        let mounted = Setup::mode(mode).source(Path::new("/usr/include")).mount();
        let counters = Counters::start(&mounted);
        walk(&mounted, WALKS[1]);
        let script = "ls -lR . >/dev/null; grep -rl nothing-has-this . ; stat nowhere; true";
        let cmd = ["bash", "-c", script];
        run(&mut mounted.inside(&cmd)).ok();
        let kernel = counters.kernel();
        assert!(
            kernel.of("LOOKUP") + kernel.of("READDIRPLUS") > 100,
            "{kernel:?}"
        );
        assert!(kernel.of("OPEN") > 100 || mode == "frozen", "{kernel:?}");
        counters.agree();
        if mode == "strict" {
            let before = counters.kernel();
            walk(&mounted, WALKS[1]);
            let again = counters.kernel().since(&before);
            assert!(again.total() > 100, "strict asks every time");
        }
        drop(counters);
        mounted.unmount();
    }
}

/// A storm of 1,000 absent names asked 100 times each: at most one LOOKUP a name.
fn storm(setup: Setup) {
    let mounted = setup.mount();
    fs::create_dir(mounted.below("d")).expect("mkdir");
    let _quiet = quiet_machine();
    let referee = Referee::start(mounted.minor());
    for _ in 0..100 {
        for i in 0..1000 {
            let path = mounted.at(format!("d/absent-{i}"));
            let error = path.symlink_metadata().expect_err("it is absent");
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
    }
    let counts = referee.count();
    let lookups = counts.of("LOOKUP") - counts.of("LOOKUP").min(1); // "d" itself
    assert!(
        lookups <= 1000,
        "{lookups} LOOKUPs for 1,000 absent names: {counts:?}"
    );
    assert!(counts.of("LOOKUP") >= 1, "the referee saw nothing");
    let stats = mounted.stats();
    assert!(
        stats.dcache("negative_dentries") <= 1001,
        "{:?}",
        stats.0["dcache"]
    );
    drop(referee);
    mounted.unmount();
}

/// Absent names are asked for once, in `frozen`.
#[test]
fn negative_storm_frozen() {
    need!(Root);
    storm(Setup::mode("frozen"));
}

/// Absent names are asked for once, in `ttl`, while their timeout lasts.
#[test]
fn negative_storm_ttl() {
    need!(Root);
    storm(Setup::mode("ttl").arg("--ttl=600s"));
}

/// An absent name that is asked for 1,000 times reaches the source once at most,
/// and `.nameifs/stats` shows what kept it away.
#[test]
fn absent_name_reaches_the_source_once() {
    need!(Root);
    for mode in ["frozen", "ttl"] {
        let mut setup = Setup::mode(mode);
        if mode == "ttl" {
            setup = setup.arg("--ttl=600s");
        }
        let mounted = setup.mount();
        let _quiet = quiet_machine();
        let root = mounted.path().metadata().expect("the root");
        let now = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .expect("after 1970")
        };
        // The time of a directory that changed just now could hide another change: until
        // then nothing is believed of what is absent.
        let old = || Duration::new(root.ctime() as u64, root.ctime_nsec() as u32) + TICK < now();
        until(Duration::from_secs(5), || old().then_some(())).expect("time passes");
        let before = mounted.stats().source_calls();
        for _ in 0..1000 {
            mounted
                .at("absent")
                .symlink_metadata()
                .expect_err("it is absent");
        }
        let calls = mounted.stats().source_calls() - before;
        assert!(
            calls <= 8,
            "{mode}: {calls} calls to the source for one absent name"
        );
        mounted.unmount();
    }
}

/// In `ttl` a warm walk within the timeout sends no LOOKUP and no GETATTR either.
#[test]
fn warm_walk_in_ttl() {
    need!(Root);
    let setup = Setup::mode("ttl").arg("--ttl=600s");
    let mounted = setup.source(Path::new("/usr/include")).mount();
    let _quiet = quiet_machine();
    for _ in 0..2 {
        walk(&mounted, WALKS[1]);
    }
    let counters = Counters::start(&mounted);
    walk(&mounted, WALKS[1]);
    let kernel = counters.kernel();
    assert_eq!(kernel.of("LOOKUP"), 0, "{kernel:?}");
    assert_eq!(kernel.of("GETATTR"), 0, "{kernel:?}");
    counters.agree();
    drop(counters);
    mounted.unmount();
}

/// Opening the virtual files does not count as walking the source: their names are
/// answered without a call to it.
#[test]
fn virtual_files_do_not_touch_the_source() {
    need!();
    let mounted = Setup::mode("strict").mount();
    mounted.stats();
    let before = mounted.stats().source_calls();
    for _ in 0..10 {
        mounted.stats();
        mounted.slabinfo();
    }
    let calls = mounted.stats().source_calls() - before;
    // Revalidation of the root by the kernel is not theirs.
    assert!(
        calls <= 22,
        "{calls} calls to the source to read virtual files"
    );
    mounted.unmount();
}
