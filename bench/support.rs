//! What all benches share: samples and their spread, the verdict, tables, JSON.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// Measurements of one thing, in the order in which they were made.
#[derive(Clone, Debug, Default)]
pub struct Samples(pub Vec<f64>);

impl Samples {
    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The middle one; NaN when there is none.
    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        let n = sorted.len();
        match n {
            0 => f64::NAN,
            _ if n % 2 == 1 => sorted[n / 2],
            _ => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
        }
    }

    /// The smallest; NaN when there is none.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The largest; NaN when there is none.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// Median, spread and every sample.
    pub fn json(&self) -> Value {
        json!({
            "median": round(self.median()),
            "min": round(self.min()),
            "max": round(self.max()),
            "samples": self.0.iter().map(|v| round(*v)).collect::<Vec<_>>(),
        })
    }
}

/// Six significant digits: more would pretend to a precision that is not there.
pub fn round(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// How two interleaved series compare, round by round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Median of the ratios of each round.
    pub median: f64,
    /// Bounds that hold the true median with at least 90 % confidence, whatever
    /// the distribution; `None` with fewer than five rounds.
    pub interval: Option<(f64, f64)>,
}

impl Ratio {
    /// Of `value` over `reference`; rounds pair up by index.
    pub fn of(value: &Samples, reference: &Samples) -> Self {
        let ratios = Samples(
            value
                .0
                .iter()
                .zip(&reference.0)
                .map(|(v, r)| v / r)
                .collect(),
        );
        let sorted = ratios.sorted();
        let interval =
            order_statistic(sorted.len()).map(|k| (sorted[k], sorted[sorted.len() - 1 - k]));
        Self {
            median: ratios.median(),
            interval,
        }
    }

    /// What may be said about the ratio, in words.
    pub fn verdict(&self) -> &'static str {
        match self.interval {
            None => "too few rounds to tell",
            Some((low, _)) if low > 1.0 => "slower",
            Some((_, high)) if high < 1.0 => "faster",
            Some(_) => "too small to see",
        }
    }

    /// For the result file.
    pub fn json(&self) -> Value {
        json!({
            "median": round(self.median),
            "interval90": self.interval.map(|(l, h)| [round(l), round(h)]),
            "verdict": self.verdict(),
        })
    }
}

/// The largest k such that the k-th smallest and k-th largest of n samples (from zero) hold
/// the median with at least 90 % confidence (the sign test).
fn order_statistic(n: usize) -> Option<usize> {
    let mut outside = 0.0;
    let mut term = 0.5f64.powi(i32::try_from(n).unwrap_or(i32::MAX)); // P(exactly 0 below)
    let mut best = None;
    for k in 0..n / 2 {
        outside += 2.0 * term;
        if outside > 0.1 {
            break;
        }
        best = Some(k);
        term *= (n - k) as f64 / (k + 1) as f64;
    }
    best
}

/// A table for the terminal: the first column to the left, the others to the right.
#[derive(Default)]
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// A table with these headings.
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        Self(vec![head.into_iter().map(Into::into).collect()])
    }

    /// Adds a line.
    pub fn line<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.0.push(cells.into_iter().map(Into::into).collect());
    }

    /// The text.
    pub fn render(&self) -> String {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            self.0
                .iter()
                .filter_map(|l| l.get(c))
                .map(String::len)
                .max()
        };
        let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
        let mut text = String::new();
        for (index, line) in self.0.iter().enumerate() {
            let cells: Vec<String> = line
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(c, (cell, w))| match c {
                    0 => format!("{cell:<w$}"),
                    _ => format!("{cell:>w$}"),
                })
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
            if index == 0 {
                let rule = widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1);
                text.push_str(&"-".repeat(rule));
                text.push('\n');
            }
        }
        text
    }
}

/// Seconds with three significant digits.
pub fn seconds(value: f64) -> String {
    match value {
        v if v.is_nan() => "-".into(),
        v if v >= 10.0 => format!("{v:.1} s"),
        v if v >= 1.0 => format!("{v:.2} s"),
        v if v >= 0.1 => format!("{:.0} ms", v * 1e3),
        v => format!("{:.1} ms", v * 1e3),
    }
}

/// Nanoseconds with three significant digits.
pub fn nanos(value: f64) -> String {
    match value {
        v if v.is_nan() => "-".into(),
        v if v >= 100.0 => thousands(v.round() as u64),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// 1234567 to 1,234,567.
pub fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn first_line(file: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|l| l.starts_with(key))?;
    Some(
        line.split_once(':')
            .map_or(line, |(_, v)| v)
            .trim()
            .to_owned(),
    )
}

/// The one-minute load average: above the number of busy cores of the bench, others were busy.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg")
        .ok()?
        .split(' ')
        .next()?
        .parse()
        .ok()
}

/// What the figures depend on. Names no host and no person.
pub fn machine() -> Value {
    let root = env!("CARGO_MANIFEST_DIR");
    let commit = Command::new("git")
        .args(["-C", root, "rev-parse", "--short", "HEAD"])
        .output();
    let uname = rustix::system::uname();
    json!({
        "kernel": uname.release().to_string_lossy(),
        "cpu": first_line("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "memory": first_line("/proc/meminfo", "MemTotal"),
        "load_before": load(),
        "version": env!("CARGO_PKG_VERSION"),
        "commit": commit.ok().map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()),
    })
}

/// One line about the machine for the head of a table.
pub fn machine_line(machine: &Value) -> String {
    let text = |key: &str| machine[key].as_str().unwrap_or("?").to_owned();
    format!(
        "Linux {}, {}, {} cores",
        text("kernel"),
        text("cpu"),
        machine["cores"]
    )
}

/// `bench/results/NAME`.
pub fn results(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("bench/results")
        .join(name)
}

/// Writes one JSON object.
pub fn write_json(path: &Path, value: &Value) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(path, serde_json::to_string_pretty(value)? + "\n")
}

/// The names of `columns` in the order for one round: each round starts with another one.
pub fn rotation(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| (i + round) % count)
}

/// A small generator for seeded data (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// Any order of a slice.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i + 1);
            items.swap(i, j);
        }
    }
}
