//! The virtual-time host: one thread, a clock that jumps, and one seed for all randomness.
//!
//! Tasks run in an order that the seed draws; detection polls happen between them, also drawn. When
//! no task can run, the clock jumps to the next deadline. A run is a function of its seed: the
//! [trace](Simulation::trace_hash) of two runs with one seed is the same.

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use super::virtual_host::{Deadlock, SimulatedHost};
use crate::{
    clock::{Instant, VirtualClock},
    network::SimulatedNetwork,
    policy::Adaptive,
    server::Server,
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
    host: SimulatedHost,
    tasks: Vec<Option<SimulatedTask>>,
    woken: Arc<Mutex<Vec<usize>>>,
}

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
        Self {
            host: SimulatedHost::with_policy(seed, policy),
            tasks: Vec::new(),
            woken: Arc::new(Mutex::new(Vec::new())),
        }
    }

    /// Returns the simulated server.
    #[must_use]
    pub fn server(&self) -> &Server {
        self.host.server()
    }

    /// Returns the simulated network, of one node.
    #[must_use]
    pub fn network(&self) -> &SimulatedNetwork {
        self.host.network()
    }

    /// Returns the virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.host.now()
    }

    /// Returns the clock, for detectors that need their own.
    #[must_use]
    pub fn clock(&self) -> Arc<VirtualClock> {
        self.host.clock()
    }

    /// Returns the simulation's random numbers: values drawn from here are replayed with the seed.
    pub fn random(&mut self) -> &mut fastrand::Rng {
        self.host.random()
    }

    /// Returns a hash of everything that has happened: which task ran when, and what was detected.
    /// Two runs with the same seed have the same hash.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.host.trace_hash()
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
        let _entered = self.host.server().enter();
        let mut future = pin!(future);
        let main = self.waker(MAIN);
        main.wake_by_ref();
        loop {
            let Some(index) = self.next_woken() else {
                self.host.advance(|| !lock(&self.woken).is_empty())?;
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
        let timers = self.server().timers().clone();
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
        if self.host.random().bool() {
            self.host.detect();
        }
        let mut woken = lock(&self.woken);
        let count = woken.len();
        let drawn = (count > 0).then(|| woken.swap_remove(self.host.draw_below(count)));
        drop(woken);
        if let Some(index) = drawn {
            self.host.note_run(index as u64);
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
}
