//! Open files (floor F5).
//!
//! Contract: a [`FileId`] is the kernel's `fh`. An open file pins its inode, so its
//! object keeps its nodeid while it is open, named or not.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::Fs;
use super::virt::{Virt, VirtFile};
use crate::dcache::{InodeId, Inodes, NodeId};
use crate::error::{Errno, Result};
use crate::slab::{ObjId, ObjTable, Registry, SlabFlags};
use crate::source::{Kind, Source};
use crate::sync::Arc;

/// The kernel's number for an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId(pub u64);

/// How a file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its number.
    pub id: FileId,
    /// Reads must not go through the page cache.
    pub direct_io: bool,
    /// What the page cache holds of it is still good.
    pub keep_cache: bool,
    /// Data may go past the daemon; all opens of one key must share one backing file.
    pub passthrough: Option<(NodeId, u32)>,
}

enum OpenFile<F> {
    Source { inode: InodeId, file: Arc<F> },
    Virtual(Arc<VirtFile>),
}

/// All open files of a mount.
pub(super) struct Files<F> {
    table: ObjTable<OpenFile<F>>,
    /// Which are open of each inode.
    of_inode: Mutex<HashMap<InodeId, Vec<ObjId>>>,
}

impl<F: Send + Sync + 'static> Files<F> {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            table: ObjTable::create(registry, "filp", SlabFlags::empty()),
            of_inode: Mutex::default(),
        }
    }

    fn insert(&self, file: OpenFile<F>) -> Result<FileId> {
        let inode = match &file {
            OpenFile::Source { inode, .. } => Some(*inode),
            OpenFile::Virtual(_) => None,
        };
        let id = self.table.insert(file).map_err(|_| Errno::NOMEM)?;
        if let Some(inode) = inode {
            self.of_inode.lock().entry(inode).or_default().push(id);
        }
        Ok(FileId(u64::from(id.get())))
    }

    fn remove(&self, id: FileId) -> Option<OpenFile<F>> {
        let id = u32::try_from(id.0).ok().and_then(ObjId::new)?;
        let file = self.table.remove(id)?;
        if let OpenFile::Source { inode, .. } = &file {
            let mut of_inode = self.of_inode.lock();
            if let Some(ids) = of_inode.get_mut(inode) {
                ids.retain(|&other| other != id);
                if ids.is_empty() {
                    of_inode.remove(inode);
                }
            }
        }
        Some(file)
    }

    fn get<R>(&self, id: FileId, f: impl FnOnce(&OpenFile<F>) -> R) -> Result<R> {
        let id = u32::try_from(id.0)
            .ok()
            .and_then(ObjId::new)
            .ok_or(Errno::BADF)?;
        self.table.read(id).map(|file| f(&file)).ok_or(Errno::BADF)
    }

    /// Whether `id` is an open file of the source.
    pub(super) fn is_file(&self, id: FileId) -> bool {
        self.get(id, |f| matches!(f, OpenFile::Source { .. }))
            .unwrap_or(false)
    }

    /// Calls `f` with an open file of the source, with no lock held.
    ///
    /// # Errors
    /// EBADF.
    pub(super) fn with_file<R>(&self, id: FileId, f: impl FnOnce(&F) -> R) -> Result<R> {
        let file = self.get(id, |file| match file {
            OpenFile::Source { file, .. } => Some(file.clone()),
            OpenFile::Virtual(_) => None,
        })?;
        let file = file.ok_or(Errno::BADF)?;
        Ok(f(&file))
    }

    fn virtual_file(&self, id: FileId) -> Option<Arc<VirtFile>> {
        let file = self.get(id, |file| match file {
            OpenFile::Virtual(file) => Some(file.clone()),
            OpenFile::Source { .. } => None,
        });
        file.ok().flatten()
    }

    /// Any open file of an inode.
    pub(super) fn any_of(&self, inode: InodeId) -> Option<FileId> {
        let id = *self.of_inode.lock().get(&inode)?.first()?;
        Some(FileId(u64::from(id.get())))
    }

    /// Files open.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The end of the mount: closes what the kernel left open.
    pub(super) fn end(&self, inodes: &Inodes) {
        let mut ids = Vec::new();
        for slab in 0..self.table.slab_count() {
            self.table.scan_slab(slab, |id, _| ids.push(id));
        }
        for id in ids {
            if let Some(OpenFile::Source { inode, .. }) = self.remove(FileId(id.get().into())) {
                inodes.unpin(inode);
            }
        }
    }
}

const ACCESS_MODE: u32 = libc::O_ACCMODE as u32;

impl<S: Source> Fs<S> {
    /// OPEN. `flags` are open(2)'s.
    ///
    /// # Errors
    /// EROFS, ESTALE, ENOMEM, and the source's.
    pub fn open(&self, nodeid: NodeId, flags: u32) -> Result<Opened> {
        if let Some(file) = self.virt.open(nodeid, flags)? {
            let id = self.files.insert(OpenFile::Virtual(Arc::new(file)))?;
            return Ok(Opened {
                id,
                direct_io: true,
                keep_cache: false,
                passthrough: None,
            });
        }
        if flags & ACCESS_MODE != libc::O_RDONLY as u32 {
            self.writable()?;
        }
        let inode = self.inode(nodeid)?;
        let node = self.namei.node(inode)?;
        let file = self.namei.source.open(&node, flags)?;
        let (generation, device, kind) = self
            .namei
            .dcache
            .inodes
            .with(inode, |i| (i.generation(), i.device(), i.kind()))
            .ok_or(Errno::STALE)?;
        let pin = self.namei.pin(inode)?.into_pin();
        let id = self
            .files
            .insert(OpenFile::Source {
                inode: pin,
                file: Arc::new(file),
            })
            .inspect_err(|_| self.namei.dcache.inodes.unpin(pin))?;
        // What proc and sysfs hold has no size until it is read.
        let traits = self.namei.dcache.inodes.devices.get(device).traits;
        let sizeless = matches!(traits.name, "proc" | "sysfs");
        Ok(Opened {
            id,
            direct_io: sizeless,
            keep_cache: self.options.coherence == super::Coherence::Frozen,
            passthrough: (self.options.passthrough && kind == Kind::Regular && !sizeless)
                .then_some((nodeid, generation)),
        })
    }

    /// Calls `f` with the source's open file, for passthrough.
    ///
    /// # Errors
    /// EBADF.
    pub fn with_file<R>(&self, id: FileId, f: impl FnOnce(&S::File) -> R) -> Result<R> {
        self.files.with_file(id, f)
    }

    /// READ: fills `buf` from `offset`; fewer bytes only at the end of the file.
    ///
    /// # Errors
    /// EBADF, and the source's.
    pub fn read(&self, id: FileId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if let Some(file) = self.files.virtual_file(id) {
            return Ok(file.read(offset, buf, |node| self.virt_text(node)));
        }
        self.files
            .with_file(id, |f| self.namei.source.read(f, offset, buf))?
    }

    /// WRITE; bytes written.
    ///
    /// # Errors
    /// EROFS, EBADF, and the source's.
    pub fn write(&self, id: FileId, _offset: u64, data: &[u8]) -> Result<usize> {
        if let Some(file) = self.files.virtual_file(id) {
            return self.virt_write(&file, data);
        }
        Err(Errno::ROFS)
    }

    /// LSEEK with SEEK_DATA or SEEK_HOLE.
    ///
    /// # Errors
    /// ENXIO, EINVAL, EBADF, and the source's.
    pub fn lseek(&self, id: FileId, offset: u64, whence: u32) -> Result<u64> {
        self.files
            .with_file(id, |f| self.namei.source.lseek(f, offset, whence))?
    }

    /// RELEASE: the last reference to an open file is gone.
    pub fn release(&self, id: FileId) {
        if let Some(OpenFile::Source { inode, .. }) = self.files.remove(id) {
            self.namei.dcache.inodes.unpin(inode);
        }
    }

    /// Whether `nodeid` is one of the virtual files.
    pub fn is_virtual(nodeid: NodeId) -> bool {
        Virt::owns(nodeid)
    }
}
