//! What options do: the mount table, remounting, the helper's calling convention,
//! `stat`, and what each switch changes.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::harness::{MODES, Setup, nameifs};
use crate::need;
use crate::observe::{Stats, mount_at};
use crate::run::{command, run};

/// /proc/mounts shows the type `fuse.nameifs`, the source's absolute path or the
/// name given, and the options of mount(8); the kernel checks permissions.
#[test]
fn mount_table() {
    need!(Root);
    let mounted = Setup::new().mount();
    let line = mounted.mount_line().expect("it is mounted");
    assert_eq!(line.fstype, "fuse.nameifs");
    assert_eq!(line.source, mounted.source().as_os_str());
    for word in [
        "default_permissions",
        "allow_other",
        "user_id=0",
        "group_id=0",
    ] {
        assert!(
            line.super_options.split(',').any(|w| w == word),
            "{word}: {line:?}"
        );
    }
    mounted.unmount();
    let table: [(&str, &[&str], &[&str]); 5] = [
        ("ro,noatime", &["ro", "noatime"], &[]),
        ("rw,suid,dev,exec", &["rw"], &["nosuid", "nodev", "noexec"]),
        ("nosuid,nodev,noexec", &["nosuid", "nodev", "noexec"], &[]),
        // It refuses changes by itself: the caches can be dropped through the mount.
        ("coherence=frozen", &["rw"], &[]),
        (
            "ttl=5s,negative_ttl=2s,cache-size=64M,threads=3",
            &[],
            &["ro"],
        ),
    ];
    for (list, has, lacks) in table {
        let mounted = Setup::new().arg("-o").arg(list).mount();
        let line = mounted.mount_line().expect("it is mounted");
        let words: Vec<&str> = line.options.split(',').collect();
        for word in has {
            assert!(words.contains(word), "-o {list}: no {word} in {words:?}");
        }
        for word in lacks {
            assert!(!words.contains(word), "-o {list}: {word} in {words:?}");
        }
        mounted.unmount();
    }
    let mounted = Setup::new()
        .arg("-o")
        .arg("fsname=a name\\,with a comma")
        .mount();
    let line = mounted.mount_line().expect("it is mounted");
    assert_eq!(line.source, OsStr::new("a name,with a comma"));
    mounted.unmount();
}

/// Options reach the filesystem by either spelling; the last word counts, and a
/// long option more than any list.
#[test]
fn options_reach_the_filesystem() {
    need!();
    let setup = Setup::new()
        .arg("-o")
        .arg("ttl=9s,ttl=5s,coherence=ttl")
        .arg("-o")
        .arg("ttl=7s");
    let mounted = setup.arg("--attr-ttl=3s").mount();
    let stats = mounted.stats();
    assert_eq!(stats.0["coherence"]["mode"], "ttl");
    assert_eq!(stats.0["coherence"]["ttl_ms"], 7000);
    assert_eq!(stats.0["coherence"]["attr_ttl_ms"], 3000);
    mounted.unmount();
    let mounted = Setup::mode("strict")
        .arg("-o")
        .arg("coherence=frozen,cache_size=3M")
        .mount();
    let stats = mounted.stats();
    assert_eq!(stats.0["coherence"]["mode"], "strict");
    assert_eq!(stats.0["limits"]["cache_size"], 3 << 20);
    mounted.unmount();
}

/// `mount -o remount,ro` and back work on a mount. mount(8) has its helper call the
/// program so; done here directly, because the helper looks in the system's own
/// directories only.
#[test]
fn remount() {
    need!(Root);
    let mounted = Setup::new().mount();
    fs::write(mounted.below("f"), "text").expect("write");
    for word in ["ro", "rw"] {
        let remount = format!("remount,{word}");
        let words = [
            mounted.source().as_os_str(),
            mounted.path().as_os_str(),
            OsStr::new("-o"),
            OsStr::new(&remount),
        ];
        run(&mut mounted.tool(&words)).clean();
        let line = mounted.mount_line().expect("it is mounted");
        assert!(line.options.split(',').any(|w| w == word), "{line:?}");
        assert_eq!(line.fstype, "fuse.nameifs");
        assert_eq!(fs::read_to_string(mounted.at("f")).expect("read"), "text");
    }
    mounted.unmount();
}

/// `nameifs SOURCE MOUNTPOINT -o LIST`, as mount(8) calls its helper, mounts.
#[test]
fn called_by_mount() {
    need!();
    let place = crate::harness::Place::new();
    let (source, mnt) = (place.dir("source"), place.dir("mnt"));
    fs::write(source.join("f"), "text").expect("write");
    let mut cmd = command([nameifs()]);
    cmd.args([&source, &mnt])
        .args(["-o", "rw,coherence=frozen,nosuid"]);
    run(&mut cmd).clean();
    let line = mount_at(&mnt).expect("it is mounted");
    assert_eq!(line.fstype, "fuse.nameifs");
    assert_eq!(fs::read_to_string(mnt.join("f")).expect("read"), "text");
    run(command([nameifs()]).arg("umount").arg(&mnt)).clean();
    assert!(mount_at(&mnt).is_none());
}

/// `nameifs stat` shows requests and caches; with `--json` one object that has the
/// same keys as `.nameifs/stats`.
#[test]
fn stat_command() {
    need!();
    let mounted = Setup::new().mount();
    fs::write(mounted.below("f"), "text").expect("write");
    mounted.at("f").metadata().expect("stat");
    let stat = OsStr::new("stat");
    let text = run(&mut mounted.tool(&[stat, mounted.path().as_os_str()]))
        .clean()
        .out();
    for word in ["LOOKUP", "dentry", "getname_cache"] {
        assert!(text.contains(word), "no {word} in:\n{text}");
    }
    let words = [stat, mounted.path().as_os_str(), OsStr::new("--json")];
    let json = run(&mut mounted.tool(&words)).clean();
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    // The object itself, or with the slab caches beside it.
    let stats = value.get("stats").cloned().unwrap_or(value);
    let stats = Stats::parse(stats.to_string().as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    assert!(stats.requests().of("LOOKUP") >= 1);
    mounted.unmount();
}

/// `nameifs resolve` walks a path on a source and names each component.
#[test]
fn resolve_command() {
    need!();
    let place = crate::harness::Place::new();
    let source = place.dir("source");
    fs::create_dir_all(source.join("a/b")).expect("mkdir");
    fs::write(source.join("a/b/file"), "").expect("write");
    std::os::unix::fs::symlink("a/b", source.join("short")).expect("symlink");
    let resolve = |path: &str| {
        let mut cmd = command([nameifs()]);
        cmd.arg("resolve").arg(&source).arg(path);
        run(&mut cmd)
    };
    for path in ["a/b/file", "short/file", "a/../a/./b/file"] {
        let text = resolve(path).clean().out();
        let ino =
            std::os::unix::fs::MetadataExt::ino(&source.join("a/b/file").metadata().expect("stat"));
        assert!(
            text.contains("file") && text.contains(&ino.to_string()),
            "{path}:\n{text}"
        );
    }
    for path in ["a/nowhere", "a/b/file/x"] {
        let done = resolve(path);
        assert_eq!(done.code(), 1, "{path}: {}", done.out());
        assert_eq!(done.err().lines().count(), 1, "{path}: {}", done.err());
    }
}

/// The virtual files: hidden ones are opened but not listed, listed ones both, and
/// with `off` there are none.
#[test]
fn slabinfo_modes() {
    need!();
    let names = |dir: &Path| -> Vec<String> {
        let list = fs::read_dir(dir).expect("a directory");
        let mut names: Vec<String> = list
            .map(|e| {
                e.expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("ASCII")
            })
            .collect();
        names.sort();
        names
    };
    for mode in MODES {
        for (how, listed, there) in [("hidden", 0, true), ("listed", 2, true), ("off", 0, false)] {
            let mounted = Setup::mode(mode).arg(format!("--slabinfo={how}")).mount();
            fs::write(mounted.below("f"), "text").expect("write");
            let found = names(mounted.path());
            assert_eq!(found.len(), 1 + listed, "{mode} {how}: {found:?}");
            for name in [".slabinfo", ".nameifs", ".nameifs/stats"] {
                assert_eq!(mounted.at(name).exists(), there, "{mode} {how}: {name}");
            }
            if there {
                let inside = names(&mounted.at(".nameifs"));
                assert_eq!(inside, ["dentry-state", "drop_caches", "slab", "stats"]);
            }
            mounted.unmount();
        }
    }
}

/// With `--no-xattr` there are no extended attributes; without it there are.
#[test]
fn no_xattr() {
    need!();
    for (arg, wanted) in [("--ttl=1s", true), ("--no-xattr", false)] {
        let mounted = Setup::new().arg(arg).mount();
        fs::write(mounted.below("f"), "").expect("write");
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(mounted.below("f"), "user.x", b"1", flags).expect("setxattr");
        let mut buf = [0; 16];
        let got = rustix::fs::getxattr(mounted.at("f"), "user.x", &mut buf);
        assert_eq!(got.is_ok(), wanted, "{arg}: {got:?}");
        mounted.unmount();
    }
}

/// A source that has the names of the virtual files: they are hidden by ours, and
/// mounting says so in one line.
#[test]
fn shadowed_names_are_told() {
    need!();
    let place = crate::harness::Place::new();
    let (source, mnt) = (place.dir("source"), place.dir("mnt"));
    fs::write(source.join(".slabinfo"), "the source's").expect("write");
    let done = run(command([nameifs()]).arg("mount").args([&source, &mnt])).ok();
    let err = done.err();
    assert!(
        err.lines().count() == 1 && err.contains(".slabinfo"),
        "{err}"
    );
    let text = fs::read_to_string(mnt.join(".slabinfo")).expect("ours");
    assert!(text.starts_with("slabinfo - version: 2.1"), "{text}");
    run(command([nameifs()]).arg("umount").arg(&mnt)).clean();
    let mut cmd = command([nameifs()]);
    run(cmd.args(["mount", "--slabinfo=off"]).args([&source, &mnt])).clean();
    let text = fs::read_to_string(mnt.join(".slabinfo")).expect("the source's");
    assert_eq!(text, "the source's");
    run(command([nameifs()]).arg("umount").arg(&mnt)).clean();
}

/// The log goes where it is asked to go, and says that it mounted and unmounted.
#[test]
fn log_file() {
    need!();
    let mounted = Setup::new().mount();
    let log = mounted.log();
    assert!(log.contains("mounted"), "the log of a mount: {log:?}");
    assert!(!log.contains('\x1b'), "colours in a log file");
    mounted.unmount();
}
