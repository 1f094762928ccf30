//! The in-memory source of the model tests.
