//! The fake tree as a [`Source`].

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::events::FakeWatcher;
use super::object::{self, Body};
use super::{Births, Call, Cookies, FakeSource, File, Node, Point, write};
use crate::error::{Errno, Result};
use crate::source::watch::Watcher;
use crate::source::{
    Attr, Caller, FsTraits, Handle, Kind, LockKind, LockRange, RawEntry, SetAttr, Source, StatFs,
    WriteHow,
};

impl Source for FakeSource {
    type Node = Node;
    type File = File;

    fn root(&self) -> Node {
        self.shared.root.clone()
    }

    fn open_node(&self, base: &Node, path: &CStr) -> Result<Node> {
        let path = path.to_bytes();
        self.call(Call::OpenNode, path, |world| world.walk(base, path))
    }

    fn stat(&self, node: &Node) -> Result<Attr> {
        self.call(Call::Stat, b"", |_| Ok(node.object.attr(node.mnt)))
    }

    fn stat_at(&self, dir: &Node, name: &CStr) -> Result<Attr> {
        let name = name.to_bytes();
        self.call(Call::StatAt, name, |world| {
            let node = world.step(dir, name)?;
            Ok(node.object.attr(node.mnt))
        })
    }

    fn stat_file(&self, file: &File) -> Result<Attr> {
        self.call(Call::StatFile, b"", |_| {
            Ok(file.node.object.attr(file.node.mnt))
        })
    }

    fn readlink(&self, node: &Node, buf: &mut [u8]) -> Result<usize> {
        self.call(Call::Readlink, b"", |_| match &node.object.state().body {
            Body::Symlink(target) => {
                let len = target.len().min(buf.len());
                buf[..len].copy_from_slice(&target[..len]);
                Ok(len)
            }
            _ => Err(Errno::INVAL),
        })
    }

    fn list(
        &self,
        dir: &Node,
        cookie: u64,
        sink: &mut dyn FnMut(RawEntry<'_>) -> bool,
    ) -> Result<bool> {
        let mut cookie = cookie;
        loop {
            self.shared.calls.enter(Call::List, b"")?;
            let batch = self.shared.batch.load(Ordering::Relaxed);
            let dtypes = dir.object.fs.config().dtypes;
            let world = self.world();
            let listed = object::list(&dir.object, cookie, batch);
            drop(world);
            self.shared.calls.at(Call::List, Point::Read, b"");
            let listed = listed?;
            let Some(last) = listed.last() else {
                return Ok(true);
            };
            cookie = last.cookie;
            for entry in &listed {
                let kind = dtypes.then_some(entry.kind);
                let (ino, cookie, name) = (entry.ino, entry.cookie, entry.name.as_slice());
                if !sink(RawEntry {
                    ino,
                    kind,
                    cookie,
                    name,
                }) {
                    return Ok(false);
                }
            }
        }
    }

    fn fs_traits(&self, node: &Node) -> Result<FsTraits> {
        self.call(Call::FsTraits, b"", |_| {
            let config = node.object.fs.config();
            let stable_cookies = config.cookies != Cookies::Places;
            Ok(FsTraits {
                stable_cookies,
                remote: config.remote,
                birth_times: config.births == Births::Distinct,
                lists_all: true,
                name: "fake",
            })
        })
    }

    fn statfs(&self, node: &Node) -> Result<StatFs> {
        self.call(Call::Statfs, b"", |_| {
            let files = 1 << 20;
            let blocks = node.object.fs.dev << 20;
            let free = blocks / 2;
            Ok(StatFs {
                bsize: 4096,
                frsize: 4096,
                blocks,
                bfree: free,
                bavail: free,
                files,
                ffree: files / 2,
                namelen: 255,
            })
        })
    }

    fn open(&self, of: Handle<'_, Node, File>, flags: u32) -> Result<File> {
        let node = node_of(of);
        self.call(Call::Open, b"", |_| self.open_node_with(node, flags))
    }

    fn read(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.call(Call::Read, b"", |_| {
            if file.flags & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32 {
                return Err(Errno::BADF);
            }
            match &file.node.object.state().body {
                Body::File(data) => Ok(data.read(offset, buf)),
                _ => Err(Errno::INVAL),
            }
        })
    }

    fn lseek(&self, file: &File, offset: u64, whence: u32) -> Result<u64> {
        self.call(Call::Lseek, b"", |_| {
            match (&file.node.object.state().body, whence as i32) {
                (Body::File(data), libc::SEEK_DATA) => data.seek_data(offset),
                (Body::File(data), libc::SEEK_HOLE) => data.seek_hole(offset),
                _ => Err(Errno::INVAL),
            }
        })
    }

    fn getxattr(&self, of: Handle<'_, Node, File>, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        let node = node_of(of);
        let name = name.to_bytes();
        self.call(Call::Getxattr, name, |_| {
            let state = node.object.state();
            copy_out(state.xattrs.get(name).ok_or(Errno::NODATA)?, buf)
        })
    }

    fn listxattr(&self, of: Handle<'_, Node, File>, buf: &mut [u8]) -> Result<usize> {
        let node = node_of(of);
        self.call(Call::Listxattr, b"", |_| {
            let mut names = Vec::new();
            for name in node.object.state().xattrs.keys() {
                names.extend_from_slice(name);
                names.push(0);
            }
            copy_out(&names, buf)
        })
    }

    fn open_at(&self, dir: &Node, name: &CStr, flags: u32, _caller: &Caller) -> Result<File> {
        let name = name.to_bytes();
        self.call(Call::OpenAt, name, |world| {
            let node = world.step(dir, name)?;
            self.open_node_with(&node, flags)
        })
    }

    fn create(
        &self,
        dir: &Node,
        name: &CStr,
        flags: u32,
        mode: u32,
        caller: &Caller,
    ) -> Result<File> {
        let name = name.to_bytes();
        self.call(Call::Create, name, |world| {
            let none = (0, &b""[..]);
            match world.step(dir, name) {
                Ok(_) if flags & libc::O_EXCL as u32 != 0 => Err(Errno::EXIST),
                Ok(node) if node.object.is_dir() => Err(Errno::ISDIR),
                Ok(node) => self.open_node_with(&node, flags),
                Err(Errno::NOENT) => {
                    let node = write::make(world, dir, name, Kind::Regular, mode, none, caller)?;
                    Ok(self.opened(&node, flags))
                }
                Err(error) => Err(error),
            }
        })
    }

    fn mknod(&self, dir: &Node, name: &CStr, mode: u32, rdev: u32, caller: &Caller) -> Result<()> {
        let name = name.to_bytes();
        self.call(Call::Mknod, name, |world| {
            let kind = Kind::from_mode(mode).ok_or(Errno::INVAL)?;
            if matches!(kind, Kind::Directory | Kind::Symlink) {
                return Err(Errno::INVAL);
            }
            write::make(world, dir, name, kind, mode, (rdev, b""), caller).map(drop)
        })
    }

    fn mkdir(&self, dir: &Node, name: &CStr, mode: u32, caller: &Caller) -> Result<()> {
        let name = name.to_bytes();
        self.call(Call::Mkdir, name, |world| {
            let none = (0, &b""[..]);
            write::make(world, dir, name, Kind::Directory, mode, none, caller).map(drop)
        })
    }

    fn symlink(&self, dir: &Node, name: &CStr, target: &CStr, caller: &Caller) -> Result<()> {
        let name = name.to_bytes();
        self.call(Call::Symlink, name, |world| {
            let target = (0, target.to_bytes());
            write::make(world, dir, name, Kind::Symlink, 0, target, caller).map(drop)
        })
    }

    fn link(
        &self,
        of: Handle<'_, Node, File>,
        dir: &Node,
        name: &CStr,
        _caller: &Caller,
    ) -> Result<()> {
        let (node, name) = (node_of(of), name.to_bytes());
        self.call(Call::Link, name, |world| world.link(node, dir, name))
    }

    fn unlink(&self, dir: &Node, name: &CStr, _caller: &Caller) -> Result<()> {
        let name = name.to_bytes();
        self.call(Call::Unlink, name, |world| world.remove(dir, name, false))
    }

    fn rmdir(&self, dir: &Node, name: &CStr, _caller: &Caller) -> Result<()> {
        let name = name.to_bytes();
        self.call(Call::Rmdir, name, |world| world.remove(dir, name, true))
    }

    fn rename(
        &self,
        from: (&Node, &CStr),
        to: (&Node, &CStr),
        flags: u32,
        _caller: &Caller,
    ) -> Result<()> {
        let (old, new) = (from.1.to_bytes(), to.1.to_bytes());
        self.call(Call::Rename, old, |world| {
            world.rename((from.0, old), (to.0, new), write::rename_flags(flags)?)
        })
    }

    fn setattr(
        &self,
        of: Handle<'_, Node, File>,
        change: &SetAttr,
        _caller: &Caller,
    ) -> Result<()> {
        self.call(Call::Setattr, b"", |world| {
            let node = node_of(of);
            write::setattr(node, change)?;
            if change.size.is_some() {
                world.events.contents(node);
            }
            let size_only = SetAttr {
                size: change.size,
                ..SetAttr::default()
            };
            if *change != size_only {
                world.events.attributes(node);
            }
            Ok(())
        })
    }

    fn write(&self, file: &File, offset: u64, data: &[u8], how: WriteHow) -> Result<usize> {
        self.call(Call::Write, b"", |_| write::write(file, offset, data, how))
    }

    fn fsync(&self, _file: &File, _data_only: bool) -> Result<()> {
        self.call(Call::Fsync, b"", |_| Ok(()))
    }

    fn fsync_dir(&self, dir: &Node) -> Result<()> {
        self.call(Call::FsyncDir, b"", |_| match dir.object.is_dir() {
            true => Ok(()),
            false => Err(Errno::NOTDIR),
        })
    }

    fn fallocate(
        &self,
        file: &File,
        mode: u32,
        offset: u64,
        len: u64,
        _caller: &Caller,
    ) -> Result<()> {
        self.call(Call::Fallocate, b"", |_| {
            write::fallocate(file, mode, offset, len)
        })
    }

    fn copy_range(
        &self,
        from: (&File, u64),
        to: (&File, u64),
        len: u64,
        _caller: &Caller,
    ) -> Result<u64> {
        self.call(Call::CopyRange, b"", |_| write::copy_range(from, to, len))
    }

    fn setxattr(
        &self,
        of: Handle<'_, Node, File>,
        name: &CStr,
        value: &[u8],
        flags: u32,
        _caller: &Caller,
    ) -> Result<()> {
        let name = name.to_bytes();
        self.call(Call::Setxattr, name, |_| {
            write::setxattr(node_of(of), name, value, flags)
        })
    }

    fn removexattr(&self, of: Handle<'_, Node, File>, name: &CStr, _caller: &Caller) -> Result<()> {
        let name = name.to_bytes();
        self.call(Call::Removexattr, name, |_| {
            write::removexattr(node_of(of), name)
        })
    }

    fn flags(&self, file: &File) -> Result<u32> {
        self.call(Call::Flags, b"", |_| Ok(file.node.object.state().flags))
    }

    fn set_flags(&self, file: &File, flags: u32, _caller: &Caller) -> Result<()> {
        self.call(Call::SetFlags, b"", |_| {
            file.node.object.state().flags = flags;
            file.node.object.touch_attr();
            Ok(())
        })
    }

    fn watcher(&self) -> Result<Option<Arc<dyn Watcher<Node>>>> {
        Ok(Some(Arc::new(FakeWatcher(self.world().events.clone()))))
    }

    fn lock(&self, file: &File, range: LockRange) -> Result<()> {
        self.call(Call::Lock, b"", |_| {
            let writes = file.flags & libc::O_ACCMODE as u32;
            match range.kind {
                LockKind::Read if writes == libc::O_WRONLY as u32 => return Err(Errno::BADF),
                LockKind::Write if writes == libc::O_RDONLY as u32 => return Err(Errno::BADF),
                _ => {}
            }
            file.node.object.state().locks.set(file.number, range)
        })
    }

    fn find_lock(&self, file: &File, range: LockRange) -> Result<Option<(LockRange, Option<u32>)>> {
        self.call(Call::FindLock, b"", |_| {
            let found = file.node.object.state().locks.conflict(file.number, range);
            Ok(found.map(|held| (held, None)))
        })
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        Call::ALL
            .iter()
            .map(|call| (call.word(), self.count(*call)))
            .collect()
    }
}

fn node_of<'a>(of: Handle<'a, Node, File>) -> &'a Node {
    match of {
        Handle::Node(node) => node,
        Handle::File(file) => &file.node,
    }
}

/// Answers as getxattr(2): all of it, its length only, or ERANGE.
fn copy_out(bytes: &[u8], buf: &mut [u8]) -> Result<usize> {
    if buf.is_empty() {
        return Ok(bytes.len());
    }
    buf.get_mut(..bytes.len())
        .ok_or(Errno::RANGE)?
        .copy_from_slice(bytes);
    Ok(bytes.len())
}
