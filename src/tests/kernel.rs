//! The kernel's part in a test: it sends requests, counts the references it is
//! given, sends exact FORGETs, and holds every answer against the truth.
//!
//! An answer that may be believed for `left` more of a timeout `ttl` was proved at
//! `now + left - ttl`; so it must be what the source held at some moment since
//! then. In `strict` that moment is now; in `frozen` it is the last drop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::change::Change;
use super::truth::{Tree, Truth};
use super::user::Cache;
use crate::clock::{Clock, Millis};
use crate::dcache::{NodeId, ROOT, Sweep};
use crate::error::{Errno, Result};
use crate::fs::{Coherence, Entry, FileId, Fs, Lookup, Options};
use crate::namei::{FOREVER, Watches};
use crate::notice::Notice;
use crate::source::fake::{FakeSource, Node, Point};
use crate::source::{Attr, Kind, SourceId, Time};
use crate::sync::Mutex;

/// An object as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) nodeid: NodeId,
    pub(super) id: SourceId,
    pub(super) kind: Kind,
}

/// A file that the kernel holds open.
pub(super) struct Open {
    pub(super) id: FileId,
    pub(super) known: Known,
    /// The object itself, so that its number is not reused and its contents can be compared.
    pub(super) node: Node,
    pub(super) writable: bool,
}

pub(super) struct Kernel {
    pub(super) fs: Fs<FakeSource>,
    pub(super) source: FakeSource,
    pub(super) truth: Truth,
    clock: Clock,
    /// References given and not forgotten.
    pub(super) counts: BTreeMap<NodeId, u64>,
    /// Whose (nodeid, generation) was handed out, ever (I5).
    identities: BTreeMap<(NodeId, u32), SourceId>,
    pub(super) files: Vec<Open>,
    /// What the kernel itself holds.
    pub(super) cache: Cache,
    /// What is older cannot be in the caches.
    last_drop: Millis,
    /// When all events had been followed; what is told of is at least as young.
    pub(super) quiet_at: Millis,
    /// When something last came from behind; 0 if never.
    pub(super) edited_at: Millis,
    /// When the present step began: what it was told may have been read since then.
    began: Millis,
    armed: Option<Armed>,
    /// Faults that had struck before one was armed, and its errno.
    fault: Option<(u64, Errno)>,
}

/// A change that is to come in the middle of a call.
struct Armed {
    change: Change,
    came: Arc<Mutex<Option<Came>>>,
    noted: bool,
}

/// A change that came: the source before it and after it, and what it said.
struct Came {
    before: (Millis, Tree),
    after: (Millis, Tree),
    done: Result<()>,
}

/// A listing by name: the kind and, where asked for, the object.
pub(super) type Listed = BTreeMap<Vec<u8>, (Kind, Option<Known>)>;

impl Kernel {
    /// Mounts `source`. Both clocks stand at 1 ms after 1970.
    pub(super) fn mount(source: FakeSource, options: Options) -> Self {
        let clock = Clock::manual();
        source.clock().set(Time {
            sec: 0,
            nsec: 1_000_000,
        });
        let fs = Fs::with_clock(source.clone(), options, clock.clone()).unwrap();
        let truth = Truth::new(&source, clock.now());
        Self {
            fs,
            source,
            truth,
            clock,
            counts: BTreeMap::new(),
            identities: BTreeMap::new(),
            files: Vec::new(),
            cache: Cache::default(),
            last_drop: 0,
            quiet_at: 0,
            edited_at: 0,
            began: 0,
            armed: None,
            fault: None,
        }
    }

    pub(super) fn now(&self) -> Millis {
        self.clock.now()
    }

    /// Moves both clocks.
    pub(super) fn advance(&mut self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
        self.source.clock().advance(Duration::from_millis(ms));
    }

    /// To be called after every change from behind.
    pub(super) fn edited(&mut self) {
        self.look();
        self.edited_at = self.now();
    }

    /// To be called after every change.
    pub(super) fn look(&mut self) {
        let tree = Tree::read(&self.source, &self.open_nodes());
        self.truth.add(tree, self.clock.now());
    }

    fn open_nodes(&self) -> Vec<Node> {
        self.files.iter().map(|open| open.node.clone()).collect()
    }

    /// A step begins.
    pub(super) fn begin(&mut self) {
        self.began = self.now();
    }

    /// The call after `passes` others will be disturbed by a change, before it reads the
    /// source or after. The clocks move, so that before and after are two times.
    pub(super) fn arm(&mut self, passes: u64, before: bool, change: Change) {
        let came = Arc::new(Mutex::new(None));
        let (source, clock) = (self.source.clone(), self.clock.clone());
        let (todo, note) = (change.clone(), came.clone());
        let open = self.open_nodes();
        let point = if before { Point::Before } else { Point::Read };
        self.source.pause(None, point, passes, move || {
            let tick = Duration::from_millis(1);
            let before = (clock.now(), Tree::read(&source, &open));
            clock.advance(tick);
            source.clock().advance(tick);
            let done = todo.to_source(&source);
            let after = (clock.now(), Tree::read(&source, &open));
            *note.lock() = Some(Came {
                before,
                after,
                done,
            });
            clock.advance(tick);
            source.clock().advance(tick);
        });
        self.armed = Some(Armed {
            change,
            came,
            noted: false,
        });
    }

    /// Takes notice of the change as soon as it has come.
    pub(super) fn note(&mut self) {
        let Some(armed) = &mut self.armed else {
            return;
        };
        if let (Some(came), false) = (&*armed.came.lock(), armed.noted) {
            armed.noted = true;
            self.edited_at = came.after.0;
            for (at, tree) in [&came.before, &came.after] {
                self.truth.add(tree.clone(), *at);
            }
        }
    }

    /// The change, if it came, and what the source said to it.
    pub(super) fn disarm(&mut self) -> Option<(Change, Result<()>)> {
        self.note();
        self.source.clear_pauses();
        let armed = self.armed.take()?;
        let came = armed.came.lock().take();
        came.map(|came| (armed.change, came.done))
    }

    /// The call after `passes` others will fail.
    pub(super) fn arm_fault(&mut self, passes: u64, errno: Errno) {
        self.fault = Some((self.source.struck(), errno));
        self.source.fail_any_after(passes, errno);
    }

    /// Whether the fault that was armed has struck.
    pub(super) fn failed(&self) -> bool {
        self.fault
            .is_some_and(|(before, _)| self.source.struck() != before)
    }

    /// Takes the fault back; whether it has struck.
    pub(super) fn heal(&mut self) -> bool {
        let failed = self.failed();
        self.source.heal();
        self.fault = None;
        failed
    }

    /// Whether something is to befall the next step.
    pub(super) fn disturbed(&self) -> bool {
        self.armed.is_some() || self.fault.is_some()
    }

    /// An answer must be there, unless the source failed, or a change came in between
    /// and the kernel would be told ESTALE twice.
    pub(super) fn expect<R>(&mut self, done: Result<R>) {
        self.note();
        let Err(error) = done else { return };
        let fault = self.fault.filter(|_| self.failed()).map(|(_, errno)| errno);
        let came = self.armed.as_ref().is_some_and(|armed| armed.noted);
        let excused = fault == Some(error) || came && error == Errno::STALE;
        assert!(excused, "{error:?}, without a reason");
    }

    /// Past every timeout.
    pub(super) fn settle(&mut self) {
        let options = self.fs.options().clone();
        match options.coherence {
            Coherence::Strict => {}
            Coherence::Frozen => self.drop_caches(),
            Coherence::Watch if self.all_watched() => self.quiet(),
            Coherence::Ttl | Coherence::Watch | Coherence::Auto => {
                self.quiet();
                let longest = options.ttl.max(options.negative_ttl).max(options.attr_ttl);
                self.advance(longest.as_millis() as u64 + 1);
            }
        }
    }

    pub(super) fn drop_caches(&mut self) {
        self.fs.drop_caches();
        self.deliver();
        self.last_drop = self.now();
    }

    /// Since when an answer that was given at `at` must have been true.
    fn proved(&self, at: Millis, left: Duration, ttl: Duration) -> Millis {
        match self.fs.options().coherence {
            Coherence::Frozen => self.last_drop,
            Coherence::Watch if left >= FOREVER => self.quiet_at,
            _ if left.is_zero() => self.began,
            _ => (at + left.as_millis() as u64).saturating_sub(ttl.as_millis() as u64),
        }
    }

    /// Since when any name of a listing must have been true.
    pub(super) fn window(&self) -> Millis {
        let options = self.fs.options();
        match options.coherence {
            Coherence::Watch => {
                let ttl = options.ttl.as_millis() as u64;
                self.quiet_at.min(self.began.saturating_sub(ttl))
            }
            Coherence::Strict => self.began,
            Coherence::Frozen => self.last_drop,
            Coherence::Ttl | Coherence::Auto => {
                self.began.saturating_sub(options.ttl.as_millis() as u64)
            }
        }
    }

    /// Whether a listing may be made of names seen at different times: where the source
    /// did not keep its promise to be frozen, where listings are not kept from one reply
    /// to the next, or where each name is looked at as well. Then each name is held
    /// against the truth by itself.
    fn may_mix(&self, chunk: usize, plus: bool) -> bool {
        let looked_at = plus || !self.source.config().dtypes;
        self.fs.options().coherence == Coherence::Frozen || chunk < 16 || looked_at
    }

    /// Whether events tell of every directory: none was refused, or failed to be opened.
    pub(super) fn all_watched(&self) -> bool {
        let watches = self.fs.namei().watches();
        let refused = |w: &Watches<Node>| w.refused.load(Ordering::Relaxed);
        watches.is_some_and(|watches| refused(watches) == 0) && self.source.struck() == 0
    }

    pub(super) fn root(&self) -> Known {
        let id = self.source.edit().attr("").unwrap().id;
        Known {
            nodeid: ROOT,
            id,
            kind: Kind::Directory,
        }
    }

    /// LOOKUP; `None` if the name is absent.
    pub(super) fn lookup(&mut self, dir: Known, name: &[u8]) -> Result<Option<Known>> {
        let answer = self.fs.lookup(dir.nodeid, name);
        self.note();
        let (answer, at) = (answer?, self.now());
        match answer {
            Lookup::Entry(entry) => Ok(Some(self.took_entry(dir, name, &entry, at))),
            Lookup::Negative(left) => {
                self.hold_absence(dir, name, left);
                let from = self.proved(at, left, self.fs.options().negative_ttl);
                let held = self
                    .truth
                    .since(from)
                    .any(|tree| tree.child(&dir.id, name).is_none());
                assert!(held, "{} was there all the time since {from}", lossy(name));
                Ok(None)
            }
        }
    }

    /// A reply that carries a nodeid: a reference, to be counted and held against the truth.
    fn took_entry(&mut self, dir: Known, name: &[u8], entry: &Entry, at: Millis) -> Known {
        let known = self.count(dir, name, entry);
        self.note();
        if self.failed() && entry.name_ttl.is_zero() && entry.attr.perm == 0 {
            // A name that could not be looked at stays listed, with nothing to believe.
            return known;
        }
        let options = self.fs.options();
        let (ttl, attr_ttl) = (options.ttl, options.attr_ttl);
        let id = entry.attr.id;
        let from = self.proved(at, entry.name_ttl, ttl);
        let held = self.truth.since(from).any(|tree| {
            tree.child(&dir.id, name)
                .is_some_and(|attr| attr.id == id && attr.kind == entry.attr.kind)
        });
        assert!(
            held,
            "{} was not {entry:?} at any time since {from}",
            lossy(name)
        );
        let from = self.proved(at, entry.attr_ttl, attr_ttl);
        self.check_attr(&entry.attr, from);
        self.check_identity(entry);
        known
    }

    pub(super) fn known(&self, entry: &Entry) -> Known {
        Known {
            nodeid: entry.nodeid,
            id: entry.attr.id,
            kind: entry.attr.kind,
        }
    }

    /// A reference of ours.
    fn count(&mut self, dir: Known, name: &[u8], entry: &Entry) -> Known {
        *self.counts.entry(entry.nodeid).or_default() += 1;
        self.hold_entry(dir, name, entry);
        self.known(entry)
    }

    /// The reply to a change of our own; held against the truth, unless it may be
    /// undone from behind already.
    pub(super) fn took_made(&mut self, dir: Known, name: &[u8], entry: &Entry) {
        if self.disturbed() {
            self.count(dir, name, entry);
        } else {
            self.took_entry(dir, name, entry, self.now());
        }
    }

    /// I5, and one number for one object.
    fn check_identity(&mut self, entry: &Entry) {
        let key = (entry.nodeid, entry.generation);
        let owner = *self.identities.entry(key).or_insert(entry.attr.id);
        assert_eq!(owner, entry.attr.id, "I5: {key:?} names two objects");
        if entry.attr.id.dev == self.root().id.dev && entry.nodeid != ROOT {
            assert_eq!(entry.ino, entry.attr.id.ino, "st_ino is the source's");
        }
    }

    fn has(&self, tree: &Tree, attr: &Attr) -> bool {
        let told = self.fs.options().coherence == Coherence::Watch;
        tree.has(attr, |held, seen| match told {
            true => self.truth.same_as_told(held, seen),
            false => held == seen,
        })
    }

    /// Whether some object had these attributes within their timeout.
    pub(super) fn was_lately(&self, attr: &Attr) -> bool {
        let ttl = self.fs.options().attr_ttl.as_millis() as u64;
        let from = self.now().saturating_sub(ttl);
        self.truth.since(from).any(|tree| self.has(tree, attr))
    }

    fn check_attr(&self, attr: &Attr, from: Millis) {
        let held = self.truth.since(from).any(|tree| self.has(tree, attr));
        assert!(held, "no object had {attr:?} at any time since {from}");
    }

    /// The object that `path` leads to, a LOOKUP for each component; once more from the
    /// start on ESTALE, as the kernel does.
    pub(super) fn walk(&mut self, path: &[u8]) -> Result<Option<Known>> {
        self.retry(|kernel| kernel.walk_once(path))
    }

    pub(super) fn walk_once(&mut self, path: &[u8]) -> Result<Option<Known>> {
        let mut known = self.root();
        for name in path
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
        {
            if known.kind != Kind::Directory {
                return Ok(None);
            }
            match self.lookup(known, name)? {
                Some(next) => known = next,
                None => return Ok(None),
            }
        }
        Ok(Some(known))
    }

    pub(super) fn retry<R>(&mut self, mut f: impl FnMut(&mut Self) -> Result<R>) -> Result<R> {
        match f(self) {
            Err(Errno::STALE) => f(self),
            other => other,
        }
    }

    /// stat(2): `None` if absent.
    pub(super) fn stat(&mut self, path: &[u8]) -> Result<Option<Attr>> {
        self.retry(|kernel| {
            let Some(known) = kernel.walk_once(path)? else {
                return Ok(None);
            };
            kernel.getattr(known, None).map(Some)
        })
    }

    /// GETATTR.
    pub(super) fn getattr(&mut self, known: Known, file: Option<FileId>) -> Result<Attr> {
        let stat = self.fs.getattr(known.nodeid, file);
        self.note();
        let (stat, at) = (stat?, self.now());
        assert_eq!(stat.attr.id, known.id, "attributes of another object");
        self.hold_attr(known.nodeid, stat.attr, stat.ttl);
        if file.is_none() {
            self.check_attr(
                &stat.attr,
                self.proved(at, stat.ttl, self.fs.options().attr_ttl),
            );
        }
        Ok(stat.attr)
    }

    /// readlink(2).
    pub(super) fn readlink(&mut self, path: &[u8]) -> Result<Option<Vec<u8>>> {
        self.retry(|kernel| {
            let Some(known) = kernel.walk_once(path)? else {
                return Ok(None);
            };
            kernel.fs.readlink(known.nodeid).map(Some)
        })
    }

    /// open(2); whether there was a file.
    pub(super) fn open(&mut self, path: &[u8], writable: bool) -> Result<bool> {
        let flags = if writable {
            libc::O_RDWR
        } else {
            libc::O_RDONLY
        };
        let opened = self.retry(|kernel| {
            let Some(known) = kernel.walk_once(path)? else {
                return Ok(None);
            };
            if known.kind != Kind::Regular {
                return Ok(None);
            }
            let opened = kernel.fs.open(known.nodeid, flags as u32)?;
            if opened.doubt_attr {
                kernel.let_go_of(known.nodeid);
            }
            Ok(Some((opened.id, known)))
        })?;
        let Some((id, known)) = opened else {
            return Ok(false);
        };
        // It may have lost its name already, but the mount must have opened that very object.
        let node = self.fs.with_file(id, |file| file.node().clone()).unwrap();
        self.files.push(Open {
            id,
            known,
            node,
            writable,
        });
        self.look();
        Ok(true)
    }

    /// read(2) of the whole open file number `n`.
    pub(super) fn read(&mut self, n: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut buf = [0; 100];
        loop {
            let read = self
                .fs
                .read(self.files[n].id, bytes.len() as u64, &mut buf)?;
            bytes.extend_from_slice(&buf[..read]);
            if read < buf.len() {
                return Ok(bytes);
            }
        }
    }

    pub(super) fn release(&mut self, n: usize) {
        let open = self.files.remove(n);
        self.fs.release(open.id);
        self.look();
    }

    /// Lists a directory, with a reply of at most `chunk` entries each time; names with
    /// kind and, with `plus`, what they are. Without dots.
    pub(super) fn list(&mut self, dir: Known, chunk: usize, plus: bool) -> Result<Listed> {
        let (mut cookie, mut listed) = (0, BTreeMap::new());
        let mut dots = 0;
        while let Some((last, entries)) = self.list_some(dir, cookie, chunk, plus)? {
            cookie = last;
            for (name, kind, known) in entries {
                if matches!(name.as_slice(), b"." | b"..") {
                    dots += 1;
                } else {
                    let double = listed.insert(name.clone(), (kind, known));
                    // The second reply may be of a later state than the first, in which
                    // the name was made anew and has another place.
                    let excused = self.truth.since(self.window()).count() > 1;
                    assert!(
                        double.is_none() || excused,
                        "{} is listed twice",
                        lossy(&name)
                    );
                }
            }
        }
        assert_eq!(dots, 2, "both dots are listed");
        Ok(listed)
    }

    /// One READDIR or READDIRPLUS: the last cookie and the entries; `None` at the end.
    #[expect(clippy::type_complexity)]
    pub(super) fn list_some(
        &mut self,
        dir: Known,
        cookie: u64,
        chunk: usize,
        plus: bool,
    ) -> Result<Option<(u64, Vec<(Vec<u8>, Kind, Option<Known>)>)>> {
        let mut taken = Vec::new();
        let done = self.fs.readdir(dir.nodeid, cookie, plus, &mut |entry| {
            if taken.len() == chunk {
                return false;
            }
            taken.push((
                entry.cookie,
                entry.ino,
                entry.name.to_vec(),
                entry.kind,
                entry.entry,
                self.clock.now(),
            ));
            true
        });
        let Some(&(last, ..)) = taken.last() else {
            return done.map(|()| None);
        };
        // What was listed before an error is good; the next request meets it again.
        let mut entries = Vec::new();
        for (_, ino, name, kind, entry, at) in taken {
            assert_ne!(ino, 0, "the C library drops {}", lossy(&name));
            let known = entry.map(|entry| self.took_entry(dir, &name, &entry, at));
            entries.push((name, kind, known));
        }
        Ok(Some((last, entries)))
    }

    /// Lists the directory at `path`; see [`Kernel::list_checked`].
    pub(super) fn list_path(&mut self, path: &[u8], chunk: usize, plus: bool) -> Result<()> {
        self.retry(|kernel| match kernel.walk_once(path)? {
            Some(dir) if dir.kind == Kind::Directory => kernel.list_checked(dir, chunk, plus),
            _ => Ok(()),
        })
    }

    /// Whether the object at `path` has the attribute that the tests set.
    pub(super) fn xattr(&mut self, path: &[u8]) -> Result<Option<bool>> {
        self.retry(|kernel| {
            let Some(known) = kernel.walk_once(path)? else {
                return Ok(None);
            };
            let mut buf = [0; 16];
            match kernel.fs.getxattr(known.nodeid, b"security.x", &mut buf) {
                Ok(len) => assert_eq!(&buf[..len], b"value"),
                Err(Errno::NODATA) => return Ok(Some(false)),
                Err(error) => return Err(error),
            }
            assert_eq!(kernel.fs.listxattr(known.nodeid, 0, &mut buf)?, 11);
            Ok(Some(true))
        })
    }

    /// An open file is what it was opened as, whatever became of its names.
    pub(super) fn check_open(&mut self, n: usize) -> Result<()> {
        let (id, known) = (self.files[n].id, self.files[n].known);
        let attr = self.getattr(known, Some(id))?;
        let bytes = self.read(n)?;
        if self.armed.is_none() {
            let node = &self.files[n].node;
            assert_eq!(attr, self.source.edit().attr_of(node), "fstat");
            let held = self.source.edit().contents_of(node).unwrap();
            assert!(bytes == held, "contents of an open file");
        }
        Ok(())
    }

    pub(super) fn shrink(&mut self, count: usize) {
        let dcache = &self.fs.namei().dcache;
        let (notices, mode) = (self.fs.notices(), self.fs.options().coherence);
        let forever = matches!(mode, Coherence::Frozen | Coherence::Watch);
        dcache.scan(count, Sweep::SecondChance, &mut |parent, name| {
            if forever {
                let name = name.into();
                notices.push(Notice::Entry { parent, name });
            }
        });
        dcache.drop_listings(count);
        dcache.shrink();
    }

    /// Lists a directory and holds the listing as a whole against the truth.
    pub(super) fn list_checked(&mut self, dir: Known, chunk: usize, plus: bool) -> Result<()> {
        let listed = self.list(dir, chunk, plus)?;
        self.note();
        let from = self.window();
        let trees: Vec<_> = self
            .truth
            .since(from)
            .map(|tree| tree.children(&dir.id).unwrap_or_default())
            .collect();
        let whole = |tree: &BTreeMap<&[u8], &Attr>| {
            let is = |(name, (kind, _)): (&Vec<u8>, &(Kind, _))| {
                let there = tree.get(name.as_slice());
                there.is_some_and(|attr| attr.kind == *kind || self.failed())
            };
            tree.len() == listed.len() && listed.iter().all(is)
        };
        let by_name = |name: &[u8]| {
            let there = |tree: &BTreeMap<&[u8], &Attr>| tree.contains_key(name);
            match listed.get(name) {
                Some((kind, _)) => trees.iter().any(|t| {
                    t.get(name)
                        .is_some_and(|a| a.kind == *kind || self.failed())
                }),
                None => !trees.iter().all(there),
            }
        };
        let held = trees.iter().any(whole)
            || self.may_mix(chunk, plus)
                && trees
                    .iter()
                    .flat_map(BTreeMap::keys)
                    .all(|name| by_name(name))
                && listed.keys().all(|name| by_name(name));
        let names: Vec<String> = listed.keys().map(|name| lossy(name)).collect();
        assert!(held, "{names:?} was never the whole listing since {from}");
        Ok(())
    }

    /// FORGET.
    pub(super) fn forget(&mut self, nodeid: NodeId, n: u64) {
        let Some(count) = self.counts.get_mut(&nodeid) else {
            return;
        };
        let n = n.min(*count);
        *count -= n;
        if *count == 0 {
            self.counts.remove(&nodeid);
            self.evict(nodeid);
        }
        self.fs.forget(nodeid, n);
    }

    /// The invariants that the mount can check, and that it counts as we do (I4).
    pub(super) fn check(&self) {
        self.fs.check().unwrap();
        let inodes = &self.fs.namei().dcache.inodes;
        for (nodeid, count) in &self.counts {
            let nlookup = inodes
                .find(*nodeid)
                .and_then(|id| inodes.with(id, |i| i.nlookup()));
            assert_eq!(nlookup, Some(*count), "I4: references of {nodeid:#x}");
        }
        let given: u64 = self.counts.values().sum();
        let held = inodes
            .ids()
            .into_iter()
            .filter_map(|id| inodes.with(id, |i| i.nlookup()));
        assert_eq!(held.sum::<u64>(), given, "I4: references in all");
    }

    /// Forgets everything, drops everything: nothing may be left.
    pub(super) fn unmount(&mut self) {
        while !self.files.is_empty() {
            self.release(0);
        }
        while let Some((&nodeid, &count)) = self.counts.first_key_value() {
            self.forget(nodeid, count);
        }
        self.drop_caches();
        self.fs.check().unwrap();
        let dcache = &self.fs.namei().dcache;
        assert_eq!(
            (dcache.len(), dcache.inodes.len()),
            (0, 1),
            "only the root is left"
        );
        assert_eq!(self.fs.namei().node_counts().0, 0, "no descriptor is left");
        let leaks = self.fs.end();
        assert!(leaks.is_empty(), "{leaks:?}");
    }
}

pub(super) fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(250)]).into_owned()
}

/// Options for a mode whose timeouts differ, so that none stands for another.
pub(super) fn options(coherence: Coherence) -> Options {
    let times = match coherence {
        Coherence::Ttl | Coherence::Watch | Coherence::Auto => {
            [1_000, 300, 500].map(Duration::from_millis)
        }
        Coherence::Strict => [Duration::ZERO; 3],
        Coherence::Frozen => [FOREVER; 3],
    };
    Options {
        coherence,
        ttl: times[0],
        negative_ttl: times[1],
        attr_ttl: times[2],
        dir_fds: 1,
        // Its FORGETs come from the same thread.
        forget_wait: Duration::ZERO,
        ..Options::default()
    }
}
