//! A mirror under measurement: a child process that serves a mount.
//!
//! The bench never serves a mount itself, so it can never wait for itself. A
//! mountpoint is removed with rmdir only: nothing here deletes a tree.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::MountFlags;

use crate::guard::{self, Duty};

/// How long a mirror may take to mount, and to leave.
const PATIENCE: Duration = Duration::from_secs(15);

/// What serves the mount.
#[derive(Clone, Debug)]
pub enum Kind {
    /// The passthrough of `passthrough.rs`, in a child of this very binary.
    Plain,
    #[allow(dead_code, reason = "one bench alone has a slow source")]
    /// The same, each call taking so many microseconds and nothing cached: a slow source.
    Slow(u64),
    /// `nameifs mount -f` with these options.
    Nameifs(Vec<String>),
}

impl Kind {
    /// The hidden argument that makes a bench binary a plain mirror.
    pub const PLAIN: &'static str = "--serve-plain";

    /// The hidden argument that makes it a slow source.
    pub const SLOW: &'static str = "--serve-slow";

    fn command(&self, source: &Path, mountpoint: &Path) -> io::Result<Command> {
        let mut command = match self {
            Kind::Plain => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg(Self::PLAIN);
                command
            }
            Kind::Slow(micros) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg(Self::SLOW).arg(micros.to_string());
                command
            }
            Kind::Nameifs(options) => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_nameifs"));
                command.args(["mount", "-f", "--read-only"]).args(options);
                command
            }
        };
        command
            .arg(source)
            .arg(mountpoint)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Ok(command)
    }
}

/// A mounted mirror; unmounted when dropped.
pub struct Mirror {
    mountpoint: PathBuf,
    child: Child,
    connection: u32,
}

impl Mirror {
    /// Mounts `source` in a new temporary directory.
    pub fn mount(kind: &Kind, source: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "nameifs-bench-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let mountpoint = std::env::temp_dir().canonicalize()?.join(name);
        fs::create_dir(&mountpoint)?;
        let child = match kind
            .command(source, &mountpoint)
            .and_then(|mut c| c.spawn())
        {
            Ok(child) => child,
            Err(e) => {
                let _ = fs::remove_dir(&mountpoint);
                return Err(e);
            }
        };
        let mut mirror = Self {
            mountpoint,
            child,
            connection: 0,
        };
        guard::keep(&Duty::Mount(&mirror.mountpoint, mirror.child.id()));
        mirror.connection = mirror.wait_until_mounted()?;
        Ok(mirror)
    }

    fn wait_until_mounted(&mut self) -> io::Result<u32> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(connection) = connection(&self.mountpoint)? {
                return Ok(connection);
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!(
                    "the mirror ended at once ({status})"
                )));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Err(io::Error::other(format!("not mounted within {PATIENCE:?}")))
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// The number of the FUSE connection.
    pub fn connection(&self) -> u32 {
        self.connection
    }

    /// Processor time of all threads so far.
    pub fn cpu(&self) -> io::Result<Duration> {
        let mut nanos = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else {
                continue; // the thread has just ended
            };
            nanos += text
                .split(' ')
                .next()
                .and_then(|n| n.parse::<u64>().ok())
                .unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// User and system time so far, in the kernel's ticks of 10 ms.
    pub fn user_system(&self) -> io::Result<(Duration, Duration)> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // After the command's name, which ends with the last parenthesis, utime is the 12th field.
        let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = after
            .split_whitespace()
            .skip(11)
            .map(|f| f.parse::<u64>().unwrap_or(0));
        let hertz = ticks_per_second();
        let mut next = || Duration::from_millis(fields.next().unwrap_or(0) * 1000 / hertz);
        Ok((next(), next()))
    }

    /// Resident memory in KiB.
    pub fn rss_kib(&self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        Ok(status
            .lines()
            .find_map(|l| l.strip_prefix("VmRSS:"))
            .and_then(|v| v.split_whitespace().next()?.parse().ok())
            .unwrap_or(0))
    }

    /// Waits until the daemon no longer works on what an earlier run left behind
    /// (forgotten inodes, released handles), at most two seconds.
    pub fn settle(&self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(2);
        let mut before = self.cpu()?;
        while Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
            let now = self.cpu()?;
            if now.saturating_sub(before) < Duration::from_micros(100) {
                break;
            }
            before = now;
        }
        Ok(())
    }

    fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
                _ => return None,
            }
        }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        guard::unmount(&self.mountpoint);
        let status = self.wait(PATIENCE).or_else(|| {
            abort(self.connection);
            self.wait(Duration::from_secs(2))
        });
        if status.is_none() {
            eprintln!("bench: a mirror did not end within {PATIENCE:?} of unmounting; killed");
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = fs::remove_dir(&self.mountpoint);
        guard::done(&Duty::Mount(&self.mountpoint, self.child.id()));
    }
}

fn ticks_per_second() -> u64 {
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK);
    ticks
        .ok()
        .flatten()
        .and_then(|t| t.try_into().ok())
        .unwrap_or(100)
}

/// The device number of a mountpoint's FUSE connection, `None` while nothing is mounted.
fn connection(mountpoint: &Path) -> io::Result<Option<u32>> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo")?;
    let minor = mountinfo.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let (_, minor) = fields.next()?.split_once(':')?;
        (Path::new(fields.nth(1)?) == mountpoint).then(|| minor.parse().ok())?
    });
    Ok(minor)
}

/// Ends a connection whose daemon does not answer, so that nobody waits for it for ever.
pub fn abort(connection: u32) {
    let standard = PathBuf::from("/sys/fs/fuse/connections");
    let file = |root: &Path| root.join(connection.to_string()).join("abort");
    if fs::write(file(&standard), "1").is_ok() {
        return;
    }
    let own = std::env::temp_dir().join(format!("nameifs-bench-fusectl-{}", std::process::id()));
    if fs::create_dir(&own).is_ok()
        && rustix::mount::mount("none", &own, "fusectl", MountFlags::empty(), None).is_ok()
    {
        let _ = fs::write(file(&own), "1");
        guard::unmount(&own);
    }
    let _ = fs::remove_dir(&own);
}

/// The type of the filesystem that holds a path.
pub fn filesystem(path: &Path) -> String {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut best: (usize, &str) = (0, "unknown");
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let Some(point) = left.split(' ').nth(4) else {
            continue;
        };
        if path.starts_with(point) && point.len() >= best.0 {
            best = (point.len(), right.split(' ').next().unwrap_or("unknown"));
        }
    }
    best.1.to_owned()
}

/// Arguments of a hidden mode of a bench binary: the words after `flag`, if it comes first.
pub fn hidden_mode(flag: &str) -> Option<Vec<OsString>> {
    let mut args = std::env::args_os().skip(1);
    (args.next()? == flag).then(|| args.collect())
}
