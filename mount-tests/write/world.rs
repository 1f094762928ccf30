//! One side of the reference test: a tree, its open files, and what it looks like.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, fstat, lgetxattr, llistxattr};
use rustix::io::{Errno, pread};

use super::helper::Helper;
use super::steps::SLOTS;
use crate::posix::outcome;

/// A tree that steps are made on.
pub struct World {
    /// As the program under test sees it.
    pub root: PathBuf,
    /// As it is on the source.
    pub below: PathBuf,
    /// Whether the two are one: no mount.
    pub plain: bool,
    /// The open files.
    pub slots: Vec<Option<OwnedFd>>,
    /// Maps files.
    pub helper: Helper,
}

/// The tree in text: for each path what any two filesystems must agree on, and what a
/// mount and its source must agree on besides.
#[derive(Debug, PartialEq, Eq)]
pub struct Picture {
    /// One line for each path.
    pub common: BTreeMap<PathBuf, String>,
    /// Numbers and times.
    pub exact: BTreeMap<PathBuf, String>,
}

impl World {
    /// A new tree in `root`, which `below` is on the source; both are made.
    pub fn new(root: PathBuf, below: PathBuf, helper: Helper) -> Self {
        fs::create_dir(&below).expect("mkdir of a sequence");
        for dir in ["a", "a/b", "c"] {
            fs::create_dir(below.join(dir)).expect("mkdir");
        }
        for (file, text) in [("f", "first\n"), ("a/g", "second\n"), ("a/f", "third\n")] {
            fs::write(below.join(file), text).expect("write");
        }
        std::os::unix::fs::symlink("a", below.join("l")).expect("symlink");
        std::os::unix::fs::symlink("../f", below.join("a/l")).expect("symlink");
        Self {
            plain: root == below,
            root,
            below,
            slots: (0..SLOTS).map(|_| None).collect(),
            helper,
        }
    }

    /// What the open files are.
    pub fn handles(&self) -> Vec<String> {
        let now = now();
        let look = |slot: &Option<OwnedFd>| {
            let Some(fd) = slot else { return "-".into() };
            let stat = match fstat(fd) {
                Ok(stat) => stat,
                Err(e) => return outcome::<()>(Err(e)),
            };
            let time = far(stat.st_mtime, stat.st_mtime_nsec as i64, now);
            let mut line = format!(
                "{:o} n{} {}:{} {} {time}",
                stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid, stat.st_size
            );
            // Those that have a name are read by it.
            if stat.st_nlink == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFREG {
                // Aligned, for those that are read directly.
                let mut buf = vec![0; 8192 + 4096];
                let at = buf.as_ptr().align_offset(4096);
                let buf = &mut buf[at..at + 8192];
                let got = pread(fd, &mut *buf, 0).map(|n| hash(&buf[..n]));
                let _ = write!(line, " {}", outcome(got));
            }
            line
        };
        self.slots.iter().map(look).collect()
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("a clock after 1970").as_secs().cast_signed()
}

/// A time that somebody set; one that came by itself is only "now".
fn far(sec: i64, nsec: i64, now: i64) -> String {
    if (sec - now).abs() < 3600 {
        "now".into()
    } else {
        format!("{sec}.{nsec:09}")
    }
}

fn hash(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("{}#{:016x}", bytes.len(), hasher.finish())
}

/// Looks at everything below `root`.
pub fn picture(root: &Path) -> Picture {
    let mut picture = Picture {
        common: BTreeMap::new(),
        exact: BTreeMap::new(),
    };
    let mut seen = BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    let now = now();
    while let Some(name) = todo.pop() {
        // An empty path joined would end in a slash.
        let path = if name.as_os_str().is_empty() {
            root.to_owned()
        } else {
            root.join(&name)
        };
        let meta = match path.symlink_metadata() {
            Ok(meta) => meta,
            Err(e) => {
                picture.common.insert(name, format!("lstat: {e}"));
                continue;
            }
        };
        let kind = meta.file_type();
        let mut line = format!(
            "{:o} n{} {}:{} {}",
            meta.mode(),
            meta.nlink(),
            meta.uid(),
            meta.gid(),
            far(meta.mtime(), meta.mtime_nsec(), now)
        );
        if !kind.is_dir() {
            let _ = write!(line, " {}", meta.size());
            // The inode is the same as that of the first path with this number.
            let first = seen.entry(meta.ino()).or_insert_with(|| name.clone());
            let _ = write!(line, " is {}", first.display());
        }
        if kind.is_char_device() || kind.is_block_device() {
            let _ = write!(line, " dev {:x}", meta.rdev());
        }
        if kind.is_symlink() {
            let _ = write!(line, " -> {:?}", fs::read_link(&path).map_err(raw));
        }
        let _ = write!(line, " {}", xattrs(&path));
        if kind.is_file() {
            let _ = write!(line, " {}", outcome(contents(&path, meta.size())));
        }
        if kind.is_dir() {
            match list(&path, &name, &mut todo) {
                Ok(Some(wrong)) => line.push_str(&wrong),
                Ok(None) => {}
                Err(e) => {
                    let _ = write!(line, " list {}", outcome::<()>(Err(raw(e))));
                }
            }
        }
        let exact = format!(
            "ino {} size {} mtime {}.{:09} ctime {}.{:09}",
            meta.ino(),
            meta.size(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec()
        );
        picture.exact.insert(name.clone(), exact);
        picture.common.insert(name, line);
    }
    picture
}

/// An error of the standard library as an errno.
pub fn raw(e: std::io::Error) -> Errno {
    Errno::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO))
}

/// Puts what a directory holds on the list; says where its entries are not what they
/// are by name.
fn list(path: &Path, name: &Path, todo: &mut Vec<PathBuf>) -> std::io::Result<Option<String>> {
    let mut wrong = None;
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if let Ok(meta) = entry.path().symlink_metadata() {
            if meta.ino() != entry.ino() || Some(meta.file_type()) != entry.file_type().ok() {
                wrong = Some(format!(" listed otherwise: {:?}", entry.file_name()));
            }
        }
        found.push(name.join(entry.file_name()));
    }
    // The last is the next: which name of a file is the first depends on it.
    found.sort_by(|a, b| b.cmp(a));
    todo.extend(found);
    Ok(wrong)
}

fn contents(path: &Path, size: u64) -> Result<String, Errno> {
    let read = |flags| {
        let fd = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?;
        // More than the size, to see what lies past it.
        let mut buf = vec![0; usize::try_from(size).expect("small files") + 64];
        let mut done = 0;
        loop {
            match pread(&fd, &mut buf[done..], done as u64)? {
                0 => return Ok(hash(&buf[..done])),
                n => done += n,
            }
        }
    };
    // So that looking changes nothing; the owner's privilege.
    match read(OFlags::RDONLY | OFlags::NOATIME) {
        Err(Errno::PERM) => read(OFlags::RDONLY),
        other => other,
    }
}

fn xattrs(path: &Path) -> String {
    let mut names = vec![0; 4096];
    let names = match llistxattr(path, &mut names[..]) {
        Ok(n) => names[..n].to_vec(),
        Err(e) => return outcome::<()>(Err(e)),
    };
    let mut all = BTreeMap::new();
    for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0; 4096];
        let got = lgetxattr(path, name, &mut value[..]).map(|n| hash(&value[..n]));
        let name = std::ffi::OsStr::from_bytes(name);
        all.insert(name.to_string_lossy().into_owned(), outcome(got));
    }
    if all.is_empty() {
        String::new()
    } else {
        format!("{all:?}")
    }
}

/// The lines in which two pictures differ.
pub fn differences(
    (a, what_a): (&BTreeMap<PathBuf, String>, &str),
    (b, what_b): (&BTreeMap<PathBuf, String>, &str),
) -> Option<String> {
    let mut out = String::new();
    let names: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    for name in names {
        if a.get(name) != b.get(name) {
            let show = |side: Option<&String>| side.map_or("absent", String::as_str).to_owned();
            let _ = write!(
                out,
                "\n{:?}\n  {what_a}: {}\n  {what_b}: {}",
                name,
                show(a.get(name)),
                show(b.get(name))
            );
        }
    }
    (!out.is_empty()).then_some(out)
}
