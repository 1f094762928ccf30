//! Listings that are kept by dentries (floor F3).
//!
//! Purpose: a directory that was read with attributes has a dentry for each name, so its
//! listing need not hold the names again.
//!
//! Contract: made and read under the directory lock, and dropped with any change below and
//! with any dentry that is freed ([`DirGuard::forget_dentry`]): all dentries of a listing
//! that is cached are hashed (I12).

use super::{Compact, Dcache, DentryId, Dir, InodeId, Kept, Listing};
use crate::source::{Kind, RawEntry};
use crate::sync::Arc;

/// Bytes of entries that are made of dentries at once, under the directory lock.
pub const PART: std::ops::RangeInclusive<usize> = 4 << 10..=64 << 10;

impl Dcache {
    /// Keeps the listing of `parent` by its dentries, if it is the one that is cached and each
    /// name is now known for what was listed.
    pub fn compact(&self, parent: InodeId, dir: &Dir, listing: &Arc<Listing>) {
        let Some(index) = self.inodes.device(parent) else {
            return;
        };
        let mut guard = dir.lock();
        if !guard.is_listing(&Kept::Names(listing.clone())) {
            return;
        }
        let epoch = guard.epoch();
        let compact = Compact::new(listing, |entry| {
            let id = self.find(parent, entry.name)?;
            let dentry = self.dentries.read(id)?;
            let inode = dentry
                .inode
                .filter(|_| dentry.epoch == epoch && !dentry.dead)?;
            let object = self.inodes.with(inode, |i| (i.nodeid(), i.kind()))?;
            // Where something is mounted over a name, it is listed as what lies beneath.
            let listed = self.inodes.devices.d_ino(index, entry.ino);
            let same = object == (listed, entry.kind.unwrap_or(object.1));
            same.then_some(id.get())
        });
        if let Some(compact) = compact {
            guard.compact_listing(compact);
        }
    }

    /// A part of a listing, of `bytes` ([`PART`]): the entries after the one whose cookie is
    /// `cookie` (0: the first ones), or with larger cookies where these are `sorted`; empty at
    /// the end. `None` if the listing is not the cached one any more, or no entry has that
    /// cookie.
    pub fn expand(
        &self,
        parent: InodeId,
        dir: &Dir,
        compact: &Arc<Compact>,
        (cookie, sorted): (u64, bool),
        bytes: usize,
    ) -> Option<Listing> {
        let own = self.inodes.with(parent, |i| i.nodeid())?;
        let (_, own) = self.inodes.devices.origin(own);
        let guard = dir.lock();
        guard
            .is_listing(&Kept::Dentries(compact.clone()))
            .then_some(())?;
        let mut part = Listing::default();
        let [dot, dots, above] = compact.dots();
        let dot_entries = [(dot, own, b"." as &[u8]), (dots, above, b"..")];
        // How many of the entries, the dots among them, are behind the reader.
        let behind = {
            let cookies = compact.iter_from(0).map(|(cookie, _)| cookie);
            let mut all = [dot, dots].into_iter().chain(cookies);
            match cookie {
                0 => 0,
                _ if sorted => all.take_while(|&c| c <= cookie).count(),
                _ => all.position(|c| c == cookie)? + 1,
            }
        };
        for &(cookie, ino, name) in &dot_entries[behind.min(2)..] {
            let kind = Some(Kind::Directory);
            part.push(RawEntry {
                ino,
                kind,
                cookie,
                name,
            });
        }
        for (cookie, id) in compact.iter_from(behind.saturating_sub(2)) {
            if part.bytes() >= bytes {
                break;
            }
            let dentry = self.dentries.read(DentryId::new(id)?)?;
            let (nodeid, kind) = self
                .inodes
                .with(dentry.inode?, |i| (i.nodeid(), i.kind()))?;
            let (_, ino) = self.inodes.devices.origin(nodeid);
            self.with_name(&dentry.name, |name| {
                part.push(RawEntry {
                    ino,
                    kind: Some(kind),
                    cookie,
                    name,
                });
            });
        }
        Some(part)
    }

    /// Whether I12 holds of a directory.
    pub(super) fn check_listing(&self, parent: InodeId, dir: &Dir) -> bool {
        let Some(Kept::Dentries(compact)) = dir.listing() else {
            return true;
        };
        let epoch = dir.epoch();
        let is_good = |id| {
            let dentry = self.dentries.read(DentryId::new(id)?)?;
            let name = self.with_name(&dentry.name, <[u8]>::to_vec);
            let good = dentry.parent == parent && dentry.epoch == epoch && dentry.inode.is_some();
            drop(dentry);
            Some(good && self.find(parent, &name) == DentryId::new(id))
        };
        compact
            .iter_from(0)
            .all(|(_, id)| is_good(id) == Some(true))
    }
}
