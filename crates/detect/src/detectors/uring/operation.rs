//! Requests to the io_uring detector, and its events.

use std::{collections::VecDeque, io, os::fd::OwnedFd};

use super::kernel::ProvidedBuffer;
use crate::sync::Arc;

/// A request: an operation for the kernel on a descriptor.
///
/// The request shares the descriptor, so that its number cannot be reused for another file before
/// the kernel is done with it. It may be in blocking or non-blocking mode.
///
/// # Cancel safety
/// A request dropped in flight is cancelled, but what it has done stays done: a dropped write may
/// have written any part of its buffer; a dropped receive loses the bytes that were received and not
/// taken.
#[derive(Debug)]
#[must_use = "an operation does nothing before it is waited for"]
pub struct Operation {
    /// `None` while the detector has it.
    pub(super) action: Option<Action>,
    /// The remains of a cancelled stream, to be dropped with the request, outside the handle's
    /// lock.
    pub(super) leftover: VecDeque<ProvidedBuffer>,
}

impl Operation {
    /// Receives into provided buffers, so that no memory is tied up while nothing arrives. As a
    /// [stream](crate::Handle::stream) it is one multishot request for everything that arrives, and
    /// ends when the peer has closed; as a [wait](crate::Handle::wait) it is one
    /// [`Received`](Completion::Received), or [`End`](Completion::End).
    pub const fn recv_provided(socket: Arc<OwnedFd>) -> Self {
        Self::new(Action { fd: socket, kind: OperationKind::Receive { multishot: false } })
    }

    /// Receives once from a socket, into the spare capacity of `buffer`.
    pub const fn recv(socket: Arc<OwnedFd>, buffer: Vec<u8>) -> Self {
        Self::owned(socket, Verb::Recv, buffer, None, Extent::Part)
    }

    /// Reads once, at `offset` or the file's own position, into the spare capacity of `buffer`.
    pub const fn read(fd: Arc<OwnedFd>, buffer: Vec<u8>, offset: Option<u64>) -> Self {
        Self::owned(fd, Verb::Read, buffer, offset, Extent::Part)
    }

    /// Sends as much of `buffer` as the socket takes at once, at least one byte.
    pub const fn send(socket: Arc<OwnedFd>, buffer: Vec<u8>) -> Self {
        Self::owned(socket, Verb::Send, buffer, None, Extent::Part)
    }

    /// Sends all of `buffer`, with as many requests to the kernel as it takes.
    pub const fn send_all(socket: Arc<OwnedFd>, buffer: Vec<u8>) -> Self {
        Self::owned(socket, Verb::Send, buffer, None, Extent::Whole)
    }

    /// Writes as much of `buffer` as `fd` takes, at `offset` or the file's own position.
    pub const fn write(fd: Arc<OwnedFd>, buffer: Vec<u8>, offset: Option<u64>) -> Self {
        Self::owned(fd, Verb::Write, buffer, offset, Extent::Part)
    }

    /// Writes all of `buffer`, with as many requests to the kernel as it takes.
    pub const fn write_all(fd: Arc<OwnedFd>, buffer: Vec<u8>, offset: Option<u64>) -> Self {
        Self::owned(fd, Verb::Write, buffer, offset, Extent::Whole)
    }

    const fn owned(
        fd: Arc<OwnedFd>,
        verb: Verb,
        buffer: Vec<u8>,
        offset: Option<u64>,
        extent: Extent,
    ) -> Self {
        Self::new(Action {
            fd,
            kind: OperationKind::Move(Move { verb, buffer, offset, count: 0, extent }),
        })
    }

    const fn new(action: Action) -> Self {
        Self { action: Some(action), leftover: VecDeque::new() }
    }
}

/// The result of an [`Operation`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Completion {
    /// Of [`Operation::recv_provided`]: bytes arrived.
    Received(ProvidedBuffer),
    /// Of [`Operation::recv_provided`] as a wait: the peer has closed. A stream just ends.
    End,
    /// Of all others: the buffer is returned.
    Transferred(Transfer),
}

impl Completion {
    /// Returns the bytes of a [`Received`](Self::Received).
    #[must_use]
    pub fn into_received(self) -> Option<ProvidedBuffer> {
        if let Self::Received(buffer) = self { Some(buffer) } else { None }
    }

    /// Returns the buffer and count of a [`Transferred`](Self::Transferred).
    #[must_use]
    pub fn into_transfer(self) -> Option<Transfer> {
        if let Self::Transferred(transfer) = self { Some(transfer) } else { None }
    }
}

/// A returned buffer, and the result of its transfer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Transfer {
    /// The buffer of the request; bytes that were read are at its end.
    pub buffer: Vec<u8>,
    /// The number of bytes moved, even if an error ended the transfer.
    pub count: usize,
    /// The error that ended it early.
    pub error: Option<io::Error>,
}

impl Transfer {
    /// Returns the result and the buffer separately.
    ///
    /// # Errors
    /// The error that ended the transfer early; [`count`](Self::count) bytes were moved before.
    pub fn into_parts(self) -> (io::Result<usize>, Vec<u8>) {
        let Self { buffer, count, error } = self;
        (error.map_or(Ok(count), Err), buffer)
    }
}

/// The kernel's part of a request: it owns all memory that an entry names, apart from provided
/// buffers.
#[derive(Debug)]
pub(super) struct Action {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) kind: OperationKind,
}

#[derive(Debug)]
pub(super) enum OperationKind {
    Receive { multishot: bool },
    Move(Move),
}

/// A transfer between a descriptor and the request's own buffer.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) verb: Verb,
    pub(super) buffer: Vec<u8>,
    pub(super) offset: Option<u64>,
    /// Bytes moved so far.
    pub(super) count: usize,
    pub(super) extent: Extent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Recv,
    Write,
    Send,
}

/// The extent of a buffer that a request covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Part,
    Whole,
}

impl Verb {
    pub(super) const fn is_reading(self) -> bool {
        matches!(self, Self::Read | Self::Recv)
    }
}

impl Action {
    pub(super) const fn owned_bytes(&self) -> usize {
        match &self.kind {
            OperationKind::Receive { .. } => 0,
            OperationKind::Move(moved) => moved.buffer.capacity(),
        }
    }
}

impl Move {
    /// Returns whether bytes of the request are still to be moved.
    pub(super) const fn is_unfinished(&self) -> bool {
        matches!(self.extent, Extent::Whole) && self.count < self.buffer.len()
    }

    pub(super) fn into_completion(self, error: Option<io::Error>) -> Completion {
        Completion::Transferred(Transfer { buffer: self.buffer, count: self.count, error })
    }
}
