//! The guarantees of the message engine over the simulated network, with every possible fault.

mod cluster;
mod hostile;
mod in_place;
mod programs;
#[path = "../kit/seeds.rs"]
mod seeds;
mod semantics;
mod sim;
mod traffic;
