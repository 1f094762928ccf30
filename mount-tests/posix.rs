//! A table of conformance checks. Each runs in a plain directory first, where its
//! own expectations must hold, and then through the mount, where every outcome and
//! every errno must be the same.
//!
//! A check is a name, a function that prepares its directory on the source, and one
//! that acts on a directory and notes what happened. `read` and `access` have those that
//! change nothing, `refused` the changes that a read-only mount refuses: their reference is
//! a read-only bind mount of the same tree.

mod access;
mod read;
mod refused;

use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use crate::harness::{MODES, Place, Setup};
use crate::need;
use crate::observe::Aside;
use crate::run::{as_user, command, run};

/// One check.
pub struct Check {
    /// What it is about; also the name of its directory.
    pub name: &'static str,
    /// Makes what it needs, in its directory on the source.
    pub prepare: fn(&Path),
    /// Acts in its directory, which may be in a mount.
    pub act: fn(&mut Notes, &Path),
}

/// What happened in one run of a check.
#[derive(Default)]
pub struct Notes {
    lines: Vec<String>,
    wrong: Vec<String>,
}

/// An outcome in words: the value, or the name of the errno.
pub fn outcome<T: Debug>(result: Result<T, Errno>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(e) => format!("{:?}", nix::errno::Errno::from_raw(e.raw_os_error())),
    }
}

/// An outcome of the standard library.
pub fn io<T>(result: std::io::Result<T>) -> Result<T, Errno> {
    result.map_err(|e| Errno::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO)))
}

impl Notes {
    /// Notes an outcome, which must be the same on source and mount.
    pub fn same<T: Debug>(&mut self, what: &str, result: Result<T, Errno>) {
        self.lines.push(format!("{what}: {}", outcome(result)));
    }

    /// Notes an outcome that must be this one besides: an errno's name, or a value.
    pub fn is<T: Debug>(&mut self, what: &str, result: Result<T, Errno>, expected: &str) {
        let found = outcome(result);
        if found != expected {
            self.wrong.push(format!("{what}: {found}, not {expected}"));
        }
        self.lines.push(format!("{what}: {found}"));
    }

    /// Notes what a program does as another user, in `dir`.
    pub fn user<S: AsRef<OsStr>>(&mut self, dir: &Path, uid: u32, groups: &[u32], words: &[S]) {
        let done = run(as_user(uid, groups, words).current_dir(dir));
        let words: Vec<_> = words.iter().map(|w| w.as_ref().to_string_lossy()).collect();
        let what = format!("{uid} {groups:?}: {}", words.join(" "));
        self.lines.push(format!(
            "{what}: {} {:?} {:?}",
            done.code(),
            done.out(),
            done.err()
        ));
    }

    /// Notes what a shell script does in `dir`.
    pub fn script(&mut self, dir: &Path, script: &str) {
        let done = run(crate::run::shell::<&str>(script, &[]).current_dir(dir));
        self.lines.push(format!(
            "{script}: {} {:?} {:?}",
            done.code(),
            done.out(),
            done.err()
        ));
    }
}

/// Opens relative to a directory.
pub fn open(dir: &Path, name: impl rustix::path::Arg, flags: OFlags) -> Result<OwnedFd, Errno> {
    let base = crate::tree::open_dir(dir);
    openat(
        &base,
        name,
        flags | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o644),
    )
}

/// Runs a table in a directory; the notes by check.
pub fn act(table: &[Check], base: &Path) -> Vec<Notes> {
    let run = |check: &Check| {
        let mut notes = Notes::default();
        (check.act)(&mut notes, &base.join(check.name));
        notes
    };
    table.iter().map(run).collect()
}

pub fn prepare(table: &[Check], base: &Path) {
    for check in table {
        let dir = base.join(check.name);
        fs::create_dir_all(&dir).expect("mkdir");
        (check.prepare)(&dir);
    }
    // Holes are where the source says only once data is on the disk.
    run(command(["sync", "-f"]).arg(base)).clean();
}

/// Panics with all differences.
#[track_caller]
pub fn compare(what: &str, table: &[Check], plain: &[Notes], mount: &[Notes]) {
    let mut wrong = Vec::new();
    for ((check, plain), mount) in table.iter().zip(plain).zip(mount) {
        let count = plain.lines.len().max(mount.lines.len());
        for i in 0..count {
            let (a, b) = (plain.lines.get(i), mount.lines.get(i));
            if a != b {
                wrong.push(format!("{}\n  source {a:?}\n  mount  {b:?}", check.name));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{what}: {} differences\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// The table in a plain directory: the checks' own expectations hold there.
#[track_caller]
pub fn reference(table: &[Check], base: &Path) -> Vec<Notes> {
    let notes = act(table, base);
    let wrong: Vec<_> = table
        .iter()
        .zip(&notes)
        .flat_map(|(c, n)| n.wrong.iter().map(move |w| format!("{}: {w}", c.name)))
        .collect();
    assert!(
        wrong.is_empty(),
        "the checks are wrong:\n{}",
        wrong.join("\n")
    );
    for (check, notes) in table.iter().zip(&notes) {
        assert!(!notes.lines.is_empty(), "{} notes nothing", check.name);
    }
    notes
}

pub fn sources(table: &[Check]) -> (Place, PathBuf, PathBuf) {
    let place = Place::new();
    let (plain, source) = (place.dir("plain"), place.dir("source"));
    prepare(table, &plain);
    prepare(table, &source);
    (place, plain, source)
}

fn read_tables_in(mode: &str, passthrough: &str) {
    for table in [read::TABLE, access::TABLE] {
        let (place, plain, _) = sources(table);
        let expected = reference(table, &plain);
        let setup = Setup::mode(mode).arg(format!("--passthrough={passthrough}"));
        let mounted = setup.arg("-o").arg("suid,dev").mount_in(place);
        // Twice: from cold caches and from warm ones.
        for caches in ["cold", "warm"] {
            let found = act(table, mounted.path());
            let what = format!("{mode}, passthrough {passthrough}, {caches}");
            compare(&what, table, &expected, &found);
        }
        mounted.unmount();
    }
}

/// The read side in `ttl`.
#[test]
fn read_ttl() {
    need!(Root, Program("setpriv"), Program("setfacl"));
    read_tables_in("ttl", "auto");
}

/// The read side in `frozen`.
#[test]
fn read_frozen() {
    need!(Root, Program("setpriv"), Program("setfacl"));
    read_tables_in("frozen", "auto");
}

/// The read side in `strict`.
#[test]
fn read_strict() {
    need!(Root, Program("setpriv"), Program("setfacl"));
    read_tables_in("strict", "auto");
}

/// The read side with data through the daemon.
#[test]
fn read_without_passthrough() {
    need!(Root, Program("setpriv"), Program("setfacl"));
    for mode in MODES {
        read_tables_in(mode, "off");
    }
}

/// A read-only mount refuses every change as a read-only bind mount does.
#[test]
fn changes_refused_when_read_only() {
    need!(Root);
    for how in ["ro", "read-only"] {
        let (found, expected) = refused_in(how);
        compare(how, refused::TABLE, &expected, &found);
    }
}

/// `frozen` refuses every change, too. The kernel does not know that it is read-only,
/// so where several errors hold it may be another than EROFS; a rename of a name to
/// itself changes nothing and may be allowed.
#[test]
fn changes_refused_when_frozen() {
    need!(Root);
    let (mut found, expected) = refused_in("coherence=frozen");
    for (found, expected) in found.iter_mut().zip(&expected) {
        for (found, expected) in found.lines.iter_mut().zip(&expected.lines) {
            let refused = found
                .rsplit(": ")
                .next()
                .is_some_and(|o| o.starts_with('E'));
            // What programs say is another text; access(2) is answered by the kernel, from
            // modes alone.
            let program = found.contains('"');
            let writable = found.starts_with("writable ") || found.starts_with("access: ");
            let to_itself = found.starts_with("rename ") && found.ends_with(": ()");
            if expected.ends_with(": EROFS") && (refused || to_itself || writable) || program {
                found.clone_from(expected);
            }
        }
    }
    compare("frozen", refused::TABLE, &expected, &found);
}

/// Attempts all changes in a read-only bind mount and in the mount; the source must
/// stay as it is.
#[track_caller]
fn refused_in(how: &str) -> (Vec<Notes>, Vec<Notes>) {
    let (place, plain, source) = sources(refused::TABLE);
    let at = place.path().join("bound");
    let bound = Aside::bind_read_only(&plain, &at);
    let expected = reference(refused::TABLE, &at);
    drop(bound);
    let before = everything(&source);
    let setup = Setup::new().arg("-o").arg(format!("{how},suid,dev"));
    let mounted = setup.mount_in(place);
    let found = act(refused::TABLE, mounted.path());
    assert_eq!(before, everything(&source), "{how}: the source was changed");
    mounted.unmount();
    (found, expected)
}

fn everything(dir: &Path) -> String {
    let words = ["find", ".", "-printf", "%i %y %m %n %U %G %s %T@ %l %P\\n"];
    run(command(words).current_dir(dir)).clean().out()
}

/// A difference between two runs is seen.
#[test]
fn differences_are_seen() {
    let table = [Check {
        name: "one",
        prepare: |_| (),
        act: |_, _| (),
    }];
    let notes = |results: &[Result<u8, Errno>]| {
        let mut notes = Notes::default();
        for (i, r) in results.iter().enumerate() {
            notes.same(&format!("step {i}"), *r);
        }
        vec![notes]
    };
    let plain = notes(&[Ok(1), Err(Errno::NOENT)]);
    let seen = |mount: &[Result<u8, Errno>]| {
        let mount = notes(mount);
        let compared = std::panic::AssertUnwindSafe(|| compare("x", &table, &plain, &mount));
        std::panic::catch_unwind(compared).is_err()
    };
    assert!(!seen(&[Ok(1), Err(Errno::NOENT)]));
    assert!(seen(&[Ok(1), Err(Errno::STALE)]));
    assert!(seen(&[Ok(2), Err(Errno::NOENT)]));
    assert!(seen(&[Ok(1)]));
    assert!(seen(&[Ok(1), Err(Errno::NOENT), Ok(3)]));
}
