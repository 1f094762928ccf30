//! /proc/self/mountinfo: what is mounted where (floor F7).
//!
//! Asks the kernel's table and never a mounted filesystem, so a daemon that
//! hangs or has died cannot stop the commands that are there to remove it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The type of our mounts.
pub const FSTYPE: &str = "fuse.nameifs";

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Mount id, unique while mounted.
    pub id: u32,
    /// Minor device number; for FUSE the number of the connection.
    pub minor: u32,
    /// Where.
    pub mountpoint: PathBuf,
    /// Type, such as `fuse.nameifs`.
    pub fstype: String,
    /// What it shows as its source.
    pub source: OsString,
}

impl Mount {
    /// Whether nameifs made it.
    pub fn is_ours(&self) -> bool {
        self.fstype == FSTYPE
    }
}

/// The mount on top at exactly this (canonical) path.
///
/// # Errors
/// /proc cannot be read.
pub fn find(mountpoint: &Path) -> io::Result<Option<Mount>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(parse(&table)
        .into_iter()
        .rfind(|m| m.mountpoint == mountpoint))
}

/// The absolute path of a mountpoint without symlinks, found without asking what is mounted there.
///
/// # Errors
/// A directory on the way does not exist or may not be searched.
pub fn canonical(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize()
        .or_else(|error| match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => {
                let parent = if parent.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    parent
                };
                Ok(parent.canonicalize()?.join(name))
            }
            _ => Err(error),
        })
}

/// The lines of a table; what is malformed is skipped.
fn parse(table: &[u8]) -> Vec<Mount> {
    table
        .split(|b| *b == b'\n')
        .filter_map(parse_line)
        .collect()
}

/// `36 35 0:52 / /mnt rw,noatime shared:1 - fuse.nameifs /usr rw,...`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let text = |field: &[u8]| std::str::from_utf8(field).ok().map(str::to_owned);
    let id = text(fields.next()?)?.parse().ok()?;
    let _parent = fields.next()?;
    let dev = text(fields.next()?)?;
    let minor = dev.split_once(':')?.1.parse().ok()?;
    let _root = fields.next()?;
    let mountpoint = unescape(fields.next()?).into();
    fields.by_ref().find(|field| *field == b"-")?;
    let fstype = text(fields.next()?)?;
    let source = unescape(fields.next()?);
    Some(Mount {
        id,
        minor,
        mountpoint,
        fstype,
        source,
    })
}

/// Undoes the kernel's `\040` for space, tab, newline and backslash.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = |b: &u8| (b'0'..=b'7').contains(b).then(|| u32::from(b - b'0'));
        let code = match tail {
            [a, b, c, ..] if first == b'\\' => octal(a)
                .zip(octal(b))
                .zip(octal(c))
                .map(|((a, b), c)| a << 6 | b << 3 | c),
            _ => None,
        };
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let table = b"23 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            36 23 0:52 / /mnt\\040with\\134odd\\012name rw,nosuid shared:7 master:1 - \
            fuse.nameifs /usr\\040local rw,user_id=0\n\
            37 23 0:53 / /other rw - fuse.sshfs host:/ rw\n\
            garbage\n\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 3);
        assert_eq!((mounts[0].id, mounts[0].minor), (23, 0));
        assert!(!mounts[0].is_ours());
        assert_eq!(mounts[1].mountpoint, Path::new("/mnt with\\odd\nname"));
        assert_eq!(mounts[1].source, "/usr local");
        assert_eq!(mounts[1].minor, 52);
        assert!(mounts[1].is_ours());
        assert!(!mounts[2].is_ours());
    }

    #[test]
    fn escapes() {
        for (field, name) in [
            (&b"a\\040b"[..], &b"a b"[..]),
            (b"\\134040", b"\\040"),
            (b"\\04", b"\\04"),
            (b"\\", b"\\"),
            (b"\\999", b"\\999"),
            (b"\\777", b"\\777"),
            (b"\xff", b"\xff"),
        ] {
            assert_eq!(unescape(field).into_vec(), name, "{field:?}");
        }
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(find(Path::new("/")).unwrap().is_some());
        assert!(find(Path::new("/nowhere-at-all")).unwrap().is_none());
    }

    #[test]
    fn canonical_needs_only_the_parent() {
        assert_eq!(
            canonical(Path::new("/usr/../gone")).unwrap(),
            Path::new("/gone")
        );
        assert_eq!(canonical(Path::new("/")).unwrap(), Path::new("/"));
        assert!(canonical(Path::new("/no/such/parent")).is_err());
        let here = std::env::current_dir().unwrap();
        assert_eq!(canonical(Path::new("gone")).unwrap(), here.join("gone"));
    }
}
