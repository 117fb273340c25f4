//! Requests and messages, as the engine keeps them.

use std::{collections::VecDeque, fmt};

use super::{
    KeptBytes, RequestError,
    matching::{Label, NodeId, Pattern},
    to_u64,
};
use crate::vi::{Memory, Registered, RemoteKey};

/// A send or a receive that has begun. One engine never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

/// The condition under which a send is done: MPI's four modes.
///
/// # Source
/// [via-lam, §4.3].
///
/// It is four bytes long: one byte would be read back as four where it is passed on, and that read waits for
/// the stores before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "the standard has four")]
#[repr(u32)]
pub enum SendMode {
    /// Done when the bytes may be changed again.
    #[default]
    Standard,
    /// Done at once: a message that cannot be sent is copied to the engine's bounded buffer.
    Buffered,
    /// Done when a receive has matched the message.
    Synchronous,
    /// As standard. The caller believes that a receive is posted; if it is not, that is counted.
    Ready,
}

/// The state of a send after a call: done, or pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a pending send must be polled"]
#[expect(clippy::exhaustive_enums, reason = "there is nothing between done and not done")]
pub enum SendState {
    /// It is done.
    Done,
    /// Poll it with [`MessageEngine::poll_send`](super::MessageEngine::poll_send).
    Pending(RequestId),
}

/// The envelope of a received message.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The sender's rank.
    pub source: u32,
    /// The message's tag.
    pub tag: u32,
    /// The length of the whole message, in bytes.
    pub length: u64,
    /// One if the receiver had no room for all of it, otherwise zero. It is a whole word: a value with
    /// padding behind a byte is moved in overlapping pieces, each of which waits for the stores before it.
    truncated: u64,
}

impl Status {
    #[inline]
    pub(super) const fn new(label: Label, length: u64, is_truncated: bool) -> Self {
        Self { source: label.source, tag: label.tag, length, truncated: is_truncated as u64 }
    }

    /// Returns whether the receiver had no room for all of the message; the rest was discarded.
    #[must_use]
    pub const fn is_truncated(&self) -> bool {
        self.truncated != 0
    }

    pub(crate) const fn truncated(self) -> Self {
        Self { truncated: 1, ..self }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Status")
            .field("source", &self.source)
            .field("tag", &self.tag)
            .field("length", &self.length)
            .field("is_truncated", &self.is_truncated())
            .finish()
    }
}

/// The result of an attempt to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request that was not cancelled must still be polled"]
#[expect(clippy::exhaustive_enums, reason = "callers must handle every case")]
pub enum CancelState {
    /// The request is gone, and no receive will see its message.
    Cancelled,
    /// The peer was asked: poll the request, which ends in [`RequestError::Cancelled`] or as if you had not
    /// asked.
    Asked,
    /// It is too late: poll the request as before.
    TooLate,
}

/// The requests of a set that may have made progress.
#[derive(Debug, Default)]
pub(super) struct ReadyList {
    pub(super) keys: VecDeque<u64>,
}

/// The record that a request keeps of its set.
#[derive(Clone, Copy, Debug)]
pub(super) struct SetMember {
    /// Zero if it is in none.
    pub(super) set: u64,
    /// It is on the set's list, which therefore has each request once.
    pub(super) is_listed: bool,
}

impl SetMember {
    pub(super) const NONE: Self = Self { set: 0, is_listed: false };
}

#[derive(Debug)]
pub(super) enum RequestEntry {
    /// Elsewhere, so that entries of receives, which are more, are short.
    Send(Box<SendRequest>),
    Receive(ReceiveRequest),
    /// No request of its own: the waiter of several.
    Set(ReadyList),
}

impl RequestEntry {
    /// Returns the destination of a send whose bytes are not all on their way.
    pub(super) fn leaves_for(&self) -> Option<u32> {
        match self {
            Self::Send(send) if send.result.is_none() && send.stage != SendPhase::Sent => {
                Some(send.peer)
            }
            _ => None,
        }
    }
}

/// The place of a send's bytes.
#[derive(Debug)]
pub(super) enum SendBody {
    /// With the owner, who passes them again when it polls.
    Borrowed,
    Owned(Vec<u8>),
    Kept(KeptBytes),
    Memory {
        memory: Memory,
        offset: u64,
        /// The key by which the receiver may read the memory.
        key: Option<RemoteKey>,
        /// Keeps it registered.
        _registered: Option<Registered>,
    },
}

/// The progress of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendPhase {
    /// Its first frame has not been sent.
    Queued,
    /// Some of its data has not been sent.
    Open { stream: u32 },
    /// It was abandoned; the receiver must be told.
    Aborted { stream: u32 },
    /// All its data was sent, or taken by the receiver.
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
    /// The bytes that may be sent.
    pub(super) limit: u64,
    pub(super) body: SendBody,
    pub(super) stage: SendPhase,
    /// A receive has matched it.
    pub(super) is_matched: bool,
    /// It ends only when a receive has matched it.
    pub(super) needs_match: bool,
    /// It ends only when the receiver has read the region.
    pub(super) needs_finish: bool,
    /// The receiver was asked to let it be taken back.
    pub(super) awaits_answer: bool,
    /// Its owner does not poll it.
    pub(super) is_detached: bool,
    /// It counts among the announced messages that its peer has not matched.
    pub(super) is_announced: bool,
    /// Its peer has asked for its bytes, before a receive matched it.
    pub(super) is_invited: bool,
    /// Its owner was or will be told that it is done, although its bytes wait here for their receive.
    pub(super) is_settled: bool,
    /// It is in its peer's list of sends whose data the engine sends.
    pub(super) is_pumped: bool,
    /// The bytes that it occupies in the buffer for buffered sends.
    pub(super) buffered: u64,
    /// That buffer is its context's own.
    pub(super) has_own_buffer: bool,
    pub(super) member: SetMember,
    pub(super) result: Option<Result<(), RequestError>>,
}

impl SendRequest {
    /// Returns how many of its bytes may be sent, given whether its peer has paused this side.
    pub(super) const fn allowed(&self, is_paused: bool) -> u64 {
        if is_paused && !self.is_matched && !self.is_invited { self.sent } else { self.limit }
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
    /// The bytes of a message that its owner takes.
    pub(super) limit: u64,
    /// Its owner polls it when it becomes ready.
    pub(super) is_attended: bool,
    /// It has no owner any more: its message is discarded.
    pub(super) is_forgotten: bool,
    pub(super) member: SetMember,
}

impl ReceiveRequest {
    pub(super) const fn new(pattern: Pattern, state: ReceiveState) -> Self {
        Self {
            pattern,
            state,
            limit: u64::MAX,
            is_attended: true,
            is_forgotten: false,
            member: SetMember::NONE,
        }
    }
}

/// Bytes of a message that were moved out of the area.
#[derive(Debug)]
pub(super) struct MessagePart {
    pub(super) bytes: Vec<u8>,
    pub(super) start: usize,
    /// The number of bytes behind these that were discarded: their receive does not take them.
    pub(super) beyond: usize,
}

impl MessagePart {
    pub(super) const fn new(bytes: Vec<u8>, start: usize) -> Self {
        Self { bytes, start, beyond: 0 }
    }

    /// Returns how many bytes of the message this stands for.
    pub(super) const fn len(&self) -> usize {
        self.bytes.len() - self.start + self.beyond
    }

    /// Discards the bytes from the first `room` on.
    pub(super) fn clip(&mut self, room: usize) {
        let kept = room.min(self.bytes.len() - self.start);
        self.beyond += self.bytes.len() - self.start - kept;
        self.bytes.truncate(self.start + kept);
    }
}

/// The parts of a message on the heap, in order. Most have one: it needs no list.
#[derive(Debug, Default)]
pub(super) struct MessageParts {
    first: Option<MessagePart>,
    others: VecDeque<MessagePart>,
}

impl MessageParts {
    pub(super) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn push(&mut self, part: MessagePart) {
        if self.first.is_none() {
            self.first = Some(part);
        } else {
            self.others.push_back(part);
        }
    }

    /// Returns the part behind which bytes that arrive belong, with room for `room` bytes if it is new.
    pub(super) fn part_to_fill(&mut self, room: usize) -> &mut MessagePart {
        let last = self.others.back().or(self.first.as_ref());
        if last.is_none_or(|part| part.beyond > 0) {
            self.push(MessagePart::new(Vec::with_capacity(room), 0));
        }
        let Self { first, others } = self;
        others
            .back_mut()
            .unwrap_or_else(|| first.get_or_insert_with(|| MessagePart::new(Vec::new(), 0)))
    }

    /// Takes all parts.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = MessagePart> + '_ {
        self.first.take().into_iter().chain(self.others.drain(..))
    }
}

/// How a message counts among those of its peer that no receive has matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum UnmatchedKind {
    /// Not at all: a receive has matched it.
    #[default]
    Uncounted,
    /// As one of which the sender has the bytes.
    Announced,
    /// As one that is kept here, with its bytes.
    Kept,
}

/// A message that has begun to arrive and is not yet wholly with its receiver.
#[derive(Debug)]
pub(super) struct IncomingMessage {
    pub(super) label: Label,
    pub(super) flags: u8,
    /// The sender's request.
    pub(super) sender: u64,
    pub(super) total: u64,
    pub(super) arrived: u64,
    /// The bytes passed to the receiver or discarded.
    pub(super) consumed: u64,
    /// The bytes that the sender may send.
    pub(super) granted: u64,
    pub(super) is_truncated: bool,
    pub(super) parts: MessageParts,
    /// In the list of messages that no receive matched.
    pub(super) node: Option<NodeId>,
    pub(super) request: Option<u64>,
    /// The sender's stream, if it comes in several frames.
    pub(super) stream: u32,
    /// No receive wants it any more: data that arrives is discarded.
    pub(super) is_discarded: bool,
    /// The sender has taken it back: it gets no further grants.
    pub(super) is_cancelled: bool,
    /// The bytes that it counts for among its peer's unexpected messages.
    pub(super) parked: u64,
    pub(super) counts_as: UnmatchedKind,
    /// Its bytes come when they are granted.
    pub(super) is_announced: bool,
    /// The sender's memory, from which it may be read.
    pub(super) remote: Option<(RemoteKey, u64)>,
    pub(super) error: Option<RequestError>,
}

impl IncomingMessage {
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
            parts: MessageParts::default(),
            node: None,
            request: None,
            stream: 0,
            is_discarded: false,
            is_cancelled: false,
            parked: 0,
            counts_as: UnmatchedKind::Uncounted,
            is_announced: false,
            remote: None,
            error: None,
        }
    }

    pub(super) fn park(&mut self, part: MessagePart) {
        let length = to_u64(part.len());
        self.arrived += length;
        if length > 0 {
            self.parts.push(part);
        }
    }

    pub(super) const fn status(&self) -> Status {
        Status::new(self.label, self.total, self.is_truncated)
    }

    pub(super) const fn has_all_arrived(&self) -> bool {
        self.arrived == self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is printed of a status has the names of its methods. Method: one of each kind.
    #[test]
    fn status_is_printed_by_its_public_names() {
        let status = Status::new(Label { context: 0, source: 3, tag: 7 }, 5, false);
        let text = "Status { source: 3, tag: 7, length: 5, is_truncated: ";
        assert_eq!(format!("{status:?}"), format!("{text}false }}"));
        assert_eq!(format!("{:?}", status.truncated()), format!("{text}true }}"));
    }
}
