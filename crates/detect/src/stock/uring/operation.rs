//! Requests to the io_uring detector, and its events.

use std::{collections::VecDeque, io, os::fd::OwnedFd};

use super::kernel::ProvidedBuffer;
use crate::sync::Arc;

/// A request: what the kernel shall do with a descriptor.
///
/// The descriptor is shared with the request, so that its number cannot go to another file while the
/// kernel is still to use it. It may be in blocking or non-blocking mode.
///
/// # Cancel safety
/// A request that is dropped in flight is cancelled, but what it has done stays done: a dropped write
/// may have written any part of its buffer; a dropped receive loses what was received and not taken.
#[derive(Debug)]
#[must_use = "an operation does nothing before it is waited for"]
pub struct Operation {
    /// Gone while the detector has it.
    pub(super) action: Option<Action>,
    /// What a cancelled stream leaves, to be dropped with the request, outside the handle's lock.
    pub(super) leftover: VecDeque<ProvidedBuffer>,
}

impl Operation {
    /// Receives into provided buffers, so that no memory is bound while nothing comes in. As a
    /// [stream](crate::Handle::stream) it is one multishot request for all that comes, and ends when
    /// the peer has closed; [waited](crate::Handle::wait) for, it is one
    /// [`Received`](Completion::Received), or [`End`](Completion::End).
    pub const fn receive(socket: Arc<OwnedFd>) -> Self {
        Self::new(Action { fd: socket, kind: Kind::Receive { multishot: false } })
    }

    /// Receives once from a socket, into the spare capacity of `buffer`.
    pub const fn recv(socket: Arc<OwnedFd>, buffer: Vec<u8>) -> Self {
        Self::owned(socket, Verb::Recv, buffer, None, Extent::Part)
    }

    /// Reads once, at `offset` or the file's own position, into the spare capacity of `buffer`.
    pub const fn read(fd: Arc<OwnedFd>, buffer: Vec<u8>, offset: Option<u64>) -> Self {
        Self::owned(fd, Verb::Read, buffer, offset, Extent::Part)
    }

    /// Sends what the socket takes of `buffer` at once, at least one byte of it.
    pub const fn send(socket: Arc<OwnedFd>, buffer: Vec<u8>) -> Self {
        Self::owned(socket, Verb::Send, buffer, None, Extent::Part)
    }

    /// Sends all of `buffer`, with as many requests to the kernel as it takes.
    pub const fn send_all(socket: Arc<OwnedFd>, buffer: Vec<u8>) -> Self {
        Self::owned(socket, Verb::Send, buffer, None, Extent::Whole)
    }

    /// Writes what `fd` takes of `buffer`, at `offset` or the file's own position.
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
        Self::new(Action { fd, kind: Kind::Move(Move { verb, buffer, offset, count: 0, extent }) })
    }

    const fn new(action: Action) -> Self {
        Self { action: Some(action), leftover: VecDeque::new() }
    }
}

/// What became of an [`Operation`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Completion {
    /// Of [`Operation::receive`]: bytes came in.
    Received(ProvidedBuffer),
    /// Of [`Operation::receive`], waited for: the peer has closed. A stream just ends.
    End,
    /// Of all others: the buffer is back.
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

/// A buffer that came back, and how it went.
#[derive(Debug)]
#[non_exhaustive]
pub struct Transfer {
    /// The buffer of the request; what was read stands at its end.
    pub buffer: Vec<u8>,
    /// How many bytes were moved, also if an error ended it.
    pub count: usize,
    /// What ended it early.
    pub error: Option<io::Error>,
}

impl Transfer {
    /// Returns the result and the buffer, apart.
    ///
    /// # Errors
    /// The result is what ended the transfer early; [`count`](Self::count) bytes were moved before.
    pub fn into_parts(self) -> (io::Result<usize>, Vec<u8>) {
        let Self { buffer, count, error } = self;
        (error.map_or(Ok(count), Err), buffer)
    }
}

/// What the kernel gets: it owns all memory that an entry names, apart from provided buffers.
#[derive(Debug)]
pub(super) struct Action {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Receive { multishot: bool },
    Move(Move),
}

/// Bytes between a descriptor and a buffer of the request's own.
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

/// How much of a buffer a request is for.
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
            Kind::Receive { .. } => 0,
            Kind::Move(moved) => moved.buffer.capacity(),
        }
    }
}

impl Move {
    /// Returns whether bytes are left that the request was for.
    pub(super) const fn is_unfinished(&self) -> bool {
        matches!(self.extent, Extent::Whole) && self.count < self.buffer.len()
    }

    pub(super) fn into_completion(self, error: Option<io::Error>) -> Completion {
        Completion::Transferred(Transfer { buffer: self.buffer, count: self.count, error })
    }
}
