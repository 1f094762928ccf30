//! Locks on ranges of a file, by open file (F_OFD_SETLK).

use crate::error::{Errno, Result};
use crate::source::{LockKind, LockRange};

/// Who holds what of one file; one owner's ranges do not overlap.
#[derive(Default)]
pub(super) struct Locks {
    held: Vec<(u64, LockRange)>,
}

impl Locks {
    /// A lock of another's that is in the way of `range`.
    pub(super) fn conflict(&self, owner: u64, range: LockRange) -> Option<LockRange> {
        let mine_reads = range.kind != LockKind::Write;
        let in_the_way = |(other, held): &&(u64, LockRange)| {
            let both_read = mine_reads && held.kind == LockKind::Read;
            *other != owner && overlap(held, &range) && !both_read
        };
        match range.kind {
            LockKind::Unlock => None,
            _ => self.held.iter().find(in_the_way).map(|(_, held)| *held),
        }
    }

    /// Takes, changes or gives back a lock.
    pub(super) fn set(&mut self, owner: u64, range: LockRange) -> Result<()> {
        if self.conflict(owner, range).is_some() {
            return Err(Errno::AGAIN);
        }
        let mut kept = Vec::new();
        for (other, held) in self.held.drain(..) {
            if other != owner || !overlap(&held, &range) {
                kept.push((other, held));
                continue;
            }
            if held.start < range.start {
                let end = range.start - 1;
                kept.push((other, LockRange { end, ..held }));
            }
            if held.end > range.end {
                let start = range.end + 1;
                kept.push((other, LockRange { start, ..held }));
            }
        }
        if range.kind != LockKind::Unlock {
            kept.push((owner, range));
        }
        self.held = kept;
        Ok(())
    }

    /// An open file is closed.
    pub(super) fn release(&mut self, owner: u64) {
        self.held.retain(|(other, _)| *other != owner);
    }
}

fn overlap(one: &LockRange, other: &LockRange) -> bool {
    one.start <= other.end && other.start <= one.end
}
