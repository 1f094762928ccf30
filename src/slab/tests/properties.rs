//! Random operations against a model.
//!
//! The properties: objects do not overlap; none is lost; counts agree with the
//! structure, so that active and free add up to the total; ids name what was
//! stored under them and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use proptest::prelude::*;

use super::count;
use crate::slab::{DebugRules, KmemCache, Obj, ObjId, ObjTable, Registry, SlabFlags, SlabOptions};

/// What is done to a cache. Operands are taken modulo what is there, so that
/// every sequence is valid and shrinks well.
#[derive(Clone, Debug)]
enum Op {
    Alloc(usize),
    AllocBulk(usize),
    Free(usize, usize),
    FreeBulk(usize),
    FreeElsewhere(usize),
    Shrink,
    ShrinkElsewhere,
}

fn op() -> impl Strategy<Value = Op> {
    let most = |objects| count(objects, objects / 10);
    prop_oneof![
        4 => (1..most(200)).prop_map(Op::Alloc),
        1 => (0..most(100)).prop_map(Op::AllocBulk),
        4 => (any::<usize>(), 1..most(200)).prop_map(|(at, count)| Op::Free(at, count)),
        1 => (0..most(300)).prop_map(Op::FreeBulk),
        2 => (0..most(300)).prop_map(Op::FreeElsewhere),
        1 => Just(Op::Shrink),
        1 => Just(Op::ShrinkElsewhere),
    ]
}

/// An object that knows its owner; `living` counts the constructed ones.
struct Mark {
    number: u64,
    living: Arc<AtomicU64>,
    _bulk: [u64; 20],
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.living.fetch_sub(1, Relaxed);
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does what it is told and answers when it is done.
fn worker() -> (impl Fn(Job), thread::JoinHandle<()>) {
    let (jobs, todo): (Sender<Job>, _) = channel();
    let (tell, done) = channel();
    let thread = thread::spawn(move || {
        for job in todo {
            job();
            tell.send(()).unwrap();
        }
    });
    let run = move |job| {
        jobs.send(job).unwrap();
        done.recv().unwrap();
    };
    (run, thread)
}

fn check(
    cache: &KmemCache<Mark>,
    held: &[(u64, Obj<Mark>)],
    living: &AtomicU64,
    constructed: bool,
) {
    let info = cache.info();
    assert_eq!(info.active_objs, held.len() as u64, "{info:?}");
    assert_eq!(info.num_objs, info.num_slabs * info.objperslab);
    assert!(
        info.active_slabs <= info.num_slabs && info.active_objs <= info.num_objs,
        "{info:?}"
    );
    let expected = if constructed {
        info.num_objs
    } else {
        info.active_objs
    };
    assert_eq!(
        living.load(Relaxed),
        expected,
        "an object was lost or made twice"
    );
    assert!(
        held.iter().all(|(number, object)| object.number == *number),
        "objects overlap"
    );
}

fn run(flags: SlabFlags, modes: &str, ops: Vec<Op>) {
    let debug: DebugRules = modes.parse().unwrap();
    let registry = Registry::with_options(SlabOptions {
        debug,
        ..Default::default()
    });
    let living = Arc::new(AtomicU64::new(0));
    let count = living.clone();
    let cache = KmemCache::create(&registry, "c", flags, move || {
        count.fetch_add(1, Relaxed);
        Mark {
            number: 0,
            living: count.clone(),
            _bulk: [0; 20],
        }
    });
    let (elsewhere, thread) = worker();
    let constructed = !modes.contains('P');
    let mut held: Vec<(u64, Obj<Mark>)> = Vec::new();
    let mut next = 0;
    let mut own = |mut object: Obj<Mark>| {
        next += 1;
        object.number = next;
        (next, object)
    };
    for op in ops {
        match op {
            Op::Alloc(count) => held.extend((0..count).map(|_| own(cache.alloc().unwrap()))),
            Op::AllocBulk(count) => {
                held.extend(cache.alloc_bulk(count).unwrap().into_iter().map(&mut own))
            }
            Op::Free(at, count) => {
                let start = at % (held.len() + 1);
                let end = (start + count).min(held.len());
                held.drain(start..end);
            }
            Op::FreeBulk(count) => {
                let rest = held.len().saturating_sub(count);
                cache.free_bulk(held.split_off(rest).into_iter().map(|(_, object)| object));
            }
            Op::FreeElsewhere(count) => {
                let objects = held.split_off(held.len().saturating_sub(count));
                elsewhere(Box::new(move || drop(objects)));
            }
            Op::Shrink => {
                cache.shrink();
            }
            Op::ShrinkElsewhere => {
                let cache = cache.clone();
                elsewhere(Box::new(move || {
                    cache.shrink();
                }));
            }
        }
        check(&cache, &held, &living, constructed);
        assert_eq!(registry.validate("c"), Some(0));
    }
    drop(elsewhere);
    thread.join().unwrap();
    held.clear();
    check(&cache, &held, &living, constructed);
    cache.shrink();
    assert_eq!((cache.info().num_objs, living.load(Relaxed)), (0, 0));
    assert!(registry.reports().is_empty());
}

#[derive(Clone, Debug)]
enum TableOp {
    Insert(u64),
    Remove(usize),
    Write(usize, u64),
    Shrink,
}

fn table_op() -> impl Strategy<Value = TableOp> {
    prop_oneof![
        6 => any::<u64>().prop_map(TableOp::Insert),
        4 => any::<usize>().prop_map(TableOp::Remove),
        1 => (any::<usize>(), any::<u64>()).prop_map(|(at, value)| TableOp::Write(at, value)),
        1 => Just(TableOp::Shrink),
    ]
}

fn run_table(ops: Vec<TableOp>) {
    let debug: DebugRules = "FU".parse().unwrap();
    let registry = Registry::with_options(SlabOptions {
        debug,
        ..Default::default()
    });
    let table = ObjTable::<[u64; 60]>::create(&registry, "t", SlabFlags::empty());
    let mut model: BTreeMap<ObjId, u64> = BTreeMap::new();
    let mut gone = Vec::new();
    let pick = |model: &BTreeMap<ObjId, u64>, at: usize| {
        model.keys().nth(at % model.len().max(1)).copied()
    };
    for op in ops {
        match op {
            TableOp::Insert(value) => {
                let id = table.insert([value; 60]).unwrap();
                assert_eq!(model.insert(id, value), None, "an id was given twice");
                gone.retain(|old| *old != id);
            }
            TableOp::Remove(at) => {
                if let Some(id) = pick(&model, at) {
                    assert_eq!(table.remove(id).map(|object| object[59]), model.remove(&id));
                    gone.push(id);
                }
            }
            TableOp::Write(at, value) => {
                if let Some(id) = pick(&model, at) {
                    *table.write(id).unwrap() = [value; 60];
                    model.insert(id, value);
                }
            }
            TableOp::Shrink => {
                table.shrink();
                let info = table.info();
                assert_eq!(info.active_slabs, info.num_slabs);
            }
        }
        let mut seen = BTreeMap::new();
        (0..table.slab_count()).for_each(|slab| {
            table.scan_slab(slab, |id, object| {
                seen.insert(id, object[0]);
            })
        });
        assert_eq!(seen, model);
        assert!(
            model
                .iter()
                .all(|(id, value)| table.read(*id).unwrap()[59] == *value)
        );
        assert!(
            gone.iter()
                .all(|id| table.read(*id).is_none() && table.remove(*id).is_none())
        );
        let info = table.info();
        assert_eq!(
            (table.len(), info.active_objs),
            (model.len(), model.len() as u64)
        );
        assert!(
            info.active_objs <= info.num_objs && info.active_slabs <= info.num_slabs,
            "{info:?}"
        );
    }
    assert_eq!(
        (registry.validate("t"), registry.reports().len()),
        (Some(0), 0)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: count(64, 2) as u32, ..ProptestConfig::default() })]

    #[test]
    fn a_cache_is_its_model(ops in prop::collection::vec(op(), 1..count(40, 8))) {
        run(SlabFlags::HWCACHE_ALIGN, "-", ops);
    }

    #[test]
    fn a_cache_with_magazines_is_its_model(ops in prop::collection::vec(op(), 1..count(40, 12))) {
        run(SlabFlags::HWCACHE_ALIGN | SlabFlags::MAGAZINES, "-", ops);
    }

    #[test]
    fn a_cache_under_debug_is_its_model(ops in prop::collection::vec(op(), 1..count(8, 3))) {
        run(SlabFlags::MAGAZINES, "FZP", ops);
    }

    #[test]
    fn a_table_is_its_model(ops in prop::collection::vec(table_op(), 1..count(120, 40))) {
        run_table(ops);
    }
}
