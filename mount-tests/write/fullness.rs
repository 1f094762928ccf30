//! A source that is full, that becomes read-only, or that has no room for more names:
//! the mount says what the source says, and nothing that was acknowledged is lost.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Pair, ROUTES, route, script_in};
use crate::harness::{Mounted, Place, Setup};
use crate::need;
use crate::run::{command, run, run_within};

/// A small ext4 of its own.
struct Small {
    at: PathBuf,
}

impl Small {
    /// Makes and mounts one of `megabytes` in a directory of `place`.
    fn new(place: &Place, name: &str, megabytes: u32) -> Self {
        let image = place.path().join(format!("{name}.img"));
        let at = place.dir(name);
        let size = format!("{megabytes}M");
        run(command(["truncate", "-s", &size]).arg(&image)).clean();
        let make = [
            "mkfs.ext4",
            "-q",
            "-m",
            "0",
            "-N",
            "400",
            "-O",
            "^has_journal",
        ];
        run(command(make).arg(&image)).ok();
        run(command(["mount", "-o", "loop"]).arg(&image).arg(&at)).clean();
        Self { at }
    }

    fn remount(&self, how: &str) {
        let option = format!("remount,{how}");
        run(command(["mount", "-o", &option]).arg(&self.at)).clean();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let mut cmd = command(["umount"]);
        if let Err(why) = crate::run::try_run_within(cmd.arg(&self.at), Duration::from_secs(30)) {
            eprintln!("{why}");
        }
    }
}

/// Two small filesystems alike, one of them mirrored; the place of both goes last.
fn smalls(setup: Setup) -> (Small, Small, Place, Mounted) {
    let place = Place::new();
    let plain = Small::new(&place, "plain-fs", 16);
    let source = Small::new(&place, "source-fs", 16);
    let mounted = setup.arg("-o").arg("suid,dev").source(&source.at).mount();
    (plain, source, place, mounted)
}

#[track_caller]
fn same(plain: &Path, mount: &Path, script: &str) -> String {
    let run = |dir: &Path| {
        let done = run_within(&mut script_in(dir, script), Duration::from_secs(100));
        format!("{}\n{}{}", done.status, done.out(), done.err())
    };
    let (plain, mount) = (run(plain), run(mount));
    assert_eq!(plain, mount, "{script}");
    plain
}

/// ENOSPC comes from the call that meets it, for data, for names and for inodes; what
/// was written and synchronised before is there; and when there is room again work goes
/// on.
#[test]
fn full_source() {
    need!(Root, Program("mkfs.ext4"));
    for passthrough in ROUTES {
        let (plain, source, place, mounted) = smalls(route(passthrough));
        let said = same(
            &plain.at,
            mounted.path(),
            r#"
            mkdir d; echo kept > d/kept; sync -f d/kept
            # A block of names beyond those that are needed, as no room is left for one later.
            for i in $(seq 90); do ln d/kept long-name-that-takes-some-room-in-a-directory-$i; done; rm long-name-*
            /usr/bin/python3 - <<'END'
import errno, os
def until_full(name, flags=0):
    fd = os.open(name, os.O_CREAT | os.O_WRONLY | flags, 0o644)
    done = 0
    while True:
        try: done += os.write(fd, b"x" * 65536)
        except OSError as e: full = e; break
    try: os.fsync(fd); synced = "ok"
    except OSError as f: synced = errno.errorcode[f.errno]
    size = os.fstat(fd).st_size
    os.close(fd)
    print(name, errno.errorcode[full.errno], synced, size == done, os.path.getsize(name) == done)
    return done
n = until_full("big")
print("much", n > 4 << 20)
for what in [lambda: os.posix_fallocate(os.open("more", os.O_CREAT | os.O_RDWR), 0, 8 << 20),
             lambda: os.setxattr("d/kept", "user.large", b"x" * 900),
             lambda: os.write(os.open("more", os.O_WRONLY | os.O_SYNC), b"y" * 65536)]:
    try: what(); print("done")
    except OSError as e: print(errno.errorcode[e.errno])
os.link("d/kept", "hard"); os.rename("hard", "renamed")
os.unlink("big")
os.mkdir("i")
made = 0
try:
    while True: os.close(os.open("i/%d" % made, os.O_CREAT | os.O_WRONLY)); made += 1
except OSError as e: print("inodes", errno.errorcode[e.errno], made > 20)
for what in [lambda: os.mkdir("d2"), lambda: os.symlink("x" * 200, "l2"), lambda: os.mknod("n2")]:
    try: what(); print("done")
    except OSError as e: print(errno.errorcode[e.errno])
os.link("d/kept", "hard"); os.unlink("hard")
for i in range(made): os.unlink("i/%d" % i)
with open("after", "w") as f: f.write("z" * (1 << 20)); f.flush(); os.fsync(f.fileno())
print(os.path.getsize("after"), open("d/kept").read(), open("after").read() == "z" * (1 << 20))
END
            cat renamed; rm -f more; ls
            "#,
        );
        assert!(
            said.contains("ENOSPC") && said.contains("inodes ENOSPC True"),
            "{said}"
        );
        mounted.unmount();
        drop((plain, source, place));
    }
}

/// The source becomes read-only while files are open: every change is EROFS as it is
/// there, what was acknowledged is kept, and when it is writable again work goes on.
#[test]
fn source_becomes_read_only() {
    need!(Root, Program("mkfs.ext4"));
    for setup in [route("auto"), route("off"), Setup::mode("strict")] {
        let (plain, source, place, mounted) = smalls(setup);
        let script =
            "mkdir d; for i in 1 2 3; do echo $i > d/f$i; done; sync -f d; ls -l d | wc -l";
        same(&plain.at, mounted.path(), script);
        for small in [&plain, &source] {
            small.remount("ro");
        }
        let refused = same(
            &plain.at,
            mounted.path(),
            r#"
            for c in 'echo x > d/f1' 'echo x >> d/f1' ': > new' 'mkdir new' 'rm -f d/f1' 'rmdir d' 'mv d/f1 d/x' \
                'ln d/f1 d/x' 'ln -s a b' 'mkfifo p' 'chmod 600 d/f1' 'chown 1 d/f1' 'touch d/f1' \
                'touch -d @5 d/f1' 'truncate -s 1 d/f1' 'setfattr -n user.a -v b d/f1' 'touch nowhere/f' \
                'rm d/none' 'mkdir d' 'ln d/f1 d/f2' 'cat d/f1' 'ls d'; do
                echo "$c"; bash -c "$c" 2>&1; echo $?
            done
            "#,
        );
        assert!(
            refused.matches("Read-only file system").count() > 12,
            "{refused}"
        );
        for small in [&plain, &source] {
            small.remount("rw");
        }
        let script =
            "cat d/f1 d/f2 d/f3; echo more >> d/f1; mv d/f2 d/moved; mkdir new; cat d/*; ls";
        let said = same(&plain.at, mounted.path(), script);
        assert!(said.contains("1\n2\n3\n1\nmore\n"), "{said}");
        mounted.unmount();
        drop((plain, source, place));
    }
}

/// Renames and links between the filesystems below one source are EXDEV, and `mv` copes.
#[test]
fn filesystems_below_the_source() {
    need!(Root, Program("mkfs.ext4"));
    // Left last: it holds what is mounted below the source.
    let place = Place::new();
    let source = place.dir("source");
    let pair = Pair::new(Setup::mode("ttl").source(&source));
    let mut smalls = Vec::new();
    for (i, dir) in [&pair.plain, &source].iter().enumerate() {
        let small = Small::new(&place, &format!("fs-{i}"), 8);
        std::fs::create_dir(dir.join("sub")).expect("mkdir");
        let bound = crate::observe::Aside::bind(&small.at, &dir.join("sub"));
        smalls.push((bound, small));
    }
    let done = pair.same_ok(
        r#"
        echo text > f; echo below > sub/g; mkdir d sub/e
        /usr/bin/python3 - <<'END'
import errno, os
for what in [lambda: os.rename("f", "sub/f"), lambda: os.link("f", "sub/f"), lambda: os.rename("sub/g", "g"),
             lambda: os.link("sub/g", "g"), lambda: os.rename("d", "sub/d"), lambda: os.rmdir("sub"),
             lambda: os.rename("sub", "other"), lambda: os.unlink("sub")]:
    try: what(); print("done")
    except OSError as e: print(errno.errorcode[e.errno])
END
        mv f sub/f; mv sub/g g; mv d sub/; cat sub/f g; ls sub | grep -v lost; rm -r sub/e sub/d; df --output=iavail sub
        "#,
    );
    assert!(done.out().contains("EXDEV"), "{}", done.out());
    // The plain directory lies in the mount's place.
    smalls.remove(0);
    pair.end();
    drop((smalls, place));
}

/// A mount with `-o ro` refuses every change with EROFS, whoever asks; the source stays
/// as it is.
#[test]
fn mounted_read_only() {
    need!(Root);
    for option in ["ro", "coherence=frozen"] {
        let place = Place::new();
        let source = place.dir("source");
        std::fs::write(source.join("f"), "text").expect("write");
        std::fs::create_dir(source.join("d")).expect("mkdir");
        let mounted = Setup::new().arg("-o").arg(option).mount_in(place);
        let script = r#"
import errno, os
def to(what):
    try: what(); return "done"
    except OSError as e: return errno.errorcode[e.errno]
w = os.O_WRONLY
for what in [lambda: os.open("f", w), lambda: os.open("f", os.O_RDWR), lambda: os.open("n", os.O_CREAT | w),
             lambda: os.open("f", os.O_RDONLY | os.O_TRUNC), lambda: os.mkdir("n"), lambda: os.rmdir("d"),
             lambda: os.unlink("f"), lambda: os.rename("f", "n"), lambda: os.link("f", "n"),
             lambda: os.symlink("f", "n"), lambda: os.mknod("n"), lambda: os.mkfifo("n"), lambda: os.chmod("f", 0),
             lambda: os.chown("f", 1, 1), lambda: os.utime("f"), lambda: os.truncate("f", 0),
             lambda: os.setxattr("f", "user.x", b"1"), lambda: os.removexattr("f", "user.x")]:
    print(to(what))
"#;
        let mut cmd = command(["/usr/bin/python3", "-c", script]);
        let said = run(cmd.current_dir(mounted.path())).clean().out();
        let wrong: Vec<_> = said
            .lines()
            .enumerate()
            .filter(|(_, l)| *l != "EROFS")
            .collect();
        assert!(
            wrong.is_empty() && said.lines().count() == 18,
            "{option}: {wrong:?}"
        );
        assert_eq!(
            std::fs::read_dir(mounted.source()).expect("list").count(),
            2
        );
        mounted.unmount();
    }
}
