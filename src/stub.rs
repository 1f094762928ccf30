//! Stands in for the floors below until they land; goes away with them.
#![allow(missing_docs, dead_code)]

pub mod fs {
    use std::time::Duration;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Coherence {
        Ttl,
        Frozen,
        Strict,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum SlabinfoMode {
        Hidden,
        Listed,
        Off,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Readdirplus {
        Auto,
        Always,
        Never,
    }

    #[derive(Clone, Debug)]
    pub struct Options {
        pub coherence: Coherence,
        pub ttl: Duration,
        pub negative_ttl: Duration,
        pub attr_ttl: Duration,
        pub cache_size: u64,
        pub slabinfo: SlabinfoMode,
        pub readdirplus: Readdirplus,
        pub passthrough: bool,
        pub read_only: bool,
        pub xattr: bool,
    }

    pub struct Fs<S>(std::marker::PhantomData<S>);

    impl<S> Fs<S> {
        pub fn new(_source: S, _options: &Options) -> Self {
            Self(std::marker::PhantomData)
        }
    }
}

pub mod fuse {
    use std::io;
    use std::path::Path;

    #[derive(Clone, Debug)]
    pub struct MountOptions {
        pub fsname: String,
        pub read_only: bool,
        pub nosuid: bool,
        pub nodev: bool,
        pub noexec: bool,
        pub noatime: bool,
        pub allow_other: bool,
        pub allow_root: bool,
        pub auto_unmount: bool,
        pub threads: usize,
        pub passthrough: bool,
    }

    pub struct Mounted;
    pub struct Unmounter;

    pub fn mount<S>(
        _fs: super::fs::Fs<S>,
        _mountpoint: &Path,
        _options: &MountOptions,
    ) -> io::Result<Mounted> {
        Err(io::Error::other("this build has no filesystem yet"))
    }

    impl Mounted {
        pub fn unmounter(&mut self) -> Unmounter {
            Unmounter
        }
        pub fn serve(self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Unmounter {
        pub fn unmount(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
