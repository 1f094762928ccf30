//! Virtual files (floor F5): `.slabinfo` and `.nameifs/`.
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

/// The virtual files, in the order of their nodeids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Node {
    Slabinfo,
    Directory,
    Stats,
    DentryState,
    DropCaches,
}

const NODES: [Node; 5] = [
    Node::Slabinfo,
    Node::Directory,
    Node::Stats,
    Node::DentryState,
    Node::DropCaches,
];

/// Names that a source should not have in its root.
pub const NAMES: [&str; 2] = [".slabinfo", ".nameifs"];

impl Node {
    fn nodeid(self) -> NodeId {
        VIRTUAL + 1 + self as NodeId
    }

    fn of(nodeid: NodeId) -> Option<Self> {
        NODES
            .get(usize::try_from(nodeid.checked_sub(VIRTUAL + 1)?).ok()?)
            .copied()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Slabinfo => NAMES[0],
            Self::Directory => NAMES[1],
            Self::Stats => "stats",
            Self::DentryState => "dentry-state",
            Self::DropCaches => "drop_caches",
        }
    }

    fn parent(self) -> NodeId {
        match self {
            Self::Slabinfo | Self::Directory => ROOT,
            _ => Self::Directory.nodeid(),
        }
    }

    fn kind(self) -> Kind {
        if self == Self::Directory {
            Kind::Directory
        } else {
            Kind::Regular
        }
    }

    fn perm(self) -> u16 {
        match self {
            Self::Directory => 0o555,
            Self::DropCaches => 0o200,
            _ => 0o444,
        }
    }

    /// Where a listing goes on after this one: beyond what a source would use, and
    /// below the largest number, which ext4 uses for its end.
    fn cookie(self) -> u64 {
        (i64::MAX as u64) - 16 + self as u64
    }
}

/// The virtual files of a mount.
pub(super) struct Virt {
    mode: SlabinfoMode,
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
    pub(super) fn new(mode: SlabinfoMode, (uid, gid): (u32, u32)) -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            mode,
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
        Node::of(nodeid).is_some()
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
            perm: node.perm(),
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
        NODES
            .into_iter()
            .filter(move |n| on && n.parent() == parent)
    }

    /// What a name is, if it is a matter of the virtual files.
    pub(super) fn lookup(&self, parent: NodeId, name: &[u8]) -> Option<Lookup> {
        match self.below(parent).find(|n| n.name().as_bytes() == name) {
            Some(node) => Some(Lookup::Entry(self.entry(node))),
            None if Self::owns(parent) => Some(Lookup::Negative(Duration::ZERO)),
            None => None,
        }
    }

    pub(super) fn getattr(&self, nodeid: NodeId) -> Option<Stat> {
        let node = Node::of(nodeid)?;
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
        if Node::of(nodeid) != Some(Node::Directory) {
            return false;
        }
        let dots = [(1, nodeid, "."), (2, ROOT, "..")].map(|(cookie, ino, name)| DirEntry {
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

    fn dir_entry(&self, node: Node) -> DirEntry<'static> {
        DirEntry {
            ino: node.nodeid(),
            cookie: node.cookie(),
            kind: node.kind(),
            name: node.name().as_bytes(),
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
        let Some(node) = Node::of(nodeid) else {
            return Ok(None);
        };
        let writes = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        match node {
            Node::Directory => Err(Errno::ISDIR),
            Node::DropCaches => Ok(Some(VirtFile {
                node,
                text: Mutex::default(),
            })),
            _ if writes => Err(Errno::ACCESS),
            _ => Ok(Some(VirtFile {
                node,
                text: Mutex::default(),
            })),
        }
    }
}

impl<S: Source> Fs<S> {
    /// The text of a virtual file as of now.
    pub(super) fn virt_text(&self, node: Node) -> String {
        match node {
            Node::Slabinfo => self.registry.render(),
            Node::Stats => format!("{:#}\n", self.stats()),
            Node::DentryState => self.dentry_state(),
            Node::Directory | Node::DropCaches => String::new(),
        }
    }

    /// A write to a virtual file: `1` to `drop_caches` drops everything, `1 PATH` what is
    /// cached of that path and beneath it.
    ///
    /// # Errors
    /// EINVAL for anything else.
    pub(super) fn virt_write(&self, file: &VirtFile, data: &[u8]) -> Result<usize> {
        if file.node != Node::DropCaches {
            return Err(Errno::INVAL);
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
