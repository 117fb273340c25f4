//! Virtual Interfaces and messages: communication in which the kernel stays out of the data path.
//!
//! Layers, each usable by itself:
//!
//! ```text
//!   world      ranks, and how processes find each other
//!     |
//!   message    sends and receives with tags, awaited
//!     |
//!   protocol   the message machine without I/O: matching, flow control, rendezvous, error control
//!     |
//!   vi         queue pairs, completion queues, registered memory; one provider trait behind them
//!     |
//!   shm, udp, ether, sim     processes of one host, of several hosts, of one Ethernet; a network in virtual time
//! ```
//!
//! - **[`vi`]** is the Virtual Interface Architecture [via-lam, §2]: send and receive queues of
//!   descriptors, one completion queue for many queues, memory that is registered once and then read
//!   and written by the device. [`Nic`] awaits completions; [`conformance`] tries any provider.
//! - **[`protocol`]** follows [via-lam, §4.1]: an RDMA write with immediate data into an area at the
//!   receiver, whose free space and free descriptors the sender knows without asking [via-lam, §4.2].
//! - **[`message`]** has MPI's semantics [via-lam, §4.3] in Rust's terms: blocking is `.await`,
//!   non-blocking is a request that one holds.
//! - **[`world`]** connects the ranks that `vigie-run`, `mpiexec.hydra` or `srun` have started, on one host or many.
//!
//! Beside them, [`link`] has raw frames of an interface, and [`datagram`] numbered ports over a link or UDP
//! [eth-barrier, §2].
//!
//! # Its place
//!
//! `via` depends on `vigie-detect` and on no other crate of the workspace. A completion queue is a
//! detector: whoever hosts the detection server (vigie's scheduler, a thread of its own inside a
//! tokio program, or the simulator) decides whether to poll it or to sleep on it.
//!
//! # Errors
//! Every error says by [`Display`](std::fmt::Display) what happened and, where somebody can, what to do. A `main`
//! that returns a `Result` prints [`Debug`](std::fmt::Debug) instead, as `Error: Refused { why: WrongSecret }`: print
//! the error yourself, `eprintln!("{error}")`, and return an [`ExitCode`](std::process::ExitCode).
//!
//! # What it deliberately does not do
//!
//! - It never imports `vigie-runtime`: its futures run on any executor.
//! - It is no MPI library: no datatypes, no MPI ABI, no collectives.
//! - It manages no cluster: `mpiexec` and `srun` start programs on many machines well enough.
//! - Peers on one host are mistrusted as far as memory safety goes; beyond that, ranks of a world trust
//!   each other.

#![deny(unsafe_code)]

pub mod conformance;
pub mod datagram;
pub mod ether;
pub mod link;
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_exports;
pub mod message;
mod nic;
pub mod protocol;
pub mod shm;
pub mod sim;
pub mod software_nic;
mod spin;
mod sync;
pub mod udp;
// Needs system libraries, so that the feature alone does not turn it on: `docs/design/verbs.md`.
#[cfg(all(feature = "verbs", vigie_verbs))]
pub mod verbs;
pub mod vi;
pub mod world;

pub use nic::{ConnectError, Nic};

/// Announcements in a row for which nobody waited, after which a host of links or datagrams wants none: whoever looks by
/// itself at what comes would be disturbed by a host that looks too.
const VAIN_ANNOUNCEMENTS_MAX: u32 = 2;
