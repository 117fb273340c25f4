//! Virtual Interfaces and messages: communication in which the kernel stays out of the data path.
//!
//! **Nothing is implemented yet.** The crate has no items; this page says what it will hold, so
//! that the crates beside it can be shaped with it in mind.
//!
//! # What it will hold
//!
//! Four layers, each usable by itself:
//!
//! ```text
//!   world      ranks, and how processes find each other: environment, rendezvous, PMI-1
//!     |
//!   messages   a protocol machine without I/O: tags, wildcards, modes, flow control, rendezvous
//!     |
//!   VIs        queue pairs, completion queues, registered memory; one provider trait behind them
//!     |
//!   link, datagram    raw Ethernet frames of an interface; numbered ports with multicast
//! ```
//!
//! - **`link`** sends and receives raw frames, over `AF_PACKET` or `AF_XDP` rings behind one type.
//! - **`datagram`** is the library on which the barriers of the paper stand [eth-barrier, §2.1]:
//!   numbered ports, unicast and multicast, over UDP or over a link.
//! - **VIs** follow the Virtual Interface Architecture [via-lam, §2]: send and receive queues of
//!   descriptors, doorbells, one completion queue for many queues, memory that is registered once
//!   and then read and written by the device. Providers are shared memory, a software network
//!   interface over UDP or raw Ethernet, RDMA verbs (optional), and a simulator.
//! - **Messages** follow the protocol of [via-lam, §4.1]: an RDMA write with immediate data into
//!   an area at the receiver, whose free space and free descriptors the sender knows without
//!   asking [via-lam, §4.2]. Above a size found by measurement a message will go by rendezvous
//!   instead, without the copy that makes the paper's protocol slower than TCP from 16 KiB on
//!   [via-lam, §5].
//! - **World** starts the ranks of a program on one host or on many.
//!
//! # Its place
//!
//! `via` depends on `vigie-detect` and on no other crate of the workspace. A completion queue is a
//! detector: whoever hosts the detection server (vigie's scheduler, a thread of its own inside a
//! tokio program, or the simulator) decides whether to poll it or to sleep on it. `vigie-barrier`
//! and `vigie-forward` build on `link` and `datagram`, so that everything that touches a network
//! interface stands once, here.
//!
//! # What it deliberately does not do
//!
//! - It never imports `vigie-runtime`: its futures run on any executor.
//! - It is no MPI library: no datatypes, no MPI ABI, no collectives (`vigie-barrier` has the only
//!   one).
//! - It manages no cluster: `mpiexec` and `srun` start programs on many machines well enough.
//! - It encrypts nothing and authenticates nobody. Peers on one host are mistrusted as far as
//!   memory safety goes; the network is as trusted as its users make it.

#![deny(unsafe_code)]

pub mod conformance;
pub mod shm;
pub mod sim;
pub mod vi;
