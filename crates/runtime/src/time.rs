//! Sleeps, time-outs and intervals, on the timers of the detection server.

use std::{
    error::Error,
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use vigie_detect::{Server, Timers, Wait, budget};

pub use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Errors, where tokio has them.
pub mod error {
    pub use super::Elapsed;
}

pub use vigie_detect::Instant;

use crate::handle::{Handle, Scheduler};

/// Returns the time of day: [`SystemTime::now`], or what the wall clock of the node shows in a
/// [simulation](crate::simulation). That one begins on 1 January 2026, 00:00 UTC, and jumps and drifts when a test
/// [wants it](crate::simulation::Node::clock_forward).
///
/// It may go backward, as every wall clock may: measure durations with [`Instant`].
///
/// # Examples
/// ```
/// use vigie_runtime::{Flavor, Runtime, time};
///
/// let runtime = Runtime::builder().flavor(Flavor::Simulated { seed: 0 }).build()?;
/// let begin = runtime.block_on(async { time::system_time() });
/// assert_eq!(begin.duration_since(time::UNIX_EPOCH)?.as_secs(), 1_767_225_600);
/// assert!(time::system_time() != begin, "the real time");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn system_time() -> SystemTime {
    match Handle::try_current().map(|handle| handle.scheduler) {
        Ok(Scheduler::Simulated(shared)) => shared.machine.clock.now(),
        _ => SystemTime::now(),
    }
}

/// Waits for `duration` from this call on. Does not wait if that time has passed already, as with zero.
///
/// # Cost
/// Wakes late by the latency of the kernel's timer (some 50 µs on an idle machine) plus at most the
/// [slack](Sleep::slack); never early. No allocation, unless more timers are pending than at any recent time.
///
/// # Cancel safety
/// Cancel safe.
///
/// # Panics
/// The future panics if it has to wait where there is no detection server, or after the server's shutdown.
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(Instant::now() + duration)
}

/// Waits until `deadline`: see [`sleep`].
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, slack: None, wait: None }
}

/// The future of [`sleep`] and [`sleep_until`].
#[must_use = "nothing is waited for before the future is polled"]
pub struct Sleep {
    deadline: Instant,
    /// `None`: the runtime's default.
    slack: Option<Duration>,
    /// `Some` while the sleep waits.
    wait: Option<Wait<Timers>>,
}

impl Sleep {
    /// Returns when the sleep ends.
    #[must_use]
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns whether the deadline has passed.
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        self.deadline <= Instant::now()
    }

    /// Sets how much later than the deadline the sleep may end, besides delays of the machine, so that one
    /// wake-up can serve several timers. The default is [`Reactivity::timer_slack`] of the runtime: 50 µs by
    /// default, zero for low latency, 1 ms for low processor use.
    ///
    /// With more slack, many timers cost less. A lone timer is not delayed, nor is one that expires while
    /// tasks run and the scheduler polls for events anyway.
    ///
    /// [`Reactivity::timer_slack`]: crate::Reactivity::timer_slack
    pub fn slack(mut self, slack: Duration) -> Self {
        self.set_slack(Some(slack));
        self
    }

    fn set_slack(&mut self, slack: Option<Duration>) {
        self.slack = slack;
        self.wait = None;
    }

    /// Moves the end of the sleep, even if it has ended already.
    pub fn reset(&mut self, deadline: Instant) {
        self.deadline = deadline;
        self.wait = None;
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.wait.is_none() && this.deadline <= Instant::now() {
            // A loop of such sleeps never waits: it yields at the end of its budget.
            return budget::poll_proceed(cx);
        }
        let wait = this.wait.get_or_insert_with(|| match Server::current_timers() {
            Ok(timers) => {
                let wait = timers.wait_owned(this.deadline);
                match this.slack {
                    Some(slack) => wait.slack(slack),
                    None => wait,
                }
            }
            Err(error) => panic!("{error}"),
        });
        let ended = ready!(Pin::new(wait).poll(cx));
        this.wait = None;
        match ended {
            Ok(()) => Poll::Ready(()),
            Err(error) => panic!("the timer is gone: {error}"),
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// The time ran out before the future was ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time ran out before the future was ready")
    }
}

impl Error for Elapsed {}

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}

/// Limits `future` to `duration`.
///
/// # Cancel safety
/// As cancel safe as `future`, which is dropped with the time-out.
///
/// # Errors
/// [`Elapsed`] if the time runs out first.
pub fn timeout<F: IntoFuture>(duration: Duration, future: F) -> Timeout<F::IntoFuture> {
    timeout_at(Instant::now() + duration, future)
}

/// Limits `future` to the time until `deadline`: see [`timeout`].
///
/// # Errors
/// [`Elapsed`] if the deadline comes first.
pub fn timeout_at<F: IntoFuture>(deadline: Instant, future: F) -> Timeout<F::IntoFuture> {
    Timeout { future: future.into_future(), sleep: sleep_until(deadline) }
}

pin_project! {
    /// The future of [`timeout`].
    #[derive(Debug)]
    #[must_use = "nothing happens before the future is polled"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
    }
}

impl<F> Timeout<F> {
    /// Returns the future.
    #[must_use]
    pub const fn get_ref(&self) -> &F {
        &self.future
    }

    /// Returns the future.
    pub const fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }

    /// Returns the future, without its time limit.
    #[must_use]
    pub fn into_inner(self) -> F {
        self.future
    }

    /// Sets how much later than the deadline the time-out may fire: see [`Sleep::slack`].
    pub fn slack(mut self, slack: Duration) -> Self {
        self.sleep.set_slack(Some(slack));
        self
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(value) = this.future.poll(cx) {
            return Poll::Ready(Ok(value));
        }
        Pin::new(this.sleep).poll(cx).map(|()| Err(Elapsed))
    }
}

/// Makes an interval: the first tick is immediate, the next ones follow every `period`.
///
/// # Panics
/// Panics if `period` is zero.
#[must_use = "an interval ticks only when it is polled"]
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    interval_at(Instant::now(), period)
}

/// Makes an interval whose first tick is at `start`.
///
/// # Panics
/// Panics if `period` is zero.
#[must_use = "an interval ticks only when it is polled"]
#[track_caller]
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(!period.is_zero(), "the period of an interval must not be zero");
    Interval { sleep: sleep_until(start), period, missed: MissedTickBehavior::Burst }
}

/// The behaviour of an [`Interval`] when ticks were missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissedTickBehavior {
    /// Delivers missed ticks at once, so that the total number is right.
    #[default]
    Burst,
    /// Counts the next period from the late tick.
    Delay,
    /// Skips missed ticks and keeps the rhythm.
    Skip,
}

/// Ticks in a steady rhythm, from [`interval`].
#[derive(Debug)]
pub struct Interval {
    sleep: Sleep,
    period: Duration,
    missed: MissedTickBehavior,
}

impl Interval {
    /// Sets how missed ticks are handled. Default [`MissedTickBehavior::Burst`].
    pub const fn set_missed_tick_behavior(&mut self, missed: MissedTickBehavior) {
        self.missed = missed;
    }

    /// Returns how missed ticks are handled.
    #[must_use]
    pub const fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.missed
    }

    /// Puts the next tick off to one period from now.
    pub fn reset(&mut self) {
        self.reset_after(self.period);
    }

    /// Makes the next tick due now.
    pub fn reset_immediately(&mut self) {
        self.reset_at(Instant::now());
    }

    /// Makes the next tick due `after` from now.
    pub fn reset_after(&mut self, after: Duration) {
        self.reset_at(Instant::now() + after);
    }

    /// Makes the next tick due at `deadline`.
    pub fn reset_at(&mut self, deadline: Instant) {
        self.sleep.reset(deadline);
    }

    /// Sets how late each tick may come: see [`Sleep::slack`]. The rhythm stays the same.
    #[must_use]
    pub fn slack(mut self, slack: Duration) -> Self {
        self.sleep.set_slack(Some(slack));
        self
    }

    /// Returns the period.
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// Waits for the next tick and returns the time at which it was due.
    ///
    /// # Cancel safety
    /// Cancel safe: no tick is lost.
    pub async fn tick(&mut self) -> Instant {
        std::future::poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// The poll-style [`tick`](Self::tick).
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        ready!(Pin::new(&mut self.sleep).poll(cx));
        let due = self.sleep.deadline();
        self.sleep.reset(self.next_after(due, Instant::now()));
        Poll::Ready(due)
    }

    fn next_after(&self, due: Instant, now: Instant) -> Instant {
        let next = due + self.period;
        if next > now {
            return next;
        }
        match self.missed {
            MissedTickBehavior::Burst => next,
            MissedTickBehavior::Delay => now + self.period,
            MissedTickBehavior::Skip => {
                let period_ns = self.period.as_nanos();
                let over_ns = (now - next).as_nanos() % period_ns;
                let rest_ns = u64::try_from(period_ns - over_ns).unwrap_or(u64::MAX);
                now + Duration::from_nanos(rest_ns)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use vigie_detect::{Reactivity, Simulation};

    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    /// Goal: each behaviour continues as documented after missed ticks. Method: one late poll, by
    /// hand.
    #[test]
    fn missed_ticks() {
        let period = Duration::from_nanos(100);
        let with = |missed| {
            let mut interval = interval_at(at(0), period);
            interval.set_missed_tick_behavior(missed);
            interval
        };
        assert_eq!(with(MissedTickBehavior::Burst).next_after(at(100), at(350)), at(200));
        assert_eq!(with(MissedTickBehavior::Delay).next_after(at(100), at(350)), at(450));
        assert_eq!(with(MissedTickBehavior::Skip).next_after(at(100), at(350)), at(400));
        assert_eq!(with(MissedTickBehavior::Skip).next_after(at(100), at(300)), at(400));
        assert_eq!(with(MissedTickBehavior::Delay).next_after(at(100), at(150)), at(200));
    }

    /// Goal: a sleep that is over needs no wait, no registration and no server, and may be polled again. Method: polls
    /// outside any runtime, then of a sleep in virtual time after its end.
    #[test]
    fn a_sleep_that_is_over_is_ready_at_once() {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut sleep(Duration::ZERO)).poll(&mut cx).is_ready());
        assert!(Pin::new(&mut sleep_until(at(1))).poll(&mut cx).is_ready());
        let mut simulation = Simulation::new(1);
        let server = simulation.server().clone();
        let ended = simulation.block_on(async move {
            let mut sleep = sleep(Duration::from_millis(1));
            (&mut sleep).await;
            (&mut sleep).await;
            sleep.reset(at(5));
            sleep.await;
            (Instant::now(), server.timers().pending_count())
        });
        assert_eq!(ended, Ok((at(1_000_000), 0)));
    }

    /// Goal: slack is used where it saves a wake-up, a period keeps its rhythm, and a sleep that is put off
    /// afterwards forgets its earlier end. Method: in virtual time, a sleep and an interval that share
    /// wake-ups, and one sleep without slack.
    #[test]
    fn slack_is_shared() {
        let micros = Duration::from_micros;
        let mut simulation = Simulation::with_policy(3, Reactivity::LowLatency);
        let ticks = simulation.spawn(async move {
            let mut interval = interval_at(at(100_000), micros(100)).slack(micros(20));
            let mut ticks = Vec::new();
            for _ in 0..3 {
                let due = interval.tick().await;
                ticks.push((due.as_nanos() / 1000, Instant::now().as_nanos() / 1000));
            }
            ticks
        });
        let late = simulation.spawn(async move {
            sleep(micros(115)).slack(micros(30)).await;
            Instant::now()
        });
        let exact = simulation.spawn(async move {
            let mut sleep = sleep(micros(50)).slack(micros(500));
            std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut sleep).poll(cx).is_pending()))
                .await;
            let mut sleep = sleep.slack(Duration::ZERO);
            sleep.reset(at(220_000));
            sleep.await;
            Instant::now()
        });
        let ended = simulation.block_on(async { (ticks.await, late.await, exact.await) });
        let ended = ended.expect("all of them end");
        // The first tick waits for the sleep, the others for nothing.
        assert_eq!(ended.0, [(100, 115), (200, 220), (300, 300)]);
        assert_eq!((ended.1, ended.2), (at(115_000), at(220_000)));
    }
}
