//! What is read of a runtime at one moment.

use std::{panic::Location, time::Duration};

use vigie_detect::{Flavor, HandleReport, Server, Snapshot};

use super::{
    cgroup::{self, Throttling},
    histogram::Histogram,
};
use crate::{lane::Lane, sync::Arc};

/// What a runtime has done so far, and what it does at this moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// How tasks are scheduled.
    pub flavor: Flavor,
    /// Worker threads; one in the user-level flavor, one for each task that has one in the kernel-level
    /// flavor, where the kernel schedules: there, polls, delays and threads are not counted.
    pub workers: usize,
    /// Tasks that have not ended.
    pub live_tasks: usize,
    /// The reaction lane: tasks woken by events, and what they wake.
    pub reaction: LaneMetrics,
    /// The compute lane.
    pub compute: LaneMetrics,
    /// Polls that held their thread for longer than
    /// [`long_poll`](crate::RuntimeBuilder::long_poll), hogs among them.
    pub long_polls: u64,
    /// Polls that held their thread for at least ten [quanta](crate::RuntimeBuilder::quantum), 10 ms by
    /// default. All time counts, also that of blocking calls; and on a machine with too few processors,
    /// the time for which the thread waited for one.
    pub hogs: u64,
    /// The latest long polls that have ended, at most 16, oldest first.
    pub latest_long_polls: Vec<LongPoll>,
    /// How long tasks that an event or a foreign thread woke, or that a foreign thread spawned, were
    /// ready before they were polled. Does *not* contain the time from the kernel's readiness to its
    /// detection, which nobody but the other side can measure. What wakes a task while it is polled
    /// counts as its own doing: see [`task_delay`](Self::task_delay).
    pub event_delay: Histogram,
    /// The same of tasks that tasks woke or spawned: themselves when they yield, others when they end
    /// (all of these), and in the middle of a poll (about one in 16, by chance of place).
    pub task_delay: Histogram,
    /// The threads that run tasks: workers first, then the reserve threads that have been called. In the
    /// user-level flavor, the thread that drives, whichever it is, and then those together that polled local
    /// tasks of their own inside `block_on` meanwhile, if any did.
    pub threads: Vec<ThreadMetrics>,
    /// The reserve threads. None in the user-level flavor.
    pub reserve: Option<ReserveMetrics>,
    /// The detection server as a whole.
    pub detection: Snapshot,
    /// The detection server's handles.
    pub handles: Vec<HandleReport>,
    /// How often the kernel took all processors away because the control group had used up its quota.
    /// None where there is no such group, or it has no processor controller.
    pub throttling: Option<Throttling>,
}

impl Metrics {
    /// What every flavor has; the flavor fills in the rest.
    pub(crate) fn new(server: &Server, workers: usize, live_tasks: usize) -> Self {
        Self {
            flavor: server.flavor(),
            workers,
            live_tasks,
            reaction: LaneMetrics::default(),
            compute: LaneMetrics::default(),
            long_polls: 0,
            hogs: 0,
            latest_long_polls: Vec::new(),
            event_delay: Histogram::new(),
            task_delay: Histogram::new(),
            threads: Vec::new(),
            reserve: None,
            detection: server.metrics(),
            handles: server.handles(),
            throttling: cgroup::read(),
        }
    }
}

/// What was polled in one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneMetrics {
    /// Polls that have ended.
    pub polls: u64,
    /// The time in them.
    pub time: Duration,
}

/// A poll that held its thread for long.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LongPoll {
    /// The name of the task, if it has one.
    pub name: Option<Arc<str>>,
    /// Where the task was spawned.
    pub site: &'static Location<'static>,
    /// The lane in which it was polled.
    pub lane: Lane,
    /// How long the poll held its thread.
    pub duration: Duration,
}

/// A thread that runs tasks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ThreadMetrics {
    /// A reserve thread, which runs the reaction lane; the compute lane only in the place of a thread that sleeps
    /// in the kernel, or for short tasks while every worker computes for long.
    pub is_reserve: bool,
    /// Polls that have ended, in both lanes.
    pub polls: u64,
    /// Sleeps for want of work; those of a reserve thread are watches in the wait point.
    pub sleeps: u64,
    /// The poll that runs at this moment. None in the user-level flavor, which has no other thread that
    /// might look.
    pub current: Option<CurrentPoll>,
}

/// A poll that has not ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CurrentPoll {
    /// The name of the task, if it has one.
    pub name: Option<Arc<str>>,
    /// Where the task was spawned.
    pub site: &'static Location<'static>,
    /// How long it has been running.
    pub elapsed: Duration,
}

/// Reserve threads, which watch and serve while every worker is inside a long poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReserveMetrics {
    /// Those that serve or watch at this moment.
    pub serving: usize,
    /// Those that wait to be called.
    pub spare: usize,
    /// The most there may be.
    pub limit: usize,
    /// Whether one of them is in the wait point: the sentinel.
    pub has_sentinel: bool,
    /// How often one was called.
    pub calls: u64,
    /// For how many of these calls a thread was made.
    pub new_threads: u64,
    /// How often none could be called: all of them served, or the kernel gave no thread.
    pub refused: u64,
}
