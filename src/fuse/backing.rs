//! Which way the data of open files goes (floor F6).

use std::collections::HashMap;
use std::io;

use tracing::{debug, info};

use super::device::Device;
use crate::fs::{FileId, Opened};
use crate::sync::Arc;

/// A file of the source that the kernel reads and writes by itself (FUSE_PASSTHROUGH);
/// given back when dropped.
pub(super) struct BackingFile {
    device: Device,
    id: u32,
}

impl BackingFile {
    /// Registers a file with the kernel.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN, ELOOP if its filesystem is stacked too high.
    pub(super) fn open(device: &Device, file: impl std::os::fd::AsFd) -> io::Result<Self> {
        Ok(Self {
            id: fuser::BackingId::create_raw(device, file)?,
            device: device.clone(),
        })
    }

    /// The kernel's number for it.
    pub(super) fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for BackingFile {
    fn drop(&mut self) {
        if let Err(e) = crate::ioctl::fuse_backing_close(&self.device, self.id) {
            debug!(error = %e, "a backing file is not given back");
        }
    }
}

/// How the data of an open inode goes; one way for all who have it open, because the
/// kernel refuses to mix page cache and passthrough.
enum Way {
    /// Past us, to this file.
    Past(Arc<BackingFile>),
    /// Through us.
    Through,
}

/// The ways of the inodes that are open, with the number of opens.
#[derive(Default)]
pub(super) struct Backing {
    of_inode: HashMap<(u64, u32), (Way, usize)>,
    of_file: HashMap<u64, (u64, u32)>,
    /// The kernel or our privileges do not allow passthrough.
    refused: bool,
}

impl Backing {
    /// With none open; `allowed` if the kernel passes data through.
    pub(super) fn new(allowed: bool) -> Self {
        Self {
            refused: !allowed,
            ..Self::default()
        }
    }

    /// One more open of an inode; its backing file, if data goes past us.
    pub(super) fn open(
        &mut self,
        opened: &Opened,
        key: (u64, u32),
        open_backing: impl FnOnce() -> io::Result<BackingFile>,
    ) -> Option<Arc<BackingFile>> {
        self.of_file.insert(opened.id.0, key);
        if let Some((way, opens)) = self.of_inode.get_mut(&key) {
            *opens += 1;
            return match way {
                Way::Past(id) => Some(id.clone()),
                Way::Through => None,
            };
        }
        let way = if self.refused || !opened.passthrough {
            Way::Through
        } else {
            match open_backing() {
                Ok(id) => Way::Past(Arc::new(id)),
                Err(e) => {
                    if e.raw_os_error() == Some(libc::EPERM) {
                        info!(
                            "no passthrough: it needs CAP_SYS_ADMIN; data goes through the daemon"
                        );
                        self.refused = true;
                    }
                    debug!(error = %e, "no passthrough");
                    Way::Through
                }
            }
        };
        let id = match &way {
            Way::Past(id) => Some(id.clone()),
            Way::Through => None,
        };
        self.of_inode.insert(key, (way, 1));
        id
    }

    /// A file was closed for good.
    pub(super) fn release(&mut self, id: FileId) {
        let Some(key) = self.of_file.remove(&id.0) else {
            return;
        };
        if let Some((_, opens)) = self.of_inode.get_mut(&key) {
            *opens -= 1;
            if *opens == 0 {
                self.of_inode.remove(&key);
            }
        }
    }
}
