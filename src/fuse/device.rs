//! Reading requests and writing replies (floor F6).
//!
//! Contract: a request is answered on the end of the device that it was read from, for
//! that is where the kernel looks for it. A [`Reply`] is a thread's own and used again
//! for each request, so that none allocates.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use tracing::{debug, warn};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::abi::{InHeader, OutHeader};
use crate::error::{Errno, Result, level};
use crate::sync::Arc;

/// Bytes that one WRITE may carry, and one READ may ask for.
pub(super) const MAX_DATA: usize = 1 << 20;
/// Room for headers, names and arguments beside the data.
const EXTRA: usize = 8 << 10;
const PAGE: usize = 4096;

/// One end of the FUSE device.
pub(super) type Device = Arc<OwnedFd>;

/// A further end of the connection of `device`.
///
/// # Errors
/// EMFILE, and those of FUSE_DEV_IOC_CLONE.
pub(super) fn further_end(device: impl AsFd) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let fresh = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
    crate::ioctl::fuse_clone(&fresh, device.as_fd().as_raw_fd() as u32)?;
    Ok(fresh)
}

/// The arguments of a request, taken from the front.
#[derive(Clone, Copy)]
pub(super) struct Args<'a>(&'a [u8]);

impl<'a> Args<'a> {
    /// The next structure.
    ///
    /// # Errors
    /// EPROTO if there is less.
    pub(super) fn take<T: FromBytes>(&mut self) -> Result<T> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::PROTO)?;
        self.0 = rest;
        Ok(value)
    }

    /// The next name, which ends with a NUL.
    ///
    /// # Errors
    /// EPROTO if none does.
    pub(super) fn name(&mut self) -> Result<&'a [u8]> {
        let len = self.0.iter().position(|&b| b == 0).ok_or(Errno::PROTO)?;
        let name = &self.0[..len];
        self.0 = &self.0[len + 1..];
        Ok(name)
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// EPROTO if there are fewer.
    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Errno::PROTO)?;
        self.0 = rest;
        Ok(bytes)
    }
}

/// Answers a request with an outcome that has no data.
pub(super) fn answer(device: &Device, unique: u64, outcome: Result<()>) {
    let error = outcome.err().map_or(0, wire);
    let header = OutHeader {
        len: size_of::<OutHeader>() as u32,
        error,
        unique,
    };
    write(device, header.as_bytes());
}

fn write(device: &Device, reply: &[u8]) {
    match rustix::io::write(device, reply) {
        // Whoever asked is gone, or the whole mount.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
        Err(e) => warn!(error = %e, bytes = reply.len(), "a reply was not taken"),
    }
}

/// An errno for the wire; notes it in the log as loud as it deserves.
fn wire(e: Errno) -> i32 {
    let number = e.raw_os_error();
    match level(e) {
        tracing::Level::WARN => warn!(errno = number, "{e}"),
        tracing::Level::DEBUG => debug!(errno = number, "{e}"),
        _ => tracing::trace!(errno = number, "{e}"),
    }
    -number
}

/// What a request is answered with, as it grows.
pub(super) struct Reply {
    room: Vec<u8>,
    /// Where the header starts; what follows it starts on a page, as reads past the page
    /// cache want it.
    start: usize,
    /// Bytes behind the header.
    len: usize,
}

impl Reply {
    fn new() -> Self {
        let room = vec![0; PAGE + size_of::<OutHeader>() + MAX_DATA + EXTRA];
        let header = size_of::<OutHeader>();
        let start = room[header..].as_ptr().align_offset(PAGE);
        Self {
            room,
            start,
            len: 0,
        }
    }

    fn body(&self) -> usize {
        self.start + size_of::<OutHeader>()
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a structure.
    pub(super) fn put(&mut self, value: &(impl IntoBytes + Immutable)) {
        self.put_bytes(value.as_bytes());
    }

    /// Appends bytes; what is larger than the kernel may ask for is cut.
    pub(super) fn put_bytes(&mut self, bytes: &[u8]) {
        let room = &mut self.room[self.start + size_of::<OutHeader>() + self.len..];
        let n = bytes.len().min(room.len());
        room[..n].copy_from_slice(&bytes[..n]);
        self.len += n;
    }

    /// Lets `f` write up to `size` bytes at the end; it returns how many.
    ///
    /// # Errors
    /// Of `f`.
    pub(super) fn fill(
        &mut self,
        size: usize,
        f: impl FnOnce(&mut [u8]) -> Result<usize>,
    ) -> Result<()> {
        let from = self.body() + self.len;
        let size = size.min(self.room.len() - from);
        self.len += f(&mut self.room[from..from + size])?.min(size);
        Ok(())
    }

    /// Whether nothing but zeros lies in the way of alignment: appends zeros up to a
    /// multiple of 8 bytes.
    pub(super) fn pad(&mut self) {
        let missing = self.len.next_multiple_of(8) - self.len;
        self.put_bytes(&[0; 8][..missing]);
    }

    fn send(&mut self, device: &Device, unique: u64) {
        let len = size_of::<OutHeader>() + self.len;
        let header = OutHeader {
            len: len as u32,
            error: 0,
            unique,
        };
        let reply = &mut self.room[self.start..self.start + len];
        reply[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        write(device, reply);
    }
}

/// What a handler leaves to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The reply is sent.
    Send,
    /// Nothing: this kind has no reply, or it is sent later by [`answer`].
    Nothing,
}

/// Reads requests and has them handled, until the mount ends.
///
/// # Errors
/// The device's; ECONNABORTED and ENODEV are how a mount ends and no errors.
pub(super) fn serve(
    device: &Device,
    mut handle: impl FnMut(&InHeader, Args<'_>, &mut Reply) -> Result<Next>,
) -> std::io::Result<()> {
    let mut request = vec![0; MAX_DATA + EXTRA];
    let mut reply = Reply::new();
    loop {
        let len = match rustix::io::read(device, &mut request[..]) {
            Ok(len) => len,
            // A request that was taken back, or a signal.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let Ok((header, args)) = InHeader::read_from_prefix(&request[..len]) else {
            return Err(Errno::PROTO.into());
        };
        reply.len = 0;
        match handle(&header, Args(args), &mut reply) {
            Ok(Next::Send) => reply.send(device, header.unique),
            Ok(Next::Nothing) => {}
            Err(e) => answer(device, header.unique, Err(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_end_where_the_request_does() {
        let mut args = Args(b"\x05\0\0\0\0\0\0\0ab\0c");
        assert_eq!(args.take::<u64>(), Ok(5));
        assert_eq!(args.name(), Ok(&b"ab"[..]));
        assert_eq!(args.name(), Err(Errno::PROTO));
        assert_eq!(args.bytes(2), Err(Errno::PROTO));
        assert_eq!(args.bytes(1), Ok(&b"c"[..]));
        assert_eq!(args.take::<u32>(), Err(Errno::PROTO));
    }

    #[test]
    fn data_in_a_reply_starts_on_a_page() {
        let mut reply = Reply::new();
        let filled = reply.fill(10, |room| {
            assert_eq!(room.as_ptr().addr() % PAGE, 0);
            assert_eq!(room.len(), 10);
            Ok(3)
        });
        assert_eq!((filled, reply.len()), (Ok(()), 3));
        reply.pad();
        assert_eq!(reply.len(), 8);
    }

    #[test]
    fn a_reply_never_outgrows_its_room() {
        let mut reply = Reply::new();
        let asked = reply.fill(usize::MAX, |room| Ok(room.len()));
        assert_eq!(asked, Ok(()));
        reply.put_bytes(&[1; 100]);
        assert!(reply.len() >= MAX_DATA);
        assert!(reply.body() + reply.len() <= reply.room.len());
    }
}
