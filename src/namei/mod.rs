//! Resolving names (floor F4).
//!
//! Purpose: FUSE asks one component at a time, so [`Namei::lookup_one`] is the
//! hot path: the dentry cache first (`lookup_fast`), the source second
//! (`lookup_slow`). To act on an object the source needs a descriptor:
//! [`Namei::node`] climbs from it to the nearest ancestor that has one, writing the
//! path right to left into a borrowed name buffer, and opens that path beneath the
//! ancestor. Walks of whole paths ([`Namei::walk`]) serve `nameifs resolve` and
//! the tests.
//!
//! Contract: no lock is held around a call of the source. A result read from the
//! source is cached only if its directory did not change meanwhile.
//!
//! It does not count the kernel's references and decides no timeouts; `fs` does.

mod absent;
mod change;
mod node;
mod nodes;
mod walk;
mod watches;

pub use nodes::NodeLru;
pub use walk::{Outcome, Step};
pub use watches::{Own, Watches};

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clock::{Asked, Clock, Millis};
use crate::dcache::{
    Added, Cached, Dcache, DentryInit, Dir, InodeId, InodeRef, Moment, Stamp, Sweep,
};
use crate::error::{Errno, Result};
use crate::name::{Filename, Names, QStr, Supply};
use crate::notice::{Notice, Notices};
use crate::slab::Registry;
use crate::source::{Attr, Kind, Source, Time};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};

/// When a cached name or attribute may be used without asking the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coherence {
    /// [`Coherence::Watch`] where the source's filesystem tells of changes, else
    /// [`Coherence::Ttl`].
    Auto,
    /// Until an event tells of a change; where nobody tells, as [`Coherence::Ttl`].
    Watch,
    /// For a time after it was last proved.
    Ttl,
    /// Until it is dropped: the source does not change.
    Frozen,
    /// Never.
    Strict,
}

/// [`Coherence`] with its times.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The mode.
    pub coherence: Coherence,
    /// How long a name is believed under `Ttl`.
    pub ttl: Duration,
    /// How long an absence is believed under `Ttl`.
    pub negative_ttl: Duration,
    /// How long attributes are believed under `Ttl`.
    pub attr_ttl: Duration,
}

impl Policy {
    /// How much longer something proved at `at` (0: never) is to be believed for `ttl`;
    /// `watched` if somebody would tell of a change.
    fn left(&self, watched: bool, at: Millis, now: Millis, ttl: Duration) -> Duration {
        match self.coherence {
            Coherence::Frozen => FOREVER,
            Coherence::Strict => Duration::ZERO,
            Coherence::Watch if watched => FOREVER,
            Coherence::Auto | Coherence::Watch | Coherence::Ttl if at == 0 => Duration::ZERO,
            Coherence::Auto | Coherence::Watch | Coherence::Ttl => {
                ttl.saturating_sub(Duration::from_millis(now.saturating_sub(at)))
            }
        }
    }
}

/// How it is known whether attributes that were read are still good.
#[derive(Clone, Copy, Debug)]
enum Told {
    /// Changes are told of by the directory that the name is in, and move its counter.
    ByDirectory,
    /// By the inode's own watch, and void what was read since this moment of it.
    Since(u16),
    /// They may be void already.
    Perhaps,
}

/// A timeout that does not pass.
pub const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// After this time a change of a directory has another ctime than the one before:
/// the tick of coarse timestamps on local filesystems, two seconds elsewhere.
fn tick(remote: bool) -> Duration {
    if remote {
        Duration::from_secs(2)
    } else {
        Duration::from_millis(20)
    }
}

/// What a name is.
pub enum Found<'a> {
    /// An inode.
    Positive {
        /// Pinned.
        inode: InodeRef<'a>,
        /// Its attributes.
        attr: Attr,
        /// How much longer the name may be believed.
        name_left: Duration,
        /// How much longer the attributes may be believed.
        attr_left: Duration,
    },
    /// Absent.
    Negative {
        /// How much longer that may be believed.
        left: Duration,
    },
}

/// What the name layer may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the caches.
    pub bytes: u64,
    /// Descriptors of directories.
    pub nodes: usize,
    /// Watched directories.
    pub watches: usize,
    /// How long an object waits for the kernel to forget the one that had its number.
    pub forget_wait: Duration,
}

/// Where name buffers come from, and how dentries begin; for the experiments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variant {
    /// The experiment of 1999.
    pub getname: Supply,
    /// The experiment of 2007.
    pub dentry_init: DentryInit,
}

/// Resolves the names of one mount.
pub struct Namei<S: Source> {
    /// The mirrored tree.
    pub source: S,
    /// The cache.
    pub dcache: Dcache,
    /// The name buffers.
    pub names: Names,
    /// The time.
    pub clock: Clock,
    /// What has to be told to the kernel.
    pub notices: Arc<Notices>,
    policy: Policy,
    nodes: NodeLru<S::Node>,
    watches: Option<Watches<S::Node>>,
    /// `st_dev` of the mount itself, which must never be entered; 0 while unknown.
    own_dev: AtomicU64,
    budget: u64,
    forget_wait: Duration,
    names_changed: AtomicU64,
}

/// Names cached or let go of between two looks at the budget.
const NAMES_PER_CHECK: u64 = 1024;
/// What one takes, dentry, inode and tables, about.
const BYTES_PER_NAME: u64 = 192;
/// Notices that may wait for the notifier.
const NOTICE_LIMIT: usize = 64 << 10;

impl<S: Source> Namei<S> {
    /// Caches over `source`, created in `registry`. [`Coherence::Auto`] becomes what suits
    /// the source.
    ///
    /// # Errors
    /// The source's, when its root cannot be read; EMFILE when it cannot be watched.
    pub fn new(
        source: S,
        registry: &Registry,
        clock: Clock,
        mut policy: Policy,
        limits: Limits,
        variant: Variant,
    ) -> Result<Self> {
        let root = source.root();
        let attr = source.stat(&root)?;
        let traits = source.fs_traits(&root)?;
        let wants_watch = match policy.coherence {
            Coherence::Watch => true,
            Coherence::Auto => !traits.remote,
            Coherence::Ttl | Coherence::Frozen | Coherence::Strict => false,
        };
        let watcher = if wants_watch { source.watcher()? } else { None };
        if policy.coherence == Coherence::Auto {
            policy.coherence = if watcher.is_some() {
                Coherence::Watch
            } else {
                Coherence::Ttl
            };
        }
        Ok(Self {
            names: Names::new(registry, variant.getname),
            dcache: Dcache::new(registry, &attr, traits, variant.dentry_init)?,
            clock,
            notices: Arc::new(Notices::new(NOTICE_LIMIT)),
            policy,
            nodes: NodeLru::new(limits.nodes),
            watches: watcher.map(|watcher| Watches::new(watcher, limits.watches)),
            own_dev: AtomicU64::new(0),
            budget: limits.bytes,
            forget_wait: limits.forget_wait,
            names_changed: AtomicU64::new(0),
            source,
        })
    }

    /// The rules of freshness.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Descriptors held now, and at most.
    pub fn node_counts(&self) -> (usize, usize) {
        self.nodes.counts()
    }

    /// Names the mount's own device: what lies on it is refused with ELOOP.
    pub fn set_own_dev(&self, dev: u64) {
        self.own_dev.store(dev, Ordering::Relaxed);
    }

    /// The state of a directory.
    ///
    /// # Errors
    /// ENOTDIR, ESTALE if it is gone.
    pub fn dir(&self, inode: InodeId) -> Result<Arc<Dir>> {
        let dir = self
            .dcache
            .inodes
            .with(inode, |i| i.dir().cloned())
            .ok_or(Errno::STALE)?;
        dir.ok_or(Errno::NOTDIR)
    }

    /// How much longer the names of a directory may be believed.
    pub fn names_left(&self, dir: &Dir, now: Millis) -> Duration {
        let ttl = self.policy.ttl;
        self.policy.left(dir.is_watched(), dir.checked(), now, ttl)
    }

    /// How much longer a name below a directory may be believed that was asked for at
    /// `asked`.
    pub fn name_fresh(&self, dir: &Dir, asked: Asked) -> Duration {
        self.policy.left(
            dir.is_watched(),
            asked.at,
            self.clock.now(),
            self.policy.ttl,
        )
    }

    fn negative_left(&self, dir: &Dir, now: Millis) -> Duration {
        let ttl = self.policy.negative_ttl;
        self.policy.left(dir.is_watched(), dir.checked(), now, ttl)
    }

    /// How much longer attributes of an inode that were read at `at` may be believed;
    /// `parent` is the directory by which it was found, if that is known.
    pub fn attr_left(
        &self,
        inode: InodeId,
        attr: &Attr,
        parent: Option<&Dir>,
        at: Millis,
        now: Millis,
    ) -> Duration {
        let watched =
            self.policy.coherence == Coherence::Watch && self.attr_is_watched(inode, attr, parent);
        self.policy.left(watched, at, now, self.policy.attr_ttl)
    }

    /// How much longer attributes may be believed that were asked for at `asked`.
    pub fn attr_fresh(
        &self,
        inode: InodeId,
        attr: &Attr,
        parent: Option<&Dir>,
        asked: Asked,
    ) -> Duration {
        self.attr_left(inode, attr, parent, asked.at, self.clock.now())
    }

    /// Whether somebody tells of changes of an inode's attributes. A directory's own
    /// watch does; of anything else the watch of the directory that it is in does, as
    /// long as there is no other name by which it could be changed elsewhere.
    fn attr_is_watched(&self, inode: InodeId, attr: &Attr, parent: Option<&Dir>) -> bool {
        if attr.kind == Kind::Directory {
            return self.dir(inode).is_ok_and(|dir| dir.is_watched());
        }
        if attr.nlink != 1 {
            return false;
        }
        match parent {
            Some(dir) => dir.is_watched(),
            None => self
                .dcache
                .aliases(inode, |parent, _| {
                    Some(self.dir(parent).is_ok_and(|d| d.is_watched()))
                })
                .unwrap_or(false),
        }
    }

    /// The watches, if this mount follows events.
    pub fn watches(&self) -> Option<&Watches<S::Node>> {
        self.watches.as_ref()
    }

    /// Sees to it that changes below a directory are told of, before its names are read.
    pub fn ensure_watch(&self, inode: InodeId, dir: &Arc<Dir>, node: &S::Node) {
        let Some(watches) = &self.watches else { return };
        if dir.is_watched() || self.is_remote(inode) {
            return;
        }
        match watches.watch(inode, dir, node) {
            // Attributes that were read before are told of by nobody.
            Ok(()) => self.changed(inode),
            Err(e) if watches.refuse() => tracing::warn!(
                error = %e,
                "not every directory can be watched; the others are believed for the ttl \
                 (fs.inotify.max_user_watches, --max-watches)"
            ),
            Err(_) => {}
        }
    }

    /// What `name` below `parent` is.
    ///
    /// # Errors
    /// ENOTDIR, ESTALE if `parent` is gone, and the source's (never ENOENT).
    pub fn lookup_one(&self, parent: InodeId, name: QStr<'_>) -> Result<Found<'_>> {
        let dir = self.dir(parent)?;
        if let Some(found) = self.lookup_fast(parent, &dir, name)? {
            return Ok(found);
        }
        if let Some(found) = self.lookup_listing(parent, &dir, name)? {
            return Ok(found);
        }
        self.dcache.counters.misses.fetch_add(1, Ordering::Relaxed);
        self.lookup_slow(parent, &dir, name)
    }

    /// From the cache alone, but for the one check that proves a directory.
    fn lookup_fast(
        &self,
        parent: InodeId,
        dir: &Arc<Dir>,
        name: QStr<'_>,
    ) -> Result<Option<Found<'_>>> {
        if self.policy.coherence == Coherence::Strict {
            return Ok(None);
        }
        let now = self.clock.now();
        let counters = &self.dcache.counters;
        match self.dcache.lookup(parent, dir, name) {
            None => Ok(None),
            Some(Cached::Negative) => {
                let mut left = self.negative_left(dir, now);
                if left.is_zero() {
                    // One look at the directory proves all its absent names again.
                    if !self.revalidate_dir(parent, dir)? {
                        return Ok(None);
                    }
                    left = self.negative_left(dir, self.clock.now());
                }
                counters.negative_hits.fetch_add(1, Ordering::Relaxed);
                Ok(Some(Found::Negative { left }))
            }
            Some(Cached::Positive(inode)) => {
                let name_left = self.names_left(dir, now);
                let attr = self.dcache.inodes.attr(inode.id());
                let Some((attr, at)) = attr else {
                    return Ok(None);
                };
                let attr_left = self.attr_left(inode.id(), &attr, Some(dir), at, now);
                if name_left.is_zero() || attr_left.is_zero() {
                    return Ok(None);
                }
                counters.hits.fetch_add(1, Ordering::Relaxed);
                Ok(Some(Found::Positive {
                    inode,
                    attr,
                    name_left,
                    attr_left,
                }))
            }
        }
    }

    /// Asks the source.
    fn lookup_slow(&self, parent: InodeId, dir: &Arc<Dir>, name: QStr<'_>) -> Result<Found<'_>> {
        let filename = self.names.getname_from(name.as_bytes())?;
        let node = self.node(parent)?;
        self.ensure_watch(parent, dir, &node);
        let moment = dir.begin();
        // Only where a directory may have a watch of its own does it matter since when.
        let watching = self.watches.is_some();
        let known = watching.then(|| self.dcache.peek(parent, name)).flatten();
        let known = known.map(|inode| (self.attr_moment(inode.id()).0, inode));
        let asked = self.clock.asked();
        match self.source.stat_at(&node, filename.as_cstr()) {
            Ok(attr) => {
                let inode = self.iget(&attr, &node, &filename)?;
                let since = known.filter(|(_, known)| known.id() == inode.id());
                let since = since.map(|(moment, _)| moment);
                let (attr, told) = self.watch_found(&inode, attr, since, &node, &filename)?;
                self.compare_stamp(inode.id(), &attr);
                let mut guard = dir.lock();
                let added = self
                    .dcache
                    .add(parent, &mut guard, name, Some(&inode), moment);
                // What was read may be older than a change that was told of: then others
                // never see it, and what they saw so far may be older still.
                let told = if added == Added::Void {
                    Told::Perhaps
                } else {
                    told
                };
                let (inodes, id) = (&self.dcache.inodes, inode.id());
                let good = match told {
                    Told::ByDirectory => {
                        inodes.set_attr(id, &attr, asked.at);
                        true
                    }
                    Told::Since(moment) => inodes.set_attr_since(id, &attr, asked.at, moment),
                    Told::Perhaps => {
                        self.changed(id);
                        false
                    }
                };
                drop(guard);
                self.added(parent, added);
                let name_left = match added {
                    Added::Void => Duration::ZERO,
                    _ => self.name_fresh(dir, asked),
                };
                let attr_left = match good {
                    true => self.attr_fresh(id, &attr, Some(dir), asked),
                    false => Duration::ZERO,
                };
                Ok(Found::Positive {
                    inode,
                    attr,
                    name_left,
                    attr_left,
                })
            }
            Err(Errno::NOENT) => {
                let (proved, moment) = self.prove_negative(parent, dir, &node, asked, moment)?;
                let gone = self.dcache.peek(parent, name);
                let mut guard = dir.lock();
                let added = self.dcache.add(parent, &mut guard, name, None, moment);
                drop(guard);
                self.added(parent, added);
                if let (Some(gone), Added::Contradicted) = (&gone, added) {
                    self.find_renamed(gone, parent, &node);
                }
                let left = match (added, proved) {
                    (Added::Void, _) | (_, false) => Duration::ZERO,
                    _ => self.negative_left(dir, self.clock.now()),
                };
                Ok(Found::Negative { left })
            }
            Err(e) => Err(e),
        }
    }

    /// A directory's own attributes are told of by its own watch: it is set before they
    /// are read, so where there was none they are read again. `attr` was read since the
    /// moment `since` of the inode, if that was known before.
    fn watch_found(
        &self,
        inode: &InodeRef<'_>,
        attr: Attr,
        since: Option<u16>,
        parent: &S::Node,
        name: &Filename,
    ) -> Result<(Attr, Told)> {
        if self.watches.is_none() || attr.kind != Kind::Directory {
            return Ok((attr, Told::ByDirectory));
        }
        let told = since.map_or(Told::Perhaps, Told::Since);
        let dir = self.dir(inode.id())?;
        if dir.is_watched() {
            return Ok((attr, told));
        }
        let Ok(node) = self.source.open_node(parent, name.as_cstr()) else {
            // Not to be opened, or gone: it is believed for the ttl.
            return Ok((attr, Told::ByDirectory));
        };
        let again = self.source.stat(&node)?;
        if !self.is_object(inode.id(), &again) {
            return Ok((attr, Told::Perhaps));
        }
        self.nodes.insert(self.key(inode.id()), node.clone());
        self.ensure_watch(inode.id(), &dir, &node);
        let (moment, _) = self.attr_moment(inode.id());
        let attr = self.source.stat(&node)?;
        self.still_named(inode.id(), &attr)?;
        Ok((attr, Told::Since(moment)))
    }

    /// Under `Ttl` an absence is believed as long as the directory does not change:
    /// sees to it that there is a stamp that was taken before a change could hide.
    /// Whether the absence found at `asked`, begun at `moment`, may be believed, and the
    /// moment with which it is to be cached.
    fn prove_negative(
        &self,
        parent: InodeId,
        dir: &Dir,
        node: &S::Node,
        asked: Asked,
        moment: Moment,
    ) -> Result<(bool, Moment)> {
        if !matches!(self.policy.coherence, Coherence::Ttl | Coherence::Watch)
            || !self.negative_left(dir, self.clock.now()).is_zero()
        {
            return Ok((self.policy.coherence != Coherence::Strict, moment));
        }
        let attr = self.source.stat(node)?;
        self.still_named(parent, &attr)?;
        let remote = self.is_remote(parent);
        let stamp = Stamp {
            mtime: attr.mtime,
            ctime: attr.ctime,
            racy: false,
        };
        // Changed since the name was asked for, or too shortly before to tell.
        if !is_older(attr.ctime, asked.wall, tick(remote)) {
            return Ok((false, moment));
        }
        let mut guard = dir.lock();
        if !guard.unchanged_since(moment) {
            return Ok((false, moment));
        }
        // Names that were cached under another stamp, or under none, may be gone.
        if guard.state.stamp != Some(stamp) {
            guard.doubt();
        }
        guard.prove(stamp, asked.at);
        Ok((true, dir.begin()))
    }

    fn is_remote(&self, inode: InodeId) -> bool {
        let device = self.dcache.inodes.device(inode).unwrap_or(0);
        self.dcache.inodes.devices.get(device).traits.remote
    }

    /// Looks whether a directory is as it was when its names were proved; if so they
    /// all are proved anew, if not they all are doubtful. Whether they are proved.
    ///
    /// # Errors
    /// ESTALE if the directory is gone, and the source's.
    pub fn revalidate_dir(&self, inode: InodeId, dir: &Dir) -> Result<bool> {
        if dir.lock().state.stamp.is_none() {
            return Ok(false);
        }
        let moment = dir.begin();
        let node = self.node(inode)?;
        let asked = self.clock.asked();
        let attr = self.source.stat(&node)?;
        let stamp = self.stamp(inode, &attr, asked);
        let mut guard = dir.lock();
        if !guard.unchanged_since(moment) {
            return Ok(false);
        }
        let same = guard
            .state
            .stamp
            .is_some_and(|s| !s.racy && s.ctime == stamp.ctime && s.mtime == stamp.mtime);
        if same {
            guard.prove(
                Stamp {
                    racy: false,
                    ..stamp
                },
                asked.at,
            );
        } else {
            guard.doubt();
        }
        Ok(same)
    }

    /// The stamp of a directory whose attributes were asked for at `asked`.
    pub fn stamp(&self, inode: InodeId, attr: &Attr, asked: Asked) -> Stamp {
        let racy = !is_older(attr.ctime, asked.wall, tick(self.is_remote(inode)));
        Stamp {
            mtime: attr.mtime,
            ctime: attr.ctime,
            racy,
        }
    }

    /// Sees to what comes with a new dentry: the kernel's listing after a
    /// contradiction, the budget now and then.
    pub fn added(&self, parent: InodeId, added: Added) {
        if added == Added::Contradicted
            && let Some(nodeid) = self.dcache.inodes.with(parent, |i| i.nodeid())
        {
            self.notices.doubt(nodeid);
            self.notices.push(Notice::Inode { nodeid });
        }
        self.changed_names();
    }

    /// A name was cached, or the kernel let go of one: looks at the budget now and then.
    pub fn changed_names(&self) {
        let names = self.names_changed.fetch_add(1, Ordering::Relaxed);
        if names.is_multiple_of(NAMES_PER_CHECK) {
            self.stay_in_budget();
        }
    }

    /// Frees unused dentries while the caches hold more than the budget; what the
    /// kernel pins is asked back.
    pub fn stay_in_budget(&self) {
        let names = 2 * NAMES_PER_CHECK as usize;
        if self.over_budget() && !self.reclaim(names) {
            self.notices.push(Notice::Reclaim { names });
        }
    }

    /// Whether the names until the next look might exceed the budget.
    pub fn over_budget(&self) -> bool {
        let headroom = (NAMES_PER_CHECK * BYTES_PER_NAME).min(self.budget / 4);
        self.dcache.bytes() as u64 > self.budget - headroom
    }

    /// Frees up to `count` unused dentries, if the caches hold more than the budget, and
    /// listings where that is not enough; whether it was. The kernel is not asked again:
    /// what it pins it may go on pinning, and the next names will ask.
    pub fn reclaim(&self, count: usize) -> bool {
        // Where the kernel holds an absence for ever, it is to let go of it as well: we
        // would not know to take it back. Where it is slow to do so, we wait.
        let forever = matches!(self.policy.coherence, Coherence::Frozen | Coherence::Watch);
        if !self.over_budget() || (forever && self.notices.pending() > NOTICE_LIMIT / 2) {
            return true;
        }
        let freed = self
            .dcache
            .scan(count, Sweep::SecondChance, &mut |parent, name| {
                if forever {
                    let name = name.into();
                    self.notices.push(Notice::Entry { parent, name });
                }
            });
        self.dcache.shrink();
        if freed >= count || !self.over_budget() {
            return true;
        }
        let excess = (self.dcache.bytes() as u64).saturating_sub(self.budget);
        self.dcache.drop_listings(excess as usize);
        false
    }

    /// The inode that `attr` is of; `name` below `node` leads to it.
    ///
    /// # Errors
    /// ELOOP if it lies on this very mount, ENOMEM, the source's.
    pub fn iget(&self, attr: &Attr, dir: &S::Node, name: &Filename) -> Result<InodeRef<'_>> {
        let devices = &self.dcache.inodes.devices;
        let device = match devices.index_of(&attr.id) {
            Some(index) => index,
            None => {
                if attr.id.dev == self.own_dev.load(Ordering::Relaxed) {
                    return Err(Errno::LOOP);
                }
                let node = self.source.open_node(dir, name.as_cstr())?;
                devices.add(&attr.id, self.source.fs_traits(&node)?)
            }
        };
        let inodes = &self.dcache.inodes;
        inodes.wait_forgotten(attr, device, self.forget_wait);
        inodes.iget(attr, device)
    }

    /// The inode that `attr` is of, of a file that has no name, on the filesystem of
    /// directories that are known.
    ///
    /// # Errors
    /// ESTALE if it lies on a filesystem that nothing is known of, ENOMEM.
    pub fn iget_nameless(&self, attr: &Attr) -> Result<InodeRef<'_>> {
        let inodes = &self.dcache.inodes;
        let device = inodes.devices.index_of(&attr.id).ok_or(Errno::STALE)?;
        inodes.wait_forgotten(attr, device, self.forget_wait);
        inodes.iget(attr, device)
    }

    /// Whether `attr` is of the inode `id`.
    pub fn is_object(&self, id: InodeId, attr: &Attr) -> bool {
        let index = self.dcache.inodes.devices.index_of(&attr.id);
        index.is_some_and(|device| self.dcache.inodes.is_object(id, attr, device))
    }

    /// Everything cached is doubtful from now on; the kernel is to be told by the caller.
    pub fn drop_caches(&self) {
        self.nodes.clear();
        self.dcache.doubt_all();
    }

    /// Frees what is doubtful, as far as nothing needs it. Only after the kernel was told
    /// of it: nobody else knows which absences the kernel holds.
    pub fn free_doubtful(&self) {
        self.dcache
            .scan(usize::MAX, Sweep::Doubtful, &mut |_, _| {});
        self.dcache.shrink();
        self.names.shrink();
    }
}

/// Whether `t` lies at least `by` before `than`.
fn is_older(t: Time, than: SystemTime, by: Duration) -> bool {
    let Ok(than) = than.duration_since(UNIX_EPOCH) else {
        return false;
    };
    let Some(limit) = than.checked_sub(by) else {
        return false;
    };
    t < Time {
        sec: limit.as_secs() as i64,
        nsec: limit.subsec_nanos(),
    }
}
