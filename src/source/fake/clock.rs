//! Time that moves only when told to.

use std::time::Duration;

use crate::source::Time;
use crate::sync::Mutex;

const NANOS: i128 = 1_000_000_000;

/// A virtual clock. Every time stamp of a [`super::FakeSource`] is taken from it.
pub struct Clock {
    /// Nanoseconds since 1970.
    now: Mutex<i128>,
}

impl Clock {
    /// A clock that stands at `start`.
    pub fn new(start: Time) -> Self {
        Self {
            now: Mutex::new(to_nanos(start)),
        }
    }

    /// The time.
    pub fn now(&self) -> Time {
        from_nanos(*self.now.lock())
    }

    /// The time as a filesystem stamps it: rounded down to `tick` nanoseconds (0 and 1: exact).
    pub fn stamp(&self, tick: u64) -> Time {
        let now = *self.now.lock();
        from_nanos(now - now.rem_euclid(i128::from(tick.max(1))))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        *self.now.lock() += i128::try_from(by.as_nanos()).unwrap_or(i128::MAX / 2);
    }

    /// Sets the clock, backward too.
    pub fn set(&self, to: Time) {
        *self.now.lock() = to_nanos(to);
    }
}

/// The smallest time after `time`.
pub(super) fn just_after(time: Time) -> Time {
    from_nanos(to_nanos(time) + 1)
}

fn to_nanos(time: Time) -> i128 {
    i128::from(time.sec) * NANOS + i128::from(time.nsec)
}

fn from_nanos(nanos: i128) -> Time {
    let sec = nanos
        .div_euclid(NANOS)
        .clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    Time {
        sec: sec as i64,
        nsec: nanos.rem_euclid(NANOS) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_round_down_on_both_sides_of_1970() {
        let clock = Clock::new(Time {
            sec: -1,
            nsec: 999_999_999,
        });
        assert_eq!(
            clock.stamp(1_000),
            Time {
                sec: -1,
                nsec: 999_999_000
            }
        );
        clock.advance(Duration::from_nanos(1));
        assert_eq!(clock.now(), Time::default());
        clock.advance(Duration::from_millis(5));
        assert_eq!(
            clock.stamp(4_000_000),
            Time {
                sec: 0,
                nsec: 4_000_000
            }
        );
        assert_eq!(
            just_after(Time {
                sec: 1,
                nsec: 999_999_999
            }),
            Time { sec: 2, nsec: 0 }
        );
    }
}
