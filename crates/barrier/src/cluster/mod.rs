//! The paper's cluster, simulated: it reproduces the figures of [eth-barrier, §4] to the nanosecond on every machine.
//!
//! ```
//! use vigie_barrier::cluster::{Cluster, Medium, ClusterConfig};
//! use vigie_barrier::{Group, Network, Rank, Round, Schedule, Source, Step, Target};
//!
//! // Two members that tell each other.
//! let tell = |other| {
//!     let (to, round, network) = (Target::Member(Rank(other)), Round(0), Network::First);
//!     vec![Step::Send { to, round, network }, Step::Receive(vec![Source::new(Rank(other), round, network)])]
//! };
//! let schedule = Schedule::from_steps(Group::new(2)?, vec![tell(1), tell(0)]);
//!
//! // LogP's o_s, L and o_r, and the time to notice the message.
//! let config = ClusterConfig::CALIBRATED.send_ns(3_000).latency_ns(17_500).receive_ns(9_500).wait_ns(4_500);
//! let times = Cluster::new([Medium::Switch]).config(config).run(&schedule)?;
//! assert_eq!(times.mean_ns(), 34_500.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is simulated
//! Discrete events in whole nanoseconds; all randomness comes from one seed, and a switch without faults needs none.
//!
//! | part | what it does | file |
//! | --- | --- | --- |
//! | node | one processor; handlers of interrupts come before the program; a handler takes frames until the ring is empty; each NIC has its own interrupt | `node.rs` |
//! | switch | store and forward, a queue per output port, multicast to all ports | `switch.rs` |
//! | hub | one wire; carrier sense, collisions, jam, truncated binary exponential backoff | `hub.rs` |
//! | program | the steps of a schedule, or any other member ([`Program`]) | `program.rs` |
//! | member state machine | the one that real transports drive, with its recovery ([`MemberProgram`]) | `machine.rs` |
//! | numbers | all of them, with their sources | `config.rs` |
//! | the paper | its figures, and what must be reached | `paper.rs` |
//!
//! # The method
//! As in [eth-barrier, §4.3]: barrier and dummy loop, 100 times; the shortest, mean and longest time of each member,
//! averaged over all members.
//!
//! # Cost and limits
//! A message costs about ten events on a switch, and on a hub some more per collision; 32 members exchange 16 000
//! messages in some milliseconds. There is no clock drift, no cache and no other program; the fitted constants cover
//! other activity of the paper's machines.

mod config;
mod error;
mod event;
mod frame;
mod hub;
mod machine;
mod node;
pub mod paper;
mod program;
mod switch;
mod times;
mod world;

use std::sync::Arc;
use std::time::Duration;

use self::event::{NodeReport, SimEvent};
use self::frame::NodeIndex;
use self::hub::{Hub, TransmitOutcome};
use self::node::SimNode;
use self::switch::Switch;
use self::world::SimWorld;
use crate::group::{Group, Rank};
use crate::member::{Member, MemberConfig};
use crate::packet::GroupId;
use crate::schedule::{Network, Schedule, Step};

pub use self::config::{ClusterConfig, Completion, Deferral, FramesPerInterrupt, Medium};
pub use self::error::SimulationError;
pub use self::machine::MemberProgram;
pub use self::program::{Action, Program, ScheduleProgram};
pub use self::times::{Counts, MemberTimes, Runs, Times};

/// The dummy loop between two barriers [eth-barrier, §4.3].
pub const LOOP_NS: u64 = 30_000;

/// Barriers per run. *Deviation:* the listing of [eth-barrier, §4.3] has 25, its text 100.
pub const BARRIERS_DEFAULT: u32 = 100;

/// The longest simulated time of a run: an hour.
const LIMIT_NS: u64 = 3_600_000_000_000;

/// The pattern in which members enter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arrival {
    /// Each after its dummy loop.
    #[default]
    Together,
    /// Each one later by a random time of up to this, in nanoseconds.
    Spread(u64),
    /// One member late by this, in nanoseconds; a different one in each barrier.
    OneLate(u64),
}

/// A cluster to simulate: how nodes are connected, and what they run.
///
/// By default it has the calibrated [`ClusterConfig`], and follows the paper's method ([`BARRIERS_DEFAULT`], [`LOOP_NS`])
/// without loss, with seed 0.
#[derive(Clone, Debug)]
#[must_use = "a cluster does nothing until it runs"]
pub struct Cluster {
    media: Vec<Medium>,
    config: ClusterConfig,
    barriers: u32,
    loop_ns: u64,
    arrival: Arrival,
    loss: f64,
    seed: u64,
}

impl Cluster {
    /// Creates a cluster with one or two networks, each of which connects every node.
    pub fn new(media: impl IntoIterator<Item = Medium>) -> Self {
        Self {
            media: media.into_iter().collect(),
            config: ClusterConfig::CALIBRATED,
            barriers: BARRIERS_DEFAULT,
            loop_ns: LOOP_NS,
            arrival: Arrival::Together,
            loss: 0.0,
            seed: 0,
        }
    }

    /// Sets all costs.
    pub const fn config(mut self, config: ClusterConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets how many barriers follow one another; 100 by default.
    pub const fn barriers(mut self, barriers: u32) -> Self {
        self.barriers = barriers;
        self
    }

    /// Sets the length of the loop between two barriers; 30 µs by default.
    pub const fn loop_ns(mut self, loop_ns: u64) -> Self {
        self.loop_ns = loop_ns;
        self
    }

    /// Sets when members enter; together by default.
    pub const fn arrival(mut self, arrival: Arrival) -> Self {
        self.arrival = arrival;
        self
    }

    /// Sets the probability, 0 to 1, that a receiver misses a frame; 0 by default.
    pub const fn loss(mut self, loss: f64) -> Self {
        self.loss = loss;
        self
    }

    /// Sets the random seed; 0 by default.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs the steps of a schedule.
    ///
    /// # Errors
    /// [`SimulationError`]; with the bare steps, a lost frame can be the cause.
    pub fn run(&self, schedule: &Schedule) -> Result<Times, SimulationError> {
        let group = schedule.group();
        let is_second = |step: &Step| match step {
            Step::Send { network, .. } => *network == Network::Second,
            Step::Receive(sources) => {
                sources.iter().any(|source| source.network == Network::Second)
            }
        };
        let needs_second = group.ranks().any(|rank| schedule.steps(rank).iter().any(is_second));
        if needs_second && self.media.len() < 2 {
            return Err(SimulationError::NoNetwork);
        }
        self.run_programs(group.ranks().map(|rank| ScheduleProgram::new(schedule, rank)).collect())
    }

    /// Runs the member state machine with this schedule: colours on the wire, and recovery from loss. It asks for
    /// missing messages after `repeat_after`.
    ///
    /// # Errors
    /// [`SimulationError`].
    pub fn run_members(
        &self,
        schedule: &Schedule,
        repeat_after: Duration,
    ) -> Result<Times, SimulationError> {
        let mut config = MemberConfig::new(GroupId(self.seed)).repeat_after(repeat_after);
        // No member dies here, however much is lost.
        config = config.failure_timeout(None);
        let shared = Arc::new(schedule.clone());
        let member = |rank| Member::new(Arc::clone(&shared), rank, config.clone());
        let members: Result<Vec<_>, _> = schedule.group().ranks().map(member).collect();
        self.run_programs(members?.into_iter().map(MemberProgram::new).collect())
    }

    /// Runs the steps of a schedule with several seeds, beginning with this cluster's.
    ///
    /// # Errors
    /// The same as [`run`](Self::run).
    pub fn run_seeds(&self, schedule: &Schedule, seeds: u32) -> Result<Runs, SimulationError> {
        let seeds = (0..u64::from(seeds.max(1))).map(|seed| self.seed.wrapping_add(seed));
        let runs: Result<_, _> = seeds.map(|seed| self.clone().seed(seed).run(schedule)).collect();
        Ok(Runs::new(runs?))
    }

    /// Runs one program for each member, by rank.
    ///
    /// # Errors
    /// [`SimulationError`].
    pub fn run_programs<P: Program>(&self, programs: Vec<P>) -> Result<Times, SimulationError> {
        self.config.check(&self.media)?;
        if !(1..=2).contains(&self.media.len()) {
            return Err(SimulationError::NetworkCount { count: self.media.len() });
        }
        if programs.is_empty() || programs.len() > Group::SIZE_MAX as usize {
            return Err(SimulationError::Members { count: programs.len() });
        }
        if self.barriers == 0 {
            return Err(SimulationError::NoBarriers);
        }
        if !(0.0..=1.0).contains(&self.loss) {
            return Err(SimulationError::Loss { loss: self.loss });
        }
        Simulation::new(self, programs).run()
    }
}

#[derive(Debug)]
enum Wiring<M> {
    Switch(Switch),
    Hub(Hub<M>),
}

/// A running cluster.
#[derive(Debug)]
struct Simulation<'a, P: Program> {
    plan: &'a Cluster,
    world: SimWorld<P::Message>,
    nodes: Vec<SimNode<P>>,
    wirings: Vec<Wiring<P::Message>>,
    /// The time at which each member entered its present barrier, or its last one.
    entered_ns: Vec<u64>,
    /// The number of members that have entered each barrier.
    entries: Vec<usize>,
    times: Times,
    /// Members that have left their last barrier.
    finished: usize,
}

impl<'a, P: Program> Simulation<'a, P> {
    fn new(plan: &'a Cluster, programs: Vec<P>) -> Self {
        let size = programs.len();
        let nics = plan.media.len();
        let wiring = |(nic, medium): (usize, &Medium)| match medium {
            Medium::Switch => Wiring::Switch(Switch::new(nic, size)),
            Medium::Hub => Wiring::Hub(Hub::new(nic, size)),
        };
        let node = |(index, program)| SimNode::new(index, program, nics);
        Self {
            plan,
            world: SimWorld::new(plan.config, plan.loss, plan.seed),
            nodes: programs.into_iter().enumerate().map(node).collect(),
            wirings: plan.media.iter().enumerate().map(wiring).collect(),
            entered_ns: vec![0; size],
            entries: vec![0; plan.barriers as usize],
            times: Times::new(size),
            finished: 0,
        }
    }

    fn run(mut self) -> Result<Times, SimulationError> {
        for index in 0..self.nodes.len() {
            let late_ns = self.late_ns(index, 0);
            self.nodes[index].compute(&mut self.world, late_ns);
        }
        while self.finished < self.nodes.len() {
            let Some(event) = self.world.next() else { return Err(self.stuck()) };
            if self.world.now_ns > LIMIT_NS {
                return Err(SimulationError::Endless);
            }
            self.handle(event)?;
            while let Some((index, report)) = self.world.reports.pop_front() {
                self.hear(index, report)?;
            }
        }
        self.times.counts = self.world.counts;
        self.times.total_ns = self.world.now_ns;
        Ok(self.times)
    }

    fn handle(&mut self, event: SimEvent<P::Message>) -> Result<(), SimulationError> {
        let world = &mut self.world;
        match event {
            SimEvent::Done { node, generation } => self.nodes[node].done(world, generation),
            SimEvent::Sent { node } => self.nodes[node].sent(world),
            SimEvent::Land { nic, node, message } => self.nodes[node].land(world, nic, message),
            SimEvent::Deadline { node } => self.nodes[node].deadline(world),
            SimEvent::Offer { nic, frame } => match self.wirings.get_mut(nic) {
                None => return Err(SimulationError::NoNetwork),
                Some(Wiring::Switch(switch)) => switch.offer(world, frame),
                Some(Wiring::Hub(hub)) => hub.offer(world, frame),
            },
            SimEvent::Forward { nic, frame } => {
                if let Some(Wiring::Switch(switch)) = self.wirings.get_mut(nic) {
                    switch.forward(world, &frame);
                }
            }
            SimEvent::Hub { nic, what } => {
                let Some(Wiring::Hub(hub)) = self.wirings.get_mut(nic) else { return Ok(()) };
                match hub.handle(world, what) {
                    None => {}
                    Some(TransmitOutcome::Sent(frame)) => {
                        let delay_ns = world.config.hub_delay_ns;
                        for node in (0..self.nodes.len()).filter(|node| frame.is_for(*node)) {
                            world.land(delay_ns, nic, node, &frame);
                        }
                        self.nodes[frame.from].sent(world);
                    }
                    Some(TransmitOutcome::GivenUp(frame)) => {
                        world.counts.given_up += 1;
                        // The NIC is done with it all the same, and reports that.
                        self.nodes[frame.from].sent(world);
                    }
                }
            }
        }
        Ok(())
    }

    /// A member has entered or left.
    fn hear(&mut self, index: NodeIndex, report: NodeReport) -> Result<(), SimulationError> {
        let rank = Rank(u32::try_from(index).unwrap_or(u32::MAX));
        let epoch = self.times.passed(index);
        match report {
            NodeReport::Entered => {
                self.entered_ns[index] = self.world.now_ns;
                self.entries[epoch as usize] += 1;
            }
            NodeReport::Exited => {
                if self.entries[epoch as usize] < self.nodes.len() {
                    return Err(SimulationError::Early { rank, epoch });
                }
                self.times.push(index, self.world.now_ns - self.entered_ns[index]);
                if epoch + 1 == self.plan.barriers {
                    self.finished += 1;
                } else {
                    let loop_ns = self.plan.loop_ns + self.late_ns(index, epoch + 1);
                    self.nodes[index].compute(&mut self.world, loop_ns);
                }
            }
            NodeReport::Failed(reason) => return Err(SimulationError::Failed { rank, reason }),
        }
        Ok(())
    }

    /// Returns the delay with which a member enters after the others.
    fn late_ns(&mut self, index: NodeIndex, epoch: u32) -> u64 {
        match self.plan.arrival {
            Arrival::Together => 0,
            Arrival::Spread(most_ns) => self.world.random.u64(0..=most_ns),
            Arrival::OneLate(late_ns) if epoch as usize % self.nodes.len() == index => late_ns,
            Arrival::OneLate(_) => 0,
        }
    }

    fn stuck(&self) -> SimulationError {
        let barriers = self.plan.barriers;
        let waits = |index: &usize| self.times.passed(*index) < barriers;
        let waiting = (0..self.nodes.len()).filter(waits);
        let epoch = waiting.clone().map(|index| self.times.passed(index)).min();
        let ranks = waiting.filter_map(|index| u32::try_from(index).ok().map(Rank));
        SimulationError::Stuck {
            waiting: ranks.collect(),
            epoch: epoch.unwrap_or(0),
            lost: self.world.counts.lost,
            given_up: self.world.counts.given_up,
        }
    }
}
