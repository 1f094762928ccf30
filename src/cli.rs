//! The command line, stage one: what was typed (floor F7).
//!
//! Purpose: turn `argv` into a [`Cli`], or into one line that says what to do.
//! Values stay the bytes that were typed; [`config`] gives them meaning.
//!
//! Contract: misuse is one line and exit code 2, failure one line and exit
//! code 1; `--help` and `--version` go to the standard output and exit 0.
//!
//! It touches no file and mounts nothing.

pub mod config;
mod list;
pub mod value;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

/// Why a command did not do what was asked; the text is one line without the program's name.
#[derive(Debug)]
pub enum Failure {
    /// It was asked wrongly: exit code 2.
    Misuse(String),
    /// It went wrong: exit code 1.
    Failed(String),
    /// It was ended by a signal and has cleaned up: exit code 128 + signal.
    Interrupted(i32),
    /// Another process has said why and ended with this exit code.
    Told(u8),
}

/// What every command returns.
pub type Outcome = Result<(), Failure>;

/// A [`Failure::Failed`] with this text.
pub fn failed(text: impl Into<String>) -> Failure {
    Failure::Failed(text.into())
}

/// A [`Failure::Misuse`] with this text.
pub fn misuse(text: impl Into<String>) -> Failure {
    Failure::Misuse(text.into())
}

/// Mirrors a directory tree through FUSE and makes its names cheap.
///
/// Without a command, `nameifs SOURCE MOUNTPOINT -o LIST` mounts, as mount(8)
/// and mount.fuse3(8) call it.
#[derive(Debug, Parser)]
#[command(name = "nameifs", version, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Mount a mirror of SOURCE on MOUNTPOINT
    Mount(Box<MountArgs>),
    /// Unmount a mirror and wait until its daemon has ended
    Umount(UmountArgs),
    /// Show what a mirror has done: requests, hits, source calls, slab caches
    Stat(StatArgs),
    /// Watch a mirror's slab caches and names as slabtop(1) shows the kernel's
    Top(TopArgs),
    /// Look everything up anew, or PATH and what is beneath it
    Drop(DropArgs),
    /// Walk a mirror, or PATH of it, so that later walks find its names cached
    Warm(WarmArgs),
    /// Walk PATH below SOURCE and print each component, its inode, hit or miss
    Resolve(ResolveArgs),
    /// Compare find on SOURCE with find through a mirror of it
    Demo(DemoArgs),
    /// Repeat one of the experiments that the project comes from
    Bench(BenchArgs),
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

/// `nameifs drop` as typed.
#[derive(Args, Debug)]
pub struct DropArgs {
    /// The mirror
    pub mountpoint: PathBuf,
    /// Path below it [default: everything]
    pub path: Option<PathBuf>,
}

/// `nameifs warm` as typed.
#[derive(Args, Clone, Debug)]
pub struct WarmArgs {
    /// The mirror
    pub mountpoint: PathBuf,
    /// Path below it [default: everything]
    pub path: Option<PathBuf>,
    /// Show nothing unless it fails
    #[arg(short, long)]
    pub quiet: bool,
}

/// `nameifs mount` as typed.
#[derive(Args, Debug, Default)]
pub struct MountArgs {
    /// Directory to mirror
    pub source: PathBuf,
    /// Empty directory to mount on, or SOURCE itself
    pub mountpoint: PathBuf,

    /// Stay in the foreground until unmounted
    #[arg(short, long)]
    pub foreground: bool,

    /// Mount options as for mount(8), separated by commas: each long option by
    /// its name without dashes, and ro rw nosuid suid nodev dev noexec exec
    /// noatime allow_other allow_root auto_unmount nonempty fsname=NAME
    #[arg(short = 'o', value_name = "LIST")]
    pub options: Vec<OsString>,

    /// How changes made beneath the mount come to show: watch (told at once), ttl
    /// (after a time), frozen (not until dropped), strict (every name is asked) or
    /// auto (watch where the filesystem tells, else ttl) [default: auto]
    #[arg(long, value_name = "MODE")]
    pub coherence: Option<OsString>,

    /// How long names and attributes are believed in mode ttl, and in mode watch
    /// where nobody tells of changes [default: 1s]
    #[arg(long, value_name = "TIME")]
    pub ttl: Option<OsString>,

    /// How long a name's absence is believed in mode ttl [default: as --ttl]
    #[arg(long, value_name = "TIME")]
    pub negative_ttl: Option<OsString>,

    /// How long attributes are believed in mode ttl [default: as --ttl]
    #[arg(long, value_name = "TIME")]
    pub attr_ttl: Option<OsString>,

    /// Directories that may be watched in mode watch [default: 1M]
    #[arg(long, value_name = "N")]
    pub max_watches: Option<OsString>,

    /// Memory that the caches may take, with K, M or G [default: 512M]
    #[arg(long, value_name = "SIZE")]
    pub cache_size: Option<OsString>,

    /// Threads that serve requests [default: one per core, at least 2]
    #[arg(long, value_name = "N")]
    pub threads: Option<OsString>,

    /// The files .slabinfo and .nameifs in the root: hidden (openable, not
    /// listed), listed or off [default: hidden]
    #[arg(long, value_name = "MODE")]
    pub slabinfo: Option<OsString>,

    /// Let the kernel read files without asking: auto (where it may) or off [default: auto]
    #[arg(long, value_name = "MODE")]
    pub passthrough: Option<OsString>,

    /// Attributes together with names when a directory is read: auto, always
    /// or never [default: auto]
    #[arg(long, value_name = "MODE")]
    pub readdirplus: Option<OsString>,

    /// Read the subdirectories of a directory that is read ahead: auto (where the
    /// source's calls are measured to be slow), off, or by N threads [default: auto]
    #[arg(long, value_name = "N|MODE")]
    pub readahead: Option<OsString>,

    /// Refuse every change; the same as -o ro
    #[arg(long)]
    pub read_only: bool,

    /// Hide extended attributes
    #[arg(long)]
    pub no_xattr: bool,

    /// Append the log to FILE; RUST_LOG says what is logged [default: info]
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,

    /// Where name buffers come from, for the experiment of 1999: page, malloc, slab or
    /// magazine [default: magazine]
    #[arg(long, value_name = "SUPPLY")]
    pub getname: Option<OsString>,

    /// How a new dentry is filled in, for the experiment of 2007: fields (each is set) or
    /// zero (all of it first) [default: fields]
    #[arg(long, value_name = "HOW")]
    pub dentry_init: Option<OsString>,

    /// Check slab caches as the kernel's slab_debug= does: F consistency, Z red zones,
    /// P poison, U users; for the caches named, or all. Several blocks with ';' between
    #[arg(long, value_name = "FZPU[,CACHE...]")]
    pub slab_debug: Option<OsString>,

    /// What follows a report of --slab-debug: continue or abort [default: continue]
    #[arg(long, value_name = "ACTION")]
    pub slab_debug_action: Option<OsString>,

    /// Let allocations of a slab cache fail, as the kernel's failslab does; may be given
    /// several times
    #[arg(long, value_name = "CACHE:every=N,times=M")]
    pub fail_slab: Vec<OsString>,

    /// Internal: be the daemon of this (absolute) mountpoint, and tell the
    /// standard output when ready
    #[arg(long, hide = true, value_name = "MOUNTPOINT")]
    pub daemon_child: Option<PathBuf>,

    /// Internal: unmount when the process with this id, the parent, ends
    #[arg(long, hide = true, value_name = "PID", requires = "daemon_child")]
    pub tied_to: Option<u32>,

    /// Internal: called without a command, as mount(8) does, which always adds rw
    #[arg(long, hide = true)]
    pub from_mount: bool,
}

/// `nameifs umount` as typed.
#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Where the mirror is mounted
    pub mountpoint: PathBuf,
    /// Detach at once although in use; the daemon ends with the last user
    #[arg(short, long)]
    pub lazy: bool,
}

/// `nameifs stat` as typed.
#[derive(Args, Debug)]
pub struct StatArgs {
    /// Where the mirror is mounted
    pub mountpoint: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `nameifs top` as typed; the options are slabtop's.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Where the mirror is mounted
    pub mountpoint: PathBuf,
    /// Seconds between two looks, such as 0.5
    #[arg(short, long, value_name = "N", default_value = "3")]
    pub delay: OsString,
    /// Sort by a active objects, b objects per slab, c cache size, l slabs, v active
    /// slabs, n name, o objects, p pages per slab, s object size, u use
    #[arg(short, long, value_name = "C", default_value = "o")]
    pub sort: OsString,
    /// Print one screen and end
    #[arg(short, long)]
    pub once: bool,
}

/// `nameifs resolve` as typed.
#[derive(Args, Debug)]
pub struct ResolveArgs {
    /// Directory that the walk starts in and cannot leave
    pub source: PathBuf,
    /// Path to walk, relative to SOURCE
    pub path: PathBuf,
}

/// `nameifs demo` as typed.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Directory to mirror
    #[arg(default_value = "/usr")]
    pub source: PathBuf,
    /// Rounds of warm walks
    #[arg(long, value_name = "N", default_value = "5")]
    pub rounds: OsString,
}

/// `nameifs bench` as typed.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Which: getname, find over mirrors that differ in where name buffers come from (1999)
    #[arg(value_parser = ["getname"])]
    pub experiment: String,
    /// Directory to mirror
    #[arg(default_value = "/usr/share")]
    pub source: PathBuf,
    /// Rounds of each
    #[arg(long, value_name = "N", default_value = "9")]
    pub rounds: OsString,
}

/// Parses a command line.
///
/// `Ok(Err(text))` is help or version, to be printed as it is.
pub fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<Result<Cli, String>, Failure> {
    let mut argv: Vec<OsString> = argv.into_iter().collect();
    if is_mount_call(&argv) {
        argv.splice(1..1, ["mount".into(), "--from-mount".into()]);
    }
    let parsed = Cli::command()
        .args_override_self(true)
        .try_get_matches_from(argv)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    match parsed {
        Ok(cli) => Ok(Ok(cli)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Err(error.to_string())),
            _ => Err(misuse(one_line(&error))),
        },
    }
}

/// Whether no command was given but something to mount: `nameifs SOURCE MOUNTPOINT ...`.
fn is_mount_call(argv: &[OsString]) -> bool {
    let Some(first) = argv.get(1) else {
        return false;
    };
    let global = ["-h", "--help", "-V", "--version"];
    let command = Cli::command();
    let is_command = command.get_subcommands().any(|c| first == c.get_name());
    !is_command && !global.iter().any(|flag| first == flag)
}

/// clap's error as one line that says what to do.
fn one_line(error: &clap::Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(" and "),
        _ => String::new(),
    };
    let argument = text(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let what = if argument.starts_with('-') {
                "unknown option"
            } else {
                "one too many:"
            };
            match error.get(ContextKind::SuggestedArg) {
                Some(ContextValue::String(near)) => {
                    format!("{what} '{argument}'; did you mean {near}?")
                }
                _ => format!("{what} '{argument}'; see nameifs --help"),
            }
        }
        ErrorKind::MissingRequiredArgument => {
            let names = argument.replace(['<', '>'], "");
            let verb = if names.contains(" and ") { "are" } else { "is" };
            format!("{names} {verb} missing; see nameifs --help")
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            "nothing to do; try nameifs mount SOURCE MOUNTPOINT, or see nameifs --help".into()
        }
        ErrorKind::InvalidValue if text(ContextKind::InvalidValue).is_empty() => {
            format!("{argument} has no value; see nameifs --help")
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let value = text(ContextKind::InvalidValue);
            format!("{argument} cannot be '{value}'; see nameifs --help")
        }
        ErrorKind::TooManyValues => {
            let value = text(ContextKind::InvalidValue);
            format!("{argument} takes no value, so not '{value}'; see nameifs --help")
        }
        _ => {
            let rendered = error.to_string();
            let first = rendered.lines().next().unwrap_or_default();
            let first = first.strip_prefix("error: ").unwrap_or(first);
            format!("{first}; see nameifs --help")
        }
    }
}

#[cfg(test)]
mod tests;
