//! What must hold before anything is mounted (floor F7).
//!
//! Every refusal is one line that says what to do. The checks cannot replace
//! the errors of the calls that follow (anything may change in between); they
//! are there for their words.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nameifs::fs::SlabinfoMode;

use super::mountinfo::{self, FSTYPE};
use super::{SLABINFO, VIRTUAL_DIR, reason};
use crate::cli::config::Config;
use crate::cli::{Failure, Outcome, failed, misuse};

/// The directories of a mount, found and fit.
#[derive(Debug)]
pub struct Places {
    /// The source as typed, made absolute; what /proc/mounts shows.
    pub source: PathBuf,
    /// The mountpoint without symlinks.
    pub mountpoint: PathBuf,
    /// Names in the source's root that the mirror's own files will hide.
    pub shadowed: Vec<&'static str>,
}

/// Checks source and mountpoint.
///
/// # Errors
/// A directory is missing, is none, or may not be used; the mountpoint holds
/// names, lies inside the source, or is a mirror already.
pub fn places(config: &Config) -> Result<Places, Failure> {
    let typed = config.source.as_path();
    let shown = typed.display();
    if config.from_mount && is_word(typed) && !typed.exists() {
        return Err(misuse(format!(
            "{shown} is neither a command nor a directory; see nameifs --help"
        )));
    }
    let source = directory(typed, "source", "give the directory to mirror")?;
    fs::read_dir(typed).map_err(|e| {
        failed(format!(
            "cannot read source {shown}: {}; choose a readable one",
            reason(&e)
        ))
    })?;
    let mountpoint = mountpoint(config, &source)?;
    let shows_its_own = config.fs.slabinfo != SlabinfoMode::Off;
    let shadowed = [SLABINFO, VIRTUAL_DIR]
        .into_iter()
        .filter(|name| shows_its_own && typed.join(name).symlink_metadata().is_ok())
        .collect();
    let source = std::path::absolute(typed)
        .map_err(|e| failed(format!("cannot tell where {shown} is: {}", reason(&e))))?;
    Ok(Places {
        source,
        mountpoint,
        shadowed,
    })
}

/// Whether a path could as well be a command.
fn is_word(path: &Path) -> bool {
    !path.as_os_str().as_encoded_bytes().contains(&b'/')
}

/// Checks that the directory exists.
fn directory(path: &Path, role: &str, advice: &str) -> Result<Metadata, Failure> {
    let shown = path.display();
    let meta = fs::metadata(path).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT) => failed(format!("{role} {shown} does not exist; {advice}")),
        Some(libc::ENOTCONN) => failed(format!(
            "{role} {shown} is a FUSE mount whose daemon has died; unmount it first \
             (nameifs umount, or umount -l)"
        )),
        _ => failed(format!(
            "cannot reach {role} {shown}: {}; {advice}",
            reason(&e)
        )),
    })?;
    if meta.is_dir() {
        Ok(meta)
    } else {
        Err(failed(format!(
            "{role} {shown} is not a directory; {advice}"
        )))
    }
}

/// Checks the mountpoint against the source.
fn mountpoint(config: &Config, source: &Metadata) -> Result<PathBuf, Failure> {
    let typed = config.mountpoint.as_path();
    let shown = typed.display();
    let meta = directory(
        typed,
        "mountpoint",
        "make an empty directory for it (mkdir)",
    )?;
    let path = typed
        .canonicalize()
        .map_err(|e| failed(format!("cannot reach mountpoint {shown}: {}", reason(&e))))?;
    let mounted = mountinfo::find(&path)
        .map_err(|e| failed(format!("cannot read /proc/self/mountinfo: {}", reason(&e))))?;
    if mounted.is_some_and(|m| m.is_ours()) {
        return Err(failed(format!(
            "{shown} is already a mount of type {FSTYPE}; unmount it first (nameifs umount {shown})"
        )));
    }
    if same(&meta, source) {
        return Ok(path);
    }
    let inside = path
        .ancestors()
        .skip(1)
        .any(|above| fs::metadata(above).is_ok_and(|above| same(&above, source)));
    if inside {
        return Err(failed(format!(
            "mountpoint {shown} lies inside the source, which would then contain itself without \
             end; choose one outside, or the source itself"
        )));
    }
    if !config.nonempty && !is_empty(&path, typed)? {
        return Err(failed(format!(
            "mountpoint {shown} is not empty; choose an empty one, or add -o nonempty to hide \
             what it holds"
        )));
    }
    Ok(path)
}

/// Whether both are the same directory.
fn same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Whether a directory holds no name.
fn is_empty(path: &Path, typed: &Path) -> Result<bool, Failure> {
    let mut names = fs::read_dir(path).map_err(|e| {
        failed(format!(
            "cannot read mountpoint {}: {}",
            typed.display(),
            reason(&e)
        ))
    })?;
    Ok(names.next().is_none())
}

/// Checks that FUSE can be used at all, and by this user.
///
/// # Errors
/// /dev/fuse is missing or closed to this user, or a user lacks fusermount3.
pub fn fuse(config: &Config, root: bool) -> Outcome {
    device(Path::new("/dev/fuse"))?;
    if root && !config.mount.auto_unmount {
        return Ok(());
    }
    if fusermount().is_some() {
        return Ok(());
    }
    let what = if root {
        "auto_unmount"
    } else {
        "mounting without being root"
    };
    Err(failed(format!(
        "{what} needs fusermount3, which is not installed; install the package fuse3 \
         (apt install fuse3, dnf install fuse3)"
    )))
}

/// Checks the device.
fn device(path: &Path) -> Outcome {
    let shown = path.display();
    match File::options().read(true).write(true).open(path) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => Err(failed(format!(
            "{shown} does not exist; load the kernel's FUSE (modprobe fuse), or start the \
             container with --device {shown}"
        ))),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => Err(failed(
            "the kernel's FUSE is not loaded; load it (modprobe fuse)",
        )),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Err(failed(format!(
            "{shown} may not be opened; run as root, or let root open it to users \
             (chmod 666 {shown}; in a container allow the device)"
        ))),
        Err(e) => Err(failed(format!("cannot open {shown}: {}", reason(&e)))),
    }
}

/// The program that mounts and unmounts for users, if it is installed.
pub fn fusermount() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).collect::<Vec<_>>();
    let more = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    ["fusermount3", "fusermount"].into_iter().find_map(|name| {
        places
            .iter()
            .chain(&more)
            .map(|dir| dir.join(name))
            .find(|file| file.is_file())
    })
}

/// A failed mount in words.
pub fn mount_failure(error: &io::Error, config: &Config) -> Failure {
    let shown = config.mountpoint.display();
    let text = reason(error);
    if text.contains("user_allow_other") {
        return failed(
            "allow_other and allow_root are open to users only where /etc/fuse.conf says so; add \
             the line user_allow_other to it, or leave the option out",
        );
    }
    // The transport tries fusermount3 when mount(2) is not permitted.
    let forbidden = matches!(error.kind(), ErrorKind::PermissionDenied)
        || (error.kind() == ErrorKind::NotFound && fusermount().is_none());
    if forbidden {
        return failed(format!(
            "mounting on {shown} is not permitted; run as root (in a container with \
             CAP_SYS_ADMIN), or on a directory of your own with fusermount3 installed"
        ));
    }
    failed(format!("cannot mount on {shown}: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::config::Caller;
    use crate::cli::{Cli, Command, parse};

    fn check(source: &Path, mountpoint: &Path, list: &str) -> Result<Places, String> {
        let argv = ["nameifs", "mount", "-o", list].map(Into::into);
        let argv = argv.into_iter().chain([source.into(), mountpoint.into()]);
        let Ok(Ok(Cli {
            command: Command::Mount(args),
        })) = parse(argv)
        else {
            panic!("refused")
        };
        let caller = Caller {
            root: true,
            cores: 1,
        };
        places(&Config::check(*args, caller).unwrap()).map_err(|failure| match failure {
            Failure::Failed(text) => text,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn fit_and_unfit_places() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        for dir in ["src", "src/sub", "src/sub/deep", "mnt", "full", "full/x"] {
            fs::create_dir(at(dir)).unwrap();
        }
        fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink(at("src"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("gone"), at("dangling")).unwrap();

        for (source, mountpoint, list, refusal) in [
            ("src", "mnt", "", None),
            ("link", "mnt", "", None),
            ("src", "src", "", None),
            ("src", "link", "", None),
            ("src", "full", "nonempty", None),
            ("full/x", "mnt", "", None),
            ("gone", "mnt", "", Some("source")),
            ("dangling", "mnt", "", Some("does not exist")),
            ("file", "mnt", "", Some("not a directory")),
            ("file/x", "mnt", "", Some("cannot reach source")),
            ("src", "gone", "", Some("mountpoint")),
            ("src", "file", "", Some("not a directory")),
            ("src", "full", "", Some("not empty")),
            ("src", "src/sub", "", Some("inside the source")),
            ("src", "src/sub/deep", "nonempty", Some("inside the source")),
            ("link", "src/sub/deep", "", Some("inside the source")),
            ("full/x", "full", "", Some("not empty")),
        ] {
            let got = check(&at(source), &at(mountpoint), list);
            match (got, refusal) {
                (Ok(_), None) => {}
                (Err(text), Some(part)) if text.contains(part) => {}
                (got, _) => panic!("{source} on {mountpoint} -o {list}: {got:?}"),
            }
        }
        let places = check(&at("link"), &at("mnt"), "").unwrap();
        assert_eq!(places.source, at("link"));
        assert!(places.shadowed.is_empty());
    }

    #[test]
    fn hidden_names_are_told() {
        let temp = tempfile::tempdir().unwrap();
        let (source, mountpoint) = (temp.path().join("s"), temp.path().join("m"));
        fs::create_dir(&source).unwrap();
        fs::create_dir(&mountpoint).unwrap();
        fs::write(source.join(".slabinfo"), "").unwrap();
        fs::create_dir(source.join(".nameifs")).unwrap();
        let places = check(&source, &mountpoint, "").unwrap();
        assert_eq!(places.shadowed, [".slabinfo", ".nameifs"]);
        assert!(
            check(&source, &mountpoint, "slabinfo=off")
                .unwrap()
                .shadowed
                .is_empty()
        );
    }

    #[test]
    fn a_mistyped_command_is_misuse() {
        for (word, is_misuse) in [("dismount", true), ("./dismount", false), ("/no", false)] {
            let Ok(Ok(Cli {
                command: Command::Mount(args),
            })) = parse(["nameifs", word, "/usr"].map(Into::into))
            else {
                panic!("refused")
            };
            let caller = Caller {
                root: true,
                cores: 1,
            };
            let got = places(&Config::check(*args, caller).unwrap());
            assert_eq!(
                matches!(got, Err(Failure::Misuse(_))),
                is_misuse,
                "{word}: {got:?}"
            );
        }
    }

    #[test]
    fn a_missing_device_is_told() {
        let Err(Failure::Failed(text)) = device(Path::new("/dev/no-such-fuse")) else {
            panic!("found")
        };
        assert!(text.contains("modprobe fuse"), "{text}");
    }
}
