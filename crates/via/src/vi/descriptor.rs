//! Descriptors, which ask a NIC to do something, and completions, which report the result.

use std::{fmt, io::IoSlice};

use super::{MemoryHandle, RemoteKey, ViId};

/// The operation of a send descriptor.
///
/// # Source
/// [via-lam, §2]: the two facilities of VIA, send/receive and RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Data for the receive descriptor at the head of the peer's receive queue.
    Send,
    /// Data for a place in the peer's memory. Without immediate data the peer is not notified and none of its
    /// receive descriptors is consumed; with it, one is.
    RdmaWrite,
    /// Data from a place in the peer's memory.
    RdmaRead,
}

/// A piece of this NIC's registered memory: an entry of a descriptor's data segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "consumers must be able to write one")]
pub struct LocalSegment {
    /// The registered memory.
    pub memory: MemoryHandle,
    /// The beginning of the piece, in bytes from the beginning of that memory.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// A place in the peer's registered memory: a descriptor's address segment.
///
/// *Deviation:* a byte offset from the beginning of the region instead of a virtual address. It is
/// equivalent, but does not reveal the peer's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "consumers must be able to write one")]
pub struct RemoteSegment {
    /// The key by which the peer names its memory.
    pub key: RemoteKey,
    /// The beginning of the place, in bytes from the beginning of that memory.
    pub offset: u64,
}

/// A descriptor's data: where the bytes are.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "providers must handle every case")]
pub enum Data<'a> {
    /// Pieces of registered memory, in order. They belong to the NIC until the completion.
    Segments(&'a [LocalSegment]),
    /// Bytes from any memory, which are copied when the descriptor is posted; at most
    /// [`NicAttributes::inline_bytes_max`](super::NicAttributes::inline_bytes_max) in all. Not for reads.
    Inline(&'a [IoSlice<'a>]),
}

/// A descriptor for the send queue: control, address and data segments.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "consumers must be able to write one")]
pub struct SendDescriptor<'a> {
    /// Control: what to do.
    pub operation: Operation,
    /// Control: returned by the completion.
    pub cookie: u64,
    /// Control: the immediate data of a send or an RDMA write.
    pub immediate: Option<i32>,
    /// Control: whether a completion is wanted. Errors are always reported.
    pub is_signaled: bool,
    /// Address: for RDMA operations only.
    pub remote: Option<RemoteSegment>,
    /// Data: the source of a send or write, the destination of a read.
    pub data: Data<'a>,
}

/// A descriptor for the receive queue.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "consumers must be able to write one")]
pub struct ReceiveDescriptor<'a> {
    /// Returned by the completion.
    pub cookie: u64,
    /// The destination of a send's data, in order. May be empty for RDMA writes with immediate data.
    pub segments: &'a [LocalSegment],
}

/// The queue of a VI that a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a VI has two")]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// The outcome of a descriptor: VIA's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// As requested.
    Done,
    /// The descriptor is malformed, such as an RDMA operation without an address segment.
    FormatError,
    /// Local memory: an unknown handle, another protection tag, outside its bounds.
    ProtectionError,
    /// The data does not fit: longer than the receive descriptor, or than the VI's largest transfer.
    LengthError,
    /// The peer's memory: an unknown or revoked key, another protection tag, outside its bounds, or a missing
    /// right.
    RdmaProtectionError,
    /// The peer had no receive descriptor for the data.
    RemoteDescriptorError,
    /// The connection broke; whether the data arrived is unknown.
    TransportError,
    /// The VI was disconnected or broke before this descriptor's turn.
    Flushed,
}

impl Status {
    /// Returns whether the descriptor succeeded.
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

/// The end of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// The VI on which it was posted.
    pub vi: ViId,
    /// The queue it was posted to.
    pub queue: Queue,
    /// The descriptor's cookie.
    pub cookie: u64,
    /// The outcome of the descriptor.
    pub status: Status,
    /// The bytes transferred; for a write with immediate data, those that the peer wrote.
    pub length: u64,
    /// The peer's immediate data, on the receive queue.
    pub immediate: Option<i32>,
}

impl Completion {
    /// Returns a completion with nothing transferred, for providers to fill in.
    #[must_use]
    pub const fn new(vi: ViId, queue: Queue, cookie: u64, status: Status) -> Self {
        Self { vi, queue, cookie, status, length: 0, immediate: None }
    }
}
