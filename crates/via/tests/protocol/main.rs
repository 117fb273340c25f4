//! The guarantees of the message engine over the simulated network, with every possible fault.

mod cluster;
mod hostile;
mod in_place;
#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
mod on_demand;
#[path = "../kit/pattern.rs"]
mod pattern;
#[path = "../kit/programs.rs"]
mod programs;
mod progress;
mod semantics;
mod sim;
mod traffic;
