//! A thread's own data, and its interface for other threads.

use std::cell::Cell;

use crossbeam::{deque::Worker as Queue, utils::CachePadded};
use vigie_detect::Instant;

use super::{monotonic_now, order::OwnQueues, worker_slot::WorkerSlot};
use crate::{
    kernel_help::HogTimer,
    lane::Cause,
    measure::{Sampler, ThreadCounters},
    parking::parker::Parker,
    sync::Arc,
    task_cell::Runnable,
};

/// The part of a worker or a reserve thread that other threads may see and use.
pub(super) struct Remote {
    pub(super) parker: Parker,
    pub(super) worker_slot: WorkerSlot,
    pub(super) hog_timer: HogTimer,
    pub(super) counters: CachePadded<ThreadCounters>,
}

/// The data of a worker's or a reserve thread; schedule functions find it in a thread-local.
pub(super) struct Local<S> {
    /// The runtime that this thread works for.
    pub(super) owner: Arc<S>,
    /// The reaction lane; empty for a reserve thread.
    pub(super) reacting: Queue<Runnable>,
    /// Its index among the remotes.
    pub(super) place: usize,
    /// The worker's index; `None` for a reserve thread, which has no lanes of its own.
    pub(super) worker: Option<usize>,
    pub(super) cause: Cell<Cause>,
    /// The time of the latest switch, in nanoseconds.
    pub(super) switched_at: Cell<u64>,
    /// The task that is polled usually has short polls.
    pub(super) is_short: Cell<bool>,
    /// The expected time of the tasks that the present poll has woken, in nanoseconds.
    pub(super) woken_ns: Cell<u64>,
    pub(super) sampler: Sampler,
    /// The wake-ups by the present poll pass or sleep.
    pub(super) woken_at: Cell<Woken>,
}

/// The tasks that a poll pass has woken: none, one or several, and the time of the first.
#[derive(Clone, Copy, Debug)]
pub(super) enum Woken {
    None,
    One(u64),
    /// The first of them.
    Several(u64),
}

impl<S> Local<S> {
    pub(super) fn own(&self) -> OwnQueues<'_, Runnable> {
        OwnQueues { reacting: &self.reacting, worker: self.worker }
    }

    /// From now on, events wake tasks. Tasks that an earlier poll pass woke may have run elsewhere.
    pub(super) fn begin_detection(&self) {
        self.cause.set(Cause::Detection);
        self.woken_at.set(Woken::None);
    }

    /// Returns when the present poll pass or sleep first woke a task. A poll pass wakes its tasks one right after the other, so this
    /// is the time of all of them.
    pub(super) fn first_woken_at(&self) -> Option<u64> {
        match self.woken_at.get() {
            Woken::One(nanos) | Woken::Several(nanos) if self.cause.get() == Cause::Detection => {
                Some(nanos)
            }
            _ => None,
        }
    }

    /// Returns the time after a sleep: the time at which it woke a task, if it did, which saves a reading of
    /// the clock between an event and its task.
    pub(super) fn take_woken_at(&self) -> Instant {
        match self.woken_at.replace(Woken::None) {
            Woken::One(nanos) => Instant::from_nanos(nanos),
            Woken::None | Woken::Several(_) => monotonic_now(),
        }
    }
}
