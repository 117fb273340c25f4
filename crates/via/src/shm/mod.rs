//! The shared-memory provider: VIs between processes of one host.
//!
//! ```text
//!   process A                                                     process B
//!   Shm ── socket (handshake, grants of memory, wake-ups, death) ──── Shm
//!    │                                                              │
//!    ├─ producer ──> ring file of B: entries, staging area ──> consumer
//!    ├─ consumer <── ring file of A <──────────────────────── producer
//!    └─ direct access ─────────> memory that B allocated (mapped by A, if granted)
//! ```
//!
//! A ring entry is one cache line and holds up to 40 bytes of data, so a small message moves one line
//! between two processors. Larger data is written straight into memory that the peer has
//! [allocated](crate::vi::Provider::allocate). Memory that was only
//! [registered](crate::vi::Provider::register) is never mapped by a peer; its data goes through the
//! connection's staging area.
//!
//! The data path makes no system call, unless a peer sleeps and must be woken.
//!
//! # Trust
//! Only processes of the same user that know the NIC's [address](crate::vi::Provider::address), which
//! contains a secret, can connect. A connected peer is still not trusted: it can write its connection's
//! ring files and the memory granted to it at any time, so everything read from there is copied once and
//! checked, and a violation breaks that connection
//! ([`DisconnectReason::PeerFault`](crate::vi::DisconnectReason::PeerFault)). A peer's file is touched only if it is sealed
//! against shrinking. Shared memory contains no locks, and nothing has a name in the file system: files
//! and sockets vanish with the processes, however they end.
//!
//! After a fork, the child must not touch the NIC, and should soon exec or exit: its copies of the
//! sockets keep peers from noticing that the parent has died.
//!
//! Memory mapped for writing can also be read. A peer that breaks the rules can thus read memory that it
//! may only write; keep nothing there that it must not know.
//!
//! # Costs
//! A NIC holds three descriptors, plus one socket per connection and one descriptor per region that
//! peers may map. [`Provider::progress`](crate::vi::Provider::progress) polls the sockets at most every
//! 100 µs.

mod attempt;
mod connecting;
mod connection;
mod entry;
mod layout;
#[cfg(loom)]
pub(crate) mod loom_exports;
mod nic;
mod posted;
mod receiver;
mod ring;
mod sender;
pub(crate) mod sleep;
mod sys;
mod table;
#[cfg(test)]
mod tests;
mod vi;
mod wakeup;
mod wire;

pub use nic::{Refusals, Shm};
