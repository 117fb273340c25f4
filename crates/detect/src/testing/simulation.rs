//! The virtual-time host: one thread, a clock that jumps, and one seed for all randomness.
//!
//! Tasks run in an order that the seed draws; detection polls happen between them, also drawn. When
//! no task can run, the clock jumps to the next deadline. A run is a function of its seed: the
//! [trace](Simulation::trace_hash) of two runs with one seed is the same.

use std::{
    cell::RefCell,
    error::Error,
    fmt,
    future::Future,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use crate::{
    clock::{Clock, Instant, VirtualClock},
    detector::Flavor,
    policy::Adaptive,
    server::{Detected, Driver, Server},
    sync::{Arc, AtomicBool, Mutex, Ordering, lock},
};

/// A host in virtual time. Everything in it runs on the thread that created it.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use vigie_detect::{Instant, Simulation};
///
/// let mut simulation = Simulation::new(42);
/// let timers = simulation.server().timers().clone();
/// let begin = std::time::SystemTime::now();
/// simulation.block_on(async move {
///     // Waits an hour, in no time.
///     timers.wait(Instant::now() + Duration::from_secs(3600)).await
/// })??;
/// assert_eq!(simulation.now(), Instant::from_nanos(3_600_000_000_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Simulation {
    server: Server,
    driver: Driver,
    clock: Arc<VirtualClock>,
    tasks: Vec<Option<SimulatedTask>>,
    woken: Arc<Mutex<Vec<usize>>>,
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

struct SimulatedTask {
    future: Pin<Box<dyn Future<Output = ()>>>,
    waker: Arc<TaskWaker>,
}

impl fmt::Debug for SimulatedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedTask").finish_non_exhaustive()
    }
}

struct TaskWaker {
    index: usize,
    is_queued: AtomicBool,
    woken: Arc<Mutex<Vec<usize>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            lock(&self.woken).push(self.index);
        }
    }
}

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

/// The result of a simulated task, once it has one.
#[derive(Debug)]
pub struct Simulated<T> {
    result: Rc<RefCell<(Option<T>, Option<Waker>)>>,
}

impl<T> Future for Simulated<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut result = self.result.borrow_mut();
        match result.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                result.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// The index of the future that `block_on` drives.
const MAIN: usize = usize::MAX;

impl Simulation {
    /// Creates a simulated host whose clock starts at zero and whose randomness comes from `seed`.
    ///
    /// # Panics
    /// Never in practice: a virtual server needs no descriptor.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_policy(seed, Adaptive { timer_slack: Duration::ZERO, ..Adaptive::default() })
    }

    /// Like [`new`](Self::new), with a policy for everything that sets none of its own; timers then
    /// have its slack, whereas by default they fire exactly at their deadlines.
    ///
    /// # Panics
    /// Never in practice: a virtual server needs no descriptor.
    #[must_use]
    pub fn with_policy(seed: u64, policy: impl Into<Adaptive>) -> Self {
        let clock = Arc::new(VirtualClock::new());
        let shared: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let server = Server::new_virtual_with(Flavor::UserLevel, shared, policy.into())
            .expect("invariant: a virtual server asks the kernel for nothing");
        Self {
            driver: server.driver(),
            server,
            clock,
            tasks: Vec::new(),
            woken: Arc::new(Mutex::new(Vec::new())),
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

    /// Returns the simulation's random numbers: values drawn from here are replayed with the seed.
    pub fn random(&mut self) -> &mut fastrand::Rng {
        &mut self.random
    }

    /// Returns a hash of everything that has happened: which task ran when, and what was detected.
    /// Two runs with the same seed have the same hash.
    #[must_use]
    pub const fn trace_hash(&self) -> u64 {
        self.trace
    }

    /// Adds a task. It runs within [`block_on`](Self::block_on) and [`run`](Self::run).
    pub fn spawn<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> Simulated<T> {
        let result = Rc::new(RefCell::new((None, None::<Waker>)));
        let place = Rc::clone(&result);
        let future = Box::pin(async move {
            let value = future.await;
            let waker = {
                let mut place = place.borrow_mut();
                place.0 = Some(value);
                place.1.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        let waker = self.waker(self.tasks.len());
        waker.wake_by_ref();
        self.tasks.push(Some(SimulatedTask { future, waker }));
        Simulated { result }
    }

    /// Runs everything until `future` is ready.
    ///
    /// # Errors
    /// [`Deadlock`] if it can never become ready.
    pub fn block_on<T>(&mut self, future: impl Future<Output = T>) -> Result<T, Deadlock> {
        let _entered = self.server.enter();
        let mut future = pin!(future);
        let main = self.waker(MAIN);
        main.wake_by_ref();
        loop {
            let Some(index) = self.next_woken() else {
                self.advance()?;
                continue;
            };
            if index == MAIN {
                main.is_queued.store(false, Ordering::Release);
                let waker = Waker::from(Arc::clone(&main));
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(value) = polled {
                    lock(&self.woken).retain(|&index| index != MAIN);
                    return Ok(value);
                }
            } else {
                self.poll_task(index);
            }
        }
    }

    /// Runs everything until no task can run and no deadline is left, or for `duration`.
    pub fn run(&mut self, duration: Duration) {
        let timers = self.server.timers().clone();
        let deadline = self.now() + duration;
        // The timer's own deadline ends the run; everything else happens before.
        let ended = self.block_on(async move { timers.wait(deadline).await });
        debug_assert!(ended.is_ok(), "invariant: a timer is always reached");
    }

    fn waker(&self, index: usize) -> Arc<TaskWaker> {
        let is_queued = AtomicBool::new(false);
        Arc::new(TaskWaker { index, is_queued, woken: Arc::clone(&self.woken) })
    }

    /// Draws one of the woken tasks, and sometimes a poll before it.
    fn next_woken(&mut self) -> Option<usize> {
        if self.random.bool() {
            self.detect();
        }
        let mut woken = lock(&self.woken);
        let count = woken.len();
        let drawn = (count > 0).then(|| woken.swap_remove(self.random.usize(..count)));
        drop(woken);
        if let Some(index) = drawn {
            self.note(index as u64);
            self.idle_steps = 0;
            self.rings = 0;
        }
        drawn
    }

    fn poll_task(&mut self, index: usize) {
        let Some(mut task) = self.tasks[index].take() else { return };
        task.waker.is_queued.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(&task.waker));
        if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.tasks[index] = Some(task);
        }
    }

    fn detect(&mut self) {
        if let Detected::Events(count) = self.driver.detect() {
            self.note(count as u64);
        }
    }

    /// With nothing to run: arms, polls once more, and jumps to the next deadline.
    fn advance(&mut self) -> Result<(), Deadlock> {
        let prepared = self.driver.prepare();
        match prepared {
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
            Ok(None) if !lock(&self.woken).is_empty() => Ok(()),
            Ok(None) => Err(Deadlock { now: self.now(), seed: self.seed }),
        }
    }

    fn note(&mut self, value: u64) {
        // FNV-1a over words: only the order and the values matter.
        self.trace = (self.trace ^ value).wrapping_mul(0x0000_0100_0000_01B3);
    }
}
