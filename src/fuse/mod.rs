//! The FUSE transport (floor F6): the only place that speaks the kernel's protocol.
//!
//! Purpose: decode a request, make one call of [`Fs`], encode its answer. The
//! notifier thread tells the kernel what [`crate::notice::Notices`] holds. fuser mounts,
//! agrees with the kernel on the protocol, and sends notices; requests are read and
//! answered here (`device.rs`), because fuser leaves some of them out, and parts of others.
//!
//! Contract: no logic. Handlers run on the threads of [`Mounted::serve`]; none of them
//! tells the kernel anything that it would need a directory's lock for (it holds that
//! very lock for the request).

mod abi;
mod backing;
mod device;
mod encode;
mod init;
mod transport;

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use fuser::{INodeNo, MountOption, Notifier, Session, SessionACL, SessionUnmounter};
use rustix::mount::{MountFlags, UnmountFlags};
use tracing::{debug, error, info, warn};

use crate::fs::{Fs, Op};
use crate::notice::{Notice, Notices};
use crate::source::Source;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};

use init::Handshake;
use transport::Transport;

/// Threads that tell the kernel. Each waits for the lock of the directory that it tells
/// of, so a slow lookup below one directory holds up one of them.
const NOTIFIERS: usize = 4;

/// How the mount itself is made.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// What /proc/mounts shows as the mounted device.
    pub fsname: OsString,
    /// The kernel refuses every change.
    pub read_only: bool,
    /// set-user-id has no effect.
    pub nosuid: bool,
    /// Device nodes have no effect.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
    /// Times of access are not kept.
    pub noatime: bool,
    /// Every user may enter.
    pub allow_other: bool,
    /// Root may enter beside the owner.
    pub allow_root: bool,
    /// Unmounted when the daemon dies.
    pub auto_unmount: bool,
    /// Threads that serve requests.
    pub threads: usize,
}

impl MountOptions {
    /// Mounts by mount(2): the FUSE device of the mount.
    fn mount_directly(&self, mountpoint: &Path) -> io::Result<OwnedFd> {
        use rustix::fs::{Mode, OFlags};
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let others = if self.allow_other || self.allow_root {
            ",allow_other"
        } else {
            ""
        };
        let data = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions{others}",
            device.as_raw_fd()
        );
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, self.nosuid);
        flags.set(MountFlags::NODEV, self.nodev);
        flags.set(MountFlags::NOEXEC, self.noexec);
        flags.set(MountFlags::NOATIME, self.noatime);
        let data = CString::new(data).map_err(io::Error::other)?;
        rustix::mount::mount(
            self.fsname.as_os_str(),
            mountpoint,
            "fuse.nameifs",
            flags,
            &*data,
        )?;
        Ok(device)
    }

    fn config(&self) -> fuser::Config {
        let mut list = vec![
            // fuser takes text only.
            MountOption::FSName(self.fsname.to_string_lossy().into_owned()),
            MountOption::Subtype("nameifs".into()),
            MountOption::DefaultPermissions,
        ];
        let flags = [
            (self.read_only, MountOption::RO),
            (self.nosuid, MountOption::NoSuid),
            (!self.nosuid, MountOption::Suid),
            (self.nodev, MountOption::NoDev),
            (!self.nodev, MountOption::Dev),
            (self.noexec, MountOption::NoExec),
            (self.noatime, MountOption::NoAtime),
            (self.auto_unmount, MountOption::AutoUnmount),
        ];
        list.extend(
            flags
                .into_iter()
                .filter(|(on, _)| *on)
                .map(|(_, option)| option),
        );
        let mut config = fuser::Config::default();
        config.mount_options = list;
        config.acl = match (self.allow_other, self.allow_root) {
            (true, _) => SessionACL::All,
            (false, true) => SessionACL::RootAndOwner,
            (false, false) => SessionACL::Owner,
        };
        config
    }
}

/// A mount whose kernel side is ready; [`Mounted::serve`] answers its requests.
pub struct Mounted<S>
where
    S: Source,
    S::File: AsFd,
{
    session: Session<Handshake>,
    transport: Transport<S>,
    fs: Arc<Fs<S>>,
    /// Threads that serve requests.
    servers: usize,
    /// Notifiers, the follower of events, and who reads directories ahead.
    threads: Vec<JoinHandle<()>>,
    /// Where mount(2) mounted it; nothing if fusermount3 did.
    path: Option<PathBuf>,
}

/// Unmounts from another thread.
pub struct Unmounter(Unmount);

enum Unmount {
    /// What fusermount3 mounted.
    Session(SessionUnmounter),
    /// What was mounted by mount(2).
    Direct(PathBuf),
}

impl Unmounter {
    /// Unmounts.
    ///
    /// # Errors
    /// EBUSY while somebody uses the mount, and umount(2)'s.
    pub fn unmount(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Unmount::Session(session) => session.unmount(),
            Unmount::Direct(path) => Ok(rustix::mount::unmount(&*path, UnmountFlags::empty())?),
        }
    }
}

/// Mounts `fs` at `mountpoint`.
///
/// # Errors
/// Those of mount(2) and fusermount3.
pub fn mount<S>(fs: Fs<S>, mountpoint: &Path, options: &MountOptions) -> io::Result<Mounted<S>>
where
    S: Source,
    S::File: AsFd,
{
    let fs = Arc::new(fs);
    let passthrough = Arc::new(AtomicBool::new(false));
    let handshake = Handshake::new(fs.coherence(), fs.options(), passthrough.clone());
    // fuser leaves the subtype out where it mounts by itself, and tools know a mount by it.
    let direct = !options.auto_unmount && rustix::process::geteuid().is_root();
    let config = options.config();
    let (session, path) = if direct {
        let path = mountpoint.canonicalize()?;
        let device = options.mount_directly(&path)?;
        let session = Session::from_fd(handshake, device, config.acl, config.clone());
        let session = session.inspect_err(|_| detach(&path))?;
        (session, Some(path))
    } else {
        (Session::new(handshake, mountpoint, &config)?, None)
    };
    fs.requests.count(Op::Init);
    let only = (options.allow_root && !options.allow_other).then(rustix::process::geteuid);
    let transport = Transport::new(fs.clone(), passthrough.load(Ordering::Relaxed), only);
    // Set before the first request is answered.
    let doubter = session.notifier();
    fs.notices().set_doubter(Box::new(move |nodeid| {
        if let Err(e) = doubter.inval_inode(INodeNo(nodeid), -1, 0) {
            debug!(nodeid, error = %e, "inval_inode");
        }
    }));
    if let Some(dev) = own_device(mountpoint) {
        fs.namei().set_own_dev(dev);
    }
    let mut threads = Vec::with_capacity(NOTIFIERS + 2);
    for n in 0..NOTIFIERS {
        let (fs, notifier) = (fs.clone(), session.notifier());
        let mountpoint = mountpoint.to_owned();
        let named = std::thread::Builder::new().name(format!("notifier-{n}"));
        threads.push(named.spawn(move || notify(&fs, &notifier, &mountpoint))?);
    }
    let follower = fs.clone();
    let named = std::thread::Builder::new().name("follower".into());
    threads.push(named.spawn(move || follower.follow())?);
    let reader = fs.clone();
    let named = std::thread::Builder::new().name("readahead-0".into());
    threads.push(named.spawn(move || reader.read_ahead())?);
    Ok(Mounted {
        session,
        transport,
        fs,
        servers: options.threads.max(2),
        threads,
        path,
    })
}

impl<S> Mounted<S>
where
    S: Source,
    S::File: AsFd,
{
    /// What unmounts while [`Mounted::serve`] is busy.
    pub fn unmounter(&mut self) -> Unmounter {
        Unmounter(match &self.path {
            Some(path) => Unmount::Direct(path.clone()),
            None => Unmount::Session(self.session.unmount_callable()),
        })
    }

    /// The filesystem.
    pub fn fs(&self) -> &Arc<Fs<S>> {
        &self.fs
    }

    /// Answers requests until the filesystem is unmounted.
    fn serve_requests(&self) -> io::Result<()> {
        let first = self.session.as_fd();
        // Each thread has an end of its own, so that they do not meet at its lock.
        let ends = (1..self.servers)
            .map(|_| device::further_end(first).map_err(io::Error::from))
            .chain([first.try_clone_to_owned()])
            .map(|end| end.map(Arc::new))
            .collect::<io::Result<Vec<_>>>()?;
        std::thread::scope(|scope| {
            let serve = |(n, end): (usize, Arc<OwnedFd>)| {
                let transport = &self.transport;
                std::thread::Builder::new()
                    .name(format!("fuse-{n}"))
                    .spawn_scoped(scope, move || {
                        device::serve(&end, |header, args, reply| {
                            transport.handle(&end, header, args, reply)
                        })
                    })
            };
            let threads = ends.into_iter().enumerate().map(serve);
            let threads = threads.collect::<io::Result<Vec<_>>>()?;
            let ended = threads.into_iter().map(|thread| {
                let panicked = |_| Err(io::Error::other("a thread that serves requests panicked"));
                thread.join().unwrap_or_else(panicked)
            });
            // All of them are waited for, and the first error is told.
            let ended: Vec<io::Result<()>> = ended.collect();
            ended.into_iter().collect()
        })
    }

    /// Answers requests until the filesystem is unmounted, then gives everything back.
    ///
    /// # Errors
    /// Of the FUSE device, and objects that leaked.
    pub fn serve(self) -> io::Result<()> {
        let served = self.serve_requests();
        if served.is_err()
            && let Some(path) = &self.path
        {
            // Nobody answers any more: whoever waits is to be told, not to wait on.
            detach(path);
        }
        self.fs.notices().close();
        self.fs.stop_reading_ahead();
        self.fs.stop_following();
        for thread in self.threads {
            if thread.join().is_err() {
                warn!("a thread of the mount panicked");
            }
        }
        let leaked = self.fs.end();
        for cache in &leaked {
            error!(
                cache = cache.name,
                objects = cache.active_objs,
                "objects leaked"
            );
        }
        info!(leaked = leaked.len(), "unmounted");
        drop(self.session);
        served?;
        match leaked.first() {
            None => Ok(()),
            Some(c) => Err(io::Error::other(format!(
                "{} objects of {} leaked",
                c.active_objs, c.name
            ))),
        }
    }
}

/// Unmounts however busy it is.
fn detach(path: &Path) {
    if let Err(e) = rustix::mount::unmount(path, UnmountFlags::DETACH) {
        debug!(error = %e, "umount");
    }
}

/// `st_dev` of what is mounted at `mountpoint`, without asking that mount, in the
/// form of [`crate::source::SourceId::dev`].
fn own_device(mountpoint: &Path) -> Option<u64> {
    let shown = shown_mountpoint(mountpoint)?;
    let mountinfo = std::fs::read("/proc/self/mountinfo").ok()?;
    mountinfo.split(|&b| b == b'\n').rev().find_map(|line| {
        let mut fields = line.split(|&b| b == b' ');
        let dev = fields.nth(2)?;
        (fields.nth(1)? == &shown[..]).then_some(())?;
        let (major, minor) = std::str::from_utf8(dev).ok()?.split_once(':')?;
        Some(major.parse::<u64>().ok()? << 32 | minor.parse::<u64>().ok()?)
    })
}

/// Whether something is mounted beneath `mountpoint`; yes if that cannot be told.
fn has_mounts_below(mountpoint: &Path) -> bool {
    let (Some(mut shown), Ok(mountinfo)) = (
        shown_mountpoint(mountpoint),
        std::fs::read("/proc/self/mountinfo"),
    ) else {
        return true;
    };
    shown.push(b'/');
    mountinfo.split(|&b| b == b'\n').any(|line| {
        line.split(|&b| b == b' ')
            .nth(4)
            .is_some_and(|path| path.starts_with(&shown))
    })
}

/// A mountpoint as mountinfo shows it. Its own name is not looked at: that would ask the
/// mount.
fn shown_mountpoint(mountpoint: &Path) -> Option<Vec<u8>> {
    let parent = match mountpoint.parent()? {
        p if p.as_os_str().is_empty() => Path::new("."),
        p => p,
    };
    let path = parent.canonicalize().ok()?.join(mountpoint.file_name()?);
    Some(escape_mount_path(path.as_os_str().as_bytes()))
}

/// A path as mountinfo shows it: space, tab, newline and backslash in octal.
fn escape_mount_path(path: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(path.len());
    for &b in path {
        match b {
            b' ' | b'\t' | b'\n' | b'\\' => shown.extend(format!("\\{b:03o}").bytes()),
            _ => shown.push(b),
        }
    }
    shown
}

/// A notifier thread: tells the kernel what it must not believe any more. It
/// holds no lock and serves no request, for the kernel takes the directory's lock
/// to follow an invalidation.
fn notify<S: Source>(fs: &Fs<S>, notifier: &Notifier, mountpoint: &Path) {
    let notices: Arc<Notices> = fs.notices();
    let entry = |parent, name: &[u8]| {
        if let Err(e) = notifier.inval_entry(INodeNo(parent), OsStr::from_bytes(name)) {
            debug!(parent, error = %e, "inval_entry");
        }
    };
    let inode = |nodeid| {
        if let Err(e) = notifier.inval_inode(INodeNo(nodeid), 0, 0) {
            debug!(nodeid, error = %e, "inval_inode");
        }
    };
    let dcache = &fs.namei().dcache;
    notices.serve(|notice| {
        match notice {
            Notice::Entry { parent, name } => entry(parent, &name),
            Notice::Inode { nodeid } => inode(nodeid),
            Notice::Attr {
                parent,
                nodeid,
                data,
            } => {
                // No name is a slash: this waits until the lookups below the directory
                // that are under way have reached the kernel's cache, and does no more.
                entry(parent, b"/");
                let from = if data { 0 } else { -1 };
                if let Err(e) = notifier.inval_inode(INodeNo(nodeid), from, 0) {
                    debug!(nodeid, error = %e, "inval_inode");
                }
            }
            Notice::Removed {
                parent,
                child,
                name,
            } => {
                // The kernel removes it if it holds it as that child, and tells those
                // who watch the mount; else the name is taken back all the same.
                let os_name = OsStr::from_bytes(&name);
                let removed = notifier.delete(INodeNo(parent), INodeNo(child), os_name);
                if let Err(e) = removed {
                    debug!(parent, child, error = %e, "delete");
                }
                entry(parent, &name);
            }
            Notice::Reclaim { names } => {
                let mut left = names;
                dcache.for_each_name(|parent, name, _| {
                    if left > 0 {
                        left -= 1;
                        entry(parent, name.as_bytes());
                    }
                });
                fs.namei().reclaim(names);
            }
            Notice::Everything => {
                // To invalidate the name of a directory unmounts what is mounted beneath
                // it: such names stay, and only what they lead to is looked up anew.
                let nested = has_mounts_below(mountpoint);
                dcache.for_each_name(|parent, name, dir| {
                    if !(dir && nested) {
                        entry(parent, name.as_bytes());
                    }
                });
                for id in dcache.inodes.ids() {
                    if let Some(nodeid) = dcache.inodes.with(id, |i| i.nodeid()) {
                        inode(nodeid);
                    }
                }
                fs.dropped();
            }
        }
    });
}
