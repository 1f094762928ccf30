//! Who allocated and freed an object (debug mode U).
//!
//! An allocation's site is its caller's source line. A drop has no caller that
//! the language tells, so for frees a backtrace is captured, which is cheap
//! beside being resolved; that happens when somebody reads it.

use std::backtrace::Backtrace;
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::thread::{self, Thread};
use std::time::Instant;

/// One alloc or free.
#[derive(Debug)]
pub(super) struct Owner {
    site: Site,
    thread: Thread,
    /// The innermost tracing span, if one was entered.
    span: Option<&'static str>,
    when: Instant,
}

#[derive(Debug)]
enum Site {
    Line(&'static Location<'static>),
    Stack(Backtrace),
}

impl Owner {
    /// An alloc at `line`, here and now.
    pub(super) fn at(line: &'static Location<'static>) -> Arc<Self> {
        Self::new(Site::Line(line))
    }

    /// A free from wherever this is called.
    pub(super) fn here() -> Arc<Self> {
        Self::new(Site::Stack(Backtrace::force_capture()))
    }

    fn new(site: Site) -> Arc<Self> {
        let span = tracing::Span::current()
            .metadata()
            .map(tracing::Metadata::name);
        Arc::new(Self {
            site,
            thread: thread::current(),
            span,
            when: Instant::now(),
        })
    }

    /// The source line, or the innermost function outside this module.
    fn site(&self) -> String {
        match &self.site {
            Site::Line(line) => line.to_string(),
            Site::Stack(stack) => innermost(&stack.to_string()),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = self.when.elapsed().as_secs_f64();
        write!(
            f,
            "{} age={age:.6} s thread={:?}",
            self.site(),
            self.thread.name().unwrap_or("?")
        )?;
        match self.span {
            Some(span) => write!(f, " span={span}"),
            None => Ok(()),
        }
    }
}

/// The first frame of a backtrace's text that is neither this module's nor the
/// standard library's, as `function at file:line`.
///
/// A frame is known by its file; without debug information by its function.
fn innermost(stack: &str) -> String {
    let mut lines = stack.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let Some((_, function)) = line.split_once(": ") else {
            continue;
        };
        let place = lines.peek().and_then(|line| line.strip_prefix("at "));
        let inner = match place {
            Some(place) => {
                // Its sources are elsewhere than /rustc where they are installed.
                ["core", "alloc", "std"]
                    .iter()
                    .any(|library| place.contains(&format!("/library/{library}/src/")))
                    || place.starts_with("/rustc/")
                    || place.contains("src/slab/") && !place.contains("/tests/")
            }
            None => {
                let path = function.trim_start_matches('<');
                ["nameifs::slab::", "std::", "core::", "alloc::"]
                    .iter()
                    .any(|start| path.starts_with(start))
            }
        };
        if !inner {
            return place.map_or(function.to_owned(), |place| {
                format!("{function} at {place}")
            });
        }
    }
    "(unknown)".to_owned()
}

/// The kernel's `alloc_calls` and `free_calls`: a line per site, the busiest
/// first, with the objects' least, mean and greatest age in milliseconds.
pub(super) fn calls(owners: impl Iterator<Item = Arc<Owner>>) -> String {
    let mut sites: HashMap<String, Vec<u128>> = HashMap::new();
    for owner in owners {
        sites
            .entry(owner.site())
            .or_default()
            .push(owner.when.elapsed().as_millis());
    }
    if sites.is_empty() {
        return "No data\n".to_owned();
    }
    let mut sites: Vec<_> = sites.into_iter().collect();
    sites.sort_by(|(a, x), (b, y)| y.len().cmp(&x.len()).then_with(|| a.cmp(b)));
    let line = |(site, ages): (String, Vec<u128>)| {
        let min = ages.iter().min().unwrap_or(&0);
        let max = ages.iter().max().unwrap_or(&0);
        let mean = ages.iter().sum::<u128>() / ages.len().max(1) as u128;
        format!("{:7} {site} age={min}/{mean}/{max}\n", ages.len())
    };
    sites.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_is_known_by_the_function_that_did_it() {
        let stack = "   0: std::backtrace_rs::backtrace\n             at /rustc/x/library/std/src/y.rs:1:2\n   \
                     1: nameifs::slab::owner::Owner::here\n   2: <core::x as core::y>::z\n   \
                     2: call_once\n             at /x/library/core/src/ops/function.rs:250:5\n   \
                     3: drop<u8>\n             at ./src/slab/page.rs:1:2\n   \
                     4: nameifs::name::putname\n             at ./src/name.rs:30:9\n   5: main\n";
        assert_eq!(
            innermost(stack),
            "nameifs::name::putname at ./src/name.rs:30:9"
        );
        assert_eq!(innermost("   0: std::x\n"), "(unknown)");
    }

    #[test]
    fn calls_are_counted_by_site() {
        #[track_caller]
        fn owner() -> Arc<Owner> {
            Owner::at(Location::caller())
        }
        let twice: Vec<_> = (0..2).map(|_| owner()).collect();
        let text = calls(twice.into_iter().chain([owner()]));
        let counts: Vec<_> = text
            .lines()
            .map(|l| l.split_whitespace().next().unwrap())
            .collect();
        assert_eq!(counts, ["2", "1"]);
        assert!(
            text.contains("owner.rs:") && text.contains(" age="),
            "{text}"
        );
        assert_eq!(calls(std::iter::empty()), "No data\n");
    }
}
