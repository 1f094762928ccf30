//! Nothing stays mounted behind a bench, whatever ends it.
//!
//! A guard process holds the reading end of a pipe. The bench tells it what
//! has to be undone; when the pipe closes, be it by a normal end, a panic or a
//! kill, the guard undoes what is left. It runs in a process group of its own,
//! so that an interrupt from the terminal does not reach it.

use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};

/// The hidden argument that makes a bench binary its guard.
pub const ARGUMENT: &str = "--guard";

/// What has to be undone.
pub enum Duty<'a> {
    /// A mount, served by the process.
    Mount(&'a Path, u32),
    /// A directory, removed when empty (a tracing instance, a mountpoint).
    Directory(&'a Path),
}

static GUARD: OnceLock<Option<Mutex<(Child, ChildStdin)>>> = OnceLock::new();

fn start() -> Option<Mutex<(Child, ChildStdin)>> {
    let mut child = Command::new(std::env::current_exe().ok()?)
        .arg(ARGUMENT)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .ok()?;
    let stdin = child.stdin.take()?;
    Some(Mutex::new((child, stdin)))
}

fn tell(line: &str) {
    if let Some(guard) = GUARD.get_or_init(start) {
        let mut guard = guard.lock().unwrap_or_else(PoisonError::into_inner);
        // A guard that is gone cannot be told; the ordinary ways of undoing remain.
        let _ = guard.1.write_all(line.as_bytes());
    }
}

fn line(duty: &Duty<'_>) -> String {
    match duty {
        Duty::Mount(path, pid) => format!("mount {pid} {}", path.display()),
        Duty::Directory(path) => format!("directory 0 {}", path.display()),
    }
}

/// Entrusts a duty to the guard.
pub fn keep(duty: &Duty<'_>) {
    tell(&format!("+{}\n", line(duty)));
}

/// Says that a duty was done.
pub fn done(duty: &Duty<'_>) {
    tell(&format!("-{}\n", line(duty)));
}

/// The guard process: reads duties until the pipe closes, then does what is left.
pub fn serve() -> io::Result<()> {
    let mut left: Vec<String> = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        if let Some(duty) = line.strip_prefix('+') {
            left.push(duty.to_owned());
        } else if let Some(duty) = line.strip_prefix('-') {
            left.retain(|l| l != duty);
        }
    }
    for duty in left.iter().rev() {
        let mut words = duty.splitn(3, ' ');
        let (Some(kind), Some(pid), Some(path)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let path = Path::new(path);
        if kind == "mount" {
            unmount(path);
            kill_server(pid, path);
        }
        let _ = std::fs::remove_dir(path);
    }
    Ok(())
}

/// Detaches a mount, as root or through fusermount3.
pub fn unmount(path: &Path) {
    if rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_err() {
        let _ = Command::new("fusermount3")
            .args(["-u", "-z", "-q"])
            .arg(path)
            .stderr(Stdio::null())
            .status();
    }
}

/// Ends the process if it is still the one that served the mount.
fn kill_server(pid: &str, mountpoint: &Path) {
    let args = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mountpoint = mountpoint.as_os_str().as_encoded_bytes();
    if !args.split(|b| *b == 0).any(|a| a == mountpoint) {
        return;
    }
    if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, Signal::TERM);
    }
}
