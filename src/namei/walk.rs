//! Walks of whole paths (floor F4), after link_path_walk of fs/namei.c.

use super::{Found, Namei};
use crate::dcache::{InodeId, InodeRef, NodeId};
use crate::error::{Errno, Result};
use crate::name::{LastType, QStr, next_component, skip_slashes};
use crate::source::{Kind, Source};
use crate::sync::atomic::Ordering;

/// Symlinks that one walk may follow (MAXSYMLINKS).
const MAXSYMLINKS: u32 = 40;

/// Where the answer to one component came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The dentry cache knew it.
    Hit,
    /// The dentry cache knew that it is absent.
    NegativeHit,
    /// The source was asked.
    Miss,
}

/// One component of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The component.
    pub name: Vec<u8>,
    /// Its inode number and kind; `None` if it is absent.
    pub object: Option<(u64, Kind)>,
    /// Where the answer came from.
    pub outcome: Outcome,
}

impl<S: Source> Namei<S> {
    /// Resolves `path` from the root of the mount, an absolute path likewise; `..`
    /// of the root is the root. Each component is shown to `step`.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR (also for a trailing slash), ELOOP after 40 symlinks,
    /// ENAMETOOLONG, and the source's.
    pub fn walk(
        &self,
        path: &[u8],
        follow: bool,
        step: &mut dyn FnMut(Step),
    ) -> Result<InodeRef<'_>> {
        let mut stack = vec![self.pin(self.dcache.inodes.root())?];
        let mut rest = path.to_vec();
        let mut links = 0;
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        while let Some((last, after)) = next_component(&rest)? {
            let trailing = !after.is_empty();
            let is_last = skip_slashes(after).is_empty();
            let here = stack.last().expect("the root stays").id();
            let mut next = after.to_vec();
            match last {
                LastType::Dot => {
                    self.dir(here)?;
                }
                LastType::DotDot => {
                    self.dir(here)?;
                    if stack.len() > 1 {
                        stack.pop();
                    }
                }
                LastType::Norm(name) => {
                    let (inode, kind) = self.walk_component(here, name, step)?;
                    let must_follow = !is_last || trailing || follow;
                    if kind == Kind::Symlink && must_follow {
                        links += 1;
                        if links > MAXSYMLINKS {
                            return Err(Errno::LOOP);
                        }
                        let target = self.readlink(inode.id())?;
                        if target.first() == Some(&b'/') {
                            stack.truncate(1);
                        }
                        next = [&target[..], after].concat();
                    } else {
                        if trailing && kind != Kind::Directory {
                            return Err(Errno::NOTDIR);
                        }
                        stack.push(inode);
                    }
                }
            }
            rest = next;
        }
        Ok(stack.pop().expect("the root stays"))
    }

    fn walk_component(
        &self,
        parent: InodeId,
        name: QStr<'_>,
        step: &mut dyn FnMut(Step),
    ) -> Result<(InodeRef<'_>, Kind)> {
        let counters = &self.dcache.counters;
        let misses = counters.misses.load(Ordering::Relaxed);
        let found = self.lookup_one(parent, name)?;
        // Other walks may have missed meanwhile; then this one is shown as a miss.
        let missed = counters.misses.load(Ordering::Relaxed) != misses;
        let (object, hit) = match &found {
            Found::Positive { inode, attr, .. } => {
                let nodeid: NodeId = self
                    .dcache
                    .inodes
                    .with(inode.id(), |i| i.nodeid())
                    .unwrap_or_default();
                let ino = self.dcache.inodes.devices.st_ino(nodeid);
                (Some((ino, attr.kind)), Outcome::Hit)
            }
            Found::Negative { .. } => (None, Outcome::NegativeHit),
        };
        let outcome = if missed { Outcome::Miss } else { hit };
        step(Step {
            name: name.as_bytes().to_vec(),
            object,
            outcome,
        });
        match found {
            Found::Positive { inode, attr, .. } => Ok((inode, attr.kind)),
            Found::Negative { .. } => Err(Errno::NOENT),
        }
    }

    /// Pins an inode for the length of an operation.
    ///
    /// # Errors
    /// ESTALE if it is gone.
    pub fn pin(&self, inode: InodeId) -> Result<InodeRef<'_>> {
        self.dcache.inodes.pin(inode).ok_or(Errno::STALE)
    }

    /// Target of a symlink.
    ///
    /// # Errors
    /// EINVAL if it is none, ESTALE if it is gone, and the source's.
    pub fn readlink(&self, inode: InodeId) -> Result<Vec<u8>> {
        let kind = self
            .dcache
            .inodes
            .with(inode, |i| i.kind())
            .ok_or(Errno::STALE)?;
        if kind != Kind::Symlink {
            return Err(Errno::INVAL);
        }
        let node = self.node(inode)?;
        let mut buf = self.names.getname()?;
        let scratch = buf.scratch();
        let len = self.source.readlink(&node, scratch)?;
        Ok(scratch[..len].to_vec())
    }
}
