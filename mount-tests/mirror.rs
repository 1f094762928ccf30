//! The mount shows what the source holds: the same output of the same programs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

use crate::harness::{MODES, Mounted, Setup};
use crate::need;
use crate::run::{self, command, difference, run, sorted_lines};
use crate::tree;

/// A program and how its outputs are compared.
struct Look {
    words: &'static [&'static str],
    /// Ends a line of output, where lines are sorted before comparing.
    sort: Option<u8>,
}

/// Attributes of every name, `find`'s own order aside. NUL-ended, for names may
/// hold newlines.
const FIND: Look = Look {
    words: &[
        "find",
        ".",
        "-xdev",
        "-printf",
        "%i %y %m %n %U %G %s %b %T@ %C@ %l %P\\0",
    ],
    sort: Some(0),
};
/// Without the wide directory: ls asks for two extended attributes per name.
const LS: Look = Look {
    words: &["ls", "-lRn", "--time-style=full-iso", "--ignore=wide", "."],
    sort: None,
};
/// As [`TAR`], without the wide directory, whose files are empty.
const TAR_DATA: Look = Look {
    words: &[
        "bash",
        "-c",
        "set -o pipefail; tar c --exclude=./wide --one-file-system . | sha256sum",
    ],
    sort: None,
};
const DU: Look = Look {
    words: &["du", "-s", "--inodes", "."],
    sort: None,
};
const TAR: Look = Look {
    words: &[
        "bash",
        "-c",
        "set -o pipefail; tar c --one-file-system . | sha256sum",
    ],
    sort: None,
};

fn ask(mut cmd: Command, look: &Look) -> (Option<i32>, Vec<u8>, Vec<u8>) {
    let mut done = run(&mut cmd);
    if let Some(sep) = look.sort {
        done.stdout = sorted_lines(&done.stdout, sep).join(&sep);
    }
    (done.status.code(), done.stdout, done.stderr)
}

type Answer = Arc<(Option<i32>, Vec<u8>, Vec<u8>)>;

/// What the source itself answers; asked once per test run, since nobody changes
/// these sources.
fn expected(source: &Path, look: &Look) -> Answer {
    type Seen = Mutex<HashMap<(PathBuf, Vec<&'static str>), Arc<OnceLock<Answer>>>>;
    static SEEN: OnceLock<Seen> = OnceLock::new();
    let cell = {
        let mut seen = SEEN
            .get_or_init(Seen::default)
            .lock()
            .unwrap_or_else(|e| e.into_inner());
        let key = (source.to_owned(), look.words.to_vec());
        Arc::clone(seen.entry(key).or_default())
    };
    let answer = cell.get_or_init(|| {
        let mut cmd = command(look.words);
        cmd.current_dir(source);
        Arc::new(ask(cmd, look))
    });
    Arc::clone(answer)
}

#[track_caller]
fn same(mounted: &Mounted, look: &Look) {
    let expected = expected(mounted.source(), look);
    compare(look, &expected, &ask(mounted.inside(look.words), look));
}

#[track_caller]
fn compare(
    look: &Look,
    source: &(Option<i32>, Vec<u8>, Vec<u8>),
    mount: &(Option<i32>, Vec<u8>, Vec<u8>),
) {
    let what = look.words.join(" ");
    assert_eq!(source.0, mount.0, "{what}: exit codes of source and mount");
    let sep = look.sort.unwrap_or(b'\n');
    for (kind, source, mount) in [
        ("output", &source.1, &mount.1),
        ("errors", &source.2, &mount.2),
    ] {
        if source == mount {
            continue;
        }
        let (source, mount) = (sorted_lines(source, sep), sorted_lines(mount, sep));
        let why = difference(&source, &mount).unwrap_or_else(|| "another order".into());
        panic!("{what}: {kind} of source and mount: {why}");
    }
}

/// rsync with all attributes finds nothing to do.
#[track_caller]
fn rsync_idle(mounted: &Mounted) {
    let slash = |p: &Path| {
        let mut p = p.as_os_str().to_owned();
        p.push("/");
        p
    };
    let (source, mount) = (mounted.source(), mounted.path());
    // Both ways, so that an attribute that one side does not show at all is seen; back
    // only the names that have attributes worth it. rsync itself cannot go where paths
    // are too long.
    for (from, to, without) in [(source, mount, "/wide/"), (mount, source, "/lib/")] {
        let words = [
            "rsync",
            "-aHAXnx",
            "--delete",
            "--itemize-changes",
            "--exclude=/deep/",
            "--exclude=/wide/",
        ];
        let mut cmd = command(words);
        cmd.arg(format!("--exclude={without}"))
            .args([slash(from), slash(to)]);
        let done = run(&mut cmd).clean();
        assert!(done.stdout.is_empty(), "rsync would change: {}", done.out());
    }
}

/// The two archives are the same to the byte, in the same order.
#[track_caller]
fn same_archive(mounted: &Mounted) {
    let script = "set -o pipefail; cmp <(tar c -C \"$1\" .) <(tar c -C \"$2\" .)";
    let mut cmd = run::shell(script, &[mounted.source(), mounted.path()]);
    run::run_within(&mut cmd, std::time::Duration::from_secs(400)).clean();
}

fn nasty_in(mode: &str, foreground: bool) {
    let tree = tree::nasty();
    let mounted = Setup::mode(mode)
        .source(&tree.path())
        .foreground(foreground)
        .mount();
    for look in [&FIND, &LS, &DU, &TAR] {
        same(&mounted, look);
    }
    rsync_idle(&mounted);
    // Again from warm caches.
    same(&mounted, &FIND);
    mounted.unmount();
}

fn usr_in(mode: &str, foreground: bool) {
    let mounted = Setup::mode(mode)
        .source(Path::new("/usr"))
        .foreground(foreground)
        .mount();
    same(&mounted, &FIND);
    same(&mounted, &LS);
    same(&mounted, &DU);
    rsync_idle(&mounted);
    same(&mounted, &FIND);
    mounted.unmount();
}

/// The tree of nasty names looks the same to find, ls, du, tar and rsync; `ttl`,
/// in the background.
#[test]
fn nasty_ttl() {
    need!(Program("rsync"), Program("setfacl"));
    nasty_in("ttl", false);
}

/// The same in the foreground.
#[test]
fn nasty_ttl_foreground() {
    need!(Program("rsync"), Program("setfacl"));
    nasty_in("ttl", true);
}

/// The same in `frozen`, in the background.
#[test]
fn nasty_frozen() {
    need!(Program("rsync"), Program("setfacl"));
    nasty_in("frozen", false);
}

/// The same in `frozen`, in the foreground.
#[test]
fn nasty_frozen_foreground() {
    need!(Program("rsync"), Program("setfacl"));
    nasty_in("frozen", true);
}

/// The same in `strict`, in the background.
#[test]
fn nasty_strict() {
    need!(Program("rsync"), Program("setfacl"));
    nasty_in("strict", false);
}

/// The same in `strict`, in the foreground.
#[test]
fn nasty_strict_foreground() {
    need!(Program("rsync"), Program("setfacl"));
    nasty_in("strict", true);
}

/// All of /usr looks the same to find, ls, du and rsync; `ttl`, in the background.
#[test]
fn usr_ttl() {
    need!(Program("rsync"));
    usr_in("ttl", false);
}

/// The same in `frozen`, in the foreground.
#[test]
fn usr_frozen_foreground() {
    need!(Program("rsync"));
    usr_in("frozen", true);
}

/// The same in `strict`, in the background.
#[test]
fn usr_strict() {
    need!(Program("rsync"));
    usr_in("strict", false);
}

/// The wide directory with all its attributes, too, for ls and rsync: once, since both
/// ask for several extended attributes of each of its names.
#[test]
fn wide_attributes() {
    need!(Program("rsync"));
    let tree = tree::nasty();
    let mounted = Setup::mode("frozen").source(&tree.wide()).mount();
    same(&mounted, &LS);
    rsync_idle(&mounted);
    mounted.unmount();
}

/// Every byte of /usr reads the same: tar writes one archive from both, and says
/// nothing (a file that changes while tar reads it would be told).
#[test]
fn usr_archive() {
    need!();
    let source = Path::new("/usr");
    let mounted = Setup::new().source(source).mount();
    same_archive(&mounted);
    mounted.unmount();
}

/// Data reads the same when the kernel is not allowed to read the source's file
/// itself.
#[test]
fn data_without_passthrough() {
    need!(Program("setfacl"));
    let tree = tree::nasty();
    for mode in MODES {
        let setup = Setup::mode(mode)
            .arg("--passthrough=off")
            .source(&tree.path());
        let mounted = setup.mount();
        same(&mounted, &TAR_DATA);
        mounted.unmount();
    }
}

/// The kinds of READDIRPLUS show the same tree.
#[test]
fn readdirplus_kinds() {
    need!(Program("setfacl"));
    let tree = tree::nasty();
    for kind in ["always", "never"] {
        for mode in ["ttl", "strict"] {
            let setup = Setup::mode(mode).arg(format!("--readdirplus={kind}"));
            let mounted = setup.source(&tree.path()).mount();
            same(&mounted, &FIND);
            same(&mounted, &LS);
            mounted.unmount();
        }
    }
}

/// A user without rights mounts through fusermount3 and sees what that user sees
/// on the source, refusals included.
#[test]
fn as_a_user() {
    need!(UserMounts, Program("setfacl"), Program("setpriv"));
    let tree = tree::nasty();
    for (mode, foreground) in [("ttl", false), ("frozen", true), ("strict", false)] {
        let setup = Setup::mode(mode)
            .source(&tree.path())
            .foreground(foreground);
        let mounted = setup.unprivileged().mount();
        let line = mounted.mount_line().expect("it is mounted");
        assert!(
            line.options.contains("nosuid") && line.options.contains("nodev"),
            "{line:?}"
        );
        for look in [&FIND, &LS, &DU] {
            let mut cmd = mounted.inside(look.words);
            cmd.current_dir(mounted.source());
            let expected = ask(cmd, look);
            compare(look, &expected, &ask(entering(&mounted, look.words), look));
        }
        mounted.unmount();
    }
}

/// A command that enters a user's mount by itself: even root may not, there.
fn entering(mounted: &Mounted, words: &[&str]) -> Command {
    let mut all = vec!["bash", "-c", "cd \"$1\" && shift && exec \"$@\"", "bash"];
    let mnt = mounted.path().to_str().expect("a plain path");
    all.push(mnt);
    all.extend(words);
    let mut cmd = mounted.inside(&all);
    cmd.current_dir("/").stdin(Stdio::null());
    cmd
}

/// Others cannot enter a user's mount, not even root; with the rights of root the
/// default is that everybody can.
#[test]
fn who_may_enter() {
    need!(Root, UserMounts, Program("setpriv"));
    let users = Setup::new().unprivileged().mount();
    std::fs::read_dir(users.path()).expect_err("root must not enter a user's mount");
    users.unmount();
    let roots = Setup::new().mount();
    let path = roots.path().as_os_str().to_owned();
    run(&mut run::as_user(run::NOBODY, &[], &["ls".into(), path])).clean();
    roots.unmount();
}

/// The kinds of difference that these tests are for are seen: each tampering with
/// a copy turns the comparison red.
#[test]
fn tampering_is_seen() {
    let place = crate::harness::Place::new();
    let (a, b) = (place.dir("a"), place.dir("b"));
    for dir in [&a, &b] {
        std::fs::write(dir.join("f"), "text").expect("write");
        std::fs::hard_link(dir.join("f"), dir.join("g")).expect("link");
    }
    let look = Look {
        words: &["find", ".", "-printf", "%y %m %n %s %l %P\\0"],
        sort: Some(0),
    };
    let differs = |tamper: &str| {
        run(run::shell(tamper, &[&b]).current_dir(&b)).clean();
        let ask = |dir: &Path| {
            let mut cmd = command(look.words);
            cmd.current_dir(dir);
            ask(cmd, &look)
        };
        let (source, mount) = (ask(&a), ask(&b));
        std::panic::catch_unwind(|| compare(&look, &source, &mount)).is_err()
    };
    assert!(!differs("true"));
    assert!(differs("chmod 4755 f"));
    assert!(differs("chmod 644 f; echo more >> f"));
    assert!(differs("printf text > f; rm g"));
    assert!(differs("ln f g; ln f h"));
    assert!(differs("rm g h; ln -s f g"));
    assert!(!differs("rm g; ln f g"));
}
