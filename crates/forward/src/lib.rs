//! Forwarding.
#![forbid(unsafe_code)]

mod cost;
pub mod model;
pub mod simulation;

pub use self::cost::{Bandwidth, Cost, CostError, TIME_MAX};
pub use self::model::{
    Bus, Candidate, Limit, Message, MessageError, Mode, Node, Parameters, ParametersBuilder,
    ParametersError, Path, Placement, Plan, Prediction, Refusal, Sees, StageModel, SweepPoint,
    Writes,
};
pub use self::simulation::{
    Flow, FlowReport, Resource, ResourceReport, Simulation, SimulationError, SimulationReport,
};
