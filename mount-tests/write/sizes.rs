//! Sizes and times are right at once, by whatever way the data went: by descriptor, by
//! mapping, by truncation; past the daemon and through it; under long timeouts too.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::helper::Helper;
use super::{Pair, ROUTES};
use crate::harness::Setup;
use crate::need;

/// Mounts whose timeouts would show what is not renewed.
fn setups() -> Vec<Setup> {
    let mut all = Vec::new();
    for passthrough in ROUTES {
        let long = Setup::mode("ttl").arg("--ttl=1h").arg("--attr-ttl=1h");
        for setup in [long, Setup::mode("strict"), Setup::mode("ttl")] {
            all.push(setup.arg(format!("--passthrough={passthrough}")));
        }
    }
    all
}

/// Size, times and blocks by name must be those of the source, and those by an open
/// descriptor too.
#[track_caller]
fn agree(pair: &Pair, file: &fs::File, what: &str) {
    let of = |m: &fs::Metadata| {
        (
            m.size(),
            m.mtime(),
            m.mtime_nsec(),
            m.ctime(),
            m.ctime_nsec(),
            m.nlink(),
            m.mode(),
        )
    };
    let name = of(&pair.mounted.at("f").metadata().expect("stat"));
    let handle = of(&file.metadata().expect("fstat"));
    let below = of(&pair.mounted.below("f").metadata().expect("stat"));
    assert_eq!(name, below, "{what}: by name, and on the source");
    assert_eq!(handle, below, "{what}: by descriptor, and on the source");
}

/// Every kind of write and truncation is followed by a stat that tells the truth.
#[test]
fn sizes_after_each_kind_of_write() {
    need!();
    for setup in setups() {
        let pair = Pair::new(setup.clone());
        let path = pair.mounted.at("f");
        let open = || {
            fs::File::options()
                .read(true)
                .write(true)
                .open(&path)
                .expect("open")
        };
        fs::write(&path, "start").expect("write");
        let file = open();
        let mut told = Vec::new();
        let mut check = |what: &str, size: u64| {
            agree(&pair, &file, &format!("{what}, {setup:?}"));
            let found = path.metadata().expect("stat");
            assert_eq!(found.size(), size, "{what}, {setup:?}");
            // Past the tick of the timestamps, so that each change shows.
            told.push((found.ctime(), found.ctime_nsec()));
        };
        check("creation", 5);
        file.write_all_at(b"0123456789", 0).expect("pwrite");
        check("a write", 10);
        let mut appending = fs::File::options().append(true).open(&path).expect("open");
        std::io::Write::write_all(&mut appending, b"more").expect("write");
        check("an append by another descriptor", 14);
        file.write_all_at(b"far", 1 << 20).expect("pwrite");
        check("a write past the end", (1 << 20) + 3);
        file.set_len(8192).expect("ftruncate");
        check("ftruncate", 8192);
        nix::unistd::truncate(&path, 4096).expect("truncate");
        check("truncate by name", 4096);
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 20_000)
            .expect("fallocate");
        check("fallocate", 20_000);
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, 0, 4096).expect("punch");
        check("a hole", 20_000);
        let other = open();
        let done =
            rustix::fs::copy_file_range(&file, Some(&mut 0), &other, Some(&mut 30_000), 5000);
        assert_eq!(done, Ok(5000));
        check("copy_file_range", 35_000);
        fs::hard_link(&path, pair.mounted.at("g")).expect("link");
        check("a link", 35_000);
        fs::rename(&path, pair.mounted.at("h")).expect("rename");
        fs::rename(pair.mounted.at("h"), &path).expect("rename");
        check("a rename", 35_000);
        fs::remove_file(pair.mounted.at("g")).expect("unlink");
        check("the other name's removal", 35_000);
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, "user.x", b"1", flags).expect("setxattr");
        check("setxattr", 35_000);
        drop((other, appending));
        check("closing", 35_000);
        drop(
            fs::File::options()
                .write(true)
                .truncate(true)
                .open(&path)
                .expect("open"),
        );
        check("O_TRUNC", 0);
        assert!(
            told.windows(2).all(|w| w[0] <= w[1]),
            "times go back: {told:?}"
        );
        drop(file);
        pair.end();
    }
}

/// What a shared mapping writes is in the file, and its times have moved, once it is
/// synchronised: for readers in the mount and on the source.
#[test]
fn sizes_after_mapped_writes() {
    need!(Program("python3"));
    for setup in setups() {
        let pair = Pair::new(setup.clone());
        let path = pair.mounted.at("f");
        fs::write(&path, vec![b'.'; 20_000]).expect("write");
        let mut helper = Helper::new();
        assert_eq!(helper.ask_path("map", "m", &path, &["20000"]), "ok");
        for round in 0..3 {
            // A time that any write moves.
            let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000 + round);
            let file = fs::File::options()
                .read(true)
                .write(true)
                .open(&path)
                .expect("open");
            file.set_modified(old).expect("futimens");
            agree(&pair, &file, "futimens");
            let (offset, text) = ((round * 5000).to_string(), format!("round {round}"));
            assert_eq!(helper.ask(&["store", "m", &offset, &text]), "ok");
            assert_eq!(helper.ask(&["msync", "m"]), "ok");
            agree(&pair, &file, &format!("msync {round}, {setup:?}"));
            assert_ne!(
                path.metadata().expect("stat").mtime(),
                1000 + round as i64,
                "{setup:?}"
            );
            for whole in [&path, &pair.mounted.below("f")] {
                let bytes = fs::read(whole).expect("read");
                let at = round as usize * 5000;
                assert_eq!(&bytes[at..at + text.len()], text.as_bytes(), "{setup:?}");
            }
        }
        // A write by descriptor is in the mapping.
        let file = fs::File::options().write(true).open(&path).expect("open");
        file.write_all_at(b"by descriptor", 100).expect("pwrite");
        let hex: String = b"by descriptor"
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(helper.ask(&["mapped", "m", "100", "13"]), hex, "{setup:?}");
        assert_eq!(helper.ask(&["unmap", "m"]), "ok");
        agree(&pair, &file, "munmap");
        drop((file, helper));
        pair.end();
    }
}

/// A mapping outlives its descriptor; what it writes later still shows.
#[test]
fn sizes_after_a_mapping_that_outlives_its_file() {
    need!(Program("python3"));
    for setup in setups() {
        let pair = Pair::new(setup.clone());
        let (path, below) = (pair.mounted.at("f"), pair.mounted.below("f"));
        fs::write(&path, vec![b'.'; 8192]).expect("write");
        let mut helper = Helper::new();
        // The helper closes the descriptor as soon as it has mapped.
        assert_eq!(helper.ask_path("map", "m", &path, &["8192"]), "ok");
        let time = |p: &Path| {
            let m = p.metadata().expect("stat");
            (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec())
        };
        let before = time(&path);
        assert_eq!(before, time(&below));
        assert_eq!(helper.ask(&["store", "m", "5000", "later"]), "ok");
        assert_eq!(helper.ask(&["msync", "m"]), "ok");
        assert_eq!(time(&path), time(&below), "{setup:?}");
        assert_ne!(time(&path), before, "{setup:?}");
        assert_eq!(&fs::read(&below).expect("read")[5000..5005], b"later");
        // The name goes, the mapping stays.
        fs::remove_file(&path).expect("unlink");
        assert_eq!(helper.ask(&["store", "m", "0", "gone"]), "ok");
        assert_eq!(helper.ask(&["msync", "m"]), "ok");
        assert_eq!(helper.ask(&["mapped", "m", "0", "4"]), "676f6e65");
        assert_eq!(helper.ask(&["unmap", "m"]), "ok");
        drop(helper);
        pair.end();
    }
}

/// Two processes with descriptors of one file see each other's sizes at once.
#[test]
fn sizes_seen_by_another_process() {
    need!(Program("python3"));
    for setup in setups() {
        let pair = Pair::new(setup.clone());
        let path = pair.mounted.at("f");
        let (mut a, mut b) = (Helper::new(), Helper::new());
        for helper in [&mut a, &mut b] {
            assert_eq!(helper.ask_path("open", "f", &path, &[]), "ok");
        }
        let file = fs::File::open(&path).expect("open");
        for round in 0..20_u64 {
            let at = round * 1000;
            assert_eq!(a.ask(&["write", "f", &at.to_string(), "text"]), "4");
            assert_eq!(b.ask(&["size", "f"]), (at + 4).to_string(), "{setup:?}");
            assert_eq!(path.metadata().expect("stat").size(), at + 4, "{setup:?}");
            agree(&pair, &file, "a write by another process");
            if round % 5 == 4 {
                assert_eq!(b.ask(&["truncate", "f", "10"]), "ok");
                assert_eq!(a.ask(&["size", "f"]), "10", "{setup:?}");
                assert_eq!(path.metadata().expect("stat").size(), 10, "{setup:?}");
                assert_eq!(b.ask(&["truncate", "f", &at.to_string()]), "ok");
            }
        }
        drop((a, b));
        agree(&pair, &file, "after they have closed");
        drop(file);
        pair.end();
    }
}
