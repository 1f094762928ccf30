//! `nameifs warm`: walk a mirror, so that later walks find its names cached (floor F7).
//!
//! It reads the mirror as any program would, with several threads: what it reads the
//! kernel keeps as well as the daemon, and whoever may read the tree may do it. On a slow
//! source the daemon's read-ahead does the rest; a walk inside of the daemon would fill
//! one cache of the two and need rights of its own.
//!
//! It follows no symlink and stays on the mirror, as `find -xdev` does.

use std::ffi::{CStr, CString};
use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::measure::{self, Interrupt};
use super::{complain, path_below, print, reason, thousands, umount};
use crate::cli::{Failure, Outcome, WarmArgs, failed};

/// Threads that walk. Each waits for the daemon most of the time.
const THREADS: usize = 8;
/// Between two looks at the signals and redraws of the bar.
const FRAME: Duration = Duration::from_millis(100);
/// Between two lines where there is no terminal.
const LINE: Duration = Duration::from_secs(5);

const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Walks a mirror, or what is beneath one path of it.
pub fn run(args: &WarmArgs) -> Outcome {
    let mount = umount::mirror_at(&args.mountpoint)?;
    measure::interruptible(|interrupt| {
        // By a thread of its own, which a mirror that hangs may keep.
        let (tell, told) = channel();
        let args_there = args.clone();
        std::thread::spawn(move || {
            // Nobody hears it when a signal has ended the command.
            let _ = tell.send(open_top(&args_there, &mount.mountpoint));
        });
        loop {
            match told.recv_timeout(FRAME) {
                Ok(top) => return warm(args, top?, interrupt),
                Err(_) if interrupt.signal().is_some() => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failed("cannot open the mirror"));
                }
            }
        }
    })
}

/// The directory to begin with.
struct Top {
    /// Its name for people.
    shown: String,
    fd: OwnedFd,
    /// The device of the mirror.
    dev: u64,
}

fn open_top(args: &WarmArgs, mountpoint: &Path) -> Result<Top, Failure> {
    let cannot = |path: &Path, e: Errno| {
        let hint = match e {
            Errno::NOTDIR => "it is not a directory".into(),
            Errno::LOOP => "there is a symlink on the way".into(),
            Errno::XDEV => "something else is mounted on the way".into(),
            e => reason(&e.into()),
        };
        failed(format!("cannot warm {}: {hint}", path.display()))
    };
    let root = rustix::fs::open(mountpoint, OPEN, Mode::empty())
        .map_err(|e| cannot(&args.mountpoint, e))?;
    let dev = rustix::fs::fstat(&root)
        .map_err(|e| cannot(&args.mountpoint, e))?
        .st_dev;
    let Some(path) = &args.path else {
        let shown = args.mountpoint.display().to_string();
        return Ok(Top {
            shown,
            fd: root,
            dev,
        });
    };
    let below = path_below(&args.mountpoint, path)?;
    let below = match below.as_os_str().as_bytes() {
        b"" => b".",
        bytes => bytes,
    };
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let fd = rustix::fs::openat2(&root, below, OPEN, Mode::empty(), within)
        .map_err(|e| cannot(path, e))?;
    let shown = path.display().to_string();
    Ok(Top { shown, fd, dev })
}

/// A directory to be read: by its parent and name; the first is open.
enum Todo {
    Open(OwnedFd),
    Below(Arc<OwnedFd>, CString),
}

/// A walk, shared by its threads.
struct Walk {
    /// Device of the mirror.
    dev: u64,
    stack: Mutex<Stack>,
    /// Something was pushed, or all is done.
    changed: Condvar,
    stop: AtomicBool,
    names: AtomicU64,
    found: AtomicU64,
    read: AtomicU64,
    failures: AtomicU64,
}

struct Stack {
    todo: Vec<Todo>,
    /// Threads that read a directory and may push.
    busy: usize,
    /// What was refused first.
    refused: Option<(CString, Errno)>,
}

impl Walk {
    fn stack(&self) -> MutexGuard<'_, Stack> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_done(stack: &Stack) -> bool {
        stack.todo.is_empty() && stack.busy == 0
    }

    /// One thread of the walk: the directory that was found last first, so that few wait.
    fn work(&self) {
        let mut stack = self.stack();
        loop {
            if self.stop.load(Ordering::Relaxed) || Self::is_done(&stack) {
                self.changed.notify_all();
                return;
            }
            let Some(todo) = stack.todo.pop() else {
                stack = self
                    .changed
                    .wait(stack)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            stack.busy += 1;
            drop(stack);
            let done = self.read(&todo);
            self.read.fetch_add(1, Ordering::Relaxed);
            stack = self.stack();
            stack.busy -= 1;
            if let Err(e) = done {
                self.refuse(&mut stack, &todo, e);
            }
        }
    }

    fn refuse(&self, stack: &mut Stack, todo: &Todo, e: Errno) {
        // What went away meanwhile is no failure.
        if e == Errno::NOENT {
            return;
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        let name = match todo {
            Todo::Open(_) => c".".into(),
            Todo::Below(_, name) => name.clone(),
        };
        stack.refused.get_or_insert((name, e));
    }

    /// Reads a directory and looks at each of its names.
    fn read(&self, todo: &Todo) -> Result<(), Errno> {
        let fd = match todo {
            Todo::Open(fd) => fd.try_clone().map_err(|_| Errno::MFILE)?,
            Todo::Below(parent, name) => {
                rustix::fs::openat(parent, name.as_c_str(), OPEN, Mode::empty())?
            }
        };
        // Something may be mounted there since it was looked at.
        if rustix::fs::fstat(&fd)?.st_dev != self.dev {
            return Ok(());
        }
        let fd = Arc::new(fd);
        for entry in Dir::read_from(&*fd)? {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let entry = entry?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                self.look(&fd, name)?;
            }
        }
        Ok(())
    }

    fn look(&self, dir: &Arc<OwnedFd>, name: &CStr) -> Result<(), Errno> {
        let stat = match rustix::fs::statat(&**dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        self.names.fetch_add(1, Ordering::Relaxed);
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory && stat.st_dev == self.dev {
            self.found.fetch_add(1, Ordering::Relaxed);
            let below = Todo::Below(dir.clone(), name.to_owned());
            self.stack().todo.push(below);
            self.changed.notify_one();
        }
        Ok(())
    }

    /// How far it has come, and what is known of how long it will take: nobody knows what
    /// lies in the directories that were not read.
    fn progress(&self, since: Instant) -> Progress {
        Progress {
            names: self.names.load(Ordering::Relaxed),
            found: self.found.load(Ordering::Relaxed),
            read: self.read.load(Ordering::Relaxed),
            time: since.elapsed(),
        }
    }
}

/// How far a walk has come.
#[derive(Clone, Copy, Debug)]
struct Progress {
    names: u64,
    /// Directories found, and read of them.
    found: u64,
    read: u64,
    time: Duration,
}

impl Progress {
    fn rate(&self) -> u64 {
        (self.names as f64 / self.time.as_secs_f64().max(1e-3)) as u64
    }

    fn line(&self) -> String {
        format!(
            "{} names, {}/s, {} of {} directories found so far, ETA {}",
            thousands(self.names),
            thousands(self.rate()),
            thousands(self.read),
            thousands(self.found),
            self.eta()
        )
    }

    /// Seconds that the directories found so far will take, if they are like those read.
    fn eta(&self) -> String {
        if self.read == 0 {
            return "unknown".into();
        }
        let left = self.found.saturating_sub(self.read) as f64;
        let seconds = left * self.time.as_secs_f64() / self.read as f64;
        format!("{} s", thousands(seconds.ceil() as u64))
    }

    fn summary(&self, shown: &str) -> String {
        format!(
            "{} names in {} directories of {shown} in {:.1} s, {}/s\n",
            thousands(self.names),
            thousands(self.read),
            self.time.as_secs_f64(),
            thousands(self.rate())
        )
    }
}

/// Where progress shows.
enum Display {
    Bar(ProgressBar),
    /// When the next line is due.
    Lines(Instant),
    Quiet,
}

impl Display {
    fn new(quiet: bool) -> Self {
        if quiet {
            return Self::Quiet;
        }
        if !io::stderr().is_terminal() {
            return Self::Lines(Instant::now() + LINE);
        }
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("[{bar:20}] {wide_msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        Self::Bar(bar)
    }

    fn show(&mut self, progress: Progress) {
        match self {
            Self::Bar(bar) => {
                bar.set_length(progress.found);
                bar.set_position(progress.read);
                bar.set_message(progress.line());
            }
            Self::Lines(due) if Instant::now() >= *due => {
                *due += LINE;
                complain(&progress.line());
            }
            Self::Lines(_) | Self::Quiet => {}
        }
    }

    fn end(self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Walks until all is read or a signal comes.
fn warm(args: &WarmArgs, top: Top, interrupt: &Interrupt) -> Outcome {
    let Top { shown, fd, dev } = top;
    let broken = |e: io::Error| failed(format!("cannot warm {shown}: {}", reason(&e)));
    let walk = Arc::new(Walk {
        dev,
        stack: Mutex::new(Stack {
            todo: vec![Todo::Open(fd)],
            busy: 0,
            refused: None,
        }),
        changed: Condvar::new(),
        stop: AtomicBool::new(false),
        names: AtomicU64::new(0),
        found: AtomicU64::new(1),
        read: AtomicU64::new(0),
        failures: AtomicU64::new(0),
    });
    let since = Instant::now();
    for n in 0..THREADS {
        let walker = walk.clone();
        let named = std::thread::Builder::new().name(format!("warm-{n}"));
        match named.spawn(move || walker.work()) {
            Err(e) if n == 0 => return Err(broken(e)),
            _ => {}
        }
    }
    let mut display = Display::new(args.quiet);
    let mut stack = walk.stack();
    while !Walk::is_done(&stack) && interrupt.signal().is_none() {
        let waited = walk.changed.wait_timeout(stack, FRAME);
        // The lock is the walkers', not ours to draw under.
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        display.show(walk.progress(since));
        stack = walk.stack();
    }
    let refused = stack.refused.take();
    drop(stack);
    // A thread that waits for the mirror ends with the process.
    walk.stop.store(true, Ordering::Relaxed);
    walk.changed.notify_all();
    display.end();
    let progress = walk.progress(since);
    if !args.quiet {
        let cut = match interrupt.signal() {
            Some(_) => "interrupted after ",
            None => "",
        };
        print(&format!("{cut}{}", progress.summary(&shown)))?;
    }
    match (walk.failures.load(Ordering::Relaxed), refused) {
        (0, _) | (_, None) => Ok(()),
        (count, Some((name, e))) => Err(failed(format!(
            "{} directories of {shown} could not be read, the first, {}: {}",
            thousands(count),
            name.to_string_lossy(),
            reason(&e.into())
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(names: u64, read: u64, found: u64, seconds: u64) -> Progress {
        Progress {
            names,
            found,
            read,
            time: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn lines() {
        assert_eq!(
            progress(12_000, 100, 150, 4).line(),
            "12,000 names, 3,000/s, 100 of 150 directories found so far, ETA 2 s"
        );
        let begun = progress(3, 0, 1, 1).line();
        assert!(begun.ends_with("ETA unknown"), "{begun}");
        assert_eq!(
            progress(12_000, 150, 150, 4).summary("/mnt"),
            "12,000 names in 150 directories of /mnt in 4.0 s, 3,000/s\n"
        );
    }
}
