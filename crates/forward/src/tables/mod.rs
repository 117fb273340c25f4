//! The tables used for forwarding: one side changes them; the host's stages and the maps of a network processor follow.
//!
//! - [`Fib`]: routes by longest prefix, neighbours and interfaces.
//! - [`NatTable`]: flows whose addresses are translated.
//! - [`TrafficCounters`]: forwarded packets, and drops by [`DropReason`](crate::pipeline::DropReason).
//!
//! A [`Feed`] gives the whole table once and then each change, so that a copy elsewhere can follow.

mod counters;
mod feed;
mod nat;
mod prefix;
mod routes;
mod trie;

pub use self::{
    counters::{CounterSnapshot, Traffic, TrafficCounters},
    feed::{Feed, Update},
    nat::{
        NatChange, NatEndpoint, NatError, NatFeed, NatFlow, NatRestoreError, NatTable,
        NatTableBuilder, NatTuple, NatUsage, TcpProgress,
    },
    prefix::{Prefix, PrefixError},
    routes::{
        Fib, FibChange, FibFeed, FibReader, FibSnapshot, Interface, NextHop, NextHopError, Route,
    },
};
