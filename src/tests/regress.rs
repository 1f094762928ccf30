//! Counterexamples that the random sequences found, shrunk and by name.

use super::change::Change;
use super::kernel::{Kernel, options};
use super::truth::join;
use crate::error::Errno;
use crate::fs::Coherence;
use crate::source::fake::{Call, FakeSource, FsConfig, Point};
use crate::source::{Kind, Source};

fn mount(coherence: Coherence, config: FsConfig) -> Kernel {
    Kernel::mount(FakeSource::new(config), options(coherence))
}

impl Kernel {
    /// Time for what comes next, and its beginning.
    fn tick(&mut self, ms: u64) {
        self.advance(ms);
        self.begin();
    }

    /// A change from behind, at a time of its own.
    fn behind(&mut self, change: Change) {
        self.tick(1);
        change.to_source(&self.source).unwrap();
        self.edited();
        self.tick(1);
    }

    fn is_there(&mut self, path: &[u8]) -> bool {
        self.walk(path).unwrap().is_some()
    }
}

fn make(kind: Kind, path: &[u8]) -> Change {
    Change::Make(kind, path.to_vec(), Vec::new())
}

fn rename(from: &[u8], to: &[u8]) -> Change {
    Change::Rename(from.to_vec(), to.to_vec())
}

fn remove_all(path: &[u8]) -> Change {
    Change::RemoveAll(path.to_vec())
}

/// An absence found before a directory had a stamp was proved by the first stamp, taken
/// after the name had come to be: absent for ever.
#[test]
fn r2_the_first_stamp_proves_nothing_that_was_cached_before() {
    let mut kernel = mount(Coherence::Ttl, FsConfig::default());
    kernel.tick(1);
    assert!(!kernel.is_there(b"a"));
    kernel.behind(make(Kind::Regular, b"a"));
    kernel.tick(100);
    assert!(!kernel.is_there(b"b"), "takes the stamp");
    assert!(kernel.is_there(b"a"));
    let mut kernel = mount(Coherence::Ttl, FsConfig::default());
    kernel.tick(1);
    assert!(!kernel.is_there(b"a"));
    kernel.behind(make(Kind::Regular, b"a"));
    kernel.list_path(b"", 64, false).unwrap();
    assert!(kernel.is_there(b"a"), "a listing takes the stamp too");
}

/// A directory renamed beneath had two names cached; only the stale one was tried.
#[test]
fn r2_a_stale_name_of_a_directory_does_not_hide_the_good_one() {
    let mut kernel = mount(Coherence::Strict, FsConfig::default());
    kernel.behind(make(Kind::Directory, b"a"));
    kernel.behind(make(Kind::Directory, b"b"));
    kernel.behind(make(Kind::Directory, b"a/x"));
    assert!(kernel.is_there(b"a/x"));
    kernel.behind(rename(b"a/x", b"b/x"));
    kernel.behind(remove_all(b"a"));
    kernel.fs.drop_caches();
    let moved = kernel.walk(b"b/x").unwrap().unwrap();
    kernel.list_checked(moved, 64, true).unwrap();
    kernel.unmount();
}

/// Parents seen at different times can lead round in a circle.
#[test]
fn r2_a_circle_of_stale_parents_ends() {
    let mut kernel = mount(Coherence::Ttl, FsConfig::default());
    kernel.behind(make(Kind::Directory, b"a"));
    kernel.behind(make(Kind::Directory, b"a/b"));
    let below = kernel.walk(b"a/b").unwrap().unwrap();
    kernel.list_checked(below, 64, false).unwrap();
    kernel.behind(rename(b"a/b", b"b"));
    kernel.behind(rename(b"a", b"b/a"));
    // By its descriptor `b` is read as it is, and still taken for a child of `a`.
    assert!(kernel.lookup(below, b"a").unwrap().is_some());
    kernel.fs.drop_caches();
    kernel.tick(1);
    match kernel.list_checked(below, 64, false) {
        Ok(()) | Err(Errno::STALE) => {}
        other => panic!("{other:?}"),
    }
    kernel.settle();
    kernel.begin();
    assert!(kernel.is_there(b"b/a"));
    kernel.check();
    kernel.unmount();
}

/// A cached name led to the inode whose number another object has by now: the kernel was
/// given the new nodeid with the old generation, and its FORGETs went astray.
#[test]
fn r2_a_name_whose_number_was_reused_is_a_miss() {
    let config = FsConfig {
        reuse_numbers: true,
        ..FsConfig::default()
    };
    let mut kernel = mount(Coherence::Frozen, config);
    kernel.behind(make(Kind::Regular, b"a"));
    assert!(kernel.is_there(b"a"));
    kernel.behind(remove_all(b"a"));
    kernel.behind(make(Kind::Directory, b"b"));
    assert!(kernel.is_there(b"b"));
    kernel.behind(make(Kind::Regular, b"a"));
    assert!(kernel.stat(b"a").unwrap().is_some());
    kernel.check();
    kernel.unmount();
}

/// One round of the hand left every directory above a freed name.
#[test]
fn r2_dropping_everything_drops_a_deep_tree() {
    let mut kernel = mount(Coherence::Frozen, FsConfig::default());
    let mut path = Vec::new();
    for _ in 0..20 {
        path = join(&path, b"d");
        kernel.behind(make(Kind::Directory, &path));
    }
    assert!(kernel.is_there(&path));
    kernel.unmount();
}

/// A directory found dead is ESTALE for readdir, and loses its name.
#[test]
fn r2_readdir_of_a_dead_directory_is_stale_once() {
    for coherence in [Coherence::Ttl, Coherence::Strict] {
        let mut kernel = mount(coherence, FsConfig::default());
        kernel.behind(make(Kind::Directory, b"a"));
        let dir = kernel.walk(b"a").unwrap().unwrap();
        kernel.behind(remove_all(b"a"));
        kernel.behind(make(Kind::Directory, b"a"));
        assert_eq!(kernel.list_checked(dir, 64, false), Err(Errno::STALE));
        kernel.list_path(b"a", 64, false).unwrap();
    }
}

/// What was read before a slow call ended was believed from the end of the call on.
#[test]
fn r2_an_answer_is_as_old_as_its_question() {
    let mut kernel = mount(Coherence::Ttl, FsConfig::default());
    kernel.behind(make(Kind::Regular, b"a"));
    kernel.tick(100);
    kernel.arm(0, false, Change::Chmod(b"a".to_vec(), 0o600));
    kernel.stat(b"a").unwrap();
    kernel.disarm();
    kernel.tick(100);
    kernel.arm(1, true, make(Kind::Regular, b"b"));
    assert!(!kernel.is_there(b"b"));
    kernel.disarm();
}

/// rename(2) between two names of one file does nothing: the old name stays.
#[test]
fn r3_after_a_rename_onto_its_own_link_the_old_name_is_there() {
    let mut kernel = mount(Coherence::Ttl, FsConfig::default());
    kernel.behind(make(Kind::Regular, b"a"));
    kernel.tick(100);
    assert!(!kernel.is_there(b"b"));
    kernel.behind(Change::Link(b"a".to_vec(), b"b".to_vec()));
    // The kernel takes `b` for absent still, and so sends the request.
    let caller = super::syscalls::CALLER;
    let root = kernel.root().nodeid;
    kernel
        .fs
        .rename((root, b"a"), (root, b"b"), 0, &caller)
        .unwrap();
    kernel.look();
    assert!(kernel.is_there(b"a"));
    kernel.tick(2_000);
    assert!(kernel.is_there(b"a"));
}

/// The source made the file, then could not say what it is: it is there all the same.
#[test]
fn r3_a_change_that_failed_half_way_is_seen() {
    let mut kernel = mount(Coherence::Ttl, FsConfig::default());
    kernel.tick(100);
    assert!(!kernel.is_there(b"a"));
    let before = kernel.stat(b"").unwrap().unwrap();
    kernel.source.fail_after(Call::StatFile, 0, Errno::IO);
    let caller = super::syscalls::CALLER;
    let root = kernel.root().nodeid;
    let made = kernel
        .fs
        .create(root, b"a", libc::O_RDWR as u32, 0o644, &caller);
    assert_eq!(made.err(), Some(Errno::IO));
    kernel.look();
    assert!(kernel.is_there(b"a"));
    assert_ne!(kernel.stat(b"").unwrap().unwrap(), before);
    kernel.check();
}

/// A fill whose directory was changed during the read must not be cached.
#[test]
fn r4_a_fill_that_raced_with_a_change_of_our_own_is_void() {
    let mut kernel = mount(Coherence::Frozen, FsConfig::default());
    kernel.behind(make(Kind::Regular, b"a"));
    let namei = kernel.fs.namei();
    let root = namei.dcache.inodes.root();
    let dir = namei.dir(root).unwrap();
    // What an event or a change of our own does, between the reading and the caching.
    let (changed, source) = (dir.clone(), kernel.source.clone());
    let race = move || {
        source.edit().unlink("a").unwrap();
        changed.lock().change();
    };
    kernel.source.pause(Call::StatAt, Point::Read, 0, race);
    let found = kernel.fs.lookup(1, b"a").unwrap();
    kernel.look();
    kernel.tick(1);
    let crate::fs::Lookup::Entry(entry) = found else {
        panic!("it was there when it was read")
    };
    assert!(entry.name_ttl.is_zero() && entry.attr_ttl.is_zero());
    kernel.fs.forget(entry.nodeid, 1);
    assert!(!kernel.is_there(b"a"));
    let (changed, source) = (dir.clone(), kernel.source.clone());
    let race = move || {
        source.edit().create("b", "").unwrap();
        changed.lock().change();
    };
    kernel.source.pause(Call::List, Point::Read, 1, race);
    let (_, entries) = kernel
        .list_some(kernel.root(), 0, 64, false)
        .unwrap()
        .unwrap();
    assert_eq!(entries.len(), 2, "the dots");
    assert!(dir.listing().is_none(), "void");
    kernel.look();
    kernel.tick(1);
    assert_eq!(kernel.list(kernel.root(), 64, false).unwrap().len(), 1);
    assert!(dir.listing().is_some());
}

/// A label that is not there is asked of the source once, and again after a change that was
/// told of.
#[test]
fn labels_that_are_not_there_are_asked_for_once() {
    let mut kernel = mount(Coherence::Watch, FsConfig::default());
    kernel.behind(make(Kind::Regular, b"a"));
    let known = kernel.walk(b"a").unwrap().unwrap();
    let calls = |kernel: &Kernel| -> u64 { kernel.source.calls().iter().map(|(_, n)| n).sum() };
    assert_eq!(kernel.xattr(b"a"), Ok(Some(false)));
    let before = calls(&kernel);
    assert_eq!(kernel.xattr(b"a"), Ok(Some(false)));
    assert_eq!(calls(&kernel), before, "known");
    assert!(
        kernel
            .fs
            .namei()
            .is_plain(kernel.fs.namei().dcache.inodes.find(known.nodeid).unwrap())
    );
    kernel.behind(Change::SetXattr(b"a".to_vec()));
    kernel.settle();
    assert_eq!(kernel.xattr(b"a"), Ok(Some(true)));
}

/// A walked directory answers for names that are not in it, where nothing but time ends the
/// belief, and where names are compared byte by byte.
#[test]
fn names_that_are_not_listed_are_not_asked_for() {
    let calls = |kernel: &Kernel| -> u64 { kernel.source.calls().iter().map(|(_, n)| n).sum() };
    for coherence in [Coherence::Frozen, Coherence::Ttl, Coherence::Watch] {
        let mut kernel = mount(coherence, FsConfig::default());
        kernel.behind(make(Kind::Regular, b"a"));
        kernel.tick(5000);
        kernel.list(kernel.root(), 64, true).unwrap();
        assert!(
            !kernel.is_there(b"new"),
            "and how names are compared is found out"
        );
        let before = calls(&kernel);
        for name in [b"other", b"third"] {
            assert!(!kernel.is_there(name));
        }
        let asked = calls(&kernel) - before;
        assert_eq!(
            asked > 0,
            coherence == Coherence::Watch,
            "{coherence:?}: {asked}"
        );
        assert!(kernel.is_there(b"a"));
        // In the ttl it is believed so long, and then no more.
        kernel.behind(make(Kind::Regular, b"made"));
        assert_eq!(kernel.is_there(b"made"), coherence == Coherence::Watch);
        kernel.tick(5000);
        assert_eq!(kernel.is_there(b"made"), coherence != Coherence::Frozen);
    }
    // A name in another case leads somewhere too: what is not listed may still be there.
    let mut kernel = mount(Coherence::Frozen, FsConfig::default());
    kernel.behind(make(Kind::Regular, b"a"));
    kernel.list(kernel.root(), 64, true).unwrap();
    kernel.behind(make(Kind::Regular, b"A"));
    kernel.behind(make(Kind::Regular, b"b"));
    assert!(kernel.is_there(b"b"));
}

/// A name that the kernel holds of an object whose number was given to another: it is told when
/// the name is let go of here, for no reference is left that would tell of it.
#[test]
fn r6_a_name_of_a_reused_number_is_taken_back_when_it_goes() {
    let config = FsConfig {
        reuse_numbers: true,
        dtypes: false,
        ..FsConfig::default()
    };
    let mut kernel = mount(Coherence::Frozen, config);
    kernel.behind(make(Kind::Regular, b"a"));
    assert!(kernel.user_walk(b"a").unwrap().is_some());
    kernel.behind(Change::Remove(b"a".to_vec(), false));
    kernel.behind(make(Kind::Regular, b"b"));
    kernel.list(kernel.root(), 64, false).unwrap();
    for _ in 0..2 {
        kernel.shrink(64);
    }
    kernel.settle();
    kernel.drop_caches();
    kernel.tick(1);
    assert_eq!(kernel.user_walk(b"a"), Ok(None));
}
