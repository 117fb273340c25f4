//! The software NIC in virtual time, over a network with realistic faults.
//!
//! `SIM_SEEDS` is the number of seeds of each test, `SIM_SEED` the first; a failure names its seed.

mod conforming;
mod faults;
mod hostile;
mod network;
mod pair;
#[path = "../kit/seeds.rs"]
mod seeds;
mod traffic;
