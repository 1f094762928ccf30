//! Locks: those of fcntl are the source's own, whoever asks for them and from where;
//! whoever waits for one is alone in waiting.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use super::helper::Helper;
use super::{Pair, ROUTES, route};
use crate::harness::Setup;
use crate::need;
use crate::run::{command, run_within, until};

/// How long somebody is given to show that they do not wait.
const AT_ONCE: Duration = Duration::from_secs(20);

fn pair(passthrough: &str) -> (Pair, PathBuf, PathBuf) {
    let pair = Pair::new(route(passthrough));
    let (below, at) = (pair.mounted.below("f"), pair.mounted.at("f"));
    fs::write(&below, "0123456789").expect("write");
    (pair, below, at)
}

fn at(path: &std::path::Path) -> Helper {
    let mut helper = Helper::new();
    assert_eq!(helper.ask_path("open", "f", path, &[]), "ok");
    helper
}

fn refused(answer: &str) -> bool {
    answer == "EAGAIN" || answer == "EACCES"
}

/// Whether a process waits for a lock: the kernel says so in /proc/locks for native
/// ones, and for those of a mount there is the system call that it is in.
fn waits(helper: &Helper) -> bool {
    let call = fs::read_to_string(format!("/proc/{}/syscall", helper.pid())).unwrap_or_default();
    let mut words = call.split(' ');
    match words.next().and_then(|w| w.parse::<i64>().ok()) {
        // F_SETLKW.
        Some(libc::SYS_fcntl) => words.nth(1) == Some("0x7"),
        Some(libc::SYS_flock) => true,
        _ => false,
    }
}

/// A lock taken in the source directory is in force in the mount, and the other way
/// round: by ranges, for readers and writers, and F_GETLK tells of it on both sides.
#[test]
fn locks_are_shared_with_the_source() {
    need!();
    for passthrough in ROUTES {
        let (pair, below, mount) = pair(passthrough);
        for (first, second) in [(&below, &mount), (&mount, &below), (&mount, &mount)] {
            let (mut holder, mut other) = (at(first), at(second));
            let what = format!("{} then {}", first.display(), second.display());
            assert_eq!(holder.ask(&["lock", "f", "w", "10", "10"]), "ok", "{what}");
            assert!(
                refused(&other.ask(&["lock", "f", "w", "15", "1"])),
                "{what}"
            );
            assert!(refused(&other.ask(&["lock", "f", "r", "0", "0"])), "{what}");
            assert_eq!(other.ask(&["lock", "f", "w", "0", "10"]), "ok", "{what}");
            assert_eq!(other.ask(&["lock", "f", "w", "20", "0"]), "ok", "{what}");
            let told = other.ask(&["getlock", "f", "w", "12", "2"]);
            assert!(told.starts_with("w 10 10 "), "{what}: {told}");
            let told = holder.ask(&["getlock", "f", "r", "20", "5"]);
            assert!(told.starts_with("w 20 0 "), "{what}: {told}");
            assert_eq!(
                holder.ask(&["getlock", "f", "w", "10", "10"]),
                "free",
                "{what}"
            );
            // A hole in the middle, and readers beside readers.
            assert_eq!(holder.ask(&["lock", "f", "u", "14", "2"]), "ok", "{what}");
            assert_eq!(other.ask(&["lock", "f", "w", "14", "2"]), "ok", "{what}");
            assert_eq!(holder.ask(&["lock", "f", "r", "10", "4"]), "ok", "{what}");
            assert_eq!(other.ask(&["lock", "f", "r", "10", "4"]), "ok", "{what}");
            assert!(
                refused(&other.ask(&["lock", "f", "w", "10", "1"])),
                "{what}"
            );
        }
        pair.end();
    }
}

/// Locks end with the process, and with the closing of any descriptor of the file; a
/// lock held in the mount does not outlive it on the source.
#[test]
fn locks_go_with_close() {
    need!();
    let (pair, below, mount) = pair("auto");
    for (first, second) in [(&below, &mount), (&mount, &below), (&mount, &mount)] {
        let (mut holder, mut other) = (at(first), at(second));
        let free = |other: &mut Helper| {
            // Closing may be told after close(2) has returned.
            until(AT_ONCE, || {
                (other.ask(&["getlock", "f", "w", "0", "0"]) == "free").then_some(())
            })
        };
        assert_eq!(holder.ask(&["lock", "f", "w", "0", "0"]), "ok");
        assert!(refused(&other.ask(&["lock", "f", "r", "3", "1"])));
        // POSIX: any descriptor of the file.
        assert_eq!(holder.ask_path("open", "again", first, &[]), "ok");
        assert_eq!(holder.ask(&["close", "again"]), "ok");
        assert_eq!(
            other.ask(&["lock", "f", "w", "0", "0"]),
            "ok",
            "after close"
        );
        assert_eq!(other.ask(&["lock", "f", "u", "0", "0"]), "ok");
        assert_eq!(holder.ask(&["lock", "f", "w", "0", "0"]), "ok");
        assert!(refused(&other.ask(&["lock", "f", "r", "3", "1"])));
        assert!(holder.end_by(Signal::KILL));
        assert!(free(&mut other).is_some(), "after SIGKILL");
    }
    pair.end();
}

/// With more waiters than the daemon has threads, everybody else goes on: names,
/// attributes, data and other locks, on the locked file too.
#[test]
fn locks_that_wait_hold_up_nobody() {
    need!();
    let pair = Pair::new(route("auto").arg("--threads=2"));
    let (below, mount) = (pair.mounted.below("f"), pair.mounted.at("f"));
    fs::write(&below, "0123456789").expect("write");
    for first in [&below, &mount] {
        let mut holder = at(first);
        assert_eq!(holder.ask(&["lock", "f", "w", "0", "0"]), "ok");
        let mut waiting: Vec<Helper> = (0..4).map(|_| at(&mount)).collect();
        for (i, helper) in waiting.iter_mut().enumerate() {
            helper.tell(&["wait", "f", "w", &(i * 10).to_string(), "10"]);
            assert!(until(AT_ONCE, || waits(helper).then_some(())).is_some());
        }
        let script = "ls -l; cat f; echo new > g; stat g; rm g; mkdir d; rmdir d; echo more >> f";
        let mut cmd = super::script_in(pair.mounted.path(), script);
        run_within(&mut cmd, AT_ONCE).clean();
        assert!(refused(&at(&mount).ask(&["lock", "f", "w", "0", "1"])));
        for helper in &mut waiting {
            assert_eq!(helper.answer(Duration::ZERO), None, "it has to wait");
        }
        assert_eq!(holder.ask(&["lock", "f", "u", "0", "0"]), "ok");
        for helper in &mut waiting {
            assert_eq!(
                helper.answer(AT_ONCE).as_deref(),
                Some("ok"),
                "it has waited enough"
            );
        }
    }
    pair.end();
}

/// Whoever waits for a lock can be stopped, by Ctrl-C and by SIGKILL, and takes nothing
/// with it: the lock goes to the next, and the mount can be unmounted.
#[test]
fn locks_waiting_can_be_stopped() {
    need!();
    for passthrough in ROUTES {
        let (pair, below, mount) = pair(passthrough);
        for first in [&below, &mount] {
            for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
                let mut holder = at(first);
                assert_eq!(holder.ask(&["lock", "f", "w", "0", "0"]), "ok");
                let mut waiting = at(&mount);
                waiting.tell(&["wait", "f", "w", "0", "0"]);
                assert!(until(AT_ONCE, || waits(&waiting).then_some(())).is_some());
                assert!(waiting.end_by(signal), "{signal:?} does not end it");
                assert_eq!(holder.ask(&["lock", "f", "u", "0", "0"]), "ok");
                let free = until(AT_ONCE, || {
                    (holder.ask(&["getlock", "f", "w", "0", "0"]) == "free").then_some(())
                });
                assert!(free.is_some(), "the dead one has the lock, {signal:?}");
                assert_eq!(holder.ask(&["flock", "f", "x"]), "ok");
                let (mut waiting, mut other) = (at(&mount), at(&mount));
                waiting.tell(&["waitflock", "f"]);
                assert!(until(AT_ONCE, || waits(&waiting).then_some(())).is_some());
                assert!(waiting.end_by(signal), "{signal:?} does not end flock");
                assert_eq!(holder.ask(&["flock", "f", "u"]), "ok");
                assert_eq!(other.ask(&["flock", "f", "x"]), "ok", "{signal:?}");
            }
        }
        pair.end();
    }
}

/// The lock of flock(2) that is taken in the source directory is in force in the mount, the
/// other way round, and between all users of the mount; it goes with the last descriptor.
#[test]
fn locks_of_flock_are_shared_with_the_source() {
    need!(Program("flock"));
    for passthrough in ROUTES {
        let (pair, below, mount) = pair(passthrough);
        for (first, second) in [(&below, &mount), (&mount, &below), (&mount, &mount)] {
            let what = format!("{} then {}", first.display(), second.display());
            let (mut a, mut b) = (at(first), at(second));
            assert_eq!(a.ask(&["flock", "f", "x"]), "ok", "{what}");
            assert_eq!(b.ask(&["flock", "f", "x"]), "EAGAIN", "{what}");
            assert_eq!(b.ask(&["flock", "f", "s"]), "EAGAIN", "{what}");
            assert_eq!(a.ask(&["flock", "f", "s"]), "ok", "{what}");
            assert_eq!(b.ask(&["flock", "f", "s"]), "ok", "{what}");
            assert_eq!(b.ask(&["flock", "f", "x"]), "EAGAIN", "{what}");
            // A second descriptor holds it on.
            assert_eq!(b.ask(&["flock", "f", "u"]), "ok", "{what}");
            assert_eq!(a.ask(&["dup", "f", "g"]), "ok", "{what}");
            assert_eq!(a.ask(&["close", "f"]), "ok", "{what}");
            assert_eq!(b.ask(&["flock", "f", "x"]), "EAGAIN", "{what}");
            assert_eq!(a.ask(&["close", "g"]), "ok", "{what}");
            assert_eq!(b.ask(&["flock", "f", "x"]), "ok", "at once: {what}");
            let mut cmd = command(["flock", "--nonblock", "--conflict-exit-code=7"]);
            let done = run_within(cmd.arg(first).arg("true"), AT_ONCE);
            assert_eq!(done.code(), 7, "{}", done.err());
            // A waiter is served when the lock is free.
            let mut cmd = command(["flock"]);
            let mut child = cmd.arg(first).arg("true").spawn().expect("flock starts");
            assert_eq!(b.ask(&["flock", "f", "u"]), "ok");
            let status = crate::run::wait_within(&mut child, AT_ONCE);
            assert!(status.is_some_and(|s| s.success()), "{status:?}");
        }
        pair.end();
    }
}

/// Neither flock nor the locks of a process get in each other's way, on any side.
#[test]
fn locks_of_flock_and_of_fcntl_are_two_worlds() {
    need!();
    let (pair, below, mount) = pair("auto");
    for (first, second) in [(&below, &mount), (&mount, &below), (&mount, &mount)] {
        let (mut a, mut b) = (at(first), at(second));
        assert_eq!(a.ask(&["flock", "f", "x"]), "ok");
        assert_eq!(b.ask(&["lock", "f", "w", "0", "0"]), "ok");
        assert_eq!(b.ask(&["flock", "f", "x"]), "EAGAIN");
        assert!(refused(&a.ask(&["lock", "f", "w", "0", "0"])));
    }
    pair.end();
}

/// Again and again: a lock whose last descriptor was closed is free, for whoever asks
/// without waiting.
#[test]
fn locks_of_flock_are_free_when_close_returns() {
    need!();
    let pair = Pair::new(route("off").arg("--threads=2"));
    let mount = pair.mounted.at("f");
    fs::write(pair.mounted.below("f"), "").expect("write");
    let (mut a, mut b) = (at(&mount), at(&mount));
    for round in 0..200 {
        for (holder, other) in [(&mut a, "flock"), (&mut b, "ofd")] {
            assert_eq!(holder.ask_path("open", "h", &mount, &[]), "ok");
            let lock: &[&str] = match other {
                "flock" => &["flock", "h", "x"],
                _ => &["ofd", "h", "w", "0", "0"],
            };
            assert_eq!(holder.ask(lock), "ok", "{other}, round {round}");
            assert_eq!(holder.ask(&["close", "h"]), "ok");
        }
    }
    drop((a, b));
    pair.end();
}

/// Locks of open file descriptions go with the last descriptor, however many others the
/// same process closes.
#[test]
fn locks_of_descriptions_go_with_the_last_descriptor() {
    need!();
    let (pair, below, mount) = pair("auto");
    for (first, second) in [(&below, &mount), (&mount, &below), (&mount, &mount)] {
        let (mut a, mut b) = (at(first), at(second));
        assert_eq!(a.ask(&["ofd", "f", "w", "0", "5"]), "ok");
        assert_eq!(a.ask_path("open", "g", first, &[]), "ok");
        assert!(refused(&a.ask(&["ofd", "g", "w", "0", "5"])));
        assert_eq!(a.ask(&["close", "g"]), "ok");
        assert!(refused(&b.ask(&["ofd", "f", "r", "2", "1"])));
        assert_eq!(a.ask(&["dup", "f", "g"]), "ok");
        assert_eq!(a.ask(&["close", "f"]), "ok");
        assert!(refused(&b.ask(&["ofd", "f", "r", "2", "1"])));
        assert_eq!(a.ask(&["close", "g"]), "ok");
        assert_eq!(b.ask(&["ofd", "f", "w", "0", "0"]), "ok");
    }
    pair.end();
}

/// Locks of open file descriptions (F_OFD_SETLK) and of processes meet on the source:
/// the same answers with one of the two in the mount as with both in a plain directory.
#[test]
fn locks_meet_in_ttl_and_strict() {
    need!();
    for mode in ["ttl", "strict"] {
        let pair = Pair::new(Setup::mode(mode));
        let tell = |first: PathBuf, second: PathBuf| -> Vec<String> {
            fs::write(&first, "0123456789").expect("write");
            let (mut a, mut b) = (at(&first), at(&second));
            let mut said = Vec::new();
            for (kind, start, length) in [
                ("r", "0", "5"),
                ("w", "5", "5"),
                ("r", "7", "1"),
                ("u", "6", "3"),
                ("w", "0", "0"),
                ("r", "9223372036854775806", "1"),
                ("w", "4", "-3"),
                ("u", "0", "0"),
            ] {
                said.push(a.ask(&["lock", "f", kind, start, length]));
                for range in [("0", "5"), ("5", "1"), ("6", "3"), ("9", "0")] {
                    let told = b.ask(&["getlock", "f", "w", range.0, range.1]);
                    // Whose it is differs between sides; that there is one does not.
                    said.push(
                        told.rsplit_once(' ')
                            .map_or(told.clone(), |t| t.0.to_owned()),
                    );
                    said.push(b.ask(&["lock", "f", "r", range.0, range.1]));
                    said.push(b.ask(&["lock", "f", "u", range.0, range.1]));
                }
            }
            said
        };
        let plain = tell(pair.plain.join("f"), pair.plain.join("f"));
        let (at, below) = (pair.mounted.at("f"), pair.mounted.below("f"));
        assert_eq!(plain, tell(below.clone(), at.clone()), "held below, {mode}");
        assert_eq!(plain, tell(at.clone(), below), "held in the mount, {mode}");
        assert_eq!(plain, tell(at.clone(), at), "both in the mount, {mode}");
        pair.end();
    }
}
