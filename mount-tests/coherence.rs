//! Changes made on the source behind the mount: seen at once in `strict`, within
//! the timeout in `ttl`, after dropping the caches in `frozen`; and never is a
//! name half there, for stat, readdir, readlink and open answer alike.

mod cases;

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use self::cases::{CASES, error_of, listed, put, replace};
use crate::harness::{MODES, Mounted, Setup, kernel_drop_caches, whole_machine};
use crate::need;
use crate::run::{Stop, as_user, command, going, run, until};

const TTL: Duration = Duration::from_millis(300);
/// The timeout, the daemon's rounding and a busy machine.
const BOUND: Duration = Duration::from_secs(3);

/// Runs all cases; `settle` is what makes changes due, `bound` how long they may
/// take after it.
fn all_cases(mounted: &Mounted, settle: &dyn Fn(), bound: Duration) {
    let mut wrong = Vec::new();
    let dirs: Vec<String> = (0..CASES.len()).map(|i| format!("case-{i:02}")).collect();
    for (case, dir) in CASES.iter().zip(&dirs) {
        fs::create_dir(mounted.below(dir)).expect("mkdir");
        (case.before)(&mounted.below(dir));
    }
    for (case, dir) in CASES.iter().zip(&dirs) {
        // The root has changed since it was first seen; so have these directories.
        until(BOUND, || mounted.at(dir).exists().then_some(())).expect("the case is seen");
        (case.warm)(&mounted.at(dir));
        (case.edit)(&mounted.below(dir));
        settle();
        let start = Instant::now();
        let mut last = (case.after)(&mounted.at(dir));
        while last.is_err() && start.elapsed() < bound {
            thread::sleep(Duration::from_millis(10));
            last = (case.after)(&mounted.at(dir));
        }
        if let Err(why) = last {
            wrong.push(format!("{}: {why}", case.kind));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} kinds:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// In `strict` a change below shows at once, of every kind.
#[test]
fn strict_shows_changes_at_once() {
    need!();
    let mounted = Setup::mode("strict").mount();
    all_cases(&mounted, &|| (), Duration::ZERO);
    mounted.unmount();
}

/// The same without FUSE passthrough, where the kernel keeps pages of its own.
#[test]
fn strict_without_passthrough() {
    need!();
    let mounted = Setup::mode("strict").arg("--passthrough=off").mount();
    all_cases(&mounted, &|| (), Duration::ZERO);
    mounted.unmount();
}

/// In `ttl` a change below shows when the timeout has passed, of every kind, though
/// somebody keeps asking.
#[test]
fn ttl_shows_changes_in_time() {
    need!();
    let mounted = Setup::mode("ttl")
        .arg(format!("--ttl={}ms", TTL.as_millis()))
        .mount();
    all_cases(&mounted, &|| (), BOUND);
    mounted.unmount();
}

/// The same without FUSE passthrough.
#[test]
fn ttl_without_passthrough() {
    need!();
    let ttl = format!("--ttl={}ms", TTL.as_millis());
    let mounted = Setup::mode("ttl").arg(ttl).arg("--passthrough=off").mount();
    all_cases(&mounted, &|| (), BOUND);
    mounted.unmount();
}

/// In `frozen` changes below show when the caches were dropped, the kernel's and
/// ours, and until then nothing fails.
#[test]
fn frozen_shows_changes_after_a_drop() {
    need!(Root);
    let mounted = Setup::mode("frozen").mount();
    let settle = || {
        let alone = whole_machine();
        mounted.drop_caches();
        kernel_drop_caches(&alone, 3);
        mounted.drop_caches();
    };
    all_cases(&mounted, &settle, Duration::ZERO);
    mounted.unmount();
}

/// In `watch` a change below shows when its event was followed, of every kind, however
/// long the ttl.
#[test]
fn watch_shows_changes_when_told() {
    need!(Root);
    let mounted = Setup::mode("watch").arg("--ttl=1h").mount();
    all_cases(&mounted, &|| (), Duration::from_secs(5));
    mounted.unmount();
}

/// The same without FUSE passthrough, where the kernel keeps pages of its own.
#[test]
fn watch_without_passthrough() {
    need!();
    let mounted = Setup::mode("watch")
        .arg("--ttl=1h")
        .arg("--passthrough=off")
        .mount();
    all_cases(&mounted, &|| (), Duration::from_secs(5));
    mounted.unmount();
}

/// The cases themselves: on a bind mount, which shows everything at once, each
/// passes; on a copy made before the edit, which shows nothing, each fails.
#[test]
fn cases_are_right() {
    let place = crate::harness::Place::new();
    for (i, case) in CASES.iter().enumerate() {
        let (live, copy) = (
            place.dir(&format!("live-{i}")),
            place.path().join(format!("copy-{i}")),
        );
        (case.before)(&live);
        (case.warm)(&live);
        run(command(["cp", "-a"]).arg(&live).arg(&copy)).clean();
        (case.edit)(&live);
        assert_eq!((case.after)(&live), Ok(()), "{}", case.kind);
        assert!(
            (case.after)(&copy).is_err(),
            "{}: not seen to fail",
            case.kind
        );
    }
}

/// An absence that one call has found holds for all: once stat says ENOENT, the
/// listing does not show the name.
#[test]
fn one_absence_ends_the_listing() {
    need!();
    for mode in ["ttl", "strict"] {
        let mounted = Setup::mode(mode)
            .arg(format!("--ttl={}ms", TTL.as_millis()))
            .mount();
        for i in 0..10 {
            let name = format!("a-{i}");
            put(mounted.below(&name), "");
            until(BOUND, || {
                (listed(mounted.path(), &name) == Ok(true)).then_some(())
            })
            .expect("it is listed");
            mounted.at(&name).symlink_metadata().expect("it is there");
            fs::remove_file(mounted.below(&name)).expect("unlink");
            let gone = || mounted.at(&name).symlink_metadata().is_err().then_some(());
            until(BOUND, gone).expect("it is gone");
            assert_eq!(
                listed(mounted.path(), &name),
                Ok(false),
                "{mode}: absent for stat, but listed"
            );
        }
        mounted.unmount();
    }
}

/// A failed open is news: when open finds that a file is gone, stat says so too,
/// however long the timeout.
#[test]
fn a_failed_open_ends_the_entry() {
    need!();
    for mode in ["ttl", "frozen"] {
        let mut setup = Setup::mode(mode);
        if mode == "ttl" {
            setup = setup.arg("--ttl=3600s");
        }
        let mounted = setup.mount();
        put(mounted.below("f"), "x");
        fs::read(mounted.at("f")).expect("it is there");
        fs::remove_file(mounted.below("f")).expect("unlink");
        match error_of(fs::File::open(mounted.at("f"))) {
            // Still within the promise: the old file.
            0 => {}
            libc::ENOENT => {
                let stat = error_of(mounted.at("f").symlink_metadata());
                assert_eq!(
                    stat,
                    libc::ENOENT,
                    "{mode}: open says absent, stat does not"
                );
                assert_eq!(
                    listed(mounted.path(), "f"),
                    Ok(false),
                    "{mode}: absent, but listed"
                );
            }
            other => panic!("{mode}: open of a file gone below: error {other}"),
        }
        mounted.unmount();
    }
}

/// A file replaced below while its timeout is long opens as the old or the new one,
/// never as an error: ESTALE is for the kernel, which then looks again.
#[test]
fn a_replaced_file_never_fails() {
    need!();
    for mode in ["ttl", "frozen"] {
        for passthrough in ["auto", "off"] {
            let mut setup = Setup::mode(mode).arg(format!("--passthrough={passthrough}"));
            if mode == "ttl" {
                setup = setup.arg("--ttl=3600s");
            }
            let mounted = setup.mount();
            put(mounted.below("f"), "old text");
            assert_eq!(
                fs::read_to_string(mounted.at("f")).expect("read"),
                "old text"
            );
            for i in 0..20 {
                replace(mounted.below("f"), &format!("new text {i}"));
                let text = fs::read_to_string(mounted.at("f"))
                    .unwrap_or_else(|e| panic!("{mode}, passthrough {passthrough}: {e}"));
                assert!(
                    text.starts_with("old te") || text.starts_with("new te"),
                    "{text:?}"
                );
                mounted.at("f").metadata().expect("stat");
            }
            mounted.unmount();
        }
    }
}

/// A file replaced below every 50 ms is never absent to a reader, and never a mixture.
#[test]
fn atomic_replace_is_atomic() {
    need!();
    for mode in ["strict", "ttl"] {
        let mounted = Setup::mode(mode).arg("--ttl=20ms").mount();
        replace(mounted.below("v"), &version(0));
        thread::scope(|scope| {
            let stop = Stop::default();
            let (flag, path) = (stop.flag(), mounted.below("v"));
            scope.spawn(move || {
                for i in 1.. {
                    if !going(&flag) {
                        break;
                    }
                    replace(&path, &version(i));
                    // The pace of the writer, part of the case.
                    thread::sleep(Duration::from_millis(50));
                }
            });
            let end = Instant::now() + Duration::from_secs(3);
            let mut reads = 0;
            while Instant::now() < end {
                let text = fs::read_to_string(mounted.at("v"))
                    .unwrap_or_else(|e| panic!("{mode}: read {reads}: {e}"));
                let number = text.split_once(' ').and_then(|(n, _)| n.parse().ok());
                let number = number.unwrap_or_else(|| panic!("{mode}: {text:?}"));
                assert_eq!(text, version(number), "{mode}: a mixture");
                reads += 1;
            }
            assert!(reads > 50, "{mode}: only {reads} reads");
        });
        mounted.unmount();
    }
}

/// A text that names its version and has the length of it.
fn version(i: u32) -> String {
    format!("{i} {}", "x".repeat(100 + i as usize % 1000))
}

/// A file held open shows what is appended below: size and bytes.
#[test]
fn held_file_grows() {
    need!();
    for (mode, bound) in [("strict", Duration::ZERO), ("ttl", BOUND)] {
        for passthrough in ["auto", "off"] {
            let setup = Setup::mode(mode).arg(format!("--passthrough={passthrough}"));
            let mounted = setup.arg("--ttl=300ms").mount();
            put(mounted.below("log"), "first\n");
            let mut file = fs::File::open(mounted.at("log")).expect("open");
            let mut text = String::new();
            file.read_to_string(&mut text).expect("read");
            assert_eq!(text, "first\n");
            let open = fs::OpenOptions::new()
                .append(true)
                .open(mounted.below("log"));
            open.expect("open").write_all(b"second\n").expect("write");
            let grown = until(bound, || {
                (file.metadata().expect("fstat").len() == 13).then_some(())
            });
            assert!(
                grown.is_some(),
                "{mode}, passthrough {passthrough}: fstat shows the old size"
            );
            let mut rest = String::new();
            file.read_to_string(&mut rest).expect("read");
            assert_eq!(rest, "second\n", "{mode}, passthrough {passthrough}");
            file.seek(SeekFrom::Start(0)).expect("seek");
            drop(file);
            mounted.unmount();
        }
    }
}

/// A file deleted below frees its space: nothing of ours keeps it open for ever.
#[test]
fn deleted_files_are_let_go() {
    need!();
    let mounted = Setup::mode("ttl").arg("--ttl=300ms").mount();
    put(mounted.below("big"), &"x".repeat(1 << 20));
    fs::read(mounted.at("big")).expect("read");
    fs::remove_file(mounted.below("big")).expect("unlink");
    let held = || {
        let mut held = Vec::new();
        for fd in fs::read_dir(format!("/proc/{}/fd", mounted.pid()))
            .expect("fds")
            .flatten()
        {
            let target = fs::read_link(fd.path()).unwrap_or_default();
            if target.to_string_lossy().contains("/big") {
                held.push(target);
            }
        }
        held
    };
    let freed = until(BOUND, || {
        let gone = mounted.at("big").symlink_metadata().is_err();
        (gone && held().is_empty()).then_some(())
    });
    assert!(freed.is_some(), "the daemon still holds {:?}", held());
    mounted.unmount();
}

/// Access follows a change of mode below: who could enter before may not after.
#[test]
fn refused_after_chmod_below() {
    need!(Root, Program("setpriv"));
    for (mode, bound) in [("strict", Duration::ZERO), ("ttl", BOUND)] {
        let mounted = Setup::mode(mode).arg("--ttl=300ms").mount();
        fs::create_dir(mounted.below("d")).expect("mkdir");
        put(mounted.below("d/f"), "text");
        let cat = || {
            let words = ["cat".into(), mounted.at("d/f").into_os_string()];
            run(&mut as_user(12_345, &[], &words))
        };
        cat().clean();
        let closed = fs::Permissions::from_mode(0o700);
        fs::set_permissions(mounted.below("d"), closed).expect("chmod");
        let refused = until(bound, || {
            cat().err().contains("Permission denied").then_some(())
        });
        assert!(refused.is_some(), "{mode}: still open to others");
        mounted.unmount();
    }
}

/// An open directory that is renamed below stays the same directory: names in it
/// are found through its descriptor.
#[test]
fn held_directory_follows_a_rename_below() {
    need!(Root);
    for mode in ["strict", "ttl"] {
        let mounted = Setup::mode(mode).arg("--ttl=300ms").mount();
        fs::create_dir_all(mounted.below("d/sub")).expect("mkdir");
        put(mounted.below("d/f"), "in d");
        put(mounted.below("d/sub/g"), "in sub");
        let dir = crate::tree::open_dir(&mounted.at("d"));
        fs::rename(mounted.below("d"), mounted.below("e")).expect("rename");
        let found = until(BOUND, || (!mounted.at("d").exists()).then_some(()));
        assert!(found.is_some(), "{mode}: the old name stays");
        for (name, text) in [("f", "in d"), ("sub/g", "in sub")] {
            let flags = rustix::fs::OFlags::RDONLY;
            let fd = rustix::fs::openat(&dir, name, flags, rustix::fs::Mode::empty())
                .unwrap_or_else(|e| panic!("{mode}: {name} through the descriptor: {e}"));
            let mut found = String::new();
            fs::File::from(fd).read_to_string(&mut found).expect("read");
            assert_eq!(found, text);
        }
        drop(dir);
        mounted.unmount();
    }
}

/// A file that is open stays readable when it is renamed or removed below.
#[test]
fn held_file_survives_rename_and_unlink_below() {
    need!();
    for mode in MODES {
        for passthrough in ["auto", "off"] {
            let setup = Setup::mode(mode).arg(format!("--passthrough={passthrough}"));
            let mounted = setup.arg("--ttl=50ms").mount();
            fs::create_dir(mounted.below("d")).expect("mkdir");
            let text = "z".repeat(300_000);
            put(mounted.below("f"), &text);
            let mut file = fs::File::open(mounted.at("f")).expect("open");
            let mut half = vec![0; 100_000];
            file.read_exact(&mut half).expect("read");
            fs::rename(mounted.below("f"), mounted.below("d/f")).expect("rename");
            let mut next = vec![0; 100_000];
            file.read_exact(&mut next)
                .unwrap_or_else(|e| panic!("{mode}: after a rename below: {e}"));
            fs::remove_file(mounted.below("d/f")).expect("unlink");
            let mut rest = String::new();
            file.read_to_string(&mut rest)
                .unwrap_or_else(|e| panic!("{mode}: after an unlink below: {e}"));
            assert_eq!(half.len() + next.len() + rest.len(), text.len());
            file.metadata()
                .unwrap_or_else(|e| panic!("{mode}: fstat after an unlink: {e}"));
            drop(file);
            mounted.unmount();
        }
    }
}
