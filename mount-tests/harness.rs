//! One mount per test: made by the command line, watched over, and taken down in
//! all paths.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::Timespec;

use crate::observe::{self, MountLine, SlabLine, Stats, mount_at};
pub use crate::place::Place;
use crate::place::{abort, complain};
use crate::run::{self, Done, NOBODY, command, run_within, try_run_within, until, wait_within};

/// What mounting and unmounting get.
const START: Duration = Duration::from_secs(30);

/// The coherence modes.
pub const MODES: [&str; 3] = ["ttl", "frozen", "strict"];

/// Held shared by tests that count requests, alone by those that drop the caches
/// of the whole machine.
static MACHINE: RwLock<()> = RwLock::new(());

/// Nobody drops the kernel's caches while this is held.
pub fn quiet_machine() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(|e| e.into_inner())
}

/// Nobody counts on the kernel's caches while this is held.
pub fn whole_machine() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(|e| e.into_inner())
}

/// Makes the kernel drop caches: 1 page cache, 2 dentries and inodes, 3 both.
pub fn kernel_drop_caches(_alone: &RwLockWriteGuard<'static, ()>, what: u8) {
    fs::write("/proc/sys/vm/drop_caches", format!("{what}\n")).expect("drop_caches is writable");
}

/// The mirror under test.
pub fn nameifs() -> OsString {
    std::env::var_os("NAMEIFS_TEST_MIRROR").unwrap_or_else(|| env!("CARGO_BIN_EXE_nameifs").into())
}

/// How a mount is to be made.
#[derive(Clone, Debug)]
pub struct Setup {
    source: Option<PathBuf>,
    args: Vec<OsString>,
    wrap: Vec<OsString>,
    foreground: bool,
    user: Option<u32>,
    lifetime: Duration,
}

impl Setup {
    /// A background mount with the program's defaults, of a new empty source.
    pub fn new() -> Self {
        Self {
            source: None,
            args: Vec::new(),
            wrap: Vec::new(),
            foreground: false,
            user: None,
            lifetime: Duration::from_secs(900),
        }
    }

    /// The same in a coherence mode.
    pub fn mode(mode: &str) -> Self {
        Self::new().arg(format!("--coherence={mode}"))
    }

    /// Adds an option.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Mirrors an existing directory.
    pub fn source(mut self, source: &Path) -> Self {
        self.source = Some(source.to_owned());
        self
    }

    /// Stays in the foreground, or not.
    pub fn foreground(mut self, foreground: bool) -> Self {
        self.foreground = foreground;
        self
    }

    /// Mounts as a user without rights, where this process has them.
    pub fn unprivileged(mut self) -> Self {
        self.user = run::is_root().then_some(NOBODY);
        self
    }

    /// Puts words in front of the command, such as a limit on its resources.
    pub fn wrapped(mut self, words: &[&str]) -> Self {
        self.wrap = words.iter().map(Into::into).collect();
        self
    }

    /// How long the mount may live; then it is cut and its test fails.
    pub fn lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// Mounts.
    #[track_caller]
    pub fn mount(self) -> Mounted {
        let place = Place::new();
        self.mount_in(place)
    }

    /// Mounts in a place that was prepared: `source` and `mnt` in it are used.
    #[track_caller]
    pub fn mount_in(self, place: Place) -> Mounted {
        let source = self.source.clone().unwrap_or_else(|| place.dir("source"));
        let mnt = place.dir("mnt");
        let log = place.dir("log").join("nameifs.log");
        let mut program = nameifs();
        if let Some(user) = self.user {
            for dir in [mnt.as_path(), &place.dir("log")] {
                chown(dir, Some(user), Some(user)).expect("chown by root");
            }
            // The build directory may lie where the user cannot go.
            let copy = place.path().join("nameifs");
            fs::copy(&program, &copy).expect("a copy of the program");
            program = copy.into();
        }
        let mut words = self.wrap.clone();
        words.extend([program.clone(), "mount".into()]);
        words.extend(self.foreground.then(|| "-f".into()));
        words.extend(["--log".into(), log.clone().into()]);
        words.extend(self.args.iter().cloned());
        words.extend([source.clone().into(), mnt.clone().into()]);
        let mut cmd = match self.user {
            Some(user) => run::as_user(user, &[], &words),
            None => command(words),
        };
        cmd.env("RUST_LOG", "info");
        // Built first, so that whatever was mounted is taken down when a step fails.
        let mut mounted = Mounted {
            source,
            mnt,
            log,
            program,
            user: self.user,
            child: None,
            daemon: None,
            minor: 0,
            ended: false,
            unclean: false,
            signalled: None,
            watchdog: None,
            stuck: Arc::new(AtomicBool::new(false)),
            place,
        };
        if self.foreground {
            mounted.start_foreground(&mut cmd);
        } else {
            let done = run_within(&mut cmd, START);
            assert!(
                done.status.success() && done.stderr.is_empty() && done.stdout.is_empty(),
                "{}: {}\n{}{}{}",
                done.line,
                done.status,
                done.out(),
                done.err(),
                mounted.log_tail()
            );
        }
        let line = mounted.mount_line();
        let line = line.unwrap_or_else(|| panic!("the command returned and nothing is mounted"));
        mounted.minor = line.minor;
        mounted.find_daemon();
        mounted.watch(self.lifetime);
        mounted
    }
}

/// A mount and its daemon.
pub struct Mounted {
    source: PathBuf,
    mnt: PathBuf,
    log: PathBuf,
    program: OsString,
    user: Option<u32>,
    child: Option<Child>,
    daemon: Option<(u32, OwnedFd)>,
    minor: u32,
    ended: bool,
    unclean: bool,
    signalled: Option<Signal>,
    watchdog: Option<Sender<()>>,
    stuck: Arc<AtomicBool>,
    /// Dropped last: it holds the directories.
    place: Place,
}

impl Mounted {
    /// The mountpoint.
    pub fn path(&self) -> &Path {
        &self.mnt
    }

    /// The mirrored directory.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// The directory of this test, to put other things in.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The number of the FUSE connection.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("a daemon was found").0
    }

    /// Its line in the mount table.
    pub fn mount_line(&self) -> Option<MountLine> {
        mount_at(&self.mnt)
    }

    /// A file in the mount.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mnt.join(name)
    }

    /// A file in the source.
    pub fn below(&self, name: impl AsRef<Path>) -> PathBuf {
        self.source.join(name)
    }

    /// `.nameifs/stats`.
    #[track_caller]
    pub fn stats(&self) -> Stats {
        let text = self.virtual_file(".nameifs/stats");
        Stats::parse(&text).unwrap_or_else(|e| panic!("{e}"))
    }

    /// `.slabinfo`.
    #[track_caller]
    pub fn slabinfo(&self) -> std::collections::BTreeMap<String, SlabLine> {
        let text = self.virtual_file(".slabinfo");
        observe::parse_slabinfo(&text).unwrap_or_else(|e| panic!("{e}"))
    }

    #[track_caller]
    fn virtual_file(&self, name: &str) -> Vec<u8> {
        match self.user {
            None => fs::read(self.at(name)).unwrap_or_else(|e| panic!("{name}: {e}")),
            Some(user) => {
                let words = [OsStr::new("cat").to_owned(), self.at(name).into()];
                run::run(&mut run::as_user(user, &[], &words))
                    .clean()
                    .stdout
            }
        }
    }

    /// Writes to `.nameifs/drop_caches`. The kernel lets nobody write in a read-only
    /// mount, so there it is made writable for that moment.
    #[track_caller]
    pub fn drop_caches(&self) {
        let file = self.at(".nameifs/drop_caches");
        let line = self.mount_line().expect("it is mounted");
        let read_only = line.options.split(',').any(|w| w == "ro");
        let remount = |word: &str| {
            let mut cmd = command(["mount", "-i", "-o", &format!("remount,{word}")]);
            run::run(cmd.arg(&self.mnt)).clean();
        };
        if read_only {
            remount("rw");
        }
        let written = fs::write(&file, "1");
        if read_only {
            remount("ro");
        }
        written.expect("drop_caches takes a 1");
    }

    /// A command with the mount as its working directory.
    pub fn inside<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut cmd = match self.user {
            Some(user) => run::as_user(user, &[], words),
            None => command(words),
        };
        cmd.current_dir(&self.mnt);
        cmd
    }

    /// `nameifs` itself, as the user who mounted.
    pub fn tool<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut all = vec![self.program.clone()];
        all.extend(words.iter().map(|w| w.as_ref().to_owned()));
        match self.user {
            Some(user) => run::as_user(user, &[], &all),
            None => command(all),
        }
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, signal: Signal) {
        let (_, fd) = self.daemon.as_ref().expect("a daemon was found");
        pidfd_send_signal(fd, signal).expect("the daemon is there");
    }

    /// What the daemon has logged so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().rev().take(30).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        format!("\nend of the log:\n{}", lines.join("\n"))
    }

    fn start_foreground(&mut self, cmd: &mut Command) {
        let err = fs::File::create(self.log.with_extension("stderr")).expect("a file for stderr");
        cmd.stdout(Stdio::null()).stderr(err).process_group(0);
        let table = fs::File::open("/proc/self/mountinfo").expect("mountinfo is readable");
        self.child = Some(cmd.spawn().expect("the program starts"));
        let end = Instant::now() + START;
        while self.mount_line().is_none() {
            let child = self.child.as_mut().expect("just set");
            if let Ok(Some(status)) = child.try_wait() {
                panic!(
                    "-f ended with {status}: {}{}",
                    self.stderr(),
                    self.log_tail()
                );
            }
            assert!(
                Instant::now() < end,
                "-f: no mount within {START:?}{}",
                self.log_tail()
            );
            // The kernel wakes pollers of the mount table when it changes; the limit
            // is for the death of the daemon, which it does not announce.
            let mut fds = [PollFd::from_borrowed_fd(table.as_fd(), PollFlags::PRI)];
            let limit = Timespec::try_from(Duration::from_millis(100)).expect("a small duration");
            let _ = poll(&mut fds, Some(&limit));
        }
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.log.with_extension("stderr")).unwrap_or_default()
    }

    fn find_daemon(&mut self) {
        let mut pids = observe::processes_naming(&self.mnt);
        if let Some(child) = &self.child {
            // Wrapped commands and users are by exec, so the child is the daemon.
            pids.retain(|p| *p == child.id());
        }
        assert!(
            pids.len() <= 1,
            "more than one process serves this mount: {pids:?}"
        );
        self.daemon = pids.first().map(|&pid| {
            let id = Pid::from_raw(pid.cast_signed()).expect("a process number");
            (
                pid,
                pidfd_open(id, PidfdFlags::empty()).expect("pidfd_open of the daemon"),
            )
        });
    }

    /// A thread that cuts the connection when the test takes too long, so that
    /// whoever waits in the mount gets an error and the test ends.
    fn watch(&mut self, lifetime: Duration) {
        let (tx, rx) = channel();
        let (minor, mnt, stuck) = (self.minor, self.mnt.clone(), Arc::clone(&self.stuck));
        let pid = self.daemon.as_ref().map(|d| d.0);
        thread::spawn(move || {
            if rx.recv_timeout(lifetime) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                return;
            }
            stuck.store(true, Ordering::SeqCst);
            eprintln!("{}: cut after {lifetime:?}; the daemon:", mnt.display());
            if let Some(pid) = pid {
                describe(pid);
            }
            abort(minor);
        });
        self.watchdog = Some(tx);
    }

    /// Says that the daemon will not end in the regular way: killed on purpose.
    pub fn expect_unclean(&mut self) {
        self.unclean = true;
    }

    /// Says that a signal will end the daemon; in the foreground it then exits with 128
    /// and the signal's number, or with 0.
    pub fn expect_signal(&mut self, signal: Signal) {
        self.signalled = Some(signal);
    }

    /// Panics unless the mount is gone and its daemon has ended.
    #[track_caller]
    pub fn find_gone(&mut self) {
        assert!(self.mount_line().is_none(), "still mounted");
        if let Err(why) = self.wait_daemon() {
            panic!("{why}");
        }
    }

    /// Unmounts with the command line and checks that nothing is left: no mount,
    /// no daemon, no object in a slab cache.
    #[track_caller]
    pub fn unmount(mut self) {
        if let Err(why) = self.end() {
            panic!("{why}");
        }
    }

    /// Runs `nameifs umount`.
    pub fn umount_command(&self) -> Result<Done, String> {
        let words: [&OsStr; 2] = [OsStr::new("umount"), self.mnt.as_os_str()];
        try_run_within(&mut self.tool(&words), START)
    }

    fn end(&mut self) -> Result<(), String> {
        if self.ended {
            return Ok(());
        }
        self.ended = true;
        let mut wrong = Vec::new();
        if self.mount_line().is_some() {
            // A program that another test starts has our descriptors between fork and exec.
            let free = until(Duration::from_secs(5), || match self.umount_command() {
                Ok(done) if done.status.success() => Some(Ok(())),
                Ok(done) if done.err().contains("is in use") => None,
                Ok(done) => Some(Err(format!("umount: {} {}", done.status, done.err()))),
                Err(why) => Some(Err(why)),
            });
            match free {
                Some(done) => wrong.extend(done.err()),
                None => wrong.push("umount: it stays in use".into()),
            }
        }
        if let Some(line) = self.mount_line() {
            wrong.push("still mounted after umount".into());
            abort(line.minor);
            let _ = rustix::mount::unmount(&self.mnt, rustix::mount::UnmountFlags::DETACH);
        }
        self.watchdog = None;
        if self.stuck.load(Ordering::SeqCst) {
            wrong.push("the mount outlived its time and was cut".into());
        }
        wrong.extend(self.wait_daemon().err());
        wrong.extend(self.log_complaint());
        if wrong.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{}{}{}",
            wrong.join("\n"),
            self.stderr(),
            self.log_tail()
        ))
    }

    fn wait_daemon(&mut self) -> Result<(), String> {
        if let Some(child) = &mut self.child {
            let Some(status) = wait_within(child, START) else {
                let _ = child.kill();
                let _ = child.wait();
                return Err("the foreground daemon did not end after unmounting".into());
            };
            let signalled = self.signalled.map(|s| 128 + s.as_raw());
            let expected = status.success() || (signalled.is_some() && status.code() == signalled);
            if !expected && !self.unclean {
                return Err(format!("the foreground daemon ended with {status}"));
            }
            return Ok(());
        }
        if let Some((pid, fd)) = &self.daemon
            && !run::exited_within(fd, START)
        {
            describe(*pid);
            let _ = pidfd_send_signal(fd, Signal::KILL);
            return Err("the daemon did not end after unmounting".into());
        }
        Ok(())
    }

    /// What the log has that no run may have: a panic, an error, a leaked object.
    fn log_complaint(&self) -> Option<String> {
        if self.unclean {
            return None;
        }
        let log = self.log() + &self.stderr();
        // A reply to a caller that was killed meanwhile has nobody to go to.
        let late = "Failed to send FUSE reply: No such file or directory";
        let bad = |l: &&str| (l.contains(" ERROR ") && !l.contains(late)) || l.contains("panicked");
        if let Some(line) = log.lines().find(bad) {
            return Some(format!("the log says: {line}"));
        }
        let ours = std::env::var_os("NAMEIFS_TEST_MIRROR").is_none();
        let counted = log.contains("leaked=0");
        (ours && !counted).then(|| "the log does not say that no object was left".into())
    }

    /// Waits until the mount is gone by itself, as after a signal to the daemon.
    #[track_caller]
    pub fn wait_gone(mut self) {
        let gone = until(START, || self.mount_line().is_none().then_some(()));
        assert!(gone.is_some(), "still mounted{}", self.log_tail());
        if let Err(why) = self.end() {
            panic!("{why}");
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(why) = self.end() {
            complain(&why);
        }
        if thread::panicking() {
            eprintln!("{}", self.log_tail());
        }
    }
}

/// Prints where the threads of a process are.
fn describe(pid: u32) {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return;
    };
    for task in tasks.flatten() {
        let read = |f: &str| fs::read_to_string(task.path().join(f)).unwrap_or_default();
        let state = read("status");
        let state = state
            .lines()
            .find(|l| l.starts_with("State:"))
            .unwrap_or("");
        eprintln!(
            "{} {state} {} {}",
            read("comm").trim(),
            read("wchan"),
            read("syscall").trim()
        );
    }
}
