//! Exclusive objects behind a guard.

use super::{AllocError, Registry, SlabFlags};
use crate::sync::{Arc, Mutex};

/// A named cache of objects of type `T`.
pub struct KmemCache<T> {
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    ctor: Box<dyn Fn() -> T + Send + Sync>,
    free: Mutex<Vec<Box<T>>>,
}

impl<T> Clone for KmemCache<T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<T: Send + 'static> KmemCache<T> {
    /// Creates a cache; `ctor` builds an object when its slab is made.
    pub fn create(
        _registry: &Registry,
        _name: &str,
        _flags: SlabFlags,
        ctor: impl Fn() -> T + Send + Sync + 'static,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                ctor: Box::new(ctor),
                free: Mutex::new(Vec::new()),
            }),
        }
    }

    /// Gives empty slabs back to the system; their bytes.
    pub fn shrink(&self) -> usize {
        0
    }

    /// Lends an object, in the state in which it was last given back.
    pub fn alloc(&self) -> Result<Obj<T>, AllocError> {
        let object = self
            .inner
            .free
            .lock()
            .pop()
            .unwrap_or_else(|| Box::new((self.inner.ctor)()));
        Ok(Obj {
            object: Some(object),
            cache: self.inner.clone(),
        })
    }
}

/// A borrowed object; dropping it gives the object back.
pub struct Obj<T> {
    object: Option<Box<T>>,
    cache: Arc<Inner<T>>,
}

impl<T> std::ops::Deref for Obj<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.object.as_ref().expect("held until drop")
    }
}

impl<T> std::ops::DerefMut for Obj<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.object.as_mut().expect("held until drop")
    }
}

impl<T> Drop for Obj<T> {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            self.cache.free.lock().push(object);
        }
    }
}
