//! Barriers over real sockets: every algorithm, faults, dead members, strangers. `virtual_time.rs` has a simulated network.
//!
//! Members are tasks of one process here, each with a loopback address of its own; `crash.rs` and `namespaces.rs` have
//! processes.

#![cfg(not(loom))]

mod algorithms;
mod crash;
mod failures;
mod faults;
mod formation;
mod hostile;
#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
mod leaving;
mod measure;
mod messages;
mod namespaces;
mod stage;
mod virtual_time;
