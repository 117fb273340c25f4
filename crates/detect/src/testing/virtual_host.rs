//! The core of every host in virtual time: servers, a clock that jumps, and one seed for all randomness. The tasks
//! are run by its owner: a [`Simulation`](super::Simulation), or a runtime of [`Flavor::Simulated`].

use std::{error::Error, fmt, net::IpAddr, time::Duration};

use crate::{
    clock::{Clock, Instant, VirtualClock},
    detector::Flavor,
    network::{NetworkNode, NodeId, SimulatedNetwork, draw_below},
    policy::Adaptive,
    server::{Detected, Driver, RoutedEvent, Server},
    sync::Arc,
};

/// Servers in virtual time, one for each node of a [`SimulatedNetwork`], with their drivers, a clock and randomness. For
/// schedulers: they run tasks, and call [`advance`](Self::advance) when none can run.
#[derive(Debug)]
pub struct SimulatedHost {
    nodes: Vec<HostedNode>,
    network: SimulatedNetwork,
    clock: Arc<VirtualClock>,
    policy: Adaptive,
    random: fastrand::Rng,
    seed: u64,
    trace: u64,
    /// Steps since a task could last run.
    idle_steps: u32,
    /// Notifications answered since then, and since the clock last moved.
    rings: u32,
}

#[derive(Debug)]
struct HostedNode {
    server: Server,
    driver: Driver,
    /// The time of its next poll, if nothing is announced.
    wanted: Option<Instant>,
    knowledge: Knowledge,
    /// Readiness that the network has announced and no poll pass has taken.
    routed: Vec<RoutedEvent>,
}

/// The time of a node's next poll, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    /// Nothing: the node has run since, or was polled.
    Nothing,
    /// It is not earlier. The known deadline may belong to something that has ended.
    Bound,
    Exact,
}

impl HostedNode {
    /// Returns whether a poll pass at `now` may find something.
    fn needs_pass(&self, now: Instant) -> bool {
        !self.routed.is_empty() || self.driver.needs_pass(now)
    }
}

/// The cost of a poll pass in virtual time if nothing else lets time pass: for a host that polls without
/// a pause.
const PASS_COST: Duration = Duration::from_micros(1);

/// After this many steps in which only polls moved the clock, nothing will come of them.
const IDLE_STEPS_MAX: u32 = 100_000;

/// After this many steps in which only packets moved the clock, nothing will come of them: a full connection probes for ever
/// whether its peer reads at last.
const NETWORK_STEPS_MAX: u32 = 10_000;

/// After this many notifications in a row without a task being woken, the clock moves anyway: a notifier may never stop.
const RINGS_MAX: u32 = 10_000;

/// Nothing can happen any more, and the simulation has not reached its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlock {
    /// The time at which nothing could happen any more.
    pub now: Instant,
    /// The seed that leads here.
    pub seed: u64,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { now, seed } = self;
        write!(
            f,
            "deadlock at {now:?} of the simulation with seed {seed}: no task can run, no event can come"
        )
    }
}

impl Error for Deadlock {}

impl SimulatedHost {
    /// Creates a host whose clock starts at zero and whose randomness comes from `seed`. Timers fire exactly at their
    /// deadlines. Its first node is known as `main` and has the address 10.0.0.1.
    ///
    /// # Panics
    /// Never in practice: a virtual server needs no descriptor.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_policy(seed, Adaptive { timer_slack: Duration::ZERO, ..Adaptive::default() })
    }

    /// Like [`new`](Self::new), with a policy for everything that sets none of its own; timers then have its slack.
    ///
    /// # Panics
    /// Never in practice: a virtual server needs no descriptor.
    #[must_use]
    pub fn with_policy(seed: u64, policy: impl Into<Adaptive>) -> Self {
        let mut host = Self {
            nodes: Vec::new(),
            network: SimulatedNetwork::new(seed),
            clock: Arc::new(VirtualClock::new()),
            policy: policy.into(),
            random: fastrand::Rng::with_seed(seed),
            seed,
            trace: seed,
            idle_steps: 0,
            rings: 0,
        };
        let _main = host.add_node("main", &[]);
        host
    }

    /// Adds a node with a server of its own, known by `name` and with the addresses `ips`: see [`SimulatedNetwork::add_node`].
    ///
    /// # Panics
    /// If there is such a name or address already.
    #[must_use = "the node is known by it"]
    pub fn add_node(&mut self, name: &str, ips: &[IpAddr]) -> NodeId {
        let node = self.network.add_node(name, ips);
        let hosted = self.hosted(node);
        self.nodes.push(hosted);
        node
    }

    fn hosted(&self, node: NodeId) -> HostedNode {
        let (flavor, network) = (Flavor::Simulated { seed: self.seed }, self.network.clone());
        let clock = Arc::<VirtualClock>::clone(&self.clock);
        let place = NetworkNode { network, node };
        let server = Server::new_virtual_with(flavor, clock, self.policy, place)
            .expect("invariant: a virtual server asks the kernel for nothing");
        HostedNode {
            driver: server.driver(),
            server,
            wanted: None,
            knowledge: Knowledge::Nothing,
            routed: Vec::new(),
        }
    }

    /// Gives a node a new server, as a new process has one. The old one should be shut down.
    ///
    /// # Panics
    /// If the node is of another network.
    pub fn renew_server(&mut self, node: NodeId) -> Server {
        let hosted = self.hosted(node);
        let server = hosted.server.clone();
        self.nodes[node.index()] = hosted;
        server
    }

    /// Returns the server of the first node.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.nodes[0].server
    }

    /// Returns the server of a node.
    ///
    /// # Panics
    /// If the node is of another network.
    #[must_use]
    pub fn server_of(&self, node: NodeId) -> &Server {
        &self.nodes[node.index()].server
    }

    /// Returns the simulated network.
    #[must_use]
    pub fn network(&self) -> &SimulatedNetwork {
        &self.network
    }

    /// Returns the virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns the clock, for detectors that need their own.
    #[must_use]
    pub fn clock(&self) -> Arc<VirtualClock> {
        Arc::clone(&self.clock)
    }

    /// Returns the random numbers: values drawn from here are replayed with the seed.
    pub const fn random(&mut self) -> &mut fastrand::Rng {
        &mut self.random
    }

    /// Draws a number below `count`, the same one on every machine.
    ///
    /// # Panics
    /// If `count` is zero.
    #[must_use]
    pub fn draw_below(&mut self, count: usize) -> usize {
        draw_below(&mut self.random, count)
    }

    /// Returns a hash of everything that was noted: which task ran when, what was detected, which packet arrived when.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        folded(self.trace, self.network.trace_hash())
    }

    /// Notes in the trace that a task runs, which the owner knows by `number`.
    pub fn note_run(&mut self, number: u64) {
        self.note(number);
        self.idle_steps = 0;
        self.rings = 0;
        self.nodes.iter_mut().for_each(|node| node.knowledge = Knowledge::Nothing);
    }

    /// Notes in the trace that a task of `node` runs, the one at `index` of `count` ready ones. For owners whose tasks do
    /// nothing to other nodes but by the network.
    ///
    /// # Panics
    /// If the node is of another network.
    pub fn note_run_of(&mut self, node: NodeId, index: u64, count: u64) {
        self.note(index);
        self.note(count);
        self.idle_steps = 0;
        self.rings = 0;
        self.nodes[node.index()].knowledge = Knowledge::Nothing;
    }

    /// Polls for events of one node, which is drawn, and wakes the tasks that wait for them.
    pub fn detect(&mut self) {
        let now = self.clock.now();
        if self.network.is_due(now) {
            self.advance_network();
        }
        let count = self.nodes.len();
        let index = if count == 1 { 0 } else { self.draw_below(count) };
        if self.nodes[index].needs_pass(now) {
            self.run_pass(index);
        }
    }

    /// Carries out what happens in the network up to now.
    fn advance_network(&mut self) {
        let now = self.clock.now();
        let nodes = &mut self.nodes;
        self.network.advance(now, |node, address, ready_event| {
            nodes[node.index()].routed.push(RoutedEvent { address, ready_event });
        });
    }

    fn run_pass(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.knowledge = Knowledge::Nothing;
        if let Detected::Events(count) = node.driver.pass_in_virtual_time(&mut node.routed) {
            self.note(count as u64);
        }
    }

    /// Runs a poll pass of each node that may have something to see.
    fn run_needed_passes(&mut self) {
        let now = self.clock.now();
        for index in 0..self.nodes.len() {
            if self.nodes[index].needs_pass(now) {
                self.run_pass(index);
            }
        }
    }

    /// With nothing to run: arms, polls once more, and jumps to the next instant at which a node has something to see. `has_ready` tells
    /// whether a task has become ready meanwhile.
    ///
    /// # Errors
    /// [`Deadlock`] if nothing can happen any more.
    pub fn advance(&mut self, has_ready: impl FnOnce() -> bool) -> Result<(), Deadlock> {
        let now = self.clock.now();
        if self.arm(now) {
            return Ok(());
        }
        let Some(until) = self.next_sight(now) else {
            return if has_ready() { Ok(()) } else { Err(self.deadlock()) };
        };
        // An endless self-notifier gets no more polls without time passing, until a task runs.
        if self.rings < RINGS_MAX {
            self.rings = 0;
        }
        self.clock.advance_to(until);
        self.idle_steps = self.idle_steps.saturating_add(1);
        if self.idle_steps > IDLE_STEPS_MAX && self.next_after(now).is_none()
            || self.idle_steps > NETWORK_STEPS_MAX && self.wanted().is_none()
        {
            return Err(self.deadlock());
        }
        if until <= now && self.idle_steps > 2 {
            // Not notified, but polled without a pause.
            let next = self.next_after(now).unwrap_or(Instant::MAX);
            self.clock.advance_to(next.min(now + PASS_COST));
            self.advance_network();
        }
        self.note(self.now().as_nanos());
        self.run_needed_passes();
        Ok(())
    }

    fn deadlock(&self) -> Deadlock {
        Deadlock { now: self.clock.now(), seed: self.seed }
    }

    /// Prepares the nodes for a pause at `now`, and finds out when they want to be polled again. Returns whether something has been seen
    /// meanwhile.
    fn arm(&mut self, now: Instant) -> bool {
        let mut is_sleepless = false;
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            if node.knowledge != Knowledge::Nothing
                && node.routed.is_empty()
                && !node.driver.is_disturbed(node.wanted)
            {
                continue;
            }
            if !node.needs_pass(now) {
                if !self.policy.spin_max.is_zero() {
                    node.driver.begin_idle(now);
                }
                (node.knowledge, node.wanted) = (Knowledge::Bound, node.driver.next_due());
                continue;
            }
            match node.driver.prepare() {
                Err(_) => is_sleepless = true,
                // It would not sleep: there was a notification before, or while the others were armed.
                Ok(_) if node.driver.is_notified() && self.rings < RINGS_MAX => {
                    self.rings += 1;
                    self.run_pass(index);
                    is_sleepless = true;
                }
                Ok(_) if !node.routed.is_empty() => {
                    self.run_pass(index);
                    is_sleepless = true;
                }
                Ok(deadline) => (node.knowledge, node.wanted) = (Knowledge::Exact, deadline),
            }
        }
        is_sleepless
    }

    /// Returns when the first node wants to be polled again.
    fn wanted(&self) -> Option<Instant> {
        self.nodes.iter().map(|node| node.wanted).fold(None, earliest)
    }

    /// Returns the first deadline or event after `now`.
    fn next_after(&self, now: Instant) -> Option<Instant> {
        let deadlines = self.nodes.iter().map(|node| node.driver.next_deadline());
        let event = self.network.next_event();
        deadlines.fold(event, earliest).filter(|&next| next > now)
    }

    /// Carries out what happens in the network before a node has something to see, and returns when that is; `None` if never.
    fn next_sight(&mut self, now: Instant) -> Option<Instant> {
        loop {
            let wanted = self.wanted();
            let nodes = &mut self.nodes;
            let route = |node: NodeId, address, ready_event| {
                nodes[node.index()].routed.push(RoutedEvent { address, ready_event });
            };
            let done = self.network.advance_until(wanted, NETWORK_STEPS_MAX, route);
            self.idle_steps = self.idle_steps.saturating_add(done.steps.saturating_sub(1));
            if !done.is_over || done.steps >= NETWORK_STEPS_MAX {
                return Some(done.last.unwrap_or(now));
            }
            let Some(until) = wanted else { return done.last };
            if !self.examine(until) || self.wanted() == wanted {
                return wanted;
            }
        }
    }

    /// Examines the deadlines of a node that seems to want to be polled first: the known one may belong to something that has ended. Returns
    /// whether it was not known exactly.
    fn examine(&mut self, wanted: Instant) -> bool {
        let is_doubtful = |node: &&mut HostedNode| {
            node.knowledge != Knowledge::Exact && node.wanted == Some(wanted)
        };
        let Some(node) = self.nodes.iter_mut().find(is_doubtful) else { return false };
        node.driver.examine_deadlines();
        (node.knowledge, node.wanted) = (Knowledge::Exact, node.driver.next_deadline());
        true
    }

    /// Lets `time` pass, and polls.
    pub fn elapse(&mut self, time: Duration) {
        self.clock.advance(time);
        self.advance_network();
        self.run_needed_passes();
    }

    fn note(&mut self, value: u64) {
        self.trace = folded(self.trace, value);
    }
}

/// FNV-1a over words: only the order and the values matter.
const fn folded(hash: u64, value: u64) -> u64 {
    (hash ^ value).wrapping_mul(0x0000_0100_0000_01B3)
}

#[inline]
fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
