//! Planted bugs are caught and named; faults come when they were asked for.

use std::process::Command;

use super::count;
use crate::slab::magazine::ROUNDS;
use crate::slab::page::Lent;
use crate::slab::{
    DebugAction, DebugRules, FaultRule, KmemCache, ObjTable, Registry, SlabBug, SlabFlags,
    SlabOptions, SlabReport,
};
use crate::sync::Arc;

const SIZE: usize = 100;
type Bytes = [u8; SIZE];

fn registry(modes: &str, action: DebugAction) -> Arc<Registry> {
    let debug: DebugRules = modes.parse().unwrap();
    Registry::with_options(SlabOptions {
        debug,
        action,
        faults: Vec::new(),
    })
}

fn cache(registry: &Registry) -> KmemCache<Bytes> {
    KmemCache::create(
        registry,
        "victim",
        SlabFlags::HWCACHE_ALIGN | SlabFlags::MAGAZINES,
        || [7; SIZE],
    )
}

/// Runs `plant` on a cache with `modes` and returns what was reported.
fn reports(modes: &str, plant: impl FnOnce(&KmemCache<Bytes>)) -> Vec<SlabReport> {
    let registry = registry(modes, DebugAction::Continue);
    plant(&cache(&registry));
    registry.reports()
}

fn bugs(reports: &[SlabReport]) -> Vec<SlabBug> {
    reports.iter().map(|report| report.bug).collect()
}

#[track_caller]
fn only(reports: Vec<SlabReport>, bug: SlabBug) -> String {
    assert_eq!(bugs(&reports), [bug], "{reports:#?}");
    let report = reports.into_iter().next().unwrap();
    assert_eq!(report.cache, "victim");
    assert!(
        report.text.contains(&format!("BUG victim: {bug}\n")),
        "{}",
        report.text
    );
    report.text
}

#[test]
fn a_sound_program_is_not_reported() {
    for modes in ["FZPU", "Z", "P", "U", "F", "-"] {
        let reports = reports(modes, |cache| {
            for objects in [1, count(100, 10), 3] {
                let mut held = cache.alloc_bulk(objects).unwrap();
                held.iter_mut().for_each(|object| object.fill(0x55));
                held.truncate(objects / 2);
                cache.free_bulk(held);
                cache.shrink();
            }
        });
        assert_eq!(bugs(&reports), [], "{modes}");
    }
}

#[test]
fn an_overrun_is_caught_at_the_free() {
    let text = only(
        reports("ZU", |cache| {
            let object = cache.alloc().unwrap();
            object.0.stale().write(SIZE as isize, 0x58);
            drop(object);
            drop(cache.alloc().unwrap());
        }),
        SlabBug::RightRedzone,
    );
    assert!(text.contains("first byte 0x58 instead of 0xcc"), "{text}");
    assert!(
        text.contains("Allocated in ") && text.contains("slab/tests/debug.rs:"),
        "{text}"
    );
    assert!(
        cfg!(miri) || text.contains(" 58 cc cc cc"),
        "the red zone is shown: {text}"
    );
}

#[test]
fn an_underrun_is_caught_at_the_free() {
    let text = only(
        reports("Z", |cache| {
            let object = cache.alloc().unwrap();
            object.0.stale().write(-1, 0);
            drop(object);
        }),
        SlabBug::LeftRedzone,
    );
    assert!(text.contains("first byte 0x00 instead of 0xcc"), "{text}");
}

#[test]
fn a_use_after_free_is_caught_at_the_next_alloc() {
    let text = only(
        reports("PU", |cache| {
            let object = cache.alloc().unwrap();
            let stale = object.0.stale();
            drop(object);
            stale.write(50, b'!');
            drop(cache.alloc().unwrap());
        }),
        SlabBug::Poison,
    );
    assert!(
        text.contains("bytes 50 to 50, first byte 0x21 instead of 0x6b"),
        "{text}"
    );
    assert!(
        text.contains("Freed in ") && text.contains("debug.rs"),
        "{text}"
    );
    assert!(
        cfg!(miri) || text.contains(" 6b 6b 21 6b"),
        "the object is shown: {text}"
    );
}

#[test]
fn a_use_after_free_is_caught_when_the_slab_goes_or_is_validated() {
    let registry = registry("P", DebugAction::Continue);
    let cache = cache(&registry);
    let object = cache.alloc().unwrap();
    let stale = object.0.stale();
    drop(object);
    assert_eq!(registry.validate("victim"), Some(0));
    stale.write(0, 0);
    assert_eq!(registry.validate("victim"), Some(1));
    cache.shrink();
    assert_eq!(
        bugs(&registry.reports()),
        [SlabBug::Poison, SlabBug::Poison]
    );
}

#[test]
fn a_double_free_is_caught_and_does_no_harm() {
    for modes in ["F", "FZPU", "P"] {
        let text = only(
            reports(modes, |cache| {
                let object = cache.alloc().unwrap();
                let twin = object.0.twin();
                drop(object);
                drop(twin);
                let both = [cache.alloc().unwrap(), cache.alloc().unwrap()];
                assert_ne!(both[0].as_ptr(), both[1].as_ptr());
            }),
            SlabBug::AlreadyFree,
        );
        assert_eq!(text.contains("Freed in "), modes.contains('U'), "{text}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "leaks on purpose")]
fn a_foreign_free_is_caught() {
    for modes in ["F", "FZPU"] {
        let registry = registry(modes, DebugAction::Continue);
        let (victim, other) = (
            cache(&registry),
            KmemCache::create(&registry, "other", SlabFlags::empty(), || [0; SIZE]),
        );
        let handle = other
            .alloc()
            .unwrap()
            .0
            .into_handle(&other.core)
            .ok()
            .unwrap();
        drop(Lent::new(handle, &victim.core));
        drop((victim, other));
        let reports = registry.reports();
        assert_eq!(bugs(&reports), [SlabBug::Foreign, SlabBug::Remaining]);
        assert_eq!(
            (&*reports[0].cache, &*reports[1].cache),
            ("victim", "other")
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "leaks on purpose")]
fn a_leak_is_caught_at_the_end_of_the_cache() {
    let text = only(
        reports("U", |cache| std::mem::forget(cache.alloc().unwrap())),
        SlabBug::Remaining,
    );
    assert!(
        text.contains("objects=1\n") && text.contains("slab/tests/debug.rs:"),
        "{text}"
    );
    only(
        reports("-", |cache| std::mem::forget(cache.alloc().unwrap())),
        SlabBug::Remaining,
    );
}

#[test]
fn poisoned_objects_are_constructed_anew() {
    let reports = reports("P", |cache| {
        cache.alloc().unwrap().fill(1);
        assert_eq!(*cache.alloc().unwrap(), [7; SIZE]);
    });
    assert_eq!(bugs(&reports), []);
}

#[test]
fn modes_are_shown_and_leave_the_row_valid() {
    let registry = registry("FZPU,victim", DebugAction::Continue);
    let cache = cache(&registry);
    let plain = KmemCache::create(&registry, "plain", SlabFlags::MAGAZINES, || 0u64);
    let held = [cache.alloc().unwrap(), cache.alloc().unwrap()];
    drop(cache.alloc().unwrap());
    drop(plain.alloc().unwrap());
    // Once each: resolving who freed takes its time.
    let files = |cache| registry.attributes(cache).unwrap();
    let value = |files: &[(&'static str, String)], name| {
        files
            .iter()
            .find(|(file, _)| *file == name)
            .unwrap()
            .1
            .clone()
    };
    let (victim, beside) = (files("victim"), files("plain"));
    for name in ["red_zone", "poison", "store_user", "sanity_checks"] {
        assert_eq!(
            (value(&victim, name), value(&beside, name)),
            ("1\n".into(), "0\n".into()),
            "{name}"
        );
    }
    assert_eq!(value(&victim, "object_size"), "100\n");
    assert_eq!(value(&victim, "objects"), "2\n");
    assert_eq!(value(&victim, "objects_partial"), "2\n");
    assert_eq!(
        (value(&victim, "cpu_partial"), value(&beside, "cpu_partial")),
        ("0\n".into(), format!("{}\n", 2 * ROUNDS))
    );
    assert!(value(&victim, "alloc_calls").starts_with("      1 "));
    let frees = value(&victim, "free_calls");
    assert!(frees.contains("debug.rs"), "{frees}");
    assert_eq!(value(&beside, "alloc_calls"), "No data\n");
    assert!(registry.attributes("absent").is_none());
    assert_eq!(
        crate::slab::parse_slabinfo(&registry.render()).unwrap(),
        registry.infos()
    );
    drop(held);
    assert!(registry.shrink("victim").unwrap() > 0);
    assert_eq!(value(&files("victim"), "slabs"), "0\n");
}

#[test]
fn a_table_tells_who_inserted_and_who_removed() {
    let registry = registry("FU", DebugAction::Continue);
    let table = ObjTable::create(&registry, "t", SlabFlags::empty());
    let ids: Vec<_> = (0..3).map(|n| table.insert(n).unwrap()).collect();
    table.remove(ids[0]);
    assert_eq!((table.remove(ids[0]), table.len()), (None, 2));
    let files = registry.attributes("t").unwrap();
    let text = |name| {
        files
            .iter()
            .find(|(file, _)| *file == name)
            .unwrap()
            .1
            .as_str()
    };
    assert!(text("alloc_calls").starts_with("      2 "), "{files:?}");
    assert!(text("free_calls").starts_with("      1 "), "{files:?}");
    assert_eq!((text("objects"), text("partial")), ("2\n", "1\n"));
    assert_eq!(
        (registry.validate("t"), registry.reports().len()),
        (Some(0), 0)
    );
}

#[test]
fn faults_come_as_asked() {
    let rule = |text: &str| text.parse::<FaultRule>().unwrap();
    let faults = vec![rule("victim:every=3,times=2"), rule("t*:every=2")];
    let registry = Registry::with_options(SlabOptions {
        faults,
        ..Default::default()
    });
    let cache = cache(&registry);
    let failed: Vec<_> = (1..=12).filter(|_| cache.alloc().is_err()).collect();
    assert_eq!(failed, [3, 6]);
    let table = ObjTable::create(&registry, "table", SlabFlags::empty());
    let failed: Vec<_> = (1..=6).filter(|_| table.insert(0u8).is_err()).collect();
    assert_eq!((failed, table.len()), (vec![2, 4, 6], 3));
    let spared = KmemCache::create(&registry, "spared", SlabFlags::MAGAZINES, || 0u8);
    assert!((0..100).all(|_| spared.alloc().is_ok()));
}

#[test]
fn a_bulk_that_fails_gives_back_what_it_had() {
    let faults = vec![FaultRule::new("victim", 5, Some(1))];
    let registry = Registry::with_options(SlabOptions {
        faults,
        ..Default::default()
    });
    let cache = cache(&registry);
    assert!(cache.alloc_bulk(8).is_err());
    assert_eq!(cache.info().active_objs, 0);
    assert_eq!(cache.alloc_bulk(8).unwrap().len(), 8);
}

/// Runs itself as a child process, which has to die by SIGABRT.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_action_abort_aborts() {
    use std::os::unix::process::ExitStatusExt;
    const CHILD: &str = "NAMEIFS_TEST_ABORT";
    let plant = || {
        let registry = registry("Z", DebugAction::Abort);
        let object = cache(&registry).alloc().unwrap();
        object.0.stale().write(SIZE as isize, 0);
    };
    if std::env::var_os(CHILD).is_some() {
        return plant();
    }
    let name = "slab::tests::debug::the_action_abort_aborts";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(child.status.signal(), Some(6), "{child:?}");
}
