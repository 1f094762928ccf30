//! The write side: what a program does through the mount has the outcome it has in
//! the source directory itself. Each test does the same things in a plain directory of
//! the same filesystem first; that run is the reference.

mod act;
mod clients;
mod fullness;
mod helper;
mod locks;
mod posix;
mod rare;
mod reference;
mod sizes;
mod steps;
mod suites;
mod users;
mod world;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Mounted, Place, Setup};
use crate::run::{Done, shell};

/// A mount of a new source, and a plain directory beside it.
pub struct Pair {
    /// The directory that nobody mirrors.
    pub plain: PathBuf,
    /// The mount.
    pub mounted: Mounted,
}

impl Pair {
    /// Mounts as asked, with set-user-id bits and devices at work.
    #[track_caller]
    pub fn new(setup: Setup) -> Self {
        let place = Place::new();
        let plain = place.dir("plain");
        let mounted = setup.arg("-o").arg("suid,dev").mount_in(place);
        Self { plain, mounted }
    }

    /// The plain directory and the mount, in the order in which they are used.
    pub fn both(&self) -> [(&'static str, &Path); 2] {
        [("plain", &self.plain), ("mount", self.mounted.path())]
    }

    /// Runs a script in both directories; exit codes and outputs must agree. The second
    /// run finds the directory's counterpart on the source in `$BELOW`.
    #[track_caller]
    pub fn same(&self, script: &str) -> Done {
        let below = [self.plain.as_path(), self.mounted.source()];
        let run = |i: usize| {
            let mut cmd = script_in(self.both()[i].1, script);
            crate::run::run(cmd.env("BELOW", below[i]))
        };
        let (plain, mount) = (run(0), run(1));
        let show = |d: &Done| format!("{}\n{}{}", d.status, d.out(), d.err());
        assert!(
            plain.status == mount.status
                && plain.stdout == mount.stdout
                && plain.stderr == mount.stderr,
            "{script}\n--- plain: {}\n--- mount: {}",
            show(&plain),
            show(&mount)
        );
        plain
    }

    /// As [`Pair::same`], for a script that must succeed where there is no mount.
    #[track_caller]
    pub fn same_ok(&self, script: &str) -> Done {
        self.same(script).ok()
    }

    /// Unmounts, with the harness's checks.
    #[track_caller]
    pub fn end(self) {
        self.mounted.unmount();
    }
}

/// A shell script in a directory; undefined variables and failing commands end it.
pub fn script_in(dir: &Path, script: &str) -> Command {
    let mut cmd = shell::<&OsStr>(&format!("set -u\n{script}"), &[]);
    cmd.current_dir(dir).env("HOME", dir);
    cmd
}

/// Options of the mounts most tests here run on: passthrough on and off.
pub const ROUTES: [&str; 2] = ["auto", "off"];

/// A mount in `ttl` by one of the [`ROUTES`] for data.
pub fn route(passthrough: &str) -> Setup {
    Setup::mode("ttl").arg(format!("--passthrough={passthrough}"))
}
