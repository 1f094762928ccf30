//! Which way the data of open files goes (floor F6).

use std::collections::HashMap;
use std::io;

use fuser::BackingId;
use tracing::{debug, info};

use crate::fs::{FileId, Opened};
use crate::sync::Arc;

/// How the data of an open inode goes; one way for all who have it open, because the
/// kernel refuses to mix page cache and passthrough.
enum Way {
    /// Past us, to this file.
    Past(Arc<BackingId>),
    /// Through us.
    Through,
}

/// The ways of the inodes that are open, with the number of opens.
#[derive(Default)]
pub(super) struct Backing {
    of_inode: HashMap<(u64, u32), (Way, usize)>,
    of_file: HashMap<u64, (u64, u32)>,
    /// The kernel or our privileges do not allow passthrough.
    pub(super) refused: bool,
}

impl Backing {
    /// One more open of an inode; its backing file, if data goes past us.
    pub(super) fn open(
        &mut self,
        opened: &Opened,
        key: (u64, u32),
        open_backing: impl FnOnce() -> io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
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
