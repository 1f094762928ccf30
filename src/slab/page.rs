//! The memory of slabs, and the only unsafe code of the crate.
//!
//! What it is for: a [`RawSlab`] is one chunk of memory with `count`
//! constructed objects; it hands them out as [`Handle`]s, tokens that cannot
//! be copied; [`Lent`] is the guard around a handle; [`PerThread`] gives every
//! thread a value of its own. Everything above moves tokens and is safe Rust.
//!
//! Its contract, cited by the SAFETY notes:
//!
//! * S1. The handle of object `i` exists if and only if `out` has the key `i`,
//!   and at most once. So whoever has a handle has the object to himself.
//! * S2. An object of a slab is constructed for as long as the slab lives.
//! * S3. A slab's memory is given back only when `out` is empty: a slab that
//!   is dropped earlier leaks its memory rather than leave handles dangling.
//! * S4. A cache outlives its handles: until it ends its owner holds it, from
//!   then on its own state does until the last handle is back
//!   (`cache::Core::end`).
//! * S5. A thread's number (`thread::current`) belongs to no other living
//!   thread.
//!
//! What it does not do: lists, locks, counting, policy.
#![allow(unsafe_code)]

use std::alloc::{alloc, dealloc};
use std::marker::PhantomData;
use std::mem::needs_drop;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use super::layout::Shape;
use super::{AllocError, thread};
use crate::sync::atomic::AtomicUsize;

/// The right to one constructed object of a slab. Dropping it loses the object
/// (and its slab's memory) for good; it is to be given back.
#[must_use]
pub(super) struct Handle<T>(NonNull<T>);

// SAFETY: S1, a handle is the only way to its object, so it may go where the object may.
unsafe impl<T: Send> Send for Handle<T> {}
// SAFETY: a shared handle gives no more than a shared object.
unsafe impl<T: Sync> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// The object.
    #[inline]
    pub(super) fn object(&self) -> &T {
        // SAFETY: S1 and S2, the object is constructed and only reachable through this handle.
        unsafe { self.0.as_ref() }
    }

    /// The object, to change it.
    #[inline]
    pub(super) fn object_mut(&mut self) -> &mut T {
        // SAFETY: S1 and S2, as above, and the handle is borrowed exclusively.
        unsafe { self.0.as_mut() }
    }

    /// Where the object lies.
    pub(super) fn addr(&self) -> usize {
        self.0.addr().get()
    }
}

/// One chunk of memory with `shape.count` objects.
pub(super) struct RawSlab<T> {
    base: NonNull<u8>,
    shape: Shape,
    out: slab::Slab<()>,
    objects: PhantomData<T>,
}

// SAFETY: a slab owns its objects (those without a handle) as a Vec would.
unsafe impl<T: Send> Send for RawSlab<T> {}

/// Constructed objects of a slab in the making; drops them if the constructor panics.
struct Built<T> {
    base: NonNull<u8>,
    shape: Shape,
    count: usize,
    objects: PhantomData<T>,
}

impl<T> Built<T> {
    fn forget(self) {
        std::mem::forget(self);
    }
}

impl<T> Drop for Built<T> {
    fn drop(&mut self) {
        for index in 0..if needs_drop::<T>() { self.count } else { 0 } {
            let object = place::<T>(self.base, &self.shape, index);
            // SAFETY: the first `count` objects are constructed and nobody else has them.
            unsafe { object.drop_in_place() };
        }
        // SAFETY: the memory came from `alloc` with this layout and nothing points into it any more.
        unsafe { dealloc(self.base.as_ptr(), self.shape.memory()) };
    }
}

/// The place of object `index` in the slab at `base`.
fn place<T>(base: NonNull<u8>, shape: &Shape, index: usize) -> NonNull<T> {
    debug_assert!(
        index < shape.count,
        "S1: keys are below the slab's object count"
    );
    // SAFETY: index < count, so the offset is inside the slab's one allocation.
    unsafe { base.add(index * shape.stride + shape.left) }.cast()
}

impl<T> RawSlab<T> {
    /// Makes a slab and constructs its objects.
    ///
    /// Fails if the system has no memory for it.
    pub(super) fn new(shape: Shape, ctor: &dyn Fn() -> T) -> Result<Self, AllocError> {
        assert!(
            shape.object_size == size_of::<T>() && shape.align >= align_of::<T>(),
            "shape is for another type"
        );
        // SAFETY: the layout's size is not zero, because strides and counts are at least 1.
        let memory = unsafe { alloc(shape.memory()) };
        let base = NonNull::new(memory).ok_or(AllocError)?;
        let mut built = Built::<T> {
            base,
            shape,
            count: 0,
            objects: PhantomData,
        };
        while built.count < shape.count {
            let object = place::<T>(base, &shape, built.count);
            // SAFETY: the place is inside the allocation, aligned, and not yet constructed.
            unsafe { object.write(ctor()) };
            built.count += 1;
        }
        built.forget();
        Ok(Self {
            base,
            shape,
            out: slab::Slab::with_capacity(shape.count),
            objects: PhantomData,
        })
    }

    /// Where the slab's memory starts.
    pub(super) fn addr(&self) -> usize {
        self.base.addr().get()
    }

    /// Objects that are out.
    pub(super) fn taken(&self) -> usize {
        self.out.len()
    }

    /// Hands out an object; `None` if all are out.
    pub(super) fn take(&mut self) -> Option<Handle<T>> {
        if self.out.len() == self.shape.count {
            return None;
        }
        let index = self.out.insert(());
        Some(Handle(place(self.base, &self.shape, index)))
    }

    /// Takes an object back; refuses one that is not this slab's or is not out.
    pub(super) fn put(&mut self, handle: Handle<T>) -> Result<(), Handle<T>> {
        let offset = handle.addr().wrapping_sub(self.addr());
        match self
            .shape
            .index_of(offset)
            .and_then(|index| self.out.try_remove(index))
        {
            Some(()) => Ok(()),
            None => Err(handle),
        }
    }
}

impl<T> Drop for RawSlab<T> {
    fn drop(&mut self) {
        if self.out.is_empty() {
            drop(Built::<T> {
                base: self.base,
                shape: self.shape,
                count: self.shape.count,
                objects: PhantomData,
            });
        }
    }
}

/// What a guard gives its object back to.
pub(super) trait Home<T>: Sized {
    /// Takes the object back without a lock, or declines.
    fn give_back(&self, handle: Handle<T>) -> Result<(), Handle<T>>;
    /// Takes the object back; returns what must be dropped once `self` is no longer borrowed.
    fn give_back_slowly(&self, handle: Handle<T>) -> Option<Arc<Self>>;
}

/// An object and the way back to its cache.
pub(super) struct Lent<T, C: Home<T>> {
    handle: Handle<T>,
    home: NonNull<C>,
}

// SAFETY: the object may move (T: Send), the cache may be used from anywhere (C: Sync).
unsafe impl<T: Send, C: Home<T> + Send + Sync> Send for Lent<T, C> {}
// SAFETY: a shared guard gives a shared object and nothing of the cache.
unsafe impl<T: Sync, C: Home<T> + Send + Sync> Sync for Lent<T, C> {}

impl<T, C: Home<T>> Lent<T, C> {
    /// Lends the object of `handle`, which `home` handed out.
    #[inline]
    pub(super) fn new(handle: Handle<T>, home: &Arc<C>) -> Self {
        // SAFETY: an Arc's pointer is never null.
        let home = unsafe { NonNull::new_unchecked(Arc::as_ptr(home).cast_mut()) };
        Self { handle, home }
    }

    /// The object.
    #[inline]
    pub(super) fn object(&self) -> &T {
        self.handle.object()
    }

    /// The object, to change it.
    #[inline]
    pub(super) fn object_mut(&mut self) -> &mut T {
        self.handle.object_mut()
    }
}

impl<T, C: Home<T>> Lent<T, C> {
    /// Ends the loan without giving the object back, if `home` lent it.
    pub(super) fn into_handle(self, home: &Arc<C>) -> Result<Handle<T>, Self> {
        if self.home.as_ptr().cast_const() != Arc::as_ptr(home) {
            return Err(self);
        }
        // The guard goes without its Drop, so the token is still single (S1).
        let handle = Handle(self.handle.0);
        std::mem::forget(self);
        Ok(handle)
    }
}

impl<T, C: Home<T>> Drop for Lent<T, C> {
    #[inline]
    fn drop(&mut self) {
        // The guard's own handle is not used again, so the token is still single (S1).
        let handle = Handle(self.handle.0);
        // SAFETY: S4, the cache lives while one of its handles does.
        if let Err(handle) = unsafe { self.home.as_ref() }.give_back(handle) {
            // SAFETY: S4, the handle is still out.
            let last = unsafe { self.home.as_ref() }.give_back_slowly(handle);
            // The cache may end here, when nothing borrows it any more.
            drop(last);
        }
    }
}

/// Threads that can have a value in a [`PerThread`]; later ones do without.
pub(super) const MAX_THREADS: usize = 512;

/// What one thread owns, and a counter that others may read.
///
/// 128 bytes apart, because processors fetch lines in pairs.
#[repr(align(128))]
pub(super) struct Seat<X> {
    /// Written by the owner alone, with plain stores.
    pub(super) count: AtomicUsize,
    own: X,
}

// SAFETY: `own` is reached only through `Seat::own`, which PerThread::mine alone hands out, to the
// thread whose number the seat has (S5); `count` is atomic.
unsafe impl<X: Send> Sync for Seat<X> {}

/// A value per thread, reached without a lock by its thread.
pub(super) struct PerThread<X> {
    seats: Box<[OnceLock<Box<Seat<X>>>]>,
}

/// A thread's own seat.
pub(super) struct Mine<'a, X>(&'a Seat<X>, PhantomData<*const ()>);

impl<X> Mine<'_, X> {
    /// The counter, for others to read.
    #[inline]
    pub(super) fn count(&self) -> &AtomicUsize {
        &self.0.count
    }

    /// The value.
    #[inline]
    pub(super) fn own(&self) -> &X {
        &self.0.own
    }
}

impl<X: Send> PerThread<X> {
    /// Room for all threads, or for none.
    pub(super) fn new(on: bool) -> Self {
        Self {
            seats: (0..if on { MAX_THREADS } else { 0 })
                .map(|_| OnceLock::new())
                .collect(),
        }
    }

    /// Whether threads can have values here.
    pub(super) fn is_on(&self) -> bool {
        !self.seats.is_empty()
    }

    /// The calling thread's seat, if it has one.
    #[inline]
    pub(super) fn mine(&self) -> Option<Mine<'_, X>> {
        let seat = self.seats.get(thread::current())?.get()?;
        Some(Mine(seat, PhantomData))
    }

    /// Gives the calling thread a seat; `None` if there is no room.
    pub(super) fn sit(&self, make: impl FnOnce() -> X) -> Option<Mine<'_, X>> {
        let seat = self.seats.get(thread::current())?;
        let seat = seat.get_or_init(|| {
            Box::new(Seat {
                count: AtomicUsize::new(0),
                own: make(),
            })
        });
        Some(Mine(seat, PhantomData))
    }

    /// The counters of all threads.
    pub(super) fn counts(&self) -> impl Iterator<Item = &AtomicUsize> {
        self.seats
            .iter()
            .filter_map(|seat| Some(&seat.get()?.count))
    }
}
