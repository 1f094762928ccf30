//! Checks that change nothing.

use std::fs;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, StatxFlags,
    accessat, fcntl_getfl, flock, fstat, makedev, mknodat, openat2, readlinkat, seek, statat,
};
use rustix::io::Errno;

use super::{Check, Notes, io, open};
use crate::tree;

/// All of them.
pub const TABLE: &[Check] = &[
    Check {
        name: "open-flags",
        prepare: kinds,
        act: open_flags,
    },
    Check {
        name: "paths",
        prepare: kinds,
        act: paths,
    },
    Check {
        name: "symlink-chains",
        prepare: |dir| {
            fs::write(dir.join("end"), "x").expect("write");
            symlink("end", dir.join("l00")).expect("symlink");
            for i in 1..=42 {
                let to = format!("l{:02}", i - 1);
                symlink(to, dir.join(format!("l{i:02}"))).expect("symlink");
            }
        },
        act: |n, dir| {
            for i in [0, 1, 38, 39, 40, 41, 42] {
                let name = format!("l{i:02}");
                n.same(&name, open(dir, &*name, OFlags::RDONLY).map(drop));
            }
            n.is("40 links", open(dir, "l39", OFlags::RDONLY).map(drop), "()");
            n.is(
                "41 links",
                open(dir, "l40", OFlags::RDONLY).map(drop),
                "ELOOP",
            );
        },
    },
    Check {
        name: "name-lengths",
        prepare: |dir| {
            fs::write(dir.join("n".repeat(255)), "x").expect("write");
            fs::create_dir(dir.join("d".repeat(255))).expect("mkdir");
        },
        act: name_lengths,
    },
    Check {
        name: "readlink",
        prepare: kinds,
        act: |n, dir| {
            for name in [
                "file", "dir", "absent", "to-file", "dangling", "loop", "longest", "fifo",
            ] {
                let target = readlinkat(CWD, dir.join(name), Vec::new());
                n.same(
                    name,
                    target.map(|t| t.into_bytes().escape_ascii().to_string()),
                );
                let mut few = [MaybeUninit::<u8>::uninit(); 3];
                let cut = rustix::fs::readlinkat_raw(CWD, dir.join(name), &mut few);
                n.same("3 bytes", cut.map(|(bytes, _)| bytes.to_vec()));
            }
            n.is(
                "a file",
                readlinkat(CWD, dir.join("file"), Vec::new()).map(drop),
                "EINVAL",
            );
        },
    },
    Check {
        name: "holes",
        prepare: |dir| {
            tree::sparse(&dir.join("none"), 0, &[]);
            tree::sparse(&dir.join("all"), 1 << 20, &[]);
            tree::sparse(&dir.join("some"), 4 << 20, &[65_536, 1 << 20, 3 << 20]);
            tree::sparse(&dir.join("huge"), 1 << 40, &[0, 1 << 39]);
            fs::write(dir.join("full"), tree::pattern(70_000)).expect("write");
        },
        act: holes,
    },
    Check {
        name: "reads",
        prepare: |dir| {
            fs::write(dir.join("f"), tree::pattern(300_001)).expect("write");
            fs::write(dir.join("empty"), "").expect("write");
            fs::create_dir(dir.join("dir")).expect("mkdir");
        },
        act: reads,
    },
    Check {
        name: "stat",
        prepare: kinds,
        act: |n, dir| {
            for name in KINDS {
                let stat = io(dir.join(name).symlink_metadata());
                let facts = stat.map(|s| {
                    let size = if s.is_dir() { 0 } else { s.size() };
                    (
                        format!("{:o}", s.mode()),
                        s.nlink(),
                        s.uid(),
                        s.gid(),
                        s.rdev(),
                        size,
                        s.blksize(),
                    )
                });
                n.same(name, facts);
            }
            let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
            let dirfd = tree::open_dir(dir);
            let mode = rustix::fs::statx(&dirfd, "", flags, StatxFlags::BASIC_STATS);
            n.same(
                "statx of a descriptor",
                mode.map(|s| format!("{:o}", s.stx_mode)),
            );
        },
    },
    Check {
        name: "path-descriptors",
        prepare: kinds,
        act: path_descriptors,
    },
    Check {
        name: "deep",
        prepare: |dir| tree::deep(&dir.join("d"), 300, 200),
        act: deep,
    },
    Check {
        name: "resolve",
        prepare: kinds,
        act: resolve,
    },
    Check {
        name: "fifo",
        prepare: kinds,
        act: |n, dir| {
            n.script(dir, "(echo through > fifo) & timeout 10 cat fifo; wait");
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            n.is("reader alone", open(dir, "fifo", flags).map(drop), "()");
            let flags = OFlags::WRONLY | OFlags::NONBLOCK;
            n.is("writer alone", open(dir, "fifo", flags).map(drop), "ENXIO");
        },
    },
    Check {
        name: "devices",
        prepare: kinds,
        act: |n, dir| {
            n.script(
                dir,
                "head -c 3 zero | od -An -tx1; echo lost > null; cat null",
            );
            n.is(
                "no driver",
                open(dir, "no-driver", OFlags::RDONLY).map(drop),
                "ENXIO",
            );
        },
    },
    Check {
        name: "locks",
        prepare: |dir| fs::write(dir.join("f"), "x").expect("write"),
        act: |n, dir| {
            use rustix::fs::FlockOperation::{
                NonBlockingLockExclusive, NonBlockingLockShared, Unlock,
            };
            let files = [
                open(dir, "f", OFlags::RDONLY),
                open(dir, "f", OFlags::RDONLY),
            ];
            let [Ok(a), Ok(b)] = files else {
                return n.same("open", Err::<(), _>(Errno::IO));
            };
            n.is("exclusive", flock(&a, NonBlockingLockExclusive), "()");
            n.is("the other", flock(&b, NonBlockingLockShared), "EAGAIN");
            n.is("down to shared", flock(&a, NonBlockingLockShared), "()");
            n.is("shared too", flock(&b, NonBlockingLockShared), "()");
            n.is(
                "not exclusive",
                flock(&b, NonBlockingLockExclusive),
                "EAGAIN",
            );
            n.is("unlock", flock(&a, Unlock), "()");
            n.script(dir, "flock -n -s f true; echo $?");
        },
    },
];

/// Their names, and an absent one.
pub const KINDS: [&str; 13] = [
    "file",
    "dir",
    "fifo",
    "socket",
    "null",
    "zero",
    "no-driver",
    "to-file",
    "to-dir",
    "dangling",
    "loop",
    "longest",
    "absent",
];

/// One of each kind.
pub fn kinds(dir: &Path) {
    fs::write(dir.join("file"), "text\n").expect("write");
    fs::create_dir(dir.join("dir")).expect("mkdir");
    fs::write(dir.join("dir/inner"), "inner\n").expect("write");
    let link = |to: &str, name: &str| symlink(to, dir.join(name)).expect("symlink");
    link("file", "to-file");
    link("dir", "to-dir");
    link("nowhere", "dangling");
    link("loop", "loop");
    link(&"x".repeat(4095), "longest");
    let fd = tree::open_dir(dir);
    let node = |name: &str, kind, dev| {
        mknodat(&fd, name, kind, Mode::from_raw_mode(0o666), dev).expect("mknod");
    };
    node("fifo", FileType::Fifo, 0);
    node("socket", FileType::Socket, 0);
    node("null", FileType::CharacterDevice, makedev(1, 3));
    node("zero", FileType::CharacterDevice, makedev(1, 5));
    node("no-driver", FileType::CharacterDevice, makedev(240, 77));
}

fn open_flags(n: &mut Notes, dir: &Path) {
    let sets = [
        OFlags::RDONLY,
        OFlags::RDONLY | OFlags::NONBLOCK,
        OFlags::RDONLY | OFlags::DIRECTORY,
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK,
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::DIRECTORY,
        OFlags::PATH,
        OFlags::PATH | OFlags::NOFOLLOW,
        OFlags::PATH | OFlags::DIRECTORY,
        OFlags::RDONLY | OFlags::NOATIME,
        OFlags::RDONLY | OFlags::DIRECT,
        OFlags::RDONLY | OFlags::SYNC | OFlags::DSYNC,
        OFlags::RDONLY | OFlags::EXCL,
        OFlags::RDONLY | OFlags::NOCTTY,
    ];
    for name in KINDS {
        for flags in sets {
            // Blocks until there is a writer.
            if name == "fifo"
                && !flags.intersects(OFlags::NONBLOCK | OFlags::PATH | OFlags::DIRECTORY)
            {
                continue;
            }
            let fd = open(dir, name, flags);
            let facts = fd.and_then(|fd| Ok((fcntl_getfl(&fd)?.bits(), fstat(&fd)?.st_mode)));
            n.same(&format!("{name} {flags:?}"), facts);
        }
    }
    n.is(
        "a directory as such",
        open(dir, "dir", OFlags::DIRECTORY).map(drop),
        "()",
    );
    n.is(
        "a file as directory",
        open(dir, "file", OFlags::DIRECTORY).map(drop),
        "ENOTDIR",
    );
    n.is(
        "a symlink",
        open(dir, "to-file", OFlags::NOFOLLOW).map(drop),
        "ELOOP",
    );
    n.is(
        "a socket",
        open(dir, "socket", OFlags::RDONLY).map(drop),
        "ENXIO",
    );
    n.user(
        dir,
        12_345,
        &[],
        &[
            "dd",
            "iflag=noatime",
            "if=file",
            "of=/dev/null",
            "status=none",
        ],
    );
    n.script(dir, "dd iflag=noatime if=file of=/dev/null status=none");
    n.script(dir, "dd iflag=direct if=file bs=4096 status=none");
}

fn paths(n: &mut Notes, dir: &Path) {
    let table = [
        ("absent", "ENOENT"),
        ("absent/x", "ENOENT"),
        ("file/x", "ENOTDIR"),
        ("file/", "ENOTDIR"),
        ("file/.", "ENOTDIR"),
        ("file/..", "ENOTDIR"),
        ("to-file/", "ENOTDIR"),
        ("to-file/x", "ENOTDIR"),
        ("dangling", "ENOENT"),
        ("dangling/x", "ENOENT"),
        ("loop", "ELOOP"),
        ("loop/x", "ELOOP"),
        ("longest", "ENAMETOOLONG"),
        ("dir", "()"),
        ("dir/", "()"),
        ("dir/.", "()"),
        ("dir/..", "()"),
        ("dir/../dir/inner", "()"),
        ("to-dir/inner", "()"),
        ("to-dir/../file", "()"),
        ("to-dir/", "()"),
        (".//dir///inner", "()"),
        ("fifo/x", "ENOTDIR"),
        ("socket/x", "ENOTDIR"),
        ("", "ENOENT"),
    ];
    for (path, expected) in table {
        let base = tree::open_dir(dir);
        n.is(
            path,
            statat(&base, path, AtFlags::empty()).map(drop),
            expected,
        );
        n.same(
            path,
            statat(&base, path, AtFlags::SYMLINK_NOFOLLOW).map(|s| s.st_mode),
        );
        n.same(
            path,
            open(dir, path, OFlags::RDONLY | OFlags::NONBLOCK).map(drop),
        );
        n.same(
            path,
            io(fs::read_dir(dir.join("dir").join("..").join(path))).map(drop),
        );
    }
}

fn name_lengths(n: &mut Notes, dir: &Path) {
    let base = tree::open_dir(dir);
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    for (name, expected) in [
        ("n".repeat(255), "()"),
        ("n".repeat(256), "ENAMETOOLONG"),
        ("m".repeat(255), "ENOENT"),
        ("m".repeat(256), "ENAMETOOLONG"),
        (format!("{}/x", "m".repeat(256)), "ENAMETOOLONG"),
        (format!("{}/x", "d".repeat(255)), "ENOENT"),
        ("./".repeat(2046) + "abc", "ENOENT"),
        ("./".repeat(2047) + "ab", "ENAMETOOLONG"),
    ] {
        let what = format!("{} bytes, {}", name.len(), &name[..1]);
        // Twice: the first miss must not be remembered as another errno.
        for _ in 0..2 {
            n.is(&what, statat(&base, &*name, nofollow).map(drop), expected);
            n.is(&what, open(dir, &*name, OFlags::RDONLY).map(drop), expected);
        }
        n.same(&what, readlinkat(&base, &*name, Vec::new()).map(drop));
        n.same(
            &what,
            accessat(&base, &*name, Access::EXISTS, AtFlags::empty()),
        );
    }
}

fn holes(n: &mut Notes, dir: &Path) {
    for name in ["none", "all", "some", "huge", "full"] {
        let Ok(fd) = open(dir, name, OFlags::RDONLY) else {
            n.same(name, Err::<(), _>(Errno::IO));
            continue;
        };
        let end = seek(&fd, SeekFrom::End(0));
        n.same(&format!("{name} end"), end);
        for at in [
            0,
            1,
            4095,
            4096,
            65_536,
            65_540,
            70_000,
            1 << 20,
            (1 << 20) + 5,
            3 << 20,
            1 << 39,
            1 << 41,
        ] {
            n.same(
                &format!("{name} data from {at}"),
                seek(&fd, SeekFrom::Data(at)),
            );
            n.same(
                &format!("{name} hole from {at}"),
                seek(&fd, SeekFrom::Hole(at)),
            );
        }
        n.is(
            "before the start",
            seek(&fd, SeekFrom::Current(-(1 << 50))),
            "EINVAL",
        );
    }
    let fd = open(dir, "all", OFlags::RDONLY).and_then(|fd| seek(&fd, SeekFrom::Data(0)));
    n.is("no data", fd, "ENXIO");
    n.script(dir, "cp --sparse=auto some /dev/null && stat -c '%b %s' *");
}

fn reads(n: &mut Notes, dir: &Path) {
    let Ok(file) = io(fs::File::open(dir.join("f"))) else {
        return n.same("open", Err::<(), _>(Errno::IO));
    };
    for (at, len) in [
        (0, 1),
        (0, 4096),
        (4095, 2),
        (131_071, 131_073),
        (299_999, 10),
        (300_001, 1),
        (1 << 40, 5),
    ] {
        let mut buf = vec![0; len];
        let got = io(file.read_at(&mut buf, at));
        n.same(&format!("{len} at {at}"), got);
        let sum: u64 = buf
            .iter()
            .enumerate()
            .map(|(i, b)| (i as u64 + 1) * u64::from(*b))
            .sum();
        n.same("their sum", Ok(sum));
    }
    n.is("nothing", io(file.read_at(&mut [], 5)), "0");
    let mut dir_fd = io(fs::File::open(dir.join("dir")));
    let read = dir_fd
        .as_mut()
        .map_err(|e| *e)
        .and_then(|f| io(f.read(&mut [0; 10])));
    n.is("a directory", read, "EISDIR");
    let mut list = [MaybeUninit::uninit(); 512];
    let mut listing = RawDir::new(file.as_fd(), &mut list);
    let first = listing.next().map(|e| e.map(drop));
    n.is("a file's names", first.unwrap_or(Ok(())), "ENOTDIR");
    n.script(
        dir,
        "sha256sum f empty; tail -c 5 f | od -c; dd if=f bs=7 skip=9 count=3 status=none | od -c",
    );
}

fn path_descriptors(n: &mut Notes, dir: &Path) {
    let at = |name: &str, more| open(dir, name, OFlags::PATH | more);
    let mut buf = [0; 8];
    let file = at("file", OFlags::empty());
    let read = file
        .as_ref()
        .map_err(|e| *e)
        .and_then(|f| rustix::io::read(f, &mut buf));
    n.is("read of a path descriptor", read, "EBADF");
    let link = at("to-file", OFlags::NOFOLLOW);
    let target = link.and_then(|l| readlinkat(&l, "", Vec::new()));
    n.is(
        "readlink of a path descriptor",
        target.map(|t| t.into_bytes()),
        &format!("{:?}", b"file"),
    );
    let sub = at("to-dir", OFlags::DIRECTORY);
    let inner = sub.and_then(|d| rustix::fs::openat(&d, "inner", OFlags::RDONLY, Mode::empty()));
    n.is("below a path descriptor", inner.map(drop), "()");
    let reopened = file.and_then(|f| {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&f));
        io(fs::read_to_string(path))
    });
    n.is("reopened", reopened, "\"text\\n\"");
}

fn deep(n: &mut Notes, dir: &Path) {
    let mut fd: OwnedFd = tree::open_dir(&dir.join("d"));
    for level in 0..300 {
        let name = tree::deep_name(level, 200);
        let next = rustix::fs::openat(
            &fd,
            &*name,
            OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        match next {
            Ok(next) => fd = next,
            Err(e) => return n.same(&format!("level {level}"), Err::<(), _>(e)),
        }
        if level % 37 == 0 {
            n.same("links", fstat(&fd).map(|s| s.st_nlink));
            n.same(
                "parent",
                statat(&fd, "../..", AtFlags::empty()).map(|s| s.st_mode),
            );
            n.is(
                "absent",
                statat(&fd, "absent", AtFlags::empty()).map(drop),
                "ENOENT",
            );
        }
    }
    let end = rustix::fs::openat(&fd, "end", OFlags::RDONLY, Mode::empty());
    let text = end.and_then(|fd| {
        let mut text = String::new();
        io(fs::File::from(fd).read_to_string(&mut text)).map(|_| text)
    });
    n.is("the end", text, "\"the end\\n\"");
    let mut buf = [MaybeUninit::uninit(); 4096];
    let mut listing = RawDir::new(&fd, &mut buf);
    let mut names = Vec::new();
    while let Some(Ok(entry)) = listing.next() {
        names.push(entry.file_name().to_owned());
    }
    names.sort();
    n.is("its names", Ok(names), "[\".\", \"..\", \"end\"]");
    n.script(dir, "find d | wc");
}

fn resolve(n: &mut Notes, dir: &Path) {
    let base = tree::open_dir(dir);
    let ways = [
        ("beneath", ResolveFlags::BENEATH),
        ("no symlinks", ResolveFlags::NO_SYMLINKS),
        ("no other device", ResolveFlags::NO_XDEV),
        ("in root", ResolveFlags::IN_ROOT),
    ];
    for (what, flags) in ways {
        for path in [
            "file",
            "to-file",
            "dir/inner",
            "to-dir/inner",
            "dir/../file",
            "..",
            "../x",
            "absent",
        ] {
            // EAGAIN is no outcome: something was renamed or mounted somewhere on the
            // machine meanwhile, and the caller is to ask again.
            let fd = loop {
                let how = OFlags::RDONLY | OFlags::CLOEXEC;
                match openat2(&base, path, how, Mode::empty(), flags) {
                    Err(Errno::AGAIN) => {}
                    other => break other,
                }
            };
            n.same(&format!("{what}: {path}"), fd.map(drop));
        }
    }
}
