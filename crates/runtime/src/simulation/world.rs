//! The world of a test.

use std::{
    fmt,
    future::Future,
    net::IpAddr,
    ops::RangeInclusive,
    panic::{self, AssertUnwindSafe, Location},
};

use vigie_detect::{Flavor, Link, NodeChange, NodeId, SimulatedHost, TraceDetail, TraceEvent};

use super::{
    node::{Node, NodeBuilder, NodeProgram},
    timeline,
};
use crate::{
    flavor::simulated::{Between, Fault, SimulatedShared, SimulatedWorld},
    handle::Scheduler,
    runtime::Runtime,
    sync::Arc,
};

/// Nodes, each with a runtime of [`Flavor::Simulated`], and the network between them: see the [module](super).
///
/// It stays on its thread. Dropping it ends all nodes.
pub struct World {
    main: Arc<SimulatedShared>,
    /// By the nodes' index.
    programs: Vec<NodeProgram>,
    invariants: Vec<Box<dyn FnMut()>>,
    /// Its page is written if it fails.
    keeps_timeline: bool,
    /// Dropped last: the runtime of `main`.
    _runtime: Runtime,
}

impl World {
    /// Creates a world with one node, `main`, on which [`block_on`](Self::block_on) runs its future.
    ///
    /// # Panics
    /// Never in practice: a simulated runtime needs nothing of the kernel.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut world = Self::of_seed_run(seed);
        world.keeps_timeline = timeline::folder().is_some();
        if world.keeps_timeline {
            timeline::record(&world.main.world);
        }
        world
    }

    /// Like [`new`](Self::new), for the caller who explains failures.
    pub(super) fn of_seed_run(seed: u64) -> Self {
        let builder = Runtime::builder().flavor(Flavor::Simulated { seed });
        let runtime = builder.build().expect("invariant: it needs no thread and no descriptor");
        let Scheduler::Simulated(main) = &runtime.handle().scheduler else {
            unreachable!("the flavor was given")
        };
        let main = Arc::clone(main);
        main.world.with_nodes(|nodes| nodes.push(Arc::clone(&main)));
        Self {
            main,
            programs: vec![Box::new(|_| {})],
            invariants: Vec::new(),
            keeps_timeline: false,
            _runtime: runtime,
        }
    }

    /// Returns the seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.main.world.seed
    }

    /// Draws from the seed how many nodes the test is to have. [`for_each_seed`](super::for_each_seed) looks for a smaller number with
    /// which a seed still fails.
    ///
    /// # Panics
    /// If the range is empty.
    ///
    /// # Examples
    /// ```
    /// let mut world = vigie_runtime::simulation::World::new(1);
    /// for number in 0..world.node_count(3..=7) {
    ///     world.node(&format!("replica {number}")).start();
    /// }
    /// ```
    #[must_use]
    pub fn node_count(&self, range: RangeInclusive<usize>) -> usize {
        let (min, max) = (*range.start(), *range.end());
        assert!(min <= max, "a number of nodes from {min} to {max}");
        let drawn = || {
            let mut random = fastrand::Rng::with_seed(self.seed() ^ 0x6E6F_6465_7300_0000);
            let more = random.u64(..=(max - min) as u64);
            min + usize::try_from(more).expect("invariant: within the range")
        };
        self.main.world.recorder.size(min, drawn)
    }

    /// Returns the node on which [`block_on`](Self::block_on) runs its future. It is not to be crashed.
    #[must_use]
    pub fn main(&self) -> Node {
        Node::new(&self.main.world, self.main.node)
    }

    /// Describes a node to add.
    pub fn node(&mut self, name: &str) -> NodeBuilder<'_> {
        NodeBuilder::new(self, name)
    }

    pub(super) fn add(&mut self, name: &str, ips: &[IpAddr], program: NodeProgram) -> Node {
        let world = &self.main.world;
        let shared = world.with_host(|host| {
            let id = host.add_node(name, ips);
            self.main.beside(host, id)
        });
        world.with_nodes(|nodes| nodes.push(Arc::clone(&shared)));
        world.recorder.changed(shared.node, NodeChange::Started);
        start(&program, &shared);
        self.programs.push(program);
        Node::new(world, shared.node)
    }

    /// Sets the link between each pair of nodes that has none of its own.
    pub fn default_link(&self, link: Link) {
        self.main.world.network.default_link(link);
    }

    /// Calls `check` before each poll of a task. `check` panics if an invariant is violated; the run then fails at that
    /// moment.
    pub fn invariant(&mut self, check: impl FnMut() + 'static) {
        self.invariants.push(Box::new(check));
    }

    /// Runs all nodes until `future` is ready, which runs on the node `main`.
    ///
    /// If the run fails, and `VIGIE_TIMELINE` names a folder, its [timeline](Self::timeline) is written there.
    ///
    /// # Panics
    /// With the panic of a node's program; if nothing can happen any more, with everything that waits; inside another
    /// runtime.
    #[track_caller]
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let world = Arc::clone(&self.main.world);
        let Self { main, programs, invariants, .. } = self;
        let is_always = !invariants.is_empty();
        let mut between = |host: &mut SimulatedHost| {
            for check in &mut *invariants {
                check();
            }
            let Some((faults, failure)) = main.world.take_news() else { return };
            if let Some(failure) = failure {
                failure.raise();
            }
            for fault in faults {
                carry_out(fault, main, programs, host);
            }
        };
        let site = Location::caller();
        let between = Between { call: &mut between, is_always };
        let run = || world.block_on(main, (future, site), between);
        match panic::catch_unwind(AssertUnwindSafe(run)) {
            Ok(value) => value,
            Err(panic) => {
                if self.keeps_timeline {
                    timeline::keep(&main.world);
                }
                panic::resume_unwind(panic);
            }
        }
    }

    /// Sets the number of polls without a pause after which the run fails as a livelock, with the tasks that were polled
    /// most. Default: ten million, of which each takes a microsecond of virtual time after the first 10 000.
    pub fn polls_max(&mut self, polls_max: u64) {
        self.main.world.set_polls_max(polls_max);
    }

    /// Records what happens from now on, and keeps the newest `events_max` events, of some 150 bytes each: what becomes of
    /// nodes, packets and tasks, and each fault. Without this call, nothing is recorded.
    pub fn record(&mut self, events_max: usize) {
        self.main.world.recorder.log.start_recording(TraceDetail::Events, events_max);
    }

    /// Returns the events that were [recorded](Self::record), in order.
    #[must_use]
    pub fn events(&self) -> Vec<TraceEvent> {
        self.main.world.recorder.log.events()
    }

    /// Returns a page that shows the [recorded](Self::record) events: a lane for each node over the virtual time, its tasks,
    /// faults, and each packet as an arrow. It needs nothing but a browser.
    #[must_use]
    pub fn timeline(&self) -> String {
        timeline::page(&self.main.world)
    }

    /// Returns the node of an [event](Self::events).
    ///
    /// # Panics
    /// If the event is of another world with more nodes.
    #[must_use]
    pub fn node_of(&self, event: &TraceEvent) -> Node {
        let node = Node::new(&self.main.world, event.node);
        assert!(event.node.index() < self.programs.len(), "this world has no such node");
        node
    }

    pub(super) fn simulated(&self) -> &Arc<SimulatedWorld> {
        &self.main.world
    }

    /// Returns a hash of everything that has happened until [`block_on`](Self::block_on) last ended. Two runs with the same
    /// seed have the same hash.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.main.trace_hash()
    }
}

/// Starts a node's program, inside of its runtime.
fn start(program: &NodeProgram, shared: &Arc<SimulatedShared>) {
    let _entered = shared.entered();
    program(shared);
}

/// Crashes, kills or restarts a node.
fn carry_out(
    fault: Fault,
    main: &Arc<SimulatedShared>,
    programs: &[NodeProgram],
    host: &mut SimulatedHost,
) {
    let world = &main.world;
    let end = |node: NodeId| {
        assert!(
            node != main.node,
            "the node `main` must not end: it runs the future of `block_on`"
        );
        let shared = world.with_nodes(|nodes| Arc::clone(&nodes[node.index()]));
        shared.end();
    };
    match fault {
        Fault::Crash(node) => {
            world.recorder.changed(node, NodeChange::Crashed);
            world.network.stop(node);
            end(node);
            world.with_nodes(|nodes| nodes[node.index()].machine.disk.crash());
        }
        Fault::Kill(node) => {
            world.recorder.changed(node, NodeChange::Killed);
            end(node);
        }
        Fault::Restart(node) => {
            end(node);
            world.recorder.changed(node, NodeChange::Restarted);
            world.network.start(node);
            world.pause(node, false);
            let server = host.renew_server(node);
            // Outside the lock: it may be the last reference.
            let (shared, old) = world.with_nodes(|nodes| {
                let shared = nodes[node.index()].renewed(server);
                let old = std::mem::replace(&mut nodes[node.index()], Arc::clone(&shared));
                (shared, old)
            });
            drop(old);
            start(&programs[node.index()], &shared);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let nodes = self.main.world.with_nodes(std::mem::take);
        for node in nodes.iter().skip(1) {
            node.end();
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("network", &self.main.world.network).finish_non_exhaustive()
    }
}
