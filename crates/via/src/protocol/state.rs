//! The engine with all that it keeps; what it does is in the files above.

use std::collections::{BTreeMap, VecDeque};

use vigie_detect::Instant;

use super::{
    EngineConfig,
    link::Staging,
    matching::PostedReceives,
    peer::Peer,
    request::{IncomingMessage, RequestEntry, RequestId},
    unexpected::UnexpectedMessages,
};
use crate::{
    slots::Slots,
    vi::{
        CqId, DisconnectReason, MemoryAttributes, NicAttributes, ProtectionTag, Provider,
        RegistrationCache,
    },
};

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineEvent {
    /// A peer wants to connect: [`MessageEngine::accept`] it, or reject it at the NIC.
    Requested {
        /// Names the request.
        request: crate::vi::RequestId,
        /// The rank that it claims to be, if its greeting is one of this protocol.
        rank: Option<u32>,
        /// The discriminator that was listened for.
        discriminator: Vec<u8>,
    },
    /// A rank is connected: you can send to it.
    Connected {
        /// The rank.
        rank: u32,
    },
    /// No connection to a rank could be made: try again, or give it up.
    Refused {
        /// The rank.
        rank: u32,
        /// The reason.
        reason: DisconnectReason,
    },
    /// A rank has failed; everything that waited for it has ended with an error.
    Failed {
        /// The rank.
        rank: u32,
        /// The reason.
        reason: DisconnectReason,
    },
}

/// Counters of an engine's work so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageCounters {
    /// Messages that were sent.
    pub messages_sent: u64,
    /// Messages whose first frame arrived.
    pub messages_received: u64,
    /// Of these, those that found no posted receive.
    pub unexpected: u64,
    /// Of the unexpected ones, those in ready mode.
    pub ready_unexpected: u64,
    /// Frames that found no credit when they were due.
    pub blocked: u64,
    /// The number of times that a peer was told to pause.
    pub pauses: u64,
    /// Messages that were read from the sender's memory in one copy.
    pub remote_reads: u64,
}

/// The message engine of one rank.
///
/// # Source
/// [via-lam, §4].
#[derive(Debug)]
pub struct MessageEngine<P: Provider> {
    pub(super) nic: P,
    pub(super) cq: CqId,
    /// The tag of memory that belongs to no peer: no VI has it.
    pub(super) pool_tag: ProtectionTag,
    pub(super) rank: u32,
    pub(crate) config: EngineConfig,
    pub(super) attributes: NicAttributes,
    pub(super) peers: Vec<Peer>,
    pub(super) staging: Staging,
    pub(super) registrations: RegistrationCache,
    pub(super) requests: Slots<RequestEntry>,
    pub(super) messages: Slots<IncomingMessage>,
    pub(super) posted: PostedReceives,
    pub(super) unexpected: UnexpectedMessages,
    /// Requests that became ready while their owners were not polling.
    pub(super) ready: Vec<RequestId>,
    /// Receives without an owner whose message has come.
    pub(super) forgotten: Vec<u64>,
    /// Peers for which something waits to be sent.
    pub(super) listed: Vec<u32>,
    /// Peers that may be owed credits.
    pub(super) touched: Vec<u32>,
    pub(super) now: Instant,
    pub(super) buffered_bytes: u64,
    /// The buffers of contexts that have one of their own.
    pub(super) buffers: BTreeMap<u16, SendBuffer>,
    /// The bytes of sends that are done for their owners and wait here for their receives.
    pub(super) held_bytes: u64,
    /// Matched messages that arrive only when their receive is polled, and since when they have waited for that.
    pub(super) unattended: Vec<UnattendedMessage>,
    pub(super) counters: MessageCounters,
    /// The ranks that have failed, in this order.
    pub(super) failures: Vec<u32>,
    /// How many of `failures`, from the first on, each context has been told.
    pub(super) told: BTreeMap<u16, usize>,
    /// Counts completions and frames, so that a waiter sees that work goes on.
    pub(super) worked: u64,
    pub(super) events: VecDeque<EngineEvent>,
    /// The discriminator that the requests of ranks that connect on demand name.
    pub(super) discriminator: Option<Vec<u8>>,
    /// The ranks that are called again after a pause.
    pub(super) pausing: Vec<u32>,
    /// The number of events when they last kept the engine awake.
    pub(super) events_reported: usize,
    /// VIs that are broken, while data that had arrived over them may still have to be taken.
    pub(super) broken: Vec<BrokenPeer>,
}

/// A connection that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct BrokenPeer {
    pub(super) rank: u32,
    pub(super) reason: DisconnectReason,
    /// The value of [`MessageEngine::worked`] by which everything that had arrived has certainly been taken.
    pub(super) until: u64,
}

pub(super) fn region_attributes(tag: ProtectionTag, allows_write: bool) -> MemoryAttributes {
    MemoryAttributes { allows_write, ..MemoryAttributes::private(tag) }
}

/// The buffer of one context.
#[derive(Debug)]
pub(super) struct SendBuffer {
    pub(super) bytes_max: u64,
    pub(super) used: u64,
    /// The name by which its waiter is woken.
    pub(super) name: u64,
}

/// A matched message that arrives only when its receive is polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnattendedMessage {
    pub(super) message: u64,
    /// Since when its owner has neither polled it nor received from its sender. `None`: the clock was not read yet.
    pub(super) since: Option<Instant>,
    /// Since when its owner has not polled it.
    pub(super) found: Option<Instant>,
    /// The value of [`Peer::taken`](super::peer::Peer) of its sender at `since`.
    pub(super) taken: u64,
}

impl UnattendedMessage {
    pub(super) const fn new(message: u64) -> Self {
        Self { message, since: None, found: None, taken: 0 }
    }
}
