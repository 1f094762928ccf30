//! What [`KmemCache`] promises.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::thread;

use super::count;
use crate::slab::{KmemCache, Obj, Registry, SlabFlags};

const ALL: [SlabFlags; 2] = [
    SlabFlags::HWCACHE_ALIGN,
    SlabFlags::HWCACHE_ALIGN.union(SlabFlags::MAGAZINES),
];

/// An object that counts the living, so large that a slab has few.
struct Counted {
    living: Arc<AtomicUsize>,
    number: u64,
    _bulk: [u64; 30],
}

impl Counted {
    /// One more.
    fn new(living: &Arc<AtomicUsize>) -> Self {
        living.fetch_add(1, SeqCst);
        Self {
            living: living.clone(),
            number: 7,
            _bulk: [0; 30],
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.living.fetch_sub(1, SeqCst);
    }
}

fn counted(registry: &Registry, flags: SlabFlags) -> (KmemCache<Counted>, Arc<AtomicUsize>) {
    let living = Arc::new(AtomicUsize::new(0));
    let count = living.clone();
    let cache = KmemCache::create(registry, "counted", flags, move || Counted::new(&count));
    (cache, living)
}

#[test]
fn objects_are_aligned_and_do_not_overlap() {
    for flags in ALL {
        let registry = Registry::new();
        let cache = KmemCache::create(&registry, "c", flags, || [0u8; 200]);
        let many = count(1000, 150);
        let mut objects: Vec<_> = (0..many).map(|_| cache.alloc().unwrap()).collect();
        for (n, object) in objects.iter_mut().enumerate() {
            object.fill(n as u8);
        }
        assert!(objects.iter().all(|o| o.as_ptr().addr() % 64 == 0));
        assert!(
            objects
                .iter()
                .enumerate()
                .all(|(n, o)| o.iter().all(|&b| b == n as u8))
        );
        assert_eq!(cache.info().active_objs, many as u64);
    }
}

#[test]
fn an_object_stays_constructed_from_one_use_to_the_next() {
    for flags in ALL {
        let registry = Registry::new();
        let (cache, living) = counted(&registry, flags);
        let mut object = cache.alloc().unwrap();
        assert_eq!(object.number, 7);
        object.number = 8;
        let made = living.load(SeqCst);
        drop(object);
        assert_eq!(cache.alloc().unwrap().number, 8);
        assert_eq!(living.load(SeqCst), made);
    }
}

#[test]
fn shrink_and_end_run_every_destructor() {
    for flags in ALL {
        let registry = Registry::new();
        let (cache, living) = counted(&registry, flags);
        let many = count(500, 60);
        let objects: Vec<_> = (0..many).map(|_| cache.alloc().unwrap()).collect();
        assert!(living.load(SeqCst) >= many);
        drop(objects);
        let one = cache.alloc().unwrap();
        let info = cache.info();
        let kept = info.num_slabs * info.objperslab * info.objsize;
        assert_eq!(cache.shrink() as u64, kept - info.objperslab * info.objsize);
        assert_eq!(living.load(SeqCst) as u64, info.objperslab);
        drop(one);
        assert_ne!(cache.shrink(), 0);
        assert_eq!((cache.info().num_slabs, living.load(SeqCst)), (0, 0));
        drop(
            (0..many)
                .map(|_| cache.alloc().unwrap())
                .collect::<Vec<_>>(),
        );
        drop(cache);
        assert_eq!(living.load(SeqCst), 0);
        assert!(registry.infos().is_empty());
    }
}

#[test]
fn empty_slabs_are_kept_up_to_the_documented_number() {
    let registry = Registry::new();
    let cache = KmemCache::create(&registry, "c", SlabFlags::empty(), || [0u8; 32 << 10]);
    drop(cache.alloc_bulk(400).unwrap());
    assert_eq!(cache.info().num_slabs, (8 << 20) / (32 << 10));
}

#[test]
fn objects_may_be_given_back_by_another_thread_and_after_the_cache() {
    for flags in ALL {
        let registry = Registry::new();
        let (cache, living) = counted(&registry, flags);
        let object = cache.alloc().unwrap();
        let objects: Vec<_> = (0..count(300, 40))
            .map(|_| cache.alloc().unwrap())
            .collect();
        thread::spawn(move || drop(objects)).join().unwrap();
        assert_eq!(cache.info().active_objs, 1);
        drop(cache);
        assert_eq!(registry.leaked(), [("counted".to_owned(), 1)]);
        assert_eq!(object.number, 7);
        thread::spawn(move || drop(object)).join().unwrap();
        assert_eq!((registry.leaked().len(), living.load(SeqCst)), (0, 0));
    }
}

#[test]
fn a_thread_that_ends_leaves_its_magazines_to_the_others() {
    let registry = Registry::new();
    let (cache, living) = counted(&registry, ALL[1]);
    for _ in 0..count(20, 3) {
        let mine = cache.clone();
        thread::spawn(move || drop((0..200).map(|_| mine.alloc().unwrap()).collect::<Vec<_>>()))
            .join()
            .unwrap();
    }
    assert_eq!(cache.info().active_objs, 0);
    cache.shrink();
    assert_eq!((cache.info().num_objs, living.load(SeqCst)), (0, 0));
}

#[test]
fn a_cache_may_end_while_another_thread_has_magazines_of_it() {
    let registry = Registry::new();
    let (cache, living) = counted(&registry, ALL[1]);
    let other = KmemCache::create(&registry, "other", ALL[1], || [0u8; 512]);
    let (to_thread, from_main) = channel::<KmemCache<Counted>>();
    let (to_main, from_thread) = channel();
    let thread = thread::spawn(move || {
        let cache = from_main.recv().unwrap();
        drop(cache.alloc().unwrap());
        drop(cache);
        to_main.send(()).unwrap();
        assert!(from_main.recv().is_err());
        // Taking a seat in any cache empties those of caches that have ended.
        drop(other.alloc().unwrap());
        to_main.send(()).unwrap();
    });
    to_thread.send(cache.clone()).unwrap();
    from_thread.recv().unwrap();
    drop(cache);
    assert_ne!(living.load(SeqCst), 0);
    assert!(registry.leaked().is_empty());
    drop(to_thread);
    from_thread.recv().unwrap();
    assert_eq!(living.load(SeqCst), 0);
    thread.join().unwrap();
}

#[test]
fn bulk_is_the_same_as_one_by_one() {
    for flags in ALL {
        let registry = Registry::new();
        let (cache, living) = counted(&registry, flags);
        let (others, _) = counted(&registry, flags);
        let mut objects = cache.alloc_bulk(100).unwrap();
        assert_eq!((objects.len(), cache.info().active_objs), (100, 100));
        objects.push(others.alloc().unwrap());
        cache.free_bulk(objects);
        assert_eq!(
            (cache.info().active_objs, others.info().active_objs),
            (0, 0)
        );
        assert!(cache.alloc_bulk(0).unwrap().is_empty());
        assert!(cache.alloc_bulk(usize::MAX).is_err());
        drop(cache);
        assert_eq!(living.load(SeqCst), 0);
    }
}

#[test]
fn counts_are_consistent_while_read_under_load() {
    let registry = Registry::new();
    let (cache, _) = counted(&registry, ALL[1]);
    let (to_freer, freed) = channel::<Vec<Obj<Counted>>>();
    thread::scope(|scope| {
        scope.spawn(|| {
            for burst in 1..count(300, 40) {
                let objects = (0..burst).map(|_| cache.alloc().unwrap()).collect();
                to_freer.send(objects).unwrap();
            }
            drop(to_freer);
        });
        scope.spawn(|| freed.into_iter().for_each(drop));
        for _ in 0..count(2000, 100) {
            let info = cache.info();
            assert!(
                info.active_objs <= info.num_objs && info.active_slabs <= info.num_slabs,
                "{info:?}"
            );
            assert_eq!(info.num_objs, info.num_slabs * info.objperslab);
        }
    });
    assert_eq!(cache.info().active_objs, 0);
}

#[test]
fn a_constructor_may_use_its_own_cache_and_may_panic() {
    let registry = Registry::new();
    let living = Arc::new(AtomicUsize::new(0));
    let count = living.clone();
    let cache = KmemCache::create(&registry, "c", ALL[1], move || {
        assert!(count.load(SeqCst) != 3, "planted");
        Counted::new(&count)
    });
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cache.alloc().map(drop)));
    assert!(result.is_err());
    assert_eq!(
        living.load(SeqCst),
        0,
        "three were dropped, the fourth was never made"
    );
    assert_eq!(cache.info().num_slabs, 0);
}

#[test]
fn an_object_of_no_size_is_an_object() {
    let registry = Registry::new();
    let cache = KmemCache::create(&registry, "c", ALL[1], || ());
    let objects: Vec<_> = (0..100).map(|_| cache.alloc().unwrap()).collect();
    assert_eq!(cache.info().active_objs, 100);
    drop(objects);
    assert_eq!(cache.info().active_objs, 0);
}
