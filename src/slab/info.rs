//! Counters of the caches and their text form, version 2.1 of /proc/slabinfo.
//!
//! What it is for: [`render_slabinfo`] prints what [`super::Registry`] knows of
//! its caches; [`parse_slabinfo`] reads it back, as strictly as the strictest of
//! the format's readers.
//!
//! Its contract: the text is what `slabinfo_show` of the kernel's
//! mm/slab_common.c prints, without statistics columns: two header lines, then
//! 16 fields per cache; names are unique and made of `[A-Za-z0-9_-]`; every
//! number is below 2^32; `objperslab` is at least 1.
//!
//! What it does not do: it counts nothing; the rows come from the structures.

use std::fmt::Write;

/// The first line of `.slabinfo`.
const VERSION: &str = "slabinfo - version: 2.1";
/// The second line of `.slabinfo`.
const COLUMNS: &str = "# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> \
     : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>";
/// The longest name that every reader takes, in bytes.
pub(super) const MAX_NAME: usize = 127;

/// What one cache holds, as read from the structure itself.
///
/// `active_objs` never exceeds `num_objs`, also when read while others
/// allocate and free; it is exact when nobody does. Objects in magazines and in
/// the depot are free ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheInfo {
    /// The cache's name.
    pub name: String,
    /// Objects in use.
    pub active_objs: u64,
    /// Objects that the slabs hold, in use or free.
    pub num_objs: u64,
    /// Bytes from one object to the next.
    pub objsize: u64,
    /// Objects in one slab.
    pub objperslab: u64,
    /// Pages of 4,096 bytes in one slab, rounded up.
    pub pagesperslab: u64,
    /// Objects that a thread's magazines hold at most; 0 without magazines.
    pub limit: u64,
    /// Objects that move between a thread and the depot at once.
    pub batchcount: u64,
    /// Full magazines that the depot holds at most.
    pub sharedfactor: u64,
    /// Slabs with at least one object in use or in a magazine.
    pub active_slabs: u64,
    /// Slabs.
    pub num_slabs: u64,
    /// Objects in the depot.
    pub sharedavail: u64,
}

/// Whether every reader takes `c` in a name.
pub(super) fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// Rows to text. Numbers of 2^32 and more are shown as 2^32 - 1, and an
/// `objperslab` of 0 as 1, because readers of the format fail on others.
pub fn render_slabinfo(rows: &[CacheInfo]) -> String {
    let mut text = format!("{VERSION}\n{COLUMNS}\n");
    for row in rows {
        let n = |number: u64| number.min(u64::from(u32::MAX));
        writeln!(
            text,
            "{:<17} {:>6} {:>6} {:>6} {:>4} {:>4} : tunables {:>4} {:>4} {:>4} : slabdata {:>6} {:>6} {:>6}",
            row.name,
            n(row.active_objs),
            n(row.num_objs),
            n(row.objsize),
            n(row.objperslab).max(1),
            n(row.pagesperslab),
            n(row.limit),
            n(row.batchcount),
            n(row.sharedfactor),
            n(row.active_slabs),
            n(row.num_slabs),
            n(row.sharedavail),
        )
        .expect("writing to a String does not fail");
    }
    text
}

/// Text to rows; `None` if it is not exactly what [`render_slabinfo`] prints
/// for some rows with valid, unique names.
pub fn parse_slabinfo(text: &str) -> Option<Vec<CacheInfo>> {
    let rows: Vec<_> = text.lines().skip(2).map(parse_row).collect::<Option<_>>()?;
    let mut names: Vec<_> = rows.iter().map(|row| &row.name).collect();
    names.sort_unstable();
    let unique = names.windows(2).all(|pair| pair[0] != pair[1]);
    (unique && render_slabinfo(&rows) == text).then_some(rows)
}

fn parse_row(line: &str) -> Option<CacheInfo> {
    let mut fields = line.split_ascii_whitespace();
    let name = fields.next()?;
    if name.len() > MAX_NAME || !name.chars().all(is_name_char) {
        return None;
    }
    // Words and order are checked by rendering the row again.
    let mut number = || fields.by_ref().find_map(|field| field.parse().ok());
    Some(CacheInfo {
        name: name.to_owned(),
        active_objs: number()?,
        num_objs: number()?,
        objsize: number()?,
        objperslab: number()?,
        pagesperslab: number()?,
        limit: number()?,
        batchcount: number()?,
        sharedfactor: number()?,
        active_slabs: number()?,
        num_slabs: number()?,
        sharedavail: number()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names() -> CacheInfo {
        CacheInfo {
            name: "getname_cache".into(),
            active_objs: 3,
            num_objs: 24,
            objsize: 4096,
            objperslab: 8,
            pagesperslab: 8,
            limit: 128,
            batchcount: 64,
            sharedfactor: 32,
            active_slabs: 1,
            num_slabs: 3,
            sharedavail: 64,
        }
    }

    #[test]
    fn the_text_is_the_kernels() {
        let text = render_slabinfo(&[names()]);
        assert_eq!(
            text,
            "slabinfo - version: 2.1\n\
             # name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> \
             <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>\n\
             getname_cache          3     24   4096    8    8 : tunables  128   64   32 : slabdata      1      3     64\n"
        );
        assert_eq!(text.lines().nth(2).unwrap().split_whitespace().count(), 16);
    }

    #[test]
    fn what_readers_refuse_is_refused() {
        let good = render_slabinfo(&[names()]);
        assert_eq!(parse_slabinfo(&good), Some(vec![names()]));
        let twice = render_slabinfo(&[names(), names()]);
        let no_objects = good.replace("   4096    8 ", "   4096    0 ");
        let big = good.replace("     24 ", " 4294967296 ");
        let negative = good.replace("     24 ", "    -24 ");
        for bad in [
            "",
            &good.replace("2.1", "2.0"),
            &good.replace("# name", "#name"),
            good.trim_end(),
            &good.replace("64\n", "64 \n"),
            &good.replace("64\n", "64\n\n"),
            &good.replace("64\n", "64 : globalstat 1\n"),
            &good.replace("getname_cache", "getname cache"),
            &good.replace("getname_cache", "getname.cache"),
            &good.replace("getname_cache ", &"n".repeat(128)),
            &good.replace("tunables", "slabdata"),
            &no_objects,
            &big,
            &negative,
            &twice,
        ] {
            assert_ne!(bad, good);
            assert_eq!(parse_slabinfo(bad), None, "accepted: {bad}");
        }
    }

    #[test]
    fn numbers_too_large_are_cut() {
        let row = CacheInfo {
            num_objs: 1 << 40,
            objperslab: 0,
            ..names()
        };
        let back = parse_slabinfo(&render_slabinfo(&[row])).unwrap();
        assert_eq!(
            (back[0].num_objs, back[0].objperslab),
            (u64::from(u32::MAX), 1)
        );
    }

    prop_compose! {
        fn row()(name in "[A-Za-z0-9_-]{1,127}", n in proptest::array::uniform11(0..=u32::MAX)) -> CacheInfo {
            let n = n.map(u64::from);
            CacheInfo {
                name, active_objs: n[0], num_objs: n[1], objsize: n[2], objperslab: n[3].max(1),
                pagesperslab: n[4], limit: n[5], batchcount: n[6], sharedfactor: n[7],
                active_slabs: n[8], num_slabs: n[9], sharedavail: n[10],
            }
        }
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes, and the code is all safe")]
        fn text_and_rows_say_the_same(mut rows in proptest::collection::vec(row(), 0..5)) {
            rows.sort_by(|a, b| a.name.cmp(&b.name));
            rows.dedup_by(|a, b| a.name == b.name);
            prop_assert_eq!(parse_slabinfo(&render_slabinfo(&rows)), Some(rows));
        }
    }
}
