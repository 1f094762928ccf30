//! Slab caches (floor F1): named supplies of objects of one type.
//!
//! Two front ends share one accounting, so that `.slabinfo` is the structure
//! and not a painting of it:
//!
//! * [`KmemCache`] lends whole objects to one owner at a time, through a guard
//!   that gives the object back when dropped (name buffers, open files).
//! * [`ObjTable`] keeps objects that many refer to by a 32-bit [`ObjId`]
//!   (dentries, inodes).
//!
//! This module knows no word of filesystems.

mod attributes;
mod cache;
mod fault;
mod guard;
mod index;
mod info;
mod layout;
mod lists;
mod magazine;
mod options;
mod owner;
mod page;
mod poison;
mod registry;
mod report;
mod store;
mod table;
mod thread;
mod watch;

pub use cache::{KmemCache, Obj};
pub use info::{CacheInfo, parse_slabinfo, render_slabinfo};
pub use options::{DebugAction, DebugRules, FaultRule, OptionError, SlabDebug, SlabOptions};
pub use registry::Registry;
pub use report::{SlabBug, SlabReport};
pub use table::{ObjId, ObjTable, ReadGuard, WriteGuard};

bitflags::bitflags! {
    /// How a cache lays out its objects; the kernel's SLAB_* flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SlabFlags: u32 {
        /// Objects start on a cache line (64 bytes).
        const HWCACHE_ALIGN = 1;
        /// A magazine per thread stands in front of the slabs.
        const MAGAZINES = 2;
    }
}

/// The cache could not supply an object (out of memory, or an injected fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocError;

#[cfg(test)]
mod tests;
