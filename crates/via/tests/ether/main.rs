//! The Ethernet provider on veth pairs: its contract, messages, changing links, vanishing peers, strangers.
//!
//! All tests run in their own namespaces, and report where that is not possible.

#[path = "../kit/bounded.rs"]
mod bounded;
mod conforming;
mod links;
mod messages;
#[path = "../kit/namespace.rs"]
mod namespace;
mod nics;
mod opening;
#[expect(dead_code, reason = "what else the tests of UDP use")]
#[path = "../udp/pair.rs"]
mod pair;
#[path = "../kit/pattern.rs"]
mod pattern;
#[path = "../kit/ranks.rs"]
mod ranks;
mod strangers;
#[path = "../kit/veth.rs"]
mod veth;
