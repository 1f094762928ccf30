//! What a change by the mount does to the fake tree, as a host would do it for root.

use super::object::{Body, State};
use super::world::{New, Node, RenameFlags, World};
use super::{FakeSource, File};
use crate::error::{Errno, Result};
use crate::source::{Caller, Kind, SetAttr, SetTime, Time, WriteHow};

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXEC: u16 = 0o010;

/// FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE and FALLOC_FL_ZERO_RANGE of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// XATTR_CREATE and XATTR_REPLACE of setxattr(2).
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

/// Makes an object for a caller.
pub(super) fn make(
    world: &mut World,
    dir: &Node,
    name: &[u8],
    kind: Kind,
    mode: u32,
    (rdev, target): (u32, &[u8]),
    caller: &Caller,
) -> Result<Node> {
    let perm = match kind {
        Kind::Symlink => 0o777,
        _ => (mode & !caller.umask & 0o7777) as u16,
    };
    let new = New {
        kind,
        perm,
        uid: caller.uid,
        gid: caller.gid,
        rdev,
        target,
    };
    world.make(dir, name, &new)
}

/// renameat2(2)'s flags.
pub(super) fn rename_flags(flags: u32) -> Result<RenameFlags> {
    let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
    if flags & !known != 0 {
        return Err(Errno::INVAL);
    }
    Ok(RenameFlags {
        noreplace: flags & libc::RENAME_NOREPLACE != 0,
        exchange: flags & libc::RENAME_EXCHANGE != 0,
        whiteout: flags & libc::RENAME_WHITEOUT != 0,
    })
}

impl FakeSource {
    pub(super) fn opened(&self, node: &Node, flags: u32) -> File {
        use std::sync::atomic::Ordering;
        let number = self.shared.opened.fetch_add(1, Ordering::Relaxed);
        File {
            node: node.clone(),
            flags,
            number,
        }
    }

    /// Opens what is at `node` with open(2)'s flags.
    pub(super) fn open_node_with(&self, node: &Node, flags: u32) -> Result<File> {
        let mut state = node.object.state();
        match &mut state.body {
            Body::File(data) if is_written(flags) && flags & libc::O_TRUNC as u32 != 0 => {
                data.truncate(0)?;
            }
            Body::Dir(_) if is_written(flags) => return Err(Errno::ISDIR),
            Body::File(_) | Body::Dir(_) => return Ok(self.opened(node, flags)),
            Body::Symlink(_) => return Err(Errno::LOOP),
            Body::Special(_) => return Err(Errno::NXIO),
        }
        drop(state);
        node.object.touch();
        node.events().contents(node);
        Ok(self.opened(node, flags))
    }
}

pub(super) fn is_written(flags: u32) -> bool {
    flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32
}

/// chown(2), chmod(2), truncate(2) and utimensat(2) in one.
pub(super) fn setattr(node: &Node, change: &SetAttr) -> Result<()> {
    let now = node.object.fs.stamp();
    let mut state = node.object.state();
    let at = |time: SetTime| match time {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    if let Some(size) = change.size {
        match &mut state.body {
            Body::File(data) => data.truncate(size)?,
            Body::Dir(_) => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        state.mtime = now;
    }
    if change.uid.is_some() || change.gid.is_some() {
        state.uid = change.uid.unwrap_or(state.uid);
        state.gid = change.gid.unwrap_or(state.gid);
        if node.object.kind != Kind::Directory {
            kill_privileges(&mut state);
        }
    }
    if let Some(perm) = change.perm {
        if node.object.kind == Kind::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        state.perm = perm & 0o7777;
    }
    state.atime = change.atime.map_or(state.atime, at);
    state.mtime = change.mtime.map_or(state.mtime, at);
    if *change != SetAttr::default() {
        state.ctime = now;
    }
    Ok(())
}

/// Set-user-id falls, and set-group-id where the group may execute.
fn kill_privileges(state: &mut State) {
    state.perm &= !SET_UID;
    if state.perm & GROUP_EXEC != 0 {
        state.perm &= !SET_GID;
    }
}

/// Changes the data of an open file.
fn change_data<R>(file: &File, change: impl FnOnce(&mut State, Time) -> Result<R>) -> Result<R> {
    if !is_written(file.flags) {
        return Err(Errno::BADF);
    }
    let now = file.node.object.fs.stamp();
    let mut state = file.node.object.state();
    let result = change(&mut state, now)?;
    (state.mtime, state.ctime) = (now, now);
    drop(state);
    file.node.events().contents(&file.node);
    Ok(result)
}

pub(super) fn write(file: &File, offset: u64, bytes: &[u8], how: WriteHow) -> Result<usize> {
    change_data(file, |state, _| {
        let Body::File(data) = &mut state.body else {
            return Err(Errno::INVAL);
        };
        let offset = if how.append { data.size() } else { offset };
        data.write(offset, bytes)?;
        if how.kill_suid.is_some() {
            kill_privileges(state);
        }
        Ok(bytes.len())
    })
}

pub(super) fn fallocate(file: &File, mode: u32, offset: u64, len: u64) -> Result<()> {
    let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
    if len == 0 {
        return Err(Errno::INVAL);
    }
    change_data(file, |state, _| {
        let Body::File(data) = &mut state.body else {
            return Err(Errno::NODEV);
        };
        let size = data.size();
        match mode & !KEEP_SIZE {
            0 => data.allocate(offset, len),
            PUNCH_HOLE if mode & KEEP_SIZE != 0 => {
                data.punch(offset, len);
                return Ok(());
            }
            ZERO_RANGE => {
                data.punch(offset, len);
                data.allocate(offset, len);
            }
            _ => return Err(Errno::OPNOTSUPP),
        }
        if mode & KEEP_SIZE == 0 && end > size {
            data.truncate(end)?;
        }
        Ok(())
    })
}

pub(super) fn copy_range(from: (&File, u64), to: (&File, u64), len: u64) -> Result<u64> {
    let len = usize::try_from(len.min(1 << 20)).unwrap_or(usize::MAX);
    let mut bytes = vec![0; len];
    let read = match &from.0.node.object.state().body {
        Body::File(data) => data.read(from.1, &mut bytes),
        _ => return Err(Errno::INVAL),
    };
    if from.0.node.same(&to.0.node) && from.1.abs_diff(to.1) < read as u64 {
        return Err(Errno::INVAL);
    }
    write(to.0, to.1, &bytes[..read], WriteHow::default())?;
    Ok(read as u64)
}

pub(super) fn setxattr(node: &Node, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
    let mut state = node.object.state();
    let there = state.xattrs.contains_key(name);
    match flags {
        XATTR_CREATE if there => return Err(Errno::EXIST),
        XATTR_REPLACE if !there => return Err(Errno::NODATA),
        0 | XATTR_CREATE | XATTR_REPLACE => {}
        _ => return Err(Errno::INVAL),
    }
    state.xattrs.insert(name.to_vec(), value.to_vec());
    drop(state);
    node.object.touch_attr();
    node.events().attributes(node);
    Ok(())
}

pub(super) fn removexattr(node: &Node, name: &[u8]) -> Result<()> {
    let removed = node.object.state().xattrs.remove(name);
    removed.ok_or(Errno::NODATA)?;
    node.object.touch_attr();
    node.events().attributes(node);
    Ok(())
}
