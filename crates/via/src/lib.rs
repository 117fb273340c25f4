//! Virtual Interfaces and messages: communication that keeps the kernel out of the data path.
//!
//! You can use each layer on its own:
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
//! - **[`vi`]** is the Virtual Interface Architecture [via-lam, §2]: send and receive queues of descriptors,
//!   completion queues shared by many queues, and memory that you register once and the device then reads and
//!   writes. [`Nic`] awaits completions; [`conformance`] tests any provider.
//! - **[`protocol`]** follows [via-lam, §4.1]: a message is an RDMA write with immediate data into an area at
//!   the receiver. The sender knows that area's free space and the free descriptors without asking
//!   [via-lam, §4.2].
//! - **[`message`]** has MPI's semantics [via-lam, §4.3] in Rust's terms: a blocking call is an `.await`, a
//!   non-blocking one returns a request.
//! - **[`world`]** connects the ranks that `vigie-run`, `mpiexec.hydra` or `srun` started, on one host or many.
//!
//! Beside them, [`link`] sends and receives raw frames on an interface, and [`datagram`] offers numbered
//! ports over a link or UDP [eth-barrier, §2].
//!
//! # Dependencies
//!
//! `via` depends on `vigie-detect` and on no other crate of the workspace. A completion queue is a detector:
//! the host of the detection server (vigie's scheduler, a dedicated thread inside a tokio program, or the
//! simulator) decides whether to poll it or to sleep on it.
//!
//! # Errors
//! The [`Display`](std::fmt::Display) text of every error says what happened and, if you can do something about it,
//! what. A `main` that returns a `Result` prints [`Debug`](std::fmt::Debug) instead, such as
//! `Error: Refused { why: WrongSecret }`: print the error yourself, `eprintln!("{error}")`, and return an
//! [`ExitCode`](std::process::ExitCode).
//!
//! # Non-goals
//!
//! - It never imports `vigie-runtime`: its futures run on any executor.
//! - It is not an MPI library: no datatypes, no MPI ABI, no collectives.
//! - It does not manage clusters: `mpiexec` and `srun` already start programs on many machines.
//! - Memory safety does not depend on peers on the same host, and where the launcher hands out keys, no rank can pass for another one;
//!   beyond that, the ranks of a world trust each other.

#![deny(unsafe_code)]
// Without some of the parts, part of what they share has no user.
#![cfg_attr(
    not(all(
        feature = "datagram",
        feature = "message",
        feature = "shm",
        feature = "software-nic"
    )),
    allow(dead_code, unused_imports)
)]

#[doc(hidden)]
pub mod auth;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "datagram")]
pub mod datagram;
#[cfg(feature = "ether")]
pub mod ether;
#[cfg(feature = "link")]
pub mod link;
#[doc(hidden)]
pub mod local_socket;
#[cfg(all(feature = "shm", loom))]
#[doc(hidden)]
pub mod loom_exports;
#[cfg(any(feature = "link", feature = "vi", vigie_verbs))]
pub mod memory;
#[cfg(feature = "message")]
pub mod message;
#[cfg(any(feature = "vi", vigie_verbs))]
mod nic;
#[cfg(feature = "message")]
pub mod protocol;
#[cfg(feature = "shm")]
pub mod shm;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(any(feature = "vi", vigie_verbs))]
mod slots;
#[cfg(feature = "software-nic")]
pub mod software_nic;
mod spinning;
mod sync;
#[cfg(feature = "udp")]
pub mod udp;
// No feature, since `--all-features` must build without system libraries: `docs/design/verbs.md`.
#[cfg(vigie_verbs)]
pub mod verbs;
#[cfg(any(feature = "vi", vigie_verbs))]
pub mod vi;
#[cfg(feature = "world")]
pub mod world;

pub use auth::Secret;
#[cfg(any(feature = "vi", vigie_verbs))]
pub use nic::{ConnectError, Nic};
