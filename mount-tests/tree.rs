//! The generated tree of nasty names: everything a directory tree can hold that
//! programs seldom expect. The same on every run.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chownat,
    linkat, lsetxattr, makedev, mkdirat, mknodat, openat, symlinkat, utimensat,
};

use crate::harness::Place;
use crate::run::{command, is_root, run};

/// Names in the wide directory.
pub const WIDE: usize = 100_000;

/// Components of the deep path, each of [`DEEP_NAME`] bytes: over 4,096 in all.
pub const DEEP: usize = 30;
/// Length of one component of the deep path.
pub const DEEP_NAME: usize = 200;

/// A finished tree.
pub struct Tree {
    place: Place,
}

impl Tree {
    /// The tree's root.
    pub fn path(&self) -> PathBuf {
        self.place.path().join("tree")
    }

    /// The directory of [`WIDE`] names.
    pub fn wide(&self) -> PathBuf {
        self.path().join("wide")
    }
}

/// The tree; tests that run at one time share it and nobody may change it.
pub fn nasty() -> Arc<Tree> {
    static SHARED: Mutex<Weak<Tree>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(tree) = shared.upgrade() {
        return tree;
    }
    let place = Place::new();
    let root = place.dir("tree");
    names(&root.join("names"));
    wide(&root.join("wide"), WIDE);
    deep(&root.join("deep"), DEEP, DEEP_NAME);
    kinds(&root.join("kinds"));
    symlinks(&root.join("symlinks"));
    hard_links(&root.join("hard"));
    contents(&root.join("contents"));
    modes(&root.join("modes"));
    attributes(&root.join("attributes"));
    if is_root() {
        owners(&root.join("owners"));
    }
    mkdir(&root.join("empty"));
    // Last: what is made in a directory moves its times.
    times(&root.join("times"));
    let tree = Arc::new(Tree { place });
    *shared = Arc::downgrade(&tree);
    tree
}

fn mkdir(dir: &Path) {
    fs::create_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
}

fn put(path: &Path, text: impl AsRef<[u8]>) {
    fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Opens a directory, for work relative to it.
pub fn open_dir(dir: &Path) -> OwnedFd {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty()).unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
}

fn touch_at(dir: BorrowedFd<'_>, name: &[u8]) -> OwnedFd {
    let name = CString::new(name).expect("no NUL in a name");
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(dir, &name, flags, Mode::from_raw_mode(0o644))
        .unwrap_or_else(|e| panic!("{:?}: {e}", name))
}

/// The names that quoting, globbing, option parsing and decoding trip over.
pub fn nasty_names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    names.extend(
        (1..=255)
            .filter(|b| *b != b'/' && *b != b'.')
            .map(|b| vec![b]),
    );
    let words: [&[u8]; 32] = [
        b"-",
        b"--",
        b"-rf",
        b"--help",
        b"...",
        b"..a",
        b".hidden",
        b". ",
        b" leading",
        b"trailing ",
        b"two  spaces",
        b"tab\tin",
        b"line\nbreak",
        b"\n\n",
        b"trailing\n",
        b"\r\n",
        b"quote'\"`$(x)",
        b"back\\slash",
        b"glob*?[a-z]",
        b"#hash#",
        b"~",
        b"a:b=c,d;e|f&g",
        b"%s%n",
        b"\xff\xfe",
        b"\xc3\x28",
        b"\xed\xa0\x80",
        b"e\xcc\x81",
        b"\xc3\xa9",
        b".slabinfo",
        b".nameifs",
        b"CASE",
        b"case",
    ];
    names.extend(words.iter().map(|w| w.to_vec()));
    names.push(vec![b'n'; 255]);
    names.push(vec![0xff; 255]);
    names.push([b"\xc3\xa9".repeat(127), vec![b'.']].concat());
    for length in [23, 24, 31, 32, 39, 40, 63, 64, 127, 128, 254] {
        names.push(vec![b'l'; length]);
    }
    names.sort();
    names.dedup();
    names
}

fn names(dir: &Path) {
    mkdir(dir);
    let fd = open_dir(dir);
    for name in nasty_names() {
        touch_at(fd.as_fd(), &name);
    }
}

/// The name of the entry `i` of a wide directory.
pub fn wide_name(i: usize) -> String {
    format!("name-{i:06}")
}

/// Makes a directory of `count` names, a few of each kind among the files.
pub fn wide(dir: &Path, count: usize) {
    mkdir(dir);
    let fd = open_dir(dir);
    for i in 0..count {
        let name = wide_name(i);
        match i % 1000 {
            7 => mkdirat(&fd, &*name, Mode::from_raw_mode(0o755)).expect("mkdir"),
            8 => symlinkat(wide_name(i - 1), &fd, &*name).expect("symlink"),
            9 => node(fd.as_fd(), &name, FileType::Fifo, 0),
            _ => drop(touch_at(fd.as_fd(), name.as_bytes())),
        }
    }
}

/// A chain of `depth` directories with names of `length` bytes and a file `end`
/// in the last; the paths of the lower ones are too long for any system call.
pub fn deep(dir: &Path, depth: usize, length: usize) {
    mkdir(dir);
    let mut fd = open_dir(dir);
    for level in 0..depth {
        let name = deep_name(level, length);
        mkdirat(&fd, &*name, Mode::from_raw_mode(0o755)).expect("mkdir");
        fd = descend(fd.as_fd(), &name);
    }
    let end = touch_at(fd.as_fd(), b"end");
    fs::File::from(end).write_all(b"the end\n").expect("write");
}

/// The name of level `level` in a deep chain.
pub fn deep_name(level: usize, length: usize) -> String {
    format!("{level:0>length$}")
}

/// Opens a directory below another.
pub fn descend(dir: BorrowedFd<'_>, name: &str) -> OwnedFd {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::empty()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn node(dir: BorrowedFd<'_>, name: &str, kind: FileType, dev: u64) {
    mknodat(dir, name, kind, Mode::from_raw_mode(0o644), dev)
        .unwrap_or_else(|e| panic!("mknod {name}: {e}"));
}

fn kinds(dir: &Path) {
    mkdir(dir);
    let fd = open_dir(dir);
    node(fd.as_fd(), "fifo", FileType::Fifo, 0);
    node(fd.as_fd(), "socket", FileType::Socket, 0);
    if is_root() {
        node(fd.as_fd(), "null", FileType::CharacterDevice, makedev(1, 3));
        node(
            fd.as_fd(),
            "char-big",
            FileType::CharacterDevice,
            makedev(4095, 1_048_575),
        );
        node(
            fd.as_fd(),
            "char-mix",
            FileType::CharacterDevice,
            makedev(300, 70_000),
        );
        node(fd.as_fd(), "block", FileType::BlockDevice, makedev(7, 200));
    }
}

fn symlinks(dir: &Path) {
    mkdir(dir);
    let fd = open_dir(dir);
    let link = |target: &[u8], name: &str| {
        symlinkat(OsStr::from_bytes(target), &fd, name).unwrap_or_else(|e| panic!("{name}: {e}"));
    };
    put(&dir.join("file"), "target\n");
    mkdir(&dir.join("dir"));
    put(&dir.join("dir/inner"), "inner\n");
    link(b"file", "relative");
    link(b"dir", "to-dir");
    link(b"dir/", "to-dir-slash");
    link(b"../symlinks/./dir/../file", "roundabout");
    link(b"/etc/passwd", "absolute");
    link(b"/", "root");
    link(b"nowhere", "dangling");
    link(b"/nowhere/at/all", "dangling-absolute");
    link(b"self", "self");
    link(b"loop-b", "loop-a");
    link(b"loop-a", "loop-b");
    link(b"file/below", "through-file");
    link(b"\xff\xfe\n-", "not-utf8");
    link(&[b'x'; 4095], "longest");
    link(&b"dir/../".repeat(500), "long-walk");
    // 40 links in a row are followed, 41 are not.
    link(b"file", "chain-00");
    for i in 1..=42 {
        link(
            format!("chain-{:02}", i - 1).as_bytes(),
            &format!("chain-{i:02}"),
        );
    }
}

fn hard_links(dir: &Path) {
    mkdir(dir);
    for sub in ["a", "b", "b/c"] {
        mkdir(&dir.join(sub));
    }
    put(&dir.join("a/first"), "shared\n");
    let fd = open_dir(dir);
    let link = |from: &str, to: &str| {
        linkat(&fd, from, &fd, to, AtFlags::empty()).unwrap_or_else(|e| panic!("{to}: {e}"));
    };
    link("a/first", "a/second");
    link("a/first", "b/third");
    link("a/first", "b/c/fourth");
    symlinkat("first", &fd, "a/symlink").expect("symlink");
    link("a/symlink", "b/symlink-too");
    node(fd.as_fd(), "a/fifo", FileType::Fifo, 0);
    link("a/fifo", "b/fifo-too");
    put(&dir.join("a/many"), "");
    for i in 0..500 {
        link("a/many", &format!("b/many-{i:03}"));
    }
}

/// Bytes that repeat with a period that is no power of two.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i % 251) as u8 ^ (i >> 16) as u8)
        .collect()
}

/// A file with data at these offsets and holes elsewhere.
pub fn sparse(path: &Path, length: u64, data: &[u64]) {
    let file = fs::File::create(path).expect("a sparse file");
    for offset in data {
        file.write_all_at(b"data", *offset).expect("write");
    }
    file.set_len(length).expect("truncate");
}

fn contents(dir: &Path) {
    mkdir(dir);
    for length in [0, 1, 4095, 4096, 4097, 65_537, (1 << 20) + 1] {
        put(&dir.join(format!("bytes-{length}")), pattern(length));
    }
    sparse(&dir.join("sparse-all"), 16 << 20, &[]);
    sparse(&dir.join("sparse-start"), 1 << 20, &[0]);
    sparse(&dir.join("sparse-end"), (1 << 20) + 4, &[1 << 20]);
    sparse(
        &dir.join("sparse-mixed"),
        8 << 20,
        &[1 << 20, 2 << 20, 5 << 20],
    );
}

fn modes(dir: &Path) {
    mkdir(dir);
    let list = [
        0o000, 0o001, 0o010, 0o100, 0o111, 0o222, 0o400, 0o444, 0o644, 0o755, 0o777, 0o1755,
        0o2755, 0o2644, 0o4755, 0o6711, 0o7777,
    ];
    for mode in list {
        let file = dir.join(format!("file-{mode:04o}"));
        put(&file, "mode\n");
        chmod(&file, mode);
        let sub = dir.join(format!("dir-{mode:04o}"));
        mkdir(&sub);
        put(&sub.join("inside"), "inside\n");
        chmod(&sub, mode);
    }
}

fn chmod(path: &Path, mode: u32) {
    rustix::fs::chmod(path, Mode::from_raw_mode(mode)).expect("chmod");
}

fn owners(dir: &Path) {
    mkdir(dir);
    let owners = [
        (1, 1),
        (65534, 0),
        (0, 65534),
        (1000, 100),
        (4_294_967_294, 2_147_483_648),
    ];
    for (uid, gid) in owners {
        let path = dir.join(format!("{uid}-{gid}"));
        put(&path, "owned\n");
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        chownat(CWD, &path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).expect("chown");
    }
}

fn attributes(dir: &Path) {
    mkdir(dir);
    let set = |path: &Path, name: &str, value: &[u8]| {
        lsetxattr(path, name, value, XattrFlags::empty())
            .unwrap_or_else(|e| panic!("{name} of {}: {e}", path.display()));
    };
    let file = dir.join("file");
    put(&file, "attributes\n");
    set(&file, "user.plain", b"value");
    set(&file, "user.empty", b"");
    set(&file, "user.binary", b"\0\xff\n=,");
    set(&file, &format!("user.{}", "n".repeat(250)), b"a long name");
    let big = dir.join("big");
    put(&big, "");
    set(&big, "user.big", &pattern(3000));
    mkdir(&dir.join("sub"));
    set(&dir.join("sub"), "user.of-a-directory", b"1");
    if is_root() {
        symlinkat("file", CWD, dir.join("link")).expect("symlink");
        set(&dir.join("link"), "trusted.of-a-symlink", b"1");
        set(&file, "trusted.hidden", b"from users");
        // cap_net_raw=ep, as setcap writes it.
        let capability = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        put(&dir.join("capable"), "");
        set(&dir.join("capable"), "security.capability", capability);
    }
    let acl = |args: &[&str], path: &str| {
        run(command(["setfacl"]).args(args).arg(dir.join(path))).clean();
    };
    put(&dir.join("acl"), "");
    mkdir(&dir.join("acl-default"));
    acl(&["-m", "u:1:rw,g:2:r,m::rw"], "acl");
    acl(
        &["-m", "u:1:rwx", "-m", "d:u:1:rwx,d:g:2:r-x,d:m::rwx"],
        "acl-default",
    );
}

/// Seconds and nanoseconds that are kept by ext4 (up to 2446) and tmpfs alike.
const TIMES: [(i64, i64); 11] = [
    (0, 0),
    (0, 1),
    (-1, 999_999_999),
    (-1, 0),
    (-86_400 * 365, 500_000_000),
    (-2_147_483_648, 0),
    (2_147_483_647, 999_999_999),
    (2_147_483_648, 0),
    (4_294_967_296, 1),
    (5_000_000_000, 123_456_789),
    (15_032_385_535, 0),
];

fn times(dir: &Path) {
    mkdir(dir);
    let mut all = Vec::new();
    for (sec, nsec) in TIMES {
        let path = dir.join(format!("at_{sec}_{nsec}"));
        put(&path, "");
        all.push((path, sec, nsec));
        let path = dir.join(format!("dir_{sec}_{nsec}"));
        mkdir(&path);
        all.push((path, sec, nsec));
        let path = dir.join(format!("link_{sec}_{nsec}"));
        symlinkat("nowhere", CWD, &path).expect("symlink");
        all.push((path, sec, nsec));
    }
    for (path, tv_sec, tv_nsec) in all {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("utimensat");
    }
}
