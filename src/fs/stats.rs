//! Counters of requests, and what `.nameifs/stats` shows (floor F5).

use serde_json::{Map, Value, json};

use super::lock::OWNER_LIMIT;
use super::waiters::WAITER_LIMIT;
use super::{Coherence, Fs};
use crate::namei::Watches;
use crate::source::Source;
use crate::sync::atomic::{AtomicU64, Ordering};

macro_rules! ops {
    ($($variant:ident $name:literal,)*) => {
        /// Kinds of request, named as in fuse.h without `FUSE_`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Op { $($variant,)* }

        const NAMES: &[&str] = &[$($name,)*];
    };
}

ops! {
    Lookup "LOOKUP", Forget "FORGET", Getattr "GETATTR", Setattr "SETATTR",
    Readlink "READLINK", Symlink "SYMLINK", Mknod "MKNOD", Mkdir "MKDIR", Unlink "UNLINK",
    Rmdir "RMDIR", Rename "RENAME", Rename2 "RENAME2", Link "LINK", Open "OPEN", Read "READ",
    Write "WRITE", Statfs "STATFS", Release "RELEASE", Fsync "FSYNC", Setxattr "SETXATTR",
    Getxattr "GETXATTR", Listxattr "LISTXATTR", Removexattr "REMOVEXATTR", Flush "FLUSH",
    Init "INIT", Opendir "OPENDIR", Readdir "READDIR", Releasedir "RELEASEDIR",
    Fsyncdir "FSYNCDIR", Getlk "GETLK", Setlk "SETLK", Setlkw "SETLKW", Access "ACCESS",
    Create "CREATE", Bmap "BMAP", Ioctl "IOCTL", Poll "POLL",
    Fallocate "FALLOCATE", Readdirplus "READDIRPLUS", Lseek "LSEEK",
    CopyFileRange "COPY_FILE_RANGE", BatchForget "BATCH_FORGET", Interrupt "INTERRUPT",
    Tmpfile "TMPFILE", Statx "STATX",
}

fn word(mode: Coherence) -> &'static str {
    match mode {
        Coherence::Auto => "auto",
        Coherence::Watch => "watch",
        Coherence::Ttl => "ttl",
        Coherence::Frozen => "frozen",
        Coherence::Strict => "strict",
    }
}

/// Requests served, by kind.
#[derive(Debug)]
pub struct Requests([AtomicU64; NAMES.len()]);

impl Default for Requests {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Requests {
    /// One more.
    pub fn count(&self, op: Op) {
        self.0[op as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Those that came at all, by name.
    pub fn nonzero(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.0.iter().map(|c| c.load(Ordering::Relaxed));
        NAMES.iter().copied().zip(counts).filter(|&(_, n)| n > 0)
    }
}

impl<S: Source> Fs<S> {
    /// `.nameifs/stats`: one JSON object.
    pub fn stats(&self) -> Value {
        let counts = |pairs: &mut dyn Iterator<Item = (&'static str, u64)>| {
            Value::Object(
                pairs
                    .map(|(k, v)| (k.to_owned(), v.into()))
                    .collect::<Map<_, _>>(),
            )
        };
        let dcache = &self.namei.dcache;
        let c = &dcache.counters;
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let (dir_fds, dir_fds_limit) = self.namei.node_counts();
        let (watches, watches_limit) = self
            .namei
            .watches()
            .map_or((0, 0), |watches| watches.counts());
        let watch_count = |of: fn(&Watches<S::Node>) -> &AtomicU64| {
            self.namei.watches().map_or(0, |watches| load(of(watches)))
        };
        let (lock_owners, lock_waiters) = self.locks.counts();
        let (queued, in_flight) = self.readahead.load();
        let ahead = &self.readahead.counters;
        let millis = |d: std::time::Duration| d.as_millis() as u64;
        let filesystems: Vec<&str> = dcache
            .inodes
            .devices
            .list()
            .iter()
            .map(|d| d.traits.name)
            .collect();
        json!({
            "requests": counts(&mut self.requests.nonzero()),
            "dcache": {
                "hits": load(&c.hits),
                "negative_hits": load(&c.negative_hits),
                "misses": load(&c.misses),
                "dentries": dcache.len(),
                "negative_dentries": load(&c.negative),
                "inodes": dcache.inodes.len(),
                "reclaimed": load(&c.reclaimed),
                "listing_bytes": load(&c.listing_bytes),
                "bytes": dcache.bytes(),
            },
            "source": counts(&mut self.namei.source.calls().into_iter().filter(|&(_, n)| n > 0)),
            "coherence": {
                "mode": word(self.coherence()),
                "asked": word(self.options.coherence),
                "ttl_ms": millis(self.options.ttl),
                "negative_ttl_ms": millis(self.options.negative_ttl),
                "attr_ttl_ms": millis(self.options.attr_ttl),
                "filesystems": filesystems,
                "events": watch_count(|w| &w.events),
                "overflows": watch_count(|w| &w.overflows),
                "unwatched": watch_count(|w| &w.refused),
            },
            "readahead": {
                "queued": queued,
                "in_flight": in_flight,
                "threads": load(&ahead.threads),
                "filled": load(&ahead.filled),
                "names": load(&ahead.names),
                "hits": load(&ahead.hits),
                "waited": load(&ahead.waited),
                "dropped": load(&ahead.dropped),
            },
            "limits": {
                "cache_size": self.options.cache_size,
                "dir_fds": dir_fds,
                "dir_fds_limit": dir_fds_limit,
                "watches": watches,
                "watches_limit": watches_limit,
                "open_files": self.files.len(),
                "lock_owners": lock_owners,
                "lock_owners_limit": OWNER_LIMIT,
                "lock_waiters": lock_waiters,
                "lock_waiters_limit": WAITER_LIMIT,
                "notices": self.namei.notices.pending(),
                "notices_limit": self.namei.notices.capacity(),
            },
        })
    }

    /// `.nameifs/dentry-state`: as /proc/sys/fs/dentry-state has it: dentries, unused
    /// ones, age limit, pages wanted, negative ones, a dummy.
    pub(super) fn dentry_state(&self) -> String {
        let dcache = &self.namei.dcache;
        let negative = dcache.counters.negative.load(Ordering::Relaxed);
        format!(
            "{}\t{}\t0\t0\t{negative}\t0\n",
            dcache.len(),
            dcache.unused()
        )
    }
}
