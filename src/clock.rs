//! The clock of one mount (floor F0).
//!
//! Freshness is counted in milliseconds since the mount began, monotonic and
//! never 0, so that 0 can mean "never". Tests wind a manual clock by hand.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Milliseconds since the mount began, at least 1.
pub type Millis = u64;

/// When the source was asked: taken before it is, so that an answer is never held to be
/// younger than it is.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// On the mount's clock.
    pub at: Millis,
    /// Time of day.
    pub wall: SystemTime,
}

/// Where the milliseconds come from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's monotonic clock.
    Real(Instant),
    /// Stands still until [`Clock::advance`].
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's clock, starting now.
    pub fn real() -> Self {
        Self::Real(Instant::now())
    }

    /// A clock that only tests move.
    pub fn manual() -> Self {
        Self::Manual(Arc::new(AtomicU64::new(1)))
    }

    /// The time now.
    pub fn now(&self) -> Millis {
        match self {
            Self::Real(start) => start.elapsed().as_millis() as Millis + 1,
            Self::Manual(ms) => ms.load(Ordering::Relaxed),
        }
    }

    /// The time of day, to be held against time stamps of the source; of a manual
    /// clock as much after 1970 as the mount is old.
    pub fn wall(&self) -> SystemTime {
        match self {
            Self::Real(_) => SystemTime::now(),
            Self::Manual(_) => UNIX_EPOCH + Duration::from_millis(self.now()),
        }
    }

    /// To be called before the source is asked.
    pub fn asked(&self) -> Asked {
        Asked {
            at: self.now(),
            wall: self.wall(),
        }
    }

    /// Moves a manual clock; the real one moves by itself.
    pub fn advance(&self, by: Duration) {
        if let Self::Manual(ms) = self {
            ms.fetch_add(by.as_millis() as Millis, Ordering::Relaxed);
        }
    }
}
