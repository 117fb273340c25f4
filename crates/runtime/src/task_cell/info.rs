//! The information that a scheduler keeps with each task.

use std::{fmt, panic::Location};

use vigie_detect::Instant;

use super::{
    id::Id,
    kind::TaskKind,
    poll::{self, Charge},
};
use crate::{
    lane::{Account, Credit, Early, SharedCredit, Trust},
    sync::{
        Arc, AtomicBool, Ordering,
        count::{AtomicU64, RELAXED},
    },
};

/// The scheduler's information about a task.
#[derive(Debug)]
pub(crate) struct TaskInfo {
    pub(super) id: Id,
    /// The place at which the task was spawned.
    pub(crate) site: &'static Location<'static>,
    /// Key of its name among the live tasks, plus one; zero if it has no name.
    pub(crate) name_key: u32,
    /// The time at which the task became ready, in nanoseconds: see [`ReadyTime`]. Written by the thread that schedules
    /// it, read by the worker that polls it then.
    ready: AtomicU64,
    /// The task is to be dropped instead of polled. Set by any thread before it wakes the task; read by the
    /// worker before each poll, ordered by the task cell's own state.
    is_aborted: AtomicBool,
    /// The beginning of the last poll, or its end if the last bit is not set; in nanoseconds, or zero where polls are not timed. Written by
    /// the thread that polls, read for dumps.
    progress: AtomicU64,
    /// The thread of the last poll.
    thread: PollingThread,
    /// The future is gone. Set by the thread that drops it.
    is_over: AtomicBool,
    /// The future panicked. Set by the thread that polls it, before `is_over`.
    has_panicked: AtomicBool,
    kind: Option<TaskKind>,
    /// The processor time that the task has used lately.
    pub(crate) account: Account,
    trust: Trust,
    /// The next poll is tried although it is expected to be long. Written by the thread that spawns or polls the task.
    is_tried: AtomicBool,
    /// The task slept in the kernel in its last poll. Written by the thread that polls.
    sleeps: AtomicBool,
    /// The last poll was long, whether the task computed, slept, or waited for a processor.
    was_late: AtomicBool,
}

/// The time at which a task became ready, in nanoseconds; the last bit says whether an event made it ready. Zero if the
/// clock was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadyTime(u64);

impl ReadyTime {
    pub(crate) const UNKNOWN: Self = Self(0);
    /// The task has not become ready since its last poll began.
    const NOT: Self = Self(u64::MAX);

    pub(crate) const fn new(nanos: u64, by_event: bool) -> Self {
        Self((nanos & !1) | by_event as u64)
    }

    /// Returns the time, if it is known.
    pub(crate) const fn nanos(self) -> Option<u64> {
        if self.0 == 0 { None } else { Some(self.0) }
    }

    /// Returns how long the task has been ready at `now`, in nanoseconds, and whether an event made it
    /// so.
    pub(crate) const fn delay(self, now: u64) -> Option<(u64, bool)> {
        if self.0 == 0 { None } else { Some((now.saturating_sub(self.0), self.0 & 1 == 1)) }
    }
}

/// The state of a task at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskState {
    /// It is inside a poll.
    Running,
    /// It is in a queue, to be polled.
    Ready,
    /// It waits to be woken.
    Waiting,
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Running => "running",
            Self::Ready => "ready",
            Self::Waiting => "waiting",
        })
    }
}

/// A task's name, and its initial credit.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub(crate) site: &'static Location<'static>,
    pub(crate) name: Option<Arc<str>>,
    /// Set by schedulers that use kinds.
    pub(crate) kind: Option<TaskKind>,
    pub(crate) credit: Credit,
}

impl Label {
    /// Adds the kind and the credit of a task whose future is an `F`.
    pub(crate) fn of_kind<F: 'static>(mut self, foreign_credit: &SharedCredit) -> Self {
        let kind = TaskKind::of::<F>();
        self.kind = Some(kind);
        self.credit = poll::credit_of_new(kind, foreign_credit);
        self
    }
}

impl From<&'static Location<'static>> for Label {
    fn from(site: &'static Location<'static>) -> Self {
        Self { site, name: None, kind: None, credit: Credit::FULL }
    }
}

/// A task whose last poll slept in the kernel for at least this long is expected to do so again. A shorter
/// sleep is a lock that is soon free, and no reason to prepare another thread.
const SLEEP_NS: u64 = 300_000;

impl TaskInfo {
    pub(super) fn new(label: &Label, name_key: u32) -> Self {
        let is_tried = label.kind.is_some_and(|kind| kind.may_try(Early::First));
        let expected = label.kind.filter(|_| !is_tried);
        Self {
            id: Id::next(),
            site: label.site,
            name_key,
            ready: AtomicU64::new(0),
            is_aborted: AtomicBool::new(false),
            progress: AtomicU64::new(0),
            thread: PollingThread::new(),
            is_over: AtomicBool::new(false),
            has_panicked: AtomicBool::new(false),
            kind: label.kind,
            account: Account::new(
                label.credit,
                expected.and_then(|kind| kind.expected_ns(Early::First)),
            ),
            trust: Trust::new(),
            is_tried: AtomicBool::new(is_tried),
            sleeps: AtomicBool::new(false),
            was_late: AtomicBool::new(false),
        }
    }

    pub(crate) const fn id(&self) -> Id {
        self.id
    }

    pub(crate) fn note_ready(&self, time: ReadyTime) {
        self.ready.store(time.0, RELAXED);
    }

    pub(crate) fn ready_time(&self) -> ReadyTime {
        ReadyTime(self.ready.load(RELAXED))
    }

    /// Returns the time at which a thread whose last switch was at `switched_at` judges the task's credit: not before it became
    /// ready. The thread may have been kept from the processor since, or have been in a long poll; the task's credit may have
    /// been paid later, and would seem to be missing at the earlier time.
    pub(crate) fn judged_at(&self, switched_at: u64) -> u64 {
        self.ready_time().nanos().map_or(switched_at, |ready| ready.max(switched_at))
    }

    /// A poll begins at `now`, which is zero if polls are not timed.
    pub(super) fn note_begin(&self, now: u64) {
        self.ready.store(ReadyTime::NOT.0, RELAXED);
        self.thread.note();
        self.progress.store(now | 1, RELAXED);
    }

    /// A poll ends at `now`.
    pub(super) fn note_pause(&self, now: u64) {
        self.progress.store(now & !1, RELAXED);
    }

    /// Returns what the task does, and since when if that is known.
    pub(crate) fn state(&self) -> (TaskState, Option<Instant>) {
        let (progress, ready) = (self.progress.load(RELAXED), self.ready_time());
        let known = |nanos: u64| (nanos > 1).then(|| Instant::from_nanos(nanos));
        if progress & 1 == 1 {
            (TaskState::Running, known(progress))
        } else if ready == ReadyTime::NOT {
            (TaskState::Waiting, known(progress))
        } else {
            (TaskState::Ready, known(ready.0))
        }
    }

    /// Returns the kernel thread id of the thread that polls the task, if one does and the feature `stacks` is on.
    pub(crate) fn polled_by(&self) -> Option<u32> {
        let is_polled = self.progress.load(RELAXED) & 1 == 1;
        self.thread.number().filter(|_| is_polled)
    }

    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
    }

    /// The future of the task is gone.
    pub(super) fn note_end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Returns whether the future of the task is gone.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    pub(super) fn note_panic(&self) {
        self.has_panicked.store(true, Ordering::Relaxed);
    }

    /// Returns whether the future panicked, once it is [over](Self::is_over).
    pub(super) fn has_panicked(&self) -> bool {
        self.has_panicked.load(Ordering::Relaxed)
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Acquire)
    }

    /// Records a poll.
    pub(super) fn record_poll(&self, charge: Charge) {
        self.account.charge(charge.credit, charge.used_ns.min(charge.most_ns));
        let was_early = self.early();
        if let Some((kind, early)) = was_early {
            kind.note_poll(early, charge.used_ns);
        }
        self.trust.note_poll(charge.has_computed);
        if was_early.is_some() {
            let is_tried = self.may_try();
            self.is_tried.store(is_tried, Ordering::Relaxed);
            self.account.expect(self.expected_ns());
        }
        let sleeps = charge.slept_ns >= SLEEP_NS && poll::was_asleep();
        if sleeps != self.sleeps() {
            self.sleeps.store(sleeps, Ordering::Relaxed);
        }
        if charge.was_long != self.was_late() {
            self.was_late.store(charge.was_long, Ordering::Relaxed);
        }
    }

    /// Returns whether the last poll was long, for any reason.
    pub(crate) fn was_late(&self) -> bool {
        self.was_late.load(Ordering::Relaxed)
    }

    /// Returns whether the task will probably sleep in the kernel when it is polled.
    pub(crate) fn sleeps(&self) -> bool {
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Returns the kind of the task and which poll comes next, if that is one of the first.
    pub(crate) fn early(&self) -> Option<(TaskKind, Early)> {
        self.kind.zip(self.trust.early())
    }

    /// Returns whether the next poll is tried although others of its kind are long. A task that has computed itself is not.
    fn may_try(&self) -> bool {
        let early = self.kind.zip(self.trust.early_if_short());
        early.is_some_and(|(kind, early)| kind.may_try(early))
    }

    /// Returns [`early`](Self::early) as one number for atomics, or zero.
    pub(crate) fn early_word(&self) -> u64 {
        self.early().map_or(0, |(kind, early)| kind.to_word(early))
    }

    /// Returns the time that tasks of the same kind have used in the poll that comes next, in nanoseconds, if
    /// it is one of the first and not tried.
    pub(crate) fn expected_ns(&self) -> Option<u32> {
        let is_tried = self.is_tried.load(Ordering::Relaxed);
        self.expected_of_kind_ns().filter(|_| !is_tried)
    }

    /// Returns the same for a poll that is tried, too: a trial that was granted may wait so long for credit that its answer is known.
    pub(crate) fn expected_of_kind_ns(&self) -> Option<u32> {
        self.early().and_then(|(kind, early)| kind.expected_ns(early))
    }

    /// The next poll is not tried, if others of its kind were long.
    pub(crate) fn end_trial(&self) {
        if self.is_tried.load(Ordering::Relaxed) {
            self.is_tried.store(false, Ordering::Relaxed);
        }
    }

    /// Returns whether the next poll is tried although others of its kind have turned out to be long since the task became
    /// ready.
    #[cold]
    pub(crate) fn is_tried_now(&self) -> bool {
        let is_tried = self.may_try();
        if is_tried {
            self.is_tried.store(true, Ordering::Relaxed);
            self.account.expect(None);
        }
        is_tried
    }

    /// Returns whether the task's own polls have shown that it holds no thread for long.
    pub(crate) fn is_proven(&self) -> bool {
        self.trust.is_proven()
    }
}

/// The thread that polled a task last, where stacks are asked for. Written by that thread, read for dumps.
#[derive(Debug)]
struct PollingThread {
    #[cfg(feature = "stacks")]
    number: crate::sync::count::AtomicU32,
}

#[cfg(feature = "stacks")]
impl PollingThread {
    const fn new() -> Self {
        Self { number: crate::sync::count::AtomicU32::new(0) }
    }

    fn note(&self) {
        crate::sync::thread_local! {
            static NUMBER: u32 = crate::kernel_help::thread_number();
        }
        let number = NUMBER.try_with(|&number| number).unwrap_or(0);
        if self.number.load(RELAXED) != number {
            self.number.store(number, RELAXED);
        }
    }

    fn number(&self) -> Option<u32> {
        Some(self.number.load(RELAXED)).filter(|&number| number != 0)
    }
}

#[cfg(not(feature = "stacks"))]
#[expect(clippy::unused_self, reason = "there is something with the feature")]
impl PollingThread {
    const fn new() -> Self {
        Self {}
    }

    #[inline]
    const fn note(&self) {}

    const fn number(&self) -> Option<u32> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a thread that read the clock long before a task was spawned does not find that the task has no credit; one that read
    /// it later judges by its own time. Method: a tenth of a bucket, paid at the time of the spawn.
    #[test]
    fn tasks_are_not_judged_before_they_are_ready() {
        const MS: u64 = 1_000_000;
        let (early, spawned, late) = (1_000 * MS, 1_010 * MS, 1_030 * MS);
        let mut parent = Credit::FULL.after(spawned, 800_000);
        let mut label = Label::from(Location::caller());
        label.credit = parent.pay_child(spawned);
        let info = TaskInfo::new(&label, 0);
        assert_eq!(info.judged_at(early), early, "not ready");
        info.note_ready(ReadyTime::new(spawned, false));
        assert!(!info.account.is_credit_sufficient(early), "so it would seem");
        assert!(info.account.is_credit_sufficient(info.judged_at(early)));
        assert_eq!(info.judged_at(late), late);
    }
}
