//! Directories of a test, and how stuck mounts are cut.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::observe::{Aside, mounts_below};
use crate::run::{PATIENCE, command, try_run_within};

/// A temporary directory that is never deleted through a mount.
pub struct Place {
    dir: PathBuf,
}

impl Place {
    /// Makes one that everybody may enter.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("nameifs-test-")
            .tempdir()
            .expect("a temporary directory")
            .keep();
        let dir = dir.canonicalize().expect("it was just made");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("it is ours");
        Self { dir }
    }

    /// Its path, free of symlinks.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// A directory in it, made where it is missing.
    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir).expect("a directory of a test");
        dir
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for left in mounts_below(&self.dir) {
            complain(&format!("a mount is left at {}", left.target.display()));
            abort(left.minor);
            let _ = rustix::mount::unmount(&left.target, rustix::mount::UnmountFlags::DETACH);
        }
        if !mounts_below(&self.dir).is_empty() {
            complain(&format!(
                "not deleted, mounts in it: {}",
                self.dir.display()
            ));
            return;
        }
        // Takes directories of mode 000 and paths of any length.
        let _ = try_run_within(
            command(["chmod", "-R", "u+rwX"]).arg(&self.dir),
            Duration::from_secs(30),
        );
        let mut rm = command(["rm", "-rf", "--one-file-system", "--"]);
        if let Err(why) = try_run_within(rm.arg(&self.dir), PATIENCE) {
            complain(&why);
        }
    }
}

/// Fails the test, or says so where it is failing already.
pub fn complain(why: &str) {
    if thread::panicking() {
        eprintln!("{why}");
    } else {
        panic!("{why}");
    }
}

/// Cuts a FUSE connection: everything that waits for its daemon gets an error.
pub fn abort(minor: u32) {
    let file = format!("/sys/fs/fuse/connections/{minor}/abort");
    if fs::write(&file, "1").is_ok() {
        return;
    }
    if let Ok(dir) = tempfile::tempdir() {
        let at = dir.path().join("fusectl");
        let _control = Aside::mount("fusectl", &at);
        let _ = fs::write(at.join(minor.to_string()).join("abort"), "1");
    }
}
