//! Locks and atomics (floor F0): std's and parking_lot's, or loom's.
//!
//! Code that loom is to check takes its primitives from here. The names are
//! the same on both sides, so nothing else changes under `--features loom`.

#[cfg(not(feature = "loom"))]
pub use std::{
    sync::{Arc, atomic},
    thread_local,
};

#[cfg(not(feature = "loom"))]
pub use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(feature = "loom")]
pub use loom::{
    sync::{Arc, atomic},
    thread_local,
};

#[cfg(feature = "loom")]
pub use model::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// parking_lot's interface (no poisoning) over loom's locks.
#[cfg(feature = "loom")]
mod model {
    pub use loom::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    /// A mutex that loom schedules.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A new, unlocked mutex.
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }
        /// Blocks until the lock is held.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("loom locks are not poisoned")
        }
        /// Takes the lock if nobody holds it.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// A reader-writer lock that loom schedules.
    #[derive(Debug)]
    pub struct RwLock<T>(loom::sync::RwLock<T>);

    impl<T> RwLock<T> {
        /// A new, unlocked lock.
        pub fn new(value: T) -> Self {
            Self(loom::sync::RwLock::new(value))
        }
        /// Blocks until the lock is held shared.
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("loom locks are not poisoned")
        }
        /// Blocks until the lock is held shared, beside a waiting writer too.
        pub fn read_recursive(&self) -> RwLockReadGuard<'_, T> {
            self.read()
        }
        /// Takes the lock shared if nobody holds it exclusively.
        pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }
        /// Takes the lock exclusively if nobody holds it.
        pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
        /// Blocks until the lock is held exclusively.
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("loom locks are not poisoned")
        }
    }
}
