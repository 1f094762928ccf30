//! What the commands that measure share: mirrors in temporary directories, finds over
//! them, and an orderly end when a signal comes (floor F7).
//!
//! A mirror is a daemon tied to this process: when this process ends, in whatever way,
//! the kernel tells the daemon, which unmounts. The temporary directory is removed on
//! every way out that a process can answer.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{check, daemon, reason, stats_path, umount};
use crate::cli::config::{Caller, Config};
use crate::cli::{Failure, MountArgs, Outcome, failed, misuse};

/// How long the daemon may take to end.
const BOUND: Duration = Duration::from_secs(10);

/// One walk: how many names, how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Walk {
    pub(super) names: u64,
    pub(super) time: Duration,
}

fn cannot(what: &str, e: &std::io::Error) -> Failure {
    failed(format!("cannot {what} find: {}", reason(e)))
}

/// Runs `copies` finds at once, counting the names that one of them prints.
pub(super) fn walk(root: &Path, copies: usize, interrupt: &Interrupt) -> Result<Walk, Failure> {
    let start = Instant::now();
    // A path such as -delete must not be taken for an expression: absolute paths begin with a slash.
    let root = std::path::absolute(root).map_err(|e| cannot("run", &e))?;
    let find = |out: Stdio| {
        let spawned = Command::new("find")
            .arg(&root)
            .arg("-print0")
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(Stdio::null())
            .spawn();
        spawned
            .map(|child| interrupt.watch(child))
            .map_err(|e| cannot("run", &e))
    };
    let others = (1..copies).map(|_| find(Stdio::null()));
    let others: Vec<Running<'_>> = others.collect::<Result<_, _>>()?;
    let mut first = find(Stdio::piped())?;
    let mut names = 0;
    if let Some(mut pipe) = first.child.stdout.take() {
        let mut buffer = vec![0; 1 << 16];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => names += buffer[..n].iter().filter(|b| **b == 0).count() as u64,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(cannot("read from", &e)),
            }
        }
    }
    // Exit code 1 is find's word for a directory that may not be read, which is no failure here.
    for mut running in others.into_iter().chain([first]) {
        running.child.wait().map_err(|e| cannot("wait for", &e))?;
    }
    if interrupt.signal().is_some() {
        return Err(failed("interrupted"));
    }
    if names == 0 {
        return Err(failed(
            "find printed no name; give a directory that may be read",
        ));
    }
    Ok(Walk {
        names,
        time: start.elapsed(),
    })
}

/// The mirror's counters, kept open: reading them again then costs READ requests only, which
/// no walk causes, so the others are the walk's. The STATFS that find asks for is no walking either.
pub(super) struct Stats(File);

impl Stats {
    pub(super) fn open(mountpoint: &Path) -> Result<Self, Failure> {
        File::open(stats_path(mountpoint))
            .map(Self)
            .map_err(|e| failed(format!("cannot open the mirror's counters: {}", reason(&e))))
    }

    /// Requests so far, READ and STATFS aside.
    pub(super) fn requests(&self) -> Result<u64, Failure> {
        let mut text = vec![0; 1 << 16];
        let length = self
            .0
            .read_at(&mut text, 0)
            .map_err(|e| failed(format!("cannot read the mirror's counters: {}", reason(&e))))?;
        count_requests(&text[..length])
            .ok_or_else(|| failed("the mirror's counters are not understood"))
    }
}

/// The sum of `requests` in the text of the counters, READ and STATFS aside.
fn count_requests(stats: &[u8]) -> Option<u64> {
    let stats: Value = serde_json::from_slice(stats).ok()?;
    let requests = stats.get("requests")?.as_object()?;
    let counts = requests
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "READ" | "STATFS"));
    Some(counts.filter_map(|(_, count)| count.as_u64()).sum())
}

/// A mirror in a temporary directory, unmounted and removed when dropped.
pub(super) struct Mirror {
    daemon: Child,
    dir: Option<tempfile::TempDir>,
}

impl Mirror {
    /// Mounts with a list of options as `-o` takes it.
    pub(super) fn mount(source: &Path, options: &str) -> Result<Self, Failure> {
        let dir = tempfile::Builder::new()
            .prefix("nameifs-")
            .tempdir()
            .map_err(|e| failed(format!("cannot make a temporary directory: {}", reason(&e))))?;
        let args = MountArgs {
            source: source.into(),
            mountpoint: dir.path().into(),
            options: vec![options.into()],
            ..MountArgs::default()
        };
        // The same checks as the daemon's, but before a second process is there to speak.
        let caller = Caller::current();
        let config = Config::check(args, caller)?;
        check::fuse(&config, caller.root)?;
        check::places(&config)?;
        let arguments = [
            "--tied-to".into(),
            std::process::id().to_string().into(),
            "-o".into(),
            options.into(),
            "--".into(),
            source.into(),
            dir.path().into(),
        ];
        let daemon = daemon::start(arguments, dir.path())?;
        Ok(Self {
            daemon,
            dir: Some(dir),
        })
    }

    pub(super) fn mountpoint(&self) -> &Path {
        self.dir.as_ref().expect("there until dropped").path()
    }

    /// Unmounts and says what went wrong.
    pub(super) fn unmount(mut self) -> Outcome {
        umount::detach(self.mountpoint(), false)
            .or_else(|_| umount::detach(self.mountpoint(), true))
            .map_err(|e| {
                let at = self.mountpoint().display();
                failed(format!(
                    "cannot unmount {at}: {}; try nameifs umount {at}",
                    reason(&e)
                ))
            })?;
        let end = Instant::now() + BOUND;
        while Instant::now() < end {
            match self.daemon.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(failed(format!("the mirror's daemon: {status}"))),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Err(failed(format!(
            "the mirror's daemon, process {}, does not end",
            self.daemon.id()
        )))
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let Some(dir) = self.dir.take() else { return };
        if super::mountinfo::find(dir.path()).ok().flatten().is_some() {
            // Best effort: the daemon is told as well, by the end of this process.
            let _ = umount::detach(dir.path(), true);
        }
        // Never remove what is still mounted: only the empty directory goes.
        let path: PathBuf = dir.keep();
        let _ = std::fs::remove_dir(path);
    }
}

/// Signals that end the command: noted, and passed on to the finds that run, so that the
/// main thread comes back, cleans up and ends.
pub(super) struct Interrupt {
    signal: Arc<AtomicI32>,
    running: Arc<Mutex<Vec<Pid>>>,
}

impl Interrupt {
    pub(super) fn listen() -> Result<Self, Failure> {
        let set = daemon::block_signals()?;
        let this = Self {
            signal: Arc::default(),
            running: Arc::default(),
        };
        let (signal, running) = (this.signal.clone(), this.running.clone());
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || Self::wait(&set, &signal, &running))
            .map_err(|e| failed(format!("cannot start a thread: {}", reason(&e))))?;
        Ok(this)
    }

    fn wait(set: &SigSet, noted: &AtomicI32, running: &Mutex<Vec<Pid>>) {
        while let Ok(signal) = set.wait() {
            noted.store(signal as i32, Ordering::SeqCst);
            let running = running.lock().unwrap_or_else(PoisonError::into_inner);
            for &pid in running.iter() {
                // find inherits the mask of blocked signals, so it needs the one that none blocks.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// The signal that came, if one did.
    pub(super) fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    /// Has the child ended when a signal comes.
    fn watch(&self, child: Child) -> Running<'_> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        running.extend(pid);
        if let (Some(_), Some(pid)) = (self.signal(), pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
        drop(running);
        Running {
            interrupt: self,
            pid,
            child,
        }
    }
}

/// A child that a signal ends.
struct Running<'a> {
    interrupt: &'a Interrupt,
    pid: Option<Pid>,
    child: Child,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let running = &self.interrupt.running;
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|pid| Some(*pid) != self.pid);
    }
}

/// Runs `f`; a signal that came meanwhile is the outcome.
pub(super) fn interruptible(f: impl FnOnce(&Interrupt) -> Outcome) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let done = f(&interrupt);
    match interrupt.signal() {
        // What failed then failed because its find was ended.
        Some(signal) => Err(Failure::Interrupted(signal)),
        None => done,
    }
}

/// A number of rounds as typed.
pub(super) fn rounds(typed: &OsStr) -> Result<usize, Failure> {
    let rounds = typed.to_str().and_then(|text| text.parse().ok());
    rounds.filter(|n| (1..=1000).contains(n)).ok_or_else(|| {
        misuse(format!(
            "--rounds '{}' is not a number of rounds; write 1 to 1000",
            typed.to_string_lossy()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_without_reads() {
        let text =
            br#"{"requests": {"LOOKUP": 3, "READ": 100, "READDIR": 4, "STATFS": 9}, "dcache": {}}"#;
        assert_eq!(count_requests(text), Some(7));
        assert_eq!(count_requests(b"{}"), None);
        assert_eq!(count_requests(b""), None);
    }
}
