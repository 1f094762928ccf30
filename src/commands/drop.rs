//! `nameifs drop`: everything, or one path and what is beneath it, is looked up anew
//! (floor F7).

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use super::{mountinfo, path_below, reason, umount};
use crate::cli::{DropArgs, Outcome, failed};

/// How long to wait until the kernel has been told.
const BOUND: Duration = Duration::from_secs(5);

/// Writes to the mirror's `drop_caches`.
pub fn run(args: &DropArgs) -> Outcome {
    let mount = umount::mirror_at(&args.mountpoint)?;
    let mut line = b"1".to_vec();
    if let Some(path) = &args.path {
        let below = path_below(&args.mountpoint, path)?;
        line.push(b' ');
        line.extend_from_slice(below.as_os_str().as_bytes());
    }
    let control = mount.mountpoint.join(".nameifs/drop_caches");
    let written = std::fs::OpenOptions::new()
        .write(true)
        .open(control)
        .and_then(|mut file| file.write_all(&line));
    let told = |mount: &mountinfo::Mount| {
        let text = std::fs::read(mount.mountpoint.join(".nameifs/stats")).ok()?;
        let stats: serde_json::Value = serde_json::from_slice(&text).ok()?;
        Some(stats["limits"]["notices"] == 0)
    };
    written.map_err(|e| {
        let hint = match e.raw_os_error() {
            Some(libc::EROFS) => "; it is mounted ro: mount -o remount,rw it first",
            Some(libc::ENOENT) => "; it was mounted with --slabinfo=off",
            Some(libc::EACCES) => "; only who mounted it may",
            _ => "",
        };
        failed(format!(
            "cannot drop what {} has cached: {}{hint}",
            args.mountpoint.display(),
            reason(&e)
        ))
    })?;
    // The kernel is told by another thread; whoever looks next is to see it done.
    let end = Instant::now() + BOUND;
    while told(&mount) == Some(false) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
