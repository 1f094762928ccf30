//! `cargo bench --bench names [-- OPTIONS]`: what a cached name costs in memory, and what
//! it costs to find one, at a million and at ten million names.
//!
//! The names are of a source that makes its tree up (generated.rs). All of them are read
//! as READDIRPLUS reads them and stay referred to by "the kernel", so nothing may be
//! let go of: the worst case. Each size runs in a process of its own; its resident set
//! before and after is what is divided by the names.

use std::hint::black_box;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use nameifs::dcache::{Cached, InodeId, ROOT};
use nameifs::fs::{Coherence, Fs, Options};
use nameifs::name::QStr;
use serde_json::{Value, json};

#[path = "generated.rs"]
mod generated;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "support.rs"]
mod support;

use generated::{FILES, Generated, Profile};
use support::{Random, Samples, Table, thousands};

/// Measures memory per cached name, and random hits in the dentry cache.
#[derive(Parser)]
#[command(name = "names")]
struct Args {
    /// Names to be cached, in millions, one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10])]
    millions: Vec<u64>,
    /// Rounds of random hits
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(3..))]
    rounds: u32,
    /// Write the result to FILE [default: bench/results/names.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only this many names, in this process
    #[arg(long, hide = true)]
    names: Option<u64>,
    /// Lengths of the names
    #[arg(long, hide = true, default_value = "short")]
    lengths: Lengths,
    /// What cargo passes to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Lengths {
    Short,
    Long,
}

fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(key));
    let number = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    number.unwrap_or(0) << 10
}

fn rss() -> u64 {
    status("VmRSS:")
}

/// Reads the whole tree with attributes, each entry taken.
fn fill(fs: &Fs<Generated>) -> u64 {
    let (mut todo, mut names) = (vec![ROOT], 0);
    while let Some(nodeid) = todo.pop() {
        let mut take = |entry: nameifs::fs::DirEntry<'_>| {
            if let Some(found) = entry.entry {
                names += 1;
                if entry.kind == nameifs::source::Kind::Directory {
                    todo.push(found.nodeid);
                }
            }
            true
        };
        fs.readdir(nodeid, 0, true, &mut take)
            .expect("a generated directory can be read");
    }
    names
}

/// A name to be looked up: parent, name.
struct Wanted {
    parent: InodeId,
    dir: Arc<nameifs::dcache::Dir>,
    name: [u8; 64],
    len: usize,
}

const BATCH: usize = 100_000;

fn wanted(fs: &Fs<Generated>, random: &mut Random) -> Vec<Wanted> {
    let inodes = &fs.namei().dcache.inodes;
    let source = &fs.namei().source;
    let pick = |_| {
        let dir = random.below(source.dirs() as usize) as u64;
        let nodeid = if dir == 0 { ROOT } else { Generated::ino(dir) };
        let parent = inodes.find(nodeid).expect("all are cached");
        let mut name = [0; 64];
        let len = source.name(dir, random.below(FILES as usize) as u64, &mut name);
        let dir = fs.namei().dir(parent).expect("a directory");
        Wanted {
            parent,
            dir,
            name,
            len,
        }
    };
    (0..BATCH).map(pick).collect()
}

/// Nanoseconds for each of the hits.
fn hits(fs: &Fs<Generated>, wanted: &[Wanted]) -> f64 {
    let start = Instant::now();
    for w in wanted {
        let name = QStr::new(&w.name[..w.len]).expect("a name");
        let found = fs.namei().dcache.lookup(w.parent, &w.dir, name);
        assert!(matches!(found, Some(Cached::Positive(_))), "a cached name");
    }
    start.elapsed().as_secs_f64() * 1e9 / wanted.len() as f64
}

/// Nanoseconds for two loads from `memory`, the second where the first says; the next
/// pair waits for it.
fn two_loads(memory: &[u64], random: &mut Random) -> f64 {
    let start = Instant::now();
    let mut at = random.below(memory.len());
    for _ in 0..BATCH {
        let first = memory[at] as usize;
        at = memory[first] as usize;
        at = (at ^ first >> 1) % memory.len();
    }
    black_box(at);
    start.elapsed().as_secs_f64() * 1e9 / BATCH as f64
}

/// One size, in this process.
fn measure(args: &Args, names: u64) -> Value {
    let profile = match args.lengths {
        Lengths::Short => Profile::Short,
        Lengths::Long => Profile::Long,
    };
    let before = rss();
    let options = Options {
        coherence: Coherence::Frozen,
        cache_size: 64 << 30,
        ..Options::default()
    };
    let fs = Fs::new(Generated::new(names, profile), options).expect("a source that can be read");
    let start = Instant::now();
    let read = fill(&fs);
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(read, fs.namei().source.names(), "every name once");
    let after = rss();
    let counted = fs.namei().dcache.bytes();
    let caches: Vec<Value> = fs
        .slabinfo()
        .into_iter()
        .filter(|c| c.active_objs > 0)
        .map(|c| json!({"name": c.name, "objects": c.active_objs, "size": c.objsize, "slabs": c.num_slabs}))
        .collect();

    let mut random = Random(7);
    let memory: Vec<u64> = {
        let len = (after - before) / 8;
        (0..len).map(|_| random.next() % len).collect()
    };
    let (mut one, mut two, mut loads) =
        (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..args.rounds {
        let batch = wanted(&fs, &mut random);
        loads.0.push(two_loads(&memory, &mut random));
        one.0.push(hits(&fs, &batch));
        let batches = [wanted(&fs, &mut random), wanted(&fs, &mut random)];
        let barrier = Barrier::new(2);
        let each = thread::scope(|scope| {
            let threads = batches.map(|batch| {
                let (fs, barrier) = (&fs, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    hits(fs, &batch)
                })
            });
            threads.map(|t| t.join().expect("no panic"))
        });
        two.0.push((each[0] + each[1]) / 2.0);
    }
    let per_name = (after - before) as f64 / read as f64;
    json!({
        "names": read,
        "lengths": format!("{:?}", args.lengths).to_lowercase(),
        "bytes_per_name": support::round(per_name),
        "bytes_per_name_counted": support::round(counted as f64 / read as f64),
        "fill_ns_per_name": support::round(seconds * 1e9 / read as f64),
        "hit_ns": one.json(),
        "hit_ns_of_two_threads": two.json(),
        "two_dependent_loads_ns": loads.json(),
        "caches": caches,
    })
}

fn child(args: &Args, names: u64, lengths: &str) -> io::Result<Value> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--names", &names.to_string(), "--lengths", lengths])
        .args(["--rounds", &args.rounds.to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn run(args: &Args) -> io::Result<()> {
    let machine = support::machine();
    println!("{}", support::machine_line(&machine));
    let mut table = Table::new([
        "names",
        "lengths",
        "bytes/name",
        "counted",
        "fill",
        "hit",
        "/ two loads",
        "two threads / one",
    ]);
    let mut results = Vec::new();
    for &millions in &args.millions {
        for lengths in ["short", "long"] {
            let result = child(args, millions * 1_000_000, lengths)?;
            let number = |key: &str| result[key].as_f64().unwrap_or(f64::NAN);
            let median = |key: &str| result[key]["median"].as_f64().unwrap_or(f64::NAN);
            table.line([
                thousands(result["names"].as_u64().unwrap_or(0)),
                lengths.to_owned(),
                format!("{:.0}", number("bytes_per_name")),
                format!("{:.0}", number("bytes_per_name_counted")),
                format!("{:.0} ns", number("fill_ns_per_name")),
                format!("{:.0} ns", median("hit_ns")),
                format!("{:.2}", median("hit_ns") / median("two_dependent_loads_ns")),
                format!(
                    "{:.2}",
                    2.0 * median("hit_ns") / median("hit_ns_of_two_threads")
                ),
            ]);
            results.push(result);
        }
    }
    print!("{}", table.render());
    let path = args
        .json
        .clone()
        .unwrap_or_else(|| support::results("names.json"));
    support::write_json(&path, &json!({"machine": machine, "sizes": results}))
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(names) = args.names {
        println!("{}", measure(&args, names));
        return ExitCode::SUCCESS;
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("names: {e}");
            ExitCode::FAILURE
        }
    }
}
