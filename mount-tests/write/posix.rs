//! Every errno of the calls that change something. The table runs in a plain directory
//! first, where what it expects must hold, then through the mount.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid,
    XattrFlags, chmodat, chownat, fallocate, ftruncate, linkat, mkdirat, mknodat, renameat_with,
    symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::{Pair, ROUTES, route};
use crate::harness::Setup;
use crate::need;
use crate::posix::{Check, Notes, io, open};

type Done<T = ()> = Result<T, Errno>;

/// All of them.
const TABLE: &[Check] = &[
    check("chmod", |n, d| {
        paths(n, d, true, "chmod", chmod);
        n.is("f", chmod(&d.join("f")), "()");
        n.is("dangling", chmod(&d.join("dangling")), "ENOENT");
        let link = chmodat(CWD, d.join("link"), mode(0o600), AtFlags::SYMLINK_NOFOLLOW);
        n.is("a symlink itself", link, "EOPNOTSUPP");
        users(
            n,
            d,
            &[
                "chmod 777 f",
                "chmod 600 theirs",
                "chmod 777 locked/f",
                "chmod 700 locked",
            ],
        );
    }),
    check("chown", |n, d| {
        let to = |how| move |p: &Path| chownat(CWD, p, Some(Uid::from_raw(1)), None, how);
        paths(n, d, true, "chown", to(AtFlags::empty()));
        paths(n, d, false, "lchown", to(AtFlags::SYMLINK_NOFOLLOW));
        n.is("f", to(AtFlags::empty())(&d.join("f")), "()");
        n.is(
            "a symlink itself",
            to(AtFlags::SYMLINK_NOFOLLOW)(&d.join("dangling")),
            "()",
        );
        n.is(
            "dangling",
            to(AtFlags::empty())(&d.join("dangling")),
            "ENOENT",
        );
        users(
            n,
            d,
            &[
                "chown 65534 f",
                "chgrp 65534 f",
                "chgrp 65534 theirs",
                "chgrp 1 theirs",
                "chown 1 theirs",
                "chown 65534 theirs",
                "chgrp 65534 locked/f",
                "chgrp 7 theirs",
            ],
        );
    }),
    check("link", |n, d| {
        let from = |p: &Path| linkat(CWD, p, CWD, d.join("to"), AtFlags::empty());
        let to = |p: &Path| linkat(CWD, d.join("f"), CWD, p, AtFlags::empty());
        paths(n, d, false, "link from", |p| {
            from(p).and_then(|()| rustix::fs::unlink(d.join("to")))
        });
        paths(n, d, false, "link to", to);
        n.is("a directory", from(&d.join("dir")), "EPERM");
        n.is("onto a file", to(&d.join("g")), "EEXIST");
        n.is("onto a directory", to(&d.join("dir")), "EEXIST");
        n.is("onto itself", to(&d.join("f")), "EEXIST");
        n.is("onto a dangling symlink", to(&d.join("dangling")), "EEXIST");
        n.is(
            "onto another filesystem",
            to(&PathBuf::from("/dev/shm/nameifs-none")),
            "EXDEV",
        );
        n.is("with a slash", to(&d.join("new/")), "ENOENT");
        n.is("of a symlink", from(&d.join("dangling")), "()");
        users(
            n,
            d,
            &[
                "ln f hard",
                "ln theirs theirdir/hard",
                "ln f theirdir/hard",
                "ln theirs locked/x",
                "ln theirs ro/x",
                "ln theirs f",
            ],
        );
    }),
    check("mkdir", |n, d| {
        let make = |p: &Path| mkdirat(CWD, p, mode(0o755));
        paths(n, d, false, "mkdir", make);
        for there in ["f", "dir", "link", "dangling", "loop", "fifo", "."] {
            n.is(there, make(&d.join(there)), "EEXIST");
        }
        n.is("with a slash", make(&d.join("slash/")), "()");
        users(
            n,
            d,
            &[
                "mkdir new",
                "mkdir theirdir/new",
                "mkdir locked/new",
                "mkdir ro/new",
                "mkdir f",
            ],
        );
    }),
    check("mkfifo", |n, d| {
        let make = |p: &Path| mknodat(CWD, p, FileType::Fifo, mode(0o644), 0);
        paths(n, d, false, "mkfifo", make);
        for there in ["f", "dir", "link", "dangling", "loop", "fifo"] {
            n.is(there, make(&d.join(there)), "EEXIST");
        }
        users(
            n,
            d,
            &[
                "mkfifo new",
                "mkfifo theirdir/new",
                "mkfifo locked/new",
                "mkfifo ro/new",
            ],
        );
    }),
    check("mknod", |n, d| {
        for (kind, dev) in [
            (FileType::RegularFile, 0),
            (FileType::Socket, 0),
            (FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
            (FileType::BlockDevice, rustix::fs::makedev(7, 300_000)),
        ] {
            let make = |p: &Path| mknodat(CWD, p, kind, mode(0o644), dev);
            paths(n, d, false, "mknod", |p| {
                make(p).and_then(|()| rustix::fs::unlink(p))
            });
            n.is("there", make(&d.join("f")), "EEXIST");
            n.is("dangling", make(&d.join("dangling")), "EEXIST");
            n.is("with a slash", make(&d.join("none/")), "ENOENT");
            let name = format!("node-{dev}-{kind:?}");
            n.is(&name, make(&d.join(&name)), "()");
            n.same(
                "its number",
                rustix::fs::stat(d.join(&name)).map(|s| (s.st_mode, s.st_rdev)),
            );
        }
        users(
            n,
            d,
            &[
                "mknod theirdir/c c 1 3",
                "mknod theirdir/b b 1 3",
                "mknod theirdir/p p",
                "mknod locked/p p",
                "cat node-*Character*",
            ],
        );
    }),
    check("open", |n, d| {
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let how = |f: OFlags| move |p: &Path| at(p, f).map(drop);
        paths(n, d, true, "open", how(OFlags::RDONLY));
        paths(n, d, false, "create exclusively", |p| {
            at(p, flags | OFlags::EXCL).and_then(|_| rustix::fs::unlink(p))
        });
        let mut is = |what: &str, f: OFlags, name: &str, expected: &str| {
            n.is(what, at(&d.join(name), f).map(drop), expected);
        };
        is("a directory to write", OFlags::WRONLY, "dir", "EISDIR");
        is(
            "a directory to read and write",
            OFlags::RDWR,
            "dir",
            "EISDIR",
        );
        is("a directory to create", flags, "dir", "EISDIR");
        is(
            "a directory to truncate",
            OFlags::RDONLY | OFlags::TRUNC,
            "dir",
            "EISDIR",
        );
        is("a file as a directory", OFlags::DIRECTORY, "f", "ENOTDIR");
        is("a symlink itself", OFlags::NOFOLLOW, "link", "ELOOP");
        is(
            "a symlink as a directory",
            OFlags::NOFOLLOW | OFlags::DIRECTORY,
            "link",
            "ENOTDIR",
        );
        is(
            "a fifo nobody reads",
            OFlags::WRONLY | OFlags::NONBLOCK,
            "fifo",
            "ENXIO",
        );
        is("a socket", OFlags::RDWR, "socket", "ENXIO");
        is("exclusively, there", flags | OFlags::EXCL, "f", "EEXIST");
        is(
            "exclusively, dangling",
            flags | OFlags::EXCL,
            "dangling",
            "EEXIST",
        );
        is(
            "exclusively, a directory",
            flags | OFlags::EXCL,
            "dir",
            "EEXIST",
        );
        is(
            "create and directory",
            flags | OFlags::DIRECTORY,
            "dirnew",
            "EINVAL",
        );
        is("with a slash", flags, "new/", "EISDIR");
        is("a file with a slash", OFlags::RDONLY, "f/", "ENOTDIR");
        is(
            "a device that is not there",
            OFlags::RDONLY,
            "nodev",
            "ENXIO",
        );
        is("by a dangling symlink", flags, "dangling", "()");
        users(
            n,
            d,
            &[
                "cat f",
                ": > f",
                ": >> f",
                ": > theirs",
                ": > new",
                ": > theirdir/new",
                ": > locked/f",
                "cat locked/f",
                ": > ro/new",
                ": > ro/f",
                "cat secret",
                ": < writeonly",
            ],
        );
    }),
    check("posix_fallocate", |n, d| {
        let file = open(d, "f", OFlags::RDWR);
        let file = file.as_ref().expect("f is there");
        let allocate = |o, l| fallocate(file, FallocateFlags::empty(), o, l);
        n.is("nothing", allocate(0, 0), "EINVAL");
        n.is("too far", allocate(1 << 62, 1 << 62), "EFBIG");
        n.is(
            "further than the filesystem",
            allocate((1 << 62) - 4096, 4096),
            "EFBIG",
        );
        n.is("a page", allocate(10, 4096), "()");
        n.same("its size", rustix::fs::fstat(file).map(|s| s.st_size));
        let read = open(d, "f", OFlags::RDONLY).expect("f is there");
        n.is(
            "for reading",
            fallocate(&read, FallocateFlags::empty(), 0, 10),
            "EBADF",
        );
        let dir = open(d, "dir", OFlags::RDONLY).expect("dir is there");
        n.is(
            "a directory",
            fallocate(&dir, FallocateFlags::empty(), 0, 10),
            "EBADF",
        );
        let punch = FallocateFlags::PUNCH_HOLE;
        n.is(
            "a hole that would end the file",
            fallocate(file, punch, 0, 10),
            "EOPNOTSUPP",
        );
        let both = punch | FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        n.same("two modes at once", fallocate(file, both, 0, 10));
    }),
    check("rename", |n, d| {
        let from = |p: &Path| rename(p, &d.join("to"), RenameFlags::empty());
        paths(n, d, false, "rename from", |p| {
            from(p).and_then(|()| rustix::fs::unlink(d.join("to")))
        });
        paths(n, d, false, "rename to", |p| {
            rename(&d.join("g"), p, RenameFlags::empty())?;
            rename(p, &d.join("g"), RenameFlags::empty())
        });
        let mut is = |from: &str, to: &str, flags, expected: &str| {
            let done = rename(&d.join(from), &d.join(to), flags);
            n.is(&format!("{from} to {to} {flags:?}"), done, expected);
        };
        let none = RenameFlags::empty();
        is("dir", "f", none, "ENOTDIR");
        is("f", "dir", none, "EISDIR");
        is("dir", "full", none, "ENOTEMPTY");
        is("full", "full/x", none, "EINVAL");
        is("full", "full/in/x", none, "EINVAL");
        is("full/in", "full", none, "ENOTEMPTY");
        is("f", "none/", none, "ENOTDIR");
        is(".", "none", none, "EBUSY");
        is("full/..", "none", none, "EBUSY");
        is("f", "f", none, "()");
        is("f", "g", RenameFlags::NOREPLACE, "EEXIST");
        is("f", "dangling", RenameFlags::NOREPLACE, "EEXIST");
        is("f", "none", RenameFlags::EXCHANGE, "ENOENT");
        is("full", "full/in", RenameFlags::EXCHANGE, "EINVAL");
        is("f", "full/in", RenameFlags::EXCHANGE, "()");
        is("f", "full/in", RenameFlags::EXCHANGE, "()");
        is(
            "f",
            "g",
            RenameFlags::NOREPLACE | RenameFlags::EXCHANGE,
            "EINVAL",
        );
        is("g", "white", RenameFlags::WHITEOUT, "()");
        is("white", "/dev/shm/nameifs-none", none, "EXDEV");
        n.same(
            "what a whiteout leaves",
            rustix::fs::lstat(d.join("g")).map(|s| (s.st_mode, s.st_rdev)),
        );
        users(
            n,
            d,
            &[
                "mv -T f theirdir/f",
                "mv -T theirs theirdir/f",
                "mv -T theirdir/f locked/f",
                "mv -T sticky/f sticky/g",
                "mv -T theirdir/f sticky/f",
                "mv -T ro/f theirdir/g",
                "mv -T theirdir full",
                "mv -T notmine theirdir/notmine",
                "mv -T theirs ro/f",
            ],
        );
    }),
    check("rmdir", |n, d| {
        let remove = |p: &Path| unlinkat(CWD, p, AtFlags::REMOVEDIR);
        paths(n, d, false, "rmdir", remove);
        for (name, expected) in [
            ("f", "ENOTDIR"),
            ("link", "ENOTDIR"),
            ("full", "ENOTEMPTY"),
            ("full/in/..", "ENOTEMPTY"),
            ("dir/.", "EINVAL"),
            ("loop", "ENOTDIR"),
            ("fifo", "ENOTDIR"),
            ("dir", "()"),
            ("dir", "ENOENT"),
        ] {
            n.is(name, remove(&d.join(name)), expected);
        }
        users(
            n,
            d,
            &[
                "rmdir full/empty",
                "rmdir sticky/dir",
                "rmdir locked/dir",
                "rmdir ro/dir",
                "rmdir theirdir",
            ],
        );
    }),
    check("symlink", |n, d| {
        let make = |p: &Path| symlinkat("target", CWD, p);
        paths(n, d, false, "symlink", make);
        for there in ["f", "dir", "link", "dangling", "loop"] {
            n.is(there, make(&d.join(there)), "EEXIST");
        }
        n.is("to nothing", symlinkat("", CWD, d.join("empty")), "ENOENT");
        n.is("with a slash", make(&d.join("new/")), "ENOENT");
        let long = "t".repeat(4095);
        n.is(
            "a target of 4,095 bytes",
            symlinkat(&*long, CWD, d.join("long")),
            "()",
        );
        n.same(
            "as it is read",
            rustix::fs::readlink(d.join("long"), vec![]).map(|t| t.as_bytes().len()),
        );
        n.is(
            "one of 4,096",
            symlinkat(&*"t".repeat(4096), CWD, d.join("longer")),
            "ENAMETOOLONG",
        );
        users(
            n,
            d,
            &[
                "ln -s x new",
                "ln -s x theirdir/new",
                "ln -s x locked/new",
                "ln -s x ro/new",
            ],
        );
    }),
    check("truncate", |n, d| {
        let cut = |p: &Path| truncate(p, 3);
        paths(n, d, true, "truncate", cut);
        n.is("a directory", cut(&d.join("dir")), "EISDIR");
        n.is("dangling", cut(&d.join("dangling")), "ENOENT");
        n.is("a fifo", cut(&d.join("fifo")), "EINVAL");
        n.is("below zero", truncate(&d.join("f"), -1), "EINVAL");
        n.is("too far", truncate(&d.join("f"), i64::MAX), "EFBIG");
        n.is("far", truncate(&d.join("f"), 1 << 40), "()");
        let read = open(d, "f", OFlags::RDONLY).expect("f is there");
        n.is("for reading", ftruncate(&read, 0), "EINVAL");
        let file = open(d, "f", OFlags::RDWR).expect("f is there");
        n.is("by descriptor, too far", ftruncate(&file, 1 << 62), "EFBIG");
        n.is("by descriptor", ftruncate(&file, 5), "()");
        users(
            n,
            d,
            &[
                "truncate -c -s 1 f",
                "truncate -c -s 1 theirs",
                "truncate -c -s 1 locked/f",
                "truncate -c -s 1 ro/f",
                "truncate -c -s 1 readonly",
            ],
        );
        n.same("its size", rustix::fs::stat(d.join("f")).map(|s| s.st_size));
    }),
    check("unlink", |n, d| {
        let remove = |p: &Path| rustix::fs::unlink(p);
        paths(n, d, false, "unlink", remove);
        for (name, expected) in [
            ("dir", "EISDIR"),
            ("dir/", "EISDIR"),
            ("f/", "ENOTDIR"),
            ("dangling/", "ENOTDIR"),
            (".", "EISDIR"),
            ("loop", "()"),
            ("link", "()"),
            ("dangling", "()"),
            ("fifo", "()"),
            ("socket", "()"),
            ("nodev", "()"),
            ("f", "()"),
            ("f", "ENOENT"),
        ] {
            n.is(name, remove(&d.join(name)), expected);
        }
        users(
            n,
            d,
            &[
                "rm -f theirdir/notmine",
                "rm -f full/x",
                "rm -f locked/f",
                "rm -f sticky/f",
                "rm -f ro/f",
                "rm -f theirs",
            ],
        );
    }),
    check("utimensat", |n, d| {
        let now = times(0, rustix::fs::UTIME_NOW);
        let omit = times(0, rustix::fs::UTIME_OMIT);
        let set = |name: &str, t: &Timestamps, how| utimensat(CWD, d.join(name), t, how);
        paths(n, d, true, "utimensat", |p| {
            utimensat(CWD, p, &now, AtFlags::empty())
        });
        let (follow, link) = (AtFlags::empty(), AtFlags::SYMLINK_NOFOLLOW);
        n.is("omitted", set("f", &omit, follow), "()");
        n.is("omitted, none there", set("none", &omit, follow), "()");
        n.is(
            "nanoseconds too many",
            set("f", &times(0, 1_000_000_000), follow),
            "EINVAL",
        );
        n.is(
            "nanoseconds below zero",
            set("f", &times(0, -5), follow),
            "EINVAL",
        );
        n.is("dangling", set("dangling", &now, follow), "ENOENT");
        for (sec, nsec) in [
            (-1, 5),
            (-2_147_483_648, 0),
            (15_032_385_535, 999_999_999),
            (i64::MAX, 0),
            (i64::MIN + 1, 0),
            (1, 0),
        ] {
            n.is("a time", set("f", &times(sec, nsec), follow), "()");
            n.same(
                "as it is seen",
                rustix::fs::stat(d.join("f")).map(|s| (s.st_mtime, s.st_mtime_nsec)),
            );
            n.is(
                "of a symlink",
                set("dangling", &times(sec, nsec), link),
                "()",
            );
            n.same(
                "as it is seen",
                rustix::fs::lstat(d.join("dangling")).map(|s| (s.st_mtime, s.st_mtime_nsec)),
            );
        }
        users(
            n,
            d,
            &[
                "touch -c f",
                "touch -c -d @1 f",
                "touch -c theirs",
                "touch -c -d @1 theirs",
                "touch -c open",
                "touch -c -d @1 open",
                "touch -c locked/f",
                "touch -c -a -d @1 open",
            ],
        );
    }),
    check("xattr", |n, d| {
        let set = |name: &str, key: &str, value: &[u8], how| {
            rustix::fs::lsetxattr(d.join(name), key, value, how)
        };
        let any = XattrFlags::empty();
        paths(n, d, true, "setxattr", |p| {
            rustix::fs::setxattr(p, "user.p", b"1", any)
        });
        n.is("new", set("f", "user.p", b"1", any), "()");
        n.is(
            "there, to create",
            set("f", "user.p", b"1", XattrFlags::CREATE),
            "EEXIST",
        );
        n.is(
            "absent, to replace",
            set("f", "user.q", b"1", XattrFlags::REPLACE),
            "ENODATA",
        );
        n.is(
            "both",
            set("f", "user.q", b"", XattrFlags::CREATE | XattrFlags::REPLACE),
            "ENODATA",
        );
        n.is("no name", set("f", "user.", b"1", any), "EINVAL");
        n.is("no class", set("f", "name", b"1", any), "EOPNOTSUPP");
        n.is("another class", set("f", "none.x", b"1", any), "EOPNOTSUPP");
        n.is(
            "a long name",
            set("f", &format!("user.{}", "n".repeat(251)), b"1", any),
            "ERANGE",
        );
        n.is("a symlink", set("link", "user.x", b"1", any), "EPERM");
        n.is("a fifo", set("fifo", "user.x", b"1", any), "EPERM");
        n.is(
            "too large",
            set("f", "user.large", &[0; 65_537], any),
            "E2BIG",
        );
        n.same(
            "larger than the filesystem's",
            set("f", "user.large", &[0; 60_000], any),
        );
        n.is(
            "remove",
            rustix::fs::removexattr(d.join("f"), "user.p"),
            "()",
        );
        n.is(
            "again",
            rustix::fs::removexattr(d.join("f"), "user.p"),
            "ENODATA",
        );
        let mut small = [0; 1];
        n.is("set", set("f", "user.two", b"22", any), "()");
        n.is(
            "too small",
            rustix::fs::getxattr(d.join("f"), "user.two", &mut small[..]),
            "ERANGE",
        );
        users(
            n,
            d,
            &[
                "setfattr -n user.x -v 1 f",
                "setfattr -n user.x -v 1 theirs",
                "setfattr -n trusted.x -v 1 theirs",
                "setfattr -n security.x -v 1 theirs",
                "getfattr -n user.two f",
                "setfattr -n user.x -v 1 readonly",
            ],
        );
    }),
];

const fn check(name: &'static str, act: fn(&mut Notes, &Path)) -> Check {
    Check {
        name,
        prepare: files,
        act,
    }
}

/// What every check finds in its directory.
fn files(dir: &Path) {
    let user = Some(crate::run::NOBODY);
    for (name, mode) in [
        ("f", 0o644),
        ("g", 0o644),
        ("theirs", 0o644),
        ("secret", 0o600),
        ("open", 0o666),
        ("readonly", 0o444),
        ("writeonly", 0o222),
        ("notmine", 0o644),
    ] {
        fs::write(dir.join(name), name).expect("write");
        set_mode(&dir.join(name), mode);
    }
    for sub in [
        "dir",
        "full",
        "full/in",
        "full/empty",
        "locked",
        "locked/dir",
        "ro",
        "ro/dir",
        "sticky",
        "sticky/dir",
        "theirdir",
    ] {
        fs::create_dir(dir.join(sub)).expect("mkdir");
    }
    for name in [
        "full/x",
        "full/in/y",
        "locked/f",
        "ro/f",
        "sticky/f",
        "theirdir/notmine",
    ] {
        fs::write(dir.join(name), name).expect("write");
    }
    for (name, target) in [("link", "f"), ("loop", "loop"), ("dangling", "nowhere")] {
        symlink(target, dir.join(name)).expect("symlink");
    }
    for (name, kind, dev) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        (
            "nodev",
            FileType::CharacterDevice,
            rustix::fs::makedev(4000, 1),
        ),
    ] {
        mknodat(CWD, dir.join(name), kind, mode(0o666), dev).expect("mknod");
    }
    for name in [
        "theirs",
        "theirdir",
        "readonly",
        "writeonly",
        "locked",
        "ro",
    ] {
        chown(dir.join(name), user, user).expect("chown");
    }
    set_mode(&dir.join("locked"), 0o600);
    set_mode(&dir.join("ro"), 0o555);
    set_mode(&dir.join("sticky"), 0o1777);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

fn chmod(path: &Path) -> Done {
    rustix::fs::chmod(path, mode(0o640))
}

fn at(path: &Path, flags: OFlags) -> Done<rustix::fd::OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, mode(0o644))
}

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Done {
    renameat_with(CWD, from, CWD, to, flags)
}

fn truncate(path: &Path, length: i64) -> Done {
    nix::unistd::truncate(path, length).map_err(|e| Errno::from_raw_os_error(e as i32))
}

fn times(tv_sec: i64, tv_nsec: i64) -> Timestamps {
    let time = Timespec { tv_sec, tv_nsec };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// The errnos that any path may have. `last` says whether the call follows a symlink in
/// the end; those that do not make `new` or need one.
fn paths(n: &mut Notes, d: &Path, last: bool, what: &str, act: impl Fn(&Path) -> Done) {
    let name = |length: usize| "n".repeat(length);
    let mut hostile = vec![
        (d.join("none/x"), "ENOENT"),
        (d.join("dangling/x"), "ENOENT"),
        (d.join("f/x"), "ENOTDIR"),
        (d.join("fifo/x"), "ENOTDIR"),
        (d.join("loop/x"), "ELOOP"),
        (d.join(name(256)), "ENAMETOOLONG"),
        (d.join("dir").join(name(256)), "ENAMETOOLONG"),
        (d.join("./".repeat(2100) + "f"), "ENAMETOOLONG"),
        (PathBuf::new(), "ENOENT"),
    ];
    if last {
        hostile.push((d.join("loop"), "ELOOP"));
        hostile.push((d.join("none"), "ENOENT"));
        hostile.push((d.join(name(255)), "ENOENT"));
    }
    for (path, expected) in hostile {
        let shown: String = path.strip_prefix(d).unwrap_or(&path).display().to_string();
        let shown: String = shown.chars().take(20).collect();
        n.is(&format!("{what} {shown}"), act(&path), expected);
    }
    if !last {
        n.same(&format!("{what} of 255 bytes"), act(&d.join(name(255))));
    }
}

/// What a user without rights is told.
fn users(n: &mut Notes, d: &Path, commands: &[&str]) {
    for command in commands {
        n.user(d, crate::run::NOBODY, &[7], &["bash", "-c", command]);
    }
}

#[track_caller]
fn table(setup: Setup, what: &str) {
    let (place, plain, _) = crate::posix::sources(TABLE);
    let expected = crate::posix::reference(TABLE, &plain);
    let mounted = setup.arg("-o").arg("suid,dev").mount_in(place);
    let found = crate::posix::act(TABLE, mounted.path());
    crate::posix::compare(what, TABLE, &expected, &found);
    mounted.unmount();
}

/// Each errno of chmod, chown, link, mkdir, mkfifo, mknod, open, posix_fallocate, rename,
/// rmdir, symlink, truncate, unlink, utimensat and the xattr calls, in `ttl`.
#[test]
fn errnos_in_ttl() {
    need!(Root, Program("setpriv"), Program("setfattr"));
    for passthrough in ROUTES {
        table(route(passthrough), passthrough);
    }
}

/// The same in `strict`.
#[test]
fn errnos_in_strict() {
    need!(Root, Program("setpriv"), Program("setfattr"));
    table(Setup::mode("strict"), "strict");
}

/// Immutable and append-only files refuse what they refuse on the source, and the flags
/// themselves are read and set through the mount.
#[test]
fn errnos_of_flags() {
    need!(Root, Program("chattr"), Program("setpriv"));
    for setup in [route("auto"), route("off"), Setup::mode("strict")] {
        let pair = Pair::new(setup);
        pair.same_ok(
            r#"
            trap 'chattr -R -i -a "$BELOW" 2>/dev/null' EXIT
            mkdir d; echo text > d/imm; echo text > d/app; mkdir d/dir d/adir; echo x > d/adir/in
            flags() { lsattr -d "$@" | sed 's/^\([^ ]*\) .*/\1/' | tr -d -c 'ia\n'; }
            chattr +i "$BELOW/d/imm" "$BELOW/d/dir"; chattr +a "$BELOW/d/app" "$BELOW/d/adir"
            flags d/imm d/app d/dir d/adir
            for c in 'echo y > d/imm' 'echo y >> d/imm' 'rm -f d/imm' 'mv d/imm d/x' 'ln d/imm d/x' \
                'chmod 600 d/imm' 'chown 1 d/imm' 'touch d/imm' 'truncate -s 0 d/imm' 'cat d/imm' \
                'setfattr -n user.x -v 1 d/imm' ': > d/dir/new' 'mkdir d/dir/new' 'rmdir d/dir' \
                'echo y > d/app' 'echo y >> d/app' 'rm -f d/app' 'truncate -s 0 d/app' 'mv d/app d/x' \
                'touch d/app' 'touch -d @1 d/app' 'chmod 600 d/app' 'cat d/app' 'fallocate -l 99 d/app' \
                ': > d/adir/new' 'rm -f d/adir/in' 'mv d/adir/in d/adir/out' 'rmdir d/adir' 'ls d/adir'; do
                bash -c "$c"; echo "$c: $?"
            done 2>&1
            find d -printf '%P %m %s %n\n' | sort
            "#,
        );
        pair.end();
    }
}

/// Flags set by chattr through the mount are so on the source. The kernel asks for
/// FS_IOC_FSGETXATTR before it sets any.
#[test]
fn errnos_of_flags_set_by_the_mount() {
    need!(Root, Program("chattr"));
    for setup in [route("auto"), route("off"), Setup::mode("strict")] {
        let pair = Pair::new(setup);
        pair.same_ok(
            r#"
            trap 'chattr -R -i -a "$BELOW" 2>/dev/null' EXIT
            mkdir d; echo text > d/imm; echo text > d/app; mkdir d/dir d/adir; echo x > d/adir/in
            flags() { lsattr -d "$@" | sed 's/^\([^ ]*\) .*/\1/' | tr -d -c 'ia\n'; }
            chattr +i "$BELOW/d/imm" "$BELOW/d/dir"; chattr +a "$BELOW/d/app" "$BELOW/d/adir"
            chattr -i d/imm d/dir; echo $?; chattr -a d/app; echo $?; flags "$BELOW/d/imm" "$BELOW/d/app"
            chattr +i d/imm; echo $?; flags "$BELOW/d/imm"; rm -f d/imm 2>&1
            chattr -i d/imm; chattr -a d/adir; rm -r d; echo $?
            "#,
        );
        pair.end();
    }
}

/// A directory has as many links as the filesystem allows, and the next is refused as
/// there: 65,000 names of one file on ext4.
#[test]
fn errnos_of_many_links() {
    need!(Root);
    let pair = Pair::new(Setup::mode("ttl"));
    for dir in [&pair.plain, pair.mounted.source()] {
        fs::write(dir.join("f"), "").expect("write");
        for i in 0..64_999 {
            let done = fs::hard_link(dir.join("f"), dir.join(format!("l{i}")));
            if io(done).is_err() {
                break;
            }
        }
    }
    let done = pair.same("stat -c %h f; ln f more; rm l1; ln f now; stat -c %h f now; ln f l1");
    assert!(done.err().contains("Too many links"), "{}", done.err());
    pair.end();
}

/// The earliest time there is ends nothing but the call.
#[test]
fn errnos_of_the_earliest_time() {
    need!(Root);
    let pair = Pair::new(Setup::mode("ttl"));
    for (_, dir) in pair.both() {
        fs::write(dir.join("f"), "").expect("write");
        let set = utimensat(CWD, dir.join("f"), &times(i64::MIN, 1), AtFlags::empty());
        assert_eq!(set, Ok(()));
        assert!(dir.join("f").exists());
    }
    pair.end();
}
