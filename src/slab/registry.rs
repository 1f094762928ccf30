//! The caches of one mount, by name.
//!
//! What it is for: everything that looks at caches from outside: `.slabinfo`,
//! the attributes of `.nameifs/slab/`, shrinking, leak checks; and what caches
//! are told at their creation ([`SlabOptions`]).
//!
//! Its contract: names are valid and unique here. Caches are held weakly: one
//! that has ended disappears, unless objects of it are out. The registry's lock
//! is never held while a cache's is wanted.

use std::fmt;
use std::sync::{Arc as StdArc, Weak};

use super::fault::Fault;
use super::info::{MAX_NAME, is_name_char};
use super::report::Reporter;
use super::{CacheInfo, SlabDebug, SlabOptions, SlabReport, render_slabinfo};
use crate::sync::{Arc, Mutex};

/// A cache as the registry sees it.
pub(super) trait Listed: Send + Sync {
    /// The name in `.slabinfo`.
    fn name(&self) -> &str;
    /// The row of `.slabinfo`.
    fn info(&self) -> CacheInfo;
    /// Whether nobody can allocate from it any more.
    fn ended(&self) -> bool;
    /// Name and text of each file of `/sys/kernel/slab/NAME/`.
    fn attributes(&self) -> Vec<(&'static str, String)>;
    /// Gives empty slabs back; returns their bytes.
    fn shrink(&self) -> usize;
    /// Checks everything there is to check; returns how many bugs it reported.
    fn validate(&self) -> usize;
}

/// What a cache is told when it is made.
pub(super) struct Settings {
    /// The name, valid and unique.
    pub(super) name: String,
    /// Its debug modes.
    pub(super) modes: SlabDebug,
    /// Its injected failures.
    pub(super) fault: Option<Fault>,
    /// Where its bugs are told.
    pub(super) reporter: StdArc<Reporter>,
}

/// The caches of one mount.
#[derive(Default)]
pub struct Registry {
    caches: Mutex<Vec<Weak<dyn Listed>>>,
    options: SlabOptions,
    reporter: StdArc<Reporter>,
}

impl Registry {
    /// A registry without caches.
    pub fn new() -> Arc<Self> {
        Self::with_options(SlabOptions::default())
    }

    /// A registry whose caches get the debug modes and faults that `options` say.
    pub fn with_options(options: SlabOptions) -> Arc<Self> {
        let reporter = StdArc::new(Reporter::new(options.action));
        Arc::new(Self {
            caches: Mutex::new(Vec::new()),
            options,
            reporter,
        })
    }

    /// Makes a cache under a name that is valid and unique here, and lists it.
    pub(super) fn register<C: Listed + 'static>(
        &self,
        name: &str,
        make: impl FnOnce(Settings) -> StdArc<C>,
    ) -> StdArc<C> {
        let mut caches = self.caches.lock();
        caches.retain(|cache| cache.strong_count() > 0);
        let listed: Vec<_> = caches.iter().filter_map(Weak::upgrade).collect();
        let name = unique_name(name, |n| listed.iter().any(|cache| cache.name() == n));
        let cache = make(Settings {
            modes: self.options.debug.modes_of(&name),
            fault: self.options.fault_of(&name).map(Fault::new),
            reporter: self.reporter.clone(),
            name,
        });
        let weak: Weak<C> = StdArc::downgrade(&cache);
        caches.push(weak);
        // Before `listed`, which may hold the last reference to a cache and so run destructors.
        drop(caches);
        cache
    }

    fn listed(&self) -> Vec<StdArc<dyn Listed>> {
        self.caches
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// One row per cache, in order of creation.
    pub fn infos(&self) -> Vec<CacheInfo> {
        self.listed().iter().map(|cache| cache.info()).collect()
    }

    /// The text of `.slabinfo`.
    pub fn render(&self) -> String {
        render_slabinfo(&self.infos())
    }

    /// Caches that have ended while objects of theirs were out, with how many still are.
    pub fn leaked(&self) -> Vec<(String, u64)> {
        let ended = self
            .listed()
            .into_iter()
            .filter(|cache| cache.ended())
            .map(|cache| cache.info());
        ended
            .filter(|info| info.active_objs > 0)
            .map(|info| (info.name, info.active_objs))
            .collect()
    }

    /// The caches' names, in order of creation.
    pub fn names(&self) -> Vec<String> {
        self.listed()
            .iter()
            .map(|cache| cache.name().to_owned())
            .collect()
    }

    fn named<R>(&self, name: &str, f: impl FnOnce(&dyn Listed) -> R) -> Option<R> {
        let cache = self
            .listed()
            .into_iter()
            .find(|cache| cache.name() == name)?;
        Some(f(&*cache))
    }

    /// The files that `/sys/kernel/slab/NAME/` would have, as name and text;
    /// `None` if there is no such cache. Beside what they show, writing to
    /// `shrink` and `validate` is [`Registry::shrink`] and [`Registry::validate`].
    pub fn attributes(&self, name: &str) -> Option<Vec<(&'static str, String)>> {
        self.named(name, |cache| cache.attributes())
    }

    /// Gives the empty slabs of a cache back to the system; returns their
    /// bytes, or `None` if there is no such cache.
    pub fn shrink(&self, name: &str) -> Option<usize> {
        self.named(name, |cache| cache.shrink())
    }

    /// Checks the lists, counts and, under Z and P, bytes of a cache; returns
    /// how many bugs were reported, or `None` if there is no such cache.
    pub fn validate(&self, name: &str) -> Option<usize> {
        self.named(name, |cache| cache.validate())
    }

    /// The last 64 bugs that were found in its caches, oldest first.
    pub fn reports(&self) -> Vec<SlabReport> {
        self.reporter.reports()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.infos()).finish()
    }
}

/// `name` with what the format's readers refuse replaced, and a number behind it if it is taken.
fn unique_name(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let fit = |c: char| if is_name_char(c) { c } else { '_' };
    let base: String = name.chars().map(fit).take(MAX_NAME).collect();
    let base = if base.is_empty() {
        "_".to_owned()
    } else {
        base
    };
    let mut unique = base.clone();
    for number in 2.. {
        if !taken(&unique) {
            break;
        }
        let suffix = format!("-{number}");
        unique = base[..base.len().min(MAX_NAME - suffix.len())].to_owned() + &suffix;
    }
    unique
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_valid_and_unique() {
        assert_eq!(unique_name("a b.c", |_| false), "a_b_c");
        assert_eq!(unique_name("", |_| false), "_");
        assert_eq!(unique_name("x", |n| n == "x" || n == "x-2"), "x-3");
        let long = "n".repeat(200);
        assert_eq!(unique_name(&long, |n| !n.contains('-')).len(), 127);
    }
}
