//! What a thread knows of the runtime that it runs for.

use std::{
    cell::{Cell, RefCell},
    panic::Location,
    rc::Rc,
    time::Duration,
};

use vigie_detect::{
    Instant, budget,
    clock::{monotonic_now, thread_cpu_time},
};

use crate::{
    handle::Handle,
    sync::{Arc, thread_local},
};

thread_local! {
    static CURRENT: RefCell<Option<Rc<Handle>>> = const { RefCell::new(None) };
    static LONG_POLL: RefCell<Option<EndedPoll>> = const { RefCell::new(None) };
    static POLL: PollClock = const {
        PollClock {
            began: Cell::new(0),
            ended: Cell::new(0),
            quantum: Cell::new(0),
            long: Cell::new(u64::MAX),
            processor_time: Cell::new(None),
            bound: Cell::new(None),
        }
    };
}

/// What is known of a long poll when it ends.
#[derive(Debug)]
pub(crate) struct EndedPoll {
    pub(crate) name: Option<Arc<str>>,
    pub(crate) site: &'static Location<'static>,
    pub(crate) elapsed_ns: u64,
}

/// The times of the poll that runs on this thread, in nanoseconds.
struct PollClock {
    began: Cell<u64>,
    ended: Cell<u64>,
    /// A poll longer than this is long; zero where nobody measures.
    quantum: Cell<u64>,
    /// A poll longer than this is told of by name.
    long: Cell<u64>,
    /// The thread's processor time a moment before the poll, if it was asked.
    processor_time: Cell<Option<Duration>>,
    /// The same at some earlier time, and that time in nanoseconds: what the thread has used since is
    /// no less than what the poll has used.
    bound: Cell<Option<(u64, Duration)>>,
}

/// How old the bound may become while the thread runs, in nanoseconds: by so much at most is the
/// processor time of a poll taken for too long. Asking costs 0.2 µs.
const BOUND_EVERY: u64 = 500_000;

/// Returns the runtime that this thread runs for, if there is one.
pub(crate) fn current() -> Option<Handle> {
    with_current(|handle| handle.cloned())
}

/// Calls `f` with the runtime that this thread runs for, if there is one.
pub(crate) fn with_current<T>(f: impl FnOnce(Option<&Handle>) -> T) -> T {
    // Outside the borrow: `f` may drop a future that it cannot spawn any more, and with it another
    // runtime, which is entered for its shutdown. There is none while the thread's variables go.
    let current = CURRENT.try_with(|current| current.borrow().clone()).ok().flatten();
    f(current.as_deref())
}

/// Makes `handle` the runtime of this thread, and its server the current one, until the guard drops.
pub(crate) fn enter(handle: Handle) -> Entered {
    let server = handle.server().enter();
    let previous = CURRENT.with(|current| current.borrow_mut().replace(Rc::new(handle)));
    Entered { previous, _server: server }
}

#[derive(Debug)]
#[must_use = "the runtime is current only until this is dropped"]
pub(crate) struct Entered {
    previous: Option<Rc<Handle>>,
    _server: vigie_detect::Entered,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let previous = self.previous.take();
        // The handle may be the runtime's last: dropped outside the borrow.
        let left =
            CURRENT.try_with(|current| std::mem::replace(&mut *current.borrow_mut(), previous));
        drop(left);
    }
}

/// A poll begins at `now`.
pub(crate) fn begin_poll(now: u64, quantum: Duration, long_poll: Duration) {
    budget::begin(Instant::from_nanos(now));
    POLL.with(|poll| {
        poll.began.set(now);
        poll.ended.set(0);
        poll.quantum.set(u64::try_from(quantum.as_nanos()).unwrap_or(u64::MAX));
        poll.long.set(u64::try_from(long_poll.as_nanos()).unwrap_or(u64::MAX));
    });
}

/// Takes note of the thread's processor time, by which polls are judged from now on if `judges`.
pub(crate) fn sample_processor_time(judges: bool) {
    let sample = judges.then(thread_cpu_time);
    POLL.with(|poll| poll.processor_time.set(sample));
}

/// Takes note of the thread's processor time at `now` if that was not done lately. For polls that nobody
/// judges closely: one that was long because its thread blocked, or waited for a processor, shall not
/// count as one that computed.
#[inline]
pub(crate) fn bound_processor_time(now: u64) {
    POLL.with(|poll| {
        if poll.bound.get().is_none_or(|(at, _)| now.saturating_sub(at) > BOUND_EVERY) {
            poll.bound.set(Some((now, thread_cpu_time())));
        }
    });
}

/// How a poll compares with the quantum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollLength {
    Short,
    /// Longer than the quantum.
    Long,
    /// Longer than ten quanta: no page fault takes so long.
    Hog,
}

/// How many quanta make a hog of a long poll.
pub(crate) const HOG_FACTOR: u32 = 10;

/// Returns how much processor time the thread has used since the last sample; zero if there is none.
pub(crate) fn processor_time_used() -> Duration {
    POLL.with(|poll| {
        let used = |before| thread_cpu_time().saturating_sub(before);
        poll.processor_time.get().map_or(Duration::ZERO, used)
    })
}

/// The poll ends now. Returns how long it was, and calls `tell` with its time in nanoseconds if its
/// thread was caught in it.
pub(crate) fn end_poll(tell: impl FnOnce(u64)) -> PollLength {
    let mut told = None;
    let length = POLL.with(|poll| {
        let quantum = poll.quantum.get();
        if quantum == 0 {
            return PollLength::Short;
        }
        let now = monotonic_now().as_nanos();
        poll.ended.set(now);
        let elapsed = now.saturating_sub(poll.began.get());
        if elapsed > poll.long.get() {
            told = Some(elapsed);
        }
        if elapsed <= quantum {
            return PollLength::Short;
        }
        // On a busy machine the thread may have been waiting for a processor all that time, through
        // no fault of the task.
        let bound = || poll.bound.get().map(|(_, before)| before);
        let before = poll.processor_time.get().or_else(bound);
        let used =
            before.map_or(u128::MAX, |before| thread_cpu_time().saturating_sub(before).as_nanos());
        match used.min(u128::from(elapsed)) / u128::from(quantum) {
            0 => PollLength::Short,
            quanta if quanta < u128::from(HOG_FACTOR) => PollLength::Long,
            _ => PollLength::Hog,
        }
    });
    if let Some(elapsed) = told {
        tell(elapsed);
    }
    length
}

/// Returns when the poll on this thread ended whose scheduler has not taken note of it yet: for what
/// happens right after it. None inside a poll.
pub(crate) fn poll_end() -> Option<u64> {
    let ended = POLL.try_with(|poll| poll.ended.get()).ok()?;
    (ended > 0).then_some(ended)
}

/// Leaves word of a poll that was long, for the scheduler.
pub(crate) fn leave_long_poll(poll: EndedPoll) {
    LONG_POLL.with(|place| *place.borrow_mut() = Some(poll));
}

/// Returns what [`leave_long_poll`] left.
pub(crate) fn take_long_poll() -> Option<EndedPoll> {
    LONG_POLL.with(|place| place.borrow_mut().take())
}

/// Returns when the last poll on this thread ended, if it was timed, and stops the timing.
pub(crate) fn take_poll_end() -> Option<u64> {
    budget::end();
    POLL.with(|poll| {
        poll.quantum.set(0);
        match poll.ended.replace(0) {
            0 => None,
            ended => Some(ended),
        }
    })
}
