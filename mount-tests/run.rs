//! Commands with a time limit, users to run them as, and what this machine has.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use rustix::time::Timespec;

/// What one command gets before it counts as hanging.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// What a command left behind.
#[derive(Clone, Debug)]
pub struct Done {
    /// The command line, for messages.
    pub line: String,
    /// How it ended.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: Vec<u8>,
    /// All of its standard error.
    pub stderr: Vec<u8>,
}

impl Done {
    /// Standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The exit code; a signal counts as 128 and its number, as in a shell.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Panics unless the command succeeded and said nothing on standard error.
    #[track_caller]
    pub fn clean(self) -> Self {
        assert!(
            self.status.success() && self.stderr.is_empty(),
            "{}: {}, standard error: {}",
            self.line,
            self.status,
            self.err()
        );
        self
    }

    /// Panics unless the command succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert!(
            self.status.success(),
            "{}: {}, standard error: {}",
            self.line,
            self.status,
            self.err()
        );
        self
    }
}

/// A command in the C locale, its input empty.
pub fn command<I, S>(words: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut words = words.into_iter();
    let program = words.next().expect("a command has a first word");
    let mut cmd = Command::new(program);
    cmd.args(words).stdin(Stdio::null());
    cmd.env("LC_ALL", "C").env("TZ", "UTC");
    cmd
}

/// A shell script with arguments `$1`, `$2`, ...
pub fn shell<S: AsRef<OsStr>>(script: &str, args: &[S]) -> Command {
    let mut words: Vec<OsString> = vec!["bash".into(), "-c".into(), script.into(), "bash".into()];
    words.extend(args.iter().map(|a| a.as_ref().to_owned()));
    command(words)
}

/// Runs `cmd` to its end.
///
/// Panics when it takes longer than `limit` (its process group is killed), or
/// when somebody it left behind keeps its output open.
#[track_caller]
pub fn run_within(cmd: &mut Command, limit: Duration) -> Done {
    match try_run_within(cmd, limit) {
        Ok(done) => done,
        Err(why) => panic!("{why}"),
    }
}

/// [`run_within`] with the usual limit.
#[track_caller]
pub fn run(cmd: &mut Command) -> Done {
    run_within(cmd, PATIENCE)
}

/// As [`run_within`], with an error in place of a panic.
pub fn try_run_within(cmd: &mut Command, limit: Duration) -> Result<Done, String> {
    let line = format!("{cmd:?}");
    cmd.stdout(Stdio::piped()).stderr(Stdio::piped());
    cmd.process_group(0);
    let mut child = cmd.spawn().map_err(|e| format!("{line}: {e}"))?;
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let Some(status) = wait_within(&mut child, limit) else {
        let group = Pid::from_child(&child);
        kill_process_group(group, Signal::KILL).map_err(|e| format!("{line}: kill: {e}"))?;
        wait_within(&mut child, Duration::from_secs(10));
        return Err(format!("{line}: no end within {limit:?}"));
    };
    let grace = Duration::from_secs(3);
    let held = || format!("{line}: ended, but its output is still held open by another process");
    let stdout = stdout.recv_timeout(grace).map_err(|_| held())?;
    let stderr = stderr.recv_timeout(grace).map_err(|_| held())?;
    Ok(Done {
        line,
        status,
        stdout,
        stderr,
    })
}

fn drain<R: Read + Send + 'static>(pipe: Option<R>) -> Receiver<Vec<u8>> {
    let (tx, rx) = channel();
    thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(mut pipe) = pipe {
            // An error ends the output as its end does; the status tells the rest.
            let _ = pipe.read_to_end(&mut all);
        }
        let _ = tx.send(all);
    });
    rx
}

/// Waits for a child, without polling; `None` when it is still there after `limit`.
pub fn wait_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    if let Ok(Some(status)) = child.try_wait() {
        return Some(status);
    }
    let fd =
        pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("pidfd_open of a child");
    exited_within(&fd, limit).then(|| child.wait().expect("wait of an ended child"))
}

/// Whether the process of `pidfd` ended within `limit`.
pub fn exited_within(pidfd: &OwnedFd, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("a small duration");
        let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => panic!("poll of a pidfd: {e}"),
        }
    }
}

/// Asks `probe` again and again until it answers, at most for `limit`.
///
/// For conditions that nobody announces; the pause is short and is no part of
/// what is tested.
pub fn until<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = probe() {
            return Some(answer);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Tells threads to stop, at the latest when it is dropped: a panic in a thread scope
/// must not leave the others running.
#[derive(Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// What the threads look at.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Stops them.
    pub fn now(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.now();
    }
}

/// Whether the threads may go on.
pub fn going(flag: &AtomicBool) -> bool {
    !flag.load(Ordering::SeqCst)
}

/// Whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A user that owns nothing: the one that unprivileged mounts run as.
pub const NOBODY: u32 = 65534;

/// Puts `setpriv` in front of a command, to run it as `uid` with `groups` besides
/// its own. The group has the user's number.
pub fn as_user<S: AsRef<OsStr>>(uid: u32, groups: &[u32], words: &[S]) -> Command {
    let mut all: Vec<OsString> = vec![
        "setpriv".into(),
        format!("--reuid={uid}").into(),
        format!("--regid={uid}").into(),
    ];
    if groups.is_empty() {
        all.push("--clear-groups".into());
    } else {
        let list: Vec<String> = groups.iter().map(u32::to_string).collect();
        all.push(format!("--groups={}", list.join(",")).into());
    }
    all.push("--".into());
    all.extend(words.iter().map(|w| w.as_ref().to_owned()));
    command(all)
}

/// Whether a program is installed.
pub fn has_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|p| p.is_file())
}

/// What a test cannot do without.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// `/dev/fuse`, and root or fusermount3.
    Fuse,
    /// The rights of root.
    Root,
    /// `/dev/fuse` open to everybody, and fusermount3: mounts by users.
    UserMounts,
    /// A program by its name.
    Program(&'static str),
}

impl Need {
    fn missing(self) -> Option<String> {
        match self {
            Self::Fuse if !Path::new("/dev/fuse").exists() => Some("no /dev/fuse".into()),
            Self::Fuse if !is_root() => Need::UserMounts.missing(),
            Self::Fuse => None,
            Self::Root => (!is_root()).then(|| "needs root".into()),
            Self::UserMounts => {
                if has_program("fusermount3").is_none() {
                    return Some("no fusermount3 (Debian package fuse3)".into());
                }
                let stat = rustix::fs::stat("/dev/fuse").ok();
                let open = stat.is_some_and(|s| s.st_mode & 0o006 == 0o006);
                (!open)
                    .then(|| "/dev/fuse is not open to users (mode 0666, as udev sets it)".into())
            }
            Self::Program(name) => has_program(name)
                .is_none()
                .then(|| format!("no program {name}")),
        }
    }
}

/// Whether a test may go on. When something is missing it says so on standard
/// error, past the capture of the test runner, and answers `false`; where the
/// mount tests are required it panics.
pub fn have(test: &str, needs: &[Need]) -> bool {
    let mut all = vec![Need::Fuse];
    all.extend(needs);
    let missing: Vec<String> = all.iter().filter_map(|n| n.missing()).collect();
    if missing.is_empty() {
        return true;
    }
    let why = missing.join("; ");
    let required = std::env::var_os("MOUNT_TESTS").is_some_and(|v| v == "require")
        || std::env::var_os("CI").is_some();
    assert!(!required, "{test} cannot run, but is required: {why}");
    writeln!(std::io::stderr(), "skipped: {test}: {why}").expect("standard error is open");
    false
}

/// Returns from the test, loudly, when something it needs is missing.
#[macro_export]
macro_rules! need {
    ($($need:expr),* $(,)?) => {{
        #[allow(unused_imports)]
        use $crate::run::Need::*;
        fn here() {}
        let name = std::any::type_name_of_val(&here);
        let name = name.strip_suffix("::here").unwrap_or(name);
        let name = name.strip_prefix("mount::").unwrap_or(name);
        if !$crate::run::have(name, &[$($need),*]) {
            return;
        }
    }};
}

/// A listing of bytes, one name a line, sorted; `sep` ends each.
pub fn sorted_lines(text: &[u8], sep: u8) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = text.split(|&b| b == sep).collect();
    lines.sort_unstable();
    lines
}

/// `None` when two sorted lists agree, else the first differences as text.
pub fn difference<T: AsRef<[u8]>>(source: &[T], mount: &[T]) -> Option<String> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let mut found = Vec::new();
    let (mut i, mut j) = (0, 0);
    let mut total = 0;
    while i < source.len() || j < mount.len() {
        let order = match (source.get(i), mount.get(j)) {
            (Some(a), Some(b)) => a.as_ref().cmp(b.as_ref()),
            (Some(_), None) => Less,
            _ => Greater,
        };
        if order == Equal {
            i += 1;
            j += 1;
            continue;
        }
        let (side, line) = if order == Less {
            i += 1;
            ("only the source has", &source[i - 1])
        } else {
            j += 1;
            ("only the mount has", &mount[j - 1])
        };
        total += 1;
        if found.len() < 12 {
            found.push(format!("{side}: {}", line.as_ref().escape_ascii()));
        }
    }
    (total > 0).then(|| format!("{total} differences\n{}", found.join("\n")))
}

/// `difference` sees a changed, a missing and a doubled line.
#[test]
fn difference_sees_each_kind() {
    let source = ["a", "b", "c"];
    assert_eq!(difference(&source, &source), None);
    assert!(difference(&source, &["a", "b", "d"]).is_some());
    assert!(difference(&source, &["a", "c"]).is_some());
    assert!(difference(&source, &["a", "b", "b", "c"]).is_some());
}

/// A command that does not end is killed and reported, not waited for.
#[test]
fn a_hanging_command_is_reported() {
    let limit = Duration::from_millis(200);
    let why = try_run_within(&mut command(["sleep", "60"]), limit).expect_err("it hangs");
    assert!(why.contains("no end within"), "{why}");
}

/// A daemon that keeps its caller's output open is reported.
#[test]
fn a_kept_output_is_reported() {
    let mut cmd = shell::<&str>("sleep 8 &", &[]);
    let why = try_run_within(&mut cmd, PATIENCE).expect_err("the pipe is held");
    assert!(why.contains("held open"), "{why}");
}
