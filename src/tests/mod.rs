//! White-box tests that span floors.

mod change;
mod floors;
mod kernel;
mod model;
mod own;
mod plan;
mod readahead;
mod regress;
mod slow;
mod syscalls;
mod truth;
mod user;
