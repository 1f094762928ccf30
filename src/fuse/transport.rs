//! Requests (floor F6): decode, one call of [`Fs`], encode.

use std::os::fd::AsFd;

use parking_lot::Mutex;
use rustix::process::Uid;
use tracing::{trace, trace_span};

use super::abi::{self, InHeader, Opcode};
use super::backing::{Backing, BackingFile};
use super::device::{Args, Device, Next, Reply, answer};
use super::encode;
use crate::dcache::ROOT;
use crate::error::{Errno, Result};
use crate::fs::{self, Coherence, FileId, Fs, Lookup, Op, Opened};
use crate::ioctl::Fsxattr;
use crate::source::creds::Creds;
use crate::source::{Source, WriteHow};
use crate::sync::Arc;

/// Translates between the device and [`Fs`].
pub(super) struct Transport<S: Source> {
    fs: Arc<Fs<S>>,
    backing: Mutex<Backing>,
    /// Who may ask beside root; nobody else is turned away where that is left to the
    /// kernel.
    only: Option<Uid>,
}

/// FS_IOC_GETFLAGS and FS_IOC_SETFLAGS (linux/fs.h), which chattr(1) uses, and the
/// requests for [`Fsxattr`], which the kernel makes of them too.
const GETFLAGS: u32 = 0x8008_6601;
const SETFLAGS: u32 = 0x4008_6602;
const FSGETXATTR: u32 = 0x801c_581f;
const FSSETXATTR: u32 = 0x401c_5820;

/// A request's end of the device, header, and reply.
struct Asked<'a> {
    device: &'a Device,
    header: &'a InHeader,
    reply: &'a mut Reply,
}

impl<S> Transport<S>
where
    S: Source,
    S::File: AsFd,
{
    /// For `fs`; `passthrough` if the kernel passes data through. `only` one user may ask
    /// beside root.
    pub(super) fn new(fs: Arc<Fs<S>>, passthrough: bool, only: Option<Uid>) -> Self {
        Self {
            fs,
            backing: Mutex::new(Backing::new(passthrough)),
            only,
        }
    }

    /// Serves one request.
    ///
    /// # Errors
    /// What the request is refused with; ENOSYS for kinds that are not known.
    pub(super) fn handle(
        &self,
        device: &Device,
        header: &InHeader,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<Next> {
        let Some(opcode) = Opcode::of(header.opcode) else {
            trace!(opcode = header.opcode, "not known");
            return Err(Errno::NOSYS);
        };
        let (unique, nodeid) = (header.unique, header.nodeid);
        let _span = trace_span!("request", ?opcode, unique, nodeid, pid = header.pid).entered();
        self.admit(opcode, header)?;
        let asked = Asked {
            device,
            header,
            reply,
        };
        match opcode {
            Opcode::Lookup
            | Opcode::Forget
            | Opcode::BatchForget
            | Opcode::Getattr
            | Opcode::Statx
            | Opcode::Readlink
            | Opcode::Statfs
            | Opcode::Access
            | Opcode::Opendir
            | Opcode::Releasedir
            | Opcode::Readdir
            | Opcode::Readdirplus
            | Opcode::Getxattr
            | Opcode::Listxattr => self.names(opcode, asked, &mut args),
            Opcode::Mknod
            | Opcode::Mkdir
            | Opcode::Symlink
            | Opcode::Link
            | Opcode::Create
            | Opcode::Tmpfile
            | Opcode::Unlink
            | Opcode::Rmdir
            | Opcode::Rename
            | Opcode::Rename2
            | Opcode::Setattr
            | Opcode::Setxattr
            | Opcode::Removexattr => self.changes(opcode, asked, &mut args),
            Opcode::Open
            | Opcode::Read
            | Opcode::Write
            | Opcode::Lseek
            | Opcode::Fallocate
            | Opcode::CopyFileRange
            | Opcode::Ioctl
            | Opcode::Flush
            | Opcode::Fsync
            | Opcode::Fsyncdir
            | Opcode::Release => self.data(opcode, asked, &mut args),
            Opcode::Getlk | Opcode::Setlk | Opcode::Setlkw | Opcode::Interrupt => {
                self.locks(opcode, asked, &mut args)
            }
            Opcode::Destroy => Ok(Next::Send),
        }
    }

    /// With `allow_root` the kernel lets everybody in, and others than root and the owner
    /// are turned away here: but for what it asks on its own, as nobody.
    fn admit(&self, opcode: Opcode, header: &InHeader) -> Result<()> {
        let own = matches!(
            opcode,
            Opcode::Read
                | Opcode::Write
                | Opcode::Readdir
                | Opcode::Readdirplus
                | Opcode::Forget
                | Opcode::BatchForget
                | Opcode::Interrupt
                | Opcode::Fsync
                | Opcode::Fsyncdir
                | Opcode::Release
                | Opcode::Releasedir
                | Opcode::Destroy
        );
        match self.only {
            Some(owner) if !own && header.uid != 0 && header.uid != owner.as_raw() => {
                Err(Errno::ACCESS)
            }
            _ => Ok(()),
        }
    }

    /// Names, attributes and listings.
    fn names(&self, opcode: Opcode, asked: Asked<'_>, args: &mut Args<'_>) -> Result<Next> {
        let Asked { header, reply, .. } = asked;
        let (fs, nodeid) = (&*self.fs, header.nodeid);
        match opcode {
            Opcode::Lookup => {
                fs.requests.count(Op::Lookup);
                let name = args.name()?;
                trace!(name = ?String::from_utf8_lossy(name), "lookup");
                match fs.lookup(nodeid, name)? {
                    Lookup::Entry(e) => reply.put(&encode::entry(&e)),
                    Lookup::Negative(ttl) if ttl.is_zero() => return Err(Errno::NOENT),
                    Lookup::Negative(ttl) => reply.put(&encode::negative(ttl)),
                }
            }
            Opcode::Forget => {
                fs.requests.count(Op::Forget);
                fs.forget(nodeid, args.take()?);
                return Ok(Next::Nothing);
            }
            Opcode::BatchForget => {
                fs.requests.count(Op::BatchForget);
                let batch: abi::BatchForgetIn = args.take()?;
                for _ in 0..batch.count {
                    let one: abi::ForgetOne = args.take()?;
                    fs.forget(one.nodeid, one.nlookup);
                }
                return Ok(Next::Nothing);
            }
            Opcode::Getattr => {
                fs.requests.count(Op::Getattr);
                let get: abi::GetattrIn = args.take()?;
                let file = file_if(get.getattr_flags, abi::FUSE_GETATTR_FH, get.fh);
                reply.put(&encode::stat(&fs.getattr(nodeid, file)?));
            }
            Opcode::Statx => {
                fs.requests.count(Op::Statx);
                let get: abi::StatxIn = args.take()?;
                let file = file_if(get.getattr_flags, abi::FUSE_GETATTR_FH, get.fh);
                reply.put(&encode::statx(&fs.statx(nodeid, file)?));
            }
            Opcode::Readlink => {
                fs.requests.count(Op::Readlink);
                reply.put_bytes(&fs.readlink(nodeid)?);
            }
            Opcode::Statfs => {
                fs.requests.count(Op::Statfs);
                // The root's is asked for with nodeid 0 on old kernels.
                let nodeid = if nodeid == 0 { ROOT } else { nodeid };
                reply.put(&encode::statfs(&fs.statfs(nodeid)?));
            }
            Opcode::Access => {
                fs.requests.count(Op::Access);
                // The kernel checks by itself (default_permissions) and never asks.
                return Err(Errno::NOSYS);
            }
            Opcode::Opendir => {
                fs.requests.count(Op::Opendir);
                // After ENOSYS the kernel neither opens nor releases directories any
                // more, and caches their listings until they are invalidated.
                if fs.coherence() != Coherence::Strict {
                    return Err(Errno::NOSYS);
                }
                // Handles with no cache flag: each listing is the source's own.
                reply.put(&abi::OpenOut::default());
            }
            Opcode::Releasedir => fs.requests.count(Op::Releasedir),
            Opcode::Readdir | Opcode::Readdirplus => {
                let plus = opcode == Opcode::Readdirplus;
                fs.requests
                    .count(if plus { Op::Readdirplus } else { Op::Readdir });
                let read: abi::ReadIn = args.take()?;
                let size = read.size as usize;
                let listed = fs.readdir(nodeid, read.offset, plus, &mut |e| {
                    encode::dirent(reply, size, plus, &e)
                });
                // What was listed before an error is good; the next request meets it again.
                if reply.len() == 0 {
                    listed?;
                }
            }
            Opcode::Getxattr | Opcode::Listxattr => {
                let list = opcode == Opcode::Listxattr;
                fs.requests
                    .count(if list { Op::Listxattr } else { Op::Getxattr });
                let get: abi::Getxattr = args.take()?;
                self.xattrs_served()?;
                let read = |buf: &mut [u8]| match list {
                    true => fs.listxattr(nodeid, header.uid, buf),
                    false => fs.getxattr(nodeid, args.name()?, buf),
                };
                if get.size == 0 {
                    let mut read = read;
                    let size = read(&mut [])? as u32;
                    reply.put(&abi::Getxattr { size, padding: 0 });
                } else {
                    reply.fill(get.size as usize, read)?;
                }
            }
            _ => return Err(Errno::NOSYS),
        }
        Ok(Next::Send)
    }

    /// What changes names and attributes.
    fn changes(&self, opcode: Opcode, asked: Asked<'_>, args: &mut Args<'_>) -> Result<Next> {
        let (header, nodeid) = (asked.header, asked.header.nodeid);
        let fs = &*self.fs;
        let plain = encode::caller(header, 0);
        let entry = match opcode {
            Opcode::Mknod => {
                fs.requests.count(Op::Mknod);
                let made: abi::MknodIn = args.take()?;
                let caller = encode::caller(header, made.umask);
                fs.mknod(nodeid, args.name()?, made.mode, made.rdev, &caller)?
            }
            Opcode::Mkdir => {
                fs.requests.count(Op::Mkdir);
                let made: abi::MkdirIn = args.take()?;
                let caller = encode::caller(header, made.umask);
                fs.mkdir(nodeid, args.name()?, made.mode, &caller)?
            }
            Opcode::Symlink => {
                fs.requests.count(Op::Symlink);
                let name = args.name()?;
                fs.symlink(nodeid, name, args.name()?, &plain)?
            }
            Opcode::Link => {
                fs.requests.count(Op::Link);
                let old = args.take()?;
                fs.link(old, nodeid, args.name()?, &plain)?
            }
            Opcode::Create | Opcode::Tmpfile => {
                let tmpfile = opcode == Opcode::Tmpfile;
                fs.requests
                    .count(if tmpfile { Op::Tmpfile } else { Op::Create });
                let made: abi::CreateIn = args.take()?;
                let caller = encode::caller(header, made.umask);
                let (entry, opened) = match tmpfile {
                    true => fs.tmpfile(nodeid, made.flags, made.mode, &caller)?,
                    false => fs.create(nodeid, args.name()?, made.flags, made.mode, &caller)?,
                };
                asked.reply.put(&encode::entry(&entry));
                let out = self.behind(asked.device, entry.nodeid, &opened);
                asked.reply.put(&out);
                return Ok(Next::Send);
            }
            _ => return self.removals(opcode, asked, args),
        };
        asked.reply.put(&encode::entry(&entry));
        Ok(Next::Send)
    }

    /// Changes that are not answered with an object.
    fn removals(&self, opcode: Opcode, asked: Asked<'_>, args: &mut Args<'_>) -> Result<Next> {
        let (header, nodeid) = (asked.header, asked.header.nodeid);
        let fs = &*self.fs;
        let caller = encode::caller(header, 0);
        match opcode {
            Opcode::Unlink => {
                fs.requests.count(Op::Unlink);
                fs.unlink(nodeid, args.name()?, &caller)?;
            }
            Opcode::Rmdir => {
                fs.requests.count(Op::Rmdir);
                fs.rmdir(nodeid, args.name()?, &caller)?;
            }
            Opcode::Rename | Opcode::Rename2 => {
                let (newdir, flags) = if opcode == Opcode::Rename {
                    fs.requests.count(Op::Rename);
                    (args.take()?, 0)
                } else {
                    fs.requests.count(Op::Rename2);
                    let how: abi::Rename2In = args.take()?;
                    (how.newdir, how.flags)
                };
                let old = (nodeid, args.name()?);
                fs.rename(old, (newdir, args.name()?), flags, &caller)?;
            }
            Opcode::Setattr => {
                fs.requests.count(Op::Setattr);
                let set: abi::SetattrIn = args.take()?;
                let file = file_if(set.valid, abi::FATTR_FH, set.fh);
                let stat = fs.setattr(nodeid, file, &encode::change(&set), &caller)?;
                asked.reply.put(&encode::stat(&stat));
            }
            Opcode::Setxattr => {
                fs.requests.count(Op::Setxattr);
                let set: abi::SetxattrIn = args.take()?;
                self.xattrs_served()?;
                let name = args.name()?;
                let value = args.bytes(set.size as usize)?;
                fs.setxattr(nodeid, name, value, set.flags, &caller)?;
            }
            Opcode::Removexattr => {
                fs.requests.count(Op::Removexattr);
                self.xattrs_served()?;
                fs.removexattr(nodeid, args.name()?, &caller)?;
            }
            _ => return Err(Errno::NOSYS),
        }
        Ok(Next::Send)
    }

    fn xattrs_served(&self) -> Result<()> {
        match self.fs.options().xattr {
            true => Ok(()),
            // After which the kernel asks no more.
            false => Err(Errno::NOSYS),
        }
    }

    /// Open files.
    fn data(&self, opcode: Opcode, asked: Asked<'_>, args: &mut Args<'_>) -> Result<Next> {
        let Asked {
            header,
            reply,
            device,
        } = asked;
        let (fs, nodeid) = (&*self.fs, header.nodeid);
        let caller = encode::caller(header, 0);
        match opcode {
            Opcode::Open => {
                fs.requests.count(Op::Open);
                let open: abi::OpenIn = args.take()?;
                let opened = fs.open(nodeid, open.flags)?;
                reply.put(&self.behind(device, nodeid, &opened));
            }
            Opcode::Read => {
                fs.requests.count(Op::Read);
                let read: abi::ReadIn = args.take()?;
                reply.fill(read.size as usize, |buf| {
                    fs.read(FileId(read.fh), read.offset, buf)
                })?;
            }
            Opcode::Write => {
                fs.requests.count(Op::Write);
                let write: abi::WriteIn = args.take()?;
                let data = args.bytes(write.size as usize)?;
                let flags = write.flags as i32;
                // What comes from a mapping has its place, whichever descriptor it comes by.
                let mapped = write.write_flags & abi::FUSE_WRITE_CACHE != 0;
                let kill = write.write_flags & abi::FUSE_WRITE_KILL_SUIDGID != 0;
                let how = WriteHow {
                    append: flags & libc::O_APPEND != 0 && !mapped,
                    direct: flags & libc::O_DIRECT != 0 && !mapped,
                    sync: (flags & libc::O_SYNC) as u32,
                    kill_suid: kill.then_some(caller),
                };
                let n = fs.write(nodeid, FileId(write.fh), write.offset, data, how)?;
                reply.put(&written(n as u64));
            }
            Opcode::Lseek => {
                fs.requests.count(Op::Lseek);
                let seek: abi::LseekIn = args.take()?;
                if i64::try_from(seek.offset).is_err() {
                    return Err(Errno::NXIO);
                }
                reply.put(&fs.lseek(FileId(seek.fh), seek.offset, seek.whence)?);
            }
            Opcode::Fallocate => {
                fs.requests.count(Op::Fallocate);
                let a: abi::FallocateIn = args.take()?;
                fs.fallocate(nodeid, FileId(a.fh), a.mode, a.offset, a.length, &caller)?;
            }
            Opcode::CopyFileRange => {
                fs.requests.count(Op::CopyFileRange);
                let copy: abi::CopyFileRangeIn = args.take()?;
                // The reply counts in 32 bits.
                let len = copy.len.min(1 << 30);
                let from = (FileId(copy.fh_in), copy.off_in);
                let to = (copy.nodeid_out, FileId(copy.fh_out), copy.off_out);
                reply.put(&written(fs.copy_range(from, to, len, &caller)?));
            }
            Opcode::Ioctl => {
                fs.requests.count(Op::Ioctl);
                self.ioctl(header, args, reply)?;
            }
            Opcode::Flush => {
                fs.requests.count(Op::Flush);
                let flush: abi::FlushIn = args.take()?;
                fs.flush(nodeid, FileId(flush.fh), flush.lock_owner)?;
            }
            Opcode::Fsync => {
                fs.requests.count(Op::Fsync);
                let sync: abi::FsyncIn = args.take()?;
                let data_only = sync.fsync_flags & abi::FUSE_FSYNC_FDATASYNC != 0;
                fs.fsync(FileId(sync.fh), data_only)?;
            }
            Opcode::Fsyncdir => {
                fs.requests.count(Op::Fsyncdir);
                fs.fsync_dir(nodeid)?;
            }
            Opcode::Release => {
                fs.requests.count(Op::Release);
                let release: abi::ReleaseIn = args.take()?;
                let id = FileId(release.fh);
                self.backing.lock().release(id);
                fs.release(id);
            }
            _ => return Err(Errno::NOSYS),
        }
        Ok(Next::Send)
    }

    /// What is behind an open file: the flags of the reply and, if data goes past us,
    /// the backing file.
    fn behind(&self, device: &Device, nodeid: u64, opened: &Opened) -> abi::OpenOut {
        if opened.doubt_attr {
            self.fs.notices().doubt(nodeid);
        }
        let backing = opened.inode.and_then(|key| {
            self.backing.lock().open(opened, key, || {
                // The kernel writes to it with the rights that it is registered with:
                // set-user-id and set-group-id are not to survive that.
                let made = Creds::of_process().without_fsetid(|| {
                    let open = |file: &S::File| BackingFile::open(device, file);
                    Ok(self.fs.with_file(opened.id, open))
                });
                made.and_then(|made| made).unwrap_or_else(|e| Err(e.into()))
            })
        });
        let mut how = 0;
        if opened.direct_io {
            how |= abi::FOPEN_DIRECT_IO;
        }
        if opened.keep_cache && backing.is_none() {
            how |= abi::FOPEN_KEEP_CACHE;
        }
        if backing.is_some() {
            how |= abi::FOPEN_PASSTHROUGH;
        }
        abi::OpenOut {
            fh: opened.id.0,
            open_flags: how,
            backing_id: backing.map_or(0, |file| file.id() as i32),
        }
    }

    fn ioctl(&self, header: &InHeader, args: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let fs = &*self.fs;
        let call: abi::IoctlIn = args.take()?;
        let (nodeid, id) = (header.nodeid, FileId(call.fh));
        let caller = encode::caller(header, 0);
        let done = abi::IoctlOut::default();
        match call.cmd {
            GETFLAGS => {
                let flags = fs.flags(nodeid, id)?;
                reply.put(&done);
                reply.put(&flags);
            }
            SETFLAGS => {
                fs.set_flags(nodeid, id, args.take()?, &caller)?;
                reply.put(&done);
            }
            FSGETXATTR => {
                let found = fs.fsxattr(nodeid, id)?;
                reply.put(&done);
                reply.put(&found);
            }
            FSSETXATTR => {
                fs.set_fsxattr(nodeid, id, args.take::<Fsxattr>()?, &caller)?;
                reply.put(&done);
            }
            _ => return Err(Errno::NOTTY),
        }
        Ok(())
    }

    /// Locks of fcntl(2) and flock(2).
    fn locks(&self, opcode: Opcode, asked: Asked<'_>, args: &mut Args<'_>) -> Result<Next> {
        let (fs, unique) = (&self.fs, asked.header.unique);
        if opcode == Opcode::Interrupt {
            fs.requests.count(Op::Interrupt);
            fs.interrupt(args.take()?);
            return Ok(Next::Nothing);
        }
        let lk: abi::LkIn = args.take()?;
        let (nodeid, id) = (asked.header.nodeid, FileId(lk.fh));
        let range = encode::lock(&lk.lk).ok_or(Errno::INVAL)?;
        let owner = fs::LockOwner {
            id: lk.owner,
            pid: lk.lk.pid,
        };
        if opcode == Opcode::Getlk {
            fs.requests.count(Op::Getlk);
            let found = fs.getlk(nodeid, id, owner, range)?;
            let unlocked = abi::FileLock {
                kind: libc::F_UNLCK as u32,
                ..abi::FileLock::default()
            };
            asked.reply.put(&found.map_or(unlocked, |c| abi::FileLock {
                start: c.range.start,
                end: c.range.end,
                kind: encode::lock_kind(c.range.kind),
                pid: c.pid,
            }));
            return Ok(Next::Send);
        }
        let wait = opcode == Opcode::Setlkw;
        fs.requests.count(if wait { Op::Setlkw } else { Op::Setlk });
        let device = asked.device.clone();
        let answer = Box::new(move |done| answer(&device, unique, done));
        let wait = wait.then_some(unique);
        match lk.lk_flags & abi::FUSE_LK_FLOCK {
            0 => fs.setlk(nodeid, id, owner, range, wait, answer),
            _ => fs.flock(nodeid, id, range.kind, wait, answer),
        }
        Ok(Next::Nothing)
    }
}

fn written(n: u64) -> abi::WriteOut {
    abi::WriteOut {
        size: n as u32,
        padding: 0,
    }
}

fn file_if(flags: u32, flag: u32, fh: u64) -> Option<FileId> {
    (flags & flag != 0).then_some(FileId(fh))
}
