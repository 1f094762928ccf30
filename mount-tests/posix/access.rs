//! Checks of who may do what, that change nothing: modes, groups, ACLs, execution,
//! extended attributes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, XattrFlags, accessat};

use super::read::{KINDS, kinds};
use super::{Check, Notes};

/// All of them.
pub const TABLE: &[Check] = &[
    Check {
        name: "xattr",
        prepare: xattr_files,
        act: xattrs,
    },
    Check {
        name: "modes",
        prepare: mode_files,
        act: permissions,
    },
    Check {
        name: "directories",
        prepare: mode_dirs,
        act: directories,
    },
    Check {
        name: "acl",
        prepare: acl_files,
        act: |n, dir| {
            for (uid, groups) in [
                (1, &[][..]),
                (2, &[]),
                (3, &[]),
                (9, &[5]),
                (9, &[6]),
                (9, &[]),
            ] {
                for file in ["none", "user", "group", "masked", "owner-group"] {
                    n.user(dir, uid, groups, &["cat", file]);
                }
                n.user(dir, uid, groups, &["cat", "dir/f"]);
            }
            n.script(dir, "getfacl -n *");
        },
    },
    Check {
        name: "exec",
        prepare: |dir| {
            let put = |name: &str, text: &str, mode| {
                fs::write(dir.join(name), text).expect("write");
                let mode = fs::Permissions::from_mode(mode);
                fs::set_permissions(dir.join(name), mode).expect("chmod");
            };
            put("script", "#!/bin/sh\necho \"$0\" \"$@\"\n", 0o755);
            put("no-x", "#!/bin/sh\n", 0o644);
            put("no-interpreter", "#!/nowhere/at/all\n", 0o755);
            put("nonsense", "\x7fELF", 0o755);
            put("unreadable", "#!/bin/sh\necho ran\n", 0o711);
            fs::copy("/bin/echo", dir.join("binary")).expect("copy");
            fs::copy("/usr/bin/id", dir.join("set-id")).expect("copy");
            chown(dir.join("set-id"), Some(7), Some(8)).expect("chown");
            let mode = fs::Permissions::from_mode(0o6755);
            fs::set_permissions(dir.join("set-id"), mode).expect("chmod");
            fs::set_permissions(dir.join("binary"), fs::Permissions::from_mode(0o711))
                .expect("chmod");
        },
        act: |n, dir| {
            for name in [
                "script",
                "no-x",
                "no-interpreter",
                "nonsense",
                "unreadable",
                "binary",
            ] {
                n.script(dir, &format!("./{name} one two"));
                n.user(dir, 12_345, &[], &[&format!("./{name}"), "one"]);
            }
            n.user(dir, 12_345, &[], &["./set-id"]);
            n.script(dir, "cp binary /dev/null && ./script");
        },
    },
    Check {
        name: "access",
        prepare: kinds,
        act: |n, dir| {
            for name in KINDS {
                for mode in [Access::EXISTS, Access::READ_OK, Access::EXEC_OK] {
                    let got = accessat(CWD, dir.join(name), mode, AtFlags::empty());
                    n.same(&format!("{name} {mode:?}"), got);
                    let got = accessat(CWD, dir.join(name), mode, AtFlags::EACCESS);
                    n.same(&format!("{name} {mode:?} effective"), got);
                }
            }
        },
    },
];

fn xattr_files(dir: &Path) {
    fs::write(dir.join("f"), "").expect("write");
    fs::create_dir(dir.join("d")).expect("mkdir");
    symlink("f", dir.join("l")).expect("symlink");
    symlink("nowhere", dir.join("dangling")).expect("symlink");
    let set = |path: &str, name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(dir.join(path), name, value, XattrFlags::empty()).expect("setxattr");
    };
    set("f", "user.a", b"value");
    set("f", "user.empty", b"");
    set("f", "user.bin", b"\0\xff");
    set("f", &format!("user.{}", "n".repeat(250)), b"long");
    set("f", "trusted.t", b"1");
    set("d", "user.a", b"of d");
    set("l", "trusted.l", b"of l");
}

fn xattrs(n: &mut Notes, dir: &Path) {
    let long = format!("user.{}", "n".repeat(250));
    let longer = format!("user.{}", "n".repeat(251));
    let names = [
        "user.a",
        "user.empty",
        "user.bin",
        "user.none",
        "trusted.t",
        "trusted.l",
        "security.capability",
        "system.posix_acl_access",
        "nonsense",
        "user.",
        "",
        &long,
        &longer,
    ];
    for file in ["f", "d", "l", "dangling", "absent"] {
        let path = dir.join(file);
        let listed = rustix::fs::llistxattr(&path, Vec::with_capacity(4096).spare_capacity_mut())
            .map(|(names, _)| {
                let mut names: Vec<_> = names
                    .split(|b| *b == 0)
                    .map(|x| x.escape_ascii().to_string())
                    .collect();
                names.sort();
                names
            });
        n.same(&format!("{file} list"), listed);
        n.same(
            &format!("{file} list size"),
            rustix::fs::llistxattr_query(&path),
        );
        let few = rustix::fs::llistxattr(&path, &mut [0; 2]).map(drop);
        n.same(&format!("{file} list in 2 bytes"), few);
        for name in names {
            let mut buf = [0; 64];
            let got = rustix::fs::lgetxattr(&path, name, &mut buf);
            n.same(
                &format!("{file} {name}"),
                got.map(|len| buf[..len].to_vec()),
            );
            n.same(
                &format!("{file} {name} size"),
                rustix::fs::lgetxattr_query(&path, name),
            );
            n.same(
                &format!("{file} {name} in 1 byte"),
                rustix::fs::lgetxattr(&path, name, &mut [0; 1]),
            );
        }
        n.same(
            &format!("{file} followed"),
            rustix::fs::getxattr_query(&path, "user.a"),
        );
    }
    let f = dir.join("f");
    n.is(
        "a short buffer",
        rustix::fs::getxattr(&f, "user.a", &mut [0; 1]),
        "ERANGE",
    );
    n.is(
        "no such name",
        rustix::fs::getxattr(&f, "user.none", &mut [0; 9]),
        "ENODATA",
    );
    n.is(
        "too long a name",
        rustix::fs::getxattr(&f, &*longer, &mut [0; 9]),
        "ERANGE",
    );
    n.script(dir, "getfattr -d -m - -e hex f d 2>&1");
    n.user(
        dir,
        12_345,
        &[],
        &["getfattr", "-d", "-m", "-", "-e", "hex", "f", "d"],
    );
}

fn mode_files(dir: &Path) {
    for mode in (0..0o1000)
        .step_by(0o11)
        .chain([0o077, 0o707, 0o770, 0o640, 0o604])
    {
        let path = dir.join(format!("{mode:03o}"));
        fs::write(&path, "text").expect("write");
        chown(&path, Some(1000), Some(2000)).expect("chown");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
    }
}

fn permissions(n: &mut Notes, dir: &Path) {
    // The owner, a member by its group, one by a supplementary group, and another.
    let script = "for f in *; do test -r $f; r=$?; test -x $f; x=$?; cat $f >/dev/null 2>&1; echo $f $r $x $?; done";
    for (uid, groups) in [
        (1000, &[][..]),
        (2000, &[]),
        (3000, &[2000]),
        (3000, &[5, 2000, 7]),
        (3000, &[]),
    ] {
        n.user(dir, uid, groups, &["sh", "-c", script]);
    }
    n.script(dir, script);
}

fn mode_dirs(dir: &Path) {
    for mode in [
        0o000, 0o100, 0o400, 0o500, 0o700, 0o711, 0o744, 0o755, 0o070, 0o1777,
    ] {
        let sub = dir.join(format!("{mode:04o}"));
        fs::create_dir(&sub).expect("mkdir");
        fs::write(sub.join("f"), "text").expect("write");
        fs::create_dir(sub.join("d")).expect("mkdir");
        chown(&sub, Some(1000), Some(2000)).expect("chown");
        fs::set_permissions(&sub, fs::Permissions::from_mode(mode)).expect("chmod");
    }
}

fn directories(n: &mut Notes, dir: &Path) {
    let script =
        "for d in *; do echo $d; ls $d; cat $d/f; cat $d/absent; ls $d/d; (cd $d && echo in); done";
    for (uid, groups) in [(1000, &[][..]), (3000, &[2000]), (3000, &[])] {
        n.user(dir, uid, groups, &["sh", "-c", script]);
    }
}

fn acl_files(dir: &Path) {
    let acl = |name: &str, mode: u32, entries: &str| {
        let path = dir.join(name);
        if !path.exists() {
            fs::write(&path, "text").expect("write");
        }
        chown(&path, Some(1), Some(5)).expect("chown");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        if !entries.is_empty() {
            crate::run::run(crate::run::command(["setfacl", "-m", entries]).arg(&path)).clean();
        }
    };
    acl("none", 0o640, "");
    acl("user", 0o600, "u:2:r");
    acl("group", 0o600, "g:6:r");
    acl("masked", 0o600, "u:2:r,m::-");
    // The group's bits in the mode are the mask: wider than what the group may.
    acl("owner-group", 0o600, "u:2:r,g::-,m::rw");
    fs::create_dir(dir.join("dir")).expect("mkdir");
    fs::write(dir.join("dir/f"), "text").expect("write");
    acl("dir", 0o700, "u:3:x");
}
