//! The command line, stage two: what it means (floor F7).
//!
//! Purpose: one checked [`Config`] from the long options and the `-o` lists of
//! a mount, or one line that says what does not fit.
//!
//! Contract: words of all `-o` lists are read from left to right and the last
//! one counts; a long option counts more than any list. `frozen` implies `ro`,
//! and asking for `rw` with it is misuse, except where mount(8) called, which
//! adds `rw` to everything. The times have a meaning in mode `ttl` only and are
//! checked but not used in the others, so that one line of fstab can be switched
//! between modes.

use std::ffi::{OsStr, OsString};
use std::num::NonZero;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use nameifs::dcache::DentryInit;
use nameifs::fs::{Coherence, Options, Readahead, Readdirplus, SlabinfoMode};
use nameifs::fuse::MountOptions;
use nameifs::name::Supply;
use nameifs::namei::Variant;
use nameifs::slab::{OptionError, SlabOptions};

use super::{Failure, MountArgs, list, misuse, value};

/// The smallest budget with which the caches can work at all.
const LEAST_CACHE: u64 = 64 << 10;

/// Directories that can be watched at all.
const MOST_WATCHES: usize = 100_000_000;

/// More threads than this serve nobody.
const MOST_THREADS: usize = 256;

/// Who asks; what the defaults depend on.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Effective user id 0.
    pub root: bool,
    /// Cores to run on.
    pub cores: usize,
}

impl Caller {
    /// This process.
    pub fn current() -> Self {
        Self {
            root: rustix::process::geteuid().is_root(),
            cores: std::thread::available_parallelism().map_or(1, NonZero::get),
        }
    }
}

/// A mount that is fully described.
#[derive(Debug)]
pub struct Config {
    /// Directory to mirror, as typed.
    pub source: PathBuf,
    /// Where, as typed.
    pub mountpoint: PathBuf,
    /// Stay in the foreground.
    pub foreground: bool,
    /// Be the daemon, and report readiness.
    pub daemon: bool,
    /// End with this parent process.
    pub tied_to: Option<u32>,
    /// Called without a command, so that the source may be a mistyped one.
    pub from_mount: bool,
    /// Change the flags of a mount that is there.
    pub remount: bool,
    /// Mount although the mountpoint holds names.
    pub nonempty: bool,
    /// Where the log goes.
    pub log: Option<PathBuf>,
    /// Name shown as the source in /proc/mounts, if not the source's path.
    pub fsname: Option<OsString>,
    /// For the filesystem.
    pub fs: Options,
    /// For the mount itself; its `fsname` is filled in when the source's path is known.
    pub mount: MountOptions,
}

/// What the `-o` lists say.
#[derive(Debug)]
struct Listed {
    args: MountArgs,
    read_only: Option<bool>,
    fsname: Option<OsString>,
    remount: bool,
    nonempty: bool,
    nosuid: bool,
    nodev: bool,
    noexec: bool,
    noatime: bool,
    allow_other: bool,
    allow_root: bool,
    auto_unmount: bool,
}

/// Words for mount(8), fstab(5) and libfuse that have no effect here.
const NO_EFFECT: &[&str] = &[
    "defaults",
    "default_permissions",
    "async",
    "atime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "subtype",
    // What /proc/mounts shows, which mount(8) repeats when it remounts.
    "user_id",
    "group_id",
    "max_read",
    "blksize",
    "lazytime",
    "nolazytime",
    "comment",
];

impl Listed {
    /// Reads every list, in order.
    fn read(lists: &[OsString]) -> Result<Self, Failure> {
        let mut listed = Self {
            args: MountArgs::default(),
            read_only: None,
            fsname: None,
            remount: false,
            nonempty: false,
            nosuid: true,
            nodev: true,
            noexec: false,
            noatime: false,
            allow_other: false,
            allow_root: false,
            auto_unmount: false,
        };
        for list in lists {
            let words = list::words(list.as_bytes())
                .map_err(|reason| misuse(format!("-o '{}' {reason}", list.to_string_lossy())))?;
            for word in words {
                listed.word(&word)?;
            }
        }
        Ok(listed)
    }

    /// Applies one word. `_` in a name is as good as `-`, as mount options have it.
    fn word(&mut self, word: &list::Word) -> Result<(), Failure> {
        let shown = String::from_utf8_lossy(&word.name).into_owned();
        let name = shown.replace('_', "-");
        let no_value = |name: &str| {
            misuse(format!(
                "-o {name} takes no value; leave out the '=' and what follows"
            ))
        };
        let valued = match name.as_str() {
            "coherence" => Some(&mut self.args.coherence),
            "max-watches" => Some(&mut self.args.max_watches),
            "ttl" => Some(&mut self.args.ttl),
            "negative-ttl" => Some(&mut self.args.negative_ttl),
            "attr-ttl" => Some(&mut self.args.attr_ttl),
            "cache-size" => Some(&mut self.args.cache_size),
            "threads" => Some(&mut self.args.threads),
            "slabinfo" => Some(&mut self.args.slabinfo),
            "passthrough" => Some(&mut self.args.passthrough),
            "readdirplus" => Some(&mut self.args.readdirplus),
            "readahead" => Some(&mut self.args.readahead),
            "getname" => Some(&mut self.args.getname),
            "dentry-init" => Some(&mut self.args.dentry_init),
            "slab-debug" => Some(&mut self.args.slab_debug),
            "slab-debug-action" => Some(&mut self.args.slab_debug_action),
            "fsname" => Some(&mut self.fsname),
            _ => None,
        };
        let value = word.value.clone().map(OsString::from_vec);
        let need = || misuse(format!("-o {shown} has no value; write {shown}=..."));
        if let Some(slot) = valued {
            *slot = Some(value.ok_or_else(need)?);
            return Ok(());
        }
        if name == "fail-slab" {
            let rule = value.ok_or_else(need)?;
            self.args.fail_slab.push(rule);
            return Ok(());
        }
        if name == "log" {
            self.args.log = Some(value.ok_or_else(need)?.into());
            return Ok(());
        }
        let ignored =
            NO_EFFECT.contains(&shown.as_str()) || shown.to_ascii_lowercase().starts_with("x-");
        if ignored {
            return Ok(());
        }
        let (flag, to) = match name.as_str() {
            "ro" | "read-only" => {
                self.read_only = Some(true);
                return if value.is_some() {
                    Err(no_value(&shown))
                } else {
                    Ok(())
                };
            }
            "rw" => {
                self.read_only = Some(false);
                return if value.is_some() {
                    Err(no_value(&shown))
                } else {
                    Ok(())
                };
            }
            "foreground" => (&mut self.args.foreground, true),
            "no-xattr" => (&mut self.args.no_xattr, true),
            "remount" => (&mut self.remount, true),
            "nonempty" => (&mut self.nonempty, true),
            "nosuid" => (&mut self.nosuid, true),
            "suid" => (&mut self.nosuid, false),
            "nodev" => (&mut self.nodev, true),
            "dev" => (&mut self.nodev, false),
            "noexec" => (&mut self.noexec, true),
            "exec" => (&mut self.noexec, false),
            "noatime" => (&mut self.noatime, true),
            "allow-other" => (&mut self.allow_other, true),
            "allow-root" => (&mut self.allow_root, true),
            "auto-unmount" => (&mut self.auto_unmount, true),
            _ => {
                return Err(misuse(format!(
                    "unknown mount option '{shown}'; nameifs mount --help lists them"
                )));
            }
        };
        *flag = to;
        if value.is_some() {
            Err(no_value(&shown))
        } else {
            Ok(())
        }
    }
}

/// An option's value and the name to use when complaining about it.
struct Typed<'a> {
    label: String,
    value: &'a OsStr,
}

impl Typed<'_> {
    fn wrong(&self, reason: &str) -> Failure {
        misuse(format!(
            "{} '{}' {reason}",
            self.label,
            self.value.to_string_lossy()
        ))
    }

    /// The value in its own syntax.
    fn parse<T: FromStr<Err = OptionError>>(&self) -> Result<T, Failure> {
        let text = self
            .value
            .to_str()
            .ok_or_else(|| self.wrong("is not text"))?;
        text.parse()
            .map_err(|why: OptionError| misuse(format!("{}: {why}", self.label)))
    }

    /// The choice that was made.
    fn choose<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T, Failure> {
        choices
            .iter()
            .find(|(word, _)| self.value == *word)
            .map(|(_, choice)| *choice)
            .ok_or_else(|| {
                let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
                self.wrong(&format!(
                    "is not a choice; it is one of {}",
                    words.join(", ")
                ))
            })
    }
}

/// The long option's value, else the list's.
fn pick<'a>(
    name: &str,
    long: &'a Option<OsString>,
    list: &'a Option<OsString>,
) -> Option<Typed<'a>> {
    let long = long.as_deref().map(|value| Typed {
        label: format!("--{name}"),
        value,
    });
    long.or_else(|| {
        list.as_deref().map(|value| Typed {
            label: format!("-o {name}"),
            value,
        })
    })
}

/// What the slab caches are told.
fn slab_options(args: &MountArgs, list: &MountArgs) -> Result<SlabOptions, Failure> {
    let mut slab = SlabOptions::default();
    if let Some(typed) = pick("slab-debug", &args.slab_debug, &list.slab_debug) {
        slab.debug = typed.parse()?;
    }
    let action = (&args.slab_debug_action, &list.slab_debug_action);
    if let Some(typed) = pick("slab-debug-action", action.0, action.1) {
        slab.action = typed.parse()?;
    }
    // The first rule that names a cache counts, so a long option's come first.
    for rule in args.fail_slab.iter().chain(&list.fail_slab) {
        let typed = Typed {
            label: "--fail-slab".to_owned(),
            value: rule,
        };
        slab.faults.push(typed.parse()?);
    }
    Ok(slab)
}

impl Config {
    /// Checks what was typed.
    ///
    /// # Errors
    /// Misuse: a value that means nothing, or options that exclude each other.
    pub fn check(args: MountArgs, caller: Caller) -> Result<Self, Failure> {
        let listed = Listed::read(&args.options)?;
        for (path, name) in [(&args.source, "SOURCE"), (&args.mountpoint, "MOUNTPOINT")] {
            if path.as_os_str().is_empty() {
                return Err(misuse(format!("{name} is empty; give a directory")));
            }
        }

        let coherence = pick("coherence", &args.coherence, &listed.args.coherence).map_or(
            Ok(Coherence::Auto),
            |typed| {
                typed.choose(&[
                    ("auto", Coherence::Auto),
                    ("watch", Coherence::Watch),
                    ("ttl", Coherence::Ttl),
                    ("frozen", Coherence::Frozen),
                    ("strict", Coherence::Strict),
                ])
            },
        )?;
        let time = |name, long, list, default| match pick(name, long, list) {
            Some(typed) => value::duration(typed.value.as_bytes()).map_err(|why| typed.wrong(why)),
            None => Ok(default),
        };
        let ttl = time("ttl", &args.ttl, &listed.args.ttl, Duration::from_secs(1))?;
        let negative_ttl = time(
            "negative-ttl",
            &args.negative_ttl,
            &listed.args.negative_ttl,
            ttl,
        )?;
        let attr_ttl = time("attr-ttl", &args.attr_ttl, &listed.args.attr_ttl, ttl)?;

        let cache_size = match pick("cache-size", &args.cache_size, &listed.args.cache_size) {
            Some(typed) => {
                let size = value::size(typed.value.as_bytes()).map_err(|why| typed.wrong(why))?;
                if size < LEAST_CACHE {
                    return Err(typed.wrong("is too small to work with; 64K is the least"));
                }
                size
            }
            None => 512 << 20,
        };
        let threads = match pick("threads", &args.threads, &listed.args.threads) {
            Some(typed) => value::count(typed.value.as_bytes(), 1, MOST_THREADS)
                .ok_or_else(|| typed.wrong("is not a number of threads; write 1 to 256"))?,
            None => caller.cores.clamp(2, MOST_THREADS),
        };
        let max_watches = match pick("max-watches", &args.max_watches, &listed.args.max_watches) {
            Some(typed) => {
                value::count(typed.value.as_bytes(), 0, MOST_WATCHES).ok_or_else(|| {
                    typed.wrong("is not a number of directories; write 0 to 100000000")
                })?
            }
            None => 1 << 20,
        };
        let slabinfo = pick("slabinfo", &args.slabinfo, &listed.args.slabinfo).map_or(
            Ok(SlabinfoMode::Hidden),
            |typed| {
                typed.choose(&[
                    ("hidden", SlabinfoMode::Hidden),
                    ("listed", SlabinfoMode::Listed),
                    ("off", SlabinfoMode::Off),
                ])
            },
        )?;
        let passthrough = pick("passthrough", &args.passthrough, &listed.args.passthrough)
            .map_or(Ok(true), |typed| {
                typed.choose(&[("auto", true), ("off", false)])
            })?;
        let readdirplus = pick("readdirplus", &args.readdirplus, &listed.args.readdirplus).map_or(
            Ok(Readdirplus::Auto),
            |typed| {
                typed.choose(&[
                    ("auto", Readdirplus::Auto),
                    ("always", Readdirplus::Always),
                    ("never", Readdirplus::Never),
                ])
            },
        )?;
        let readahead = match pick("readahead", &args.readahead, &listed.args.readahead) {
            Some(typed) if typed.value == "auto" => Readahead::Auto,
            Some(typed) if typed.value == "off" => Readahead::Off,
            Some(typed) => value::count(typed.value.as_bytes(), 1, MOST_THREADS)
                .map(Readahead::Threads)
                .ok_or_else(|| {
                    typed.wrong("is no way to read ahead; write auto, off or 1 to 256")
                })?,
            None => Readahead::Auto,
        };

        let getname = pick("getname", &args.getname, &listed.args.getname).map_or(
            Ok(Supply::default()),
            |typed| {
                typed.choose(&[
                    ("page", Supply::Page),
                    ("malloc", Supply::Malloc),
                    ("slab", Supply::Slab),
                    ("magazine", Supply::Magazine),
                ])
            },
        )?;
        let dentry_init = pick("dentry-init", &args.dentry_init, &listed.args.dentry_init)
            .map_or(Ok(DentryInit::default()), |typed| {
                typed.choose(&[("fields", DentryInit::Fields), ("zero", DentryInit::Zero)])
            })?;
        let variant = Variant {
            getname,
            dentry_init,
        };
        let slab = slab_options(&args, &listed.args)?;

        let frozen = coherence == Coherence::Frozen;
        let writable = listed.read_only == Some(false) && !args.read_only;
        if frozen && writable && !args.from_mount {
            return Err(misuse(
                "rw does not go with coherence=frozen; leave out one of them",
            ));
        }
        // What is frozen is refused by the daemon, so that drop_caches can be written; ro
        // is the kernel's.
        let ro = args.read_only || listed.read_only == Some(true);
        let read_only = frozen || ro;

        if listed.allow_other && listed.allow_root {
            return Err(misuse(
                "allow_other and allow_root exclude each other; leave out one",
            ));
        }
        // A mount by root is for everyone, as any other that mount(8) makes.
        let allow_other = listed.allow_other || (caller.root && !listed.allow_root);
        if listed.auto_unmount && !allow_other && !listed.allow_root {
            return Err(misuse(
                "auto_unmount works only with allow_other or allow_root; add one of them",
            ));
        }
        let log = args.log.or(listed.args.log);
        if log.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            return Err(misuse("--log has an empty file name; give a file"));
        }
        let foreground = args.foreground || listed.args.foreground;

        Ok(Self {
            source: args.source,
            mountpoint: args.mountpoint,
            foreground,
            daemon: args.daemon_child.is_some(),
            tied_to: args.tied_to,
            from_mount: args.from_mount,
            remount: listed.remount,
            nonempty: listed.nonempty,
            log,
            fsname: listed.fsname,
            fs: Options {
                coherence,
                ttl,
                negative_ttl,
                attr_ttl,
                cache_size,
                slabinfo,
                readdirplus,
                readahead,
                passthrough,
                read_only,
                max_watches,
                xattr: !(args.no_xattr || listed.args.no_xattr),
                owner: (
                    rustix::process::geteuid().as_raw(),
                    rustix::process::getegid().as_raw(),
                ),
                variant,
                slab,
                ..Options::default()
            },
            mount: MountOptions {
                fsname: OsString::new(),
                read_only: ro,
                nosuid: listed.nosuid,
                nodev: listed.nodev,
                noexec: listed.noexec,
                noatime: listed.noatime,
                allow_other,
                allow_root: listed.allow_root,
                auto_unmount: listed.auto_unmount,
                threads,
            },
        })
    }

    /// What /proc/mounts shows as the source, given the source's absolute path; with commas
    /// and backslashes escaped where it goes into a list of options.
    pub fn shown_source(&self, source: &Path, in_list: bool) -> OsString {
        let name = self.fsname.as_deref().unwrap_or(source.as_os_str());
        if !in_list {
            return name.to_owned();
        }
        let mut escaped = Vec::with_capacity(name.len());
        for &byte in name.as_bytes() {
            if matches!(byte, b',' | b'\\') {
                escaped.push(b'\\');
            }
            escaped.push(byte);
        }
        OsString::from_vec(escaped)
    }
}

#[cfg(test)]
mod tests;
