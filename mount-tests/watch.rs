//! `--coherence=watch`: nothing is asked while nothing changes, and what changes
//! beneath shows at once, also when events are lost or not every directory can be
//! watched.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Mounted, Setup, quiet_machine};
use crate::need;
use crate::observe::Referee;
use crate::run::{command, run, run_within, until};

/// What a change may take to show at the very most.
const BOUND: Duration = Duration::from_secs(5);

/// A tree of `dirs` directories with ten files each.
fn plant(top: &Path, dirs: usize) {
    for d in 0..dirs {
        let dir = top.join(format!("d{d:03}"));
        fs::create_dir(&dir).expect("mkdir");
        for f in 0..10 {
            fs::write(dir.join(format!("f{f}")), format!("{d} {f}\n")).expect("write");
        }
    }
}

/// Everything that stat tells of a tree, sorted. Sizes of directories are the
/// filesystem's own affair but must be equal all the same.
fn picture(top: &Path) -> Vec<u8> {
    let format = "%P %i %y %m %n %U %G %s %T@ %l\n";
    let done = run_within(
        command(["find", ".", "-mindepth", "1", "-printf", format]).current_dir(top),
        Duration::from_secs(120),
    );
    // A name that goes while it is looked at is no error here.
    let mut lines: Vec<&[u8]> = done.stdout.split(|&b| b == b'\n').collect();
    lines.sort_unstable();
    lines.join(&b'\n')
}

/// Waits until the mount shows what the source holds; how long that took.
#[track_caller]
fn settles(mounted: &Mounted, bound: Duration) -> Duration {
    let start = Instant::now();
    let truth = picture(mounted.source());
    let same = until(bound, || (picture(mounted.path()) == truth).then_some(()));
    if same.is_none() {
        let (mount, source) = (picture(mounted.path()), picture(mounted.source()));
        let of = |text: &[u8]| {
            String::from_utf8_lossy(text)
                .lines()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let (mount, source) = (of(&mount), of(&source));
        let only = |a: &[String], b: &[String]| {
            a.iter()
                .filter(|l| !b.contains(l))
                .take(5)
                .cloned()
                .collect::<Vec<_>>()
        };
        panic!(
            "still different after {bound:?}:\nonly in the mount {:#?}\nonly in the source {:#?}",
            only(&mount, &source),
            only(&source, &mount)
        );
    }
    start.elapsed()
}

fn walk(mounted: &Mounted) {
    run(command(["find", ".", "-printf", "%s\n"]).current_dir(mounted.path())).ok();
}

fn limit(mounted: &Mounted, key: &str) -> u64 {
    mounted.stats().0["limits"][key].as_u64().expect("a number")
}

fn coherence(mounted: &Mounted, key: &str) -> u64 {
    mounted.stats().0["coherence"][key]
        .as_u64()
        .expect("a number")
}

/// A warm walk and a storm of absent names send nothing; a change beneath costs one
/// directory's worth; then they send nothing again.
#[test]
fn nothing_is_asked_before_a_change_nor_after() {
    need!(Root);
    let mounted = Setup::mode("watch").mount();
    plant(mounted.source(), 30);
    let absent = |mounted: &Mounted| {
        for n in 0..50 {
            let name = format!("d{:03}/absent{n}", n % 30);
            assert!(fs::symlink_metadata(mounted.at(name)).is_err());
        }
    };
    let _quiet = quiet_machine();
    // The kernel renews a directory's time of access after each reading of the daemon.
    for _ in 0..3 {
        walk(&mounted);
        absent(&mounted);
    }
    let referee = Referee::start(mounted.minor());
    let warm = referee.undisturbed(|| {
        walk(&mounted);
        absent(&mounted);
    });
    assert_eq!(warm.total(), 0, "warm: {warm:?}");

    referee.reset();
    fs::write(mounted.below("d007/absent7"), "now it is here").expect("write");
    until(BOUND, || fs::metadata(mounted.at("d007/absent7")).ok()).expect("it shows");
    walk(&mounted);
    // What is told after the first look still arrives.
    until(BOUND, || (limit(&mounted, "notices") == 0).then_some(())).expect("all is told");
    for _ in 0..2 {
        walk(&mounted);
    }
    let cost = referee.count();
    let lookups = cost.of("LOOKUP");
    assert!(lookups <= 40, "one directory's worth, not {cost:?}");
    assert!(
        cost.of("READDIR") + cost.of("READDIRPLUS") <= 12,
        "not {cost:?}"
    );

    for _ in 0..2 {
        walk(&mounted);
        assert!(fs::symlink_metadata(mounted.at("d003/absent3")).is_err());
    }
    let warm = referee.undisturbed(|| walk(&mounted));
    assert_eq!(warm.total(), 0, "warm again: {warm:?}");
    drop(referee);
    mounted.unmount();
}

/// Each kind of change shows long before any ttl; how long it takes is printed.
#[test]
fn each_kind_of_change_shows_soon() {
    need!();
    let mounted = Setup::mode("watch").arg("--ttl=1h").mount();
    let (below, at) = (mounted.source().to_owned(), mounted.path().to_owned());
    fs::create_dir(below.join("d")).expect("mkdir");
    for name in [
        "d/chmod", "d/grow", "d/cut", "d/link", "d/away", "d/in", "d/over", "d/gone",
    ] {
        fs::write(below.join(name), "0123456789").expect("write");
    }
    fs::write(below.join("from"), "from").expect("write");
    fs::create_dir(below.join("d/rmdir")).expect("mkdir");
    let exists = |p: &str| fs::symlink_metadata(at.join(p)).is_ok();
    let meta = |p: &str| fs::metadata(at.join(p)).expect("it is there");
    walk(&mounted);
    assert!(!exists("d/new") && !exists("d/newdir") && !exists("d/renamed") && !exists("d/link2"));

    type Step<'a> = (&'a str, Box<dyn Fn() + 'a>, Box<dyn Fn() -> bool + 'a>);
    use std::os::unix::fs::MetadataExt;
    let p = |name: &str| below.join(name);
    let steps: Vec<Step<'_>> = vec![
        (
            "create",
            Box::new(|| fs::write(p("d/new"), "x").expect("write")),
            Box::new(|| exists("d/new") && fs::read(at.join("d/new")).is_ok_and(|t| t == b"x")),
        ),
        (
            "unlink",
            Box::new(|| fs::remove_file(p("d/gone")).expect("rm")),
            Box::new(|| !exists("d/gone")),
        ),
        (
            "rename in a directory",
            Box::new(|| fs::rename(p("d/in"), p("d/renamed")).expect("mv")),
            Box::new(|| !exists("d/in") && exists("d/renamed")),
        ),
        (
            "rename to another directory",
            Box::new(|| fs::rename(p("d/away"), p("away")).expect("mv")),
            Box::new(|| !exists("d/away") && exists("away")),
        ),
        (
            "rename over a file",
            Box::new(|| fs::rename(p("from"), p("d/over")).expect("mv")),
            Box::new(|| !exists("from") && fs::read(at.join("d/over")).is_ok_and(|t| t == b"from")),
        ),
        (
            "mkdir",
            Box::new(|| fs::create_dir(p("d/newdir")).expect("mkdir")),
            Box::new(|| exists("d/newdir") && meta("d").nlink() == 4),
        ),
        (
            "rmdir",
            Box::new(|| fs::remove_dir(p("d/rmdir")).expect("rmdir")),
            Box::new(|| !exists("d/rmdir") && meta("d").nlink() == 3),
        ),
        (
            "chmod",
            Box::new(|| {
                fs::set_permissions(p("d/chmod"), fs::Permissions::from_mode(0o600))
                    .expect("chmod");
            }),
            Box::new(|| meta("d/chmod").mode() & 0o777 == 0o600),
        ),
        (
            "append",
            Box::new(|| {
                use std::io::Write;
                let file = fs::OpenOptions::new().append(true).open(p("d/grow"));
                file.expect("open").write_all(b"more").expect("write");
            }),
            Box::new(|| meta("d/grow").len() == 14),
        ),
        (
            "truncate",
            Box::new(|| {
                let file = fs::OpenOptions::new()
                    .write(true)
                    .open(p("d/cut"))
                    .expect("open");
                file.set_len(3).expect("truncate");
            }),
            Box::new(|| meta("d/cut").len() == 3),
        ),
        (
            "link",
            Box::new(|| fs::hard_link(p("d/link"), p("d/link2")).expect("ln")),
            Box::new(|| exists("d/link2") && meta("d/link").nlink() == 2),
        ),
    ];
    for (kind, edit, shows) in &steps {
        let before = shows();
        edit();
        let start = Instant::now();
        until(BOUND, || shows().then_some(())).unwrap_or_else(|| panic!("{kind} does not show"));
        assert!(!before, "{kind}: showed before it was made");
        println!("{kind:30} {:>9.3} ms", start.elapsed().as_secs_f64() * 1e3);
    }
    drop(steps);
    mounted.unmount();
}

/// One of the processes that change the source at random.
fn changer(source: &Path, seed: u32, changes: u32) -> Child {
    const SCRIPT: &str = r#"
import os, random, sys
top, seed, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
r = random.Random(seed)
dirs = [os.path.join(top, "d%03d" % i) for i in range(30)]
def name(): return os.path.join(r.choice(dirs), "f%d" % r.randrange(14))
def sub(): return os.path.join(r.choice(dirs), "s%d" % r.randrange(3))
def write(p, mode):
    with open(p, mode) as f: f.write("%d\n" % r.randrange(10**6))
ops = [
    lambda: write(name(), "w"), lambda: write(name(), "a"), lambda: os.unlink(name()),
    lambda: os.rename(name(), name()), lambda: os.chmod(name(), r.choice([0o600, 0o644, 0o755])),
    lambda: os.link(name(), name()), lambda: os.symlink("t%d" % r.randrange(99), name()),
    lambda: os.truncate(name(), r.randrange(20)), lambda: os.mkdir(sub()), lambda: os.rmdir(sub()),
    lambda: os.rename(sub(), sub()), lambda: write(os.path.join(sub(), "x"), "w"),
    lambda: os.unlink(os.path.join(sub(), "x")),
    lambda: os.utime(name(), ns=(r.randrange(10**18), r.randrange(10**18)), follow_symlinks=False),
]
for i in range(n):
    try: r.choice(ops)()
    except OSError: pass
"#;
    let args = [seed.to_string(), changes.to_string()];
    command(["python3", "-c", SCRIPT])
        .arg(source)
        .args(args)
        .stdin(Stdio::null())
        .spawn()
        .expect("python3 starts")
}

/// Two processes change the source at random while two others walk the mount.
fn storm(mounted: &Mounted, changes: u32) {
    plant(mounted.source(), 30);
    walk(mounted);
    let mut changers = [1, 2].map(|seed| changer(mounted.source(), seed, changes));
    let busy = |changers: &mut [Child; 2]| {
        changers
            .iter_mut()
            .any(|c| c.try_wait().expect("it is ours").is_none())
    };
    thread::scope(|scope| {
        let stop = crate::run::Stop::default();
        for _ in 0..2 {
            let flag = stop.flag();
            scope.spawn(move || {
                while crate::run::going(&flag) {
                    picture(mounted.path());
                }
            });
        }
        until(Duration::from_secs(600), || {
            (!busy(&mut changers)).then_some(())
        })
        .expect("they end");
    });
    for child in &mut changers {
        assert!(child.wait().expect("it is ours").success());
    }
}

/// After a storm of changes, walked meanwhile, the mount equals the source within a
/// second, give or take the machine: names, attributes, targets.
#[test]
fn a_storm_of_changes_leaves_nothing_stale() {
    need!(Root);
    let mounted = Setup::mode("watch")
        .arg("--ttl=1h")
        .arg("--attr-ttl=1s")
        .lifetime(Duration::from_secs(900))
        .mount();
    storm(&mounted, 20_000);
    let took = settles(&mounted, BOUND);
    println!("settled in {took:?}");
    run(command(["rsync", "-naHAXi", "--delete"])
        .arg(mounted.source().join(""))
        .arg(mounted.path().join("")))
    .ok();
    mounted.unmount();
}

/// The same when events are lost: everything is looked up anew, and that is counted.
#[test]
fn lost_events_leave_nothing_stale() {
    need!(Root);
    // A queue is as long as the sysctl was when it was made; others wait meanwhile.
    let path = "/proc/sys/fs/inotify/max_queued_events";
    let before = fs::read_to_string(path).expect("a number");
    fs::write(path, "16").expect("root may");
    let mounted = Setup::mode("watch")
        .arg("--ttl=1h")
        .arg("--attr-ttl=1s")
        .mount();
    fs::write(path, before.trim()).expect("root may");
    storm(&mounted, 10_000);
    settles(&mounted, BOUND);
    // And once more with nobody there to take the events.
    mounted.signal(Signal::STOP);
    for n in 0..100 {
        fs::write(mounted.source().join(format!("d000/new{n}")), "new").expect("write");
    }
    mounted.signal(Signal::CONT);
    settles(&mounted, BOUND);
    assert!(
        coherence(&mounted, "overflows") > 0,
        "the queue was never full"
    );
    mounted.unmount();
}

/// With fewer watches than directories the others are believed for the ttl, which is
/// counted and said once in the log.
#[test]
fn too_few_watches_leave_nothing_stale() {
    need!(Root);
    let mounted = Setup::mode("watch")
        .arg("--max-watches=10")
        .arg("--ttl=300ms")
        .mount();
    storm(&mounted, 10_000);
    settles(&mounted, BOUND);
    assert!(coherence(&mounted, "unwatched") > 0);
    assert!(limit(&mounted, "watches") <= 10);
    assert_eq!(
        mounted
            .log()
            .matches("not every directory can be watched")
            .count(),
        1
    );
    mounted.unmount();
}

/// `auto` watches a local source, and says so.
#[test]
fn auto_watches_a_local_source() {
    need!();
    let mounted = Setup::new().mount();
    let stats = mounted.stats();
    assert_eq!(stats.0["coherence"]["mode"], "watch");
    assert_eq!(stats.0["coherence"]["asked"], "auto");
    mounted.unmount();
}

/// What this mount changes itself is no news to it: the kernel asks for a removed name
/// once, and the cache knows the answer.
#[test]
fn own_changes_are_no_news() {
    need!();
    let mounted = Setup::mode("watch").mount();
    fs::create_dir(mounted.below("d")).expect("mkdir");
    walk(&mounted);
    for n in 0..100 {
        fs::create_dir(mounted.at(format!("d/n{n}"))).expect("mkdir");
    }
    for n in 0..100 {
        fs::rename(mounted.at(format!("d/n{n}")), mounted.at(format!("d/m{n}"))).expect("mv");
    }
    for n in 0..100 {
        fs::remove_dir(mounted.at(format!("d/m{n}"))).expect("rmdir");
    }
    until(BOUND, || {
        (coherence(&mounted, "events") >= 400).then_some(())
    })
    .expect("events come");
    let before = mounted.stats();
    for n in 0..100 {
        assert!(fs::symlink_metadata(mounted.at(format!("d/m{n}"))).is_err());
        assert!(fs::symlink_metadata(mounted.at(format!("d/n{n}"))).is_err());
    }
    let after = mounted.stats();
    assert_eq!(after.dcache("misses"), before.dcache("misses"));
    assert!(after.dcache("negative_hits") >= before.dcache("negative_hits") + 200);
    mounted.unmount();
}
