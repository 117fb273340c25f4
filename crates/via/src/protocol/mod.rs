//! The message engine: what a Virtual Interface lacks to carry tagged messages, without any waiting.
//!
//! The protocol is that of [via-lam, §4]: a message is written by RDMA into an area at the receiver and announced
//! by immediate data; the sender knows the free space and the free descriptors without asking; messages that no
//! receive has asked for yet wait in a list. A [`MessageEngine`] owns one NIC, a VI to every other rank and one
//! completion queue. It does nothing on its own: callers post sends and receives, call
//! [`progress`](MessageEngine::progress) and poll their requests; time is an argument. It does not care how the
//! caller waits.
//!
//! # Message sizes
//!
//! | message | how it is sent |
//! | --- | --- |
//! | fits into a frame | one frame: an [`Envelope`] and the bytes |
//! | longer | a first frame, then data frames, so that both sides copy at the same time; the receiver grants more as it takes the data |
//! | while the peer has paused this side | a first frame without bytes; then as a longer one, when the peer asks for it: when a receive matches it, or when what the peer keeps has been received |
//! | in registered memory | only its key; the receiver reads it in one copy where it can; a [cache](crate::vi::RegistrationCache) keeps registrations and [buffers](MessageEngine::buffer) |
//!
//! # Bounds
//! Credits bound the area, the descriptors and the ring of control entries. Messages without a receive are
//! moved to the heap, so that they block no others; beyond [`EngineConfig::unexpected_bytes_max`] or
//! [`EngineConfig::unexpected_messages_max`] their sender is told to pause: it announces its messages, and sends the bytes of each when it
//! is asked for them. Announcements are
//! bounded by [`EngineConfig::announced_messages_max`], and a send beyond fails.
//!
//! # Progress
//! Every call moves what can move [MPI 5.0, section 3.5]. A receive that is posted takes its message to the heap if its
//! owner does not poll it, after a millisecond, so that the send ends; only bytes that are
//! [borrowed](Payload::Borrowed) move no faster than their send is polled.
//!
//! # Order
//! Messages of one sender in one context that fit the same receive are received in the order in which they
//! were sent, whatever their mode and length; of several receives that fit, the one posted first gets the
//! message.

mod announcements;
mod area;
mod buffered;
mod cancel;
mod config;
mod connecting;
mod credits;
mod engine;
mod envelope;
mod failure;
mod greeting;
mod headed;
mod incoming;
mod link;
mod loan;
mod loopback;
mod matching;
mod payload;
mod peer;
mod receive;
mod reliable;
mod rendezvous;
mod request;
mod send;
mod set;
mod state;
mod unexpected;
mod unmatched;
mod view;
mod waiting;

pub use config::{EngineConfig, EngineError, RequestError, SendError};
/// For the tests of this workspace, which send what an engine would not.
#[doc(hidden)]
pub use envelope::{Control, Envelope, FrameKind, Opening};
pub use loan::{Committed, Loan};
pub use matching::{Label, Pattern};
pub(crate) use payload::put_all;
pub use payload::{Discard, KeptBytes, Layout, Payload, Scattered, Sink};
pub use reliable::ErrorControlCounters;
pub use request::{CancelState, RequestId, SendMode, SendState, Status};
pub use state::{EngineEvent, MessageCounters, MessageEngine};
pub use view::View;
pub(crate) use waiting::Begun;

/// Converts a byte count to the type of lengths on the wire.
#[inline]
const fn to_u64(count: usize) -> u64 {
    count as u64
}

/// Converts a length that is known to fit into memory, since it was cut to what does.
#[inline]
fn to_usize(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
