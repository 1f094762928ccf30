//! `nameifs umount`: unmount, and wait until the daemon has ended (floor F7).
//!
//! The mount itself is never asked anything, so one whose daemon hangs or has
//! died is removed like any other.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::mount::UnmountFlags;

use super::{check, daemon, mountinfo, reason};
use crate::cli::{Failure, Outcome, UmountArgs, failed};

/// How long the daemon may take to end once its mount is gone.
const BOUND: Duration = Duration::from_secs(10);

/// Unmounts one mirror.
pub fn run(args: &UmountArgs) -> Outcome {
    let mount = mirror_at(&args.mountpoint)?;
    let shown = args.mountpoint.display();
    let serving = daemon::serving(&mount);
    detach(&mount.mountpoint, args.lazy).map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) => failed(format!(
            "{shown} is in use; end what uses it (fuser -vm {shown} lists it), or add --lazy"
        )),
        _ => failed(format!("cannot unmount {shown}: {}", reason(&e))),
    })?;
    match serving {
        Some(serving) if !args.lazy && !serving.wait(BOUND) => Err(failed(format!(
            "{shown} is unmounted, but its daemon still runs after {} s; look at process {}",
            BOUND.as_secs(),
            serving.pid
        ))),
        _ => Ok(()),
    }
}

/// The mirror that is mounted at a path as typed.
///
/// # Errors
/// Nothing is mounted there, or something else.
pub fn mirror_at(typed: &Path) -> Result<mountinfo::Mount, Failure> {
    let shown = typed.display();
    let path = mountinfo::canonical(typed).map_err(|e| {
        failed(format!(
            "cannot reach {shown}: {}; give a mountpoint",
            reason(&e)
        ))
    })?;
    let mount = mountinfo::find(&path)
        .map_err(|e| failed(format!("cannot read /proc/self/mountinfo: {}", reason(&e))))?;
    match mount {
        Some(mount) if mount.is_ours() => Ok(mount),
        Some(mount) => Err(failed(format!(
            "{shown} is a mount of type {}, not of nameifs; use umount(8) for it",
            mount.fstype
        ))),
        None => Err(failed(format!(
            "nothing is mounted on {shown}; findmnt -t {} lists the mirrors",
            mountinfo::FSTYPE
        ))),
    }
}

/// Unmounts by system call, or by fusermount3 where that is not permitted.
///
/// # Errors
/// EBUSY if in use and not `lazy`; what fusermount3 says, as text.
pub fn detach(mountpoint: &Path, lazy: bool) -> io::Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    if lazy {
        flags |= UnmountFlags::DETACH;
    }
    match rustix::mount::unmount(mountpoint, flags) {
        Err(rustix::io::Errno::PERM) => {}
        done => return done.map_err(io::Error::from),
    }
    let program = check::fusermount().ok_or_else(|| {
        io::Error::other(
            "not permitted, and fusermount3 is not installed; install the package fuse3, or be root",
        )
    })?;
    let output = Command::new(program)
        .args(if lazy {
            &["-u", "-z", "--"][..]
        } else {
            &["-u", "--"]
        })
        .arg(mountpoint)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("not found in") || said.contains("not permitted") {
        return Err(io::Error::other(
            "only root and the user who mounted it may do that",
        ));
    }
    if said.contains("busy") {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    Err(io::Error::other(said.trim().to_owned()))
}
