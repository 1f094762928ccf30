//! White-box tests that span floors.

mod floors;
mod kernel;
mod model;
mod plan;
mod truth;
