//! What is agreed with the kernel when a mount begins (floor F6).

use std::io;

use fuser::{Filesystem, InitFlags, KernelConfig, Request};
use tracing::{debug, info};

use super::device::MAX_DATA;
use crate::fs::{Coherence, Options, Readdirplus};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The handshake, all that fuser's session serves.
pub(super) struct Handshake {
    coherence: Coherence,
    readdirplus: Readdirplus,
    xattr: bool,
    passthrough: bool,
    granted: Arc<AtomicBool>,
}

impl Handshake {
    /// For a mount in `coherence` mode. `granted` says afterwards whether the kernel can
    /// pass data through and was asked to.
    pub(super) fn new(coherence: Coherence, options: &Options, granted: Arc<AtomicBool>) -> Self {
        Self {
            coherence,
            readdirplus: options.readdirplus,
            xattr: options.xattr,
            passthrough: options.passthrough,
            granted,
        }
    }
}

impl Filesystem for Handshake {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without it the kernel serialises lookups below one directory.
        let mut flags = InitFlags::FUSE_PARALLEL_DIROPS | InitFlags::FUSE_AUTO_INVAL_DATA;
        if self.coherence != Coherence::Strict {
            flags |= InitFlags::FUSE_NO_OPENDIR_SUPPORT | InitFlags::FUSE_CACHE_SYMLINKS;
        }
        flags |= match self.readdirplus {
            Readdirplus::Auto => InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO,
            Readdirplus::Always => InitFlags::FUSE_DO_READDIRPLUS,
            Readdirplus::Never => InitFlags::empty(),
        };
        if self.passthrough && config.capabilities().contains(InitFlags::FUSE_PASSTHROUGH) {
            flags |= InitFlags::FUSE_PASSTHROUGH;
            if config.set_max_stack_depth(1).is_err() {
                debug!("no stacking depth for passthrough");
            }
            self.granted.store(true, Ordering::Relaxed);
        }
        // The umask is the source's to apply, after its default ACL; and it decides
        // what a write takes from set-user-id and set-group-id.
        flags |= InitFlags::FUSE_DONT_MASK | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        // Locks are held on the source, where others see them.
        flags |= InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
        if self.xattr {
            flags |= InitFlags::FUSE_POSIX_ACL;
        }
        // Requests as large as there is room for.
        flags |= InitFlags::FUSE_MAX_PAGES;
        if config.set_max_write(MAX_DATA as u32).is_err() {
            debug!("no large writes");
        }
        if let Err(missing) = config.add_capabilities(flags) {
            info!(?missing, "this kernel lacks FUSE features");
            // Those that are there are asked for all the same.
            let _ = config.add_capabilities(flags - missing);
        }
        let _ = config.set_max_background(64);
        Ok(())
    }
}
