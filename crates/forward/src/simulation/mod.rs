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
mod error;
mod flow;
mod job;
mod report;
mod resource;

use self::engine::SimulationEngine;
pub use self::error::{STEPS_MAX, SimulationError};
pub use self::flow::Flow;
pub use self::report::{FlowReport, ResourceReport, SimulationReport};
pub use self::resource::Resource;
use crate::cost::TIME_MAX;

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
