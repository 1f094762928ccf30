//! Changes, as a read-only mount refuses them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec,
    Timestamps, Uid, XattrFlags, accessat, chownat, fallocate, fchmod, fchown, ftruncate, futimens,
    linkat, mkdirat, mknodat, renameat_with, symlinkat, unlinkat, utimensat,
};

use super::{Check, Notes, io, open};
use crate::tree;

/// All of them.
pub const TABLE: &[Check] = &[
    Check {
        name: "open",
        prepare: files,
        act: opens,
    },
    Check {
        name: "names",
        prepare: files,
        act: names,
    },
    Check {
        name: "rename",
        prepare: files,
        act: renames,
    },
    Check {
        name: "attributes",
        prepare: files,
        act: attributes,
    },
    Check {
        name: "descriptors",
        prepare: files,
        act: descriptors,
    },
    Check {
        name: "programs",
        prepare: files,
        act: |n, dir| {
            for script in [
                "touch new",
                "touch f",
                "touch -h l",
                "mkdir -p full/x/y",
                "mkdir -p full/sub",
                "rm -f f",
                "rm -rf full",
                "mv f g",
                "ln f g",
                "ln -s f g",
                "cp f g",
                "echo x > f",
                "echo x >> f",
                "truncate -s 9 f",
                "chmod 600 f",
                "chown 5 f",
                "setfacl -m u:5:r f",
                "setfattr -n user.x -v 1 f",
                "test -w f",
                "test -w .",
                "echo through > fifo & timeout 5 cat fifo; wait",
                "echo lost > null",
            ] {
                n.script(dir, script);
            }
        },
    },
];

fn files(dir: &Path) {
    fs::write(dir.join("f"), "text\n").expect("write");
    fs::create_dir_all(dir.join("full/sub")).expect("mkdir");
    fs::create_dir(dir.join("empty")).expect("mkdir");
    symlink("f", dir.join("l")).expect("symlink");
    symlink("nowhere", dir.join("dangling")).expect("symlink");
    let fd = tree::open_dir(dir);
    let mode = Mode::from_raw_mode(0o666);
    mknodat(&fd, "fifo", FileType::Fifo, mode, 0).expect("mknod");
    mknodat(
        &fd,
        "null",
        FileType::CharacterDevice,
        mode,
        rustix::fs::makedev(1, 3),
    )
    .expect("mknod");
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(dir.join("f"), "user.there", b"1", flags).expect("setxattr");
    fs::set_permissions(dir.join("f"), fs::Permissions::from_mode(0o644)).expect("chmod");
}

fn opens(n: &mut Notes, dir: &Path) {
    let sets = [
        OFlags::WRONLY,
        OFlags::RDWR,
        OFlags::WRONLY | OFlags::APPEND,
        OFlags::RDONLY | OFlags::CREATE,
        OFlags::WRONLY | OFlags::CREATE,
        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        OFlags::RDONLY | OFlags::TRUNC,
        OFlags::WRONLY | OFlags::TRUNC,
        OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW,
        OFlags::RDWR | OFlags::TMPFILE,
    ];
    for flags in sets {
        for name in [
            "f",
            "new",
            "l",
            "dangling",
            "empty",
            "full/new",
            "null",
            "f/x",
            "nowhere/x",
            "new/",
        ] {
            n.same(
                &format!("{name} {flags:?}"),
                open(dir, name, flags).map(drop),
            );
        }
        let long = "n".repeat(256);
        n.same(
            &format!("256 bytes {flags:?}"),
            open(dir, &*long, flags).map(drop),
        );
    }
    n.is("writing", open(dir, "f", OFlags::WRONLY).map(drop), "EROFS");
    n.is(
        "creating",
        open(dir, "new", OFlags::WRONLY | OFlags::CREATE).map(drop),
        "EROFS",
    );
    n.is(
        "a device",
        open(dir, "null", OFlags::WRONLY).map(drop),
        "()",
    );
}

fn names(n: &mut Notes, dir: &Path) {
    let at = tree::open_dir(dir);
    let mode = Mode::from_raw_mode(0o755);
    for name in [
        "new",
        "f",
        "full",
        "l",
        "dangling",
        "f/x",
        "nowhere/x",
        "new/",
        ".",
        "..",
        "full/..",
    ] {
        n.same(&format!("mkdir {name}"), mkdirat(&at, name, mode));
        n.same(
            &format!("mknod {name}"),
            mknodat(&at, name, FileType::Fifo, mode, 0),
        );
        n.same(&format!("symlink {name}"), symlinkat("x", &at, name));
        n.same(
            &format!("link to {name}"),
            linkat(&at, "f", &at, name, AtFlags::empty()),
        );
        n.same(
            &format!("link of {name}"),
            linkat(&at, name, &at, "new", AtFlags::empty()),
        );
        n.same(
            &format!("unlink {name}"),
            unlinkat(&at, name, AtFlags::empty()),
        );
        n.same(
            &format!("rmdir {name}"),
            unlinkat(&at, name, AtFlags::REMOVEDIR),
        );
    }
    n.is("mkdir", mkdirat(&at, "new", mode), "EROFS");
    n.is("unlink", unlinkat(&at, "f", AtFlags::empty()), "EROFS");
    n.is("mkdir again", mkdirat(&at, "full", mode), "EEXIST");
}

fn renames(n: &mut Notes, dir: &Path) {
    let at = tree::open_dir(dir);
    let names = [
        "f",
        "new",
        "full",
        "empty",
        "l",
        "nowhere/x",
        "f/x",
        ".",
        "full/sub",
    ];
    for from in names {
        for to in names {
            for flags in [
                RenameFlags::empty(),
                RenameFlags::NOREPLACE,
                RenameFlags::EXCHANGE,
            ] {
                let done = renameat_with(&at, from, &at, to, flags);
                n.same(&format!("rename {from} {to} {flags:?}"), done);
            }
        }
    }
    let done = renameat_with(&at, "f", &at, "new", RenameFlags::empty());
    n.is("rename", done, "EROFS");
}

fn times() -> Timestamps {
    let time = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn attributes(n: &mut Notes, dir: &Path) {
    let (uid, gid) = (Some(Uid::from_raw(5)), Some(Gid::from_raw(6)));
    for name in [
        "f", "empty", "l", "dangling", "fifo", "null", "absent", "f/x",
    ] {
        let path = dir.join(name);
        n.same(name, rustix::fs::chmod(&path, Mode::from_raw_mode(0o600)));
        for how in [AtFlags::empty(), AtFlags::SYMLINK_NOFOLLOW] {
            n.same(&format!("chown {name}"), chownat(CWD, &path, uid, gid, how));
            n.same(
                &format!("utimes {name}"),
                utimensat(CWD, &path, &times(), how),
            );
        }
        n.same(&format!("truncate {name}"), nix_truncate(&path));
        let flags = XattrFlags::empty();
        n.same(
            &format!("setxattr {name}"),
            rustix::fs::lsetxattr(&path, "user.x", b"1", flags),
        );
        n.same(
            &format!("removexattr {name}"),
            rustix::fs::lremovexattr(&path, "user.there"),
        );
        n.same(
            &format!("writable {name}"),
            accessat(CWD, &path, Access::WRITE_OK, AtFlags::empty()),
        );
    }
    n.is(
        "chmod",
        rustix::fs::chmod(dir.join("f"), Mode::from_raw_mode(0o600)),
        "EROFS",
    );
    let access = accessat(CWD, dir.join("f"), Access::WRITE_OK, AtFlags::empty());
    n.is("access", access, "EROFS");
}

/// truncate(2) by name.
fn nix_truncate(path: &Path) -> Result<(), rustix::io::Errno> {
    nix::unistd::truncate(path, 3).map_err(|e| rustix::io::Errno::from_raw_os_error(e as i32))
}

fn descriptors(n: &mut Notes, dir: &Path) {
    let file = match open(dir, "f", OFlags::RDONLY) {
        Ok(file) => file,
        Err(e) => return n.same("open", Err::<(), _>(e)),
    };
    n.is("fchmod", fchmod(&file, Mode::from_raw_mode(0o600)), "EROFS");
    n.is(
        "fchown",
        fchown(&file, Some(Uid::from_raw(5)), None),
        "EROFS",
    );
    n.is("futimens", futimens(&file, &times()), "EROFS");
    n.is("ftruncate", ftruncate(&file, 1), "EINVAL");
    n.is(
        "fallocate",
        fallocate(&file, FallocateFlags::empty(), 0, 9),
        "EBADF",
    );
    n.is("write", rustix::io::write(&file, b"x"), "EBADF");
    let flags = XattrFlags::empty();
    n.is(
        "fsetxattr",
        rustix::fs::fsetxattr(&file, "user.x", b"1", flags),
        "EROFS",
    );
    n.same("fsync", rustix::fs::fsync(&file));
    n.same("fdatasync", rustix::fs::fdatasync(&file));
    n.same(
        "fsync of a directory",
        rustix::fs::fsync(tree::open_dir(dir)),
    );
    n.same("syncfs", rustix::fs::syncfs(&file));
    n.same("its text", io(fs::read_to_string(dir.join("f"))));
}
