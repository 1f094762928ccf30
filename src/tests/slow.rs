//! What a slow source is asked: each call might take a millisecond or a second, so the
//! calls are counted.

use super::kernel::{Kernel, options};
use super::truth::join;
use crate::fs::Coherence;
use crate::source::fake::{FakeSource, FsConfig};
use crate::source::{Kind, Source};

const DIRS: u64 = 20;
const FILES: u64 = 10;

/// A mount of `DIRS` directories, as old as any timestamp must be to be relied on.
fn mount(coherence: Coherence) -> Kernel {
    let source = FakeSource::new(FsConfig::default());
    let mut kernel = Kernel::mount(source.clone(), options(coherence));
    for d in 0..DIRS {
        source.edit().mkdir(format!("d{d}")).unwrap();
        for f in 0..FILES {
            source.edit().create(format!("d{d}/f{f}"), b"").unwrap();
        }
    }
    kernel.advance(60_000);
    kernel.edited();
    kernel.begin();
    kernel
}

fn calls(kernel: &Kernel) -> u64 {
    kernel.source.calls().iter().map(|(_, n)| n).sum()
}

/// `find`: lists each directory, and asks what is not a regular file; the calls it took.
fn walk(kernel: &mut Kernel) -> u64 {
    let before = calls(kernel);
    let (mut todo, mut names) = (vec![Vec::new()], 0);
    kernel.begin();
    while let Some(dir) = todo.pop() {
        let listed = kernel.user_list(&dir, false).unwrap().unwrap();
        names += listed.len() as u64;
        for (name, kind) in listed {
            if kind == Kind::Directory {
                todo.push(join(&dir, &name));
            }
        }
    }
    assert_eq!(names, DIRS + DIRS * FILES);
    calls(kernel) - before
}

/// Within the ttl a second walk asks nothing; after it, once for each directory.
#[test]
fn after_the_ttl_a_walk_asks_once_for_each_directory() {
    let mut kernel = mount(Coherence::Ttl);
    walk(&mut kernel);
    walk(&mut kernel);
    assert_eq!(walk(&mut kernel), 0);
    kernel.advance(60_000);
    assert_eq!(walk(&mut kernel), DIRS + 1, "the root is one as well");
    assert_eq!(walk(&mut kernel), 0);
    kernel.unmount();
}

/// Absent names are asked for once; after the ttl one look at the directory proves all
/// of them.
#[test]
fn after_the_ttl_all_absences_are_proved_by_one_look() {
    let mut kernel = mount(Coherence::Ttl);
    let storm = |kernel: &mut Kernel| {
        let before = calls(kernel);
        kernel.begin();
        for n in 0..100 {
            let absent = format!("d0/absent{n}").into_bytes();
            assert!(kernel.user_walk(&absent).unwrap().is_none());
        }
        calls(kernel) - before
    };
    assert!(storm(&mut kernel) >= 100);
    assert_eq!(storm(&mut kernel), 0);
    kernel.advance(60_000);
    // d0's name, and d0.
    assert!(storm(&mut kernel) <= 2);
    assert_eq!(storm(&mut kernel), 0);
    kernel.unmount();
}

/// In `watch` and `frozen` nothing is asked, however long it has been.
#[test]
fn what_is_told_of_is_not_asked_for() {
    for coherence in [Coherence::Watch, Coherence::Frozen] {
        let mut kernel = mount(coherence);
        walk(&mut kernel);
        kernel.quiet();
        walk(&mut kernel);
        kernel.advance(3_600_000);
        assert_eq!(walk(&mut kernel), 0, "{coherence:?}");
        kernel.unmount();
    }
}
