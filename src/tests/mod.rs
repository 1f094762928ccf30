//! White-box tests that span floors.

mod floors;
