//! The byte patterns of red zones and free objects (debug modes Z and P), as
//! in the kernel's include/linux/poison.h, and what their loss says.

use std::fmt;

/// In the red zones of an object that is free.
pub(super) const INACTIVE: u8 = 0xbb;
/// In the red zones of an object that is out.
pub(super) const ACTIVE: u8 = 0xcc;
/// In a free object.
const FREE: u8 = 0x6b;
/// In the last byte of a free object.
const END: u8 = 0xa5;

/// The bytes of a free object of `size` bytes.
pub(super) fn pattern(size: usize) -> impl Iterator<Item = u8> + Clone {
    (0..size).map(move |offset| if offset + 1 == size { END } else { FREE })
}

/// A part of an object's room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The red zone before the object.
    LeftZone,
    /// The object.
    Object,
    /// The red zone behind the object.
    RightZone,
}

/// Bytes that were written where nobody should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    /// Where.
    pub(super) part: Part,
    /// The first and last changed byte, from the part's start.
    pub(super) range: (usize, usize),
    /// The first changed byte's value.
    pub(super) found: u8,
    /// What it should be.
    pub(super) expected: u8,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.range;
        let (found, expected) = (self.found, self.expected);
        write!(
            f,
            "bytes {first} to {last}, first byte {found:#04x} instead of {expected:#04x}"
        )
    }
}

/// Why an object cannot be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misplaced {
    /// No object of the cache starts there.
    NotAnObject,
    /// The object is not out.
    AlreadyFree,
}

/// Where `bytes` differ from `expected`.
pub(super) fn strays(
    part: Part,
    bytes: &[u8],
    expected: impl Iterator<Item = u8>,
) -> Option<Damage> {
    let pairs = bytes.iter().copied().zip(expected).enumerate();
    let mut differing = pairs.filter(|(_, (found, expected))| found != expected);
    let (first, (found, expected)) = differing.next()?;
    let last = differing.last().map_or(first, |(last, _)| last);
    Some(Damage {
        part,
        range: (first, last),
        found,
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strays_are_found_from_the_first_to_the_last() {
        let mut bytes: Vec<_> = pattern(4).collect();
        assert_eq!(bytes, [0x6b, 0x6b, 0x6b, 0xa5]);
        assert_eq!(strays(Part::Object, &bytes, pattern(4)), None);
        bytes[1] = 0;
        bytes[3] = 0x6b;
        let damage = strays(Part::Object, &bytes, pattern(4)).unwrap();
        assert_eq!(
            damage.to_string(),
            "bytes 1 to 3, first byte 0x00 instead of 0x6b"
        );
    }
}
