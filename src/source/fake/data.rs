//! Contents of a file: pages where something was written, holes elsewhere.

use std::collections::BTreeMap;

use crate::error::{Errno, Result};

const PAGE: u64 = 4096;

/// A sparse file.
#[derive(Clone, Default)]
pub(super) struct Data {
    size: u64,
    /// Page number to contents. Beyond `size` there are only zeros.
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Data {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Blocks of 512 bytes.
    pub(super) fn blocks(&self) -> u64 {
        self.pages.len() as u64 * (PAGE / 512)
    }

    /// Reads at `offset`; the bytes read.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let len = self.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        buf.fill(0);
        for (page, from, to, at) in pieces(offset, len) {
            if let Some(bytes) = self.pages.get(&page) {
                buf[at..at + (to - from)].copy_from_slice(&bytes[from..to]);
            }
        }
        len
    }

    /// Writes at `offset`, growing the file where needed.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?;
        if end > i64::MAX as u64 {
            return Err(Errno::FBIG);
        }
        for (page, from, to, at) in pieces(offset, bytes.len()) {
            let into = self
                .pages
                .entry(page)
                .or_insert_with(|| vec![0; PAGE as usize].into());
            into[from..to].copy_from_slice(&bytes[at..at + (to - from)]);
        }
        if !bytes.is_empty() {
            self.size = self.size.max(end);
        }
        Ok(())
    }

    /// Sets the size; what is cut off is gone.
    pub(super) fn truncate(&mut self, size: u64) -> Result<()> {
        if size > i64::MAX as u64 {
            return Err(Errno::FBIG);
        }
        if size < self.size {
            self.pages.split_off(&size.div_ceil(PAGE));
            if let Some(last) = self.pages.get_mut(&(size / PAGE)) {
                last[(size % PAGE) as usize..].fill(0);
            }
        }
        self.size = size;
        Ok(())
    }

    /// Makes a hole; pages that are covered in part are zeroed there.
    pub(super) fn punch(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let touched: Vec<u64> = self
            .pages
            .range(offset / PAGE..end.div_ceil(PAGE))
            .map(|(page, _)| *page)
            .collect();
        for page in touched {
            let from = offset.saturating_sub(page * PAGE).min(PAGE);
            let to = (end - page * PAGE).min(PAGE);
            if from == 0 && to == PAGE {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                bytes[from as usize..to as usize].fill(0);
            }
        }
    }

    /// Gives all of a range pages; the size stays as it is.
    pub(super) fn allocate(&mut self, offset: u64, len: u64) {
        for page in offset / PAGE..offset.saturating_add(len).div_ceil(PAGE) {
            self.pages
                .entry(page)
                .or_insert_with(|| vec![0; PAGE as usize].into());
        }
    }

    /// The first byte of data at or after `offset`.
    pub(super) fn seek_data(&self, offset: u64) -> Result<u64> {
        if offset >= self.size {
            return Err(Errno::NXIO);
        }
        let next = self.pages.range(offset / PAGE..).next();
        let found = next.map(|(page, _)| offset.max(page * PAGE));
        found.filter(|at| *at < self.size).ok_or(Errno::NXIO)
    }

    /// The first hole at or after `offset`; the end counts as one.
    pub(super) fn seek_hole(&self, offset: u64) -> Result<u64> {
        if offset >= self.size {
            return Err(Errno::NXIO);
        }
        let mut page = offset / PAGE;
        while self.pages.contains_key(&page) {
            page += 1;
        }
        Ok(offset.max(page * PAGE).min(self.size))
    }
}

/// The pages that `len` bytes at `offset` lie in: (page, from, to, place in the bytes).
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= len {
            return None;
        }
        let position = offset + at as u64;
        let from = (position % PAGE) as usize;
        let to = (PAGE as usize).min(from + (len - at));
        let piece = (position / PAGE, from, to, at);
        at += to - from;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(data: &Data) -> Vec<u8> {
        let mut buf = vec![7; data.size() as usize + 10];
        let n = data.read(0, &mut buf);
        buf.truncate(n);
        buf
    }

    #[test]
    fn behaves_as_a_plain_vector() {
        let mut data = Data::default();
        let mut plain: Vec<u8> = Vec::new();
        let steps: [(u64, usize); 5] = [(0, 10), (4090, 20), (20_000, 1), (8_191, 2), (100, 9_000)];
        for (n, (offset, len)) in steps.into_iter().enumerate() {
            let piece = vec![n as u8 + 1; len];
            data.write(offset, &piece).unwrap();
            plain.resize(plain.len().max(offset as usize + len), 0);
            plain[offset as usize..offset as usize + len].copy_from_slice(&piece);
            assert!(bytes(&data) == plain);
        }
        for size in [9_000, 4_097, 4_096, 3, 50] {
            data.truncate(size).unwrap();
            plain.resize(size as usize, 0);
            assert!(bytes(&data) == plain);
        }
    }

    #[test]
    fn holes_are_found() {
        let mut data = Data::default();
        data.truncate(1 << 40).unwrap();
        assert_eq!(
            (data.blocks(), data.seek_data(0), data.seek_hole(5)),
            (0, Err(Errno::NXIO), Ok(5))
        );
        data.write(10_000, b"x").unwrap();
        assert_eq!((data.seek_data(0), data.seek_hole(0)), (Ok(8_192), Ok(0)));
        assert_eq!(
            (data.seek_data(9_000), data.seek_hole(9_000)),
            (Ok(9_000), Ok(12_288))
        );
        data.punch(8_000, 10_000);
        assert_eq!((data.blocks(), data.seek_data(0)), (0, Err(Errno::NXIO)));
        data.truncate(5).unwrap();
        assert_eq!(data.seek_hole(5), Err(Errno::NXIO));
        assert_eq!(data.write(i64::MAX as u64, b"x"), Err(Errno::FBIG));
    }
}
