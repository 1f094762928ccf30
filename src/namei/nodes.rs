//! Descriptors of directories, a bounded number of them (floor F4).
//!
//! Contract: a cached descriptor pins its directory on the source, so there are
//! few, and the longest unused goes first (CLOCK, second chance). Keyed by
//! (nodeid, generation), which never names a second object (I5).

use std::collections::HashMap;

use parking_lot::Mutex;

type Key = (u64, u32);

/// A bounded map from directory to descriptor.
pub struct NodeLru<N> {
    shards: [Mutex<Shard<N>>; SHARDS],
    capacity: usize,
}

const SHARDS: usize = 8;

struct Shard<N> {
    map: HashMap<Key, usize>,
    slots: Vec<Slot<N>>,
    hand: usize,
}

struct Slot<N> {
    key: Key,
    node: N,
    referenced: bool,
}

impl<N: Clone> NodeLru<N> {
    /// For at most `capacity` descriptors, at least one for each shard.
    pub fn new(capacity: usize) -> Self {
        let shard = || {
            Mutex::new(Shard {
                map: HashMap::new(),
                slots: Vec::new(),
                hand: 0,
            })
        };
        Self {
            shards: std::array::from_fn(|_| shard()),
            capacity: (capacity / SHARDS).max(1),
        }
    }

    fn shard(&self, key: Key) -> &Mutex<Shard<N>> {
        let mixed = (key.0 ^ u64::from(key.1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 32) as usize % SHARDS]
    }

    /// The descriptor, if cached.
    pub fn get(&self, key: Key) -> Option<N> {
        let mut shard = self.shard(key).lock();
        let at = *shard.map.get(&key)?;
        let slot = &mut shard.slots[at];
        slot.referenced = true;
        Some(slot.node.clone())
    }

    /// Caches a descriptor; another one may have to go.
    pub fn insert(&self, key: Key, node: N) {
        let mut guard = self.shard(key).lock();
        let shard = &mut *guard;
        if let Some(&at) = shard.map.get(&key) {
            shard.slots[at].node = node;
            return;
        }
        let slot = Slot {
            key,
            node,
            referenced: false,
        };
        if shard.slots.len() < self.capacity {
            shard.map.insert(key, shard.slots.len());
            shard.slots.push(slot);
            return;
        }
        while std::mem::take(&mut shard.slots[shard.hand].referenced) {
            shard.hand = (shard.hand + 1) % shard.slots.len();
        }
        let at = shard.hand;
        shard.hand = (at + 1) % shard.slots.len();
        shard.map.insert(key, at);
        let old = std::mem::replace(&mut shard.slots[at], slot);
        shard.map.remove(&old.key);
        drop(guard);
        // Closing the descriptor may block; not under the lock.
        drop(old);
    }

    /// Drops one descriptor.
    pub fn remove(&self, key: Key) {
        let mut guard = self.shard(key).lock();
        let shard = &mut *guard;
        let Some(at) = shard.map.remove(&key) else {
            return;
        };
        let old = shard.slots.swap_remove(at);
        if let Some(moved) = shard.slots.get(at) {
            shard.map.insert(moved.key, at);
        }
        shard.hand = 0;
        drop(guard);
        drop(old);
    }

    /// Drops all descriptors.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut guard = shard.lock();
            guard.map.clear();
            guard.hand = 0;
            let slots = std::mem::take(&mut guard.slots);
            drop(guard);
            drop(slots);
        }
    }

    /// Descriptors held now, and at most.
    pub fn counts(&self) -> (usize, usize) {
        let now = self.shards.iter().map(|s| s.lock().slots.len()).sum();
        (now, self.capacity * SHARDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_the_capacity_and_the_used_ones_stay() {
        let lru = NodeLru::new(16);
        for n in 0..1000u64 {
            lru.insert((n, 0), n);
            assert!(lru.get((n, 0)).is_some());
            assert_eq!(lru.get((0, 0)).is_some(), lru.get((0, 0)) == Some(0));
            assert!(lru.counts().0 <= 16);
        }
        lru.remove((999, 0));
        assert_eq!(lru.get((999, 0)), None);
        for n in 1000..1100 {
            lru.insert((n, 0), n);
            assert_eq!(lru.get((n, 0)), Some(n));
        }
        lru.clear();
        assert_eq!(lru.counts().0, 0);
    }
}
