//! Starting, ending, and what happens when something dies.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{MODES, Mounted, Place, Setup, nameifs};
use crate::need;
use crate::observe::{Aside, mount_at};
use crate::run::{self, Stop, command, going, run, run_within, try_run_within};

fn mounted_with_file(setup: Setup) -> Mounted {
    let mounted = setup.mount();
    fs::write(mounted.below("f"), "text").expect("write");
    assert_eq!(fs::read_to_string(mounted.at("f")).expect("read"), "text");
    mounted
}

/// SIGTERM, SIGINT and SIGHUP unmount cleanly, in the foreground and in the
/// background.
#[test]
fn signals_unmount() {
    need!();
    for foreground in [false, true] {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let mut mounted = mounted_with_file(Setup::new().foreground(foreground));
            mounted.expect_signal(signal);
            mounted.signal(signal);
            mounted.wait_gone();
        }
    }
}

/// A signal while somebody is in the mount: it is detached, the daemon ends, and the
/// user gets errors rather than a hang.
#[test]
fn signal_while_busy() {
    need!();
    let mut mounted = mounted_with_file(Setup::new());
    let held = fs::File::open(mounted.at("f")).expect("open");
    mounted.expect_signal(Signal::TERM);
    mounted.signal(Signal::TERM);
    let gone = run::until(Duration::from_secs(20), || {
        mounted.mount_line().is_none().then_some(())
    });
    assert!(gone.is_some(), "still mounted");
    held.metadata().ok();
    drop(held);
    mounted.wait_gone();
}

/// The daemon holds no directory and no stream of its caller: it can be started in a
/// place that is unmounted afterwards.
#[test]
fn daemon_lets_go() {
    need!(Root);
    let place = Place::new();
    let (source, mnt) = (place.dir("source"), place.dir("mnt"));
    let aside = Aside::mount("tmpfs", &place.dir("aside"));
    let mut cmd = command([nameifs()]);
    cmd.arg("mount")
        .args([&source, &mnt])
        .current_dir(place.path().join("aside"));
    run(&mut cmd).clean();
    let pids = crate::observe::processes_naming(&mnt);
    assert_eq!(pids.len(), 1, "{pids:?}");
    let proc = Path::new("/proc").join(pids[0].to_string());
    assert_eq!(
        fs::read_link(proc.join("cwd")).expect("cwd"),
        Path::new("/")
    );
    for fd in 0..3 {
        let target = fs::read_link(proc.join("fd").join(fd.to_string())).expect("a stream");
        assert_eq!(target, Path::new("/dev/null"), "stream {fd}");
    }
    let stat = fs::read_to_string(proc.join("stat")).expect("stat");
    let words: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("words")
        .split_whitespace()
        .collect();
    assert_eq!(words[3], pids[0].to_string(), "it leads its own session");
    drop(aside);
    assert!(
        mount_at(&place.path().join("aside")).is_none(),
        "held by the daemon"
    );
    run(command([nameifs()]).arg("umount").arg(&mnt)).clean();
}

/// Killed: whoever looks gets ENOTCONN at once, `nameifs umount` clears it away, and
/// the place can be mounted on again.
#[test]
fn killed() {
    need!();
    for foreground in [false, true] {
        let mut mounted = mounted_with_file(Setup::new().foreground(foreground));
        mounted.expect_unclean();
        mounted.signal(Signal::KILL);
        let error = run::until(Duration::from_secs(10), || {
            let error = fs::read_dir(mounted.path()).err()?;
            (error.raw_os_error() == Some(libc::ENOTCONN)).then_some(())
        });
        assert!(error.is_some(), "no ENOTCONN from a dead mount");
        let again = mounted.tool(&[
            OsStr::new("mount"),
            mounted.source().as_os_str(),
            mounted.path().as_os_str(),
        ]);
        let mut again = again;
        let done = run(&mut again);
        assert_eq!(done.code(), 1, "mounted over a dead mount");
        assert_eq!(done.err().lines().count(), 1, "{}", done.err());
        mounted.unmount();
    }
}

/// With auto_unmount even SIGKILL leaves no dead mount.
#[test]
fn killed_with_auto_unmount() {
    need!(UserMounts);
    let setup = Setup::new().arg("-o").arg("auto_unmount").foreground(true);
    let mut mounted = mounted_with_file(setup);
    mounted.expect_unclean();
    mounted.signal(Signal::KILL);
    mounted.wait_gone();
}

/// A daemon that does not answer: callers can be interrupted, and when it goes on so
/// does all.
#[test]
fn stopped() {
    need!();
    let mounted = mounted_with_file(Setup::mode("strict"));
    mounted.signal(Signal::STOP);
    let start = Instant::now();
    let absent = mounted.at("g");
    let words = [
        OsStr::new("timeout"),
        OsStr::new("1"),
        OsStr::new("stat"),
        absent.as_os_str(),
    ];
    let done = run_within(&mut command(words), Duration::from_secs(30));
    assert_eq!(done.code(), 124, "{}", done.err());
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "not interruptible"
    );
    mounted.signal(Signal::CONT);
    assert_eq!(fs::read_to_string(mounted.at("f")).expect("read"), "text");
    mounted.unmount();
}

/// A source that hangs: in `frozen` what is cached still answers; when it goes on so
/// does all.
#[test]
fn hung_source() {
    need!(Program("bindfs"));
    let place = Place::new();
    let (real, slow) = (place.dir("real"), place.dir("slow"));
    fs::create_dir(real.join("d")).expect("mkdir");
    fs::write(real.join("d/f"), "text").expect("write");
    let mut bindfs = Helper::start(command(["bindfs", "-f"]).args([&real, &slow]));
    let up = run::until(Duration::from_secs(10), || mount_at(&slow));
    assert!(up.is_some(), "bindfs does not mount");
    let mounted = Setup::mode("frozen").source(&slow).mount();
    // No find and no ls -l: they ask for STATFS and extended attributes, which are the
    // source's to answer.
    let look = ["bash", "-c", "ls -U . d && stat -c %s:%i . d d/f"];
    for _ in 0..3 {
        run(&mut mounted.inside(&look)).clean();
    }
    let before = run(&mut mounted.inside(&look)).clean().out();
    let warm = {
        let _stopped = bindfs.stopped();
        try_run_within(&mut mounted.inside(&look), Duration::from_secs(10))
    };
    assert_eq!(warm.map(|d| d.out()), Ok(before));
    assert_eq!(fs::read_to_string(mounted.at("d/f")).expect("read"), "text");
    mounted.unmount();
    run(command(["umount"]).arg(&slow)).ok();
    bindfs.ended();
}

/// A process of a test that never outlives it.
struct Helper(std::process::Child);

impl Helper {
    fn start(cmd: &mut std::process::Command) -> Self {
        Self(cmd.spawn().expect("it starts"))
    }

    /// Stopped until the answer is dropped, in all paths.
    fn stopped(&self) -> Stopped {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, Signal::STOP).expect("stop");
        Stopped(pid)
    }

    fn ended(&mut self) {
        run::wait_within(&mut self.0, Duration::from_secs(10)).expect("it ends");
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Stopped(rustix::process::Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        rustix::process::kill_process(self.0, Signal::CONT).expect("continue");
    }
}

/// The source goes away: errors, no hang, and the mount can be unmounted.
#[test]
fn removed_source() {
    need!();
    for mode in MODES {
        let mounted = mounted_with_file(Setup::mode(mode));
        fs::remove_dir_all(mounted.source()).expect("rm -r");
        let done = run_within(
            &mut mounted.inside(&["ls", "-la", ".", "f", "g"]),
            Duration::from_secs(20),
        );
        assert_ne!(done.code(), 0, "{mode}: {}", done.out());
        assert!(
            !done.err().contains("Input/output error"),
            "{mode}: {}",
            done.err()
        );
        mounted.unmount();
    }
}

/// Unmounting lazily in the middle of heavy use ends: the walkers get errors or finish,
/// and the daemon is gone.
#[test]
fn unmounted_under_load() {
    need!(Root);
    for mode in MODES {
        let mut mounted = Setup::mode(mode).source(Path::new("/usr/include")).mount();
        std::thread::scope(|scope| {
            let stop = Stop::default();
            let (at, flag) = (mounted.path(), stop.flag());
            let walkers: Vec<_> = (0..8)
                .map(|_| {
                    let flag = flag.clone();
                    scope.spawn(move || {
                        while going(&flag) && mount_at(at).is_some() {
                            run(command(["find", ".", "-printf", "%s"]).current_dir(at));
                        }
                    })
                })
                .collect();
            let busy = run::until(Duration::from_secs(20), || {
                (mounted.stats().requests().total() > 2000).then_some(())
            });
            assert!(busy.is_some(), "{mode}: the walkers do not walk");
            let words = [OsStr::new("umount"), OsStr::new("--lazy"), at.as_os_str()];
            run_within(&mut mounted.tool(&words), Duration::from_secs(30)).ok();
            for walker in walkers {
                walker.join().expect("a walker ends");
            }
        });
        mounted.find_gone();
        mounted.unmount();
    }
}

/// Several mounts of one source at once do not disturb each other.
#[test]
fn several_mounts() {
    need!();
    let place = Place::new();
    let source = place.dir("source");
    fs::write(source.join("f"), "text").expect("write");
    let mut all: Vec<_> = MODES
        .iter()
        .chain(&MODES)
        .map(|mode| Setup::mode(mode).source(&source).mount())
        .collect();
    while let Some(mounted) = all.pop() {
        for other in &all {
            assert_eq!(fs::read_to_string(other.at("f")).expect("read"), "text");
        }
        mounted.unmount();
    }
}

/// Mounting and unmounting again and again leaves nothing behind.
#[test]
fn many_times() {
    need!();
    let place = Place::new();
    let (source, mnt) = (place.dir("source"), place.dir("mnt"));
    fs::write(source.join("f"), "text").expect("write");
    for i in 0..50 {
        run(command([nameifs()]).arg("mount").args([&source, &mnt])).clean();
        // Ready means ready: the first look must succeed.
        let text = fs::read_to_string(mnt.join("f"));
        assert_eq!(text.unwrap_or_else(|e| panic!("round {i}: {e}")), "text");
        run(command([nameifs()]).arg("umount").arg(&mnt)).clean();
        assert!(mount_at(&mnt).is_none(), "round {i}");
        let left = crate::observe::processes_naming(&mnt);
        assert!(
            left.is_empty(),
            "round {i}: umount returned before the daemon ended"
        );
    }
}

/// A process that waits for a lock in the mount does not keep others from listing.
#[test]
fn lock_waiters_block_nobody() {
    need!(Program("flock"));
    let mounted = mounted_with_file(Setup::new().arg("--threads=2"));
    let holder = fs::File::open(mounted.at("f")).expect("open");
    holder.lock().expect("nobody else has it");
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| run(&mut mounted.inside(&["flock", "-s", "f", "true"])).clean())
            })
            .collect();
        for i in 0..50 {
            fs::write(mounted.below(format!("n-{i}")), "").expect("write");
            let ls = run_within(&mut mounted.inside(&["ls"]), Duration::from_secs(20));
            ls.clean();
        }
        holder.unlock().expect("unlock");
        for waiter in waiters {
            waiter.join().expect("a waiter gets the lock");
        }
    });
    drop(holder);
    mounted.unmount();
}

/// As the lower directory of an overlay the mount works.
#[test]
fn below_an_overlay() {
    need!(Root);
    for mode in ["ttl", "frozen"] {
        let mounted = mounted_with_file(Setup::mode(mode));
        fs::create_dir(mounted.below("d")).expect("mkdir");
        let tmp = Aside::mount("tmpfs", &mounted.place().dir("upper"));
        let (upper, at) = (
            mounted.place().dir("upper/u"),
            mounted.place().dir("merged"),
        );
        let work = mounted.place().dir("upper/w");
        let list = format!(
            "lowerdir={},upperdir={},workdir={}",
            mounted.path().display(),
            upper.display(),
            work.display()
        );
        run(command(["mount", "-t", "overlay", "overlay", "-o", &list]).arg(&at)).clean();
        assert_eq!(fs::read_to_string(at.join("f")).expect("read"), "text");
        fs::write(at.join("f"), "changed above").expect("copy up");
        fs::write(at.join("new"), "n").expect("create");
        assert_eq!(
            fs::read_to_string(at.join("f")).expect("read"),
            "changed above"
        );
        assert_eq!(
            fs::read_to_string(mounted.below("f")).expect("read"),
            "text"
        );
        run(command(["umount"]).arg(&at)).clean();
        drop(tmp);
        mounted.unmount();
    }
}

/// A socket that is bound on the source can be seen through the mount; connecting to
/// it there is refused (the kernel ties sockets to their own inode), and does not hang.
#[test]
fn sockets_refuse() {
    need!();
    let mounted = Setup::mode("strict").mount();
    let listener = UnixListener::bind(mounted.below("s")).expect("bind");
    let stat = mounted.at("s").symlink_metadata().expect("lstat");
    assert!(stat.file_type().is_socket());
    let error = UnixStream::connect(mounted.at("s")).expect_err("a kernel limit");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    UnixStream::connect(mounted.below("s")).expect("below it works");
    drop(listener);
    mounted.unmount();
}
