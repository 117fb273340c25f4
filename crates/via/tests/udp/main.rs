//! The UDP provider on real sockets: lossy networks, changing links, vanishing peers, strangers.
//!
//! Tests that need namespaces run in their own, and report where that is not possible.

mod hostile;
mod links;
mod lossy;
#[path = "../kit/namespace.rs"]
mod namespace;
mod pair;
mod relay;
#[path = "../kit/veth.rs"]
mod veth;
