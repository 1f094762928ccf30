//! `nameifs demo`: find on a tree, and through a mirror of it, side by side (floor F7).

use std::path::Path;

use super::measure::{self, Interrupt, Mirror, Stats, Walk};
use super::{SLABINFO, print, reason, thousands};
use crate::cli::{DemoArgs, Failure, Outcome, failed};

/// Runs the comparison and prints it.
pub fn run(args: &DemoArgs) -> Outcome {
    let rounds = measure::rounds(&args.rounds)?;
    measure::interruptible(|interrupt| compare(&args.source, rounds, interrupt))
}

/// Read-only too: the kernel then keeps no times of access, which would be asked for once
/// more.
const OPTIONS: &str = "coherence=frozen,ro";

/// Mounts, walks, prints, unmounts.
fn compare(source: &Path, rounds: usize, interrupt: &Interrupt) -> Outcome {
    let mirror = Mirror::mount(source, OPTIONS)?;
    print(&format!(
        "nameifs demo: {} mirrored on {} (frozen, read-only)\n\n\
         {:<22}{:>10}{:>11}{:>13}{:>13}\n",
        source.display(),
        mirror.mountpoint().display(),
        "find",
        "names",
        "seconds",
        "to native",
        "requests"
    ))?;
    let stats = Stats::open(mirror.mountpoint())?;
    let native = || measure::walk(source, 1, interrupt);
    let through = || {
        let before = stats.requests()?;
        let walked = measure::walk(mirror.mountpoint(), 1, interrupt)?;
        Ok::<_, Failure>((walked, stats.requests()?.saturating_sub(before)))
    };

    let first_native = native()?;
    print(&row("on the source, first", first_native, None, None))?;
    let (first, requests) = through()?;
    print(&row(
        "by nameifs, first",
        first,
        Some(first_native),
        Some(requests),
    ))?;
    let (second, requests) = through()?;
    let mut natives = vec![native()?];
    print(&row(
        "by nameifs, second",
        second,
        Some(natives[0]),
        Some(requests),
    ))?;

    let mut warm = Vec::new();
    let mut warm_requests = Vec::new();
    natives.clear();
    for _ in 0..rounds {
        natives.push(native()?);
        let (walked, requests) = through()?;
        warm.push(walked);
        warm_requests.push(requests);
    }
    warm_requests.sort_unstable();
    let (native, warm) = (median(&natives), median(&warm));
    print(&row("on the source, warm", native, None, None))?;
    print(&row(
        "by nameifs, warm",
        warm,
        Some(native),
        Some(warm_requests[rounds / 2]),
    ))?;
    print(&format!(
        "\nwarm: medians of {rounds} rounds, source and mirror in turn\n\
         requests: those that reached the daemon, without the STATFS that find asks once a walk\n"
    ))?;
    if warm.names != native.names {
        print("The numbers of names differ: the tree changed, or may not be read in full.\n")?;
    }
    let caches = std::fs::read_to_string(mirror.mountpoint().join(SLABINFO))
        .map_err(|e| failed(format!("cannot read {SLABINFO}: {}", reason(&e))))?;
    print(&format!("\n{SLABINFO}:\n{caches}"))?;
    drop(stats);
    mirror.unmount()
}

/// The walk of median duration.
fn median(walks: &[Walk]) -> Walk {
    let mut sorted = walks.to_vec();
    sorted.sort_by_key(|walk| walk.time);
    sorted[sorted.len() / 2]
}

/// One line of the table.
fn row(label: &str, walk: Walk, native: Option<Walk>, requests: Option<u64>) -> String {
    let seconds = walk.time.as_secs_f64();
    let ratio = native.map_or_else(String::new, |native| {
        format!("{:.2}", seconds / native.time.as_secs_f64().max(1e-6))
    });
    let requests = requests.map_or_else(String::new, thousands);
    let names = thousands(walk.names);
    let line = format!("{label:<22}{names:>10}{seconds:>11.3}{ratio:>13}{requests:>13}");
    line.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn walk(millis: u64) -> Walk {
        Walk {
            names: 132_597,
            time: Duration::from_millis(millis),
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[walk(3)]), walk(3));
        assert_eq!(median(&[walk(9), walk(1), walk(5)]), walk(5));
    }

    #[test]
    fn rows() {
        assert_eq!(
            row("by nameifs, warm", walk(81), Some(walk(100)), Some(0)),
            "by nameifs, warm         132,597      0.081         0.81            0\n"
        );
        assert_eq!(
            row("on the source, warm", walk(100), None, None),
            "on the source, warm      132,597      0.100\n"
        );
    }
}
