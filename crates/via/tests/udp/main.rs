//! The UDP provider on real sockets: lossy networks, changing links, vanishing peers, strangers.
//!
//! Tests that need namespaces run in their own, and report where that is not possible.

mod hostile;
#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
mod links;
mod lossy;
mod pair;
mod relay;
#[path = "../kit/veth.rs"]
mod veth;
