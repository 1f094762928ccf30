//! `nameifs demo`: find on a tree, and through a mirror of it, side by side (floor F7).
//!
//! The mirror is a daemon tied to this process: when this process ends, in
//! whatever way, the kernel tells the daemon, which unmounts. The temporary
//! directory is removed on every way out that a process can answer.

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

use super::{SLABINFO, check, daemon, print, reason, stats_path, thousands, umount};
use crate::cli::config::{Caller, Config};
use crate::cli::{DemoArgs, Failure, MountArgs, Outcome, failed, misuse};

/// How long the daemon may take to end.
const BOUND: Duration = Duration::from_secs(10);

/// Runs the comparison and prints it.
pub fn run(args: &DemoArgs) -> Outcome {
    let rounds = args.rounds.to_str().and_then(|text| text.parse().ok());
    let rounds: usize = rounds.filter(|n| (1..=1000).contains(n)).ok_or_else(|| {
        misuse(format!(
            "--rounds '{}' is not a number of rounds; write 1 to 1000",
            args.rounds.to_string_lossy()
        ))
    })?;
    let interrupt = Interrupt::listen()?;
    let done = compare(&args.source, rounds, &interrupt);
    match interrupt.signal() {
        // What failed then failed because its find was ended.
        Some(signal) => Err(Failure::Interrupted(signal)),
        None => done,
    }
}

/// Mounts, walks, prints, unmounts.
fn compare(source: &Path, rounds: usize, interrupt: &Interrupt) -> Outcome {
    let mirror = Mirror::mount(source)?;
    print(&format!(
        "nameifs demo: {} mirrored on {} (frozen, read-only)\n\n\
         {:<22}{:>10}{:>11}{:>13}{:>13}\n",
        source.display(),
        mirror.mountpoint().display(),
        "find",
        "names",
        "seconds",
        "to native",
        "requests"
    ))?;
    let stats = Stats::open(mirror.mountpoint())?;
    let native = || walk(source, interrupt);
    let through = || {
        let before = stats.requests()?;
        let walked = walk(mirror.mountpoint(), interrupt)?;
        Ok::<_, Failure>((walked, stats.requests()?.saturating_sub(before)))
    };

    let first_native = native()?;
    print(&row("on the source, first", first_native, None, None))?;
    let (first, requests) = through()?;
    print(&row(
        "by nameifs, first",
        first,
        Some(first_native),
        Some(requests),
    ))?;
    let (second, requests) = through()?;
    let mut natives = vec![native()?];
    print(&row(
        "by nameifs, second",
        second,
        Some(natives[0]),
        Some(requests),
    ))?;

    let mut warm = Vec::new();
    let mut warm_requests = Vec::new();
    natives.clear();
    for _ in 0..rounds {
        natives.push(native()?);
        let (walked, requests) = through()?;
        warm.push(walked);
        warm_requests.push(requests);
    }
    warm_requests.sort_unstable();
    let (native, warm) = (median(&natives), median(&warm));
    print(&row("on the source, warm", native, None, None))?;
    print(&row(
        "by nameifs, warm",
        warm,
        Some(native),
        Some(warm_requests[rounds / 2]),
    ))?;
    print(&format!(
        "\nwarm: medians of {rounds} rounds, source and mirror in turn\n\
         requests: those that reached the daemon, without the STATFS that find asks once a walk\n"
    ))?;
    if warm.names != native.names {
        print("The numbers of names differ: the tree changed, or may not be read in full.\n")?;
    }
    let caches = std::fs::read_to_string(mirror.mountpoint().join(SLABINFO))
        .map_err(|e| failed(format!("cannot read {SLABINFO}: {}", reason(&e))))?;
    print(&format!("\n{SLABINFO}:\n{caches}"))?;
    drop(stats);
    mirror.unmount()
}

/// One walk: how many names, how long.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Walk {
    names: u64,
    time: Duration,
}

/// The walk of median duration.
fn median(walks: &[Walk]) -> Walk {
    let mut sorted = walks.to_vec();
    sorted.sort_by_key(|walk| walk.time);
    sorted[sorted.len() / 2]
}

/// One line of the table.
fn row(label: &str, walk: Walk, native: Option<Walk>, requests: Option<u64>) -> String {
    let seconds = walk.time.as_secs_f64();
    let ratio = native.map_or_else(String::new, |native| {
        format!("{:.2}", seconds / native.time.as_secs_f64().max(1e-6))
    });
    let requests = requests.map_or_else(String::new, thousands);
    let names = thousands(walk.names);
    let line = format!("{label:<22}{names:>10}{seconds:>11.3}{ratio:>13}{requests:>13}");
    line.trim_end().to_owned() + "\n"
}

/// Runs find once, counting the names that it prints.
fn walk(root: &Path, interrupt: &Interrupt) -> Result<Walk, Failure> {
    let cannot =
        |what: &str, e: &std::io::Error| failed(format!("cannot {what} find: {}", reason(e)));
    let start = Instant::now();
    // A path such as -delete must not be taken for an expression: absolute paths begin with a slash.
    let root = std::path::absolute(root).map_err(|e| cannot("run", &e))?;
    let child = Command::new("find")
        .arg(root)
        .arg("-print0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| cannot("run", &e))?;
    let mut running = interrupt.watch(child);
    let mut names = 0;
    if let Some(mut pipe) = running.child.stdout.take() {
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
    running.child.wait().map_err(|e| cannot("wait for", &e))?;
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
struct Stats(File);

impl Stats {
    fn open(mountpoint: &Path) -> Result<Self, Failure> {
        File::open(stats_path(mountpoint))
            .map(Self)
            .map_err(|e| failed(format!("cannot open the mirror's counters: {}", reason(&e))))
    }

    /// Requests so far, READ and STATFS aside.
    fn requests(&self) -> Result<u64, Failure> {
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
struct Mirror {
    daemon: Child,
    dir: Option<tempfile::TempDir>,
}

impl Mirror {
    fn mount(source: &Path) -> Result<Self, Failure> {
        let dir = tempfile::Builder::new()
            .prefix("nameifs-demo-")
            .tempdir()
            .map_err(|e| failed(format!("cannot make a temporary directory: {}", reason(&e))))?;
        let args = MountArgs {
            source: source.into(),
            mountpoint: dir.path().into(),
            coherence: Some("frozen".into()),
            read_only: true,
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
            "--coherence=frozen".into(),
            // The kernel then keeps no times of access, which would be asked for once more.
            "--read-only".into(),
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

    fn mountpoint(&self) -> &Path {
        self.dir.as_ref().expect("there until dropped").path()
    }

    /// Unmounts and says what went wrong.
    fn unmount(mut self) -> Outcome {
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

/// Signals that end the demo: noted, and passed on to the find that runs, so that the main
/// thread comes back, cleans up and ends.
struct Interrupt {
    signal: Arc<AtomicI32>,
    running: Arc<Mutex<Option<Pid>>>,
}

impl Interrupt {
    fn listen() -> Result<Self, Failure> {
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

    fn wait(set: &SigSet, noted: &AtomicI32, running: &Mutex<Option<Pid>>) {
        while let Ok(signal) = set.wait() {
            noted.store(signal as i32, Ordering::SeqCst);
            let running = running.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(pid) = *running {
                // find inherits the mask of blocked signals, so it needs the one that none blocks.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// The signal that came, if one did.
    fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    /// Has the child ended when a signal comes.
    fn watch(&self, child: Child) -> Running<'_> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        if let (Some(_), Some(pid)) = (self.signal(), *running) {
            let _ = kill_process(pid, Signal::KILL);
        }
        drop(running);
        Running {
            interrupt: self,
            child,
        }
    }
}

/// A child that a signal ends.
struct Running<'a> {
    interrupt: &'a Interrupt,
    child: Child,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self
            .interrupt
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(millis: u64) -> Walk {
        Walk {
            names: 132_597,
            time: Duration::from_millis(millis),
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[walk(3)]), walk(3));
        assert_eq!(median(&[walk(9), walk(1), walk(5)]), walk(5));
    }

    #[test]
    fn rows() {
        assert_eq!(
            row("by nameifs, warm", walk(81), Some(walk(100)), Some(0)),
            "by nameifs, warm         132,597      0.081         0.81            0\n"
        );
        assert_eq!(
            row("on the source, warm", walk(100), None, None),
            "on the source, warm      132,597      0.100\n"
        );
    }

    #[test]
    fn requests_are_counted_without_reads() {
        let text =
            br#"{"requests": {"LOOKUP": 3, "READ": 100, "READDIR": 4, "STATFS": 9}, "dcache": {}}"#;
        assert_eq!(count_requests(text), Some(7));
        assert_eq!(count_requests(b"{}"), None);
        assert_eq!(count_requests(b""), None);
    }
}
