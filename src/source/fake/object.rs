//! Objects of the fake tree: what a host would call inodes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use super::clock::{Clock, just_after};
use super::data::Data;
use super::events::Events;
use super::locks::Locks;
use crate::error::{Errno, Result};
use crate::source::{Attr, Kind, SourceId, Time};
use crate::sync::{Mutex, MutexGuard};

/// Cookies of `.` and `..`; those of names come after.
const DOTS: u64 = 2;

/// How a filesystem numbers the entries of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cookies {
    /// In order of creation, never reused: tmpfs.
    Ordered,
    /// By a 62-bit hash of the name; a name that comes back has its old cookie: ext4.
    Hashed,
    /// The place in the listing of the moment, so they shift when a name goes: unstable.
    Places,
}

/// How a filesystem stamps birth times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Births {
    /// It has none.
    None,
    /// By the clock, rounded to the tick: a number reused within a tick has its old birth time.
    Ticked,
    /// By the clock, but later than that of any earlier object with this number.
    Distinct,
}

/// How a filesystem behaves; see the fields. Applies to what happens from then on.
#[derive(Clone, Copy, Debug)]
pub struct FsConfig {
    /// Directory cookies.
    pub cookies: Cookies,
    /// Birth times.
    pub births: Births,
    /// A freed inode number is the next to be given out; else numbers only rise.
    pub reuse_numbers: bool,
    /// Changes may come from other hosts.
    pub remote: bool,
    /// `d_type` is told.
    pub dtypes: bool,
    /// A directory's link count is 2 and its subdirectories (ext4); else 1 (btrfs).
    pub count_subdirs: bool,
    /// Granularity of time stamps in nanoseconds.
    pub tick: u64,
    /// Links that a file may have.
    pub max_links: u32,
}

impl Default for FsConfig {
    fn default() -> Self {
        Self {
            cookies: Cookies::Ordered,
            births: Births::Distinct,
            reuse_numbers: false,
            remote: false,
            dtypes: true,
            count_subdirs: true,
            tick: 1,
            max_links: 65_000,
        }
    }
}

/// One filesystem of the fake world: a device number and its inode numbers.
pub(super) struct FakeFs {
    pub(super) dev: u64,
    pub(super) config: Mutex<FsConfig>,
    pub(super) clock: Arc<Clock>,
    pub(super) events: Arc<Events>,
    numbers: Mutex<Numbers>,
}

/// Inode numbers: the next new one, and the freed ones with their last birth.
struct Numbers {
    next: u64,
    freed: Vec<(u64, Time)>,
}

impl FakeFs {
    pub(super) fn new(
        dev: u64,
        config: FsConfig,
        clock: Arc<Clock>,
        events: Arc<Events>,
    ) -> Arc<Self> {
        let numbers = Mutex::new(Numbers {
            next: 2,
            freed: Vec::new(),
        });
        Arc::new(Self {
            dev,
            config: Mutex::new(config),
            clock,
            events,
            numbers,
        })
    }

    pub(super) fn config(&self) -> FsConfig {
        *self.config.lock()
    }

    /// The time as this filesystem stamps it.
    pub(super) fn stamp(&self) -> Time {
        self.clock.stamp(self.config().tick)
    }

    /// A number for a new object, and its birth time.
    pub(super) fn take_number(&self) -> (u64, Time) {
        let config = self.config();
        let now = self.clock.stamp(config.tick);
        let mut numbers = self.numbers.lock();
        let freed = if config.reuse_numbers {
            numbers.freed.pop()
        } else {
            None
        };
        let Some((ino, earlier)) = freed else {
            numbers.next += 1;
            return (numbers.next - 1, now);
        };
        let late_enough = config.births != Births::Distinct || now > earlier;
        (
            ino,
            if late_enough {
                now
            } else {
                just_after(earlier)
            },
        )
    }
}

/// One object. It lives as long as a name, a node or an open file refers to it;
/// its number is free for reuse after that and not before.
pub(super) struct Object {
    /// Never reused, unlike the inode number.
    pub(super) serial: u64,
    pub(super) kind: Kind,
    pub(super) fs: Arc<FakeFs>,
    /// Leaf lock: nothing else is locked while it is held.
    state: Mutex<State>,
}

/// What can change about an object.
pub(super) struct State {
    pub(super) ino: u64,
    /// The number came from the filesystem's supply and goes back there.
    pub(super) ino_supplied: bool,
    pub(super) birth: Time,
    pub(super) perm: u16,
    /// Names; of a directory 1 or 0.
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Time,
    pub(super) mtime: Time,
    pub(super) ctime: Time,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Inode flags of chattr(1); kept, and without effect.
    pub(super) flags: u32,
    pub(super) locks: Locks,
    /// The number of the watch on it.
    pub(super) watch: Option<u64>,
    pub(super) body: Body,
}

/// What an object holds, by kind.
pub(super) enum Body {
    Dir(Dir),
    File(Data),
    Symlink(Vec<u8>),
    /// A FIFO, a socket or a device node, with its device number.
    Special(u32),
}

impl Object {
    pub(super) fn new(
        serial: u64,
        kind: Kind,
        fs: &Arc<FakeFs>,
        perm: u16,
        owner: (u32, u32),
        body: Body,
    ) -> Arc<Self> {
        let (ino, birth) = fs.take_number();
        let now = fs.stamp();
        let state = Mutex::new(State {
            ino,
            ino_supplied: true,
            birth,
            perm,
            links: 1,
            uid: owner.0,
            gid: owner.1,
            atime: now,
            mtime: now,
            ctime: now,
            xattrs: BTreeMap::new(),
            flags: 0,
            locks: Locks::default(),
            watch: None,
            body,
        });
        Arc::new(Self {
            serial,
            kind,
            fs: fs.clone(),
            state,
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Runs `f` on the entries of a directory that still has a name.
    pub(super) fn with_dir<R>(&self, f: impl FnOnce(&mut Dir) -> Result<R>) -> Result<R> {
        let mut state = self.state();
        if state.links == 0 && self.is_dir() {
            return Err(Errno::NOENT);
        }
        match &mut state.body {
            Body::Dir(dir) => f(dir),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// What `name` is in this directory.
    pub(super) fn entry(&self, name: &[u8]) -> Result<Entry> {
        self.with_dir(|dir| dir.get(name).ok_or(Errno::NOENT))
    }

    /// The object that `name` is in this directory.
    pub(super) fn child(&self, name: &[u8]) -> Result<Arc<Self>> {
        self.entry(name).map(|entry| entry.object)
    }

    /// The contents or an entry changed.
    pub(super) fn touch(&self) {
        let now = self.fs.stamp();
        let mut state = self.state();
        state.mtime = now;
        state.ctime = now;
    }

    /// An attribute changed.
    pub(super) fn touch_attr(&self) {
        let now = self.fs.stamp();
        self.state().ctime = now;
    }

    /// Attributes, as seen through mount `mnt`.
    pub(super) fn attr(&self, mnt: u64) -> Attr {
        let config = self.fs.config();
        let state = self.state();
        let btime = (config.births != Births::None).then_some(state.birth);
        let (nlink, size, blocks, rdev) = match &state.body {
            Body::Dir(dir) => (
                match state.links {
                    0 => 0,
                    _ if config.count_subdirs => 2 + dir.subdirs,
                    _ => 1,
                },
                dir.by_cookie.len() as u64 * 32,
                8,
                0,
            ),
            Body::File(data) => (state.links, data.size(), data.blocks(), 0),
            Body::Symlink(target) => (state.links, target.len() as u64, 0, 0),
            Body::Special(rdev) => (state.links, 0, 0, *rdev),
        };
        Attr {
            id: SourceId {
                dev: self.fs.dev,
                mnt,
                ino: state.ino,
                btime,
            },
            kind: self.kind,
            perm: state.perm,
            nlink,
            uid: state.uid,
            gid: state.gid,
            rdev,
            size,
            blocks,
            blksize: 4096,
            atime: state.atime,
            mtime: state.mtime,
            ctime: state.ctime,
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let state = self.state();
        let (ino, birth, supplied) = (state.ino, state.birth, state.ino_supplied);
        let watch = state.watch;
        drop(state);
        if let Some(watch) = watch {
            self.fs.events.ended(watch);
        }
        if supplied {
            self.fs.numbers.lock().freed.push((ino, birth));
        }
    }
}

/// Where a name is: what a host calls a dentry. It goes along with a rename, and is
/// nowhere once the name is gone, or in a filesystem's root.
#[derive(Default)]
pub(super) struct Place(Mutex<Option<(Weak<Object>, Vec<u8>)>>);

impl Place {
    pub(super) fn get(&self) -> Option<(Arc<Object>, Vec<u8>)> {
        let place = self.0.lock();
        let (dir, name) = place.as_ref()?;
        Some((dir.upgrade()?, name.clone()))
    }

    pub(super) fn set(&self, dir: &Arc<Object>, name: &[u8]) {
        *self.0.lock() = Some((Arc::downgrade(dir), name.to_vec()));
    }

    pub(super) fn clear(&self) {
        *self.0.lock() = None;
    }
}

/// What a name is bound to.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) object: Arc<Object>,
    pub(super) place: Arc<Place>,
}

impl Entry {
    pub(super) fn new(object: &Arc<Object>) -> Self {
        Self {
            object: object.clone(),
            place: Arc::default(),
        }
    }
}

/// Entries of a directory.
pub(super) struct Dir {
    by_name: HashMap<Vec<u8>, u64>,
    by_cookie: BTreeMap<u64, (Vec<u8>, Entry)>,
    next_cookie: u64,
    pub(super) subdirs: u32,
    /// The directory above, in this filesystem; dangling in a filesystem's root.
    pub(super) parent: Weak<Object>,
}

/// An entry as read from a directory.
pub(super) struct Listed {
    pub(super) name: Vec<u8>,
    pub(super) ino: u64,
    pub(super) kind: Kind,
    pub(super) cookie: u64,
}

impl Dir {
    pub(super) fn new(parent: Weak<Object>) -> Self {
        Self {
            by_name: HashMap::new(),
            by_cookie: BTreeMap::new(),
            next_cookie: DOTS + 1,
            subdirs: 0,
            parent,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<Entry> {
        let cookie = self.by_name.get(name)?;
        self.by_cookie.get(cookie).map(|(_, entry)| entry.clone())
    }

    /// Binds `name`; what it was bound to. A name that was there keeps its cookie, as
    /// in a directory that is changed in place.
    pub(super) fn insert(&mut self, name: &[u8], entry: Entry, cookies: Cookies) -> Option<Entry> {
        self.subdirs += u32::from(entry.object.is_dir());
        let there = self.by_name.get(name).copied();
        let cookie = there.unwrap_or_else(|| self.new_cookie(name, cookies));
        if there.is_none() {
            self.by_name.insert(name.to_vec(), cookie);
        }
        let (_, old) = self.by_cookie.insert(cookie, (name.to_vec(), entry))?;
        self.subdirs -= u32::from(old.object.is_dir());
        Some(old)
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<Entry> {
        let cookie = self.by_name.remove(name)?;
        let (_, old) = self.by_cookie.remove(&cookie)?;
        self.subdirs -= u32::from(old.object.is_dir());
        Some(old)
    }

    fn new_cookie(&mut self, name: &[u8], cookies: Cookies) -> u64 {
        if cookies != Cookies::Hashed {
            self.next_cookie += 1;
            return self.next_cookie - 1;
        }
        let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let mut cookie = (name.iter().fold(0xcbf2_9ce4_8422_2325, fnv) >> 2).max(DOTS + 1);
        while self.by_cookie.contains_key(&cookie) {
            cookie += 1;
        }
        cookie
    }

    /// Names in the directory's order.
    pub(super) fn names(&self) -> Vec<Vec<u8>> {
        self.by_cookie
            .values()
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Entries that are not dots, in order, as (own cookie, name, object), from `cookie` on.
    pub(super) fn after(
        &self,
        cookie: u64,
        cookies: Cookies,
    ) -> impl Iterator<Item = (u64, &[u8], &Arc<Object>)> {
        let places = cookies == Cookies::Places;
        let skip = if places {
            cookie.saturating_sub(DOTS) as usize
        } else {
            0
        };
        let start = if places { 0 } else { cookie.saturating_add(1) };
        let rest = self.by_cookie.range(start..).skip(skip).enumerate();
        rest.map(move |(n, (own, (name, entry)))| {
            let own = if places {
                DOTS + (skip + n) as u64 + 1
            } else {
                *own
            };
            (own, name.as_slice(), &entry.object)
        })
    }
}

/// Up to `most` entries of `object` after `cookie`, dots included.
pub(super) fn list(object: &Arc<Object>, cookie: u64, most: usize) -> Result<Vec<Listed>> {
    let cookies = object.fs.config().cookies;
    let own_ino = object.state().ino;
    let parent = object.with_dir(|dir| Ok(dir.parent.upgrade()))?;
    let parent_ino = parent.map_or(own_ino, |parent| parent.state().ino);
    let mut listed = Vec::new();
    for (n, name, ino) in [(1, &b"."[..], own_ino), (2, b"..", parent_ino)] {
        if n > cookie {
            listed.push(Listed {
                name: name.to_vec(),
                ino,
                kind: Kind::Directory,
                cookie: n,
            });
        }
    }
    let found: Vec<(u64, Vec<u8>, Arc<Object>)> = object.with_dir(|dir| {
        let rest = dir
            .after(cookie.max(DOTS), cookies)
            .take(most.saturating_sub(listed.len()));
        Ok(rest
            .map(|(own, name, object)| (own, name.to_vec(), object.clone()))
            .collect())
    })?;
    for (cookie, name, object) in found {
        let ino = object.state().ino;
        listed.push(Listed {
            name,
            ino,
            kind: object.kind,
            cookie,
        });
    }
    Ok(listed)
}
