//! `nameifs resolve`: one path walk, component by component (floor F7).
//!
//! Nothing is mounted. Caches that are empty at first answer only what the same
//! walk has met before, such as a name passed twice through a symlink.

use std::os::unix::ffi::OsStrExt;

use nameifs::fs::{Coherence, Fs, Options};
use nameifs::namei::{Outcome as Answer, Step};
use nameifs::source::Kind;
use nameifs::source::host::HostSource;

use super::{one_line, print, reason};
use crate::cli::{Outcome, ResolveArgs, failed};

/// Walks a path below a source and prints each step.
pub fn run(args: &ResolveArgs) -> Outcome {
    let shown = args.source.display();
    let source = HostSource::open(&args.source)
        .map_err(|e| failed(format!("cannot open source {shown}: {}", reason(&e))))?;
    let options = Options {
        coherence: Coherence::Frozen,
        ..Options::default()
    };
    let fs = Fs::new(source, options)
        .map_err(|e| failed(format!("cannot read source {shown}: {}", reason(&e.into()))))?;
    let mut steps = Vec::new();
    let walked = fs
        .namei()
        .walk(args.path.as_os_str().as_bytes(), true, &mut |step| {
            steps.push(step);
        })
        .map(drop);
    let mut text = format!("{:>20}  {:<12}  {:<12}  name\n", "inode", "kind", "answer");
    text.extend(steps.iter().map(line));
    print(&text)?;
    walked.map_err(|e| {
        let path = args.path.display();
        failed(format!(
            "cannot walk {path} below {shown}: {}",
            reason(&e.into())
        ))
    })
}

/// One component as a line of the table.
fn line(step: &Step) -> String {
    let (inode, kind) = match step.object {
        Some((inode, kind)) => (inode.to_string(), word(kind)),
        None => ("-".to_owned(), "absent"),
    };
    let answer = match step.outcome {
        Answer::Hit => "hit",
        Answer::NegativeHit => "negative hit",
        Answer::Miss => "miss",
    };
    let name = one_line(&String::from_utf8_lossy(&step.name));
    format!("{inode:>20}  {kind:<12}  {answer:<12}  {name}\n")
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Fifo => "fifo",
        Kind::CharDevice => "char device",
        Kind::Directory => "directory",
        Kind::BlockDevice => "block device",
        Kind::Regular => "file",
        Kind::Symlink => "symlink",
        Kind::Socket => "socket",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let step = |name: &[u8], object, outcome| Step {
            name: name.to_vec(),
            object,
            outcome,
        };
        for (step, text) in [
            (
                step(b"lib", Some((12, Kind::Directory)), Answer::Miss),
                "                  12  directory     miss          lib\n",
            ),
            (
                step(b"a\nb", Some((7, Kind::Symlink)), Answer::Hit),
                "                   7  symlink       hit           a\\nb\n",
            ),
            (
                step(b"gone", None, Answer::NegativeHit),
                "                   -  absent        negative hit  gone\n",
            ),
        ] {
            assert_eq!(line(&step), text);
        }
    }
}
