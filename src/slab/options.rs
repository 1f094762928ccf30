//! What a mount's caches are told: debug modes and injected faults, by cache.
//!
//! The texts are the kernel's: `slab_debug=` of
//! Documentation/mm/slab.rst (letters, then caches, blocks split by `;`), and
//! the words of failslab in Documentation/fault-injection. This file parses
//! them and finds what applies to a cache; it checks and fails nothing itself.

use std::fmt;
use std::str::FromStr;

bitflags::bitflags! {
    /// Debug modes of a cache, by the kernel's letters. A cache with any of
    /// them has no magazines, so that every alloc and free is looked at.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SlabDebug: u32 {
        /// F: lists and counts are checked, and every object that comes back.
        const CONSISTENCY = 1;
        /// Z: red zones round each object are checked at alloc and free.
        const RED_ZONE = 2;
        /// P: free objects are filled with a pattern that is checked at alloc.
        /// They do not stay constructed: the constructor runs at each alloc
        /// and the destructor at each free.
        const POISON = 4;
        /// U: the sites of each object's last alloc and free are kept.
        const STORE_USER = 8;
    }
}

impl SlabDebug {
    fn of(letter: char) -> Option<Self> {
        Some(match letter.to_ascii_uppercase() {
            'F' => Self::CONSISTENCY,
            'Z' => Self::RED_ZONE,
            'P' => Self::POISON,
            'U' => Self::STORE_USER,
            _ => return None,
        })
    }
}

/// What happens once a bug was found and reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DebugAction {
    /// The process aborts, as a kernel with `panic_on_warn`.
    Abort,
    /// The object is mended or given up, and work goes on.
    #[default]
    Continue,
}

impl FromStr for DebugAction {
    type Err = OptionError;
    fn from_str(text: &str) -> Result<Self, OptionError> {
        match text {
            "abort" => Ok(Self::Abort),
            "continue" => Ok(Self::Continue),
            _ => Err(OptionError(format!(
                "'{text}' is neither abort nor continue"
            ))),
        }
    }
}

/// An option's text that cannot be understood; displays as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError(String);

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OptionError {}

/// A cache's name, or the start of names before a `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern(String);

impl Pattern {
    fn matches(&self, name: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => self.0 == name,
        }
    }
}

/// The value of `--slab-debug`: `LETTERS[,CACHE...]`, several split by `;`.
///
/// No letters (also the empty text) mean all of them, `-` means none, no
/// caches mean all caches. `CACHE` may end in `*`. Where two blocks name a
/// cache, the later one counts; a block for all caches counts only for those
/// that no block names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugRules(Vec<(SlabDebug, Vec<Pattern>)>);

impl FromStr for DebugRules {
    type Err = OptionError;
    fn from_str(text: &str) -> Result<Self, OptionError> {
        let blocks = text.split(';').map(|block| {
            let mut words = block.split(',');
            let letters = words.next().unwrap_or_default();
            let modes = match letters {
                "" => SlabDebug::all(),
                "-" => SlabDebug::empty(),
                _ => letters
                    .chars()
                    .try_fold(SlabDebug::empty(), |modes, letter| {
                        let mode = SlabDebug::of(letter);
                        let unknown = || {
                            OptionError(format!(
                                "'{letter}' is not one of the debug letters F, Z, P and U"
                            ))
                        };
                        Ok(modes | mode.ok_or_else(unknown)?)
                    })?,
            };
            let caches = words.map(|name| match name {
                "" => Err(OptionError(format!("'{block}' has an empty cache name"))),
                _ => Ok(Pattern(name.to_owned())),
            });
            Ok((modes, caches.collect::<Result<_, _>>()?))
        });
        blocks.collect::<Result<_, _>>().map(Self)
    }
}

impl DebugRules {
    /// The modes of cache `name`.
    pub fn modes_of(&self, name: &str) -> SlabDebug {
        let named = self
            .0
            .iter()
            .rfind(|(_, caches)| caches.iter().any(|cache| cache.matches(name)));
        let rule = named.or_else(|| self.0.iter().rfind(|(_, caches)| caches.is_empty()));
        rule.map(|&(modes, _)| modes).unwrap_or_default()
    }
}

/// The value of `--fail-slab`: `CACHE:every=N,times=M`.
///
/// Every `N`th allocation of the cache fails (1 if not said), `M` times in
/// all (for ever if not said). `CACHE` may end in `*`; caches count for
/// themselves. A cache with faults has no magazines, so that each allocation
/// counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    cache: Pattern,
    every: u64,
    times: Option<u64>,
}

impl FaultRule {
    /// Fails every `every`th allocation of `cache`, at most `times` times.
    pub fn new(cache: &str, every: u64, times: Option<u64>) -> Self {
        Self {
            cache: Pattern(cache.to_owned()),
            every: every.max(1),
            times,
        }
    }

    /// Every so many allocations one fails.
    pub fn every(&self) -> u64 {
        self.every
    }

    /// So many fail in all; without limit if `None`.
    pub fn times(&self) -> Option<u64> {
        self.times
    }
}

impl FromStr for FaultRule {
    type Err = OptionError;
    fn from_str(text: &str) -> Result<Self, OptionError> {
        let wrong = || OptionError(format!("'{text}' is not CACHE:every=N,times=M"));
        let (cache, words) = text.split_once(':').unwrap_or((text, ""));
        if cache.is_empty() {
            return Err(wrong());
        }
        let mut rule = Self::new(cache, 1, None);
        for word in words.split(',').filter(|word| !word.is_empty()) {
            let (key, number) = word.split_once('=').ok_or_else(wrong)?;
            let number: u64 = number.parse().map_err(|_| wrong())?;
            match key {
                "every" if number > 0 => rule.every = number,
                "times" => rule.times = Some(number),
                _ => return Err(wrong()),
            }
        }
        Ok(rule)
    }
}

/// Options of a [`super::Registry`]; they apply to caches created after it.
#[derive(Clone, Debug, Default)]
pub struct SlabOptions {
    /// Debug modes by cache.
    pub debug: DebugRules,
    /// What to do after a report.
    pub action: DebugAction,
    /// Faults by cache; the first rule that names a cache counts.
    pub faults: Vec<FaultRule>,
}

impl SlabOptions {
    pub(super) fn fault_of(&self, name: &str) -> Option<&FaultRule> {
        self.faults.iter().find(|rule| rule.cache.matches(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes(text: &str, cache: &str) -> SlabDebug {
        text.parse::<DebugRules>().unwrap().modes_of(cache)
    }

    #[test]
    fn letters_and_caches() {
        assert_eq!(
            modes("FZ", "dentry"),
            SlabDebug::CONSISTENCY | SlabDebug::RED_ZONE
        );
        assert_eq!(modes("", "dentry"), SlabDebug::all());
        assert_eq!(modes(",dentry", "dentry"), SlabDebug::all());
        assert_eq!(modes("p,dentry,inode", "inode"), SlabDebug::POISON);
        assert_eq!(modes("P,dentry,inode", "getname_cache"), SlabDebug::empty());
        assert_eq!(modes("P,get*", "getname_cache"), SlabDebug::POISON);
        assert_eq!(DebugRules::default().modes_of("dentry"), SlabDebug::empty());
    }

    #[test]
    fn blocks_that_name_a_cache_come_first() {
        let text = "-,dentry;F;U,d*;Z,inode";
        assert_eq!(modes(text, "dentry"), SlabDebug::STORE_USER);
        assert_eq!(modes(text, "inode"), SlabDebug::RED_ZONE);
        assert_eq!(modes(text, "other"), SlabDebug::CONSISTENCY);
        assert_eq!(modes("FZPU;-,dentry", "dentry"), SlabDebug::empty());
    }

    #[test]
    fn what_cannot_be_understood_is_said() {
        let error = "FQ".parse::<DebugRules>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "'Q' is not one of the debug letters F, Z, P and U"
        );
        assert!("F,,x".parse::<DebugRules>().is_err());
        assert!("stop".parse::<DebugAction>().is_err());
        assert_eq!("abort".parse(), Ok(DebugAction::Abort));
    }

    #[test]
    fn faults() {
        assert_eq!(
            "dentry:every=3,times=2".parse(),
            Ok(FaultRule::new("dentry", 3, Some(2)))
        );
        assert_eq!("dentry".parse(), Ok(FaultRule::new("dentry", 1, None)));
        assert_eq!("d:times=0".parse(), Ok(FaultRule::new("d", 1, Some(0))));
        for bad in [
            "",
            ":every=1",
            "d:every=0",
            "d:every",
            "d:often=1",
            "d:every=x",
        ] {
            assert!(bad.parse::<FaultRule>().is_err(), "accepted: {bad}");
        }
        let options = SlabOptions {
            faults: vec![FaultRule::new("a*", 2, None)],
            ..Default::default()
        };
        assert_eq!(options.fault_of("abc").map(FaultRule::every), Some(2));
        assert_eq!(options.fault_of("bc"), None);
    }
}
