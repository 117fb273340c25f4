//! What a thread that runs tasks knows of itself, and what others may do to it.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use crossbeam::{deque::Worker as Queue, utils::CachePadded};
use vigie_detect::Instant;

use super::{monotonic_now, order::Own, seat::Seat, shared::Shared};
use crate::{
    kernel_help::HogTimer,
    lane::Cause,
    measure::{Counters, Sampler},
    parking::parker::Parker,
    sync::{Arc, thread_local},
    task_cell::Runnable,
};

/// What others may do to a worker or a reserve thread, and see of it.
pub(super) struct Remote {
    pub(super) parker: Parker,
    pub(super) seat: Seat,
    pub(super) hog_timer: HogTimer,
    pub(super) counters: CachePadded<Counters>,
}

/// What a worker's thread knows; schedule functions find it here.
pub(super) struct Local {
    /// Which runtime this thread works for.
    pub(super) owner: Arc<Shared>,
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

impl Local {
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

thread_local! {
    pub(super) static LOCAL: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

/// Returns whether this thread is a worker of this flavor.
pub(crate) fn is_worker() -> bool {
    LOCAL.try_with(|local| local.borrow().is_some()).unwrap_or(false)
}

/// Returns whether this thread was found asleep in the kernel in the poll that it runs.
pub(super) fn was_asleep() -> bool {
    let is_blocked = |local: &Rc<Local>| local.owner.remotes[local.place].seat.is_blocked();
    LOCAL.try_with(|local| local.borrow().as_ref().is_some_and(is_blocked)).unwrap_or(false)
}
