//! Processes: starting a daemon, being one, finding one, and its signals (floor F7).
//!
//! The daemon is this program started anew, not a fork, so every thread is
//! started after the process is what it will be. It speaks on the standard output
//! it was given: one line when the mount is ready, the end of the pipe when
//! it failed; what went wrong it says itself on the inherited standard error.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::mountinfo::Mount;
use super::reason;
use crate::cli::{Failure, Outcome, failed};

/// What the daemon says when its mount is ready.
const READY: &str = "ready\n";

/// Starts a daemon with these arguments of `nameifs mount` and waits until its mount is ready.
///
/// # Errors
/// It could not be started, or it failed; in the second case it has said why.
pub fn start(
    arguments: impl IntoIterator<Item = OsString>,
    mountpoint: &Path,
) -> Result<Child, Failure> {
    let broken = |e: io::Error| failed(format!("cannot start the daemon: {}", reason(&e)));
    let at = std::path::absolute(mountpoint).map_err(broken)?;
    let mut child = Command::new(own_executable())
        .arg0("nameifs")
        .arg("mount")
        .arg("--daemon-child")
        .arg(at)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(broken)?;
    let mut line = String::new();
    if let Some(pipe) = child.stdout.take() {
        BufReader::new(pipe).read_line(&mut line).map_err(broken)?;
    }
    if line == READY {
        return Ok(child);
    }
    let status = child.wait().map_err(broken)?;
    match (status.code(), status.signal()) {
        (Some(code), _) if code != 0 => Err(Failure::Told(u8::try_from(code).unwrap_or(1))),
        (_, Some(signal)) => Err(failed(format!(
            "the daemon was ended by signal {signal} before the mount was ready; try with -f"
        ))),
        _ => Err(failed(
            "the daemon ended before the mount was ready; try with -f",
        )),
    }
}

/// This program, even where its file has been replaced since.
fn own_executable() -> PathBuf {
    std::env::current_exe()
        .ok()
        .filter(|path| path.is_file())
        .unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

/// First thing in a daemon: leave the terminal's session, and let go of the
/// descriptors of whoever called, which a daemon would keep open for ever.
///
/// Precondition: nothing has been opened yet but the standard streams.
pub fn detach() -> Outcome {
    let inherited: Vec<i32> = fs::read_dir("/proc/self/fd")
        .map(|dir| {
            dir.flatten()
                .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
                .collect()
        })
        .unwrap_or_default();
    for fd in inherited.into_iter().filter(|fd| *fd > 2) {
        // The descriptor of the listing itself is among them and closed already.
        let _ = nix::unistd::close(fd);
    }
    rustix::process::setsid()
        .map(drop)
        .map_err(|e| failed(format!("cannot leave the session: {}", reason(&e.into()))))
}

/// Last thing before a daemon serves: hold no directory and no stream, then tell the parent.
///
/// # Errors
/// /dev/null cannot be opened.
pub fn ready() -> io::Result<()> {
    std::env::set_current_dir("/")?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    // The parent may be gone; the mount is made and serves all the same.
    let mut out = io::stdout();
    let _ = out.write_all(READY.as_bytes()).and_then(|()| out.flush());
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Asks for SIGTERM when the parent ends, which must be process `parent`.
///
/// # Errors
/// The parent has ended already.
pub fn tie_to(parent: u32) -> Outcome {
    let tied =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if tied.is_ok() && now == Some(parent) {
        Ok(())
    } else {
        Err(failed("the process that started this mount has ended"))
    }
}

/// The signals that end a mount, blocked in this thread and all that it starts from now on.
///
/// # Errors
/// The system refuses the mask.
pub fn block_signals() -> Result<SigSet, Failure> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    // A blocked signal reaches the waiting thread even where it is ignored, as nohup(1) has it.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !ignores(&status, Signal::SIGHUP) {
        set.add(Signal::SIGHUP);
    }
    set.thread_block()
        .map_err(|e| failed(format!("cannot block signals: {e}")))?;
    Ok(set)
}

/// Whether a signal is ignored, by the text of /proc/PID/status.
fn ignores(status: &str, signal: Signal) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal as u32 - 1) & 1 == 1)
}

/// A process serving a mount.
pub struct Serving {
    /// Its process id.
    pub pid: i32,
    fd: OwnedFd,
}

impl Serving {
    /// Waits until the process has ended; whether it has.
    pub fn wait(&self, bound: Duration) -> bool {
        let bound = Timespec::try_from(bound).ok();
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        loop {
            match poll(&mut fds, bound.as_ref()) {
                Ok(ready) => return ready > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

/// The process that serves a mount, as far as this user may see it.
///
/// New kernels tell the connection in the descriptor's fdinfo; for others the command line is
/// looked at, where a daemon carries its mountpoint.
pub fn serving(mount: &Mount) -> Option<Serving> {
    let servers: Vec<(PathBuf, Vec<PathBuf>)> = fs::read_dir("/proc")
        .map(|dir| {
            dir.flatten()
                .map(|entry| entry.path())
                .filter(|process| pid_of(process).is_some())
                .map(|process| (fuse_descriptors(&process), process))
                .filter(|(fdinfos, _)| !fdinfos.is_empty())
                .map(|(fdinfos, process)| (process, fdinfos))
                .collect()
        })
        .unwrap_or_default();
    // A daemon that is ending may still hold a connection whose number was given again, so
    // the one that has the name as well comes first.
    let fits = |(process, fdinfos): &&(PathBuf, Vec<PathBuf>)| {
        let connected = holds_connection(fdinfos, mount.minor);
        let named = names_mountpoint(process, &mount.mountpoint);
        (connected && named, connected, named)
    };
    let (process, _) = servers
        .iter()
        .map(|server| (fits(&server), server))
        .filter(|(fit, _)| fit.1 || fit.2)
        .max_by_key(|(fit, _)| *fit)?
        .1;
    let pid = pid_of(process)?;
    let fd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    Some(Serving { pid, fd })
}

fn pid_of(process: &Path) -> Option<i32> {
    process.file_name()?.to_str()?.parse().ok()
}

/// The fdinfo files of the descriptors of /dev/fuse that a process has.
fn fuse_descriptors(process: &Path) -> Vec<PathBuf> {
    fs::read_dir(process.join("fd"))
        .map(|fds| {
            fds.flatten()
                .filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == Path::new("/dev/fuse")))
                .map(|fd| process.join("fdinfo").join(fd.file_name()))
                .collect()
        })
        .unwrap_or_default()
}

/// Whether one of these descriptors is of this connection.
fn holds_connection(fdinfos: &[PathBuf], connection: u32) -> bool {
    fdinfos.iter().any(|info| {
        fs::read_to_string(info).is_ok_and(|info| connection_in(&info) == Some(connection))
    })
}

/// The connection's number in the text of an fdinfo.
fn connection_in(fdinfo: &str) -> Option<u32> {
    fdinfo
        .lines()
        .find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
}

/// Whether a process is a nameifs whose command line says that it mounts here.
fn names_mountpoint(process: &Path, mountpoint: &Path) -> bool {
    let mut line = Vec::new();
    let read = File::open(process.join("cmdline"))
        .and_then(|file| file.take(1 << 20).read_to_end(&mut line));
    if read.is_err() {
        return false;
    }
    let mut words = line.split(|b| *b == 0).map(OsStr::from_bytes);
    if words.next().and_then(|w| Path::new(w).file_name()) != Some(OsStr::new("nameifs")) {
        return false;
    }
    let cwd = fs::read_link(process.join("cwd")).unwrap_or_default();
    words.any(|word| !word.is_empty() && same_place(&cwd.join(word), mountpoint))
}

/// Whether a path as typed means this canonical path.
fn same_place(typed: &Path, canonical: &Path) -> bool {
    let trimmed = typed
        .as_os_str()
        .as_bytes()
        .strip_suffix(b"/")
        .unwrap_or_default();
    typed == canonical
        || OsString::from_vec(trimmed.to_vec()) == canonical.as_os_str()
        || super::mountinfo::canonical(typed).is_ok_and(|path| path == canonical)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections() {
        for (info, number) in [
            (
                "pos:\t0\nflags:\t02\nmnt_id:\t1\nino:\t9\nfuse_connection:\t52\n",
                Some(52),
            ),
            ("pos:\t0\nflags:\t02\n", None),
            ("fuse_connection:\tx\n", None),
        ] {
            assert_eq!(connection_in(info), number);
        }
    }

    #[test]
    fn ignored_signals() {
        let status = "Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\n";
        assert!(ignores(status, Signal::SIGHUP));
        assert!(ignores(status, Signal::SIGPIPE));
        assert!(!ignores(status, Signal::SIGTERM));
        assert!(!ignores("", Signal::SIGHUP));
    }

    #[test]
    fn own_process_is_not_a_mount() {
        let mount = Mount {
            id: 1,
            minor: u32::MAX,
            mountpoint: "/no/such/mountpoint".into(),
            fstype: "fuse.nameifs".into(),
            source: "/".into(),
        };
        assert!(serving(&mount).is_none());
    }

    #[test]
    fn places() {
        assert!(same_place(Path::new("/usr/"), Path::new("/usr")));
        assert!(same_place(
            Path::new("/usr/../usr/lib"),
            Path::new("/usr/lib")
        ));
        assert!(!same_place(Path::new("/usr"), Path::new("/usr/lib")));
    }
}
