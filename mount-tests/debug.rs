//! What the slab caches can be told at mount: where name buffers come from, debug
//! modes, injected failures; and what `.nameifs/slab/` shows of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::harness::{Mounted, Setup};
use crate::need;
use crate::run::{command, run, run_within};
use crate::tree;

/// Every name with what it is, as the source has it or as the mount does.
fn names(top: &Path) -> String {
    let format = "%P %i %y %m %n %s %l\n";
    let done = run(command(["find", ".", "-mindepth", "1", "-printf", format]).current_dir(top));
    let text = done.ok().out();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// An attribute of a cache.
fn attribute(mounted: &Mounted, cache: &str, name: &str) -> String {
    let path = mounted.at(format!(".nameifs/slab/{cache}/{name}"));
    let text = fs::read_to_string(&path);
    text.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .trim_end()
        .to_owned()
}

fn number(mounted: &Mounted, cache: &str, name: &str) -> u64 {
    let text = attribute(mounted, cache, name);
    text.parse().unwrap_or_else(|_| panic!("{name}: {text:?}"))
}

/// Wherever its buffers come from, and however dentries begin, the mount is the same;
/// and `getname_cache` tells which it is.
#[test]
fn every_supply_of_name_buffers() {
    need!();
    for supply in ["page", "malloc", "slab", "magazine"] {
        for init in ["fields", "zero"] {
            let mounted = Setup::mode("strict")
                .arg(format!("--getname={supply}"))
                .arg(format!("--dentry-init={init}"))
                .mount();
            tree::wide(&mounted.below("d"), 300);
            assert_eq!(names(mounted.path()), names(mounted.source()), "{supply}");
            let row = mounted.slabinfo()["getname_cache"].clone();
            let from_cache = matches!(supply, "slab" | "magazine");
            assert_eq!(row.total > 0, from_cache, "{supply}: {row:?}");
            let magazines = number(&mounted, "getname_cache", "cpu_partial") > 0;
            assert_eq!(magazines, supply == "magazine", "{supply}");
            mounted.unmount();
        }
    }
}

/// `.nameifs/slab` has a directory for each cache of `.slabinfo`, with the attributes
/// of /sys/kernel/slab, and their numbers are those of `.slabinfo`.
#[test]
fn attributes_are_those_of_slabinfo() {
    need!();
    let mounted = Setup::mode("ttl").arg("--ttl=600s").mount();
    tree::wide(&mounted.below("d"), 500);
    names(mounted.path());
    let listed: BTreeSet<String> = fs::read_dir(mounted.at(".nameifs/slab"))
        .expect("a directory")
        .map(|e| {
            e.expect("an entry")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    let info = mounted.slabinfo();
    assert_eq!(listed, info.keys().cloned().collect());
    for (cache, row) in &info {
        assert_eq!(number(&mounted, cache, "slab_size"), row.size, "{cache}");
        assert_eq!(number(&mounted, cache, "aliases"), 0);
    }
    assert_eq!(
        number(&mounted, "dentry", "objects"),
        mounted.slabinfo()["dentry"].active
    );
    assert!(number(&mounted, "dentry", "objects") >= 500);
    for name in ["object_size", "objs_per_slab", "total_objects", "slabs"] {
        assert!(number(&mounted, "inode", name) > 0, "{name}");
    }
    for name in ["red_zone", "poison", "store_user", "sanity_checks"] {
        assert_eq!(number(&mounted, "inode", name), 0, "{name}");
    }
    let dir = mounted.at(".nameifs/slab/dentry");
    let find = run(command(["find", ".", "-type", "f", "-perm", "0444"]).current_dir(&dir));
    assert!(find.ok().out().lines().count() > 10);
    for trigger in ["shrink", "validate"] {
        fs::write(dir.join(trigger), "1\n").unwrap_or_else(|e| panic!("{trigger}: {e}"));
        let wrong = fs::write(dir.join(trigger), "2\n").expect_err("only 1 is understood");
        assert_eq!(wrong.raw_os_error(), Some(libc::EINVAL));
    }
    assert!(fs::write(dir.join("objects"), "1").is_err());
    assert!(fs::symlink_metadata(dir.join("nothing")).is_err());
    assert!(fs::symlink_metadata(mounted.at(".nameifs/slab/nothing")).is_err());
    mounted.unmount();
}

/// Under all debug modes everything works, nothing is reported, and U shows who
/// allocated.
#[test]
fn all_debug_modes_find_nothing() {
    need!();
    let mounted = Setup::mode("ttl")
        .arg("--slab-debug=FZPU")
        .arg("--slab-debug-action=abort")
        .mount();
    tree::wide(&mounted.below("d"), 500);
    assert_eq!(names(mounted.path()), names(mounted.source()));
    fs::write(mounted.at("new"), "text").expect("write");
    fs::rename(mounted.at("new"), mounted.at("newer")).expect("rename");
    assert_eq!(fs::read(mounted.at("newer")).expect("read"), b"text");
    for cache in ["dentry", "inode", "getname_cache"] {
        for mode in ["red_zone", "poison", "store_user", "sanity_checks"] {
            assert_eq!(number(&mounted, cache, mode), 1, "{cache} {mode}");
        }
        fs::write(mounted.at(format!(".nameifs/slab/{cache}/validate")), "1").expect("validate");
    }
    let calls = attribute(&mounted, "dentry", "alloc_calls");
    assert!(calls.contains("dcache"), "who allocated dentries: {calls}");
    let calls = attribute(&mounted, "getname_cache", "free_calls");
    let held = attribute(&mounted, "getname_cache", "alloc_calls");
    assert!(
        calls.contains("src/") || held.contains("src/"),
        "{calls} {held}"
    );
    mounted.unmount();
}

/// Modes and caches can be chosen.
#[test]
fn debug_modes_are_chosen_by_cache() {
    need!();
    let mounted = Setup::mode("ttl")
        .arg("--slab-debug=Z,dentry;P,get*")
        .mount();
    let on = |cache: &str, mode: &str| number(&mounted, cache, mode) == 1;
    assert!(on("dentry", "red_zone") && !on("dentry", "poison"));
    assert!(on("getname_cache", "poison") && !on("getname_cache", "red_zone"));
    assert!(!on("inode", "red_zone") && !on("inode", "poison"));
    mounted.unmount();
}

/// Allocations that fail end in ENOMEM for a request or in a name that is not cached:
/// never in a wrong tree, a leak or the end of the daemon.
#[test]
fn failed_allocations_are_enomem() {
    need!();
    for cache in ["getname_cache", "dentry", "inode", "filp", "dname-64"] {
        let mounted = Setup::mode("ttl")
            .arg(format!("--fail-slab={cache}:every=7,times=200"))
            .mount();
        tree::wide(&mounted.below("d"), 100);
        fs::write(
            mounted
                .below("d/")
                .join("a-name-that-is-too-long-for-a-dentry"),
            "x",
        )
        .expect("write");
        let truth = names(mounted.source());
        let mut refused = 0;
        // Each walk meets some of the failures, until there are no more.
        let whole = (0..300).any(|_| {
            let format = "%P %i %y %m %n %s %l\n";
            let mut find = command(["find", ".", "-mindepth", "1", "-printf", format]);
            let done = run_within(find.current_dir(mounted.path()), Duration::from_secs(60));
            let (text, said) = (done.out(), done.err());
            for line in said.lines() {
                assert!(line.contains("Cannot allocate memory"), "{cache}: {line}");
            }
            for line in text.lines() {
                assert!(truth.lines().any(|t| t == line), "{cache}: {line}");
            }
            for name in ["d", "absent", "d/absent"] {
                let found = fs::metadata(mounted.at(name));
                let errno = found.err().and_then(|e| e.raw_os_error());
                refused += usize::from(errno == Some(libc::ENOMEM));
                assert!(
                    matches!(errno, None | Some(libc::ENOENT | libc::ENOMEM)),
                    "{cache}: {errno:?}"
                );
            }
            for _ in 0..3 {
                if let Err(e) = fs::read(mounted.at("d/a-name-that-is-too-long-for-a-dentry")) {
                    assert_eq!(e.raw_os_error(), Some(libc::ENOMEM), "{cache}");
                    refused += 1;
                }
            }
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            refused += said.lines().count();
            said.is_empty() && lines.join("\n") == truth && refused > 0 || refused > 200
        });
        let must = matches!(cache, "getname_cache" | "filp");
        assert!(whole || !must, "{cache}: {refused} times ENOMEM");
        assert!(refused > 0 || !must, "{cache}: nothing ever failed");
        mounted.unmount();
    }
}

/// What cannot be understood is said in one line.
#[test]
fn wrong_values_are_misuse() {
    need!();
    let place = crate::place::Place::new();
    for (option, word) in [
        ("--getname=heap", "page, malloc, slab, magazine"),
        ("--dentry-init=ones", "fields, zero"),
        ("--slab-debug=Q", "F, Z, P and U"),
        ("--slab-debug-action=stop", "abort"),
        ("--fail-slab=dentry:every=0", "every=N"),
    ] {
        let mut cmd = command([env!("CARGO_BIN_EXE_nameifs"), "mount", option]);
        cmd.arg(place.path()).arg(place.path());
        let done = run_within(&mut cmd, Duration::from_secs(20));
        assert_eq!(done.status.code(), Some(2), "{option}: {}", done.err());
        assert_eq!(done.err().trim_end().lines().count(), 1, "{}", done.err());
        assert!(done.err().contains(word), "{option}: {}", done.err());
    }
}
