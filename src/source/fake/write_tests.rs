//! Changes through the trait, as a host would make them.

use std::ffi::CString;

use super::*;
use crate::source::{
    Caller, Handle, Kind, LockKind, LockRange, SetAttr, SetTime, Source, WriteHow,
};

const CALLER: Caller = Caller {
    uid: 7,
    gid: 8,
    pid: 0,
    umask: 0o022,
};

const RDWR: u32 = libc::O_RDWR as u32;

fn c(name: &str) -> CString {
    CString::new(name).unwrap()
}

fn create(source: &FakeSource, name: &str, flags: u32) -> Result<File> {
    source.create(&source.root(), &c(name), flags, 0o666, &CALLER)
}

#[test]
fn what_is_made_belongs_to_the_caller_or_the_directory() {
    let source = FakeSource::default();
    let (edit, root) = (source.edit(), source.root());
    create(&source, "f", RDWR).unwrap();
    let attr = edit.attr("f").unwrap();
    assert_eq!((attr.uid, attr.gid, attr.perm), (7, 8, 0o644));
    edit.chown("", 0, 99).unwrap();
    edit.chmod("", 0o2755).unwrap();
    source.mkdir(&root, &c("d"), 0o777, &CALLER).unwrap();
    source.symlink(&root, &c("s"), &c("to"), &CALLER).unwrap();
    let mode = Kind::Fifo.mode_bits() | 0o666;
    source.mknod(&root, &c("p"), mode, 0, &CALLER).unwrap();
    let dir = edit.attr("d").unwrap();
    assert_eq!((dir.uid, dir.gid, dir.perm), (7, 99, 0o2755));
    let link = edit.attr("s").unwrap();
    assert_eq!((link.gid, link.perm, link.size), (99, 0o777, 2));
    let pipe = edit.attr("p").unwrap();
    assert_eq!((pipe.kind, pipe.perm), (Kind::Fifo, 0o644));
    let mode = Kind::Directory.mode_bits();
    let wrong = source.mknod(&root, &c("x"), mode, 0, &CALLER);
    assert_eq!(wrong, Err(Errno::INVAL));
}

#[test]
fn create_opens_what_is_there_unless_it_must_be_new() {
    let source = FakeSource::default();
    let edit = source.edit();
    edit.create("f", "text").unwrap();
    edit.mkdir("d").unwrap();
    edit.symlink("f", "s").unwrap();
    let excl = RDWR | libc::O_EXCL as u32;
    assert_eq!(create(&source, "f", excl).err(), Some(Errno::EXIST));
    assert_eq!(create(&source, "d", RDWR).err(), Some(Errno::ISDIR));
    assert_eq!(create(&source, "s", RDWR).err(), Some(Errno::LOOP));
    let file = create(&source, "f", RDWR).unwrap();
    assert!(file.node().same(&edit.node("f").unwrap()));
    create(&source, "f", RDWR | libc::O_TRUNC as u32).unwrap();
    assert_eq!(edit.attr("f").unwrap().size, 0);
}

#[test]
fn names_change_as_by_edits() {
    let source = FakeSource::default();
    let (edit, root) = (source.edit(), source.root());
    drop(create(&source, "f", RDWR).unwrap());
    source.mkdir(&root, &c("d"), 0o755, &CALLER).unwrap();
    let (file, dir) = (edit.node("f").unwrap(), edit.node("d").unwrap());
    source
        .link(Handle::Node(&file), &dir, &c("g"), &CALLER)
        .unwrap();
    assert_eq!(source.stat(&file).unwrap().nlink, 2);
    let rename = |from: &str, to: &str, flags| {
        source.rename((&root, &c(from)), (&root, &c(to)), flags, &CALLER)
    };
    assert_eq!(rename("f", "d", libc::RENAME_NOREPLACE), Err(Errno::EXIST));
    assert_eq!(rename("f", "d", 8), Err(Errno::INVAL));
    rename("f", "d", libc::RENAME_EXCHANGE).unwrap();
    rename("d", "e", libc::RENAME_WHITEOUT).unwrap();
    assert_eq!(edit.attr("d").unwrap().kind, Kind::CharDevice);
    source.unlink(&root, &c("d"), &CALLER).unwrap();
    assert_eq!(source.unlink(&root, &c("f"), &CALLER), Err(Errno::ISDIR));
    assert_eq!(source.rmdir(&root, &c("f"), &CALLER), Err(Errno::NOTEMPTY));
    source.unlink(&dir, &c("g"), &CALLER).unwrap();
    source.rmdir(&root, &c("f"), &CALLER).unwrap();
    assert_eq!(edit.names("").unwrap(), [b"e"]);
    assert_eq!(source.fsync_dir(&root), Ok(()));
    assert_eq!(source.fsync_dir(&file), Err(Errno::NOTDIR));
}

#[test]
fn attributes_change_one_by_one() {
    let source = FakeSource::default();
    let edit = source.edit();
    let node = edit.create("f", "0123456789").unwrap();
    edit.chmod("f", 0o6755).unwrap();
    let set = |change: SetAttr| source.setattr(Handle::Node(&node), &change, &CALLER);
    source.clock().advance(std::time::Duration::from_secs(1));
    let change = SetAttr {
        uid: Some(3),
        size: Some(4),
        atime: Some(SetTime::At(Time { sec: -9, nsec: 1 })),
        ..SetAttr::default()
    };
    set(change).unwrap();
    let attr = edit.attr("f").unwrap();
    assert_eq!((attr.uid, attr.gid, attr.size), (3, 0, 4));
    assert_eq!((attr.perm, attr.atime.sec), (0o755, -9));
    let now = source.clock().now();
    assert_eq!((attr.mtime, attr.ctime), (now, now));
    set(SetAttr::default()).unwrap();
    assert_eq!(edit.attr("f").unwrap(), attr);
    let back = SetAttr {
        mtime: Some(SetTime::At(Time::default())),
        perm: Some(0o7777),
        ..SetAttr::default()
    };
    set(back).unwrap();
    let attr = edit.attr("f").unwrap();
    assert_eq!((attr.mtime.sec, attr.perm), (0, 0o7777));
    source
        .setattr(Handle::Node(&source.root()), &change, &CALLER)
        .unwrap_err();
    source
        .setxattr(Handle::Node(&node), &c("user.a"), b"1", 1, &CALLER)
        .unwrap();
    let again = source.setxattr(Handle::Node(&node), &c("user.a"), b"1", 1, &CALLER);
    let absent = source.setxattr(Handle::Node(&node), &c("user.b"), b"1", 2, &CALLER);
    assert_eq!((again, absent), (Err(Errno::EXIST), Err(Errno::NODATA)));
    source
        .removexattr(Handle::Node(&node), &c("user.a"), &CALLER)
        .unwrap();
    let gone = source.removexattr(Handle::Node(&node), &c("user.a"), &CALLER);
    assert_eq!(gone, Err(Errno::NODATA));
}

#[test]
fn data_is_written_allocated_copied_and_locked() {
    let source = FakeSource::default();
    let edit = source.edit();
    let file = create(&source, "f", RDWR).unwrap();
    edit.chmod("f", 0o6711).unwrap();
    let append = WriteHow {
        append: true,
        kill_suid: Some(CALLER),
        ..WriteHow::default()
    };
    assert_eq!(source.write(&file, 5, b"ab", WriteHow::default()), Ok(2));
    assert_eq!(source.write(&file, 0, b"c", append), Ok(1));
    assert_eq!(edit.contents("f").unwrap(), b"\0\0\0\0\0abc");
    assert_eq!(edit.attr("f").unwrap().perm, 0o711);
    let reader = source.open(Handle::Node(file.node()), 0).unwrap();
    assert_eq!(source.write(&reader, 0, b"x", append), Err(Errno::BADF));
    source.fallocate(&file, 1, 0, 10_000, &CALLER).unwrap();
    let attr = source.stat_file(&file).unwrap();
    assert_eq!((attr.size, attr.blocks), (8, 24));
    source.fallocate(&file, 3, 4096, 8192, &CALLER).unwrap();
    source.fallocate(&file, 0, 0, 100, &CALLER).unwrap();
    let attr = source.stat_file(&file).unwrap();
    assert_eq!((attr.size, attr.blocks), (100, 8));
    assert_eq!(
        source.fallocate(&file, 8, 0, 1, &CALLER),
        Err(Errno::OPNOTSUPP)
    );
    let other = create(&source, "g", RDWR).unwrap();
    assert_eq!(
        source.copy_range((&file, 5), (&other, 1), 3, &CALLER),
        Ok(3)
    );
    assert_eq!(edit.contents("g").unwrap(), b"\0abc");
    assert_eq!(
        source.copy_range((&file, 0), (&file, 2), 9, &CALLER),
        Err(Errno::INVAL)
    );
    source.set_flags(&file, 0x80, &CALLER).unwrap();
    assert_eq!(source.flags(&file), Ok(0x80));
    let range = |kind, start, end| LockRange { kind, start, end };
    source.lock(&file, range(LockKind::Write, 0, 99)).unwrap();
    assert_eq!(
        source.lock(&reader, range(LockKind::Read, 50, 50)),
        Err(Errno::AGAIN)
    );
    source.lock(&file, range(LockKind::Unlock, 10, 60)).unwrap();
    source.lock(&reader, range(LockKind::Read, 50, 50)).unwrap();
    assert_eq!(
        source.lock(&reader, range(LockKind::Write, 50, 50)),
        Err(Errno::BADF)
    );
    let held = source
        .find_lock(&reader, range(LockKind::Read, 55, 70))
        .unwrap();
    assert_eq!(held, Some((range(LockKind::Write, 61, 99), None)));
    drop(reader);
    source.lock(&file, range(LockKind::Write, 0, 99)).unwrap();
    drop(file);
    let again = source
        .open(Handle::Node(&edit.node("f").unwrap()), RDWR)
        .unwrap();
    source
        .lock(&again, range(LockKind::Write, 0, u64::MAX))
        .unwrap();
}

#[test]
fn watched_directories_tell_what_happens_in_them() {
    use crate::source::watch::{Change, Event, WatchId};
    let source = FakeSource::default();
    let edit = source.edit();
    edit.mkdir("d").unwrap();
    edit.mkdir("e").unwrap();
    let watcher = source.watcher().unwrap().unwrap();
    let watch = watcher.add(&edit.node("d").unwrap()).unwrap();
    assert_eq!(watcher.add(&edit.node("d").unwrap()), Ok(watch));
    let events = || watcher.next().unwrap().unwrap_or_default();
    let name = |name: &str, change| Event::Name {
        watch,
        name: name.as_bytes().into(),
        change,
    };
    edit.create("d/f", "x").unwrap();
    edit.link("d/f", "e/f").unwrap();
    assert_eq!(
        events(),
        [name("f", Change::Created), name("f", Change::Contents)],
        "of the other link nothing is told"
    );
    edit.chmod("e/f", 0o600).unwrap();
    edit.chmod("d/f", 0o600).unwrap();
    edit.rename("d/f", "d/g").unwrap();
    edit.chmod("d", 0o700).unwrap();
    let seen = events();
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert_eq!(seen[0], name("f", Change::Attributes));
    assert!(matches!(
        &seen[1],
        Event::Name {
            change: Change::MovedFrom(_),
            ..
        }
    ));
    assert_eq!(seen[3], Event::Itself { watch });
    let file = source
        .open(Handle::Node(&edit.node("d/g").unwrap()), RDWR)
        .unwrap();
    edit.rename("d/g", "d/h").unwrap();
    events();
    source.write(&file, 0, b"y", WriteHow::default()).unwrap();
    assert_eq!(
        events(),
        [name("h", Change::Contents)],
        "the name goes along"
    );
    edit.exchange("d/h", "e/f").unwrap();
    assert_eq!(events(), [], "two names of one file");
    drop(file);
    edit.unlink("d/h").unwrap();
    assert_eq!(
        events(),
        [name("h", Change::Contents), name("h", Change::Deleted)]
    );
    edit.rename("d", "../d").unwrap();
    edit.mkdir("../d/x").unwrap();
    assert_eq!(
        events(),
        [name("x", Change::Created)],
        "it is watched wherever it is"
    );
    edit.remove_all("../d").unwrap();
    assert_eq!(
        events(),
        [name("x", Change::Deleted), Event::Ended { watch }]
    );
    source.set_event_limits(2, 1);
    let watch = watcher.add(&edit.node("e").unwrap()).unwrap();
    assert_eq!(watcher.add(&source.root()), Err(Errno::NOSPC));
    (0..9).for_each(|n| drop(edit.mkdir(format!("e/{n}")).unwrap()));
    assert_eq!(events().last(), Some(&Event::Overflow));
    watcher.remove(watch);
    assert_eq!(events(), [Event::Ended { watch }]);
    assert!(matches!(watch, WatchId::Other(_)));
    watcher.add(&source.root()).unwrap();
}
