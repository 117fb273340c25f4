//! The core of every host in virtual time: a server, a clock that jumps, and one seed for all randomness. Who runs the
//! tasks is left to its owner: [`Simulation`](super::Simulation), or a runtime of [`Flavor::Simulated`].

use std::{error::Error, fmt, time::Duration};

use crate::{
    clock::{Clock, Instant, VirtualClock},
    detector::Flavor,
    policy::Adaptive,
    server::{Detected, Driver, Server},
    sync::Arc,
};

/// A server in virtual time, with its driver, its clock and its randomness. For schedulers: they run tasks, and call
/// [`advance`](Self::advance) when none can run.
#[derive(Debug)]
pub struct VirtualHost {
    server: Server,
    driver: Driver,
    clock: Arc<VirtualClock>,
    random: fastrand::Rng,
    seed: u64,
    trace: u64,
    /// Steps since a task could last run.
    idle_steps: u32,
    /// Notifications answered since then, and since the clock last moved.
    rings: u32,
}

/// The cost of a look in virtual time if nothing else lets time pass: for a host that polls without
/// a pause.
const LOOK_COST: Duration = Duration::from_micros(1);

/// After this many steps in which only polls moved the clock, nothing will come of them.
const IDLE_STEPS_MAX: u32 = 100_000;

/// After this many notifications in a row without a task being woken, the clock moves anyway: a notifier may never stop.
const RINGS_MAX: u32 = 10_000;

/// Nothing can happen any more, and the simulation has not reached its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlock {
    /// The time at which nothing could happen any more.
    pub now: Instant,
    /// The seed that leads here.
    pub seed: u64,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { now, seed } = self;
        write!(
            f,
            "deadlock at {now:?} of the simulation with seed {seed}: no task can run, no event can come"
        )
    }
}

impl Error for Deadlock {}

impl VirtualHost {
    /// Creates a host whose clock starts at zero and whose randomness comes from `seed`. Timers fire exactly at their
    /// deadlines.
    ///
    /// # Panics
    /// Never in practice: a virtual server needs no descriptor.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_policy(seed, Adaptive { timer_slack: Duration::ZERO, ..Adaptive::default() })
    }

    /// Like [`new`](Self::new), with a policy for everything that sets none of its own; timers then have its slack.
    ///
    /// # Panics
    /// Never in practice: a virtual server needs no descriptor.
    #[must_use]
    pub fn with_policy(seed: u64, policy: impl Into<Adaptive>) -> Self {
        let clock = Arc::new(VirtualClock::new());
        let shared: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let server = Server::new_virtual_with(Flavor::Simulated { seed }, shared, policy.into())
            .expect("invariant: a virtual server asks the kernel for nothing");
        Self {
            driver: server.driver(),
            server,
            clock,
            random: fastrand::Rng::with_seed(seed),
            seed,
            trace: seed,
            idle_steps: 0,
            rings: 0,
        }
    }

    /// Returns the simulated server.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns the clock, for detectors that need their own.
    #[must_use]
    pub fn clock(&self) -> Arc<VirtualClock> {
        Arc::clone(&self.clock)
    }

    /// Returns the random numbers: values drawn from here are replayed with the seed.
    pub const fn random(&mut self) -> &mut fastrand::Rng {
        &mut self.random
    }

    /// Returns a hash of everything that was noted: which task ran when, and what was detected.
    #[must_use]
    pub const fn trace_hash(&self) -> u64 {
        self.trace
    }

    /// Notes in the trace that a task runs, which the owner knows by `number`.
    pub fn note_run(&mut self, number: u64) {
        self.note(number);
        self.idle_steps = 0;
        self.rings = 0;
    }

    /// Looks for events and wakes the tasks that wait for them.
    pub fn detect(&mut self) {
        if let Detected::Events(count) = self.driver.detect() {
            self.note(count as u64);
        }
    }

    /// With nothing to run: arms, polls once more, and jumps to the next deadline. `has_ready` tells whether a task has
    /// become ready meanwhile.
    ///
    /// # Errors
    /// [`Deadlock`] if nothing can happen any more.
    pub fn advance(&mut self, has_ready: impl FnOnce() -> bool) -> Result<(), Deadlock> {
        match self.driver.prepare() {
            Err(_) => Ok(()),
            // It would not sleep: there was a notification before, or while the others were armed.
            Ok(_) if self.driver.is_notified() && self.rings < RINGS_MAX => {
                self.rings += 1;
                self.detect();
                Ok(())
            }
            Ok(Some(deadline)) => {
                // An endless self-notifier gets no more polls without time passing, until a task
                // runs.
                if self.rings < RINGS_MAX {
                    self.rings = 0;
                }
                let now = self.now();
                let next = self.driver.next_deadline().filter(|&next| next > now);
                self.idle_steps += 1;
                if self.idle_steps > IDLE_STEPS_MAX && next.is_none() {
                    return Err(Deadlock { now, seed: self.seed });
                }
                self.clock.advance_to(deadline);
                if deadline <= now && self.idle_steps > 2 {
                    // Not notified, but polled without a pause.
                    self.clock.advance_to(next.unwrap_or(Instant::MAX).min(now + LOOK_COST));
                }
                self.note(self.now().as_nanos());
                self.detect();
                Ok(())
            }
            Ok(None) if has_ready() => Ok(()),
            Ok(None) => Err(Deadlock { now: self.now(), seed: self.seed }),
        }
    }

    /// Lets `time` pass, and looks.
    pub fn elapse(&mut self, time: Duration) {
        self.clock.advance(time);
        self.detect();
    }

    fn note(&mut self, value: u64) {
        // FNV-1a over words: only the order and the values matter.
        self.trace = (self.trace ^ value).wrapping_mul(0x0000_0100_0000_01B3);
    }
}
