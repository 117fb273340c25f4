//! The network as its users and the pollers see it.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsRawFd, BorrowedFd, RawFd},
};

use super::{
    event::CallId,
    link::Link,
    node_id::NodeId,
    state::{NetworkState, NetworkStep},
    trace::TraceLog,
};
use crate::{
    clock::Instant,
    detector::{HandleAddress, PollerEvent, Watch},
    sync::{Arc, AtomicU64, Ordering, PoisonError, RealGuard, RealMutex},
};

/// The simulated network: nodes with addresses, the links between them, and the packets under way. Clones are the same
/// network.
///
/// A node is a kernel's side: its sockets answer whatever its tasks do. All chance comes from the seed.
#[derive(Clone)]
pub struct SimulatedNetwork {
    state: Arc<RealMutex<NetworkState>>,
    log: TraceLog,
    /// When something may have to happen or to be announced, in nanoseconds, read without the lock by the thread that runs the world; zero for
    /// at once.
    attention: Arc<AtomicU64>,
    /// For those who want random bytes: the links' draws do not depend on them.
    random: Arc<RealMutex<fastrand::Rng>>,
    /// Held by the thread that drives a network without a host: calls are made one after the other.
    drive_lock: Arc<RealMutex<()>>,
}

/// The progress of the network.
pub(crate) struct NetworkAdvance {
    /// The last instant at which something has happened.
    pub(crate) last: Option<Instant>,
    /// The number of such instants.
    pub(crate) steps: u32,
    /// Nothing was announced, and no device was called.
    pub(crate) is_over: bool,
}

impl SimulatedNetwork {
    /// Creates a network without nodes.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Not the generator of the tasks' order: the network's draws stay when a task more is spawned.
        let random = fastrand::Rng::with_seed(seed ^ 0x006E_6574_776F_726B);
        let log = TraceLog::new();
        let attention = Arc::new(AtomicU64::new(u64::MAX));
        let state = NetworkState::new(random, log.clone(), Arc::clone(&attention));
        let random = fastrand::Rng::with_seed(seed ^ 0x0062_7974_6573_0000);
        Self {
            state: Arc::new(RealMutex::new(state)),
            log,
            attention,
            random: Arc::new(RealMutex::new(random)),
            drive_lock: Arc::new(RealMutex::new(())),
        }
    }

    /// Fills `bytes` with random ones of the seed.
    pub(crate) fn fill_random(&self, bytes: &mut [u8]) {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).fill(bytes);
    }

    pub(super) fn state(&self) -> RealGuard<'_, NetworkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a node that is known by `name` and has the addresses `ips`; without one, 10.0.0.1 and so on. Each node also has
    /// 127.0.0.0/8 and `::1` for itself.
    ///
    /// # Panics
    /// If there is such a name or address already.
    #[must_use = "the node is known by it"]
    pub fn add_node(&self, name: &str, ips: &[IpAddr]) -> NodeId {
        self.state().add_node(name, ips)
    }

    /// Returns the addresses of a name: those of the node of that name, `localhost`'s, or none.
    #[must_use]
    pub fn lookup(&self, name: &str) -> Vec<IpAddr> {
        if name == "localhost" {
            return vec![Ipv4Addr::LOCALHOST.into()];
        }
        let state = self.state();
        let node = state.nodes.iter().find(|node| node.name == name);
        node.map(|node| node.ips.clone()).unwrap_or_default()
    }

    /// Returns the node of a name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<NodeId> {
        let index = self.state().nodes.iter().position(|node| node.name == name)?;
        NodeId::of_index(index)
    }

    /// Returns the name of a node.
    ///
    /// # Panics
    /// If the node is of another network.
    #[must_use]
    pub fn name(&self, node: NodeId) -> String {
        self.state().nodes[node.index()].name.clone()
    }

    /// Returns the names of all nodes, by their index.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.state().nodes.iter().map(|node| node.name.clone()).collect()
    }

    /// Sets the link between each pair of nodes that has none of its own.
    pub fn default_link(&self, link: Link) {
        self.state().default_link = link;
    }

    /// Sets the link from one node to another, in this direction only. Returns the one before, unless that was the default one.
    #[expect(clippy::must_use_candidate, reason = "the link before is seldom of interest")]
    pub fn link(&self, from: NodeId, to: NodeId, link: Link) -> Option<Link> {
        self.state().links.insert((from, to), link)
    }

    /// Makes the link from one node to another the default one again.
    pub fn unlink(&self, from: NodeId, to: NodeId) {
        self.state().links.remove(&(from, to));
    }

    /// Lets no packet pass from one node to another, in this direction only. Packets under way arrive.
    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.state().cuts.insert((from, to));
    }

    /// Ends a [`cut`](Self::cut).
    pub fn heal(&self, from: NodeId, to: NodeId) {
        self.state().cuts.remove(&(from, to));
    }

    /// Stops a node as if its power was cut: its sockets are gone, and nothing answers.
    pub fn stop(&self, node: NodeId) {
        self.state().stop(node);
    }

    /// Starts a stopped node, which knows of no connection.
    pub fn start(&self, node: NodeId) {
        self.state().nodes[node.index()].is_up = true;
    }

    /// Returns the record of what happens, which is off at first.
    #[must_use]
    pub fn log(&self) -> &TraceLog {
        &self.log
    }

    // -------------------------------------------------------------- time

    /// Returns the time of the latest event, or up to which the network was advanced.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.state().now
    }

    /// Returns when the next event happens: a packet arrives, a timer expires, or a device does something. `None` if nothing is under way.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        self.state().next_event()
    }

    /// Carries out the next event, and advances time to it. Returns `false` if there is none. For networks without a host: a
    /// host in virtual time advances its own one.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn step(&self) -> bool {
        let _driving = self.lock_drive();
        let step = self.state().step(Instant::MAX);
        let has_happened = !matches!(step, NetworkStep::Nothing);
        if let NetworkStep::Call(act) = step {
            act();
        }
        has_happened
    }

    /// Carries out what happens up to `instant`, and advances time to it unless that has passed. Returns whether anything
    /// happened. As [`step`](Self::step), it is for networks without a host.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn advance_to(&self, instant: Instant) -> bool {
        let _driving = self.lock_drive();
        self.carry_out(instant).1
    }

    fn lock_drive(&self) -> RealGuard<'_, ()> {
        self.drive_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out what happens until `until` is over, until readiness is announced or a device was called, or until `steps_max` instants have
    /// passed at which something has happened. Hands the announced readiness to `route`.
    pub(crate) fn advance_until(
        &self,
        until: Option<Instant>,
        steps_max: u32,
        mut route: impl FnMut(NodeId, HandleAddress, PollerEvent),
    ) -> NetworkAdvance {
        let mut state = self.state();
        let mut done = NetworkAdvance { last: None, steps: 0, is_over: true };
        loop {
            state.take_announced(|node, address, event| {
                done.is_over = false;
                route(node, address, event);
            });
            if !done.is_over || done.steps >= steps_max {
                break;
            }
            let progress = state.advance_until(until, steps_max - done.steps);
            (done.last, done.steps) = (progress.last.or(done.last), done.steps + progress.steps);
            if let Some(act) = progress.act {
                // A host that it notifies has something to see now.
                done.is_over = false;
                drop(state);
                act();
                state = self.state();
                state.take_announced(route);
                break;
            }
            if state.announcing.is_empty() {
                break;
            }
        }
        state.note_attention();
        done
    }

    /// Returns whether something may have to happen or to be announced up to `now`: one load, for the thread that runs the world.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.attention.load(Ordering::Relaxed) <= now.as_nanos()
    }

    /// Carries out what happens up to `now`, and hands the announced readiness to `route`.
    pub(crate) fn advance(
        &self,
        now: Instant,
        route: impl FnMut(NodeId, HandleAddress, PollerEvent),
    ) {
        let mut state = self.state();
        while let Some(act) = state.advance(now) {
            drop(state);
            act();
            state = self.state();
        }
        state.take_announced(route);
        state.note_attention();
    }

    fn carry_out(&self, until: Instant) -> (RealGuard<'_, NetworkState>, bool) {
        let (mut state, mut has_happened) = (self.state(), false);
        loop {
            match state.step(until) {
                NetworkStep::Nothing => {
                    state.now = state.now.max(until);
                    return (state, has_happened);
                }
                NetworkStep::Done => {}
                NetworkStep::Call(act) => {
                    drop(state);
                    act();
                    state = self.state();
                }
            }
            has_happened = true;
        }
    }

    // -------------------------------------------------------------- devices that are no sockets

    /// Plans a call at `at`, or now if that has passed, behind what was planned for that time before. It may plan further
    /// ones. `digest` is what the trace notes of it.
    #[doc(hidden)]
    pub fn call_at(&self, at: Instant, digest: u64, act: impl FnOnce() + Send + 'static) -> CallId {
        self.state().plan_call(at, digest, Box::new(act))
    }

    /// Cancels a call, unless it was made.
    #[doc(hidden)]
    pub fn cancel_call(&self, id: CallId) {
        let act = self.state().cancel(id);
        // What it holds may call the network when dropped.
        drop(act);
    }

    /// Returns a generator of its own for the faults of a device; its seed is drawn.
    #[doc(hidden)]
    #[must_use]
    pub fn fork_random(&self) -> fastrand::Rng {
        self.state().fork_random()
    }

    /// Returns a hash of every packet that has arrived, and when: equal for equal runs.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.state().trace
    }
}

impl fmt::Debug for SimulatedNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let (nodes, sockets) = (state.nodes.len(), state.sockets.len());
        f.debug_struct("SimulatedNetwork")
            .field("nodes", &nodes)
            .field("sockets", &sockets)
            .finish()
    }
}

/// A node as its poller sees it.
#[derive(Clone, Debug)]
pub(crate) struct NetworkNode {
    pub(crate) network: SimulatedNetwork,
    pub(crate) node: NodeId,
}

impl NetworkNode {
    /// Returns the name of the socket that a descriptor, or its original, stands for.
    pub(crate) fn name_of(&self, descriptor: BorrowedFd<'_>) -> RawFd {
        let (state, given) = (self.network.state(), descriptor.as_raw_fd());
        if state.cookies.is_empty() || state.descriptors.contains_key(&given) {
            return given;
        }
        let cookie = rustix::net::sockopt::socket_cookie(descriptor).ok();
        cookie.and_then(|cookie| state.cookies.get(&cookie).copied()).unwrap_or(given)
    }

    pub(crate) fn watch(&self, watch: Watch) -> bool {
        self.network.state().watch(watch)
    }

    pub(crate) fn unwatch(&self, descriptor: RawFd) {
        let mut state = self.network.state();
        if let Some(&id) = state.descriptors.get(&descriptor)
            && let Some(socket) = state.sockets.get_mut(id)
        {
            socket.watch = None;
        }
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.network.state().nodes[self.node.index()].announced.is_empty()
    }

    /// Hands the announced readiness to `route`.
    pub(crate) fn take_events(&self, mut route: impl FnMut(HandleAddress, PollerEvent)) {
        let mut state = self.network.state();
        state.take_announced_of(self.node, &mut |_, address, event| route(address, event));
        state.announcing.retain(|&node| node != self.node);
    }

    /// Returns what the socket of a descriptor is.
    pub(crate) fn describe(&self, descriptor: RawFd) -> Option<String> {
        let state = self.network.state();
        let id = *state.descriptors.get(&descriptor)?;
        Some(state.sockets.get(id)?.to_string())
    }
}
