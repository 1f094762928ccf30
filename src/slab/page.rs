//! The memory of slabs, and the only unsafe code of the crate.
//!
//! What it is for: a [`RawSlab`] is one chunk of memory with `count`
//! constructed objects; it hands them out as [`Handle`]s, tokens that cannot
//! be copied; [`Lent`] is the guard around a handle; [`PerThread`] gives every
//! thread a value of its own. Everything above moves tokens and is safe Rust.
//!
//! Its contract, cited by the SAFETY notes:
//!
//! * S1. The token of object `i` ([`Handle`] or [`Raw`]) exists if and only if
//!   `out` has the key `i`, and at most once. So whoever has it has the object
//!   to himself.
//! * S2. The object of a [`Handle`] is constructed, that of a [`Raw`] is not.
//!   An object without a token is constructed, unless its slab poisons.
//! * S3. A slab's memory is given back only when `out` is empty: a slab that
//!   is dropped earlier leaks its memory rather than leave tokens dangling.
//! * S4. A cache outlives its handles: until it ends its owner holds it, from
//!   then on its own state does until the last handle is back
//!   (`cache::Core::end`).
//! * S5. A thread's number (`thread::current`, `thread::Number`) belongs to no
//!   other living thread.
//! * S6. Red zones, and unconstructed objects, are initialised bytes that no
//!   reference outlives.
//!
//! What it does not do: lists, locks, counting, policy.
#![allow(unsafe_code)]

use std::alloc::{alloc, dealloc};
use std::iter::repeat;
use std::marker::PhantomData;
use std::mem::needs_drop;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use super::AllocError;
use super::layout::Shape;
use super::owner::Owner;
use super::poison::{ACTIVE, Damage, INACTIVE, Misplaced, Part, pattern, strays};
use super::thread::{self, Number};
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

/// The right to an object of a poisoning slab, which is not constructed. Like
/// a handle, it is to be given back.
#[must_use]
pub(super) struct Raw<T>(NonNull<T>);

// SAFETY: S1 and S2, there is no T to share, only the place for one.
unsafe impl<T: Send> Send for Raw<T> {}

impl<T> Raw<T> {
    /// Puts a value there.
    pub(super) fn construct(self, value: T) -> Handle<T> {
        // SAFETY: S1, the place is ours; S2, nothing that would need dropping is there.
        unsafe { self.0.write(value) };
        Handle(self.0)
    }
}

impl<T> Handle<T> {
    /// Drops the value there.
    pub(super) fn destroy(self) -> Raw<T> {
        // SAFETY: S1 and S2, the object is constructed and ours; it is not used again.
        unsafe { self.0.drop_in_place() };
        Raw(self.0)
    }
}

/// An object out of its slab, as the slab keeps free ones.
pub(super) enum Taken<T> {
    /// Of a slab whose objects stay constructed.
    Constructed(Handle<T>),
    /// Of a slab that poisons.
    Poisoned(Raw<T>),
}

impl<T> Taken<T> {
    fn place(&self) -> NonNull<T> {
        match self {
            Taken::Constructed(handle) => handle.0,
            Taken::Poisoned(raw) => raw.0,
        }
    }

    /// Where the object lies.
    pub(super) fn addr(&self) -> usize {
        self.place().addr().get()
    }
}

/// One chunk of memory with `shape.count` objects.
pub(super) struct RawSlab<T> {
    base: NonNull<u8>,
    shape: Shape,
    poison: bool,
    /// By index, the objects that are out.
    out: slab::Slab<()>,
    /// By index, who last allocated and who last freed each object; empty
    /// unless that is tracked.
    owners: Vec<[Option<Arc<Owner>>; 2]>,
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
    /// Makes a slab and constructs its objects, or poisons them.
    ///
    /// Fails if the system has no memory for it.
    pub(super) fn new(
        shape: Shape,
        poison: bool,
        ctor: &dyn Fn() -> T,
    ) -> Result<Self, AllocError> {
        assert!(
            shape.object_size == size_of::<T>() && shape.align >= align_of::<T>(),
            "the shape is for another type"
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
        while !poison && built.count < shape.count {
            let object = place::<T>(base, &shape, built.count);
            // SAFETY: the place is inside the allocation, aligned, and not yet constructed.
            unsafe { object.write(ctor()) };
            built.count += 1;
        }
        built.forget();
        let out = slab::Slab::with_capacity(shape.count);
        let mut slab = Self {
            base,
            shape,
            poison,
            out,
            owners: Vec::new(),
            objects: PhantomData,
        };
        for index in 0..shape.count {
            slab.fill_zones(index, INACTIVE);
            slab.fill_poison(index);
        }
        Ok(slab)
    }

    /// Where the slab's memory starts.
    pub(super) fn addr(&self) -> usize {
        self.base.addr().get()
    }

    /// Objects that are out.
    pub(super) fn taken(&self) -> usize {
        self.out.len()
    }

    /// Who last allocated and who last freed object `index`, as far as that is tracked.
    pub(super) fn owners(&self, index: usize) -> [Option<Arc<Owner>>; 2] {
        self.owners.get(index).cloned().unwrap_or_default()
    }

    /// The indices of the objects that are out.
    pub(super) fn indices_out(&self) -> impl Iterator<Item = usize> {
        self.out.iter().map(|(index, ())| index)
    }

    /// The index of the object at `addr`, if it is out of this slab.
    pub(super) fn index_out(&self, addr: usize) -> Result<usize, Misplaced> {
        let offset = addr.wrapping_sub(self.addr());
        let index = self.shape.index_of(offset).ok_or(Misplaced::NotAnObject)?;
        if self.out.contains(index) {
            Ok(index)
        } else {
            Err(Misplaced::AlreadyFree)
        }
    }

    /// Hands out an object; `None` if all are out. Red zones are as before,
    /// until `activate`.
    pub(super) fn take(&mut self) -> Option<Taken<T>> {
        if self.out.len() == self.shape.count {
            return None;
        }
        let place = place(self.base, &self.shape, self.out.insert(()));
        Some(if self.poison {
            Taken::Poisoned(Raw(place))
        } else {
            Taken::Constructed(Handle(place))
        })
    }

    /// Marks the red zones of object `index`, which is out, and notes who allocated it.
    pub(super) fn activate(&mut self, index: usize, owner: Option<Arc<Owner>>) {
        self.fill_zones(index, ACTIVE);
        self.note(index, 0, owner);
    }

    /// Takes an object back and notes who freed it; refuses one that is not
    /// this slab's or is not out.
    pub(super) fn put(
        &mut self,
        taken: Taken<T>,
        owner: Option<Arc<Owner>>,
    ) -> Result<(), (Taken<T>, Misplaced)> {
        let fits = matches!(taken, Taken::Poisoned(_)) == self.poison;
        let index = match self.index_out(taken.addr()) {
            Ok(index) if fits => index,
            Ok(_) => return Err((taken, Misplaced::NotAnObject)),
            Err(misplaced) => return Err((taken, misplaced)),
        };
        self.out.remove(index);
        self.note(index, 1, owner);
        self.fill_zones(index, INACTIVE);
        self.fill_poison(index);
        Ok(())
    }

    fn note(&mut self, index: usize, which: usize, owner: Option<Arc<Owner>>) {
        if owner.is_some() {
            self.owners.resize(self.shape.count, [None, None]);
            self.owners[index][which] = owner;
        }
    }

    /// What is broken in object `index`, which is in use or is not: its red
    /// zones and, if it is not constructed, its bytes.
    pub(super) fn damage(&self, index: usize, used: bool) -> Vec<Damage> {
        if !self.is_checked() {
            return Vec::new();
        }
        let byte = if used { ACTIVE } else { INACTIVE };
        let zones = [Part::LeftZone, Part::RightZone].into_iter();
        let zones = zones.filter_map(|part| strays(part, self.zone(index, part), repeat(byte)));
        let mut damage: Vec<_> = zones.collect();
        if self.poison && !used {
            let expected = pattern(self.shape.object_size);
            damage.extend(strays(Part::Object, self.unconstructed(index), expected));
        }
        damage
    }

    /// What is broken in any object, by index.
    pub(super) fn inspect(&self) -> Vec<(usize, Damage)> {
        let of = |index| {
            let damage = self.damage(index, self.out.contains(index)).into_iter();
            damage.map(move |damage| (index, damage))
        };
        (0..self.shape.count).flat_map(of).collect()
    }

    fn is_checked(&self) -> bool {
        self.poison || self.shape.left > 0
    }

    /// The bytes of a red zone; none without red zones.
    fn zone(&self, index: usize, part: Part) -> &[u8] {
        let (offset, len) = self.shape.zone(part);
        let start = index * self.shape.stride + offset;
        debug_assert!(
            start + len <= self.shape.slab_bytes(),
            "S6: zones are inside the slab"
        );
        // SAFETY: the zone is inside the slab's allocation.
        let start = unsafe { self.base.add(start) };
        // SAFETY: S6, the bytes are initialised; they change only through `&mut self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    fn fill_zones(&mut self, index: usize, byte: u8) {
        for part in [Part::LeftZone, Part::RightZone] {
            let (offset, len) = self.shape.zone(part);
            // SAFETY: the zone is inside the slab's allocation.
            let start = unsafe { self.base.add(index * self.shape.stride + offset) };
            // SAFETY: S6, zones are bytes of ours, outside every object.
            unsafe { start.write_bytes(byte, len) };
        }
    }

    /// The bytes of an unconstructed object.
    fn unconstructed(&self, index: usize) -> &[u8] {
        debug_assert!(self.poison, "S6: only slabs that poison have such bytes");
        let start = place::<u8>(self.base, &self.shape, index);
        // SAFETY: S6, the bytes were written when the object was freed or its slab made.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.shape.object_size) }
    }

    fn fill_poison(&mut self, index: usize) {
        if !self.poison {
            return;
        }
        let start = place::<u8>(self.base, &self.shape, index);
        for (offset, byte) in pattern(self.shape.object_size).enumerate() {
            // SAFETY: the byte is inside the object.
            let place = unsafe { start.add(offset) };
            // SAFETY: S2, the object is not constructed, so its bytes are ours.
            unsafe { place.write(byte) };
        }
    }
}

impl<T> Drop for RawSlab<T> {
    fn drop(&mut self) {
        if self.out.is_empty() {
            let count = if self.poison { 0 } else { self.shape.count };
            drop(Built::<T> {
                base: self.base,
                shape: self.shape,
                count,
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
/// Few under Miri, which at each use of a seat looks at all.
pub(super) const MAX_THREADS: usize = if cfg!(any(feature = "loom", miri)) {
    8
} else {
    512
};

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
    /// Orders the making of a seat before its reading, which loom does not see `OnceLock` do.
    #[cfg(feature = "loom")]
    made: crate::sync::Mutex<()>,
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
            #[cfg(feature = "loom")]
            made: crate::sync::Mutex::new(()),
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

    /// The seat of the calling thread, whose number is `me`, if it has one.
    pub(super) fn seat_of(&self, me: &Number) -> Option<Mine<'_, X>> {
        let seat = self.seats.get(me.get())?.get()?;
        Some(Mine(seat, PhantomData))
    }

    /// Gives the calling thread a seat; `None` if there is no room.
    pub(super) fn sit(&self, make: impl FnOnce() -> X) -> Option<Mine<'_, X>> {
        let seat = self.seats.get(thread::current())?;
        #[cfg(feature = "loom")]
        let _made = self.made.lock();
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
        #[cfg(feature = "loom")]
        drop(self.made.lock());
        self.seats
            .iter()
            .filter_map(|seat| Some(&seat.get()?.count))
    }
}

/// Bugs for tests to plant, of the kinds that safe code cannot have.
#[cfg(all(test, not(feature = "loom")))]
pub(super) mod plant {
    use super::*;

    /// An object's address, kept longer than the object.
    pub(in crate::slab) struct Stale(NonNull<u8>);

    impl Stale {
        /// Writes a byte, `offset` bytes from the object's start; it must lie in the object's slab.
        pub(in crate::slab) fn write(&self, offset: isize, byte: u8) {
            // SAFETY: the test keeps the offset inside the slab.
            let place = unsafe { self.0.offset(offset) };
            // SAFETY: no reference to the byte is in use while a test writes it.
            unsafe { place.write(byte) };
        }
    }

    impl<T, C: Home<T>> Lent<T, C> {
        /// The object's address.
        pub(in crate::slab) fn stale(&self) -> Stale {
            Stale(self.handle.0.cast())
        }

        /// A second guard of the same object.
        pub(in crate::slab) fn twin(&self) -> Self {
            Self {
                handle: Handle(self.handle.0),
                home: self.home,
            }
        }
    }
}
