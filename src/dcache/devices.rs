//! From the source's identities to nodeids and back (floor F3).
//!
//! nodeid and `st_ino` are one number on the wire (fuser), so the nodeid is the
//! source's inode number wherever that is unique; see [`Devices`]. It also tells the
//! device and the number, so that an inode need not repeat them.

use std::hash::BuildHasher;

use dashmap::DashMap;
use parking_lot::RwLock;

use crate::source::{FsTraits, SourceId};
use crate::sync::atomic::{AtomicU64, Ordering};

/// FUSE's number for an object of this mount.
pub type NodeId = u64;

/// The nodeid of the mount's root (fuse.h).
pub const ROOT: NodeId = 1;

/// Nodeids with this bit are not inode numbers of the root's device.
const FOREIGN: NodeId = 1 << 63;
/// Inode numbers below this fit beside a device index.
const INO_LIMIT: u64 = 1 << 48;
/// Device "index" of objects whose number fits nowhere: numbered as met.
const REMAPPED: NodeId = FOREIGN | 0x7fff << 48;
/// First nodeid of the virtual files.
pub const VIRTUAL: NodeId = FOREIGN | 0x7ffe << 48;
/// Devices that get an index; objects of later ones are numbered as met.
const DEVICE_LIMIT: usize = 0x7ff0;

/// One filesystem beneath the source, as reached through one mount.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    dev: u64,
    mnt: u64,
    /// How it behaves.
    pub traits: FsTraits,
}

impl Device {
    /// `st_dev` and mount of its objects.
    pub fn ids(&self) -> (u64, u64) {
        (self.dev, self.mnt)
    }
}

/// Maps the source's identities to nodeids.
///
/// * An object of the root's device keeps its inode number (below 2^63; not 0
///   and not 1, which is FUSE's root).
/// * An object of another device, or of the same device under another mount
///   (a bind mount shows the same numbers again, btrfs subvolumes start at 256
///   each), has the device's index in the bits 48 to 62 and bit 63 set.
/// * What fits neither way is numbered in the order it was met.
///
/// An index is never given to a second device during one mount.
pub struct Devices {
    /// With their indexes; the root's, which is 0, first.
    list: RwLock<Vec<(u16, Device)>>,
    /// The root's, which most objects are on, to be had without a lock.
    root: Device,
    root_ino: u64,
    remapped: DashMap<(u64, u64, u64), NodeId>,
    /// Device index and inode number of the nodeids in `remapped`.
    origins: DashMap<NodeId, (u16, u64)>,
    next_remapped: AtomicU64,
}

impl Devices {
    pub(super) fn new(root: &SourceId, traits: FsTraits) -> Self {
        let root_device = Device {
            dev: root.dev,
            mnt: root.mnt,
            traits,
        };
        Self {
            list: RwLock::new(vec![(0, root_device)]),
            root: root_device,
            root_ino: root.ino,
            remapped: DashMap::new(),
            origins: DashMap::new(),
            next_remapped: AtomicU64::new(REMAPPED + 1),
        }
    }

    /// The index of the device that holds `id`, if it was met before.
    pub fn index_of(&self, id: &SourceId) -> Option<u16> {
        if self.root.ids() == (id.dev, id.mnt) {
            return Some(0);
        }
        let list = self.list.read();
        list.iter()
            .find(|(_, d)| d.ids() == (id.dev, id.mnt))
            .map(|&(index, _)| index)
    }

    /// The index of the device that holds `id`, which behaves as `traits` says. It follows
    /// from the device and not from the order of meeting, so that numbers are the same
    /// whoever looks where first; only two devices with one hash are told apart by order.
    pub fn add(&self, id: &SourceId, traits: FsTraits) -> u16 {
        let mut list = self.list.write();
        if let Some(&(index, _)) = list.iter().find(|(_, d)| d.ids() == (id.dev, id.mnt)) {
            return index;
        }
        if list.len() >= DEVICE_LIMIT {
            // The last device's traits stand for the newcomer's; its numbers are remapped,
            // so nothing is mistaken for another object.
            return list.last().map_or(0, |&(index, _)| index);
        }
        let hash =
            foldhash::quality::FixedState::with_seed(0x6465_7669_6365).hash_one((id.dev, id.mnt));
        let mut index = 1 + (hash % (DEVICE_LIMIT as u64 - 1)) as u16;
        while list.iter().any(|&(taken, _)| taken == index) {
            index = 1 + index % (DEVICE_LIMIT as u16 - 1);
        }
        list.push((
            index,
            Device {
                dev: id.dev,
                mnt: id.mnt,
                traits,
            },
        ));
        index
    }

    /// The device with that index.
    pub fn get(&self, index: u16) -> Device {
        if index == 0 {
            return self.root;
        }
        let list = self.list.read();
        let found = list.iter().find(|&&(at, _)| at == index);
        found.expect("an index is given out for good").1
    }

    /// The nodeid of the object `id` of the device `index`.
    pub(super) fn nodeid(&self, index: u16, id: &SourceId) -> NodeId {
        let device = self.get(index);
        let known = device.dev == id.dev && device.mnt == id.mnt;
        self.nodeid_by_number(index, id.ino, known)
            .unwrap_or_else(|| {
                *self
                    .remapped
                    .entry((id.dev, id.mnt, id.ino))
                    .or_insert_with(|| {
                        let nodeid = self.next_remapped.fetch_add(1, Ordering::Relaxed);
                        self.origins.insert(nodeid, (index, id.ino));
                        nodeid
                    })
            })
    }

    /// The device index and the inode number that a nodeid was made of.
    pub(super) fn origin(&self, nodeid: NodeId) -> (u16, u64) {
        match nodeid {
            ROOT => (0, self.root_ino),
            ino if ino < FOREIGN => (0, ino),
            foreign if foreign < VIRTUAL => {
                ((foreign >> 48) as u16 & 0x7fff, foreign & (INO_LIMIT - 1))
            }
            remapped => self.origins.get(&remapped).map_or((0, 0), |o| *o),
        }
    }

    fn nodeid_by_number(&self, index: u16, ino: u64, known: bool) -> Option<NodeId> {
        match index {
            0 if known && ino == self.root_ino => Some(ROOT),
            0 if known && ino > ROOT && ino < FOREIGN => Some(ino),
            1.. if known && ino != 0 && ino < INO_LIMIT => {
                Some(FOREIGN | u64::from(index) << 48 | ino)
            }
            _ => None,
        }
    }

    /// `d_ino` of an entry in a directory of device `index`: the number that stat
    /// of the name would show, as far as the listing can tell.
    pub fn d_ino(&self, index: u16, ino: u64) -> u64 {
        if index == 0 && ino == self.root_ino {
            return ino;
        }
        self.nodeid_by_number(index, ino, true).unwrap_or_else(|| {
            let device = self.get(index);
            self.nodeid(
                index,
                &SourceId {
                    dev: device.dev,
                    mnt: device.mnt,
                    ino,
                    btime: None,
                },
            )
        })
    }

    /// The `st_ino` that goes with a nodeid: they differ for the root alone.
    pub fn st_ino(&self, nodeid: NodeId) -> u64 {
        if nodeid == ROOT {
            self.root_ino
        } else {
            nodeid
        }
    }

    /// The devices met so far.
    pub fn list(&self) -> Vec<Device> {
        self.list.read().iter().map(|&(_, device)| device).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAITS: FsTraits = FsTraits {
        stable_cookies: true,
        remote: false,
        birth_times: true,
        lists_all: true,
        name: "fake",
    };

    #[test]
    fn a_nodeid_tells_what_it_was_made_of() {
        let id = |dev, ino| SourceId {
            dev,
            mnt: 1,
            ino,
            btime: None,
        };
        let devices = Devices::new(&id(7, 100), TRAITS);
        let other = devices.add(&id(8, 1), TRAITS);
        let mut nodeids = std::collections::HashSet::new();
        for (index, dev) in [(0, 7), (other, 8)] {
            for ino in [
                0,
                1,
                2,
                100,
                INO_LIMIT - 1,
                INO_LIMIT,
                FOREIGN - 1,
                FOREIGN,
                u64::MAX,
            ] {
                let nodeid = devices.nodeid(index, &id(dev, ino));
                assert_eq!(nodeid, devices.nodeid(index, &id(dev, ino)));
                assert_eq!(devices.origin(nodeid), (index, ino), "{ino:#x} of {index}");
                assert!(nodeids.insert(nodeid), "{ino:#x} of {index}");
            }
        }
    }
}
