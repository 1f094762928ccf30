//! One side of the reference test: a tree, its open files, and what it looks like.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Dir, FileType, Mode, OFlags, fstat, getxattr, listxattr, openat, readlinkat};
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

/// A name that is to be looked at: where it is, and what its directory says of it.
struct Listed {
    name: PathBuf,
    parent: Rc<OwnedFd>,
    told: Option<(u64, FileType)>,
}

/// Looks at everything below `root`, each name once.
pub fn picture(root: &Path) -> Picture {
    let mut picture = Picture {
        common: BTreeMap::new(),
        exact: BTreeMap::new(),
    };
    let mut seen = BTreeMap::new();
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::open(root, flags, Mode::empty()).expect("the tree is there");
    let mut todo = vec![Listed {
        name: PathBuf::new(),
        parent: Rc::new(top),
        told: None,
    }];
    let now = now();
    while let Some(listed) = todo.pop() {
        let last = listed.name.file_name().unwrap_or(".".as_ref());
        match openat(&*listed.parent, last, flags, Mode::empty()) {
            Ok(fd) => look(
                &listed,
                &Rc::new(fd),
                &mut todo,
                &mut seen,
                &mut picture,
                now,
            ),
            Err(e) => {
                let line = format!("looked up: {}", outcome::<()>(Err(e)));
                picture.common.insert(listed.name, line);
            }
        }
    }
    picture
}

fn look(
    listed: &Listed,
    fd: &Rc<OwnedFd>,
    todo: &mut Vec<Listed>,
    seen: &mut BTreeMap<u64, PathBuf>,
    picture: &mut Picture,
    now: i64,
) {
    let name = &listed.name;
    let stat = match fstat(&**fd) {
        Ok(stat) => stat,
        Err(e) => {
            let line = format!("fstat: {}", outcome::<()>(Err(e)));
            picture.common.insert(name.clone(), line);
            return;
        }
    };
    let kind = FileType::from_raw_mode(stat.st_mode);
    let mut line = format!(
        "{:o} n{} {}:{} {}",
        stat.st_mode,
        stat.st_nlink,
        stat.st_uid,
        stat.st_gid,
        far(stat.st_mtime, stat.st_mtime_nsec as i64, now)
    );
    if kind != FileType::Directory {
        let _ = write!(line, " {}", stat.st_size);
        // The inode is the same as that of the first path with this number.
        let first = seen.entry(stat.st_ino).or_insert_with(|| name.clone());
        let _ = write!(line, " is {}", first.display());
    }
    if listed.told.is_some_and(|told| told != (stat.st_ino, kind)) {
        let _ = write!(line, " listed as {:?}", listed.told);
    }
    if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
        let _ = write!(line, " dev {:x}", stat.st_rdev);
    }
    if kind == FileType::Symlink {
        let _ = write!(line, " -> {}", outcome(readlinkat(&**fd, "", Vec::new())));
    }
    // By the descriptor: its name in /proc leads to the object and nowhere else.
    let magic = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let _ = write!(line, " {}", xattrs(&magic));
    if kind == FileType::RegularFile {
        let size = stat.st_size.try_into().expect("a size");
        let _ = write!(line, " {}", outcome(contents(&magic, size)));
    }
    let done = match kind {
        FileType::Directory => list(&magic, name, fd, todo),
        _ => Ok(()),
    };
    if done.is_err() {
        let _ = write!(line, " list {}", outcome(done));
    }
    let exact = format!(
        "ino {} size {} mtime {}.{:09} ctime {}.{:09}",
        stat.st_ino,
        stat.st_size,
        stat.st_mtime,
        stat.st_mtime_nsec,
        stat.st_ctime,
        stat.st_ctime_nsec
    );
    picture.exact.insert(name.clone(), exact);
    picture.common.insert(name.clone(), line);
}

/// Puts what a directory holds on the list.
fn list(magic: &Path, name: &Path, fd: &Rc<OwnedFd>, todo: &mut Vec<Listed>) -> Result<(), Errno> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let open = rustix::fs::open(magic, flags, Mode::empty())?;
    let mut found = Vec::new();
    for entry in Dir::new(open)? {
        let entry = entry?;
        let bytes = entry.file_name().to_bytes();
        if bytes == b"." || bytes == b".." {
            continue;
        }
        found.push(Listed {
            name: name.join(std::ffi::OsStr::from_bytes(bytes)),
            parent: Rc::clone(fd),
            told: Some((entry.ino(), entry.file_type())),
        });
    }
    // The last is the next: which name of a file is the first depends on it.
    found.sort_by(|a, b| b.name.cmp(&a.name));
    todo.extend(found);
    Ok(())
}

fn contents(magic: &Path, size: usize) -> Result<String, Errno> {
    let read = |flags| {
        let fd = rustix::fs::open(magic, flags | OFlags::CLOEXEC, Mode::empty())?;
        // More than the size, to see what lies past it.
        let mut buf = vec![0; size + 64];
        let n = pread(&fd, &mut buf[..], 0)?;
        Ok(hash(&buf[..n]))
    };
    // So that looking changes nothing; the owner's privilege.
    match read(OFlags::RDONLY | OFlags::NOATIME) {
        Err(Errno::PERM) => read(OFlags::RDONLY),
        other => other,
    }
}

fn xattrs(magic: &Path) -> String {
    let mut names = vec![0; 4096];
    let names = match listxattr(magic, &mut names[..]) {
        Ok(n) => names[..n].to_vec(),
        Err(e) => return outcome::<()>(Err(e)),
    };
    let mut all = BTreeMap::new();
    for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0; 4096];
        let got = getxattr(magic, name, &mut value[..]).map(|n| hash(&value[..n]));
        let name = std::ffi::OsStr::from_bytes(name);
        all.insert(name.to_string_lossy().into_owned(), outcome(got));
    }
    if all.is_empty() {
        String::new()
    } else {
        format!("{all:?}")
    }
}

/// An error of the standard library as an errno.
pub fn raw(e: std::io::Error) -> Errno {
    Errno::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO))
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
