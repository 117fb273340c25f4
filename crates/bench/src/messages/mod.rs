//! Messages between processes of one host: the cost of vigie's, compared with limits and peers.
//!
//! | measure | two pinned processes, or more ranks than cores | figure |
//! | --- | --- | --- |
//! | [`Measure::Latency`] | a message goes there and back | time one way |
//! | [`Measure::Window`] | 64 messages, then one byte back | messages and bytes per second |
//! | [`Measure::Requests`] | the same by requests, all begun before the first is waited for | the same |
//! | [`Measure::Unexpected`] | 256 messages that have all arrived, received from the last to the first | time of a message |
//! | [`Measure::Backlog`] | 100 000 messages, 10 000 if they are longer, that have all arrived, received from the first to the last | time of a message |
//! | [`Measure::Any`] | as latency, received from any source | time one way |
//! | [`Measure::Synchronous`] | as latency, but each send completes at its match | time one way |
//! | [`Measure::Loaned`] | as latency, in a buffer of the system's own, without copies | time one way |
//! | [`Measure::Waiting`] | as latency, to a peer that has been idle for 2 ms | time one way |
//! | [`Measure::BusyReceiver`] | a message to a rank that has posted its receive and computes for 2 ms | time from then on until it is answered |
//! | [`Measure::BusySender`] | the same from a rank that computes once it has begun its send | the same |
//! | [`Measure::Quiet`] | nothing comes | processor time of the waiter |
//! | [`Measure::Ring`] | a token goes around 4 to 32 ranks on two cores | time and processor time per hop |
//! | [`Measure::AllToAll`] | each of as many ranks sends to each other one | time and processor time per round |
//! | [`Measure::ManyToOne`] | all others send to rank 0, which answers | the same |
//! | [`Measure::LateRound`] | all to all, where rank 0 comes 2 ms late | the same |
//!
//! A `Carrier` is a system that carries messages: a limit written here, vigie, or a peer.
//! `carriers` lists them. Systems with ranks in processes of this program implement [`PingPong`]:
//! the same few roles that the stopwatch, the command and `benches/pingpong.rs` use.
//!
//! # Adding a system
//! Implement [`PingPong`] (a rank that already has blocking `send` and `receive` gets it from
//! `Blocking`), give an [`Carrier`] its name and how it opens a rank, and name it in [`own_carriers`].

mod blocking;
mod carrier;
pub(crate) mod datagram;
mod judge;
mod keys;
mod limit;
mod list;
mod measure;
mod measure_result;
pub(crate) mod message_layer;
pub mod partner;
pub(crate) mod plan;
mod plot;
mod program;
pub(crate) mod rank_context;
pub(crate) mod ranks;
pub(crate) mod remote;
pub(crate) mod role;
mod socket;
mod stopwatch;
mod tables;
pub(crate) mod virtual_interface;

use self::blocking::{Channel, blocking};
pub(crate) use self::carrier::UnknownCarrier;
pub use self::carrier::{CarrierKind, PingPong};
use self::carrier::{Prepared, Run, VIGIE, VIGIE_VI};
pub(crate) use self::judge::fourth;
use self::list::own;
pub use self::list::own_carriers;
pub(crate) use self::list::{carriers, named};
pub use self::measure::Measure;
use self::measure_result::MeasureResult;
pub use self::rank_context::RankContext;
pub use self::ranks::Carrier;
