//! Messages without a copy: written where the receiver reads them.

use std::{fmt, io, sync::Arc, task::Poll};

use super::{
    Communicator, MessageError, SendRequest, SourceFilter, TagFilter,
    endpoint_engine::EndpointInner, request::WaitPhase,
};
use crate::{
    protocol::{Committed, Loan, Payload, SendError, SendMode, SendState, Status, View},
    vi::{Memory, OutOfBounds, Provider},
};

/// A message that you write in place, in the receiver's own area where possible: see [`Communicator::loan`].
/// Dropping it sends nothing.
///
/// Other processes may write that area at any time, so there is no slice of it: you copy bytes in, with
/// [`write_at`](Self::write_at) or as [`io::Write`].
#[must_use = "a loan sends nothing when it is dropped"]
pub struct LoanedMessage<P: Provider> {
    inner: Arc<EndpointInner<P>>,
    /// `None` only once it is sent.
    loan: Option<Loan>,
    /// The position at which [`io::Write`] continues.
    position: u64,
}

impl<P: Provider> LoanedMessage<P> {
    /// Returns the message's length, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.loan.as_ref().map_or(0, Loan::len)
    }

    /// Returns whether the message is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the receiver reads the message where you write it; otherwise it is copied once.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.loan.as_ref().is_some_and(Loan::is_in_place)
    }

    /// Writes a part of the message.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.loan.as_ref().map_or(Ok(()), |loan| loan.write(offset, bytes))
    }
}

impl<P: Provider> io::Write for LoanedMessage<P> {
    /// Writes behind the bytes written last; writes nothing at the end.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = usize::try_from(self.len() - self.position).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        self.write_at(self.position, bytes).map_err(io::Error::other)?;
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<P: Provider> Drop for LoanedMessage<P> {
    fn drop(&mut self) {
        if let Some(loan) = self.loan.take() {
            self.inner.drop_with(|engine| engine.give_back(loan));
        }
    }
}

impl<P: Provider> fmt::Debug for LoanedMessage<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoanedMessage").field("loan", &self.loan).finish_non_exhaustive()
    }
}

/// A message that you read where its sender wrote it, if it could stay there: see
/// [`Communicator::recv_view`]. Until it is dropped, it occupies space that its sender needs.
pub struct MessageView<P: Provider> {
    inner: Arc<EndpointInner<P>>,
    status: Status,
    /// `None` if the message is in `bytes`.
    view: Option<View>,
    bytes: Vec<u8>,
}

impl<P: Provider> MessageView<P> {
    /// Returns the message's sender, tag and length.
    #[must_use]
    pub const fn status(&self) -> Status {
        self.status
    }

    /// Returns whether you read the message where it was written.
    #[must_use]
    pub const fn is_in_place(&self) -> bool {
        self.view.is_some()
    }

    /// Reads a part of the message. Its sender can still change a message that is in place: read once what
    /// you check.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        if let Some(view) = &self.view {
            return view.read(offset, bytes);
        }
        let piece = usize::try_from(offset)
            .ok()
            .and_then(|start| self.bytes.get(start..start.checked_add(bytes.len())?));
        let Some(piece) = piece else {
            let (length, size) = (bytes.len() as u64, self.bytes.len() as u64);
            return Err(OutOfBounds { offset, length, size });
        };
        bytes.copy_from_slice(piece);
        Ok(())
    }
}

impl<P: Provider> Drop for MessageView<P> {
    fn drop(&mut self) {
        if let Some(view) = self.view.take() {
            self.inner.drop_with(|engine| engine.release(view));
        }
    }
}

impl<P: Provider> fmt::Debug for MessageView<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageView")
            .field("status", &self.status)
            .field("view", &self.view)
            .finish_non_exhaustive()
    }
}

impl<P: Provider> Communicator<P> {
    /// Lends you memory in which to write a message of `length` bytes for rank `dest`: in the peer's area if the
    /// message takes at most half of it and there is room, otherwise in a [buffer](Self::buffer) from which
    /// the peer copies it once.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn loan(&self, dest: u32, length: u32) -> Result<LoanedMessage<P>, MessageError> {
        let loan = self.inner.with(|engine| engine.loan(dest, length))?;
        Ok(LoanedMessage { inner: Arc::clone(&self.inner), loan: Some(loan), position: 0 })
    }

    /// Returns memory of at least `length` bytes whose messages the receiver takes in one copy where both
    /// sides can: see [`start_send_memory`](Self::start_send_memory). It returns to the endpoint's pool when
    /// its last clone is dropped. Its content is zero or left from earlier messages.
    ///
    /// # Errors
    /// [`SendError::OutOfMemory`].
    pub fn buffer(&self, length: usize) -> Result<Memory, MessageError> {
        let buffer = self.inner.with(|engine| engine.buffer(length));
        Ok(buffer.map_err(|_| SendError::OutOfMemory)?)
    }

    /// Begins to send a piece of memory, which you must not change before the request ends. Long pieces are
    /// registered and stay so for the next send, until nothing else holds the memory; the receiver takes the
    /// message in one copy where it can. With shared memory it can if the memory is a [buffer](Self::buffer).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn start_send_memory(
        &self,
        dest: u32,
        tag: u32,
        mode: SendMode,
        (memory, offset, length): (&Memory, u64, u64),
    ) -> Result<SendRequest<P>, MessageError> {
        let memory = memory.clone();
        self.start(dest, tag, mode, Payload::Memory { memory, offset, length })
    }

    /// Sends a message that was written in place, in standard mode.
    ///
    /// # Cancel safety
    /// Once the future has been polled, the message is sent even if the future is dropped.
    ///
    /// # Errors
    /// [`MessageError`].
    pub async fn send_loaned(
        &self,
        mut buffer: LoanedMessage<P>,
        tag: u32,
    ) -> Result<(), MessageError> {
        let Some(mut loan) = buffer.loan.take() else { return Ok(()) };
        let inner = &*self.inner;
        let committed = inner.with(|engine| engine.commit(loan, self.context(), tag))?;
        let id = match committed {
            Committed::Done => return Ok(()),
            Committed::Pending(id) => id,
            Committed::Busy(given_back) => {
                // Other sends wait for room before it: copy it, and let it wait its turn.
                loan = given_back;
                let (rank, bytes) = (loan.rank(), loan.to_vec().unwrap_or_default());
                let sent = inner.with(|engine| {
                    engine.give_back(loan);
                    let payload = Payload::Owned(bytes);
                    engine.send(rank, self.context(), tag, SendMode::Standard, payload)
                })?;
                match sent {
                    SendState::Done => return Ok(()),
                    SendState::Pending(id) => id,
                }
            }
        };
        self.send_rest(id, None).await
    }

    /// Receives a message and leaves it in place, if it arrived in one frame and did not have to be moved.
    ///
    /// # Cancel safety
    /// As [`recv`](Self::recv).
    ///
    /// # Errors
    /// [`MessageError`].
    pub async fn recv_view(
        &self,
        source: impl Into<SourceFilter>,
        tag: impl Into<TagFilter>,
    ) -> Result<MessageView<P>, MessageError> {
        let (source, tag) = (source.into(), tag.into());
        let pattern = self.pattern(source, tag);
        let inner = &*self.inner;
        let owner = || Arc::clone(&self.inner);
        let mut wait = inner.waiter.wait();
        let polled = wait.try_first(|| {
            let found = inner.with(|engine| match engine.try_recv_view(pattern) {
                Some(found) => Some(Some(found)),
                None => engine.has_unexpected(pattern).then_some(None),
            });
            found.into()
        });
        let mut bytes = Vec::new();
        let status = match polled {
            Poll::Ready(Some(Some((status, view)))) => {
                return Ok(MessageView { inner: owner(), status, view: Some(view), bytes });
            }
            Poll::Ready(Some(None)) => self.recv_into(source, tag, &mut bytes).await?,
            polled => {
                let phase = WaitPhase::after(&polled);
                self.recv_later(pattern, &mut bytes, (wait, phase)).await?
            }
        };
        Ok(MessageView { inner: owner(), status, view: None, bytes })
    }
}
