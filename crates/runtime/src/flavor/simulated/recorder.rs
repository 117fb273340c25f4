//! The record of a world's run, and the faults that the run leaves out.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::Location,
};

use vigie_detect::{
    Instant, NodeChange, NodeId, SimulatedHost, TaskEnd, TraceDetail, TraceEventKind, TraceLog,
    TracedTask,
    clock::{Clock, VirtualClock},
};

use crate::{
    sync::{Arc, RealMutex, lock_real},
    task_cell::{AbortHandle, Id},
};

/// The parts of a run to leave out, to find out what a failure needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FaultPlan {
    /// The faults that happen, by their index; `None` for all.
    pub(crate) kept: Option<BTreeSet<u32>>,
    /// The number of nodes of a test that asks for a number.
    pub(crate) size: Option<usize>,
    /// Nothing is said of a failure.
    pub(crate) is_quiet: bool,
    /// The run fails at this time: without its faults, it may never end.
    pub(crate) until: Option<Instant>,
}

/// Records nodes, faults and tasks in the log of a world's network.
pub(crate) struct Recorder {
    pub(crate) log: TraceLog,
    clock: Arc<VirtualClock>,
    /// The system's random numbers, for tasks that ask for them.
    random: RealMutex<fastrand::Rng>,
    tasks: RealMutex<RecordedTasks>,
    faults: RealMutex<FaultCount>,
}

#[derive(Default)]
struct RecordedTasks {
    has_failed: bool,
    next: u32,
    live: BTreeMap<Id, RecordedTask>,
}

struct RecordedTask {
    node: NodeId,
    task: TracedTask,
    handle: AbortHandle,
}

#[derive(Default)]
struct FaultCount {
    plan: FaultPlan,
    /// The least number of nodes that the test has asked for, and its drawn one.
    drawn_size: Option<(usize, usize)>,
    next: u32,
    /// Nodes that should be down, but for the plan.
    spared: BTreeSet<NodeId>,
}

impl Recorder {
    pub(super) fn new(seed: u64, host: &SimulatedHost) -> Self {
        Self {
            random: RealMutex::new(fastrand::Rng::with_seed(seed ^ 0x0073_7973_7465_6D00)),
            log: host.network().log().clone(),
            clock: host.clock(),
            tasks: RealMutex::default(),
            faults: RealMutex::default(),
        }
    }

    /// Returns whether events are recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.log.is_recording(TraceDetail::Events)
    }

    /// Returns the virtual time.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Fills `bytes` with random ones of the seed.
    pub(crate) fn fill(&self, bytes: &mut [u8]) {
        lock_real(&self.random).fill(bytes);
    }

    fn note(&self, node: NodeId, kind: impl FnOnce() -> TraceEventKind) {
        self.log.note(self.clock.now(), node, kind);
    }

    pub(crate) fn changed(&self, node: NodeId, change: NodeChange) {
        self.note(node, || TraceEventKind::Node(change));
    }

    pub(super) fn failed(&self, node: NodeId, message: &str) {
        if lock_real(&self.tasks).has_failed {
            return;
        }
        lock_real(&self.tasks).has_failed = true;
        self.note(node, || TraceEventKind::Failed { message: message.to_owned() });
    }

    /// Replaces the plan, before the run.
    pub(crate) fn set_plan(&self, plan: FaultPlan) {
        lock_real(&self.faults).plan = plan;
    }

    /// Returns whether nothing is to be said of a failure.
    pub(super) fn is_quiet(&self) -> bool {
        lock_real(&self.faults).plan.is_quiet
    }

    /// Returns how long the run may take.
    pub(super) fn end(&self) -> Option<Instant> {
        lock_real(&self.faults).plan.until
    }

    /// Returns the number of nodes that the plan has, or that `draw` draws.
    pub(crate) fn size(&self, min: usize, draw: impl FnOnce() -> usize) -> usize {
        let drawn = draw();
        let mut faults = lock_real(&self.faults);
        faults.drawn_size = Some((min, drawn));
        faults.plan.size.unwrap_or(drawn)
    }

    /// Returns the least and the drawn number of nodes, if the test has asked.
    pub(crate) fn drawn_size(&self) -> Option<(usize, usize)> {
        lock_real(&self.faults).drawn_size
    }

    /// Returns whether the run had something that a plan can leave out.
    pub(crate) fn can_shrink(&self) -> bool {
        let faults = lock_real(&self.faults);
        faults.next > 0 || faults.drawn_size.is_some()
    }

    /// Counts a fault, and returns whether it is to happen.
    pub(crate) fn admit(&self, node: NodeId, what: impl FnOnce() -> String) -> bool {
        let mut faults = lock_real(&self.faults);
        let index = faults.next;
        faults.next += 1;
        let is_admitted = faults.plan.kept.as_ref().is_none_or(|kept| kept.contains(&index));
        drop(faults);
        if is_admitted {
            self.note(node, || TraceEventKind::Fault { index, what: what() });
        }
        is_admitted
    }

    /// Like [`admit`](Self::admit), for one that ends the node.
    pub(crate) fn admit_end(&self, node: NodeId, what: &str) -> bool {
        let is_admitted = self.admit(node, || what.to_owned());
        if !is_admitted {
            lock_real(&self.faults).spared.insert(node);
        }
        is_admitted
    }

    /// The same for a restart: that of a node that is down is no fault. It may be down although it was spared, by an end before that or
    /// after it.
    pub(crate) fn admit_restart(&self, node: NodeId, is_down: bool) -> bool {
        let was_spared = lock_real(&self.faults).spared.remove(&node);
        is_down || (!was_spared && self.admit(node, || "restart".to_owned()))
    }

    /// A task does something that the simulation does not see.
    pub(super) fn escaped(&self, node: NodeId, what: &str) {
        self.note(node, || TraceEventKind::Escaped { what: what.to_owned() });
    }

    pub(crate) fn healed(&self, node: NodeId, other: &str) {
        self.note(node, || TraceEventKind::Healed { other: other.to_owned() });
    }

    pub(crate) fn ended(&self, node: NodeId, what: &str) {
        self.note(node, || TraceEventKind::FaultEnded { what: what.to_owned() });
    }

    pub(super) fn spawned(
        &self,
        node: NodeId,
        handle: AbortHandle,
        name: Option<Arc<str>>,
        site: &'static Location<'static>,
    ) {
        let mut tasks = lock_real(&self.tasks);
        let task = TracedTask::new(Some(tasks.next), name, site);
        tasks.next += 1;
        self.note(node, || TraceEventKind::TaskSpawned(task.clone()));
        // One that came too late is over.
        if !handle.is_finished() {
            tasks.live.insert(handle.id(), RecordedTask { node, task, handle });
        }
    }

    /// A task is about to be polled.
    pub(super) fn polls(&self, id: Id) {
        if self.log.is_recording(TraceDetail::Polls)
            && let Some(it) = lock_real(&self.tasks).live.get(&id)
        {
            self.note(it.node, || TraceEventKind::TaskPolled(it.task.clone()));
        }
    }

    /// The future of `block_on` is about to be polled.
    pub(super) fn polls_main(&self, node: NodeId, site: &'static Location<'static>) {
        if self.log.is_recording(TraceDetail::Polls) {
            self.note(node, || TraceEventKind::TaskPolled(TracedTask::new(None, None, site)));
        }
    }

    /// A task was polled, or cancelled.
    pub(super) fn polled(&self, id: Id, is_cancelled: bool) {
        let mut tasks = lock_real(&self.tasks);
        let is_over = |it: &RecordedTask| it.handle.is_finished();
        if !tasks.live.get(&id).is_some_and(is_over) {
            return;
        }
        let Some(RecordedTask { node, task, handle }) = tasks.live.remove(&id) else { return };
        let end = match (handle.has_panicked(), is_cancelled) {
            (true, _) => TaskEnd::Panicked,
            (false, true) => TaskEnd::Cancelled,
            (false, false) => TaskEnd::Finished,
        };
        self.note(node, || TraceEventKind::TaskEnded { task, end });
        drop(tasks);
        // A waker may be the last reference to a task.
        drop(handle);
    }

    /// The tasks of a node end, which its own end says.
    pub(super) fn forget(&self, node: NodeId) {
        let mut tasks = lock_real(&self.tasks);
        let all = std::mem::take(&mut tasks.live);
        let (gone, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, it)| it.node == node);
        tasks.live = kept.into_iter().collect();
        drop(tasks);
        drop(gone);
    }
}
