//! `nameifs warm`: what it reads is cached afterwards, and it stays where it belongs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::cli::refused;
use crate::harness::{Mounted, Setup, nameifs, quiet_machine};
use crate::need;
use crate::observe::Referee;
use crate::place::Place;
use crate::run::{Done, command, run, run_within, until, wait_within};

fn warm(mounted: &Mounted, options: &[&str], below: Option<&Path>) -> Done {
    let mut words = vec![OsStr::new("warm")];
    words.extend(options.iter().map(OsStr::new));
    words.push(mounted.path().as_os_str());
    words.extend(below.map(Path::as_os_str));
    run_within(&mut mounted.tool(&words), Duration::from_secs(60))
}

/// Directories of ten files each.
fn tree(at: &Path, dirs: usize) {
    for d in 0..dirs {
        let dir = at.join(format!("d{d}/below"));
        fs::create_dir_all(&dir).expect("mkdir");
        for f in 0..10 {
            fs::write(dir.join(format!("f{f}")), "").expect("write");
        }
    }
}

/// The names are counted, and a find afterwards asks the daemon nothing.
#[test]
fn a_warm_tree_is_cached() {
    need!(Root);
    let place = Place::new();
    tree(&place.dir("source"), 20);
    let mounted = Setup::mode("frozen").arg("--readahead=4").mount_in(place);
    let _quiet = quiet_machine();
    let done = warm(&mounted, &[], None).clean();
    let says = done.out();
    assert!(says.starts_with("240 names in 41 directories"), "{says}");
    // The second refreshes the times of access, as after any first walk.
    let done = warm(&mounted, &["--quiet"], None).clean();
    assert!(done.stdout.is_empty());
    let referee = Referee::start(mounted.minor());
    run(&mut mounted.inside(&["find", ".", "-printf", "%s\\n"])).clean();
    let counts = referee.count().comparable();
    assert!(counts.total() <= 1, "{counts:?}");
    mounted.unmount();
}

/// One path of it, given by itself or below the mountpoint.
#[test]
fn one_path_is_warmed() {
    need!();
    let mounted = Setup::mode("frozen").mount();
    tree(mounted.source(), 3);
    for below in [Path::new("d1"), &mounted.at("d1"), Path::new("./d1/")] {
        let says = warm(&mounted, &[], Some(below)).clean().out();
        assert!(says.starts_with("11 names in 2 directories"), "{says}");
    }
    mounted.unmount();
}

/// Neither symlinks nor other filesystems are entered.
#[test]
fn it_stays_on_the_mirror() {
    need!(Root);
    let mounted = Setup::mode("frozen").mount();
    tree(mounted.source(), 1);
    symlink("/usr", mounted.below("link")).expect("symlink");
    symlink(".", mounted.below("loop")).expect("symlink");
    fs::create_dir(mounted.below("other")).expect("mkdir");
    let other = mounted.at("other");
    run(command(["mount", "-t", "tmpfs", "none"]).arg(&other)).clean();
    fs::create_dir_all(other.join("a/b")).expect("mkdir");
    let done = warm(&mounted, &[], None);
    let entered = warm(&mounted, &[], Some(Path::new("other")));
    let linked = warm(&mounted, &[], Some(Path::new("link")));
    run(command(["umount"]).arg(&other)).clean();
    let says = done.clean().out();
    assert!(says.starts_with("15 names in 3 directories"), "{says}");
    refused(&entered, 1, "something else is mounted");
    refused(&linked, 1, "not a directory");
    mounted.unmount();
}

/// Bad input: one line, and which exit code.
#[test]
fn bad_input() {
    need!();
    let mounted = Setup::mode("frozen").mount();
    fs::write(mounted.below("file"), "").expect("write");
    for (below, code, says) in [
        ("nowhere", 1, "no such file"),
        ("file", 1, "not a directory"),
        ("../up", 2, "not below"),
        ("/usr", 2, "not below"),
    ] {
        refused(&warm(&mounted, &[], Some(Path::new(below))), code, says);
    }
    let mut words = command([nameifs()]);
    words.args(["warm", "/proc"]);
    refused(&run(&mut words), 1, "not of nameifs");
    mounted.unmount();
}

/// Ctrl-C while the source hangs: a summary, exit 130, and the mirror goes on.
#[test]
fn it_can_be_interrupted() {
    need!();
    let mounted = Setup::mode("strict").mount();
    tree(mounted.source(), 3);
    mounted.signal(Signal::STOP);
    let mut words: Command = mounted.tool(&[OsStr::new("warm"), mounted.path().as_os_str()]);
    let mut child = words
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let pid = Pid::from_child(&child);
    // Once it waits for the signals it is at the mirror, or about to be.
    let comms = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).ok()?;
        let comm = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
        Some(tasks.flatten().filter_map(comm).collect::<Vec<_>>())
    };
    let listens = until(Duration::from_secs(20), || {
        comms()?
            .iter()
            .any(|comm| comm.trim() == "signals")
            .then_some(())
    });
    assert!(listens.is_some(), "it never listened");
    kill_process(pid, Signal::INT).expect("it runs");
    let status = wait_within(&mut child, Duration::from_secs(20));
    mounted.signal(Signal::CONT);
    assert_eq!(status.expect("it ends").code(), Some(130));
    mounted.unmount();
}
