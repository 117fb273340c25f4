//! Messages between processes of one host: what vigie's cost, beside limits and peers.
//!
//! | measure | two pinned processes, except for rings | figure |
//! | --- | --- | --- |
//! | [`Measure::Latency`] | a message goes there and back | time one way |
//! | [`Measure::Window`] | 64 messages, then one byte back | messages and bytes per second |
//! | [`Measure::Synchronous`] | as latency, but each send completes at its match | time one way |
//! | [`Measure::Loaned`] | as latency, in a buffer of the system's own, which nobody copies | time one way |
//! | [`Measure::Waiting`] | as latency, to a peer that has been idle for [`REST`](plan::REST) | time one way |
//! | [`Measure::Quiet`] | nothing comes | processor time of who waits |
//! | [`Measure::Ring`] | a token goes around 4 to 32 ranks on two cores | time and processor time per hop |
//!
//! A [`Carrier`] is a system that carries messages: a limit written here, vigie, or a peer.
//! [`carriers`] lists them. What has ranks in processes of this program implements [`PingPong`]:
//! the same few roles that the stopwatch, the command and `benches/pingpong.rs` use.
//!
//! # Adding a system
//! Implement [`PingPong`] (a rank that already has blocking `send` and `receive` gets it from
//! [`Blocking`]), give an [`Own`] its name and how it opens a rank, and name it in [`own_carriers`].

mod blocking;
mod carrier;
pub mod datagram;
pub(crate) mod found;
mod keys;
mod limit;
mod list;
mod measure;
pub(crate) mod message_layer;
mod names;
pub mod partner;
pub mod plan;
mod played;
pub mod plot;
pub(crate) mod program;
pub(crate) mod ranks;
pub mod remote;
pub(crate) mod role;
pub(crate) mod seat;
mod socket;
mod stopwatch;
mod tables;
pub(crate) mod virtual_interface;

pub use self::blocking::{Blocking, Channel};
pub use self::carrier::{Carrier, Kind, PingPong, Prepared, Run, UnknownCarrier, VIGIE, VIGIE_VI};
pub use self::list::{carriers, own_carriers};
pub use self::measure::Measure;
pub use self::names::{carrier, named, own};
pub use self::played::Played;
pub use self::ranks::Own;
pub use self::seat::Seat;
pub use crate::host::missing::Missing;
