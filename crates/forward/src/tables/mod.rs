//! What forwarding is done by: tables that one side changes while the host's stages, and the maps of a network
//! processor, follow.
//!
//! - [`Fib`]: routes by longest prefix, neighbours and interfaces.
//! - [`NatTable`]: flows whose addresses are translated.
//! - [`Counters`]: what went through, and what was dropped for which [`Reason`](crate::pipeline::Reason).
//!
//! A [`Feed`] gives everything once and then each change, so that a copy elsewhere can follow.

mod counters;
mod feed;
mod nat;
mod prefix;
mod routes;
mod trie;

pub use self::{
    counters::{CounterSnapshot, Counters, Traffic},
    feed::{Feed, Update},
    nat::{
        Endpoint, NatChange, NatError, NatFeed, NatFlow, NatTable, NatTableBuilder, NatTimeouts,
        NatTuple,
    },
    prefix::{Prefix, PrefixError},
    routes::{Fib, FibChange, FibFeed, FibReader, FibSnapshot, Hop, Interface, NoHop, Route},
};
