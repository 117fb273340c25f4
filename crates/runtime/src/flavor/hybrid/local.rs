//! What a thread that runs tasks knows of itself, and what others may do to it.

use std::cell::Cell;

use crossbeam::{deque::Worker as Queue, utils::CachePadded};
use vigie_detect::Instant;

use super::{monotonic_now, order::Own, seat::Seat};
use crate::{
    kernel_help::HogTimer,
    lane::Cause,
    measure::{Counters, Sampler},
    parking::parker::Parker,
    sync::Arc,
    task_cell::Runnable,
};

/// What others may do to a worker or a reserve thread, and see of it.
pub(super) struct Remote {
    pub(super) parker: Parker,
    pub(super) seat: Seat,
    pub(super) hog_timer: HogTimer,
    pub(super) counters: CachePadded<Counters>,
}

/// What a worker's thread, or a reserve thread, knows; schedule functions find it by a variable of the thread.
pub(super) struct Local<S> {
    /// Which runtime this thread works for.
    pub(super) owner: Arc<S>,
    /// The reaction lane; empty for a reserve thread.
    pub(super) reacting: Queue<Runnable>,
    /// Its place among the remotes.
    pub(super) place: usize,
    /// The worker's place; none for a reserve thread, which has no lanes of its own.
    pub(super) worker: Option<usize>,
    pub(super) cause: Cell<Cause>,
    /// The time of the latest switch, in nanoseconds.
    pub(super) switched_at: Cell<u64>,
    /// The task that is polled has short polls as a rule.
    pub(super) is_short: Cell<bool>,
    /// What the tasks use that the present poll has woken, in nanoseconds.
    pub(super) woken_ns: Cell<u64>,
    pub(super) sampler: Sampler,
    /// Whom the present look or sleep has woken.
    pub(super) woken_at: Cell<Woken>,
}

/// Whom a look has woken, and when.
#[derive(Clone, Copy, Debug)]
pub(super) enum Woken {
    Nobody,
    One(u64),
    Several,
}

impl<S> Local<S> {
    pub(super) fn own(&self) -> Own<'_, Runnable> {
        Own { reacting: &self.reacting, worker: self.worker }
    }

    /// From now on, tasks are woken by events. What an earlier look has woken, others may have run.
    pub(super) fn begin_detection(&self) {
        self.cause.set(Cause::Detection);
        self.woken_at.set(Woken::Nobody);
    }

    /// Returns the time after a sleep: when it woke a task, if it was one, which spares a reading of the
    /// clock between an event and its task.
    pub(super) fn take_woken_at(&self) -> Instant {
        match self.woken_at.replace(Woken::Nobody) {
            Woken::One(nanos) => Instant::from_nanos(nanos),
            Woken::Nobody | Woken::Several => monotonic_now(),
        }
    }
}
