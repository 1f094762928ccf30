//! The tests that need minutes: walks of large trees, public suites, clients of the
//! write side, long random sequences. The same harness as `main.rs`; run by
//! `cargo test --test mount-long`.
#![allow(dead_code)] // the harness is shared, and each half uses its part of it

mod harness;
mod observe;
mod place;
mod run;
mod tree;

mod mirror;
mod resources;
mod write;
