//! Calls of a fake source: counters, injected faults, and hooks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Errno, Result};
use crate::sync::Mutex;

macro_rules! calls {
    ($($kind:ident $word:literal,)*) => {
        /// Kinds of call, one per method of [`crate::source::Source`] that asks the source.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Call {
            $(#[doc = concat!("`", $word, "`.")] $kind,)*
        }

        impl Call {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// The method's name.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$kind => $word,)*
                }
            }
        }
    };
}

calls! {
    OpenNode "open_node",
    Stat "stat",
    StatAt "stat_at",
    StatFile "stat_file",
    Readlink "readlink",
    List "list",
    FsTraits "fs_traits",
    Statfs "statfs",
    Open "open",
    Read "read",
    Lseek "lseek",
    Getxattr "getxattr",
    Listxattr "listxattr",
    OpenAt "open_at",
    Create "create",
    Mknod "mknod",
    Mkdir "mkdir",
    Symlink "symlink",
    Link "link",
    Unlink "unlink",
    Rmdir "rmdir",
    Rename "rename",
    Setattr "setattr",
    Write "write",
    Fsync "fsync",
    FsyncDir "fsync_dir",
    Fallocate "fallocate",
    CopyRange "copy_range",
    Setxattr "setxattr",
    Removexattr "removexattr",
    Flags "flags",
    SetFlags "set_flags",
    Lock "lock",
    FindLock "find_lock",
}

/// Where in a call a hook runs. No lock is held at either point, so a hook may
/// change the tree or wait for another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Nothing was read yet.
    Before,
    /// The answer was read and is about to be returned; while listing, once for each batch
    /// that is about to be handed over.
    Read,
}

/// A call at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site<'a> {
    /// Which call.
    pub call: Call,
    /// Where in it.
    pub point: Point,
    /// The name or path it was given; empty if none.
    pub name: &'a [u8],
}

type Hook = dyn Fn(&Site<'_>) + Send + Sync;
type Once = Box<dyn FnOnce() + Send>;

/// A fault that waits for its call.
struct Fault {
    call: Option<Call>,
    /// Calls that still succeed.
    passes: u64,
    errno: Errno,
    /// It stays until [`Calls::heal`].
    lasting: bool,
}

/// Once-hooks in the order in which they were set: call, point, calls to pass, what to run.
type Pauses = Vec<(Option<Call>, Point, u64, Once)>;

/// The switchboard in front of a fake tree.
pub(super) struct Calls {
    counts: Vec<AtomicU64>,
    faults: Mutex<Vec<Fault>>,
    struck: AtomicU64,
    pauses: Mutex<Pauses>,
    hook: Mutex<Option<Arc<Hook>>>,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self {
            counts: Call::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            faults: Mutex::new(Vec::new()),
            struck: AtomicU64::new(0),
            pauses: Mutex::new(Vec::new()),
            hook: Mutex::new(None),
        }
    }

    pub(super) fn count(&self, call: Call) -> u64 {
        self.counts[call as usize].load(Ordering::Relaxed)
    }

    /// Enters a call: counts it, runs hooks, and fails it if a fault is due.
    pub(super) fn enter(&self, call: Call, name: &[u8]) -> Result<()> {
        self.counts[call as usize].fetch_add(1, Ordering::Relaxed);
        self.at(call, Point::Before, name);
        self.fault(call)
    }

    /// Runs the hooks of a point.
    pub(super) fn at(&self, call: Call, point: Point, name: &[u8]) {
        let hook = self.hook.lock().clone();
        if let Some(hook) = hook {
            hook(&Site { call, point, name });
        }
        let due = take_due(&mut self.pauses.lock(), call, point);
        due.into_iter().for_each(|run| run());
    }

    fn fault(&self, call: Call) -> Result<()> {
        let mut result = Ok(());
        self.faults.lock().retain_mut(|fault| {
            if fault.call.is_some_and(|only| only != call) {
                return true;
            }
            if fault.passes > 0 {
                fault.passes -= 1;
                return true;
            }
            if result.is_err() {
                return true;
            }
            result = Err(fault.errno);
            self.struck.fetch_add(1, Ordering::Relaxed);
            fault.lasting
        });
        result
    }

    pub(super) fn add_fault(&self, call: Option<Call>, passes: u64, errno: Errno, lasting: bool) {
        self.faults.lock().push(Fault {
            call,
            passes,
            errno,
            lasting,
        });
    }

    pub(super) fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }

    pub(super) fn heal(&self) {
        self.faults.lock().clear();
    }

    pub(super) fn add_pause(&self, call: Option<Call>, point: Point, passes: u64, run: Once) {
        self.pauses.lock().push((call, point, passes, run));
    }

    pub(super) fn clear_pauses(&self) {
        self.pauses.lock().clear();
    }

    pub(super) fn pauses(&self) -> usize {
        self.pauses.lock().len()
    }

    pub(super) fn set_hook(&self, hook: Option<Arc<Hook>>) {
        *self.hook.lock() = hook;
    }
}

/// Takes out the once-hooks whose turn it is.
fn take_due(pauses: &mut Pauses, call: Call, point: Point) -> Vec<Once> {
    let mut due = Vec::new();
    let mut index = 0;
    while index < pauses.len() {
        let (of, at, passes, _) = &mut pauses[index];
        if *at != point || of.is_some_and(|of| of != call) {
            index += 1;
        } else if *passes > 0 {
            *passes -= 1;
            index += 1;
        } else {
            due.push(pauses.remove(index).3);
        }
    }
    due
}
