//! Where the objects of a slab lie: alignment, stride, objects per slab.
//!
//! Pure arithmetic in the manner of the kernel's `calculate_alignment` and
//! `calculate_order`. It allocates nothing and knows no object type.

use std::alloc::Layout;

use super::poison::Part;

/// Bytes of a page as `.slabinfo` counts them.
pub(super) const PAGE_SIZE: usize = 4096;
/// Bytes of a cache line.
pub(super) const CACHE_LINE: usize = 64;
/// A slab holds at least this many objects unless they are very large.
const MIN_OBJECTS: usize = 8;
/// The largest slab is `PAGE_SIZE << MAX_ORDER` bytes, as the kernel's
/// `slub_max_order`, unless one object alone needs more.
const MAX_ORDER: usize = 3;

/// The geometry of every slab of one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes of the object itself.
    pub(super) object_size: usize,
    /// Alignment of every object.
    pub(super) align: usize,
    /// Bytes of the left red zone; the object starts behind it.
    pub(super) left: usize,
    /// Bytes from one object to the next.
    pub(super) stride: usize,
    /// Objects in one slab, at least 1.
    pub(super) count: usize,
}

impl Shape {
    /// The shape for objects of `size` bytes that need `align`.
    ///
    /// With `line`, objects start on a cache line, unless they are so small
    /// that two fit into half of one. With `zones`, each object has a red zone
    /// on both sides, at least a word wide.
    ///
    /// `None` if one object with all this exceeds what an allocation may be.
    pub(super) fn new(size: usize, align: usize, line: bool, zones: bool) -> Option<Self> {
        let mut wanted = if line { CACHE_LINE } else { size_of::<usize>() };
        while wanted > 1 && size <= wanted / 2 {
            wanted /= 2;
        }
        let align = align.max(wanted).max(1);
        let zone = if zones {
            align.max(size_of::<usize>())
        } else {
            0
        };
        let right = if zones { size_of::<usize>() } else { 0 };
        let stride = zone
            .checked_add(size.max(1))?
            .checked_add(right)?
            .checked_next_multiple_of(align)?;
        Layout::from_size_align(stride, align).ok()?;
        Some(Self {
            object_size: size,
            align,
            left: zone,
            stride,
            count: objects_per_slab(stride),
        })
    }

    /// Bytes of one slab, as allocated.
    pub(super) fn slab_bytes(&self) -> usize {
        self.stride * self.count
    }

    /// Pages of one slab, as `.slabinfo` counts them: rounded up.
    pub(super) fn pages(&self) -> usize {
        self.slab_bytes().div_ceil(PAGE_SIZE)
    }

    /// What to ask the allocator for.
    pub(super) fn memory(&self) -> Layout {
        Layout::from_size_align(self.slab_bytes(), self.align)
            .expect("checked when the shape was made")
    }

    /// Offset and length of a part, from the start of the object's left red zone.
    pub(super) fn zone(&self, part: Part) -> (usize, usize) {
        let end = self.left + self.object_size;
        match part {
            Part::LeftZone => (0, self.left),
            Part::Object => (self.left, self.object_size),
            Part::RightZone if self.left > 0 => (end, self.stride - end),
            Part::RightZone => (end, 0),
        }
    }

    /// The index of the object at `offset` bytes into a slab, if one starts there.
    pub(super) fn index_of(&self, offset: usize) -> Option<usize> {
        let behind = offset.checked_sub(self.left)?;
        let index = behind / self.stride;
        (behind % self.stride == 0 && index < self.count).then_some(index)
    }
}

/// The smallest slab that holds [`MIN_OBJECTS`] and wastes at most a sixteenth
/// of its pages, then an eighth, then a quarter; else the largest slab.
fn objects_per_slab(stride: usize) -> usize {
    for fraction in [16, 8, 4] {
        for order in 0..=MAX_ORDER {
            let bytes = PAGE_SIZE << order;
            let count = bytes / stride;
            if count >= MIN_OBJECTS && bytes - count * stride <= bytes / fraction {
                return count;
            }
        }
    }
    ((PAGE_SIZE << MAX_ORDER) / stride).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_buffer_gets_the_kernels_geometry() {
        let s = Shape::new(4096, 1, true, false).unwrap();
        assert_eq!((s.align, s.stride, s.count, s.pages()), (64, 4096, 8, 8));
    }

    #[test]
    fn small_objects_share_a_cache_line() {
        assert_eq!(Shape::new(16, 4, true, false).unwrap().align, 16);
        assert_eq!(Shape::new(33, 4, true, false).unwrap().align, 64);
        assert_eq!(Shape::new(24, 8, false, false).unwrap().stride, 24);
    }

    #[test]
    fn red_zones_take_room_on_both_sides() {
        let s = Shape::new(4096, 1, true, true).unwrap();
        assert_eq!((s.left, s.stride), (64, 4224));
        assert_eq!(s.index_of(64), Some(0));
        assert_eq!(s.index_of(64 + 4224), Some(1));
        assert_eq!(s.index_of(0), None);
        assert_eq!(s.index_of(64 + s.stride * s.count), None);
    }

    #[test]
    fn every_size_has_a_slab_without_much_waste() {
        for size in (0..20_000).step_by(if cfg!(miri) { 97 } else { 1 }) {
            let s = Shape::new(size, 1, false, false).unwrap();
            assert!(
                s.count >= 1 && s.stride >= size.max(1),
                "size {size}: {s:?}"
            );
            let pages = s.pages() * PAGE_SIZE;
            assert!(
                size > 4096 || (pages - s.slab_bytes()) * 4 <= pages,
                "size {size}: {s:?}"
            );
        }
    }

    #[test]
    fn an_impossible_object_is_refused() {
        assert_eq!(Shape::new(isize::MAX as usize, 64, true, true), None);
    }
}
