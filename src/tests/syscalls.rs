//! System calls that change something, as the kernel turns them into requests.
//!
//! Each says where the change was made on the source, which in `ttl` may be another
//! place than the path that was given, if that is believed to be what it was before.

use super::kernel::{Kernel, Known, Open};
use super::truth::{join, split};
use crate::error::{Errno, Result};
use crate::source::{Caller, Kind, SetAttr, WriteHow};

/// Who makes the changes. Root, so that everything is as if made from behind.
pub(super) const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
    umask: 0o022,
};

const RDWR: u32 = libc::O_RDWR as u32;

/// A name in a directory that the kernel has looked up.
struct Place {
    dir: Known,
    name: Vec<u8>,
}

impl Kernel {
    /// The directory of `path`, looked up.
    fn place(&mut self, path: &[u8]) -> Result<Place> {
        let (dir, name) = split(path);
        match self.walk_once(dir)? {
            Some(dir) if dir.kind == Kind::Directory => Ok(Place {
                dir,
                name: name.to_vec(),
            }),
            Some(_) => Err(Errno::NOTDIR),
            None => Err(Errno::NOENT),
        }
    }

    /// A place where something is.
    fn existing(&mut self, path: &[u8]) -> Result<(Place, Known)> {
        let place = self.place(path)?;
        let known = self.lookup(place.dir, &place.name)?.ok_or(Errno::NOENT)?;
        Ok((place, known))
    }

    /// A place where nothing is.
    fn vacant(&mut self, path: &[u8]) -> Result<Place> {
        let place = self.place(path)?;
        match self.lookup(place.dir, &place.name)? {
            Some(_) => Err(Errno::EXIST),
            None => Ok(place),
        }
    }

    /// Where a place is on the source; nowhere, if its directory has no name any more.
    fn path_of(&self, place: &Place) -> Vec<u8> {
        let dir = self.truth.now().find_dir(&place.dir.id);
        let path = dir.map(|dir| join(dir, &place.name));
        assert!(path.is_some() || self.disturbed(), "it was changed there");
        path.unwrap_or_default()
    }

    /// After a change at `place`: it is seen at once, unless what was cached before was
    /// out of date already.
    fn made(&mut self, place: &Place, was_current: bool) {
        self.let_go_of(place.dir.nodeid);
        self.note();
        self.look();
        if !was_current || !self.current() || self.disturbed() {
            return;
        }
        let name = &place.name;
        let found = self.lookup(place.dir, name).unwrap();
        let held = self.truth.now().child(&place.dir.id, name).copied();
        assert_eq!(
            found.map(|f| f.id),
            held.map(|h| h.id),
            "own change of a name"
        );
        self.is_current(place.dir);
        if let Some(found) = found {
            self.is_current(found);
        }
    }

    /// The attributes are those of this moment.
    fn is_current(&mut self, known: Known) {
        let attr = self.getattr(known, None).unwrap();
        let held = self.truth.now().find(&known.id);
        assert_eq!(Some(&attr), held, "attributes after a change of our own");
    }

    /// Whether nothing came from behind that the caches need not know yet.
    pub(super) fn current(&self) -> bool {
        self.edited_at < self.window() || self.edited_at == 0
    }

    /// mkdir(2), mknod(2), symlink(2), or open(2) with O_CREAT and O_EXCL.
    pub(super) fn make(&mut self, path: &[u8], kind: Kind, target: &[u8]) -> Result<Vec<u8>> {
        let current = self.current();
        self.retry(|kernel| {
            let place = kernel.vacant(path)?;
            let (dir, name) = (place.dir, place.name.clone());
            let fs = &kernel.fs;
            let entry = match kind {
                Kind::Directory => fs.mkdir(dir.nodeid, &name, 0o777, &CALLER)?,
                Kind::Symlink => fs.symlink(dir.nodeid, &name, target, &CALLER)?,
                Kind::Regular => {
                    let flags = RDWR | libc::O_EXCL as u32;
                    let (entry, opened) = fs.create(dir.nodeid, &name, flags, 0o666, &CALLER)?;
                    let node = fs.with_file(opened.id, |file| file.node().clone()).unwrap();
                    let known = Known {
                        nodeid: entry.nodeid,
                        id: entry.attr.id,
                        kind,
                    };
                    let (id, writable) = (opened.id, true);
                    kernel.files.push(Open {
                        id,
                        known,
                        node,
                        writable,
                    });
                    entry
                }
                _ => fs.mknod(dir.nodeid, &name, kind.mode_bits() | 0o666, 7, &CALLER)?,
            };
            kernel.look();
            kernel.took_made(dir, &name, &entry);
            kernel.made(&place, current);
            Ok(kernel.path_of(&place))
        })
    }

    /// link(2).
    pub(super) fn link(&mut self, old: &[u8], new: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
        let current = self.current();
        self.retry(|kernel| {
            let (from, known) = kernel.existing(old)?;
            let to = kernel.vacant(new)?;
            if known.kind == Kind::Directory {
                return Err(Errno::PERM);
            }
            let was = kernel.truth.now().paths_of(&known.id);
            let entry = kernel
                .fs
                .link(known.nodeid, to.dir.nodeid, &to.name, &CALLER)?;
            kernel.look();
            kernel.let_go_of(known.nodeid);
            kernel.took_made(to.dir, &to.name, &entry);
            kernel.made(&to, current);
            drop(from);
            let old = was
                .first()
                .expect("it was linked, so it had a name")
                .clone();
            Ok((old, kernel.path_of(&to)))
        })
    }

    /// unlink(2) and rmdir(2).
    pub(super) fn remove(&mut self, path: &[u8]) -> Result<Vec<u8>> {
        let current = self.current();
        self.retry(|kernel| {
            let (place, known) = kernel.existing(path)?;
            let (dir, name) = (place.dir.nodeid, &place.name);
            let done = match known.kind {
                Kind::Directory => kernel.fs.rmdir(dir, name, &CALLER),
                _ => kernel.fs.unlink(dir, name, &CALLER),
            };
            if matches!(done, Ok(()) | Err(Errno::NOENT | Errno::INTR)) {
                kernel.let_go(place.dir, &place.name);
                kernel.let_go_of(known.nodeid);
            }
            done?;
            let actual = kernel.path_of(&place);
            kernel.made(&place, current);
            Ok(actual)
        })
    }

    /// renameat2(2); where to, and where from.
    pub(super) fn rename(
        &mut self,
        old: &[u8],
        new: &[u8],
        flags: u32,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        let current = self.current();
        self.retry(|kernel| {
            let (from, known) = kernel.existing(old)?;
            let to = kernel.place(new)?;
            let there = kernel.lookup(to.dir, &to.name)?;
            if there.is_some() && flags & libc::RENAME_NOREPLACE != 0 {
                return Err(Errno::EXIST);
            }
            if there.is_some_and(|there| there.nodeid == known.nodeid) {
                // The kernel sees to that itself.
                return Ok((old.to_vec(), old.to_vec()));
            }
            let paths = (kernel.path_of_old(&from), kernel.path_of_old(&to));
            let done = kernel.fs.rename(
                (from.dir.nodeid, &from.name),
                (to.dir.nodeid, &to.name),
                flags,
                &CALLER,
            );
            done?;
            let exchange = flags & libc::RENAME_EXCHANGE != 0;
            let (old, new) = ((from.dir, &from.name[..]), (to.dir, &to.name[..]));
            kernel.hold_moved(old, new, exchange);
            kernel.look();
            kernel.made(&from, current);
            kernel.made(&to, current);
            if current && !kernel.disturbed() && kernel.truth.now().find(&known.id).is_some() {
                kernel.is_current(known);
            }
            Ok((paths.0, paths.1))
        })
    }

    /// Where a place is on the source before something is changed.
    fn path_of_old(&self, place: &Place) -> Vec<u8> {
        let dir = self.truth.now().find_dir(&place.dir.id);
        dir.map_or_else(Vec::new, |dir| join(dir, &place.name))
    }

    /// chmod(2), truncate(2) and the like; any name of the object.
    pub(super) fn setattr(&mut self, path: &[u8], change: &SetAttr) -> Result<Option<Vec<u8>>> {
        self.retry(|kernel| {
            let known = kernel.walk_once(path)?.ok_or(Errno::NOENT)?;
            let stat = kernel.fs.setattr(known.nodeid, None, change, &CALLER)?;
            kernel.hold_attr(known.nodeid, stat.attr, stat.ttl);
            kernel.look();
            assert_eq!(stat.attr.id, known.id, "setattr of another object");
            let held = kernel
                .truth
                .now()
                .has(&stat.attr, |held, seen| held == seen)
                || kernel.disturbed();
            assert!(held, "the reply to setattr: {:?}", stat.attr);
            kernel.is_current_if_named(known);
            Ok(kernel.truth.now().paths_of(&known.id).first().cloned())
        })
    }

    fn is_current_if_named(&mut self, known: Known) {
        if !self.disturbed() && self.truth.now().find(&known.id).is_some() {
            self.is_current(known);
        }
    }

    /// setxattr(2); any name of the object.
    pub(super) fn setxattr(&mut self, path: &[u8]) -> Result<Option<Vec<u8>>> {
        self.retry(|kernel| {
            let known = kernel.walk_once(path)?.ok_or(Errno::NOENT)?;
            let (name, value) = (b"security.x", b"value");
            kernel.fs.setxattr(known.nodeid, name, value, 0, &CALLER)?;
            kernel.let_go_of(known.nodeid);
            kernel.look();
            kernel.is_current_if_named(known);
            Ok(kernel.truth.now().paths_of(&known.id).first().cloned())
        })
    }

    /// write(2) to the open file number `n`; any name of the object.
    pub(super) fn write(&mut self, n: usize, offset: u64, data: &[u8]) -> Result<Option<Vec<u8>>> {
        let (id, known) = (self.files[n].id, self.files[n].known);
        let how = WriteHow::default();
        let written = self.fs.write(known.nodeid, id, offset, data, how)?;
        self.let_go_of(known.nodeid);
        assert_eq!(written, data.len());
        self.note();
        self.look();
        self.check_open(n)?;
        Ok(self.truth.now().paths_of(&known.id).first().cloned())
    }
}
