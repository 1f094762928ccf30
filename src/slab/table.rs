//! Shared objects addressed by a 32-bit id.

use std::num::NonZeroU32;

use super::{AllocError, Registry, SlabFlags};
use crate::sync::{Arc, Mutex, RwLock};

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
    inner: Arc<RwLock<slab::Slab<Arc<RwLock<T>>>>>,
    _m: Mutex<()>,
}

/// Shared access to one object; other objects of its slab stay readable.
pub struct ReadGuard<'a, T>(
    parking_lot::ArcRwLockReadGuard<parking_lot::RawRwLock, T>,
    std::marker::PhantomData<&'a T>,
);
/// Exclusive access to one object.
pub struct WriteGuard<'a, T>(
    parking_lot::ArcRwLockWriteGuard<parking_lot::RawRwLock, T>,
    std::marker::PhantomData<&'a T>,
);

impl<T> std::ops::Deref for ReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
impl<T> std::ops::Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
impl<T> std::ops::DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Send + Sync + 'static> ObjTable<T> {
    /// Creates a table.
    pub fn create(_registry: &Registry, _name: &str, _flags: SlabFlags) -> Self {
        Self {
            inner: Arc::new(RwLock::new(slab::Slab::new())),
            _m: Mutex::new(()),
        }
    }

    /// Stores an object.
    pub fn insert(&self, value: T) -> Result<ObjId, AllocError> {
        let key = self.inner.write().insert(Arc::new(RwLock::new(value)));
        ObjId::new(key as u32 + 1).ok_or(AllocError)
    }

    /// Reads an object; `None` if the id names none.
    pub fn read(&self, id: ObjId) -> Option<ReadGuard<'_, T>> {
        let o = self.inner.read().get(id.get() as usize - 1).cloned()?;
        Some(ReadGuard(o.read_arc(), std::marker::PhantomData))
    }

    /// Changes an object; `None` if the id names none.
    pub fn write(&self, id: ObjId) -> Option<WriteGuard<'_, T>> {
        let o = self.inner.read().get(id.get() as usize - 1).cloned()?;
        Some(WriteGuard(o.write_arc(), std::marker::PhantomData))
    }

    /// Takes an object out; `None` if the id names none.
    pub fn remove(&self, id: ObjId) -> Option<T> {
        let o = self.inner.write().try_remove(id.get() as usize - 1)?;
        Arc::try_unwrap(o).ok().map(|l| l.into_inner())
    }

    /// Slabs that the table has had; each index below is a slab for [`ObjTable::scan_slab`].
    pub fn slab_count(&self) -> usize {
        1
    }

    /// Calls `f` for each object of slab `index`, with the slab locked shared: `f` must not
    /// touch the table.
    pub fn scan_slab(&self, _index: usize, mut f: impl FnMut(ObjId, &T)) {
        for (k, v) in self.inner.read().iter() {
            f(ObjId::new(k as u32 + 1).expect("not zero"), &v.read());
        }
    }

    /// Objects in use.
    pub fn len(&self) -> usize {
        self.inner.read().len()
    }

    /// Whether no object is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the slabs take.
    pub fn bytes(&self) -> usize {
        self.len() * size_of::<T>()
    }

    /// Gives empty slabs back to the system; returns their bytes.
    pub fn shrink(&self) -> usize {
        0
    }
}
