//! `nameifs top`: the numbers are the mirror's and slabtop's, and the terminal is as it was
//! before on every way out.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use rustix::process::Signal;

use crate::cli::{refused, tool};
use crate::harness::{Mounted, Place, Setup};
use crate::need;
use crate::run::{command, run, until};
use crate::slabinfo::with_tool;
use crate::terminal::{Live, SOON};

fn once(mounted: &Mounted, options: &[&str]) -> String {
    let mut words = vec![OsStr::new("top"), OsStr::new("-o")];
    words.extend(options.iter().map(OsStr::new));
    words.push(mounted.path().as_os_str());
    tool(&words).clean().out()
}

/// The rows of a screen by name: objects, active, slabs, objects of a slab.
fn rows(text: &str) -> BTreeMap<String, [u64; 4]> {
    let number = |word: &str| word.parse().expect("a number");
    text.lines()
        .skip_while(|l| !l.contains("OBJS"))
        .skip(1)
        .map(
            |line| match *line.split_ascii_whitespace().collect::<Vec<_>>() {
                [objs, active, _, _, slabs, per_slab, _, name] => {
                    (name.to_owned(), [objs, active, slabs, per_slab].map(number))
                }
                _ => panic!("no row: {line:?}"),
            },
        )
        .collect()
}

/// A mirror that stays as it is, with something in its caches.
fn still() -> Mounted {
    let mounted = Setup::mode("frozen")
        .source(Path::new("/usr/include"))
        .mount();
    run(&mut mounted.inside(&["find", "."])).clean();
    mounted.at("absent").metadata().expect_err("it is absent");
    mounted
}

/// Every cache is there with the numbers of `.slabinfo`, and the names with those of
/// `.nameifs/stats`.
#[test]
fn once_shows_what_the_mirror_tells() {
    need!();
    let mounted = still();
    let info = mounted.slabinfo();
    let text = once(&mounted, &[]);
    let rows = rows(&text);
    assert!(rows.keys().eq(info.keys()), "{info:?} in\n{text}");
    let stays = ["getname_cache", "dentry", "inode"];
    for (name, line) in info
        .iter()
        .filter(|(name, _)| stays.contains(&name.as_str()))
    {
        let wanted = [line.total, line.active, line.slabs, line.per_slab];
        assert_eq!(rows[name], wanted, "{name} in\n{text}");
    }
    let stats = mounted.stats();
    let wanted = format!(
        "{} / {} / {}",
        stats.dcache("dentries"),
        stats.dcache("negative_dentries"),
        stats.dcache("bytes")
    );
    let dentries = text.lines().find(|l| l.contains("Dentries")).unwrap_or("");
    assert!(dentries.ends_with(&wanted), "no {wanted} in\n{text}");
    assert!(stats.dcache("negative_dentries") > 0);
    assert!(!text.contains('\x1b'), "{}", text.escape_debug());
    mounted.unmount();
}

/// slabtop says the same of the same mirror, line by line, in every order that both have.
#[test]
fn once_says_what_slabtop_says() {
    need!(Root, Program("slabtop"), Program("unshare"));
    let mounted = still();
    for sort in ["a", "b", "c", "l", "n", "o", "p", "s", "u"] {
        // Objects that are in use for the reading itself come and go meanwhile.
        let mut last = (String::new(), String::new());
        let same = until(SOON, || {
            let ours = once(&mounted, &["-s", sort]);
            let ours: Vec<&str> = ours
                .lines()
                .skip_while(|l| !l.contains("Objects"))
                .collect();
            let slabtop = with_tool(&mounted, &["slabtop", "-o", "-s", sort]);
            let slabtop: Vec<&str> = slabtop.lines().collect();
            last = (ours.join("\n"), slabtop.join("\n"));
            (last.0 == last.1).then_some(())
        });
        assert!(
            same.is_some(),
            "by {sort}:\n{}\nslabtop:\n{}",
            last.0,
            last.1
        );
    }
    mounted.unmount();
}

/// What cannot be: one line, exit 2 for misuse and 1 for failure.
#[test]
fn refusals() {
    need!();
    let mounted = Setup::new().mount();
    let at = mounted.path().to_str().expect("a plain path");
    let off = Setup::new().arg("--slabinfo=off").mount();
    let hidden = off.path().to_str().expect("a plain path");
    let place = Place::new();
    let plain = place.dir("plain");
    let plain = plain.to_str().expect("a plain path");
    let table: &[(&[&str], i32, &str)] = &[
        (&[at], 2, "not a terminal"),
        (&["-d", "0", "-o", at], 2, "--delay '0'"),
        (&["-d", "soon", "-o", at], 2, "soon"),
        (&["--delay=-1", "-o", at], 2, "-1"),
        (&["-s", "x", "-o", at], 2, "a b c l v n o p s u"),
        (&["-s", "", "-o", at], 2, "--sort ''"),
        (&["-x", at], 2, "-x"),
        (&["-o"], 2, "MOUNTPOINT is missing"),
        (&["-o", plain], 1, "nothing is mounted"),
        (&["-o", "/proc"], 1, "not of nameifs"),
        (&["-o", "/no/such/place"], 1, "cannot reach"),
        (&["-o", hidden], 1, "--slabinfo=off"),
    ];
    for (words, code, says) in table {
        let words: Vec<&str> = ["top"].iter().chain(*words).copied().collect();
        refused(&tool(&words), *code, says);
    }
    off.unmount();
    mounted.unmount();
}

/// The names of the caches in the order of the screen.
fn names(screen: &[String]) -> Vec<&str> {
    screen
        .iter()
        .skip_while(|l| !l.contains("OBJS"))
        .skip(1)
        .filter_map(|l| l.split_ascii_whitespace().last())
        .collect()
}

fn line_with<'a>(screen: &'a [String], word: &str) -> &'a str {
    let line = screen.iter().find(|line| line.contains(word));
    line.map_or("", String::as_str)
}

/// The keys do what slabtop's do, a new size is filled, rates come with the second look,
/// and q ends.
#[test]
fn live_until_q() {
    need!(Program("script"));
    let mounted = still();
    for i in 0..100 {
        let absent = mounted.at(format!("absent-{i}"));
        absent.metadata().expect_err("it is absent");
    }
    let mut live = Live::start(&mounted, "-d 3600 -s o");
    let first = live.wait_for("all of it", |s| names(s).contains(&"filp"));
    assert!(line_with(&first, "mirrors /usr/include").len() < 80);
    assert!(
        line_with(&first, "Lookups").ends_with("- / - / -"),
        "{first:?}"
    );
    live.press("n");
    live.wait_for("sorted by name", |s| {
        let names = names(s);
        names.len() > 3 && names.is_sorted()
    });
    live.press(" ");
    let next = live.wait_for("a rate", |s| !line_with(s, "Lookups").contains("- / -"));
    assert!(names(&next).is_sorted(), "{next:?}");
    let tty = live.file("tty");
    run(&mut command([
        "stty", "-F", &tty, "rows", "12", "cols", "30",
    ]))
    .clean();
    live.wait_for("a small screen", |s| {
        names(s).len() <= 1 && s.iter().all(|line| line.len() <= 30)
    });
    run(&mut command([
        "stty", "-F", &tty, "rows", "40", "cols", "100",
    ]))
    .clean();
    live.wait_for("a large screen", |s| names(s).len() > 3);
    live.press("q");
    assert_eq!(live.ended().clean().code(), 0);
    mounted.unmount();
}

/// It looks again by itself.
#[test]
fn live_by_itself() {
    need!(Program("script"));
    let mounted = still();
    let mut live = Live::start(&mounted, "-d 0.2");
    live.wait_for("a rate", |s| !line_with(s, "Lookups").contains("- / -"));
    let before = mounted.stats().dcache("negative_dentries");
    for i in 0..50 {
        let absent = mounted.at(format!("absent-{i}"));
        absent.metadata().expect_err("it is absent");
    }
    let wanted = format!(" / {} / ", before + 50);
    live.wait_for("50 absent names more", |s| {
        line_with(s, "Dentries").contains(&wanted)
    });
    live.press("Q");
    live.ended().clean();
    mounted.unmount();
}

/// Signals, and Ctrl-C: 128 and the signal's number, and the terminal as it was.
#[test]
fn live_until_a_signal() {
    need!(Program("script"));
    let mounted = still();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let live = Live::start(&mounted, "-d 3600");
        live.signal(signal);
        let done = live.ended();
        assert_eq!(done.code(), 128 + signal.as_raw(), "{}", done.err());
        assert!(done.stderr.is_empty(), "{}", done.err());
    }
    let mut live = Live::start(&mounted, "-d 3600");
    live.press("\x03");
    assert_eq!(live.ended().code(), 130);
    mounted.unmount();
}

/// It keeps nobody from unmounting, and ends at once when that is done: exit 1, one line.
#[test]
fn live_until_unmounted() {
    need!(Program("script"));
    let mounted = still();
    let live = Live::start(&mounted, "-d 3600");
    mounted.umount_command().expect("umount ends").clean();
    refused(&live.ended(), 1, "has been unmounted");
    mounted.unmount();
}

/// A daemon that is stopped until this is dropped: nothing waits for it for ever.
struct Stopped<'a>(&'a Mounted);

impl<'a> Stopped<'a> {
    fn new(mounted: &'a Mounted) -> Self {
        mounted.signal(Signal::STOP);
        Self(mounted)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

/// A daemon that stops is told on the screen, and q still ends; one that dies ends it.
#[test]
fn live_without_a_daemon() {
    need!(Program("script"));
    let mut mounted = still();
    let mut live = Live::start(&mounted, "-d 0.2");
    let stopped = Stopped::new(&mounted);
    live.wait_for("late", |s| {
        line_with(s, "mirrors").contains("does not answer")
    });
    live.press("q");
    let done = live.ended();
    drop(stopped);
    done.clean();
    let live = Live::start(&mounted, "-d 0.2");
    mounted.expect_unclean();
    mounted.signal(Signal::KILL);
    refused(&live.ended(), 1, "has died");
    mounted.unmount();
}
