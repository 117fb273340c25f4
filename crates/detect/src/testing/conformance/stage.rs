//! The suite as its own host: a server, its driver and one harness, driven step by step.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use super::{
    At, EventIdentity, Harness, Rule, SetupError, Trigger, Violation, World, ledger::Ledger,
};
use crate::{
    clock::{Clock, Instant, VirtualClock},
    detector::{Detector, Flavor},
    error::WaitError,
    server::{Detected, Driver, Server, Wait},
    sync::{Arc, AtomicBool, Ordering},
};

/// The kind of host that the suite plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Virtual,
    Real,
}

impl Host {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Virtual => "virtual",
            Self::Real => "real",
        }
    }
}

/// The number of steps in virtual time after which an event counts as lost: enough for a polled
/// detector whose polls have become rare.
const STEPS_MAX: usize = 10_000;

/// A step between a host's preparation and its sleep. Returns whether the host may as well stay
/// awake.
pub(super) type Between<'a> = Box<dyn FnOnce() -> bool + 'a>;

/// The result of one step of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slept {
    /// Something announced itself, or the host did not get to sleep.
    Awake,
    /// Nothing could wake the host any more; on a real host, only the guard.
    ForEver,
}

/// A flag as a waker.
#[derive(Debug)]
pub(super) struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Flag {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(false)))
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Call before a poll, so that a wake-up during the poll is not lost.
    pub(super) fn clear(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A wait driven by the suite.
#[derive(Debug)]
pub(super) struct TestWaiter<D: Detector> {
    pub(super) index: usize,
    wait: Wait<D>,
    flag: Arc<Flag>,
}

impl<D: Detector> TestWaiter<D> {
    pub(super) fn is_woken(&self) -> bool {
        self.flag.is_set()
    }

    pub(super) fn poll(&mut self) -> Poll<Result<D::Event, WaitError>> {
        self.flag.clear();
        let waker = Waker::from(Arc::clone(&self.flag));
        Pin::new(&mut self.wait).poll(&mut Context::from_waker(&waker))
    }
}

pub(super) struct CaseRunner<H: Harness> {
    pub(super) harness: H,
    pub(super) ledger: Ledger,
    pub(super) random: fastrand::Rng,
    pub(super) at: At,
    pub(super) server: Server,
    pub(super) waits: u64,
    pub(super) cancelled: u64,
    /// For streams; those of waits are in the ledger.
    pub(super) events: u64,
    clock: Option<Arc<VirtualClock>>,
    driver: Driver,
    guard: Duration,
}

impl<H: Harness> CaseRunner<H> {
    pub(super) fn new(
        factory: &mut impl FnMut(&World) -> Result<H, SetupError>,
        host: Host,
        guard: Duration,
        at: At,
    ) -> Result<Self, Violation> {
        let clock = (host == Host::Virtual).then(|| Arc::new(VirtualClock::new()));
        let server = match &clock {
            Some(clock) => {
                let clock: Arc<dyn Clock> = Arc::<VirtualClock>::clone(clock);
                Server::new_virtual(Flavor::UserLevel, clock)
            }
            None => Server::new(Flavor::UserLevel),
        };
        let server = server.map_err(|error| Violation::Setup { error: error.into(), at })?;
        let world = World::new(server.clone(), clock.clone(), at.seed);
        let harness = factory(&world).map_err(|error| Violation::Setup { error, at })?;
        Ok(Self {
            ledger: Ledger::new(harness.profile()),
            harness,
            random: fastrand::Rng::with_seed(at.seed),
            at,
            driver: server.driver(),
            server,
            waits: 0,
            cancelled: 0,
            events: 0,
            clock,
            guard,
        })
    }

    /// Makes request `index`, not yet polled.
    pub(super) fn request(&mut self, index: usize) -> TestWaiter<H::Detector> {
        let request = self.harness.request(index);
        self.waits += 1;
        TestWaiter { index, wait: self.harness.handle().wait_owned(request), flag: Flag::new() }
    }

    /// Makes request `index` and polls it once. `None` if it had its event at once.
    pub(super) fn wait(
        &mut self,
        index: usize,
    ) -> Result<Option<TestWaiter<H::Detector>>, Violation> {
        let mut waiter = self.request(index);
        Ok(if self.take(&mut waiter)? { None } else { Some(waiter) })
    }

    /// Makes request `index`, whose event has not happened, and polls it once.
    pub(super) fn pending(&mut self, index: usize) -> Result<TestWaiter<H::Detector>, Violation> {
        let at = self.at;
        self.wait(index)?.ok_or_else(|| {
            let saw = "it was ready at once".to_owned();
            Violation::Spurious { request: index, saw, at }
        })
    }

    /// Polls a wait; returns whether it had its event, which is then recorded.
    pub(super) fn take(&mut self, waiter: &mut TestWaiter<H::Detector>) -> Result<bool, Violation> {
        let polled = waiter.poll();
        self.inspect()?;
        match polled {
            Poll::Pending => Ok(false),
            Poll::Ready(ended) => self.enter(waiter.index, ended).map(|()| true),
        }
    }

    /// Records the end of request `index`.
    pub(super) fn enter(
        &mut self,
        index: usize,
        ended: Result<<H::Detector as Detector>::Event, WaitError>,
    ) -> Result<(), Violation> {
        let event = ended.map_err(|error| failed(index, error, self.at))?;
        let identity = self.harness.identify(index, event);
        self.ledger.deliver(index, identity, self.at)
    }

    /// Makes the next event happen.
    pub(super) fn happen(&mut self) -> Result<(), Violation> {
        let trigger = self.next_trigger();
        trigger();
        self.inspect()
    }

    /// Returns the trigger of the next event for the caller to call.
    pub(super) fn next_trigger(&mut self) -> Trigger {
        let index = self.ledger.happened;
        self.ledger.happened += 1;
        self.harness.trigger(index)
    }

    pub(super) fn cancel(&mut self, waiter: TestWaiter<H::Detector>) -> Result<(), Violation> {
        self.ledger.left(waiter.is_woken());
        self.cancelled += 1;
        drop(waiter);
        self.inspect()
    }

    /// One poll pass.
    pub(super) fn poll_pass(&mut self) -> Result<(), Violation> {
        self.driver.detect();
        self.inspect()
    }

    /// Sleeps like a host with nothing to run; `between` runs after it has prepared for the sleep.
    pub(super) fn sleep(
        &mut self,
        between: Option<Between<'_>>,
        until_next: Option<Instant>,
    ) -> Result<Slept, Violation> {
        if let Detected::Events(_) = self.driver.detect()
            && between.is_none()
        {
            self.inspect()?;
            return Ok(Slept::Awake);
        }
        let mut between = between;
        let slept = match self.clock.clone() {
            Some(clock) => self.sleep_virtually(&clock, &mut between, until_next),
            None => {
                let until = self.server.now() + self.guard;
                self.driver
                    .park_unless(Some(until), || between.take().is_some_and(|between| between()));
                // A host that wakes up because its time is over finds events too late.
                if self.server.now() >= until { Slept::ForEver } else { Slept::Awake }
            }
        };
        // The host found something to do and did not go to sleep.
        if let Some(between) = between {
            between();
        }
        self.inspect()?;
        Ok(slept)
    }

    fn sleep_virtually(
        &mut self,
        clock: &VirtualClock,
        between: &mut Option<Between<'_>>,
        until_next: Option<Instant>,
    ) -> Slept {
        let Ok(deadline) = self.driver.prepare() else { return Slept::Awake };
        if let Some(between) = between.take() {
            between();
        }
        if !self.driver.is_due(clock.now()) {
            match deadline {
                Some(deadline) if until_next.is_none_or(|next| deadline < next) => {
                    clock.advance_to(deadline);
                }
                _ => return Slept::ForEver,
            }
        }
        self.driver.detect();
        Slept::Awake
    }

    /// Returns whether the host can sleep, perhaps after work of the detector's own.
    pub(super) fn can_sleep(&mut self) -> Result<bool, Violation> {
        for _ in 0..STEPS_MAX {
            let prepared = self.driver.prepare();
            self.driver.detect();
            self.inspect()?;
            let now = self.server.now();
            if prepared.is_ok_and(|deadline| deadline.is_none_or(|deadline| deadline > now)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Runs the host until `is_done`. Returns whether that happened.
    pub(super) fn settle(&mut self, is_done: impl Fn(&Self) -> bool) -> Result<bool, Violation> {
        // The clock must not reach the next event of a detector of time, which has not happened
        // yet.
        let until_next = self.harness.happens_at(self.ledger.happened);
        for _ in 0..STEPS_MAX {
            if is_done(self) {
                return Ok(true);
            }
            if self.sleep(None, until_next)? == Slept::ForEver {
                return Ok(false);
            }
        }
        Ok(is_done(self))
    }

    /// Runs the host until `waiter` has its event, which it must receive.
    pub(super) fn expect_event(
        &mut self,
        waiter: TestWaiter<H::Detector>,
        rule: Rule,
    ) -> Result<(), Violation> {
        let mut waiter = waiter;
        while self.settle(|_| waiter.is_woken())? {
            if self.take(&mut waiter)? {
                return Ok(());
            }
        }
        let saw = if self.take(&mut waiter)? {
            "it was ready, but its task was woken too late or not at all"
        } else {
            "nothing could happen any more, and it was still pending"
        };
        Err(self.lost(rule, waiter.index, saw))
    }

    /// Like [`expect_event`](Self::expect_event), for a wait that may already be over.
    pub(super) fn expect_end(
        &mut self,
        waiter: Option<TestWaiter<H::Detector>>,
        rule: Rule,
    ) -> Result<(), Violation> {
        waiter.map_or(Ok(()), |waiter| self.expect_event(waiter, rule))
    }

    /// A few polls, after which `waiter` must still be pending.
    pub(super) fn expect_pending(
        &mut self,
        waiter: &mut TestWaiter<H::Detector>,
    ) -> Result<(), Violation> {
        for _ in 0..3 {
            self.poll_pass()?;
            if self.take(waiter)? {
                let saw = "the ledger owes it none".to_owned();
                return Err(Violation::Spurious { request: waiter.index, saw, at: self.at });
            }
        }
        Ok(())
    }

    /// Polls the detector directly, whether or not anything is pending.
    pub(super) fn poll_idly(&mut self) -> Result<(), Violation> {
        for _ in 0..3 {
            self.harness.handle().poll_now();
        }
        self.poll_pass()
    }

    /// Lets everything that is over be collected, and checks that it was.
    pub(super) fn expect_nothing_left(&mut self) -> Result<(), Violation> {
        let is_collected =
            |stage: &Self| stage.harness.memory().is_none_or(|memory| memory.live == 0);
        if is_collected(self) {
            return Ok(());
        }
        // A host that can only sleep has had its last poll with the first step.
        self.settle(is_collected)?;
        match self.harness.memory() {
            Some(memory) if memory.live > 0 => {
                Err(Violation::Lingering { live: memory.live, at: self.at })
            }
            _ => Ok(()),
        }
    }

    /// Checks that no memory is freed too early.
    pub(super) fn inspect(&self) -> Result<(), Violation> {
        match self.harness.memory() {
            Some(memory) if memory.freed_in_flight > 0 => {
                Err(Violation::FreedInFlight { count: memory.freed_in_flight, at: self.at })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn lost(&self, rule: Rule, request: usize, saw: &str) -> Violation {
        Violation::EventLost { rule, request, saw: saw.to_owned(), at: self.at }
    }

    /// Makes the next event happen exactly between the host's preparation and its sleep.
    pub(super) fn happen_before_sleep(&mut self) -> Result<Slept, Violation> {
        let until_next = self.harness.happens_at(self.ledger.happened + 1);
        let trigger = self.next_trigger();
        self.sleep(Some(happens(trigger)), until_next)
    }

    pub(super) fn identify_stream(
        &mut self,
        event: <H::Detector as Detector>::Event,
    ) -> EventIdentity {
        self.harness.identify_stream(event)
    }
}

/// Wraps a trigger as a step before a sleep.
pub(super) fn happens(trigger: Trigger) -> Between<'static> {
    Box::new(|| {
        trigger();
        false
    })
}

/// A wait ended with an error without a cause.
pub(super) fn failed(request: usize, error: WaitError, at: At) -> Violation {
    match error {
        WaitError::Panicked { callback, message } => Violation::Panicked { callback, message, at },
        error => Violation::Failed { request, error, at },
    }
}
