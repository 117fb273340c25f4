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
    lane::{self, Credit, SharedCredit},
    sync::{Arc, thread_local},
    task_cell::Kind,
};

thread_local! {
    static CURRENT: RefCell<Option<Rc<Handle>>> = const { RefCell::new(None) };
    static LONG_POLL: RefCell<Option<EndedPoll>> = const { RefCell::new(None) };
    static POLL: PollClock = const {
        PollClock {
            present: Cell::new(PresentPoll::NONE),
            ended: Cell::new(0),
            sampled: Cell::new(None),
            polled_since: Cell::new(0),
        }
    };
}

/// What is known of a long poll when it ends.
#[derive(Debug)]
pub(crate) struct EndedPoll {
    /// It has computed for longer than a long poll, and not only waited for a processor.
    pub(crate) has_computed: bool,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) site: &'static Location<'static>,
    pub(crate) elapsed_ns: u64,
}

/// The poll that runs on this thread, and what is needed to charge its task. Times in nanoseconds.
struct PollClock {
    present: Cell<PresentPoll>,
    ended: Cell<u64>,
    /// The thread's processor time at some earlier time, and that time.
    sampled: Cell<Option<(u64, Duration)>>,
    /// How long the polls took that came since, in all.
    polled_since: Cell<u64>,
}

#[derive(Clone, Copy, Debug)]
struct PresentPoll {
    began: u64,
    /// A poll longer than this is told of by name; zero where nobody measures.
    long: u64,
    /// What the task has left, less what it has paid to its children.
    credit: Credit,
    /// No more than this is charged.
    most: u64,
}

impl PresentPoll {
    const NONE: Self = Self { began: 0, long: 0, credit: Credit::FULL, most: 0 };
}

/// How old the sample may become while the thread runs: by so much at most is a poll overcharged.
const SAMPLE_EVERY_NS: u64 = 500_000;

/// Up to here, a poll is charged with the time that it took; beyond, with the processor time that its
/// thread used. Asking for that costs 0.2 µs.
const EXACT_ABOVE_NS: u64 = 50_000;

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
    // A task may run another runtime inside its poll.
    let poll = POLL.with(|poll| poll.present.replace(PresentPoll::NONE));
    Entered { previous, poll, _server: server }
}

#[derive(Debug)]
#[must_use = "the runtime is current only until this is dropped"]
pub(crate) struct Entered {
    previous: Option<Rc<Handle>>,
    poll: PresentPoll,
    _server: vigie_detect::Entered,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let _ = POLL.try_with(|poll| {
            poll.present.set(self.poll);
            poll.ended.set(0);
        });
        let previous = self.previous.take();
        // The handle may be the runtime's last: dropped outside the borrow.
        let left =
            CURRENT.try_with(|current| std::mem::replace(&mut *current.borrow_mut(), previous));
        drop(left);
    }
}

/// A poll begins at `now` of a task that has `credit`, and is trusted by its own polls or not.
#[inline]
pub(crate) fn begin_poll(now: u64, credit: Credit, is_trusted: bool, long_poll: Duration) {
    budget::begin(Instant::from_nanos(now));
    POLL.with(|poll| {
        let most = lane::most_ns(is_trusted);
        let long = u64::try_from(long_poll.as_nanos()).unwrap_or(u64::MAX).max(1);
        poll.present.set(PresentPoll { began: now, long, credit, most });
        poll.ended.set(0);
    });
}

/// Returns whether the poll that runs on this thread has taken longer than `time` until `now`.
pub(crate) fn has_polled_for(time: Duration, now: Instant) -> bool {
    let present = POLL.with(|poll| poll.present.get());
    present.long != 0 && now - Instant::from_nanos(present.began) > time
}

/// Pays a new task with a part of what the running one has; `None` if this thread polls no task.
fn pay_child(now: u64) -> Option<Credit> {
    POLL.with(|poll| {
        let mut present = poll.present.get();
        if present.long == 0 || poll.ended.get() != 0 {
            return None;
        }
        let child = present.credit.pay_child(now);
        poll.present.set(present);
        Some(child)
    })
}

/// Takes note of the thread's processor time at `now` if that was not done lately, so that what polls use
/// can be told from what they wait for.
#[inline]
pub(crate) fn sample_processor_time(now: u64) {
    POLL.with(|poll| {
        if poll.sampled.get().is_none_or(|(at, _)| now.saturating_sub(at) > SAMPLE_EVERY_NS) {
            poll.sampled.set(Some((now, thread_cpu_time())));
            poll.polled_since.set(0);
        }
    });
}

/// What a poll has cost its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    /// What the task has left.
    pub(crate) credit: Credit,
    /// The processor time that it used, in nanoseconds.
    pub(crate) used_ns: u64,
    /// As much of that is charged at most.
    pub(crate) most_ns: u64,
    /// The rest of the poll's time: asleep in the kernel, or waiting for a processor.
    pub(crate) slept_ns: u64,
    /// The poll held its thread for longer than a long poll.
    pub(crate) was_long: bool,
    /// It has computed for as long.
    pub(crate) has_computed: bool,
}

/// The poll ends now. Returns what it has cost, if it was timed, and calls `tell` with its time in
/// nanoseconds if its thread was caught in it.
pub(crate) fn end_poll(tell: impl FnOnce(u64, &Charge)) -> Option<Charge> {
    let (elapsed, charge) = POLL.with(|poll| {
        let present = poll.present.get();
        if present.long == 0 {
            return None;
        }
        let now = monotonic_now().as_nanos();
        poll.ended.set(now);
        let elapsed = now.saturating_sub(present.began);
        let used_ns = poll.used(now, elapsed);
        let charge = Charge {
            credit: present.credit.after(now, used_ns.min(present.most)),
            used_ns,
            most_ns: present.most,
            slept_ns: elapsed - used_ns,
            was_long: elapsed > present.long,
            has_computed: used_ns > present.long,
        };
        Some((elapsed, charge))
    })?;
    if charge.was_long {
        tell(elapsed, &charge);
    }
    Some(charge)
}

impl PollClock {
    /// Returns how much processor time a poll of `elapsed` has used that ends at `now`. On a busy machine
    /// its thread may have waited for a processor, and any poll may sleep in the kernel.
    #[inline]
    fn used(&self, now: u64, elapsed: u64) -> u64 {
        let polled = self.polled_since.get();
        if elapsed <= EXACT_ABOVE_NS {
            self.polled_since.set(polled + elapsed);
            return elapsed;
        }
        let total = thread_cpu_time();
        let before = self.sampled.replace(Some((now, total)));
        self.polled_since.set(0);
        before.map_or(elapsed, |(_, before)| {
            let used = u64::try_from(total.saturating_sub(before).as_nanos()).unwrap_or(u64::MAX);
            used.saturating_sub(polled).min(elapsed)
        })
    }
}

/// Returns when the poll on this thread ended whose scheduler has not taken note of it yet: for what
/// happens right after it. None inside a poll.
pub(crate) fn poll_end() -> Option<u64> {
    let ended = POLL.try_with(|poll| poll.ended.get()).ok()?;
    (ended > 0).then_some(ended)
}

/// Returns what a new task of `kind` begins with: its kind pays it, or the task that spawns it, or `foreign`
/// credit outside of tasks.
pub(crate) fn credit_of_new(kind: Kind, foreign: &SharedCredit) -> Credit {
    // Not the beginning of the poll, which may be so long ago that nothing would have to be paid any more.
    let now = monotonic_now().as_nanos();
    kind.pay(now).or_else(|| pay_child(now)).unwrap_or_else(|| foreign.pay_child(now))
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
        poll.present.set(PresentPoll::NONE);
        match poll.ended.replace(0) {
            0 => None,
            ended => Some(ended),
        }
    })
}
