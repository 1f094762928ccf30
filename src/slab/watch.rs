//! Allocation and freeing under debug modes and injected faults.
//!
//! What it is for: every object of a watched cache passes here, because such a
//! cache has no magazines; other caches never come here, so that modes cost
//! nothing while they are off. Its contract: bytes are looked at under the
//! cache's lock, constructors, destructors and reports run outside it. It does
//! not know patterns ([`super::poison`]) or texts ([`super::report`]).

use std::collections::HashSet;
use std::panic::Location;
use std::sync::Arc;

use super::cache::Core;
use super::fault::Fault;
use super::lists::List;
use super::magazine::ROUNDS;
use super::owner::{self, Owner};
use super::page::{Handle, RawSlab, Taken};
use super::poison::Damage;
use super::registry::Listed;
use super::report::{Reporter, Scene, SlabBug, describe};
use super::{AllocError, CacheInfo, SlabDebug, attributes};
use crate::sync::atomic::Ordering::Relaxed;

/// The debug modes and faults of a cache.
pub(super) struct Watch {
    modes: SlabDebug,
    fault: Option<Fault>,
    reporter: Arc<Reporter>,
}

impl Watch {
    /// These modes and faults.
    pub(super) fn new(modes: SlabDebug, fault: Option<Fault>, reporter: Arc<Reporter>) -> Self {
        Self {
            modes,
            fault,
            reporter,
        }
    }

    /// Whether there are any.
    pub(super) fn is_on(&self) -> bool {
        !self.modes.is_empty() || self.fault.is_some()
    }

    /// The modes.
    pub(super) fn modes(&self) -> SlabDebug {
        self.modes
    }

    /// Whether objects have red zones.
    pub(super) fn has_zones(&self) -> bool {
        self.modes.contains(SlabDebug::RED_ZONE)
    }

    /// Whether free objects are poisoned.
    pub(super) fn poisons(&self) -> bool {
        self.modes.contains(SlabDebug::POISON)
    }

    /// Whether this allocation is to fail.
    pub(super) fn fails(&self) -> bool {
        self.fault.as_ref().is_some_and(Fault::fails)
    }

    /// `owner`, if sites are kept.
    pub(super) fn user(&self, owner: impl FnOnce() -> Arc<Owner>) -> Option<Arc<Owner>> {
        self.modes.contains(SlabDebug::STORE_USER).then(owner)
    }

    /// Tells of a bug in `cache`.
    pub(super) fn tell(&self, cache: &str, bug: SlabBug, detail: &str) {
        self.reporter
            .tell(cache, bug, detail, !self.modes.is_empty());
    }
}

impl<T: Send + 'static> Core<T> {
    pub(super) fn alloc_watched(
        &self,
        site: &'static Location<'static>,
    ) -> Result<Handle<T>, AllocError> {
        if self.watch.fails() {
            return Err(AllocError);
        }
        // Before an object is taken, so that a constructor that panics loses none.
        let value = self.watch.poisons().then(|| (self.ctor)());
        let taken = loop {
            let taken = self.state.lock().store.take();
            match taken {
                Some(taken) => break taken,
                None => self.grow()?,
            }
        };
        let addr = taken.addr();
        self.check(addr, false);
        self.state
            .lock()
            .store
            .activate(addr, self.watch.user(|| Owner::at(site)));
        self.check_lists();
        Ok(match taken {
            Taken::Constructed(handle) => handle,
            Taken::Poisoned(raw) => raw.construct(value.unwrap_or_else(|| (self.ctor)())),
        })
    }

    pub(super) fn free_watched(&self, handle: Handle<T>) -> Option<Arc<Self>> {
        // Before the destructor runs, which a second time would do harm.
        if !self.check(handle.addr(), true) {
            return None;
        }
        let taken = match self.watch.poisons() {
            true => Taken::Poisoned(handle.destroy()),
            false => Taken::Constructed(handle),
        };
        let last = self.put_taken([taken], self.watch.user(Owner::here));
        self.check_lists();
        last
    }

    /// Looks at an object that is out, in use or about to be, and tells what
    /// is broken; false if it is not out.
    fn check(&self, addr: usize, used: bool) -> bool {
        let found = self.state.lock().store.damage(addr, used);
        match &found {
            Ok(damage) => damage
                .iter()
                .for_each(|damage| self.tell(addr, damage.part.into(), Some(damage))),
            Err(misplaced) => self.tell(addr, (*misplaced).into(), None),
        }
        found.is_ok()
    }

    /// Gives slabs back to the system, after a last look at their objects.
    pub(super) fn discard(&self, slabs: Vec<RawSlab<T>>) {
        for slab in &slabs {
            for (index, damage) in slab.inspect() {
                let scene = Scene {
                    slab: slab.addr(),
                    used: 0,
                    index,
                    owners: slab.owners(index),
                };
                let detail = describe(&self.shape, &scene, Some(&damage));
                self.watch.tell(&self.name, damage.part.into(), &detail);
            }
        }
        drop(slabs);
    }

    /// Tells what is wrong with the object at `addr`.
    pub(super) fn tell(&self, addr: usize, bug: SlabBug, damage: Option<&Damage>) {
        let scene = self.state.lock().store.scene(addr);
        let detail = match scene {
            Some(scene) => describe(&self.shape, &scene, damage),
            None => format!("Object {addr:#x}\n"),
        };
        self.watch.tell(&self.name, bug, &detail);
    }

    /// Tells that `lent` objects are out although the cache has ended.
    pub(super) fn tell_leak(&self, lent: usize) {
        let mut detail = format!("objects={lent}\n");
        let state = self.state.lock();
        for slab in state.store.each().filter(|slab| slab.taken() > 0) {
            for index in slab.indices_out() {
                let [Some(owner), _] = slab.owners(index) else {
                    continue;
                };
                let at = slab.addr() + index * self.shape.stride + self.shape.left;
                detail += &format!("Object {at:#x} allocated in {owner}\n");
            }
        }
        drop(state);
        self.watch.tell(&self.name, SlabBug::Remaining, &detail);
    }

    fn check_lists(&self) -> usize {
        if !self.watch.modes().contains(SlabDebug::CONSISTENCY) {
            return 0;
        }
        let consistent = self.state.lock().store.is_consistent();
        if !consistent {
            self.watch.tell(
                &self.name,
                SlabBug::Inconsistent,
                "slabs, lists and counts differ\n",
            );
        }
        usize::from(!consistent)
    }
}

impl<T: Send + 'static> Listed for Core<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> CacheInfo {
        self.row()
    }

    fn ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    fn shrink(&self) -> usize {
        self.shrink_all()
    }

    fn validate(&self) -> usize {
        let state = self.state.lock();
        let inspect = |slab: &RawSlab<T>| {
            let place = |index| slab.addr() + index * self.shape.stride + self.shape.left;
            slab.inspect()
                .into_iter()
                .map(|(index, damage)| (place(index), damage))
                .collect::<Vec<_>>()
        };
        let damage: Vec<_> = state.store.each().flat_map(inspect).collect();
        let consistent = state.store.is_consistent();
        drop(state);
        let found = damage.len() + usize::from(!consistent);
        damage
            .iter()
            .for_each(|(addr, damage)| self.tell(*addr, damage.part.into(), Some(damage)));
        if !consistent {
            self.watch.tell(
                &self.name,
                SlabBug::Inconsistent,
                "slabs, lists and counts differ\n",
            );
        }
        found
    }

    fn attributes(&self) -> Vec<(&'static str, String)> {
        let row = self.row();
        let state = self.state.lock();
        let store = &state.store;
        let owners = |used: bool, which: usize| {
            let of = move |slab: &RawSlab<T>| {
                let out: HashSet<_> = slab.indices_out().collect();
                let wanted = (0..self.shape.count).filter(|index| out.contains(index) == used);
                wanted
                    .filter_map(|index| slab.owners(index)[which].clone())
                    .collect::<Vec<_>>()
            };
            store.each().flat_map(of).collect::<Vec<_>>()
        };
        let (holders, freers) = (owners(true, 0), owners(false, 1));
        let (partial, in_partial) = (store.on(List::Partial), store.taken_of_partial());
        drop(state);
        attributes::sysfs(&attributes::Facts {
            row: &row,
            modes: self.watch.modes(),
            flags: self.flags,
            align: self.shape.align,
            object_size: self.shape.object_size,
            partial,
            objects_partial: in_partial,
            ctor: std::any::type_name::<T>(),
            alloc_calls: owner::calls(holders.into_iter()),
            free_calls: owner::calls(freers.into_iter()),
        })
    }
}

impl<T: Send + 'static> Core<T> {
    /// The row of `.slabinfo`.
    pub(super) fn row(&self) -> CacheInfo {
        let state = self.state.lock();
        let store = &state.store;
        let on = self.threads.is_on();
        let shown = |number: usize| if on { number as u64 } else { 0 };
        CacheInfo {
            name: self.name.clone(),
            active_objs: state.lent(&self.threads) as u64,
            num_objs: (store.slabs() * self.shape.count) as u64,
            objsize: self.shape.stride as u64,
            objperslab: self.shape.count as u64,
            pagesperslab: self.shape.pages() as u64,
            limit: shown(2 * ROUNDS),
            batchcount: shown(ROUNDS),
            sharedfactor: shown(state.depot.capacity()),
            active_slabs: (store.slabs() - store.on(List::Empty)) as u64,
            num_slabs: store.slabs() as u64,
            sharedavail: state.depot.rounds() as u64,
        }
    }
}
