//! Changes from behind, with their operands found in the plain tree.

use std::fmt;

use super::kernel::lossy;
use super::plan::{NAMES, Plain, Step};
use super::truth::join;
use crate::error::Result;
use crate::source::Kind;
use crate::source::fake::FakeSource;

type Path = Vec<u8>;

/// What another process does to the source.
#[derive(Clone)]
pub(super) enum Change {
    Make(Kind, Path, Vec<u8>),
    Link(Path, Path),
    Remove(Path, bool),
    RemoveAll(Path),
    Rename(Path, Path),
    Exchange(Path, Path),
    Replace(Path, Vec<u8>),
    Chmod(Path, u16),
    Truncate(Path, u64),
    Append(Path),
    SetXattr(Path),
}

impl Change {
    /// The change that a step stands for, if it is one; `contents` for what it makes.
    pub(super) fn of(step: &Step, plain: &Plain, contents: Vec<u8>) -> Option<Self> {
        let below = |dir: Path, name: usize| join(&dir, NAMES[name % NAMES.len()]);
        Some(match *step {
            Step::Make(kind, dir, name) => {
                let contents = match kind {
                    Kind::Regular | Kind::Symlink => contents,
                    _ => Vec::new(),
                };
                Self::Make(kind, below(plain.any_dir(dir)?, name), contents)
            }
            Step::Link(of, dir, name) => {
                Self::Link(plain.any(of)?, below(plain.any_dir(dir)?, name))
            }
            Step::Remove(of) => {
                let of = plain.any(of)?;
                let directory = plain.kind(&of) == Some(Kind::Directory);
                Self::Remove(of, directory)
            }
            Step::RemoveAll(of) => {
                let of = plain.any(of)?;
                // Half of it would be done, and which half is the source's to say.
                plain.may_remove_all(&of).then_some(Self::RemoveAll(of))?
            }
            Step::Rename(of, dir, name) => {
                Self::Rename(plain.any(of)?, below(plain.any_dir(dir)?, name))
            }
            Step::Exchange(one, other) => Self::Exchange(plain.any(one)?, plain.any(other)?),
            Step::Replace(of) => Self::Replace(plain.any(of)?, contents),
            Step::Chmod(of, perm) => Self::Chmod(plain.any(of)?, perm),
            Step::Truncate(of, size) => Self::Truncate(plain.any(of)?, size.into()),
            Step::Append(of) => Self::Append(plain.any(of)?),
            Step::SetXattr(of) => Self::SetXattr(plain.any(of)?),
            _ => return None,
        })
    }

    /// Does it to the plain tree, if it is allowed there.
    pub(super) fn to_plain(&self, plain: &mut Plain) -> bool {
        match self {
            Self::Make(kind, path, contents) => plain.make(path, *kind, contents),
            Self::Link(old, new) => plain.link(old, new),
            Self::Remove(path, _) => plain.remove(path),
            Self::RemoveAll(path) => {
                plain.remove_all(path);
                true
            }
            Self::Rename(from, to) => plain.rename(from, to),
            Self::Exchange(one, other) => plain.exchange(one, other),
            Self::Replace(path, contents) => plain.replace(path, contents),
            Self::Chmod(path, perm) => plain.change(path, |thing| thing.perm = *perm),
            Self::SetXattr(path) => plain.change(path, |thing| thing.xattr = true),
            Self::Truncate(path, size) => {
                let size = *size as usize;
                plain.is_file(path) && plain.change(path, |thing| thing.contents.resize(size, 0))
            }
            Self::Append(path) => {
                plain.is_file(path) && plain.change(path, |thing| thing.contents.push(b'+'))
            }
        }
    }

    /// Does it to the source.
    pub(super) fn to_source(&self, source: &FakeSource) -> Result<()> {
        let edit = source.edit();
        match self {
            Self::Make(kind, path, contents) => match kind {
                Kind::Regular => edit.create(path, contents).map(drop),
                Kind::Directory => edit.mkdir(path).map(drop),
                Kind::Symlink => edit.symlink(contents, path).map(drop),
                _ => edit.mknod(path, *kind, 0o644, 7).map(drop),
            },
            Self::Link(old, new) => edit.link(old, new),
            Self::Remove(path, true) => edit.rmdir(path),
            Self::Remove(path, false) => edit.unlink(path),
            Self::RemoveAll(path) => edit.remove_all(path),
            Self::Rename(from, to) => edit.rename(from, to),
            Self::Exchange(one, other) => edit.exchange(one, other),
            Self::Replace(path, contents) => edit.replace(path, contents).map(drop),
            Self::Chmod(path, perm) => edit.chmod(path, *perm),
            Self::SetXattr(path) => edit.setxattr(path, "security.x", "value"),
            Self::Truncate(path, size) => edit.truncate(path, *size),
            Self::Append(path) => edit.append(path, "+"),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = |path: &Path| lossy(path);
        match self {
            Self::Make(kind, path, _) => write!(f, "make {kind:?} {}", p(path)),
            Self::Link(old, new) => write!(f, "link {} {}", p(old), p(new)),
            Self::Remove(path, _) => write!(f, "remove {}", p(path)),
            Self::RemoveAll(path) => write!(f, "remove all {}", p(path)),
            Self::Rename(from, to) => write!(f, "rename {} {}", p(from), p(to)),
            Self::Exchange(one, other) => write!(f, "exchange {} {}", p(one), p(other)),
            Self::Replace(path, _) => write!(f, "replace {}", p(path)),
            Self::Chmod(path, perm) => write!(f, "chmod {perm:o} {}", p(path)),
            Self::SetXattr(path) => write!(f, "setxattr {}", p(path)),
            Self::Truncate(path, size) => write!(f, "truncate {} {size}", p(path)),
            Self::Append(path) => write!(f, "append {}", p(path)),
        }
    }
}
