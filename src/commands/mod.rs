//! The commands, one per file (floor F7), and what they share.

mod bench;
mod check;
mod daemon;
mod demo;
mod drop;
mod log;
mod man;
mod measure;
mod mount;
mod mountinfo;
mod resolve;
mod stat;
mod top;
mod umount;
mod warm;

use std::io::{self, Write};
use std::path::{Component, Path};

use crate::cli::{Cli, Command, Failure, Outcome, failed, misuse};

/// Does what was asked.
pub fn run(cli: Cli) -> Outcome {
    match cli.command {
        Command::Mount(args) => mount::run(*args),
        Command::Umount(args) => umount::run(&args),
        Command::Drop(args) => drop::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Warm(args) => warm::run(&args),
        Command::Resolve(args) => resolve::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Man => man::run(),
    }
}

/// Writes to the standard output. A reader that has gone away is no failure.
pub fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(failed(format!(
            "cannot write to the standard output: {}",
            reason(&e)
        ))),
        _ => Ok(()),
    }
}

/// `path`, given with the mountpoint in front or without it, from the mountpoint on.
fn path_below<'a>(mountpoint: &Path, path: &'a Path) -> Result<&'a Path, Failure> {
    let below = path.strip_prefix(mountpoint).unwrap_or(path);
    let leaves = |c: Component<'_>| matches!(c, Component::ParentDir | Component::RootDir);
    if below.components().any(leaves) {
        return Err(misuse(format!(
            "{} is not below {}; give a path below the mountpoint",
            path.display(),
            mountpoint.display()
        )));
    }
    Ok(below)
}

/// One line on the standard error, whatever bytes a path in it holds.
pub fn complain(text: &str) {
    // Nowhere is left to report a failure to report.
    let _ = writeln!(io::stderr(), "nameifs: {}", one_line(text));
}

/// Control characters written as escapes, so that one line stays one line.
fn one_line(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut line, c| {
            if c.is_control() {
                line.extend(c.escape_default());
            } else {
                line.push(c);
            }
            line
        })
}

/// What went wrong, without Rust's `(os error 2)`.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match (error.raw_os_error(), text.rfind(" (os error")) {
        (Some(_), Some(end)) => {
            let mut text = text[..end].to_owned();
            if let Some(first) = text.get_mut(..1) {
                first.make_ascii_lowercase();
            }
            text
        }
        _ => text.trim_end().to_owned(),
    }
}

/// A number with commas between thousands.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The name of a mount's virtual directory.
const VIRTUAL_DIR: &str = ".nameifs";
/// The name of a mount's slab statistics.
const SLABINFO: &str = ".slabinfo";

/// The path of a mount's counters.
fn stats_path(mountpoint: &Path) -> std::path::PathBuf {
    mountpoint.join(VIRTUAL_DIR).join("stats")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [
            (0, "0"),
            (12, "12"),
            (999, "999"),
            (1000, "1,000"),
            (132_597, "132,597"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(thousands(number), text);
        }
    }

    #[test]
    fn a_line_stays_one_line() {
        assert_eq!(one_line("a\nb\tc\u{1b}[0m"), "a\\nb\\tc\\u{1b}[0m");
        assert_eq!(one_line("plain 'text'"), "plain 'text'");
    }

    #[test]
    fn reasons_are_plain() {
        let e = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(reason(&e), "no such file or directory");
        assert_eq!(reason(&io::Error::other("as said\n")), "as said");
    }
}
