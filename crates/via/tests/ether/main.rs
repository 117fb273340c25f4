//! The provider over Ethernet on veth pairs: its contract, messages, links that change, peers that vanish, strangers.
//!
//! Everything here runs in namespaces of its own, and says so where it cannot.

mod conforming;
mod links;
mod messages;
#[path = "../udp/namespace.rs"]
mod namespace;
mod nics;
mod opening;
#[expect(dead_code, reason = "what else the tests of UDP use")]
#[path = "../udp/pair.rs"]
mod pair;
mod strangers;
