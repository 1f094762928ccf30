//! The slabs of one cache.
//!
//! What it is for: finds a free object for an allocation and the slab of an
//! object that comes back. Its contract: it lives under its cache's lock; slabs
//! that are no longer wanted are returned, so that their objects' destructors
//! run when the lock is free. It does not know magazines or threads.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::layout::Shape;
use super::lists::{List, Lists};
use super::owner::Owner;
use super::page::{RawSlab, Taken};
use super::poison::{Damage, Misplaced};
use super::report::Scene;

/// Slabs, by index and by address.
pub(super) struct Store<T> {
    slabs: slab::Slab<RawSlab<T>>,
    by_addr: BTreeMap<usize, usize>,
    lists: Lists,
    shape: Shape,
    taken: usize,
    /// The slab of the last object that came back; the next one is often of the same.
    recent: Option<(usize, usize)>,
}

impl<T> Store<T> {
    /// A store without slabs.
    pub(super) fn new(shape: Shape) -> Self {
        Self {
            slabs: slab::Slab::new(),
            by_addr: BTreeMap::new(),
            lists: Lists::default(),
            shape,
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
    pub(super) fn take(&mut self) -> Option<Taken<T>> {
        let index = self
            .lists
            .last(List::Partial)
            .or_else(|| self.lists.last(List::Empty))?;
        let taken = self.slabs[index].take()?;
        self.list(index);
        self.taken += 1;
        Some(taken)
    }

    /// Puts an object back into its slab; refuses one that is not out of a slab of this store.
    pub(super) fn put(
        &mut self,
        taken: Taken<T>,
        owner: Option<Arc<Owner>>,
    ) -> Result<(), (Taken<T>, Misplaced)> {
        let Some(index) = self.slab_of(taken.addr()) else {
            return Err((taken, Misplaced::NotAnObject));
        };
        self.slabs[index].put(taken, owner)?;
        self.list(index);
        self.taken -= 1;
        Ok(())
    }

    /// What is broken in the object at `addr`, which is out of a slab of this
    /// store, in use or about to be.
    pub(super) fn damage(&mut self, addr: usize, used: bool) -> Result<Vec<Damage>, Misplaced> {
        let slab = self.slab_of(addr).ok_or(Misplaced::NotAnObject)?;
        let slab = &self.slabs[slab];
        Ok(slab.damage(slab.index_out(addr)?, used))
    }

    /// Marks the object at `addr`, which is out, as in use by `owner`.
    pub(super) fn activate(&mut self, addr: usize, owner: Option<Arc<Owner>>) {
        let Some(slab) = self.slab_of(addr) else {
            return;
        };
        let slab = &mut self.slabs[slab];
        if let Ok(index) = slab.index_out(addr) {
            slab.activate(index, owner);
        }
    }

    /// What is known of the object at `addr`; `None` if it is none of this store.
    pub(super) fn scene(&mut self, addr: usize) -> Option<Scene> {
        let slab = self.slab_of(addr)?;
        let slab = &self.slabs[slab];
        let index = self.shape.index_of(addr - slab.addr())?;
        Some(Scene {
            slab: slab.addr(),
            used: slab.taken(),
            index,
            owners: slab.owners(index),
        })
    }

    /// All slabs.
    pub(super) fn each(&self) -> impl Iterator<Item = &RawSlab<T>> {
        self.slabs.iter().map(|(_, slab)| slab)
    }

    /// Objects that are out of partial slabs.
    pub(super) fn taken_of_partial(&self) -> usize {
        self.taken - self.lists.len(List::Full) * self.shape.count
    }

    /// Whether lists and counts agree with the slabs.
    pub(super) fn is_consistent(&self) -> bool {
        let listed = |(index, slab): (usize, &RawSlab<T>)| {
            self.lists.list_of(index) == Some(List::of(slab.taken(), self.shape.count))
                && self.by_addr.get(&slab.addr()) == Some(&index)
        };
        let lists = [List::Empty, List::Partial, List::Full].map(|list| self.lists.len(list));
        self.slabs.iter().all(listed)
            && lists.iter().sum::<usize>() == self.slabs.len()
            && self.by_addr.len() == self.slabs.len()
            && self.each().map(RawSlab::taken).sum::<usize>() == self.taken
    }

    fn list(&mut self, index: usize) {
        self.lists
            .put(index, List::of(self.slabs[index].taken(), self.shape.count));
    }

    fn slab_of(&mut self, addr: usize) -> Option<usize> {
        let bytes = self.shape.slab_bytes();
        if let Some((_, index)) = self
            .recent
            .filter(|(start, _)| addr.wrapping_sub(*start) < bytes)
        {
            return Some(index);
        }
        let (&start, &index) = self.by_addr.range(..=addr).next_back()?;
        if addr - start >= bytes {
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
        self.list(index);
    }

    /// Removes empty slabs until at most `keep` are left.
    pub(super) fn trim(&mut self, keep: usize) -> Vec<RawSlab<T>> {
        let mut gone = Vec::new();
        while self.lists.len(List::Empty) > keep {
            let Some(index) = self.lists.last(List::Empty) else {
                break;
            };
            self.lists.remove(index);
            self.recent = None;
            let slab = self.slabs.remove(index);
            self.by_addr.remove(&slab.addr());
            gone.push(slab);
        }
        gone
    }
}
