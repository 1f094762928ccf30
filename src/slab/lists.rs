//! Partial, full and empty slabs, each slab on one list.
//!
//! Slabs are known by their index. A move between lists takes constant time;
//! the slab that came to a list last is used first, because it is the warmest.
//! No locks: the owner of the slabs guards its lists with them.

/// However small a cache is, it may keep empty slabs of so many bytes...
const KEPT_BYTES: usize = 8 << 20;
/// ... and however large, this fraction of its slabs.
const KEPT_FRACTION: usize = 8;

/// The empty slabs that a cache of `slabs` slabs of `bytes` each keeps. Fewer
/// would make a burst of allocations pay for fresh memory each time.
pub(super) fn kept_empty(slabs: usize, bytes: usize) -> usize {
    (KEPT_BYTES / bytes.max(1)).max(slabs / KEPT_FRACTION)
}

/// The list a slab is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// No object is out.
    Empty,
    /// Some objects are out, some are not.
    Partial,
    /// All objects are out.
    Full,
}

impl List {
    /// Where a slab belongs that has `taken` of `count` objects out.
    pub(super) fn of(taken: usize, count: usize) -> Self {
        match taken {
            0 => List::Empty,
            n if n < count => List::Partial,
            _ => List::Full,
        }
    }
}

/// The three lists.
#[derive(Debug, Default)]
pub(super) struct Lists {
    lists: [Vec<usize>; 3],
    places: Vec<Option<(List, usize)>>,
}

impl Lists {
    /// Slabs on a list.
    pub(super) fn len(&self, list: List) -> usize {
        self.lists[list as usize].len()
    }

    /// The slab that came to a list last.
    pub(super) fn last(&self, list: List) -> Option<usize> {
        self.lists[list as usize].last().copied()
    }

    /// The list that a slab is on.
    pub(super) fn list_of(&self, slab: usize) -> Option<List> {
        Some((*self.places.get(slab)?)?.0)
    }

    /// Puts a slab on a list, off any other.
    pub(super) fn put(&mut self, slab: usize, list: List) {
        if self.places.len() <= slab {
            self.places.resize(slab + 1, None);
        }
        if self.places[slab].is_some_and(|(now, _)| now == list) {
            return;
        }
        self.remove(slab);
        self.places[slab] = Some((list, self.len(list)));
        self.lists[list as usize].push(slab);
    }

    /// Takes a slab off its list.
    pub(super) fn remove(&mut self, slab: usize) {
        let Some((list, place)) = self.places.get_mut(slab).and_then(Option::take) else {
            return;
        };
        let slabs = &mut self.lists[list as usize];
        slabs.swap_remove(place);
        if let Some(&moved) = slabs.get(place) {
            self.places[moved] = Some((list, place));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_on_one_list() {
        let mut l = Lists::default();
        for slab in 0..4 {
            l.put(slab, List::Empty);
        }
        l.put(1, List::Partial);
        l.put(1, List::Partial);
        assert_eq!(
            (l.len(List::Empty), l.len(List::Partial), l.len(List::Full)),
            (3, 1, 0)
        );
        l.put(1, List::Full);
        l.remove(0);
        assert_eq!(
            (l.len(List::Empty), l.len(List::Partial), l.len(List::Full)),
            (2, 0, 1)
        );
        assert_eq!(
            [0, 1, 2, 3].map(|s| l.list_of(s)),
            [None, Some(List::Full), Some(List::Empty), Some(List::Empty)]
        );
        l.remove(2);
        l.remove(2);
        assert_eq!(l.last(List::Empty), Some(3));
    }

    #[test]
    fn the_list_follows_from_the_count() {
        assert_eq!(
            [0, 1, 2].map(|n| List::of(n, 2)),
            [List::Empty, List::Partial, List::Full]
        );
        assert_eq!(List::of(1, 1), List::Full);
    }
}
