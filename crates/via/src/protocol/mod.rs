//! The message engine: what a Virtual Interface lacks to carry tagged messages, without any waiting.
//!
//! The protocol is that of [via-lam, §4]: a message is written by RDMA into an area at the receiver and
//! announced by immediate data; the sender knows the free space and the free descriptors without asking;
//! what nobody asked for yet waits in a list. An [`Engine`] owns one NIC, a VI to every other rank and one
//! completion queue. It does nothing by itself: callers post sends and receives, let it
//! [`progress`](Engine::progress) and poll their requests; time is an argument. How the caller waits is not
//! its business.
//!
//! # From small to large
//!
//! | message | how it goes |
//! | --- | --- |
//! | fits into a frame | one frame: an [`Envelope`] and the bytes |
//! | longer | a first frame, then frames of data, so that both sides copy at the same time; the receiver grants more as it takes what came |
//! | of registered memory | only its key; the receiver reads it, where it can, in one copy; what stays registered, and [buffers](Engine::buffer) for it, are kept by a [cache](crate::vi::RegistrationCache) |
//!
//! # What is bounded
//! The area, the descriptors and the ring of control entries are, by credits. Messages that nobody receives
//! are moved to the heap, so that they block no others, and beyond
//! [`Config::unexpected_bytes_max`] their sender is told to pause.
//!
//! # Order
//! Messages of one sender in one context that fit the same receive are received in the order in which they
//! were sent, whatever their mode and length; of several receives that fit, the one posted first gets the
//! message.

mod area;
mod config;
mod credits;
mod engine;
mod envelope;
mod failure;
mod greeting;
mod incoming;
mod link;
mod loan;
mod matching;
#[cfg(test)]
mod pair;
mod payload;
mod peer;
mod receive;
mod reliable;
mod rendezvous;
mod request;
mod send;
mod slots;
mod waiting;

pub use area::{AREA_BYTES_MAX, AreaReader, AreaWriter, Found, Hold, Place, UNIT};
pub use config::{Config, EngineError, RequestError, SendError};
pub use engine::{Counters, Engine, EngineEvent};
pub use envelope::{
    CONTROL_BYTES, Control, ENVELOPE_BYTES, Envelope, FrameKind, OPENING_BYTES, Opening,
};
pub use loan::{Committed, Loan, View};
pub use matching::{Label, Pattern};
pub(crate) use payload::put_all;
pub use payload::{Layout, Nowhere, Payload, Scattered, Sink};
pub use reliable::ReliableCounters;
pub use request::{CancelState, Mode, RequestId, SendState, Status};
pub(crate) use waiting::Begun;

/// A count of bytes in memory, as lengths on the wire are.
#[inline]
const fn wide(count: usize) -> u64 {
    count as u64
}

/// A length that is known to fit into memory, since it was cut to what does.
#[inline]
fn narrow(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}
