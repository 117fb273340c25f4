//! The pace of a run's polls, in real time and in number: it shows tasks that wait in the kernel, and tasks that get nowhere.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    io::{Write, stderr},
    panic::{self, Location},
    time::Duration,
};

use vigie_detect::{Instant, NodeId, clock::monotonic_now};

use super::world::{Failure, SimulatedWorld, running};
use crate::{
    kernel_help::KernelSleeps,
    sync::{Arc, OnceLock, RealMutex, lock_real, thread, thread_local},
};

/// The number of polls without a pause that counts as a livelock.
pub(super) const POLLS_MAX: u64 = 10_000_000;

/// The number of these polls whose tasks are counted.
const COUNTED: u64 = 10_000;

/// A poll that takes so long is examined.
const LONG: Duration = Duration::from_millis(1);

/// A poll that only computes is named if it takes so long.
const VERY_LONG: Duration = Duration::from_secs(1);

thread_local! {
    static POLLED: Cell<Option<PolledTask>> = const { Cell::new(None) };
    /// The number of readings of std's clock in this poll.
    static READINGS: Cell<u32> = const { Cell::new(0) };
    /// Something has panicked in this poll, whether that ended it or was caught in it.
    static HAS_PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// The task that a thread polls in a simulation, or the future of `block_on`.
#[derive(Clone, Copy)]
pub(super) struct PolledTask {
    pub(super) node: NodeId,
    pub(super) site: &'static Location<'static>,
}

/// The same, with its world.
pub(crate) struct PolledIn {
    pub(crate) world: Arc<SimulatedWorld>,
    task: PolledTask,
}

/// The number of readings of std's clock in one poll after which something presumably waits for it to move.
const READINGS_MAX: u32 = 10_000;

/// Ends a poll when it is dropped.
pub(super) struct PollGuard;

impl PolledTask {
    pub(super) fn enter(self) -> PollGuard {
        POLLED.with(|polled| polled.set(Some(self)));
        READINGS.with(|readings| readings.set(0));
        HAS_PANICKED.with(|has_panicked| has_panicked.set(false));
        PollGuard
    }

    fn describe(self, world: &SimulatedWorld, what: &str) -> String {
        let (site, node) = (self.site, world.network.name(self.node));
        format!("the task that was spawned at {site}, on node {node}, {what}")
    }
}

impl PolledIn {
    /// Returns the time for std's clock, the monotonic one or that of the node's wall clock, and whether it stands still although something waits for it, in a
    /// loop or with a time-out:
    /// then it jumps, so that the wait ends.
    pub(crate) fn std_now(&self, wall: Option<Duration>) -> (Duration, bool) {
        let readings = READINGS.with(|readings| {
            readings.set(readings.get().saturating_add(1));
            readings.get()
        });
        let late = readings.saturating_sub(READINGS_MAX);
        let monotonic = || Duration::from_nanos(self.world.recorder.now().as_nanos());
        let now = wall.unwrap_or_else(monotonic);
        (now + Duration::from_secs(3600) * late, late == 1)
    }

    /// Fails the run, since the task does something that the simulation does not see.
    pub(crate) fn fail(&self, what: &str) {
        let text = self.task.describe(&self.world, what);
        self.world.recorder.escaped(self.task.node, &text);
        self.world.fail(Failure::Message(format!("an escape from the simulation: {text}")));
    }
}

impl Drop for PollGuard {
    fn drop(&mut self) {
        let _ = POLLED.try_with(|polled| polled.set(None));
    }
}

/// Calls `use_it` with what the calling thread polls, if that is in a simulation.
pub(crate) fn polled_in<T>(use_it: impl FnOnce(&PolledIn) -> T) -> Option<T> {
    let task = POLLED.try_with(Cell::get).ok().flatten()?;
    running().map(|world| use_it(&PolledIn { world, task }))
}

/// The polls of one `block_on`.
pub(super) struct Pace {
    /// The end of the last poll, in real time. Nothing but warnings depends on it.
    last: Instant,
    /// The time at which a poll was last examined, and the thread's sleeps until then.
    examined: (Instant, KernelSleeps),
    polls_max: u64,
    /// Polls since nothing was ready.
    polls: u64,
    /// The last of them, by node and task.
    counts: BTreeMap<(NodeId, Location<'static>), u64>,
}

impl Pace {
    pub(super) fn new(polls_max: u64) -> Self {
        note_panics();
        let last = monotonic_now();
        let examined = (last, KernelSleeps::now());
        Self { last, examined, polls_max, polls: 0, counts: BTreeMap::new() }
    }

    /// Nothing is ready.
    pub(super) fn rest(&mut self) {
        self.polls = 0;
        if !self.counts.is_empty() {
            self.counts.clear();
        }
    }

    /// A poll has ended.
    #[inline]
    pub(super) fn note(&mut self, world: &SimulatedWorld, polled: PolledTask) {
        self.polls += 1;
        if self.polls + COUNTED > self.polls_max {
            *self.counts.entry((polled.node, *polled.site)).or_default() += 1;
        }
        let now = monotonic_now();
        let took = now - self.last;
        self.last = now;
        if took >= LONG {
            self.examine(world, polled, took);
        }
    }

    #[cold]
    fn examine(&mut self, world: &SimulatedWorld, polled: PolledTask, took: Duration) {
        let (then, before) = self.examined;
        let (now, sleeps) = (monotonic_now(), KernelSleeps::now());
        let waited = sleeps.waited.saturating_sub(before.waited);
        let computed = sleeps.computed.saturating_sub(before.computed);
        // It may have slept for microseconds as well as been kept from its processor for long: where other threads had what it needed.
        let asleep = (now - then).saturating_sub(computed + waited);
        // A page that is read from a disk is no wait of the task's.
        let has_slept =
            asleep >= LONG && sleeps.count > before.count && sleeps.page_reads == before.page_reads;
        // The message of a panic may have a backtrace, for which std reads files.
        if !HAS_PANICKED.with(Cell::get) {
            if has_slept {
                let what = "slept or waited in the kernel: use the runtime's timers and sockets";
                warn(world, polled, what, took);
            } else if took.saturating_sub(waited) >= VERY_LONG {
                warn(world, polled, "computed for long", took);
            }
        }
        self.last = monotonic_now();
        // Without the sleeps of a warning.
        self.examined = (self.last, KernelSleeps::now());
    }

    /// Returns which tasks get nowhere.
    #[inline]
    pub(super) fn livelock(&self) -> Option<String> {
        (self.polls >= self.polls_max).then(|| self.polled_most())
    }

    #[cold]
    fn polled_most(&self) -> String {
        let mut counts: Vec<_> = self.counts.iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let counted: u64 = counts.iter().map(|(_, count)| **count).sum();
        let lines = counts.iter().take(8).map(|((node, site), count)| {
            format!(
                "{count} of the last {counted} of the task spawned at {site}, node {}",
                node.index()
            )
        });
        let lines: Vec<_> = lines.collect();
        format!("{} polls without a pause, {}", self.polls, lines.join("; "))
    }
}

/// Has each panic of this process noted before it is printed, which may take long. Only the hook sees those that a task catches itself.
fn note_panics() {
    static HOOKED: OnceLock<()> = OnceLock::new();
    if thread::panicking() {
        // The hook cannot be changed now.
        return;
    }
    HOOKED.get_or_init(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let _ = HAS_PANICKED.try_with(|has_panicked| has_panicked.set(true));
            previous(info);
        }));
    });
}

/// Names a task on standard error, also where the output of tests that pass is not shown; each task and reason once in this process.
fn warn(world: &SimulatedWorld, polled: PolledTask, what: &str, took: Duration) {
    static NAMED: RealMutex<BTreeSet<(Location<'static>, String)>> =
        RealMutex::new(BTreeSet::new());
    let text = polled.describe(world, what);
    world.recorder.escaped(polled.node, &text);
    if lock_real(&NAMED).insert((*polled.site, what.to_owned())) {
        let seed = world.seed;
        let line = format!("simulation with seed {seed}: {text} ({took:.1?} of real time)\n");
        // Who closes standard error does not want it.
        let _ = stderr().write_all(line.as_bytes());
    }
}
