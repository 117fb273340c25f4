//! Forwarding: moving packets and messages from one link to another, on the host or on the network
//! interface, whichever a model says is faster.
//!
//! **Nothing is implemented yet.** The crate has no items; this page says what it will hold, so
//! that the crates beside it can be shaped with it in mind.
//!
//! # What it will hold
//!
//! ```text
//!   model (T_net, T_pci, T_algoH, T_algoN, packet and message size)
//!     |
//!   planner:  host or interface?  store-and-forward or cut-through?
//!     |
//!   pipeline:  receive --> stage --> stage --> send      bounded buffers, back-pressure
//!     |
//!   path:  XDP program (interface) | frames in user space (host) | TCP and Unix relay | via
//! ```
//!
//! - **The model** of [fast-forward, §2.2], with the paper's symbols: forwarding time by the host,
//!   by the interface with store-and-forward, by the interface with cut-through; and the
//!   threshold δ* up to which an algorithm that is slower on the interface is still better placed
//!   there [fast-forward, §2.3]. It predicts; measurements stand beside it.
//! - **Pipelines** of stages. A stage declares whether it needs the whole message, its header or
//!   nothing, and cut-through is chosen only where every stage allows it [fast-forward, §5].
//! - **Data paths** on Linux: an eBPF program at the driver stands for the paper's network
//!   processor; `AF_XDP` and `AF_PACKET` frames in user space, where any Rust stage can run, stand
//!   for its host; streams are relayed with splice or io_uring.
//! - **Forwarding over `via`**: messages through an intermediate node, in the provider or through
//!   its host, which is the paper's experiment [fast-forward, §3.2].
//!
//! # Its place
//!
//! `forward` depends on `vigie-detect` and on `vigie-via`, which owns every raw frame and datagram.
//! Rings and sockets are detectors; the detection server decides how they are watched.
//!
//! # What it deliberately does not do
//!
//! - It never imports `vigie-runtime`: its futures run on any executor.
//! - It is no router: no routing protocols, no address resolution, no control plane. Routes are
//!   what its user puts into the table.
//! - It never falls back in silence: a plan says which path it took, and what a better path
//!   lacked (a capability, a driver).
//! - It chooses no path by guess: without parameters, measured or given, there is no plan.

#![forbid(unsafe_code)]
