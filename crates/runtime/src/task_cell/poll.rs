//! The poll that runs on a thread: when it began, what it costs its task, and what is left of it when it ends.

use std::{
    cell::{Cell, RefCell},
    panic::Location,
    time::Duration,
};

use vigie_detect::{
    Instant, budget,
    clock::{monotonic_now, thread_cpu_time},
};

use super::kind::Kind;
use crate::{
    lane::{self, Credit, SharedCredit},
    sync::{Arc, thread_local},
};

thread_local! {
    static LONG_POLL: RefCell<Option<EndedPoll>> = const { RefCell::new(None) };
    static POLL: PollClock = const {
        PollClock {
            present: Cell::new(PresentPoll::NONE),
            ended: Cell::new(0),
            sampled: Cell::new(None),
            polled_since: Cell::new(0),
            was_asleep: Cell::new(never),
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
    /// Asks whoever watches this thread.
    was_asleep: Cell<fn() -> bool>,
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

/// No poll runs on this thread, whatever ran: a task may run another runtime inside its poll. Returns what
/// [`resume`] takes.
pub(crate) fn set_aside() -> SetAside {
    SetAside(POLL.with(|poll| poll.present.replace(PresentPoll::NONE)))
}

/// The poll that was [set aside](set_aside) goes on.
pub(crate) fn resume(SetAside(present): SetAside) {
    let _ = POLL.try_with(|poll| {
        poll.present.set(present);
        poll.ended.set(0);
    });
}

/// A poll that was interrupted by another runtime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetAside(PresentPoll);

/// From now on, `ask` says whether this thread was found asleep in the kernel in the poll that it runs.
pub(crate) fn is_watched_by(ask: fn() -> bool) {
    POLL.with(|poll| poll.was_asleep.set(ask));
}

/// Returns whether this thread was found asleep in the kernel in the poll that it runs.
pub(super) fn was_asleep() -> bool {
    POLL.with(|poll| poll.was_asleep.get())()
}

/// Nobody watches this thread.
const fn never() -> bool {
    false
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
