//! The steps of a model test, and the plain tree they are modelled on.
//!
//! Operands are numbers taken modulo what exists, so that any part of a sequence
//! is a sequence again and counterexamples shrink.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::own::{Own, own};
use super::truth::{is_below, join, split};
use crate::source::Kind;
use crate::source::fake::FakeSource;

/// Few names, so that they meet; one for each way a name is kept, and one that is not UTF-8.
pub(super) const NAMES: [&[u8]; 6] = [
    b"a",
    b"b",
    b"c",
    b"\xff\n",
    b"name-beyond-the-inline-ones",
    b"name-so-long-that-it-goes-to-the-cache-for-the-longest-names-of-all",
];

/// The directory that another filesystem is mounted on.
pub(super) const MOUNTED: &[u8] = b"m";

/// One step.
#[derive(Clone, Debug)]
pub(super) enum Step {
    // Changes from behind.
    Make(Kind, usize, usize),
    Link(usize, usize, usize),
    Remove(usize),
    RemoveAll(usize),
    Rename(usize, usize, usize),
    Exchange(usize, usize),
    Replace(usize),
    Chmod(usize, u16),
    Truncate(usize, u16),
    Append(usize),
    SetXattr(usize),
    // Through the mount.
    Lookup(usize, usize),
    Stat(usize),
    Readlink(usize),
    GetXattr(usize),
    List(usize, usize, bool),
    Open(usize, bool),
    Fstat(usize),
    Release(usize),
    // What a process sees, the kernel's caches in between.
    See(usize),
    SeeList(usize, bool),
    // What the kernel does by itself.
    Forget(usize, bool),
    ForgetAll,
    // What happens to the mount.
    Shrink(usize),
    DropCaches,
    Advance(u64),
    /// Events are followed, and (if set) the kernel is told.
    Follow(bool),
    // A change through the mount.
    Own(Own),
    // What befalls the next step: a change in the middle of one of its calls, before
    // the source is read or after; a failure of one of its calls.
    During(u64, bool, Box<Step>),
    Fault(u64, usize),
}

impl Step {
    /// Whether it is a change from behind.
    pub(super) fn is_change(&self) -> bool {
        use Step::*;
        matches!(
            self,
            Make(..)
                | Link(..)
                | Remove(_)
                | RemoveAll(_)
                | Rename(..)
                | Exchange(..)
                | Replace(_)
                | Chmod(..)
                | Truncate(..)
                | Append(_)
                | SetXattr(_)
        )
    }
}

/// A change from behind.
fn change() -> impl Strategy<Value = Step> {
    use Step::*;
    let n = || 0..64_usize;
    let kind = prop_oneof![
        3 => Just(Kind::Regular),
        4 => Just(Kind::Directory),
        1 => Just(Kind::Symlink),
        1 => Just(Kind::Fifo),
        1 => Just(Kind::CharDevice),
    ];
    prop_oneof![
        8 => (kind, n(), n()).prop_map(|(kind, dir, name)| Make(kind, dir, name)),
        2 => (n(), n(), n()).prop_map(|(of, dir, name)| Link(of, dir, name)),
        4 => n().prop_map(Remove),
        1 => n().prop_map(RemoveAll),
        5 => (n(), n(), n()).prop_map(|(from, dir, name)| Rename(from, dir, name)),
        1 => (n(), n()).prop_map(|(one, other)| Exchange(one, other)),
        1 => n().prop_map(Replace),
        2 => (n(), 0..0o10000_u16).prop_map(|(of, perm)| Chmod(of, perm)),
        1 => (n(), 0..9000_u16).prop_map(|(of, size)| Truncate(of, size)),
        1 => n().prop_map(Append),
        1 => n().prop_map(SetXattr),
    ]
}

/// A step, changes and questions in balance.
pub(super) fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    let n = || 0..64_usize;
    prop_oneof![
        27 => change(),
        8 => (n(), n()).prop_map(|(dir, name)| Lookup(dir, name)),
        8 => n().prop_map(Stat),
        1 => n().prop_map(Readlink),
        1 => n().prop_map(GetXattr),
        6 => (n(), prop_oneof![1..9_usize, Just(64)], any::<bool>()).prop_map(|(dir, chunk, plus)| List(dir, chunk, plus)),
        2 => (n(), any::<bool>()).prop_map(|(of, writable)| Open(of, writable)),
        2 => n().prop_map(Fstat),
        1 => n().prop_map(Release),
        3 => (n(), any::<bool>()).prop_map(|(of, all)| Forget(of, all)),
        1 => Just(ForgetAll),
        2 => (1..20_usize).prop_map(Shrink),
        1 => Just(DropCaches),
        4 => prop_oneof![1..40_u64, 200..600_u64, 900..1100_u64].prop_map(Advance),
    ]
}

/// A step, or a change through the mount.
pub(super) fn step_or_own() -> impl Strategy<Value = Step> {
    prop_oneof![2 => step(), 1 => own().prop_map(Step::Own)]
}

/// Any step, and the following of events.
pub(super) fn watched_step() -> impl Strategy<Value = Step> {
    let n = || 0..64_usize;
    prop_oneof![
        12 => disturbed_step(),
        5 => n().prop_map(Step::See),
        2 => (n(), any::<bool>()).prop_map(|(dir, plus)| Step::SeeList(dir, plus)),
        2 => any::<bool>().prop_map(Step::Follow),
    ]
}

/// A step, a change through the mount, or something that befalls the next step.
pub(super) fn disturbed_step() -> impl Strategy<Value = Step> {
    let during = (0..6_u64, any::<bool>(), change());
    prop_oneof![
        6 => step(),
        2 => own().prop_map(Step::Own),
        3 => during.prop_map(|(passes, before, change)| {
            Step::During(passes, before, Box::new(change))
        }),
        1 => (0..6_u64, 0..4_usize).prop_map(|(passes, n)| Step::Fault(passes, n)),
    ]
}

/// What an object of the plain tree is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Thing {
    pub(super) kind: Kind,
    pub(super) perm: u16,
    pub(super) contents: Vec<u8>,
    pub(super) xattr: bool,
}

/// The plain tree: paths to things, as a model of the source.
///
/// The root is the empty path; `..` is the directory beside it.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    pub(super) names: BTreeMap<Vec<u8>, usize>,
    pub(super) things: Vec<Thing>,
}

/// What a change needs to know of the plain tree.
pub(super) type Picked<T> = Option<T>;

impl Plain {
    /// The root, the directory beside it, and one with a filesystem of its own.
    pub(super) fn new() -> Self {
        let dir = Thing {
            kind: Kind::Directory,
            perm: 0o755,
            contents: Vec::new(),
            xattr: false,
        };
        let names = [(vec![], 0), (b"..".to_vec(), 1), (MOUNTED.to_vec(), 2)].into();
        Self {
            names,
            things: vec![dir.clone(), dir.clone(), dir],
        }
    }

    /// What the source holds, where it cannot be known otherwise.
    pub(super) fn read(source: &FakeSource) -> Self {
        let mut plain = Self {
            names: BTreeMap::new(),
            things: Vec::new(),
        };
        let mut seen = BTreeMap::new();
        let mut dirs = vec![Vec::new(), b"..".to_vec()];
        let edit = source.edit();
        plain.add(source, b"", &mut seen);
        plain.add(source, b"..", &mut seen);
        while let Some(dir) = dirs.pop() {
            let listed = if dir == b".." { b"../" } else { dir.as_slice() };
            for name in edit.names(listed).unwrap_or_default() {
                let path = join(&dir, &name);
                plain.add(source, &path, &mut seen);
                if plain.is_dir(&path) {
                    dirs.push(path);
                }
            }
        }
        plain
    }

    fn add(&mut self, source: &FakeSource, path: &[u8], seen: &mut BTreeMap<u64, usize>) {
        let edit = source.edit();
        let node = edit
            .node(if path == b".." { b"../" } else { path })
            .unwrap();
        let thing = *seen.entry(node.serial()).or_insert_with(|| {
            let attr = edit.attr_of(&node);
            self.things.push(Thing {
                kind: attr.kind,
                perm: attr.perm,
                contents: edit.contents_of(&node).unwrap_or_default(),
                xattr: edit.xattr_of(&node, "security.x").is_some(),
            });
            self.things.len() - 1
        });
        self.names.insert(path.to_vec(), thing);
    }

    pub(super) fn get(&self, path: &[u8]) -> Option<&Thing> {
        self.names.get(path).map(|thing| &self.things[*thing])
    }

    pub(super) fn kind(&self, path: &[u8]) -> Option<Kind> {
        self.get(path).map(|thing| thing.kind)
    }

    fn is_dir(&self, path: &[u8]) -> bool {
        self.kind(path) == Some(Kind::Directory)
    }

    fn nth(&self, n: usize, fits: impl Fn(&[u8]) -> bool) -> Picked<Vec<u8>> {
        let all: Vec<&Vec<u8>> = self.names.keys().filter(|path| fits(path)).collect();
        all.get(n.checked_rem(all.len())?)
            .map(|path| (*path).clone())
    }

    /// A directory, the one beside the root included.
    pub(super) fn any_dir(&self, n: usize) -> Picked<Vec<u8>> {
        self.nth(n, |path| self.is_dir(path))
    }

    /// Any path but the two tops.
    pub(super) fn any(&self, n: usize) -> Picked<Vec<u8>> {
        self.nth(n, |path| !path.is_empty() && path != b"..")
    }

    /// A directory of the mount.
    pub(super) fn mounted_dir(&self, n: usize) -> Picked<Vec<u8>> {
        self.nth(n, |path| !path.starts_with(b"..") && self.is_dir(path))
    }

    /// Any path of the mount, the root included.
    pub(super) fn mounted(&self, n: usize) -> Picked<Vec<u8>> {
        self.nth(n, |path| !path.starts_with(b".."))
    }

    /// All paths of the mount.
    pub(super) fn all_mounted(&self) -> Vec<Vec<u8>> {
        self.names
            .keys()
            .filter(|path| !path.starts_with(b".."))
            .cloned()
            .collect()
    }

    /// Names below a directory.
    pub(super) fn children(&self, dir: &[u8]) -> Vec<Vec<u8>> {
        let below =
            |path: &&Vec<u8>| !path.is_empty() && path.as_slice() != b".." && split(path).0 == dir;
        self.names
            .keys()
            .filter(below)
            .map(|path| split(path).1.to_vec())
            .collect()
    }

    fn subtree(&self, top: &[u8]) -> Vec<(Vec<u8>, usize)> {
        let inside = |path: &[u8]| is_below(path, top);
        self.names
            .iter()
            .filter(|(path, _)| inside(path))
            .map(|(path, n)| (path.clone(), *n))
            .collect()
    }

    fn links(&self, path: &[u8]) -> usize {
        let thing = self.names.get(path);
        self.names
            .values()
            .filter(|other| Some(*other) == thing)
            .count()
    }

    /// What `st_nlink` must be.
    pub(super) fn nlink(&self, path: &[u8]) -> usize {
        if !self.is_dir(path) {
            return self.links(path);
        }
        let subdir = |name: &Vec<u8>| self.is_dir(&join(path, name)) && join(path, name) != MOUNTED;
        // The mountpoint counts: the directory that it covers is a subdirectory.
        2 + self
            .children(path)
            .iter()
            .filter(|name| subdir(name))
            .count()
            + usize::from(path.is_empty())
    }

    /// Whether it lies on the filesystem that is mounted within the tree.
    fn device(path: &[u8]) -> bool {
        is_below(path, MOUNTED)
    }

    fn busy(path: &[u8]) -> bool {
        path.is_empty() || path == b".." || path == MOUNTED
    }

    fn may_lose(&self, path: &[u8]) -> bool {
        !Self::busy(path) && (!self.is_dir(path) || self.children(path).is_empty())
    }

    /// Each change: whether it is allowed; then it is done.
    pub(super) fn make(&mut self, path: &[u8], kind: Kind, contents: &[u8]) -> bool {
        if self.names.contains_key(path) {
            return false;
        }
        let above = self.get(split(path).0).map_or(0, |dir| dir.perm);
        let perm = match kind {
            Kind::Directory => 0o755 | above & 0o2000,
            Kind::Symlink => 0o777,
            _ => 0o644,
        };
        self.names.insert(path.to_vec(), self.things.len());
        self.things.push(Thing {
            kind,
            perm,
            contents: contents.to_vec(),
            xattr: false,
        });
        true
    }

    pub(super) fn link(&mut self, old: &[u8], new: &[u8]) -> bool {
        let allowed = !self.is_dir(old)
            && !self.names.contains_key(new)
            && Self::device(old) == Self::device(new);
        if allowed {
            self.names.insert(new.to_vec(), self.names[old]);
        }
        allowed
    }

    pub(super) fn remove(&mut self, path: &[u8]) -> bool {
        let allowed = self.may_lose(path);
        if allowed {
            self.names.remove(path);
        }
        allowed
    }

    pub(super) fn remove_all(&mut self, path: &[u8]) {
        for (path, _) in self.subtree(path) {
            self.names.remove(&path);
        }
    }

    /// Whether nothing in the subtree resists.
    pub(super) fn may_remove_all(&self, path: &[u8]) -> bool {
        !self.subtree(path).iter().any(|(path, _)| Self::busy(path))
    }

    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) -> bool {
        if Self::device(from) != Self::device(to) {
            return false;
        }
        if self.is_dir(from) && is_below(split(to).0, from) {
            return false;
        }
        if let Some(there) = self.names.get(to) {
            if is_below(from, to) && from != to {
                return false;
            }
            if *there == self.names[from] {
                return true;
            }
            if self.is_dir(from) != self.is_dir(to) || !self.may_lose(to) {
                return false;
            }
        }
        if Self::busy(from) {
            return false;
        }
        let moved = self.subtree(from);
        moved
            .iter()
            .for_each(|(path, _)| _ = self.names.remove(path));
        self.names.remove(to);
        for (path, thing) in moved {
            self.names.insert([to, &path[from.len()..]].concat(), thing);
        }
        true
    }

    pub(super) fn exchange(&mut self, one: &[u8], other: &[u8]) -> bool {
        if one == other {
            return true;
        }
        let below = is_below(one, other) || is_below(other, one);
        if below || Self::device(one) != Self::device(other) {
            return false;
        }
        if self.names[one] == self.names[other] {
            return true;
        }
        if Self::busy(one) || Self::busy(other) {
            return false;
        }
        let (first, second) = (self.subtree(one), self.subtree(other));
        first
            .iter()
            .chain(&second)
            .for_each(|(path, _)| _ = self.names.remove(path));
        for (path, thing) in first {
            self.names
                .insert([other, &path[one.len()..]].concat(), thing);
        }
        for (path, thing) in second {
            self.names
                .insert([one, &path[other.len()..]].concat(), thing);
        }
        true
    }

    /// With renameat2(2)'s flags.
    pub(super) fn rename_with(&mut self, from: &[u8], to: &[u8], flags: u32) -> bool {
        let there = self.names.contains_key(to);
        match flags {
            libc::RENAME_NOREPLACE if there => false,
            libc::RENAME_EXCHANGE => there && self.exchange(from, to),
            _ => self.rename(from, to),
        }
    }

    pub(super) fn replace(&mut self, path: &[u8], contents: &[u8]) -> bool {
        let allowed = !self.is_dir(path) && !Self::device(path);
        if allowed {
            self.names.remove(path);
            self.make(path, Kind::Regular, contents);
        }
        allowed
    }

    /// Changes the thing itself.
    pub(super) fn change(&mut self, path: &[u8], change: impl FnOnce(&mut Thing)) -> bool {
        change(&mut self.things[self.names[path]]);
        true
    }

    pub(super) fn is_file(&self, path: &[u8]) -> bool {
        self.kind(path) == Some(Kind::Regular)
    }
}
