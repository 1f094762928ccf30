//! `cargo bench --bench find [-- OPTIONS]`: the main job, three columns side by side.
//!
//! The source directly, a plain passthrough mirror, and nameifs, with the
//! rounds interleaved. A time is the median of the rounds; the spread stands
//! beside it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

#[path = "chart.rs"]
mod chart;
#[path = "counter.rs"]
mod counter;
#[path = "guard.rs"]
mod guard;
#[path = "mirror.rs"]
mod mirror;
#[path = "passthrough.rs"]
mod passthrough;
#[path = "rounds.rs"]
mod rounds;
#[path = "stats.rs"]
mod stats;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "support.rs"]
mod support;
#[path = "tree.rs"]
mod tree;
#[path = "workload.rs"]
mod workload;

use mirror::Kind;
use rounds::{Before, Cell, Column, Rounds, Row};
use support::{Ratio, Samples, Table};
use workload::{Names, Storm, Work};

/// Measures walks of a tree: directly, through a plain passthrough mirror, through nameifs.
#[derive(Parser)]
#[command(name = "find")]
struct Args {
    /// The tree to mirror
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/usr",
        conflicts_with = "tree"
    )]
    source: PathBuf,
    /// Generate a seeded tree in DIR and mirror that (kept, and used again by a later run)
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Names in a generated tree
    #[arg(long, default_value_t = 100_000)]
    names: usize,
    /// Seed of the generated tree and of the choice of names
    #[arg(long, default_value_t = 1999)]
    seed: u64,
    /// Rounds; five at least for a verdict
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Only this row (repeatable)
    #[arg(long, value_name = "ROW")]
    only: Vec<What>,
    /// Coherence modes of nameifs, a column each
    #[arg(
        long,
        value_name = "MODE,...",
        value_delimiter = ',',
        default_value = "frozen"
    )]
    coherence: Vec<String>,
    /// One more option for nameifs mount (repeatable)
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    mount_option: Vec<String>,
    /// Leave nameifs out: only the first two columns
    #[arg(long)]
    without_nameifs: bool,
    /// Write the result to FILE [default: bench/results/find.json after a run of all rows]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Longest time for one run, in seconds
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// What cargo passes to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

/// The rows.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// find, warm
    Find,
    /// find -printf %s, warm
    FindPrintf,
    /// two finds at once, warm
    FindTwo,
    /// du -s, warm
    Du,
    /// ls -lR, warm
    LsLr,
    /// known names asked one by one, warm
    StatStorm,
    /// 1,000 absent names asked 100 times, warm
    AbsentSame,
    /// 100,000 absent names asked for the first time
    AbsentNew,
    /// find after the kernel's dentries and inodes were dropped
    DroppedFind,
    /// find -printf %s after the kernel's dentries and inodes were dropped
    DroppedPrintf,
    /// the first find after mounting; directly: a warm one
    First,
}

const FIND: Work = Work::Command(&["find", "{}"], 1);
const PRINTF: Work = Work::Command(&["find", "{}", "-printf", "%s\\n"], 1);

impl What {
    fn row(self) -> Row {
        let (work, before) = match self {
            What::Find => (FIND, Before::WarmUp),
            What::FindPrintf => (PRINTF, Before::WarmUp),
            What::FindTwo => (Work::Command(&["find", "{}"], 2), Before::WarmUp),
            What::Du => (Work::Command(&["du", "-s", "{}"], 1), Before::WarmUp),
            What::LsLr => (Work::Command(&["ls", "-lR", "{}"], 1), Before::WarmUp),
            What::StatStorm => (Work::Storm(Storm::Known), Before::WarmUp),
            What::AbsentSame => (Work::Storm(Storm::AbsentSame), Before::WarmUp),
            What::AbsentNew => (Work::Storm(Storm::AbsentNew), Before::WarmUp),
            What::DroppedFind => (FIND, Before::DropCaches),
            What::DroppedPrintf => (PRINTF, Before::DropCaches),
            What::First => (FIND, Before::Mount),
        };
        let value = self.to_possible_value();
        let name = value.map_or_else(String::new, |v| v.get_name().to_owned());
        Row { name, work, before }
    }

    fn about(self) -> String {
        let value = self.to_possible_value();
        value
            .and_then(|v| v.get_help().map(ToString::to_string))
            .unwrap_or_default()
    }
}

type Results = Vec<(What, Vec<Cell>)>;

/// The three columns side by side.
fn overview(columns: &[Column], results: &Results) -> Table {
    let mut head = vec![
        "row".to_owned(),
        columns[0].name.clone(),
        "(min .. max)".into(),
    ];
    for column in &columns[1..] {
        head.extend([
            column.name.clone(),
            "ratio".into(),
            "90 %".into(),
            "requests".into(),
        ]);
    }
    let mut table = Table::new(head);
    for (what, cells) in results {
        let native = &cells[0].seconds;
        let mut line = vec![
            what.row().name,
            support::seconds(native.median()),
            spread(native),
        ];
        for cell in &cells[1..] {
            let ratio = Ratio::of(&cell.seconds, native);
            match &cell.failed {
                Some(_) => line.extend(["failed".into(), "-".into(), "-".into(), "-".into()]),
                None => line.extend([
                    support::seconds(cell.seconds.median()),
                    format!("{:.2}", ratio.median),
                    ratio
                        .interval
                        .map_or("-".into(), |(l, h)| format!("{l:.2}-{h:.2}")),
                    cell.requests(),
                ]),
            }
        }
        table.line(line);
    }
    table
}

fn spread(samples: &Samples) -> String {
    format!(
        "({} .. {})",
        support::seconds(samples.min()),
        support::seconds(samples.max())
    )
}

/// What a mirror costs beside time.
fn details(names: usize, columns: &[Column], results: &Results) -> Table {
    let mut table = Table::new([
        "row",
        "column",
        "median",
        "min",
        "max",
        "daemon CPU",
        "RSS",
        "per name",
        "counts",
    ]);
    for (what, cells) in results {
        for (column, cell) in columns.iter().zip(cells).skip(1) {
            table.line([
                what.row().name,
                column.name.clone(),
                support::seconds(cell.seconds.median()),
                support::seconds(cell.seconds.min()),
                support::seconds(cell.seconds.max()),
                format!("{:.1} ms", cell.daemon_cpu.median()),
                format!("{} MiB", cell.rss_kib / 1024),
                format!("{} B", cell.rss_kib * 1024 / names.max(1) as u64),
                match cell.difference() {
                    None => "-".into(),
                    Some(0) => "agree".into(),
                    Some(n) => format!("differ by {n}"),
                },
            ]);
        }
    }
    table
}

fn draw(columns: &[Column], results: &Results, machine: &Value, file: &Path) -> io::Result<()> {
    let bar = |cell: &Cell, native: &Cell| {
        let ratio = Ratio::of(&cell.seconds, &native.seconds);
        let (low, high) = ratio.interval.unwrap_or((ratio.median, ratio.median));
        chart::Bar {
            value: ratio.median,
            low,
            high,
            note: String::new(),
        }
    };
    let groups = results.iter().map(|(what, cells)| chart::Group {
        label: what.row().name,
        bars: cells[1..].iter().map(|cell| bar(cell, &cells[0])).collect(),
    });
    chart::Chart {
        title: "Time over the mount / time on the source".into(),
        subtitle: support::machine_line(machine),
        series: columns[1..].iter().map(|c| c.name.clone()).collect(),
        groups: groups.collect(),
        axis: "ratio, logarithmic (1 = as the source itself); black: 90 % interval".into(),
        logarithmic: true,
        reference: Some(1.0),
    }
    .write(file)
}

fn columns(args: &Args) -> Vec<Column> {
    let mut columns = vec![
        Column::new("source", None),
        Column::new("plain", Some(Kind::Plain)),
    ];
    if !args.without_nameifs {
        for mode in &args.coherence {
            let mut options = vec![format!("--coherence={mode}")];
            options.extend(args.mount_option.iter().cloned());
            columns.push(Column::new(
                &format!("nameifs {mode}"),
                Some(Kind::Nameifs(options)),
            ));
        }
    }
    columns
}

fn result(args: &Args, source: &Path, machine: &Value, all: &Rounds, rows: &Results) -> Value {
    json!({
        "bench": "find",
        "machine": machine,
        "source": match args.tree {
            Some(_) => "generated tree".to_owned(),
            None => source.display().to_string(),
        },
        "seed": args.seed,
        "names": all.names.count,
        "names_asked_by_stat_storm": all.names.asked,
        "rounds": args.rounds,
        "mount_options": args.mount_option,
        "columns": all.columns.iter().map(|c| json!({
            "column": c.name,
            "shows_the_same_tree": c.same_tree,
        })).collect::<Vec<_>>(),
        "rows": rows.iter().map(|(what, cells)| json!({
            "row": what.row().name,
            "what": what.about(),
            "columns": cells.iter().zip(&all.columns)
                .map(|(cell, column)| cell.json(&column.name, &cells[0])).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}

/// Says whether every run succeeded and every column showed the source's tree.
fn bench(args: &Args) -> io::Result<bool> {
    let source = match &args.tree {
        Some(dir) => tree::generate(dir, args.seed, args.names)?,
        None => args.source.clone(),
    };
    let source = source.canonicalize()?;
    let mut machine = support::machine();
    machine["filesystem"] = json!(mirror::filesystem(&source));
    let names = Names::collect(&source, args.seed)?;
    println!(
        "{}\n{} names, {}, {} rounds\n",
        support::machine_line(&machine),
        support::thousands(names.count as u64),
        mirror::filesystem(&source),
        args.rounds
    );
    let mut all = Rounds::start(
        &source,
        names,
        columns(args),
        Duration::from_secs(args.timeout),
    )?;
    let mut rows = Vec::new();
    for what in What::value_variants() {
        if args.only.is_empty() || args.only.contains(what) {
            let row = what.row();
            if row.before == Before::DropCaches && !rustix::process::geteuid().is_root() {
                eprintln!(
                    "{}: left out, only root may drop the kernel's caches",
                    row.name
                );
                continue;
            }
            eprintln!("{}: {}", row.name, what.about());
            rows.push((*what, all.row(&row, usize::from(args.rounds))));
        }
    }
    machine["load_after"] = json!(support::load());
    println!("{}", overview(&all.columns, &rows).render());
    println!("{}", details(all.names.count, &all.columns, &rows).render());
    println!("ratio: median of the rounds' ratios to the source; 90 %: interval that holds it.");
    println!("per name: resident memory of the daemon, all included, over the source's names.");
    println!("counts: the kernel's count of requests against .nameifs/stats, whose reading costs");
    println!("a LOOKUP or GETATTR more once a timeout has passed.");
    println!(
        "load average: {} before, {} after (others were busy where it exceeds the bench's own).",
        machine["load_before"], machine["load_after"]
    );
    let sum = |of: fn(&Cell) -> u32| rows.iter().flat_map(|(_, c)| c).map(of).sum::<u32>();
    let (repeated, disturbed) = (sum(|c| c.repeated), sum(|c| c.disturbed));
    if repeated + disturbed > 0 {
        println!(
            "others emptied the kernel's caches: {repeated} runs were repeated, {disturbed} taken all the same."
        );
    }
    let file = match &args.json {
        Some(file) => Some(file.clone()),
        None => args.only.is_empty().then(|| support::results("find.json")),
    };
    if let Some(file) = file {
        support::write_json(&file, &result(args, &source, &machine, &all, &rows))?;
        draw(&all.columns, &rows, &machine, &file.with_extension("svg"))?;
    }
    let failed = rows
        .iter()
        .any(|(_, cells)| cells.iter().any(|c| c.failed.is_some()));
    Ok(!failed && all.columns.iter().all(|c| c.same_tree))
}

fn main() -> ExitCode {
    let result = match rounds::hidden() {
        Some(result) => result.map(|()| true),
        None => bench(&Args::parse()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("bench: {e}");
            ExitCode::FAILURE
        }
    }
}
