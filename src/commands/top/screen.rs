//! What a screen of `nameifs top` shows: numbers to lines (floor F7).
//!
//! Contract: the lines about slabs are slabtop's, with its roundings; above them stand
//! those about names. No terminal and no mount is touched here.

use std::cmp::Ordering;
use std::time::Instant;

use nameifs::slab::CacheInfo;
use ratatui::Frame;
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use serde_json::{Map, Value};

use crate::commands::stat::page_size;

/// What the rows of caches are sorted by: by name upwards, by numbers downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Active,
    PerSlab,
    CacheSize,
    Slabs,
    ActiveSlabs,
    Name,
    Objects,
    Pages,
    Size,
    Use,
}

/// slabtop's letters, in the order of its help.
const SORTS: [(char, Sort); 10] = [
    ('a', Sort::Active),
    ('b', Sort::PerSlab),
    ('c', Sort::CacheSize),
    ('l', Sort::Slabs),
    ('v', Sort::ActiveSlabs),
    ('n', Sort::Name),
    ('o', Sort::Objects),
    ('p', Sort::Pages),
    ('s', Sort::Size),
    ('u', Sort::Use),
];

impl Sort {
    /// The order of a letter, which may be a capital as in slabtop.
    pub fn by_letter(letter: char) -> Option<Self> {
        let letter = letter.to_ascii_lowercase();
        SORTS
            .iter()
            .find(|(l, _)| *l == letter)
            .map(|&(_, sort)| sort)
    }

    /// All letters, with blanks between.
    pub fn letters() -> String {
        SORTS.map(|(letter, _)| letter.to_string()).join(" ")
    }

    fn compare(self, a: &CacheInfo, b: &CacheInfo) -> Ordering {
        let (a, b) = match self {
            Self::Name => return a.name.cmp(&b.name),
            Self::CacheSize => return cache_bytes(b).cmp(&cache_bytes(a)),
            Self::Active => (a.active_objs, b.active_objs),
            Self::PerSlab => (a.objperslab, b.objperslab),
            Self::Slabs => (a.num_slabs, b.num_slabs),
            Self::ActiveSlabs => (a.active_slabs, b.active_slabs),
            Self::Objects => (a.num_objs, b.num_objs),
            Self::Pages => (a.pagesperslab, b.pagesperslab),
            Self::Size => (a.objsize, b.objsize),
            Self::Use => (used(a), used(b)),
        };
        b.cmp(&a)
    }
}

/// Counters of one mirror that have a place on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    dentries: u64,
    negative_dentries: u64,
    bytes: u64,
    hits: u64,
    negative_hits: u64,
    misses: u64,
    requests: u64,
    calls: u64,
}

impl Counts {
    /// From `.nameifs/stats`; `None` if it lacks one of them.
    pub fn read(stats: &Map<String, Value>) -> Option<Self> {
        let section = |name: &str| stats.get(name).and_then(Value::as_object);
        let dcache = section("dcache")?;
        let count = |name: &str| dcache.get(name).and_then(Value::as_u64);
        let sum = |rows: &Map<String, Value>| rows.values().filter_map(Value::as_u64).sum();
        Some(Self {
            dentries: count("dentries")?,
            negative_dentries: count("negative_dentries")?,
            bytes: count("bytes")?,
            hits: count("hits")?,
            negative_hits: count("negative_hits")?,
            misses: count("misses")?,
            requests: sum(section("requests")?),
            calls: sum(section("source")?),
        })
    }

    fn lookups(&self) -> u64 {
        self.hits + self.negative_hits + self.misses
    }
}

/// What a mirror told at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    pub at: Instant,
    pub counts: Counts,
    pub caches: Vec<CacheInfo>,
}

/// How often a second between two samples.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rates {
    lookups: f64,
    requests: f64,
    calls: f64,
}

impl Rates {
    /// `None` where no time lies between the two.
    fn between(before: &Sample, after: &Sample) -> Option<Self> {
        let seconds = after.at.saturating_duration_since(before.at).as_secs_f64();
        let rate = |count: fn(&Counts) -> u64| {
            count(&after.counts).saturating_sub(count(&before.counts)) as f64 / seconds
        };
        (seconds > 0.0).then(|| Self {
            lookups: rate(Counts::lookups),
            requests: rate(|c| c.requests),
            calls: rate(|c| c.calls),
        })
    }
}

/// The header of the table, as wide as its rows.
const HEADER: &str =
    "  OBJS ACTIVE  USE OBJ SIZE  SLABS OBJ/SLAB CACHE SIZE NAME                   ";

/// All that is shown, and how.
#[derive(Debug)]
pub struct Screen {
    title: String,
    /// What the caches are sorted by.
    pub sort: Sort,
    /// Whether the mirror owes an answer, so that what is shown is old.
    pub late: bool,
    now: Sample,
    rates: Option<Rates>,
}

impl Screen {
    /// The first sample; without an interval there are no rates yet.
    pub fn new(title: String, sort: Sort, first: Sample) -> Self {
        Self {
            title,
            sort,
            late: false,
            now: first,
            rates: None,
        }
    }

    /// The next sample, with the rates since the last one.
    pub fn update(&mut self, next: Sample) {
        self.rates = Rates::between(&self.now, &next);
        self.now = next;
        self.late = false;
    }

    /// Everything as text.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.head();
        lines.push(String::new());
        lines.push(HEADER.to_owned());
        let mut caches: Vec<&CacheInfo> = self.now.caches.iter().collect();
        // Stable, so that equal rows do not change places between two screens.
        caches.sort_by(|a, b| self.sort.compare(a, b));
        lines.extend(caches.into_iter().map(row));
        lines
    }

    /// Draws as much as there is room for.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let styled = |text: String| {
            let header = text == HEADER;
            let line = Line::from(text);
            if header { line.reversed() } else { line }
        };
        let lines: Vec<Line<'_>> = self.lines().into_iter().map(styled).collect();
        frame.render_widget(Paragraph::new(lines), frame.area());
    }

    /// The lines above the table.
    fn head(&self) -> Vec<String> {
        let c = &self.now.counts;
        let answered = c.hits + c.negative_hits;
        let late = if self.late {
            " (it does not answer; the numbers are old)"
        } else {
            ""
        };
        let rates = self.rates.map_or_else(
            || "- / - / -".to_owned(),
            |r| format!("{:.1} / {:.1} / {:.1}", r.lookups, r.requests, r.calls),
        );
        let mut head = vec![
            format!(" {}{late}", self.title),
            labelled(
                "Dentries / Negative / Bytes",
                &format!("{} / {} / {}", c.dentries, c.negative_dentries, c.bytes),
            ),
            labelled(
                "Hits / Negative / Misses (% hit)",
                &format!(
                    "{} / {} / {} ({:.1}%)",
                    c.hits,
                    c.negative_hits,
                    c.misses,
                    share(answered as f64, c.lookups() as f64)
                ),
            ),
            labelled("Lookups / Requests / Source per s", &rates),
        ];
        head.extend(summary(&self.now.caches));
        head
    }
}

/// slabtop's five lines about all caches.
fn summary(caches: &[CacheInfo]) -> [String; 5] {
    let sum = |of: fn(&CacheInfo) -> u64| caches.iter().map(of).sum::<u64>();
    let (active, total) = (sum(|c| c.active_objs), sum(|c| c.num_objs));
    let (active_slabs, slabs) = (sum(|c| c.active_slabs), sum(|c| c.num_slabs));
    let filled = caches.iter().filter(|c| c.num_objs > 0).count() as u64;
    let all = caches.len() as u64;
    let size = |of: fn(&CacheInfo) -> u64| caches.iter().map(|c| product(of(c), c.objsize)).sum();
    let (active_bytes, bytes): (u128, u128) = (size(|c| c.active_objs), size(|c| c.num_objs));
    let sizes = || caches.iter().map(|c| u128::from(c.objsize));
    let pair = |label, active, total| {
        let used = share(active as f64, total as f64);
        labelled(label, &format!("{active} / {total} ({used:.1}%)"))
    };
    [
        pair("Active / Total Objects (% used)", active, total),
        pair("Active / Total Slabs (% used)", active_slabs, slabs),
        pair("Active / Total Caches (% used)", filled, all),
        labelled(
            "Active / Total Size (% used)",
            &format!(
                "{:.2}K / {:.2}K ({:.1}%)",
                kib(active_bytes),
                kib(bytes),
                share(active_bytes as f64, bytes as f64)
            ),
        ),
        labelled(
            "Minimum / Average / Maximum Object",
            &format!(
                "{:.2}K / {:.2}K / {:.2}K",
                kib(sizes().min().unwrap_or(0)),
                kib(bytes.checked_div(total.into()).unwrap_or(0)),
                kib(sizes().max().unwrap_or(0))
            ),
        ),
    ]
}

/// slabtop's line about one cache.
fn row(cache: &CacheInfo) -> String {
    format!(
        "{:>6} {:>6} {:>3}% {:>7.2}K {:>6} {:>8} {:>9}K {:<23}",
        cache.num_objs,
        cache.active_objs,
        used(cache),
        kib(cache.objsize.into()),
        cache.num_slabs,
        cache.objperslab,
        cache_bytes(cache) / 1024,
        cache.name
    )
}

fn labelled(label: &str, value: &str) -> String {
    format!(" {label:<34} : {value}")
}

/// Bytes of the pages that a cache has.
fn cache_bytes(cache: &CacheInfo) -> u128 {
    product(cache.num_slabs, cache.pagesperslab) * u128::from(page_size())
}

/// Two counts of 32 bits, times a page, are more than 64 bits.
fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

fn kib(bytes: u128) -> f64 {
    bytes as f64 / 1024.0
}

/// Percentage with its decimals, 0 of nothing.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 {
        part * 100.0 / whole
    } else {
        0.0
    }
}

/// Objects in use in whole percents, rounded down as slabtop does, 0 of nothing.
fn used(cache: &CacheInfo) -> u64 {
    (cache.active_objs * 100)
        .checked_div(cache.num_objs)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
