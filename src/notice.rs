//! What the kernel has to be told (floor F2).
//!
//! Purpose: whoever finds that the kernel may hold something untrue leaves a
//! [`Notice`]; the transport's notifier thread takes them. That thread serves no
//! request and holds no lock, because the kernel takes the directory's lock for an
//! invalidation, and a LOOKUP or READDIR holds it until it is answered.
//!
//! Contract: leaving a notice never blocks. The queue is bounded; when it is full
//! everything in it becomes one [`Notice::Everything`].

use std::collections::VecDeque;
use std::sync::OnceLock;

use parking_lot::{Condvar, Mutex};

/// One thing to tell the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The name `name` below the directory `parent` is not what it was.
    Entry {
        /// nodeid of the directory.
        parent: u64,
        /// The name.
        name: Box<[u8]>,
    },
    /// Attributes and cached contents (for a directory, its listing) are not what
    /// they were.
    Inode {
        /// nodeid.
        nodeid: u64,
    },
    /// Attributes, and contents if `data`, of a name's object are not what they were.
    Attr {
        /// nodeid of the directory; an answer on its way to the kernel comes first.
        parent: u64,
        /// nodeid of the object.
        nodeid: u64,
        /// Contents too.
        data: bool,
    },
    /// The name `name` below the directory `parent`, the object `child`, was removed.
    Removed {
        /// nodeid of the directory.
        parent: u64,
        /// nodeid of what it was.
        child: u64,
        /// The name.
        name: Box<[u8]>,
    },
    /// Ask this many names back, so that the kernel lets go of their inodes.
    Reclaim {
        /// How many.
        names: usize,
    },
    /// Nothing that the kernel holds is to be believed.
    Everything,
}

/// Notices that wait for the notifier thread.
pub struct Notices {
    queue: Mutex<Queue>,
    ready: Condvar,
    capacity: usize,
    doubter: OnceLock<Doubter>,
}

/// Tells the kernel at once that the attributes of a nodeid are in doubt.
pub type Doubter = Box<dyn Fn(u64) + Send + Sync>;

#[derive(Debug, Default)]
struct Queue {
    notices: VecDeque<Notice>,
    /// Taken, and not yet carried out.
    under_way: usize,
    closed: bool,
}

impl Notices {
    /// A queue for `capacity` notices.
    pub fn new(capacity: usize) -> Self {
        Self {
            queue: Mutex::default(),
            ready: Condvar::new(),
            capacity,
            doubter: OnceLock::new(),
        }
    }

    /// How the kernel is told at once of attributes; to be set before the first request.
    pub fn set_doubter(&self, doubter: Doubter) {
        let _ = self.doubter.set(doubter);
    }

    /// The kernel must not believe the attributes of a nodeid any more, and is told so
    /// before this returns: for attributes alone it takes no lock, so a request may say
    /// it. A listing goes with its directory's mtime.
    pub fn doubt(&self, nodeid: u64) {
        if let Some(doubter) = self.doubter.get() {
            doubter(nodeid);
        }
    }

    /// Notices that may wait.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Leaves a notice.
    pub fn push(&self, notice: Notice) {
        let mut queue = self.queue.lock();
        if queue.closed || queue.notices.back() == Some(&notice) {
            return;
        }
        if queue.notices.len() >= self.capacity {
            queue.notices.clear();
            queue.notices.push_back(Notice::Everything);
        } else {
            queue.notices.push_back(notice);
        }
        drop(queue);
        self.ready.notify_one();
    }

    /// Takes notices, the oldest first, and hands them to `f`, until closed.
    pub fn serve(&self, mut f: impl FnMut(Notice)) {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return;
            }
            let Some(notice) = queue.notices.pop_front() else {
                self.ready.wait(&mut queue);
                continue;
            };
            queue.under_way += 1;
            drop(queue);
            f(notice);
            queue = self.queue.lock();
            queue.under_way -= 1;
        }
    }

    /// Notices that the kernel was not told of yet.
    pub fn pending(&self) -> usize {
        let queue = self.queue.lock();
        queue.notices.len() + queue.under_way
    }

    /// Takes the oldest notice if there is one.
    pub fn try_pop(&self) -> Option<Notice> {
        self.queue.lock().notices.pop_front()
    }

    /// The mount has ended: nobody is to be told anything any more.
    pub fn close(&self) {
        self.queue.lock().closed = true;
        self.ready.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_becomes_one_notice_about_everything() {
        let notices = Notices::new(2);
        for nodeid in 0..3 {
            notices.push(Notice::Inode { nodeid });
        }
        assert_eq!(notices.try_pop(), Some(Notice::Everything));
        assert_eq!(notices.try_pop(), None);
        notices.push(Notice::Everything);
        assert_eq!(notices.pending(), 1);
        let mut served = Vec::new();
        notices.serve(|notice| {
            served.push(notice);
            assert_eq!(notices.pending(), 1);
            notices.close();
        });
        assert_eq!((served.len(), notices.pending()), (1, 0));
    }
}
