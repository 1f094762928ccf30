//! `cargo bench --bench slow [-- OPTIONS]`: first and second walks of a source that
//! answers each call in a millisecond.
//!
//! The slow source is a plain FUSE mirror of a generated tree that sleeps in each call and
//! lets the kernel cache nothing. The same find runs on it directly and through a nameifs
//! over it, mounted anew for each round.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};

#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "counter.rs"]
mod counter;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "guard.rs"]
mod guard;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "mirror.rs"]
mod mirror;
#[path = "passthrough.rs"]
mod passthrough;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "support.rs"]
mod support;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "tree.rs"]
mod tree;

use counter::Counter;
use mirror::{Kind, Mirror};
use support::{Ratio, Samples, Table};

/// Measures first and second finds over a slow source.
#[derive(Parser)]
#[command(name = "slow")]
struct Args {
    /// Microseconds that each call of the source takes
    #[arg(long, default_value_t = 1000)]
    delay: u64,
    /// Names of the generated tree
    #[arg(long, default_value_t = 5000)]
    names: usize,
    /// Seed of the generated tree
    #[arg(long, default_value_t = 1999)]
    seed: u64,
    /// Rounds; five at least for a verdict
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// What --readahead is to be, a column each
    #[arg(
        long,
        value_name = "N|MODE,...",
        value_delimiter = ',',
        default_value = "auto,16,64"
    )]
    readahead: Vec<String>,
    /// The coherence mode of nameifs
    #[arg(long, value_name = "MODE", default_value = "frozen")]
    coherence: String,
    /// Write the result to FILE [default: bench/results/slow.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What cargo passes to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

/// Longest time for one walk.
const TIMEOUT: &str = "300";

const WALKS: [(&str, &[&str]); 2] = [("find", &[]), ("find -printf %s", &["-printf", "%s\\n"])];

/// Runs find; seconds, and lines that it printed.
fn walk(root: &Path, what: &[&str]) -> io::Result<(f64, usize)> {
    let start = Instant::now();
    let done = std::process::Command::new("timeout")
        .args([TIMEOUT, "find", "."])
        .args(what)
        .current_dir(root)
        .output()?;
    let seconds = start.elapsed().as_secs_f64();
    if !done.status.success() {
        return Err(io::Error::other(format!("find: {}", done.status)));
    }
    let lines = done.stdout.iter().filter(|b| **b == b'\n').count();
    Ok((seconds, lines))
}

/// What one column gave.
#[derive(Default)]
struct Cell {
    first: Samples,
    second: Samples,
    /// Requests that reached the mirror in the first and the second walk, and the source.
    requests: [Samples; 2],
    source: [Samples; 2],
    names: usize,
    readahead: Value,
}

/// A bed of the bench: the slow source, and who counts its requests.
struct Bed {
    slow: Mirror,
    counter: Option<Counter>,
    /// Whether the requests that are counted are those of the source.
    of_source: bool,
}

impl Bed {
    /// One walk, counted at the source or at the mirror in turn.
    fn walk(
        &mut self,
        mirror: Option<&Mirror>,
        what: &[&str],
        cell: &mut Cell,
        n: usize,
    ) -> io::Result<f64> {
        let root = mirror.map_or(self.slow.path(), Mirror::path);
        let counted = match (mirror, self.of_source) {
            (Some(mirror), false) => mirror.connection(),
            _ => self.slow.connection(),
        };
        let (seconds, names) = match &self.counter {
            None => walk(root, what)?,
            Some(counter) => {
                let (walked, requests) = counter.count(counted, || walk(root, what))?;
                let of_source = mirror.is_none() || self.of_source;
                let into = if of_source {
                    &mut cell.source
                } else {
                    &mut cell.requests
                };
                into[n].0.push(requests.total as f64);
                walked
            }
        };
        cell.names = names;
        Ok(seconds)
    }

    fn round(
        &mut self,
        options: Option<&[String]>,
        what: &[&str],
        cell: &mut Cell,
    ) -> io::Result<()> {
        let Some(options) = options else {
            let seconds = self.walk(None, what, cell, 0)?;
            cell.first.0.push(seconds);
            cell.second.0.push(seconds);
            return Ok(());
        };
        let mirror = Mirror::mount(&Kind::Nameifs(options.to_vec()), self.slow.path())?;
        let seconds = self.walk(Some(&mirror), what, cell, 0)?;
        cell.first.0.push(seconds);
        let seconds = self.walk(Some(&mirror), what, cell, 1)?;
        cell.second.0.push(seconds);
        let stats = fs::read(mirror.path().join(".nameifs/stats"))?;
        let stats: Value = serde_json::from_slice(&stats)?;
        cell.readahead = stats["readahead"].clone();
        Ok(())
    }
}

fn bench(args: &Args) -> io::Result<()> {
    let mut machine = support::machine();
    let place = tempfile::Builder::new().prefix("nameifs-slow-").tempdir()?;
    let tree = tree::generate(place.path(), args.seed, args.names)?;
    let mut bed = Bed {
        slow: Mirror::mount(&Kind::Slow(args.delay), &tree)?,
        counter: Counter::open().ok(),
        of_source: false,
    };
    let column = |mode: &String| {
        let options = vec![
            format!("--coherence={}", args.coherence),
            format!("--readahead={mode}"),
        ];
        (format!("nameifs {mode}"), Some(options))
    };
    let mut columns = vec![("directly".to_owned(), None)];
    columns.extend(args.readahead.iter().map(column));
    let mut table = Table::new([
        "walk",
        "column",
        "first",
        "ratio",
        "second",
        "ratio",
        "requests",
        "at the source",
        "second",
    ]);
    let mut results = Vec::new();
    for (name, what) in WALKS {
        let mut cells: Vec<Cell> = columns.iter().map(|_| Cell::default()).collect();
        // The last round counts at the source what the others count at the mirror.
        for round in 0..usize::from(args.rounds) {
            bed.of_source = round + 1 == usize::from(args.rounds);
            for c in support::rotation(columns.len(), round) {
                bed.round(columns[c].1.as_deref(), what, &mut cells[c])?;
                eprintln!("{name}, {}: {:.3} s", columns[c].0, cells[c].first.0[round]);
            }
        }
        let direct = &cells[0];
        for ((column, _), cell) in columns.iter().zip(&cells) {
            if cell.names != direct.names {
                let seen = format!("{column} shows {} of {} names", cell.names, direct.names);
                return Err(io::Error::other(seen));
            }
            let first = Ratio::of(&cell.first, &direct.first);
            let second = Ratio::of(&cell.second, &direct.first);
            table.line([
                name.to_owned(),
                column.clone(),
                support::seconds(cell.first.median()),
                format!("{:.3}", first.median),
                support::seconds(cell.second.median()),
                format!("{:.4}", second.median),
                format!("{}", cell.requests[0].median()),
                format!("{}", cell.source[0].median()),
                format!("{}", cell.source[1].median()),
            ]);
            let median = |s: &Samples| (!s.0.is_empty()).then(|| s.median());
            results.push(json!({
                "walk": name,
                "column": column,
                "first": cell.first.json(),
                "first_ratio": first.json(),
                "second": cell.second.json(),
                "second_ratio": second.json(),
                "requests": cell.requests.each_ref().map(median),
                "requests_at_the_source": cell.source.each_ref().map(median),
                "readahead": cell.readahead,
            }));
        }
    }
    machine["load_after"] = json!(support::load());
    println!("{}\n\n{}", support::machine_line(&machine), table.render());
    println!("ratio: to the same walk directly, round by round.");
    let file = args.json.clone();
    let file = file.unwrap_or_else(|| support::results("slow.json"));
    let result = json!({
        "bench": "slow", "machine": machine, "seed": args.seed, "names": args.names,
        "delay_us": args.delay, "rounds": args.rounds, "coherence": args.coherence,
        "results": results,
    });
    support::write_json(&file, &result)
}

/// Serves the slow source: MICROSECONDS SOURCE MOUNTPOINT.
fn serve(args: &[std::ffi::OsString]) -> io::Result<()> {
    let [micros, source, mountpoint] = args else {
        return Err(io::Error::other("MICROSECONDS SOURCE MOUNTPOINT"));
    };
    let micros = micros.to_str().and_then(|m| m.parse().ok());
    let micros = micros.ok_or_else(|| io::Error::other("no number of microseconds"))?;
    let delay = Duration::from_micros(micros);
    passthrough::serve(Path::new(source), Path::new(mountpoint), Some(delay))
}

fn main() -> ExitCode {
    let done = match (
        mirror::hidden_mode(guard::ARGUMENT),
        mirror::hidden_mode(Kind::SLOW),
    ) {
        (Some(_), _) => guard::serve(),
        (_, Some(args)) => serve(&args),
        _ => bench(&Args::parse()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bench: {e}");
            ExitCode::FAILURE
        }
    }
}
