//! What the supervisor may know of a thread that runs tasks: whether it is inside a poll, since when,
//! and of which task.

use std::panic::Location;

use vigie_detect::Instant;

use crate::{
    kernel_help::{self, HogTimer},
    metrics::CurrentPoll,
    sync::{AtomicBool, AtomicCell, AtomicU32, AtomicU64, Ordering, fence},
    task_cell::{LiveTasks, TaskInfo},
};

/// Written by the thread that sits here, read by anybody. `Relaxed`: a stale value makes the
/// supervisor look again a little later, or help once too often.
pub(crate) struct Seat {
    /// When the present poll began, in nanoseconds; zero while nothing is polled.
    began: AtomicU64,
    /// Where the task that is polled was spawned.
    site: AtomicCell<Option<&'static Location<'static>>>,
    /// Where its name stands among the live tasks, plus one; zero if it has none.
    name_key: AtomicU32,
    /// The beginning of the last poll that was reported as long. The supervisor's.
    told: AtomicU64,
    /// The supervisor has given the kernel's default slice back to the thread.
    has_long_slice: AtomicBool,
    /// The same for polls of hogs.
    told_hog: AtomicU64,
    /// The kernel's number of the thread; zero before it has begun.
    thread: AtomicU32,
}

impl Seat {
    pub(crate) fn new() -> Self {
        Self {
            began: AtomicU64::new(0),
            site: AtomicCell::new(None),
            name_key: AtomicU32::new(0),
            told: AtomicU64::new(0),
            has_long_slice: AtomicBool::new(false),
            told_hog: AtomicU64::new(0),
            thread: AtomicU32::new(0),
        }
    }

    /// The calling thread sits down here.
    pub(crate) fn take(&self) {
        self.thread.store(kernel_help::thread_number(), Ordering::Relaxed);
    }

    /// Returns the kernel's number of the thread that sits here, if there is one.
    pub(crate) fn thread(&self) -> Option<u32> {
        Some(self.thread.load(Ordering::Relaxed)).filter(|&thread| thread > 0)
    }

    /// The thread goes.
    pub(crate) fn leave(&self) {
        self.thread.store(0, Ordering::Relaxed);
    }

    /// A poll of `task` begins.
    pub(crate) fn begin(&self, now: Instant, task: &TaskInfo) {
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

    /// Starts the timer of the thread that sits here, unless it rests by now. The supervisor's.
    pub(crate) fn help(&self, timer: &HogTimer) {
        timer.start();
        // See `rest`.
        fence(Ordering::SeqCst);
        if self.current().is_none() {
            timer.stop();
        }
    }

    /// Returns since when a poll has been running here for more than `nanos` at `now`.
    pub(crate) fn is_caught(&self, now: Instant, nanos: u64) -> bool {
        let began = self.began.load(Ordering::Relaxed);
        began != 0 && now.as_nanos().saturating_sub(began) > nanos
    }

    /// Returns whether the poll that began at `began` is told of for the first time.
    pub(crate) fn tell_once(&self, began: Instant) -> bool {
        self.told.swap(began.as_nanos(), Ordering::Relaxed) != began.as_nanos()
    }

    /// Takes note that the thread has the kernel's default slice again.
    pub(crate) fn give_long_slice(&self) {
        self.has_long_slice.store(true, Ordering::Relaxed);
    }

    /// Returns whether the thread has been given the default slice since the last call.
    pub(crate) fn take_long_slice(&self) -> bool {
        self.has_long_slice.load(Ordering::Relaxed)
            && self.has_long_slice.swap(false, Ordering::Relaxed)
    }

    /// Like [`tell_once`](Self::tell_once), for the poll of a hog.
    pub(crate) fn tell_hog_once(&self, began: Instant) -> bool {
        self.told_hog.swap(began.as_nanos(), Ordering::Relaxed) != began.as_nanos()
    }

    /// Returns what is polled here at `now`, by its name among the `live` tasks if it has one.
    pub(crate) fn current_task(&self, now: Instant, live: &LiveTasks) -> Option<CurrentPoll> {
        let (began, site) = self.current()?;
        let name = live.name(self.name_key.load(Ordering::Relaxed));
        // Another task may have come since, and the name be that of neither.
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
