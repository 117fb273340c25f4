//! Servers in virtual time, and the suite that tests detectors.

pub mod conformance;
mod simulation;

pub use simulation::{Deadlock, Simulated, Simulation};
