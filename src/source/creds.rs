//! Acting as the caller (floor F3).
//!
//! Purpose: what a caller changes is changed by the source for that caller: owner,
//! group, set-group-id rules, permissions and quotas are its own decisions then,
//! and nothing exists for a moment with another owner or a wider mode.
//!
//! Contract: identities are those of the calling *thread* (setfsuid(2), setfsgid(2),
//! and the raw setgroups and umask of a thread that shares neither), put on before
//! and taken off after one call. With a file system user other than 0 the kernel
//! takes the capabilities that override permissions from the thread for that time.
//!
//! Where the daemon is not root it acts as itself: everything belongs to whoever
//! mounted.

use std::cell::Cell;
use std::io::Read;

use caps::{CapSet, Capability};
use nix::sched::CloneFlags;
use nix::unistd::{Gid as NixGid, Uid as NixUid, setfsgid, setfsuid};
use rustix::fs::Mode;
use rustix::process::Gid;

use super::Caller;
use crate::error::{Errno, Result};

thread_local! {
    /// Whether this thread has a umask of its own (CLONE_FS undone).
    static OWN_FS: Cell<bool> = const { Cell::new(false) };
}

/// Whether the daemon may act as others at all.
#[derive(Clone, Copy, Debug)]
pub struct Creds {
    root: bool,
}

impl Creds {
    /// Of this process.
    pub fn of_process() -> Self {
        Self {
            root: rustix::process::geteuid().is_root(),
        }
    }

    /// Runs `f` as the caller, with its umask.
    ///
    /// # Errors
    /// Of `f`; EPERM if the identity cannot be put on.
    pub fn act<R>(self, caller: &Caller, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let _umask = Umask::set(caller.umask)?;
        let _identity = self.identity(caller)?;
        f()
    }

    fn identity(self, caller: &Caller) -> Result<Option<Identity>> {
        if !self.root || (caller.uid == 0 && caller.gid == 0) {
            return Ok(None);
        }
        Identity::put_on(caller).map(Some)
    }

    /// Runs `f` without the right to leave set-user-id and set-group-id standing
    /// (CAP_FSETID).
    ///
    /// # Errors
    /// Of `f`; EPERM if the right cannot be laid down.
    pub fn without_fsetid<R>(self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        if !self.root {
            return f();
        }
        let set = CapSet::Effective;
        caps::drop(None, set, Capability::CAP_FSETID).map_err(|_| Errno::PERM)?;
        let result = f();
        if caps::raise(None, set, Capability::CAP_FSETID).is_err() {
            tracing::error!("CAP_FSETID cannot be raised again");
        }
        result
    }
}

/// A umask put on this thread, the old one put back when dropped.
struct Umask(Mode);

impl Umask {
    fn set(umask: u32) -> Result<Self> {
        if !OWN_FS.get() {
            nix::sched::unshare(CloneFlags::CLONE_FS).map_err(|_| Errno::PERM)?;
            OWN_FS.set(true);
        }
        Ok(Self(rustix::process::umask(Mode::from_raw_mode(umask))))
    }
}

impl Drop for Umask {
    fn drop(&mut self) {
        rustix::process::umask(self.0);
    }
}

/// An identity put on this thread, the daemon's own put back when dropped.
struct Identity;

impl Identity {
    fn put_on(caller: &Caller) -> Result<Self> {
        // Dropped on failure, so that a half put on identity is taken off.
        let identity = Self;
        // Root is above groups. Others are judged by them, so they must be known:
        // without them access would be narrower, never wider.
        if caller.uid != 0 {
            set_groups(&groups_of(caller))?;
        }
        setfsgid(NixGid::from_raw(caller.gid));
        setfsuid(NixUid::from_raw(caller.uid));
        Ok(identity)
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        setfsuid(NixUid::from_raw(0));
        setfsgid(NixGid::from_raw(0));
        if set_groups(&[]).is_err() {
            tracing::error!("supplementary groups cannot be laid down");
        }
    }
}

/// Sets the supplementary groups of this thread alone.
fn set_groups(groups: &[Gid]) -> Result<()> {
    rustix::thread::set_thread_groups(groups)
}

/// The supplementary groups of the calling thread, as /proc shows them.
fn groups_of(caller: &Caller) -> Vec<Gid> {
    if caller.pid == 0 {
        return Vec::new();
    }
    let mut status = [0; 4096];
    let len = std::fs::File::open(format!("/proc/{}/status", caller.pid))
        .and_then(|mut f| f.read(&mut status))
        .unwrap_or(0);
    parse_groups(&status[..len])
}

fn parse_groups(status: &[u8]) -> Vec<Gid> {
    let line = status
        .split(|&b| b == b'\n')
        .find_map(|l| l.strip_prefix(b"Groups:"));
    let text = line
        .and_then(|l| std::str::from_utf8(l).ok())
        .unwrap_or_default();
    text.split_ascii_whitespace()
        .filter_map(|g| g.parse().ok())
        .map(Gid::from_raw)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_as_proc_shows_them() {
        let status = b"Name:\tx\nGid:\t5\t5\t5\t5\nGroups:\t4 24 1000 \nNStgid:\t1\n";
        let groups: Vec<u32> = parse_groups(status)
            .into_iter()
            .map(|g| g.as_raw())
            .collect();
        assert_eq!(groups, [4, 24, 1000]);
        assert!(parse_groups(b"Groups:\t\n").is_empty());
        assert!(parse_groups(b"").is_empty());
    }
}
