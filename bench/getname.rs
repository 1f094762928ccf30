//! `cargo bench --bench getname [-- OPTIONS]`: the experiment of 1999.
//!
//! `find` over mounts that differ only in where a name buffer comes from: a
//! page allocated and freed for every name (the kernel's `__get_free_page` of
//! then), malloc, the slab cache without magazines, with magazines. One find,
//! then two at once, in `strict`, where every name is a request and every
//! request borrows a buffer. Then the same four supplies alone, in nanoseconds.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};

#[path = "buffers.rs"]
mod buffers;
#[path = "chart.rs"]
mod chart;
#[path = "counter.rs"]
mod counter;
#[path = "guard.rs"]
mod guard;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "mirror.rs"]
mod mirror;
#[path = "passthrough.rs"]
mod passthrough;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "rounds.rs"]
mod rounds;
#[path = "stats.rs"]
mod stats;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "support.rs"]
mod support;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "workload.rs"]
mod workload;

use buffers::{Pattern, Supply};
use mirror::Kind;
use rounds::{Before, Cell, Column, Rounds, Row};
use support::{Ratio, Samples, Table};
use workload::{Names, Work};

/// Measures name buffers: a page each time, malloc, slab, slab with magazines.
#[derive(Parser)]
#[command(name = "getname")]
struct Args {
    /// The tree to mirror
    #[arg(long, value_name = "DIR", default_value = "/usr/share")]
    source: PathBuf,
    /// Rounds of find; five at least for a verdict
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Rounds of the buffers alone
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u16).range(1..))]
    micro_rounds: u16,
    /// Only the buffers alone, without mounts
    #[arg(long)]
    micro: bool,
    /// Write the result to FILE [default: bench/results/getname.json unless --micro]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Longest time for one run, in seconds
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// What cargo passes to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

/// Seconds in the mail, before and after: one find, two finds at once.
const MAIL: [(&str, f64, f64); 2] = [("one find", 1.53, 1.48), ("two finds", 1.83, 1.75)];

/// The rows, and how many finds each runs at once.
const ROWS: [(&str, usize); 2] = [("one find", 1), ("two finds", 2)];

/// Whether this build's nameifs can be told where its name buffers come from.
fn has_option() -> io::Result<bool> {
    let help = Command::new(env!("CARGO_BIN_EXE_nameifs"))
        .args(["mount", "--help"])
        .output()?;
    Ok(String::from_utf8_lossy(&help.stdout).contains("--getname"))
}

fn mounts(args: &Args) -> io::Result<(Rounds, Vec<Vec<Cell>>)> {
    let source = args.source.canonicalize()?;
    let names = Names::collect(&source, 1999)?;
    let options = |supply: Supply| {
        [
            "--coherence=strict".into(),
            "--readdirplus=never".into(),
            format!("--getname={supply}"),
        ]
    };
    let columns = Supply::ALL
        .map(|s| Column::new(&s.to_string(), Some(Kind::Nameifs(options(s).to_vec()))))
        .into();
    let mut all = Rounds::start(&source, names, columns, Duration::from_secs(args.timeout))?;
    let mut rows = Vec::new();
    for (name, copies) in ROWS {
        eprintln!("{name}, {} rounds", args.rounds);
        let row = Row {
            name: name.into(),
            work: Work::Command(&["find", "{}", "-printf", "%s\\n"], copies),
            before: Before::WarmUp,
        };
        rows.push(all.row(&row, usize::from(args.rounds)));
    }
    Ok((all, rows))
}

/// As the mail told it: user, system, elapsed; and the same of the daemon.
fn find_table(rows: &[Vec<Cell>]) -> Table {
    let mut table = Table::new([
        "",
        "buffer",
        "elapsed",
        "(min .. max)",
        "user",
        "system",
        "daemon user",
        "system",
        "requests",
        "/ page",
        "90 %",
        "so",
    ]);
    for ((name, before, after), cells) in MAIL.into_iter().zip(rows) {
        for (supply, seconds) in [("page, 1999", before), ("slab, 1999", after)] {
            let mut line = vec![name.to_owned(), supply.into(), format!("{seconds:.2} s")];
            line.extend((0..6).map(|_| "-".to_owned()));
            line.push(format!("{:.3}", seconds / before));
            table.line(line);
        }
        for (supply, cell) in Supply::ALL.into_iter().zip(cells) {
            if let Some(failed) = &cell.failed {
                table.line([name, &supply.to_string(), "failed", failed]);
                continue;
            }
            let ratio = Ratio::of(&cell.seconds, &cells[0].seconds);
            let first = supply == Supply::ALL[0];
            let median = |s: &Samples| support::seconds(s.median());
            table.line([
                name.to_owned(),
                supply.to_string(),
                median(&cell.seconds),
                format!(
                    "({} .. {})",
                    support::seconds(cell.seconds.min()),
                    support::seconds(cell.seconds.max())
                ),
                median(&cell.user),
                median(&cell.system),
                median(&cell.daemon_user),
                median(&cell.daemon_system),
                cell.requests(),
                format!("{:.3}", ratio.median),
                ratio
                    .interval
                    .map_or("-".into(), |(l, h)| format!("{l:.3}-{h:.3}")),
                if first { "" } else { ratio.verdict() }.to_owned(),
            ]);
        }
    }
    table
}

type Micro = Vec<(Pattern, Vec<Samples>)>;

/// All supplies in every pattern, interleaved.
fn micro(rounds: u16) -> io::Result<Micro> {
    let supplies = buffers::supplies();
    let mut rows = Vec::new();
    for pattern in Pattern::ALL {
        eprintln!("buffers: {pattern}, {rounds} rounds");
        let mut samples = vec![Samples::default(); supplies.len()];
        let counts: Vec<usize> = supplies
            .iter()
            .map(|s| s.calibrate(pattern))
            .collect::<io::Result<_>>()?;
        for round in 0..usize::from(rounds) {
            for index in support::rotation(supplies.len(), round) {
                samples[index]
                    .0
                    .push(supplies[index].measure(pattern, counts[index])?);
            }
        }
        rows.push((pattern, samples));
    }
    Ok(rows)
}

fn micro_table(rows: &Micro) -> Table {
    let mut head = vec!["ns per buffer".to_owned()];
    head.extend(
        Supply::ALL
            .iter()
            .flat_map(|s| [s.to_string(), "(min .. max)".into()]),
    );
    head.extend(["malloc / magazine".into(), "page / magazine".into()]);
    let mut table = Table::new(head);
    for (pattern, samples) in rows {
        let mut line = vec![pattern.to_string()];
        for s in samples {
            line.push(support::nanos(s.median()));
            line.push(format!(
                "({} .. {})",
                support::nanos(s.min()),
                support::nanos(s.max())
            ));
        }
        let [page, malloc, _, magazine] = samples.as_slice() else {
            continue;
        };
        line.push(format!("{:.1}", Ratio::of(malloc, magazine).median));
        line.push(format!("{:.0}", Ratio::of(page, magazine).median));
        table.line(line);
    }
    table
}

/// What the buffers alone let expect of `find`, and what was seen.
fn conclusion(rows: &[Vec<Cell>], micro: &Micro) -> Vec<String> {
    let mut lines = Vec::new();
    // One find uses one serving thread at a time, two finds two: as the first two patterns.
    for (((name, _), cells), (_, alone)) in ROWS.into_iter().zip(rows).zip(micro) {
        let gain = alone[0].median() - alone[3].median();
        let page = &cells[0];
        let (Some(counted), true) = (&page.counted, cells.iter().all(|c| c.failed.is_none()))
        else {
            continue;
        };
        let request = page.seconds.median() * 1e9 / counted.total as f64;
        let ratio = Ratio::of(&cells[3].seconds, &page.seconds);
        lines.push(format!(
            "{name}: a request takes {:.1} us in all, a magazine saves {:.1} us of a page's cost: \
             at most {:.1} % of the time. Seen: ratio {:.3}, {}.",
            request / 1e3,
            gain / 1e3,
            gain / request * 100.0,
            ratio.median,
            ratio.verdict()
        ));
        let plain = Ratio::of(&cells[3].seconds, &cells[1].seconds);
        lines.push(format!(
            "{name}: magazine against malloc: ratio {:.3}, {}.",
            plain.median,
            plain.verdict()
        ));
    }
    lines
}

fn draw_find(rows: &[Vec<Cell>], machine: &str, file: &Path) -> io::Result<()> {
    let fixed = |value| chart::Bar {
        value,
        low: value,
        high: value,
        note: "s".into(),
    };
    let none = || chart::Bar {
        value: f64::NAN,
        low: 0.0,
        high: 0.0,
        note: String::new(),
    };
    let mut groups = Vec::new();
    for ((name, before, after), cells) in MAIL.into_iter().zip(rows) {
        groups.push(chart::Group {
            label: format!("{name}, 1999"),
            bars: vec![fixed(before), none(), fixed(after), none()],
        });
        groups.push(chart::Group {
            label: format!("{name}, here"),
            bars: cells
                .iter()
                .map(|c| chart::Bar {
                    value: c.seconds.median(),
                    low: c.seconds.min(),
                    high: c.seconds.max(),
                    note: "s".into(),
                })
                .collect(),
        });
    }
    chart::Chart {
        title: "find, by where a name buffer comes from (1999)".into(),
        subtitle: machine.into(),
        series: Supply::ALL.map(|s| s.to_string()).to_vec(),
        groups,
        axis: "seconds elapsed; black: smallest to largest round".into(),
        logarithmic: false,
        reference: None,
    }
    .write(file)
}

fn draw_micro(rows: &Micro, machine: &str, file: &Path) -> io::Result<()> {
    let bar = |s: &Samples| chart::Bar {
        value: s.median(),
        low: s.min(),
        high: s.max(),
        note: "ns".into(),
    };
    chart::Chart {
        title: "One name buffer: borrowed, touched, given back".into(),
        subtitle: machine.into(),
        series: Supply::ALL.map(|s| s.to_string()).to_vec(),
        groups: rows
            .iter()
            .map(|(pattern, samples)| chart::Group {
                label: pattern.to_string(),
                bars: samples.iter().map(bar).collect(),
            })
            .collect(),
        axis: "nanoseconds, logarithmic; black: smallest to largest round".into(),
        logarithmic: true,
        reference: None,
    }
    .write(file)
}

fn find_json(all: &Rounds, rows: &[Vec<Cell>]) -> Value {
    ROWS.iter()
        .zip(rows)
        .map(|((name, copies), cells)| {
            json!({
                "row": name,
                "finds_at_once": copies,
                "columns": cells.iter().zip(&all.columns)
                    .map(|(cell, column)| cell.json(&column.name, &cells[0])).collect::<Vec<_>>(),
            })
        })
        .collect()
}

/// Says whether every run succeeded.
fn bench(args: &Args) -> io::Result<bool> {
    let mut machine = support::machine();
    machine["filesystem"] = json!(mirror::filesystem(&args.source));
    let alone = micro(args.micro_rounds)?;
    let mounted = match args.micro {
        true => None,
        false if has_option()? => Some(mounts(args)?),
        false => {
            eprintln!("bench: nameifs mount has no --getname in this build: find is left out");
            None
        }
    };
    machine["load_after"] = json!(support::load());
    let line = support::machine_line(&machine);
    println!("{line}\n");
    println!("{}", micro_table(&alone).render());
    let mut conclusions = Vec::new();
    if let Some((_, rows)) = &mounted {
        println!("{}", find_table(rows).render());
        conclusions = conclusion(rows, &alone);
        println!("{}", conclusions.join("\n"));
    }
    println!(
        "load average: {} before, {} after.",
        machine["load_before"], machine["load_after"]
    );
    let result = json!({
        "bench": "getname",
        "machine": machine,
        "source": args.source.display().to_string(),
        "rounds": args.rounds,
        "mail_1999": MAIL.iter().map(|(name, before, after)| json!({
            "row": name, "page": before, "slab": after,
        })).collect::<Vec<_>>(),
        "find": mounted.as_ref().map(|(all, rows)| find_json(all, rows)),
        "buffers_ns": alone.iter().map(|(pattern, samples)| json!({
            "pattern": pattern.to_string(),
            "supplies": Supply::ALL.iter().zip(samples)
                .map(|(supply, s)| (supply.to_string(), s.json()))
                .collect::<serde_json::Map<_, _>>(),
        })).collect::<Vec<_>>(),
        "conclusion": conclusions,
    });
    let file = match &args.json {
        Some(file) => Some(file.clone()),
        None => mounted.as_ref().map(|_| support::results("getname.json")),
    };
    if let Some(file) = file {
        support::write_json(&file, &result)?;
        draw_micro(&alone, &line, &file.with_extension("micro.svg"))?;
        if let Some((_, rows)) = &mounted {
            draw_find(rows, &line, &file.with_extension("svg"))?;
        }
    }
    let failed = |rows: &[Vec<Cell>]| rows.iter().flatten().any(|c| c.failed.is_some());
    Ok(!mounted.is_some_and(|(_, rows)| failed(&rows)))
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
