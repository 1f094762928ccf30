//! Shared objects addressed by a 32-bit id.
//!
//! What it is for: objects that many refer to (dentries, inodes) without
//! counting references in every holder: a holder keeps an [`ObjId`].
//!
//! Its contract. A slab is a `RwLock<slab::Slab<T>>` of fixed capacity; slabs
//! are found through chunks that never move, so a read costs two dependent
//! loads and the slab's lock. A guard holds its slab's lock: the other objects
//! of the slab stay readable beside a [`ReadGuard`], nothing else does beside a
//! [`WriteGuard`]. A thread may nest reads. It must not ask for a
//! `WriteGuard`, or remove, while it has any guard of the same table.
//! [`ObjTable::insert`] waits for no guard.
//!
//! Slabs that are not full are each on the list of one shard; a thread inserts
//! through its own shard. Lock order: shard, then slab, and under a shard's
//! lock a slab in use is only tried; nobody waits for a shard with a slab
//! locked. No code of `T` runs under either lock, but `f` of
//! [`ObjTable::scan_slab`].
//!
//! What it does not do: ids carry no generation, because a generation costs
//! memory that most holders do not need; a holder that may be late keeps one
//! inside the object. Memory for a slab comes from `Vec`, which aborts when the
//! system has none.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

pub use super::guard::{ReadGuard, WriteGuard};
use super::index::{Cell, Index};
use super::layout::PAGE_SIZE;
use super::lists::kept_empty;
use super::owner::{self, Owner};
use super::registry::Listed;
use super::report::SlabBug;
use super::watch::Watch;
use super::{AllocError, CacheInfo, Registry, SlabDebug, SlabFlags, attributes, guard, thread};
use crate::sync::Mutex;

/// A slab has at least this many objects, and at most as many as fit a page.
const MIN_OBJECTS: usize = 8;
/// Lists of partial slabs, so that threads seldom meet when they insert.
const SHARDS: usize = 8;
/// Slabs of its shard that an insert tries before it takes another one.
const TRIES: usize = 4;

/// Names an object of an [`ObjTable`]. Valid until the object is removed; a
/// later object may get the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjId(NonZeroU32);

impl ObjId {
    /// The id as a number.
    pub fn get(self) -> u32 {
        self.0.get()
    }
    /// The id with that number.
    pub fn new(n: u32) -> Option<Self> {
        NonZeroU32::new(n).map(Self)
    }
}

/// A table of objects of type `T`.
pub struct ObjTable<T> {
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    name: String,
    /// Objects in a slab, as a power of two: an id splits without a division.
    shift: u32,
    index: Index<T>,
    shards: [Shard; SHARDS],
    /// Slabs that have memory.
    slabs: AtomicUsize,
    /// Those of them without an object.
    empty: AtomicUsize,
    /// Slabs that became empty, each once; some may have objects again.
    emptied: Mutex<Vec<u32>>,
    /// Indices whose slabs gave their memory back.
    vacant: Mutex<Vec<u32>>,
    watch: Watch,
    /// Who inserted each object, and who removed the last one with its id (U).
    owners: Mutex<[HashMap<u32, Arc<Owner>>; 2]>,
}

/// 128 bytes apart, because processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Shard {
    /// Slabs that are not full; each one's place here is in its cell.
    partial: Mutex<Vec<u32>>,
    /// Objects of the slabs whose index is this shard's, modulo the number of shards.
    objects: AtomicUsize,
}

/// What `slab::Slab<T>` stores per object: private there, so its shape is repeated here.
enum Entry<T> {
    #[expect(dead_code, reason = "for its size")]
    Vacant(usize),
    #[expect(dead_code, reason = "for its size")]
    Occupied(T),
}

impl<T: Send + Sync + 'static> ObjTable<T> {
    /// Creates a table. No flag changes its layout: objects lie where `Vec` puts them.
    ///
    /// Of the debug modes F and U apply; the others look for writes that safe
    /// code cannot do to a table's objects.
    pub fn create(registry: &Registry, name: &str, _flags: SlabFlags) -> Self {
        let fit = (PAGE_SIZE / size_of::<Entry<T>>()).max(MIN_OBJECTS);
        let inner = registry.register(name, |settings| {
            Arc::new(Inner {
                name: settings.name,
                watch: Watch::new(settings.modes, settings.fault, settings.reporter),
                owners: Mutex::default(),
                shift: fit.ilog2(),
                index: Index::new(),
                shards: Default::default(),
                slabs: AtomicUsize::new(0),
                empty: AtomicUsize::new(0),
                emptied: Mutex::new(Vec::new()),
                vacant: Mutex::new(Vec::new()),
            })
        });
        Self { inner }
    }

    /// Stores an object. Fails if all ids are in use, or if a failure was asked for.
    #[track_caller]
    pub fn insert(&self, value: T) -> Result<ObjId, AllocError> {
        if self.inner.watch.is_on() {
            return self.inner.insert_watched(value, Location::caller());
        }
        self.inner.insert(value)
    }

    /// Reads an object; `None` if the id names none.
    #[inline]
    pub fn read(&self, id: ObjId) -> Option<ReadGuard<'_, T>> {
        let (cell, slot) = self.inner.find(id)?;
        guard::read(&cell.objects, slot)
    }

    /// Changes an object; `None` if the id names none.
    #[inline]
    pub fn write(&self, id: ObjId) -> Option<WriteGuard<'_, T>> {
        let (cell, slot) = self.inner.find(id)?;
        guard::write(&cell.objects, slot)
    }

    /// Takes an object out; `None` if the id names none.
    #[track_caller]
    pub fn remove(&self, id: ObjId) -> Option<T> {
        if self.inner.watch.is_on() {
            return self.inner.remove_watched(id, Location::caller());
        }
        self.inner.remove(id)
    }

    /// Slabs that the table has had; each index below is a slab for [`ObjTable::scan_slab`].
    pub fn slab_count(&self) -> usize {
        self.inner.index.len()
    }

    /// Calls `f` for each object of slab `index`, with the slab locked shared: `f` must not
    /// touch the table, except to read.
    pub fn scan_slab(&self, index: usize, mut f: impl FnMut(ObjId, &T)) {
        let Ok(index) = u32::try_from(index) else {
            return;
        };
        let Some(cell) = self.inner.index.cell(index) else {
            return;
        };
        for (slot, object) in cell.objects.read_recursive().iter() {
            f(self.inner.id(index, slot), object);
        }
    }

    /// Objects in use.
    pub fn len(&self) -> usize {
        self.inner.len()
    }

    /// Whether no object is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the slabs take, with their index.
    pub fn bytes(&self) -> usize {
        self.inner.slabs.load(Relaxed) * self.inner.slab_bytes() + self.inner.index.bytes()
    }

    /// Gives empty slabs back to the system; returns their bytes. Skips slabs that are in use.
    pub fn shrink(&self) -> usize {
        self.inner.release_empty()
    }

    /// The table's row of `.slabinfo`.
    pub fn info(&self) -> CacheInfo {
        self.inner.row()
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for ObjTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjTable").field(&self.info()).finish()
    }
}

impl<T> Inner<T> {
    fn per_slab(&self) -> usize {
        1 << self.shift
    }

    fn slab_bytes(&self) -> usize {
        self.per_slab() * size_of::<Entry<T>>()
    }

    /// Empty slabs that the table keeps.
    fn kept_empty(&self) -> usize {
        kept_empty(self.slabs.load(Relaxed), self.slab_bytes())
    }

    fn id(&self, index: u32, slot: usize) -> ObjId {
        let slot = u32::try_from(slot).expect("a slab has fewer than 2^32 objects");
        ObjId::new((index << self.shift) + slot + 1).expect("indices are limited so that ids fit")
    }

    #[inline]
    fn find(&self, id: ObjId) -> Option<(&Cell<T>, usize)> {
        let number = id.get() - 1;
        let slot = number & ((1 << self.shift) - 1);
        Some((self.index.cell(number >> self.shift)?, slot as usize))
    }

    fn cell(&self, index: u32) -> &Cell<T> {
        self.index
            .cell(index)
            .expect("listed slabs are in the index")
    }

    fn objects(&self, index: u32) -> &AtomicUsize {
        &self.shards[index as usize % SHARDS].objects
    }

    fn insert(&self, value: T) -> Result<ObjId, AllocError> {
        let number = thread::hint() % SHARDS;
        let mut partial = self.shards[number].partial.lock();
        let mut value = value;
        for place in (0..partial.len()).rev().take(TRIES) {
            match self.try_insert(&mut partial, place, value) {
                Ok(id) => return Ok(id),
                Err(back) => value = back,
            }
        }
        if let Some(place) = self.steal(number, &mut partial) {
            match self.try_insert(&mut partial, place, value) {
                Ok(id) => return Ok(id),
                Err(back) => value = back,
            }
        }
        self.insert_in_new(number, &mut partial, value)
    }

    /// Inserts into a listed slab, unless it is in use.
    fn try_insert(&self, partial: &mut Vec<u32>, place: usize, value: T) -> Result<ObjId, T> {
        let index = partial[place];
        let cell = self.cell(index);
        let Some(mut objects) = cell.objects.try_write() else {
            return Err(value);
        };
        if objects.is_empty() {
            self.empty.fetch_sub(1, Relaxed);
        }
        let slot = objects.insert(value);
        let full = objects.len() == self.per_slab();
        drop(objects);
        if full {
            self.unlist(partial, place);
        }
        self.objects(index).fetch_add(1, Relaxed);
        Ok(self.id(index, slot))
    }

    /// Moves a partial slab of another shard here, if one is to be had without waiting.
    fn steal(&self, number: usize, partial: &mut Vec<u32>) -> Option<usize> {
        let others = (1..SHARDS).map(|distance| (number + distance) % SHARDS);
        let index = others
            .filter_map(|other| self.shards[other].partial.try_lock()?.pop())
            .next()?;
        self.cell(index).shard.store(number as u32, Relaxed);
        Some(self.list(partial, index))
    }

    fn insert_in_new(
        &self,
        number: usize,
        partial: &mut Vec<u32>,
        value: T,
    ) -> Result<ObjId, AllocError> {
        let vacant = self.vacant.lock().pop();
        let index = vacant
            .or_else(|| self.index.grow(u32::MAX >> self.shift))
            .ok_or(AllocError)?;
        let cell = self.cell(index);
        // Nobody holds a guard of a slab without objects; a late reader leaves at once.
        let mut objects = cell.objects.write();
        *objects = slab::Slab::with_capacity(self.per_slab());
        let slot = objects.insert(value);
        drop(objects);
        cell.shard.store(number as u32, Relaxed);
        self.list(partial, index);
        self.slabs.fetch_add(1, Relaxed);
        self.objects(index).fetch_add(1, Relaxed);
        Ok(self.id(index, slot))
    }

    fn remove(&self, id: ObjId) -> Option<T> {
        let (cell, slot) = self.find(id)?;
        let index = (id.get() - 1) >> self.shift;
        let mut objects = cell.objects.write();
        let before = objects.len();
        let value = objects.try_remove(slot)?;
        if before == 1 {
            self.empty.fetch_add(1, Relaxed);
        }
        drop(objects);
        self.objects(index).fetch_sub(1, Relaxed);
        if before == self.per_slab() {
            // Only the remover that found it full lists it, and until then nobody fills it again.
            self.with_shard_of(cell, |partial| {
                self.list(partial, index);
            });
        } else if before == 1 {
            self.trim(index);
        }
        Some(value)
    }

    /// Gives back the memory of empty slabs beyond those that the table keeps; `index` is one more.
    fn trim(&self, index: u32) {
        let mut emptied = self.emptied.lock();
        if !self.cell(index).emptied.swap(true, Relaxed) {
            emptied.push(index);
        }
        drop(emptied);
        while self.empty.load(Relaxed) > self.kept_empty() {
            let Some(index) = self.emptied.lock().pop() else {
                break;
            };
            let cell = self.cell(index);
            cell.emptied.store(false, Relaxed);
            self.with_shard_of(cell, |partial| self.release(partial, index));
        }
    }

    /// Calls `f` with the list of the shard that the slab belongs to, locked.
    fn with_shard_of(&self, cell: &Cell<T>, f: impl FnOnce(&mut Vec<u32>)) {
        loop {
            let number = cell.shard.load(Relaxed);
            let mut partial = self.shards[number as usize].partial.lock();
            if cell.shard.load(Relaxed) == number {
                return f(&mut partial);
            }
        }
    }

    fn list(&self, partial: &mut Vec<u32>, index: u32) -> usize {
        partial.push(index);
        self.cell(index).place.store(partial.len() as u32, Relaxed);
        partial.len() - 1
    }

    fn unlist(&self, partial: &mut Vec<u32>, place: usize) {
        let index = partial.swap_remove(place);
        self.cell(index).place.store(0, Relaxed);
        if let Some(&moved) = partial.get(place) {
            self.cell(moved).place.store(place as u32 + 1, Relaxed);
        }
    }

    /// Gives the memory of a listed slab back if it is empty and not in use.
    fn release(&self, partial: &mut Vec<u32>, index: u32) {
        let cell = self.cell(index);
        let Some(place) = (cell.place.load(Relaxed) as usize).checked_sub(1) else {
            return;
        };
        let Some(mut objects) = cell.objects.try_write() else {
            return;
        };
        if !objects.is_empty() {
            return;
        }
        *objects = slab::Slab::new();
        drop(objects);
        self.unlist(partial, place);
        self.empty.fetch_sub(1, Relaxed);
        self.slabs.fetch_sub(1, Relaxed);
        self.vacant.lock().push(index);
    }

    fn release_empty(&self) -> usize {
        let mut freed = 0;
        for shard in &self.shards {
            let mut partial = shard.partial.lock();
            for place in (0..partial.len()).rev() {
                let before = partial.len();
                let index = partial[place];
                self.release(&mut partial, index);
                freed += (before - partial.len()) * self.slab_bytes();
            }
        }
        freed
    }

    fn len(&self) -> usize {
        // A remove may be counted before its insert is; the sum is then short, never below zero.
        let sum: isize = self
            .shards
            .iter()
            .map(|shard| shard.objects.load(Relaxed) as isize)
            .sum();
        sum.max(0) as usize
    }

    fn row(&self) -> CacheInfo {
        let slabs = self.slabs.load(Relaxed);
        let objects = slabs * self.per_slab();
        let active = self.len().min(objects);
        // The counters move between one look and the next: an object that is out already
        // has a slab that is not empty.
        let in_use = slabs.saturating_sub(self.empty.load(Relaxed));
        let in_use = in_use.max(active.div_ceil(self.per_slab()));
        CacheInfo {
            name: self.name.clone(),
            active_objs: active as u64,
            num_objs: objects as u64,
            objsize: size_of::<Entry<T>>() as u64,
            objperslab: self.per_slab() as u64,
            pagesperslab: self.slab_bytes().div_ceil(PAGE_SIZE) as u64,
            active_slabs: in_use as u64,
            num_slabs: slabs as u64,
            ..CacheInfo::default()
        }
    }
}

impl<T> Inner<T> {
    fn insert_watched(
        &self,
        value: T,
        site: &'static Location<'static>,
    ) -> Result<ObjId, AllocError> {
        if self.watch.fails() {
            return Err(AllocError);
        }
        let id = self.insert(value)?;
        if let Some(owner) = self.watch.user(|| Owner::at(site)) {
            self.owners.lock()[0].insert(id.get(), owner);
        }
        self.check_lists();
        Ok(id)
    }

    fn remove_watched(&self, id: ObjId, site: &'static Location<'static>) -> Option<T> {
        // Before the id can be another object's.
        let holder = self.owners.lock()[0].remove(&id.get());
        let value = self.remove(id);
        let owner = self.watch.user(|| Owner::at(site));
        let (list, owner) = if value.is_some() {
            (1, owner)
        } else {
            (0, holder)
        };
        self.owners.lock()[list].extend(owner.map(|owner| (id.get(), owner)));
        self.check_lists();
        value
    }

    /// Checks that listed slabs know their place and have room (F).
    fn check_lists(&self) -> usize {
        if !self.watch.modes().contains(SlabDebug::CONSISTENCY) {
            return 0;
        }
        let wrong = |number: usize| {
            let partial = self.shards[number].partial.lock();
            let wrong = partial.iter().enumerate().filter(|&(place, &index)| {
                let cell = self.cell(index);
                let known = (
                    cell.shard.load(Relaxed) as usize,
                    cell.place.load(Relaxed) as usize,
                );
                // Tried only: whoever has it may be waiting for the shard.
                let full = cell
                    .objects
                    .try_read()
                    .is_some_and(|objects| objects.len() >= self.per_slab());
                known != (number, place + 1) || full
            });
            wrong.count()
        };
        let found: usize = (0..SHARDS).map(wrong).sum();
        if found > 0 {
            let detail =
                format!("{found} listed slabs are full or not where they think they are\n");
            self.watch.tell(&self.name, SlabBug::Inconsistent, &detail);
        }
        found
    }
}

impl<T: Send + Sync + 'static> Listed for Inner<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> CacheInfo {
        self.row()
    }

    fn ended(&self) -> bool {
        false
    }

    fn shrink(&self) -> usize {
        self.release_empty()
    }

    fn validate(&self) -> usize {
        self.check_lists()
    }

    fn attributes(&self) -> Vec<(&'static str, String)> {
        let row = self.row();
        let [holders, freers] =
            [0, 1].map(|which| -> Vec<_> { self.owners.lock()[which].values().cloned().collect() });
        let lens = self.shards.iter().flat_map(|shard| {
            let listed = shard.partial.lock().clone();
            listed
                .into_iter()
                .map(|index| self.cell(index).objects.read_recursive().len())
        });
        let partial: Vec<_> = lens.filter(|&len| len > 0).collect();
        attributes::sysfs(&attributes::Facts {
            row: &row,
            modes: self.watch.modes(),
            flags: SlabFlags::empty(),
            align: align_of::<T>(),
            object_size: size_of::<T>(),
            partial: partial.len(),
            objects_partial: partial.iter().sum(),
            ctor: "",
            alloc_calls: owner::calls(holders.into_iter()),
            free_calls: owner::calls(freers.into_iter()),
        })
    }
}
