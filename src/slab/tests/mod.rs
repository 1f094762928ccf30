//! Tests of the slab floor that need more than one of its files.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

/// `natural`, or `miri` under Miri, which takes some thousand times as long for a step.
#[cfg(not(feature = "loom"))]
const fn count(natural: usize, miri: usize) -> usize {
    if cfg!(miri) { miri } else { natural }
}

#[cfg(not(feature = "loom"))]
mod cache;
#[cfg(not(feature = "loom"))]
mod debug;
#[cfg(not(feature = "loom"))]
mod properties;
#[cfg(feature = "loom")]
mod races;
#[cfg(not(feature = "loom"))]
mod table;
