//! The slabs of one cache.
//!
//! What it is for: finds a free object for an allocation and the slab of an
//! object that comes back. Its contract: it lives under its cache's lock; slabs
//! that are no longer wanted are returned, so that their objects' destructors
//! run when the lock is free. It does not know magazines or threads.

use std::collections::BTreeMap;

use super::lists::{List, Lists};
use super::page::{Handle, RawSlab};

/// Empty slabs that a cache keeps however few slabs it has.
pub(super) const MIN_EMPTY: usize = 8;
/// A larger cache keeps empty slabs up to this fraction of its slabs.
pub(super) const EMPTY_FRACTION: usize = 8;

/// The empty slabs that a cache of `slabs` slabs keeps.
pub(super) fn kept_empty(slabs: usize) -> usize {
    MIN_EMPTY.max(slabs / EMPTY_FRACTION)
}

/// Slabs, by index and by address.
pub(super) struct Store<T> {
    slabs: slab::Slab<RawSlab<T>>,
    by_addr: BTreeMap<usize, usize>,
    lists: Lists,
    /// Objects in one slab.
    per_slab: usize,
    /// Bytes of one slab.
    slab_bytes: usize,
    taken: usize,
    /// The slab of the last object that came back; the next one is often of the same.
    recent: Option<(usize, usize)>,
}

impl<T> Store<T> {
    /// A store without slabs.
    pub(super) fn new(per_slab: usize, slab_bytes: usize) -> Self {
        Self {
            slabs: slab::Slab::new(),
            by_addr: BTreeMap::new(),
            lists: Lists::default(),
            per_slab,
            slab_bytes,
            taken: 0,
            recent: None,
        }
    }

    /// Slabs.
    pub(super) fn slabs(&self) -> usize {
        self.slabs.len()
    }

    /// Slabs on a list.
    pub(super) fn on(&self, list: List) -> usize {
        self.lists.len(list)
    }

    /// Objects that are not in a slab.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Takes an object out of a partial slab, or of an empty one; `None` if all slabs are full.
    pub(super) fn take(&mut self) -> Option<Handle<T>> {
        let index = self
            .lists
            .last(List::Partial)
            .or_else(|| self.lists.last(List::Empty))?;
        let handle = self.slabs[index].take()?;
        self.lists
            .put(index, List::of(self.slabs[index].taken(), self.per_slab));
        self.taken += 1;
        Some(handle)
    }

    /// Puts an object back into its slab; refuses one that is not out of a slab of this store.
    pub(super) fn put(&mut self, handle: Handle<T>) -> Result<(), Handle<T>> {
        let Some(index) = self.slab_of(handle.addr()) else {
            return Err(handle);
        };
        self.slabs[index].put(handle)?;
        self.lists
            .put(index, List::of(self.slabs[index].taken(), self.per_slab));
        self.taken -= 1;
        Ok(())
    }

    fn slab_of(&mut self, addr: usize) -> Option<usize> {
        if let Some((start, index)) = self.recent
            && addr.wrapping_sub(start) < self.slab_bytes
        {
            return Some(index);
        }
        let (&start, &index) = self.by_addr.range(..=addr).next_back()?;
        if addr - start >= self.slab_bytes {
            return None;
        }
        self.recent = Some((start, index));
        Some(index)
    }

    /// Adds a new slab.
    pub(super) fn add(&mut self, slab: RawSlab<T>) {
        let addr = slab.addr();
        let index = self.slabs.insert(slab);
        self.by_addr.insert(addr, index);
        self.lists.put(index, List::Empty);
    }

    /// Removes empty slabs until at most `keep` are left.
    pub(super) fn trim(&mut self, keep: usize) -> Vec<RawSlab<T>> {
        let mut gone = Vec::new();
        while self.lists.len(List::Empty) > keep
            && let Some(index) = self.lists.last(List::Empty)
        {
            self.lists.remove(index);
            self.recent = None;
            let slab = self.slabs.remove(index);
            self.by_addr.remove(&slab.addr());
            gone.push(slab);
        }
        gone
    }
}
