//! The middle column: an ordinary, competent mirror over `fuser`, so that the
//! figures describe nameifs and not FUSE.
//!
//! It keeps a path per inode, asks the source for every request, and believes
//! names and attributes for one second, as most mirrors do. It has no cache of
//! its own, answers OPENDIR with a snapshot of the directory, and caches no
//! absence. Read-only; runs as a child process of the bench.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
    SessionACL,
};
use parking_lot::{Mutex, RwLock};

/// How long the kernel may believe what it was told.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Nodeids at and above this are given to objects of other devices.
const FOREIGN: u64 = 1 << 48;

struct Node {
    path: Arc<Path>,
    nlookup: u64,
}

#[derive(Default)]
struct Nodes {
    by_id: HashMap<u64, Node>,
    foreign: HashMap<(u64, u64), u64>,
}

struct DirEntry {
    ino: u64,
    kind: FileType,
    name: OsString,
}

/// Open files or open directories, by handle.
struct Handles<T>(Mutex<slab::Slab<Arc<T>>>);

impl<T> Handles<T> {
    fn new() -> Self {
        Self(Mutex::new(slab::Slab::new()))
    }
    fn insert(&self, value: T) -> FileHandle {
        FileHandle(self.0.lock().insert(Arc::new(value)) as u64)
    }
    fn get(&self, fh: FileHandle) -> Result<Arc<T>, Errno> {
        self.0
            .lock()
            .get(fh.0 as usize)
            .cloned()
            .ok_or(Errno::EBADF)
    }
    fn remove(&self, fh: FileHandle) {
        let gone = self.0.lock().try_remove(fh.0 as usize);
        drop(gone);
    }
}

struct Passthrough {
    dev: u64,
    slow: Option<Duration>,
    nodes: RwLock<Nodes>,
    dirs: Handles<Vec<DirEntry>>,
    files: Handles<File>,
}

impl Passthrough {
    fn new(source: &Path, slow: Option<Duration>) -> io::Result<Self> {
        let dev = source.metadata()?.dev();
        let mut nodes = Nodes::default();
        nodes.by_id.insert(
            INodeNo::ROOT.0,
            Node {
                path: source.into(),
                nlookup: 1,
            },
        );
        Ok(Self {
            dev,
            slow,
            nodes: RwLock::new(nodes),
            dirs: Handles::new(),
            files: Handles::new(),
        })
    }

    /// What every call takes on a slow source.
    fn wait(&self) {
        if let Some(delay) = self.slow {
            std::thread::sleep(delay);
        }
    }

    /// How long the kernel may believe what it was told: from a slow source nothing.
    fn timeout(&self) -> Duration {
        self.slow.map_or(TIMEOUT, |_| Duration::ZERO)
    }

    fn path(&self, ino: INodeNo) -> Result<Arc<Path>, Errno> {
        self.nodes
            .read()
            .by_id
            .get(&ino.0)
            .map(|n| n.path.clone())
            .ok_or(Errno::ESTALE)
    }

    /// The nodeid of an object, counted once more for the reply that carries it.
    fn remember(&self, path: PathBuf, meta: &Metadata) -> u64 {
        let mut nodes = self.nodes.write();
        let id = if meta.dev() == self.dev && meta.ino() > INodeNo::ROOT.0 {
            meta.ino()
        } else {
            let next = FOREIGN + nodes.foreign.len() as u64;
            *nodes
                .foreign
                .entry((meta.dev(), meta.ino()))
                .or_insert(next)
        };
        let node = nodes.by_id.entry(id).or_insert_with(|| Node {
            path: path.into(),
            nlookup: 0,
        });
        node.nlookup += 1;
        id
    }

    fn lookup_path(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let path = self.path(parent)?.join(name);
        let meta = path.symlink_metadata()?;
        let id = self.remember(path, &meta);
        Ok(attr(id, &meta))
    }

    fn read_dir(&self, ino: INodeNo) -> Result<Vec<DirEntry>, Errno> {
        let dot = |name: &str| DirEntry {
            ino: ino.0,
            kind: FileType::Directory,
            name: OsString::from(name),
        };
        let mut entries = vec![dot("."), dot("..")];
        for entry in std::fs::read_dir(self.path(ino)?)? {
            let entry = entry?;
            entries.push(DirEntry {
                ino: entry.ino(),
                kind: FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile),
                name: entry.file_name(),
            });
        }
        Ok(entries)
    }
}

fn time(seconds: i64, nanos: i64) -> SystemTime {
    let nanos = Duration::from_nanos(nanos as u64);
    if seconds >= 0 {
        UNIX_EPOCH + Duration::from_secs(seconds as u64) + nanos
    } else {
        UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()) + nanos
    }
}

fn attr(id: u64, meta: &Metadata) -> FileAttr {
    FileAttr {
        ino: INodeNo(id),
        size: meta.size(),
        blocks: meta.blocks(),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(meta.file_type()).unwrap_or(FileType::RegularFile),
        perm: (meta.mode() & 0o7777) as u16,
        nlink: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: meta.rdev() as u32,
        blksize: meta.blksize() as u32,
        flags: 0,
    }
}

/// Answers a size question or gives the bytes, as getxattr and listxattr do.
fn reply_xattr(reply: ReplyXattr, size: u32, value: Result<Vec<u8>, rustix::io::Errno>) {
    match value {
        Err(e) => reply.error(Errno::from_i32(e.raw_os_error())),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
    }
}

fn xattr_bytes(
    size: u32,
    call: impl FnOnce(&mut Vec<u8>) -> Result<usize, rustix::io::Errno>,
) -> Result<Vec<u8>, rustix::io::Errno> {
    let mut value = vec![0; if size == 0 { 65_536 } else { size as usize }];
    let len = call(&mut value)?;
    value.truncate(len);
    Ok(value)
}

impl Filesystem for Passthrough {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_AUTO_INVAL_DATA,
        ] {
            // A kernel without the flag works without it.
            let _ = config.add_capabilities(flag);
        }
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.wait();
        match self.lookup_path(parent, name) {
            Ok(attr) => reply.entry(&self.timeout(), &attr, Generation(0)),
            Err(e) => reply.error(e),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let mut nodes = self.nodes.write();
        if let Some(node) = nodes.by_id.get_mut(&ino.0) {
            node.nlookup = node.nlookup.saturating_sub(nlookup);
            if node.nlookup == 0 && ino != INodeNo::ROOT {
                nodes.by_id.remove(&ino.0);
            }
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.wait();
        match self.path(ino).and_then(|p| Ok(p.symlink_metadata()?)) {
            Ok(meta) => reply.attr(&self.timeout(), &attr(ino.0, &meta)),
            Err(e) => reply.error(e),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.wait();
        match self.path(ino).and_then(|p| Ok(p.read_link()?)) {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(e) => reply.error(e),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.wait();
        match self.path(ino).and_then(|p| Ok(File::open(p)?)) {
            Ok(file) => reply.opened(self.files.insert(file), FopenFlags::empty()),
            Err(e) => reply.error(e),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.wait();
        let mut buffer = vec![0; size as usize];
        match self
            .files
            .get(fh)
            .and_then(|f| Ok(f.read_at(&mut buffer, offset)?))
        {
            Ok(len) => reply.data(&buffer[..len]),
            Err(e) => reply.error(e),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.files.remove(fh);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.wait();
        match self.read_dir(ino) {
            Ok(entries) => reply.opened(self.dirs.insert(entries), FopenFlags::empty()),
            Err(e) => reply.error(e),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.wait();
        let entries = match self.dirs.get(fh) {
            Ok(entries) => entries,
            Err(e) => return reply.error(e),
        };
        for (index, entry) in entries.iter().enumerate().skip(offset as usize) {
            if reply.add(
                INodeNo(entry.ino),
                index as u64 + 1,
                entry.kind,
                &entry.name,
            ) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.dirs.remove(fh);
        reply.ok();
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.wait();
        let stat = self
            .path(ino)
            .and_then(|p| Ok(rustix::fs::statvfs(&*p).map_err(io::Error::from)?));
        match stat {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                s.f_bsize as u32,
                s.f_namemax as u32,
                s.f_frsize as u32,
            ),
            Err(e) => reply.error(e),
        }
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.wait();
        match self.path(ino) {
            Ok(p) => {
                let value = xattr_bytes(size, |v| rustix::fs::lgetxattr(&*p, name, &mut v[..]));
                reply_xattr(reply, size, value);
            }
            Err(e) => reply.error(e),
        }
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.wait();
        match self.path(ino) {
            Ok(p) => {
                let names = xattr_bytes(size, |v| rustix::fs::llistxattr(&*p, &mut v[..]));
                reply_xattr(reply, size, names);
            }
            Err(e) => reply.error(e),
        }
    }
}

/// Mounts `source` read-only on `mountpoint` and serves it until it is unmounted; as a slow
/// source each call takes `slow`, and the kernel caches nothing.
pub fn serve(source: &Path, mountpoint: &Path, slow: Option<Duration>) -> io::Result<()> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(source.to_string_lossy().into_owned()),
        MountOption::Subtype("passthrough".into()),
        MountOption::DefaultPermissions,
        MountOption::RO,
    ];
    config.acl = SessionACL::Owner;
    // Calls wait side by side.
    config.n_threads = Some(slow.map_or(2, |_| 128));
    config.clone_fd = true;
    fuser::mount(Passthrough::new(source, slow)?, mountpoint, &config)
}
