//! The paper's cluster, simulated: it reproduces the figures of [eth-barrier, §4] to the nanosecond on every machine.
//!
//! ```
//! use vigie_barrier::cluster::{Cluster, Medium, Parameters};
//! use vigie_barrier::{Group, Network, Rank, Round, Schedule, Source, Step, Target};
//!
//! // Two members that tell each other.
//! let tell = |other| {
//!     let (to, round, network) = (Target::Member(Rank(other)), Round(0), Network::First);
//!     vec![Step::Send { to, round, network }, Step::Receive(vec![Source::new(Rank(other), round, network)])]
//! };
//! let schedule = Schedule::from_steps(Group::new(2)?, vec![tell(1), tell(0)]);
//!
//! let set = Parameters::CALIBRATED;
//! let times = Cluster::new([Medium::Switch]).parameters(set).run(&schedule)?;
//! let one_way_ns = set.send_ns + set.latency_ns + set.receive_ns();
//! assert_eq!(times.mean_ns(), (one_way_ns + set.wait_ns) as f64);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is simulated
//! Discrete events in whole nanoseconds; all chance comes from one seed, and a switch without faults needs none.
//!
//! | part | what it does | file |
//! | --- | --- | --- |
//! | node | one processor; handlers of interrupts come before the program; a handler takes frames until the ring is empty; each NIC has its own interrupt | `node.rs` |
//! | switch | store and forward, a queue per output port, multicast to all ports | `switch.rs` |
//! | hub | one wire; carrier sense, collisions, jam, truncated binary exponential backoff | `hub.rs` |
//! | program | the steps of a schedule, or any other member ([`Program`]) | `program.rs` |
//! | member machine | the one that real transports drive, with its recovery ([`MemberProgram`]) | `machine.rs` |
//! | numbers | all of them, with their sources | `parameters.rs` |
//! | the paper | its figures, and what must be reached | `paper.rs` |
//!
//! # The method
//! That of [eth-barrier, §4.3]: barrier and dummy loop, 100 times; the least, the mean and the greatest time of each member,
//! averaged over all members.
//!
//! # Cost and limits
//! A message costs about ten events on a switch, and on a hub some more for each collision; 32 members exchange 16 000 messages in
//! some milliseconds. There is no drift of clocks, no cache and no other program; what the paper's machines did beside their barriers
//! is in the fitted constants.

mod hub;
mod machine;
mod node;
pub mod paper;
mod parameters;
mod program;
mod switch;
mod times;
mod world;

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use self::hub::{Hub, Outcome};
use self::node::Node;
use self::switch::Switch;
use self::world::{Happening, Report, World};
use crate::group::{Group, Rank};
use crate::member::{Member, MemberError, Settings};
use crate::packet::GroupId;
use crate::schedule::{Network, Schedule, Step};

pub use self::machine::MemberProgram;
pub use self::parameters::{Batching, Completion, Deferral, Parameters, ParametersError};
pub use self::program::{Action, Program, StepProgram};
pub use self::times::{Counts, MemberTimes, Runs, Times};

/// Which node.
type NodeIndex = usize;

/// The dummy loop between two barriers [eth-barrier, §4.3].
pub const LOOP_NS: u64 = 30_000;

/// Barriers of a run. *Deviation:* the listing of [eth-barrier, §4.3] has 25, its text 100.
pub const BARRIERS: u32 = 100;

/// The longest time that a run may take, within the simulation: an hour.
const LIMIT_NS: u64 = 3_600_000_000_000;

/// What connects one NIC of each node [eth-barrier, §4.1].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Medium {
    /// A switch.
    Switch,
    /// A repeater hub.
    Hub,
}

/// When members enter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arrival {
    /// Each after its dummy loop.
    #[default]
    Together,
    /// Each later by a random time of up to this, in nanoseconds.
    Spread(u64),
    /// One member later by this, in nanoseconds: another one in each barrier.
    OneLate(u64),
}

/// A cluster to simulate: how nodes are connected, and what is done with them.
///
/// By default it has the calibrated [`Parameters`], and runs the paper's method ([`BARRIERS`], [`LOOP_NS`]) without loss, with seed 0.
#[derive(Clone, Debug)]
#[must_use = "a cluster does nothing until it runs"]
pub struct Cluster {
    media: Vec<Medium>,
    parameters: Parameters,
    barriers: u32,
    loop_ns: u64,
    arrival: Arrival,
    loss: f64,
    seed: u64,
}

impl Cluster {
    /// Takes one or two networks, to each of which every node is connected.
    pub fn new(media: impl IntoIterator<Item = Medium>) -> Self {
        Self {
            media: media.into_iter().collect(),
            parameters: Parameters::CALIBRATED,
            barriers: BARRIERS,
            loop_ns: LOOP_NS,
            arrival: Arrival::Together,
            loss: 0.0,
            seed: 0,
        }
    }

    /// Sets what everything costs.
    pub const fn parameters(mut self, parameters: Parameters) -> Self {
        self.parameters = parameters;
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

    /// Sets the probability, 0 to 1, that a receiver does not get a frame; 0 by default.
    pub const fn loss(mut self, loss: f64) -> Self {
        self.loss = loss;
        self
    }

    /// Sets the seed of all chance; 0 by default.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs the steps of a schedule.
    ///
    /// # Errors
    /// [`SimulationError`]; with the bare steps, a lost frame is one of the reasons.
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
        self.run_programs(group.ranks().map(|rank| StepProgram::new(schedule, rank)).collect())
    }

    /// Runs the member machine with this schedule: colours on the wire, and recovery from loss. It asks for what it misses after
    /// `repeat_after`.
    ///
    /// # Errors
    /// [`SimulationError`].
    pub fn run_members(
        &self,
        schedule: &Schedule,
        repeat_after: Duration,
    ) -> Result<Times, SimulationError> {
        let mut settings = Settings::new(GroupId(self.seed));
        settings.repeat_after = repeat_after;
        // Nobody dies here, however much is lost.
        settings.failure_timeout = None;
        let shared = Arc::new(schedule.clone());
        let member = |rank| Member::new(Arc::clone(&shared), rank, settings.clone());
        let members: Result<Vec<_>, _> = schedule.group().ranks().map(member).collect();
        self.run_programs(members?.into_iter().map(MemberProgram::new).collect())
    }

    /// Runs the steps of a schedule with several seeds, beginning with this cluster's: what chance there is differs.
    ///
    /// # Errors
    /// As [`run`](Self::run).
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
        self.parameters.check(&self.media)?;
        if !(1..=2).contains(&self.media.len()) {
            return Err(SimulationError::Media { count: self.media.len() });
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

/// Why a simulation gave no times.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// Such a cluster cannot be.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// There must be one network or two.
    #[error("nodes have one or two networks, not {count}")]
    Media {
        /// How many were given.
        count: usize,
    },
    /// Too few or too many members.
    #[error("a group has 1 to {} members, not {count}", Group::SIZE_MAX)]
    Members {
        /// How many were given.
        count: usize,
    },
    /// There is nothing to measure.
    #[error("no barriers are to be passed: ask for at least one")]
    NoBarriers,
    /// It is no probability.
    #[error("{loss} is no probability: give 0 to 1")]
    Loss {
        /// What was given.
        loss: f64,
    },
    /// The member machine does not take the schedule or the time to repeat.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The schedule uses a second network.
    #[error("the schedule uses a second network, and there is one: give two")]
    NoNetwork,
    /// Nothing is going to happen any more, and members are still in the barrier.
    #[error(
        "{} members wait for ever in barrier {epoch}, the first of them {}: {lost} frames were lost, {given_up} given up \
         after collisions; bare steps do not recover, the member machine does",
        waiting.len(), waiting.first().copied().unwrap_or(Rank(0))
    )]
    Stuck {
        /// Who waits.
        waiting: Vec<Rank>,
        /// In which barrier the first of them is, counted from 0.
        epoch: u32,
        /// Copies of frames that were lost.
        lost: u64,
        /// Frames that collided too often.
        given_up: u64,
    },
    /// A member left before another one had entered: the algorithm is wrong.
    #[error("member {} left barrier {epoch} before every member had entered it", rank.0)]
    Early {
        /// Who left.
        rank: Rank,
        /// Which barrier, counted from 0.
        epoch: u32,
    },
    /// A program could not go on.
    #[error("member {} failed: {reason}", rank.0)]
    Failed {
        /// Whose program.
        rank: Rank,
        /// What it says.
        reason: String,
    },
    /// It goes on and on.
    #[error("the barriers have not ended within an hour of the simulation's time")]
    Endless,
}

/// What is on the wire.
#[derive(Clone, Debug)]
struct Frame<M> {
    from: NodeIndex,
    to: Destination,
    message: M,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    Node(NodeIndex),
    Others,
}

impl<M> Frame<M> {
    /// Whether this node is to get it.
    fn is_for(&self, node: NodeIndex) -> bool {
        match self.to {
            Destination::Node(to) => to == node,
            Destination::Others => node != self.from,
        }
    }
}

#[derive(Debug)]
enum Wiring<M> {
    Switch(Switch),
    Hub(Hub<M>),
}

/// A cluster that runs.
#[derive(Debug)]
struct Simulation<'a, P: Program> {
    plan: &'a Cluster,
    world: World<P::Message>,
    nodes: Vec<Node<P>>,
    wirings: Vec<Wiring<P::Message>>,
    /// When each member entered the barrier that it is in, or was in last.
    entered_ns: Vec<u64>,
    /// How many members have entered each barrier.
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
        let node = |(index, program)| Node::new(index, program, nics);
        Self {
            plan,
            world: World::new(plan.parameters, plan.loss, plan.seed),
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
            let Some(happening) = self.world.next() else { return Err(self.stuck()) };
            if self.world.now_ns > LIMIT_NS {
                return Err(SimulationError::Endless);
            }
            self.handle(happening)?;
            while let Some((index, report)) = self.world.reports.pop_front() {
                self.hear(index, report)?;
            }
        }
        self.times.counts = self.world.counts;
        self.times.total_ns = self.world.now_ns;
        Ok(self.times)
    }

    fn handle(&mut self, happening: Happening<P::Message>) -> Result<(), SimulationError> {
        let world = &mut self.world;
        match happening {
            Happening::Done { node, turn } => self.nodes[node].done(world, turn),
            Happening::Sent { node } => self.nodes[node].sent(world),
            Happening::Land { nic, node, message } => self.nodes[node].land(world, nic, message),
            Happening::Deadline { node } => self.nodes[node].deadline(world),
            Happening::Offer { nic, frame } => match self.wirings.get_mut(nic) {
                None => return Err(SimulationError::NoNetwork),
                Some(Wiring::Switch(switch)) => switch.offer(world, frame),
                Some(Wiring::Hub(hub)) => hub.offer(world, frame),
            },
            Happening::Forward { nic, frame } => {
                if let Some(Wiring::Switch(switch)) = self.wirings.get_mut(nic) {
                    switch.forward(world, &frame);
                }
            }
            Happening::Hub { nic, what } => {
                let Some(Wiring::Hub(hub)) = self.wirings.get_mut(nic) else { return Ok(()) };
                match hub.handle(world, what) {
                    None => {}
                    Some(Outcome::Sent(frame)) => {
                        let delay_ns = world.parameters.hub_delay_ns;
                        for node in (0..self.nodes.len()).filter(|node| frame.is_for(*node)) {
                            world.land(delay_ns, nic, node, &frame);
                        }
                        self.nodes[frame.from].sent(world);
                    }
                    Some(Outcome::GivenUp(frame)) => {
                        world.counts.given_up += 1;
                        // The NIC is done with it all the same, and says so.
                        self.nodes[frame.from].sent(world);
                    }
                }
            }
        }
        Ok(())
    }

    /// A member has entered or left.
    fn hear(&mut self, index: NodeIndex, report: Report) -> Result<(), SimulationError> {
        let rank = Rank(u32::try_from(index).unwrap_or(u32::MAX));
        let epoch = self.times.passed(index);
        match report {
            Report::Entered => {
                self.entered_ns[index] = self.world.now_ns;
                self.entries[epoch as usize] += 1;
            }
            Report::Exited => {
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
            Report::Failed(reason) => return Err(SimulationError::Failed { rank, reason }),
        }
        Ok(())
    }

    /// How much later than the others a member enters.
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
