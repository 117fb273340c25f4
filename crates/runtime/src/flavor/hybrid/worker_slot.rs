//! The state of a thread that runs tasks, as the supervisor sees it: whether it is inside a poll, since when, and
//! of which task.

use std::{panic::Location, time::Duration};

use vigie_detect::Instant;

use crate::{
    kernel_help::{self, HogTimer, thread_state},
    measure::CurrentPoll,
    sync::{AtomicBool, AtomicCell, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    task_cell::{LiveTasks, TaskInfo},
};

/// Written by the thread that owns the slot, read by any thread. `Relaxed`: a stale value makes the
/// supervisor check again a little later, or help once too often.
pub(crate) struct WorkerSlot {
    /// The beginning of the present poll, in nanoseconds; zero while nothing is polled.
    began: AtomicU64,
    /// The task's polls are usually brief, by processor time: if this one is late, the thread probably waits
    /// for a processor.
    is_brief: AtomicBool,
    /// The beginning of the last late poll of a brief task that the supervisor saw, and of the last one that
    /// it decided holds its thread. The supervisor's.
    doubted: AtomicU64,
    seen: AtomicU64,
    /// The time of the last [examination](Self::examine). The supervisor's.
    examined: AtomicU64,
    /// The place at which the task that is polled was spawned.
    site: AtomicCell<Option<&'static Location<'static>>>,
    /// Key of its name among the live tasks, plus one; zero if it has no name.
    name_key: AtomicU32,
    /// The beginning of the last poll that was reported as long. The supervisor's.
    reported: AtomicU64,
    /// The supervisor has given the kernel's default slice back to the thread.
    has_long_slice: AtomicBool,
    /// The same for polls of hogs.
    reported_hog: AtomicU64,
    /// The poll in which the thread was last found asleep in the kernel, in the form of [`mark`](Self::mark),
    /// or zero. Set by the supervisor, cleared by either; the one that clears it updates the count (see
    /// [`Blocked`]).
    blocked: AtomicU64,
    /// It is a reserve thread that replaces no other thread.
    is_extra: AtomicBool,
    /// It is a reserve thread whose last or present poll is of a short task of the compute lane.
    serves_short: AtomicBool,
    /// The time until which the supervisor need not check whether the thread sleeps, and the length of that interval.
    /// The supervisor's.
    asked: AtomicCell<SleepCheck>,
    /// A poll, by its beginning, and the thread's processor time when it was found to be long, in nanoseconds.
    /// The supervisor's.
    metered: AtomicCell<(u64, u64)>,
    /// The task's kind and which of its polls runs, if that is one of the first; zero otherwise.
    early: AtomicU64,
    /// The beginning of the last poll that was reported to its kind while it ran. The supervisor's.
    taught: AtomicU64,
    /// The kernel thread id; zero before the thread has begun.
    thread: AtomicU32,
}

/// The time after the first check at which the supervisor checks again whether a thread sleeps; the interval doubles
/// each time, up to the second value.
pub(super) const ASK_AGAIN_NS: u64 = 100_000;
const ASK_AGAIN_MAX_NS: u64 = 10_000_000;

/// The same for a thread that was found asleep: it is replaced, so its next action is not urgent, and a check
/// costs some 5 µs.
const ASK_SLEEPER_NS: u64 = 2_000_000;
const ASK_SLEEPER_MAX_NS: u64 = 100_000_000;

/// The time for which a poll that was expected to sleep is assumed to.
const ASK_EXPECTED_NS: u64 = 5_000_000;

/// A thread that has used this much processor time in a poll since the poll was found to be long computes.
const COMPUTES_NS: u64 = 200_000;

/// A brief task's poll that takes this long is examined, and again after each further such time: it may compute after all, or sleep.
const WAITS_MOST_NS: u64 = 2_000_000;

#[derive(Clone, Copy, Debug)]
struct SleepCheck {
    /// The poll that was checked.
    began: u64,
    next: u64,
    pause: u64,
    /// The thread's processor time if it was asleep.
    slept_at: Option<u64>,
}

/// The number of threads that sleep in the kernel inside a poll: the same number of others may compute in their place.
#[derive(Debug)]
pub(crate) struct Blocked {
    count: AtomicUsize,
    /// The number of them that replaced no other thread when they fell asleep. If they were replaced to compute,
    /// more threads would compute than there are workers.
    extra: AtomicUsize,
    /// Reserve threads that compute. Never raised above the count without the extra ones.
    substitutes: AtomicUsize,
}

impl Blocked {
    pub(crate) fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            extra: AtomicUsize::new(0),
            substitutes: AtomicUsize::new(0),
        }
    }

    fn add(&self, mark: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.extra.fetch_add(is_of_extra(mark), Ordering::Relaxed);
    }

    fn remove(&self, mark: u64) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.extra.fetch_sub(is_of_extra(mark), Ordering::Relaxed);
    }

    /// Returns how many threads are asleep.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns how many of them replaced no other thread.
    pub(crate) fn extra(&self) -> usize {
        self.extra.load(Ordering::Relaxed)
    }

    /// Returns how many threads may be replaced to compute.
    fn places(&self) -> usize {
        self.count().saturating_sub(self.extra())
    }

    /// Returns how many of those are not replaced yet.
    pub(crate) fn vacancies(&self) -> usize {
        self.places().saturating_sub(self.substitutes.load(Ordering::Relaxed))
    }

    /// Takes the place of a sleeping thread, if there is one. The caller must [`leave`](Self::leave) it.
    #[must_use = "the place stays taken"]
    pub(crate) fn substitute(&self) -> bool {
        let take = |taken: usize| (taken < self.places()).then_some(taken + 1);
        self.vacancies() > 0
            && self.substitutes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Returns whether more threads compute in the place of others than there are places.
    #[inline]
    pub(crate) fn is_overfull(&self) -> bool {
        self.substitutes.load(Ordering::Relaxed) > self.places()
    }

    /// A substitute stops computing.
    pub(crate) fn leave(&self) {
        self.substitutes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns 1 if a [mark](WorkerSlot::mark) is that of a thread that replaced no other, 0 otherwise.
const fn is_of_extra(mark: u64) -> usize {
    (mark & 1) as usize
}

impl WorkerSlot {
    pub(crate) fn new() -> Self {
        Self {
            began: AtomicU64::new(0),
            is_brief: AtomicBool::new(false),
            doubted: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            examined: AtomicU64::new(0),
            site: AtomicCell::new(None),
            name_key: AtomicU32::new(0),
            reported: AtomicU64::new(0),
            has_long_slice: AtomicBool::new(false),
            reported_hog: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            is_extra: AtomicBool::new(false),
            serves_short: AtomicBool::new(false),
            asked: AtomicCell::new(SleepCheck { began: 0, next: 0, pause: 0, slept_at: None }),
            metered: AtomicCell::new((0, 0)),
            early: AtomicU64::new(0),
            taught: AtomicU64::new(0),
            thread: AtomicU32::new(0),
        }
    }

    /// The calling thread takes the slot.
    pub(crate) fn take(&self) {
        self.thread.store(kernel_help::thread_number(), Ordering::Relaxed);
    }

    /// Returns the kernel thread id of the slot's thread, if there is one.
    pub(crate) fn thread(&self) -> Option<u32> {
        Some(self.thread.load(Ordering::Relaxed)).filter(|&thread| thread > 0)
    }

    /// Sets whether the thread is a reserve thread that replaces no other. Called by the thread itself,
    /// outside polls.
    pub(crate) fn set_extra(&self, is_extra: bool) {
        self.is_extra.store(is_extra, Ordering::Relaxed);
    }

    /// Sets whether the thread is a reserve thread that runs a short task of the compute lane. Called by the thread itself, outside polls.
    pub(crate) fn set_serves_short(&self, serves_short: bool) {
        self.serves_short.store(serves_short, Ordering::Relaxed);
    }

    /// Returns whether it did, and ends that. Called by the thread itself.
    pub(crate) fn take_serves_short(&self) -> bool {
        let serves_short = self.serves_short();
        if serves_short {
            self.set_serves_short(false);
        }
        serves_short
    }

    pub(crate) fn serves_short(&self) -> bool {
        self.serves_short.load(Ordering::Relaxed)
    }

    /// The mark for a poll that began at `began`, in nanoseconds, in which the thread sleeps.
    fn mark(&self, began: u64) -> u64 {
        began << 1 | u64::from(self.is_extra.load(Ordering::Relaxed))
    }

    /// Returns whether the thread was found asleep in the kernel during the current poll.
    pub(crate) fn is_blocked(&self) -> bool {
        let blocked = self.blocked.load(Ordering::Relaxed);
        blocked != 0 && blocked >> 1 == self.began.load(Ordering::Relaxed)
    }

    /// Checks whether the thread sleeps in the kernel inside the poll that began at `began`, if it is time
    /// for another check. Returns whether it was found asleep for the first time, so that the answer should
    /// be confirmed soon. The supervisor's.
    pub(crate) fn ask(&self, began: Instant, now: Instant, count: &Blocked) -> bool {
        let (began, now) = (began.as_nanos(), now.as_nanos());
        let asked = self.asked.load();
        let is_new = asked.began != began;
        if !is_new && now < asked.next {
            return false;
        }
        if is_new && self.is_blocked() {
            let next = now + ASK_EXPECTED_NS;
            self.asked.store(SleepCheck { began, next, pause: ASK_EXPECTED_NS, slept_at: None });
            return false;
        }
        let slept_at = self.thread().filter(|&thread| thread_state::is_asleep(thread));
        let slept_at = slept_at.and_then(kernel_help::processor_time);
        // Twice at the same processor time: it did not run in between. A thread that waits for one of our
        // locks whose holder lost its processor is back sooner.
        let is_asleep = slept_at.is_some() && !is_new && slept_at == asked.slept_at;
        let pause = match slept_at {
            _ if is_new => ASK_AGAIN_NS,
            Some(_) if self.is_blocked() => (asked.pause * 2).min(ASK_SLEEPER_MAX_NS),
            Some(_) if is_asleep => ASK_SLEEPER_NS,
            _ => (asked.pause * 2).min(ASK_AGAIN_MAX_NS),
        };
        self.asked.store(SleepCheck { began, next: now + pause, pause, slept_at });
        if is_asleep {
            // First, so that a thread that clears the mark at once subtracts what was counted.
            self.add_blocked(began, count);
            // With the swap in `end_long_poll`, which follows the end of the poll: one of us clears it.
            fence(Ordering::SeqCst);
            if self.began.load(Ordering::SeqCst) != began {
                self.clear_blocked(count);
            }
        } else if slept_at.is_none() {
            self.clear_blocked(count);
        }
        slept_at.is_some() && !self.is_blocked()
    }

    /// Returns whether the thread is known to compute in the poll that began at `began`, rather than wait for
    /// a processor: it has used processor time since the first check. The supervisor's.
    pub(crate) fn computes(&self, began: Instant) -> bool {
        let Some(used) = self.thread().and_then(kernel_help::processor_time) else { return true };
        let (metered, before) = self.metered.load();
        if metered == began.as_nanos() {
            return used.saturating_sub(before) >= COMPUTES_NS;
        }
        self.metered.store((began.as_nanos(), used));
        false
    }

    /// Clears the mark of an earlier poll, which says nothing about this one. The supervisor's.
    pub(crate) fn forget_earlier(&self, count: &Blocked) {
        if self.blocked.load(Ordering::Relaxed) != 0 && !self.is_blocked() {
            self.clear_blocked(count);
        }
    }

    /// The poll that has just begun at `now` will probably sleep in the kernel.
    pub(crate) fn expect_sleep(&self, now: Instant, count: &Blocked) {
        self.add_blocked(now.as_nanos(), count);
    }

    /// A poll that was long, or was expected to be, has ended on this thread.
    pub(crate) fn end_long_poll(&self, count: &Blocked) {
        self.began.store(0, Ordering::SeqCst);
        self.clear_blocked(count);
    }

    fn add_blocked(&self, began: u64, count: &Blocked) {
        let mark = self.mark(began);
        count.add(mark);
        let before = self.blocked.swap(mark, Ordering::SeqCst);
        if before != 0 {
            count.remove(before);
        }
    }

    fn clear_blocked(&self, count: &Blocked) {
        let before = self.blocked.swap(0, Ordering::SeqCst);
        if before != 0 {
            count.remove(before);
        }
    }

    /// The thread leaves the slot.
    pub(crate) fn leave(&self) {
        self.thread.store(0, Ordering::Relaxed);
    }

    /// A poll of `task` begins.
    pub(crate) fn begin(&self, now: Instant, task: &TaskInfo) {
        self.early.store(task.early_word(), Ordering::Relaxed);
        self.site.store(Some(task.site));
        self.name_key.store(task.name_key, Ordering::Relaxed);
        self.began.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Nothing is polled until the next [`begin`](Self::begin), and the thread's timer stops.
    pub(crate) fn rest(&self, timer: &HogTimer) {
        self.began.store(0, Ordering::Relaxed);
        // With the fence in `help`: either we see the timer, or the supervisor sees that we rest.
        fence(Ordering::SeqCst);
        timer.stop();
    }

    /// Starts the timer of the slot's thread, unless it rests by now. The supervisor's.
    pub(crate) fn help(&self, timer: &HogTimer) {
        timer.start();
        // See `rest`.
        fence(Ordering::SeqCst);
        if self.current().is_none() {
            timer.stop();
        }
    }

    /// Sets whether the polls of the coming task are usually brief, by processor time, and do not sleep.
    pub(crate) fn set_brief(&self, is_brief: bool) {
        self.is_brief.store(is_brief, Ordering::Relaxed);
    }

    /// Returns whether a poll has been running here for more than `nanos` at `now`.
    pub(crate) fn is_late(&self, now: Instant, nanos: u64) -> bool {
        let began = self.began.load(Ordering::Relaxed);
        began != 0 && now.as_nanos().saturating_sub(began) > nanos
    }

    /// Returns whether the thread has switched since `then`: it polls nothing, or a brief task.
    pub(crate) fn has_switched(&self, then: Instant) -> bool {
        let began = self.began.load(Ordering::Relaxed);
        began == 0 || began > then.as_nanos() && self.is_brief.load(Ordering::Relaxed)
    }

    /// Returns whether a poll of a brief task has been running here for `nanos` at most at `now`.
    pub(crate) fn switches(&self, now: Instant, nanos: u64) -> bool {
        let began = self.began.load(Ordering::Relaxed);
        let is_young = now.as_nanos().saturating_sub(began) <= nanos;
        began != 0 && is_young && self.is_brief.load(Ordering::Relaxed)
    }

    /// Returns whether the thread is held by a poll that has been running for more than `nanos` at `now`, and
    /// does not only wait for a processor, as far as is known.
    pub(crate) fn is_caught(&self, now: Instant, nanos: u64) -> bool {
        self.is_late(now, nanos)
            && (!self.is_brief.load(Ordering::Relaxed)
                || self.seen.load(Ordering::Relaxed) == self.began.load(Ordering::Relaxed))
    }

    /// Returns whether the supervisor should check the thread: it is [caught](Self::is_caught), or its poll of a brief task has been
    /// late for so long that it should be examined, once more if it was.
    pub(crate) fn needs_check(&self, now: Instant, nanos: u64) -> bool {
        let examined = self.examined.load(Ordering::Relaxed);
        let is_old = || now.as_nanos().saturating_sub(examined) > WAITS_MOST_NS;
        self.is_caught(now, nanos) || self.is_late(now, WAITS_MOST_NS.max(nanos)) && is_old()
    }

    /// The poll that began at `began` is late for a brief one, and another worker switches, which takes what waits behind it. Once it is
    /// late for long, it counts as holding its thread if the thread has computed in it since the first examination or sleeps in the
    /// kernel, and not while the thread only waits for a processor. Returns whether the next examination will tell. The supervisor's.
    pub(crate) fn examine(&self, began: Instant, now: Instant, count: &Blocked) -> bool {
        self.examined.store(now.as_nanos(), Ordering::Relaxed);
        let is_first = self.metered.load().0 != began.as_nanos();
        let computes = self.computes(began);
        if !self.is_late(now, WAITS_MOST_NS) {
            return false;
        }
        let may_sleep = self.ask(began, now, count);
        if computes || self.is_blocked() {
            self.take_as_caught(began);
        }
        is_first || may_sleep
    }

    /// The poll that began at `began` counts as holding its thread. The supervisor's.
    pub(crate) fn take_as_caught(&self, began: Instant) {
        self.seen.store(began.as_nanos(), Ordering::Relaxed);
    }

    /// The poll that began at `began` is late for a brief one, and no thread relieves it: at the second check,
    /// it counts as holding its thread. Returns whether that check is still to come. The supervisor's.
    pub(crate) fn doubt(&self, began: Instant) -> bool {
        let is_first = self.doubted.swap(began.as_nanos(), Ordering::Relaxed) != began.as_nanos();
        if !is_first {
            self.take_as_caught(began);
        }
        is_first
    }

    /// Returns whether the poll that began at `began` is reported for the first time.
    pub(crate) fn log_once(&self, began: Instant) -> bool {
        self.reported.swap(began.as_nanos(), Ordering::Relaxed) != began.as_nanos()
    }

    /// Returns whether a poll like the early one in `word` (see [`lesson`](Self::lesson)) runs here, is long,
    /// and was not found asleep.
    pub(crate) fn is_long_like(&self, word: u64, now: Instant, long_poll: u64) -> bool {
        self.early.load(Ordering::Relaxed) == word
            && self.is_caught(now, long_poll)
            && !self.is_blocked()
    }

    /// Returns the kind of the task that is polled and the poll, as a word, if it is one of the first.
    pub(crate) fn early_word(&self) -> Option<u64> {
        Some(self.early.load(Ordering::Relaxed)).filter(|&word| word != 0)
    }

    /// Returns the expected time of the current poll in nanoseconds: once, if it is one of the first of its task, lasts longer than half a
    /// `quantum`, and computes. A poll that has lasted this long is expected to last for as long again. The supervisor's.
    pub(crate) fn lesson(&self, now: Instant, quantum: Duration) -> Option<u64> {
        self.early_word()?;
        let (began, _) = self.current()?;
        let elapsed = now - began;
        let is_news = self.taught.load(Ordering::Relaxed) != began.as_nanos();
        if elapsed <= quantum / 2 || !is_news || !self.computes(began) {
            return None;
        }
        self.taught.store(began.as_nanos(), Ordering::Relaxed);
        Some(u64::try_from(2 * elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Records that the thread has the kernel's default slice again.
    pub(crate) fn give_long_slice(&self) {
        self.has_long_slice.store(true, Ordering::Relaxed);
    }

    /// Returns whether the thread has been given the default slice since the last call.
    pub(crate) fn take_long_slice(&self) -> bool {
        self.has_long_slice.load(Ordering::Relaxed)
            && self.has_long_slice.swap(false, Ordering::Relaxed)
    }

    /// Like [`log_once`](Self::log_once), for the poll of a hog.
    pub(crate) fn log_hog_once(&self, began: Instant) -> bool {
        self.reported_hog.swap(began.as_nanos(), Ordering::Relaxed) != began.as_nanos()
    }

    /// Returns the task that is polled here at `now`, with its name among the `live` tasks if it has one.
    pub(crate) fn current_task(&self, now: Instant, live: &LiveTasks) -> Option<CurrentPoll> {
        let (began, site) = self.current()?;
        let name = live.name(self.name_key.load(Ordering::Relaxed));
        // Another task may have come since, and the name may belong to neither.
        let is_same = self.current().is_some_and(|(again, _)| again == began);
        is_same.then(|| CurrentPoll { name, site, elapsed: now - began })
    }

    /// Returns when the present poll began, and where its task was spawned.
    pub(crate) fn current(&self) -> Option<(Instant, &'static Location<'static>)> {
        match self.began.load(Ordering::Relaxed) {
            0 => None,
            began => Some((Instant::from_nanos(began), self.site.load()?)),
        }
    }
}
