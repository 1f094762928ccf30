//! ioctl(2) where no library has a safe binding (floor F0).
//!
//! Purpose: project and extent flags of a file (linux/fs.h), further ends of the FUSE
//! device and what becomes of its backing files (linux/fuse.h).
//!
//! Contract: each function is safe to call with any descriptor: one that does not know
//! the request answers ENOTTY and touches nothing.

#![allow(unsafe_code)]

use std::os::fd::AsFd;

use rustix::ioctl::{Getter, Opcode, Setter, opcode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Result;

/// `struct fsxattr` of linux/fs.h, what FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR carry.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Fsxattr {
    /// FS_XFLAG_ bits.
    pub xflags: u32,
    /// Size of new extents in bytes.
    pub extsize: u32,
    /// Extents there are.
    pub nextents: u32,
    /// Project, for quotas.
    pub projid: u32,
    /// Size of new extents of a copy on write, in bytes.
    pub cowextsize: u32,
    pad: [u8; 8],
}

const FSGETXATTR: Opcode = opcode::read::<Fsxattr>(b'X', 31);
const FSSETXATTR: Opcode = opcode::write::<Fsxattr>(b'X', 32);
const FUSE_CLONE: Opcode = opcode::read::<u32>(229, 0);
const FUSE_BACKING_CLOSE: Opcode = opcode::write::<u32>(229, 2);

/// FS_IOC_FSGETXATTR.
///
/// # Errors
/// ENOTTY where the filesystem has no such thing.
pub fn fsxattr(file: impl AsFd) -> Result<Fsxattr> {
    // SAFETY: the request, whose number holds the size, writes one `struct fsxattr`.
    let get = unsafe { Getter::<FSGETXATTR, Fsxattr>::new() };
    // SAFETY: as above; other drivers that use the number agree on the size.
    unsafe { rustix::ioctl::ioctl(file, get) }
}

/// FS_IOC_FSSETXATTR.
///
/// # Errors
/// ENOTTY, EPERM, EINVAL, and the filesystem's.
pub fn set_fsxattr(file: impl AsFd, to: Fsxattr) -> Result<()> {
    // SAFETY: the request only reads one `struct fsxattr`.
    let set = unsafe { Setter::<FSSETXATTR, Fsxattr>::new(to) };
    // SAFETY: as above.
    unsafe { rustix::ioctl::ioctl(file, set) }
}

/// FUSE_DEV_IOC_CLONE: makes `fresh`, a new open of /dev/fuse, a further end of the
/// connection that `of` belongs to.
///
/// # Errors
/// EINVAL if they are no such descriptors.
pub fn fuse_clone(fresh: impl AsFd, of: u32) -> Result<()> {
    // SAFETY: the request only reads one 32-bit descriptor number, whatever its name says.
    let set = unsafe { Setter::<FUSE_CLONE, u32>::new(of) };
    // SAFETY: as above.
    unsafe { rustix::ioctl::ioctl(fresh, set) }
}

/// FUSE_DEV_IOC_BACKING_CLOSE: gives a backing file back.
///
/// # Errors
/// ENOENT if there is none of that number.
pub fn fuse_backing_close(device: impl AsFd, id: u32) -> Result<()> {
    // SAFETY: the request only reads one 32-bit number.
    let set = unsafe { Setter::<FUSE_BACKING_CLOSE, u32>::new(id) };
    // SAFETY: as above.
    unsafe { rustix::ioctl::ioctl(device, set) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!(FSGETXATTR, 0x801c_581f);
        assert_eq!(FSSETXATTR, 0x401c_5820);
        assert_eq!(FUSE_CLONE, 0x8004_e500);
        assert_eq!(FUSE_BACKING_CLOSE, 0x4004_e502);
    }

    #[test]
    fn who_does_not_know_the_request_refuses_it() {
        let null = std::fs::File::open("/dev/null").expect("there everywhere");
        assert_eq!(fsxattr(&null), Err(Errno::NOTTY));
        assert_eq!(set_fsxattr(&null, Fsxattr::default()), Err(Errno::NOTTY));
        assert!(fuse_clone(&null, 0).is_err());
        assert_eq!(fuse_backing_close(&null, 1), Err(Errno::NOTTY));
    }
}
