//! Descriptors: what a consumer asks its NIC to do, and completions: what became of it.

use std::{fmt, io::IoSlice};

use super::{MemoryHandle, RemoteKey, ViId};

/// What a send descriptor asks for.
///
/// # Source
/// [via-lam, §2]: the two facilities of VIA, send/receive and RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Data for the receive descriptor at the head of the peer's receive queue.
    Send,
    /// Data to a place in the peer's memory. Without immediate data the peer is told nothing, and no
    /// receive descriptor of its is consumed; with it, one is.
    RdmaWrite,
    /// Data from a place in the peer's memory.
    RdmaRead,
}

/// A piece of registered memory of this NIC: an entry of a descriptor's data segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "consumers must be able to write one")]
pub struct LocalSegment {
    /// The registered memory.
    pub memory: MemoryHandle,
    /// Where the piece begins, in bytes from the beginning of that memory.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// A place in the peer's registered memory: a descriptor's address segment.
///
/// *Deviation:* a byte offset from the beginning of the region instead of a virtual address, which says
/// the same without telling peers where things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "consumers must be able to write one")]
pub struct RemoteSegment {
    /// The key that the peer gave out for its memory.
    pub key: RemoteKey,
    /// Where the place begins, in bytes from the beginning of that memory.
    pub offset: u64,
}

/// A descriptor's data: where the bytes are.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "providers must handle every case")]
pub enum Data<'a> {
    /// Pieces of registered memory, in order. They belong to the NIC until the completion.
    Segments(&'a [LocalSegment]),
    /// Bytes that are taken while the descriptor is posted, from any memory; at most
    /// [`Attributes::max_inline`](super::Attributes::max_inline) in all. Not for reads.
    Inline(&'a [IoSlice<'a>]),
}

/// A descriptor for the send queue: control, address and data segments.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "consumers must be able to write one")]
pub struct SendDescriptor<'a> {
    /// Control: what to do.
    pub operation: Operation,
    /// Control: given back by the completion.
    pub cookie: u64,
    /// Control: the immediate data of a send or an RDMA write.
    pub immediate: Option<i32>,
    /// Control: whether a completion is wanted. An error is always told.
    pub is_signaled: bool,
    /// Address: of RDMA operations, and only of those.
    pub remote: Option<RemoteSegment>,
    /// Data: the source of a send or write, the destination of a read.
    pub data: Data<'a>,
}

/// A descriptor for the receive queue.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "consumers must be able to write one")]
pub struct ReceiveDescriptor<'a> {
    /// Given back by the completion.
    pub cookie: u64,
    /// Where the data of a send goes, in order. May be empty for RDMA writes with immediate data.
    pub segments: &'a [LocalSegment],
}

/// Which queue of a VI a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a VI has two")]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// How a descriptor ended: VIA's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// As asked.
    Done,
    /// The descriptor makes no sense: an RDMA operation without an address segment, say.
    FormatError,
    /// Local memory: an unknown handle, another protection tag, outside its bounds.
    ProtectionError,
    /// The data does not fit: longer than the receive descriptor, or than the VI's largest transfer.
    LengthError,
    /// The peer's memory: an unknown or revoked key, another protection tag, outside its bounds, or no
    /// right to do that.
    RdmaProtectionError,
    /// The peer had no receive descriptor for it.
    RemoteDescriptorError,
    /// The connection broke; whether the data arrived is unknown.
    TransportError,
    /// The VI was disconnected or broke before this descriptor's turn.
    Flushed,
}

impl Status {
    /// Returns whether all went well.
    #[must_use]
    pub const fn is_done(self) -> bool {
        matches!(self, Self::Done)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::FormatError => "the descriptor makes no sense",
            Self::ProtectionError => "local memory is not registered for this, or too short",
            Self::LengthError => "the data does not fit",
            Self::RdmaProtectionError => {
                "the peer's memory is not registered for this, or too short"
            }
            Self::RemoteDescriptorError => "the peer had no receive descriptor posted",
            Self::TransportError => "the connection broke",
            Self::Flushed => "the connection ended before its turn",
        })
    }
}

/// A descriptor that is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// The VI on which it was posted.
    pub vi: ViId,
    /// In which of its queues.
    pub queue: Queue,
    /// The descriptor's cookie.
    pub cookie: u64,
    /// How it ended.
    pub status: Status,
    /// The bytes transferred; of a write with immediate data, those that the peer wrote.
    pub length: u64,
    /// The peer's immediate data, in the receive queue.
    pub immediate: Option<i32>,
}

impl Completion {
    /// Returns a completion with nothing transferred, for providers to fill in.
    #[must_use]
    pub const fn new(vi: ViId, queue: Queue, cookie: u64, status: Status) -> Self {
        Self { vi, queue, cookie, status, length: 0, immediate: None }
    }
}
