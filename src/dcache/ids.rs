//! Hash tables that hold nothing but ids (floor F3).
//!
//! Purpose: from a key to the object that has it, at five bytes a slot: the key is
//! in the object, so the table need not repeat it.
//!
//! Contract. A table is split into shards, each behind its own lock. What the caller
//! passes to compare ids with a key, or to hash them anew, reads the objects and so
//! runs with the shard locked: it takes locks of later rank only. An id is in the
//! table only while its object lives and has the key it was inserted under.
//!
//! It does not know what the ids are of.

use hashbrown::HashTable;
use parking_lot::{RwLock, RwLockWriteGuard};

use crate::slab::ObjId;

/// Shards: enough that growing one stalls nobody for long.
const SHARDS: usize = 256;

/// Where a hash says its shard: hashbrown uses the low bits and the top seven.
const SHARD_SHIFT: u32 = 41;
const SHARD_BITS: u32 = 16;

/// The shard of a hash. The shares of the shards go from one to two, evenly on a scale of
/// magnitudes: as a shard doubles when it is full, one after the other does so, and the
/// table as a whole grows with what it holds.
fn shard_of(hash: u64) -> usize {
    let place = (hash >> SHARD_SHIFT & ((1 << SHARD_BITS) - 1)) as f32;
    let share = (1.0 + place / (1 << SHARD_BITS) as f32).log2();
    (share * SHARDS as f32) as usize % SHARDS
}

/// One part of the table, apart from the next one's cache line.
#[derive(Default)]
#[repr(align(64))]
struct Shard(RwLock<HashTable<ObjId>>);

/// A table from keys to ids.
pub(super) struct IdHash {
    shards: Box<[Shard]>,
}

impl IdHash {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
        }
    }

    fn shard(&self, hash: u64) -> &RwLock<HashTable<ObjId>> {
        &self.shards[shard_of(hash)].0
    }

    /// Calls `f` with the id of hash `hash` for which `is_it` answers true, while its shard
    /// is locked for reading.
    pub(super) fn with<R>(
        &self,
        hash: u64,
        mut is_it: impl FnMut(ObjId) -> bool,
        f: impl FnOnce(ObjId) -> R,
    ) -> Option<R> {
        let shard = self.shard(hash).read();
        shard.find(hash, |&id| is_it(id)).map(|&id| f(id))
    }

    /// Locks the shard of `hash`.
    pub(super) fn lock(&self, hash: u64) -> IdShard<'_> {
        IdShard {
            table: self.shard(hash).write(),
            hash,
        }
    }

    /// Ids in the table.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.0.read().len()).sum()
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        let tables = self.shards.iter().map(|s| s.0.read().allocation_size());
        tables.sum::<usize>() + self.shards.len() * size_of::<Shard>()
    }

    /// Removes all.
    pub(super) fn clear(&self) {
        self.shards.iter().for_each(|s| s.0.write().clear());
    }

    /// Gives memory back that as many ids do not need; `hash_of` as in [`IdShard::insert`].
    pub(super) fn shrink(&self, hash_of: impl Fn(ObjId) -> u64) {
        for shard in &self.shards {
            let mut table = shard.0.write();
            // Room for twice as many stays: a table that breathes is not moved each time.
            let room = 2 * table.len();
            if table.capacity() > 2 * room {
                table.shrink_to(room, |&id| hash_of(id));
            }
        }
    }
}

/// A locked shard, for one hash in it.
pub(super) struct IdShard<'a> {
    table: RwLockWriteGuard<'a, HashTable<ObjId>>,
    hash: u64,
}

impl IdShard<'_> {
    /// The id for which `is_it` answers true.
    pub(super) fn find(&self, mut is_it: impl FnMut(ObjId) -> bool) -> Option<ObjId> {
        self.table.find(self.hash, |&id| is_it(id)).copied()
    }

    /// Adds an id whose key is not there yet; `hash_of` says what another id's hash is,
    /// should the table have to grow.
    pub(super) fn insert(&mut self, id: ObjId, hash_of: impl Fn(ObjId) -> u64) {
        self.table
            .insert_unique(self.hash, id, |&other| hash_of(other));
    }

    /// Puts `new` where `old` is.
    pub(super) fn replace(&mut self, old: ObjId, new: ObjId) {
        if let Some(place) = self.table.find_mut(self.hash, |&id| id == old) {
            *place = new;
        }
    }

    /// Removes an id; whether it was there.
    pub(super) fn remove(&mut self, id: ObjId) -> bool {
        match self.table.find_entry(self.hash, |&other| other == id) {
            Ok(entry) => {
                entry.remove();
                true
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes of which many share a shard and a bucket.
    fn hash(n: u32) -> u64 {
        u64::from(n % 3) << SHARD_SHIFT | u64::from(n % 7)
    }

    #[test]
    fn the_table_grows_with_what_it_holds() {
        let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        let ids = IdHash::new();
        for n in 1..300_000 {
            let id = ObjId::new(n).expect("not zero");
            ids.lock(hash(n.into()))
                .insert(id, |id| hash(id.get().into()));
            if n >= 20_000 && n % 1000 == 0 {
                let bytes = ids.bytes() as f64 / f64::from(n);
                assert!(
                    (7.0..10.5).contains(&bytes),
                    "{bytes} bytes for each of {n}"
                );
            }
        }
    }

    #[test]
    fn ids_are_found_by_what_they_are_and_not_by_their_hash() {
        let ids = IdHash::new();
        let id = |n| ObjId::new(n).expect("not zero");
        let hash_of = |id: ObjId| hash(id.get());
        for n in 1..2000 {
            let mut shard = ids.lock(hash(n));
            assert_eq!(shard.find(|found| found == id(n)), None);
            shard.insert(id(n), hash_of);
        }
        assert_eq!(ids.len(), 1999);
        for n in (1..2000).step_by(2) {
            assert!(ids.lock(hash(n)).remove(id(n)));
            assert!(!ids.lock(hash(n)).remove(id(n)));
        }
        ids.lock(hash(2)).replace(id(2), id(5000));
        let grown = ids.bytes();
        for n in (10..2000).step_by(2) {
            assert!(ids.lock(hash(n)).remove(id(n)));
        }
        ids.shrink(|id| hash(if id.get() == 5000 { 2 } else { id.get() }));
        assert!(ids.bytes() < grown);
        let found = |n| ids.with(hash(n), |found| found == id(n), |id| id.get());
        assert_eq!(
            [2, 3, 4, 6, 8, 10].map(found),
            [None, None, Some(4), Some(6), Some(8), None]
        );
        assert_eq!(
            ids.with(hash(2), |found| found == id(5000), ObjId::get),
            Some(5000)
        );
        ids.clear();
        assert_eq!(ids.len(), 0);
    }
}
