//! The filesystem in our own words (floor F5).
//!
//! Purpose: one function for each request, taking and returning plain values, so
//! that a transport only translates. The only place that knows both requests and
//! timeouts, and the only one that raises the kernel's reference counts.
//!
//! Contract: may be called from any number of threads. No lock is held around a
//! call of the source. A node whose object is gone is answered ESTALE (the kernel
//! then looks the name up again), a name that is absent ENOENT.
//!
//! It does not know FUSE's structures.

mod coherence;
mod file;
mod fill;
mod lock;
mod readahead;
mod readdir;
mod stats;
mod virt;
mod waiters;
mod write;

pub use file::{FileId, Opened};
pub use lock::{Conflict, LockOwner};
pub use readahead::Readahead;
pub use readdir::DirEntry;
pub use stats::{Op, Requests};
pub use waiters::Answer;

use std::time::Duration;

use crate::clock::Clock;
use crate::dcache::{InodeId, InodeRef, NodeId, ROOT};
use crate::error::{Errno, Result};
use crate::name::{LastType, QStr, next_component, skip_slashes};
pub use crate::namei::Coherence;
use crate::namei::{Found, Limits, Namei, Policy, Variant};
use crate::notice::{Notice, Notices};
use crate::slab::{CacheInfo, Registry, SlabOptions};
use crate::source::{Attr, Handle, Source, StatFs};
use crate::sync::Arc;

use file::Files;
use lock::Locks;
use readahead::Look;
use virt::Virt;

/// How the virtual files show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlabinfoMode {
    /// Openable in the root, not listed.
    Hidden,
    /// Listed too.
    Listed,
    /// Absent.
    Off,
}

/// When directories are read with attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readdirplus {
    /// The kernel guesses from what the reader did before.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What can be chosen at mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// When cached names are used without asking.
    pub coherence: Coherence,
    /// How long a name is believed under [`Coherence::Ttl`].
    pub ttl: Duration,
    /// How long an absence is believed.
    pub negative_ttl: Duration,
    /// How long attributes are believed.
    pub attr_ttl: Duration,
    /// Bytes that the caches may hold.
    pub cache_size: u64,
    /// How the virtual files show.
    pub slabinfo: SlabinfoMode,
    /// When directories are read with attributes.
    pub readdirplus: Readdirplus,
    /// Whether directories are read ahead.
    pub readahead: Readahead,
    /// File data bypasses the daemon where the kernel can do that.
    pub passthrough: bool,
    /// Every change is refused with EROFS.
    pub read_only: bool,
    /// Extended attributes are served.
    pub xattr: bool,
    /// Descriptors of directories that may be held.
    pub dir_fds: usize,
    /// Directories that may be watched.
    pub max_watches: usize,
    /// User and group that the virtual files belong to: whoever mounted.
    pub owner: (u32, u32),
    /// How long an object waits for the kernel to forget the one that had its number.
    pub forget_wait: Duration,
    /// The arms of the experiments.
    pub variant: Variant,
    /// Debug modes and injected failures of the slab caches.
    pub slab: SlabOptions,
}

impl Default for Options {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self {
            coherence: Coherence::Auto,
            ttl: second,
            negative_ttl: second,
            attr_ttl: second,
            cache_size: 512 << 20,
            slabinfo: SlabinfoMode::Hidden,
            readdirplus: Readdirplus::Auto,
            readahead: Readahead::Auto,
            passthrough: true,
            read_only: false,
            xattr: true,
            dir_fds: 256,
            max_watches: 1 << 20,
            owner: (0, 0),
            forget_wait: Duration::from_millis(20),
            variant: Variant::default(),
            slab: SlabOptions::default(),
        }
    }
}

/// An object as a reply carries it. Each one given out is one reference of the
/// kernel's, to be undone by [`Fs::forget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// FUSE's number for it.
    pub nodeid: NodeId,
    /// Tells objects that had this nodeid one after the other apart.
    pub generation: u32,
    /// `st_ino`.
    pub ino: u64,
    /// Its attributes.
    pub attr: Attr,
    /// How long the name may be believed.
    pub name_ttl: Duration,
    /// How long the attributes may be believed.
    pub attr_ttl: Duration,
}

/// What a name is, in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// This object.
    Entry(Entry),
    /// Absent, to be believed for so long.
    Negative(Duration),
}

/// Attributes in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `st_ino`.
    pub ino: u64,
    /// The attributes.
    pub attr: Attr,
    /// How long they may be believed.
    pub ttl: Duration,
}

/// Bytes that the names of an object's attributes take at most (limits.h).
const XATTR_LIST_MAX: usize = 65536;

/// A mirror of one source.
pub struct Fs<S: Source> {
    namei: Namei<S>,
    registry: Arc<Registry>,
    options: Options,
    files: Files<S::File>,
    locks: Locks<S::File>,
    virt: Virt,
    readahead: readahead::Queue,
    /// Requests served, by kind.
    pub requests: Requests,
}

impl<S: Source> Fs<S> {
    /// A mirror of `source`.
    ///
    /// # Errors
    /// The source's, when its root cannot be read; ENOMEM.
    pub fn new(source: S, options: Options) -> Result<Self> {
        Self::with_clock(source, options, Clock::real())
    }

    /// A mirror that takes the time from `clock`.
    ///
    /// # Errors
    /// As [`Fs::new`].
    pub fn with_clock(source: S, options: Options, clock: Clock) -> Result<Self> {
        let registry = Registry::with_options(options.slab.clone());
        let policy = Policy {
            coherence: options.coherence,
            ttl: options.ttl,
            negative_ttl: options.negative_ttl,
            attr_ttl: options.attr_ttl,
        };
        let limits = Limits {
            bytes: options.cache_size,
            nodes: options.dir_fds,
            watches: options.max_watches,
            forget_wait: options.forget_wait,
        };
        let namei = Namei::new(source, &registry, clock, policy, limits, options.variant)?;
        let files = Files::new(&registry);
        let policy = namei.policy();
        let believed = match policy.coherence {
            Coherence::Watch | Coherence::Frozen => None,
            _ => Some(policy.ttl.min(policy.attr_ttl)),
        };
        let mode = match policy.coherence {
            Coherence::Strict => Readahead::Off,
            _ => options.readahead,
        };
        let readahead = readahead::Queue::new(mode, namei.clock.clone(), believed);
        let attributes = |name: String| {
            let all = registry.attributes(&name).unwrap_or_default();
            (
                name,
                all.into_iter().map(|(attribute, _)| attribute).collect(),
            )
        };
        let caches = registry.names().into_iter().map(attributes).collect();
        Ok(Self {
            files,
            locks: Locks::new(),
            virt: Virt::new(options.slabinfo, options.owner, caches),
            readahead,
            requests: Requests::default(),
            namei,
            registry,
            options,
        })
    }

    /// The mode in force: what [`Coherence::Auto`] became.
    pub fn coherence(&self) -> Coherence {
        self.namei.policy().coherence
    }

    /// What was chosen at mount.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The name layer.
    pub fn namei(&self) -> &Namei<S> {
        &self.namei
    }

    /// What has to be told to the kernel.
    pub fn notices(&self) -> Arc<Notices> {
        self.namei.notices.clone()
    }

    /// Counters of the slab caches.
    pub fn slabinfo(&self) -> Vec<CacheInfo> {
        self.registry.infos()
    }

    /// The inode that a request is addressed to.
    fn inode(&self, nodeid: NodeId) -> Result<InodeRef<'_>> {
        self.namei.dcache.inodes.get(nodeid).ok_or(Errno::STALE)
    }

    /// Calls `f` with what stands for an inode on the source: the open file, if given;
    /// an object pinned by name; any open file, if no name leads to it any more.
    ///
    /// # Errors
    /// ESTALE if the object is gone, and those of `f`.
    fn with_handle<R>(
        &self,
        inode: InodeId,
        file: Option<FileId>,
        f: impl FnOnce(Handle<'_, S::Node, S::File>) -> Result<R>,
    ) -> Result<R> {
        let file = match file.filter(|&id| self.files.is_file(id)) {
            Some(id) => id,
            None => match self.namei.node(inode) {
                Ok(node) => return f(Handle::Node(&node)),
                Err(Errno::STALE) => self.files.any_of(inode).ok_or(Errno::STALE)?,
                Err(e) => return Err(e),
            },
        };
        self.files.with_file(file, |file| f(Handle::File(file)))?
    }

    /// Attributes as a reply carries them.
    fn stat_of(&self, nodeid: NodeId, inode: InodeId, attr: Attr, left: Duration) -> Stat {
        let ino = self.namei.dcache.inodes.devices.st_ino(nodeid);
        Stat {
            ino,
            attr,
            ttl: if self.is_volatile(inode) {
                Duration::ZERO
            } else {
                left
            },
        }
    }

    fn is_volatile(&self, inode: InodeId) -> bool {
        self.namei
            .dcache
            .inodes
            .with(inode, |i| i.volatile())
            .unwrap_or(true)
    }

    /// Whether changes are allowed at all.
    fn writable(&self) -> Result<()> {
        if self.options.read_only {
            Err(Errno::ROFS)
        } else {
            Ok(())
        }
    }

    /// LOOKUP.
    ///
    /// # Errors
    /// ENAMETOOLONG, ENOTDIR, ESTALE if the directory is gone, and the source's.
    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Lookup> {
        if let Some(found) = self.virt.lookup(parent, name) {
            return Ok(found);
        }
        let inode = self.inode(parent)?;
        let _look = self.readahead.look(parent, name, Look::Request);
        match self.namei.lookup_one(inode.id(), QStr::new(name)?)? {
            Found::Negative { left } => Ok(Lookup::Negative(left)),
            found @ Found::Positive { .. } => Ok(Lookup::Entry(self.reply_with(found)?)),
        }
    }

    /// Turns what was found into a reply that counts as a reference of the kernel's.
    fn reply_with(&self, found: Found<'_>) -> Result<Entry> {
        let Found::Positive {
            inode,
            attr,
            name_left,
            attr_left,
        } = found
        else {
            return Err(Errno::NOENT);
        };
        let attr_left = if self.is_volatile(inode.id()) {
            Duration::ZERO
        } else {
            attr_left
        };
        let (nodeid, generation) = inode.into_lookup()?;
        let ino = self.namei.dcache.inodes.devices.st_ino(nodeid);
        Ok(Entry {
            nodeid,
            generation,
            ino,
            attr,
            name_ttl: name_left,
            attr_ttl: attr_left,
        })
    }

    /// FORGET: the kernel gives `n` references to a node back.
    pub fn forget(&self, nodeid: NodeId, n: u64) {
        if nodeid != ROOT {
            self.namei.dcache.inodes.forget(nodeid, n);
            self.namei.changed_names();
        }
    }

    /// GETATTR, of an open file if `file` is given.
    ///
    /// # Errors
    /// ESTALE if the object is gone, and the source's.
    pub fn getattr(&self, nodeid: NodeId, file: Option<FileId>) -> Result<Stat> {
        self.attributes(nodeid, file, Namei::getattr)
    }

    /// STATX: as [`Fs::getattr`], with the birth time, for which the source is always asked.
    ///
    /// # Errors
    /// ESTALE if the object is gone, and the source's.
    pub fn statx(&self, nodeid: NodeId, file: Option<FileId>) -> Result<Stat> {
        self.attributes(nodeid, file, Namei::read_attr)
    }

    fn attributes(
        &self,
        nodeid: NodeId,
        file: Option<FileId>,
        by_name: impl FnOnce(&Namei<S>, InodeId) -> Result<(Attr, Duration)>,
    ) -> Result<Stat> {
        if let Some(stat) = self.virt.getattr(nodeid) {
            return Ok(stat);
        }
        let pinned = self.inode(nodeid)?;
        let inode = pinned.id();
        let _alone = self.readahead.alone();
        let by_name = match file {
            Some(id) if self.files.is_file(id) => Err(Errno::STALE),
            _ => by_name(&self.namei, inode),
        };
        let (attr, left) = match by_name {
            // An open file knows best; and a file without a name is only known so.
            Err(Errno::STALE) => {
                let file = file
                    .or_else(|| self.files.any_of(inode))
                    .ok_or(Errno::STALE)?;
                let moment = self.namei.attr_moment(inode);
                let attr = self
                    .files
                    .with_file(file, |f| self.namei.source.stat_file(f))??;
                (attr, self.namei.took_attr_since(inode, &attr, moment))
            }
            other => other?,
        };
        Ok(self.stat_of(nodeid, inode, attr, left))
    }

    /// READLINK.
    ///
    /// # Errors
    /// EINVAL if it is no symlink, ESTALE, and the source's.
    pub fn readlink(&self, nodeid: NodeId) -> Result<Vec<u8>> {
        self.namei.readlink(self.inode(nodeid)?.id())
    }

    /// STATFS, of the filesystem that holds the node.
    ///
    /// # Errors
    /// ESTALE, and the source's.
    pub fn statfs(&self, nodeid: NodeId) -> Result<StatFs> {
        let node = self.inode(nodeid);
        let node = match node.and_then(|inode| self.namei.node(inode.id())) {
            Ok(node) => node,
            // Of a file without a name: its filesystem is most likely the root's.
            Err(_) => self.namei.source.root(),
        };
        self.namei.source.statfs(&node)
    }

    /// GETXATTR: the value into `buf`, its length; with an empty `buf` the length alone.
    ///
    /// # Errors
    /// ENODATA, ERANGE, EOPNOTSUPP, ESTALE, and the source's.
    pub fn getxattr(&self, nodeid: NodeId, name: &[u8], buf: &mut [u8]) -> Result<usize> {
        if Virt::owns(nodeid) {
            return Err(Errno::NODATA);
        }
        let pinned = self.inode(nodeid)?;
        let inode = pinned.id();
        // `ls -l` asks for a security label of each name, and most have none.
        let is_label = name.starts_with(b"security.");
        if is_label && self.namei.is_plain(inode) {
            return Err(Errno::NODATA);
        }
        let filename = self.namei.names.getname_from(name)?;
        let (moment, asked) = self.namei.attr_moment(inode);
        let source = &self.namei.source;
        self.with_handle(inode, None, |of| {
            let got = source.getxattr(of, filename.as_cstr(), buf);
            if is_label && got == Err(Errno::NODATA) && source.listxattr(of, &mut []) == Ok(0) {
                let inodes = &self.namei.dcache.inodes;
                inodes.with_mut(inode, |i| i.set_plain(moment, asked.at));
            }
            got
        })
    }

    /// LISTXATTR: the names into `buf`, their length; with an empty `buf` the length
    /// alone.
    ///
    /// # Errors
    /// ERANGE, ESTALE, and the source's.
    pub fn listxattr(&self, nodeid: NodeId, uid: u32, buf: &mut [u8]) -> Result<usize> {
        if Virt::owns(nodeid) {
            return Ok(0);
        }
        let list = |buf: &mut [u8]| {
            self.with_handle(self.inode(nodeid)?.id(), None, |of| {
                self.namei.source.listxattr(of, buf)
            })
        };
        if uid == 0 {
            return list(buf);
        }
        // Names of `trusted.` are shown to the privileged alone (xattr(7)), which the
        // daemon may be where the caller is not.
        let mut all = vec![0; XATTR_LIST_MAX];
        let len = list(&mut all)?;
        let names = all[..len].split_inclusive(|&b| b == 0);
        let shown: Vec<u8> = names
            .filter(|n| !n.starts_with(b"trusted."))
            .flatten()
            .copied()
            .collect();
        if !buf.is_empty() {
            buf.get_mut(..shown.len())
                .ok_or(Errno::RANGE)?
                .copy_from_slice(&shown);
        }
        Ok(shown.len())
    }

    /// Everything cached is looked up anew from now on, in the kernel too.
    pub fn drop_caches(&self) {
        self.namei.drop_caches();
        self.notices().push(Notice::Everything);
    }

    /// The kernel was told of [`Notice::Everything`]: what is not needed is freed.
    pub fn dropped(&self) {
        self.namei.free_doubtful();
    }

    /// What is cached of `path`, below the root, and of all beneath it is looked up anew
    /// from now on, in the kernel too. A path that is not cached needs nothing.
    ///
    /// # Errors
    /// EINVAL for `..` in the path, ENAMETOOLONG.
    pub fn drop_below(&self, path: &[u8]) -> Result<()> {
        let inodes = &self.namei.dcache.inodes;
        let mut at = inodes.root();
        let mut rest = path;
        while let Some((last, after)) = next_component(rest)? {
            rest = after;
            let name = match last {
                LastType::Dot => continue,
                LastType::DotDot => return Err(Errno::INVAL),
                LastType::Norm(name) => name,
            };
            let parent = at;
            let known = self.namei.dcache.peek(parent, name);
            if skip_slashes(rest).is_empty() {
                self.namei.forget(parent, name);
            }
            match known {
                Some(inode) => at = inode.id(),
                None => return Ok(()),
            }
        }
        let mut doubtful = vec![at];
        for (parent, name, inode) in self.namei.dcache.names_below(at) {
            if let Some(parent) = inodes.with(parent, |i| i.nodeid()) {
                self.notices().push(Notice::Entry { parent, name });
            }
            doubtful.extend(inode);
        }
        for inode in doubtful {
            if let Ok(dir) = self.namei.dir(inode) {
                dir.lock().doubt();
            }
            self.namei.changed(inode);
            if let Some(nodeid) = inodes.with(inode, |i| i.nodeid()) {
                self.notices().push(Notice::Inode { nodeid });
            }
        }
        Ok(())
    }

    /// The end of the mount: gives everything back. Returns the caches that still
    /// have objects in use, which is a leak.
    pub fn end(&self) -> Vec<CacheInfo> {
        self.namei.notices.close();
        self.stop_reading_ahead();
        self.stop_following();
        self.locks.end();
        self.files.end(&self.namei.dcache.inodes);
        self.namei.drop_caches();
        self.namei.dcache.end();
        self.namei.free_doubtful();
        self.registry
            .infos()
            .into_iter()
            .filter(|c| c.active_objs > 0)
            .collect()
    }

    /// Whether the invariants of the caches hold; for tests, with no request under way.
    ///
    /// # Errors
    /// Says what does not hold.
    pub fn check(&self) -> core::result::Result<(), String> {
        self.namei.dcache.check()
    }
}
