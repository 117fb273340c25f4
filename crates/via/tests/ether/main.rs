//! The Ethernet provider on veth pairs: its contract, messages, changing links, vanishing peers, strangers.
//!
//! All tests run in their own namespaces, and report where that is not possible.

mod conforming;
mod damage;
#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
mod links;
mod messages;
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
