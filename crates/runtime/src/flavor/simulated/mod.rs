//! The simulated flavor: one thread runs every task in virtual time, in an order that a seed draws.
//!
//! Whatever is ready runs before the clock moves: the next task is drawn among all ready ones, the future of `block_on`
//! included, and so is whether a poll pass precedes it. With nothing ready, the clock jumps to the next
//! deadline. No real clock takes part in a decision, so a run is a function of its seed.
//!
//! A runtime is a node of a [`SimulatedWorld`], which runs the tasks; most worlds have one.

mod disk;
mod pace;
mod recorder;
mod wall_clock;
mod world;

use std::{future::Future, panic::Location, time::Duration};

use vigie_detect::{Adaptive, NodeId, Server, SimulatedHost};

pub use self::disk::Disk;
pub(crate) use self::{
    disk::{DIRECTORY, FILE, InodeStatus, LINK, ListedEntry, OpenMode, OpenedFile, SimulatedDisk},
    pace::{PolledIn, polled_in},
    recorder::FaultPlan,
    wall_clock::WallClock,
    world::{Between, Failure, Fault, SimulatedWorld},
};
use crate::{
    blocking_pool::BlockingPool,
    context::EnteredContext,
    options::Options,
    panics::contained,
    sync::{Arc, AtomicBool, Ordering, thread},
    task_cell::{self, JoinHandle, Label, LiveTasks, Runnable, drop_task},
};

pub(crate) struct SimulatedShared {
    pub(crate) server: Server,
    pub(crate) live: Arc<LiveTasks>,
    /// Has no threads: closures of `spawn_blocking` are tasks here.
    pub(crate) pool: Arc<BlockingPool>,
    pub(crate) options: Options,
    pub(crate) world: Arc<SimulatedWorld>,
    /// Its place in the world.
    pub(crate) node: NodeId,
    pub(crate) machine: SimulatedMachine,
    /// Enters this runtime on a thread.
    enter: fn(Arc<Self>) -> EnteredContext,
    is_ending: AtomicBool,
}

/// The parts of a node that outlive a restart of its process.
#[derive(Clone)]
pub(crate) struct SimulatedMachine {
    pub(crate) disk: Arc<SimulatedDisk>,
    pub(crate) clock: Arc<WallClock>,
}

impl SimulatedMachine {
    fn new(host: &SimulatedHost, seed: u64, node: NodeId) -> Self {
        let clock = Arc::new(WallClock::new(host.clock()));
        // Each disk draws for itself.
        let seed = seed ^ (node.index() as u64) << 32;
        Self { disk: Arc::new(SimulatedDisk::new(seed, Arc::clone(&clock))), clock }
    }
}

/// Returns whether the calling thread is inside `block_on` of a simulated runtime: of the world of `shared`, or of any.
pub(crate) fn runs_here(shared: Option<&SimulatedShared>) -> bool {
    world::runs_here(shared.map(|shared| &*shared.world))
}

impl SimulatedShared {
    /// Creates a world with one node.
    pub(crate) fn new(seed: u64, options: Options, enter: fn(Arc<Self>) -> EnteredContext) -> Self {
        // Time passes for no host that would poll before a sleep.
        let mut policy = Adaptive::default();
        (policy.timer_slack, policy.spin_max) = (Duration::ZERO, Duration::ZERO);
        let host = SimulatedHost::with_policy(seed, policy);
        let server = host.server().clone();
        let node = host.network().node("main").expect("invariant: the first node of a host");
        let machine = SimulatedMachine::new(&host, seed, node);
        let world = Arc::new(SimulatedWorld::new(seed, host));
        Self::on_node(world, (node, server, machine), options, enter)
    }

    fn on_node(
        world: Arc<SimulatedWorld>,
        (node, server, machine): (NodeId, Server, SimulatedMachine),
        options: Options,
        enter: fn(Arc<Self>) -> EnteredContext,
    ) -> Self {
        Self {
            server,
            live: Arc::new(LiveTasks::with_shards(1)),
            pool: Arc::new(BlockingPool::new(1, Duration::ZERO)),
            options,
            world,
            node,
            machine,
            enter,
            is_ending: AtomicBool::new(false),
        }
    }

    /// Returns a runtime on a new node of the same world.
    pub(crate) fn beside(&self, host: &SimulatedHost, node: NodeId) -> Arc<Self> {
        let machine = SimulatedMachine::new(host, self.world.seed, node);
        self.at((node, host.server_of(node).clone(), machine))
    }

    /// Returns a runtime with the node's new server, on the same machine.
    pub(crate) fn renewed(&self, server: Server) -> Arc<Self> {
        self.at((self.node, server, self.machine.clone()))
    }

    fn at(&self, place: (NodeId, Server, SimulatedMachine)) -> Arc<Self> {
        let world = Arc::clone(&self.world);
        Arc::new(Self::on_node(world, place, self.options.clone(), self.enter))
    }

    /// Makes this runtime current on the calling thread.
    pub(crate) fn entered(self: &Arc<Self>) -> EnteredContext {
        (self.enter)(Arc::clone(self))
    }

    /// Returns the hash of what `block_on` has run so far.
    pub(crate) fn trace_hash(&self) -> u64 {
        self.world.trace_hash()
    }

    /// Runs `future` and all tasks on the calling thread until the future is ready.
    ///
    /// # Panics
    /// If nothing can happen any more; on another thread than the first call's.
    #[track_caller]
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let alone = self.world.with_nodes(|nodes| {
            let is_alone = nodes.is_empty();
            if is_alone {
                nodes.push(Arc::clone(self));
            }
            is_alone
        });
        // A runtime refers to its world, which must not refer to it for longer.
        let _forget = alone.then(|| world::ForgetNodes(&self.world));
        let site = Location::caller();
        let mut fail = |_: &mut SimulatedHost| {
            if let Some((_, Some(failure))) = self.world.take_news() {
                failure.raise();
            }
        };
        let between = Between { call: &mut fail, is_always: false };
        let value = self.world.block_on(self, (future, site), between);
        if self.is_ending.load(Ordering::SeqCst) {
            let _entered = self.entered();
            self.finish();
        }
        value
    }

    fn poll(&self, task: Runnable) {
        let recorded = self.world.recorder.is_on().then(|| task.metadata().id());
        if let Some(id) = recorded {
            self.world.recorder.polls(id);
        }
        let is_cancelled = task.metadata().is_aborted() || self.is_ending.load(Ordering::Relaxed);
        if is_cancelled {
            drop_task(task);
        } else {
            // The future's panics are caught inside; only a waker's panic can get here.
            contained("a poll", || task.run());
        }
        if let Some(id) = recorded {
            self.world.recorder.polled(id, is_cancelled);
        }
    }

    /// Records that a task was spawned, if events are recorded.
    pub(crate) fn record_spawn<T>(
        &self,
        handle: &JoinHandle<T>,
        name: Option<Arc<str>>,
        site: &'static Location<'static>,
    ) {
        if self.world.recorder.is_on() {
            self.world.recorder.spawned(self.node, handle.abort_handle(), name, site);
        }
    }

    /// Queues a task that became ready.
    fn schedule(&self, task: Runnable) {
        self.world.push(self.node, task);
    }

    /// Cancels every task and closes the server: at the end of `block_on`, if the calling thread is inside of it.
    pub(crate) fn shutdown(&self) {
        self.begin_end();
        if !runs_here(Some(self)) {
            self.finish();
        }
    }

    /// Cancels every task and closes the server, between two polls.
    pub(crate) fn end(self: &Arc<Self>) {
        let _entered = self.entered();
        self.begin_end();
        self.finish();
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    fn begin_end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.live.close();
    }

    fn finish(&self) {
        self.world.recorder.forget(self.node);
        loop {
            let task = self.world.pop(self.node);
            match task {
                Some(task) => drop_task(task),
                None if self.live.count() == 0 => break,
                // Another thread is about to queue a task that it has just woken.
                None => thread::yield_now(),
            }
        }
        self.server.shutdown();
    }
}

/// Returns what schedules a task of `shared`.
pub(crate) fn schedule(
    shared: &Arc<SimulatedShared>,
) -> impl async_task::Schedule<task_cell::TaskInfo> + Send + Sync + 'static {
    let shared = Arc::clone(shared);
    move |task: Runnable| shared.schedule(task)
}

/// Spawns a task that stays on this thread, which runs the world.
pub(crate) fn spawn_local<F>(
    shared: &Arc<SimulatedShared>,
    label: Label,
    future: F,
) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let (name, site) = (label.name.clone(), label.site);
    let handle = task_cell::spawn_local(&shared.live, label, future, schedule(shared));
    shared.record_spawn(&handle, name, site);
    handle
}
