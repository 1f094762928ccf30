//! Tests of the slab floor that need more than one of its files.

mod cache;
mod table;
