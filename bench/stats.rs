//! The requests that nameifs itself counted, from `.nameifs/stats`.
//!
//! To read the file costs requests too. Two readings in a row show how many,
//! and a window between two readings is corrected by them.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::counter::Requests;
use crate::workload::{self, Limits};

/// A window over which requests are counted.
pub struct Window {
    file: PathBuf,
    before: Requests,
    reading: Requests,
}

fn read(file: &Path, limits: &Limits) -> io::Result<Requests> {
    let text = workload::read_through(file, limits)?;
    let stats: Value = serde_json::from_slice(&text)?;
    let requests = stats["requests"]
        .as_object()
        .ok_or_else(|| io::Error::other(".nameifs/stats has no object `requests`"))?;
    Ok(requests
        .iter()
        .filter_map(|(k, v)| Some((k.clone(), v.as_u64()?)))
        .collect())
}

fn difference(after: &Requests, before: &Requests) -> Requests {
    let earlier = |key: &String| before.get(key).copied().unwrap_or(0);
    after
        .iter()
        .map(|(key, n)| (key.clone(), n.saturating_sub(earlier(key))))
        .filter(|(_, n)| *n > 0)
        .collect()
}

impl Window {
    /// Opens a window on the mount at `root`.
    pub fn open(root: &Path, limits: &Limits) -> io::Result<Self> {
        let file = root.join(".nameifs/stats");
        // The first reading may cost lookups that later ones do not.
        read(&file, limits)?;
        let first = read(&file, limits)?;
        let before = read(&file, limits)?;
        let reading = difference(&before, &first);
        Ok(Self {
            file,
            before,
            reading,
        })
    }

    /// Closes it: the requests since it was opened, without those of the readings.
    pub fn close(self, limits: &Limits) -> io::Result<Requests> {
        let after = read(&self.file, limits)?;
        Ok(difference(&difference(&after, &self.before), &self.reading))
    }
}

/// Without FORGET and BATCH_FORGET, which the kernel's tracepoint of requests does not see.
pub fn without_forgets(requests: &Requests) -> Requests {
    requests
        .iter()
        .filter(|(k, _)| !k.ends_with("FORGET"))
        .map(|(k, v)| (k.clone(), *v))
        .collect()
}

/// The sum of the differences of all opcodes.
pub fn distance(one: &Requests, other: &Requests) -> u64 {
    let get = |requests: &Requests, key: &String| requests.get(key).copied().unwrap_or(0);
    let all = one
        .keys()
        .chain(other.keys().filter(|k| !one.contains_key(*k)));
    all.map(|key| get(one, key).abs_diff(get(other, key))).sum()
}
