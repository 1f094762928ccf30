//! Attributes at rest (floor F3).
//!
//! Purpose: [`Attr`] in 44 bytes, with the moment at which it was read. What nearly all
//! objects have fits: the owners that occur are few and have numbers, sizes stay below
//! 1 TiB, links below 65,536. What does not fit is kept whole beside, so that it costs
//! memory and nothing else.
//!
//! Contract: a value that was packed comes back as it was.

use std::sync::OnceLock;

use dashmap::DashMap;
use parking_lot::Mutex;

use super::InodeId;
use crate::clock::Millis;
use crate::source::{Attr, Kind, SourceId, Time};
use crate::sync::atomic::{AtomicU64, Ordering};

/// A time in 64 bits: seconds biased so that the range of ext4's 34-bit
/// timestamps (1901 to 2446) fits, nanoseconds below.
pub(super) fn pack_time(t: Time) -> Option<u64> {
    let sec = t.sec.checked_add(1 << 31)?;
    (0..1 << 34)
        .contains(&sec)
        .then_some((sec as u64) << 30 | u64::from(t.nsec))
}

pub(super) fn unpack_time(t: u64) -> Time {
    Time {
        sec: (t >> 30) as i64 - (1 << 31),
        nsec: (t & ((1 << 30) - 1)) as u32,
    }
}

/// A number in halves, so that what holds it needs no alignment of eight.
fn halves(n: u64) -> [u32; 2] {
    [n as u32, (n >> 32) as u32]
}

fn whole([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Preferred sizes of I/O are powers of two from this one's on, 16 of them.
const BLKSIZE_MIN_LOG2: u32 = 9;

/// Pairs of owner and group that get a number.
const OWNERS: usize = 1 << 16;
const CHUNK: usize = 256;

/// Numbers for the pairs of user and group that own anything; a number is for good.
struct Owners {
    numbers: DashMap<(u32, u32), u16>,
    /// How many there are.
    given: Mutex<usize>,
    /// The pairs by number, in chunks that are made as they are needed.
    pairs: Box<[OnceLock<Box<[AtomicU64]>>]>,
}

impl Owners {
    fn new() -> Self {
        Self {
            numbers: DashMap::with_shard_amount(4),
            given: Mutex::new(0),
            pairs: (0..OWNERS / CHUNK).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The number of a pair; `None` once there are too many.
    fn number(&self, pair: (u32, u32)) -> Option<u16> {
        if let Some(number) = self.numbers.get(&pair) {
            return Some(*number);
        }
        let mut given = self.given.lock();
        if let Some(number) = self.numbers.get(&pair) {
            return Some(*number);
        }
        let number = u16::try_from(*given).ok()?;
        let chunk = self.pairs[*given / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| AtomicU64::new(0)).collect());
        let packed = u64::from(pair.0) << 32 | u64::from(pair.1);
        chunk[*given % CHUNK].store(packed, Ordering::Release);
        self.numbers.insert(pair, number);
        *given += 1;
        Some(number)
    }

    /// The pair that has a number.
    fn pair(&self, number: u16) -> (u32, u32) {
        let number = usize::from(number);
        let chunk = self.pairs[number / CHUNK].get();
        let packed = chunk.map_or(0, |c| c[number % CHUNK].load(Ordering::Acquire));
        ((packed >> 32) as u32, packed as u32)
    }
}

/// [`Attr`] without identity and kind, and when it was read: see [`Attrs`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PackedAttr {
    atime: [u32; 2],
    mtime: [u32; 2],
    ctime: [u32; 2],
    size_low: u32,
    /// Of a device node the device number instead: it has no blocks.
    blocks: u32,
    at_low: u32,
    /// Permission bits, and above them the preferred size of I/O.
    mode: u16,
    owner: u16,
    nlink: u16,
    size_high: u8,
    at_high: u8,
}

impl PackedAttr {
    /// When it was read; 0 when it must not be used.
    pub(super) fn at(&self) -> Millis {
        u64::from(self.at_low) | u64::from(self.at_high) << 32
    }

    /// It must not be used any more.
    pub(super) fn forget(&mut self) {
        (self.at_low, self.at_high) = (0, 0);
    }

    /// Notes when it was read. After 34 years the moment stands still, so that what was
    /// read then looks older than it is.
    fn set_at(&mut self, at: Millis) {
        let at = at.min((1 << 40) - 1);
        (self.at_low, self.at_high) = (at as u32, (at >> 32) as u8);
    }
}

fn is_device(kind: Kind) -> bool {
    matches!(kind, Kind::CharDevice | Kind::BlockDevice)
}

/// Where attributes are packed and unpacked.
pub(super) struct Attrs {
    owners: Owners,
    /// Attributes that do not fit; what is packed of them is the moment alone.
    wide: DashMap<InodeId, Attr>,
}

impl Attrs {
    pub(super) fn new() -> Self {
        Self {
            owners: Owners::new(),
            wide: DashMap::with_shard_amount(16),
        }
    }

    fn pack(&self, a: &Attr) -> Option<PackedAttr> {
        let log2 = a.blksize.is_power_of_two().then(|| a.blksize.ilog2())?;
        let blksize = u16::try_from(log2.checked_sub(BLKSIZE_MIN_LOG2)?).ok()?;
        let blocks = match is_device(a.kind) {
            true if a.blocks == 0 => a.rdev,
            false if a.rdev == 0 => u32::try_from(a.blocks).ok()?,
            _ => return None,
        };
        (blksize < 16 && a.perm < 1 << 12).then_some(())?;
        Some(PackedAttr {
            atime: halves(pack_time(a.atime)?),
            mtime: halves(pack_time(a.mtime)?),
            ctime: halves(pack_time(a.ctime)?),
            size_low: a.size as u32,
            size_high: u8::try_from(a.size >> 32).ok()?,
            blocks,
            mode: a.perm | blksize << 12,
            owner: self.owners.number((a.uid, a.gid))?,
            nlink: u16::try_from(a.nlink).ok()?,
            at_low: 0,
            at_high: 0,
        })
    }

    /// Keeps attributes of inode `id` that were read at `now`: packed, and whether they are
    /// kept whole beside ([`Attrs::free`] is then owed).
    pub(super) fn keep(&self, id: InodeId, attr: &Attr, now: Millis) -> (PackedAttr, bool) {
        let (mut packed, is_wide) = match self.pack(attr) {
            Some(packed) => (packed, false),
            None => {
                self.wide.insert(id, *attr);
                (PackedAttr::default(), true)
            }
        };
        packed.set_at(now);
        (packed, is_wide)
    }

    /// The attributes of inode `id`, of kind `kind`, without its identity.
    pub(super) fn unpack(
        &self,
        id: InodeId,
        kind: Kind,
        packed: &PackedAttr,
        is_wide: bool,
    ) -> Option<Attr> {
        if is_wide {
            return self.wide.get(&id).map(|attr| *attr);
        }
        let (uid, gid) = self.owners.pair(packed.owner);
        let (blocks, rdev) = match is_device(kind) {
            true => (0, packed.blocks),
            false => (packed.blocks, 0),
        };
        Some(Attr {
            id: SourceId {
                dev: 0,
                mnt: 0,
                ino: 0,
                btime: None,
            },
            kind,
            perm: packed.mode & 0o7777,
            nlink: u32::from(packed.nlink),
            uid,
            gid,
            rdev,
            size: u64::from(packed.size_low) | u64::from(packed.size_high) << 32,
            blocks: u64::from(blocks),
            blksize: 1 << (u32::from(packed.mode >> 12) + BLKSIZE_MIN_LOG2),
            atime: unpack_time(whole(packed.atime)),
            mtime: unpack_time(whole(packed.mtime)),
            ctime: unpack_time(whole(packed.ctime)),
        })
    }

    /// Lets go of what is kept whole of inode `id`.
    pub(super) fn free(&self, id: InodeId) {
        self.wide.remove(&id);
    }

    /// Bytes held, about.
    pub(super) fn bytes(&self) -> usize {
        self.wide.len() * 2 * size_of::<(InodeId, Attr)>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_keep_their_value_or_are_not_packed() {
        for (sec, nsec) in [
            (0, 0),
            (-1, 999_999_999),
            (-(1 << 31), 0),
            ((1 << 34) - (1 << 31) - 1, 7),
        ] {
            let t = Time { sec, nsec };
            assert_eq!(pack_time(t).map(unpack_time), Some(t));
        }
        for sec in [-(1i64 << 31) - 1, (1 << 34) - (1 << 31), i64::MAX, i64::MIN] {
            assert_eq!(pack_time(Time { sec, nsec: 0 }), None);
        }
    }

    #[test]
    fn attributes_are_compact() {
        assert_eq!((size_of::<PackedAttr>(), align_of::<PackedAttr>()), (44, 4));
    }

    fn time() -> impl Strategy<Value = Time> {
        let sec = prop_oneof![Just(0), -3_000_000_000..20_000_000_000i64, any::<i64>()];
        (sec, 0..1_000_000_000u32).prop_map(|(sec, nsec)| Time { sec, nsec })
    }

    /// Numbers of every magnitude, and those beside a power of two.
    fn number() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0..64u32, 0..3u64)
            .prop_map(|(n, shift, by)| [n >> shift, (1 << shift) - 1, 1 << shift][by as usize])
    }

    fn attr() -> impl Strategy<Value = Attr> {
        let kind = prop_oneof![
            Just(Kind::Regular),
            Just(Kind::Directory),
            Just(Kind::CharDevice),
            Just(Kind::BlockDevice),
            Just(Kind::Symlink),
        ];
        let numbers = (number(), number(), number(), number(), number(), number());
        (
            kind,
            0..0o10000u16,
            numbers,
            (time(), time(), time()),
            0..32u32,
        )
            .prop_map(|(kind, perm, numbers, (atime, mtime, ctime), log2)| Attr {
                id: SourceId {
                    dev: 0,
                    mnt: 0,
                    ino: 0,
                    btime: None,
                },
                kind,
                perm,
                nlink: numbers.0 as u32,
                uid: numbers.1 as u32,
                gid: numbers.2 as u32,
                rdev: numbers.3 as u32,
                size: numbers.4,
                blocks: numbers.5,
                blksize: 1 << log2,
                atime,
                mtime,
                ctime,
            })
    }

    proptest! {
        #[test]
        fn what_was_kept_comes_back_as_it_was(all in prop::collection::vec(attr(), 1..50), at in 1..1u64 << 40) {
            let attrs = Attrs::new();
            let id = |n: usize| InodeId::new(n as u32 + 1).expect("not zero");
            let kept: Vec<_> = (0..).zip(&all).map(|(n, a)| attrs.keep(id(n), a, at)).collect();
            for (n, (attr, (packed, is_wide))) in (0..).zip(all.iter().zip(&kept)) {
                prop_assert_eq!(attrs.unpack(id(n), attr.kind, packed, *is_wide), Some(*attr));
                prop_assert_eq!(packed.at(), at);
            }
        }
    }

    #[test]
    fn owners_beyond_the_last_number_are_kept_whole() {
        let attrs = Attrs::new();
        for uid in 0..OWNERS as u32 {
            assert_eq!(attrs.owners.number((uid, 1)), Some(uid as u16));
        }
        assert_eq!(attrs.owners.number((9, 9)), None);
        assert_eq!(attrs.owners.pair(500), (500, 1));
    }
}
