//! What is run over a tree, and how one run is timed.

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::process::{Pid, Signal};
use tempfile::NamedTempFile;

use crate::mirror;
use crate::support::Random;

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Until the last process ended, or the loop itself where the work is a loop of ours.
    pub elapsed: Duration,
    /// User time of the processes.
    pub user: Duration,
    /// System time of the processes.
    pub system: Duration,
}

/// Ends a run that hangs: kills the processes and aborts the connections.
struct Watchdog(mpsc::Sender<()>);

impl Watchdog {
    fn arm(children: &[Child], limits: &Limits) -> Self {
        let (sender, receiver) = mpsc::channel();
        let pids: Vec<Pid> = children.iter().map(Pid::from_child).collect();
        let limits = limits.clone();
        thread::spawn(move || {
            if receiver.recv_timeout(limits.timeout) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!(
                    "bench: a run took longer than {:?}; aborted",
                    limits.timeout
                );
                for pid in pids {
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                }
                for connection in limits.connections {
                    mirror::abort(connection);
                }
            }
        });
        Self(sender)
    }

    fn disarm(self) {
        let _ = self.0.send(());
    }
}

/// When a run is given up, and whom to abort then.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Longest run.
    pub timeout: Duration,
    /// Connections that the run may wait for.
    pub connections: Vec<u32>,
}

fn children_usage() -> io::Result<(Duration, Duration)> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = |t: nix::sys::time::TimeVal| Duration::from_micros(t.num_microseconds() as u64);
    Ok((micros(usage.user_time()), micros(usage.system_time())))
}

/// Runs `copies` of a command at once. The output of the commands goes to `output` if given
/// (then one copy), otherwise to /dev/null.
fn run(make: &dyn Fn() -> Command, copies: usize, limits: &Limits) -> io::Result<(Run, Vec<u8>)> {
    let (user, system) = children_usage()?;
    let start = Instant::now();
    let mut children = Vec::new();
    for _ in 0..copies {
        children.push(make().stdin(Stdio::null()).spawn()?);
    }
    let watchdog = Watchdog::arm(&children, limits);
    let mut output = Vec::new();
    let mut failed = None;
    for mut child in children {
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_until(0, &mut output)?;
        }
        let status = child.wait()?;
        if !status.success() {
            failed = Some(status);
        }
    }
    let elapsed = start.elapsed();
    watchdog.disarm();
    if let Some(status) = failed {
        return Err(io::Error::other(format!(
            "{:?} failed ({status})",
            make().get_program()
        )));
    }
    let (user_after, system_after) = children_usage()?;
    let run = Run {
        elapsed,
        user: user_after - user,
        system: system_after - system,
    };
    Ok((run, output))
}

/// The same work for every column; the tree's root is the only difference.
#[derive(Clone, Debug)]
pub enum Work {
    /// A command of the system; the root is put in place of `{}`.
    Command(&'static [&'static str], usize),
    /// A loop of system calls in a child of this binary.
    Storm(Storm),
}

/// Which names a storm asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storm {
    /// Names that are there, each once.
    Known,
    /// 1,000 names that are not there, each 100 times.
    AbsentSame,
    /// 100,000 names that are not there, never asked before.
    AbsentNew,
}

impl Storm {
    const ALL: [(Storm, &'static str); 3] = [
        (Storm::Known, "known"),
        (Storm::AbsentSame, "absent-same"),
        (Storm::AbsentNew, "absent-new"),
    ];

    fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(s, _)| *s == self)
            .map_or("", |(_, n)| n)
    }
}

/// The hidden argument that makes a bench binary a storm.
pub const STORM: &str = "--storm";

/// Names for the storms, taken from a walk of the source.
pub struct Names {
    known: NamedTempFile,
    absent: NamedTempFile,
    directories: NamedTempFile,
    /// How many names the source holds.
    pub count: usize,
    /// How many names the storm of known names asks for.
    pub asked: usize,
}

fn list(paths: &[Vec<u8>]) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    for path in paths {
        file.write_all(path)?;
        file.write_all(&[0])?;
    }
    file.flush()?;
    Ok(file)
}

impl Names {
    /// Walks `root` and picks, by seed, up to 100,000 known names and 100 directories.
    pub fn collect(root: &Path, seed: u64) -> io::Result<Self> {
        let mut known = Vec::new();
        let mut directories = Vec::new();
        let mut stack = vec![PathBuf::new()];
        while let Some(dir) = stack.pop() {
            directories.push(dir.as_os_str().as_bytes().to_vec());
            for entry in fs::read_dir(root.join(&dir))? {
                let entry = entry?;
                let path = dir.join(entry.file_name());
                known.push(path.as_os_str().as_bytes().to_vec());
                if entry.file_type()?.is_dir() {
                    stack.push(path);
                }
            }
        }
        let count = known.len();
        // Read order differs from machine to machine; the choice must not.
        known.sort();
        directories.sort();
        let mut random = Random(seed);
        random.shuffle(&mut known);
        known.truncate(100_000);
        random.shuffle(&mut directories);
        directories.truncate(100);
        let absent: Vec<Vec<u8>> = (0..1000)
            .map(|i| join(&directories[i % directories.len()], &format!(".absent-{i}")))
            .collect();
        Ok(Self {
            asked: known.len(),
            known: list(&known)?,
            absent: list(&absent)?,
            directories: list(&directories)?,
            count,
        })
    }

    fn file(&self, storm: Storm) -> &Path {
        match storm {
            Storm::Known => self.known.path(),
            Storm::AbsentSame => self.absent.path(),
            Storm::AbsentNew => self.directories.path(),
        }
    }
}

fn join(dir: &[u8], name: &str) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
    path
}

impl Work {
    /// Does the work once on the tree at `root`. `nonce` differs in every run of a bench.
    pub fn run(&self, root: &Path, names: &Names, nonce: u64, limits: &Limits) -> io::Result<Run> {
        match self {
            Work::Command(words, copies) => {
                let make = || {
                    let mut command = Command::new(words[0]);
                    for word in &words[1..] {
                        match *word {
                            "{}" => command.arg(root),
                            word => command.arg(word),
                        };
                    }
                    command.stdout(Stdio::null());
                    command
                };
                Ok(run(&make, *copies, limits)?.0)
            }
            Work::Storm(storm) => {
                let exe = std::env::current_exe()?;
                let make = || {
                    let mut command = Command::new(&exe);
                    command
                        .args([STORM, storm.name()])
                        .arg(root)
                        .arg(names.file(*storm));
                    command.arg(nonce.to_string()).stdout(Stdio::piped());
                    command
                };
                let (run, output) = run(&make, 1, limits)?;
                let nanos = String::from_utf8_lossy(&output)
                    .trim()
                    .parse()
                    .map_err(|_| io::Error::other("a storm did not say how long it took"))?;
                Ok(Run {
                    elapsed: Duration::from_nanos(nanos),
                    ..run
                })
            }
        }
    }
}

/// The text of a file, read by a child, so that a mirror that hangs does not hang the bench.
pub fn read_through(file: &Path, limits: &Limits) -> io::Result<Vec<u8>> {
    let make = || {
        let mut command = Command::new("cat");
        command.arg(file).stdout(Stdio::piped());
        command
    };
    Ok(run(&make, 1, limits)?.1)
}

/// The storm itself: prints the nanoseconds that the loop took, or fails on a wrong answer.
pub fn serve_storm(args: &[OsString]) -> io::Result<()> {
    let usage = || io::Error::other("storm: KIND ROOT LIST NONCE");
    let [kind, root, file, nonce] = args else {
        return Err(usage());
    };
    let kind = kind.to_str().ok_or_else(usage)?;
    let (storm, _) = Storm::ALL
        .into_iter()
        .find(|(_, n)| *n == kind)
        .ok_or_else(usage)?;
    let text = fs::read(file)?;
    let mut paths: Vec<Vec<u8>> = text
        .split(|b| *b == 0)
        .filter(|p| !p.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    if storm == Storm::AbsentNew {
        let nonce = nonce.to_str().ok_or_else(usage)?;
        paths = (0..100_000)
            .map(|i| join(&paths[i % paths.len()], &format!(".absent-{nonce}-{i}")))
            .collect();
    }
    let paths: Vec<PathBuf> = paths
        .into_iter()
        .map(|p| PathBuf::from(OsString::from_vec(p)))
        .collect();
    let repeat = if storm == Storm::AbsentSame { 100 } else { 1 };
    let root = rustix::fs::open(
        Path::new(root),
        OFlags::PATH | OFlags::DIRECTORY,
        Mode::empty(),
    )?;
    let start = Instant::now();
    let mut wrong = 0;
    for _ in 0..repeat {
        for path in &paths {
            let stat = rustix::fs::statat(&root, path, AtFlags::SYMLINK_NOFOLLOW);
            wrong += match storm {
                Storm::Known => usize::from(stat.is_err()),
                _ => usize::from(!matches!(stat, Err(rustix::io::Errno::NOENT))),
            };
        }
    }
    let elapsed = start.elapsed();
    if wrong > 0 {
        return Err(io::Error::other(format!(
            "{wrong} wrong answers of {}",
            paths.len() * repeat
        )));
    }
    println!("{}", elapsed.as_nanos());
    Ok(())
}

/// Names, types, sizes, modes and targets of a tree as one number and a count, in any order.
pub fn fingerprint(root: &Path, limits: &Limits) -> io::Result<(u64, u64)> {
    let mut child = Command::new("find")
        .arg(root)
        .args(["-printf", r"%y %m %n %U %G %s %T@ %l %P\0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take();
    let children = [child];
    let watchdog = Watchdog::arm(&children, limits);
    let (mut count, mut sum) = (0u64, 0u64);
    for line in stdout.into_iter().flat_map(|s| BufReader::new(s).split(0)) {
        let mut hasher = DefaultHasher::new();
        line?.hash(&mut hasher);
        sum = sum.wrapping_add(hasher.finish());
        count += 1;
    }
    let [mut child] = children;
    let status = child.wait()?;
    watchdog.disarm();
    if status.success() {
        Ok((count, sum))
    } else {
        Err(io::Error::other("find failed"))
    }
}

/// How often anybody has dropped the kernel's caches since it started.
pub fn cache_drops() -> u64 {
    let vmstat = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = |key: &str| {
        vmstat
            .lines()
            .find_map(|l| l.strip_prefix(key)?.trim().parse::<u64>().ok())
    };
    ["drop_pagecache ", "drop_slab "]
        .into_iter()
        .filter_map(count)
        .sum::<u64>()
}

/// Drops the kernel's dentries and inodes, of every filesystem.
pub fn drop_kernel_caches() -> io::Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "2")
}
