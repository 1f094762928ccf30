//! Names that are not listed (floor F4).
//!
//! Purpose: searches for headers, modules and libraries mostly miss, each miss another name.
//! Where the whole listing of a directory is cached and believed, a name that is not in it is
//! absent, and the source need not be asked.
//!
//! Contract: only where nothing but time ends the belief (`Frozen`, and `Ttl` within the ttl of
//! absences): under `Watch` an event may be on its way, and a name that was never asked for is
//! to show as soon as it is there. Only on filesystems that list every name, and in directories
//! that do not fold case; on remote ones not for names by which servers show what they do not
//! list (`.snapshot` and the like).

use super::{Coherence, Found, Namei};
use crate::dcache::{Compact, Dir, InodeId, Kept, PART};
use crate::error::{Errno, Result};
use crate::name::QStr;
use crate::source::Source;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

impl<S: Source> Namei<S> {
    /// From the whole listing: that `name` is not below `parent`, if that can be told.
    pub(super) fn lookup_listing(
        &self,
        parent: InodeId,
        dir: &Arc<Dir>,
        name: QStr<'_>,
    ) -> Result<Option<Found<'_>>> {
        if !matches!(self.policy.coherence, Coherence::Frozen | Coherence::Ttl) {
            return Ok(None);
        }
        let believed = || self.negative_left(dir, self.clock.now());
        let Some(Kept::Dentries(listing)) = dir.listing() else {
            return Ok(None);
        };
        let told = !believed().is_zero()
            && self.lists_all(parent, name)
            && self.is_exact(parent, dir, &listing)?;
        // Time has passed at the source.
        let left = believed();
        if !told || left.is_zero() {
            return Ok(None);
        }
        let mut guard = dir.lock();
        let known = self.dcache.is_cached(parent, name);
        if known || !guard.is_listing(&Kept::Dentries(listing)) {
            return Ok(None);
        }
        let added = self.dcache.add(parent, &mut guard, name, None, dir.begin());
        drop(guard);
        self.added(parent, added);
        let counters = &self.dcache.counters;
        counters.negative_hits.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Found::Negative { left }))
    }

    /// Whether `name` would be listed below `parent` if it were there.
    fn lists_all(&self, parent: InodeId, name: QStr<'_>) -> bool {
        let inodes = &self.dcache.inodes;
        let Some(index) = inodes.device(parent) else {
            return false;
        };
        let traits = inodes.devices.get(index).traits;
        let hidden = matches!(name.as_bytes().first(), Some(b'.' | b'~'));
        traits.lists_all && !(traits.remote && hidden)
    }

    /// Whether names below `parent` are compared byte by byte: a listed name in the other case
    /// is looked for, once for each listing.
    fn is_exact(&self, parent: InodeId, dir: &Dir, listing: &Arc<Compact>) -> Result<bool> {
        if let Some(exact) = listing.exact() {
            return Ok(exact);
        }
        let Some(part) = self
            .dcache
            .expand(parent, dir, listing, (0, false), *PART.start())
        else {
            return Ok(false);
        };
        let mut names = part.iter().map(|entry| entry.name);
        // Where the first names have no letter nothing can be told.
        let found = names.find(|name| name.iter().any(u8::is_ascii_alphabetic));
        let exact = match found.map(other_case) {
            None => false,
            Some(other) if self.dcache.is_cached(parent, QStr::new(&other)?) => true,
            Some(other) => {
                let other = self.names.getname_from(&other)?;
                let node = self.node(parent)?;
                self.source.stat_at(&node, other.as_cstr()) == Err(Errno::NOENT)
            }
        };
        listing.set_exact(exact);
        Ok(exact)
    }
}

fn other_case(name: &[u8]) -> Vec<u8> {
    let other = |byte: &u8| match byte.is_ascii_lowercase() {
        true => byte.to_ascii_uppercase(),
        false => byte.to_ascii_lowercase(),
    };
    name.iter().map(other).collect()
}
