//! Random sequences on a mount of the fake source, against the plain tree.
//!
//! After each step the mount's invariants hold, each answer was true when it was
//! proved (see `kernel`), and in `strict` the whole mount is the plain tree, by
//! readdir and by lookup. In `ttl` that is so once the timeouts have passed, in
//! `frozen` after a drop. In the end everything is forgotten and nothing is left.

use proptest::prelude::*;
use proptest::test_runner::Config;

use super::change::Change;
use super::kernel::{Kernel, Known, lossy, options};
use super::plan::{MOUNTED, NAMES, Plain, Step, disturbed_step, step, step_or_own, watched_step};
use super::truth::join;
use crate::error::Errno;
use crate::fs::{Coherence, Options};
use crate::source::Kind;
use crate::source::fake::{Births, Cookies, FakeSource, FsConfig};

/// What a source may answer at any time. ENOENT is not among them: that is a lie, no fault.
const FAULTS: [Errno; 4] = [Errno::IO, Errno::MFILE, Errno::ACCESS, Errno::NOMEM];

/// A mount, its kernel, and the plain tree beside it.
pub(super) struct Model {
    pub(super) kernel: Kernel,
    pub(super) plain: Plain,
    /// Makes contents differ.
    made: usize,
    /// The steps in words, shown on failure where `MODEL_TRACE` is set.
    trace: Vec<String>,
}

impl Drop for Model {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("MODEL_TRACE").is_some() {
            eprintln!("TRACE\n  {}", self.trace.join("\n  "));
        }
    }
}

impl Model {
    fn new(config: FsConfig, options: Options) -> Self {
        let source = FakeSource::new(config);
        source.edit().mkdir(MOUNTED).unwrap();
        // Its own inode numbers begin where the root's do.
        source.edit().mount(MOUNTED, config).unwrap();
        let kernel = Kernel::mount(source, options);
        Self {
            kernel,
            plain: Plain::new(),
            made: 0,
            trace: Vec::new(),
        }
    }

    pub(super) fn contents(&mut self) -> Vec<u8> {
        self.made += 1;
        format!("number {}", self.made).into_bytes()
    }

    pub(super) fn trace(&mut self, line: impl FnOnce() -> String) {
        let line = format!("{:>5} {}", self.kernel.now(), line());
        self.trace.push(line);
    }

    fn run(&mut self, step: &Step) {
        // No two steps at one time, so that each answer has one truth.
        self.kernel.advance(1);
        self.kernel.begin();
        let disturbed = self.kernel.disturbed();
        match step {
            Step::During(passes, before, change) => self.arm(*passes, *before, change),
            Step::Fault(passes, n) => self.kernel.arm_fault(*passes, FAULTS[n % FAULTS.len()]),
            _ if step.is_change() => self.change(step),
            _ => self.ask(step),
        }
        if disturbed {
            self.calm(matches!(step, Step::Own(_)));
        }
        self.kernel.check();
    }

    /// Does a change from behind. The source allows it exactly when the plain tree does.
    fn change(&mut self, step: &Step) {
        let contents = self.contents();
        let Some(change) = Change::of(step, &self.plain, contents) else {
            return;
        };
        let allowed = change.to_plain(&mut self.plain);
        self.trace(|| format!("{change}: {}", if allowed { "done" } else { "refused" }));
        let done = change.to_source(&self.kernel.source);
        assert_eq!(allowed, done.is_ok(), "{change}: {:?}", done.err());
        self.kernel.edited();
    }

    /// The next step will be disturbed by a change, in the middle of one of its calls.
    fn arm(&mut self, passes: u64, before: bool, step: &Step) {
        let contents = self.contents();
        if let Some(change) = Change::of(step, &self.plain, contents) {
            self.trace(|| format!("during the next step, call {passes}: {change}"));
            self.kernel.arm(passes, before, change);
        }
    }

    /// The disturbed step is over; the plain tree follows what came from behind.
    fn calm(&mut self, own: bool) {
        self.kernel.heal();
        let came = self.kernel.disarm();
        if own {
            // What was done, and in which order, is the source's to say.
            self.plain = Plain::read(&self.kernel.source);
        }
        let Some((change, done)) = came else { return };
        self.trace(|| format!("{change} came in between: {done:?}"));
        if !own {
            let allowed = change.to_plain(&mut self.plain);
            assert_eq!(allowed, done.is_ok(), "{change}: {done:?}");
        }
    }

    /// Asks the mount, or does something to it.
    fn ask(&mut self, step: &Step) {
        let plain = &self.plain;
        let path = |n| plain.mounted(n).unwrap_or_default();
        let dir = |n| plain.mounted_dir(n).unwrap_or_default();
        match *step {
            Step::Lookup(of, name) => {
                let path = join(&dir(of), NAMES[name % NAMES.len()]);
                self.trace(|| format!("lookup {}", lossy(&path)));
                let done = self.kernel.walk(&path);
                self.kernel.expect(done);
            }
            Step::Stat(of) => {
                let path = path(of);
                self.trace(|| format!("stat {}", lossy(&path)));
                let done = self.kernel.stat(&path);
                self.kernel.expect(done);
            }
            Step::Readlink(of) => {
                let path = path(of);
                if plain.kind(&path) == Some(Kind::Symlink) {
                    self.trace(|| format!("readlink {}", lossy(&path)));
                    let done = self.kernel.readlink(&path);
                    // EINVAL where it is still taken for what it was before.
                    if done != Err(Errno::INVAL) {
                        self.kernel.expect(done);
                    }
                }
            }
            Step::GetXattr(of) => {
                let path = path(of);
                self.trace(|| format!("getxattr {}", lossy(&path)));
                let done = self.kernel.xattr(&path);
                self.kernel.expect(done);
            }
            Step::List(of, chunk, plus) => {
                let path = dir(of);
                self.trace(|| format!("list {} {chunk} {plus}", lossy(&path)));
                let done = self.kernel.list_path(&path, chunk, plus);
                self.kernel.expect(done);
            }
            Step::Open(of, writable) => {
                let path = path(of);
                self.trace(|| format!("open {} {writable}", lossy(&path)));
                let done = self.kernel.open(&path, writable);
                self.kernel.expect(done);
            }
            Step::See(of) => {
                let path = path(of);
                self.trace(|| format!("see {}", lossy(&path)));
                let done = self.kernel.user_stat(&path);
                self.kernel.expect(done);
            }
            Step::SeeList(of, plus) => {
                let path = dir(of);
                self.trace(|| format!("see list {} {plus}", lossy(&path)));
                let done = self.kernel.user_list(&path, plus);
                self.kernel.expect(done);
            }
            Step::Own(ref step) => self.own(step),
            _ => self.tend(step),
        }
    }

    /// Does something to the mount, or to what the kernel holds of it.
    fn tend(&mut self, step: &Step) {
        self.trace(|| format!("{step:?}"));
        let kernel = &mut self.kernel;
        let known: Vec<u64> = kernel.counts.keys().copied().collect();
        match *step {
            Step::Fstat(n) => {
                if let Some(n) = n.checked_rem(kernel.files.len()) {
                    let done = kernel.check_open(n);
                    kernel.expect(done);
                }
            }
            Step::Release(n) => {
                if let Some(n) = n.checked_rem(kernel.files.len()) {
                    kernel.release(n);
                }
            }
            Step::Forget(n, all) => {
                if let Some(n) = n.checked_rem(known.len()) {
                    kernel.forget(known[n], if all { u64::MAX } else { 1 });
                }
            }
            Step::ForgetAll => {
                known
                    .into_iter()
                    .for_each(|nodeid| kernel.forget(nodeid, u64::MAX));
            }
            Step::Shrink(count) => kernel.shrink(count),
            Step::DropCaches => kernel.drop_caches(),
            Step::Advance(ms) => kernel.advance(ms),
            Step::Follow(true) => kernel.quiet(),
            Step::Follow(false) => kernel.fs.follow(),
            _ => unreachable!("all others are done elsewhere"),
        }
    }

    /// The whole mount is the plain tree.
    fn verify(&mut self) {
        self.trace(|| "verify".to_owned());
        if self.kernel.disturbed() {
            self.calm(false);
        }
        self.kernel.settle();
        self.kernel.begin();
        self.verify_seen();
        self.verify_by_readdir(b"", self.kernel.root());
        for path in self.plain.all_mounted() {
            let known = self.kernel.walk(&path).unwrap();
            let known = known.unwrap_or_else(|| panic!("{} is not found", lossy(&path)));
            self.verify_object(&path, known);
            for name in NAMES.iter().filter(|_| known.kind == Kind::Directory) {
                if self.plain.get(&join(&path, name)).is_none() {
                    assert_eq!(self.kernel.lookup(known, name), Ok(None), "{}", lossy(name));
                }
            }
        }
        for n in 0..self.kernel.files.len() {
            self.kernel.check_open(n).unwrap();
        }
        self.kernel.check();
    }

    /// A process that looks sees the plain tree, whatever the kernel has cached.
    fn verify_seen(&mut self) {
        let watch = self.kernel.fs.options().coherence == Coherence::Watch;
        for path in self.plain.all_mounted() {
            let seen = self.kernel.user_stat(&path).unwrap();
            let held = self.kernel.truth.now().named.get(&path).copied();
            let same = match (seen, held) {
                (Some(seen), Some(held)) if watch => {
                    // A file of several names can be changed by one that nobody watches:
                    // then its attributes are believed for their timeout.
                    let single = held.nlink == 1 && seen.nlink == 1;
                    let told = single || held.kind == Kind::Directory;
                    self.kernel.truth.same_as_told(&held, &seen)
                        || (!told && self.kernel.was_lately(&seen))
                }
                _ => seen == held,
            };
            assert!(same, "{} is seen as {seen:?}, is {held:?}", lossy(&path));
            if self.plain.kind(&path) != Some(Kind::Directory) {
                continue;
            }
            let listed = self.kernel.user_list(&path, path.len() % 2 == 0).unwrap();
            let names: Vec<Vec<u8>> = listed.unwrap_or_default().into_keys().collect();
            assert_eq!(
                names,
                self.plain.children(&path),
                "seen in {}",
                lossy(&path)
            );
            for name in NAMES {
                let below = join(&path, name);
                if self.plain.get(&below).is_none() {
                    let seen = self.kernel.user_walk(&below).unwrap();
                    assert_eq!(seen, None, "{} is not there", lossy(&below));
                }
            }
        }
    }

    fn verify_by_readdir(&mut self, path: &[u8], dir: Known) {
        let listed = self.kernel.list(dir, 3, true).unwrap();
        let names: Vec<Vec<u8>> = listed.keys().cloned().collect();
        assert_eq!(
            names,
            self.plain.children(path),
            "listing of {}",
            lossy(path)
        );
        for (name, (kind, known)) in listed {
            let below = join(path, &name);
            assert_eq!(Some(kind), self.plain.kind(&below));
            if kind == Kind::Directory {
                self.verify_by_readdir(&below, known.unwrap());
            }
        }
    }

    fn verify_object(&mut self, path: &[u8], known: Known) {
        let attr = self.kernel.getattr(known, None).unwrap();
        let thing = self.plain.get(path).unwrap().clone();
        let told = self.kernel.fs.options().coherence == Coherence::Watch;
        assert_eq!(attr.kind, thing.kind, "{}", lossy(path));
        if told && self.kernel.truth.was_linked(&attr) {
            return;
        }
        assert_eq!(attr.perm, thing.perm, "{}", lossy(path));
        let links = self.plain.nlink(path);
        let untold = told && thing.kind != Kind::Directory;
        assert!(
            untold || attr.nlink as usize == links,
            "links of {}",
            lossy(path)
        );
        assert_eq!(
            self.kernel.xattr(path).unwrap(),
            Some(thing.xattr),
            "{}",
            lossy(path)
        );
        match thing.kind {
            Kind::Regular => {
                assert_eq!(
                    attr.size as usize,
                    thing.contents.len(),
                    "size of {}",
                    lossy(path)
                );
                assert!(self.kernel.open(path, false).unwrap());
                let last = self.kernel.files.len() - 1;
                assert!(
                    self.kernel.read(last).unwrap() == thing.contents,
                    "{}",
                    lossy(path)
                );
                self.kernel.release(last);
            }
            Kind::Symlink => {
                assert_eq!(self.kernel.readlink(path).unwrap(), Some(thing.contents));
            }
            _ => {}
        }
    }
}

/// How the filesystem under the mount behaves.
fn config() -> impl Strategy<Value = FsConfig> {
    let cookies = prop_oneof![
        Just(Cookies::Ordered),
        Just(Cookies::Hashed),
        Just(Cookies::Places)
    ];
    let tick = prop_oneof![Just(1_u64), Just(4_000_000), Just(10_000_000)];
    (cookies, any::<bool>(), any::<bool>(), tick, any::<bool>()).prop_map(
        |(cookies, reuse_numbers, dtypes, tick, remote)| FsConfig {
            cookies,
            reuse_numbers,
            dtypes,
            tick,
            remote,
            births: Births::Distinct,
            ..FsConfig::default()
        },
    )
}

/// Runs a sequence; `every` looks at the whole mount after each step.
fn run(config: FsConfig, options: Options, every: bool, steps: &[Step]) {
    let mut model = Model::new(config, options);
    for step in steps {
        model.run(step);
        if every {
            model.verify();
        }
    }
    model.verify();
    model.kernel.unmount();
}

/// Cases per test; `PROPTEST_CASES` overrides it.
const CASES: u32 = 200;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..60)
}

fn own_steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step_or_own(), 1..60)
}

fn disturbed_steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(disturbed_step(), 1..60)
}

fn watched_steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(watched_step(), 1..60)
}

fn cases() -> Config {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    Config {
        cases: cases.unwrap_or(CASES),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        max_shrink_time: 30_000,
        ..Config::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn model_strict(config in config(), steps in steps()) {
        run(config, options(Coherence::Strict), true, &steps);
    }

    #[test]
    fn model_ttl(config in config(), steps in steps()) {
        run(config, options(Coherence::Ttl), false, &steps);
    }

    #[test]
    fn model_own_strict(config in config(), steps in own_steps()) {
        run(config, options(Coherence::Strict), true, &steps);
    }

    #[test]
    fn model_own_ttl(config in config(), steps in own_steps()) {
        run(config, options(Coherence::Ttl), false, &steps);
    }

    #[test]
    fn model_disturbed_strict(config in config(), steps in disturbed_steps()) {
        run(config, options(Coherence::Strict), false, &steps);
    }

    #[test]
    fn model_disturbed_ttl(config in config(), steps in disturbed_steps()) {
        run(config, options(Coherence::Ttl), false, &steps);
    }

    #[test]
    fn model_watch(config in config(), steps in watched_steps()) {
        let config = FsConfig { remote: false, ..config };
        run(config, options(Coherence::Watch), false, &steps);
    }

    #[test]
    fn model_frozen(config in config(), steps in steps()) {
        run(config, options(Coherence::Frozen), false, &steps);
    }

    #[test]
    fn model_starved(config in config(), steps in steps()) {
        let options = Options { cache_size: 0, ..options(Coherence::Ttl) };
        run(config, options, false, &steps);
    }
}
