//! The kernel's view of the network, and its changes: interfaces, routes, neighbours.
//!
//! ```text
//!  routing socket ──▶ message.rs ──▶ NetlinkEvent ──▶ cache.rs ──▶ Change ──▶ tables of the flows
//!      monitor.rs ─────────────────────────▶ Dump ──────┘
//! ```
//! [`NetlinkCache`] does no I/O: events and dumps in, changes out. [`NetlinkMonitor`] puts sockets around it.

mod cache;
mod message;
mod monitor;

#[cfg(test)]
pub(crate) use self::cache::Hop;
pub(crate) use self::{
    cache::{Change, Interface, NetlinkCache, SourceAddresses, Target},
    monitor::{MonitorError, NetlinkMonitor, snapshot},
};
