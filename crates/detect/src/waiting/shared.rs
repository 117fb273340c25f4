//! Several waiters at one place that learn together.

use std::{
    fmt,
    task::{Context, Poll},
};

use super::{Attempt, Learner, Probe, SpinBackend, SpinOutcome, SystemBackend, known};
use crate::{
    clock::{Instant, monotonic_now},
    policy::{Adaptive, Peers, SpinStep, SpinWait, WaitHistory, WaitSituation, processor_count},
    server::Server,
    sync::{AtomicU32, Mutex, Ordering, PoisonError},
};

/// The history that all waiters at one place share, as a [`Waiter`](super::Waiter) has one of its own: all tasks that wait
/// at an endpoint, each by a [`SharedWait`].
///
/// Only one of several waiters spins, since it polls on behalf of the others too. The others poll
/// once and sleep.
///
/// # Cost
/// A wait that succeeds at its first poll touches nothing here; one that succeeds in its first step, if that is to poll, reads
/// one word. All others take a mutex two or three times, for some nanoseconds each.
pub struct SharedWaiter {
    server: Server,
    peers: Peers,
    history: Mutex<SharedHistory>,
    /// [`SharedHistory::word`]. Written with the mutex held. `Relaxed`: a hint; a stale value does no
    /// harm.
    word: AtomicU32,
}

struct SharedHistory {
    waits: WaitHistory,
    /// The number of waits that have a spin wait: more than one only if they began at the same time.
    trying: u32,
}

/// A wait whose first step succeeds teaches nothing.
const FULL: u32 = 1 << 31;

impl SharedHistory {
    /// Returns how many polls a wait does before it asks for more, with [`FULL`].
    const fn word(&self) -> u32 {
        let polls = if self.trying == 0 { self.waits.spins_first() } else { 0 };
        (polls & !FULL) | if self.waits.is_full() { FULL } else { 0 }
    }
}

impl SharedWaiter {
    /// Creates a waiter for waits by the policy of `server`, each for one of `count` peers on this machine's cores, including those that
    /// this thread may not use: peers that are processes may be pinned to one core each. A wait reads the clock once per `polls` polls.
    /// In virtual time nothing happens during a spin, so all waits sleep at once.
    #[must_use]
    pub fn at(server: &Server, count: u32, polls: u32) -> Self {
        let cores = u32::try_from(processor_count()).unwrap_or(u32::MAX);
        let waiter = Self::among(server, Peers { count, cores }, polls);
        if server.is_virtual() {
            // As if another wait were spinning.
            waiter.locked(|history| history.trying = 1);
        }
        waiter
    }

    pub(super) fn among(server: &Server, peers: Peers, polls: u32) -> Self {
        let (policy, costs, _) = known(Some(server), peers.are_oversubscribed(), true);
        let waits =
            WaitHistory::new(&policy, &WaitSituation::of_one(peers, costs), polls.min(!FULL));
        let history = SharedHistory { waits, trying: 0 };
        let word = AtomicU32::new(history.word());
        Self { server: server.clone(), peers, history: Mutex::new(history), word }
    }

    /// Begins a wait.
    #[inline]
    pub fn wait(&self) -> SharedWait<'_> {
        SharedWait { waiter: self, attempt: Attempt::default() }
    }

    fn locked<T>(&self, f: impl FnOnce(&mut SharedHistory) -> T) -> T {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut history);
        let word = history.word();
        if self.word.load(Ordering::Relaxed) != word {
            self.word.store(word, Ordering::Relaxed);
        }
        result
    }

    #[cold]
    fn first_locked(
        &self,
        has_bursts: bool,
        now: impl FnOnce() -> Instant,
    ) -> (SpinStep, Option<SpinWait>) {
        self.locked(|history| {
            if history.trying > 0 {
                return (SpinStep::Sleep, None);
            }
            let first = history.waits.first(has_bursts);
            let (first, timed) = history.waits.begin_timed(has_bursts, first, now);
            history.trying += u32::from(timed.is_some());
            (first, timed)
        })
    }
}

impl Learner for &SharedWaiter {
    #[inline]
    fn first(
        &mut self,
        has_bursts: bool,
        now: impl FnOnce() -> Instant,
    ) -> (SpinStep, Option<SpinWait>) {
        match self.word.load(Ordering::Relaxed) & !FULL {
            0 => self.first_locked(has_bursts, now),
            polls => (SpinStep::Spin(polls), None),
        }
    }

    #[inline]
    fn found_first(&mut self) {
        if self.word.load(Ordering::Relaxed) & FULL == 0 {
            self.locked(|history| history.waits.found_first());
        }
    }

    fn begin(&mut self, has_bursts: bool, first: SpinStep) -> Option<SpinWait> {
        self.locked(|history| {
            let is_alone = history.trying == 0;
            history.trying += u32::from(is_alone);
            is_alone.then(|| history.waits.begin(has_bursts, first))
        })
    }

    fn learn<T>(&mut self, learn: impl FnOnce(&mut WaitHistory) -> T) -> T {
        self.locked(|history| learn(&mut history.waits))
    }

    fn learn_last<T>(&mut self, learn: impl FnOnce(&mut WaitHistory) -> T) -> T {
        self.locked(|history| {
            history.trying = history.trying.saturating_sub(1);
            learn(&mut history.waits)
        })
    }

    fn peers(&self) -> Peers {
        self.peers
    }

    fn known(&self, samples: bool) -> (Adaptive, WaitSituation) {
        let (policy, costs, load) =
            known(Some(&self.server), self.peers.are_oversubscribed(), samples);
        (policy, WaitSituation { load, ..WaitSituation::of_one(self.peers, costs) })
    }
}

impl fmt::Debug for SharedWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWaiter").field("peers", &self.peers).finish_non_exhaustive()
    }
}

/// One wait of a [`SharedWaiter`]: it polls, yields the core and is told when to sleep, inside a future of any executor. It may be
/// dropped at any time; a dropped wait teaches nothing.
#[must_use = "a wait does nothing until it is polled"]
pub struct SharedWait<'a> {
    waiter: &'a SharedWaiter,
    pub(super) attempt: Attempt,
}

impl SharedWait<'_> {
    /// Like [`Waiter::poll_spin`](super::Waiter::poll_spin); a poll may also report progress.
    #[inline]
    pub fn poll_spin<T>(
        &mut self,
        cx: &Context<'_>,
        mut poll: impl FnMut() -> Probe<T>,
    ) -> Poll<Option<T>> {
        self.run_burst(&mut poll, &mut SystemBackend).into_poll(cx)
    }

    /// Does the work of the first poll outside of it. `Pending` means that others should run before it is
    /// [polled](Self::poll_spin); no waker has been called for that.
    #[inline]
    pub fn try_first<T>(&mut self, mut poll: impl FnMut() -> Probe<T>) -> Poll<Option<T>> {
        self.run_burst(&mut poll, &mut SystemBackend).into()
    }

    #[inline]
    pub(super) fn run_burst<T>(
        &mut self,
        poll: &mut impl FnMut() -> Probe<T>,
        backend: &mut impl SpinBackend,
    ) -> SpinOutcome<T> {
        self.attempt.run_burst(&mut self.waiter, true, poll, backend)
    }

    /// Call this when the sleep is over and the awaited event is there: learns from the sleep's length. Does nothing if
    /// it did not sleep.
    pub fn slept(&mut self) {
        self.attempt.slept(&mut self.waiter, monotonic_now());
    }
}

impl Drop for SharedWait<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.attempt.spin_wait.is_some() {
            // Others may spin now.
            self.waiter.learn_last(|_| ());
        }
    }
}

impl fmt::Debug for SharedWait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWait").field("attempt", &self.attempt).finish_non_exhaustive()
    }
}
