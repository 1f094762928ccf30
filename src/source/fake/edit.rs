//! Changes from behind: what another process does to the tree.

use std::sync::Arc;

use super::object::{Body, FsConfig, State};
use super::world::{New, Node, RenameFlags, World};
use super::{FakeSource, object};
use crate::error::{Errno, Result};
use crate::source::{Attr, Kind, Time};
use crate::sync::MutexGuard;

/// Edits of a [`FakeSource`] by path; each is one step.
///
/// Paths are relative to the mirrored root (an empty one is the root itself) and
/// follow no symlink; one that starts with `../` lies in a directory beside it,
/// so that things can move into the tree and out of it.
pub struct Edit<'a> {
    source: &'a FakeSource,
}

impl<'a> Edit<'a> {
    pub(super) fn new(source: &'a FakeSource) -> Self {
        Self { source }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.source.world()
    }

    /// A regular file with contents.
    pub fn create(&self, path: impl AsRef<[u8]>, contents: impl AsRef<[u8]>) -> Result<Node> {
        let world = &mut *self.world();
        let node = make(world, path.as_ref(), Kind::Regular, 0o644, 0, b"")?;
        with_body(&node, |body| match body {
            Body::File(data) => data.write(0, contents.as_ref()),
            _ => Err(Errno::INVAL),
        })?;
        world.events.contents(&node);
        Ok(node)
    }

    /// A directory.
    pub fn mkdir(&self, path: impl AsRef<[u8]>) -> Result<Node> {
        make(
            &mut self.world(),
            path.as_ref(),
            Kind::Directory,
            0o755,
            0,
            b"",
        )
    }

    /// A symlink to `target`.
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<Node> {
        make(
            &mut self.world(),
            path.as_ref(),
            Kind::Symlink,
            0o777,
            0,
            target.as_ref(),
        )
    }

    /// An object of any kind, empty.
    pub fn mknod(&self, path: impl AsRef<[u8]>, kind: Kind, perm: u16, rdev: u32) -> Result<Node> {
        make(&mut self.world(), path.as_ref(), kind, perm, rdev, b"")
    }

    /// Another name for the object at `old`.
    pub fn link(&self, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<()> {
        let world = self.world();
        let node = find(&world, old.as_ref())?;
        let (dir, name) = split(&world, new.as_ref())?;
        world.link(&node, &dir, name)
    }

    /// Removes a name that is no directory.
    pub fn unlink(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let world = self.world();
        let (dir, name) = split(&world, path.as_ref())?;
        world.remove(&dir, name, false)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let world = self.world();
        let (dir, name) = split(&world, path.as_ref())?;
        world.remove(&dir, name, true)
    }

    /// Removes whatever is at `path`, and all below it, in one step.
    pub fn remove_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let world = self.world();
        let (dir, name) = split(&world, path.as_ref())?;
        remove_all(&world, &dir, name)
    }

    /// Removes the mirrored directory itself, and all below it.
    pub fn remove_root(&self) -> Result<()> {
        let world = self.world();
        remove_all(&world, &world.top, b"source")
    }

    /// rename(2).
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        self.rename_with(from, to, RenameFlags::default())
    }

    /// Swaps two names.
    pub fn exchange(&self, one: impl AsRef<[u8]>, other: impl AsRef<[u8]>) -> Result<()> {
        self.rename_with(
            one,
            other,
            RenameFlags {
                exchange: true,
                ..RenameFlags::default()
            },
        )
    }

    /// renameat2(2).
    pub fn rename_with(
        &self,
        from: impl AsRef<[u8]>,
        to: impl AsRef<[u8]>,
        flags: RenameFlags,
    ) -> Result<()> {
        let mut world = self.world();
        let (old_dir, old) = split(&world, from.as_ref())?;
        let (new_dir, new) = split(&world, to.as_ref())?;
        world.rename((&old_dir, old), (&new_dir, new), flags)
    }

    /// Puts a new file with `contents` in the place of what is at `path`, by a rename over it.
    pub fn replace(&self, path: impl AsRef<[u8]>, contents: impl AsRef<[u8]>) -> Result<Node> {
        let temporary = b"../.replacement";
        let node = self.create(temporary, contents)?;
        self.rename(temporary, path.as_ref()).inspect_err(|_| {
            let _ = self.unlink(temporary);
        })?;
        Ok(node)
    }

    /// Sets the permission bits.
    pub fn chmod(&self, path: impl AsRef<[u8]>, perm: u16) -> Result<()> {
        self.change(path, |state| state.perm = perm & 0o7777)
    }

    /// Sets owner and group.
    pub fn chown(&self, path: impl AsRef<[u8]>, uid: u32, gid: u32) -> Result<()> {
        self.change(path, |state| (state.uid, state.gid) = (uid, gid))
    }

    /// Sets access and modification time; utimensat(2) can set them back.
    pub fn set_times(&self, path: impl AsRef<[u8]>, atime: Time, mtime: Time) -> Result<()> {
        self.change(path, |state| (state.atime, state.mtime) = (atime, mtime))
    }

    /// Sets an extended attribute.
    pub fn setxattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.change(path, |state| {
            state
                .xattrs
                .insert(name.as_ref().to_vec(), value.as_ref().to_vec());
        })
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<()> {
        self.change(path, |state| state.xattrs.remove(name.as_ref()))?
            .map(drop)
            .ok_or(Errno::NODATA)
    }

    fn change<R>(&self, path: impl AsRef<[u8]>, change: impl FnOnce(&mut State) -> R) -> Result<R> {
        let world = self.world();
        let node = find(&world, path.as_ref())?;
        let result = change(&mut node.object.state());
        node.object.touch_attr();
        world.events.attributes(&node);
        Ok(result)
    }

    /// Sets the size of a file.
    pub fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Result<()> {
        self.change_data(path, |data| data.truncate(size))
    }

    /// Writes into a file.
    pub fn write(
        &self,
        path: impl AsRef<[u8]>,
        offset: u64,
        bytes: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.change_data(path, |data| data.write(offset, bytes.as_ref()))
    }

    /// Writes at the end of a file.
    pub fn append(&self, path: impl AsRef<[u8]>, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.change_data(path, |data| data.write(data.size(), bytes.as_ref()))
    }

    /// Makes a hole in a file.
    pub fn punch(&self, path: impl AsRef<[u8]>, offset: u64, len: u64) -> Result<()> {
        self.change_data(path, |data| {
            data.punch(offset, len);
            Ok(())
        })
    }

    fn change_data(
        &self,
        path: impl AsRef<[u8]>,
        change: impl FnOnce(&mut super::data::Data) -> Result<()>,
    ) -> Result<()> {
        let world = self.world();
        let node = find(&world, path.as_ref())?;
        with_body(&node, |body| match body {
            Body::File(data) => change(data),
            Body::Dir(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        })?;
        node.object.touch();
        world.events.contents(&node);
        Ok(())
    }

    /// Gives the object another inode number, as filesystems without stable numbers do.
    pub fn set_ino(&self, path: impl AsRef<[u8]>, ino: u64) -> Result<()> {
        let world = self.world();
        let node = find(&world, path.as_ref())?;
        let mut state = node.object.state();
        (state.ino, state.ino_supplied) = (ino, false);
        Ok(())
    }

    /// Mounts a new filesystem on a directory.
    pub fn mount(&self, path: impl AsRef<[u8]>, config: FsConfig) -> Result<Node> {
        let mut world = self.world();
        let at = find(&world, path.as_ref())?;
        world.mount(&at, config)
    }

    /// Bind-mounts the directory `from` on the directory `at`.
    pub fn bind(&self, from: impl AsRef<[u8]>, at: impl AsRef<[u8]>) -> Result<Node> {
        let mut world = self.world();
        let from = find(&world, from.as_ref())?;
        let at = find(&world, at.as_ref())?;
        world.bind(&from, &at)
    }

    /// Takes away what is mounted on a directory, in use or not.
    pub fn unmount(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let mut world = self.world();
        let (dir, name) = split(&world, path.as_ref())?;
        world.unmount(&dir, name)
    }

    /// The object at `path`.
    pub fn node(&self, path: impl AsRef<[u8]>) -> Result<Node> {
        find(&self.world(), path.as_ref())
    }

    /// Attributes of the object at `path`.
    pub fn attr(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.node(path).map(|node| self.attr_of(&node))
    }

    /// Attributes of an object, its name gone or not.
    pub fn attr_of(&self, node: &Node) -> Attr {
        let _world = self.world();
        node.object.attr(node.mnt)
    }

    /// Names in the directory at `path`, in its order, without dots.
    pub fn names(&self, path: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>> {
        let world = self.world();
        find(&world, path.as_ref())?
            .object
            .with_dir(|dir| Ok(dir.names()))
    }

    /// Contents of the file at `path`.
    pub fn contents(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let node = self.node(path)?;
        self.contents_of(&node)
    }

    /// Contents of a file, or the target of a symlink, its name gone or not.
    pub fn contents_of(&self, node: &Node) -> Result<Vec<u8>> {
        let _world = self.world();
        with_body(node, |body| match body {
            Body::File(data) => {
                let mut bytes = vec![0; data.size() as usize];
                data.read(0, &mut bytes);
                Ok(bytes)
            }
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL),
        })
    }

    /// An extended attribute of an object, its name gone or not.
    pub fn xattr_of(&self, node: &Node, name: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        let _world = self.world();
        node.object.state().xattrs.get(name.as_ref()).cloned()
    }
}

fn with_body<R>(node: &Node, f: impl FnOnce(&mut Body) -> Result<R>) -> Result<R> {
    f(&mut node.object.state().body)
}

fn make(
    world: &mut World,
    path: &[u8],
    kind: Kind,
    perm: u16,
    rdev: u32,
    target: &[u8],
) -> Result<Node> {
    let (dir, name) = split(world, path)?;
    world.make(
        &dir,
        name,
        &New {
            kind,
            perm,
            uid: 0,
            gid: 0,
            rdev,
            target,
        },
    )
}

fn find(world: &World, path: &[u8]) -> Result<Node> {
    let (base, path) = base(world, path);
    if path.is_empty() {
        return Ok(base.clone());
    }
    world.walk(base, path)
}

/// Where a path starts, and the rest of it.
fn base<'w, 'p>(world: &'w World, path: &'p [u8]) -> (&'w Node, &'p [u8]) {
    match path.strip_prefix(b"../") {
        Some(rest) => (&world.outside, rest),
        None => (&world.root, path),
    }
}

/// The directory of the last component, and that component.
fn split<'p>(world: &World, path: &'p [u8]) -> Result<(Node, &'p [u8])> {
    let (base, path) = base(world, path);
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => Ok((world.walk(base, &path[..slash])?, &path[slash + 1..])),
        None => Ok((base.clone(), path)),
    }
}

fn remove_all(world: &World, dir: &Node, name: &[u8]) -> Result<()> {
    let object: Arc<object::Object> = dir.object.child(name)?;
    let directory = object.is_dir();
    if directory {
        let below = Node::of(dir.object.entry(name)?, dir.mnt);
        for name in object.with_dir(|entries| Ok(entries.names()))? {
            remove_all(world, &below, &name)?;
        }
    }
    world.remove(dir, name, directory)
}
