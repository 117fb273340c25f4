//! The poll that runs on a thread: when it began, what it costs its task, and what remains when it ends.

use std::{
    cell::{Cell, RefCell},
    panic::Location,
    time::Duration,
};

use vigie_detect::{
    Instant, budget,
    clock::{monotonic_now, thread_cpu_time},
};

use super::kind::TaskKind;
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
            time_used: TimeUsed::new(),
            is_inside_poll: Cell::new(false),
            was_asleep: Cell::new(never),
        }
    };
}

/// A long poll that has ended.
#[derive(Debug)]
pub(crate) struct EndedPoll {
    /// It computed for longer than a long poll, and did not only wait for a processor.
    pub(crate) has_computed: bool,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) site: &'static Location<'static>,
    pub(crate) elapsed_ns: u64,
}

/// The poll that runs on this thread, and what is needed to charge its task. Times in nanoseconds.
struct PollClock {
    present: Cell<PresentPoll>,
    ended: Cell<u64>,
    time_used: TimeUsed,
    /// The polls are those of a runtime that runs inside a poll of another one.
    is_inside_poll: Cell<bool>,
    /// Asks the supervisor's record of this thread.
    was_asleep: Cell<fn() -> bool>,
}

#[derive(Clone, Copy, Debug)]
struct PresentPoll {
    began: u64,
    /// A longer poll is reported by name; zero where long polls are not measured.
    long: u64,
    /// The task's credit, less what it has paid to its children.
    credit: Credit,
    /// The most that is charged.
    most: u64,
}

impl PresentPoll {
    const NONE: Self = Self { began: 0, long: 0, credit: Credit::FULL, most: 0 };
}

/// The greatest age of the sample while the thread runs. A switch that takes long is charged to the next long poll, up to this time.
const SAMPLE_EVERY_NS: u64 = 500_000;

/// Up to this length, a poll or a switch counts with its elapsed time; beyond, with the processor time of its thread, which
/// takes 0.2 µs to read.
const EXACT_ABOVE_NS: u64 = 50_000;

/// Sets aside the poll that runs on this thread, if any: a task may run another runtime inside its poll.
/// Returns the argument for [`resume`].
pub(crate) fn suspend_poll() -> SuspendedPoll {
    POLL.with(|poll| {
        let present = poll.present.replace(PresentPoll::NONE);
        let was_inside = poll.is_inside_poll.get();
        poll.is_inside_poll.set(was_inside || present.long != 0);
        SuspendedPoll { present, was_inside }
    })
}

/// Resumes the poll that was [set aside](suspend_poll).
pub(crate) fn resume(SuspendedPoll { present, was_inside }: SuspendedPoll) {
    let _ = POLL.try_with(|poll| {
        poll.present.set(present);
        poll.is_inside_poll.set(was_inside);
        poll.ended.set(0);
    });
}

/// A poll that was interrupted by another runtime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SuspendedPoll {
    present: PresentPoll,
    was_inside: bool,
}

/// From now on, `ask` says whether this thread was found asleep in the kernel during the current poll.
pub(crate) fn is_watched_by(ask: fn() -> bool) {
    POLL.with(|poll| poll.was_asleep.set(ask));
}

/// Returns whether this thread was found asleep in the kernel during the current poll.
pub(super) fn was_asleep() -> bool {
    POLL.with(|poll| poll.was_asleep.get())()
}

/// For a thread that is not watched.
const fn never() -> bool {
    false
}

/// Begins a poll at `now` of a task with `credit`, whose own polls have earned it trust or not.
#[inline]
pub(crate) fn begin_poll(now: u64, credit: Credit, is_trusted: bool, long_poll: Duration) {
    budget::begin(Instant::from_nanos(now));
    POLL.with(|poll| {
        let most = lane::most_ns(is_trusted);
        let long = u64::try_from(long_poll.as_nanos()).unwrap_or(u64::MAX).max(1);
        if !poll.is_inside_poll.get() {
            poll.time_used.begin_poll(now, thread_cpu_time);
        }
        poll.present.set(PresentPoll { began: now, long, credit, most });
        poll.ended.set(0);
    });
}

/// Returns when the current poll on this thread began; zero where polls are not timed.
pub(super) fn began() -> u64 {
    POLL.with(|poll| poll.present.get().began)
}

/// Returns whether the current poll on this thread has taken longer than `time` until `now`.
pub(crate) fn has_polled_for(time: Duration, now: Instant) -> bool {
    let present = POLL.with(|poll| poll.present.get());
    present.long != 0 && now - Instant::from_nanos(present.began) > time
}

/// Pays a new task with part of the running task's credit; `None` if this thread polls no task.
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

/// Samples the thread's processor time at `now` if that was not done lately, so that time that polls use can
/// be told from time that they wait.
#[inline]
pub(crate) fn sample_processor_time(now: u64) {
    POLL.with(|poll| poll.time_used.sample(now, thread_cpu_time));
}

/// The thread has slept until `now`: the time since its last poll was not used.
#[inline]
pub(crate) fn note_sleep(now: u64) {
    POLL.with(|poll| poll.time_used.known_until.set(now));
}

/// The cost of a poll for its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    /// The task's remaining credit.
    pub(crate) credit: Credit,
    /// The processor time that the poll used, in nanoseconds.
    pub(crate) used_ns: u64,
    /// The most of that which is charged.
    pub(crate) most_ns: u64,
    /// The rest of the poll's time: asleep in the kernel, or waiting for a processor.
    pub(crate) slept_ns: u64,
    /// The poll held its thread for longer than a long poll.
    pub(crate) was_long: bool,
    /// It computed for as long.
    pub(crate) has_computed: bool,
}

/// Ends the current poll. Returns its cost if it was timed, and calls `report` with its time in nanoseconds
/// if its thread was stuck in it.
pub(crate) fn end_poll(report: impl FnOnce(u64, &Charge)) -> Option<Charge> {
    let (elapsed, charge) = POLL.with(|poll| {
        let present = poll.present.get();
        if present.long == 0 {
            return None;
        }
        let now = monotonic_now().as_nanos();
        poll.ended.set(now);
        let elapsed = now.saturating_sub(present.began);
        let used_ns = poll.time_used.end_poll(now, elapsed, thread_cpu_time);
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
        report(elapsed, &charge);
    }
    Some(charge)
}

/// The processor time that the polls of a thread use. On a busy machine the thread may wait for a processor, and any poll may
/// sleep in the kernel. The known use since the last sample, of polls and of the switches between them, tells the use of a
/// long poll from that of the thread, which is read at its end only. Times in nanoseconds.
struct TimeUsed {
    /// A sample of the thread's processor time, after the time at which it was taken.
    sampled: Cell<Option<(u64, Duration)>>,
    /// The time of the short polls and switches since then.
    known: Cell<u64>,
    /// The end of the last of them, or of a sleep.
    known_until: Cell<u64>,
}

impl TimeUsed {
    const fn new() -> Self {
        Self { sampled: Cell::new(None), known: Cell::new(0), known_until: Cell::new(0) }
    }

    fn set(&self, now: u64, total: Duration) -> Option<Duration> {
        self.known.set(0);
        self.known_until.set(now);
        self.sampled.replace(Some((now, total))).map(|(_, before)| before)
    }

    fn sample(&self, now: u64, total: impl FnOnce() -> Duration) {
        if self.sampled.get().is_none_or(|(at, _)| now.saturating_sub(at) > SAMPLE_EVERY_NS) {
            self.set(now, total());
        }
    }

    #[inline]
    fn begin_poll(&self, now: u64, total: impl FnOnce() -> Duration) {
        let switch = now.saturating_sub(self.known_until.get());
        if switch <= EXACT_ABOVE_NS {
            self.known.set(self.known.get() + switch);
        } else {
            self.set(now, total());
        }
    }

    /// Returns how much processor time was used by a poll that took `elapsed` and ends at `now`.
    #[inline]
    fn end_poll(&self, now: u64, elapsed: u64, total: impl FnOnce() -> Duration) -> u64 {
        let known = self.known.get();
        if elapsed <= EXACT_ABOVE_NS {
            self.known.set(known + elapsed);
            self.known_until.set(now);
            return elapsed;
        }
        let total = total();
        self.set(now, total).map_or(elapsed, |before| {
            let used = u64::try_from(total.saturating_sub(before).as_nanos()).unwrap_or(u64::MAX);
            used.saturating_sub(known).min(elapsed)
        })
    }
}

/// Returns when the last poll on this thread ended, if its scheduler has not yet recorded that: for what
/// happens right after the poll. `None` inside a poll.
pub(crate) fn poll_end() -> Option<u64> {
    let ended = POLL.try_with(|poll| poll.ended.get()).ok()?;
    (ended > 0).then_some(ended)
}

/// Returns the initial credit of a new task of `kind`: paid by its kind, or by the task that spawns it, or
/// from `foreign` credit outside tasks.
pub(crate) fn credit_of_new(kind: TaskKind, foreign: &SharedCredit) -> Credit {
    // Not the beginning of the poll, which may be so long ago that nothing would have to be paid.
    let now = monotonic_now().as_nanos();
    kind.pay(now).or_else(|| pay_child(now)).unwrap_or_else(|| foreign.pay_child(now))
}

/// Stores a long poll for the scheduler.
pub(crate) fn leave_long_poll(poll: EndedPoll) {
    LONG_POLL.with(|place| *place.borrow_mut() = Some(poll));
}

/// Takes what [`leave_long_poll`] stored.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread with a clock and a processor time of its own.
    struct Thread {
        used: TimeUsed,
        now: u64,
        total: Duration,
    }

    impl Thread {
        fn new() -> Self {
            let thread = Self { used: TimeUsed::new(), now: 1_000_000, total: Duration::ZERO };
            thread.used.sample(thread.now, || thread.total);
            thread
        }

        fn run(&mut self, nanos: u64) {
            self.now += nanos;
            self.total += Duration::from_nanos(nanos);
        }

        /// Switches, then polls a task that computes and is kept from the processor for a while. Returns what it is charged.
        fn poll(&mut self, switch: u64, computes: u64, waits: u64) -> u64 {
            self.run(switch);
            self.used.sample(self.now, || self.total);
            let began = self.now;
            self.used.begin_poll(began, || self.total);
            self.run(computes);
            self.now += waits;
            self.used.end_poll(self.now, self.now - began, || self.total)
        }
    }

    /// Goal: a poll during which the kernel took the processor away pays for what it used, not for the switches of the scheduler
    /// since the last sample. Method: 100 short polls with switches ten times as long, then one that waits.
    #[test]
    fn switches_are_not_charged_to_an_interrupted_poll() {
        let mut thread = Thread::new();
        for _ in 0..100 {
            assert_eq!(thread.poll(4_000, 400, 0), 400);
        }
        assert_eq!(thread.poll(4_000, 2_000, 10_000_000), 2_000);
        assert_eq!(thread.poll(4_000, 80_000, 0), 80_000);
        assert_eq!(thread.poll(10_000_000, 80_000, 30_000), 80_000, "after a long poll pass");
    }

    /// Goal: sleeps of the thread do not make the next poll cheaper. Method: a long poll after short sleeps.
    #[test]
    fn sleeps_are_not_taken_for_use() {
        let mut thread = Thread::new();
        for _ in 0..5 {
            thread.now += 40_000;
            thread.used.known_until.set(thread.now);
            assert_eq!(thread.poll(1_000, 60_000, 0), 60_000);
        }
    }
}
