//! A source in memory, for tests and benches.
//!
//! Purpose: a tree that behaves as a host's directory does, whose clock, faults
//! and races are the test's to decide: hard links, symlinks and every other
//! kind, extended attributes, sparse files, several filesystems and mounts,
//! reuse of inode numbers, stable or unstable directory cookies.
//!
//! Contract: [`FakeSource`] is a handle; clones are the same tree. Changes by
//! "another process" go through [`FakeSource::edit`]; they are not counted as
//! calls and no fault hits them. Each call and each edit is one step to all
//! others, except that a listing is read in batches ([`FakeSource::set_batch`]).
//! Hooks run with no lock held. Nothing sleeps; time is [`FakeSource::clock`].
//!
//! It checks no permission, as for root.

mod calls;
mod clock;
mod data;
mod edit;
mod object;
#[cfg(test)]
mod tests;
mod world;

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use self::calls::Calls;
use self::object::Body;
use self::world::World;
use super::{Attr, FsTraits, Handle, RawEntry, Source, StatFs, Time};
use crate::error::{Errno, Result};
use crate::sync::{Mutex, MutexGuard};

pub use self::calls::{Call, Point, Site};
pub use self::clock::Clock;
pub use self::edit::Edit;
pub use self::object::{Births, Cookies, FsConfig};
pub use self::world::{Node, RenameFlags};

/// An in-memory tree; see the module.
#[derive(Clone)]
pub struct FakeSource {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<Clock>,
    calls: Calls,
    batch: AtomicUsize,
    root: Node,
    world: Mutex<World>,
}

/// An open file of a [`FakeSource`]; it survives its names.
pub struct File {
    node: Node,
    flags: u32,
}

impl File {
    /// The object that is open.
    pub fn node(&self) -> &Node {
        &self.node
    }
}

impl Default for FakeSource {
    fn default() -> Self {
        Self::new(FsConfig::default())
    }
}

impl FakeSource {
    /// An empty directory on a filesystem of its own. The clock stands at one day after 1970.
    pub fn new(config: FsConfig) -> Self {
        let clock = Arc::new(Clock::new(Time {
            sec: 86_400,
            nsec: 0,
        }));
        let world = World::new(clock.clone(), config);
        let root = world.root.clone();
        let batch = AtomicUsize::new(128);
        let world = Mutex::new(world);
        Self {
            shared: Arc::new(Shared {
                clock,
                calls: Calls::new(),
                batch,
                root,
                world,
            }),
        }
    }

    /// The clock all time stamps are taken from.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.shared.clock
    }

    /// Changes the tree as another process would.
    pub fn edit(&self) -> Edit<'_> {
        Edit::new(self)
    }

    /// How the filesystem that holds the root behaves.
    pub fn config(&self) -> FsConfig {
        self.shared.root.object.fs.config()
    }

    /// Changes how the filesystem that holds the root behaves.
    pub fn configure(&self, change: impl FnOnce(&mut FsConfig)) {
        change(&mut self.shared.root.object.fs.config.lock());
    }

    /// Entries that a listing reads in one step (at least 1); a host's buffer holds some hundreds.
    pub fn set_batch(&self, entries: usize) {
        self.shared.batch.store(entries.max(1), Ordering::Relaxed);
    }

    /// After `passes` more calls of this kind, one fails.
    pub fn fail_after(&self, call: Call, passes: u64, errno: Errno) {
        self.shared
            .calls
            .add_fault(Some(call), passes, errno, false);
    }

    /// After `passes` more calls of any kind, one fails.
    pub fn fail_any_after(&self, passes: u64, errno: Errno) {
        self.shared.calls.add_fault(None, passes, errno, false);
    }

    /// After `passes` more calls of this kind (any, if `None`) all fail, until [`Self::heal`].
    pub fn fail_from(&self, call: Option<Call>, passes: u64, errno: Errno) {
        self.shared.calls.add_fault(call, passes, errno, true);
    }

    /// Takes back all faults that have not struck and those that last.
    pub fn heal(&self) {
        self.shared.calls.heal();
    }

    /// Runs `hook` at every point of every call, until [`Self::clear_hook`].
    pub fn set_hook(&self, hook: impl Fn(&Site<'_>) + Send + Sync + 'static) {
        self.shared.calls.set_hook(Some(Arc::new(hook)));
    }

    /// Runs no hook from now on.
    pub fn clear_hook(&self) {
        self.shared.calls.set_hook(None);
    }

    /// Runs `run` once, in the call of this kind after `passes` others, at `point`.
    pub fn pause(
        &self,
        call: Call,
        point: Point,
        passes: u64,
        run: impl FnOnce() + Send + 'static,
    ) {
        self.shared
            .calls
            .add_pause(call, point, passes, Box::new(run));
    }

    /// Pauses that have not run yet.
    pub fn pauses(&self) -> usize {
        self.shared.calls.pauses()
    }

    /// Calls of one kind so far.
    pub fn count(&self, call: Call) -> u64 {
        self.shared.calls.count(call)
    }

    /// Calls of all kinds so far.
    pub fn count_all(&self) -> u64 {
        Call::ALL.iter().map(|call| self.count(*call)).sum()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.shared.world.lock()
    }

    /// One call: counted, hooked, subject to faults, and one step.
    fn call<R>(
        &self,
        call: Call,
        name: &[u8],
        read: impl FnOnce(&mut World) -> Result<R>,
    ) -> Result<R> {
        self.shared.calls.enter(call, name)?;
        let answer = read(&mut self.world());
        self.shared.calls.at(call, Point::Read, name);
        answer
    }
}

impl Source for FakeSource {
    type Node = Node;
    type File = File;

    fn root(&self) -> Node {
        self.shared.root.clone()
    }

    fn open_node(&self, base: &Node, path: &CStr) -> Result<Node> {
        let path = path.to_bytes();
        self.call(Call::OpenNode, path, |world| world.walk(base, path))
    }

    fn stat(&self, node: &Node) -> Result<Attr> {
        self.call(Call::Stat, b"", |_| Ok(node.object.attr(node.mnt)))
    }

    fn stat_at(&self, dir: &Node, name: &CStr) -> Result<Attr> {
        let name = name.to_bytes();
        self.call(Call::StatAt, name, |world| {
            let node = world.step(dir, name)?;
            Ok(node.object.attr(node.mnt))
        })
    }

    fn stat_file(&self, file: &File) -> Result<Attr> {
        self.call(Call::StatFile, b"", |_| {
            Ok(file.node.object.attr(file.node.mnt))
        })
    }

    fn readlink(&self, node: &Node, buf: &mut [u8]) -> Result<usize> {
        self.call(Call::Readlink, b"", |_| match &node.object.state().body {
            Body::Symlink(target) => {
                let len = target.len().min(buf.len());
                buf[..len].copy_from_slice(&target[..len]);
                Ok(len)
            }
            _ => Err(Errno::INVAL),
        })
    }

    fn list(
        &self,
        dir: &Node,
        cookie: u64,
        sink: &mut dyn FnMut(RawEntry<'_>) -> bool,
    ) -> Result<bool> {
        self.shared.calls.enter(Call::List, b"")?;
        let mut cookie = cookie;
        loop {
            let batch = self.shared.batch.load(Ordering::Relaxed);
            let dtypes = dir.object.fs.config().dtypes;
            let world = self.world();
            let listed = object::list(&dir.object, cookie, batch);
            drop(world);
            self.shared.calls.at(Call::List, Point::Read, b"");
            let listed = listed?;
            let Some(last) = listed.last() else {
                return Ok(true);
            };
            cookie = last.cookie;
            for entry in &listed {
                let kind = dtypes.then_some(entry.kind);
                let (ino, cookie, name) = (entry.ino, entry.cookie, entry.name.as_slice());
                if !sink(RawEntry {
                    ino,
                    kind,
                    cookie,
                    name,
                }) {
                    return Ok(false);
                }
            }
        }
    }

    fn fs_traits(&self, node: &Node) -> Result<FsTraits> {
        self.call(Call::FsTraits, b"", |_| {
            let config = node.object.fs.config();
            let stable_cookies = config.cookies != Cookies::Places;
            Ok(FsTraits {
                stable_cookies,
                remote: config.remote,
                birth_times: config.births == Births::Distinct,
                name: "fake",
            })
        })
    }

    fn statfs(&self, node: &Node) -> Result<StatFs> {
        self.call(Call::Statfs, b"", |_| {
            let files = 1 << 20;
            let blocks = node.object.fs.dev << 20;
            let free = blocks / 2;
            Ok(StatFs {
                bsize: 4096,
                frsize: 4096,
                blocks,
                bfree: free,
                bavail: free,
                files,
                ffree: files / 2,
                namelen: 255,
            })
        })
    }

    fn open(&self, of: Handle<'_, Node, File>, flags: u32) -> Result<File> {
        let node = node_of(of);
        self.call(Call::Open, b"", |_| {
            let writes = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
            let mut state = node.object.state();
            match &mut state.body {
                Body::File(data) if writes && flags & libc::O_TRUNC as u32 != 0 => {
                    data.truncate(0)?;
                }
                Body::File(_) => {
                    return Ok(File {
                        node: node.clone(),
                        flags,
                    });
                }
                Body::Dir(_) => return Err(Errno::ISDIR),
                Body::Symlink(_) => return Err(Errno::LOOP),
                Body::Special(_) => return Err(Errno::NXIO),
            }
            drop(state);
            node.object.touch();
            Ok(File {
                node: node.clone(),
                flags,
            })
        })
    }

    fn read(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.call(Call::Read, b"", |_| {
            if file.flags & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32 {
                return Err(Errno::BADF);
            }
            match &file.node.object.state().body {
                Body::File(data) => Ok(data.read(offset, buf)),
                _ => Err(Errno::INVAL),
            }
        })
    }

    fn lseek(&self, file: &File, offset: u64, whence: u32) -> Result<u64> {
        self.call(Call::Lseek, b"", |_| {
            match (&file.node.object.state().body, whence as i32) {
                (Body::File(data), libc::SEEK_DATA) => data.seek_data(offset),
                (Body::File(data), libc::SEEK_HOLE) => data.seek_hole(offset),
                _ => Err(Errno::INVAL),
            }
        })
    }

    fn getxattr(&self, of: Handle<'_, Node, File>, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        let node = node_of(of);
        let name = name.to_bytes();
        self.call(Call::Getxattr, name, |_| {
            let state = node.object.state();
            copy_out(state.xattrs.get(name).ok_or(Errno::NODATA)?, buf)
        })
    }

    fn listxattr(&self, of: Handle<'_, Node, File>, buf: &mut [u8]) -> Result<usize> {
        let node = node_of(of);
        self.call(Call::Listxattr, b"", |_| {
            let mut names = Vec::new();
            for name in node.object.state().xattrs.keys() {
                names.extend_from_slice(name);
                names.push(0);
            }
            copy_out(&names, buf)
        })
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        Call::ALL
            .iter()
            .map(|call| (call.word(), self.count(*call)))
            .collect()
    }
}

fn node_of<'a>(of: Handle<'a, Node, File>) -> &'a Node {
    match of {
        Handle::Node(node) => node,
        Handle::File(file) => &file.node,
    }
}

/// Answers as getxattr(2): all of it, its length only, or ERANGE.
fn copy_out(bytes: &[u8], buf: &mut [u8]) -> Result<usize> {
    if buf.is_empty() {
        return Ok(bytes.len());
    }
    buf.get_mut(..bytes.len())
        .ok_or(Errno::RANGE)?
        .copy_from_slice(bytes);
    Ok(bytes.len())
}
