//! Random sequences on a mount of the fake source, against the plain tree.
//!
//! After each step the mount's invariants hold, each answer was true when it was
//! proved (see `kernel`), and in `strict` the whole mount is the plain tree, by
//! readdir and by lookup. In `ttl` that is so once the timeouts have passed, in
//! `frozen` after a drop. In the end everything is forgotten and nothing is left.

use proptest::prelude::*;
use proptest::test_runner::Config;

use super::kernel::{Kernel, Known, lossy, options};
use super::plan::{MOUNTED, NAMES, Plain, Step, step, step_or_own};
use super::truth::join;
use crate::error::{Errno, Result};
use crate::fs::{Coherence, Options};
use crate::source::Kind;
use crate::source::fake::{Births, Cookies, FakeSource, FsConfig, Node};

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

    /// Whether the source allows a change exactly when the plain tree does.
    fn agreed<R>(&mut self, allowed: bool, done: Result<R>, what: String) {
        assert_eq!(allowed, done.is_ok(), "{what}: {:?}", done.err());
        self.kernel.edited();
        self.trace(|| format!("{what}: {}", if allowed { "done" } else { "refused" }));
    }

    pub(super) fn trace(&mut self, line: impl FnOnce() -> String) {
        let line = format!("{:>5} {}", self.kernel.now(), line());
        self.trace.push(line);
    }

    fn run(&mut self, step: &Step) {
        // No two steps at one time, so that each answer has one truth.
        self.kernel.advance(1);
        if self.change(step).is_none() {
            self.ask(step);
        }
        self.kernel.check();
    }

    /// Does a change from behind; `None` if the step is none.
    fn change(&mut self, step: &Step) -> Option<()> {
        let source = self.kernel.source.clone();
        let edit = source.edit();
        let plain = &mut self.plain;
        match *step {
            Step::Make(kind, dir, name) => {
                let Some(dir) = plain.any_dir(dir) else {
                    return Some(());
                };
                let path = join(&dir, NAMES[name % NAMES.len()]);
                let contents = match kind {
                    Kind::Regular | Kind::Symlink => self.contents(),
                    _ => Vec::new(),
                };
                let allowed = self.plain.make(&path, kind, &contents);
                let done: Result<Node> = match kind {
                    Kind::Regular => edit.create(&path, &contents),
                    Kind::Directory => edit.mkdir(&path),
                    Kind::Symlink => edit.symlink(&contents, &path),
                    _ => edit.mknod(&path, kind, 0o644, 7),
                };
                self.agreed(allowed, done, format!("make {kind:?} {}", lossy(&path)));
            }
            Step::Link(of, dir, name) => {
                let (of, dir) = (plain.any(of)?, plain.any_dir(dir)?);
                let path = join(&dir, NAMES[name % NAMES.len()]);
                let allowed = plain.link(&of, &path);
                self.agreed(
                    allowed,
                    edit.link(&of, &path),
                    format!("link {} {}", lossy(&of), lossy(&path)),
                );
            }
            Step::Remove(of) => {
                let of = plain.any(of)?;
                let dir = plain.kind(&of) == Some(Kind::Directory);
                let allowed = plain.remove(&of);
                let done = if dir {
                    edit.rmdir(&of)
                } else {
                    edit.unlink(&of)
                };
                self.agreed(allowed, done, format!("remove {}", lossy(&of)));
            }
            Step::RemoveAll(of) => {
                let of = plain.any(of)?;
                if plain.may_remove_all(&of) {
                    plain.remove_all(&of);
                    self.agreed(
                        true,
                        edit.remove_all(&of),
                        format!("remove_all {}", lossy(&of)),
                    );
                }
            }
            Step::Rename(from, dir, name) => {
                let (from, dir) = (plain.any(from)?, plain.any_dir(dir)?);
                let to = join(&dir, NAMES[name % NAMES.len()]);
                let allowed = plain.rename(&from, &to);
                self.agreed(
                    allowed,
                    edit.rename(&from, &to),
                    format!("rename {} {}", lossy(&from), lossy(&to)),
                );
            }
            Step::Exchange(one, other) => {
                let (one, other) = (plain.any(one)?, plain.any(other)?);
                let allowed = plain.exchange(&one, &other);
                self.agreed(
                    allowed,
                    edit.exchange(&one, &other),
                    format!("exchange {} {}", lossy(&one), lossy(&other)),
                );
            }
            Step::Replace(of) => {
                let of = plain.any(of)?;
                let contents = self.contents();
                let allowed = self.plain.replace(&of, &contents);
                self.agreed(
                    allowed,
                    edit.replace(&of, &contents),
                    format!("replace {}", lossy(&of)),
                );
            }
            Step::Chmod(of, perm) => {
                let of = plain.any(of)?;
                plain.change(&of, |thing| thing.perm = perm);
                self.agreed(true, edit.chmod(&of, perm), format!("chmod {}", lossy(&of)));
            }
            Step::SetXattr(of) => {
                let of = plain.any(of)?;
                plain.change(&of, |thing| thing.xattr = true);
                self.agreed(
                    true,
                    edit.setxattr(&of, "user.x", "value"),
                    format!("setxattr {}", lossy(&of)),
                );
            }
            Step::Truncate(of, size) => {
                let of = plain.any(of)?;
                let allowed = plain.is_file(&of);
                if allowed {
                    plain.change(&of, |thing| thing.contents.resize(size.into(), 0));
                }
                self.agreed(
                    allowed,
                    edit.truncate(&of, size.into()),
                    format!("truncate {}", lossy(&of)),
                );
            }
            Step::Append(of) => {
                let of = plain.any(of)?;
                let allowed = plain.is_file(&of);
                if allowed {
                    plain.change(&of, |thing| thing.contents.extend_from_slice(b"+"));
                }
                self.agreed(
                    allowed,
                    edit.append(&of, "+"),
                    format!("append {}", lossy(&of)),
                );
            }
            _ => return None,
        }
        Some(())
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
                self.kernel.walk(&path).unwrap();
            }
            Step::Stat(of) => {
                let path = path(of);
                self.trace(|| format!("stat {}", lossy(&path)));
                self.kernel.stat(&path).unwrap();
            }
            Step::Readlink(of) => {
                let path = path(of);
                if plain.kind(&path) == Some(Kind::Symlink) {
                    self.trace(|| format!("readlink {}", lossy(&path)));
                    // EINVAL where it is still taken for what it was before.
                    assert_ne!(self.kernel.readlink(&path).err(), Some(Errno::STALE));
                }
            }
            Step::GetXattr(of) => {
                let path = path(of);
                self.trace(|| format!("getxattr {}", lossy(&path)));
                self.kernel.xattr(&path).unwrap();
            }
            Step::List(of, chunk, plus) => {
                let path = dir(of);
                self.trace(|| format!("list {} {chunk} {plus}", lossy(&path)));
                self.kernel.list_path(&path, chunk, plus).unwrap();
            }
            Step::Open(of, writable) => {
                let path = path(of);
                self.trace(|| format!("open {} {writable}", lossy(&path)));
                self.kernel.open(&path, writable).unwrap();
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
                    kernel.check_open(n);
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
            _ => unreachable!("all others are done elsewhere"),
        }
    }

    /// The whole mount is the plain tree.
    fn verify(&mut self) {
        self.trace(|| "verify".to_owned());
        self.kernel.settle();
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
            self.kernel.check_open(n);
        }
        self.kernel.check();
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
        assert_eq!(
            (attr.kind, attr.perm),
            (thing.kind, thing.perm),
            "{}",
            lossy(path)
        );
        assert_eq!(
            attr.nlink as usize,
            self.plain.nlink(path),
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

fn cases() -> Config {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    Config {
        cases: cases.unwrap_or(CASES),
        failure_persistence: None,
        max_shrink_iters: 20_000,
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
    fn model_frozen(config in config(), steps in steps()) {
        run(config, options(Coherence::Frozen), false, &steps);
    }

    #[test]
    fn model_starved(config in config(), steps in steps()) {
        let options = Options { cache_size: 0, ..options(Coherence::Ttl) };
        run(config, options, false, &steps);
    }
}
