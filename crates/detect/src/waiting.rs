//! Waits for peers: look, give the core away, sleep, on a thread or inside of a future.

use std::{
    fmt,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    clock::{Instant, monotonic_now},
    policy::{
        Account, Adaptive, Costs, Load, Peers, Policy, Stage, Stakes, Step, WaitSituation, Waits,
        amount, of_threads,
    },
    server::Server,
    sync::{AtomicU64, Ordering, thread, yield_now},
};

/// One who waits for peers again and again, and learns how.
///
/// A [`Stage`] says what comes next, by the plan of a [`Policy`]; this carries it out, on a thread
/// ([`look_blocking`](Self::look_blocking)) or inside of a future of any executor ([`poll_look`](Self::poll_look)). The sleep
/// itself is the caller's, who says when it is over ([`slept`](Self::slept)).
///
/// # Cost
/// A wait that finds what it waits for in its first step does not look at the clock.
pub struct Waiter {
    waits: Waits,
    /// Of the wait that is under way, or paused.
    stage: Option<Stage>,
    began: Option<Instant>,
    /// Who knows the machine. Without one, the process's threads do.
    server: Option<Server>,
}

impl Waiter {
    /// Makes one for `count` peers on the cores that this thread may use, which are attended by no server: threads. It looks at the
    /// clock once in so many `looks`.
    #[must_use]
    pub fn new(count: u32, looks: u32) -> Self {
        Self::build(count, looks, None)
    }

    /// Makes one that waits by the policy of `server`, and by what that knows of the machine.
    #[must_use]
    pub fn at(server: &Server, count: u32, looks: u32) -> Self {
        Self::build(count, looks, Some(server.clone()))
    }

    fn build(count: u32, looks: u32, server: Option<Server>) -> Self {
        let peers = peers(count);
        let (policy, costs, _) = known(server.as_ref(), peers.are_crowded());
        let waits = Waits::new(&policy, &WaitSituation::new(peers, costs), looks);
        Self { waits, stage: None, began: None, server }
    }

    /// Begins a wait: whatever was left of the one before is forgotten.
    #[inline]
    pub fn begin(&mut self) {
        self.stage = None;
        self.began = None;
    }

    /// Looks until `look` finds something, or until it is time to sleep: `None`. Blocks the thread.
    #[inline]
    pub fn look_blocking<T>(&mut self, look: impl FnMut() -> Option<T>) -> Option<T> {
        match self.turn(false, look, &mut Machine) {
            Turn::Found(found) => Some(found),
            Turn::Paused | Turn::Sleep => None,
        }
    }

    /// Does what one poll may: a burst of looks no longer than a sleep is measured to cost and never over 20 µs, in which the
    /// core is given away as often as there is room for, or once. `Ready(None)`: it is time to sleep. Else the waker of `cx` is
    /// called, so that others run before the next burst.
    #[inline]
    pub fn poll_look<T>(
        &mut self,
        cx: &Context<'_>,
        look: impl FnMut() -> Option<T>,
    ) -> Poll<Option<T>> {
        self.poll_in(cx, look, &mut Machine)
    }

    #[inline]
    fn poll_in<T>(
        &mut self,
        cx: &Context<'_>,
        look: impl FnMut() -> Option<T>,
        world: &mut impl World,
    ) -> Poll<Option<T>> {
        match self.turn(true, look, world) {
            Turn::Found(found) => Poll::Ready(Some(found)),
            Turn::Paused => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Turn::Sleep => Poll::Ready(None),
        }
    }

    /// The sleep is over, and what was waited for is there: learns from how long that took.
    pub fn slept(&mut self) {
        let Some(began) = self.began.take() else { return };
        let now = monotonic_now();
        let (policy, costs, load) = known(self.server.as_ref(), self.waits.are_crowded());
        let situation = |peers| WaitSituation { load, ..WaitSituation::new(peers, costs) };
        self.waits.slept((began, now), &policy, situation);
    }

    /// Plans the next wait anew: who else wants the core may have changed.
    fn plan(&mut self, now: Instant) {
        let (policy, costs, load) = known(self.server.as_ref(), self.waits.are_crowded());
        let situation = |peers| WaitSituation { load, ..WaitSituation::new(peers, costs) };
        self.waits.plan(now, &policy, situation);
    }

    #[inline]
    fn turn<T>(
        &mut self,
        has_turns: bool,
        mut look: impl FnMut() -> Option<T>,
        world: &mut impl World,
    ) -> Turn<T> {
        if let Some(found) = look() {
            if let Some(stage) = self.stage.take() {
                self.waits.found(&stage);
            }
            return Turn::Found(found);
        }
        if self.stage.is_none() {
            let first = self.waits.first(has_turns);
            if let Some(stage) = self.waits.begin_timed(has_turns, first, || world.now()) {
                return self.timed(stage, first, look, world);
            }
            if let Some(found) = carry_out(first, &mut look, world) {
                self.waits.found_first();
                return Turn::Found(found);
            }
            self.stage = Some(self.waits.begin(has_turns, first));
            if first == Step::Sleep {
                return self.give_up(world);
            }
        } else if let Some(stage) = &mut self.stage {
            stage.begin_turn();
        }
        self.go_on(look, world)
    }

    /// A turn whose first step is timed.
    #[cold]
    fn timed<T>(
        &mut self,
        mut stage: Stage,
        first: Step,
        mut look: impl FnMut() -> Option<T>,
        world: &mut impl World,
    ) -> Turn<T> {
        let found = carry_out(first, &mut look, world);
        if let Some(found) = found {
            let now = world.now();
            stage.note(now);
            self.waits.found(&stage);
            if !self.waits.are_crowded() {
                self.plan(now);
            }
            return Turn::Found(found);
        }
        self.stage = Some(stage);
        self.go_on(look, world)
    }

    /// The rest of a turn, whose first step has found nothing.
    fn go_on<T>(&mut self, mut look: impl FnMut() -> Option<T>, world: &mut impl World) -> Turn<T> {
        while let Some(stage) = &mut self.stage {
            let now = world.now();
            self.began.get_or_insert(now);
            let step = stage.next(now);
            match step {
                Step::Pause => return Turn::Paused,
                Step::Sleep => break,
                Step::Look(_) | Step::GiveAway(_) => {}
            }
            if let Some(found) = carry_out(step, &mut look, world) {
                self.waits.found(stage);
                self.stage = None;
                return Turn::Found(found);
            }
        }
        self.give_up(world)
    }

    #[cold]
    fn give_up<T>(&mut self, world: &mut impl World) -> Turn<T> {
        if let Some(stage) = self.stage.take() {
            self.waits.gave_up(&stage);
        }
        self.began.get_or_insert_with(|| world.now());
        Turn::Sleep
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("waits", &self.waits).field("stage", &self.stage).finish()
    }
}

/// One burst of looks of whoever comes last of several that share a place, before it leaves the rest to a wake-up: in no poll is there
/// more. Shared by threads.
#[derive(Debug)]
pub struct Bursts {
    stakes: Stakes,
    /// The account's balance. `Relaxed`: a hint, and what one of two that write at once has learnt may be lost.
    balance: AtomicU64,
}

/// So many times that a burst is left out buy one.
const SKIPS: u32 = 16;

/// Looks for each look at the clock: about 1 µs.
const LOOKS: u32 = 32;

impl Bursts {
    /// Makes one for `count` peers on the cores that this thread may use.
    #[must_use]
    pub fn new(count: u32) -> Self {
        let plan = Adaptive::default().plan_wait(&WaitSituation::new(peers(count), costs()));
        let stakes = Stakes { spin: plan.look.min(plan.turn), sleep: plan.sleep };
        let balance = Account::hopeful(&stakes).balance();
        Self { stakes, balance: AtomicU64::new(balance.cast_unsigned()) }
    }

    /// Returns whether a burst is worth while, by what came of those before.
    pub fn is_hopeful(&self) -> bool {
        let account = self.account();
        if !account.is_positive() {
            self.settle(account, amount(self.stakes.spin / SKIPS));
        }
        account.is_positive()
    }

    /// Looks until `is_there`, or until the burst is over: no longer than a sleep is measured to cost.
    pub fn look(&self, mut is_there: impl FnMut() -> bool) -> bool {
        let mut begun = None;
        let mut taken = Duration::ZERO;
        while taken < self.stakes.spin {
            for _ in 0..if cfg!(loom) { 1 } else { LOOKS } {
                if is_there() {
                    self.settle(self.account(), amount(self.stakes.sleep.saturating_sub(taken)));
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
        self.settle(self.account(), -amount(self.stakes.spin));
        false
    }

    fn account(&self) -> Account {
        Account::of(self.balance.load(Ordering::Relaxed).cast_signed())
    }

    #[inline]
    fn settle(&self, mut account: Account, amount: i64) {
        let before = account;
        let _ = account.settle(amount, &self.stakes);
        if account != before {
            self.balance.store(account.balance().cast_unsigned(), Ordering::Relaxed);
        }
    }
}

/// Lets the other hardware thread of the core run. Not in a model: loom's own has the thread find the newest values after
/// it, and would hide an exchange that does not order them.
fn pause() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

fn peers(count: u32) -> Peers {
    let cores = thread::available_parallelism().map_or(1, Into::into);
    Peers { count, cores: u32::try_from(cores).unwrap_or(u32::MAX) }
}

/// The policy, and what is known of the machine: by a server, or by this process's threads. Those who are crowded give the core
/// away whoever else wants it, and need not ask.
fn known(server: Option<&Server>, are_crowded: bool) -> (Adaptive, Costs, Load) {
    match server {
        Some(server) => server.plans_waits(!are_crowded),
        None => (Adaptive::default(), costs(), Load::default()),
    }
}

/// What this process's threads have measured; a model's must not depend on that. A crowd's sleeps are dearer than the first of those
/// that are woken shows, so that the delay is not taken for less than it is thought to be before it is measured.
fn costs() -> Costs {
    let usual = Costs::default();
    if cfg!(loom) {
        return usual;
    }
    let measured = of_threads().costs();
    Costs { wake_delay: measured.wake_delay.max(usual.wake_delay), ..measured }
}

/// Lets this thread sleep in `sleep`, which returns when another one woke it, if one did: what that costs is measured now and
/// then, for the waits of threads.
pub fn sleep_thread(sleep: impl FnOnce() -> Option<Instant>) {
    of_threads().thread_sleeps(sleep, monotonic_now);
}

/// What became of a turn.
enum Turn<T> {
    Found(T),
    Paused,
    Sleep,
}

/// What a turn does to the machine; in tests, to a model of one.
trait World {
    fn now(&mut self) -> Instant;
    fn wait_a_little(&mut self);
    fn give_away(&mut self);
}

struct Machine;

impl World for Machine {
    #[inline]
    fn now(&mut self) -> Instant {
        monotonic_now()
    }

    #[inline]
    fn wait_a_little(&mut self) {
        std::hint::spin_loop();
    }

    #[inline]
    fn give_away(&mut self) {
        yield_now();
    }
}

/// Does what a step says, and looks after each part.
#[inline]
fn carry_out<T>(
    step: Step,
    look: &mut impl FnMut() -> Option<T>,
    world: &mut impl World,
) -> Option<T> {
    match step {
        Step::Look(count) => (0..count).find_map(|_| {
            world.wait_a_little();
            look()
        }),
        Step::GiveAway(count) => (0..count).find_map(|_| {
            world.give_away();
            look()
        }),
        Step::Pause | Step::Sleep => None,
    }
}

#[cfg(test)]
mod tests;
