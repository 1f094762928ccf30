//! The referee: the kernel's own count of the requests of one mount.
//!
//! Uses the tracepoint `fuse:fuse_request_send`, filtered by connection, in a
//! tracing instance of its own, so that nobody else's tracing is touched. A
//! second one watches for pages that leave the page cache meanwhile. Needs
//! root; without it the column stays empty and the bench says so.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;

use rustix::mount::MountFlags;

use crate::guard::{self, Duty};

/// Requests by opcode, as in fuse.h without FUSE_.
pub type Requests = BTreeMap<String, u64>;

/// What the kernel saw in one run.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// By opcode; incomplete when `lost` is not zero.
    pub requests: Requests,
    /// Requests that did not fit into the trace buffer; part of `total`.
    pub lost: u64,
    /// All requests.
    pub total: u64,
}

/// A tracing filesystem, mounted by us where nobody has mounted one.
struct Tracefs {
    root: PathBuf,
    ours: bool,
}

impl Tracefs {
    fn open() -> io::Result<Self> {
        for place in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
            let root = PathBuf::from(place);
            if root.join("instances").is_dir() {
                return Ok(Self { root, ours: false });
            }
        }
        let name = format!("nameifs-bench-trace-{}", std::process::id());
        let root = std::env::temp_dir().canonicalize()?.join(name);
        fs::create_dir(&root)?;
        guard::keep(&Duty::Mount(&root, 0));
        let tracefs = Self { root, ours: true };
        let flags = MountFlags::empty();
        rustix::mount::mount("nodev", &tracefs.root, "tracefs", flags, None)?;
        Ok(tracefs)
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.ours {
            guard::unmount(&self.root);
            let _ = fs::remove_dir(&self.root);
            guard::done(&Duty::Mount(&self.root, 0));
        }
    }
}

/// One tracepoint in a tracing instance of its own.
struct Tracepoint {
    instance: PathBuf,
    event: PathBuf,
}

impl Tracepoint {
    fn open(tracefs: &Tracefs, event: &str, buffer_kib: u32) -> io::Result<Self> {
        let name = event.rsplit('/').next().unwrap_or(event);
        let name = format!("nameifs-bench-{}-{name}", std::process::id());
        let instance = tracefs.root.join("instances").join(name);
        fs::create_dir(&instance)?;
        guard::keep(&Duty::Directory(&instance));
        let tracepoint = Self {
            event: instance.join("events").join(event),
            instance,
        };
        tracepoint.write("buffer_size_kb", &buffer_kib.to_string())?;
        if tracepoint.event.is_dir() {
            Ok(tracepoint)
        } else {
            Err(io::Error::other(format!(
                "this kernel has no tracepoint {event}"
            )))
        }
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.instance.join(file), text)
    }

    fn filter(&self, filter: &str) -> io::Result<()> {
        fs::write(self.event.join("filter"), filter)
    }

    fn enable(&self, on: bool) -> io::Result<()> {
        fs::write(self.event.join("enable"), if on { "1" } else { "0" })
    }

    /// Hands over every event since the last time; gives how many were lost.
    fn drain(&self, mut each: impl FnMut(&str)) -> io::Result<u64> {
        let trace = BufReader::new(fs::File::open(self.instance.join("trace"))?);
        for line in trace.split(b'\n') {
            each(&String::from_utf8_lossy(&line?));
        }
        let mut lost = 0;
        for cpu in fs::read_dir(self.instance.join("per_cpu"))? {
            let stats = fs::read_to_string(cpu?.path().join("stats"))?;
            lost += ["overrun:", "dropped events:"]
                .iter()
                .filter_map(|key| stats.lines().find_map(|l| l.strip_prefix(key)))
                .filter_map(|n| n.trim().parse::<u64>().ok())
                .sum::<u64>();
        }
        self.write("trace", "")?;
        Ok(lost)
    }
}

impl Drop for Tracepoint {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.instance);
        guard::done(&Duty::Directory(&self.instance));
    }
}

/// The kernel's counts.
pub struct Counter {
    requests: Tracepoint,
    evictions: Tracepoint,
    evicted: BTreeMap<u32, u64>,
    _tracefs: Tracefs,
}

impl Counter {
    /// Makes the tracing instances; an error says why nothing can be counted.
    pub fn open() -> io::Result<Self> {
        let tracefs = Tracefs::open()?;
        Ok(Self {
            requests: Tracepoint::open(&tracefs, "fuse/fuse_request_send", 32_768)?,
            evictions: Tracepoint::open(
                &tracefs,
                "filemap/mm_filemap_delete_from_page_cache",
                1024,
            )?,
            evicted: BTreeMap::new(),
            _tracefs: tracefs,
        })
    }

    /// Counts the requests that the connection sends while `run` runs.
    pub fn count<T>(
        &self,
        connection: u32,
        run: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<(T, Counted)> {
        self.requests
            .filter(&format!("connection == {connection}"))?;
        self.requests.write("trace", "")?;
        self.requests.enable(true)?;
        let result = run();
        self.requests.enable(false)?;
        let mut counted = Counted::default();
        counted.lost = self.requests.drain(|line| {
            if let Some(name) = opcode(line) {
                *counted.requests.entry(name).or_default() += 1;
            }
        })?;
        counted.total = counted.requests.values().sum::<u64>() + counted.lost;
        Ok((result?, counted))
    }

    /// Watches from now on for pages of these mounts that leave the page cache.
    pub fn watch_evictions(&mut self, connections: &[u32]) -> io::Result<()> {
        if connections.is_empty() {
            return Ok(());
        }
        let terms: Vec<String> = connections
            .iter()
            .map(|c| format!("s_dev == {c}"))
            .collect();
        self.evictions.filter(&terms.join(" || "))?;
        self.evictions.enable(true)
    }

    /// How many pages of a mount have left the page cache since the beginning. A directory whose
    /// page has left is read anew, whoever made it leave: memory pressure, a proactive reclaimer
    /// (DAMON), somebody who drops the caches.
    pub fn evicted(&mut self, connection: u32) -> io::Result<u64> {
        let evicted = &mut self.evicted;
        let lost = self.evictions.drain(|line| {
            if let Some(device) = device(line) {
                *evicted.entry(device).or_default() += 1;
            }
        })?;
        for count in self.evicted.values_mut() {
            *count += lost;
        }
        Ok(self.evicted.get(&connection).copied().unwrap_or(0))
    }
}

/// `... mm_filemap_delete_from_page_cache: dev 0:43 ino ...` to 43.
fn device(line: &str) -> Option<u32> {
    let (_, event) = line.split_once(" mm_filemap_delete_from_page_cache: dev 0:")?;
    event.split(' ').next()?.parse().ok()
}

/// `... fuse_request_send: connection 43 req 2 opcode 1 (FUSE_LOOKUP) len 45` to `LOOKUP`.
fn opcode(line: &str) -> Option<String> {
    let (_, event) = line.split_once(" fuse_request_send: ")?;
    let (_, rest) = event.split_once('(')?;
    let (name, _) = rest.split_once(')')?;
    Some(name.strip_prefix("FUSE_").unwrap_or(name).to_owned())
}
