//! nameifs: a FUSE mirror of a directory tree with slab-cached name lookups.

pub mod error;
pub mod name;
pub mod slab;
pub mod source;
pub mod sync;
