//! `nameifs mount`: check, open the source, mount, serve, unmount (floor F7).
//!
//! Order matters: the source is opened before anything is mounted, so that a
//! mirror over its own source does not resolve to itself; signals are blocked
//! before the first thread starts, so that one waiting thread gets them all.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nameifs::fs::Fs;
use nameifs::fuse::{self, Unmounter};
use nameifs::source::host::HostSource;
use nix::sys::signal::SigSet;
use rustix::mount::MountFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{check, complain, daemon, log, mountinfo, reason, umount};
use crate::cli::config::{Caller, Config};
use crate::cli::{MountArgs, Outcome, failed};

/// How long whoever still uses a mount that was told to end may go on.
const GRACE: Duration = Duration::from_secs(5);

/// Mounts; in the background returns when the mount is ready.
pub fn run(args: MountArgs) -> Outcome {
    if args.daemon_child.is_some() {
        daemon::detach()?;
    }
    let caller = Caller::current();
    let config = Config::check(args, caller)?;
    if config.remount {
        return remount(&config);
    }
    if config.foreground || config.daemon {
        return serve(&config, caller);
    }
    // The daemon outlives its parent on purpose: nobody waits for it.
    daemon::start(own_arguments(), &config.mountpoint).map(drop)
}

/// The arguments of this mount, as typed, without the command.
fn own_arguments() -> Vec<OsString> {
    let typed: Vec<OsString> = std::env::args_os().skip(1).collect();
    match typed.split_first() {
        Some((command, rest)) if command == "mount" => rest.to_vec(),
        _ => std::iter::once("--from-mount".into())
            .chain(typed)
            .collect(),
    }
}

/// Changes the flags of a mount, as `mount -o remount,ro` asks; the daemon's own options stay.
fn remount(config: &Config) -> Outcome {
    let mount = umount::mirror_at(&config.mountpoint)?;
    let mut flags = MountFlags::empty();
    for (on, flag) in [
        (config.mount.read_only, MountFlags::RDONLY),
        (config.mount.nosuid, MountFlags::NOSUID),
        (config.mount.nodev, MountFlags::NODEV),
        (config.mount.noexec, MountFlags::NOEXEC),
        (config.mount.noatime, MountFlags::NOATIME),
    ] {
        flags.set(flag, on);
    }
    rustix::mount::mount_remount(&mount.mountpoint, flags, "").map_err(|e| {
        let shown = config.mountpoint.display();
        failed(format!("cannot remount {shown}: {}", reason(&e.into())))
    })
}

/// Mounts and serves until unmounted.
fn serve(config: &Config, caller: Caller) -> Outcome {
    log::init(config)?;
    let places = check::places(config)?;
    check::fuse(config, caller.root)?;
    for name in &places.shadowed {
        let text = format!(
            "warning: {}/{name} is hidden by the mirror's own; --slabinfo=off shows it",
            config.source.display()
        );
        tracing::warn!("{text}");
        complain(&text);
    }
    let source = HostSource::open(&config.source).map_err(|e| {
        failed(format!(
            "cannot open source {}: {}",
            config.source.display(),
            reason(&e)
        ))
    })?;

    let signals = daemon::block_signals()?;
    if let Some(parent) = config.tied_to {
        daemon::tie_to(parent)?;
    }
    let mut options = config.mount.clone();
    // As root the kernel gets the name as it is, for a user fusermount3 gets it in a list.
    let in_list = !caller.root || options.auto_unmount;
    options.fsname = config.shown_source(&places.source, in_list);
    let mut how = config.fs.clone();
    // Every open file is a descriptor too, and they come first.
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    how.dir_fds = how.dir_fds.min((limit / 8) as usize);
    let fs = Fs::new(source, how).map_err(|e| {
        failed(format!(
            "cannot read source {}: {}",
            config.source.display(),
            reason(&e.into())
        ))
    })?;
    allow_descriptors();
    let mut mounted = fuse::mount(fs, &places.mountpoint, &options)
        .map_err(|e| check::mount_failure(&e, config))?;
    let ender = Ender::new(mounted.unmounter(), places.mountpoint.clone());
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || ender.wait(&signals))
        .map_err(|e| failed(format!("cannot start a thread: {}", reason(&e))))?;
    tracing::info!(
        source = %places.source.display(),
        mountpoint = %places.mountpoint.display(),
        options = ?config.fs,
        "mounted"
    );
    if config.daemon {
        daemon::ready()
            .map_err(|e| failed(format!("cannot go to the background: {}", reason(&e))))?;
    }
    let served = mounted.serve();
    tracing::info!("unmounted");
    served.map_err(|e| {
        failed(format!(
            "the mirror of {} ended badly: {}",
            places.source.display(),
            reason(&e)
        ))
    })
}

/// Lets the process hold as many descriptors as it may: every file that is open through the
/// mirror is one here.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(e) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("cannot raise the limit of descriptors: {e}");
    }
}

/// Ends the mount when a signal says so.
struct Ender {
    unmounter: Unmounter,
    mountpoint: PathBuf,
    /// The mount's id; another mount at the same place is not ours to end.
    id: Option<u32>,
}

impl Ender {
    fn new(unmounter: Unmounter, mountpoint: PathBuf) -> Self {
        let id = mounted_id(&mountpoint);
        Self {
            unmounter,
            mountpoint,
            id,
        }
    }

    /// Waits for a signal and unmounts. The process then ends by itself, because serving ends;
    /// where somebody still uses the mount it is detached and has [`GRACE`] left.
    fn wait(mut self, signals: &SigSet) {
        let Ok(signal) = signals.wait() else { return };
        tracing::info!(%signal, "unmounting");
        if let Err(e) = self.unmount() {
            tracing::error!("cannot unmount: {}", reason(&e));
        }
        std::thread::sleep(GRACE);
        tracing::warn!(
            "still in use after {} s; ending all the same",
            GRACE.as_secs()
        );
        std::process::exit(0);
    }

    /// Unmounts, and detaches what is in use. What is mounted over ours or in place of it by
    /// now is left alone.
    fn unmount(&mut self) -> io::Result<()> {
        if self.id.is_none() || mounted_id(&self.mountpoint) != self.id {
            return Err(io::Error::other(
                "it is not on top of its mountpoint any more",
            ));
        }
        let done = self.unmounter.unmount();
        // fusermount3's failures do not reach us in any other way.
        if mounted_id(&self.mountpoint) == self.id {
            tracing::info!("in use, so detached: {done:?}");
            return umount::detach(&self.mountpoint, true);
        }
        Ok(())
    }
}

/// The id of our mount on top of this path.
fn mounted_id(mountpoint: &Path) -> Option<u32> {
    mountinfo::find(mountpoint)
        .ok()
        .flatten()
        .filter(mountinfo::Mount::is_ours)
        .map(|m| m.id)
}
