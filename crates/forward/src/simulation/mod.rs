//! The pipeline of a forwarding node, packet by packet: effects that the closed form does not cover.
//!
//! ```text
//!            NIC                                                host
//!   port ──▶ receive link ──┬───────────── bus ──▶ (whole message, or first packet)
//!                           │                           │
//!                     NIC's processor              host's processor          T_algo once per message
//!                           │                           │
//!   port ◀── send link ◀────┴──────────── ◀── bus ──────┘
//! ```
//! Discrete events in integer nanoseconds, without randomness or floats, so that a run is the same everywhere. Each
//! link, each direction of a full-duplex bus, the half-duplex bus as a whole and each processor serves one packet (or
//! message) at once, in order of arrival, except that the half-duplex bus serves departures first, which make room;
//! buffers between them hold as much as the windows allow. A flow sends its messages in sequence, packet by packet,
//! with at most its window of them in the node; the next one enters when the oldest has left [fast-forward, §3.2].
//!
//! With one message in the node a run takes exactly the time of the closed form [fast-forward, §2.2]. With windows it
//! shows how messages collide at the bus and the links, and with several flows how they share them.
//!
//! ```
//! # use std::time::Duration;
//! # use vigie_forward::{Flow, Message, Parameters, Path, Simulation};
//! let parameters = Parameters::builder(Message::cut(8192, 2048)?)
//!     .t_net(Duration::from_micros(15))
//!     .t_pci(Duration::from_micros(11))
//!     .build()?;
//! let flow = Flow::new(parameters, Path::NIC_CUT_THROUGH, Duration::ZERO).messages(10);
//! let report = Simulation::new(vec![flow]).run()?;
//! assert_eq!(report.elapsed, 10 * Duration::from_micros(75));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod engine;
mod report;
mod resource;

use std::time::Duration;

use thiserror::Error;

use self::engine::SimulationEngine;
pub use self::report::{FlowReport, ResourceReport, SimulationReport};
pub use self::resource::Resource;
use crate::cost::TIME_MAX;
use crate::model::{Bus, Parameters, Path};

/// The maximum number of transfers and runs of algorithms in one simulation.
pub const STEPS_MAX: u64 = 50_000_000;

/// Messages of one kind on one path through the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a simulation runs it"]
pub struct Flow {
    pub(crate) parameters: Parameters,
    pub(crate) path: Path,
    pub(crate) t_algo: Duration,
    pub(crate) messages: u32,
    pub(crate) port_in: u16,
    pub(crate) port_out: u16,
}

impl Flow {
    /// Creates a flow of one message, with the algorithm's time on its path, from port 0 to port 0.
    ///
    /// The host may cut through on a half-duplex bus too, which the closed form leaves out.
    pub const fn new(parameters: Parameters, path: Path, t_algo: Duration) -> Self {
        Self { parameters, path, t_algo, messages: 1, port_in: 0, port_out: 0 }
    }

    /// Sets the number of messages. Default: 1.
    pub const fn messages(mut self, count: u32) -> Self {
        self.messages = count;
        self
    }

    /// Sets the receive link and the send link, by number; flows with the same number share a link.
    /// Default: 0 and 0. A receive link and a send link are never shared: ports are full-duplex.
    pub const fn ports(mut self, port_in: u16, port_out: u16) -> Self {
        self.port_in = port_in;
        self.port_out = port_out;
        self
    }

    /// The steps of one message: two links, possibly two crossings of the bus, and the algorithm.
    fn steps(&self) -> u64 {
        u64::from(self.messages) * (4 * u64::from(self.parameters.message().nb()) + 1)
    }
}

/// A node with the flows that cross it concurrently.
#[derive(Clone, Debug)]
#[must_use = "`run` simulates it"]
pub struct Simulation {
    flows: Vec<Flow>,
}

impl Simulation {
    /// Creates a node with flows; all start at time 0, and of simultaneous events the first flow's goes first.
    pub const fn new(flows: Vec<Flow>) -> Self {
        Self { flows }
    }

    /// Simulates until the last message has left.
    ///
    /// # Cost
    /// O(log n) for each packet and resource, with n resources; memory for the packets within the windows.
    ///
    /// # Errors
    /// [`SimulationError`] before anything runs.
    pub fn run(&self) -> Result<SimulationReport, SimulationError> {
        self.check()?;
        Ok(SimulationEngine::new(&self.flows).run())
    }

    fn check(&self) -> Result<(), SimulationError> {
        let bus = self.flows.first().ok_or(SimulationError::NoMessages)?.parameters.bus();
        for flow in &self.flows {
            if flow.messages == 0 {
                return Err(SimulationError::NoMessages);
            }
            if flow.parameters.bus() != bus {
                return Err(SimulationError::TwoBuses { first: bus });
            }
            if flow.parameters.is_live() {
                return Err(SimulationError::UnsupportedCosts);
            }
            if flow.t_algo > TIME_MAX {
                return Err(SimulationError::Algorithm { time: flow.t_algo });
            }
        }
        let steps = self.flows.iter().map(Flow::steps);
        let steps = steps.fold(0, u64::saturating_add);
        if steps > STEPS_MAX {
            return Err(SimulationError::TooLong { steps });
        }
        Ok(())
    }
}

/// The reason why a simulation cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// There is nothing to forward.
    #[error("a flow without messages, or no flow: give each at least one")]
    NoMessages,
    /// Flows that require different nodes.
    #[error("a node has one bus, and the first flow's is {first:?}: give all flows the same")]
    TwoBuses {
        /// The bus of the first flow.
        first: Bus,
    },
    /// Costs that only live systems have.
    #[error(
        "hand-overs, idle times and shared processors are not simulated: leave them out of the parameters"
    )]
    UnsupportedCosts,
    /// An algorithm that is too slow to be intended.
    #[error("an algorithm of {time:?}: it must be at most {TIME_MAX:?}")]
    Algorithm {
        /// The value given.
        time: Duration,
    },
    /// Too many steps.
    #[error("{steps} steps are more than {STEPS_MAX}: simulate fewer messages, or larger packets")]
    TooLong {
        /// The steps that would be needed.
        steps: u64,
    },
}
