//! The host's directory.
