//! Nothing is unbounded: descriptors, memory, cached names, the kernel's references.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::harness::{MODES, Mounted, Setup, kernel_drop_caches, whole_machine};
use crate::need;
use crate::observe::{descriptors, resident};
use crate::run::{run, until};
use crate::tree;

const MIB: u64 = 1 << 20;

/// Everything that find shows, and how many names.
fn walk(mounted: &Mounted) -> usize {
    let words = ["find", ".", "-printf", "%i %s %l %p\\n"];
    run(&mut mounted.inside(&words))
        .clean()
        .stdout
        .iter()
        .filter(|b| **b == b'\n')
        .count()
}

fn drop_all(mounted: &Mounted) {
    let alone = whole_machine();
    kernel_drop_caches(&alone, 3);
    mounted.drop_caches();
    kernel_drop_caches(&alone, 3);
    mounted.drop_caches();
}

/// A hundred thousand names and more are walked with few descriptors: no EMFILE, and
/// the limit is not even neared where it is high.
#[test]
fn descriptors_are_bounded() {
    need!(Program("prlimit"));
    for mode in ["ttl", "strict"] {
        let setup = Setup::mode(mode)
            .wrapped(&["prlimit", "--nofile=128:128"])
            .foreground(true);
        let mounted = setup.source(Path::new("/usr")).mount();
        let source = run(crate::run::command(["find", "/usr", "-xdev"]).current_dir("/")).clean();
        let names = source.stdout.iter().filter(|b| **b == b'\n').count();
        assert_eq!(walk(&mounted), names, "{mode}");
        assert!(descriptors(mounted.pid()) <= 128);
        mounted.unmount();
    }
    let mounted = Setup::mode("ttl").source(Path::new("/usr")).mount();
    walk(&mounted);
    let open = descriptors(mounted.pid());
    assert!(open < 1000, "{open} descriptors after a walk of /usr");
    mounted.unmount();
}

/// Descriptors do not creep: after rounds of reading and dropping there are as many
/// as after the first.
#[test]
fn descriptors_do_not_creep() {
    need!(Root);
    for mode in MODES {
        let mounted = Setup::mode(mode)
            .source(Path::new("/usr/include/linux"))
            .mount();
        let round = || {
            run(&mut mounted.inside(&["bash", "-c", "find . -type f -exec cat {} + >/dev/null"]))
                .clean();
            drop_all(&mounted);
            descriptors(mounted.pid())
        };
        let first = round();
        let last = (0..5).map(|_| round()).min().expect("rounds");
        assert!(
            last <= first + 4,
            "{mode}: {first} descriptors, then {last}"
        );
        mounted.unmount();
    }
}

/// What the kernel forgets is forgotten: after a walk and dropping the caches, the
/// dentries, the inodes and the memory are given back.
#[test]
fn forgotten_names_are_freed() {
    need!(Root);
    for mode in MODES {
        let mounted = Setup::mode(mode).source(Path::new("/usr")).mount();
        // The first rounds pay for what stays: threads, tables, the allocator's own.
        walk(&mounted);
        drop_all(&mounted);
        let start = resident(mounted.pid());
        let names = walk(&mounted) as u64;
        let (full, info) = (resident(mounted.pid()), mounted.slabinfo());
        assert!(
            info["dentry"].active > names / 2 || mode == "strict",
            "{mode}: {info:?}"
        );
        // The kernel forgets in its own time.
        let gone = || {
            drop_all(&mounted);
            let (stats, info) = (mounted.stats(), mounted.slabinfo());
            (stats.dcache("dentries") < 100 && info["inode"].active < 100).then_some(stats)
        };
        let Some(stats) = until(Duration::from_secs(30), gone) else {
            panic!(
                "{mode}: {:?} {:?}",
                mounted.stats().0["dcache"],
                mounted.slabinfo()
            );
        };
        assert!(stats.requests().of("FORGET") + stats.requests().of("BATCH_FORGET") > 0);
        let end = resident(mounted.pid());
        let limit = start + start / 4 + 4 * MIB;
        assert!(
            end <= limit,
            "{mode}: {start} bytes, {full} when full, {end} after dropping"
        );
        mounted.unmount();
    }
}

/// The budget holds: with a small one all of /usr is walked rightly, and the caches
/// stay within it.
#[test]
fn cache_size_is_kept() {
    need!(Root);
    for mode in MODES {
        let setup = Setup::mode(mode)
            .arg("--cache-size=4M")
            .source(Path::new("/usr"));
        let mounted = setup.mount();
        let before = resident(mounted.pid());
        let names = walk(&mounted);
        // What the kernel still refers to cannot be dropped; it is asked to let go.
        let within = until(Duration::from_secs(20), || {
            (mounted.stats().dcache("bytes") <= 4 * MIB).then_some(())
        });
        assert!(
            within.is_some(),
            "{mode}: {:?}",
            mounted.stats().0["dcache"]
        );
        assert_eq!(
            walk(&mounted),
            names,
            "{mode}: another walk finds something else"
        );
        let grown = resident(mounted.pid()).saturating_sub(before);
        assert!(
            grown < 64 * MIB,
            "{mode}: {grown} bytes more with a budget of 4 MiB"
        );
        mounted.unmount();
    }
}

/// Absent names do not pile up: hundreds of thousands of different ones stay within
/// the budget, are counted, and the newest are still known.
#[test]
fn negatives_are_bounded() {
    need!();
    for mode in ["frozen", "ttl"] {
        let mounted = Setup::mode(mode)
            .arg("--cache-size=4M")
            .arg("--ttl=600s")
            .mount();
        for i in 0..200_000 {
            mounted
                .at(format!("absent-{i}"))
                .symlink_metadata()
                .expect_err("it is absent");
        }
        let within = until(Duration::from_secs(20), || {
            (mounted.stats().dcache("bytes") <= 4 * MIB).then_some(())
        });
        let dcache = mounted.stats().0["dcache"].clone();
        assert!(within.is_some(), "{mode}: {dcache}");
        assert!(
            mounted.stats().dcache("negative_dentries") < 150_000,
            "{mode}: {dcache}"
        );
        let grown = resident(mounted.pid());
        assert!(grown < 128 * MIB, "{mode}: {grown} bytes");
        mounted.unmount();
    }
}

/// A directory of a hundred thousand names is listed again and again without the
/// daemon growing.
#[test]
fn listings_do_not_pile_up() {
    need!(Root);
    let tree = tree::nasty();
    for mode in ["strict", "ttl"] {
        let mounted = Setup::mode(mode)
            .arg("--ttl=10ms")
            .source(&tree.wide())
            .mount();
        let round = || {
            for _ in 0..3 {
                assert_eq!(
                    fs::read_dir(mounted.path()).expect("list").count(),
                    tree::WIDE
                );
            }
            drop_all(&mounted);
            resident(mounted.pid())
        };
        let first = round();
        let last = (0..4).map(|_| round()).min().expect("rounds");
        assert!(
            last <= first + first / 4 + 4 * MIB,
            "{mode}: {first} bytes, then {last}"
        );
        mounted.unmount();
    }
}
