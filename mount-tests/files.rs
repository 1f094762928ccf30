//! Data and figures: files whose size is no guide, other filesystems as sources,
//! statfs, direct and mapped reading.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::harness::{MODES, Place, Setup, kernel_drop_caches, whole_machine};
use crate::need;
use crate::observe::Aside;
use crate::run::{Stop, command, going, run};
use crate::tree;

/// Files of size 0 that have content, as in /proc: they read as on the source.
#[test]
fn proc_as_a_source() {
    need!();
    for mode in MODES {
        let mounted = Setup::mode(mode).source(Path::new("/proc")).mount();
        for name in [
            "version",
            "cmdline",
            "filesystems",
            "sys/kernel/ostype",
            "sys/fs/file-max",
        ] {
            let wanted = fs::read(Path::new("/proc").join(name)).expect("read");
            assert!(!wanted.is_empty());
            for _ in 0..2 {
                let found = fs::read(mounted.at(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!(found, wanted, "{mode}: {name}");
            }
        }
        let done = run(&mut mounted.inside(&["cat", "version"])).clean();
        assert_eq!(done.stdout, fs::read("/proc/version").expect("read"));
        mounted.unmount();
    }
}

/// Files whose size is larger than what they hold, as in /sys.
#[test]
fn sys_as_a_source() {
    need!();
    let source = Path::new("/sys/kernel");
    for mode in MODES {
        let mounted = Setup::mode(mode).source(source).mount();
        for name in ["mm/transparent_hugepage/enabled", "uevent_seqnum", "fscaps"] {
            let Ok(wanted) = fs::read(source.join(name)) else {
                continue;
            };
            let found = fs::read(mounted.at(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(found, wanted, "{mode}: {name}");
        }
        mounted.unmount();
    }
}

/// Figures of statfs(2) that do not move by themselves.
fn figures(path: &Path) -> (u64, u64, u64, u64, u64, u64, u64) {
    let f = rustix::fs::statvfs(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    (
        f.f_bsize,
        f.f_frsize,
        f.f_blocks,
        f.f_bavail,
        f.f_files,
        f.f_ffree,
        f.f_namemax,
    )
}

/// `statfs` shows the source's figures, and those of a filesystem below it there.
#[test]
fn statfs() {
    need!(Root);
    let place = Place::new();
    let source = Aside::mount("tmpfs", &place.dir("tmpfs"));
    let below = Aside::mount("ramfs", &place.dir("tmpfs/other"));
    let sub = place.dir("tmpfs/sub");
    run(command(["mount", "-t", "tmpfs", "-o", "size=3M,nr_inodes=77", "none"]).arg(&sub)).clean();
    fs::write(sub.join("f"), vec![1; 1 << 20]).expect("write");
    for mode in MODES {
        let mounted = Setup::mode(mode)
            .source(&place.path().join("tmpfs"))
            .mount();
        for name in ["", "other", "sub", "sub/f"] {
            let (wanted, found) = (place.path().join("tmpfs").join(name), mounted.at(name));
            assert_eq!(figures(&found), figures(&wanted), "{mode}: {name:?}");
        }
        let full = fs::write(sub.join("more"), vec![1; 1 << 20]);
        full.expect("write");
        assert_eq!(
            figures(&mounted.at("sub")),
            figures(&sub),
            "{mode}: after a write"
        );
        fs::remove_file(sub.join("more")).expect("unlink");
        mounted.unmount();
    }
    run(command(["umount"]).arg(&sub)).clean();
    drop((below, source));
}

/// Direct reads work where the source takes them, at any aligned place.
#[test]
fn direct_reads() {
    need!();
    for passthrough in ["auto", "off"] {
        let mounted = Setup::new()
            .arg(format!("--passthrough={passthrough}"))
            .mount();
        fs::write(mounted.below("f"), tree::pattern(1 << 20)).expect("write");
        let script = "for s in 0 1 100 255; do dd if=f bs=4096 skip=$s count=1 iflag=direct status=none; done | sha256sum";
        let ask = |dir: &Path| {
            run(crate::run::shell::<&str>(script, &[]).current_dir(dir))
                .clean()
                .out()
        };
        assert_eq!(
            ask(mounted.path()),
            ask(mounted.source()),
            "passthrough {passthrough}"
        );
        mounted.unmount();
    }
}

/// Programs and shared libraries run from the mount: mapped reading.
#[test]
fn programs_run_from_the_mount() {
    need!();
    for (mode, passthrough) in [
        ("ttl", "auto"),
        ("strict", "off"),
        ("frozen", "auto"),
        ("ttl", "off"),
    ] {
        let setup = Setup::mode(mode).arg(format!("--passthrough={passthrough}"));
        let mounted = setup.source(Path::new("/usr")).mount();
        let script = "libs=$(dirname \"$(find lib -name 'libc.so.6' | head -1)\"); \
                      LD_LIBRARY_PATH=$PWD/$libs ./bin/sha256sum bin/ls | cut -c-64; \
                      LD_LIBRARY_PATH=$PWD/$libs ./bin/env true; \
                      LD_LIBRARY_PATH=$PWD/$libs ./bin/cat /proc/self/maps | grep -c \"$PWD\"";
        let done = run(&mut mounted.inside(&["bash", "-c", script]))
            .clean()
            .out();
        let lines: Vec<&str> = done.lines().collect();
        let wanted = run(&mut command(["sha256sum", "/usr/bin/ls"]))
            .clean()
            .out();
        assert_eq!(lines[0], &wanted[..64], "{mode}, {passthrough}");
        let mapped: u32 = lines[1].parse().expect("a count");
        assert!(mapped >= 5, "not mapped from the mount: {done}");
        mounted.unmount();
    }
}

/// A file that is cut short below while it is read does not kill its reader, and what
/// is read is a prefix of what was there.
#[test]
fn cut_short_while_read() {
    need!();
    for passthrough in ["auto", "off"] {
        let setup = Setup::mode("strict").arg(format!("--passthrough={passthrough}"));
        let mounted = setup.mount();
        let text = tree::pattern(400_000);
        fs::write(mounted.below("f"), &text).expect("write");
        std::thread::scope(|scope| {
            let stop = Stop::default();
            let (flag, path, text) = (stop.flag(), mounted.below("f"), &text);
            scope.spawn(move || {
                while going(&flag) {
                    fs::OpenOptions::new()
                        .write(true)
                        .open(&path)
                        .and_then(|f| f.set_len(100))
                        .expect("cut");
                    fs::write(&path, text).expect("write");
                }
            });
            for _ in 0..200 {
                let found = fs::read(mounted.at("f")).expect("read");
                assert!(found.len() <= text.len());
                // A hole of the growing file may be read as zeros.
                let sound = found
                    .iter()
                    .zip(text.iter())
                    .all(|(a, b)| a == b || *a == 0);
                assert!(
                    sound,
                    "passthrough {passthrough}: bytes that were never there"
                );
            }
        });
        mounted.unmount();
    }
}

/// Readers by many at once, each at its own places, with and without passthrough.
#[test]
fn parallel_reads() {
    need!();
    for passthrough in ["auto", "off"] {
        let mounted = Setup::new()
            .arg(format!("--passthrough={passthrough}"))
            .mount();
        let text = tree::pattern(8 << 20);
        fs::write(mounted.below("f"), &text).expect("write");
        std::thread::scope(|scope| {
            for worker in 0..8_usize {
                let (mounted, text) = (&mounted, &text);
                scope.spawn(move || {
                    for round in 0..100_usize {
                        let file = fs::File::open(mounted.at("f")).expect("open");
                        let at = (worker * 7919 + round * 104_729) * 61 % (text.len() - 100_000);
                        let mut buf = vec![0; 1 + (round * 977) % 99_999];
                        file.read_exact_at(&mut buf, at as u64).expect("read");
                        assert!(
                            buf == text[at..at + buf.len()],
                            "{worker}, {round}: wrong bytes"
                        );
                    }
                });
            }
        });
        mounted.unmount();
    }
}

/// Reading ahead, after the kernel's pages are gone, and with small and huge buffers:
/// the same bytes.
#[test]
fn cold_and_warm_bytes() {
    need!(Root);
    for mode in MODES {
        for passthrough in ["auto", "off"] {
            let setup = Setup::mode(mode).arg(format!("--passthrough={passthrough}"));
            let mounted = setup.mount();
            let text = tree::pattern(3_000_017);
            fs::write(mounted.below("f"), &text).expect("write");
            for round in 0..3 {
                assert!(
                    fs::read(mounted.at("f")).expect("read") == text,
                    "{mode}, round {round}"
                );
                let alone = whole_machine();
                kernel_drop_caches(&alone, 1);
            }
            mounted.unmount();
        }
    }
}

/// A file of more than 4 GiB reads right beyond that mark, and its size is told.
#[test]
fn large_files() {
    need!();
    for passthrough in ["auto", "off"] {
        let mounted = Setup::new()
            .arg(format!("--passthrough={passthrough}"))
            .mount();
        let far = [(1 << 32) - 4, 1 << 32, (1 << 40) + 5];
        tree::sparse(&mounted.below("f"), (1 << 40) + 100, &far);
        let file = fs::File::open(mounted.at("f")).expect("open");
        assert_eq!(file.metadata().expect("stat").size(), (1 << 40) + 100);
        for at in far {
            let mut buf = [0; 4];
            file.read_exact_at(&mut buf, at).expect("read");
            assert_eq!(&buf, b"data", "at {at}");
        }
        drop(file);
        mounted.unmount();
    }
}

/// Reading through the mount does not change the times that make tar and backup
/// programs say "file changed as we read it".
#[test]
fn reading_changes_no_time() {
    need!();
    for mode in MODES {
        let mounted = Setup::mode(mode).mount();
        fs::create_dir(mounted.below("d")).expect("mkdir");
        for i in 0..50 {
            fs::write(mounted.below(format!("d/f-{i}")), "x".repeat(1000)).expect("write");
        }
        let times = || {
            run(&mut mounted.inside(&["find", ".", "-printf", "%T@ %C@ %s %n %P\\n"]))
                .clean()
                .out()
        };
        let before = times();
        run(&mut mounted.inside(&["bash", "-c", "tar cf /dev/null . && cat d/* > /dev/null"]))
            .clean();
        assert_eq!(times(), before, "{mode}");
        mounted.unmount();
    }
}

/// The mount refuses to be written to where the source does, and whoever opens without
/// following or updating access times is served as on the source.
#[test]
fn no_atime_reads() {
    need!();
    let mounted = Setup::new().mount();
    fs::write(mounted.below("f"), "text").expect("write");
    let open = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOATIME)
        .open(mounted.at("f"));
    let mut buf = [0; 4];
    open.expect("the owner may")
        .read_exact_at(&mut buf, 0)
        .expect("read");
    assert_eq!(&buf, b"text");
    mounted.unmount();
}
