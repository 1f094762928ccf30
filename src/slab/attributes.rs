//! The files of `/sys/kernel/slab/CACHE/`, as texts.
//!
//! Names and formats are those of Documentation/ABI/testing/sysfs-kernel-slab,
//! as far as a cache here has what they tell. `cpu_partial` is the number of
//! objects that a thread's magazines hold at most.

use super::{CacheInfo, SlabDebug, SlabFlags};

/// What the files tell.
pub(super) struct Facts<'a> {
    pub(super) row: &'a CacheInfo,
    pub(super) modes: SlabDebug,
    pub(super) flags: SlabFlags,
    pub(super) align: usize,
    pub(super) object_size: usize,
    /// Partial slabs.
    pub(super) partial: usize,
    /// Objects of partial slabs that are not free there.
    pub(super) objects_partial: usize,
    /// What the constructor makes.
    pub(super) ctor: &'a str,
    pub(super) alloc_calls: String,
    pub(super) free_calls: String,
}

/// Name and text of each file, in order of names.
pub(super) fn sysfs(facts: &Facts<'_>) -> Vec<(&'static str, String)> {
    let row = facts.row;
    let order = row.pagesperslab.max(1).next_power_of_two().ilog2();
    let mode = |mode| u8::from(facts.modes.contains(mode)).to_string();
    let mut files = vec![
        // Caches are never merged, so a cache has no other names.
        ("aliases", "0".to_owned()),
        ("align", facts.align.to_string()),
        ("cpu_partial", row.limit.to_string()),
        ("ctor", facts.ctor.to_owned()),
        (
            "hwcache_align",
            u8::from(facts.flags.contains(SlabFlags::HWCACHE_ALIGN)).to_string(),
        ),
        ("object_size", facts.object_size.to_string()),
        ("objects", row.active_objs.to_string()),
        ("objects_partial", facts.objects_partial.to_string()),
        ("objs_per_slab", row.objperslab.to_string()),
        ("order", order.to_string()),
        ("partial", facts.partial.to_string()),
        ("poison", mode(SlabDebug::POISON)),
        ("red_zone", mode(SlabDebug::RED_ZONE)),
        ("sanity_checks", mode(SlabDebug::CONSISTENCY)),
        ("shrink", String::new()),
        ("slab_size", row.objsize.to_string()),
        ("slabs", row.num_slabs.to_string()),
        ("store_user", mode(SlabDebug::STORE_USER)),
        ("total_objects", row.num_objs.to_string()),
        ("validate", String::new()),
    ];
    for (_, text) in &mut files {
        if !text.is_empty() {
            text.push('\n');
        }
    }
    files.push(("alloc_calls", facts.alloc_calls.clone()));
    files.push(("free_calls", facts.free_calls.clone()));
    files.sort_by_key(|&(name, _)| name);
    files
}
