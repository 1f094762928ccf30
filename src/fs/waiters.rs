//! Who waits for a lock (floor F5).
//!
//! Contract: who waits occupies no thread that serves requests: one thread tries for all
//! who wait, at most [`WAITER_LIMIT`], because locks held on the source tell nobody when
//! they go. A wait ends with the lock, with EINTR when the kernel says that the waiting
//! thread was interrupted, or with EAGAIN at a deadline.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Errno, Result};
use crate::source::{LockKind, LockRange, Source};
use crate::sync::Arc;

/// Waiters at one time.
pub const WAITER_LIMIT: usize = 4096;
/// Pauses between two tries of those who wait, growing from the first to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));
/// Interrupts that are remembered for requests that do not wait yet.
const EARLY_LIMIT: usize = 256;

/// How a waiter is told.
pub type Answer = Box<dyn FnOnce(Result<()>) + Send>;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// A lock of fcntl(2).
    Range(LockRange),
    /// A lock of flock(2).
    Whole(LockKind),
}

impl Want {
    /// Whether it is one that is held afterwards.
    pub(super) fn takes(self) -> bool {
        let (Self::Range(LockRange { kind, .. }) | Self::Whole(kind)) = self;
        kind != LockKind::Unlock
    }

    /// Tries to take it, without waiting.
    ///
    /// # Errors
    /// EAGAIN or EACCES if another's is in the way, and the source's.
    pub(super) fn take<S: Source>(self, source: &S, file: &S::File) -> Result<()> {
        match self {
            Self::Range(range) => source.lock(file, range),
            Self::Whole(kind) => source.flock(file, kind),
        }
    }
}

/// Whether a lock was not had because of another's.
pub(super) fn in_the_way(e: Errno) -> bool {
    matches!(e, Errno::AGAIN | Errno::ACCESS)
}

pub(super) struct Waiter<F> {
    pub(super) file: Arc<F>,
    pub(super) want: Want,
    /// The request that waits.
    pub(super) unique: u64,
    /// When it waits no longer.
    pub(super) until: Option<Instant>,
    pub(super) answer: Answer,
}

/// All who wait.
pub(super) struct Waiters<F> {
    state: Mutex<State<F>>,
    /// Somebody came, or something was given back.
    changed: Condvar,
}

struct State<F> {
    list: Vec<Waiter<F>>,
    /// Requests that were interrupted and are not in the list: not yet, or because the
    /// thread that tries for them has them. The last [`EARLY_LIMIT`].
    interrupted: VecDeque<u64>,
    /// The thread that tries for them runs.
    served: bool,
    closed: bool,
}

impl<F> State<F> {
    /// Whether a request was interrupted; said once.
    fn take_interrupt(&mut self, unique: u64) -> bool {
        let at = self.interrupted.iter().position(|&u| u == unique);
        at.and_then(|at| self.interrupted.remove(at)).is_some()
    }
}

impl<F: Send + Sync + 'static> Waiters<F> {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                list: Vec::new(),
                interrupted: VecDeque::new(),
                served: false,
                closed: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Waiters now.
    pub(super) fn len(&self) -> usize {
        self.state.lock().list.len()
    }

    /// One more waiter; `serve` is run by a thread of its own if none serves yet.
    pub(super) fn wait(&self, waiter: Waiter<F>, serve: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        if state.take_interrupt(waiter.unique) {
            drop(state);
            return (waiter.answer)(Err(Errno::INTR));
        }
        if state.closed || state.list.len() >= WAITER_LIMIT {
            drop(state);
            return (waiter.answer)(Err(Errno::NOLCK));
        }
        state.list.push(waiter);
        if !state.served {
            let named = std::thread::Builder::new().name("locks".into());
            let started = named.spawn(serve);
            state.served = started.is_ok();
            if let Err(e) = started {
                tracing::warn!(error = %e, "no thread for those who wait for locks");
                let list = std::mem::take(&mut state.list);
                drop(state);
                return list.into_iter().for_each(|w| (w.answer)(Err(Errno::NOLCK)));
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// A request was interrupted: if it waits, it waits no longer.
    pub(super) fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        if let Some(at) = state.list.iter().position(|w| w.unique == unique) {
            let waiter = state.list.swap_remove(at);
            drop(state);
            return (waiter.answer)(Err(Errno::INTR));
        }
        if state.interrupted.len() >= EARLY_LIMIT {
            state.interrupted.pop_front();
        }
        state.interrupted.push_back(unique);
    }

    /// A lock was given back here: worth a try at once.
    pub(super) fn given_back(&self) {
        self.changed.notify_one();
    }

    /// What the thread that serves does: tries for all who wait, until nobody does.
    pub(super) fn serve<S: Source<File = F>>(&self, source: &S) {
        let mut pause = PAUSE.0;
        loop {
            let list = {
                let mut state = self.state.lock();
                if state.list.is_empty() {
                    state.served = false;
                    return;
                }
                std::mem::take(&mut state.list)
            };
            let before = list.len();
            let mut left = Vec::with_capacity(before);
            let now = Instant::now();
            for waiter in list {
                match waiter.want.take(source, &waiter.file) {
                    Err(e) if in_the_way(e) && waiter.until.is_none_or(|until| now < until) => {
                        left.push(waiter);
                    }
                    other => (waiter.answer)(other),
                }
            }
            pause = if left.len() < before {
                PAUSE.0
            } else {
                (pause * 2).min(PAUSE.1)
            };
            let mut state = self.state.lock();
            let closed = state.closed;
            let (gone, mut stay): (Vec<_>, Vec<_>) = left
                .into_iter()
                .partition(|w| closed || state.take_interrupt(w.unique));
            stay.append(&mut state.list);
            state.list = stay;
            if !gone.is_empty() {
                drop(state);
                gone.into_iter().for_each(|w| (w.answer)(Err(Errno::INTR)));
                state = self.state.lock();
            }
            if !closed {
                self.changed.wait_for(&mut state, pause);
            }
        }
    }

    /// The end of the mount.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let list = std::mem::take(&mut state.list);
        drop(state);
        self.changed.notify_all();
        list.into_iter().for_each(|w| (w.answer)(Err(Errno::INTR)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    fn waiter(unique: u64) -> (Waiter<()>, Receiver<Result<()>>) {
        let (tx, rx) = channel();
        let waiter = Waiter {
            file: Arc::new(()),
            want: Want::Whole(LockKind::Write),
            unique,
            until: None,
            answer: Box::new(move |done| tx.send(done).expect("somebody listens")),
        };
        (waiter, rx)
    }

    #[test]
    fn an_interrupt_ends_a_wait_before_and_after_it_began() {
        let waiters = Waiters::new();
        waiters.interrupt(4);
        let (early, answered) = waiter(4);
        waiters.wait(early, || unreachable!("nobody waits"));
        assert_eq!(answered.try_recv(), Ok(Err(Errno::INTR)));
        let (later, answered) = waiter(6);
        waiters.wait(later, || ());
        let (other, unanswered) = waiter(8);
        waiters.wait(other, || ());
        assert_eq!(waiters.len(), 2);
        waiters.interrupt(6);
        assert_eq!(answered.try_recv(), Ok(Err(Errno::INTR)));
        assert!(unanswered.try_recv().is_err());
        waiters.end();
        assert_eq!(unanswered.try_recv(), Ok(Err(Errno::INTR)));
    }

    #[test]
    fn interrupts_of_requests_that_never_wait_are_forgotten() {
        let waiters = Waiters::<()>::new();
        for unique in 0..10 * EARLY_LIMIT as u64 {
            waiters.interrupt(unique);
        }
        assert_eq!(waiters.state.lock().interrupted.len(), EARLY_LIMIT);
    }

    #[test]
    fn more_waiters_than_the_limit_are_refused() {
        let waiters = Waiters::new();
        let answers: Vec<_> = (1..=WAITER_LIMIT as u64)
            .map(|unique| {
                let (waiter, answered) = waiter(unique);
                waiters.wait(waiter, || ());
                answered
            })
            .collect();
        let (more, answered) = waiter(0);
        waiters.wait(more, || ());
        assert_eq!(answered.try_recv(), Ok(Err(Errno::NOLCK)));
        assert!(answers.iter().all(|a| a.try_recv().is_err()));
        waiters.end();
    }
}
