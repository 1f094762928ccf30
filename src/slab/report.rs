//! Reports of bugs, in the manner of the kernel's SLUB.
//!
//! What it is for: one text that says what was found, where, what the bytes
//! are, who allocated and who freed. Its contract: reports are made and told
//! with no lock of a cache held. It does not look for bugs.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::layout::Shape;
use super::options::DebugAction;
use super::owner::Owner;
use super::poison::{Damage, Misplaced, Part};

/// Reports that a registry remembers.
const REMEMBERED: usize = 64;
/// Bytes of an object that a report shows.
const SHOWN: usize = 128;
/// Bytes of a line of a dump.
const LINE: usize = 16;

/// What kind of bug was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlabBug {
    /// Bytes before an object were written (Z): an underrun.
    LeftRedzone,
    /// Bytes behind an object were written (Z): an overrun.
    RightRedzone,
    /// A free object was written (P): a use after free.
    Poison,
    /// An object was given back twice.
    AlreadyFree,
    /// What was given back is no object of this cache.
    Foreign,
    /// Objects were out when their cache ended: a leak.
    Remaining,
    /// Counts and lists of the cache contradict each other (F).
    Inconsistent,
}

impl fmt::Display for SlabBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeftRedzone => "Left Redzone overwritten",
            Self::RightRedzone => "Right Redzone overwritten",
            Self::Poison => "Poison overwritten",
            Self::AlreadyFree => "Object already free",
            Self::Foreign => "Invalid object pointer, not of this cache",
            Self::Remaining => "Objects remaining at the end of the cache",
            Self::Inconsistent => "Inconsistent counts or lists",
        })
    }
}

impl From<Misplaced> for SlabBug {
    fn from(misplaced: Misplaced) -> Self {
        match misplaced {
            Misplaced::NotAnObject => Self::Foreign,
            Misplaced::AlreadyFree => Self::AlreadyFree,
        }
    }
}

impl From<Part> for SlabBug {
    fn from(part: Part) -> Self {
        match part {
            Part::LeftZone => Self::LeftRedzone,
            Part::Object => Self::Poison,
            Part::RightZone => Self::RightRedzone,
        }
    }
}

/// A bug that was found.
#[derive(Clone, Debug)]
pub struct SlabReport {
    /// The cache.
    pub cache: String,
    /// The kind.
    pub bug: SlabBug,
    /// All that is known, over several lines.
    pub text: String,
}

/// An object and what its slab knows of it.
pub(super) struct Scene {
    /// Where the slab starts.
    pub(super) slab: usize,
    /// Objects of the slab that are out.
    pub(super) used: usize,
    /// The object's index in the slab.
    pub(super) index: usize,
    /// Who allocated it and who freed it.
    pub(super) owners: [Option<Arc<Owner>>; 2],
}

/// Where the reports of all caches of a registry go.
#[derive(Debug, Default)]
pub(super) struct Reporter {
    action: DebugAction,
    recent: Mutex<VecDeque<SlabReport>>,
}

impl Reporter {
    /// A reporter that does `action` after each report of a cache under debug.
    pub(super) fn new(action: DebugAction) -> Self {
        Self {
            action,
            recent: Mutex::default(),
        }
    }

    fn recent(&self) -> MutexGuard<'_, VecDeque<SlabReport>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last reports, oldest first.
    pub(super) fn reports(&self) -> Vec<SlabReport> {
        self.recent().iter().cloned().collect()
    }

    /// Tells of a bug; does not return if the cache is under debug and the
    /// action is to abort.
    pub(super) fn tell(&self, cache: &str, bug: SlabBug, detail: &str, debugged: bool) {
        let rule = "=".repeat(77);
        let text = format!("{rule}\nBUG {cache}: {bug}\n{}\n{detail}", "-".repeat(77));
        tracing::error!(cache, bug = %bug, "{text}");
        let mut recent = self.recent();
        if recent.len() == REMEMBERED {
            recent.pop_front();
        }
        recent.push_back(SlabReport {
            cache: cache.to_owned(),
            bug,
            text,
        });
        drop(recent);
        if debugged && self.action == DebugAction::Abort {
            std::process::abort();
        }
    }
}

/// The lines of a report about one object.
pub(super) fn describe(shape: &Shape, scene: &Scene, damage: Option<&Damage>) -> String {
    let mut text = String::new();
    let room = scene.slab + scene.index * shape.stride;
    let place = |part| {
        let (offset, len) = shape.zone(part);
        (room + offset, len)
    };
    if let Some(damage) = damage {
        let first = place(damage.part).0 + damage.range.0;
        let last = place(damage.part).0 + damage.range.1;
        line(
            &mut text,
            format_args!(
                "{first:#x}-{last:#x} @offset={}: {damage}",
                first - scene.slab
            ),
        );
    }
    for (what, owner) in ["Allocated", "Freed"].into_iter().zip(&scene.owners) {
        if let Some(owner) = owner {
            line(&mut text, format_args!("{what} in {owner}"));
        }
    }
    line(
        &mut text,
        format_args!(
            "Slab {:#x} objects={} used={}",
            scene.slab, shape.count, scene.used
        ),
    );
    let (object, size) = place(Part::Object);
    line(
        &mut text,
        format_args!(
            "Object {object:#x} @offset={} size={size}",
            object - scene.slab
        ),
    );
    dump(&mut text, "Redzone", place(Part::LeftZone), 0);
    let around = damage
        .filter(|damage| damage.part == Part::Object)
        .map_or(0, |damage| damage.range.0);
    dump(&mut text, "Object", (object, size), around);
    dump(&mut text, "Redzone", place(Part::RightZone), 0);
    text
}

fn line(text: &mut String, line: fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a String does not fail");
}

/// Adds lines of the memory at `start`, at most [`SHOWN`] bytes from a little
/// before offset `from`.
///
/// The bytes are read through the kernel: an object may have padding, which
/// the language knows no value of.
fn dump(text: &mut String, what: &str, (start, len): (usize, usize), from: usize) {
    let from = from.saturating_sub(SHOWN / 2) / LINE * LINE;
    if cfg!(miri) {
        // Miri's memory is not the process's.
        return line(text, format_args!("{what:<8} {start:x}: (not readable)"));
    }
    let mut bytes = vec![0; len.saturating_sub(from).min(SHOWN)];
    let read = File::open("/proc/self/mem")
        .and_then(|memory| memory.read_exact_at(&mut bytes, (start + from) as u64));
    if read.is_err() {
        return line(text, format_args!("{what:<8} {start:x}: (not readable)"));
    }
    for (number, bytes) in bytes.chunks(LINE).enumerate() {
        let hex: String = bytes.iter().map(|byte| format!(" {byte:02x}")).collect();
        let plain = |&byte: &u8| {
            if byte.is_ascii_graphic() {
                char::from(byte)
            } else {
                '.'
            }
        };
        let ascii: String = bytes.iter().map(plain).collect();
        let at = start + from + number * LINE;
        line(text, format_args!("{what:<8} {at:x}:{hex:<48}  {ascii}"));
    }
    if from + bytes.len() < len {
        line(
            text,
            format_args!("{what:<8} ... {} bytes more", len - from - bytes.len()),
        );
    }
}
