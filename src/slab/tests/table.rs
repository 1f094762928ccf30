//! What [`ObjTable`] promises.

use std::collections::HashSet;
use std::thread;

use super::count;
use crate::slab::{ObjId, ObjTable, Registry, SlabFlags};

fn table<T: Send + Sync + 'static>() -> ObjTable<T> {
    ObjTable::create(&Registry::new(), "t", SlabFlags::empty())
}

#[test]
fn an_id_names_its_object_until_it_is_removed() {
    let table = table::<[u64; 4]>();
    let many = count(1000, 100) as u64;
    let ids: Vec<_> = (0..many).map(|n| table.insert([n; 4]).unwrap()).collect();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len() as u64, many);
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(*table.read(*id).unwrap(), [n as u64; 4]);
        table.write(*id).unwrap()[0] = 1;
    }
    assert_eq!(table.remove(ids[5]), Some([1, 5, 5, 5]));
    assert_eq!(table.remove(ids[5]), None);
    assert!(table.read(ids[5]).is_none() && table.write(ids[5]).is_none());
    assert!(table.read(ObjId::new(u32::MAX).unwrap()).is_none());
    assert_eq!(table.len() as u64, many - 1);
    assert_eq!(table.insert([0; 4]).unwrap(), ids[5]);
}

#[test]
fn scanning_sees_each_object_once() {
    let table = table::<u32>();
    let mut ids: HashSet<_> = (0..count(3000, 300) as u32)
        .map(|n| table.insert(n).unwrap())
        .collect();
    for index in 0..table.slab_count() {
        table.scan_slab(index, |id, object| {
            assert!(ids.remove(&id));
            assert_eq!(*table.read(id).unwrap(), *object);
        });
    }
    assert!(ids.is_empty());
    table.scan_slab(table.slab_count(), |_, _| panic!("no such slab"));
}

#[test]
fn empty_slabs_are_given_back_and_their_indices_used_again() {
    let table = table::<[u8; 64]>();
    let many = count(200_000, 500);
    let ids: Vec<_> = (0..many).map(|_| table.insert([0; 64]).unwrap()).collect();
    let (full, slabs) = (table.bytes(), table.slab_count());
    assert!(ids.iter().all(|id| table.remove(*id).is_some()));
    let info = table.info();
    assert!(
        info.num_slabs * info.objperslab * info.objsize <= 8 << 20,
        "{info:?}"
    );
    assert_eq!((info.active_objs, info.active_slabs), (0, 0));
    assert_eq!(
        table.shrink() as u64,
        info.num_slabs * info.objperslab * info.objsize
    );
    assert!(table.bytes() < full / 10);
    assert_eq!((table.shrink(), table.info().num_slabs), (0, 0));
    assert!((0..many).all(|_| table.insert([0; 64]).is_ok()));
    assert_eq!((table.slab_count(), table.bytes()), (slabs, full));
}

#[test]
fn an_object_with_a_niche_costs_no_more_than_itself() {
    struct Small(
        #[expect(dead_code, reason = "for its size")] [u32; 9],
        #[expect(dead_code, reason = "for its niche")] bool,
    );
    let small = table::<Small>();
    assert_eq!(small.info().objsize as usize, size_of::<Small>());
    assert_eq!(table::<[u64; 5]>().info().objsize, 48);
    let many = count(100_000, 1000);
    assert!((0..many).all(|_| small.insert(Small([0; 9], true)).is_ok()));
    assert!(
        small.bytes() <= many * (size_of::<Small>() + 3),
        "{} bytes",
        small.bytes()
    );
}

#[test]
fn an_insert_waits_for_no_guard() {
    let table = table::<u64>();
    let id = table.insert(1).unwrap();
    let guard = table.write(id).unwrap();
    let other = table.insert(2).unwrap();
    drop(guard);
    assert_eq!(*table.read(id).unwrap() + *table.read(other).unwrap(), 3);
}

#[test]
fn threads_do_not_lose_or_share_objects() {
    let table = table::<usize>();
    let left: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|me| {
                let table = &table;
                scope.spawn(move || {
                    let mut ids = Vec::new();
                    for n in 0..count(20_000, 100) {
                        ids.push(table.insert(me).unwrap());
                        if n % 3 != 0 {
                            let id = ids.swap_remove(n * 7919 % ids.len());
                            assert_eq!(table.remove(id), Some(me));
                        }
                        if n % count(1000, 20) == 0 {
                            table.shrink();
                        }
                    }
                    assert!(ids.iter().all(|id| *table.read(*id).unwrap() == me));
                    ids.len()
                })
            })
            .collect();
        for _ in 0..count(200, 20) {
            let info = table.info();
            assert!(
                info.active_objs <= info.num_objs && info.active_slabs <= info.num_slabs,
                "{info:?}"
            );
        }
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(table.len(), left);
    let mut seen = 0;
    (0..table.slab_count()).for_each(|index| table.scan_slab(index, |_, _| seen += 1));
    assert_eq!(seen, left);
}
