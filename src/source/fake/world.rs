//! The fake world: directories, mounts, and what changes them.
//!
//! Everything here runs under the world's lock, so each operation is one step
//! to all others, as it is on a host.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::clock::Clock;
use super::data::Data;
use super::events::Events;
use super::object::{Body, Dir, Entry, FakeFs, FsConfig, Object, Place};
use crate::error::{Errno, Result};
use crate::source::Kind;
use crate::source::watch::Change;

/// What is made below a directory with this bit has its group; a directory, the bit too.
const SET_GID: u16 = 0o2000;

/// Longest name in bytes.
const NAME_MAX: usize = 255;

/// A pinned object, reached through a mount. It survives its names.
#[derive(Clone)]
pub struct Node {
    pub(super) object: Arc<Object>,
    pub(super) mnt: u64,
    /// The name by which it was reached.
    pub(super) place: Arc<Place>,
}

impl Node {
    /// Whether both are the same object, whatever mount they were reached through.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.object, &other.object)
    }

    pub(super) fn of(entry: Entry, mnt: u64) -> Self {
        Self {
            object: entry.object,
            mnt,
            place: entry.place,
        }
    }

    fn nowhere(object: Arc<Object>, mnt: u64) -> Self {
        Self::of(Entry::new(&object), mnt)
    }

    pub(super) fn events(&self) -> &Events {
        &self.object.fs.events
    }

    /// A number of the object that is never reused.
    pub fn serial(&self) -> u64 {
        self.object.serial
    }
}

/// What to make.
pub(super) struct New<'a> {
    pub(super) kind: Kind,
    pub(super) perm: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u32,
    /// Of a symlink.
    pub(super) target: &'a [u8],
}

/// What becomes of the other name in a rename.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// An existing target is an error (RENAME_NOREPLACE).
    pub noreplace: bool,
    /// Both names swap (RENAME_EXCHANGE).
    pub exchange: bool,
    /// A whiteout stays at the old name (RENAME_WHITEOUT).
    pub whiteout: bool,
}

/// All filesystems and mounts.
pub(super) struct World {
    pub(super) clock: Arc<Clock>,
    pub(super) events: Arc<Events>,
    /// By mount and serial of the covered directory.
    mounts: HashMap<(u64, u64), Node>,
    next_mnt: u64,
    next_dev: u64,
    next_serial: u64,
    /// The directory that holds the next two.
    pub(super) top: Node,
    /// The directory that is mirrored.
    pub(super) root: Node,
    /// A directory beside it, for what moves into the tree and out of it.
    pub(super) outside: Node,
}

impl World {
    pub(super) fn new(clock: Arc<Clock>, config: FsConfig) -> Self {
        let events: Arc<Events> = Arc::default();
        let fs = FakeFs::new(0x800, config, clock.clone(), events.clone());
        let dir = |serial, parent: Weak<Object>| {
            Object::new(
                serial,
                Kind::Directory,
                &fs,
                0o755,
                (0, 0),
                Body::Dir(Dir::new(parent)),
            )
        };
        let top = dir(1, Weak::new());
        let root = dir(2, Arc::downgrade(&top));
        let outside = dir(3, Arc::downgrade(&top));
        let _ = top.with_dir(|entries| {
            entries.insert(b"source", Entry::new(&root), config.cookies);
            entries.insert(b"outside", Entry::new(&outside), config.cookies);
            Ok(())
        });
        Self {
            clock,
            events,
            mounts: HashMap::new(),
            next_mnt: 21,
            next_dev: 0x801,
            next_serial: 4,
            top: Node::nowhere(top, 20),
            root: Node::nowhere(root, 20),
            outside: Node::nowhere(outside, 20),
        }
    }

    /// One component down, onto what is mounted there.
    pub(super) fn step(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        check_old(name)?;
        let node = Node::of(dir.object.entry(name)?, dir.mnt);
        Ok(self
            .mounts
            .get(&(node.mnt, node.object.serial))
            .cloned()
            .unwrap_or(node))
    }

    /// Follows `path` from `base`: components only, no symlink followed.
    pub(super) fn walk(&self, base: &Node, path: &[u8]) -> Result<Node> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        if path[0] == b'/' {
            return Err(Errno::XDEV);
        }
        let mut node = base.clone();
        let mut components = path.split(|byte| *byte == b'/').peekable();
        while let Some(name) = components.next() {
            if name.is_empty() && node.object.is_dir() {
                continue;
            }
            node = self.step(&node, name)?;
            match node.object.kind {
                Kind::Directory => {}
                Kind::Symlink if components.peek().is_some() => return Err(Errno::LOOP),
                _ if components.peek().is_some() => return Err(Errno::NOTDIR),
                _ => {}
            }
        }
        Ok(node)
    }

    fn is_mountpoint(&self, object: &Object) -> bool {
        self.mounts
            .keys()
            .any(|(_, serial)| *serial == object.serial)
    }

    /// Puts a new filesystem on the directory `at`.
    pub(super) fn mount(&mut self, at: &Node, config: FsConfig) -> Result<Node> {
        let fs = FakeFs::new(
            self.next_dev,
            config,
            self.clock.clone(),
            self.events.clone(),
        );
        self.next_dev += 1;
        let body = Body::Dir(Dir::new(Weak::new()));
        let root = Object::new(self.serial(), Kind::Directory, &fs, 0o755, (0, 0), body);
        self.attach(at, root)
    }

    /// Puts the directory `from` on the directory `at` as well.
    pub(super) fn bind(&mut self, from: &Node, at: &Node) -> Result<Node> {
        self.attach(at, from.object.clone())
    }

    fn attach(&mut self, at: &Node, root: Arc<Object>) -> Result<Node> {
        if !at.object.is_dir() || !root.is_dir() {
            return Err(Errno::NOTDIR);
        }
        let node = Node::nowhere(root, self.next_mnt);
        self.next_mnt += 1;
        self.mounts.insert((at.mnt, at.object.serial), node.clone());
        Ok(node)
    }

    /// Takes away what is mounted on `name` in `dir`.
    pub(super) fn unmount(&mut self, dir: &Node, name: &[u8]) -> Result<()> {
        let covered = dir.object.child(name)?;
        self.mounts
            .remove(&(dir.mnt, covered.serial))
            .map(drop)
            .ok_or(Errno::INVAL)
    }

    fn serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial - 1
    }

    /// Makes an object and gives it a name.
    pub(super) fn make(&mut self, dir: &Node, name: &[u8], new: &New<'_>) -> Result<Node> {
        dir.object.with_dir(|_| Ok(()))?;
        check_new(name)?;
        if dir.object.child(name).is_ok() {
            return Err(Errno::EXIST);
        }
        let body = match new.kind {
            Kind::Directory => Body::Dir(Dir::new(Arc::downgrade(&dir.object))),
            Kind::Regular => Body::File(Data::default()),
            Kind::Symlink => Body::Symlink(new.target.to_vec()),
            _ => Body::Special(new.rdev),
        };
        let above = dir.object.attr(dir.mnt);
        let (mut perm, mut owner) = (new.perm, (new.uid, new.gid));
        if above.perm & SET_GID != 0 {
            owner.1 = above.gid;
            if new.kind == Kind::Directory {
                perm |= SET_GID;
            }
        }
        let object = Object::new(self.serial(), new.kind, &dir.object.fs, perm, owner, body);
        let entry = Entry::new(&object);
        set_entry(&dir.object, name, &entry)?;
        dir.object.touch();
        dir.events().name(&dir.object, name, Change::Created);
        Ok(Node::of(entry, dir.mnt))
    }

    /// Gives `node` another name.
    pub(super) fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        dir.object.with_dir(|_| Ok(()))?;
        check_new(name)?;
        if dir.object.child(name).is_ok() {
            return Err(Errno::EXIST);
        }
        if node.mnt != dir.mnt {
            return Err(Errno::XDEV);
        }
        if node.object.is_dir() {
            return Err(Errno::PERM);
        }
        let links = node.object.state().links;
        if links >= dir.object.fs.config().max_links {
            return Err(Errno::MLINK);
        }
        if links == 0 {
            return Err(Errno::NOENT);
        }
        set_entry(&dir.object, name, &Entry::new(&node.object))?;
        node.object.state().links += 1;
        node.object.touch_attr();
        dir.object.touch();
        dir.events().name(&dir.object, name, Change::Created);
        Ok(())
    }

    /// unlink(2), or rmdir(2) with `directory`.
    pub(super) fn remove(&self, dir: &Node, name: &[u8], directory: bool) -> Result<()> {
        check_old(name)?;
        let object = dir.object.child(name)?;
        match (directory, object.is_dir()) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            _ => {}
        }
        self.check_replaceable(&object)?;
        let entry = dir.object.with_dir(|entries| Ok(entries.remove(name)))?;
        lose_name(&object);
        dir.object.touch();
        dir.events().name(&dir.object, name, Change::Deleted);
        entry.inspect(|entry| entry.place.clear());
        Ok(())
    }

    /// rename(2) and renameat2(2).
    pub(super) fn rename(
        &mut self,
        from: (&Node, &[u8]),
        to: (&Node, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let ((old_dir, old_name), (new_dir, new_name)) = (from, to);
        check_old(old_name)?;
        check_old(new_name)?;
        if old_dir.mnt != new_dir.mnt {
            return Err(Errno::XDEV);
        }
        if flags.exchange && (flags.noreplace || flags.whiteout) {
            return Err(Errno::INVAL);
        }
        let moved_entry = old_dir.object.entry(old_name)?;
        let there_entry = match new_dir.object.entry(new_name) {
            Ok(there) => Some(there),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        let moved = &moved_entry.object;
        let there = there_entry.as_ref().map(|entry| &entry.object);
        new_dir.object.with_dir(|_| Ok(()))?;
        if moved.is_dir() && is_below(moved, &new_dir.object) {
            return Err(Errno::INVAL);
        }
        if let Some(there) = there {
            if flags.noreplace {
                return Err(Errno::EXIST);
            }
            if there.is_dir() && is_below(there, &old_dir.object) {
                return Err(if flags.exchange {
                    Errno::INVAL
                } else {
                    Errno::NOTEMPTY
                });
            }
        } else if flags.exchange {
            return Err(Errno::NOENT);
        }
        if there.is_some_and(|there| Arc::ptr_eq(there, moved)) {
            return Ok(());
        }
        if self.is_mountpoint(moved) {
            return Err(Errno::BUSY);
        }
        match &there_entry {
            Some(entry) if flags.exchange => {
                let there = &entry.object;
                if self.is_mountpoint(there) {
                    return Err(Errno::BUSY);
                }
                set_entry(&old_dir.object, old_name, entry)?;
                set_parent(there, &old_dir.object);
                there.touch_attr();
            }
            Some(entry) => {
                let there = &entry.object;
                match (moved.is_dir(), there.is_dir()) {
                    (true, false) => return Err(Errno::NOTDIR),
                    (false, true) => return Err(Errno::ISDIR),
                    _ => {}
                }
                self.check_replaceable(there)?;
            }
            None => {}
        }
        if !flags.exchange {
            old_dir
                .object
                .with_dir(|entries| Ok(entries.remove(old_name)))?;
        }
        set_entry(&new_dir.object, new_name, &moved_entry)?;
        set_parent(moved, &new_dir.object);
        if let (Some(entry), false) = (&there_entry, flags.exchange) {
            lose_name(&entry.object);
            entry.place.clear();
        }
        moved.touch_attr();
        old_dir.object.touch();
        new_dir.object.touch();
        let events = old_dir.events();
        let (old, new) = ((&*old_dir.object, old_name), (&*new_dir.object, new_name));
        events.moved(old, new);
        if flags.exchange {
            events.moved(new, old);
        }
        if flags.whiteout {
            let kind = Kind::CharDevice;
            let new = New {
                kind,
                perm: 0,
                uid: 0,
                gid: 0,
                rdev: 0,
                target: b"",
            };
            self.make(old_dir, old_name, &new)?;
        }
        Ok(())
    }

    /// Whether `object` may lose a name.
    fn check_replaceable(&self, object: &Object) -> Result<()> {
        if self.is_mountpoint(object) {
            return Err(Errno::BUSY);
        }
        if object.is_dir() && !object.with_dir(|entries| Ok(entries.is_empty()))? {
            return Err(Errno::NOTEMPTY);
        }
        Ok(())
    }
}

fn set_entry(dir: &Arc<Object>, name: &[u8], entry: &Entry) -> Result<()> {
    let cookies = dir.fs.config().cookies;
    dir.with_dir(|entries| Ok(entries.insert(name, entry.clone(), cookies)))?;
    entry.place.set(dir, name);
    Ok(())
}

fn set_parent(object: &Object, parent: &Arc<Object>) {
    if let Body::Dir(dir) = &mut object.state().body {
        dir.parent = Arc::downgrade(parent);
    }
}

fn lose_name(object: &Object) {
    object.state().links -= 1;
    object.touch_attr();
}

/// Whether `dir` is `ancestor` or lies below it.
fn is_below(ancestor: &Arc<Object>, dir: &Arc<Object>) -> bool {
    let mut at = Some(dir.clone());
    while let Some(object) = at {
        if Arc::ptr_eq(&object, ancestor) {
            return true;
        }
        at = match &object.state().body {
            Body::Dir(dir) => dir.parent.upgrade(),
            _ => None,
        };
    }
    false
}

/// A name that may exist. Dots never reach a source: whoever sends them has a bug.
fn check_old(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Errno::NOENT),
        b"." | b".." => Err(Errno::INVAL),
        _ if name.len() > NAME_MAX => Err(Errno::NAMETOOLONG),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// A name that may be made.
fn check_new(name: &[u8]) -> Result<()> {
    match name {
        b"." | b".." => Err(Errno::EXIST),
        _ => check_old(name),
    }
}
