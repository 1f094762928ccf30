//! The steps of the reference test: what one is, and how they are made up.

use proptest::prelude::*;

/// A name in the tree that a sequence works on; it may be there or not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Spot(pub usize);

/// Where everything happens: directories, and names in them of which some are there
/// from the start.
const SPOTS: [&str; 22] = [
    "f",
    "g",
    "new",
    "a",
    "l",
    "c",
    "a/f",
    "a/g",
    "a/new",
    "a/b",
    "a/b/f",
    "a/l",
    "c/f",
    "c/new",
    "a/b/new",
    "l/f",
    "f/under",
    "nowhere/f",
    "d",
    "d/f",
    "a/fifo",
    ".",
];

impl Spot {
    /// The path below the root of the tree.
    pub fn path(self) -> &'static str {
        SPOTS[self.0 % SPOTS.len()]
    }
}

impl std::fmt::Debug for Spot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path())
    }
}

/// The open files of a sequence: what several processes would hold.
pub const SLOTS: usize = 6;

/// One step: what to do, with a name or two, an open file or two, and a number.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// What to do.
    pub op: Op,
    /// The name it is about.
    pub at: Spot,
    /// The second name, of those that take two.
    pub to: Spot,
    /// The open file.
    pub slot: usize,
    /// A size, an offset, a mode, the choice of a value.
    pub n: usize,
}

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident $weight:literal),* $(,)?) => {
        /// What a step does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Op { $($(#[$doc])* $name),* }

        /// All of them, and how often each is to come.
        pub const OPS: &[(u32, Op)] = &[$(($weight, Op::$name)),*];
    };
}

ops! {
    // Opening, each flag of its own. `Create` has O_CREAT.
    CreateWrite 3, CreateReadWrite 4, CreateExclusive 2, CreateTruncate 2, CreateAppend 2,
    CreateSync 1, CreateDataSync 1, CreateDirect 2, CreateNofollow 1, CreateDirectory 1,
    CreateReadOnly 1, CreateNoAccess 2,
    OpenRead 3, OpenWrite 2, OpenReadWrite 4, OpenTruncate 1, OpenAppend 2, OpenDirect 1,
    OpenPath 1, OpenNofollow 1, OpenDirectory 2, OpenNoatime 1, OpenBelow 2,
    Close 3, Dup 1, SetAppend 1, SetDirect 1,
    // Names.
    MknodFile 1, MknodFifo 1, MknodSocket 1, MknodChar 1, MknodBlock 1,
    Mkdir 3, MkdirSetgid 1, Unlink 4, Rmdir 3, Symlink 2, SymlinkDangling 1, SymlinkSlash 1,
    Link 3, LinkFollow 1, LinkHandle 1, LinkEmptyPath 1,
    Rename 4, RenameNoReplace 2, RenameExchange 3, RenameWhiteout 2, RenameIntoSelf 1,
    // Attributes.
    Chmod 3, Fchmod 2, ChmodNofollow 1, Chown 2, ChownGroup 1, Lchown 1, Fchown 2, ChownNobody 1,
    Truncate 2, TruncateGrow 1, Ftruncate 2, FtruncateGrow 1,
    TimesNow 1, TimesOmit 1, TimesExplicit 2, TimesOld 1, TimesMixed 1, TimesSymlink 1,
    FdTimes 1, TimesInvalid 1,
    // Data.
    Write 3, WriteAt 3, WriteFar 1, WriteMuch 2, WriteVector 1, WriteNothing 1,
    Read 2, ReadAt 2, ReadVector 1, SeekTo 1, SeekEnd 1, SeekData 1, SeekHole 1,
    MapStore 3, MapLoad 1, MapKeep 1, MapKept 2,
    Allocate 2, AllocateKeep 2, Punch 2, Zero 1, ZeroKeep 1, Collapse 1, Insert 1,
    CopyRange 2, CopySelf 1, Sendfile 1, CopyFile 1,
    Fsync 1, Fdatasync 1, FsyncDirectory 1, Syncfs 1,
    // Extended attributes and lists of access.
    SetXattr 2, CreateXattr 1, ReplaceXattr 1, RemoveXattr 1, SetXattrHandle 1, TrustedXattr 1,
    LinkXattr 1, BadXattr 1, AclAccess 2, AclDefault 2, AclRemove 1, AclMinimal 1,
    // Locks.
    LockRead 1, LockWrite 2, Unlock 1, LockAsk 2, Flock 1,
    // Looking.
    Stat 1, StatHandle 1, Access 1, Readlink 1, List 1, ListRemoving 1, ListHandle 1, StatHere 1,
    RemoveTree 1, Umask 2,
    // What others do on the source.
    BelowCreate 2, BelowWrite 2, BelowAppend 1, BelowUnlink 2, BelowRename 2, BelowReplace 2,
    BelowMkdir 1, BelowRmdir 1, BelowChmod 1, BelowTruncate 1, BelowTimes 1, BelowSymlink 1,
    BelowXattr 1, BelowLink 1, BelowExchange 1,
}

/// Those that are about an open file.
pub const HANDLE_OPS: &[Op] = &[
    Op::SetAppend,
    Op::SetDirect,
    Op::LinkHandle,
    Op::LinkEmptyPath,
    Op::Fchmod,
    Op::Fchown,
    Op::Ftruncate,
    Op::FtruncateGrow,
    Op::FdTimes,
    Op::Write,
    Op::WriteAt,
    Op::WriteFar,
    Op::WriteMuch,
    Op::WriteVector,
    Op::WriteNothing,
    Op::Read,
    Op::ReadAt,
    Op::ReadVector,
    Op::SeekTo,
    Op::SeekEnd,
    Op::SeekData,
    Op::SeekHole,
    Op::Allocate,
    Op::AllocateKeep,
    Op::Punch,
    Op::Zero,
    Op::ZeroKeep,
    Op::Collapse,
    Op::Insert,
    Op::CopyRange,
    Op::CopySelf,
    Op::Sendfile,
    Op::Fsync,
    Op::Fdatasync,
    Op::FsyncDirectory,
    Op::Syncfs,
    Op::SetXattrHandle,
    Op::LockRead,
    Op::LockWrite,
    Op::Unlock,
    Op::LockAsk,
    Op::Flock,
    Op::StatHandle,
    Op::ListHandle,
];

impl Op {
    /// What cannot be the same while others edit the source: a mapping that is kept shows
    /// what was read once, and flock(2) is this mount's own.
    fn alone(self) -> bool {
        matches!(self, Self::MapKeep | Self::MapKept | Self::Flock)
    }

    /// Whether it is done on the source, past the mount.
    pub fn below(self) -> bool {
        format!("{self:?}").contains("Below")
    }
}

/// One step of any kind.
pub fn step(below: bool) -> impl Strategy<Value = Step> {
    let ops = OPS
        .iter()
        .filter(move |(_, op)| if below { !op.alone() } else { !op.below() });
    let ops = ops.map(|&(weight, op)| (weight, Just(op))).collect();
    let op = proptest::strategy::Union::new_weighted(ops);
    let spot = || (0..SPOTS.len()).prop_map(Spot);
    (op, spot(), spot(), 0..SLOTS, 0..10_000_usize).prop_map(|(op, at, to, slot, n)| Step {
        op,
        at,
        to,
        slot,
        n,
    })
}

/// There are at least sixty kinds of step, and each that the sequences are promised to
/// have.
#[test]
fn kinds_of_steps() {
    assert!(OPS.len() >= 60, "{}", OPS.len());
    assert!(OPS.iter().filter(|(_, op)| op.below()).count() >= 10);
    assert!(OPS.iter().all(|(weight, _)| *weight > 0));
}
