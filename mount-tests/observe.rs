//! What a mount tells of itself, and what the kernel tells of it: the mount
//! table, the request tracepoint, `.slabinfo`, `.nameifs/stats`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug)]
pub struct MountLine {
    /// Minor number of the device; names the FUSE connection.
    pub minor: u32,
    /// Where it is mounted.
    pub target: PathBuf,
    /// Options of this mount.
    pub options: String,
    /// Filesystem type.
    pub fstype: String,
    /// The device or name.
    pub source: OsString,
    /// Options of the filesystem.
    pub super_options: String,
}

/// The mount table.
pub fn mounts() -> Vec<MountLine> {
    let text = fs::read("/proc/self/mountinfo").expect("mountinfo is readable");
    text.split(|&b| b == b'\n').filter_map(mount_line).collect()
}

fn mount_line(line: &[u8]) -> Option<MountLine> {
    let words: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = words.iter().position(|w| *w == b"-")?;
    let text = |w: &[u8]| String::from_utf8_lossy(w).into_owned();
    let minor = text(words.get(2)?);
    Some(MountLine {
        minor: minor.split_once(':')?.1.parse().ok()?,
        target: unescape(words.get(4)?).into(),
        options: text(words.get(5)?),
        fstype: text(words.get(dash + 1)?),
        source: unescape(words.get(dash + 2)?),
        super_options: text(words.get(dash + 3)?),
    })
}

fn unescape(word: &[u8]) -> OsString {
    let mut out = Vec::new();
    let mut rest = word;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = || {
            let digits = std::str::from_utf8(tail.get(..3)?).ok()?;
            u8::from_str_radix(digits, 8).ok()
        };
        match (first, octal()) {
            (b'\\', Some(byte)) => {
                out.push(byte);
                rest = &tail[3..];
            }
            _ => {
                out.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

/// The mount that is visible at `target`.
pub fn mount_at(target: &Path) -> Option<MountLine> {
    mounts().into_iter().rfind(|m| m.target == target)
}

/// Mounts at or below `dir`, the last one first.
pub fn mounts_below(dir: &Path) -> Vec<MountLine> {
    let mut found: Vec<_> = mounts();
    found.retain(|m| m.target.starts_with(dir));
    found.reverse();
    found
}

/// A filesystem mounted for one test in a directory, unmounted on drop.
pub struct Aside {
    dir: PathBuf,
}

impl Aside {
    /// Mounts a filesystem `fstype` at `dir`, which is made.
    pub fn mount(fstype: &str, dir: &Path) -> Self {
        fs::create_dir_all(dir).expect("a directory to mount on");
        mount("none", dir, fstype, MountFlags::empty(), None)
            .unwrap_or_else(|e| panic!("mount of {fstype}: {e}"));
        Self {
            dir: dir.to_owned(),
        }
    }

    /// Binds `from` at `dir`.
    pub fn bind(from: &Path, dir: &Path) -> Self {
        fs::create_dir_all(dir).expect("a directory to mount on");
        rustix::mount::mount_bind(from, dir).expect("a bind mount");
        Self {
            dir: dir.to_owned(),
        }
    }

    /// Binds `from` at `dir`, read-only.
    pub fn bind_read_only(from: &Path, dir: &Path) -> Self {
        let aside = Self::bind(from, dir);
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        rustix::mount::mount_remount(dir, flags, c"").expect("a read-only bind mount");
        aside
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if unmount(&self.dir, UnmountFlags::empty()).is_err() {
            // Busy: detached, so that no directory of a test keeps a mount in it.
            let _ = unmount(&self.dir, UnmountFlags::DETACH);
        }
    }
}

/// The kernel's own count of the requests it sends on one FUSE connection.
///
/// FORGET and INTERRUPT are not requests to the tracepoint.
pub struct Referee {
    instance: PathBuf,
    /// Unmounted before the directory that it is mounted in is deleted.
    _tracefs: Aside,
    _dir: tempfile::TempDir,
}

impl Referee {
    /// Begins to count the requests of the connection `minor`.
    pub fn start(minor: u32) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("nameifs-trace-")
            .tempdir()
            .expect("a temporary directory");
        let root = dir.path().join("tracefs");
        let tracefs = Aside::mount("tracefs", &root);
        let name = dir.path().file_name().expect("it has a name");
        let instance = root.join("instances").join(name);
        fs::create_dir(&instance).expect("a tracing instance");
        let referee = Self {
            instance,
            _tracefs: tracefs,
            _dir: dir,
        };
        referee.write("buffer_size_kb", "24576");
        let event = "events/fuse/fuse_request_send";
        referee.write(
            &format!("{event}/filter"),
            &format!("connection == {minor}"),
        );
        referee.write(&format!("{event}/enable"), "1");
        // An anonymous device has no major number.
        let evicted = format!("events/filemap/{EVICTED}");
        referee.write(&format!("{evicted}/filter"), &format!("s_dev == {minor}"));
        referee.write(&format!("{evicted}/enable"), "1");
        referee
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.instance.join(file);
        fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    /// Forgets what was counted.
    pub fn reset(&self) {
        self.write("trace", "");
    }

    /// Requests since the last reset, by opcode.
    pub fn count(&self) -> Counts {
        for cpu in fs::read_dir(self.instance.join("per_cpu")).expect("per_cpu is listed") {
            let stats = cpu.expect("an entry").path().join("stats");
            let text = fs::read_to_string(&stats).expect("tracing statistics");
            assert!(
                text.contains("\noverrun: 0\n"),
                "the kernel dropped trace records: {text}"
            );
        }
        let text = fs::read_to_string(self.instance.join("trace")).expect("a trace");
        let mut counts = Counts::default();
        let requests = |l: &&str| !l.starts_with('#') && !l.contains(EVICTED);
        for line in text.lines().filter(requests) {
            let name = line
                .split_once("(FUSE_")
                .and_then(|(_, rest)| rest.split_once(')'))
                .unwrap_or_else(|| panic!("not a record of fuse_request_send: {line}"));
            *counts.0.entry(name.0.to_owned()).or_default() += 1;
        }
        counts
    }
}

/// The tracepoint of a page that leaves the page cache.
const EVICTED: &str = "mm_filemap_delete_from_page_cache";

impl Referee {
    /// Pages of the mount that left the page cache since the last reset. A listing lives
    /// in such pages, and the machine may reclaim them at any time.
    pub fn evictions(&self) -> usize {
        let text = fs::read_to_string(self.instance.join("trace")).expect("a trace");
        text.lines()
            .filter(|l| !l.starts_with('#') && l.contains(EVICTED))
            .count()
    }

    /// What `work` sends when it is done again while the machine leaves its caches alone. To
    /// read a listing again that was reclaimed is no fault of the mirror's, so such a run says
    /// nothing; and what was reclaimed before comes back in the first of two runs.
    pub fn undisturbed(&self, mut work: impl FnMut()) -> Counts {
        for _ in 0..20 {
            let drops = cache_drops();
            self.reset();
            work();
            let before = self.count();
            work();
            if self.evictions() == 0 && cache_drops() == drops {
                return self.count().since(&before);
            }
        }
        panic!("the machine takes pages of this mount out of its cache all the time");
    }
}

/// How often anybody on this machine dropped the kernel's caches (drop_caches), so far.
fn cache_drops() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").expect("counters of the kernel");
    let drops = text.lines().filter_map(|line| line.strip_prefix("drop_"));
    drops
        .filter_map(|line| line.split_once(' ')?.1.parse::<u64>().ok())
        .sum()
}

impl Drop for Referee {
    fn drop(&mut self) {
        let _ = fs::write(self.instance.join("events/enable"), "0");
        let _ = fs::remove_dir(&self.instance);
    }
}

/// Requests by opcode, the name as in fuse.h without FUSE_.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub BTreeMap<String, u64>);

impl Counts {
    /// How many of one opcode.
    pub fn of(&self, opcode: &str) -> u64 {
        self.0.get(opcode).copied().unwrap_or(0)
    }

    /// All of them, STATFS aside: programs ask it for reasons of their own.
    pub fn total(&self) -> u64 {
        self.0
            .iter()
            .filter(|(k, _)| *k != "STATFS")
            .map(|(_, n)| n)
            .sum()
    }

    /// What was added since `before`; opcodes without change are left out.
    pub fn since(&self, before: &Self) -> Self {
        let delta = |(k, n): (&String, &u64)| {
            let old = before.of(k);
            assert!(*n >= old, "{k} went backwards: {old} then {n}");
            (*n > old).then(|| (k.clone(), n - old))
        };
        Self(self.0.iter().filter_map(delta).collect())
    }

    /// Without the opcodes that two counters cannot be compared by.
    pub fn comparable(mut self) -> Self {
        let aside = [
            "STATFS",
            "FORGET",
            "BATCH_FORGET",
            "INTERRUPT",
            "INIT",
            "DESTROY",
        ];
        self.0.retain(|k, n| !aside.contains(&k.as_str()) && *n > 0);
        self
    }
}

/// `.nameifs/stats`.
#[derive(Clone, Debug)]
pub struct Stats(pub serde_json::Value);

impl Stats {
    /// Parses the text of the file; its promised keys must be there.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let value: serde_json::Value =
            serde_json::from_slice(text).map_err(|e| format!("stats are not JSON: {e}"))?;
        for key in ["requests", "dcache", "source", "coherence", "limits"] {
            if !value.get(key).is_some_and(serde_json::Value::is_object) {
                return Err(format!("stats have no object {key:?}: {value}"));
            }
        }
        for key in [
            "hits",
            "negative_hits",
            "misses",
            "dentries",
            "negative_dentries",
            "bytes",
        ] {
            if value["dcache"][key].as_u64().is_none() {
                return Err(format!("stats have no count dcache.{key}: {value}"));
            }
        }
        Ok(Self(value))
    }

    /// A figure of the dcache.
    pub fn dcache(&self, key: &str) -> u64 {
        self.0["dcache"][key].as_u64().expect("parse saw it")
    }

    /// Requests answered so far.
    pub fn requests(&self) -> Counts {
        let all = self.0["requests"].as_object().expect("parse saw it");
        let count = |(k, n): (&String, &serde_json::Value)| {
            (k.clone(), n.as_u64().expect("a count of requests"))
        };
        Counts(all.iter().map(count).collect())
    }

    /// Calls to the source so far, all kinds.
    pub fn source_calls(&self) -> u64 {
        let all = self.0["source"].as_object().expect("parse saw it");
        all.values().filter_map(serde_json::Value::as_u64).sum()
    }
}

/// One cache in `.slabinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlabLine {
    /// Objects in use.
    pub active: u64,
    /// Objects there is room for in its slabs.
    pub total: u64,
    /// Bytes of one object.
    pub size: u64,
    /// Objects of one slab.
    pub per_slab: u64,
    /// Pages of one slab.
    pub pages: u64,
    /// Slabs with an object in use.
    pub active_slabs: u64,
    /// Slabs.
    pub slabs: u64,
}

/// Parses the text of version 2.1 as its strictest reader would, and checks what
/// holds between the numbers of a line.
pub fn parse_slabinfo(text: &[u8]) -> Result<BTreeMap<String, SlabLine>, String> {
    let text = std::str::from_utf8(text).map_err(|e| format!("not ASCII: {e}"))?;
    if text.len() >= 1 << 20 || !text.is_ascii() || !text.ends_with('\n') {
        return Err("too long, not ASCII, or without a newline at the end".into());
    }
    let mut lines = text.lines();
    if lines.next() != Some("slabinfo - version: 2.1") {
        return Err(format!("first line of {text:?}"));
    }
    let header = "# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> \
                  : tunables <limit> <batchcount> <sharedfactor> \
                  : slabdata <active_slabs> <num_slabs> <sharedavail>";
    if lines.next() != Some(header) {
        return Err(format!("second line of {text:?}"));
    }
    let mut caches = BTreeMap::new();
    for line in lines {
        let (name, parsed) = slab_line(line).ok_or_else(|| format!("line {line:?}"))?;
        if caches.insert(name, parsed).is_some() {
            return Err(format!("a cache twice: {line:?}"));
        }
    }
    Ok(caches)
}

fn slab_line(line: &str) -> Option<(String, SlabLine)> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [name, rest @ ..] = words.as_slice() else {
        return None;
    };
    if rest.len() != 15 || rest[5] != ":" || rest[6] != "tunables" {
        return None;
    }
    if rest[10] != ":" || rest[11] != "slabdata" || name.len() > 127 {
        return None;
    }
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let number = |i: usize| rest[i].parse::<u32>().ok().map(u64::from);
    let n: Vec<u64> = [0, 1, 2, 3, 4, 7, 8, 9, 12, 13, 14]
        .into_iter()
        .map(number)
        .collect::<Option<_>>()?;
    let parsed = SlabLine {
        active: n[0],
        total: n[1],
        size: n[2],
        per_slab: n[3],
        pages: n[4],
        active_slabs: n[8],
        slabs: n[9],
    };
    let printed = format!(
        "{name:<17} {:>6} {:>6} {:>6} {:>4} {:>4} : tunables {:>4} {:>4} {:>4} : slabdata {:>6} {:>6} {:>6}",
        n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10]
    );
    let sound = name.chars().all(word)
        && printed == line
        && parsed.per_slab >= 1
        && parsed.active <= parsed.total
        && parsed.total == parsed.slabs * parsed.per_slab
        && parsed.active_slabs <= parsed.slabs
        && parsed.active <= parsed.active_slabs * parsed.per_slab;
    sound.then(|| ((*name).to_owned(), parsed))
}

/// Bytes of memory that a process has in its pages (VmRSS).
pub fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status of the daemon");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB"));
    kib.and_then(|n| n.trim().parse::<u64>().ok())
        .expect("VmRSS")
        * 1024
}

/// Descriptors that a process has open.
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("descriptors of the daemon")
        .count()
}

/// Processes whose command line names `path`, zombies aside.
pub fn processes_naming(path: &Path) -> Vec<u32> {
    let needle = path.as_os_str().as_bytes();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc is listed").flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        // Gone meanwhile: not one of them.
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if pid != std::process::id() && line.split(|&b| b == 0).any(|arg| arg == needle) {
            found.push(pid);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "slabinfo - version: 2.1\n\
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>\n\
getname_cache          3     16   4096    8    8 : tunables    0    0    0 : slabdata      1      2      0\n";

    /// The parser takes a good text and refuses each way of spoiling it.
    #[test]
    fn slabinfo_parser_is_strict() {
        let caches = parse_slabinfo(GOOD.as_bytes()).expect("a good text");
        assert_eq!(caches["getname_cache"].active, 3);
        let spoilt: &[(&str, &str)] = &[
            ("2.1\n", "2.0\n"),
            ("# name ", "# names"),
            ("     3     16", "    17     16"),
            ("     3     16", "     3     17"),
            ("   8    8 :", "   0    8 :"),
            ("getname_cache ", "getname cache "),
            ("getname_cache ", "getname.cache "),
            (" slabdata      1", " slabdata      0"),
            (" slabdata      1", " slabdata      3"),
            ("      0\n", "      0 \n"),
            ("      0\n", "      0\n\n"),
            ("      0\n", "      0 : globalstat 1\n"),
            ("     3     16", "    -3     16"),
            ("      0\n", "      0"),
            ("tunables    0 ", "tunables 0 "),
        ];
        for (from, to) in spoilt {
            let text = GOOD.replacen(from, to, 1);
            let text = if from.ends_with("0\n") {
                format!("{}{to}", GOOD.strip_suffix(from).expect("the end"))
            } else {
                text
            };
            assert_ne!(text, GOOD);
            assert!(parse_slabinfo(text.as_bytes()).is_err(), "taken: {text}");
        }
        let line = GOOD.lines().last().expect("a cache");
        assert!(parse_slabinfo(format!("{GOOD}{line}\n").as_bytes()).is_err());
    }

    /// Stats without a promised key are refused.
    #[test]
    fn stats_need_their_keys() {
        let good = r#"{"requests":{"LOOKUP":3},"source":{},"coherence":{},"limits":{},
            "dcache":{"hits":0,"negative_hits":0,"misses":0,"dentries":0,"negative_dentries":0,"bytes":0}}"#;
        let stats = Stats::parse(good.as_bytes()).expect("good stats");
        assert_eq!(stats.requests().of("LOOKUP"), 3);
        for key in ["requests", "limits", "negative_hits", "bytes"] {
            assert!(Stats::parse(good.replace(key, "other").as_bytes()).is_err());
        }
    }

    /// Mount points with spaces and newlines in them are read back.
    #[test]
    fn mount_lines_are_unescaped() {
        let line = b"36 35 0:98 / /mnt\\0402\\012x rw,noatime - fuse.nameifs /a\\040b rw,user_id=0";
        let parsed = mount_line(line).expect("a line");
        assert_eq!(parsed.target, PathBuf::from("/mnt 2\nx"));
        assert_eq!((parsed.minor, parsed.source), (98, "/a b".into()));
        assert_eq!(parsed.fstype, "fuse.nameifs");
    }
}
