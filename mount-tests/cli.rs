//! Bad input: one clear line, exit 2 for misuse and 1 for failure, nothing left
//! mounted, nothing left running.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::harness::{Mounted, Place, Setup, nameifs};
use crate::need;
use crate::observe::{mount_at, mounts_below, processes_naming};
use crate::run::{self, Done, as_user, command, run, try_run_within};

pub fn tool<S: AsRef<OsStr>>(words: &[S]) -> Done {
    let mut cmd = command([nameifs()]);
    cmd.args(words);
    run::run_within(&mut cmd, Duration::from_secs(30))
}

/// Exactly one line, which begins with the program's name and has a word of
/// advice in it, or the words given.
#[track_caller]
pub fn refused(done: &Done, code: i32, says: &str) {
    let err = done.err();
    assert_eq!(done.code(), code, "{}: {err}", done.line);
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 1, "{}: not one line: {err}", done.line);
    assert!(
        err.ends_with('\n') && lines[0].starts_with("nameifs: "),
        "{}: {err}",
        done.line
    );
    assert!(
        !err.contains("panicked") && !err.contains("os error"),
        "{err}"
    );
    assert!(err.contains(says), "{}: no {says:?} in: {err}", done.line);
    assert!(done.stdout.is_empty(), "{}: {}", done.line, done.out());
}

/// Directories for one table of refusals; at the end nothing may be mounted.
struct Corner {
    place: Place,
}

impl Corner {
    fn new() -> Self {
        let place = Place::new();
        for dir in ["source", "source/inner", "mnt", "full/inner", "closed"] {
            place.dir(dir);
        }
        for file in ["file", "full/file", "source/f"] {
            fs::write(place.path().join(file), "").expect("write");
        }
        symlink("nowhere", place.path().join("dangling")).expect("symlink");
        let closed = fs::Permissions::from_mode(0o000);
        fs::set_permissions(place.path().join("closed"), closed).expect("chmod");
        Self { place }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// `nameifs mount OPTIONS SOURCE MOUNTPOINT` with names in this corner.
    fn mount(&self, options: &[&str], source: &str, mountpoint: &str) -> Done {
        let mut words: Vec<OsString> = vec!["mount".into()];
        words.extend(options.iter().map(Into::into));
        words.extend([self.at(source).into(), self.at(mountpoint).into()]);
        tool(&words)
    }

    #[track_caller]
    fn empty(&self) {
        let left = mounts_below(self.place.path());
        assert!(left.is_empty(), "left mounted: {left:?}");
        let left = processes_naming(&self.at("mnt"));
        assert!(left.is_empty(), "left running: {left:?}");
    }
}

/// Places that cannot be mirrored or mounted on: exit 1.
#[test]
fn unfit_places() {
    need!();
    let corner = Corner::new();
    let table = [
        ("nowhere", "mnt", "does not exist"),
        ("dangling", "mnt", "does not exist"),
        ("file", "mnt", "not a directory"),
        ("file/x", "mnt", "source"),
        ("source", "nowhere", "does not exist"),
        ("source", "file", "not a directory"),
        ("source", "full", "not empty"),
        ("source", "source/inner", "inside"),
        ("full/inner", "full", "not empty"),
    ];
    for foreground in [&[][..], &["-f"]] {
        for (source, mountpoint, says) in table {
            refused(&corner.mount(foreground, source, mountpoint), 1, says);
        }
    }
    corner.empty();
}

/// Options that mean nothing: exit 2.
#[test]
fn unknown_options_and_values() {
    need!();
    let corner = Corner::new();
    let table: &[(&[&str], &str)] = &[
        (&["--no-such-option"], "--no-such-option"),
        (&["--coherence=eternal"], "eternal"),
        (&["--coherence"], ""),
        (&["--ttl=soon"], "soon"),
        (&["--ttl=-1s"], "-1s"),
        (&["--ttl="], "ttl"),
        (&["--cache-size=0"], "cache-size"),
        (&["--cache-size=12X"], "12X"),
        (&["--cache-size=-5M"], "-5M"),
        (&["--cache-size=99999999999999999999G"], "cache-size"),
        (&["--threads=0"], "threads"),
        (&["--threads=many"], "many"),
        (&["--threads=1000000000"], "threads"),
        (&["--slabinfo=loud"], "loud"),
        (&["--passthrough=on"], "on"),
        (&["--readdirplus=perhaps"], "perhaps"),
        (&["-o", "no_such_word"], "no_such_word"),
        (&["-o", "ttl=never"], "never"),
        (&["-o", "coherence"], "coherence"),
        (&["-o", "ro=1"], "ro"),
        (&["-o", "coherence=frozen,rw"], "rw"),
        (&["-o"], ""),
        (&["-q"], "-q"),
    ];
    for (options, says) in table {
        let done = corner.mount(options, "source", "mnt");
        refused(&done, 2, says);
    }
    corner.empty();
}

/// Missing and surplus arguments: exit 2.
#[test]
fn wrong_number_of_arguments() {
    need!();
    let corner = Corner::new();
    let (source, mnt) = (corner.at("source"), corner.at("mnt"));
    let word = |w: &str| OsString::from(w);
    let table: Vec<Vec<OsString>> = vec![
        vec![],
        vec![word("mount")],
        vec![word("mount"), source.clone().into()],
        vec![
            word("mount"),
            source.clone().into(),
            mnt.clone().into(),
            word("third"),
        ],
        vec![word("mount"), word(""), mnt.clone().into()],
        vec![word("mount"), source.into(), word("")],
        vec![word("mount"), mnt.into()],
        vec![word("umount")],
        vec![word("stat")],
        vec![word("top")],
        vec![word("resolve")],
    ];
    for words in table {
        refused(&tool(&words), 2, "");
    }
    corner.empty();
}

/// umount and stat of what is no mount of ours: exit 1.
#[test]
fn not_a_mount() {
    need!();
    let corner = Corner::new();
    for path in [
        corner.at("mnt"),
        corner.at("nowhere"),
        corner.at("file"),
        "/proc".into(),
    ] {
        for command in ["umount", "stat"] {
            refused(
                &tool(&[command.into(), path.clone().into_os_string()]),
                1,
                "",
            );
        }
    }
    assert!(Path::new("/proc/self").exists(), "/proc was unmounted");
    corner.empty();
}

/// A user without rights: a source that may not be read, a mountpoint of another,
/// allow_other where /etc/fuse.conf does not allow it. Exit 1, one line.
#[test]
fn no_permission() {
    need!(Root, UserMounts, Program("setpriv"));
    let corner = Corner::new();
    let mine = corner.at("mnt");
    std::os::unix::fs::chown(&mine, Some(run::NOBODY), Some(run::NOBODY)).expect("chown");
    let program = corner.at("nameifs");
    fs::copy(nameifs(), &program).expect("a copy of the program");
    let attempt = |options: &[&str], source: PathBuf, mountpoint: PathBuf| {
        let mut words = vec![program.clone().into_os_string(), "mount".into()];
        words.extend(options.iter().map(Into::into));
        words.extend([source.into(), mountpoint.into()]);
        run(&mut as_user(run::NOBODY, &[], &words))
    };
    refused(
        &attempt(&[], corner.at("closed"), mine.clone()),
        1,
        "closed",
    );
    refused(
        &attempt(&[], corner.at("source"), corner.at("full/inner")),
        1,
        "",
    );
    let conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if !conf.lines().any(|l| l.trim() == "user_allow_other") {
        let done = attempt(&["-o", "allow_other"], corner.at("source"), mine.clone());
        refused(&done, 1, "user_allow_other");
    }
    corner.empty();
}

/// Another's mount is not unmounted by a user without rights.
#[test]
fn users_cannot_unmount_another() {
    need!(Root, UserMounts, Program("setpriv"));
    let mounted = Setup::new().mount();
    let place = Place::new();
    let program = place.path().join("nameifs");
    fs::copy(nameifs(), &program).expect("a copy of the program");
    let words = [
        program.as_os_str(),
        OsStr::new("umount"),
        mounted.path().as_os_str(),
    ];
    refused(&run(&mut as_user(run::NOBODY, &[], &words)), 1, "");
    assert!(mounted.mount_line().is_some());
    mounted.unmount();
}

/// Without /dev/fuse, or without rights in a namespace of its own: exit 1 and a line
/// that names what to do.
#[test]
fn no_device() {
    need!(Root, Program("unshare"));
    let corner = Corner::new();
    let script = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec \"$@\"";
    let mut cmd = command([
        "unshare",
        "-m",
        "--propagation",
        "private",
        "bash",
        "-c",
        script,
    ]);
    cmd.arg("bash")
        .arg(nameifs())
        .arg("mount")
        .args([corner.at("source"), corner.at("mnt")]);
    refused(&run(&mut cmd), 1, "/dev/fuse");
    corner.empty();
}

/// Either the mount works, or it is refused with one line and exit 1 or 2; it never
/// hangs. `look` gets the mountpoint where it works.
fn works_or_refuses(corner: &Corner, options: &[&str], source: &str, mnt: &str, look: fn(&Path)) {
    let done = corner.mount(options, source, mnt);
    let at = corner.at(mnt);
    if done.status.success() {
        let line = mount_at(&at).expect("it is mounted");
        assert_eq!(line.fstype, "fuse.nameifs");
        look(&at);
        let umount = tool(&[OsStr::new("umount"), at.as_os_str()]);
        assert!(umount.status.success(), "{}", umount.err());
    } else {
        assert!(done.code() == 1 || done.code() == 2, "{}", done.status);
        refused(&done, done.code(), "");
    }
    corner.empty();
}

/// A walk of everything below, which must end.
fn walk(dir: &Path) {
    let limit = Duration::from_secs(20);
    let done = try_run_within(command(["find"]).arg(dir).args(["-ls"]), limit);
    let done = done.unwrap_or_else(|e| panic!("{e}"));
    done.ok();
}

/// A mount over its own source, inside it, and around it: each works or is refused
/// with one line, none hangs.
#[test]
fn overlapping_places() {
    need!();
    let corner = Corner::new();
    works_or_refuses(&corner, &[], "source", "source", |m| {
        walk(m);
        assert!(
            m.join("f").exists(),
            "the source is seen below its own mirror"
        );
    });
    works_or_refuses(&corner, &[], "source", "source/inner", walk);
    works_or_refuses(&corner, &["-o", "nonempty"], "source", "source/inner", walk);
    works_or_refuses(&corner, &["-o", "nonempty"], "full/inner", "full", walk);
    works_or_refuses(&corner, &["-o", "nonempty"], "source", "full", |m| {
        walk(m);
        assert!(m.join("f").exists() && !m.join("file").exists());
    });
}

/// A mirror of a mirror, and a second mirror on the mountpoint of the first: each
/// works or is refused, none hangs.
#[test]
fn mirrors_of_mirrors() {
    need!();
    let first = Setup::new().mount();
    fs::write(first.below("f"), "text").expect("write");
    fs::create_dir(first.below("d")).expect("mkdir");
    let corner = Corner::new();
    let upper = corner.at("mnt");
    let words = [
        OsStr::new("mount"),
        first.path().as_os_str(),
        upper.as_os_str(),
    ];
    let done = tool(&words);
    if done.status.success() {
        walk(&upper);
        assert_eq!(fs::read_to_string(upper.join("f")).expect("read"), "text");
        let umount = tool(&[OsStr::new("umount"), upper.as_os_str()]);
        assert!(umount.status.success(), "{}", umount.err());
    } else {
        refused(&done, 1, "");
    }
    let done = tool(&[
        OsStr::new("mount"),
        first.source().as_os_str(),
        first.path().as_os_str(),
    ]);
    if done.status.success() {
        walk(first.path());
        let umount = tool(&[OsStr::new("umount"), first.path().as_os_str()]);
        assert!(umount.status.success(), "{}", umount.err());
    } else {
        refused(&done, 1, "already");
    }
    walk(first.path());
    corner.empty();
    first.unmount();
}

/// Paths are bytes: a source and a mountpoint with a space, a newline, a comma, a
/// backslash and no UTF-8 in their names.
#[test]
fn nasty_places() {
    need!();
    let place = Place::new();
    for name in [
        &b"two words"[..],
        b"line\nbreak",
        b"a,b=c",
        b"back\\slash",
        b"\xff\xfe",
        b"-f",
    ] {
        let (source, mnt) = (
            place.path().join(OsStr::from_bytes(&[b"s", name].concat())),
            place.path().join(OsStr::from_bytes(&[name, b"m"].concat())),
        );
        for dir in [&source, &mnt] {
            fs::create_dir(dir).expect("mkdir");
        }
        fs::write(source.join("f"), "text").expect("write");
        let done = tool(&[OsStr::new("mount"), source.as_os_str(), mnt.as_os_str()]);
        assert!(
            done.status.success(),
            "{}: {}",
            name.escape_ascii(),
            done.err()
        );
        let line = mount_at(&mnt).unwrap_or_else(|| panic!("not mounted: {}", name.escape_ascii()));
        assert_eq!(line.source, source.as_os_str(), "{}", name.escape_ascii());
        assert_eq!(fs::read_to_string(mnt.join("f")).expect("read"), "text");
        let done = tool(&[OsStr::new("umount"), mnt.as_os_str()]);
        assert!(
            done.status.success(),
            "{}: {}",
            name.escape_ascii(),
            done.err()
        );
    }
    assert!(mounts_below(place.path()).is_empty());
}

/// Relative paths are taken from the caller's directory, though the daemon leaves
/// it; symlinks to both are followed.
#[test]
fn relative_places() {
    need!();
    let corner = Corner::new();
    symlink("source", corner.at("to-source")).expect("symlink");
    symlink("mnt", corner.at("to-mnt")).expect("symlink");
    for (source, mnt) in [
        ("source", "mnt"),
        ("./source/", "./mnt/"),
        ("to-source", "to-mnt"),
    ] {
        let mut cmd = command([nameifs()]);
        cmd.args(["mount", source, mnt])
            .current_dir(corner.place.path());
        run(&mut cmd).clean();
        assert!(corner.at("mnt/f").exists(), "{source} {mnt}");
        let line = mount_at(&corner.at("mnt")).expect("it is mounted");
        assert!(Path::new(&line.source).is_absolute(), "{line:?}");
        let mut cmd = command([nameifs()]);
        cmd.args(["umount", mnt]).current_dir(corner.place.path());
        run(&mut cmd).clean();
    }
    corner.empty();
}

/// The names of long options that `--help` shows.
fn long_options(help: &str) -> Vec<String> {
    let word = |w: &str| {
        let name: String = w
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '-')
            .collect();
        name.strip_prefix("--")
            .is_some_and(|n| !n.is_empty())
            .then_some(name)
    };
    help.split_ascii_whitespace().filter_map(word).collect()
}

/// Each long option of each command is in the README and in the man page; help and
/// version go to standard output and exit 0.
#[test]
fn options_are_documented() {
    need!();
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(readme).unwrap_or_default();
    let man = tool(&["man"]).clean().out().replace("\\-", "-");
    let mut missing = Vec::new();
    for command in ["mount", "umount", "stat", "top", "resolve", "demo"] {
        let help = tool(&[command, "--help"]).clean().out();
        assert!(help.contains("Usage"), "{help}");
        for option in long_options(&help) {
            let common = option == "--help" || option == "--version";
            if !common && !readme.contains(&option) {
                missing.push(format!("README: {command} {option}"));
            }
            if !common && !man.contains(&option) {
                missing.push(format!("man page: {command} {option}"));
            }
        }
    }
    assert!(missing.is_empty(), "undocumented: {missing:?}");
    let version = tool(&["--version"]).clean().out();
    assert_eq!(
        version.trim(),
        format!("nameifs {}", env!("CARGO_PKG_VERSION"))
    );
}

/// `long_options` finds what is there.
#[test]
fn long_options_are_found() {
    let help = "  -f, --foreground  Stay\n      --ttl <TIME>   How [default: 1s]\n -- --";
    assert_eq!(long_options(help), ["--foreground", "--ttl"]);
}

/// A busy mount is not unmounted: one line, exit 1, and it works on; afterwards it
/// is.
#[test]
fn busy() {
    need!();
    let mounted: Mounted = Setup::new().mount();
    fs::write(mounted.below("f"), "text").expect("write");
    let held = fs::File::open(mounted.at("f")).expect("open");
    let done = mounted.umount_command().unwrap_or_else(|e| panic!("{e}"));
    refused(&done, 1, "use");
    assert_eq!(
        fs::read_to_string(mounted.at("f")).expect("it works on"),
        "text"
    );
    drop(held);
    mounted.unmount();
}
