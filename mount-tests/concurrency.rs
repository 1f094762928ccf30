//! Many at once: no error, no name missing or doubled, the counters consistent, and
//! after unmounting nothing in use.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{MODES, Mounted, Setup, kernel_drop_caches, whole_machine};
use crate::need;
use crate::run::{Stop, command, difference, going, run, run_within, sorted_lines, until};
use crate::tree::wide;

const FIND: [&str; 4] = ["find", ".", "-printf", "%i %y %m %n %s %T@ %l %P\\n"];

#[track_caller]
fn check(what: &str, source: &[u8], mount: &[u8]) {
    if source != mount {
        let (a, b) = (sorted_lines(source, b'\n'), sorted_lines(mount, b'\n'));
        if let Some(why) = difference(&a, &b) {
            panic!("{what}: {why}");
        }
    }
}

fn source_listing(mounted: &Mounted) -> Vec<u8> {
    run(mounted.inside(&FIND).current_dir(mounted.source()))
        .clean()
        .stdout
}

/// Two finds at once over cold caches see the source's tree, each of them; then twice
/// more over warm ones.
#[test]
fn two_finds_at_once() {
    need!();
    for mode in MODES {
        let mounted = Setup::mode(mode).source(Path::new("/usr/share")).mount();
        let wanted = source_listing(&mounted);
        for round in 0..3 {
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let found = run(&mut mounted.inside(&FIND)).clean().stdout;
                        check(&format!("{mode}, round {round}"), &wanted, &found);
                    });
                }
            });
        }
        mounted.unmount();
    }
}

/// Eight threads look names up, present and absent ones, in one directory and in
/// many, in different orders; each gets the source's numbers.
#[test]
fn eight_threads_of_lookups() {
    need!();
    const DIRS: usize = 20;
    const NAMES: usize = 100;
    for mode in MODES {
        let mounted = Setup::mode(mode).mount();
        let mut wanted = Vec::new();
        for d in 0..DIRS {
            fs::create_dir(mounted.below(format!("d{d}"))).expect("mkdir");
            for n in 0..NAMES {
                let name = format!("d{d}/n{n}");
                fs::write(mounted.below(&name), "x").expect("write");
                let ino = mounted.below(&name).metadata().expect("stat").ino();
                wanted.push((name, ino));
            }
        }
        thread::scope(|scope| {
            for worker in 0..8_usize {
                let (mounted, wanted) = (&mounted, &wanted);
                scope.spawn(move || {
                    // Steps of their own: coprime to the number of names.
                    let step = [1, 3, 7, 9, 11, 13, 17, 1999][worker];
                    for i in 0..wanted.len() {
                        let (name, ino) = &wanted[i * step % wanted.len()];
                        let stat = mounted.at(name).metadata();
                        let stat = stat.unwrap_or_else(|e| panic!("{mode}: {name}: {e}"));
                        assert_eq!(stat.ino(), *ino, "{mode}: {name}");
                        let absent = mounted.at(format!("{name}-absent")).metadata();
                        let error = absent.expect_err("it is absent").raw_os_error();
                        assert_eq!(error, Some(libc::ENOENT), "{mode}: {name}-absent");
                    }
                });
            }
        });
        let stats = mounted.stats();
        let info = mounted.slabinfo();
        let of = |key| stats.dcache(key);
        assert!(
            of("negative_dentries") <= of("dentries"),
            "{mode}: {:?}",
            stats.0["dcache"]
        );
        assert!(
            of("dentries") <= (DIRS * NAMES * 2 + DIRS + 10) as u64,
            "{mode}: {:?}",
            stats.0["dcache"]
        );
        assert!(
            info["dentry"].active >= of("dentries").saturating_sub(2),
            "{mode}: {info:?}"
        );
        mounted.unmount();
    }
}

/// Readers go on rightly while both caches are dropped again and again, the kernel's
/// and ours; the counters only ever rise.
#[test]
fn readers_while_caches_are_dropped() {
    need!(Root);
    for mode in MODES {
        let mounted = Setup::mode(mode).source(Path::new("/usr/include")).mount();
        let wanted = source_listing(&mounted);
        thread::scope(|scope| {
            let stop = Stop::default();
            let (mounted, wanted) = (&mounted, &wanted);
            for worker in 0..4 {
                let flag = stop.flag();
                scope.spawn(move || {
                    while going(&flag) {
                        let found = run(&mut mounted.inside(&FIND)).clean().stdout;
                        check(&format!("{mode}, walker {worker}"), wanted, &found);
                    }
                });
            }
            let end = Instant::now() + Duration::from_secs(6);
            let mut last = mounted.stats();
            while Instant::now() < end {
                mounted.drop_caches();
                let alone = whole_machine();
                kernel_drop_caches(&alone, 2);
                drop(alone);
                let now = mounted.stats();
                now.requests().since(&last.requests());
                for key in ["hits", "negative_hits", "misses"] {
                    assert!(now.dcache(key) >= last.dcache(key), "{mode}: {key} fell");
                }
                let dcache = &now.0["dcache"];
                assert!(
                    now.dcache("negative_dentries") <= now.dcache("dentries"),
                    "{mode}: {dcache}"
                );
                last = now;
            }
        });
        mounted.unmount();
    }
}

/// Lookups race with FORGET and with unlink and creation below: no error but absence,
/// and no object left at the end.
#[test]
fn lookups_race_with_forget() {
    need!(Root);
    for mode in MODES {
        let mounted = Setup::mode(mode).arg("--ttl=1ms").mount();
        for i in 0..200 {
            fs::write(mounted.below(format!("stays-{i}")), "x").expect("write");
        }
        thread::scope(|scope| {
            let stop = Stop::default();
            let mounted = &mounted;
            for worker in 0..8_usize {
                let flag = stop.flag();
                scope.spawn(move || {
                    let mut i = worker;
                    while going(&flag) {
                        i += 7;
                        let name = format!("stays-{}", i % 200);
                        mounted
                            .at(&name)
                            .metadata()
                            .unwrap_or_else(|e| panic!("{mode}: {name}: {e}"));
                        let goes = mounted.at(format!("goes-{}", i % 50));
                        for error in [goes.metadata().err(), fs::read(&goes).err()]
                            .into_iter()
                            .flatten()
                        {
                            // ESTALE: gone between lookup and open, and again when the
                            // kernel tried once more, which it does once. EIO: its number
                            // was given to another file in between, on which the kernel
                            // gives the old one up with whoever is on the way to it.
                            let absent = [libc::ENOENT, libc::ESTALE, libc::EIO].map(Some);
                            let code = error.raw_os_error();
                            assert!(
                                absent.contains(&code),
                                "{mode}: {code:?}: {}",
                                goes.display()
                            );
                        }
                    }
                });
            }
            let flag = stop.flag();
            scope.spawn(move || {
                let mut i = 0;
                while going(&flag) {
                    i = (i + 1) % 50;
                    let path = mounted.below(format!("goes-{i}"));
                    fs::write(&path, "x").expect("write");
                    fs::remove_file(mounted.below(format!("goes-{}", (i + 25) % 50))).ok();
                }
            });
            let end = Instant::now() + Duration::from_secs(5);
            while Instant::now() < end {
                let alone = whole_machine();
                kernel_drop_caches(&alone, 2);
                drop(alone);
                mounted.drop_caches();
            }
        });
        mounted.unmount();
    }
}

/// Names come and go below while others list in `strict`: what never changes is in
/// every listing exactly once.
#[test]
fn listings_while_names_change() {
    need!();
    let mounted = Setup::mode("strict").mount();
    wide(&mounted.below("d"), 2000);
    let fixed: BTreeSet<_> = fs::read_dir(mounted.below("d"))
        .expect("list")
        .map(|e| e.expect("an entry").file_name())
        .collect();
    thread::scope(|scope| {
        let stop = Stop::default();
        let (mounted, fixed) = (&mounted, &fixed);
        let flag = stop.flag();
        scope.spawn(move || {
            let mut i = 0;
            while going(&flag) {
                i += 1;
                let at = |n: i32| mounted.below(format!("d/moving-{}", n % 100));
                fs::write(at(i), "x").expect("write");
                fs::rename(at(i), at(i + 1)).expect("rename");
                fs::remove_file(at(i + 1)).expect("unlink");
            }
        });
        let listers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    for round in 0..40 {
                        let list = fs::read_dir(mounted.at("d")).expect("list");
                        let mut seen = BTreeSet::new();
                        for entry in list {
                            let name = entry.expect("an entry").file_name();
                            if fixed.contains(&name) {
                                assert!(seen.insert(name.clone()), "round {round}: {name:?} twice");
                            }
                        }
                        assert_eq!(seen.len(), fixed.len(), "round {round}: names are missing");
                    }
                })
            })
            .collect();
        for lister in listers {
            lister.join().expect("a lister");
        }
    });
    mounted.unmount();
}

/// Many open files at once, over a few files and over many: all read right, and none
/// is left open in the daemon.
#[test]
fn many_open_files() {
    need!(Program("prlimit"));
    for passthrough in ["auto", "off"] {
        let setup = Setup::new().arg(format!("--passthrough={passthrough}"));
        let mounted = setup.mount();
        for i in 0..300 {
            fs::write(mounted.below(format!("f-{i}")), i.to_string()).expect("write");
        }
        let before = crate::observe::descriptors(mounted.pid());
        let mut held = Vec::new();
        for round in 0..2 {
            for i in 0..300 {
                let file = fs::File::open(mounted.at(format!("f-{i}")));
                held.push((
                    i,
                    file.unwrap_or_else(|e| panic!("round {round}, f-{i}: {e}")),
                ));
            }
        }
        for (i, file) in held {
            let text = std::io::read_to_string(file).expect("read");
            assert_eq!(text, i.to_string());
        }
        let closed = until(Duration::from_secs(10), || {
            (crate::observe::descriptors(mounted.pid()) <= before + 10).then_some(())
        });
        assert!(
            closed.is_some(),
            "{before} descriptors before, and after closing all files {}",
            crate::observe::descriptors(mounted.pid())
        );
        mounted.unmount();
    }
}

/// Work in the mount while another thread changes the source beneath it, with a single
/// thread to serve requests: notices to the kernel wait for directories that requests
/// hold, and must not be waited for by those.
fn beside_changes(work: &str, change: impl Fn(&Path, usize) + Sync) {
    let mounted = Setup::mode("watch")
        .arg("--threads=1")
        .arg("--ttl=1h")
        .mount();
    for d in ["a", "b"] {
        fs::create_dir(mounted.below(d)).expect("mkdir");
    }
    thread::scope(|scope| {
        let stop = Stop::default();
        let (flag, source, change) = (stop.flag(), mounted.source(), &change);
        scope.spawn(move || {
            for n in (0..).take_while(|_| going(&flag)) {
                change(source, n % 50);
            }
        });
        let mut worker = command(["bash", "-c", work]);
        let done = run_within(worker.current_dir(mounted.path()), Duration::from_secs(120));
        assert!(done.status.success(), "{} {}", done.status, done.err());
    });
    let names = |dir: &Path| {
        let done = run(command(["find", ".", "-printf", "%P %y %i\n"]).current_dir(dir));
        let mut lines: Vec<String> = done.ok().out().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let same = || (names(mounted.path()) == names(mounted.source())).then_some(());
    until(Duration::from_secs(5), same).expect("the mount shows the source");
    mounted.unmount();
}

/// Lookups hold the directory's lock while a notice about it waits for that.
#[test]
fn notices_and_lookups() {
    need!(Root);
    let look = "for i in $(seq 300); do stat a/f$((i % 50)) a/absent$i b/f$((i % 50)); \
                ls -l a b; done >/dev/null 2>&1; true";
    beside_changes(look, |source, n| {
        let path = source.join(format!("{}/f{n}", ["a", "b"][n % 2]));
        let _ = fs::write(&path, "text").and_then(|()| fs::remove_file(&path));
    });
}

/// A rename holds two directories' locks while notices about both wait.
#[test]
fn notices_and_renames() {
    need!(Root);
    let rename = "for i in $(seq 300); do echo $i >a/m; mv a/m b/m; mkdir b/d; mv b/d a/d; \
                  rmdir a/d; mv b/m a/m$((i % 5)) || exit 1; done";
    beside_changes(rename, |source, n| {
        let (from, to) = (
            source.join(format!("a/s{n}")),
            source.join(format!("b/s{n}")),
        );
        let _ = fs::write(&from, "text").and_then(|()| fs::rename(&from, &to));
        let _ = fs::remove_file(&to);
    });
}

/// Changes made by way of the mount come back as events, and hold up nobody.
#[test]
fn own_changes_come_back() {
    need!(Root);
    let own = "for i in $(seq 400); do echo $i >a/o; ln a/o b/o; chmod 600 b/o; mv a/o a/p; \
               rm a/p b/o; mkdir a/d; rmdir a/d || exit 1; done";
    beside_changes(own, |_, _| thread::yield_now());
}
