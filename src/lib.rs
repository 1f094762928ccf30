//! nameifs: a FUSE mirror of a directory tree with slab-cached name lookups.

pub mod clock;
pub mod dcache;
pub mod error;
pub mod fs;
pub mod fuse;
pub mod name;
pub mod namei;
pub mod notice;
pub mod slab;
pub mod source;
pub mod sync;

#[cfg(test)]
mod tests;
