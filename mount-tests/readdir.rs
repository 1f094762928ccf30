//! Directory listings: every name exactly once, whatever the size of the reader's
//! buffer, wherever it seeks, whatever is dropped or deleted meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom, seek, statat};

use crate::harness::{MODES, Mounted, Setup, kernel_drop_caches, quiet_machine, whole_machine};
use crate::need;
use crate::observe::Referee;
use crate::run::{run, until};
use crate::tree::{self, open_dir, wide, wide_name};

/// One entry as getdents64(2) gives it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    name: Vec<u8>,
    ino: u64,
    kind: u8,
    /// Where the next entry starts.
    next: u64,
}

/// An open directory that is read with buffers of a chosen size.
struct Reader {
    fd: OwnedFd,
}

impl Reader {
    fn open(dir: &Path) -> Self {
        Self { fd: open_dir(dir) }
    }

    /// The entries of one getdents64 call; none at the end.
    fn chunk(&mut self, size: usize) -> Vec<Entry> {
        let mut buf = vec![MaybeUninit::uninit(); size];
        let mut dir = RawDir::new(self.fd.as_fd(), &mut buf);
        let mut entries = Vec::new();
        while let Some(entry) = dir.next() {
            let entry = entry.unwrap_or_else(|e| panic!("getdents64: {e}"));
            entries.push(Entry {
                name: entry.file_name().to_bytes().to_vec(),
                ino: entry.ino(),
                kind: kind(entry.file_type()),
                next: entry.next_entry_cookie(),
            });
            if dir.is_buffer_empty() {
                break;
            }
        }
        entries
    }

    /// All that is left, each call with the next of `sizes`.
    fn rest(&mut self, sizes: &[usize]) -> Vec<Entry> {
        let mut all = Vec::new();
        for size in sizes.iter().cycle() {
            let chunk = self.chunk(*size);
            if chunk.is_empty() {
                return all;
            }
            all.extend(chunk);
        }
        all
    }

    fn seek(&mut self, cookie: u64) {
        let at = seek(&self.fd, SeekFrom::Start(cookie)).expect("seek to a cookie");
        assert_eq!(at, cookie);
    }
}

fn kind(kind: FileType) -> u8 {
    (kind.as_raw_mode() >> 12) as u8
}

fn names(entries: &[Entry]) -> BTreeSet<Vec<u8>> {
    let set: BTreeSet<_> = entries.iter().map(|e| e.name.clone()).collect();
    assert_eq!(set.len(), entries.len(), "a name was listed twice");
    set
}

/// Name to (number, kind), `..` aside: it is outside where a tree is mounted.
fn facts(entries: &[Entry]) -> BTreeMap<Vec<u8>, (u64, u8)> {
    names(entries);
    let fact = |e: &Entry| (e.name.clone(), (e.ino, e.kind));
    entries
        .iter()
        .filter(|e| e.name != b"..")
        .map(fact)
        .collect()
}

fn expected(count: usize) -> BTreeSet<Vec<u8>> {
    let dots = [b".".to_vec(), b"..".to_vec()];
    (0..count)
        .map(|i| wide_name(i).into_bytes())
        .chain(dots)
        .collect()
}

#[track_caller]
fn same_names(found: &BTreeSet<Vec<u8>>, expected: &BTreeSet<Vec<u8>>) {
    let show = |set: Vec<&Vec<u8>>| -> Vec<String> {
        set.iter()
            .take(5)
            .map(|n| n.escape_ascii().to_string())
            .collect()
    };
    let missing: Vec<_> = expected.difference(found).collect();
    let extra: Vec<_> = found.difference(expected).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "{} missing, such as {:?}; {} too many, such as {:?}",
        missing.len(),
        show(missing.clone()),
        extra.len(),
        show(extra.clone())
    );
}

const BUFFERS: [&[usize]; 4] = [&[280], &[1024, 32_768], &[32_768], &[1 << 20]];

fn wide_mount(mode: &str) -> (std::sync::Arc<tree::Tree>, Mounted) {
    let tree = tree::nasty();
    let mounted = Setup::mode(mode).source(&tree.wide()).mount();
    (tree, mounted)
}

/// A hundred thousand names with the smallest buffers, 1 KB and 32 KB by turns,
/// and huge ones: each name once, cold and warm, number and kind as on the source.
#[test]
fn every_buffer_size() {
    need!();
    for mode in MODES {
        let (tree, mounted) = wide_mount(mode);
        let source = facts(&Reader::open(&tree.wide()).rest(&[1 << 20]));
        same_names(
            &source.keys().cloned().chain([b"..".to_vec()]).collect(),
            &expected(tree::WIDE),
        );
        for sizes in BUFFERS {
            for _ in 0..2 {
                let mount = facts(&Reader::open(mounted.path()).rest(sizes));
                assert!(
                    mount == source,
                    "{mode}, buffers {sizes:?}: not the source's entries"
                );
            }
        }
        mounted.unmount();
    }
}

/// seekdir to each of 1,000 telldir positions continues exactly there, in any
/// order, with another buffer than the one that told the position.
fn seeks(dir: &Path) {
    let mut reader = Reader::open(dir);
    let all = reader.rest(&[32_768]);
    assert_eq!(all.len(), tree::WIDE + 2);
    let cookies: BTreeSet<u64> = all.iter().map(|e| e.next).collect();
    assert_eq!(cookies.len(), all.len(), "two entries have one cookie");
    assert!(!cookies.contains(&0), "cookie 0 is the start");
    // Steps through the whole directory in a scattered order: 7919 is a prime.
    for step in 0..1000 {
        let i = step * 7919 * 13 % (all.len() - 1);
        reader.seek(all[i].next);
        let found = reader.chunk(if step % 2 == 0 { 300 } else { 4096 });
        let wanted = &all[i + 1..(i + 1 + found.len()).min(all.len())];
        assert!(!found.is_empty(), "nothing after position {i}");
        assert_eq!(found, wanted, "after position {i}");
    }
    // The end stays the end, the start the start.
    reader.seek(all[all.len() - 1].next);
    assert_eq!(reader.chunk(4096), []);
    reader.seek(0);
    let start = reader.chunk(4096);
    assert!(
        !start.is_empty() && all.starts_with(&start),
        "rewound to another start"
    );
}

/// As [`seeks`], on the source itself: the check is right there.
#[test]
fn seek_positions_on_the_source() {
    need!();
    seeks(&tree::nasty().wide());
}

/// As [`seeks`], through the mount, in each mode, cold and then warm.
#[test]
fn seek_positions() {
    need!();
    for mode in MODES {
        let (_tree, mounted) = wide_mount(mode);
        seeks(mounted.path());
        seeks(mounted.path());
        mounted.unmount();
    }
}

/// A cookie from one open directory holds in another, and after the kernel's and
/// our caches were dropped half way: stable cookies across handles.
#[test]
fn caches_dropped_half_way() {
    need!(Root);
    for mode in MODES {
        let (_tree, mounted) = wide_mount(mode);
        for (first, second) in [(32_768, 32_768), (280, 32_768), (32_768, 1024)] {
            // Fills the kernel's cache of the directory.
            let all = Reader::open(mounted.path()).rest(&[32_768]);
            let mut half = Reader::open(mounted.path());
            let mut found = Vec::new();
            while found.len() < all.len() / 2 {
                found.extend(half.chunk(first));
            }
            let alone = whole_machine();
            kernel_drop_caches(&alone, 3);
            mounted.drop_caches();
            drop(alone);
            // The next from a handle of its own, at the same place.
            let mut other = Reader::open(mounted.path());
            other.seek(found[found.len() - 1].next);
            let of_other = other.rest(&[32_768, 1024]);
            let of_half = half.rest(&[second]);
            assert!(of_half == of_other, "{mode}: two handles go on differently");
            found.extend(of_half);
            assert!(
                found == all,
                "{mode}: not what was listed before, each once"
            );
        }
        mounted.unmount();
    }
}

/// Two handles that read by turns do not disturb each other.
#[test]
fn two_handles_by_turns() {
    need!();
    for mode in MODES {
        let (_tree, mounted) = wide_mount(mode);
        let (mut a, mut b) = (Reader::open(mounted.path()), Reader::open(mounted.path()));
        let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
        loop {
            let (chunk_a, chunk_b) = (a.chunk(2048), b.chunk(32_768));
            if chunk_a.is_empty() && chunk_b.is_empty() {
                break;
            }
            of_a.extend(chunk_a);
            of_b.extend(chunk_b);
        }
        same_names(&names(&of_a), &expected(tree::WIDE));
        assert!(of_a == of_b, "{mode}: two handles list differently");
        drop((a, b));
        mounted.unmount();
    }
}

/// Names are deleted on the source while the mount lists them, as `rm -rf` would:
/// each name is listed once, none that is still there is missed.
#[test]
fn delete_while_reading() {
    need!();
    const COUNT: usize = 10_000;
    for (mode, size) in [("strict", 280), ("strict", 32_768), ("ttl", 4096)] {
        let mounted = Setup::mode(mode).mount();
        wide(&mounted.below("d"), COUNT);
        let mut reader = Reader::open(&mounted.at("d"));
        let mut found = Vec::new();
        loop {
            let chunk = reader.chunk(size);
            if chunk.is_empty() {
                break;
            }
            for entry in chunk.iter().filter(|e| e.name != b"." && e.name != b"..") {
                remove(&mounted.below("d"), &entry.name);
            }
            found.extend(chunk);
        }
        same_names(&names(&found), &expected(COUNT));
        assert_eq!(
            fs::read_dir(mounted.below("d"))
                .expect("a directory")
                .count(),
            0
        );
        let rest = names(&Reader::open(&mounted.at("d")).rest(&[4096]));
        if mode == "strict" {
            assert_eq!(rest.len(), 2, "all names are gone");
        }
        drop(reader);
        mounted.unmount();
    }
}

/// Every other name is deleted on the source, those not yet read among them: what
/// stays is listed exactly once; what was deleted at most once.
#[test]
fn delete_ahead_of_the_reader() {
    need!();
    const COUNT: usize = 10_000;
    let mounted = Setup::mode("strict").mount();
    wide(&mounted.below("d"), COUNT);
    let mut reader = Reader::open(&mounted.at("d"));
    let mut found = reader.chunk(4096);
    for i in (0..COUNT).step_by(2) {
        remove(&mounted.below("d"), wide_name(i).as_bytes());
    }
    found.extend(reader.rest(&[280, 4096]));
    let found = names(&found);
    let stays: BTreeSet<_> = expected(COUNT)
        .into_iter()
        .filter(|n| mounted.below("d").join(os(n)).symlink_metadata().is_ok())
        .collect();
    let missing: Vec<_> = stays.difference(&found).collect();
    assert!(missing.is_empty(), "{} missing", missing.len());
    let fresh = names(&Reader::open(&mounted.at("d")).rest(&[4096]));
    same_names(&fresh, &stays);
    drop(reader);
    mounted.unmount();
}

fn os(name: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(name)
}

fn remove(dir: &Path, name: &[u8]) {
    let path = dir.join(os(name));
    if fs::remove_file(&path).is_err() {
        fs::remove_dir(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}

/// rewinddir shows what changed since opendir: at once in `strict`, within the
/// timeout in `ttl`, while the handle stays open.
#[test]
fn rewinddir_sees_changes() {
    need!();
    for (mode, limit) in [("strict", Duration::ZERO), ("ttl", Duration::from_secs(4))] {
        let mounted = Setup::mode(mode).mount();
        wide(&mounted.below("d"), 1000);
        let mut reader = Reader::open(&mounted.at("d"));
        same_names(&names(&reader.rest(&[4096])), &expected(1000));
        fs::write(mounted.below("d/new"), "").expect("write");
        remove(&mounted.below("d"), wide_name(500).as_bytes());
        let mut wanted = expected(1000);
        wanted.insert(b"new".to_vec());
        wanted.remove(wide_name(500).as_bytes());
        let seen = until(limit, || {
            reader.seek(0);
            let found = names(&reader.rest(&[4096]));
            (found == wanted).then_some(())
        });
        assert!(seen.is_some(), "{mode}: rewinddir shows old names");
        drop(reader);
        mounted.unmount();
    }
}

/// d_ino is st_ino and d_type is the kind, for every name of the nasty tree.
#[test]
fn numbers_agree() {
    need!();
    let tree = tree::nasty();
    for mode in MODES {
        let mounted = Setup::mode(mode).source(&tree.path()).mount();
        let mut dirs = vec![open_dir(mounted.path())];
        let mut seen = 0;
        while let Some(dir) = dirs.pop() {
            let mut reader = Reader { fd: dir };
            for entry in reader.rest(&[32_768]) {
                if entry.name == b".." {
                    continue;
                }
                let name = os(&entry.name);
                let stat = statat(&reader.fd, name, AtFlags::SYMLINK_NOFOLLOW)
                    .unwrap_or_else(|e| panic!("{}: {e}", entry.name.escape_ascii()));
                let shown = entry.name.escape_ascii();
                assert_eq!(entry.ino, stat.st_ino, "{mode}: number of {shown}");
                assert_eq!(
                    u32::from(entry.kind),
                    stat.st_mode >> 12,
                    "{mode}: kind of {shown}"
                );
                seen += 1;
                if entry.kind == 4 && entry.name != b"." {
                    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
                    let empty = rustix::fs::Mode::empty();
                    if let Ok(sub) = rustix::fs::openat(&reader.fd, name, flags, empty) {
                        dirs.push(sub);
                    }
                }
            }
        }
        assert!(seen > tree::WIDE, "only {seen} names");
        mounted.unmount();
    }
}

/// `ls -l` on a listing that carries attributes asks next to no LOOKUP per name,
/// and lists the directory once, not twice.
#[test]
fn listing_with_attributes() {
    need!(Root);
    const COUNT: usize = 10_000;
    let mounted = Setup::mode("ttl")
        .arg("--ttl=60s")
        .arg("--readdirplus=always")
        .mount();
    wide(&mounted.below("d"), COUNT);
    let _quiet = quiet_machine();
    let referee = Referee::start(mounted.minor());
    let ls = run(&mut mounted.inside(&["find", "d", "-printf", "%s %p\\n"])).clean();
    assert_eq!(ls.stdout.iter().filter(|b| **b == b'\n').count(), COUNT + 1);
    let counts = referee.count();
    assert!(
        counts.of("LOOKUP") < 50,
        "a LOOKUP for names already listed: {counts:?}"
    );
    assert!(
        counts.of("GETATTR") < 50,
        "a GETATTR for names already listed: {counts:?}"
    );
    let lists = counts.of("READDIRPLUS") + counts.of("READDIR");
    // An entry with attributes is 128 + 24 + its name; a reply at most 32 KiB here.
    let bytes = COUNT * (152 + 16);
    let once = bytes as u64 / 32_768 + 3;
    // The directories among the names are listed by find, too.
    let subdirs = COUNT as u64 / 1000 * 2;
    assert!(
        lists <= 2 * once + subdirs,
        "{lists} lists for {once}: {counts:?}"
    );
    mounted.unmount();
}

/// A daemon with few descriptors lists every name all the same: no name is dropped
/// because looking it up failed.
#[test]
fn few_descriptors_lose_no_name() {
    need!(Program("prlimit"));
    for mode in ["ttl", "strict"] {
        let setup = Setup::mode(mode)
            .wrapped(&["prlimit", "--nofile=64:64"])
            .foreground(true);
        let mounted = setup.arg("--readdirplus=always").mount();
        wide(&mounted.below("d"), 2000);
        for i in 0..200 {
            fs::create_dir(mounted.below(format!("sub-{i}"))).expect("mkdir");
            fs::write(mounted.below(format!("sub-{i}/f")), "").expect("write");
        }
        let words = ["find", ".", "-printf", "%i %y %m %s %P\\n"];
        let mount = run(&mut mounted.inside(&words)).clean();
        let source = run(mounted.inside(&words).current_dir(mounted.source())).clean();
        let (a, b) = (source.stdout, mount.stdout);
        let (a, b) = (
            crate::run::sorted_lines(&a, b'\n'),
            crate::run::sorted_lines(&b, b'\n'),
        );
        if let Some(why) = crate::run::difference(&a, &b) {
            panic!("{mode}: {why}");
        }
        mounted.unmount();
    }
}

/// The first entries of a huge directory come long before its end: a listing is
/// streamed, not collected.
#[test]
fn first_entries_come_early() {
    need!();
    let (_tree, mounted) = wide_mount("strict");
    let start = Instant::now();
    let mut reader = Reader::open(mounted.path());
    assert!(!reader.chunk(280).is_empty());
    let first = start.elapsed();
    reader.rest(&[32_768]);
    let all = start.elapsed();
    assert!(first * 4 < all, "first entry after {first:?} of {all:?}");
    drop(reader);
    mounted.unmount();
}

/// An interrupted listing says nothing about the names it did not reach: they
/// are found by lookup, and no negative entry was made of them.
#[test]
fn window_of_a_listing_makes_no_negatives() {
    need!();
    for mode in MODES {
        let mounted = Setup::mode(mode).mount();
        wide(&mounted.below("d"), 5000);
        let mut reader = Reader::open(&mounted.at("d"));
        reader.chunk(280);
        drop(reader);
        for i in (0..5000).rev().step_by(7) {
            let path = mounted.at("d").join(wide_name(i));
            path.symlink_metadata()
                .unwrap_or_else(|e| panic!("{mode}: {}: {e}", wide_name(i)));
        }
        mounted.unmount();
    }
}
