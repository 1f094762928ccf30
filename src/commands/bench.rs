//! `nameifs bench`: the project's experiments on this machine (floor F7). The benches of
//! the source tree measure more, and draw charts.

use std::fmt::Write as _;
use std::path::Path;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use super::measure::{self, Interrupt, Mirror, Stats};
use super::{print, reason, thousands};
use crate::cli::{BenchArgs, Failure, Outcome, failed};

/// The supplies, the oldest first: what all are compared with.
const SUPPLIES: [&str; 4] = ["page", "malloc", "slab", "magazine"];

/// The rows: how many finds at once, and the seconds of the mail, with a page for each
/// name and with the slab cache.
const ROWS: [(&str, usize, f64, f64); 2] =
    [("one find", 1, 1.53, 1.48), ("two finds", 2, 1.83, 1.75)];

/// Runs an experiment and prints its table.
pub fn run(args: &BenchArgs) -> Outcome {
    let rounds = measure::rounds(&args.rounds)?;
    measure::interruptible(|interrupt| getname(&args.source, rounds, interrupt))
}

/// One run: seconds elapsed, and of the finds' own in user and system mode.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    elapsed: f64,
    user: f64,
    system: f64,
    requests: u64,
}

/// User and system seconds of all children that have ended.
fn children() -> Result<(f64, f64), Failure> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|e| {
        failed(format!(
            "cannot read the times of find: {}",
            reason(&e.into())
        ))
    })?;
    let seconds = |t: TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    Ok((seconds(usage.user_time()), seconds(usage.system_time())))
}

/// A mirror with one supply.
struct Arm {
    mirror: Mirror,
    stats: Stats,
}

impl Arm {
    fn mount(source: &Path, supply: &str) -> Result<Self, Failure> {
        // Every name is asked for, and every request borrows a buffer.
        let options = format!("coherence=strict,readdirplus=never,ro,getname={supply}");
        let mirror = Mirror::mount(source, &options)?;
        let stats = Stats::open(mirror.mountpoint())?;
        Ok(Self { mirror, stats })
    }

    fn run(&self, copies: usize, interrupt: &Interrupt) -> Result<Run, Failure> {
        let (user, system) = children()?;
        let before = self.stats.requests()?;
        let walked = measure::walk(self.mirror.mountpoint(), copies, interrupt)?;
        let after = children()?;
        Ok(Run {
            elapsed: walked.time.as_secs_f64(),
            user: after.0 - user,
            system: after.1 - system,
            requests: self.stats.requests()?.saturating_sub(before),
        })
    }
}

/// The experiment of 1999.
fn getname(source: &Path, rounds: usize, interrupt: &Interrupt) -> Outcome {
    let arms = SUPPLIES.map(|supply| Arm::mount(source, supply));
    let arms: Vec<Arm> = arms.into_iter().collect::<Result<_, _>>()?;
    print(&format!(
        "nameifs bench getname: find over {} in strict, by where a name buffer comes from;\n\
         medians of {rounds} rounds, the supplies in turn\n\n{}\n",
        source.display(),
        head()
    ))?;
    let mut verdicts = String::new();
    for (name, copies, page, slab) in ROWS {
        for arm in &arms {
            arm.run(copies, interrupt)?;
        }
        let mut runs = vec![Vec::new(); arms.len()];
        for round in 0..rounds {
            for turn in 0..arms.len() {
                let index = (turn + round) % arms.len();
                runs[index].push(arms[index].run(copies, interrupt)?);
            }
        }
        print(&mail(name, page, slab))?;
        for (supply, column) in SUPPLIES.into_iter().zip(&runs) {
            print(&line(name, supply, column, &runs[0]))?;
        }
        let _ = writeln!(verdicts, "{name}: {}", verdict(&runs[3], &runs[0]));
    }
    print(&format!("\n{verdicts}"))?;
    for arm in arms {
        drop(arm.stats);
        arm.mirror.unmount()?;
    }
    Ok(())
}

fn head() -> String {
    let words = ["elapsed", "user", "system", "to page", "requests"];
    let words = words.map(|word| format!("{word:>10}")).concat();
    format!("{:<11}{:<14}{words}", "", "buffer")
}

/// What the mail of 1999 said.
fn mail(name: &str, page: f64, slab: f64) -> String {
    let line = |supply: &str, seconds: f64| {
        let ratio = seconds / page;
        format!(
            "{name:<11}{supply:<14}{seconds:>10.3}{:>10}{:>10}{ratio:>10.3}\n",
            "", ""
        )
    };
    line("page, 1999", page) + &line("slab, 1999", slab)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    match (sorted.len() / 2, sorted.len() % 2) {
        (_, _) if sorted.is_empty() => f64::NAN,
        (middle, 0) => (sorted[middle - 1] + sorted[middle]) / 2.0,
        (middle, _) => sorted[middle],
    }
}

/// Round by round against another column: the ratios.
fn ratios<'a>(runs: &'a [Run], to: &'a [Run]) -> impl Iterator<Item = f64> + 'a {
    runs.iter().zip(to).map(|(a, b)| a.elapsed / b.elapsed)
}

fn line(name: &str, supply: &str, runs: &[Run], page: &[Run]) -> String {
    let of = |field: fn(&Run) -> f64| median(runs.iter().map(field));
    let requests = runs.last().map_or(0, |run| run.requests);
    format!(
        "{name:<11}{supply:<14}{:>10.3}{:>10.3}{:>10.3}{:>10.3}{:>10}\n",
        of(|r| r.elapsed),
        of(|r| r.user),
        of(|r| r.system),
        median(ratios(runs, page)),
        thousands(requests)
    )
}

/// What can be said of the cache against a page: nothing, unless nearly all rounds agree.
fn verdict(magazine: &[Run], page: &[Run]) -> String {
    let all: Vec<f64> = ratios(magazine, page).collect();
    let faster = all.iter().filter(|ratio| **ratio < 1.0).count();
    let rounds = all.len();
    // The sign test at about 5 %.
    let clear = match rounds {
        0..5 => rounds + 1,
        5..8 => rounds,
        _ => rounds.div_ceil(2) + (rounds as f64).sqrt().ceil() as usize,
    };
    let gain = (1.0 - median(all.iter().copied())) * 100.0;
    match faster {
        _ if faster >= clear => {
            format!(
                "the slab cache saves {gain:.1} % of a page for each name ({faster} of {rounds} rounds)"
            )
        }
        _ if rounds - faster >= clear => {
            format!(
                "a page for each name is faster by {:.1} % ({} of {rounds} rounds)",
                -gain,
                rounds - faster
            )
        }
        _ => format!(
            "no difference can be seen between the slab cache and a page for each name \
             (faster in {faster} of {rounds} rounds)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(elapsed: &[f64]) -> Vec<Run> {
        let run = |elapsed: &f64| Run {
            elapsed: *elapsed,
            ..Run::default()
        };
        elapsed.iter().map(run).collect()
    }

    #[test]
    fn medians_and_ratios() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([3.0, 1.0].into_iter()), 2.0);
        assert!(median([].into_iter()).is_nan());
        let found: Vec<f64> = ratios(&runs(&[1.0, 3.0]), &runs(&[2.0, 2.0])).collect();
        assert_eq!(found, [0.5, 1.5]);
    }

    #[test]
    fn a_verdict_needs_agreement() {
        let page = runs(&[1.0; 9]);
        assert!(verdict(&runs(&[0.9; 9]), &page).contains("saves 10.0 %"));
        assert!(verdict(&runs(&[1.1; 9]), &page).contains("faster by 10.0 %"));
        let mixed = runs(&[0.9, 1.1, 0.9, 1.1, 0.9, 1.1, 0.9, 1.1, 0.9]);
        assert!(verdict(&mixed, &page).contains("no difference"));
        // Two rounds say nothing.
        assert!(verdict(&runs(&[0.5; 2]), &page[..2]).contains("no difference"));
    }
}
