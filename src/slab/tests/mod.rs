//! Tests of the slab floor that need more than one of its files.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod cache;
mod debug;
mod table;
