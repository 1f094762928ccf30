//! `.slabinfo` is true: the tools that read /proc/slabinfo read it, and its numbers
//! follow what happens.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::harness::{MODES, Mounted, Setup, kernel_drop_caches, whole_machine};
use crate::need;
use crate::observe::{SlabLine, parse_slabinfo};
use crate::run::{Stop, command, going, run, until};
use crate::tree;

/// The caches that every mount has.
const CACHES: [&str; 3] = ["getname_cache", "dentry", "inode"];

/// Runs a tool with `.slabinfo` in the place of /proc/slabinfo.
pub fn with_tool(mounted: &Mounted, words: &[&str]) -> String {
    let script = "mount --bind \"$1\" /proc/slabinfo && shift && exec \"$@\"";
    let mut cmd = command([
        "unshare",
        "-m",
        "--propagation",
        "private",
        "bash",
        "-c",
        script,
    ]);
    cmd.arg("bash").arg(mounted.at(".slabinfo")).args(words);
    run(&mut cmd).clean().out()
}

/// `slabtop -o` reads it: every cache with its numbers.
#[test]
fn read_by_slabtop() {
    need!(Root, Program("slabtop"), Program("unshare"));
    let mounted = Setup::mode("frozen")
        .source(Path::new("/usr/include"))
        .mount();
    run(&mut mounted.inside(&["find", "."])).clean();
    let info = mounted.slabinfo();
    let text = with_tool(&mounted, &["slabtop", "-o", "-s", "c"]);
    let mut rows = BTreeMap::new();
    for line in text.lines().skip_while(|l| !l.contains("OBJS")).skip(1) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let [objs, active, _, _, slabs, per_slab, _, name @ ..] = words.as_slice() {
            rows.insert(
                name.join(" "),
                [*objs, *active, *slabs, *per_slab].map(str::to_owned),
            );
        }
    }
    assert_eq!(rows.len(), info.len(), "caches in slabtop:\n{text}");
    for (name, line) in &info {
        let row = &rows[name];
        assert_eq!(row[3], line.per_slab.to_string(), "{name} in\n{text}");
        if name.starts_with("dentry") || name.starts_with("inode") {
            assert_eq!(row[0], line.total.to_string(), "{name} in\n{text}");
            assert_eq!(row[1], line.active.to_string(), "{name} in\n{text}");
        }
    }
    mounted.unmount();
}

/// `vmstat -m` reads it.
#[test]
fn read_by_vmstat() {
    need!(Root, Program("vmstat"), Program("unshare"));
    let mounted = Setup::mode("frozen")
        .source(Path::new("/usr/include"))
        .mount();
    run(&mut mounted.inside(&["find", "."])).clean();
    let info = mounted.slabinfo();
    let text = with_tool(&mounted, &["vmstat", "-m"]);
    for (name, line) in &info {
        let row = text.lines().find_map(|l| {
            let words: Vec<&str> = l.split_ascii_whitespace().collect();
            // vmstat cuts names at its column.
            (words.len() == 5 && name.starts_with(words[0])).then(|| words[3].to_owned())
        });
        assert_eq!(row, Some(line.size.to_string()), "{name} in\n{text}");
    }
    mounted.unmount();
}

/// What Prometheus' node_exporter makes of a slabinfo file.
fn exported(mounted: &Mounted) -> BTreeMap<String, f64> {
    let procfs = mounted.place().dir("procfs");
    std::os::unix::fs::symlink(mounted.at(".slabinfo"), procfs.join("slabinfo")).expect("symlink");
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|free| free.local_addr())
        .expect("a free port")
        .port();
    let mut cmd = command([
        "prometheus-node-exporter",
        "--collector.disable-defaults",
        "--collector.slabinfo",
    ]);
    cmd.arg(format!("--path.procfs={}", procfs.display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut exporter = cmd.spawn().expect("it starts");
    let text = until(Duration::from_secs(30), || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    });
    exporter.kill().expect("it is ours");
    exporter.wait().expect("it is ours");
    fs::remove_dir_all(&procfs).expect("remove");
    let text = text.expect("an answer");
    let metrics = text.lines().filter(|l| l.starts_with("node_"));
    let pair = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    metrics.filter_map(pair).collect()
}

/// Every reader reads it: with more objects than magazines hold, and under all debug
/// modes, where objects are larger.
#[test]
fn read_by_all_under_debug_modes() {
    need!(
        Root,
        Program("slabtop"),
        Program("vmstat"),
        Program("prometheus-node-exporter")
    );
    for debug in ["-", "FZPU"] {
        let mounted = Setup::mode("ttl")
            .arg("--ttl=600s")
            .arg(format!("--slab-debug={debug}"))
            .mount();
        tree::wide(&mounted.below("d"), 3000);
        run(&mut mounted.inside(&["find", ".", "-printf", "%s"])).clean();
        let info = mounted.slabinfo();
        assert!(info["dentry"].active > 3000, "{info:?}");
        let slabtop = with_tool(&mounted, &["slabtop", "-o"]);
        let vmstat = with_tool(&mounted, &["vmstat", "-m"]);
        let exported = exported(&mounted);
        for (name, line) in &info {
            assert!(slabtop.contains(name), "{debug}: {name} in\n{slabtop}");
            assert!(vmstat.contains(name), "{debug}: {name} in\n{vmstat}");
            for (metric, number) in [
                ("object_size_bytes", line.size),
                ("objects_per_slab", line.per_slab),
            ] {
                let key = format!("node_slabinfo_{metric}{{slab=\"{name}\"}}");
                assert_eq!(exported.get(&key), Some(&(number as f64)), "{debug} {key}");
            }
        }
        let dentries = "node_slabinfo_active_objects{slab=\"dentry\"}";
        assert_eq!(exported[dentries], info["dentry"].active as f64);
        assert_eq!(
            exported["node_scrape_collector_success{collector=\"slabinfo\"}"],
            1.0
        );
        mounted.unmount();
    }
}

/// The caches that were promised are there, the name buffers with 4,096 bytes.
#[test]
fn promised_caches() {
    need!();
    for mode in MODES {
        let mounted = Setup::mode(mode).mount();
        let info = mounted.slabinfo();
        for name in CACHES {
            assert!(info.contains_key(name), "{mode}: no {name} in {info:?}");
        }
        assert_eq!(info["getname_cache"].size, 4096);
        let fd = fs::File::open(mounted.at(".slabinfo")).expect("open");
        let open = mounted.slabinfo();
        let files: Vec<_> = open
            .iter()
            .filter(|(n, l)| *n == "filp" && l.active >= 1)
            .collect();
        assert!(!files.is_empty(), "no cache of open files: {open:?}");
        drop(fd);
        mounted.unmount();
    }
}

/// Dentries and inodes appear with the names that were walked, and go when the
/// caches are dropped, the kernel's and ours; the slabs go with them.
#[test]
fn caches_fill_and_empty() {
    need!(Root);
    for mode in MODES {
        let mounted = Setup::mode(mode).mount();
        tree::wide(&mounted.below("d"), 5000);
        for i in 0..500 {
            let name = format!("d/{}", "long".repeat(40)) + &i.to_string();
            fs::write(mounted.below(name), "").expect("write");
        }
        let empty = mounted.slabinfo();
        run(&mut mounted.inside(&["find", ".", "-printf", "%s"])).clean();
        let full = mounted.slabinfo();
        for (name, least) in [("dentry", 5500), ("inode", 5500)] {
            let grown = full[name].active - empty[name].active.min(full[name].active);
            assert!(
                grown >= least,
                "{mode}: {name} grew by {grown} for 5,500 names"
            );
        }
        let alone = whole_machine();
        kernel_drop_caches(&alone, 2);
        mounted.drop_caches();
        drop(alone);
        // What the kernel holds comes back when it was told, by a thread of its own.
        // Slabs that come free after that are given back by the next drop.
        let gone = || {
            mounted.drop_caches();
            let now = mounted.slabinfo();
            let gone =
                |name: &str| now[name].active < 100 && now[name].total < full[name].total / 2;
            (gone("dentry") && gone("inode")).then_some(now)
        };
        let emptied = until(Duration::from_secs(20), gone).unwrap_or_else(|| mounted.slabinfo());
        for name in ["dentry", "inode"] {
            let (left, total) = (emptied[name].active, emptied[name].total);
            assert!(left < 100, "{mode}: {left} of {name} left after dropping");
            assert!(
                total < full[name].total / 2,
                "{mode}: slabs of {name} stay: {total}"
            );
        }
        mounted.unmount();
    }
}

/// getname_cache moves as names are borrowed: slabs appear with the first walk, and
/// readers that run meanwhile see buffers in use.
#[test]
fn name_buffers_are_borrowed() {
    need!();
    let mounted = Setup::mode("strict")
        .source(Path::new("/usr/share"))
        .mount();
    let borrowed = || mounted.slabinfo()["getname_cache"].active;
    std::thread::scope(|scope| {
        let stop = Stop::default();
        for _ in 0..2 {
            let (mounted, flag) = (&mounted, stop.flag());
            scope.spawn(move || {
                while going(&flag) {
                    run(&mut mounted.inside(&["find", ".", "-printf", "%s"])).clean();
                }
            });
        }
        // A buffer is borrowed for microseconds: it takes many looks to meet one.
        let seen = until(Duration::from_secs(60), || (borrowed() > 0).then_some(()));
        assert!(seen.is_some(), "never a name buffer in use");
    });
    let given_back = until(Duration::from_secs(10), || (borrowed() == 0).then_some(()));
    assert!(
        given_back.is_some(),
        "{} name buffers stay in use",
        borrowed()
    );
    let after = mounted.slabinfo()["getname_cache"].clone();
    assert!(after.total > 0, "no name buffer was ever made: {after:?}");
    mounted.unmount();
}

/// Under load every text is whole, and active <= total in every line (the parser
/// checks it), through one descriptor that seeks back and through new ones.
#[test]
fn consistent_under_load() {
    need!();
    for mode in MODES {
        let mounted = Setup::mode(mode).source(Path::new("/usr/include")).mount();
        std::thread::scope(|scope| {
            let stop = Stop::default();
            let mounted = &mounted;
            for words in [
                ["find", ".", "-printf", "%s"],
                ["ls", "-lR", "--color=never", "."],
            ] {
                let flag = stop.flag();
                scope.spawn(move || {
                    while going(&flag) {
                        run(&mut mounted.inside(&words)).clean();
                    }
                });
            }
            let flag = stop.flag();
            scope.spawn(move || {
                while going(&flag) {
                    mounted.drop_caches();
                    std::thread::yield_now();
                }
            });
            let mut held = fs::File::open(mounted.at(".slabinfo")).expect("open");
            for _ in 0..1000 {
                held.seek(SeekFrom::Start(0)).expect("seek");
                let mut text = Vec::new();
                held.read_to_end(&mut text).expect("read");
                parse_slabinfo(&text).unwrap_or_else(|e| panic!("{mode}: {e}"));
                mounted.slabinfo();
            }
        });
        mounted.unmount();
    }
}

/// As a file: size 0, mode 0444, owned by whoever mounted; small reads give the same
/// text as one big one; seeking back gives a new one; writing is refused.
#[test]
fn as_a_file() {
    need!();
    let mounted = Setup::mode("ttl").arg("--ttl=600s").mount();
    let stat = mounted.at(".slabinfo").metadata().expect("stat");
    assert_eq!((stat.len(), stat.mode() & 0o7777), (0, 0o444));
    assert_eq!(stat.uid(), rustix::process::geteuid().as_raw());
    let dir = mounted.at(".nameifs").metadata().expect("stat");
    assert!(
        dir.is_dir() && dir.mode() & 0o7777 == 0o555,
        "{:o}",
        dir.mode()
    );
    let drop = mounted.at(".nameifs/drop_caches").metadata().expect("stat");
    assert_eq!(drop.mode() & 0o7777, 0o200);
    let mut file = fs::File::open(mounted.at(".slabinfo")).expect("open");
    let mut text = Vec::new();
    let mut byte = [0; 7];
    loop {
        let n = file.read(&mut byte).expect("read");
        if n == 0 {
            break;
        }
        text.extend_from_slice(&byte[..n]);
    }
    parse_slabinfo(&text).unwrap_or_else(|e| panic!("by 7 bytes: {e}"));
    for i in 0..300 {
        fs::write(mounted.below(format!("f-{i}")), "").expect("write");
        mounted.at(format!("f-{i}")).metadata().expect("stat");
    }
    file.seek(SeekFrom::Start(0)).expect("seek");
    let mut again = Vec::new();
    file.read_to_end(&mut again).expect("read");
    let of = |text: &[u8]| -> BTreeMap<String, SlabLine> {
        parse_slabinfo(text).unwrap_or_else(|e| panic!("{e}"))
    };
    let (before, after) = (of(&text)["dentry"].active, of(&again)["dentry"].active);
    assert!(
        after >= before + 300,
        "300 names later {after} dentries, before {before}"
    );
    std::mem::drop(file);
    fs::write(mounted.at(".slabinfo"), "x").expect_err("it is not written to");
    fs::write(mounted.at(".nameifs/drop_caches"), "nonsense").expect_err("only a number");
    fs::remove_file(mounted.at(".slabinfo")).expect_err("it stays");
    mounted.slabinfo();
    mounted.unmount();
}

/// `.nameifs/dentry-state` has six numbers, as /proc/sys/fs/dentry-state: dentries,
/// unused ones, age limit, pages wanted, negative ones, a dummy.
#[test]
fn dentry_state() {
    need!();
    let mounted = Setup::mode("frozen").mount();
    for i in 0..100 {
        fs::write(mounted.below(format!("f-{i}")), "").expect("write");
        mounted.at(format!("f-{i}")).metadata().expect("stat");
        mounted
            .at(format!("absent-{i}"))
            .metadata()
            .expect_err("it is absent");
    }
    let text = fs::read_to_string(mounted.at(".nameifs/dentry-state")).expect("read");
    let numbers: Vec<u64> = text
        .split_ascii_whitespace()
        .map(|w| w.parse().unwrap_or_else(|e| panic!("{text:?}: {e}")))
        .collect();
    assert_eq!(numbers.len(), 6, "{text:?}");
    assert!(text.ends_with('\n'), "{text:?}");
    assert!(numbers[0] >= 200 && numbers[1] <= numbers[0], "{numbers:?}");
    assert!(numbers[4] >= 100 && numbers[4] <= numbers[0], "{numbers:?}");
    let stats = mounted.stats();
    assert_eq!(stats.dcache("negative_dentries"), numbers[4]);
    mounted.unmount();
}
