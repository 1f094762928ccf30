//! Tests against the real kernel: every one mounts with the built `nameifs`
//! command, in a directory of its own, and looks at the result as any program
//! would.
//!
//! They need `/dev/fuse`. Where it is missing they say so on standard error and
//! pass, unless `MOUNT_TESTS=require` (or `CI`) is set: then they fail. The same
//! holds for what a test needs besides (root, a Debian package).
//!
//! `NAMEIFS_TEST_MIRROR=PROGRAM` puts another command in the place of the built
//! one; `mount-tests/mirrors` has two (a bind mount, which passes what needs no
//! virtual file, and bindfs). That is how the checks themselves are tested.

mod harness;
mod observe;
mod place;
mod run;
mod terminal;
mod tree;

mod cli;
mod coherence;
mod concurrency;
mod debug;
mod files;
mod identity;
mod lifecycle;
mod mirror;
mod options;
mod posix;
mod readdir;
mod requests;
mod resources;
mod slabinfo;
mod top;
mod warm;
mod watch;
mod write;
