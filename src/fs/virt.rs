//! Virtual files (floor F5): `.slabinfo` and `.nameifs/`, with the attributes of the slab
//! caches as /sys/kernel/slab has them.
//!
//! Contract: they answer lookups in the root and are not listed there unless asked
//! for, so that find, tar and rsync see the source's tree and nothing more. Their
//! size is 0 and they are read past the page cache; the text is made anew by a read
//! at offset 0, because the readers of /proc/slabinfo keep the descriptor and seek
//! back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::readdir::DirEntry;
use super::{Entry, Fs, Lookup, SlabinfoMode, Stat};
use crate::dcache::{NodeId, ROOT, VIRTUAL};
use crate::error::{Errno, Result};
use crate::namei::FOREVER;
use crate::source::{Attr, Kind, Source, SourceId, Time};

/// The virtual files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Slabinfo,
    Directory,
    Stats,
    DentryState,
    DropCaches,
    /// `.nameifs/slab`, as /sys/kernel/slab.
    Slab,
    /// A directory below it: the cache by its place in the registry.
    Cache(u16),
    /// A file in that: the attribute by its place among the cache's.
    Attr(u16, u8),
}

/// Those that every mount has, in the order of their nodeids.
const NODES: [Node; 6] = [
    Node::Slabinfo,
    Node::Directory,
    Node::Stats,
    Node::DentryState,
    Node::DropCaches,
    Node::Slab,
];

/// Names that a source should not have in its root.
pub const NAMES: [&str; 2] = [".slabinfo", ".nameifs"];

/// Attributes of a cache that are written.
const SHRINK: &str = "shrink";
const VALIDATE: &str = "validate";

/// Where the nodeids of caches begin; each has 256.
const CACHES: NodeId = VIRTUAL + 0x1_0000;

impl Node {
    fn nodeid(self) -> NodeId {
        match self {
            Self::Cache(cache) => CACHES + (NodeId::from(cache) << 8),
            Self::Attr(cache, attr) => Self::Cache(cache).nodeid() + 1 + NodeId::from(attr),
            _ => VIRTUAL + 1 + self.place(),
        }
    }

    /// Its place among its siblings, more or less: the numbers ascend.
    fn place(self) -> u64 {
        match self {
            Self::Cache(cache) => u64::from(cache),
            Self::Attr(_, attr) => u64::from(attr),
            _ => NODES.iter().position(|n| *n == self).unwrap_or(0) as u64,
        }
    }

    fn parent(self) -> NodeId {
        match self {
            Self::Slabinfo | Self::Directory => ROOT,
            Self::Cache(_) => Self::Slab.nodeid(),
            Self::Attr(cache, _) => Self::Cache(cache).nodeid(),
            _ => Self::Directory.nodeid(),
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Directory | Self::Slab | Self::Cache(_) => Kind::Directory,
            _ => Kind::Regular,
        }
    }

    /// Where a listing goes on after this one; in the root beyond what a source would
    /// use, and below the largest number, which ext4 uses for its end.
    fn cookie(self) -> u64 {
        match self.parent() {
            ROOT => (i64::MAX as u64) - 16 + self.place(),
            _ => 3 + self.place(),
        }
    }
}

/// A cache's name and those of its attributes.
pub(super) type CacheFiles = (String, Vec<&'static str>);

/// The virtual files of a mount.
pub(super) struct Virt {
    mode: SlabinfoMode,
    caches: Vec<CacheFiles>,
    born: Time,
    uid: u32,
    gid: u32,
}

/// An open virtual file.
pub(super) struct VirtFile {
    node: Node,
    text: Mutex<Vec<u8>>,
}

impl VirtFile {
    /// Reads from the text, which `make` makes anew at offset 0.
    pub(super) fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
        make: impl FnOnce(Node) -> String,
    ) -> usize {
        let mut text = self.text.lock();
        if offset == 0 {
            *text = make(self.node).into_bytes();
        }
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|o| text.get(o..))
            .unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        len
    }
}

impl Virt {
    pub(super) fn new(mode: SlabinfoMode, (uid, gid): (u32, u32), caches: Vec<CacheFiles>) -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            mode,
            caches,
            born: Time {
                sec: now.as_secs() as i64,
                nsec: now.subsec_nanos(),
            },
            uid,
            gid,
        }
    }

    /// Whether a nodeid is a virtual file's.
    pub(super) fn owns(nodeid: NodeId) -> bool {
        (VIRTUAL..CACHES + (1 << 24)).contains(&nodeid)
    }

    fn of(&self, nodeid: NodeId) -> Option<Node> {
        if let Some(number) = nodeid.checked_sub(CACHES) {
            let cache = u16::try_from(number >> 8).ok()?;
            let (_, attrs) = self.caches.get(usize::from(cache))?;
            return match (number & 0xff) as u8 {
                0 => Some(Node::Cache(cache)),
                n if usize::from(n) <= attrs.len() => Some(Node::Attr(cache, n - 1)),
                _ => None,
            };
        }
        let number = nodeid.checked_sub(VIRTUAL + 1)?;
        NODES.get(usize::try_from(number).ok()?).copied()
    }

    fn name(&self, node: Node) -> &str {
        match node {
            Node::Slabinfo => NAMES[0],
            Node::Directory => NAMES[1],
            Node::Stats => "stats",
            Node::DentryState => "dentry-state",
            Node::DropCaches => "drop_caches",
            Node::Slab => "slab",
            Node::Cache(cache) => &self.caches[usize::from(cache)].0,
            Node::Attr(cache, attr) => self.caches[usize::from(cache)].1[usize::from(attr)],
        }
    }

    /// The cache and the attribute that a node is.
    pub(super) fn attribute(&self, node: Node) -> Option<(&str, &str)> {
        match node {
            Node::Attr(cache, _) => Some((self.name(Node::Cache(cache)), self.name(node))),
            _ => None,
        }
    }

    /// Whether something happens when it is written.
    fn is_trigger(&self, node: Node) -> bool {
        let attribute = self.attribute(node).map(|(_, attribute)| attribute);
        node == Node::DropCaches || matches!(attribute, Some(SHRINK | VALIDATE))
    }

    fn perm(&self, node: Node) -> u16 {
        match node.kind() {
            Kind::Directory => 0o555,
            _ if self.is_trigger(node) => 0o200,
            _ => 0o444,
        }
    }

    fn attr(&self, node: Node) -> Attr {
        let dir = node.kind() == Kind::Directory;
        Attr {
            id: SourceId {
                dev: 0,
                mnt: 0,
                ino: node.nodeid(),
                btime: Some(self.born),
            },
            kind: node.kind(),
            perm: self.perm(node),
            nlink: if dir { 2 } else { 1 },
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: self.born,
            mtime: self.born,
            ctime: self.born,
        }
    }

    fn entry(&self, node: Node) -> Entry {
        Entry {
            nodeid: node.nodeid(),
            generation: 0,
            ino: node.nodeid(),
            attr: self.attr(node),
            name_ttl: FOREVER,
            attr_ttl: FOREVER,
        }
    }

    fn below(&self, parent: NodeId) -> impl Iterator<Item = Node> {
        let on = self.mode != SlabinfoMode::Off;
        let (mut caches, mut attrs) = (0, (0, 0));
        match self.of(parent) {
            Some(Node::Slab) => caches = self.caches.len(),
            Some(Node::Cache(cache)) => {
                attrs = (cache, self.caches[usize::from(cache)].1.len());
            }
            _ => {}
        }
        let caches = (0..caches).map(|cache| Node::Cache(cache as u16));
        let attrs = (0..attrs.1).map(move |attr| Node::Attr(attrs.0, attr as u8));
        let fixed = NODES.into_iter().filter(move |n| n.parent() == parent);
        fixed.chain(caches).chain(attrs).filter(move |_| on)
    }

    /// What a name is, if it is a matter of the virtual files.
    pub(super) fn lookup(&self, parent: NodeId, name: &[u8]) -> Option<Lookup> {
        match self
            .below(parent)
            .find(|n| self.name(*n).as_bytes() == name)
        {
            Some(node) => Some(Lookup::Entry(self.entry(node))),
            None if Self::owns(parent) => Some(Lookup::Negative(Duration::ZERO)),
            None => None,
        }
    }

    pub(super) fn getattr(&self, nodeid: NodeId) -> Option<Stat> {
        let node = self.of(nodeid)?;
        Some(Stat {
            ino: nodeid,
            attr: self.attr(node),
            ttl: FOREVER,
        })
    }

    /// Lists a virtual directory; whether it is one.
    pub(super) fn readdir(
        &self,
        nodeid: NodeId,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> bool {
        let Some(dir) = self.of(nodeid).filter(|n| n.kind() == Kind::Directory) else {
            return false;
        };
        let dots =
            [(1, nodeid, "."), (2, dir.parent(), "..")].map(|(cookie, ino, name)| DirEntry {
                ino,
                cookie,
                kind: Kind::Directory,
                name: name.as_bytes(),
                entry: None,
            });
        let nodes = self.below(nodeid).map(|n| self.dir_entry(n));
        for entry in dots.into_iter().chain(nodes) {
            if entry.cookie > cookie && !sink(entry) {
                break;
            }
        }
        true
    }

    fn dir_entry(&self, node: Node) -> DirEntry<'_> {
        DirEntry {
            ino: node.nodeid(),
            cookie: node.cookie(),
            kind: node.kind(),
            name: self.name(node).as_bytes(),
            entry: Some(self.entry(node)),
        }
    }

    /// Whether a listing of the root is beyond the source's own names.
    pub(super) fn is_listed_cookie(&self, nodeid: NodeId, cookie: u64) -> bool {
        nodeid == ROOT && self.below(ROOT).any(|n| n.cookie() == cookie)
    }

    /// The end of the root's listing, where they are to be listed.
    pub(super) fn listed(&self, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) {
        if self.mode != SlabinfoMode::Listed {
            return;
        }
        let after = if self.is_listed_cookie(ROOT, cookie) {
            cookie
        } else {
            0
        };
        for node in self.below(ROOT).filter(|n| n.cookie() > after) {
            if !sink(self.dir_entry(node)) {
                break;
            }
        }
    }

    /// Opens a virtual file; `None` if the node is none.
    ///
    /// # Errors
    /// EISDIR, EACCES for writing a file that is only read.
    pub(super) fn open(&self, nodeid: NodeId, flags: u32) -> Result<Option<VirtFile>> {
        let Some(node) = self.of(nodeid) else {
            return Ok(None);
        };
        let writes = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        if node.kind() == Kind::Directory {
            return Err(Errno::ISDIR);
        }
        if writes && !self.is_trigger(node) {
            return Err(Errno::ACCESS);
        }
        Ok(Some(VirtFile {
            node,
            text: Mutex::default(),
        }))
    }
}

impl<S: Source> Fs<S> {
    /// The text of a virtual file as of now.
    pub(super) fn virt_text(&self, node: Node) -> String {
        match node {
            Node::Slabinfo => self.registry.render(),
            Node::Stats => format!("{:#}\n", self.stats()),
            Node::DentryState => self.dentry_state(),
            _ => self.attribute_text(node).unwrap_or_default(),
        }
    }

    fn attribute_text(&self, node: Node) -> Option<String> {
        let (cache, attribute) = self.virt.attribute(node)?;
        let all = self.registry.attributes(cache)?;
        let (_, text) = all.into_iter().find(|(name, _)| *name == attribute)?;
        Some(text)
    }

    /// A write to a virtual file: `1` to `drop_caches` drops everything, `1 PATH` what is
    /// cached of that path and beneath it; `1` to a cache's `shrink` gives its empty slabs
    /// back, to `validate` checks it.
    ///
    /// # Errors
    /// EINVAL for anything else.
    pub(super) fn virt_write(&self, file: &VirtFile, data: &[u8]) -> Result<usize> {
        if file.node != Node::DropCaches {
            if data.trim_ascii() != b"1" {
                return Err(Errno::INVAL);
            }
            let done = match self.virt.attribute(file.node) {
                Some((cache, SHRINK)) => self.registry.shrink(cache),
                Some((cache, VALIDATE)) => self.registry.validate(cache),
                _ => None,
            };
            return done.map(|_| data.len()).ok_or(Errno::INVAL);
        }
        match data.trim_ascii() {
            b"1" | b"2" | b"3" => self.drop_caches(),
            _ => {
                let line = data.strip_suffix(b"\n").unwrap_or(data);
                self.drop_below(line.strip_prefix(b"1 ").ok_or(Errno::INVAL)?)?;
            }
        }
        Ok(data.len())
    }
}
