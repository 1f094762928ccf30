//! Numbers: an object is one object whatever its names, two objects never one, and
//! both over filesystems mounted below the source and over remounts.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, fstat, statat};

use crate::harness::{MODES, Mounted, Place, Setup};
use crate::need;
use crate::observe::Aside;
use crate::run::{command, run, until};
use crate::tree::open_dir;

/// Path to (device, number) for all names below.
fn numbers(dir: &Path) -> BTreeMap<String, (u64, u64)> {
    let words = ["find", ".", "-printf", "%D %i %P\\n"];
    let text = run(command(words).current_dir(dir)).clean().out();
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let mut number = || words.next().and_then(|w| w.parse().ok()).expect("a number");
        let ids = (number(), number());
        all.insert(words.next().expect("a path").to_owned(), ids);
    }
    all
}

/// Two names are one object through the mount if and only if they are on the source.
#[track_caller]
fn same_objects(source: &Path, mount: &Path) {
    let (below, above) = (numbers(source), numbers(mount));
    let names: Vec<_> = below.keys().collect();
    assert_eq!(names, above.keys().collect::<Vec<_>>());
    type Named<'a> = ((u64, u64), &'a str);
    let mut pairs: HashMap<(u64, u64), Named<'_>> = HashMap::new();
    let mut back: HashMap<(u64, u64), Named<'_>> = HashMap::new();
    for (name, ids) in &below {
        let through = above[name];
        let (seen, other) = *pairs.entry(*ids).or_insert((through, name));
        assert_eq!(
            seen, through,
            "{name} and {other} are one object, but not through the mount"
        );
        let (seen, other) = *back.entry(through).or_insert((*ids, name));
        assert_eq!(
            seen, *ids,
            "{name} and {other} are one object through the mount only"
        );
    }
}

/// A source with filesystems mounted in it: tmpfs hands out the same numbers in each.
struct Mixed {
    mounted: Option<Mounted>,
    _submounts: Vec<Aside>,
    source: std::path::PathBuf,
}

impl Mixed {
    fn build(setup: impl FnOnce(&Path) -> Mounted) -> Self {
        let place = Place::new();
        let source = place.dir("source");
        fs::create_dir_all(source.join("plain/sub")).expect("mkdir");
        fs::write(source.join("plain/f"), "x").expect("write");
        let mut submounts = Vec::new();
        for name in ["a", "b", "plain/c"] {
            let dir = source.join(name);
            submounts.push(Aside::mount("tmpfs", &dir));
            fill(&dir);
        }
        let mounted = setup(&source);
        // The submounts lie in this place, which outlives them here.
        std::mem::forget(place);
        Self {
            mounted: Some(mounted),
            _submounts: submounts,
            source,
        }
    }

    fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().expect("it is mounted")
    }
}

fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("d/e")).expect("mkdir");
    for name in ["one", "d/two", "d/e/three"] {
        fs::write(dir.join(name), name).expect("write");
    }
    fs::hard_link(dir.join("one"), dir.join("d/one-too")).expect("link");
    symlink("one", dir.join("link")).expect("symlink");
}

impl Drop for Mixed {
    fn drop(&mut self) {
        drop(self.mounted.take());
        self._submounts.clear();
        let place = self.source.parent().expect("it has a place").to_owned();
        let mut rm = command(["rm", "-rf", "--one-file-system", "--"]);
        if crate::observe::mounts_below(&place).is_empty() {
            run(rm.arg(&place)).clean();
        }
    }
}

/// Filesystems below the source that hand out the same numbers: no two files become
/// one, hard links stay what they are, and find sees no loop.
#[test]
fn submounts_do_not_collide() {
    need!(Root);
    for mode in MODES {
        let mixed = Mixed::build(|source| Setup::mode(mode).source(source).mount());
        let mount = mixed.mounted().path();
        same_objects(&mixed.source, mount);
        // find says nothing of loops; tar makes hard links of one file's names only.
        run(command(["find", ".", "-follow"]).current_dir(mount)).ok();
        let script = "tar c . | tar tv | grep -c 'link to'";
        let links = run(crate::run::shell::<&str>(script, &[]).current_dir(mount)).out();
        assert_eq!(links.trim(), "3", "{mode}: hard links in the archive");
        for name in ["one", "d/two", "d/e/three"] {
            for dir in ["a", "b", "plain/c"] {
                let path = mount.join(dir).join(name);
                assert_eq!(fs::read_to_string(path).expect("read"), name);
            }
        }
        drop(mixed);
    }
}

/// Numbers do not depend on the order in which names are met, nor change with a
/// remount: backup programs read no file anew.
#[test]
fn numbers_survive_order_and_remount() {
    need!(Root);
    let mixed = Mixed::build(|source| Setup::mode("ttl").source(source).mount());
    let first: BTreeMap<_, _> = numbers(mixed.mounted().path()).into_iter().collect();
    let strip = |all: &BTreeMap<String, (u64, u64)>| -> BTreeMap<String, u64> {
        all.iter()
            .map(|(name, (_, ino))| (name.clone(), *ino))
            .collect()
    };
    let second = Setup::mode("ttl").source(&mixed.source).mount();
    // The other way round, name by name.
    for name in first.keys().rev() {
        second
            .at(name)
            .symlink_metadata()
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    assert_eq!(strip(&first), strip(&numbers(second.path())));
    second.unmount();
    drop(mixed);
}

/// Many filesystems mounted and unmounted below, one after the other at one place and
/// many at once: each shows what it holds, under numbers of its own.
#[test]
fn many_submounts() {
    need!(Root);
    let place = Place::new();
    let source = place.dir("source");
    let mounted = Setup::mode("strict").mount_in(place);
    {
        let mut submounts = Vec::new();
        for i in 0..60 {
            let dir = source.join(format!("m-{i}"));
            submounts.push(Aside::mount("tmpfs", &dir));
            fs::write(dir.join("f"), i.to_string()).expect("write");
        }
        for i in 0..60 {
            let text = fs::read_to_string(mounted.at(format!("m-{i}/f")));
            assert_eq!(text.expect("read"), i.to_string());
        }
        same_objects(&source, mounted.path());
    }
    for i in 0..60 {
        let again = Aside::mount("tmpfs", &source.join("again"));
        fs::write(source.join("again/f"), format!("{i} again")).expect("write");
        let text = fs::read_to_string(mounted.at("again/f"));
        assert_eq!(
            text.unwrap_or_else(|e| panic!("round {i}: {e}")),
            format!("{i} again")
        );
        drop(again);
    }
    mounted.unmount();
}

/// A filesystem mounted below at a name that was absent or empty shows up; when it is
/// unmounted, what it covered is back.
#[test]
fn mounted_below_meanwhile() {
    need!(Root);
    for (mode, bound) in [("strict", Duration::ZERO), ("ttl", Duration::from_secs(3))] {
        let mounted = Setup::mode(mode).arg("--ttl=200ms").mount();
        fs::create_dir(mounted.below("snap")).expect("mkdir");
        fs::write(mounted.below("snap/covered"), "old").expect("write");
        mounted
            .at("snap/f")
            .symlink_metadata()
            .expect_err("not there yet");
        assert_eq!(fs::read_dir(mounted.at("snap")).expect("list").count(), 1);
        let sub = Aside::mount("tmpfs", &mounted.below("snap"));
        fs::write(mounted.below("snap/f"), "new").expect("write");
        let shown = until(bound, || fs::read_to_string(mounted.at("snap/f")).ok());
        assert_eq!(shown.as_deref(), Some("new"), "{mode}");
        assert!(
            !mounted.at("snap/covered").exists(),
            "{mode}: the covered name shows"
        );
        drop(sub);
        let back = until(bound, || {
            fs::read_to_string(mounted.at("snap/covered")).ok()
        });
        assert_eq!(back.as_deref(), Some("old"), "{mode}");
        mounted.unmount();
    }
}

/// One directory bound onto another, both in the source: both are shown, and walking
/// them ends.
#[test]
fn a_directory_bound_onto_another() {
    need!(Root);
    for mode in MODES {
        let place = Place::new();
        let source = place.dir("source");
        fs::create_dir_all(source.join("a/b")).expect("mkdir");
        fs::create_dir(source.join("b")).expect("mkdir");
        fs::write(source.join("a/b/f"), "x").expect("write");
        let mounted = Setup::mode(mode).source(&source).mount();
        let bound = Aside::bind(&source.join("a/b"), &source.join("b"));
        let names = || {
            let list = run(command(["find", ".", "-printf", "%P\\n"]).current_dir(mounted.path()));
            let mut names: Vec<String> = list.clean().out().lines().map(str::to_owned).collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["", "a", "a/b", "a/b/f", "b", "b/f"], "{mode}");
        assert_eq!(
            names(),
            ["", "a", "a/b", "a/b/f", "b", "b/f"],
            "{mode}, warm"
        );
        drop(bound);
        mounted.unmount();
        drop(place);
    }
}

/// A descriptor that was opened before its file was removed below never shows the
/// file that took its number.
#[test]
fn reused_numbers() {
    need!();
    for mode in ["strict", "ttl"] {
        let mounted = Setup::mode(mode).arg("--ttl=50ms").mount();
        for i in 0..50 {
            fs::write(mounted.below(format!("old-{i}")), "o".repeat(100 + i)).expect("write");
        }
        let base = open_dir(mounted.path());
        let held: Vec<_> = (0..50)
            .map(|i| {
                let flags = OFlags::PATH | OFlags::CLOEXEC;
                rustix::fs::openat(&base, format!("old-{i}"), flags, Mode::empty()).expect("open")
            })
            .collect();
        for i in 0..50 {
            fs::remove_file(mounted.below(format!("old-{i}"))).expect("unlink");
        }
        for i in 0..50 {
            fs::write(mounted.below(format!("new-{i}")), "n".repeat(7)).expect("write");
        }
        for i in 0..50 {
            let stat = until(Duration::from_secs(3), || {
                statat(&base, format!("new-{i}"), AtFlags::empty()).ok()
            });
            assert_eq!(stat.expect("the new file").st_size, 7, "{mode}: new-{i}");
            let text = fs::read_to_string(mounted.at(format!("new-{i}"))).expect("read");
            assert_eq!(text, "n".repeat(7), "{mode}: new-{i}");
        }
        for (i, fd) in held.iter().enumerate() {
            if let Ok(stat) = fstat(fd) {
                assert_eq!(
                    stat.st_size,
                    100 + i as i64,
                    "{mode}: another file under old-{i}"
                );
            }
        }
        drop((held, base));
        mounted.unmount();
    }
}

/// A file removed below and another made that gets its number: the old name is gone,
/// the new one is a new file, with its own text.
#[test]
fn a_recycled_number_is_a_new_file() {
    need!();
    for (mode, bound) in [("strict", Duration::ZERO), ("ttl", Duration::from_secs(3))] {
        let mounted = Setup::mode(mode).arg("--ttl=100ms").mount();
        let mut recycled = 0;
        for i in 0..20 {
            let (a, b) = (format!("a-{i}"), format!("b-{i}"));
            fs::write(mounted.below(&a), "of a").expect("write");
            let text = until(bound, || fs::read_to_string(mounted.at(&a)).ok());
            assert_eq!(text.as_deref(), Some("of a"));
            let old = mounted.below(&a).metadata().expect("stat").ino();
            fs::remove_file(mounted.below(&a)).expect("unlink");
            fs::write(mounted.below(&b), "b has another").expect("write");
            recycled += u32::from(mounted.below(&b).metadata().expect("stat").ino() == old);
            let seen = until(bound, || {
                let gone = mounted.at(&a).symlink_metadata().is_err();
                let text = fs::read_to_string(mounted.at(&b)).ok();
                let size = mounted.at(&b).metadata().ok().map(|m| m.len());
                (gone && text.as_deref() == Some("b has another") && size == Some(13)).then_some(())
            });
            assert!(seen.is_some(), "{mode}: round {i}");
        }
        // Where the filesystem recycles at once, as ext4 does, this was the case in hand.
        let _ = recycled;
        mounted.unmount();
    }
}

/// The size of a symlink is the length of its target, however its attributes are
/// learnt: by lookup, with a listing, by asking again.
#[test]
fn symlink_sizes() {
    need!();
    for (how, plus) in [
        ("lookup", "never"),
        ("listing", "always"),
        ("either", "auto"),
    ] {
        for mode in MODES {
            let setup = Setup::mode(mode).arg(format!("--readdirplus={plus}"));
            let mounted = setup.mount();
            for length in [1, 15, 59, 60, 255, 4095] {
                symlink("x".repeat(length), mounted.below(format!("l-{length}"))).expect("symlink");
            }
            if plus != "never" {
                run(&mut mounted.inside(&["ls", "-l"])).clean();
            }
            for length in [1, 15, 59, 60, 255, 4095] {
                for _ in 0..2 {
                    let stat = mounted
                        .at(format!("l-{length}"))
                        .symlink_metadata()
                        .expect("lstat");
                    assert_eq!(stat.len(), length as u64, "{mode}, by {how}");
                }
                let target = fs::read_link(mounted.at(format!("l-{length}"))).expect("readlink");
                assert_eq!(target.as_os_str().len(), length);
            }
            mounted.unmount();
        }
    }
}

/// `pwd` in a new shell finds its way up, a hundred times, with no timeout to lean on.
#[test]
fn getcwd() {
    need!();
    for mode in MODES {
        let mounted = Setup::mode(mode).mount();
        fs::create_dir_all(mounted.below("d/e/f")).expect("mkdir");
        let script = "cd d/e/f; for i in $(seq 100); do env -u PWD /bin/pwd || exit 1; done";
        let text = run(&mut mounted.inside(&["bash", "-c", script]))
            .clean()
            .out();
        let wanted = mounted.at("d/e/f");
        assert_eq!(text.lines().count(), 100);
        assert!(
            text.lines().all(|l| Path::new(l) == wanted),
            "{mode}: {text}"
        );
        mounted.unmount();
    }
}

/// An index that git made on the source is true through the mount: no file looks
/// changed, not even before git refreshes it.
#[test]
fn git_sees_nothing_changed() {
    need!(Program("git"));
    let place = Place::new();
    let source = place.dir("source");
    let git = "export GIT_OPTIONAL_LOCKS=0 GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory \
               GIT_CONFIG_VALUE_0='*'; ";
    let script = format!(
        "{git} git init -q . && mkdir -p a/b && for i in $(seq 200); do echo $i > a/b/$i; done && \
         ln -s a/b/1 0123456789abcde && chmod +x a/b/7 && git add -A && \
         git -c user.name=t -c user.email=t@example.org commit -qm one"
    );
    run(crate::run::shell::<&str>(&script, &[]).current_dir(&source)).clean();
    for mode in MODES {
        let mounted = Setup::mode(mode).source(&source).mount();
        for _ in 0..2 {
            let script = format!("{git} git diff-files --quiet && git status --porcelain");
            let done = run(&mut mounted.inside(&["bash", "-c", &script])).clean();
            assert!(done.stdout.is_empty(), "{mode}: {}", done.out());
        }
        mounted.unmount();
    }
}

/// perl's File::Find, which counts on link counts of directories, finds what find
/// -noleaf finds, after directories came and went below.
#[test]
fn link_counts_lead_everywhere() {
    need!(Program("perl"));
    let mounted = Setup::mode("strict").mount();
    let both = |step: &str| {
        let script =
            "perl -MFile::Find -e 'find(sub{print \"$File::Find::name\\n\"},\".\")' | sort";
        let perl = run(&mut mounted.inside(&["bash", "-c", script]))
            .clean()
            .out();
        let find = run(&mut mounted.inside(&["bash", "-c", "find . -noleaf | sort"]))
            .clean()
            .out();
        assert_eq!(perl, find, "{step}");
        perl.lines().count()
    };
    fs::create_dir_all(mounted.below("d/one/two")).expect("mkdir");
    assert_eq!(both("at first"), 4);
    for i in 0..5 {
        fs::create_dir_all(mounted.below(format!("d/more-{i}/deep"))).expect("mkdir");
        fs::write(mounted.below(format!("d/more-{i}/deep/f")), "").expect("write");
    }
    assert_eq!(both("after mkdir below"), 4 + 15);
    fs::remove_dir_all(mounted.below("d/one")).expect("rm -r");
    assert_eq!(both("after rmdir below"), 2 + 15);
    mounted.unmount();
}
