//! The slabs of a table, found by number without a lock.
//!
//! Cells lie in chunks that double in size and never move, so that a reader
//! needs no lock against growth and growth copies nothing. Cells are never
//! taken away; a slab that gives its memory back leaves its cell for the next.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use crate::sync::RwLock;

/// Cells of the first chunk, as a power of two; each later chunk has twice as many.
const FIRST: u32 = 4;
/// Chunks that 2^29 cells, of 8 objects each, need.
const CHUNKS: usize = 26;

/// One slab and its place in the table's lists; a cache line.
#[repr(align(64))]
pub(super) struct Cell<T> {
    /// The slab.
    pub(super) objects: RwLock<slab::Slab<T>>,
    /// The shard that the slab belongs to; changes under the locks of both shards.
    pub(super) shard: AtomicU32,
    /// One more than the slab's place on its shard's list, or 0; under the shard's lock.
    pub(super) place: AtomicU32,
    /// Whether the table has noted that the slab became empty.
    pub(super) emptied: AtomicBool,
}

/// All cells.
pub(super) struct Index<T> {
    chunks: [OnceLock<Box<[Cell<T>]>>; CHUNKS],
    len: AtomicU32,
    bytes: AtomicUsize,
}

impl<T> Index<T> {
    /// An index without cells.
    pub(super) fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            len: AtomicU32::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    /// Cells.
    pub(super) fn len(&self) -> usize {
        self.len.load(Acquire) as usize
    }

    /// Bytes of the cells.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Cell `index`, if its chunk is there.
    #[inline]
    pub(super) fn cell(&self, index: u32) -> Option<&Cell<T>> {
        let number = index.checked_add(1 << FIRST)?;
        let order = number.ilog2();
        let chunk = self.chunks.get((order - FIRST) as usize)?.get()?;
        chunk.get((number - (1 << order)) as usize)
    }

    /// Adds a cell and returns its number, which is at most `limit - 1`.
    pub(super) fn grow(&self, limit: u32) -> Option<u32> {
        let index = self
            .len
            .fetch_update(Relaxed, Relaxed, |len| (len < limit).then(|| len + 1))
            .ok()?;
        let chunk = (index + (1 << FIRST)).ilog2() - FIRST;
        self.chunks[chunk as usize].get_or_init(|| {
            let cells: Box<[_]> = (0..1usize << (chunk + FIRST))
                .map(|_| Cell::new())
                .collect();
            self.bytes.fetch_add(size_of_val(&*cells), Relaxed);
            cells
        });
        Some(index)
    }
}

impl<T> Cell<T> {
    fn new() -> Self {
        Self {
            objects: RwLock::new(slab::Slab::new()),
            shard: AtomicU32::new(0),
            place: AtomicU32::new(0),
            emptied: AtomicBool::new(false),
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn every_cell_is_found_and_stays() {
        let index = Index::<u64>::new();
        let mut seen = Vec::new();
        // Fewer under Miri; both end in the middle of a chunk.
        let many = if cfg!(miri) { 100 } else { 1000 };
        for n in 0..many {
            assert!(index.len() == n as usize);
            assert_eq!(index.grow(many), Some(n));
            seen.push(std::ptr::from_ref(index.cell(n).unwrap()));
        }
        assert_eq!(index.grow(many), None);
        seen.iter().enumerate().for_each(|(n, &cell)| {
            assert_eq!(cell, std::ptr::from_ref(index.cell(n as u32).unwrap()))
        });
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), many as usize);
        assert!(index.cell(u32::MAX).is_none());
        assert!(index.cell(5000).is_none());
    }

    #[test]
    fn a_cell_is_one_cache_line() {
        assert_eq!(size_of::<Cell<[u8; 40]>>(), 64);
    }
}
