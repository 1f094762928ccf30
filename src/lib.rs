//! nameifs: a FUSE mirror of a directory tree with slab-cached name lookups.

pub mod clock;
#[cfg(not(feature = "loom"))]
pub mod dcache;
pub mod error;
#[cfg(not(feature = "loom"))]
pub mod fs;
#[cfg(not(feature = "loom"))]
pub mod fuse;
pub mod ioctl;
#[cfg(not(feature = "loom"))]
pub mod name;
#[cfg(not(feature = "loom"))]
pub mod namei;
#[cfg(not(feature = "loom"))]
pub mod notice;
pub mod slab;
pub mod source;
pub mod sync;

/// Of the dentry cache loom checks the directories alone: hash tables behind parking_lot's
/// locks are nothing that it could schedule.
#[cfg(feature = "loom")]
#[allow(dead_code)]
mod dcache {
    mod dir;
    mod listing;
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests;
