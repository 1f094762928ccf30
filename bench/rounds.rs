//! Columns, rows and interleaved rounds: the common course of the benches that mount.
//!
//! Every round runs every column once and starts with another one, so that
//! whatever else the machine does meets all columns alike. Requests are those
//! of one more run, which is counted and not timed.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::counter::{Counted, Counter, Requests};
use crate::mirror::{self, Kind, Mirror};
use crate::support::{self, Ratio, Samples};
use crate::workload::{self, Limits, Names, Run, Work};
use crate::{guard, passthrough, stats};

/// What happens before each run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Two runs that do not count, once, and again whenever somebody dropped the caches.
    WarmUp,
    /// The kernel forgets every dentry and inode, before each run.
    DropCaches,
    /// The mirror is mounted anew, before each run.
    Mount,
}

/// A row: the same work for every column.
pub struct Row {
    /// For tables and files.
    pub name: String,
    /// What is run.
    pub work: Work,
    /// What precedes it.
    pub before: Before,
}

/// A column: the source, or a mirror of it.
pub struct Column {
    /// For tables and files.
    pub name: String,
    /// `None`: the source itself.
    pub kind: Option<Kind>,
    /// While mounted.
    pub mirror: Option<Mirror>,
    /// Whether it showed the same tree as the source.
    pub same_tree: bool,
    /// What others had done to its caches when it was last warm for the current row.
    warm: Option<Disturbance>,
}

/// What others have done to the kernel's caches: while it does not change, what is warm stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Disturbance {
    /// Caches dropped, by anybody.
    drops: u64,
    /// Pages of the mount that left the page cache.
    evicted: u64,
}

impl Column {
    /// A column that is not mounted yet.
    pub fn new(name: &str, kind: Option<Kind>) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            mirror: None,
            same_tree: true,
            warm: None,
        }
    }
}

/// What one column gave in one row.
#[derive(Default)]
pub struct Cell {
    /// Elapsed, one per round.
    pub seconds: Samples,
    /// User time of the processes.
    pub user: Samples,
    /// System time of the processes.
    pub system: Samples,
    /// Processor time of the daemon, in milliseconds.
    pub daemon_cpu: Samples,
    /// User time of the daemon, in seconds; its clock ticks every 10 ms.
    pub daemon_user: Samples,
    /// System time of the daemon, likewise.
    pub daemon_system: Samples,
    /// Resident memory of the daemon after the row.
    pub rss_kib: u64,
    /// Requests of one run, by the kernel's count.
    pub counted: Option<Counted>,
    /// Requests of the same run, by the daemon's count.
    pub own: Option<Requests>,
    /// Runs that were repeated because others emptied the kernel's caches meanwhile.
    pub repeated: u32,
    /// Runs that were taken although others emptied the kernel's caches meanwhile.
    pub disturbed: u32,
    /// Why there is nothing to show.
    pub failed: Option<String>,
}

impl Cell {
    /// Adds what one step gave.
    fn take(&mut self, step: Cell) {
        self.seconds.0.extend(step.seconds.0);
        self.user.0.extend(step.user.0);
        self.system.0.extend(step.system.0);
        self.daemon_cpu.0.extend(step.daemon_cpu.0);
        self.daemon_user.0.extend(step.daemon_user.0);
        self.daemon_system.0.extend(step.daemon_system.0);
        self.rss_kib = self.rss_kib.max(step.rss_kib);
        self.counted = step.counted.or(self.counted.take());
        self.own = step.own.or(self.own.take());
    }

    /// For a table.
    pub fn requests(&self) -> String {
        match &self.counted {
            Some(counted) => support::thousands(counted.total),
            None => "-".into(),
        }
    }

    /// By how many requests the daemon's count differs from the kernel's; `None` where one of
    /// them did not count.
    pub fn difference(&self) -> Option<u64> {
        let (counted, own) = (self.counted.as_ref()?, self.own.as_ref()?);
        Some(counted.lost + stats::distance(&stats::without_forgets(own), &counted.requests))
    }

    /// For the result file; ratios are to `reference`.
    pub fn json(&self, name: &str, reference: &Cell) -> Value {
        let some = |samples: &Samples| (!samples.0.is_empty()).then(|| samples.json());
        json!({
            "column": name,
            "seconds": self.seconds.json(),
            "user": self.user.json(),
            "system": self.system.json(),
            "ratio": Ratio::of(&self.seconds, &reference.seconds).json(),
            "requests": self.counted.as_ref().map(|c| json!({
                "total": c.total, "lost": c.lost, "by_opcode": c.requests,
            })),
            "requests_by_own_count": self.own,
            "counts_differ_by": self.difference(),
            "daemon_cpu_ms": some(&self.daemon_cpu),
            "daemon_user": some(&self.daemon_user),
            "daemon_system": some(&self.daemon_system),
            "rss_kib": (self.rss_kib > 0).then_some(self.rss_kib),
            "repeated_runs": self.repeated,
            "disturbed_runs": self.disturbed,
            "failed": self.failed,
        })
    }
}

/// The columns of a bench and what their runs need.
pub struct Rounds {
    source: PathBuf,
    /// The names of the source.
    pub names: Names,
    /// The first is what the others are compared with.
    pub columns: Vec<Column>,
    counter: Option<Counter>,
    timeout: Duration,
    nonce: u64,
}

type Step<'a> = &'a mut dyn FnMut(&mut Rounds, &mut Cell) -> io::Result<()>;

impl Rounds {
    /// Mounts every column and compares its tree with the source's.
    pub fn start(
        source: &Path,
        names: Names,
        columns: Vec<Column>,
        timeout: Duration,
    ) -> io::Result<Self> {
        let counter = Counter::open();
        if let Err(e) = &counter {
            eprintln!("bench: the kernel's count of requests is missing: {e}");
        }
        let mut rounds = Self {
            source: source.to_owned(),
            names,
            columns,
            counter: counter.ok(),
            timeout,
            nonce: u64::from(std::process::id()) << 32,
        };
        for column in 0..rounds.columns.len() {
            rounds.remount(column)?;
        }
        let limits = rounds.limits();
        let expected = workload::fingerprint(source, &limits)?;
        for column in 0..rounds.columns.len() {
            let seen = workload::fingerprint(rounds.root(column), &limits)?;
            rounds.columns[column].same_tree = seen == expected;
            if seen != expected {
                eprintln!(
                    "bench: {} shows {} names of {}, or other attributes than the source",
                    rounds.columns[column].name, seen.0, expected.0
                );
            }
        }
        Ok(rounds)
    }

    fn root(&self, column: usize) -> &Path {
        self.columns[column]
            .mirror
            .as_ref()
            .map_or(&*self.source, Mirror::path)
    }

    fn limits(&self) -> Limits {
        let connections = self.columns.iter().filter_map(|c| c.mirror.as_ref());
        Limits {
            timeout: self.timeout,
            connections: connections.map(Mirror::connection).collect(),
        }
    }

    fn remount(&mut self, column: usize) -> io::Result<()> {
        let source = self.source.clone();
        let column = &mut self.columns[column];
        if let Some(kind) = &column.kind {
            drop(column.mirror.take());
            column.mirror = Some(Mirror::mount(kind, &source)?);
            let connections = self.limits().connections;
            if let Some(counter) = &mut self.counter {
                counter.watch_evictions(&connections)?;
            }
        }
        Ok(())
    }

    fn run(&mut self, work: &Work, column: usize) -> io::Result<Run> {
        self.nonce += 1;
        work.run(self.root(column), &self.names, self.nonce, &self.limits())
    }

    fn prepare(&mut self, before: Before, column: usize) -> io::Result<()> {
        match before {
            Before::WarmUp => {}
            Before::DropCaches => workload::drop_kernel_caches()?,
            Before::Mount => self.remount(column)?,
        }
        for mirror in self.columns.iter().filter_map(|c| c.mirror.as_ref()) {
            mirror.settle()?;
        }
        Ok(())
    }

    /// What others have done so far to the kernel's caches of a column.
    fn disturbance(&mut self, column: usize) -> io::Result<Disturbance> {
        let connection = self.columns[column].mirror.as_ref().map(Mirror::connection);
        let evicted = match (&mut self.counter, connection) {
            (Some(counter), Some(connection)) => counter.evicted(connection)?,
            _ => 0,
        };
        Ok(Disturbance {
            drops: workload::cache_drops(),
            evicted,
        })
    }

    /// Two runs that do not count, unless the column is warm from earlier ones.
    fn warm_up(&mut self, row: &Row, column: usize) -> io::Result<()> {
        let now = self.disturbance(column)?;
        if row.before == Before::WarmUp && self.columns[column].warm != Some(now) {
            self.run(&row.work, column)?;
            self.run(&row.work, column)?;
            self.columns[column].warm = Some(now);
        }
        Ok(())
    }

    /// Repeats a step while others disturb it: at most ten times, the last is taken as it is.
    fn undisturbed(
        &mut self,
        row: &Row,
        column: usize,
        cell: &mut Cell,
        mut step: impl FnMut(&mut Self, &mut Cell) -> io::Result<()>,
    ) -> io::Result<()> {
        const TRIES: u32 = 10;
        for attempt in 1..=TRIES {
            self.warm_up(row, column)?;
            self.prepare(row.before, column)?;
            let before = match self.columns[column].warm {
                Some(warm) if row.before == Before::WarmUp => warm,
                _ => self.disturbance(column)?,
            };
            let mut result = Cell::default();
            step(self, &mut result)?;
            if self.disturbance(column)? == before {
                cell.take(result);
                return Ok(());
            }
            cell.repeated += u32::from(attempt < TRIES);
            if attempt == TRIES {
                cell.take(result);
                cell.disturbed += 1;
            }
        }
        Ok(())
    }

    /// One timed run of one column.
    fn sample(&mut self, row: &Row, column: usize, cell: &mut Cell) -> io::Result<()> {
        let times = |rounds: &Self| {
            let mirror = rounds.columns[column].mirror.as_ref();
            mirror
                .map(|m| Ok::<_, io::Error>((m.cpu()?, m.user_system()?)))
                .transpose()
        };
        let before = times(self)?;
        let run = self.run(&row.work, column)?;
        if let (Some((cpu, (user, system))), Some(after)) = (before, times(self)?) {
            cell.daemon_cpu
                .0
                .push(after.0.saturating_sub(cpu).as_secs_f64() * 1e3);
            cell.daemon_user
                .0
                .push(after.1.0.saturating_sub(user).as_secs_f64());
            cell.daemon_system
                .0
                .push(after.1.1.saturating_sub(system).as_secs_f64());
        }
        cell.seconds.0.push(run.elapsed.as_secs_f64());
        cell.user.0.push(run.user.as_secs_f64());
        cell.system.0.push(run.system.as_secs_f64());
        Ok(())
    }

    /// One run that is counted and not timed.
    fn count(&mut self, row: &Row, column: usize, cell: &mut Cell) -> io::Result<()> {
        let limits = self.limits();
        let Column {
            kind: Some(kind),
            mirror: Some(mirror),
            ..
        } = &self.columns[column]
        else {
            return Ok(());
        };
        let connection = mirror.connection();
        let window = match kind {
            Kind::Nameifs(_) => Some(stats::Window::open(mirror.path(), &limits)?),
            Kind::Plain | Kind::Slow(_) => None,
        };
        match self.counter.take() {
            Some(counter) => {
                let counted = counter.count(connection, || self.run(&row.work, column));
                self.counter = Some(counter);
                cell.counted = Some(counted?.1);
            }
            None => drop(self.run(&row.work, column)?),
        }
        cell.own = window.map(|w| w.close(&limits)).transpose()?;
        if let Some(mirror) = &self.columns[column].mirror {
            cell.rss_kib = mirror.rss_kib()?;
        }
        Ok(())
    }

    /// All rounds of one row; a column that fails does not end the others.
    pub fn row(&mut self, row: &Row, rounds: usize) -> Vec<Cell> {
        let count = self.columns.len();
        let mut cells: Vec<Cell> = (0..count).map(|_| Cell::default()).collect();
        let mut attempt = |all: &mut Self, column: usize, what: &str, step: Step<'_>| {
            let cell = &mut cells[column];
            if cell.failed.is_some() {
                return;
            }
            if let Err(e) = step(all, cell) {
                eprintln!(
                    "bench: {} of {}: {what}: {e}",
                    row.name, all.columns[column].name
                );
                cell.failed = Some(format!("{what}: {e}"));
            }
        };
        for column in 0..count {
            // A mirror that died in an earlier row is mounted anew.
            attempt(
                self,
                column,
                "mount",
                &mut |all, _| match all.columns[column].mirror {
                    None => all.remount(column),
                    Some(_) => Ok(()),
                },
            );
            self.columns[column].warm = None;
            attempt(self, column, "warm-up", &mut |all, _| {
                all.warm_up(row, column)
            });
        }
        for round in 0..rounds {
            for column in support::rotation(count, round) {
                attempt(self, column, "run", &mut |all, cell| {
                    all.undisturbed(row, column, cell, |all, cell| all.sample(row, column, cell))
                });
            }
        }
        for column in 0..count {
            attempt(self, column, "count", &mut |all, cell| {
                all.undisturbed(row, column, cell, |all, cell| all.count(row, column, cell))
            });
        }
        for (column, cell) in self.columns.iter_mut().zip(&cells) {
            if cell.failed.is_some() {
                column.mirror = None;
            }
        }
        cells
    }
}

/// The other things that a bench binary can be: a mirror, a storm, the guard.
pub fn hidden() -> Option<io::Result<()>> {
    if let Some(args) = mirror::hidden_mode(Kind::PLAIN) {
        let [source, mountpoint] = args.as_slice() else {
            return Some(Err(io::Error::other("SOURCE MOUNTPOINT")));
        };
        return Some(passthrough::serve(
            Path::new(source),
            Path::new(mountpoint),
            None,
        ));
    }
    if let Some(args) = mirror::hidden_mode(workload::STORM) {
        return Some(workload::serve_storm(&args));
    }
    mirror::hidden_mode(guard::ARGUMENT).map(|_| guard::serve())
}
