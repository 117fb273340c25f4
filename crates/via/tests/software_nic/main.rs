//! The software NIC in virtual time, over a network with realistic faults.
//!
//! `SIM_RUNS` is the number of seeds of each test, `SIM_SEED` the first; a failure names its seed.

mod conforming;
mod faults;
mod hostile;
#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
mod network;
mod pair;
mod traffic;
