//! The referee: the kernel's own count of the requests of one mount.
//!
//! Uses the tracepoint `fuse:fuse_request_send`, filtered by connection, in a
//! tracing instance of its own, so that nobody else's tracing is touched.
//! Needs root; without it the column stays empty and the bench says so.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

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

/// A tracing instance.
pub struct Counter {
    instance: PathBuf,
    mounted: Option<PathBuf>,
}

fn tracefs() -> io::Result<(PathBuf, Option<PathBuf>)> {
    for place in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
        let place = PathBuf::from(place);
        if place.join("instances").is_dir() {
            return Ok((place, None));
        }
    }
    let place = std::env::temp_dir().join(format!("nameifs-bench-trace-{}", std::process::id()));
    fs::create_dir(&place)?;
    guard::keep(&Duty::Mount(&place, 0));
    rustix::mount::mount("nodev", &place, "tracefs", MountFlags::empty(), None)?;
    Ok((place.clone(), Some(place)))
}

impl Counter {
    /// Makes the instance; an error says why requests cannot be counted.
    pub fn open() -> io::Result<Self> {
        let (root, mounted) = tracefs()?;
        let instance = root.join(format!("instances/nameifs-bench-{}", std::process::id()));
        let counter = Self { instance, mounted };
        fs::create_dir(&counter.instance)?;
        guard::keep(&Duty::Directory(&counter.instance));
        counter.write("buffer_size_kb", "32768")?;
        counter.write("tracing_on", "1")?;
        if !counter.event().join("enable").exists() {
            return Err(io::Error::other(
                "this kernel has no tracepoint fuse:fuse_request_send",
            ));
        }
        Ok(counter)
    }

    fn event(&self) -> PathBuf {
        self.instance.join("events/fuse/fuse_request_send")
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.instance.join(file), text)
    }

    /// Counts the requests that the connection sends while `run` runs.
    pub fn count<T>(
        &self,
        connection: u32,
        run: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<(T, Counted)> {
        let event = self.event();
        fs::write(event.join("filter"), format!("connection == {connection}"))?;
        self.write("trace", "")?;
        fs::write(event.join("enable"), "1")?;
        let result = run();
        fs::write(event.join("enable"), "0")?;
        let counted = self.read()?;
        self.write("trace", "")?;
        Ok((result?, counted))
    }

    fn read(&self) -> io::Result<Counted> {
        let mut counted = Counted::default();
        let trace = BufReader::new(fs::File::open(self.instance.join("trace"))?);
        for line in trace.split(b'\n') {
            if let Some(name) = opcode(&String::from_utf8_lossy(&line?)) {
                *counted.requests.entry(name).or_default() += 1;
            }
        }
        for cpu in fs::read_dir(self.instance.join("per_cpu"))? {
            let stats = fs::read_to_string(cpu?.path().join("stats"))?;
            counted.lost += ["overrun:", "dropped events:"]
                .iter()
                .filter_map(|key| stats.lines().find_map(|l| l.strip_prefix(key)))
                .filter_map(|n| n.trim().parse::<u64>().ok())
                .sum::<u64>();
        }
        counted.total = counted.requests.values().sum::<u64>() + counted.lost;
        Ok(counted)
    }
}

/// `... fuse_request_send: connection 43 req 2 opcode 1 (FUSE_LOOKUP) len 45` to `LOOKUP`.
fn opcode(line: &str) -> Option<String> {
    let (_, event) = line.split_once(" fuse_request_send: ")?;
    let (_, rest) = event.split_once('(')?;
    let (name, _) = rest.split_once(')')?;
    Some(name.strip_prefix("FUSE_").unwrap_or(name).to_owned())
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.instance);
        guard::done(&Duty::Directory(&self.instance));
        if let Some(place) = &self.mounted {
            close(place);
        }
    }
}

fn close(place: &Path) {
    guard::unmount(place);
    let _ = fs::remove_dir(place);
    guard::done(&Duty::Mount(place, 0));
}
