//! `cargo bench --bench latency [-- OPTIONS]`: how long a change made beneath a mount in
//! mode `watch` takes to show through it.
//!
//! Each change is made on the source; from the moment its system call returns a thread
//! looks through the mount until the change shows. First on an idle machine, then with
//! finds that walk the mount all the time. The kernel keeps all that is looked at, so
//! that each change has to be told to it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};

#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "guard.rs"]
mod guard;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "mirror.rs"]
mod mirror;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "support.rs"]
mod support;

use mirror::{Kind, Mirror};
use support::Table;

/// Measures how soon a change beneath shows through a mount in mode watch.
#[derive(Parser)]
#[command(name = "latency")]
struct Args {
    /// Changes in each column
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(7..))]
    changes: u32,
    /// Where the source is made [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write the result to FILE [default: bench/results/latency.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What cargo passes to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

/// A change that takes longer is lost.
const LOST: Duration = Duration::from_secs(5);

/// Directories that the finds walk, of a hundred names each.
const DIRS: u32 = 100;

/// The kinds of change, in turn.
const KINDS: [&str; 7] = [
    "create", "chmod", "append", "rename", "replace", "unlink", "mkdir",
];

/// A tree and its mirror.
struct Bed {
    source: PathBuf,
    mirror: Mirror,
}

impl Bed {
    fn at(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.source.join(name), self.mirror.path().join(name))
    }
}

fn missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

/// Seconds from `start` until `shows`.
fn wait(start: Instant, shows: impl Fn() -> bool) -> io::Result<f64> {
    while !shows() {
        if start.elapsed() > LOST {
            return Err(io::Error::other("a change did not show within 5 s"));
        }
        // Whoever has to follow the change may need this very core.
        std::thread::yield_now();
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Makes change number `n` beneath and waits until it shows.
fn change(bed: &Bed, n: u32) -> io::Result<(usize, f64)> {
    let kind = n as usize % KINDS.len();
    let round = n / KINDS.len() as u32;
    let dir = format!("d{}", round % DIRS);
    let (below, above) = bed.at(&format!("{dir}/change"));
    let (below_new, above_new) = bed.at(&format!("{dir}/changed"));
    let looked = fs::symlink_metadata(&above).map(|m| (m.ino(), m.size()));
    let _ = fs::symlink_metadata(&above_new);
    let make = |what: &str| -> io::Result<()> {
        match what {
            "create" => fs::write(&below, "text"),
            "chmod" => fs::set_permissions(&below, Permissions::from_mode(0o600)),
            "append" => {
                use io::Write;
                let mut file = fs::File::options().append(true).open(&below)?;
                file.write_all(b"more")
            }
            "rename" => fs::rename(&below, &below_new),
            "replace" => {
                // The new file beside it is no part of what is measured.
                let fresh = below.with_extension("fresh");
                fs::write(&fresh, "another text")?;
                fs::rename(&below_new, &below)?;
                wait(Instant::now(), || missing(&above_new) && !missing(&above))?;
                fs::rename(&fresh, &below)
            }
            "unlink" => fs::remove_file(&below),
            _ => fs::create_dir(&below),
        }
    };
    make(KINDS[kind])?;
    let start = Instant::now();
    let meta = || fs::symlink_metadata(&above);
    let taken = match KINDS[kind] {
        "create" => wait(start, || meta().is_ok()),
        "chmod" => wait(start, || meta().is_ok_and(|m| m.mode() & 0o777 == 0o600)),
        "append" => {
            let before = looked.as_ref().map_or(0, |l| l.1);
            wait(start, || meta().is_ok_and(|m| m.size() > before))
        }
        "rename" => wait(start, || missing(&above) && !missing(&above_new)),
        "replace" => wait(start, || meta().is_ok_and(|m| m.size() == 12)),
        "unlink" => wait(start, || missing(&above)),
        _ => wait(start, || meta().is_ok_and(|m| m.is_dir())),
    }?;
    if KINDS[kind] == "mkdir" {
        fs::remove_dir(&below)?;
        wait(Instant::now(), || missing(&above))?;
    }
    Ok((kind, taken))
}

/// One column: seconds of each kind.
fn column(bed: &Bed, changes: u32) -> io::Result<Vec<Vec<f64>>> {
    let mut taken = vec![Vec::new(); KINDS.len()];
    for n in 0..changes {
        let (kind, seconds) = change(bed, n)?;
        taken[kind].push(seconds);
    }
    Ok(taken)
}

/// The value that `share` of the sorted ones are not above.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

fn line(table: &mut Table, machine: &str, kind: &str, taken: &[f64]) -> Value {
    let mut sorted = taken.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let [p50, p90, p99, worst] = [0.5, 0.9, 0.99, 1.0].map(|share| quantile(&sorted, share));
    let micros = |seconds: f64| format!("{:.0}", seconds * 1e6);
    table.line([
        machine.to_owned(),
        kind.to_owned(),
        support::thousands(taken.len() as u64),
        micros(p50),
        micros(p90),
        micros(p99),
        micros(worst),
    ]);
    json!({
        "machine": machine, "change": kind, "count": taken.len(),
        "p50": p50, "p90": p90, "p99": p99, "worst": worst,
    })
}

/// Finds that walk the mirror until they are dropped.
struct Busy(Vec<Child>);

impl Busy {
    fn start(mirror: &Path) -> io::Result<Self> {
        let mut busy = Self(Vec::new());
        for _ in 0..2 {
            let script = "while :; do find . -printf '%s\\n'; done";
            let child = Command::new("sh")
                .args(["-c", script])
                .current_dir(mirror)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            busy.0.push(child);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn bench(args: &Args) -> io::Result<()> {
    let machine = support::machine();
    let mut builder = tempfile::Builder::new();
    builder.prefix("nameifs-latency-");
    let place = match &args.dir {
        Some(dir) => builder.tempdir_in(dir)?,
        None => builder.tempdir()?,
    };
    let source = place.path().to_owned();
    for d in 0..DIRS {
        let dir = source.join(format!("d{d}"));
        fs::create_dir(&dir)?;
        for f in 0..100 {
            fs::write(dir.join(format!("f{f}")), "text")?;
        }
    }
    let kind = Kind::Nameifs(vec!["--coherence=watch".into(), "--ttl=1h".into()]);
    let mirror = Mirror::mount(&kind, &source)?;
    let bed = Bed { source, mirror };
    let mut table = Table::new([
        "machine", "change", "count", "p50 us", "p90", "p99", "worst",
    ]);
    let mut results = Vec::new();
    for state in ["idle", "busy"] {
        // Known to the kernel, and watched.
        for d in 0..DIRS {
            fs::read_dir(bed.at(&format!("d{d}")).1)?.for_each(drop);
        }
        eprintln!("{state}, {} changes", args.changes);
        let busy = match state {
            "busy" => Some(Busy::start(bed.mirror.path())?),
            _ => None,
        };
        let taken = column(&bed, args.changes)?;
        drop(busy);
        results.push(line(&mut table, state, "all", &taken.concat()));
        for (kind, taken) in KINDS.iter().zip(&taken) {
            results.push(line(&mut table, state, kind, taken));
        }
    }
    println!("{}\n\n{}", support::machine_line(&machine), table.render());
    let file = args.json.clone();
    let file = file.unwrap_or_else(|| support::results("latency.json"));
    let result = json!({
        "bench": "latency", "machine": machine, "filesystem": mirror::filesystem(&bed.source),
        "seconds": results,
    });
    support::write_json(&file, &result)
}

fn main() -> ExitCode {
    let done = match mirror::hidden_mode(guard::ARGUMENT) {
        Some(_) => guard::serve(),
        None => bench(&Args::parse()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bench: {e}");
            ExitCode::FAILURE
        }
    }
}
