//! The fake is held to what a host does, since all above is held to the fake.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::source::{Handle, Kind, Source};

fn c(name: &[u8]) -> CString {
    CString::new(name).unwrap()
}

/// Names that a listing from `cookie` gives, with their cookies.
fn list(source: &FakeSource, dir: &Node, cookie: u64, most: usize) -> Vec<(Vec<u8>, u64)> {
    let mut found = Vec::new();
    let end = source.list(dir, cookie, &mut |entry| {
        if found.len() == most {
            return false;
        }
        found.push((entry.name.to_vec(), entry.cookie));
        true
    });
    assert!(end.is_ok());
    found
}

fn names(source: &FakeSource, dir: &Node) -> Vec<String> {
    let found = list(source, dir, 0, usize::MAX);
    found
        .into_iter()
        .map(|(name, _)| String::from_utf8(name).unwrap())
        .collect()
}

fn read(source: &FakeSource, file: &File) -> Vec<u8> {
    let mut buf = [0; 100];
    let n = source.read(file, 0, &mut buf).unwrap();
    buf[..n].to_vec()
}

#[test]
fn paths_are_followed_as_a_host_would() {
    let source = FakeSource::default();
    let edit = source.edit();
    edit.mkdir("a").unwrap();
    edit.mkdir("a/b").unwrap();
    edit.create("a/b/c", "x").unwrap();
    edit.symlink("a", "s").unwrap();
    let open = |path: &[u8]| {
        source
            .open_node(&source.root(), &c(path))
            .map(|node| node.object.kind)
    };
    assert_eq!(open(b"a/b/c"), Ok(Kind::Regular));
    assert_eq!(open(b"a/b/"), Ok(Kind::Directory));
    assert_eq!(open(b"s"), Ok(Kind::Symlink));
    assert_eq!(open(b"s/b"), Err(Errno::LOOP));
    assert_eq!(open(b"a/b/c/d"), Err(Errno::NOTDIR));
    assert_eq!(open(b"a/b/c/"), Err(Errno::NOTDIR));
    assert_eq!(open(b"a/x/c"), Err(Errno::NOENT));
    assert_eq!(open(b""), Err(Errno::NOENT));
    assert_eq!(open(b"/a"), Err(Errno::XDEV));
    assert_eq!(open(b"a/.."), Err(Errno::INVAL));
    assert_eq!(open(&[b'n'; 256]), Err(Errno::NAMETOOLONG));
    let below = source.open_node(&source.root(), &c(b"a")).unwrap();
    assert!(
        source
            .open_node(&below, &c(b"b/c"))
            .unwrap()
            .same(&edit.node("a/b/c").unwrap())
    );
}

#[test]
fn link_counts_follow_names() {
    let source = FakeSource::default();
    let edit = source.edit();
    let nlink = |path: &str| edit.attr(path).unwrap().nlink;
    edit.create("f", "").unwrap();
    edit.link("f", "g").unwrap();
    edit.mkdir("d").unwrap();
    edit.mkdir("e").unwrap();
    edit.mkdir("d/sub").unwrap();
    assert_eq!((nlink("f"), nlink("d"), nlink("")), (2, 3, 4));
    edit.rename("d/sub", "e/sub").unwrap();
    assert_eq!((nlink("d"), nlink("e"), nlink("")), (2, 3, 4));
    edit.rename("d", "e/sub").unwrap();
    assert_eq!((nlink("e"), nlink("")), (3, 3));
    edit.exchange("f", "e/sub").unwrap();
    assert_eq!(
        (nlink("f"), nlink("e/sub"), nlink("e"), nlink("")),
        (2, 2, 2, 4)
    );
    edit.unlink("g").unwrap();
    assert_eq!(nlink("e/sub"), 1);
    assert_eq!(edit.link("f", "h"), Err(Errno::PERM));
    source.configure(|config| config.max_links = 1);
    assert_eq!(edit.link("e/sub", "h"), Err(Errno::MLINK));
    source.configure(|config| config.count_subdirs = false);
    assert_eq!(nlink(""), 1);
}

#[test]
fn renames_refuse_what_a_host_refuses() {
    let source = FakeSource::default();
    let edit = source.edit();
    edit.mkdir("d").unwrap();
    edit.mkdir("d/e").unwrap();
    edit.mkdir("empty").unwrap();
    edit.create("f", "1").unwrap();
    edit.link("f", "g").unwrap();
    assert_eq!(edit.rename("d", "d/e/x"), Err(Errno::INVAL));
    assert_eq!(edit.rename("d/e", "d"), Err(Errno::NOTEMPTY));
    assert_eq!(edit.exchange("d/e", "d"), Err(Errno::INVAL));
    assert_eq!(edit.rename("empty", "d"), Err(Errno::NOTEMPTY));
    assert_eq!(edit.rename("f", "empty"), Err(Errno::ISDIR));
    assert_eq!(edit.rename("empty", "f"), Err(Errno::NOTDIR));
    assert_eq!(edit.rename("x", "y"), Err(Errno::NOENT));
    assert_eq!(edit.exchange("f", "y"), Err(Errno::NOENT));
    let noreplace = RenameFlags {
        noreplace: true,
        ..RenameFlags::default()
    };
    assert_eq!(edit.rename_with("f", "empty", noreplace), Err(Errno::EXIST));
    edit.rename("f", "g").unwrap();
    assert_eq!(
        edit.attr("f").unwrap().nlink,
        2,
        "two names of one file stay"
    );
    let whiteout = RenameFlags {
        whiteout: true,
        ..RenameFlags::default()
    };
    edit.rename_with("f", "h", whiteout).unwrap();
    assert_eq!(edit.attr("f").unwrap().kind, Kind::CharDevice);
    assert_eq!(edit.rmdir("d"), Err(Errno::NOTEMPTY));
    assert_eq!(edit.rmdir("g"), Err(Errno::NOTDIR));
    assert_eq!(edit.unlink("d"), Err(Errno::ISDIR));
    assert_eq!(edit.mkdir("d").err(), Some(Errno::EXIST));
    edit.mount("empty", FsConfig::default()).unwrap();
    assert_eq!(edit.rename("empty", "other"), Err(Errno::BUSY));
    assert_eq!(edit.rmdir("empty"), Err(Errno::BUSY));
    assert_eq!(edit.rename("g", "empty/g"), Err(Errno::XDEV));
}

#[test]
fn objects_survive_their_names() {
    let source = FakeSource::default();
    let edit = source.edit();
    edit.create("f", "text").unwrap();
    let node = edit.node("f").unwrap();
    let file = source
        .open(Handle::Node(&node), libc::O_RDONLY as u32)
        .unwrap();
    edit.replace("f", "other").unwrap();
    assert_eq!(
        (read(&source, &file), source.stat(&node).unwrap().nlink),
        (b"text".to_vec(), 0)
    );
    assert_eq!(source.stat_file(&file).unwrap().size, 4);
    assert_eq!(edit.contents("f").unwrap(), b"other");
    edit.mkdir("d").unwrap();
    edit.create("d/x", "").unwrap();
    let dir = edit.node("d").unwrap();
    edit.remove_all("d").unwrap();
    assert_eq!(source.stat(&dir).unwrap().nlink, 0);
    assert_eq!(source.stat_at(&dir, &c(b"x")).err(), Some(Errno::NOENT));
    assert_eq!(source.list(&dir, 0, &mut |_| true), Err(Errno::NOENT));
    edit.mkdir("moved").unwrap();
    edit.create("moved/y", "").unwrap();
    let moved = edit.node("moved").unwrap();
    edit.rename("moved", "../away").unwrap();
    assert!(
        source.stat_at(&moved, &c(b"y")).is_ok(),
        "out of the tree but alive"
    );
    assert_eq!(edit.names("../").unwrap(), [b"away"]);
    edit.rename("../away", "back").unwrap();
    assert!(edit.node("back").unwrap().same(&moved));
    edit.remove_root().unwrap();
    assert_eq!(
        source.list(&source.root(), 0, &mut |_| true),
        Err(Errno::NOENT)
    );
    assert_eq!(edit.mkdir("new").err(), Some(Errno::NOENT));
}

#[test]
fn numbers_are_reused_only_when_nothing_pins_the_object() {
    let source = FakeSource::new(FsConfig {
        reuse_numbers: true,
        ..FsConfig::default()
    });
    let edit = source.edit();
    let pin = edit.create("a", "").unwrap();
    let first = edit.attr("a").unwrap().id;
    edit.unlink("a").unwrap();
    edit.create("b", "").unwrap();
    assert_ne!(edit.attr("b").unwrap().id.ino, first.ino, "still pinned");
    drop(pin);
    edit.create("c", "").unwrap();
    let second = edit.attr("c").unwrap().id;
    assert_eq!(second.ino, first.ino);
    assert!(
        second.btime > first.btime,
        "a birth of its own, though the clock stood still"
    );
    source.configure(|config| config.births = Births::Ticked);
    edit.unlink("c").unwrap();
    edit.create("c", "").unwrap();
    assert_eq!(edit.attr("c").unwrap().id.btime, first.btime);
    source.configure(|config| config.births = Births::None);
    assert_eq!(edit.attr("c").unwrap().id.btime, None);
    source.configure(|config| config.reuse_numbers = false);
    edit.unlink("c").unwrap();
    edit.create("c", "").unwrap();
    assert_ne!(edit.attr("c").unwrap().id.ino, first.ino);
}

#[test]
fn listings_resume_at_cookies() {
    for cookies in [Cookies::Ordered, Cookies::Hashed, Cookies::Places] {
        let source = FakeSource::new(FsConfig {
            cookies,
            ..FsConfig::default()
        });
        let edit = source.edit();
        let root = source.root();
        for n in 0..20 {
            edit.create(format!("n{n}"), "").unwrap();
        }
        source.set_batch(3);
        let all = list(&source, &root, 0, usize::MAX);
        assert_eq!(all.len(), 22);
        assert_eq!((&all[0].0[..], &all[1].0[..]), (&b"."[..], &b".."[..]));
        for (n, (_, cookie)) in all.iter().enumerate() {
            assert_eq!(list(&source, &root, *cookie, usize::MAX), all[n + 1..]);
        }
        assert_eq!(list(&source, &root, all[3].1, 4), all[4..8]);
        let at = all[10].1;
        edit.unlink(&all[5].0).unwrap();
        let rest = list(&source, &root, at, usize::MAX);
        let stable = cookies != Cookies::Places;
        assert_eq!(
            rest == all[11..],
            stable,
            "one was skipped where cookies are unstable"
        );
        assert_eq!(source.fs_traits(&root).unwrap().stable_cookies, stable);
        edit.replace(&all[7].0, "").unwrap();
        assert_eq!(
            list(&source, &root, 0, usize::MAX)[6].0,
            all[7].0,
            "it keeps its place"
        );
    }
}

#[test]
fn mounts_show_other_devices_and_cover_directories() {
    let source = FakeSource::default();
    let edit = source.edit();
    edit.mkdir("m").unwrap();
    edit.create("m/below", "").unwrap();
    let covered = edit.attr("m").unwrap();
    edit.mount(
        "m",
        FsConfig {
            cookies: Cookies::Places,
            ..FsConfig::default()
        },
    )
    .unwrap();
    let top = edit.attr("m").unwrap();
    assert_ne!((top.id.dev, top.id.mnt), (covered.id.dev, covered.id.mnt));
    edit.create("m/above", "").unwrap();
    assert_eq!(
        names(&source, &edit.node("m").unwrap()),
        [".", "..", "above"]
    );
    let mut listed = 0;
    let end = source.list(&source.root(), 0, &mut |entry| {
        if entry.name == b"m" {
            listed = entry.ino;
        }
        true
    });
    assert_eq!(
        (end, listed),
        (Ok(true), covered.id.ino),
        "d_ino is of the covered directory"
    );
    edit.mkdir("bound").unwrap();
    edit.bind("m", "bound").unwrap();
    let (one, other) = (
        edit.attr("m/above").unwrap().id,
        edit.attr("bound/above").unwrap().id,
    );
    assert_eq!((one.dev, one.ino), (other.dev, other.ino));
    assert_ne!(one.mnt, other.mnt);
    edit.unmount("m").unwrap();
    assert!(edit.node("m/below").is_ok() && edit.node("bound/above").is_ok());
    assert_eq!(edit.unmount("m"), Err(Errno::INVAL));
}

#[test]
fn times_come_from_the_clock_in_ticks() {
    let source = FakeSource::new(FsConfig {
        tick: 4_000_000,
        ..FsConfig::default()
    });
    let edit = source.edit();
    edit.create("f", "").unwrap();
    let before = edit.attr("").unwrap();
    source.clock().advance(Duration::from_millis(3));
    edit.create("g", "").unwrap();
    assert_eq!(
        edit.attr("").unwrap().mtime,
        before.mtime,
        "two changes in one tick"
    );
    source.clock().advance(Duration::from_millis(1));
    edit.chmod("f", 0o600).unwrap();
    let file = edit.attr("f").unwrap();
    assert!(file.ctime > file.mtime);
    assert_eq!(file.mtime, before.mtime);
    edit.set_times(
        "f",
        Time { sec: -5, nsec: 1 },
        Time {
            sec: 1 << 40,
            nsec: 2,
        },
    )
    .unwrap();
    let file = edit.attr("f").unwrap();
    assert_eq!((file.atime.sec, file.mtime.sec), (-5, 1 << 40));
}

#[test]
fn links_attributes_and_kinds_are_read_back() {
    let source = FakeSource::default();
    let edit = source.edit();
    let link = edit.symlink("to/where", "s").unwrap();
    let mut buf = [0; 4];
    assert_eq!(source.readlink(&link, &mut buf), Ok(4));
    assert_eq!(source.stat(&link).unwrap().size, 8);
    let kinds = [
        Kind::Fifo,
        Kind::Socket,
        Kind::CharDevice,
        Kind::BlockDevice,
    ];
    for (n, kind) in kinds.into_iter().enumerate() {
        let node = edit.mknod(format!("k{n}"), kind, 0o7777, 7).unwrap();
        let attr = source.stat(&node).unwrap();
        assert_eq!((attr.kind, attr.perm, attr.rdev), (kind, 0o7777, 7));
        assert_eq!(source.readlink(&node, &mut buf), Err(Errno::INVAL));
        assert_eq!(source.open(Handle::Node(&node), 0).err(), Some(Errno::NXIO));
    }
    edit.create("f", "").unwrap();
    edit.setxattr("f", "user.a", "12345").unwrap();
    edit.setxattr("f", "user.b", "").unwrap();
    let file = edit.node("f").unwrap();
    assert_eq!(
        source.getxattr(Handle::Node(&file), &c(b"user.a"), &mut []),
        Ok(5)
    );
    assert_eq!(
        source.getxattr(Handle::Node(&file), &c(b"user.a"), &mut buf),
        Err(Errno::RANGE)
    );
    assert_eq!(
        source.getxattr(Handle::Node(&file), &c(b"user.x"), &mut buf),
        Err(Errno::NODATA)
    );
    let mut buf = [0; 14];
    assert_eq!(source.listxattr(Handle::Node(&file), &mut buf), Ok(14));
    assert_eq!(&buf, b"user.a\0user.b\0");
    edit.removexattr("f", "user.a").unwrap();
    assert_eq!(edit.removexattr("f", "user.a"), Err(Errno::NODATA));
    edit.chown("f", 5, 6).unwrap();
    let attr = source.stat(&file).unwrap();
    assert_eq!((attr.uid, attr.gid), (5, 6));
    edit.truncate("f", 1 << 50).unwrap();
    edit.write("f", 1 << 20, "data").unwrap();
    edit.append("f", "end").unwrap();
    let open = source
        .open(Handle::Node(&file), libc::O_RDWR as u32)
        .unwrap();
    assert_eq!(source.lseek(&open, 0, libc::SEEK_DATA as u32), Ok(1 << 20));
    assert_eq!(
        source.lseek(&open, 1 << 20, libc::SEEK_HOLE as u32),
        Ok((1 << 20) + 4096)
    );
    assert_eq!(
        source.lseek(&open, 0, libc::SEEK_SET as u32),
        Err(Errno::INVAL)
    );
    assert_eq!(source.stat_file(&open).unwrap().size, (1 << 50) + 3);
    source
        .open(Handle::Node(&file), (libc::O_WRONLY | libc::O_TRUNC) as u32)
        .unwrap();
    assert_eq!(source.stat(&file).unwrap().size, 0);
}

#[test]
fn faults_strike_when_their_turn_comes() {
    let source = FakeSource::default();
    let root = source.root();
    source.fail_after(Call::Stat, 2, Errno::IO);
    source.fail_any_after(4, Errno::MFILE);
    let outcome = |n: u64| (0..n).map(|_| source.stat(&root).err()).collect::<Vec<_>>();
    assert_eq!(outcome(4), [None, None, Some(Errno::IO), None]);
    assert_eq!(source.statfs(&root).err(), Some(Errno::MFILE));
    source.fail_from(None, 1, Errno::STALE);
    assert_eq!(outcome(3), [None, Some(Errno::STALE), Some(Errno::STALE)]);
    source.heal();
    assert_eq!(outcome(1), [None]);
    assert_eq!((source.count(Call::Stat), source.count_all()), (8, 9));
    assert!(source.calls().contains(&("stat", 8)));
}

#[test]
fn pauses_run_between_the_reading_and_the_return() {
    let source = FakeSource::default();
    source.edit().create("f", "").unwrap();
    let behind = source.clone();
    source.pause(Call::StatAt, Point::Read, 1, move || {
        behind.edit().chmod("f", 0o600).unwrap()
    });
    let perm = || source.stat_at(&source.root(), &c(b"f")).unwrap().perm;
    assert_eq!((perm(), source.pauses()), (0o644, 1));
    assert_eq!(
        (perm(), source.pauses()),
        (0o644, 0),
        "read before the change"
    );
    assert_eq!(perm(), 0o600);
    let behind = source.clone();
    source.pause(Call::StatAt, Point::Before, 0, move || {
        behind.edit().unlink("f").unwrap()
    });
    assert_eq!(
        source.stat_at(&source.root(), &c(b"f")).err(),
        Some(Errno::NOENT)
    );
}

#[test]
fn a_listing_can_be_changed_between_two_batches() {
    let source = FakeSource::default();
    let edit = source.edit();
    for n in 0..6 {
        edit.create(format!("n{n}"), "").unwrap();
    }
    source.set_batch(4);
    let seen = Arc::new(AtomicU64::new(0));
    let (behind, count) = (source.clone(), seen.clone());
    source.set_hook(move |site| {
        assert_eq!(site.call, Call::List);
        if site.point == Point::Read && count.fetch_add(1, Ordering::Relaxed) == 0 {
            behind.edit().unlink("n0").unwrap();
            behind.edit().unlink("n5").unwrap();
            behind.edit().create("n6", "").unwrap();
        }
    });
    assert_eq!(
        names(&source, &source.root()),
        [".", "..", "n0", "n1", "n2", "n3", "n4", "n6"]
    );
    source.clear_hook();
    assert_eq!(seen.load(Ordering::Relaxed), 3);
    assert_eq!(edit.names("").unwrap().len(), 5);
}
