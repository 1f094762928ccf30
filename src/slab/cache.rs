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
//! lock per `ROUNDS` operations at most. Constructors and destructors run
//! outside the lock. Lock order: a cache's lock is a leaf; nothing is locked
//! and no code of `T` runs under it.
//!
//! What it does not do: it reaches into no other thread's magazines, so
//! [`KmemCache::shrink`] leaves those alone until their thread ends.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use super::info::Listed;
use super::layout::Shape;
use super::lists::List;
use super::magazine::{Depot, ROUNDS, Rounds};
use super::page::{Handle, Home, Lent, Mine, PerThread, RawSlab};
use super::store::{Store, kept_empty};
use super::thread::{self, Enrolled};
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
pub struct KmemCache<T: Send + 'static> {
    core: Arc<Core<T>>,
    _owner: Arc<Owner<T>>,
}

impl<T: Send + 'static> Clone for KmemCache<T> {
    fn clone(&self) -> Self {
        Self {
            core: self.core.clone(),
            _owner: self._owner.clone(),
        }
    }
}

/// A borrowed object; dropping it gives the object back, from any thread.
///
/// The object is as its last user left it, or as the constructor made it.
pub struct Obj<T: Send + 'static>(Lent<T, Core<T>>);

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
struct Owner<T: Send + 'static>(Arc<Core<T>>);

impl<T: Send + 'static> Drop for Owner<T> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What a cache's handles, objects and threads share.
struct Core<T: Send + 'static> {
    name: String,
    shape: Shape,
    batch: usize,
    ctor: Box<dyn Fn() -> T + Send + Sync>,
    threads: PerThread<Rounds<Handle<T>>>,
    ended: AtomicBool,
    me: Weak<Core<T>>,
    state: Mutex<State<T>>,
}

struct State<T: Send + 'static> {
    store: Store<T>,
    depot: Depot<Handle<T>>,
    /// Rounds of threads that ended, on their way to their slabs.
    loose: Vec<Handle<T>>,
    /// The ended cache's hold on itself while objects are out (S4).
    afterlife: Option<Arc<Core<T>>>,
}

impl<T: Send + 'static> KmemCache<T> {
    /// Creates a cache; `ctor` builds an object when its slab is made.
    ///
    /// The name is made fit for `.slabinfo`: characters other than letters,
    /// digits, `_` and `-` become `_`, and a name that `registry` has already
    /// gets a number.
    pub fn create(
        registry: &Registry,
        name: &str,
        flags: SlabFlags,
        ctor: impl Fn() -> T + Send + Sync + 'static,
    ) -> Self {
        let line = flags.contains(SlabFlags::HWCACHE_ALIGN);
        let shape = Shape::new(size_of::<T>(), align_of::<T>(), line, false)
            .expect("a type's size leaves room for padding");
        let magazines = flags.contains(SlabFlags::MAGAZINES);
        let core = registry.register(name, |name| {
            Arc::new_cyclic(|me| Core {
                name,
                shape,
                batch: (BATCH_BYTES / shape.stride).clamp(1, ROUNDS / 2),
                ctor: Box::new(ctor),
                threads: PerThread::new(magazines),
                ended: AtomicBool::new(false),
                me: me.clone(),
                state: Mutex::new(State {
                    store: Store::new(shape.count, shape.slab_bytes()),
                    depot: Depot::new((DEPOT_BYTES / shape.stride / ROUNDS).max(2)),
                    loose: Vec::new(),
                    afterlife: None,
                }),
            })
        });
        Self {
            _owner: Arc::new(Owner(core.clone())),
            core,
        }
    }

    /// Lends an object, in the state in which it was last given back.
    ///
    /// Fails if no object is free and the system has no memory for a slab.
    #[inline]
    pub fn alloc(&self) -> Result<Obj<T>, AllocError> {
        let handle = match self.core.threads.mine().and_then(|seat| seat.pop()) {
            Some(handle) => handle,
            None => self.core.alloc_slowly()?,
        };
        Ok(Obj(Lent::new(handle, &self.core)))
    }

    /// Lends `count` objects under one lock, or none.
    pub fn alloc_bulk(&self, count: usize) -> Result<Vec<Obj<T>>, AllocError> {
        self.core.alloc_bulk(count, &self.core)
    }

    /// Gives objects back under one lock, past the magazines. Objects of other
    /// caches are given back to theirs.
    pub fn free_bulk(&self, objects: impl IntoIterator<Item = Obj<T>>) {
        let handles = objects
            .into_iter()
            .filter_map(|object| object.0.into_handle(&self.core).ok());
        drop(self.core.put(handles.collect::<Vec<_>>()));
    }

    /// Gives the empty slabs back to the system, after the depot's and the
    /// calling thread's magazines; returns their bytes.
    pub fn shrink(&self) -> usize {
        self.core.shrink()
    }

    /// The cache's name, as in `.slabinfo`.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// The cache's row of `.slabinfo`.
    pub fn info(&self) -> CacheInfo {
        self.core.info()
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

    #[cold]
    #[inline(never)]
    fn alloc_slowly(&self) -> Result<Handle<T>, AllocError> {
        let Some(seat) = self.seat() else {
            return self.take(1, &mut |_| {});
        };
        let (full, spare) = self.state.lock().depot.take_full(seat.spare());
        if let Some(full) = full {
            seat.load(full);
        } else {
            seat.keep(spare);
        }
        if let Some(handle) = seat.pop() {
            return Ok(handle);
        }
        let mut over = Vec::new();
        let handle = self.take(self.batch, &mut |handle| {
            over.extend(seat.push(handle).err())
        });
        self.put(over);
        handle
    }

    /// Takes `count` objects from slabs: one to return, the others for `rest`,
    /// which may get fewer.
    fn take(&self, count: usize, rest: &mut dyn FnMut(Handle<T>)) -> Result<Handle<T>, AllocError> {
        loop {
            let mut state = self.state.lock();
            if let Some(first) = state.store.take() {
                (1..count).map_while(|_| state.store.take()).for_each(rest);
                return Ok(first);
            }
            drop(state);
            let slab = RawSlab::new(self.shape, &*self.ctor)?;
            self.state.lock().store.add(slab);
        }
    }

    fn alloc_bulk(&self, count: usize, me: &Arc<Self>) -> Result<Vec<Obj<T>>, AllocError> {
        let mut objects = Vec::new();
        objects.try_reserve_exact(count).map_err(|_| AllocError)?;
        while objects.len() < count {
            let missing = count - objects.len();
            let first = self.take(missing, &mut |handle| {
                objects.push(Obj(Lent::new(handle, me)))
            })?;
            objects.push(Obj(Lent::new(first, me)));
        }
        Ok(objects)
    }

    /// Puts objects into their slabs, and the loose ones. Returns the ended
    /// cache's hold on itself if these were its last objects.
    fn put(&self, handles: impl IntoIterator<Item = Handle<T>>) -> Option<Arc<Self>> {
        let mut state = self.state.lock();
        let ended = self.ended.load(Relaxed);
        let loose = std::mem::take(&mut state.loose);
        for handle in loose.into_iter().chain(handles) {
            if let Err(handle) = state.store.put(handle) {
                tracing::error!(
                    cache = self.name,
                    addr = handle.addr(),
                    "object is not out of this cache"
                );
            }
        }
        let keep = if ended {
            0
        } else {
            kept_empty(state.store.slabs())
        };
        let gone = state.store.trim(keep);
        let last = if state.store.taken() == 0 {
            state.afterlife.take()
        } else {
            None
        };
        drop(state);
        drop(gone);
        last
    }

    fn shrink(&self) -> usize {
        self.retire();
        let rounds: Vec<_> = self.state.lock().depot.drain().collect();
        drop(self.put(rounds));
        let gone = self.state.lock().store.trim(0);
        gone.len() * self.shape.slab_bytes()
    }

    fn end(self: &Arc<Self>) {
        self.ended.store(true, Relaxed);
        self.shrink();
        let mut state = self.state.lock();
        let lent = self.lent(&state);
        if state.store.taken() > 0 {
            state.afterlife = Some(self.clone());
        }
        drop(state);
        if lent > 0 {
            tracing::error!(
                cache = self.name,
                objects = lent,
                "objects are still out at the end of their cache"
            );
        }
    }

    /// Objects that are lent out. Exact when nobody allocates or frees.
    fn lent(&self, state: &State<T>) -> usize {
        let rounds: usize = self.threads.counts().map(|count| count.load(Relaxed)).sum();
        state
            .store
            .taken()
            .saturating_sub(rounds + state.depot.rounds() + state.loose.len())
    }

    fn info(&self) -> CacheInfo {
        let state = self.state.lock();
        let store = &state.store;
        let on = self.threads.is_on();
        CacheInfo {
            name: self.name.clone(),
            active_objs: self.lent(&state) as u64,
            num_objs: (store.slabs() * self.shape.count) as u64,
            objsize: self.shape.stride as u64,
            objperslab: self.shape.count as u64,
            pagesperslab: self.shape.pages() as u64,
            limit: if on { 2 * ROUNDS as u64 } else { 0 },
            batchcount: if on { ROUNDS as u64 } else { 0 },
            sharedfactor: if on { state.depot.capacity() as u64 } else { 0 },
            active_slabs: (store.slabs() - store.on(List::Empty)) as u64,
            num_slabs: store.slabs() as u64,
            sharedavail: state.depot.rounds() as u64,
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
        let Some(seat) = self.seat() else {
            self.retire();
            return self.put(Some(handle));
        };
        let Err(handle) = seat.push(handle) else {
            return None;
        };
        let full = seat.unload();
        let pushed = seat.push(handle);
        let returned = self.state.lock().depot.put_full(full);
        match returned {
            Ok(spare) => {
                seat.keep(spare);
                drop(self.put(pushed.err()));
            }
            Err(mut full) => {
                drop(self.put(full.iter_mut().filter_map(Option::take).chain(pushed.err())));
                seat.keep(Some(full));
            }
        }
        None
    }
}

impl<T: Send + 'static> Enrolled for Core<T> {
    fn retire(&self) {
        let Some(seat) = self.threads.mine() else {
            return;
        };
        let mut state = self.state.lock();
        while let Some(handle) = seat.pop() {
            state.loose.push(handle);
        }
    }

    fn settle(&self) {
        drop(self.put(None));
    }

    fn ended(&self) -> bool {
        self.ended.load(Relaxed)
    }
}

impl<T: Send + 'static> Listed for Core<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> CacheInfo {
        self.info()
    }

    fn ended(&self) -> bool {
        self.ended.load(Relaxed)
    }
}
