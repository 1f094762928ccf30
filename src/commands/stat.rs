//! `nameifs stat`: what a mirror has done, for people or as JSON (floor F7).
//!
//! Reads the mirror's own files, `.nameifs/stats` and `.slabinfo`, and adds nothing to
//! them but totals and alignment.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use nameifs::slab::{CacheInfo, parse_slabinfo};
use serde_json::{Map, Value, json};

use super::{SLABINFO, print, reason, stats_path, thousands, umount};
use crate::cli::{Failure, Outcome, StatArgs, failed};

/// Prints the counters of one mirror.
pub fn run(args: &StatArgs) -> Outcome {
    let mount = umount::mirror_at(&args.mountpoint)?;
    let (mut stats, caches) = read(&mount.mountpoint)?;
    if args.json {
        stats.insert("slabinfo".into(), caches.iter().map(cache_json).collect());
        let mut text = Value::Object(stats).to_string();
        text.push('\n');
        return print(&text);
    }
    let title = format!(
        "{} mirrors {}\n",
        mount.mountpoint.display(),
        mount.source.to_string_lossy()
    );
    print(&(title + &table(&stats, &caches)))
}

/// The counters and the slab caches of the mirror at `mountpoint`.
pub fn read(mountpoint: &Path) -> Result<(Map<String, Value>, Vec<CacheInfo>), Failure> {
    let whole = |path: &Path| read_whole(path).map_err(|e| unreadable(mountpoint, &e));
    let stats = whole(&stats_path(mountpoint))?;
    let stats = match serde_json::from_slice(&stats) {
        Ok(Value::Object(stats)) => stats,
        _ => return Err(odd("stats")),
    };
    let text = whole(&mountpoint.join(SLABINFO))?;
    let text = std::str::from_utf8(&text).map_err(|_| odd(SLABINFO))?;
    let caches = parse_slabinfo(text).ok_or_else(|| odd(SLABINFO))?;
    Ok((stats, caches))
}

/// A file whose size is not told beforehand, in few requests: they count themselves.
fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(1 << 16);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Why the counters cannot be read, in one line.
fn unreadable(mountpoint: &Path, error: &io::Error) -> Failure {
    let shown = mountpoint.display();
    match (error.kind(), error.raw_os_error()) {
        (ErrorKind::NotFound, _) => failed(format!(
            "{shown} shows no counters; it was mounted with --slabinfo=off, mount it without"
        )),
        (ErrorKind::PermissionDenied, _) => failed(format!(
            "{shown} may not be entered; ask as the user who mounted it"
        )),
        (_, Some(libc::ENOTCONN)) => failed(format!(
            "the daemon of {shown} has died; remove the mount (nameifs umount {shown})"
        )),
        _ => failed(format!(
            "cannot read the counters of {shown}: {}",
            reason(error)
        )),
    }
}

/// A file of the mirror that does not read as it should.
pub fn odd(file: &str) -> Failure {
    failed(format!(
        "{file} is not understood; use the nameifs that made the mount"
    ))
}

fn cache_json(cache: &CacheInfo) -> Value {
    json!({
        "name": cache.name,
        "active_objs": cache.active_objs,
        "num_objs": cache.num_objs,
        "objsize": cache.objsize,
        "objperslab": cache.objperslab,
        "pagesperslab": cache.pagesperslab,
        "active_slabs": cache.active_slabs,
        "num_slabs": cache.num_slabs,
    })
}

/// Sections in the order in which one asks: what came in, what was known, what was fetched.
const ORDER: [&str; 5] = ["requests", "dcache", "source", "coherence", "limits"];

/// The table for people.
fn table(stats: &Map<String, Value>, caches: &[CacheInfo]) -> String {
    let mut text = String::new();
    let others = stats
        .keys()
        .map(String::as_str)
        .filter(|key| !ORDER.contains(key));
    for section in ORDER.into_iter().chain(others) {
        match stats.get(section) {
            Some(Value::Object(rows)) => section_rows(&mut text, section, rows),
            Some(value) => line(&mut text, section, &cell(value)),
            None => {}
        }
    }
    let heads = ["active", "total", "size", "slabs", "KiB"];
    let _ = write!(text, "\n{:<26}", "slab caches");
    for head in heads {
        let _ = write!(text, "{head:>12}");
    }
    text.push('\n');
    for cache in caches {
        let kib = cache.num_slabs * cache.pagesperslab * page_size() / 1024;
        let _ = write!(text, "  {:<24}", cache.name);
        for n in [
            cache.active_objs,
            cache.num_objs,
            cache.objsize,
            cache.num_slabs,
            kib,
        ] {
            let _ = write!(text, "{:>12}", thousands(n));
        }
        text.push('\n');
    }
    text
}

/// Bytes in the pages that `.slabinfo` counts slabs in.
pub fn page_size() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| u64::try_from(size).ok())
        .unwrap_or(4096)
}

/// One section, with the sum where its rows are counts of one kind of thing, largest first.
fn section_rows(text: &mut String, section: &str, rows: &Map<String, Value>) {
    text.push('\n');
    let counted = matches!(section, "requests" | "source");
    let mut sorted: Vec<_> = rows.iter().collect();
    if counted {
        let total: u64 = rows.values().filter_map(Value::as_u64).sum();
        line(text, section, &thousands(total));
        sorted.retain(|(_, value)| value.as_u64() != Some(0));
        sorted.sort_by_key(|(name, value)| (std::cmp::Reverse(value.as_u64()), name.as_str()));
    } else {
        let _ = writeln!(text, "{section}");
    }
    for (name, value) in sorted {
        line(text, &format!("  {name}"), &cell(value));
    }
    if section == "dcache"
        && let Some(rate) = hit_rate(rows)
    {
        line(text, "  answered without source", &format!("{rate:.1} %"));
    }
}

fn line(text: &mut String, label: &str, value: &str) {
    let _ = writeln!(text, "{label:<26}{value:>12}");
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(word) => word.clone(),
        Value::Number(n) => n.as_u64().map_or_else(|| n.to_string(), thousands),
        other => other.to_string(),
    }
}

/// Percentage of lookups that needed no call to the source, if there were any.
fn hit_rate(dcache: &Map<String, Value>) -> Option<f64> {
    let count = |key: &str| dcache.get(key).and_then(Value::as_u64);
    let (hits, negative, misses) = (count("hits")?, count("negative_hits")?, count("misses")?);
    let all = hits + negative + misses;
    (all > 0).then(|| (hits + negative) as f64 * 100.0 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let stats = json!({
            "coherence": {"mode": "ttl"},
            "dcache": {"hits": 900, "negative_hits": 50, "misses": 50, "bytes": 12345},
            "limits": {"cache_size": 1048576, "watch": null},
            "requests": {"LOOKUP": 12, "READDIRPLUS": 1234, "GETATTR": 12, "OPEN": 0},
            "source": {"statx": 7},
            "uptime": 3,
        });
        let Value::Object(stats) = stats else {
            unreachable!()
        };
        let caches = [CacheInfo {
            name: "dentry".into(),
            active_objs: 3,
            num_objs: 42,
            objsize: 96,
            objperslab: 42,
            pagesperslab: 1,
            active_slabs: 1,
            num_slabs: 1,
            ..CacheInfo::default()
        }];
        let text = table(&stats, &caches);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        let at = |line: &[&str]| lines.iter().position(|l| l == line).expect("line is there");
        assert!(at(&["requests", "1,258"]) < at(&["READDIRPLUS", "1,234"]));
        assert!(at(&["READDIRPLUS", "1,234"]) < at(&["GETATTR", "12"]));
        assert!(at(&["GETATTR", "12"]) < at(&["LOOKUP", "12"]));
        assert!(at(&["requests", "1,258"]) < at(&["dcache"]));
        assert!(at(&["dcache"]) < at(&["source", "7"]));
        at(&["mode", "ttl"]);
        at(&["uptime", "3"]);
        at(&["answered", "without", "source", "95.0", "%"]);
        at(&["dentry", "3", "42", "96", "1", "4"]);
        assert!(!text.contains("OPEN"));
    }

    #[test]
    fn rates() {
        for (dcache, rate) in [
            (json!({"hits": 0, "negative_hits": 0, "misses": 0}), None),
            (json!({"hits": 1}), None),
            (
                json!({"hits": 1, "negative_hits": 2, "misses": 1}),
                Some(75.0),
            ),
        ] {
            assert_eq!(hit_rate(dcache.as_object().unwrap()), rate, "{dcache}");
        }
    }
}
