//! Snapshots of a runtime.

use std::{panic::Location, time::Duration};

use vigie_detect::{Flavor, HandleReport, Server, Snapshot};

use super::{
    cgroup::{self, Throttling},
    histogram::Histogram,
};
use crate::{lane::Lane, sync::Arc};

/// The past work of a runtime, and its present state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// The flavor, which schedules the tasks.
    pub flavor: Flavor,
    /// Worker threads; one in the user-level flavor. In the kernel-level flavor, one per task that has a
    /// thread; there the kernel schedules, so polls, delays and threads are not counted.
    pub workers: usize,
    /// Tasks that have not ended.
    pub live_tasks: usize,
    /// The reaction lane: tasks with credit, most of them woken by events.
    pub reaction: LaneMetrics,
    /// The compute lane.
    pub compute: LaneMetrics,
    /// Polls that held their thread for longer than
    /// [`long_poll`](crate::RuntimeBuilder::long_poll), hogs among them.
    pub long_polls: u64,
    /// Polls that held their thread for at least ten [quanta](crate::RuntimeBuilder::quantum), 10 ms by
    /// default. Elapsed time counts, including blocking calls and, on a machine with too few processors, the
    /// time for which the thread waited for one.
    pub hogs: u64,
    /// The latest long polls that have ended, at most 16, oldest first.
    pub latest_long_polls: Vec<LongPoll>,
    /// The time for which tasks were ready before they were polled, for tasks that an event or a foreign thread woke or
    /// that a foreign thread spawned. Does *not* contain the time from the kernel's readiness to its
    /// detection, which only the peer can measure. A wake-up during the task's own poll counts as the task's
    /// own: see [`task_delay`](Self::task_delay).
    pub event_delay: Histogram,
    /// The same for tasks woken or spawned by tasks: by themselves when they yield, by others when those end
    /// (all of these), and in the middle of a poll (about one in 16, sampled).
    pub task_delay: Histogram,
    /// The threads that run tasks: workers first, then the reserve threads that have been called. In the
    /// user-level flavor, first the driving thread, whichever it is, then, as one entry, all threads that
    /// polled local tasks of their own inside `block_on` meanwhile, if any did.
    pub threads: Vec<ThreadMetrics>,
    /// The reserve threads. All zero in the user-level flavor.
    pub reserve: Option<ReserveMetrics>,
    /// The detection server as a whole.
    pub detection: Snapshot,
    /// The detection server's handles.
    pub handles: Vec<HandleReport>,
    /// The number of times that the kernel stopped the whole control group because it had used up its quota. `None` without
    /// such a group, or if it has no processor controller.
    pub throttling: Option<Throttling>,
}

impl Metrics {
    /// The part that every flavor has; the flavor fills in the rest.
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

/// The polls of one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneMetrics {
    /// Polls that have ended.
    pub polls: u64,
    /// Their total time.
    pub time: Duration,
}

/// A poll that held its thread for long.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LongPoll {
    /// The name of the task, if it has one.
    pub name: Option<Arc<str>>,
    /// The place in the source at which the task was spawned.
    pub site: &'static Location<'static>,
    /// The lane in which it was polled.
    pub lane: Lane,
    /// The time for which the poll held its thread.
    pub duration: Duration,
}

/// A thread that runs tasks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ThreadMetrics {
    /// This is a reserve thread. It runs the reaction lane; it runs the compute lane only in place of
    /// a thread that sleeps in the kernel, or, for short tasks, while every worker computes for long.
    pub is_reserve: bool,
    /// Polls that have ended, in both lanes.
    pub polls: u64,
    /// Sleeps for lack of work; for a reserve thread, sleeps in the poller.
    pub sleeps: u64,
    /// The poll in progress. `None` in the user-level flavor, which has no other thread that could read it.
    pub current: Option<CurrentPoll>,
}

/// A poll in progress.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CurrentPoll {
    /// The name of the task, if it has one.
    pub name: Option<Arc<str>>,
    /// The place in the source at which the task was spawned.
    pub site: &'static Location<'static>,
    /// The time for which it has been running.
    pub elapsed: Duration,
}

/// Reserve threads, which watch for events and run tasks while every worker is inside a long poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReserveMetrics {
    /// Threads that run tasks or watch at this moment.
    pub serving: usize,
    /// Threads that wait to be called.
    pub spare: usize,
    /// The maximum number of reserve threads.
    pub limit: usize,
    /// One of them, the sentinel, is in the poller.
    pub has_sentinel: bool,
    /// The number of calls of reserve threads.
    pub calls: u64,
    /// The number of these calls that created a thread.
    pub new_threads: u64,
    /// The number of times that no reserve thread could be called: all were in use, or the kernel refused a thread.
    pub refused: u64,
}
