//! Injected allocation failures, as the kernel's failslab.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::options::FaultRule;

/// One cache's countdown to its next failure.
#[derive(Debug)]
pub(super) struct Fault {
    every: u64,
    asked: AtomicU64,
    left: AtomicU64,
}

impl Fault {
    /// The countdown of `rule`.
    pub(super) fn new(rule: &FaultRule) -> Self {
        Self {
            every: rule.every(),
            asked: AtomicU64::new(0),
            left: AtomicU64::new(rule.times().unwrap_or(u64::MAX)),
        }
    }

    /// Counts an allocation; whether it is to fail.
    pub(super) fn fails(&self) -> bool {
        let asked = self.asked.fetch_add(1, Relaxed) + 1;
        asked.is_multiple_of(self.every)
            && self
                .left
                .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
                .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_third_fails_twice() {
        let fault = Fault::new(&FaultRule::new("c", 3, Some(2)));
        let failed: Vec<_> = (1..=12).filter(|_| fault.fails()).collect();
        assert_eq!(failed, [3, 6]);
    }

    #[test]
    fn without_a_limit_it_goes_on() {
        let fault = Fault::new(&FaultRule::new("c", 1, None));
        assert!((0..1000).all(|_| fault.fails()));
    }
}
