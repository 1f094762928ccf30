//! Races, under loom: two or three threads, a few steps each.
//!
//! Magazines have two rounds here, so that five frees visit the depot.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use loom::thread;

use crate::slab::thread::leave;
use crate::slab::{KmemCache, Obj, ObjTable, Registry, SlabFlags};
use crate::sync::Arc;

/// An object that counts the living; the count is not loom's, so it adds no schedules.
struct Counted(std::sync::Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn cache(registry: &Registry) -> (KmemCache<Counted>, std::sync::Arc<AtomicUsize>) {
    let living = std::sync::Arc::new(AtomicUsize::new(0));
    let count = living.clone();
    let cache = KmemCache::create(registry, "c", SlabFlags::MAGAZINES, move || {
        count.fetch_add(1, SeqCst);
        Counted(count.clone())
    });
    (cache, living)
}

fn take(cache: &KmemCache<Counted>, count: usize) -> Vec<Obj<Counted>> {
    (0..count).map(|_| cache.alloc().unwrap()).collect()
}

/// A thread whose end, with all it leaves behind, comes before its join.
fn spawn<R: 'static>(f: impl FnOnce() -> R + 'static) -> thread::JoinHandle<R> {
    thread::spawn(move || {
        let result = f();
        leave();
        result
    })
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn loom_a_magazine_goes_through_the_depot_to_another_thread() {
    model(|| {
        let registry = Registry::new();
        let (cache, living) = cache(&registry);
        let objects = take(&cache, 5);
        let freer = spawn(move || drop(objects));
        let mine = take(&cache, 3);
        let mut places: Vec<_> = mine
            .iter()
            .map(|object| std::ptr::from_ref(&**object))
            .collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 3, "no object is lent twice");
        freer.join().unwrap();
        assert_eq!(cache.info().active_objs, 3);
        drop(mine);
        assert_eq!(cache.info().active_objs, 0);
        cache.shrink();
        assert_eq!(
            (cache.info().num_objs, living.load(SeqCst)),
            (0, 0),
            "no object is lost"
        );
    });
}

#[test]
fn loom_both_threads_visit_the_depot() {
    model(|| {
        let registry = Registry::new();
        let (cache, living) = cache(&registry);
        let other = cache.clone();
        let thread = spawn(move || {
            let objects = take(&other, 5);
            drop(objects);
        });
        let objects = take(&cache, 5);
        drop(objects);
        thread.join().unwrap();
        assert_eq!(cache.info().active_objs, 0);
        drop(cache);
        assert_eq!(living.load(SeqCst), 0);
    });
}

#[test]
fn loom_counts_stay_below_the_total_while_read() {
    model(|| {
        let registry = Registry::new();
        let (cache, _) = cache(&registry);
        let other = cache.clone();
        let thread = spawn(move || drop(take(&other, 3)));
        let info = cache.info();
        assert!(info.active_objs <= info.num_objs, "{info:?}");
        thread.join().unwrap();
        assert_eq!(cache.info().active_objs, 0);
    });
}

#[test]
fn loom_a_cache_ends_while_its_last_object_comes_back() {
    model(|| {
        let registry = Registry::new();
        let (cache, living) = cache(&registry);
        let object = cache.alloc().unwrap();
        let thread = spawn(move || drop(object));
        drop(cache);
        thread.join().unwrap();
        assert_eq!((living.load(SeqCst), registry.leaked().len()), (0, 0));
    });
}

#[test]
fn loom_a_thread_ends_while_the_cache_shrinks() {
    model(|| {
        let registry = Registry::new();
        let (cache, living) = cache(&registry);
        let other = cache.clone();
        let thread = spawn(move || drop(other.alloc().unwrap()));
        cache.shrink();
        thread.join().unwrap();
        assert_eq!(cache.info().active_objs, 0);
        cache.shrink();
        assert_eq!(living.load(SeqCst), 0);
    });
}

fn table() -> Arc<ObjTable<usize>> {
    Arc::new(ObjTable::create(&Registry::new(), "t", SlabFlags::empty()))
}

#[test]
fn loom_inserts_get_different_ids() {
    model(|| {
        let table = table();
        let other = table.clone();
        let thread = spawn(move || other.insert(1).unwrap());
        let mine = table.insert(2).unwrap();
        let theirs = thread.join().unwrap();
        assert_ne!(mine, theirs);
        // One by one: loom's locks are not for nested reads.
        assert_eq!(*table.read(mine).unwrap(), 2);
        assert_eq!(*table.read(theirs).unwrap(), 1);
        assert_eq!(table.len(), 2);
    });
}

#[test]
fn loom_an_insert_meets_a_remove_and_a_shrink() {
    model(|| {
        let table = table();
        let old = table.insert(1).unwrap();
        let (remover, shrinker) = (table.clone(), table.clone());
        let remover = spawn(move || remover.remove(old));
        let shrinker = spawn(move || shrinker.shrink());
        let new = table.insert(2).unwrap();
        assert_eq!(remover.join().unwrap(), Some(1));
        shrinker.join().unwrap();
        assert_eq!(*table.read(new).unwrap(), 2);
        assert_eq!(table.len(), 1);
        assert_eq!(table.remove(new), Some(2));
        table.shrink();
        assert_eq!(table.info().num_slabs, 0, "no slab is lost");
    });
}

#[test]
fn loom_one_of_two_removes_gets_the_object() {
    model(|| {
        let table = table();
        let id = table.insert(1).unwrap();
        let other = table.clone();
        let thread = spawn(move || other.remove(id));
        let mine = table.remove(id);
        let theirs = thread.join().unwrap();
        assert_eq!(mine.is_some(), theirs.is_none());
        assert_eq!((table.len(), table.info().active_slabs), (0, 0));
    });
}
