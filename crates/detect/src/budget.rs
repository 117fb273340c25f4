//! A time budget for each poll of a task, so that a task whose socket is always ready yields.
//!
//! A host [opens](begin) a budget when it begins to poll a task. The awaitable operations of this crate
//! (descriptors and sockets, every [`Handle`](crate::Handle) and [`EventStream`](crate::EventStream),
//! hence channels and timers) check the budget before they return `Ready`. Once the time is over, they
//! return `Pending` instead and wake the task at once: it is polled again after the others, and after a
//! poll for events if one is due. Nothing is lost, since the budget is checked *before* an event is
//! taken or a system call is made: readiness, events and bytes stay where they are.
//!
//! ```text
//!            begin(now)                       time over: Pending, woken
//!  no budget ──────────▶ running ─────────────────────────────────────▶ over
//!      ▲   ◀── end ───────┘  ▲                                           │
//!      └────── end ──────────┼───────────────────────────────────────────┤
//!                            └── polled regardless, for as long once more ┘
//! ```
//!
//! The last arrow is for code that keeps polling inside one poll, such as a foreign `block_on` in a
//! task: it is slowed down, but makes progress.
//!
//! # Where there is no budget
//! Outside polls by a host that opens one: on plain threads, in other executors, and on the
//! kernel-level flavor, where each task has its own thread. There, nothing yields. The same holds
//! for operations that cannot wait (`try_read`).
//!
//! # Cost
//! A thread-local counter for each operation. The clock is read at the eighth operation of a poll, then
//! about eight times per budget, and after each long transfer.

use std::{
    cell::Cell,
    fmt,
    marker::PhantomData,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    clock::{Instant, monotonic_now},
    sync::thread_local,
};

/// The length of a budget if the interval between the host's poll passes is unknown.
pub const DEFAULT_LENGTH: Duration = Duration::from_nanos(DEFAULT_NS);

const DEFAULT_NS: u64 = 100_000;

/// The shortest and the longest budget derived from the interval between two poll passes, in nanoseconds: a
/// shorter one costs more switches and passes than it is worth; a longer one turns a task that only
/// transfers into a long poll.
const LENGTH_BOUNDS_NS: (u64, u64) = (50_000, 150_000);

/// The number of operations in a poll before the clock is first read.
const FIRST: u32 = 8;

/// The most operations between two clock readings, in case they suddenly become slower.
const MOST: u32 = 32;

/// The number of clock readings per budget.
const READINGS: u64 = 8;

/// After a transfer of at least this many bytes the clock is read.
const LONG_TRANSFER: usize = 16 << 10;

/// No budget.
const NEVER: u64 = u64::MAX;

/// The budget of the running poll of one thread: all of its logic, without the clock.
struct Budget {
    /// Operations until the next clock reading.
    left: Cell<u32>,
    /// Operations since the beginning, including those in `left`; zero once the budget is over.
    counted: Cell<u32>,
    /// The end of the budget, in nanoseconds; once it is over, the start of the next one if the poll
    /// continues regardless.
    end: Cell<u64>,
    /// In nanoseconds.
    length: Cell<u64>,
    /// The default length of a budget, in nanoseconds.
    usual: Cell<u64>,
}

// No function that uses it is `#[inline]`: in another crate, the thread-local is behind a function
// pointer unless the whole program is optimized at once.
thread_local! {
    static BUDGET: Budget = const { Budget::none() };
}

impl Budget {
    const fn none() -> Self {
        Self {
            left: Cell::new(u32::MAX),
            counted: Cell::new(0),
            end: Cell::new(NEVER),
            length: Cell::new(0),
            usual: Cell::new(DEFAULT_NS),
        }
    }

    #[inline]
    fn begin(&self, now: u64, length: u64) {
        self.left.set(FIRST);
        self.counted.set(FIRST);
        self.end.set(now.saturating_add(length));
        self.length.set(length);
    }

    #[inline]
    fn stop(&self) {
        self.left.set(u32::MAX);
        self.end.set(NEVER);
    }

    /// Returns whether an operation may go on.
    #[inline]
    fn proceeds(&self, clock: impl FnOnce() -> u64) -> bool {
        let left = self.left.get();
        if left > 0 {
            self.left.set(left - 1);
            return true;
        }
        self.read_clock(clock)
    }

    #[cold]
    fn read_clock(&self, clock: impl FnOnce() -> u64) -> bool {
        let end = self.end.get();
        if end == NEVER {
            self.left.set(u32::MAX);
            return true;
        }

        let (now, length) = (clock(), self.length.get());
        let counted = self.counted.get();
        if counted == 0 {
            if now < end {
                return false;
            }
            self.begin(now, length);
            self.left.set(FIRST - 1);
            return true;
        }

        if now >= end {
            self.counted.set(0);
            self.end.set(now.saturating_add(length));
            return false;
        }

        // The operations that fit in one part of the budget at the pace so far.
        let elapsed = now.saturating_sub(end.saturating_sub(length)).max(1);
        let pace = u64::from(counted).saturating_mul(length / READINGS) / elapsed;
        let next = u32::try_from(pace).unwrap_or(MOST).clamp(1, MOST);
        self.counted.set(counted.saturating_add(next));
        self.left.set(next - 1);
        true
    }

    /// Makes the next operation read the clock.
    fn expect_reading(&self) {
        // Without a budget, the next operation finds that out.
        let left = self.left.replace(0);
        let counted = self.counted.get();
        if counted > 0 {
            self.counted.set(counted.saturating_sub(left).max(1));
        }
    }

    fn copy_from(&self, other: &Self) {
        self.left.set(other.left.get());
        self.counted.set(other.counted.get());
        self.end.set(other.end.get());
        self.length.set(other.length.get());
    }
}

/// Opens a budget for the poll that begins on this thread at `now` on the monotonic clock. It replaces
/// the present budget and lasts until [`end`] or the next call.
///
/// Its length is the interval at which this thread's [`Driver`](crate::Driver) polls for events,
/// clamped to 50–150 µs; [`DEFAULT_LENGTH`] if the interval is unknown.
///
/// # Cost
/// A few stores to thread-local memory.
pub fn begin(now: Instant) {
    BUDGET.with(|budget| budget.begin(now.as_nanos(), budget.usual.get()));
}

/// Like [`begin`], with a budget of `length`.
pub fn begin_with(now: Instant, length: Duration) {
    let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    BUDGET.with(|budget| budget.begin(now.as_nanos(), length));
}

/// Ends the budget with its poll: there is no budget until the next [`begin`].
pub fn end() {
    BUDGET.with(Budget::stop);
}

/// Returns whether the present or last poll on this thread was told to yield: if so, its task did not yield of its own accord.
#[must_use]
pub fn has_ended() -> bool {
    BUDGET.with(|budget| budget.counted.get() == 0 && budget.end.get() != NEVER)
}

/// Suspends this thread's budget until the guard is dropped, which restores it.
///
/// For executors that run inside another executor's poll, and for `unconstrained` futures. Time
/// continues to count: a restored budget may be over.
pub fn suspend() -> Suspended {
    let previous = Budget::none();
    BUDGET.with(|budget| {
        previous.copy_from(budget);
        budget.stop();
    });
    Suspended { previous, _not_send: PhantomData }
}

/// Returned by [`suspend`]. Dropping it, even during a panic, restores the budget.
#[must_use = "the budget is suspended only until this is dropped"]
pub struct Suspended {
    previous: Budget,
    /// The budget belongs to the thread.
    _not_send: PhantomData<*mut ()>,
}

impl Drop for Suspended {
    fn drop(&mut self) {
        BUDGET.with(|budget| budget.copy_from(&self.previous));
    }
}

impl fmt::Debug for Suspended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suspended").finish_non_exhaustive()
    }
}

/// Returns `Ready` if the running poll may continue with an operation that would be ready at once;
/// otherwise wakes the task of `cx` and returns `Pending`.
///
/// For your own leaf futures: call it when there is something to return, before taking it.
///
/// # Examples
/// ```
/// use std::{collections::VecDeque, task::{Context, Poll, ready}};
///
/// fn poll_pop(queue: &mut VecDeque<u32>, cx: &Context<'_>) -> Poll<Option<u32>> {
///     // With an empty queue, the waker of `cx` would go to the producer.
///     if !queue.is_empty() {
///         ready!(vigie_detect::budget::poll_proceed(cx));
///     }
///     Poll::Ready(queue.pop_front())
/// }
/// # let cx = Context::from_waker(std::task::Waker::noop());
/// # assert_eq!(poll_pop(&mut VecDeque::from([7]), &cx), Poll::Ready(Some(7)));
/// ```
#[inline]
pub fn poll_proceed(cx: &Context<'_>) -> Poll<()> {
    if may_proceed() {
        return Poll::Ready(());
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Returns whether an operation may continue; if not, the caller wakes the task and returns
/// `Pending`.
pub(crate) fn may_proceed() -> bool {
    BUDGET.with(|budget| budget.proceeds(|| monotonic_now().as_nanos()))
}

/// Records a transfer of `bytes`: after a long one, the next operation reads the clock.
#[inline]
pub(crate) fn note_transfer(bytes: usize) {
    if bytes >= LONG_TRANSFER {
        note_long();
    }
}

/// Records that an operation took many times longer than a clock reading.
pub(crate) fn note_long() {
    BUDGET.with(Budget::expect_reading);
}

/// Records the interval at which this thread's host polls for events; `u64::MAX` if unknown.
pub(crate) fn note_pass_interval(nanos: u64) {
    let (least, most) = LENGTH_BOUNDS_NS;
    let known = if nanos == NEVER { DEFAULT_NS } else { nanos.clamp(least, most) };
    BUDGET.with(|budget| budget.usual.set(known));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs operations of `cost` nanoseconds until one is refused. Returns how many there were, the
    /// time, and the number of clock readings.
    fn run(budget: &Budget, mut now: u64, cost: impl Fn(u32) -> u64) -> (u32, u64, u32) {
        let readings = Cell::new(0);
        for count in 0..1_000_000 {
            let proceeds = budget.proceeds(|| {
                readings.set(readings.get() + 1);
                now
            });
            if !proceeds {
                return (count, now, readings.get());
            }
            now += cost(count);
        }
        panic!("the budget never ends");
    }

    /// Goal: operations end soon after the budget, whatever they cost, and the clock is read seldom.
    /// Method: a virtual clock, costs of 20 ns to 20 µs, and those that become slower halfway.
    #[test]
    fn a_budget_ends_in_time_at_every_pace() {
        for cost in [20, 100, 300, 1_000, 5_000, 20_000] {
            let budget = Budget::none();
            budget.begin(1_000, 100_000);
            let (count, now, readings) = run(&budget, 1_000, |_| cost);
            let over = (now - 1_000).saturating_sub(100_000);
            assert!(now >= 101_000, "not before the end");
            // At most as long as the operations between two readings.
            assert!(over <= (u64::from(FIRST) * cost).max(100_000 / READINGS + cost), "{over}");
            assert!(readings <= count / 32 + 12, "{readings} readings in {count} operations");
        }
        let budget = Budget::none();
        budget.begin(0, 100_000);
        let (_, now, _) = run(&budget, 0, |count| if count < 500 { 50 } else { 10_000 });
        assert!(now <= 100_000 + u64::from(MOST) * 10_000);
    }

    /// Goal: a poll that continues although refused is allowed on after as long again, and not
    /// before.
    /// Method: a virtual clock at the edges.
    #[test]
    fn a_poll_that_goes_on_gets_another_budget() {
        let budget = Budget::none();
        budget.begin(0, 1_000);
        for _ in 0..FIRST {
            assert!(budget.proceeds(|| unreachable!("the first operations read no clock")));
        }
        for now in [1_500, 1_501, 2_499] {
            assert!(!budget.proceeds(|| now), "{now}");
        }
        assert!(budget.proceeds(|| 2_500));
        for _ in 1..FIRST {
            assert!(budget.proceeds(|| unreachable!("as at the beginning")));
        }
        assert!(!budget.proceeds(|| 3_500));
    }

    /// Goal: without a budget nothing is refused and no clock is read. Method: after a budget that
    /// ended, more operations than one count holds, and after a long one.
    #[test]
    fn without_a_budget_everything_proceeds() {
        let budget = Budget::none();
        budget.begin(0, 1);
        budget.stop();
        let no_clock = || unreachable!("no clock without a budget");
        assert!(budget.proceeds(no_clock));
        budget.left.set(0);
        assert!(budget.proceeds(no_clock));
        budget.expect_reading();
        assert!(budget.proceeds(no_clock));
        assert_eq!(budget.left.get(), u32::MAX);
    }

    /// Goal: after a long transfer the clock is read before the next operation. Method: count readings.
    #[test]
    fn a_long_operation_is_followed_by_a_reading() {
        let budget = Budget::none();
        budget.begin(0, 1_000);
        assert!(budget.proceeds(|| unreachable!("the first")));
        budget.expect_reading();
        assert!(!budget.proceeds(|| 1_000));
        // A long operation, too, gives nothing back to an ended budget.
        budget.expect_reading();
        assert!(!budget.proceeds(|| 1_001));
    }

    /// Goal: suspensions nest, and a panic leaves none behind. Method: an ended budget below two of
    /// them, one of which is left by a panic.
    #[test]
    fn suspensions_nest_and_survive_panics() {
        // Over now, and for as long again: half of the time since the machine's start.
        let half = monotonic_now().as_nanos() / 2;
        begin_with(Instant::from_nanos(half), Duration::from_nanos(half));
        note_long();
        assert!(!may_proceed());
        let outer = suspend();
        assert!(may_proceed());
        let panicked = std::panic::catch_unwind(|| {
            let _inner = suspend();
            panic!("planted");
        });
        assert!(panicked.is_err());
        assert!(may_proceed());
        drop(outer);
        assert!(!may_proceed());
        end();
        assert!(may_proceed());
    }

    /// Goal: the length follows the poll passes, within its bounds. Method: intervals inside and outside.
    #[test]
    fn the_length_is_the_interval_between_passes() {
        for (interval, length) in
            [(70_000, 70_000), (1, 50_000), (1_000_000, 150_000), (NEVER, 100_000)]
        {
            note_pass_interval(interval);
            begin(Instant::from_nanos(7));
            BUDGET.with(|budget| assert_eq!(budget.end.get(), 7 + length));
        }
        end();
    }
}
