//! Calls that few programs make and some rely on: files without a name, birth times,
//! project and extent flags, times at the edge.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, linkat, openat, statx};
use rustix::io::Errno;

use super::{Pair, ROUTES, route};
use crate::harness::Setup;
use crate::need;
use crate::run::until;

fn nameless(dir: &Path, flags: OFlags) -> Result<File, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | flags;
    openat(CWD, dir, flags, Mode::from_raw_mode(0o640)).map(File::from)
}

fn name(file: &File, to: &Path) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, link, CWD, to, AtFlags::SYMLINK_FOLLOW)
}

fn seen(file: impl AsFd) -> (u32, u64, u16, u32) {
    let s = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).expect("statx");
    (s.stx_nlink, s.stx_size, s.stx_mode, s.stx_uid)
}

fn names(dir: &Path) -> Vec<String> {
    let all = fs::read_dir(dir).expect("readdir");
    let mut all: Vec<String> = all
        .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    all.sort();
    all
}

/// A file without a name is written, read and measured as any other, shows nowhere, is
/// gone when it is closed, and can be given a name unless that was ruled out.
#[test]
fn files_without_a_name() {
    need!();
    for setup in [
        route(ROUTES[0]),
        route(ROUTES[1]),
        Setup::mode("watch"),
        Setup::mode("strict"),
    ] {
        let pair = Pair::new(setup);
        let tell = |dir: &Path| {
            let mut said = Vec::new();
            let mut say = |what: &str, of: String| said.push(format!("{what}: {of}"));
            let sub = dir.join("d");
            fs::create_dir(&sub).expect("mkdir");
            let mut file = nameless(&sub, OFlags::empty()).expect("O_TMPFILE");
            say("new", format!("{:?} {:?}", seen(&file), names(&sub)));
            file.write_all(b"some text").expect("write");
            say("written", format!("{:?}", seen(&file)));
            file.set_len(4).expect("truncate");
            file.seek(SeekFrom::Start(0)).expect("seek");
            let mut text = String::new();
            file.read_to_string(&mut text).expect("read");
            say("text", text);
            say("named", format!("{:?}", name(&file, &sub.join("f"))));
            say("then", format!("{:?} {:?}", seen(&file), names(&sub)));
            file.write_all(b" and more").expect("write");
            say("all", fs::read_to_string(sub.join("f")).expect("read"));
            say("again", format!("{:?}", name(&file, &dir.join("g"))));
            say("taken", format!("{:?}", name(&file, &sub.join("f"))));
            say("links", format!("{:?}", seen(&file)));
            drop(file);
            let never = nameless(&sub, OFlags::EXCL).expect("O_TMPFILE");
            say("never", format!("{:?}", name(&never, &sub.join("n"))));
            drop(never);
            let many: Vec<File> = (0..50)
                .map(|_| nameless(&sub, OFlags::empty()).expect("O_TMPFILE"))
                .collect();
            say("many", format!("{:?}", names(&sub)));
            drop(many);
            say("end", format!("{:?} {:?}", names(&sub), names(dir)));
            let refused = |dir: &Path| nameless(dir, OFlags::empty()).map(|_| ());
            say("in a file", format!("{:?}", refused(&sub.join("f"))));
            say("nowhere", format!("{:?}", refused(&sub.join("absent"))));
            said
        };
        let plain = tell(&pair.plain);
        assert_eq!(plain, tell(pair.mounted.path()));
        let below = |at: &str| fs::read_to_string(pair.mounted.below(at)).expect("on the source");
        assert_eq!(
            (below("d/f"), below("g")),
            ("some and more".into(), "some and more".into())
        );
        pair.end();
    }
}

/// A file without a name belongs to whoever made it, by the rules of its directory.
#[test]
fn files_without_a_name_belong_to_their_makers() {
    need!(Root, Program("setpriv"));
    let pair = Pair::new(route("auto"));
    pair.same_ok(
        r#"
        mkdir d; chown 1:7 d; chmod 2777 d
        setpriv --reuid=1234 --regid=1234 --groups=1234,55 /usr/bin/python3 -S -c '
import os
os.umask(0o027)
fd = os.open("d", os.O_TMPFILE | os.O_RDWR, 0o777)
s = os.fstat(fd)
print(oct(s.st_mode), s.st_uid, s.st_gid, s.st_nlink)
os.link("/proc/self/fd/%d" % fd, "d/f", follow_symlinks=True)
'
        stat -c "%a %u %g %h" d/f
        mkdir closed; chmod 700 closed
        setpriv --reuid=1234 --regid=1234 --clear-groups /usr/bin/python3 -S -c '
import os
try: os.open("closed", os.O_TMPFILE | os.O_RDWR)
except OSError as e: print(e.errno)
'
        "#,
    );
    pair.end();
}

/// The birth time is the source's, for all kinds, and asking for it again costs nothing.
#[test]
fn birth_times_are_the_sources() {
    need!(Root);
    let pair = Pair::new(Setup::mode("watch"));
    pair.same_ok("echo x > f; mkdir d; ln -s f l; mkfifo p; mknod c c 1 3");
    let born = |p: &Path| {
        let s = statx(CWD, p, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::ALL).expect("statx");
        let has = s.stx_mask & StatxFlags::BTIME.bits() != 0;
        let device = (s.stx_rdev_major, s.stx_rdev_minor);
        has.then_some((s.stx_btime.tv_sec, s.stx_btime.tv_nsec, device))
    };
    let root = pair.mounted.path().to_owned();
    for at in ["f", "d", "l", "p", "c", "."] {
        let there = born(&pair.mounted.below(at));
        assert!(there.is_some(), "{at}: the source has birth times");
        assert_eq!(born(&root.join(at)), there, "{at}");
    }
    let asked = |work: &dyn Fn()| {
        let before = pair.mounted.stats().requests();
        work();
        let spent = pair.mounted.stats().requests().since(&before);
        spent.of("STATX") + spent.of("GETATTR")
    };
    // Until the news of what the test itself did has come; to read the counters asks too.
    let quiet = until(Duration::from_secs(20), || {
        let all = || {
            for at in ["f", "d", "l", "p", "c", "."] {
                born(&root.join(at));
            }
        };
        (asked(&all) == asked(&|| ())).then_some(())
    });
    assert!(quiet.is_some(), "it is asked for again and again");
    pair.end();
}

/// Project, extent size and flags of FS_IOC_FSGETXATTR are the source's, and can be set
/// where it lets them.
#[test]
fn extended_flags_are_the_sources() {
    need!(Root, Program("lsattr"), Program("chattr"));
    for setup in [route("auto"), Setup::mode("strict")] {
        let pair = Pair::new(setup);
        pair.same_ok(
            r#"
            ask() { /usr/bin/python3 -S -c '
import fcntl, os, struct, sys
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    got = fcntl.ioctl(fd, 0x801c581f, bytes(28))
    flags, size, extents, project, cow = struct.unpack("5I8x", got)
    print(path, hex(flags & 0xffff), size, project, cow)
    try: fcntl.ioctl(fd, 0x401c5820, struct.pack("5I8x", flags | 8, size, extents, project, cow))
    except OSError as e: print("refused", e.errno)
    got = fcntl.ioctl(fd, 0x801c581f, bytes(28))
    print(hex(struct.unpack("5I8x", got)[0] & 0xffff))
    try: fcntl.ioctl(fd, 0x401c5820, struct.pack("5I8x", flags, size, extents, project, cow))
    except OSError as e: print("refused", e.errno)
    os.close(fd)
' "$@"; }
            echo x > f; mkdir d; ask f d; ask f d
            chattr +d f; lsattr -d f | cut -d' ' -f1; chattr -d f; lsattr -d f | cut -d' ' -f1
            "#,
        );
        pair.end();
    }
}
