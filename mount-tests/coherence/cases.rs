//! The kinds of change that are made behind a mount, each in a directory of its own.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, RenameFlags, Timespec, Timestamps, renameat_with, utimensat};

use crate::run::{command, run};

pub type Seen = Result<(), String>;

/// One kind of change, in a directory of its own: `before` makes it on the source,
/// `warm` fills the caches through the mount, `edit` changes the source, `after`
/// looks through the mount.
pub struct Case {
    pub kind: &'static str,
    pub before: fn(&Path),
    pub warm: fn(&Path),
    pub edit: fn(&Path),
    pub after: fn(&Path) -> Seen,
}

pub fn put(path: impl AsRef<Path>, text: &str) {
    let path = path.as_ref();
    fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Writes beside and renames over, as editors do.
pub fn replace(path: impl AsRef<Path>, text: &str) {
    let path = path.as_ref();
    let beside = path.with_extension("tmp");
    put(&beside, text);
    fs::rename(&beside, path).expect("rename");
}

/// Fills every cache there is for the names of a directory.
pub fn warm_all(dir: &Path) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        let stat = path.symlink_metadata().expect("it was listed");
        if stat.is_symlink() {
            fs::read_link(&path).expect("a symlink");
        } else if stat.is_dir() {
            warm_all(&path);
        } else if stat.is_file() {
            fs::read(&path).expect("a file");
        }
    }
}

/// Whether a listing has the name. A directory that another took the place of may be
/// stale for a moment: then this is an error, as any other answer that is not true.
pub fn listed(dir: &Path, name: &str) -> Result<bool, String> {
    let wrong = |e: std::io::Error| format!("list {}: {e}", dir.display());
    let mut found = false;
    for entry in fs::read_dir(dir).map_err(wrong)? {
        found |= entry.map_err(wrong)?.file_name() == name;
    }
    Ok(found)
}

pub fn error_of<T>(result: std::io::Result<T>) -> i32 {
    result.err().and_then(|e| e.raw_os_error()).unwrap_or(0)
}

/// No kind of access finds the name.
pub fn absent(dir: &Path, name: &str) -> Seen {
    let path = dir.join(name);
    let found = [
        ("lstat", error_of(path.symlink_metadata())),
        ("open", error_of(fs::File::open(&path))),
        ("readlink", error_of(fs::read_link(&path))),
        ("stat", error_of(path.metadata())),
    ];
    let listed = listed(dir, name)?;
    if found.iter().all(|(_, e)| *e == libc::ENOENT) && !listed {
        return Ok(());
    }
    Err(format!(
        "{name}: errors {found:?} (2 is ENOENT), listed: {listed}"
    ))
}

/// Every kind of access finds the name, and the text is this one.
pub fn holds(dir: &Path, name: &str, text: &str) -> Seen {
    let path = dir.join(name);
    let stat = path
        .symlink_metadata()
        .map_err(|e| format!("lstat {name}: {e}"))?;
    let read = fs::read_to_string(&path).map_err(|e| format!("read {name}: {e}"))?;
    let listed = listed(dir, name)?;
    if read == text && stat.len() == text.len() as u64 && listed {
        return Ok(());
    }
    Err(format!(
        "{name} holds {read:?}, size {}, listed: {listed}",
        stat.len()
    ))
}

pub fn is<T: PartialEq + std::fmt::Debug>(what: &str, found: T, wanted: T) -> Seen {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what} is {found:?}, not {wanted:?}"))
}

pub fn stat(path: impl AsRef<Path>) -> Result<fs::Metadata, String> {
    let path = path.as_ref();
    path.symlink_metadata()
        .map_err(|e| format!("lstat {}: {e}", path.display()))
}

pub fn warm_absent(dir: &Path) {
    for name in ["n", "sub"] {
        dir.join(name)
            .symlink_metadata()
            .expect_err("not there yet");
        fs::read_dir(dir.join(name)).expect_err("not there yet");
    }
    warm_all(dir);
}

pub const CASES: &[Case] = &[
    Case {
        kind: "stale positive after a symlink is unlinked below",
        before: |s| symlink("x", s.join("lock")).expect("symlink"),
        warm: warm_all,
        edit: |s| fs::remove_file(s.join("lock")).expect("unlink"),
        after: |m| absent(m, "lock"),
    },
    Case {
        kind: "stale positive after a file is unlinked below",
        before: |s| put(s.join("f"), "x"),
        warm: warm_all,
        edit: |s| fs::remove_file(s.join("f")).expect("unlink"),
        after: |m| absent(m, "f"),
    },
    Case {
        kind: "old bytes after an overwrite in place of the same size",
        before: |s| put(s.join("f"), "aaaa"),
        warm: warm_all,
        edit: |s| {
            let mut file = fs::OpenOptions::new()
                .write(true)
                .open(s.join("f"))
                .expect("open");
            file.write_all(b"bbbb").expect("write");
        },
        after: |m| holds(m, "f", "bbbb"),
    },
    Case {
        kind: "old bytes after two overwrites in one second",
        before: |s| put(s.join("f"), "aaaa"),
        warm: |m| {
            warm_all(m);
        },
        edit: |s| {
            put(s.join("f"), "bbbb");
            put(s.join("f"), "cccc");
        },
        after: |m| holds(m, "f", "cccc"),
    },
    Case {
        kind: "old file after an editor's save by rename",
        before: |s| put(s.join("f"), "before"),
        warm: warm_all,
        edit: |s| replace(s.join("f"), "after the save"),
        after: |m| holds(m, "f", "after the save"),
    },
    Case {
        kind: "old file after a rename over it of the same size",
        before: |s| put(s.join("f"), "one"),
        warm: warm_all,
        edit: |s| replace(s.join("f"), "two"),
        after: |m| holds(m, "f", "two"),
    },
    Case {
        kind: "old size after an append below",
        before: |s| put(s.join("f"), "text"),
        warm: warm_all,
        edit: |s| {
            let mut file = fs::OpenOptions::new()
                .append(true)
                .open(s.join("f"))
                .expect("open");
            file.write_all(b" and more").expect("write");
        },
        after: |m| holds(m, "f", "text and more"),
    },
    Case {
        kind: "old size after a truncation below",
        before: |s| put(s.join("f"), &"long ".repeat(3000)),
        warm: warm_all,
        edit: |s| put(s.join("f"), "short"),
        after: |m| holds(m, "f", "short"),
    },
    Case {
        kind: "bad first name after a hard link is made below",
        before: |s| put(s.join("a"), "x"),
        warm: warm_all,
        edit: |s| fs::hard_link(s.join("a"), s.join("b")).expect("link"),
        after: |m| {
            let (a, b) = (stat(m.join("a"))?, stat(m.join("b"))?);
            is("links of both", (a.nlink(), b.nlink()), (2, 2))?;
            is("number of b", b.ino(), a.ino())
        },
    },
    Case {
        kind: "hard link to a symlink made below",
        before: |s| symlink("foo", s.join("bar")).expect("symlink"),
        warm: warm_all,
        edit: |s| fs::hard_link(s.join("bar"), s.join("baz")).expect("link"),
        after: |m| {
            let target = fs::read_link(m.join("baz")).map_err(|e| format!("baz: {e}"))?;
            is("target", target.to_str(), Some("foo"))?;
            is(
                "number",
                stat(m.join("baz"))?.ino(),
                stat(m.join("bar"))?.ino(),
            )
        },
    },
    Case {
        kind: "old link count after one of two names is unlinked below",
        before: |s| {
            put(s.join("a"), "x");
            fs::hard_link(s.join("a"), s.join("b")).expect("link");
        },
        warm: warm_all,
        edit: |s| fs::remove_file(s.join("a")).expect("unlink"),
        after: |m| {
            absent(m, "a")?;
            is("links", stat(m.join("b"))?.nlink(), 1)
        },
    },
    Case {
        kind: "old name after a rename below",
        before: |s| put(s.join("a"), "x"),
        warm: |m| {
            warm_all(m);
            m.join("b").symlink_metadata().expect_err("not there yet");
        },
        edit: |s| fs::rename(s.join("a"), s.join("b")).expect("rename"),
        after: |m| {
            absent(m, "a")?;
            holds(m, "b", "x")
        },
    },
    Case {
        kind: "old names after two files are exchanged below",
        before: |s| {
            put(s.join("a"), "of a");
            put(s.join("b"), "of b");
        },
        warm: warm_all,
        edit: |s| {
            let (a, b) = (s.join("a"), s.join("b"));
            renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).expect("exchange");
        },
        after: |m| {
            holds(m, "a", "of b")?;
            holds(m, "b", "of a")
        },
    },
    Case {
        kind: "old tree after a directory is renamed below",
        before: |s| {
            fs::create_dir_all(s.join("d/e")).expect("mkdir");
            put(s.join("d/e/f"), "deep");
        },
        warm: warm_all,
        edit: |s| fs::rename(s.join("d"), s.join("moved")).expect("rename"),
        after: |m| {
            absent(m, "d")?;
            is(
                "below the old name",
                error_of(fs::read(m.join("d/e/f"))),
                libc::ENOENT,
            )?;
            holds(&m.join("moved/e"), "f", "deep")
        },
    },
    Case {
        kind: "old tree after another directory takes the name below",
        before: |s| {
            for (dir, text) in [("d", "old"), ("e", "new")] {
                fs::create_dir(s.join(dir)).expect("mkdir");
                put(s.join(dir).join("f"), text);
            }
            put(s.join("d/only-old"), "");
        },
        warm: warm_all,
        edit: |s| {
            fs::rename(s.join("d"), s.join("aside")).expect("rename");
            fs::rename(s.join("e"), s.join("d")).expect("rename");
        },
        after: |m| {
            holds(&m.join("d"), "f", "new")?;
            absent(&m.join("d"), "only-old")?;
            holds(&m.join("aside"), "f", "old")?;
            absent(m, "e")
        },
    },
    Case {
        kind: "old directory after it is removed and made anew below",
        before: |s| {
            fs::create_dir(s.join("d")).expect("mkdir");
            put(s.join("d/old"), "");
        },
        warm: warm_all,
        edit: |s| {
            fs::remove_dir_all(s.join("d")).expect("rm -r");
            fs::create_dir(s.join("d")).expect("mkdir");
            put(s.join("d/new"), "n");
        },
        after: |m| {
            absent(&m.join("d"), "old")?;
            holds(&m.join("d"), "new", "n")
        },
    },
    Case {
        kind: "old kind after a file becomes a directory below",
        before: |s| put(s.join("x"), "file"),
        warm: warm_all,
        edit: |s| {
            fs::remove_file(s.join("x")).expect("unlink");
            fs::create_dir(s.join("x")).expect("mkdir");
            put(s.join("x/f"), "inside");
        },
        after: |m| {
            is("a directory", stat(m.join("x"))?.is_dir(), true)?;
            holds(&m.join("x"), "f", "inside")
        },
    },
    Case {
        kind: "old kind after a directory becomes a symlink below",
        before: |s| {
            fs::create_dir(s.join("x")).expect("mkdir");
            put(s.join("x/f"), "of x");
            fs::create_dir(s.join("y")).expect("mkdir");
            put(s.join("y/f"), "of y");
        },
        warm: warm_all,
        edit: |s| {
            fs::remove_dir_all(s.join("x")).expect("rm -r");
            symlink("y", s.join("x")).expect("symlink");
        },
        after: |m| {
            is("a symlink", stat(m.join("x"))?.is_symlink(), true)?;
            holds(&m.join("x"), "f", "of y")
        },
    },
    Case {
        kind: "old target after a symlink is made anew below",
        before: |s| symlink("one", s.join("l")).expect("symlink"),
        warm: warm_all,
        edit: |s| {
            fs::remove_file(s.join("l")).expect("unlink");
            symlink("0123456789abcde", s.join("l")).expect("symlink");
        },
        after: |m| {
            let target = fs::read_link(m.join("l")).map_err(|e| e.to_string())?;
            is("target", target.to_str(), Some("0123456789abcde"))?;
            is("size", stat(m.join("l"))?.len(), 15)
        },
    },
    Case {
        kind: "old mode, owner and times after a change below",
        before: |s| put(s.join("f"), "x"),
        warm: warm_all,
        edit: |s| {
            let f = s.join("f");
            fs::set_permissions(&f, fs::Permissions::from_mode(0o4711)).expect("chmod");
            set_mtime(&f, -5);
        },
        after: |m| {
            let stat = stat(m.join("f"))?;
            is("mode", stat.mode() & 0o7777, 0o4711)?;
            is("mtime", stat.mtime(), -5)
        },
    },
    Case {
        kind: "old listing after a change and the old mtime set back",
        before: |s| {
            fs::create_dir(s.join("d")).expect("mkdir");
            put(s.join("d/a"), "");
            set_mtime(&s.join("d"), 0);
        },
        warm: |m| {
            warm_all(m);
            m.join("d/b").symlink_metadata().expect_err("not there yet");
        },
        edit: |s| {
            put(s.join("d/b"), "b");
            fs::remove_file(s.join("d/a")).expect("unlink");
            set_mtime(&s.join("d"), 0);
        },
        after: |m| {
            holds(&m.join("d"), "b", "b")?;
            absent(&m.join("d"), "a")
        },
    },
    Case {
        kind: "old link count of a directory after mkdir below",
        before: |s| fs::create_dir_all(s.join("d/one")).expect("mkdir"),
        warm: warm_all,
        edit: |s| {
            fs::create_dir(s.join("d/two")).expect("mkdir");
            fs::create_dir(s.join("d/three")).expect("mkdir");
            fs::remove_dir(s.join("d/one")).expect("rmdir");
        },
        after: |m| is("links", stat(m.join("d"))?.nlink(), 4),
    },
    Case {
        kind: "new name not listed",
        before: |s| put(s.join("a"), ""),
        warm: warm_all,
        edit: |s| put(s.join("n"), "new"),
        after: |m| holds(m, "n", "new"),
    },
    Case {
        kind: "stale negative after a file is made below",
        before: |_| (),
        warm: warm_absent,
        edit: |s| put(s.join("n"), "new"),
        after: |m| holds(m, "n", "new"),
    },
    Case {
        kind: "stale negative after a directory is made below",
        before: |_| (),
        warm: warm_absent,
        edit: |s| {
            fs::create_dir(s.join("sub")).expect("mkdir");
            put(s.join("sub/f"), "in it");
        },
        after: |m| holds(&m.join("sub"), "f", "in it"),
    },
    Case {
        kind: "stale negative after removal and making anew below",
        before: |s| put(s.join("n"), "old"),
        warm: warm_all,
        edit: |s| {
            fs::remove_file(s.join("n")).expect("unlink");
            put(s.join("n"), "x");
        },
        after: |m| holds(m, "n", "x"),
    },
    Case {
        kind: "stale negative after a file is moved in from elsewhere below",
        before: |s| {
            fs::create_dir(s.join("from")).expect("mkdir");
            put(s.join("from/n"), "moved");
        },
        warm: warm_absent,
        edit: |s| fs::rename(s.join("from/n"), s.join("n")).expect("rename"),
        after: |m| {
            holds(m, "n", "moved")?;
            absent(&m.join("from"), "n")
        },
    },
    Case {
        kind: "old value after an extended attribute is set below",
        before: |s| {
            put(s.join("f"), "");
            xattr(&s.join("f"), "one");
        },
        warm: |m| {
            warm_all(m);
            assert_eq!(read_xattr(&m.join("f")), Ok("one".into()));
        },
        edit: |s| xattr(&s.join("f"), "two"),
        after: |m| is("user.x", read_xattr(&m.join("f")), Ok("two".into())),
    },
    Case {
        kind: "old program after it is replaced below",
        before: |s| script(&s.join("prog"), "before"),
        warm: |m| {
            let done = run(&mut command([m.join("prog")])).clean();
            assert_eq!(done.out(), "before\n");
        },
        edit: |s| {
            let tmp = s.join("prog.tmp");
            script(&tmp, "after");
            fs::rename(tmp, s.join("prog")).expect("rename");
        },
        after: |m| {
            is(
                "output",
                run(&mut command([m.join("prog")])).out(),
                "after\n".into(),
            )
        },
    },
];

pub fn script(path: &Path, says: &str) {
    put(path, &format!("#!/bin/sh\necho {says}\n"));
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
}

pub fn set_mtime(path: &Path, tv_sec: i64) {
    let time = Timespec { tv_sec, tv_nsec: 0 };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("utimensat");
}

pub fn xattr(path: &Path, value: &str) {
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, "user.x", value.as_bytes(), flags).expect("setxattr");
}

pub fn read_xattr(path: &Path) -> Result<String, String> {
    let mut buf = [0; 64];
    let len = rustix::fs::getxattr(path, "user.x", &mut buf).map_err(|e| e.to_string())?;
    Ok(String::from_utf8_lossy(&buf[..len]).into_owned())
}
