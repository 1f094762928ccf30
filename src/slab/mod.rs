//! Slab caches (floor F1): named supplies of objects of one type.
//!
//! After Bonwick ("The Slab Allocator", 1994; Bonwick and Adams, "Magazines and
//! Vmem", 2001) and the kernel's SLUB. This module knows no word of filesystems
//! and can be used alone.
//!
//! Two front ends share one accounting, so that `.slabinfo` is the structure
//! and not a painting of it:
//!
//! * [`KmemCache`] lends whole objects to one owner at a time, through a guard
//!   that gives the object back when dropped (name buffers, open files).
//! * [`ObjTable`] keeps objects that many refer to by a 32-bit [`ObjId`]
//!   (dentries, inodes).
//!
//! # Using it
//!
//! ```
//! use nameifs::slab::{KmemCache, ObjTable, Registry, SlabFlags};
//!
//! let registry = Registry::new();
//! let flags = SlabFlags::HWCACHE_ALIGN | SlabFlags::MAGAZINES;
//! let names = KmemCache::create(&registry, "getname_cache", flags, || [0u8; 4096]);
//! let mut name = names.alloc()?;
//! name[..4].copy_from_slice(b"/usr");
//! assert_eq!(names.info().active_objs, 1);
//! std::thread::spawn(move || drop(name)).join().expect("dropping does not panic");
//! assert_eq!(names.info().active_objs, 0);
//! names.shrink();
//!
//! let table = ObjTable::create(&registry, "dentry", SlabFlags::empty());
//! let id = table.insert("usr".to_owned())?;
//! assert_eq!(table.read(id).as_deref().map(String::as_str), Some("usr"));
//! assert_eq!(table.remove(id).as_deref(), Some("usr"));
//!
//! assert!(registry.render().starts_with("slabinfo - version: 2.1\n"));
//! # Ok::<(), nameifs::slab::AllocError>(())
//! ```
//!
//! # Layers of a `KmemCache`
//!
//! ```text
//!   thread           thread           thread
//!   magazines        magazines        magazines      2 x 128 objects each, no lock,
//!       \               |               /            no atomic read-modify-write
//!        +----------- depot -----------+             full magazines, up to 8 MiB
//!                       |                            of objects     } under the
//!            slabs: partial, full, empty             empty ones: up } cache's lock
//!                                                    to 8 MiB or 1/8 }
//! ```
//!
//! A *magazine* (Linux today: sheaf) is a thread's short stack of free objects,
//! the *depot* (Linux: barn) the stock of full magazines that threads exchange.
//! A thread goes to the depot at most once per 128 operations, whatever the
//! pattern; beyond the depot objects go to their slabs, a magazine at a time.
//! Without [`SlabFlags::MAGAZINES`], or under a debug mode or fault, every
//! operation takes the cache's lock (about 20 ns) and objects go to their slabs.
//!
//! # Contract
//!
//! * **Constructed objects.** The constructor runs when a slab is made, the
//!   destructor when the slab is given back. Between uses an object stays as it
//!   was left: whoever allocates it finds it constructed, not cleared. (Debug
//!   mode P cannot keep that: there each object is constructed anew.)
//! * **Counts.** `active_objs` are objects lent out; those in magazines and in
//!   the depot are free. Active and free add up to the total always, and
//!   `active_objs <= num_objs` holds however the row is read; the numbers are
//!   exact when nobody allocates or frees. `active_slabs` are slabs that are
//!   not wholly on their own free list, so objects in magazines keep slabs
//!   active until [`KmemCache::shrink`] or their threads' end.
//! * **Memory.** A cache grows by a slab when nothing is free. It keeps empty
//!   slabs of up to 8 MiB, or an eighth of its slabs if that is more; the rest
//!   goes back at once, and all of it on `shrink`. Magazines of *other* threads
//!   (at most 256 objects each) cannot be reached; they go back when their
//!   thread ends.
//! * **The end.** A cache ends with its last [`KmemCache`]. Objects still out are
//!   a leak: it is reported through `tracing`, shows in [`Registry::leaked`], and
//!   the objects stay valid; their memory goes when they come back.
//! * **Failure.** `alloc` returns [`AllocError`] when the system has no memory for
//!   a slab; bookkeeping (lists, magazines, a table's slabs) uses `Vec` and
//!   `Box`, which abort. 512 threads at a time can have magazines; others work
//!   without.
//!
//! # `Send` and `Sync`
//!
//! Caches, tables and the registry are shared freely (`Send + Sync`; clone a
//! cache or borrow it). An [`Obj`] is `Send` and may be dropped on any thread;
//! it is `Sync` if its object is. Objects must be `Send`, those of tables
//! `Send + Sync`. Guards of a table stay on their thread. Constructors,
//! destructors and reports run with no lock of a cache held, so they may use any
//! cache, their own too.
//!
//! # Debugging and faults
//!
//! [`SlabOptions`] switch, by cache, the kernel's modes F, Z, P and U
//! ([`SlabDebug`]), what follows a report ([`DebugAction`]), and injected
//! failures ([`FaultRule`]). They are read when a cache is created: caches
//! without any run the same code as if the modes did not exist, because those
//! with some have no magazines and part ways on the slow path. Findings are
//! [`SlabReport`]s, also sent to `tracing::error!`.
//!
//! # Other ways, and when not to use this one
//!
//! | | gives | lacks for us |
//! |---|---|---|
//! | `malloc` (`Box`) | any size, no setup; 10 ns or so for small objects | slow for bursts of pages, no constructed objects, no counts |
//! | `slab` | dense keys, one growing `Vec`; used here inside each slab | one owner; growth copies; memory never shrinks |
//! | `sharded-slab` | lock-free reads by key, generations, `Pool` with `Clear` | memory never comes back, no counts |
//! | `object-pool` | the simplest pool: a mutex round a `Vec` | contends between threads; no slabs, no counts |
//! | `opool` | a lock-free queue of reused objects | two contended atomics per operation; fixed number kept |
//!
//! Take plain `Box` when objects are small, short-lived and of many types, or when
//! allocation is not in your profile: a good malloc is within a few nanoseconds
//! for them. Take `slab` for keys within one owner. Take `sharded-slab` when
//! readers by key must never wait for a writer, which an [`ObjTable`] does not
//! promise. Use this module when objects are large or costly to construct, when
//! they come in bursts and cross threads, when you must say how many there are,
//! or when you want them checked. `cargo bench --bench slab` measures all of
//! these side by side.
//!
//! # Unsafe code
//!
//! All of it is in `page.rs`, which states its invariants S1 to S6: objects
//! travel as handles that cannot be copied, so "free twice" and "lent twice" are
//! not expressible outside that file. Loom checks the exchange of magazines and
//! the life of tables' slabs (`cargo test --features loom loom_`), Miri the whole
//! module.

mod attributes;
mod cache;
mod fault;
mod guard;
mod index;
mod info;
mod layout;
mod lists;
mod magazine;
mod options;
mod owner;
mod page;
mod poison;
mod registry;
mod report;
mod store;
mod table;
mod thread;
mod watch;

pub use cache::{KmemCache, Obj};
pub use info::{CacheInfo, parse_slabinfo, render_slabinfo};
pub use options::{DebugAction, DebugRules, FaultRule, OptionError, SlabDebug, SlabOptions};
pub use registry::Registry;
pub use report::{SlabBug, SlabReport};
pub use table::{ObjId, ObjTable, ReadGuard, WriteGuard};

bitflags::bitflags! {
    /// How a cache lays out its objects; the kernel's SLAB_* flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SlabFlags: u32 {
        /// Objects start on a cache line (64 bytes).
        const HWCACHE_ALIGN = 1;
        /// A magazine per thread stands in front of the slabs.
        const MAGAZINES = 2;
    }
}

/// The cache could not supply an object (out of memory, or an injected fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocError;

impl std::fmt::Display for AllocError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no memory for an object")
    }
}

impl std::error::Error for AllocError {}

#[cfg(test)]
mod tests;
