//! Forwarding: moving packets and messages from one link to another, on the host or on the network interface, whichever
//! a model predicts to be faster.
//!
//! ```
//! # use std::time::Duration;
//! use vigie_forward::{Bandwidth, Cost, Message, Node, Path, Sees, StageModel};
//!
//! let micros = Duration::from_micros;
//! // The node of [fast-forward, §2.4]: per 2048 bytes, 15 µs on a link and 11 µs on the bus.
//! let node = Node::new(
//!     Cost::per_byte(Bandwidth::measured(2048, micros(15))?),
//!     Cost::per_byte(Bandwidth::measured(2048, micros(11))?),
//! );
//! let message = Message::cut(8192, 2048)?;
//! let nat = StageModel::new("nat").on_host(Cost::fixed(micros(1))).on_nic(Cost::fixed(micros(9)));
//! let plan = node.plan(message, std::slice::from_ref(&nat))?;
//! assert_eq!(plan.path(), Path::NIC_CUT_THROUGH);
//!
//! // A checksum in the header is known only at the end of the message.
//! let checksum = StageModel::new("checksum").sees(Sees::Everything);
//! let plan = node.plan(message, &[nat, checksum])?;
//! assert_eq!(plan.path(), Path::NIC);
//! println!("{plan}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Main types
//! - [`Parameters`]: one message in one node, in the symbols of [fast-forward, §2.1], with every formula
//!   of [fast-forward, §2.2 and §2.3]; [`Prediction`]: bandwidth and what limits it, also with windows.
//! - [`Node`]: costs by size, from which [`Node::plan`] makes a [`Plan`] for the stages of a pipeline
//!   ([`StageModel`]): host or interface, store-and-forward or cut-through, and the reason in words.
//! - [`Simulation`]: the node packet by packet, with windows and several [`Flow`]s.
//! - [`messages::Source`], [`messages::Forwarder`], [`messages::Sink`]: real messages through a node.
//! - [`Packet`](packet::Packet): a frame, parsed without copying and edited in place; [`Stage`](pipeline::Stage): one
//!   processing step; [`Pipeline`](pipeline::Pipeline): a sequence of stages with bounded buffers; [`stages`]: the
//!   built-in ones; [`tables`]: the routes and flows that they use.
//! - [`icmp`]: errors that a router sends about packets it does not forward.
//! - [`Forwarder`](host::Forwarder): a pipeline between interfaces of this machine.
//!
//! ```text
//!   measured or given costs (Node)       stages: what they see, write, cost, where they can run
//!            |                                             |
//!            +------------> Node::plan <-------------------+
//!            |                  |
//!            |                Plan:  path, prediction, margin, reason; the refused paths and why
//!            v
//!   Parameters ---> formulas, predictions, sweeps by δ
//!            |
//!            +----> Flow ---> Simulation ---> time, bandwidth, use of each resource
//! ```
//!
//! # Threads, costs and limits
//! Model and simulation are pure functions of their arguments: no clock, no threads, no I/O, no randomness. Times are
//! whole nanoseconds and at most [`TIME_MAX`] for a packet; values out of range are refused with a typed error, and no
//! input causes a panic. Predictions are exact for one message in the node and a bound for windows;
//! `docs/design/forward.md` says how far off they are, and which readings of the paper were chosen.
//!
//! Pipelines take time as an argument and do no I/O either. A [`Forwarder`](host::Forwarder) does I/O, on the calling
//! thread, and never waits; [`AsyncForwarder`](host::AsyncForwarder) is driven by the host of a detection server.
//! `docs/design/forward-paths.md` gives the decisions and their costs.
//!
//! # Its place
//! `forward` depends on `vigie-detect` (time, detectors) and on `vigie-via` (links).
//!
//! # What it deliberately does not do
//!
//! - It never imports `vigie-runtime`.
//! - It never guesses a path: without parameters, measured or given, there is no plan. It measures only the costs of
//!   stages, not of links.
//!

#![deny(unsafe_code)]

#[macro_use]
mod accessors;
#[macro_use]
mod enums;

#[cfg(feature = "nic")]
pub mod bpf;
mod cost;
#[cfg(feature = "pipeline")]
mod drop_reason;
mod error;
#[cfg(feature = "host")]
pub mod host;
#[cfg(feature = "pipeline")]
pub mod icmp;
#[cfg(feature = "messages")]
pub mod messages;
pub mod model;
#[cfg(feature = "nic")]
pub mod nic;
#[cfg(feature = "pipeline")]
pub mod packet;
#[cfg(feature = "pipeline")]
pub mod pipeline;
#[cfg(feature = "relay")]
pub mod relay;
pub mod simulation;
#[cfg(feature = "pipeline")]
pub mod stages;
#[cfg(feature = "pipeline")]
pub mod tables;

pub use self::cost::{Bandwidth, Cost, TIME_MAX};
pub use self::error::ModelError;
pub use self::model::{
    Bus, Candidate, Limit, Message, Node, Parameters, ParametersBuilder, Path, Placement, Plan,
    Prediction, Refusal, Sees, SharedProcessors, StageModel, SweepPoint, SwitchingMode, Writes,
};
pub use self::simulation::{
    Flow, FlowReport, Resource, ResourceReport, Simulation, SimulationError, SimulationReport,
};
