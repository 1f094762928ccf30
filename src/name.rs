//! Names and the buffers they travel in (floor F2).
//!
//! Purpose: `getname` borrows a PATH_MAX buffer from `getname_cache`; dropping
//! the [`Filename`] is `putname` (fs/namei.c; the cache is the one that the 1999
//! mail introduced). A [`QStr`] is one component with its hash, its rules checked
//! once, here. Names are bytes; nothing here knows of UTF-8.
//!
//! Contract: no locks beyond the cache's own; a buffer belongs to one owner.
//!
//! It does not look anything up.

use std::ffi::CStr;
use std::hash::BuildHasher;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

use crate::error::{Errno, Result};
use crate::slab::{KmemCache, Obj, Registry, SlabFlags};

/// Bytes of a name buffer, terminator included (limits.h).
pub const PATH_MAX: usize = 4096;

/// Bytes of the longest component (limits.h).
pub const NAME_MAX: usize = 255;

/// One object of `getname_cache`.
#[repr(C, align(64))]
pub struct NameBuf([u8; PATH_MAX]);

/// Where name buffers come from: the arms of the experiment of 1999.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Supply {
    /// A page mapped for each name and unmapped after it, as the kernel took one from
    /// `__get_free_page` before 2.2.0-pre5.
    Page,
    /// The C library; zeroed, which it does itself.
    Malloc,
    /// The slab cache, under its lock each time.
    Slab,
    /// The slab cache with a magazine for each thread in front.
    #[default]
    Magazine,
}

/// The supply of name buffers.
pub struct Names {
    supply: Supply,
    cache: KmemCache<NameBuf>,
}

impl Names {
    /// Creates `getname_cache` in `registry`; it stays empty where buffers come from
    /// elsewhere.
    pub fn new(registry: &Registry, supply: Supply) -> Self {
        let flags = match supply {
            Supply::Magazine => SlabFlags::HWCACHE_ALIGN | SlabFlags::MAGAZINES,
            Supply::Page | Supply::Malloc | Supply::Slab => SlabFlags::HWCACHE_ALIGN,
        };
        let ctor = || NameBuf([0; PATH_MAX]);
        Self {
            supply,
            cache: KmemCache::create(registry, "getname_cache", flags, ctor),
        }
    }

    /// Borrows a buffer; it holds the empty path.
    ///
    /// # Errors
    /// ENOMEM.
    #[track_caller]
    pub fn getname(&self) -> Result<Filename> {
        let mut buf = match self.supply {
            Supply::Magazine | Supply::Slab => {
                Buf::Slab(self.cache.alloc().map_err(|_| Errno::NOMEM)?)
            }
            Supply::Page => Buf::Page(MmapMut::map_anon(PATH_MAX).map_err(|_| Errno::NOMEM)?),
            Supply::Malloc => Buf::Malloc(vec![0; PATH_MAX].into_boxed_slice()),
        };
        buf[PATH_MAX - 1] = 0;
        Ok(Filename {
            buf,
            start: PATH_MAX - 1,
            end: PATH_MAX - 1,
        })
    }

    /// Borrows a buffer that holds `name`.
    ///
    /// # Errors
    /// ENAMETOOLONG, ENOMEM.
    #[track_caller]
    pub fn getname_from(&self, name: &[u8]) -> Result<Filename> {
        let mut filename = self.getname()?;
        filename.set(name)?;
        Ok(filename)
    }

    /// Gives empty slabs back to the system.
    pub fn shrink(&self) {
        self.cache.shrink();
    }
}

/// A buffer of PATH_MAX bytes, from wherever it came.
enum Buf {
    Slab(Obj<NameBuf>),
    Page(MmapMut),
    Malloc(Box<[u8]>),
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Slab(buf) => &buf.0,
            Self::Page(page) => page,
            Self::Malloc(bytes) => bytes,
        }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Slab(buf) => &mut buf.0,
            Self::Page(page) => page,
            Self::Malloc(bytes) => bytes,
        }
    }
}

/// A borrowed name buffer holding one relative path; dropping it is putname.
pub struct Filename {
    buf: Buf,
    /// Where the path starts in the buffer.
    start: usize,
    /// Where its terminating NUL is.
    end: usize,
}

impl Filename {
    /// Replaces the path by `name`.
    ///
    /// # Errors
    /// ENAMETOOLONG if it does not fit, EINVAL if it holds a NUL.
    pub fn set(&mut self, name: &[u8]) -> Result<()> {
        if name.len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if name.contains(&0) {
            return Err(Errno::INVAL);
        }
        self.buf[..name.len()].copy_from_slice(name);
        self.buf[name.len()] = 0;
        (self.start, self.end) = (0, name.len());
        Ok(())
    }

    /// Empties the path, ready for [`Filename::append`].
    pub fn clear(&mut self) {
        self.buf[0] = 0;
        (self.start, self.end) = (0, 0);
    }

    /// Empties the path, ready for [`Filename::prepend`].
    pub fn reset(&mut self) {
        self.buf[PATH_MAX - 1] = 0;
        (self.start, self.end) = (PATH_MAX - 1, PATH_MAX - 1);
    }

    /// Adds a component at the end; `false` if it does not fit (the path is unchanged).
    pub fn append(&mut self, component: &[u8]) -> bool {
        let slash = usize::from(self.end > self.start);
        let end = self.end + slash + component.len();
        if end >= PATH_MAX {
            return false;
        }
        if slash == 1 {
            self.buf[self.end] = b'/';
        }
        self.buf[self.end + slash..end].copy_from_slice(component);
        self.buf[end] = 0;
        self.end = end;
        true
    }

    /// Adds a component in front; `false` if it does not fit (the path is unchanged).
    /// Paths are found from the leaf up, so `d_path` writes them right to left.
    pub fn prepend(&mut self, component: &[u8]) -> bool {
        let slash = usize::from(self.end > self.start);
        let Some(start) = self.start.checked_sub(component.len() + slash) else {
            return false;
        };
        self.buf[start..start + component.len()].copy_from_slice(component);
        if slash == 1 {
            self.buf[start + component.len()] = b'/';
        }
        self.start = start;
        true
    }

    /// The path without its terminator.
    pub fn as_bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    /// The path as system calls take it.
    pub fn as_cstr(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.buf[self.start..=self.end])
            .expect("the one NUL is the terminator: set and the component rules see to it")
    }

    /// The buffer but for its last byte, as scratch space; the path is empty afterwards.
    pub fn scratch(&mut self) -> &mut [u8] {
        self.reset();
        &mut self.buf[..PATH_MAX - 1]
    }
}

/// Hashes the names of one mount; seeded, so that nobody can prepare collisions.
#[derive(Clone, Debug, Default)]
pub struct NameHash(foldhash::quality::RandomState);

impl NameHash {
    /// The hash of `name` below the directory numbered `parent`.
    pub fn below(&self, parent: u32, name: &[u8]) -> u64 {
        self.0.hash_one((parent, name))
    }
}

/// One component of a path that obeys the rules of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QStr<'a>(&'a [u8]);

impl<'a> QStr<'a> {
    /// Checks a component: not empty, no `/`, no NUL, at most 255 bytes.
    ///
    /// # Errors
    /// ENOENT when empty, ENAMETOOLONG, EINVAL for a forbidden byte.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Err(Errno::NOENT);
        }
        if bytes.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if bytes.iter().any(|&b| b == b'/' || b == 0) {
            return Err(Errno::INVAL);
        }
        Ok(Self(bytes))
    }

    /// The bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

/// What a component is (LAST_NORM, LAST_DOT, LAST_DOTDOT of fs/namei.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastType<'a> {
    /// An ordinary name.
    Norm(QStr<'a>),
    /// `.`
    Dot,
    /// `..`
    DotDot,
}

/// Splits off the first component of `path`; `None` when only slashes are left.
/// The rest keeps its leading slashes, so a trailing slash is seen by the caller.
///
/// # Errors
/// As [`QStr::new`].
pub fn next_component(path: &[u8]) -> Result<Option<(LastType<'_>, &[u8])>> {
    let path = skip_slashes(path);
    if path.is_empty() {
        return Ok(None);
    }
    let len = path.iter().position(|&b| b == b'/').unwrap_or(path.len());
    let (component, rest) = path.split_at(len);
    let last = match component {
        b"." => LastType::Dot,
        b".." => LastType::DotDot,
        _ => LastType::Norm(QStr::new(component)?),
    };
    Ok(Some((last, rest)))
}

/// `path` without its leading slashes.
pub fn skip_slashes(path: &[u8]) -> &[u8] {
    let n = path.iter().take_while(|&&b| b == b'/').count();
    &path[n..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::new(&Registry::new(), Supply::default())
    }

    #[test]
    fn component_rules_are_the_kernels() {
        assert_eq!(QStr::new(b""), Err(Errno::NOENT));
        assert_eq!(QStr::new(b"a/b"), Err(Errno::INVAL));
        assert_eq!(QStr::new(b"a\0b"), Err(Errno::INVAL));
        assert_eq!(QStr::new(&[b'x'; 256]), Err(Errno::NAMETOOLONG));
        assert!(QStr::new(&[b'x'; 255]).is_ok());
        assert!(QStr::new(b"\xff\xfe\n -").is_ok());
    }

    #[test]
    fn components_split_as_link_path_walk_does() {
        let mut seen = Vec::new();
        let mut rest: &[u8] = b"//a/./../b\xff//";
        while let Some((last, r)) = next_component(rest).expect("valid") {
            seen.push(last);
            rest = r;
        }
        let norm = |b| LastType::Norm(QStr::new(b).expect("valid"));
        assert_eq!(
            seen,
            [norm(b"a"), LastType::Dot, LastType::DotDot, norm(b"b\xff")]
        );
        assert_eq!(rest, b"//");
    }

    #[test]
    fn a_filename_grows_at_both_ends_and_refuses_what_does_not_fit() {
        let names = names();
        let mut f = names.getname().expect("memory");
        assert_eq!(f.as_bytes(), b"");
        assert!(f.prepend(b"c") && f.prepend(b"bb") && f.prepend(b"a"));
        assert_eq!(f.as_cstr().to_bytes(), b"a/bb/c");
        f.clear();
        assert!(f.append(b"a") && f.append(b"bb"));
        assert_eq!(f.as_bytes(), b"a/bb");
        assert!(f.append(&[b'x'; PATH_MAX - 1 - 5]));
        assert_eq!(f.as_bytes().len(), PATH_MAX - 1);
        assert!(!f.append(b"y"));
        assert_eq!(f.set(&[b'x'; PATH_MAX]), Err(Errno::NAMETOOLONG));
        assert_eq!(f.set(b"a\0"), Err(Errno::INVAL));
        let mut g = names.getname().expect("memory");
        assert!(!g.prepend(&[b'x'; PATH_MAX]));
        assert!(g.prepend(&[b'x'; PATH_MAX - 1]));
        assert!(!g.prepend(b"y"));
    }

    #[test]
    fn buffers_start_on_a_cache_line() {
        let f = names().getname().expect("memory");
        assert_eq!(f.buf.as_ptr().addr() % 64, 0);
    }

    #[test]
    fn buffers_are_the_same_wherever_they_come_from() {
        for supply in [Supply::Page, Supply::Malloc, Supply::Slab, Supply::Magazine] {
            let registry = Registry::new();
            let names = Names::new(&registry, supply);
            let mut f = names.getname_from(b"usr").expect("memory");
            assert!(f.append(b"share"));
            assert_eq!(f.as_bytes(), b"usr/share");
            assert_eq!(f.scratch().len(), PATH_MAX - 1);
            let from_cache = matches!(supply, Supply::Slab | Supply::Magazine);
            assert_eq!(registry.infos()[0].active_objs, u64::from(from_cache));
        }
    }
}
