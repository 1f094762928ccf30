//! The reference test: random sequences of everything a program can do, in a plain
//! directory and through the mount. After each step the results, the open files and
//! the whole trees are compared, and what the mount shows with what the source holds.
//!
//! `PROPTEST_SEED=N` gives other sequences; `REFERENCE_STEPS=N` more of them.

use std::cell::{Cell, RefCell};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use super::helper::Helper;
use super::steps::{SLOTS, Step, step};
use super::world::{World, differences, picture};
use crate::harness::{Mounted, Place, Setup};
use crate::need;
use crate::run::{NOBODY, as_user, run_within};

/// Steps in one sequence, on average.
const LENGTH: usize = 40;

/// Three directories: one that is not mirrored, one that is, and its mirror.
struct Trees {
    plain: PathBuf,
    source: PathBuf,
    mount: PathBuf,
    /// Whether the source is edited past the mount.
    below: bool,
    made: Cell<usize>,
    helpers: RefCell<Vec<Helper>>,
}

impl Trees {
    fn new(plain: &Path, mounted: &Mounted, below: bool) -> Self {
        Self {
            plain: plain.to_owned(),
            source: mounted.source().to_owned(),
            mount: mounted.path().to_owned(),
            below,
            made: Cell::new(0),
            helpers: RefCell::default(),
        }
    }

    fn helper(&self) -> Helper {
        let kept = self.helpers.borrow_mut().pop();
        kept.unwrap_or_else(Helper::new)
    }

    /// Runs one sequence in directories of its own.
    fn run(&self, steps: &[Step]) -> Result<(), String> {
        let name = format!("sequence-{}", self.made.replace(self.made.get() + 1));
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        let world = |root: &Path, below: &Path| {
            World::new(root.join(&name), below.join(&name), self.helper())
        };
        let mut plain = world(&self.plain, &self.plain);
        let mut mount = world(&self.mount, &self.source);
        let done = self.compare(&mut plain, &mut mount, steps);
        for mut world in [plain, mount] {
            world.slots.clear();
            if world.helper.ask(&["reset"]) == "ok" {
                self.helpers.borrow_mut().push(world.helper);
            }
        }
        done
    }

    fn compare(&self, plain: &mut World, mount: &mut World, steps: &[Step]) -> Result<(), String> {
        let mut trace = Vec::new();
        for step in steps {
            let (a, b) = (plain.act(step), mount.act(step));
            trace.push(format!("{step:?}: {a}"));
            let fail =
                |why: String| Err(format!("{why}\nafter the steps\n  {}", trace.join("\n  ")));
            if a != b {
                return fail(format!("plain: {a}\nmount: {b}"));
            }
            let (a, mut b) = (plain.handles(), mount.handles());
            for i in 0..SLOTS {
                // A directory without a name is ESTALE where no handle of it is kept
                // (OPENDIR is answered ENOSYS but in `strict`).
                if a[i].starts_with("4") && a[i].contains(" n0 ") && b[i] == "ESTALE" {
                    assert!(!self.below, "in strict it is kept");
                    b[i].clone_from(&a[i]);
                    (plain.slots[i], mount.slots[i]) = (None, None);
                }
            }
            if a != b {
                return fail(format!("open files\n  plain: {a:?}\n  mount: {b:?}"));
            }
            let (p, m) = (picture(&plain.root), picture(&mount.root));
            if let Some(why) = differences((&p.common, "plain"), (&m.common, "mount")) {
                return fail(why);
            }
            let s = picture(&mount.below);
            if let Some(why) = differences((&m.common, "mount"), (&s.common, "source"))
                .or_else(|| differences((&m.exact, "mount"), (&s.exact, "source")))
            {
                return fail(why);
            }
        }
        Ok(())
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={value}")),
    )
}

/// Runs at least `steps` steps; a failure is shrunk.
#[track_caller]
fn sequences(trees: &Trees, steps: usize, seed: u8) {
    // The umask of this thread alone.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).expect("a thread may");
    let steps = number("REFERENCE_STEPS").map_or(steps, |n| n as usize);
    let cases = steps.div_ceil(LENGTH) as u32;
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 400,
        ..Config::default()
    };
    let mut bytes = [seed; 32];
    if let Some(other) = number("PROPTEST_SEED") {
        bytes[..8].copy_from_slice(&other.to_le_bytes());
    }
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let strategy = proptest::collection::vec(step(trees.below), 1..2 * LENGTH);
    let done = runner.run(&strategy, |steps| {
        trees.run(&steps).map_err(TestCaseError::fail)
    });
    match done {
        Ok(()) => {}
        Err(TestError::Fail(why, steps)) => panic!("{why}\nas a test: {steps:?}"),
        Err(TestError::Abort(why)) => panic!("gave up: {why}"),
    }
    let made = trees.made.get();
    assert!(made >= cases as usize, "only {made} sequences were run");
}

fn reference(setup: Setup, below: bool, steps: usize, seed: u8) {
    let place = Place::new();
    let plain = place.dir("plain");
    let setup = setup.arg("-o").arg("suid,dev");
    let mounted = setup.lifetime(Duration::from_secs(600)).mount_in(place);
    sequences(&Trees::new(&plain, &mounted, below), steps, seed);
    mounted.unmount();
}

/// In `strict`, what a program does through the mount has the results it has in the
/// source directory, while others edit the source; data past the daemon.
#[test]
fn reference_strict() {
    need!(Root);
    reference(Setup::mode("strict"), true, 3000, 1);
}

/// The same with data through the daemon.
#[test]
fn reference_strict_without_passthrough() {
    need!(Root);
    let setup = Setup::mode("strict").arg("--passthrough=off");
    reference(setup, true, 2000, 2);
}

/// In `ttl` with long timeouts, the mount's own changes are seen at once, to the
/// nanosecond: the caches follow each.
#[test]
fn reference_own_changes() {
    need!(Root);
    let setup = Setup::mode("ttl").arg("--ttl=1h").arg("--attr-ttl=1h");
    reference(setup, false, 2500, 3);
}

/// The same with data through the daemon.
#[test]
fn reference_own_changes_without_passthrough() {
    need!(Root);
    let setup = Setup::mode("ttl").arg("--ttl=1h").arg("--attr-ttl=1h");
    reference(setup.arg("--passthrough=off"), false, 1500, 4);
}

/// Set by [`as_nobody`] for the test that it starts.
const TREES: &str = "REFERENCE_TREES";

/// A user without rights, on a mount of root's, meets the refusals and results that
/// the source directory has for that user.
#[test]
fn reference_as_a_user() {
    need!(Root, Program("setpriv"));
    let place = Place::new();
    let (plain, source) = (place.dir("plain"), place.dir("source"));
    for dir in [&plain, &source] {
        chown(dir, Some(NOBODY), Some(NOBODY)).expect("chown");
    }
    let mounted = Setup::mode("strict")
        .arg("-o")
        .arg("suid,dev")
        .mount_in(place);
    as_nobody(&plain, &mounted);
    mounted.unmount();
}

/// Starts this program as nobody, for [`reference_inner`].
#[track_caller]
fn as_nobody(plain: &Path, mounted: &Mounted) {
    let program = mounted.place().path().join("tests");
    let this = std::env::current_exe().expect("a program");
    std::fs::copy(this, &program).expect("a copy that everybody may run");
    let words = [
        program.as_os_str(),
        "--ignored".as_ref(),
        "--exact".as_ref(),
        "write::reference::reference_inner".as_ref(),
    ];
    let list = [plain, mounted.source(), mounted.path()].map(|p| p.display().to_string());
    let mut cmd = as_user(NOBODY, &[], &words);
    cmd.env(TREES, list.join(":")).current_dir(plain);
    let done = run_within(&mut cmd, Duration::from_secs(300));
    let text = done.out() + &done.err();
    assert!(
        done.status.success() && text.contains("1 passed"),
        "as nobody: {}\n{text}",
        done.status
    );
}

/// The part of [`reference_as_a_user`] that is done as that user.
#[test]
#[ignore = "started by reference_as_a_user"]
fn reference_inner() {
    let list = std::env::var(TREES).expect("started by reference_as_a_user");
    let list: Vec<PathBuf> = list.split(':').map(PathBuf::from).collect();
    let trees = Trees {
        plain: list[0].clone(),
        source: list[1].clone(),
        mount: list[2].clone(),
        below: true,
        made: Cell::new(0),
        helpers: RefCell::default(),
    };
    sequences(&trees, 1500, 5);
}
