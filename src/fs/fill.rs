//! Directory read-ahead: the pool (floor F5).
//!
//! Purpose: the threads that do what [`super::readahead`] has queued: list a directory,
//! look a name up, both as a request would, so that what they cache is as good.
//!
//! Contract: a thread of the pool pins what it works on and holds no lock at the source.
//! What fails is left to whoever asks for it.

use std::time::Instant;

use super::Fs;
use super::readahead::{Filling, Place, Read, Unit};
use crate::dcache::NodeId;
use crate::error::{Errno, Result};
use crate::name::QStr;
use crate::namei::Found;
use crate::source::{Kind, Source};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// Units that a thread does between two looks at the budget.
const CHECK: u32 = 16;

impl<S: Source> Fs<S> {
    /// Reads directories ahead until the mount ends. To be run by a thread of its own; the
    /// others of the pool begin when there is something to do.
    pub fn read_ahead(&self) {
        let threads = self.readahead.threads();
        if threads == 0 || !self.readahead.wait() {
            return;
        }
        std::thread::scope(|pool| {
            for n in 1..threads {
                let named = std::thread::Builder::new().name(format!("readahead-{n}"));
                if let Err(e) = named.spawn_scoped(pool, || self.fill()) {
                    tracing::warn!(error = %e, threads = n, "fewer threads read ahead");
                    break;
                }
            }
            self.fill();
        });
    }

    /// The mount ends: [`Fs::read_ahead`] returns, when the source has answered.
    pub fn stop_reading_ahead(&self) {
        self.readahead.close();
    }

    /// One thread of the pool.
    fn fill(&self) {
        let counters = &self.readahead.counters;
        counters.threads.fetch_add(1, Ordering::Relaxed);
        let mut units = 0_u32;
        while let Some(unit) = self.readahead.next() {
            match unit {
                Unit::List(nodeid, place) => {
                    let read = self.fill_listing(nodeid).ok().flatten();
                    if read.is_some() {
                        counters.filled.fetch_add(1, Ordering::Relaxed);
                    }
                    self.readahead.listed(nodeid, &place, read);
                }
                Unit::Name(filling, place, name) => self.fill_name(&filling, &place, &name),
            }
            units = units.wrapping_add(1);
            if units.is_multiple_of(CHECK) && self.namei.over_budget() {
                self.readahead.stop();
            }
        }
        counters.threads.fetch_sub(1, Ordering::Relaxed);
    }

    /// Lists a directory, unless its listing is cached and to be believed.
    fn fill_listing(&self, nodeid: NodeId) -> Result<Option<Read>> {
        let pinned = self.inode(nodeid)?;
        let id = pinned.id();
        let dir = self.namei.dir(id)?;
        if dir.listing().is_some()
            && !self
                .namei
                .names_left(&dir, self.namei.clock.now())
                .is_zero()
        {
            return Ok(None);
        }
        let inodes = &self.namei.dcache.inodes;
        let traits = inodes.devices.get(inodes.device(id).unwrap_or(0)).traits;
        let began = Instant::now();
        let listing = self.read_listing(id, &dir, traits.stable_cookies)?;
        self.readahead.is_slow(began.elapsed(), traits.remote);
        Ok(Some(Read { id, dir, listing }))
    }

    fn fill_name(&self, filling: &Arc<Filling>, place: &Place, name: &[u8]) {
        let counters = &self.readahead.counters;
        counters.names.fetch_add(1, Ordering::Relaxed);
        if let Ok(Some(nodeid)) = self.fill_one(filling, name) {
            self.readahead.found(nodeid, place);
        }
        if self.readahead.looked_up(filling, name)
            && let Some(pinned) = self.filled_dir(filling)
        {
            let dcache = &self.namei.dcache;
            dcache.compact(pinned.id(), &filling.dir, &filling.listing);
        }
    }

    /// Looks a name up; its nodeid if it is a directory.
    fn fill_one(&self, filling: &Filling, name: &[u8]) -> Result<Option<NodeId>> {
        let pinned = self.filled_dir(filling).ok_or(Errno::STALE)?;
        match self.namei.lookup_one(pinned.id(), QStr::new(name)?)? {
            Found::Positive { inode, attr, .. } if attr.kind == Kind::Directory => {
                let inodes = &self.namei.dcache.inodes;
                Ok(inodes.with(inode.id(), |i| i.nodeid()))
            }
            _ => Ok(None),
        }
    }

    /// The directory, pinned, if it is still the one that was listed.
    fn filled_dir(&self, filling: &Filling) -> Option<crate::dcache::InodeRef<'_>> {
        self.namei.dcache.inodes.get_dir(filling.id, &filling.dir)
    }
}
