//! `cargo bench --bench dentry [-- OPTIONS]`: the experiment of 2007.
//!
//! May `d_alloc` set each field of a dentry, or should it zero the whole dentry
//! first and then set what is not zero? Measured on a dentry laid out as in the
//! mail (eight pointers, counters, an inline name of 36 bytes) and on one laid
//! out as ours, 1,000,000 allocations from a ring of 2,000,000:
//!
//! * cold: the ring is fresh, each page is faulted in by the first touch;
//! * prefaulted: the pages are there, the cache lines are not;
//! * hot: 64 dentries, always in the first-level cache.

use std::hint::black_box;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use clap::Parser;
use serde_json::json;

#[path = "chart.rs"]
mod chart;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "support.rs"]
mod support;

use support::{Random, Ratio, Samples, Table};

/// Measures d_alloc with fields set one by one against the whole dentry zeroed first.
#[derive(Parser)]
#[command(name = "dentry")]
struct Args {
    /// Allocations in one round
    #[arg(long, default_value_t = 1_000_000)]
    allocations: usize,
    /// Dentries in the ring
    #[arg(long, default_value_t = 2_000_000)]
    ring: usize,
    /// Rounds; five at least for a verdict
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Write the result to FILE [default: bench/results/dentry.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What cargo passes to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

/// Nanoseconds per allocation in the mail: each field set, and zeroed first.
const MAIL: [f64; 2] = [182.75, 315.89];

/// How a dentry is initialised.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Init {
    /// Each field by a store of its own, as the source is written.
    Fields,
    /// The same assignments, which the compiler may merge into wide stores.
    Merged,
    /// All bytes to zero, then the fields that are not zero.
    Zero,
}

impl Init {
    const ALL: [Init; 3] = [Init::Fields, Init::Merged, Init::Zero];

    fn name(self) -> &'static str {
        match self {
            Init::Fields => "fields",
            Init::Merged => "fields merged",
            Init::Zero => "zero first",
        }
    }
}

/// A dentry of some layout in `WORDS` words of 8 bytes.
trait Layout: Sized {
    /// Its size.
    const WORDS: usize;
    /// For tables.
    const NAME: &'static str;

    /// These words as a dentry.
    fn of(words: &mut [u64]) -> &mut Self;

    /// Every field by an assignment; the compiler may merge neighbours into wide stores.
    fn set_merged(&mut self, new: &New<'_>);

    /// Every field by a store of its own.
    fn set_fields(&mut self, new: &New<'_>);

    /// The fields that are not zero.
    fn set_rest(&mut self, new: &New<'_>);

    /// The name, which both ways copy.
    fn set_name(&mut self, name: &[u8]);

    /// `d_alloc` in these words.
    #[inline]
    fn d_alloc(words: &mut [u64], how: Init, new: &New<'_>) {
        if how == Init::Zero {
            words.fill(0);
            // Without this the compiler would drop the zeroes that are overwritten below.
            black_box(&mut *words);
        }
        let dentry = Self::of(words);
        match how {
            Init::Fields => dentry.set_fields(new),
            Init::Merged => dentry.set_merged(new),
            Init::Zero => dentry.set_rest(new),
        }
        dentry.set_name(new.name);
        black_box(dentry);
    }
}

/// What the caller of `d_alloc` knows.
struct New<'a> {
    parent: u64,
    name: &'a [u8],
    hash: u32,
}

macro_rules! view {
    ($words:literal) => {
        const WORDS: usize = $words;

        #[allow(
            unsafe_code,
            reason = "the only view of lazily zeroed memory as a struct"
        )]
        fn of(words: &mut [u64]) -> &mut Self {
            const { assert!(size_of::<Self>() == 8 * Self::WORDS && align_of::<Self>() <= 8) };
            assert_eq!(words.len(), Self::WORDS);
            // SAFETY: Self is as large as the words and no more aligned (both checked above), is
            // repr(C), has no padding, and its integers may hold any bits; the words stay
            // borrowed mutably as long as the dentry is.
            unsafe { &mut *words.as_mut_ptr().cast() }
        }
    };
}

/// As in the mail. The fields are atomics, since relaxed stores are never merged.
#[repr(C)]
struct Mail {
    count: AtomicU32,
    flags: AtomicU32,
    lock: AtomicU32,
    mounted: AtomicU32,
    inode: AtomicU64,
    hash_next: AtomicU64,
    hash_pprev: AtomicU64,
    parent: AtomicU64,
    hash: AtomicU32,
    len: AtomicU32,
    name: AtomicU64,
    op: AtomicU64,
    sb: AtomicU64,
    fsdata: AtomicU64,
    time: AtomicU32,
    seq: AtomicU32,
    cookie: AtomicU32,
    inline: [u8; 36],
}

impl Layout for Mail {
    const NAME: &'static str = "mail's layout";
    view!(17);

    #[inline]
    fn set_fields(&mut self, new: &New<'_>) {
        self.count.store(1, Relaxed);
        self.flags.store(0, Relaxed);
        self.lock.store(0, Relaxed);
        self.mounted.store(0, Relaxed);
        self.inode.store(0, Relaxed);
        self.hash_next.store(0, Relaxed);
        self.hash_pprev.store(0, Relaxed);
        self.parent.store(new.parent, Relaxed);
        self.hash.store(new.hash, Relaxed);
        self.len.store(new.name.len() as u32, Relaxed);
        self.name.store(self.inline.as_ptr() as u64, Relaxed);
        self.op.store(0, Relaxed);
        self.sb.store(new.parent, Relaxed);
        self.fsdata.store(0, Relaxed);
        self.time.store(0, Relaxed);
        self.seq.store(0, Relaxed);
        self.cookie.store(0, Relaxed);
    }

    #[inline]
    fn set_merged(&mut self, new: &New<'_>) {
        *self.count.get_mut() = 1;
        *self.flags.get_mut() = 0;
        *self.lock.get_mut() = 0;
        *self.mounted.get_mut() = 0;
        *self.inode.get_mut() = 0;
        *self.hash_next.get_mut() = 0;
        *self.hash_pprev.get_mut() = 0;
        *self.parent.get_mut() = new.parent;
        *self.hash.get_mut() = new.hash;
        *self.len.get_mut() = new.name.len() as u32;
        *self.name.get_mut() = self.inline.as_ptr() as u64;
        *self.op.get_mut() = 0;
        *self.sb.get_mut() = new.parent;
        *self.fsdata.get_mut() = 0;
        *self.time.get_mut() = 0;
        *self.seq.get_mut() = 0;
        *self.cookie.get_mut() = 0;
    }

    #[inline]
    fn set_rest(&mut self, new: &New<'_>) {
        self.count.store(1, Relaxed);
        self.parent.store(new.parent, Relaxed);
        self.hash.store(new.hash, Relaxed);
        self.len.store(new.name.len() as u32, Relaxed);
        self.name.store(self.inline.as_ptr() as u64, Relaxed);
        self.sb.store(new.parent, Relaxed);
    }

    #[inline]
    fn set_name(&mut self, name: &[u8]) {
        self.inline[..name.len()].copy_from_slice(name);
        self.inline[name.len()] = 0;
    }
}

/// As the dentry of src/dcache: 32-bit ids for pointers, an inline name of 22 bytes.
#[repr(C)]
struct Ours {
    parent: AtomicU32,
    inode: AtomicU32,
    epoch: AtomicU32,
    kind: AtomicU8,
    len: AtomicU8,
    referenced: AtomicU8,
    dead: AtomicU8,
    inline: [u8; 24],
}

impl Layout for Ours {
    const NAME: &'static str = "our layout";
    view!(5);

    #[inline]
    fn set_fields(&mut self, new: &New<'_>) {
        self.parent.store(new.parent as u32, Relaxed);
        self.inode.store(0, Relaxed);
        self.epoch.store(new.hash, Relaxed);
        self.kind.store(0, Relaxed);
        self.len.store(new.name.len() as u8, Relaxed);
        self.referenced.store(1, Relaxed);
        self.dead.store(0, Relaxed);
    }

    #[inline]
    fn set_merged(&mut self, new: &New<'_>) {
        *self.parent.get_mut() = new.parent as u32;
        *self.inode.get_mut() = 0;
        *self.epoch.get_mut() = new.hash;
        *self.kind.get_mut() = 0;
        *self.len.get_mut() = new.name.len() as u8;
        *self.referenced.get_mut() = 1;
        *self.dead.get_mut() = 0;
    }

    #[inline]
    fn set_rest(&mut self, new: &New<'_>) {
        self.parent.store(new.parent as u32, Relaxed);
        self.epoch.store(new.hash, Relaxed);
        self.len.store(new.name.len() as u8, Relaxed);
        self.referenced.store(1, Relaxed);
    }

    #[inline]
    fn set_name(&mut self, name: &[u8]) {
        self.inline[..name.len()].copy_from_slice(name);
    }
}

/// The state of the memory that the dentries come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Cold,
    Prefaulted,
    Hot,
}

impl Memory {
    const ALL: [Memory; 3] = [Memory::Cold, Memory::Prefaulted, Memory::Hot];

    fn name(self) -> &'static str {
        match self {
            Memory::Cold => "cold",
            Memory::Prefaulted => "prefaulted",
            Memory::Hot => "hot",
        }
    }

    fn ring(self, size: usize) -> usize {
        if self == Memory::Hot { 64 } else { size }
    }
}

/// Nanoseconds per allocation.
fn round<L: Layout>(args: &Args, memory: Memory, how: Init, names: &[Vec<u8>]) -> f64 {
    let ring = memory.ring(args.ring);
    // Zeroed by the kernel, page by page, when first touched.
    let mut words = vec![0u64; ring * L::WORDS];
    if memory != Memory::Cold {
        words.iter_mut().step_by(64).for_each(|w| *w = 1);
    }
    match how {
        // One loop per way, so that the way is no branch inside it.
        Init::Fields => time::<L>(args.allocations, &mut words, Init::Fields, names),
        Init::Merged => time::<L>(args.allocations, &mut words, Init::Merged, names),
        Init::Zero => time::<L>(args.allocations, &mut words, Init::Zero, names),
    }
}

#[inline(always)]
fn time<L: Layout>(count: usize, words: &mut [u64], how: Init, names: &[Vec<u8>]) -> f64 {
    let start = cpu_time();
    let mut left = count;
    let mut number = 0;
    while left > 0 {
        for dentry in words.chunks_exact_mut(L::WORDS).take(left) {
            let name = &names[number % names.len()];
            L::d_alloc(
                dentry,
                how,
                &New {
                    parent: 1 + number as u64,
                    name,
                    hash: number as u32,
                },
            );
            number += 1;
        }
        left = count - number.min(count);
    }
    (cpu_time() - start).as_nanos() as f64 / count as f64
}

/// Processor time of this thread, page faults included: what others do meanwhile is not in it.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// One memory state of one layout: samples per way, interleaved.
struct Row {
    layout: &'static str,
    bytes: usize,
    memory: Memory,
    samples: [Samples; 3],
}

impl Row {
    fn of<L: Layout>(args: &Args, memory: Memory, names: &[Vec<u8>]) -> Self {
        let mut samples = [Samples::default(), Samples::default(), Samples::default()];
        for number in 0..usize::from(args.rounds) {
            for way in support::rotation(Init::ALL.len(), number) {
                samples[way]
                    .0
                    .push(round::<L>(args, memory, Init::ALL[way], names));
            }
        }
        Self {
            layout: L::NAME,
            bytes: 8 * L::WORDS,
            memory,
            samples,
        }
    }

    /// How much longer a way takes than to zero first.
    fn gain(&self, way: Init) -> Ratio {
        Ratio::of(
            &self.samples[way as usize],
            &self.samples[Init::Zero as usize],
        )
    }
}

/// What the ratio to "zero first" says.
fn words(gain: &Ratio) -> &'static str {
    match gain.verdict() {
        "slower" => "zero first is faster",
        "faster" => "fields are faster",
        other => other,
    }
}

fn report(rows: &[Row]) -> Table {
    let mut table = Table::new([
        "ns per d_alloc",
        "bytes",
        "memory",
        "fields",
        "merged",
        "zero first",
        "fields/zero",
        "90 %",
        "merged/zero",
        "90 %",
        "so",
    ]);
    let interval = |r: &Ratio| {
        r.interval
            .map_or("-".into(), |(l, h)| format!("{l:.2}-{h:.2}"))
    };
    table.line([
        "the mail, 2007".to_owned(),
        "124".into(),
        "cold".into(),
        format!("{:.2}", MAIL[0]),
        "-".into(),
        format!("{:.2}", MAIL[1]),
        format!("{:.2}", MAIL[0] / MAIL[1]),
    ]);
    for row in rows {
        let (fields, merged) = (row.gain(Init::Fields), row.gain(Init::Merged));
        let mut line = vec![
            row.layout.to_owned(),
            row.bytes.to_string(),
            row.memory.name().into(),
        ];
        line.extend(row.samples.iter().map(|s| support::nanos(s.median())));
        line.extend([format!("{:.2}", fields.median), interval(&fields)]);
        line.extend([format!("{:.2}", merged.median), interval(&merged)]);
        line.push(words(&fields).into());
        table.line(line);
    }
    table
}

fn draw(rows: &[Row], machine: &str, file: &std::path::Path) -> io::Result<()> {
    let bar = |s: &Samples| chart::Bar {
        value: s.median(),
        low: s.min(),
        high: s.max(),
        note: "ns".into(),
    };
    let empty = || chart::Bar {
        value: f64::NAN,
        low: 0.0,
        high: 0.0,
        note: String::new(),
    };
    let mail = |value| chart::Bar {
        value,
        low: value,
        high: value,
        note: "ns".into(),
    };
    let mut groups = vec![chart::Group {
        label: "the mail, 2007".into(),
        bars: vec![mail(MAIL[0]), empty(), mail(MAIL[1])],
    }];
    groups.extend(rows.iter().map(|row| chart::Group {
        label: format!("{}, {}", row.layout, row.memory.name()),
        bars: row.samples.iter().map(bar).collect(),
    }));
    chart::Chart {
        title: "d_alloc: fields one by one, or all zero first? (2007)".into(),
        subtitle: machine.into(),
        series: Init::ALL.map(|i| i.name().to_owned()).to_vec(),
        groups,
        axis: "nanoseconds per allocation, logarithmic; black: smallest to largest round".into(),
        logarithmic: true,
        reference: None,
    }
    .write(file)
}

fn bench(args: &Args) -> io::Result<()> {
    let mut machine = support::machine();
    let pages = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    machine["huge_pages"] = json!(pages.ok().map(|p| p.trim().to_owned()));
    let mut random = Random(2007);
    let names: Vec<Vec<u8>> = (0..64)
        .map(|_| {
            (0..6 + random.below(16))
                .map(|_| b'a' + random.below(26) as u8)
                .collect()
        })
        .collect();
    let mut rows = Vec::new();
    for memory in Memory::ALL {
        rows.push(Row::of::<Mail>(args, memory, &names));
        rows.push(Row::of::<Ours>(args, memory, &names));
    }
    rows.sort_by_key(|r| std::cmp::Reverse(r.bytes));
    machine["load_after"] = json!(support::load());
    let line = support::machine_line(&machine);
    println!(
        "{line}\n{} allocations from a ring of {}, {} rounds\n",
        support::thousands(args.allocations as u64),
        support::thousands(args.ring as u64),
        args.rounds
    );
    println!("{}", report(&rows).render());
    println!(
        "the dentry of this build takes {} bytes.",
        size_of::<nameifs::dcache::Dentry>()
    );
    let result = json!({
        "bench": "dentry",
        "machine": machine,
        "allocations": args.allocations,
        "ring": args.ring,
        "rounds": args.rounds,
        "mail_2007": { "bytes": 124, "fields": MAIL[0], "zero_first": MAIL[1],
            "ratio": support::round(MAIL[0] / MAIL[1]) },
        "our_dentry_bytes": size_of::<nameifs::dcache::Dentry>(),
        "rows": rows.iter().map(|row| json!({
            "layout": row.layout,
            "bytes": row.bytes,
            "memory": row.memory.name(),
            "nanoseconds": Init::ALL.iter().zip(&row.samples)
                .map(|(i, s)| (i.name().to_owned(), s.json()))
                .collect::<serde_json::Map<_, _>>(),
            "fields_over_zero": row.gain(Init::Fields).json(),
            "merged_over_zero": row.gain(Init::Merged).json(),
        })).collect::<Vec<_>>(),
    });
    let file = args
        .json
        .clone()
        .unwrap_or_else(|| support::results("dentry.json"));
    support::write_json(&file, &result)?;
    draw(&rows, &line, &file.with_extension("svg"))
}

fn main() -> ExitCode {
    match bench(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bench: {e}");
            ExitCode::FAILURE
        }
    }
}
