//! `nameifs top`: a mirror's caches as they are now, again and again (floor F7).
//!
//! Looks like slabtop(1), for whoever knows that one. Each look opens the mirror's
//! own files and closes them again, so that watching keeps nobody from unmounting.
//!
//! [`screen`] says what a screen shows, [`live`] has the terminal.

mod live;
mod screen;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use screen::{Counts, Sample, Screen, Sort};

use super::mountinfo::{self, Mount};
use super::{one_line, print, reason, stat, umount};
use crate::cli::{Failure, Outcome, TopArgs, failed, misuse, value};

/// Shows one mirror until told to quit, or once.
pub fn run(args: &TopArgs) -> Outcome {
    let delay = delay(args)?;
    let sort = sort(args)?;
    if !args.once && !io::stdout().is_terminal() {
        return Err(misuse(
            "the standard output is not a terminal; add --once for one screen",
        ));
    }
    let mount = umount::mirror_at(&args.mountpoint)?;
    let title = format!(
        "{} mirrors {}",
        mount.mountpoint.display(),
        mount.source.to_string_lossy()
    );
    // Before the terminal is touched: what fails at once then reads like any other failure.
    let screen = Screen::new(one_line(&title), sort, look(&mount)?);
    if args.once {
        return print(&(screen.lines().join("\n") + "\n"));
    }
    live::run(screen, delay, mount)
}

fn delay(args: &TopArgs) -> Result<Duration, Failure> {
    let shown = args.delay.to_string_lossy();
    let delay = value::duration(args.delay.as_encoded_bytes())
        .map_err(|why| misuse(format!("--delay '{shown}' {why}")))?;
    if delay.is_zero() {
        return Err(misuse(format!(
            "--delay '{shown}' is no time at all; write for example 0.5"
        )));
    }
    Ok(delay)
}

fn sort(args: &TopArgs) -> Result<Sort, Failure> {
    let letter = args.sort.to_str().and_then(|text| {
        let mut letters = text.chars();
        letters.next().filter(|_| letters.next().is_none())
    });
    letter.and_then(Sort::by_letter).ok_or_else(|| {
        misuse(format!(
            "--sort '{}' is not a letter to sort by; write one of {}",
            args.sort.to_string_lossy(),
            Sort::letters()
        ))
    })
}

/// What a mirror tells now.
///
/// # Errors
/// It is gone, or cannot be read.
fn look(mount: &Mount) -> Result<Sample, Failure> {
    let read = stat::read(&mount.mountpoint);
    // Asked afterwards: what was read may be another's, and an error may come from there being
    // nothing left to read.
    if !is_there(mount) {
        return Err(gone(mount));
    }
    let (stats, caches) = read?;
    let counts = Counts::read(&stats).ok_or_else(|| stat::odd("stats"))?;
    Ok(Sample {
        at: Instant::now(),
        counts,
        caches,
    })
}

/// Whether this very mount is still the one at its place.
fn is_there(mount: &Mount) -> bool {
    match mountinfo::find(&mount.mountpoint) {
        Ok(now) => now.is_some_and(|now| (now.id, now.minor) == (mount.id, mount.minor)),
        // A table that cannot be read says nothing against the mount; reading the mirror tells.
        Err(_) => true,
    }
}

fn gone(mount: &Mount) -> Failure {
    failed(format!(
        "{} has been unmounted; there is nothing left to show",
        mount.mountpoint.display()
    ))
}

/// The terminal cannot be used.
fn unusable(error: &io::Error) -> Failure {
    failed(format!(
        "cannot use the terminal: {}; add --once for one screen",
        reason(error)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(delay: &str, sort: &str) -> TopArgs {
        TopArgs {
            mountpoint: "/mnt".into(),
            delay: delay.into(),
            sort: sort.into(),
            once: false,
        }
    }

    #[test]
    fn delays() {
        for (text, millis) in [
            ("3", Some(3000)),
            ("0.5", Some(500)),
            ("250ms", Some(250)),
            ("0", None),
            ("0.0", None),
            ("", None),
            ("-1", None),
            ("soon", None),
            ("nan", None),
        ] {
            match (delay(&args(text, "o")), millis) {
                (Ok(got), Some(millis)) => assert_eq!(got, Duration::from_millis(millis)),
                (Err(Failure::Misuse(why)), None) => {
                    assert!(why.contains("; "), "{text:?} says not what to do: {why}");
                }
                (other, _) => panic!("{text:?} gave {other:?}"),
            }
        }
    }

    #[test]
    fn sorts() {
        for (text, wanted) in [
            ("o", Some(Sort::Objects)),
            ("C", Some(Sort::CacheSize)),
            ("", None),
            ("x", None),
            ("q", None),
            ("oo", None),
        ] {
            match (sort(&args("3", text)), wanted) {
                (Ok(got), Some(wanted)) => assert_eq!(got, wanted),
                (Err(Failure::Misuse(why)), None) => {
                    assert!(why.contains("a b c l v n o p s u"), "{why}");
                }
                (other, _) => panic!("{text:?} gave {other:?}"),
            }
        }
    }

    /// Another mount at the same place, or none, is not the one that was looked at.
    #[test]
    fn a_mount_that_has_gone_is_missed() {
        let root = mountinfo::find(std::path::Path::new("/")).unwrap().unwrap();
        assert!(is_there(&root));
        let id = root.id.wrapping_add(1);
        assert!(!is_there(&Mount { id, ..root.clone() }));
        let mountpoint = "/no/such/mountpoint".into();
        assert!(!is_there(&Mount { mountpoint, ..root }));
    }
}
