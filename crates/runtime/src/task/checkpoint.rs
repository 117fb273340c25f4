//! Checkpoints: how a computing loop lets events through.
//!
//! Most calls only decrement a counter. When it reaches zero, the clock is read; when enough time has passed
//! since the last poll pass, the poller is asked with a system call that does not block. The counter adapts to how
//! often checkpoints come, so that the clock is read about every 2 µs.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use vigie_detect::clock::monotonic_now;

use crate::{flavor, sync::thread_local};

thread_local! {
    static COUNTER: Counter = const {
        Counter { left: Cell::new(0), reload: Cell::new(0), clock_read: Cell::new(0), asked: Cell::new(0) }
    };
}

/// Nanoseconds on the monotonic clock.
struct Counter {
    /// Calls until the clock is read.
    left: Cell<u32>,
    reload: Cell<u32>,
    clock_read: Cell<u64>,
    /// The time at which the poller was last asked or events were last polled for.
    asked: Cell<u64>,
}

/// The time that should pass between readings of the clock, in nanoseconds.
const CLOCK_EVERY: u64 = 2_000;

/// The time between two questions to the poller, in nanoseconds.
const ASK_EVERY: u64 = 20_000;

/// The most calls between two readings of the clock. When calls suddenly become rarer, up to this many go
/// unchecked.
const RELOAD_MAX: u64 = 128;

/// Returns whether the running task should yield, because an event waits that no other thread serves, or
/// because its poll is longer than the [quantum](crate::RuntimeBuilder::quantum) and other tasks wait to
/// compute. For loops that cannot await; see [`checkpoint`] for those that can. `false` outside a task.
///
/// # Cost
/// About a nanosecond on most calls, a reading of the clock about every 2 µs, and a system call of
/// about 0.2 µs every 20 µs.
///
/// # Examples
/// ```
/// use vigie_runtime::task::{need_yield, yield_now};
///
/// # async fn sum(rows: Vec<Vec<u64>>) -> u64 {
/// let mut sum = 0;
/// for row in rows {
///     for value in row {
///         sum += value;
///     }
///     if need_yield() {
///         yield_now().await;
///     }
/// }
/// # sum }
/// # let runtime = vigie_runtime::Runtime::builder().workers(1).build()?;
/// # assert_eq!(runtime.block_on(sum(vec![vec![1, 2], vec![3]])), 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[inline]
#[must_use]
pub fn need_yield() -> bool {
    COUNTER.with(|counter| {
        let left = counter.left.get();
        if left > 0 {
            counter.left.set(left - 1);
            return false;
        }
        counter.read_clock()
    })
}

impl Counter {
    #[cold]
    fn read_clock(&self) -> bool {
        let now = monotonic_now().as_nanos();
        let elapsed = now.saturating_sub(self.clock_read.replace(now)).max(1);
        // The number of calls that would have taken CLOCK_EVERY, at most twice the last one.
        let calls = u64::from(self.reload.get()) + 1;
        let reload = (calls * CLOCK_EVERY / elapsed).min(2 * calls).min(RELOAD_MAX);
        let reload = u32::try_from(reload).unwrap_or(0);
        self.reload.set(reload);
        self.left.set(reload);
        if now.saturating_sub(self.asked.get()) >= ASK_EVERY {
            self.asked.set(now);
            return flavor::is_awaited(vigie_detect::Instant::from_nanos(now));
        }
        false
    }
}

/// Yields if an event waits that no other thread serves. For computations that should not delay events. Where
/// the scheduler can serve events on another thread (the hybrid flavor), this costs next to nothing; on the
/// user-level flavor the reaction time is bounded by the time between two checkpoints.
///
/// # Cancel safety
/// Cancel safe: there is nothing to lose.
///
/// # Cost
/// The same as [`need_yield`].
#[must_use = "futures do nothing unless awaited"]
pub const fn checkpoint() -> Checkpoint {
    Checkpoint { has_yielded: false }
}

/// The future of [`checkpoint`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Checkpoint {
    has_yielded: bool,
}

impl Future for Checkpoint {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_yielded || !need_yield() {
            return Poll::Ready(());
        }
        self.has_yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
