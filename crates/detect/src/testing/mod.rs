//! Servers in virtual time, and the suite that tests detectors.

pub mod conformance;
mod simulation;
mod virtual_host;

pub use simulation::{Simulated, Simulation};
pub use virtual_host::{Deadlock, SimulatedHost};
