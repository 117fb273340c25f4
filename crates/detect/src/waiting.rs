//! Waiting for peers: spin, yield the core, sleep; on a thread or inside a future.

mod before_sleep;
mod shared;

use std::{
    fmt, mem,
    task::{Context, Poll},
    time::Duration,
};

pub use self::before_sleep::YieldBeforeSleep;
pub use self::shared::{SharedWait, SharedWaiter};
use crate::{
    clock::{Instant, monotonic_now},
    policy::{
        Adaptive, Costs, Load, Peers, Policy, SpinBalance, SpinCosts, SpinStep, SpinWait,
        WaitHistory, WaitSituation, amount, of_threads,
    },
    server::Server,
    sync::{AtomicU64, Ordering, thread, yield_now},
};

/// Waits for peers repeatedly, and learns from each wait.
///
/// A [`SpinWait`] decides the next step by the plan of a [`Policy`]; a `Waiter` carries it out, on a thread
/// ([`spin_blocking`](Self::spin_blocking)) or inside a future of any executor ([`poll_spin`](Self::poll_spin)). The caller
/// does the sleep itself and reports its end with [`slept`](Self::slept). Several waiters at one place share a
/// [`SharedWaiter`].
///
/// # Cost
/// A wait that succeeds in its first step does not read the clock.
pub struct Waiter {
    learner: OwnLearner,
    /// The wait in progress, or paused.
    attempt: Attempt,
}

impl Waiter {
    /// Creates a waiter for `count` peers on the cores that this thread may use. It uses no server: its peers are threads. It reads
    /// the clock once per `polls` polls.
    #[must_use]
    pub fn new(count: u32, polls: u32) -> Self {
        Self::build(count, polls, None)
    }

    /// Creates a waiter that uses the policy of `server` and what the server has measured on this
    /// machine.
    #[must_use]
    pub fn at(server: &Server, count: u32, polls: u32) -> Self {
        Self::build(count, polls, Some(server.clone()))
    }

    fn build(count: u32, polls: u32, server: Option<Server>) -> Self {
        let peers = peers(count);
        let (policy, costs, _) = known_to_one(server.as_ref(), peers, true);
        let waits = WaitHistory::new(&policy, &WaitSituation::new(peers, costs), polls);
        Self { learner: OwnLearner { waits, server }, attempt: Attempt::default() }
    }

    /// Begins a wait and forgets what is left of the previous one.
    #[inline]
    pub fn begin(&mut self) {
        self.attempt = Attempt::default();
    }

    /// Polls until `poll` returns a value; returns `None` when it is time to sleep. Blocks the
    /// thread.
    #[inline]
    pub fn spin_blocking<T>(&mut self, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        match self.run_burst(false, &mut || poll().into(), &mut SystemBackend) {
            SpinOutcome::Ready(found) => Some(found),
            SpinOutcome::Paused | SpinOutcome::Sleep => None,
        }
    }

    /// Does the work of one poll of a task: a burst of polls, no longer than a sleep is measured to cost and at most 20 µs, which yields
    /// the core as often as there is time for, at least once. `Ready(None)` means that it is time to sleep. On `Pending` the
    /// waker of `cx` has been called, so that other tasks run before the next burst.
    #[inline]
    pub fn poll_spin<T>(
        &mut self,
        cx: &Context<'_>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Poll<Option<T>> {
        self.run_burst(true, &mut || poll().into(), &mut SystemBackend).into_poll(cx)
    }

    /// Call this when the sleep is over and the awaited event is there: the waiter learns from the
    /// sleep's length.
    pub fn slept(&mut self) {
        self.attempt.slept(&mut self.learner, monotonic_now());
    }

    #[inline]
    fn run_burst<T>(
        &mut self,
        has_bursts: bool,
        poll: &mut impl FnMut() -> Probe<T>,
        backend: &mut impl SpinBackend,
    ) -> SpinOutcome<T> {
        self.attempt.run_burst(&mut self.learner, has_bursts, poll, backend)
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { learner, attempt } = self;
        f.debug_struct("Waiter").field("waits", &learner.waits).field("attempt", attempt).finish()
    }
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers must handle every case")]
pub enum Probe<T> {
    /// The awaited value.
    Ready(T),
    /// Not there yet, but closer: the wait's time starts again.
    Progress,
    /// Nothing.
    Pending,
}

impl<T> From<Option<T>> for Probe<T> {
    #[inline]
    fn from(found: Option<T>) -> Self {
        found.map_or(Self::Pending, Self::Ready)
    }
}

/// Stores what waits have taught.
trait Learner {
    /// Returns the first step of a wait, and its spin wait if that step is timed.
    fn first(
        &mut self,
        has_bursts: bool,
        now: impl FnOnce() -> Instant,
    ) -> (SpinStep, Option<SpinWait>);

    /// The first step found the awaited value.
    fn found_first(&mut self);

    /// The first step found nothing. `None`: other waiters are spinning already.
    fn begin(&mut self, has_bursts: bool, first: SpinStep) -> Option<SpinWait>;

    fn learn<T>(&mut self, learn: impl FnOnce(&mut WaitHistory) -> T) -> T;

    /// Like [`learn`](Self::learn), at the end of a spin wait.
    fn learn_last<T>(&mut self, learn: impl FnOnce(&mut WaitHistory) -> T) -> T {
        self.learn(learn)
    }

    fn peers(&self) -> Peers;

    /// The policy, and what is known of the machine; measures the other demand for the core if `samples`.
    fn known(&self, samples: bool) -> (Adaptive, WaitSituation);

    /// Plans the next wait again: the demand for the core may have changed.
    fn plan(&mut self, now: Instant) {
        let (policy, situation) = self.known(true);
        self.learn(|waits| waits.plan(now, &policy, situation));
    }
}

/// The learner of a waiter that shares nothing.
struct OwnLearner {
    waits: WaitHistory,
    /// The server that has measured the machine; `None`: the process's threads have.
    server: Option<Server>,
}

impl Learner for OwnLearner {
    #[inline]
    fn first(
        &mut self,
        has_bursts: bool,
        now: impl FnOnce() -> Instant,
    ) -> (SpinStep, Option<SpinWait>) {
        let first = self.waits.first(has_bursts);
        self.waits.begin_timed(has_bursts, first, now)
    }

    #[inline]
    fn found_first(&mut self) {
        self.waits.found_first();
    }

    #[inline]
    fn begin(&mut self, has_bursts: bool, first: SpinStep) -> Option<SpinWait> {
        Some(self.waits.begin(has_bursts, first))
    }

    #[inline]
    fn learn<T>(&mut self, learn: impl FnOnce(&mut WaitHistory) -> T) -> T {
        learn(&mut self.waits)
    }

    fn peers(&self) -> Peers {
        self.waits.peers()
    }

    fn known(&self, samples: bool) -> (Adaptive, WaitSituation) {
        let (policy, costs, load) = known_to_one(self.server.as_ref(), self.peers(), samples);
        (policy, WaitSituation { load, ..WaitSituation::new(self.peers(), costs) })
    }
}

/// One wait, from the first poll to the end of the sleep.
#[derive(Debug, Default)]
struct Attempt {
    /// From the first step that found nothing until the sleep.
    spin_wait: Option<SpinWait>,
    /// The first reading of the clock, or the time at which something last moved.
    began: Option<Instant>,
    /// The wait has had a spin wait.
    tried: bool,
}

impl Attempt {
    #[inline]
    fn run_burst<T>(
        &mut self,
        learner: &mut impl Learner,
        has_bursts: bool,
        poll: &mut impl FnMut() -> Probe<T>,
        backend: &mut impl SpinBackend,
    ) -> SpinOutcome<T> {
        let has_moved = match poll() {
            Probe::Ready(found) => {
                self.found(learner);
                return SpinOutcome::Ready(found);
            }
            Probe::Progress => true,
            Probe::Pending => false,
        };

        if let Some(spin_wait) = &mut self.spin_wait {
            spin_wait.begin_burst();
            if has_moved {
                self.moved();
            }
            return self.go_on(learner, poll, backend);
        }

        let (first, timed) = learner.first(has_bursts, || backend.now());
        if timed.is_some() {
            self.spin_wait = timed;
            self.tried = true;
            return self.timed(learner, first, poll, backend);
        }
        if first == SpinStep::Sleep {
            return self.try_nothing(learner, has_moved && has_bursts, poll, backend);
        }

        if let Probe::Ready(found) = carry_out(first, poll, backend) {
            learner.found_first();
            return SpinOutcome::Ready(found);
        }

        // Progress made so far has no effect: no clock was read yet.
        self.spin_wait = learner.begin(has_bursts, first);
        self.tried = self.spin_wait.is_some();
        self.go_on(learner, poll, backend)
    }

    /// A wait that had better sleep at once, unless something moves.
    #[cold]
    fn try_nothing<T>(
        &mut self,
        learner: &mut impl Learner,
        has_moved: bool,
        poll: &mut impl FnMut() -> Probe<T>,
        backend: &mut impl SpinBackend,
    ) -> SpinOutcome<T> {
        if has_moved {
            match carry_out(SpinStep::Spin(MOVES_MAX), poll, backend) {
                Probe::Ready(found) => return SpinOutcome::Ready(found),
                Probe::Progress => return SpinOutcome::Paused,
                Probe::Pending => {}
            }
        }
        self.give_up(learner, backend)
    }

    /// A burst with a timed first step.
    #[cold]
    fn timed<T>(
        &mut self,
        learner: &mut impl Learner,
        first: SpinStep,
        poll: &mut impl FnMut() -> Probe<T>,
        backend: &mut impl SpinBackend,
    ) -> SpinOutcome<T> {
        if let Probe::Ready(found) = carry_out(first, poll, backend) {
            let now = backend.now();
            if let Some(spin_wait) = &mut self.spin_wait {
                spin_wait.note(now);
            }
            self.found(learner);
            return SpinOutcome::Ready(found);
        }
        self.go_on(learner, poll, backend)
    }

    /// The rest of a burst whose first step found nothing.
    fn go_on<T>(
        &mut self,
        learner: &mut impl Learner,
        poll: &mut impl FnMut() -> Probe<T>,
        backend: &mut impl SpinBackend,
    ) -> SpinOutcome<T> {
        while let Some(spin_wait) = &mut self.spin_wait {
            let now = backend.now();
            self.began.get_or_insert(now);
            let step = spin_wait.next(now);
            match step {
                SpinStep::Pause => return SpinOutcome::Paused,
                SpinStep::Sleep => break,
                SpinStep::Spin(_) | SpinStep::Yield(_) => {}
            }
            match carry_out(step, poll, backend) {
                Probe::Ready(found) => {
                    // No poll before the yield succeeded: others may need the core.
                    if let SpinStep::Yield(count) = step
                        && !learner.peers().are_oversubscribed()
                    {
                        let now = backend.now();
                        // Of several yields, an unknown number was done.
                        if count == 1 {
                            spin_wait.note(now);
                        }
                        self.found(learner);
                        learner.plan(now);
                    } else {
                        self.found(learner);
                    }
                    return SpinOutcome::Ready(found);
                }
                Probe::Progress => self.moved(),
                Probe::Pending => {}
            }
        }
        self.give_up(learner, backend)
    }

    #[inline]
    fn found(&mut self, learner: &mut impl Learner) {
        if let Some(spin_wait) = self.spin_wait.take() {
            (self.began, self.tried) = (None, false);
            learner.learn_last(|waits| waits.found(&spin_wait));
        }
    }

    fn moved(&mut self) {
        self.began = None;
        if let Some(spin_wait) = &mut self.spin_wait {
            spin_wait.restart();
        }
    }

    #[cold]
    fn give_up<T>(
        &mut self,
        learner: &mut impl Learner,
        backend: &mut impl SpinBackend,
    ) -> SpinOutcome<T> {
        if let Some(spin_wait) = self.spin_wait.take() {
            learner.learn_last(|waits| waits.gave_up(&spin_wait));
        }
        self.began.get_or_insert_with(|| backend.now());
        SpinOutcome::Sleep
    }

    fn slept(&mut self, learner: &mut impl Learner, now: Instant) {
        let Some(began) = self.began.take() else { return };
        // A waiter that sleeps at once does not need the other demand for the core; measuring that takes longer
        // than a wake-up.
        let tried = mem::take(&mut self.tried);
        let spinning_pays = learner.learn(|waits| waits.slept((began, now), tried));
        let (policy, situation) = learner.known(spinning_pays);
        learner.learn(|waits| waits.plan(now, &policy, situation));
    }
}

/// One burst of polls by the last of several waiters at one place, before it sleeps. A poll of the task does nothing beyond this
/// burst. Shared by threads.
#[derive(Debug)]
pub struct Bursts {
    spin_costs: SpinCosts,
    /// The account's balance. `Relaxed`: a hint; of two concurrent writes one may be lost.
    balance: AtomicU64,
}

/// The number of skipped bursts that pay for one burst.
const SKIPS: u32 = 16;

/// Polls per clock reading: about 1 µs.
const POLLS: u32 = 32;

impl Bursts {
    /// Creates an account for `count` peers on the cores that this thread may use.
    #[must_use]
    pub fn new(count: u32) -> Self {
        let plan = Adaptive::default().plan_wait(&WaitSituation::new(peers(count), costs()));
        let spin_costs = SpinCosts { spin: plan.spin.min(plan.burst), sleep: plan.sleep };
        let balance = SpinBalance::optimistic(&spin_costs).balance();
        Self { spin_costs, balance: AtomicU64::new(balance.cast_unsigned()) }
    }

    /// Returns whether a burst is worth while, judged by the results of earlier ones.
    pub fn spinning_pays(&self) -> bool {
        let spin_balance = self.spin_balance();
        if !spin_balance.is_positive() {
            self.settle(spin_balance, amount(self.spin_costs.spin / SKIPS));
        }
        spin_balance.is_positive()
    }

    /// Polls until `is_there` returns true or the burst is over: at most as long as a sleep is
    /// measured to cost.
    pub fn spin(&self, mut is_there: impl FnMut() -> bool) -> bool {
        let mut begun = None;
        let mut taken = Duration::ZERO;
        while taken < self.spin_costs.spin {
            for _ in 0..if cfg!(loom) { 1 } else { POLLS } {
                if is_there() {
                    self.settle(
                        self.spin_balance(),
                        amount(self.spin_costs.sleep.saturating_sub(taken)),
                    );
                    return true;
                }
                pause();
            }
            if cfg!(loom) {
                break;
            }
            let now = monotonic_now();
            taken = now - *begun.get_or_insert(now);
        }
        self.settle(self.spin_balance(), -amount(self.spin_costs.spin));
        false
    }

    fn spin_balance(&self) -> SpinBalance {
        SpinBalance::of(self.balance.load(Ordering::Relaxed).cast_signed())
    }

    #[inline]
    fn settle(&self, mut spin_balance: SpinBalance, amount: i64) {
        let before = spin_balance;
        let _ = spin_balance.settle(amount, &self.spin_costs);
        if spin_balance != before {
            self.balance.store(spin_balance.balance().cast_unsigned(), Ordering::Relaxed);
        }
    }
}

/// Lets the core's other hardware thread run. Not in a model: after loom's own `spin_loop` the thread sees the newest
/// values, which would hide an exchange that does not order them.
fn pause() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

fn peers(count: u32) -> Peers {
    let cores = thread::available_parallelism().map_or(1, Into::into);
    Peers { count, cores: u32::try_from(cores).unwrap_or(u32::MAX) }
}

/// The policy, and what is known of the machine: from a server, or from this process's threads. Waiters on oversubscribed cores
/// yield regardless of other demand, so they do not measure it.
fn known(
    server: Option<&Server>,
    are_oversubscribed: bool,
    samples: bool,
) -> (Adaptive, Costs, Load) {
    match server {
        Some(server) => server.plans_waits(samples && !are_oversubscribed),
        None => (Adaptive::default(), costs(), Load::default()),
    }
}

/// The same for a waiter that shares nothing.
fn known_to_one(server: Option<&Server>, peers: Peers, samples: bool) -> (Adaptive, Costs, Load) {
    let (mut policy, costs, load) = known(server, peers.are_oversubscribed(), samples);
    if server.is_some_and(Server::is_virtual) {
        // A simulation moves its clock while all threads sleep: polls would be timed by the
        // machine's clock.
        policy.spin_max = Duration::ZERO;
    }
    (policy, costs, load)
}

/// The costs that this process's threads have measured; a model must not depend on them. In a crowd, sleeps cost more than the first measured
/// wake-up shows, so the delay is at least the default until it is measured.
fn costs() -> Costs {
    let usual = Costs::default();
    if cfg!(loom) {
        return usual;
    }
    let measured = of_threads().costs();
    Costs { wake_delay: measured.wake_delay.max(usual.wake_delay), ..measured }
}

/// Runs `sleep`, which returns the instant at which another thread woke this one, if one did. Measures the cost now and then,
/// for the waits of threads.
pub fn sleep_thread(sleep: impl FnOnce() -> Option<Instant>) {
    of_threads().thread_sleeps(sleep, monotonic_now);
}

/// The result of a burst.
enum SpinOutcome<T> {
    Ready(T),
    Paused,
    Sleep,
}

impl<T> SpinOutcome<T> {
    #[inline]
    fn into_poll(self, cx: &Context<'_>) -> Poll<Option<T>> {
        if let Self::Paused = self {
            cx.waker().wake_by_ref();
        }
        self.into()
    }
}

impl<T> From<SpinOutcome<T>> for Poll<Option<T>> {
    #[inline]
    fn from(outcome: SpinOutcome<T>) -> Self {
        match outcome {
            SpinOutcome::Ready(found) => Self::Ready(Some(found)),
            SpinOutcome::Paused => Self::Pending,
            SpinOutcome::Sleep => Self::Ready(None),
        }
    }
}

/// The effects of a burst on the machine; in tests, on a model of one.
trait SpinBackend {
    fn now(&mut self) -> Instant;
    fn spin_once(&mut self);
    fn yield_core(&mut self);
}

struct SystemBackend;

impl SpinBackend for SystemBackend {
    #[inline]
    fn now(&mut self) -> Instant {
        monotonic_now()
    }

    #[inline]
    fn spin_once(&mut self) {
        std::hint::spin_loop();
    }

    #[inline]
    fn yield_core(&mut self) {
        yield_now();
    }
}

/// The number of polls with progress that end a step: such polls take longer than empty ones.
const MOVES_MAX: u32 = 4;

/// Carries out one step and polls after each part; polls again at once if something moved.
#[inline]
fn carry_out<T>(
    step: SpinStep,
    poll: &mut impl FnMut() -> Probe<T>,
    backend: &mut impl SpinBackend,
) -> Probe<T> {
    let (count, gives) = match step {
        SpinStep::Spin(count) => (count, false),
        SpinStep::Yield(count) => (count, true),
        SpinStep::Pause | SpinStep::Sleep => return Probe::Pending,
    };
    let mut moves = 0;
    for _ in 0..count {
        if gives {
            backend.yield_core();
        } else {
            backend.spin_once();
        }
        loop {
            match poll() {
                Probe::Ready(found) => return Probe::Ready(found),
                Probe::Progress if moves == MOVES_MAX => return Probe::Progress,
                Probe::Progress => moves += 1,
                Probe::Pending => break,
            }
        }
    }
    if moves == 0 { Probe::Pending } else { Probe::Progress }
}

#[cfg(test)]
mod tests;
