//! Directory read-ahead: the queue itself, what is known of each directory, and the window
//! (floor F5).
//!
//! Contract: all of it is under the lock of [`super::Queue`].

use std::collections::{BTreeMap, HashMap, VecDeque};

use foldhash::quality::FixedState;

use super::{LIST_COST, TAILS, WINDOW};
use crate::clock::Millis;
use crate::dcache::{Dir, InodeId, Listing, NodeId};
use crate::source::Kind;
use crate::sync::Arc;
use crate::sync::atomic::AtomicUsize;

/// Where in the order of a depth-first reader: the number of a reader's first directory,
/// then of each name in the listing above. What is read last comes first.
pub(in crate::fs) type Place = Arc<[u32]>;

/// A directory whose names are looked up.
pub(in crate::fs) struct Filling {
    pub(in crate::fs) nodeid: NodeId,
    pub(in crate::fs) id: InodeId,
    pub(in crate::fs) dir: Arc<Dir>,
    pub(in crate::fs) listing: Arc<Listing>,
    pub(super) place: Place,
    /// Names that are not done.
    pub(super) left: AtomicUsize,
    /// Nothing was left out.
    pub(super) whole: bool,
}

/// Names of a directory with their number in its listing, the next one last.
pub(super) type Names = Vec<(u32, Box<[u8]>)>;

/// What a thread of the pool is to do next.
pub(in crate::fs) enum Unit {
    /// List a directory.
    List(NodeId, Place),
    /// Look a name up, with its place.
    Name(Arc<Filling>, Place, Box<[u8]>),
}

pub(super) enum Item {
    Dir(NodeId),
    /// Names with their number in the listing, the next one last.
    Names(Arc<Filling>, Names),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Queued,
    Filling,
    Filled,
}

pub(super) struct Known {
    pub(super) place: Place,
    pub(super) stage: Stage,
    /// Calls that it took of the window.
    pub(super) cost: usize,
    /// The reader has come by.
    pub(super) read: bool,
}

pub(super) struct State {
    pub(super) queue: BTreeMap<Place, Item>,
    pub(super) known: HashMap<NodeId, Known>,
    /// Directories that somebody lists right now.
    pub(super) listing: Vec<NodeId>,
    /// Filled, and not read so far.
    pub(super) ahead: BTreeMap<Place, NodeId>,
    /// Directories with names left out, and the lookups in them since.
    pub(super) tails: VecDeque<(Arc<Filling>, u32)>,
    /// Names being looked up: directory, hash.
    pub(super) flights: Vec<(NodeId, u64)>,
    /// Requests at the source on their own.
    pub(super) alone: usize,
    /// Units under way.
    pub(super) busy: usize,
    /// Calls of what is ahead, and how many there may be.
    pub(super) spent: usize,
    pub(super) window: usize,
    pub(super) readers: u32,
    pub(super) last_read: Millis,
    pub(super) closed: bool,
}

/// A directory that was read from the source.
pub(in crate::fs) struct Read {
    pub(in crate::fs) id: InodeId,
    pub(in crate::fs) dir: Arc<Dir>,
    pub(in crate::fs) listing: Arc<Listing>,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            queue: BTreeMap::new(),
            known: HashMap::new(),
            listing: Vec::new(),
            ahead: BTreeMap::new(),
            tails: VecDeque::new(),
            flights: Vec::new(),
            alone: 0,
            busy: 0,
            spent: 0,
            window: WINDOW.0,
            readers: u32::MAX,
            last_read: 0,
            closed: false,
        }
    }

    /// Whether there is anything to be dropped when the reader leaves.
    pub(super) fn holds(&self) -> bool {
        !(self.queue.is_empty() && self.ahead.is_empty() && self.tails.is_empty())
    }

    /// A directory is not being listed any more.
    pub(super) fn unlist(&mut self, nodeid: NodeId) {
        if let Some(at) = self.listing.iter().position(|id| *id == nodeid) {
            self.listing.swap_remove(at);
        }
    }

    /// The reader has come to a directory: what is before it in the order was passed, and
    /// the window is given back.
    pub(super) fn come_by(&mut self, nodeid: NodeId, known: Known) -> Place {
        let place = known.place.clone();
        let rest = self.ahead.split_off(&place);
        let passed = std::mem::replace(&mut self.ahead, rest);
        self.ahead.remove(&place);
        let cost = |known: Option<Known>| known.map_or(0, |k| k.cost);
        let mut given = known.cost;
        given += passed
            .values()
            .map(|id| cost(self.known.remove(id)))
            .sum::<usize>();
        self.spent = self.spent.saturating_sub(given);
        match known.stage {
            Stage::Queued => drop(self.queue.remove(&place)),
            Stage::Filling => {
                let (cost, read) = (0, true);
                self.known.insert(
                    nodeid,
                    Known {
                        cost,
                        read,
                        ..known
                    },
                );
            }
            Stage::Filled => {}
        }
        place
    }

    /// All names of a directory were looked up.
    pub(super) fn filled(&mut self, filling: &Arc<Filling>) {
        if !filling.whole {
            self.tails.push_back((filling.clone(), 0));
            if self.tails.len() > TAILS {
                self.tails.pop_front();
            }
        }
        let Some(known) = self.known.get_mut(&filling.nodeid) else {
            return;
        };
        if known.stage == Stage::Filling {
            known.stage = Stage::Filled;
            if known.read {
                self.known.remove(&filling.nodeid);
            } else {
                self.ahead.insert(filling.place.clone(), filling.nodeid);
            }
        }
    }

    pub(super) fn forget(&mut self, item: &Item) {
        let nodeid = match item {
            Item::Dir(nodeid) => *nodeid,
            Item::Names(filling, _) => filling.nodeid,
        };
        let cost = self.known.remove(&nodeid).map_or(0, |k| k.cost);
        self.spent = self.spent.saturating_sub(cost);
    }

    /// The nearest thing to do that the window allows.
    pub(super) fn take(&mut self) -> Option<Unit> {
        if self.alone > 0 || self.queue.is_empty() {
            return None;
        }
        let within = self.spent < self.window;
        // What the reader itself is at needs no window; it is among the nearest.
        let place = self.queue.iter().take(8).find_map(|(place, item)| {
            let read = match item {
                Item::Dir(_) => false,
                Item::Names(f, _) => self.known.get(&f.nodeid).is_none_or(|k| k.read),
            };
            (within || read).then(|| place.clone())
        })?;
        let Some(Item::Names(filling, names)) = self.queue.get_mut(&place) else {
            let Some(Item::Dir(nodeid)) = self.queue.remove(&place) else {
                return None;
            };
            if let Some(known) = self.known.get_mut(&nodeid) {
                known.stage = Stage::Filling;
                known.cost += LIST_COST;
            }
            self.listing.push(nodeid);
            self.spent += LIST_COST;
            return Some(Unit::List(nodeid, place));
        };
        let filling = filling.clone();
        // What a request asks for is cached when it has its answer.
        let flown = |name: &[u8]| self.flights.contains(&(filling.nodeid, hash(name)));
        let next = names.iter().rposition(|(_, name)| !flown(name))?;
        let (number, name) = names.remove(next);
        if names.is_empty() {
            self.queue.remove(&place);
        }
        if let Some(known) = self.known.get_mut(&filling.nodeid)
            && !known.read
        {
            known.cost += 1;
            self.spent += 1;
        }
        self.flights.push((filling.nodeid, hash(&name)));
        let below = place.iter().copied().chain([number]).collect();
        Some(Unit::Name(filling, below, name))
    }

    /// A name is not being looked up any more.
    pub(super) fn land(&mut self, nodeid: NodeId, hash: u64) {
        let flight = (nodeid, hash);
        if let Some(at) = self.flights.iter().position(|f| *f == flight) {
            self.flights.swap_remove(at);
        }
    }
}

/// The names that are wanted, with their number in the listing, the last one first; whether
/// they are all.
pub(super) fn names_of(
    listing: &Listing,
    wanted: impl Fn(usize, Option<Kind>) -> bool,
) -> (Names, bool) {
    let all = listing.iter().enumerate();
    let all = all.filter(|(_, entry)| !matches!(entry.name, b"." | b".."));
    let mut whole = true;
    let mut names: Names = Vec::new();
    for (n, entry) in all {
        match wanted(n, entry.kind) {
            true => names.push((n as u32, entry.name.into())),
            false => whole = false,
        }
    }
    names.reverse();
    (names, whole)
}

pub(super) fn hash(name: &[u8]) -> u64 {
    use std::hash::BuildHasher;
    FixedState::with_seed(0x7265_6164_6168_6561).hash_one(name)
}
