//! Descriptors that were posted, and how far each has got.

use super::table::RegionTable;
use crate::vi::{
    LocalSegment, Memory, Operation, OutOfBounds, ProtectionTag, ReceiveDescriptor, RemoteKey,
    RemoteSegment, Status,
};

/// A send descriptor that waits for its turn or for the peer.
#[derive(Debug)]
pub(super) struct PostedSend {
    pub(super) operation: Operation,
    pub(super) cookie: u64,
    pub(super) immediate: Option<i32>,
    pub(super) is_signaled: bool,
    pub(super) remote: Option<RemoteSegment>,
    pub(super) data: OwnedData,
    pub(super) total: u64,
    /// The number of bytes that were copied.
    pub(super) done: u64,
    pub(super) method: TransferMethod,
    /// The status with which it will fail once those before it are done.
    pub(super) failure: Option<Status>,
}

impl PostedSend {
    /// Returns how many of its bytes were copied.
    pub(super) const fn copied(&self) -> u64 {
        self.done
    }

    /// Returns whether the peer may have seen something of it.
    pub(super) const fn is_under_way(&self) -> bool {
        self.done > 0 || matches!(self.method, TransferMethod::Requested)
    }
}

/// A descriptor's data, kept for later.
#[derive(Debug)]
pub(super) enum OwnedData {
    Segments(Segments),
    Inline(Box<[u8]>),
}

impl OwnedData {
    /// Copies `length` bytes, starting at `from`, to wherever `copy_memory` and `copy_bytes` put them.
    pub(super) fn gather(
        &self,
        table: &RegionTable,
        tag: ProtectionTag,
        (from, length): (u64, u64),
        copy_memory: impl FnMut(&Memory, u64, u64, usize) -> Result<(), OutOfBounds>,
        copy_bytes: impl FnOnce(&[u8]) -> Result<(), OutOfBounds>,
    ) -> Result<(), Status> {
        match self {
            Self::Segments(segments) => {
                table.pieces(tag, segments.as_slice(), from, length, copy_memory)
            }
            Self::Inline(bytes) => {
                let range = usize::try_from(from).ok().zip(usize::try_from(from + length).ok());
                let piece = range.and_then(|(from, to)| bytes.get(from..to));
                copy_bytes(piece.ok_or(Status::LengthError)?).map_err(|_| Status::ProtectionError)
            }
        }
    }
}

/// Data segments. The usual single segment needs no allocation.
#[derive(Debug)]
pub(super) enum Segments {
    One([LocalSegment; 1]),
    Other(Box<[LocalSegment]>),
}

impl Segments {
    #[inline]
    pub(super) fn of(segments: &[LocalSegment]) -> Self {
        match segments {
            [one] => Self::One([*one]),
            other => Self::Other(other.into()),
        }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[LocalSegment] {
        match self {
            Self::One(one) => one,
            Self::Other(other) => other,
        }
    }
}

/// The method of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferMethod {
    /// Not chosen yet.
    Undecided,
    Inline,
    Direct,
    Staged,
    /// The peer was asked for the data.
    Requested,
}

/// A send descriptor that is done once the peer has consumed this many entries.
#[derive(Debug)]
pub(super) struct UnackedSend {
    pub(super) until: u64,
    pub(super) cookie: u64,
    pub(super) is_signaled: bool,
    pub(super) length: u64,
}

/// A receive descriptor.
#[derive(Debug)]
pub(super) struct PostedReceive {
    pub(super) cookie: u64,
    pub(super) segments: Segments,
}

impl PostedReceive {
    #[inline]
    pub(super) fn of(descriptor: &ReceiveDescriptor<'_>) -> Self {
        Self { cookie: descriptor.cookie, segments: Segments::of(descriptor.segments) }
    }
}

/// A message that has arrived in part.
#[derive(Debug)]
pub(super) struct PartialReceive {
    pub(super) cookie: u64,
    pub(super) segments: Segments,
    pub(super) total: u64,
    pub(super) filled: u64,
}

/// A read of this side's memory that the peer waits for.
#[derive(Debug)]
pub(super) struct ReadResponse {
    pub(super) key: RemoteKey,
    pub(super) offset: u64,
    pub(super) total: u64,
    pub(super) done: u64,
}
