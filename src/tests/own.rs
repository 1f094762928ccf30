//! Steps of the model test that change something through the mount.

use proptest::prelude::*;

use super::kernel::lossy;
use super::model::Model;
use super::plan::NAMES;
use super::truth::join;
use crate::error::{Errno, Result};
use crate::source::{Kind, SetAttr};

/// A change through the mount; operands as in [`super::plan::Step`].
#[derive(Clone, Debug)]
pub(super) enum Own {
    Make(Kind, usize, usize),
    Link(usize, usize, usize),
    Remove(usize),
    Rename(usize, usize, usize, u32),
    Chmod(usize, u16),
    Truncate(usize, u16),
    SetXattr(usize),
    Write(usize, u16),
}

/// Any of them.
pub(super) fn own() -> impl Strategy<Value = Own> {
    let n = || 0..64_usize;
    let kind = prop_oneof![
        3 => Just(Kind::Regular),
        4 => Just(Kind::Directory),
        1 => Just(Kind::Symlink),
        1 => Just(Kind::Fifo),
    ];
    let flags = prop_oneof![
        4 => Just(0_u32),
        1 => Just(libc::RENAME_NOREPLACE),
        2 => Just(libc::RENAME_EXCHANGE),
    ];
    prop_oneof![
        5 => (kind, n(), n()).prop_map(|(kind, dir, name)| Own::Make(kind, dir, name)),
        1 => (n(), n(), n()).prop_map(|(of, dir, name)| Own::Link(of, dir, name)),
        3 => n().prop_map(Own::Remove),
        4 => (n(), n(), n(), flags).prop_map(|(of, dir, name, f)| Own::Rename(of, dir, name, f)),
        1 => (n(), 0..0o10000_u16).prop_map(|(of, perm)| Own::Chmod(of, perm)),
        1 => (n(), 0..9000_u16).prop_map(|(of, size)| Own::Truncate(of, size)),
        1 => n().prop_map(Own::SetXattr),
        1 => (n(), 0..9000_u16).prop_map(|(n, offset)| Own::Write(n, offset)),
    ]
}

impl Model {
    /// Makes a change through the mount, and in the plain tree where it was made.
    pub(super) fn own(&mut self, step: &Own) {
        let dir = |model: &Self, n| model.plain.mounted_dir(n).unwrap_or_default();
        let any = |model: &Self, n| model.plain.mounted(n).unwrap_or_default();
        let below = |model: &Self, n, name: usize| join(&dir(model, n), NAMES[name % NAMES.len()]);
        match *step {
            Own::Make(kind, of, name) => {
                let path = below(self, of, name);
                let contents = match kind {
                    Kind::Symlink => self.contents(),
                    _ => Vec::new(),
                };
                self.trace(|| format!("own make {kind:?} {}", lossy(&path)));
                let done = self.kernel.make(&path, kind, &contents);
                self.follow(done, |plain, made| match made {
                    Some(made) => plain.make(&made, kind, &contents),
                    None => plain.clone().make(&path, kind, &contents),
                });
            }
            Own::Link(of, to, name) => {
                let (of, to) = (any(self, of), below(self, to, name));
                self.trace(|| format!("own link {} {}", lossy(&of), lossy(&to)));
                let done = self.kernel.link(&of, &to);
                self.follow(done, |plain, made| match made {
                    Some((old, new)) => plain.link(&old, &new),
                    None => plain.clone().link(&of, &to),
                });
            }
            Own::Remove(of) => {
                let of = any(self, of);
                if of.is_empty() {
                    return;
                }
                self.trace(|| format!("own remove {}", lossy(&of)));
                let done = self.kernel.remove(&of);
                self.follow(done, |plain, made| match made {
                    Some(path) => plain.remove(&path),
                    None => plain.clone().remove(&of),
                });
            }
            Own::Rename(of, to, name, flags) => {
                let (of, to) = (any(self, of), below(self, to, name));
                if of.is_empty() {
                    return;
                }
                self.trace(|| format!("own rename {} {} {flags}", lossy(&of), lossy(&to)));
                let done = self.kernel.rename(&of, &to, flags);
                self.follow(done, |plain, made| match made {
                    Some((old, new)) => plain.rename_with(&old, &new, flags),
                    None => plain.clone().rename_with(&of, &to, flags),
                });
            }
            Own::Chmod(of, perm) => {
                let of = any(self, of);
                if self.plain.kind(&of) == Some(Kind::Symlink) {
                    return;
                }
                self.trace(|| format!("own chmod {}", lossy(&of)));
                let change = SetAttr {
                    perm: Some(perm),
                    ..SetAttr::default()
                };
                let done = self.kernel.setattr(&of, &change);
                self.changed(done, |thing| thing.perm = perm);
            }
            Own::Truncate(of, size) => {
                let of = any(self, of);
                if !self.plain.is_file(&of) {
                    return;
                }
                self.trace(|| format!("own truncate {}", lossy(&of)));
                let change = SetAttr {
                    size: Some(size.into()),
                    ..SetAttr::default()
                };
                let done = self.kernel.setattr(&of, &change);
                self.changed(done, |thing| thing.contents.resize(size.into(), 0));
            }
            Own::SetXattr(of) => {
                let of = any(self, of);
                self.trace(|| format!("own setxattr {}", lossy(&of)));
                let done = self.kernel.setxattr(&of);
                self.changed(done, |thing| thing.xattr = true);
            }
            Own::Write(n, offset) => {
                let writable: Vec<usize> = (0..self.kernel.files.len())
                    .filter(|n| self.kernel.files[*n].writable)
                    .collect();
                let Some(n) = n.checked_rem(writable.len()) else {
                    return;
                };
                self.trace(|| format!("own write {n} at {offset}"));
                let done = self.kernel.write(writable[n], offset.into(), b"written");
                self.changed(done, |thing| {
                    let (at, size) = (usize::from(offset), thing.contents.len());
                    thing.contents.resize(size.max(at + 7), 0);
                    thing.contents[at..at + 7].copy_from_slice(b"written");
                });
            }
        }
        self.kernel.look();
    }

    /// Does in the plain tree what was done (`Some`: where), or asks it whether it would
    /// have been allowed.
    fn follow<R>(
        &mut self,
        done: Result<R>,
        plain: impl FnOnce(&mut super::plan::Plain, Option<R>) -> bool,
    ) {
        self.kernel.note();
        match done {
            // Where a change came in between, the plain tree is read anew afterwards.
            Ok(_) if self.kernel.disturbed() => {}
            Ok(made) => assert!(plain(&mut self.plain, Some(made)), "the source allowed it"),
            Err(error) => {
                let allowed = plain(&mut self.plain, None);
                let excused = !self.kernel.current() || self.kernel.failed();
                assert!(!allowed || excused, "refused: {error:?}");
                assert!(error != Errno::IO || self.kernel.failed(), "{error:?}");
                self.trace(|| format!("refused: {error:?}"));
            }
        }
    }

    fn changed(
        &mut self,
        done: Result<Option<Vec<u8>>>,
        change: impl FnOnce(&mut super::plan::Thing),
    ) {
        self.kernel.note();
        match done {
            Ok(_) if self.kernel.disturbed() => {}
            Ok(Some(path)) => {
                self.plain.change(&path, change);
            }
            // An object without a name is in no tree.
            Ok(None) => {}
            Err(error) => {
                let excused = !self.kernel.current() || self.kernel.failed();
                assert!(excused, "refused: {error:?}");
            }
        }
    }
}
