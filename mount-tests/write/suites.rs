//! Public suites: each runs on the bare filesystem first and then through the mount,
//! and nothing may fail there that does not fail on the bare one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Pair, ROUTES, route};
use crate::harness::Setup;
use crate::need;
use crate::run::{command, run, run_within};

/// What a whole suite gets.
const SUITE: Duration = Duration::from_secs(240);

/// The outcome of each case of a suite.
type Outcomes = BTreeMap<String, Outcome>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped,
    Failed(String),
}

/// A program of `cargo install --root target/tools`, which `.ci/run` does.
///
/// Where it is missing it is installed; in CI, where that has been done, it fails.
#[track_caller]
fn installed(name: &str, version: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_nameifs"));
    let target = target.ancestors().nth(2).expect("target/debug/nameifs");
    let tools = target.join("tools");
    let program = tools.join("bin").join(name);
    if program.is_file() {
        return program;
    }
    let spec = format!("{name}@{version}");
    let hint = format!("cargo install --root {} {spec}", tools.display());
    assert!(
        std::env::var_os("CI").is_none(),
        "{name} is not installed; .ci/run has to run: {hint}"
    );
    let mut cmd = command([env!("CARGO"), "install", "--quiet", "--root"]);
    let done = run_within(cmd.arg(&tools).arg(&spec), Duration::from_secs(900));
    assert!(done.status.success(), "{hint}: {}", done.err());
    program
}

/// Panics if the mount fails in anything that the plain directory passes, or if the
/// plain run had too few passes to say anything.
#[track_caller]
fn compare(suite: &str, least: usize, plain: &Outcomes, mount: &Outcomes) {
    let passed = plain.values().filter(|o| **o == Outcome::Passed).count();
    assert!(
        passed >= least,
        "{suite}: only {passed} of {least} cases pass in a plain directory: {:?}",
        failures(plain)
    );
    let worse: Vec<String> = plain
        .iter()
        .filter(|(_, outcome)| **outcome == Outcome::Passed)
        .filter_map(|(case, _)| match mount.get(case) {
            Some(Outcome::Passed) => None,
            Some(other) => Some(format!("{case}: {other:?}")),
            None => Some(format!("{case}: did not run")),
        })
        .collect();
    assert!(
        worse.is_empty(),
        "{suite}: {} of {passed} fail on the mount only\n{}",
        worse.len(),
        worse.join("\n")
    );
    let new: Vec<_> = failures(mount);
    let known = failures(plain);
    let new: Vec<_> = new.iter().filter(|f| !known.contains(f)).collect();
    assert!(new.is_empty(), "{suite}: fail on the mount only: {new:?}");
}

fn failures(outcomes: &Outcomes) -> Vec<&String> {
    let failed = outcomes
        .iter()
        .filter(|(_, o)| matches!(o, Outcome::Failed(_)));
    failed.map(|(case, _)| case).collect()
}

/// `compare` sees a failure, a case that did not run, and a run of nothing.
#[test]
fn compare_sees_each_kind() {
    let run = |list: &[(&str, Outcome)]| -> Outcomes {
        list.iter()
            .map(|(c, o)| (c.to_string(), o.clone()))
            .collect()
    };
    let failed = Outcome::Failed(String::new());
    let plain = run(&[("a", Outcome::Passed), ("b", failed.clone())]);
    let seen = |least, mount: &Outcomes| {
        std::panic::catch_unwind(|| compare("x", least, &plain, mount)).is_err()
    };
    assert!(!seen(1, &plain));
    assert!(!seen(1, &run(&[("a", Outcome::Passed)])));
    assert!(seen(2, &plain));
    assert!(seen(
        1,
        &run(&[("a", failed.clone()), ("b", failed.clone())])
    ));
    assert!(seen(1, &run(&[("a", Outcome::Skipped)])));
    assert!(seen(1, &run(&[("b", failed.clone())])));
    assert!(seen(1, &run(&[("a", Outcome::Passed), ("c", failed)])));
}

const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
secondary_fs = "/dev/shm"
[settings]
naptime = 0.02
[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"]]
"#;

fn pjdfstest(program: &Path, config: &Path, dir: &Path) -> Outcomes {
    let mut cmd = command([program]);
    cmd.arg("-c").arg(config).arg("-p").arg(dir);
    let done = run_within(&mut cmd, SUITE);
    let mut outcomes = Outcomes::new();
    let text = done.out();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((case, outcome)) = line.rsplit_once(' ') else {
            continue;
        };
        let outcome = match outcome {
            "ok" => Outcome::Passed,
            "skipped" => Outcome::Skipped,
            "FAILED" => Outcome::Failed(lines.peek().unwrap_or(&"").trim().to_owned()),
            _ => continue,
        };
        outcomes.insert(case.trim().to_owned(), outcome);
    }
    assert!(
        text.contains("Summary:"),
        "pjdfstest did not end: {}{}",
        done.out(),
        done.err()
    );
    // The C library takes LINK_MAX from the filesystem's type, which is FUSE's on the
    // mount; what happens at the limit is looked at in errnos_of_many_links.
    outcomes.remove("link::link_count_max");
    outcomes
}

/// Every case of the crate `pjdfstest` that passes on the source's filesystem passes
/// through the mount: POSIX errnos, owners, modes, times and link counts, as root and
/// as other users, in `strict` and in `ttl`.
#[test]
fn suite_pjdfstest() {
    need!(Root);
    for user in ["nobody", "tests"] {
        let found = nix::unistd::User::from_name(user).expect("the user database");
        assert!(found.is_some(), "no user {user}; useradd --system {user}");
    }
    let program = installed("pjdfstest", "0.2.2");
    let mut plain = None;
    for mode in ["ttl", "strict"] {
        let pair = Pair::new(Setup::mode(mode));
        let config = pair.mounted.place().path().join("pjdfstest.toml");
        fs::write(&config, PJDFSTEST).expect("write");
        let plain = plain.get_or_insert_with(|| pjdfstest(&program, &config, &pair.plain));
        let mount = pjdfstest(&program, &config, pair.mounted.path());
        compare(&format!("pjdfstest in {mode}"), 379, plain, &mount);
        pair.end();
    }
}

const FSX: &str = "
flen = 262144
[weights]
close_open = 1
invalidate = 1
mapread = 1
mapwrite = 1
read = 1
write = 1
truncate = 1
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 1
punch_hole = 1
sendfile = 1
posix_fadvise = 0.2
copy_file_range = 1
";

fn fsx(program: &Path, config: &Path, dir: &Path) -> Outcomes {
    let seed = |seed: u64| {
        let mut cmd = command([program]);
        cmd.args(["-N", "1500", "-S", &seed.to_string(), "-f"]);
        cmd.arg(config)
            .arg("-P")
            .arg(config.parent().expect("a directory"));
        let done = run_within(cmd.arg(dir.join(format!("fsx-{seed}"))), SUITE);
        let outcome = if done.status.success() {
            Outcome::Passed
        } else {
            Outcome::Failed(done.err())
        };
        (format!("seed {seed}"), outcome)
    };
    (1..=8).map(seed).collect()
}

/// Random reads, writes, truncations, maps, holes and copies on one file keep its
/// bytes and its size right: 8 seeds of the crate `fsx`, with data through passthrough
/// and through the daemon.
#[test]
fn suite_fsx() {
    need!();
    let program = installed("fsx", "0.3.2");
    for passthrough in ROUTES {
        let pair = Pair::new(route(passthrough));
        let config = pair.mounted.place().path().join("fsx.toml");
        fs::write(&config, FSX).expect("write");
        let plain = fsx(&program, &config, &pair.plain);
        let mount = fsx(&program, &config, pair.mounted.path());
        compare(
            &format!("fsx, passthrough {passthrough}"),
            8,
            &plain,
            &mount,
        );
        pair.end();
    }
}

/// Stressors of stress-ng, in groups that run at one time.
const STRESSORS: &[&[&str]] = &[
    &["access", "chdir", "chmod", "chown", "copy-file", "dentry"],
    &["dir", "dirdeep", "dirmany", "dup", "fallocate", "fcntl"],
    &["filename", "flock", "fpunch", "fsize", "fstat", "getdent"],
    &["hdd", "io", "iomix", "lease", "link", "locka"],
    &["lockf", "lockofd", "mknod", "open", "rename", "symlink"],
    &["sync-file", "touch", "utime", "xattr", "chattr", "handle"],
    &["revio", "seek", "readahead", "sendfile", "metamix", "mmap"],
];

fn stress(dir: &Path) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for group in STRESSORS {
        let mut cmd = command(["stress-ng", "--verify", "--log-brief", "-t", "1"]);
        cmd.args(["--hdd-bytes", "8M", "--fallocate-bytes", "8M"]);
        cmd.args([
            "--iomix-bytes",
            "8M",
            "--revio-bytes",
            "8M",
            "--copy-file-bytes",
            "8M",
        ]);
        cmd.args([
            "--seek-size",
            "8M",
            "--readahead-bytes",
            "8M",
            "--mmap-bytes",
            "8M",
        ]);
        cmd.args([
            "--mmap-file",
            "--dirdeep-inodes",
            "2000",
            "--dirmany-bytes",
            "0",
        ]);
        for name in *group {
            cmd.args([&format!("--{name}"), "2"]);
        }
        cmd.current_dir(dir).arg("--temp-path").arg(dir);
        let done = run_within(&mut cmd, SUITE);
        let text = done.out() + &done.err();
        for name in *group {
            let of = format!("stress-ng-{name}:");
            let said: Vec<_> = text
                .lines()
                .filter(|l| l.contains(&of) || l.contains(&format!("{name}:")))
                .collect();
            let failed = said
                .iter()
                .any(|l| l.contains("fail") || l.contains("error"));
            let skipped = said.iter().any(|l| l.contains("skipp"));
            let outcome = match (failed, skipped) {
                (true, _) => Outcome::Failed(said.join("; ")),
                (false, true) => Outcome::Skipped,
                _ => Outcome::Passed,
            };
            outcomes.insert((*name).to_owned(), outcome);
        }
        // Whoever it was: the run as a whole must say the same on both sides.
        let whole = match done.code() {
            0 => Outcome::Passed,
            code => Outcome::Failed(format!("exit code {code}: {text}")),
        };
        outcomes.insert(group.join("+"), whole);
    }
    outcomes
}

/// stress-ng's file-system stressors with `--verify` find nothing on the mount that
/// they do not find on the source.
#[test]
fn suite_stress_ng() {
    need!(Root, Program("stress-ng"));
    let pair = Pair::new(Setup::mode("ttl"));
    let plain = stress(&pair.plain);
    let mount = stress(pair.mounted.path());
    compare("stress-ng", 40, &plain, &mount);
    pair.end();
}

/// Runs CPython's own tests and writes one line for each: its outcome and name.
const PYTHON: &str = r#"
import os, sys, unittest, importlib
out = open(sys.argv[1], "w")
class Result(unittest.TestResult):
    def note(self, what, test, why=""):
        why = " ".join(str(why).split())[-300:]
        out.write("%s\t%s\t%s\n" % (what, test.id(), why)); out.flush()
    def addSuccess(self, t): self.note("ok", t)
    def addSkip(self, t, why): self.note("skip", t)
    def addExpectedFailure(self, t, e): self.note("ok", t)
    def addUnexpectedSuccess(self, t): self.note("ok", t)
    def addFailure(self, t, e): self.note("FAIL", t, self._exc_info_to_string(e, t))
    def addError(self, t, e): self.note("FAIL", t, e[1])
    def addSubTest(self, t, sub, e):
        if e: self.note("FAIL", sub, e[1])
from test import support
support.verbose = 0
for name in sys.argv[2:]:
    suite = unittest.defaultTestLoader.loadTestsFromName(name)
    suite.run(Result())
out.write("end\n")
"#;

/// Each with its own process, as they change the working directory and limits.
const PYTHON_TESTS: &[&[&str]] = &[
    &["test.test_os"],
    &["test.test_posix"],
    &["test.test_shutil"],
    &["test.test_tempfile"],
    &["test.test_pathlib"],
    &[
        "test.test_glob",
        "test.test_fileio",
        "test.test_file",
        "test.test_stat",
    ],
    &[
        "test.test_fcntl",
        "test.test_mmap",
        "test.test_posixpath",
        "test.test_fnmatch",
    ],
    &[
        "test.test_io.CIOTest",
        "test.test_io.PyIOTest",
        "test.test_io.CMiscIOTest",
    ],
    &[
        "test.test_dbm_dumb",
        "test.test_zipapp",
        "test.test_filecmp",
        "test.test_linecache",
    ],
];

fn python(dir: &Path, place: &Path) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for (i, names) in PYTHON_TESTS.iter().enumerate() {
        let list = place.join(format!("python-{i}"));
        let work = dir.join(format!("python-{i}"));
        fs::create_dir(&work).expect("mkdir");
        let mut cmd = command(["/usr/bin/python3", "-W", "ignore", "-c", PYTHON]);
        cmd.arg(&list).args(*names);
        cmd.current_dir(&work).env("TMPDIR", &work);
        let done = run_within(&mut cmd, SUITE);
        let text = fs::read_to_string(&list).unwrap_or_default();
        assert!(
            text.ends_with("end\n"),
            "{names:?} did not end: {} {}\n{}",
            done.status,
            done.err(),
            text.lines().last().unwrap_or("")
        );
        for line in text.lines() {
            let mut fields = line.splitn(3, '\t');
            let (Some(outcome), Some(case)) = (fields.next(), fields.next()) else {
                continue;
            };
            let why = fields.next().unwrap_or("").to_owned();
            let outcome = match outcome {
                "ok" => Outcome::Passed,
                "skip" => Outcome::Skipped,
                _ => Outcome::Failed(why),
            };
            outcomes.insert(case.to_owned(), outcome);
        }
    }
    outcomes
}

/// CPython's own tests of files and directories pass on the mount where they pass in
/// a plain directory.
#[test]
fn suite_cpython() {
    need!(Root, Program("python3"));
    let probe = run(&mut command([
        "/usr/bin/python3",
        "-c",
        "import test.test_os",
    ]));
    if !probe.status.success() {
        let required = std::env::var_os("CI").is_some();
        assert!(!required, "no Debian package libpython3.11-testsuite");
        panic!(
            "install the Debian package libpython3.11-testsuite: {}",
            probe.err()
        );
    }
    let pair = Pair::new(Setup::mode("ttl"));
    let place = pair.mounted.place();
    let plain = python(&pair.plain, &place.dir("python-plain"));
    let mount = python(pair.mounted.path(), &place.dir("python-mount"));
    compare("CPython", 1000, &plain, &mount);
    pair.end();
}

/// 25,000 files: made, listed, looked at, opened by the thousand, changed by
/// descriptor and by name, renamed and removed. One line for each thing checked.
const MANY: &str = r#"
import os, resource, sys
n, at_once = 25000, 4000
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20000), hard))
name = lambda i: "d%d/f%d" % (i % 50, i)
for d in range(50): os.mkdir("d%d" % d)
for i in range(n):
    with open(name(i), "w") as f: f.write(str(i))
print("made", sum(len(os.listdir("d%d" % d)) for d in range(50)))
print("looked at", sum(os.stat(name(i)).st_size == len(str(i)) for i in range(n)))
held = [open(name(i), "r+") for i in range(at_once)]
print("read", sum(f.read() == str(i) for i, f in enumerate(held)))
for i in range(at_once): os.unlink(name(i))
for f in held: f.write("more"); f.flush()
print("unlinked", sum(os.fstat(f.fileno()).st_nlink == 0 for f in held))
print("grown", sum(os.fstat(f.fileno()).st_size == len(str(i)) + 4 for i, f in enumerate(held)))
for f in held: f.close()
rest = range(at_once, n)
for i in rest: os.chmod(name(i), 0o600)
print("changed", sum(os.stat(name(i)).st_mode & 0o777 == 0o600 for i in rest))
for i in rest: os.rename(name(i), name(i) + "r")
print("renamed", sum(open(name(i) + "r").read() == str(i) for i in rest))
for i in rest: os.unlink(name(i) + "r")
for d in range(50): os.rmdir("d%d" % d)
print("left", len(os.listdir(".")))
"#;

/// A daemon with 20,000 descriptors serves 25,000 files, 4,000 of them open at one
/// time, as the bare filesystem does; and when they are closed it holds none.
#[test]
fn suite_many_files() {
    need!(Program("prlimit"), Program("python3"));
    let limit = ["prlimit", "--nofile=20000:20000", "--"];
    let pair = Pair::new(Setup::mode("ttl").wrapped(&limit));
    let before = crate::observe::descriptors(pair.mounted.pid());
    let run = |dir: &Path| {
        let mut cmd: Command = command(["/usr/bin/python3", "-c", MANY]);
        run_within(cmd.current_dir(dir), SUITE).clean().out()
    };
    let plain = run(&pair.plain);
    assert_eq!(plain.lines().count(), 8, "{plain}");
    assert_eq!(plain, run(pair.mounted.path()));
    let after = crate::observe::descriptors(pair.mounted.pid());
    // The daemon keeps at most 256 descriptors of directories and files to go by.
    assert!(after <= before + 300, "{before} descriptors became {after}");
    pair.end();
}
