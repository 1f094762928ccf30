//! Exclusive objects behind a guard.
//!
//! What it is for: [`KmemCache::alloc`] lends an object, dropping the [`Obj`]
//! gives it back (Bonwick, "The Slab Allocator", 1994): objects are constructed
//! when their slab is made and stay so from one use to the next.
//!
//! Its contract. An object is in exactly one place (invariant I7): lent out, in
//! a thread's magazines, in the depot, or in its slab. With
//! [`SlabFlags::MAGAZINES`] alloc and drop touch only the thread's own seat, at
//! no atomic read-modify-write and no lock, but for one visit to the cache's
//! lock per `ROUNDS` operations at most. Lock order: a cache's lock is a leaf;
//! nothing is locked under it and no code of `T` (constructor, destructor) runs
//! under it.
//!
//! What it does not do: it reaches into no other thread's magazines, so
//! [`KmemCache::shrink`] leaves those alone until their thread ends.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::{Arc, Weak};

use super::layout::Shape;
use super::lists::kept_empty;
use super::magazine::{Depot, ROUNDS, Rounds};
use super::owner::Owner;
use super::page::{Handle, Home, Lent, Mine, PerThread, RawSlab, Taken};
use super::store::Store;
use super::thread::{self, Enrolled, Number};
use super::watch::Watch;
use super::{AllocError, CacheInfo, Registry, SlabFlags};
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::Relaxed;

/// Bytes of objects that a depot holds at most (never less than two magazines).
const DEPOT_BYTES: usize = 8 << 20;
/// Bytes of objects that an empty magazine is refilled with from slabs.
const BATCH_BYTES: usize = 32 << 10;

/// A named cache of objects of type `T`. Clones are the same cache, which ends
/// with the last of them.
///
/// Objects that are still out then are reported as a leak; they stay valid, and
/// the memory goes when the last of them does. See the [module](super) for the
/// contract.
pub struct KmemCache<T: Send + 'static> {
    pub(super) core: Arc<Core<T>>,
    owner: Arc<Owned<T>>,
}

impl<T: Send + 'static> Clone for KmemCache<T> {
    fn clone(&self) -> Self {
        Self {
            core: self.core.clone(),
            owner: self.owner.clone(),
        }
    }
}

/// A borrowed object; dropping it gives the object back, from any thread.
///
/// The object is as its last user left it, or as the constructor made it.
/// Forgetting an `Obj` leaks the object, which its cache reports at its end.
pub struct Obj<T: Send + 'static>(pub(super) Lent<T, Core<T>>);

impl<T: Send + 'static> Deref for Obj<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.0.object()
    }
}

impl<T: Send + 'static> DerefMut for Obj<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.object_mut()
    }
}

impl<T: Send + fmt::Debug + 'static> fmt::Debug for Obj<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Send + 'static> fmt::Debug for KmemCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KmemCache").field(&self.info()).finish()
    }
}

/// Ends the cache when its last [`KmemCache`] goes.
struct Owned<T: Send + 'static>(Arc<Core<T>>);

impl<T: Send + 'static> Drop for Owned<T> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What a cache's handles, objects and threads share.
pub(super) struct Core<T: Send + 'static> {
    pub(super) name: String,
    pub(super) flags: SlabFlags,
    pub(super) shape: Shape,
    /// Objects that an empty magazine is refilled with from slabs.
    batch: usize,
    pub(super) ctor: Box<dyn Fn() -> T + Send + Sync>,
    pub(super) threads: PerThread<Rounds<Handle<T>>>,
    /// Debug modes and faults, if there are any; then there are no magazines.
    pub(super) watch: Watch,
    pub(super) ended: AtomicBool,
    me: Weak<Core<T>>,
    pub(super) state: Apart<Mutex<State<T>>>,
}

/// On lines of its own, which other threads' visits take away; 128 bytes, because processors
/// fetch lines in pairs.
#[repr(align(128))]
pub(super) struct Apart<X>(X);

impl<X> Deref for Apart<X> {
    type Target = X;
    #[inline]
    fn deref(&self) -> &X {
        &self.0
    }
}

/// loom does not see that `Arc` orders what threads did before they let go of
/// the cache; all of them had its lock since.
#[cfg(feature = "loom")]
impl<T: Send + 'static> Drop for Core<T> {
    fn drop(&mut self) {
        drop(self.state.lock());
    }
}

/// What a cache's lock guards. The depot is first, on the line of the lock, so that a visit
/// fetches one.
#[repr(C)]
pub(super) struct State<T: Send + 'static> {
    pub(super) depot: Depot<Handle<T>>,
    pub(super) store: Store<T>,
    /// Rounds of threads that ended, on their way to their slabs.
    loose: Vec<Handle<T>>,
    /// The ended cache's hold on itself while objects are out (S4).
    afterlife: Option<Arc<Core<T>>>,
}

impl<T: Send + 'static> State<T> {
    /// Objects that are lent out. Exact when nobody allocates or frees.
    pub(super) fn lent(&self, threads: &PerThread<Rounds<Handle<T>>>) -> usize {
        let rounds: usize = threads.counts().map(|count| count.load(Relaxed)).sum();
        self.store
            .taken()
            .saturating_sub(rounds + self.depot.rounds() + self.loose.len())
    }
}

impl<T: Send + 'static> KmemCache<T> {
    /// Creates a cache; `ctor` builds an object when its slab is made.
    ///
    /// The name is made fit for `.slabinfo`: characters other than letters,
    /// digits, `_` and `-` become `_`, and a name that `registry` has already
    /// gets a number. Debug modes and faults are those that the registry's
    /// options say for the name.
    ///
    /// # Panics
    ///
    /// If `T` is so large that no slab of it can be addressed.
    pub fn create(
        registry: &Registry,
        name: &str,
        flags: SlabFlags,
        ctor: impl Fn() -> T + Send + Sync + 'static,
    ) -> Self {
        let core = registry.register(name, |settings| {
            let watch = Watch::new(settings.modes, settings.fault, settings.reporter);
            let line = flags.contains(SlabFlags::HWCACHE_ALIGN);
            let shape = Shape::new(size_of::<T>(), align_of::<T>(), line, watch.has_zones())
                .expect("an object and its padding can be addressed");
            let magazines = flags.contains(SlabFlags::MAGAZINES) && !watch.is_on();
            Arc::new_cyclic(|me| Core {
                name: settings.name,
                flags,
                shape,
                batch: (BATCH_BYTES / shape.stride).clamp(1, ROUNDS / 2),
                ctor: Box::new(ctor),
                threads: PerThread::new(magazines),
                watch,
                ended: AtomicBool::new(false),
                me: me.clone(),
                state: Apart(Mutex::new(State {
                    depot: Depot::new((DEPOT_BYTES / shape.stride / ROUNDS).max(2)),
                    store: Store::new(shape),
                    loose: Vec::new(),
                    afterlife: None,
                })),
            })
        });
        Self {
            owner: Arc::new(Owned(core.clone())),
            core,
        }
    }

    /// Lends an object, in the state in which it was last given back.
    ///
    /// Fails if no object is free and the system has no memory for a slab, or
    /// if a failure was asked for.
    #[inline]
    #[track_caller]
    pub fn alloc(&self) -> Result<Obj<T>, AllocError> {
        let handle = match self.core.threads.mine().and_then(|seat| seat.pop()) {
            Some(handle) => handle,
            None => self.core.alloc_slowly(Location::caller())?,
        };
        Ok(Obj(Lent::new(handle, &self.core)))
    }

    /// Lends `count` objects, or none, past the magazines and under one lock.
    #[track_caller]
    pub fn alloc_bulk(&self, count: usize) -> Result<Vec<Obj<T>>, AllocError> {
        let lend = |handle| Obj(Lent::new(handle, &self.core));
        let mut objects = Vec::new();
        objects.try_reserve_exact(count).map_err(|_| AllocError)?;
        while objects.len() < count {
            let missing = count - objects.len();
            let first = match self.core.watch.is_on() {
                true => self.core.alloc_watched(Location::caller()),
                false => self
                    .core
                    .take(missing, &mut |handle| objects.push(lend(handle))),
            };
            objects.push(lend(first?));
        }
        Ok(objects)
    }

    /// Gives objects back past the magazines and under one lock. Objects of
    /// other caches are given back to theirs.
    pub fn free_bulk(&self, objects: impl IntoIterator<Item = Obj<T>>) {
        let handles = objects
            .into_iter()
            .filter_map(|object| object.0.into_handle(&self.core).ok());
        let handles: Vec<_> = handles.collect();
        if self.core.watch.is_on() {
            handles
                .into_iter()
                .for_each(|handle| drop(self.core.free_watched(handle)));
        } else {
            drop(self.core.put(handles));
        }
    }

    /// Gives the empty slabs back to the system, after the depot's and the
    /// calling thread's magazines; returns their bytes.
    pub fn shrink(&self) -> usize {
        self.core.shrink_all()
    }

    /// The cache's name, as in `.slabinfo`.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// The cache's row of `.slabinfo`.
    pub fn info(&self) -> CacheInfo {
        self.core.row()
    }
}

impl<T: Send + 'static> Core<T> {
    /// The thread's seat, found or taken; none without magazines.
    fn seat(&self) -> Option<Mine<'_, Rounds<Handle<T>>>> {
        if !self.threads.is_on() || self.ended.load(Relaxed) {
            return None;
        }
        if let Some(seat) = self.threads.mine() {
            return Some(seat);
        }
        if thread::enroll(self.me.clone()) {
            self.threads.sit(Rounds::new)
        } else {
            None
        }
    }

    /// Moves a seat's rounds to the loose ones.
    fn clear(&self, seat: Option<Mine<'_, Rounds<Handle<T>>>>) {
        let Some(seat) = seat else { return };
        let mut state = self.state.lock();
        while let Some(handle) = seat.pop() {
            state.loose.push(handle);
        }
    }

    #[cold]
    #[inline(never)]
    fn alloc_slowly(&self, site: &'static Location<'static>) -> Result<Handle<T>, AllocError> {
        if self.watch.is_on() {
            return self.alloc_watched(site);
        }
        let Some(seat) = self.seat() else {
            return self.take(1, &mut |_| {});
        };
        let (full, spare) = self.state.lock().depot.take_full(seat.spare());
        match full {
            Some(full) => seat.load(full),
            None => seat.keep(spare),
        }
        if let Some(handle) = seat.pop() {
            return Ok(handle);
        }
        // The constructor of a new slab may have used this thread's seat meanwhile.
        let mut over = Vec::new();
        let handle = self.take(self.batch, &mut |handle| {
            over.extend(seat.push(handle).err())
        });
        if !over.is_empty() {
            drop(self.put(over));
        }
        handle
    }

    /// Takes `count` objects from slabs: one to return, the others for `rest`,
    /// which may get fewer.
    fn take(&self, count: usize, rest: &mut dyn FnMut(Handle<T>)) -> Result<Handle<T>, AllocError> {
        let constructed = |taken| match taken {
            Taken::Constructed(handle) => Some(handle),
            Taken::Poisoned(_) => None,
        };
        loop {
            let mut state = self.state.lock();
            if let Some(first) = state.store.take().and_then(constructed) {
                let others = (1..count).map_while(|_| state.store.take().and_then(constructed));
                others.for_each(rest);
                return Ok(first);
            }
            drop(state);
            self.grow()?;
        }
    }

    /// Adds a slab.
    pub(super) fn grow(&self) -> Result<(), AllocError> {
        let slab = RawSlab::new(self.shape, self.watch.poisons(), &*self.ctor)?;
        self.state.lock().store.add(slab);
        Ok(())
    }

    /// Puts objects into their slabs, and the loose ones. Returns the ended
    /// cache's hold on itself if these were its last objects.
    fn put(&self, handles: impl IntoIterator<Item = Handle<T>>) -> Option<Arc<Self>> {
        self.put_taken(handles.into_iter().map(Taken::Constructed), None)
    }

    /// As `put`, given back by `owner`.
    pub(super) fn put_taken(
        &self,
        objects: impl IntoIterator<Item = Taken<T>>,
        owner: Option<Arc<Owner>>,
    ) -> Option<Arc<Self>> {
        let mut refused = Vec::new();
        let mut state = self.state.lock();
        let loose = std::mem::take(&mut state.loose)
            .into_iter()
            .map(Taken::Constructed);
        for object in loose.chain(objects) {
            if let Err((object, misplaced)) = state.store.put(object, owner.clone()) {
                refused.push((object.addr(), misplaced));
            }
        }
        let ended = self.ended.load(Relaxed);
        let keep = if ended {
            0
        } else {
            kept_empty(state.store.slabs(), self.shape.slab_bytes())
        };
        let gone = state.store.trim(keep);
        let last = if state.store.taken() == 0 {
            state.afterlife.take()
        } else {
            None
        };
        drop(state);
        self.discard(gone);
        refused
            .into_iter()
            .for_each(|(addr, misplaced)| self.tell(addr, misplaced.into(), None));
        last
    }

    pub(super) fn shrink_all(&self) -> usize {
        self.clear(self.threads.mine());
        let rounds: Vec<_> = self.state.lock().depot.drain().collect();
        drop(self.put(rounds));
        let gone = self.state.lock().store.trim(0);
        let bytes = gone.len() * self.shape.slab_bytes();
        self.discard(gone);
        bytes
    }

    fn end(self: &Arc<Self>) {
        self.ended.store(true, Relaxed);
        self.shrink_all();
        let mut state = self.state.lock();
        let lent = state.lent(&self.threads);
        if state.store.taken() > 0 {
            state.afterlife = Some(self.clone());
        }
        drop(state);
        if lent > 0 {
            self.tell_leak(lent);
        }
    }
}

impl<T: Send + 'static> Home<T> for Core<T> {
    #[inline]
    fn give_back(&self, handle: Handle<T>) -> Result<(), Handle<T>> {
        match self.threads.mine() {
            Some(seat) => seat.push(handle),
            None => Err(handle),
        }
    }

    #[cold]
    #[inline(never)]
    fn give_back_slowly(&self, handle: Handle<T>) -> Option<Arc<Self>> {
        if self.watch.is_on() {
            return self.free_watched(handle);
        }
        let Some(seat) = self.seat() else {
            self.clear(self.threads.mine());
            return self.put(Some(handle));
        };
        let Err(handle) = seat.push(handle) else {
            return None;
        };
        let full = seat.unload();
        let pushed = seat.push(handle);
        let mut state = self.state.lock();
        // The depot of a cache that ended meanwhile was emptied for the last time.
        let returned = match self.ended.load(Relaxed) {
            true => Err(full),
            false => state.depot.put_full(full),
        };
        drop(state);
        match returned {
            Ok(spare) => {
                seat.keep(spare);
                pushed.err().and_then(|handle| self.put(Some(handle)))
            }
            Err(mut full) => {
                let last = self.put(
                    full.rounds
                        .iter_mut()
                        .filter_map(Option::take)
                        .chain(pushed.err()),
                );
                seat.keep(Some(full));
                last
            }
        }
    }
}

impl<T: Send + 'static> Enrolled for Core<T> {
    fn retire(&self, me: &Number) {
        self.clear(self.threads.seat_of(me));
    }

    fn settle(&self) {
        drop(self.put(None));
    }

    fn ended(&self) -> bool {
        self.ended.load(Relaxed)
    }
}
