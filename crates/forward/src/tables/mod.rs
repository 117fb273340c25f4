//! The tables used for forwarding: one side changes them; the host's stages and the maps of a network processor follow.
//!
//! - [`Fib`]: routes by longest prefix, neighbours and interfaces.
//! - [`NatTable`]: flows whose addresses are translated.
//! - [`TrafficCounters`]: forwarded packets, and drops by [`DropReason`](crate::pipeline::DropReason).
//!
//! A [`Feed`] gives the whole table once and then each change, so that a copy elsewhere can follow.

mod counters;
mod feed;
mod groups;
mod hop_counters;
mod hops;
mod nat;
mod prefix;
mod routes;
mod trie;

#[cfg(feature = "nic")]
pub(crate) use self::hop_counters::HopCell;
#[cfg(feature = "nic")]
pub(crate) use self::hops::{BUCKET_BITS, BUCKETS, MULTIPLIER};
#[cfg(feature = "nic")]
pub(crate) use self::nat::FlowProcessor;
pub use self::{
    counters::{CounterSnapshot, Traffic, TrafficCounters},
    feed::{Feed, Update},
    groups::RouteEntry,
    hop_counters::HopTraffic,
    hops::{FlowHash, HOPS_MAX, HopGroup, HopGroupError, HopTable, Route},
    nat::{
        NatChange, NatEnd, NatEndpoint, NatError, NatEvent, NatFeed, NatFlow, NatLimit,
        NatRestoreError, NatTable, NatTableBuilder, NatTuple, NatUsage, PortBlock, PortBlocks,
        TcpProgress,
    },
    prefix::{Prefix, PrefixError},
    routes::{Fib, FibChange, FibFeed, FibReader, FibSnapshot, Interface, NextHop, NextHopError},
};
