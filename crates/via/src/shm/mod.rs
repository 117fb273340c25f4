//! The provider of shared memory: VIs between processes of one host.
//!
//! ```text
//!   process A                                                     process B
//!   Shm ── socket (handshake, grants of memory, bells, death) ──── Shm
//!    │                                                              │
//!    ├─ producer ──> ring file of B: entries, staging area ──> consumer
//!    ├─ consumer <── ring file of A <──────────────────────── producer
//!    └─ direct access ─────────> memory that B allocated (mapped by A, if granted)
//! ```
//!
//! An entry of a ring is one cache line; data up to 40 bytes travels in it, so that a small message moves
//! one line between two processors. Larger data is written straight into memory that the peer has
//! [allocated](crate::vi::Provider::allocate). Memory that was only
//! [registered](crate::vi::Provider::register) is never mapped by anybody; its data goes through the
//! connection's staging area.
//!
//! No system call is made on the way of data, unless a peer sleeps and must be woken.
//!
//! # Trust
//! Only processes of the same user that know the NIC's [address](crate::vi::Provider::address), which
//! holds a secret, can connect. A connected peer is mistrusted all the same: it can write its
//! connection's ring files and the memory that it was granted at any time, so everything found there is
//! copied once and checked, and a rule that is broken breaks that connection
//! ([`Reason::PeerFault`](crate::vi::Reason::PeerFault)). Files of peers are touched only if they are
//! sealed against shrinking. There is no lock in shared memory, and nothing with a name: files and
//! sockets vanish with the processes, however they end.
//!
//! A process that forks while it has a NIC must not touch it in the child, and the child should soon be
//! another program or end: its copies of the sockets keep peers from noticing that the parent has died.
//!
//! Whoever maps memory for writing can also read it. Memory that peers may write but not read can thus be
//! read by a peer that breaks the rules; keep nothing there that the peer must not know.
//!
//! # Costs
//! One NIC has three descriptors, each connection one socket, and each region that peers may map one.
//! [`Provider::progress`](crate::vi::Provider::progress) looks at the sockets at most every 100 µs.

mod bell;
mod connecting;
mod entry;
#[doc(hidden)]
pub mod hostile;
mod layout;
mod link;
mod nic;
mod receiver;
mod ring;
mod sender;
pub(crate) mod sleep;
mod slots;
mod sys;
mod table;
mod vi;
mod wire;

pub use nic::{Refusals, Shm};
