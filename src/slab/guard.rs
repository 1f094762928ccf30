//! Guards of an [`super::ObjTable`]'s objects.
//!
//! A guard is the lock of the object's slab, narrowed to the object. parking_lot
//! can narrow a guard; loom's locks cannot, so there the guard keeps the slot and
//! finds the object at each use.

#[cfg(not(feature = "loom"))]
mod narrowed {
    use std::ops::{Deref, DerefMut};

    use parking_lot::{
        MappedRwLockReadGuard, MappedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    };

    /// Shared access to one object; other objects of its slab stay readable.
    #[derive(Debug)]
    pub struct ReadGuard<'a, T>(MappedRwLockReadGuard<'a, T>);
    /// Exclusive access to one object, and so to its slab.
    #[derive(Debug)]
    pub struct WriteGuard<'a, T>(MappedRwLockWriteGuard<'a, T>);

    impl<T> Deref for ReadGuard<'_, T> {
        type Target = T;
        #[inline]
        fn deref(&self) -> &T {
            &self.0
        }
    }
    impl<T> Deref for WriteGuard<'_, T> {
        type Target = T;
        #[inline]
        fn deref(&self) -> &T {
            &self.0
        }
    }
    impl<T> DerefMut for WriteGuard<'_, T> {
        #[inline]
        fn deref_mut(&mut self) -> &mut T {
            &mut self.0
        }
    }

    /// Reads slot `slot`, even if this thread reads another one of the slab and a writer waits.
    #[inline]
    pub(in crate::slab) fn read<T>(
        objects: &RwLock<slab::Slab<T>>,
        slot: usize,
    ) -> Option<ReadGuard<'_, T>> {
        RwLockReadGuard::try_map(objects.read_recursive(), |objects| objects.get(slot))
            .ok()
            .map(ReadGuard)
    }
    /// Writes slot `slot`.
    #[inline]
    pub(in crate::slab) fn write<T>(
        objects: &RwLock<slab::Slab<T>>,
        slot: usize,
    ) -> Option<WriteGuard<'_, T>> {
        RwLockWriteGuard::try_map(objects.write(), |objects| objects.get_mut(slot))
            .ok()
            .map(WriteGuard)
    }
}

#[cfg(feature = "loom")]
mod narrowed {
    use std::ops::{Deref, DerefMut};

    use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

    const HELD: &str = "an object stays in its slot while the slab is locked";

    /// Shared access to one object; other objects of its slab stay readable.
    #[derive(Debug)]
    pub struct ReadGuard<'a, T>(RwLockReadGuard<'a, slab::Slab<T>>, usize);
    /// Exclusive access to one object, and so to its slab.
    #[derive(Debug)]
    pub struct WriteGuard<'a, T>(RwLockWriteGuard<'a, slab::Slab<T>>, usize);

    impl<T> Deref for ReadGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.get(self.1).expect(HELD)
        }
    }
    impl<T> Deref for WriteGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.get(self.1).expect(HELD)
        }
    }
    impl<T> DerefMut for WriteGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.get_mut(self.1).expect(HELD)
        }
    }

    /// Reads slot `slot`.
    pub(in crate::slab) fn read<T>(
        objects: &RwLock<slab::Slab<T>>,
        slot: usize,
    ) -> Option<ReadGuard<'_, T>> {
        let objects = objects.read();
        objects.contains(slot).then(|| ReadGuard(objects, slot))
    }
    /// Writes slot `slot`.
    pub(in crate::slab) fn write<T>(
        objects: &RwLock<slab::Slab<T>>,
        slot: usize,
    ) -> Option<WriteGuard<'_, T>> {
        let objects = objects.write();
        objects.contains(slot).then(|| WriteGuard(objects, slot))
    }
}

pub use narrowed::{ReadGuard, WriteGuard};
pub(super) use narrowed::{read, write};
