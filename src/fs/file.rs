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
use crate::source::{Attr, Kind, LockKind, Source};
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
    /// The kernel must not believe the attributes that it holds: from now on data may
    /// change past us.
    pub doubt_attr: bool,
    /// Which inode, unless it is virtual: all who have it open must reach its data the
    /// same way.
    pub inode: Option<(NodeId, u32)>,
    /// Data may go past the daemon, where that is possible.
    pub passthrough: bool,
}

enum OpenFile<F> {
    Source {
        inode: InodeId,
        file: Arc<F>,
        access: Access,
    },
    Virtual(Arc<VirtFile>),
}

/// What an open file may be used for, as far as the attributes are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Reading.
    Read,
    /// Writing, so that data may change past us while it is open.
    Write,
    /// Writing and mapping, so that data may change past us even later: a mapping
    /// outlives the descriptor.
    Map,
}

impl Access {
    fn of(flags: u32) -> Self {
        match flags as i32 & libc::O_ACCMODE {
            libc::O_RDONLY => Self::Read,
            libc::O_WRONLY => Self::Write,
            _ => Self::Map,
        }
    }
}

/// The open files of one inode.
#[derive(Default)]
struct Opens {
    ids: Vec<ObjId>,
    writers: usize,
    /// One of the writers, open or not, may have left a mapping.
    mapped: bool,
}

/// All open files of a mount.
pub(super) struct Files<F> {
    table: ObjTable<OpenFile<F>>,
    /// Which are open of each inode.
    of_inode: Mutex<HashMap<InodeId, Opens>>,
}

impl<F: Send + Sync + 'static> Files<F> {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            table: ObjTable::create(registry, "filp", SlabFlags::empty()),
            of_inode: Mutex::default(),
        }
    }

    fn insert(&self, file: OpenFile<F>) -> Result<FileId> {
        let source = match &file {
            OpenFile::Source { inode, access, .. } => Some((*inode, *access)),
            OpenFile::Virtual(_) => None,
        };
        let id = self.table.insert(file).map_err(|_| Errno::NOMEM)?;
        if let Some((inode, access)) = source {
            let mut of_inode = self.of_inode.lock();
            let opens = of_inode.entry(inode).or_default();
            opens.ids.push(id);
            opens.writers += usize::from(access != Access::Read);
            opens.mapped |= access == Access::Map;
        }
        Ok(FileId(u64::from(id.get())))
    }

    /// Takes a file out; with it, whether its inode's data can be relied on again.
    fn remove(&self, id: FileId) -> Option<(OpenFile<F>, bool)> {
        let id = u32::try_from(id.0).ok().and_then(ObjId::new)?;
        let file = self.table.remove(id)?;
        let mut settled = false;
        if let OpenFile::Source { inode, access, .. } = &file {
            let mut of_inode = self.of_inode.lock();
            if let Some(opens) = of_inode.get_mut(inode) {
                opens.ids.retain(|&other| other != id);
                if *access != Access::Read {
                    opens.writers -= 1;
                    settled = opens.writers == 0 && !opens.mapped;
                }
                if opens.ids.is_empty() {
                    of_inode.remove(inode);
                }
            }
        }
        Some((file, settled))
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
        let file = self.file(id)?;
        Ok(f(&file))
    }

    /// An open file of the source.
    ///
    /// # Errors
    /// EBADF.
    pub(super) fn file(&self, id: FileId) -> Result<Arc<F>> {
        let file = self.get(id, |file| match file {
            OpenFile::Source { file, .. } => Some(file.clone()),
            OpenFile::Virtual(_) => None,
        })?;
        file.ok_or(Errno::BADF)
    }

    pub(super) fn virtual_file(&self, id: FileId) -> Option<Arc<VirtFile>> {
        let file = self.get(id, |file| match file {
            OpenFile::Virtual(file) => Some(file.clone()),
            OpenFile::Source { .. } => None,
        });
        file.ok().flatten()
    }

    /// Any open file of an inode.
    pub(super) fn any_of(&self, inode: InodeId) -> Option<FileId> {
        let id = *self.of_inode.lock().get(&inode)?.ids.first()?;
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
            let removed = self.remove(FileId(id.get().into()));
            if let Some((OpenFile::Source { inode, .. }, _)) = removed {
                inodes.unpin(inode);
            }
        }
    }
}

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
                doubt_attr: false,
                inode: None,
                passthrough: false,
            });
        }
        if Access::of(flags) != Access::Read || flags & libc::O_TRUNC as u32 != 0 {
            self.writable()?;
        }
        let pinned = self.inode(nodeid)?;
        let inode = pinned.id();
        let file = self.namei.with_descriptors(|| {
            self.with_handle(inode, None, |of| self.namei.source.open(of, flags))
        })?;
        let attr = self.namei.source.stat_file(&file)?;
        self.opened(inode, file, &attr, flags)
    }

    /// Takes in a file that was opened.
    pub(super) fn opened(
        &self,
        inode: InodeId,
        file: S::File,
        attr: &Attr,
        flags: u32,
    ) -> Result<Opened> {
        let inodes = &self.namei.dcache.inodes;
        let device = inodes.device(inode).ok_or(Errno::STALE)?;
        let (nodeid, generation) = inodes
            .with(inode, |i| (i.nodeid(), i.generation()))
            .ok_or(Errno::STALE)?;
        // What proc and sysfs hold has no size until it is read.
        let sizeless = matches!(inodes.devices.get(device).traits.name, "proc" | "sysfs");
        let access = Access::of(flags);
        let pin = self.namei.pin(inode)?.into_pin();
        let id = self
            .files
            .insert(OpenFile::Source {
                inode: pin,
                file: Arc::new(file),
                access,
            })
            .inspect_err(|_| inodes.unpin(pin))?;
        let doubt = access != Access::Read
            && inodes
                .with_mut(inode, |i| i.set_volatile(true))
                .unwrap_or(false);
        Ok(Opened {
            id,
            direct_io: sizeless,
            keep_cache: self.coherence() == super::Coherence::Frozen,
            doubt_attr: doubt,
            inode: (!sizeless).then_some((nodeid, generation)),
            // Past the daemon nobody would notice that a write takes set-user-id away.
            passthrough: self.options.passthrough
                && attr.kind == Kind::Regular
                && !sizeless
                && attr.perm & 0o6000 == 0,
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
        if let Some((OpenFile::Source { inode, file, .. }, settled)) = self.files.remove(id) {
            if self.locks.is_holder(id) {
                // The kernel may hold the description for the data of other opens.
                let _ = self.namei.source.flock(&file, LockKind::Unlock);
            }
            drop(file);
            self.locks.released(id);
            let inodes = &self.namei.dcache.inodes;
            if settled {
                inodes.with_mut(inode, |i| i.set_volatile(false));
            }
            inodes.unpin(inode);
        }
    }

    /// Whether `nodeid` is one of the virtual files.
    pub fn is_virtual(nodeid: NodeId) -> bool {
        Virt::owns(nodeid)
    }
}
