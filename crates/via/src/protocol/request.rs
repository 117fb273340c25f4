//! Requests and messages, as the engine keeps them.

use std::collections::VecDeque;

use super::{
    RequestError,
    matching::{Label, NodeId, Pattern},
    wide,
};
use crate::vi::{Memory, Registered, RemoteKey};

/// A send or a receive that has begun. Never used twice by one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

/// How a send ends: MPI's four modes.
///
/// # Source
/// [via-lam, §4.3].
///
/// Four bytes: one would be read back as four where it is passed on, and wait for the stores before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "the standard has four")]
#[repr(u32)]
pub enum Mode {
    /// Done when the bytes may be changed again.
    #[default]
    Standard,
    /// Done at once: what cannot leave is copied to the engine's bounded buffer.
    Buffered,
    /// Done when a receive has matched the message.
    Synchronous,
    /// As standard. The caller believes that a receive is posted; if none is, that is counted.
    Ready,
}

/// Whether a send needs more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a pending send is to be polled"]
#[expect(clippy::exhaustive_enums, reason = "there is nothing between done and not done")]
pub enum SendState {
    /// It is done.
    Done,
    /// [`Engine::poll_send`](super::Engine::poll_send) says when.
    Pending(RequestId),
}

/// What a receive got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The sender's rank.
    pub source: u32,
    /// The message's tag.
    pub tag: u32,
    /// The length of the whole message, in bytes.
    pub length: u64,
    /// One if the receiver had no room for all of it, otherwise zero. A word: a value with a hole behind a
    /// byte is moved in pieces that overlap, each of which waits for the stores before it.
    truncated: u64,
}

impl Status {
    #[inline]
    pub(super) const fn new(label: Label, length: u64, is_truncated: bool) -> Self {
        Self { source: label.source, tag: label.tag, length, truncated: is_truncated as u64 }
    }

    /// Returns whether the receiver had no room for all of the message; the rest was thrown away.
    #[must_use]
    pub const fn is_truncated(&self) -> bool {
        self.truncated != 0
    }

    pub(crate) const fn truncated(self) -> Self {
        Self { truncated: 1, ..self }
    }
}

/// What became of a wish to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request that was not cancelled is still to be polled"]
#[expect(clippy::exhaustive_enums, reason = "callers must handle every case")]
pub enum CancelState {
    /// The request is gone, and its message will never be seen.
    Cancelled,
    /// The peer was asked: poll the request, which ends in [`RequestError::Cancelled`] or as if nothing had
    /// been asked.
    Asked,
    /// Too late: poll the request as before.
    TooLate,
}

#[derive(Debug)]
pub(super) enum Request {
    Send(SendRequest),
    Receive(ReceiveRequest),
}

/// Where a send's bytes are.
#[derive(Debug)]
pub(super) enum Body {
    /// With the owner, who hands them over when it polls.
    Borrowed,
    Owned(Vec<u8>),
    Memory {
        memory: Memory,
        offset: u64,
        /// By which the receiver may read it.
        key: Option<RemoteKey>,
        /// Keeps it registered.
        _registered: Option<Registered>,
    },
}

/// How far a send is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its first frame has not left.
    Queued,
    /// Some of its data has not left.
    Open { stream: u32 },
    /// It was given up; the receiver is to be told.
    Aborted { stream: u32 },
    /// All its data has left, or is taken by the receiver.
    Sent,
}

#[derive(Debug)]
pub(super) struct SendRequest {
    pub(super) peer: u32,
    pub(super) context: u16,
    pub(super) tag: u32,
    pub(super) flags: u8,
    pub(super) total: u64,
    pub(super) sent: u64,
    /// So much may be sent.
    pub(super) limit: u64,
    pub(super) body: Body,
    pub(super) stage: Stage,
    /// A receive has matched it.
    pub(super) is_matched: bool,
    /// It ends only when a receive has matched it.
    pub(super) needs_match: bool,
    /// It ends only when the receiver has read the region.
    pub(super) needs_finish: bool,
    /// The receiver was asked whether it can be taken back.
    pub(super) awaits_answer: bool,
    /// Nobody polls it.
    pub(super) is_detached: bool,
    /// The bytes it takes of the buffer for buffered sends.
    pub(super) buffered: u64,
    pub(super) result: Option<Result<(), RequestError>>,
}

impl SendRequest {
    /// Returns how far it may be sent, given whether its peer has paused this side.
    pub(super) const fn allowed(&self, is_paused: bool) -> u64 {
        if is_paused && !self.is_matched { self.sent } else { self.limit }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ReceiveState {
    Posted { node: NodeId },
    Matched { message: u64 },
    Failed(RequestError),
}

#[derive(Debug)]
pub(super) struct ReceiveRequest {
    pub(super) pattern: Pattern,
    pub(super) state: ReceiveState,
}

/// Bytes of a message that were taken off the area.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) bytes: Vec<u8>,
    pub(super) start: usize,
}

/// A message that has begun to arrive and is not wholly with its receiver.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) label: Label,
    pub(super) flags: u8,
    /// The sender's request.
    pub(super) sender: u64,
    pub(super) total: u64,
    pub(super) arrived: u64,
    /// Handed to the receiver, or thrown away.
    pub(super) consumed: u64,
    /// So much the sender may send.
    pub(super) granted: u64,
    pub(super) is_truncated: bool,
    pub(super) parts: VecDeque<Part>,
    /// In the list of messages that no receive matched.
    pub(super) node: Option<NodeId>,
    pub(super) request: Option<u64>,
    /// The sender's stream, if it comes in several frames.
    pub(super) stream: u32,
    /// Nobody wants it any more: what arrives is thrown away.
    pub(super) is_discarded: bool,
    /// The sender has taken it back: it gets no more grants.
    pub(super) is_cancelled: bool,
    /// What it counts for among its peer's unexpected messages, in bytes.
    pub(super) parked: u64,
    /// The sender's memory, from which it may be read.
    pub(super) remote: Option<(RemoteKey, u64)>,
    pub(super) error: Option<RequestError>,
}

impl Message {
    pub(super) fn new(label: Label, flags: u8, sender: u64, total: u64) -> Self {
        Self {
            label,
            flags,
            sender,
            total,
            arrived: 0,
            consumed: 0,
            granted: total,
            is_truncated: false,
            parts: VecDeque::new(),
            node: None,
            request: None,
            stream: 0,
            is_discarded: false,
            is_cancelled: false,
            parked: 0,
            remote: None,
            error: None,
        }
    }

    pub(super) fn park(&mut self, part: Part) {
        let length = wide(part.bytes.len() - part.start);
        self.arrived += length;
        if length > 0 {
            self.parts.push_back(part);
        }
    }

    pub(super) const fn status(&self) -> Status {
        Status::new(self.label, self.total, self.is_truncated)
    }

    pub(super) const fn has_all_arrived(&self) -> bool {
        self.arrived == self.total
    }
}
