//! Reading directories (floor F5).
//!
//! There is no directory handle: OPENDIR is answered ENOSYS, so a cookie must say
//! by itself where to go on, whatever was dropped or changed meanwhile. Where the
//! source's own cookies (`d_off`) hold, they are passed on, and with them its order.
//! Elsewhere (overlay, other FUSE) names are listed in the order of their hash and
//! the hash is the cookie: where to go on follows from the number alone.
//!
//! A directory up to [`LISTING_LIMIT`] is read whole when it is read from its start
//! and kept; a larger one is streamed from the source piece by piece.

use std::hash::BuildHasher;
use std::ops::ControlFlow;

use super::readahead::Look;
use super::{Coherence, Entry, Fs};
use crate::dcache::{Compact, Device, Dir, InodeId, Kept, Listing, NodeId, PART, ROOT};
use crate::error::{Errno, Result};
use crate::name::QStr;
use crate::namei::Found;
use crate::source::{Kind, RawEntry, Source};
use crate::sync::Arc;

/// One entry in a reply.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// `d_ino`.
    pub ino: u64,
    /// Where the entry after this one starts.
    pub cookie: u64,
    /// What it is.
    pub kind: Kind,
    /// The name.
    pub name: &'a [u8],
    /// The object, when attributes were asked for; a reference of the kernel's if
    /// the entry is taken.
    pub entry: Option<Entry>,
}

/// Bytes of listing up to which a directory is read whole and kept.
const LISTING_LIMIT: usize = 4 << 20;

/// Takes entries until the reply is full; whether this one was taken.
type Sink<'a> = dyn FnMut(DirEntry<'_>) -> bool + 'a;

impl<S: Source> Fs<S> {
    /// READDIR and READDIRPLUS: hands the entries after `cookie` (0: all) to `sink`
    /// until it takes no more.
    ///
    /// # Errors
    /// ENOTDIR, ESTALE, and the source's.
    pub fn readdir(
        &self,
        nodeid: NodeId,
        cookie: u64,
        plus: bool,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        if self.virt.readdir(nodeid, cookie, sink) {
            return Ok(());
        }
        let pinned = self.inode(nodeid)?;
        let inode = pinned.id();
        let dir = self.namei.dir(inode)?;
        let inodes = &self.namei.dcache.inodes;
        let index = inodes.device(inode).unwrap_or(0);
        let device = inodes.devices.get(index);
        let mut reply = Reply {
            fs: self,
            nodeid,
            inode,
            index,
            plus,
            sink,
            error: None,
        };
        let full = if self.virt.is_listed_cookie(nodeid, cookie) {
            false
        } else {
            self.list(inode, &dir, &device, cookie, &mut reply)?
        };
        if let Some(e) = reply.error {
            return Err(e);
        }
        if !full && nodeid == ROOT {
            self.virt.listed(cookie, sink);
        }
        Ok(())
    }

    /// Hands entries on; whether the reply is full.
    fn list(
        &self,
        inode: InodeId,
        dir: &Arc<Dir>,
        device: &Device,
        mut cookie: u64,
        reply: &mut Reply<'_, '_, S>,
    ) -> Result<bool> {
        let stable = device.traits.stable_cookies;
        let mut turn = self.readahead.read(reply.nodeid, cookie, reply.plus);
        let mut listing = match self.cached_listing(inode, dir)? {
            Some(Kept::Names(listing)) => Some(listing),
            Some(Kept::Dentries(compact)) => {
                turn = None;
                match self.list_dentries(inode, dir, &compact, (&mut cookie, !stable), reply) {
                    Some(full) => return Ok(full),
                    None => None,
                }
            }
            None => None,
        };
        // In strict mode nothing is kept, so it is read whole only where it must be
        // sorted.
        let keep = self.coherence() != Coherence::Strict;
        if listing.is_none() && (!stable || (cookie == 0 && keep)) {
            let read = self.read_listing(inode, dir, stable)?;
            if let Some(turn) = &turn {
                turn.listed(inode, dir, &read, device.traits.remote);
            }
            listing = Some(read);
        }
        drop(turn);
        if let Some(listing) = listing {
            let entries = if stable {
                listing.after(cookie)
            } else {
                Some(listing.after_sorted(cookie))
            };
            // A cookie that is in no listing is of a name that is gone; the source
            // knows where it was.
            if let Some(mut entries) = entries {
                let full = entries.any(|entry| reply.push(entry).is_break());
                if !full && reply.plus {
                    self.namei.dcache.compact(inode, dir, &listing);
                }
                if full || listing.is_complete() {
                    return Ok(full);
                }
                let Some(last) = listing.iter().last() else {
                    return Ok(false);
                };
                return self.stream(inode, last.cookie, reply);
            }
        }
        self.stream(inode, cookie, reply)
    }

    /// Hands on the entries after `cookie` (among `sorted` ones) of a listing that is kept by
    /// dentries, and moves `cookie` along; whether the reply is full. `None` if the listing
    /// is not the cached one any more: it is to go on otherwise.
    fn list_dentries(
        &self,
        inode: InodeId,
        dir: &Dir,
        compact: &Arc<Compact>,
        (cookie, sorted): (&mut u64, bool),
        reply: &mut Reply<'_, '_, S>,
    ) -> Option<bool> {
        let mut bytes = *PART.start();
        loop {
            let dcache = &self.namei.dcache;
            let part = dcache.expand(inode, dir, compact, (*cookie, sorted), bytes)?;
            bytes = (2 * bytes).min(*PART.end());
            if part.is_empty() {
                return Some(false);
            }
            for entry in part.iter() {
                if reply.push(entry).is_break() {
                    return Some(true);
                }
                *cookie = entry.cookie;
            }
        }
    }

    /// Reads entries from the source straight into the reply; whether it is full.
    fn stream(&self, inode: InodeId, cookie: u64, reply: &mut Reply<'_, '_, S>) -> Result<bool> {
        let node = self.namei.node(inode)?;
        let mut push = |entry: RawEntry<'_>| reply.push(entry).is_continue();
        let end = self.list_source(inode, &node, cookie, &mut push)?;
        Ok(!end)
    }

    /// Lists the source; once more where descriptors had run out before the first entry,
    /// for what was handed on cannot be taken back.
    fn list_source(
        &self,
        inode: InodeId,
        node: &S::Node,
        cookie: u64,
        sink: &mut dyn FnMut(RawEntry<'_>) -> bool,
    ) -> Result<bool> {
        let mut begun = false;
        self.namei
            .with_descriptors(|| match begun {
                true => Err(Errno::MFILE),
                false => self.namei.source.list(node, cookie, &mut |entry| {
                    begun = true;
                    sink(entry)
                }),
            })
            .map_err(|e| self.namei.gone(inode, e))
    }

    /// The listing, if it is cached and to be believed.
    fn cached_listing(&self, inode: InodeId, dir: &Dir) -> Result<Option<Kept>> {
        if self.coherence() == Coherence::Strict {
            return Ok(None);
        }
        let Some(listing) = dir.listing() else {
            return Ok(None);
        };
        let fresh = !self.namei.names_left(dir, self.namei.clock.now()).is_zero()
            || self.namei.revalidate_dir(inode, dir)?;
        Ok(fresh.then_some(listing))
    }

    /// Reads a directory from its start, whole if it is not too large, and keeps the
    /// listing if nothing changed meanwhile.
    pub(super) fn read_listing(
        &self,
        inode: InodeId,
        dir: &Arc<Dir>,
        stable: bool,
    ) -> Result<Arc<Listing>> {
        let node = self.namei.node(inode)?;
        self.namei.ensure_watch(inode, dir, &node);
        let moment = dir.begin();
        let stamped = match self.coherence() {
            Coherence::Frozen | Coherence::Strict => false,
            Coherence::Auto | Coherence::Watch | Coherence::Ttl => !dir.is_watched(),
        };
        let asked = self.namei.clock.asked();
        let stamp = match stamped {
            true => Some(
                self.namei
                    .stamp(inode, &self.namei.source.stat(&node)?, asked),
            ),
            false => None,
        };
        let mut listing = Listing::default();
        let complete = self.list_source(inode, &node, 0, &mut |entry| {
            let fits = !stable || listing.bytes() < LISTING_LIMIT;
            if fits {
                listing.push(entry);
            }
            fits
        })?;
        if !stable {
            listing = in_hash_order(&listing);
        }
        listing.finish(complete, &self.namei.dcache.counters.listing_bytes);
        let listing = Arc::new(listing);
        if complete && self.coherence() != Coherence::Strict {
            let mut guard = dir.lock();
            if guard.set_listing(listing.clone(), moment)
                && let Some(stamp) = stamp
            {
                // Names that were cached under another stamp, or under none, may be gone.
                let same = guard
                    .state
                    .stamp
                    .is_some_and(|s| s.ctime == stamp.ctime && s.mtime == stamp.mtime && !s.racy);
                if !same {
                    guard.doubt();
                    guard.restore_listing(listing.clone());
                }
                guard.prove(stamp, asked.at);
            }
        }
        Ok(listing)
    }
}

/// The same entries with the hash of their names as cookies, in its order; `.` and
/// `..` come first.
fn in_hash_order(listing: &Listing) -> Listing {
    // The seed is fixed: a cookie holds over remounts.
    let hash = foldhash::quality::FixedState::with_seed(0x6e61_6d65_6966_7321);
    let mut entries: Vec<RawEntry<'_>> = listing
        .iter()
        .map(|entry| {
            let cookie = match entry.name {
                b"." => 1,
                b".." => 2,
                name => (hash.hash_one(name) >> 2).max(3),
            };
            RawEntry { cookie, ..entry }
        })
        .collect();
    entries.sort_unstable_by_key(|e| (e.cookie, e.name));
    let mut sorted = Listing::default();
    let mut last = 0;
    for mut entry in entries {
        entry.cookie = entry.cookie.max(last + 1);
        last = entry.cookie;
        sorted.push(entry);
    }
    sorted
}

/// Makes a reply's entries of the source's.
struct Reply<'a, 'b, S: Source> {
    fs: &'a Fs<S>,
    nodeid: NodeId,
    inode: InodeId,
    /// Index of the directory's device.
    index: u16,
    plus: bool,
    sink: &'a mut Sink<'b>,
    error: Option<Errno>,
}

impl<S: Source> Reply<'_, '_, S> {
    /// Breaks when the reply is full.
    fn push(&mut self, raw: RawEntry<'_>) -> ControlFlow<()> {
        let devices = &self.fs.namei.dcache.inodes.devices;
        let ino = devices.d_ino(self.index, raw.ino);
        let dots = matches!(raw.name, b"." | b"..");
        let mut made = DirEntry {
            ino,
            cookie: raw.cookie,
            kind: raw.kind.unwrap_or(Kind::Directory),
            name: raw.name,
            entry: None,
        };
        if !dots && (self.plus || raw.kind.is_none()) {
            match self.find(raw) {
                Ok(Some(found)) => {
                    made.kind = found.attr.kind;
                    if self.plus {
                        // d_ino and nodeid are one number in a reply with attributes.
                        made.ino = found.nodeid;
                        made.entry = Some(found);
                    } else {
                        self.fs.forget(found.nodeid, 1);
                    }
                }
                // Gone since it was listed: no more is to be answered from that listing.
                Ok(None) => {
                    if let Ok(dir) = self.fs.namei.dir(self.inode) {
                        dir.lock().change();
                    }
                    return ControlFlow::Continue(());
                }
                Err(e) => {
                    self.error = Some(e);
                    return ControlFlow::Break(());
                }
            }
        }
        if (self.sink)(made) {
            return ControlFlow::Continue(());
        }
        if let Some(entry) = made.entry {
            self.fs.forget(entry.nodeid, 1);
        }
        ControlFlow::Break(())
    }

    fn find(&self, raw: RawEntry<'_>) -> Result<Option<Entry>> {
        let readahead = &self.fs.readahead;
        let _look = readahead.look(self.nodeid, raw.name, Look::Listing);
        let found = QStr::new(raw.name).and_then(|q| self.fs.namei.lookup_one(self.inode, q));
        match found {
            Ok(found @ Found::Positive { .. }) => self.fs.reply_with(found).map(Some),
            // ESTALE: it went between two looks at it.
            Ok(Found::Negative { .. }) | Err(Errno::STALE) => Ok(None),
            // A name that cannot be looked at stays listed: whoever uses it asks again
            // and is told the reason.
            Err(_) => self.fs.placeholder(self.index, raw).map(Some),
        }
    }
}

impl<S: Source> Fs<S> {
    /// An entry for a name whose attributes cannot be read; nothing of it is to be
    /// believed.
    fn placeholder(&self, index: u16, raw: RawEntry<'_>) -> Result<Entry> {
        use crate::source::{Attr, SourceId, Time};
        use std::time::Duration;
        let inodes = &self.namei.dcache.inodes;
        let (dev, mnt) = inodes.devices.get(index).ids();
        // Where the listing does not tell the kind, it is not to be taken for another
        // than the object has that is known by that number.
        let known = inodes.find(inodes.devices.d_ino(index, raw.ino));
        let known = known.and_then(|id| inodes.with(id, |i| i.kind()));
        let attr = Attr {
            id: SourceId {
                dev,
                mnt,
                ino: raw.ino,
                btime: None,
            },
            kind: raw.kind.or(known).unwrap_or(Kind::Regular),
            perm: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
        };
        let inode = inodes.iget(&attr, index)?;
        let found = Found::Positive {
            inode,
            attr,
            name_left: Duration::ZERO,
            attr_left: Duration::ZERO,
        };
        self.reply_with(found)
    }
}
