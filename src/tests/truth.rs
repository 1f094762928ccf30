//! What the source held, and when: the measure for every answer of the mount.

use std::collections::{BTreeMap, HashSet};

use crate::clock::Millis;
use crate::source::fake::{FakeSource, Node};
use crate::source::{Attr, Kind, SourceId};

/// Path to attributes; the mirrored root is the empty path, what lies beside it begins with `../`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) named: BTreeMap<Vec<u8>, Attr>,
    /// Of objects that are open, their names gone or not.
    open: Vec<Attr>,
}

/// `name` below the directory `dir`.
pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        name.to_vec()
    } else {
        [dir, b"/", name].concat()
    }
}

/// The directory that `path` is in, and its last component.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// Whether `path` is `dir` or lies below it.
pub(super) fn is_below(path: &[u8], dir: &[u8]) -> bool {
    let rest = path.strip_prefix(dir);
    dir.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

impl Tree {
    pub(super) fn read(source: &FakeSource, open: &[Node]) -> Self {
        let edit = source.edit();
        let mut tree = Self {
            named: BTreeMap::new(),
            open: open.iter().map(|node| edit.attr_of(node)).collect(),
        };
        if let Ok(root) = edit.attr("") {
            tree.named.insert(Vec::new(), root);
            tree.read_below(source, b"");
        }
        tree.read_below(source, b"..");
        tree
    }

    fn read_below(&mut self, source: &FakeSource, dir: &[u8]) {
        let edit = source.edit();
        let dir_path = if dir == b".." { &b"../"[..] } else { dir };
        for name in edit.names(dir_path).unwrap_or_default() {
            let path = join(dir, &name);
            let attr = edit
                .attr(&path)
                .expect("listed under one lock with no other thread");
            self.named.insert(path.clone(), attr);
            if attr.kind == Kind::Directory {
                self.read_below(source, &path);
            }
        }
    }

    /// Whether some object had just these attributes, as far as `same` tells.
    pub(super) fn has(&self, attr: &Attr, same: impl Fn(&Attr, &Attr) -> bool) -> bool {
        let mut all = self.named.values().chain(&self.open);
        all.any(|held| same(held, attr))
    }

    /// The path of the directory `id`.
    pub(super) fn find_dir(&self, id: &SourceId) -> Option<&[u8]> {
        self.named
            .iter()
            .find(|(_, attr)| attr.id == *id)
            .map(|(path, _)| path.as_slice())
    }

    /// All paths of the object `id`.
    pub(super) fn paths_of(&self, id: &SourceId) -> Vec<Vec<u8>> {
        let of = self.named.iter().filter(|(_, attr)| attr.id == *id);
        of.map(|(path, _)| path.clone()).collect()
    }

    /// Attributes of the object `id`, if it has a name.
    pub(super) fn find(&self, id: &SourceId) -> Option<&Attr> {
        self.named.values().find(|attr| attr.id == *id)
    }

    /// What `name` below the directory `dir` was.
    pub(super) fn child(&self, dir: &SourceId, name: &[u8]) -> Option<&Attr> {
        self.named.get(&join(self.find_dir(dir)?, name))
    }

    /// The names below the directory `dir`.
    pub(super) fn children(&self, dir: &SourceId) -> Option<BTreeMap<&[u8], &Attr>> {
        let dir = self.find_dir(dir)?;
        let below = self
            .named
            .iter()
            .filter(|(path, _)| !path.is_empty() && split(path).0 == dir);
        Some(below.map(|(path, attr)| (split(path).1, attr)).collect())
    }
}

/// All that the source ever held, and from when on.
pub(super) struct Truth {
    history: Vec<(Millis, Tree)>,
    /// Files that had several names at some time.
    linked: HashSet<SourceId>,
}

impl Truth {
    pub(super) fn new(source: &FakeSource, now: Millis) -> Self {
        Self {
            history: vec![(now, Tree::read(source, &[]))],
            linked: HashSet::new(),
        }
    }

    /// What the source holds from `at` on.
    pub(super) fn add(&mut self, tree: Tree, at: Millis) {
        if tree == *self.now() {
            return;
        }
        let linked = |attr: &&Attr| attr.kind != Kind::Directory && attr.nlink > 1;
        let linked = tree.named.values().filter(linked).map(|attr| attr.id);
        self.linked.extend(linked);
        match self.history.last_mut() {
            Some((last_at, last)) if *last_at == at => *last = tree,
            _ => self.history.push((at, tree)),
        }
    }

    /// Whether attributes are the same, where all changes are told. inotify tells nobody
    /// that a file was linked to from a directory that is not watched: until something
    /// else makes us look, it is believed to have one name, and what is changed by way
    /// of the other is not told of either.
    pub(super) fn same_as_told(&self, held: &Attr, seen: &Attr) -> bool {
        held == seen || held.id == seen.id && seen.nlink == 1 && self.was_linked(seen)
    }

    /// Whether a file had several names at some time.
    pub(super) fn was_linked(&self, seen: &Attr) -> bool {
        self.linked.contains(&seen.id)
    }

    pub(super) fn now(&self) -> &Tree {
        &self.history.last().expect("never empty").1
    }

    /// What held at some moment from `from` until now.
    pub(super) fn since(&self, from: Millis) -> impl Iterator<Item = &Tree> {
        let ends = self
            .history
            .iter()
            .skip(1)
            .map(|(at, _)| *at)
            .chain([Millis::MAX]);
        self.history
            .iter()
            .zip(ends)
            .filter(move |(_, end)| *end > from)
            .map(|((_, tree), _)| tree)
    }
}
