//! Whole listings of directories (floor F3).
//!
//! Purpose: what the source listed, in its order and with its cookies: packed with the
//! names ([`Listing`]) or, once each name has a dentry, by the dentries ([`Compact`]).
//!
//! It does not know whether a listing is still good; see [`super::Dir`].

use crate::source::{Kind, RawEntry};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A complete listing of a directory, in the source's order, packed:
/// cookie and inode number (8 bytes each), kind, length of the name, name.
#[derive(Debug, Default)]
pub struct Listing {
    packed: Vec<u8>,
    count: u32,
    complete: bool,
    /// Where the bytes are counted while they are held.
    gauge: Option<Arc<AtomicU64>>,
}

const FIXED: usize = 18;

impl Listing {
    /// Adds an entry at the end.
    pub fn push(&mut self, entry: RawEntry<'_>) {
        self.packed.extend_from_slice(&entry.cookie.to_ne_bytes());
        self.packed.extend_from_slice(&entry.ino.to_ne_bytes());
        self.packed.push(entry.kind.map_or(0, |k| k as u8));
        self.packed.push(entry.name.len() as u8);
        self.packed.extend_from_slice(entry.name);
        self.count += 1;
    }

    /// No entry will be added any more, the last of the directory being among them if
    /// it is `complete`; the bytes are counted in `gauge` from now on.
    pub fn finish(&mut self, complete: bool, gauge: &Arc<AtomicU64>) {
        self.complete = complete;
        self.packed.shrink_to_fit();
        gauge.fetch_add(self.bytes() as u64, Ordering::Relaxed);
        self.gauge = Some(gauge.clone());
    }

    /// Entries, `.` and `..` included.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether it holds all names of the directory.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.packed.capacity() + size_of::<Self>()
    }

    /// All entries.
    pub fn iter(&self) -> Entries<'_> {
        Entries { rest: &self.packed }
    }

    /// The entries after the one whose cookie is `cookie` (0: all); `None` if no
    /// entry has it.
    pub fn after(&self, cookie: u64) -> Option<Entries<'_>> {
        let mut entries = self.iter();
        if cookie == 0 {
            return Some(entries);
        }
        while let Some(entry) = entries.next() {
            if entry.cookie == cookie {
                return Some(entries);
            }
        }
        None
    }

    /// In a listing whose cookies ascend: the entries with a larger one.
    pub fn after_sorted(&self, cookie: u64) -> Entries<'_> {
        let mut entries = self.iter();
        loop {
            let before = entries.clone();
            match entries.next() {
                Some(entry) if entry.cookie <= cookie => {}
                _ => return before,
            }
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        if let Some(gauge) = &self.gauge {
            gauge.fetch_sub(self.bytes() as u64, Ordering::Relaxed);
        }
    }
}

/// A complete listing kept by the dentries that have its names: twelve bytes an entry.
/// `.` and `..` come first. Good as long as each of the dentries is hashed.
#[derive(Debug)]
pub struct Compact {
    /// Cookies of `.` and `..`, inode number of `..`; then of each entry its cookie and the
    /// number of its dentry. All in halves, the lower first.
    words: Box<[u32]>,
    /// Whether names below the directory are compared byte by byte: see [`Compact::exact`].
    exact: AtomicU32,
    gauge: Arc<AtomicU64>,
}

const UNKNOWN: u32 = 2;
const DOT_WORDS: usize = 6;
const ENTRY_WORDS: usize = 3;

fn push_u64(words: &mut Vec<u32>, n: u64) {
    words.extend([n as u32, (n >> 32) as u32]);
}

impl Compact {
    /// The listing `names` with the dentry of each name but `.` and `..`, its bytes counted
    /// where those of `names` are; `None` if the dots are not where they are on every
    /// filesystem that we know of, or a name has no dentry.
    pub fn new(
        names: &Listing,
        mut dentry: impl FnMut(RawEntry<'_>) -> Option<u32>,
    ) -> Option<Self> {
        let gauge = names.gauge.clone()?;
        let mut entries = names.iter();
        let (dot, dots) = (entries.next()?, entries.next()?);
        (names.is_complete() && dot.name == b"." && dots.name == b"..").then_some(())?;
        let mut words = Vec::with_capacity(DOT_WORDS + (names.len() - 2) * ENTRY_WORDS);
        [dot.cookie, dots.cookie, dots.ino]
            .into_iter()
            .for_each(|n| push_u64(&mut words, n));
        for entry in entries {
            push_u64(&mut words, entry.cookie);
            words.push(dentry(entry)?);
        }
        let compact = Self {
            words: words.into(),
            exact: AtomicU32::new(UNKNOWN),
            gauge,
        };
        compact
            .gauge
            .fetch_add(compact.bytes() as u64, Ordering::Relaxed);
        Some(compact)
    }

    /// Whether names below the directory are compared byte by byte; `None` until it was found
    /// out.
    pub fn exact(&self) -> Option<bool> {
        match self.exact.load(Ordering::Relaxed) {
            UNKNOWN => None,
            exact => Some(exact == 1),
        }
    }

    /// It was found out whether names are compared byte by byte.
    pub fn set_exact(&self, exact: bool) {
        self.exact.store(exact.into(), Ordering::Relaxed);
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.words.len() * size_of::<u32>() + size_of::<Self>()
    }

    fn u64_at(&self, word: usize) -> u64 {
        u64::from(self.words[word]) | u64::from(self.words[word + 1]) << 32
    }

    /// Cookies of `.` and `..`, and the inode number of `..`.
    pub fn dots(&self) -> [u64; 3] {
        [0, 2, 4].map(|word| self.u64_at(word))
    }

    /// Entries, but for `.` and `..`.
    pub fn len(&self) -> usize {
        (self.words.len() - DOT_WORDS) / ENTRY_WORDS
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries from the `index`th on: cookie, number of the dentry.
    pub fn iter_from(&self, index: usize) -> impl Iterator<Item = (u64, u32)> {
        (index..self.len()).map(|i| {
            let word = DOT_WORDS + i * ENTRY_WORDS;
            (self.u64_at(word), self.words[word + 2])
        })
    }
}

impl Drop for Compact {
    fn drop(&mut self) {
        self.gauge.fetch_sub(self.bytes() as u64, Ordering::Relaxed);
    }
}

/// Iterates over packed entries.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = RawEntry<'a>;

    fn next(&mut self) -> Option<RawEntry<'a>> {
        let (fixed, rest) = self.rest.split_at_checked(FIXED)?;
        let (name, rest) = rest.split_at(usize::from(fixed[17]));
        self.rest = rest;
        let number =
            |at: usize| u64::from_ne_bytes(fixed[at..at + 8].try_into().expect("eight bytes"));
        Some(RawEntry {
            cookie: number(0),
            ino: number(8),
            kind: Kind::from_dtype(fixed[16]),
            name,
        })
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    fn entry(cookie: u64, name: &[u8]) -> RawEntry<'_> {
        RawEntry {
            ino: cookie * 10,
            kind: Some(Kind::Regular),
            cookie,
            name,
        }
    }

    #[test]
    fn a_listing_gives_back_what_was_pushed() {
        let mut l = Listing::default();
        let long = [b'x'; 255];
        let entries = [
            entry(5, b"a"),
            entry(3, &long),
            RawEntry {
                kind: None,
                ..entry(9, b"\xff")
            },
        ];
        entries.iter().for_each(|e| l.push(*e));
        let gauge = Arc::new(AtomicU64::new(0));
        l.finish(true, &gauge);
        assert_eq!(gauge.load(Ordering::Relaxed), l.bytes() as u64);
        assert_eq!(l.iter().collect::<Vec<_>>(), entries);
        assert_eq!(
            l.after(3).expect("known cookie").collect::<Vec<_>>(),
            entries[2..]
        );
        assert_eq!(l.after(9).expect("known cookie").count(), 0);
        assert!(l.after(4).is_none());
        drop(l);
        assert_eq!(gauge.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_compact_listing_has_the_cookies_and_its_own_bytes_are_counted() {
        let gauge = Arc::new(AtomicU64::new(0));
        let listing = |names: &[&'static str]| {
            let mut listing = Listing::default();
            (5..)
                .zip(names)
                .for_each(|(n, name)| listing.push(entry(n << 40, name.as_bytes())));
            listing.finish(true, &gauge);
            listing
        };
        let names = listing(&[".", "..", "a", "b"]);
        assert!(Compact::new(&names, |e| (e.name != b"b").then_some(1)).is_none());
        assert!(Compact::new(&listing(&["a", ".", ".."]), |_| Some(1)).is_none());
        let compact = Compact::new(&names, |e| Some(u32::from(e.name[0]))).expect("all known");
        drop(names);
        assert_eq!(gauge.load(Ordering::Relaxed), compact.bytes() as u64);
        assert_eq!(compact.dots(), [5 << 40, 6 << 40, 60 << 40]);
        let all: Vec<_> = compact.iter_from(0).collect();
        assert_eq!(all, [(7 << 40, 97), (8 << 40, 98)]);
        assert_eq!(compact.iter_from(1).count(), 1);
        drop(compact);
        assert_eq!(gauge.load(Ordering::Relaxed), 0);
    }
}
