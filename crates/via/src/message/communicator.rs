//! Sending and receiving in one context.

use std::{fmt, io::IoSlice, sync::Arc, task::Poll};

use vigie_detect::{Probe, SharedWait};

use super::{
    Message, MessageError, MessageErrorKind, RequestSet,
    endpoint_engine::{EndpointInner, EndpointOutput, EndpointRequest},
    lease::ContextLease,
    request::{Matched, ReceiveRequest, RequestGuard, SendRequest, UntilReady, WaitPhase},
};
use crate::{
    protocol::{
        Begun, KeptBytes, MessageEngine, Pattern, Payload, RequestId, SendError, SendMode,
        SendState, Sink, Status,
    },
    vi::{Provider, Region},
    world::Rank,
};

/// Polls under one lock, without a pause in between: taking the lock costs as much as a poll.
const POLLS_PER_LOCK: u32 = 8;

/// The rank a message may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "one or any")]
pub enum SourceFilter {
    /// Any rank: `MPI_ANY_SOURCE`.
    Any,
    /// This rank.
    Rank(u32),
}

impl From<u32> for SourceFilter {
    fn from(rank: u32) -> Self {
        Self::Rank(rank)
    }
}

impl From<Rank> for SourceFilter {
    fn from(rank: Rank) -> Self {
        Self::Rank(rank.0)
    }
}

/// The tag a message may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "one or any")]
pub enum TagFilter {
    /// Any tag: `MPI_ANY_TAG`.
    Any,
    /// This tag.
    Is(u32),
}

impl From<u32> for TagFilter {
    fn from(tag: u32) -> Self {
        Self::Is(tag)
    }
}

/// Sends and receives in one context: a message never matches a receive of another communicator. Clones share
/// the context.
pub struct Communicator<P: Provider> {
    pub(super) inner: Arc<EndpointInner<P>>,
    context: u16,
    rank: u32,
    size: u32,
    /// If its context comes back.
    lease: Option<Arc<ContextLease<P>>>,
}

impl<P: Provider> Communicator<P> {
    pub(super) fn new(inner: Arc<EndpointInner<P>>, context: u16) -> Self {
        let (rank, size) = inner.with(|engine| (engine.rank(), engine.size()));
        Self { inner, context, rank, size, lease: None }
    }

    pub(super) fn in_context(&self, context: u16, lease: Option<Arc<ContextLease<P>>>) -> Self {
        let inner = Arc::clone(&self.inner);
        Self { inner, context, rank: self.rank, size: self.size, lease }
    }

    /// Returns this process's rank, from 0.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Makes another communicator of the same ranks, whose messages are separate from this one's. All ranks
    /// must make theirs in the same order, or messages get lost: the ranks exchange nothing for it. Its context does not come
    /// back: use [`duplicate_together`](Self::duplicate_together) where communicators come and go.
    ///
    /// # Errors
    /// [`MessageErrorKind::NoContext`].
    pub fn duplicate(&self) -> Result<Self, MessageError> {
        let context = self.inner.contexts.next().ok_or(MessageErrorKind::NoContext)?;
        Ok(self.in_context(context, None))
    }

    /// Returns the ranks that have failed, in the order in which the failures were found, without the first `known` of
    /// them. It is for callers that poll for messages, and so have no receive to tell them: no later receive or probe of this
    /// communicator fails because of these ranks, unless it names one of them, or no other rank is left.
    #[must_use]
    pub fn failures(&self, known: usize) -> Vec<u32> {
        self.inner.with(|engine| engine.tell_failures(self.context, known))
    }

    pub(super) const fn context(&self) -> u16 {
        self.context
    }

    pub(super) fn pattern(&self, source: SourceFilter, tag: TagFilter) -> Pattern {
        Pattern {
            context: self.context,
            source: match source {
                SourceFilter::Any => None,
                SourceFilter::Rank(rank) => Some(rank),
            },
            tag: match tag {
                TagFilter::Any => None,
                TagFilter::Is(tag) => Some(tag),
            },
        }
    }

    // ------------------------------------------------------------------ sends

    #[inline]
    fn begin(
        &self,
        dest: u32,
        tag: u32,
        mode: SendMode,
        payload: Payload<'_>,
    ) -> Result<SendState, SendError> {
        self.inner.with(|engine| {
            let sent = engine.send(dest, self.context, tag, mode, payload);
            self.serve_own(engine, dest);
            sent
        })
    }

    /// Sends a message. It is done when you may change `bytes` again. Up to
    /// [`window_bytes`](crate::protocol::EngineConfig::window_bytes), 128 KiB by default, this does not wait for the receiver. A longer send
    /// waits until the other rank receives: two ranks that both send such a message before they receive wait for ever.
    ///
    /// # Cancel safety
    /// A short message is sent whole or not at all. A long one whose future is dropped half way is abandoned,
    /// and its receiver is told.
    ///
    /// # Errors
    /// [`MessageError`].
    #[inline]
    pub async fn send(&self, dest: u32, tag: u32, bytes: &[u8]) -> Result<(), MessageError> {
        match self.begin_bytes(dest, tag, SendMode::Standard, bytes)? {
            SendState::Done => Ok(()),
            SendState::Pending(id) => self.send_rest(id, Some(&[IoSlice::new(bytes)])).await,
        }
    }

    /// Begins a send of contiguous bytes. It is no future of its own, into which `dest` and `tag` would be moved as one word:
    /// that load would wait until the entry of the message before has left the store buffer.
    #[inline]
    pub(super) fn begin_bytes(
        &self,
        dest: u32,
        tag: u32,
        mode: SendMode,
        bytes: &[u8],
    ) -> Result<SendState, SendError> {
        self.inner.with(|engine| {
            let sent = engine.send_bytes(dest, self.context, tag, mode, bytes);
            self.serve_own(engine, dest);
            sent
        })
    }

    /// Waits until a send that has begun is done.
    pub(super) async fn send_rest(
        &self,
        id: RequestId,
        slices: Option<&[IoSlice<'_>]>,
    ) -> Result<(), MessageError> {
        let mut owned = RequestGuard::new(&self.inner, id, true);
        let result = UntilReady::new(&self.inner, id, |engine: &mut MessageEngine<P>, id| {
            engine.poll_send(id, slices)
        })
        .await;
        owned.is_over();
        result
    }

    /// No NIC announces what a rank sends to itself.
    #[inline]
    fn serve_own(&self, engine: &mut MessageEngine<P>, dest: u32) {
        if dest == self.rank {
            engine.serve_own();
        }
    }

    /// Sends a message without waiting: if it cannot be sent immediately, it is copied to the endpoint's
    /// buffer for such messages.
    ///
    /// # Errors
    /// [`SendError::BufferFull`](crate::protocol::SendError::BufferFull), or as [`send`](Self::send).
    pub fn send_buffered(&self, dest: u32, tag: u32, bytes: &[u8]) -> Result<(), MessageError> {
        let body = [IoSlice::new(bytes)];
        let sent = self.begin(dest, tag, SendMode::Buffered, Payload::Borrowed(&body))?;
        match sent {
            SendState::Done => {}
            // The engine owns the bytes and finishes the send.
            SendState::Pending(id) => self.inner.with(|engine| engine.drop_send(id)),
        }
        Ok(())
    }

    /// Gives this communicator a buffer of its own of `bytes_max` bytes, which its buffered sends use instead of the endpoint's. All
    /// clones use it, on this rank alone. Returns `false` if it has one already.
    #[must_use = "if there is a buffer, it keeps its size"]
    pub fn attach_buffer(&self, bytes_max: u64) -> bool {
        self.inner.with(|engine| engine.attach_buffer(self.context, bytes_max))
    }

    /// Waits until everything in this communicator's own buffer has been sent; at once if it has none.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`MessageError`] when the detection server ends.
    pub async fn flush_buffer(&self) -> Result<(), MessageError> {
        let context = self.context;
        let Some(name) = self.inner.with(|engine| engine.buffer_name(context)) else {
            return Ok(());
        };
        let poll = |engine: &mut MessageEngine<P>, _| engine.poll_buffer(context);
        UntilReady::new(&self.inner, name, poll).await
    }

    /// [Flushes](Self::flush_buffer) this communicator's own buffer and takes it away.
    ///
    /// # Cancel safety
    /// Cancel safe: the buffer is then still there.
    ///
    /// # Errors
    /// As [`flush_buffer`](Self::flush_buffer).
    pub async fn detach_buffer(&self) -> Result<(), MessageError> {
        self.flush_buffer().await?;
        self.inner.with(|engine| engine.detach_buffer(self.context));
        Ok(())
    }

    /// Sends a message and waits until a receive has matched it.
    ///
    /// # Cancel safety
    /// As [`send`](Self::send); you then do not know whether the message was received.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_sync(&self, dest: u32, tag: u32, bytes: &[u8]) -> Result<(), MessageError> {
        match self.begin_bytes(dest, tag, SendMode::Synchronous, bytes)? {
            SendState::Done => Ok(()),
            SendState::Pending(id) => self.send_rest(id, Some(&[IoSlice::new(bytes)])).await,
        }
    }

    /// Sends a message to a receive that you know is posted. If it is not, the message is still sent,
    /// and counted ([`MessageCounters::ready_unexpected`](crate::protocol::MessageCounters)).
    ///
    /// # Cancel safety
    /// As [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_ready(&self, dest: u32, tag: u32, bytes: &[u8]) -> Result<(), MessageError> {
        match self.begin_bytes(dest, tag, SendMode::Ready, bytes)? {
            SendState::Done => Ok(()),
            SendState::Pending(id) => self.send_rest(id, Some(&[IoSlice::new(bytes)])).await,
        }
    }

    /// Sends one message made of several pieces, in any mode: vectored, or strided by
    /// [`Layout::slices`](crate::protocol::Layout::slices).
    ///
    /// # Cancel safety
    /// As [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline]
    pub async fn send_slices(
        &self,
        dest: u32,
        tag: u32,
        mode: SendMode,
        slices: &[IoSlice<'_>],
    ) -> Result<(), MessageError> {
        let sent = self.begin(dest, tag, mode, Payload::Borrowed(slices))?;
        match sent {
            SendState::Done => Ok(()),
            SendState::Pending(id) => self.send_rest(id, Some(slices)).await,
        }
    }

    /// Begins to send bytes that the request owns. The send goes on whether or not you await it.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn start_send(
        &self,
        dest: u32,
        tag: u32,
        mode: SendMode,
        bytes: Vec<u8>,
    ) -> Result<SendRequest<P>, MessageError> {
        if self.inner.with(|engine| engine.send_headed(dest, self.context, tag, mode, &bytes)) {
            return Ok(SendRequest { pending: None });
        }
        self.start(dest, tag, mode, Payload::Owned(bytes))
    }

    /// Begins to send bytes of any owner, which the request keeps: [`KeptBytes`]. The send goes on whether or not you await it. Long
    /// messages are read from the owner as the receiver has room, without a copy, except in buffered mode; the owner is dropped when the request has ended.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn start_send_kept(
        &self,
        dest: u32,
        tag: u32,
        mode: SendMode,
        owner: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<SendRequest<P>, MessageError> {
        self.start(dest, tag, mode, Payload::Kept(KeptBytes::new(owner)))
    }

    /// Begins to send a piece of registered memory, which the receiver takes in one copy where both sides can.
    /// You must not change it before the request ends.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn start_send_region(
        &self,
        dest: u32,
        tag: u32,
        mode: SendMode,
        (region, offset, length): (&Region, u64, u64),
    ) -> Result<SendRequest<P>, MessageError> {
        self.start(dest, tag, mode, Payload::Region { region: region.clone(), offset, length })
    }

    pub(super) fn start(
        &self,
        dest: u32,
        tag: u32,
        mode: SendMode,
        payload: Payload<'_>,
    ) -> Result<SendRequest<P>, MessageError> {
        let sent = self.begin(dest, tag, mode, payload)?;
        let pending = match sent {
            SendState::Done => None,
            SendState::Pending(id) => Some((Arc::clone(&self.inner), id)),
        };
        Ok(SendRequest { pending })
    }

    // ------------------------------------------------------------------ receives

    /// Receives a message. From [`SourceFilter::Any`], it fails if a rank has failed that this communicator was not told of yet, and no message
    /// has arrived: see [the module](super#failures-and-flow-control).
    ///
    /// # Cancel safety
    /// A message already matched to this receive is lost when the future is dropped: hold a
    /// [`start_recv`](Self::start_recv) across a `select` instead, and wait for that.
    ///
    /// # Errors
    /// [`MessageError`].
    pub async fn recv(
        &self,
        source: impl Into<SourceFilter>,
        tag: impl Into<TagFilter>,
    ) -> Result<Message, MessageError> {
        let mut bytes = Vec::new();
        let status = self.recv_into(source, tag, &mut bytes).await?;
        Ok(Message { status, bytes })
    }

    /// Receives a message into `sink`: a slice, a vector, or pieces of a buffer
    /// ([`Layout::sink`](crate::protocol::Layout::sink)). Bytes that do not fit are discarded, and
    /// [`Status::is_truncated`] is set.
    ///
    /// # Cancel safety
    /// As [`recv`](Self::recv).
    ///
    /// # Errors
    /// [`MessageError`].
    #[inline]
    pub async fn recv_into<S: Sink + ?Sized>(
        &self,
        source: impl Into<SourceFilter>,
        tag: impl Into<TagFilter>,
        sink: &mut S,
    ) -> Result<Status, MessageError> {
        let pattern = self.pattern(source.into(), tag.into());
        let inner = &*self.inner;
        // Apart from the wait, so that the status need not travel through memory.
        match inner.with(|engine| engine.receive_headed(&pattern, sink)) {
            Some(Begun::Received(status)) => return Ok(status),
            Some(Begun::Open(id)) => {
                let wait = (inner.waiter.wait(), WaitPhase::Polling);
                return self.recv_rest(id, sink, wait).await;
            }
            None => {}
        }
        let mut wait = inner.waiter.wait();
        let polled = wait.try_first(|| {
            inner.with(|engine| {
                engine
                    .receive_begun(&pattern, sink, POLLS_PER_LOCK)
                    .map_or(Probe::Pending, Probe::Ready)
            })
        });
        match polled {
            Poll::Ready(Some(Begun::Received(status))) => Ok(status),
            Poll::Ready(Some(Begun::Open(id))) => {
                self.recv_rest(id, sink, (wait, WaitPhase::Polling)).await
            }
            polled => {
                let phase = WaitPhase::after(&polled);
                self.recv_later(pattern, sink, (wait, phase)).await
            }
        }
    }

    /// Receives a message that has not arrived yet. The receive is posted before other tasks run, which may
    /// ask for the same message.
    pub(super) async fn recv_later<S: Sink + ?Sized>(
        &self,
        pattern: Pattern,
        sink: &mut S,
        goes_on: (SharedWait<'_>, WaitPhase),
    ) -> Result<Status, MessageError> {
        let limit = sink.limit();
        let id = self.inner.with(|engine| engine.post_receive_as(pattern, limit, true));
        self.recv_rest(id, sink, goes_on).await
    }

    /// Receives the rest of a request's message.
    async fn recv_rest<S: Sink + ?Sized>(
        &self,
        id: RequestId,
        sink: &mut S,
        (wait, phase): (SharedWait<'_>, WaitPhase),
    ) -> Result<Status, MessageError> {
        let mut owned = RequestGuard::new(&self.inner, id, false);
        let result = UntilReady::new(&self.inner, id, |engine: &mut MessageEngine<P>, id| {
            engine.poll_receive(id, sink)
        })
        .after(wait, phase)
        .await;
        owned.is_over();
        result
    }

    /// Posts a receive: the next message that fits, now or later, belongs to it.
    pub fn start_recv(
        &self,
        source: impl Into<SourceFilter>,
        tag: impl Into<TagFilter>,
    ) -> ReceiveRequest<P> {
        let pattern = self.pattern(source.into(), tag.into());
        let id = self.inner.with(|engine| engine.post_receive_as(pattern, u64::MAX, false));
        ReceiveRequest::new(Arc::clone(&self.inner), id)
    }

    /// Returns an empty set of requests, to wait for any, some or all of them.
    #[must_use]
    pub fn request_set(&self) -> RequestSet<P> {
        RequestSet::new(&self.inner)
    }

    // ------------------------------------------------------------------ probes

    /// Waits for a message that fits, and leaves it: the next receive with the same source and tag gets it,
    /// unless another task takes it first.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`MessageError`].
    pub async fn probe(
        &self,
        source: impl Into<SourceFilter>,
        tag: impl Into<TagFilter>,
    ) -> Result<Status, MessageError> {
        let pattern = self.pattern(source.into(), tag.into());
        let known = self.inner.with(|engine| engine.told_count(self.context));
        match self.inner.host.wait(EndpointRequest::Probe(pattern, known)).await? {
            EndpointOutput::Probed(Ok(status)) => Ok(status),
            EndpointOutput::Probed(Err(error)) => {
                self.inner.with(|engine| engine.tell(&pattern, error));
                Err(error.into())
            }
            other => unreachable!("invariant: {other:?} does not answer a probe"),
        }
    }

    /// Returns what [`probe`](Self::probe) would return, if a message has arrived.
    #[must_use]
    pub fn try_probe(
        &self,
        source: impl Into<SourceFilter>,
        tag: impl Into<TagFilter>,
    ) -> Option<Status> {
        let pattern = self.pattern(source.into(), tag.into());
        self.inner.with(|engine| engine.probe(pattern))
    }

    /// Waits for a message that fits, and takes it off the list: no other receive can get it.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`MessageError`].
    pub async fn matched_probe(
        &self,
        source: impl Into<SourceFilter>,
        tag: impl Into<TagFilter>,
    ) -> Result<Matched<P>, MessageError> {
        let (source, tag) = (source.into(), tag.into());
        loop {
            if let Some(matched) = self.try_matched_probe(source, tag) {
                return Ok(matched);
            }
            self.probe(source, tag).await?;
        }
    }

    /// Returns what [`matched_probe`](Self::matched_probe) would return, if a message has arrived.
    pub fn try_matched_probe(
        &self,
        source: impl Into<SourceFilter>,
        tag: impl Into<TagFilter>,
    ) -> Option<Matched<P>> {
        let pattern = self.pattern(source.into(), tag.into());
        let (id, status) = self.inner.with(|engine| engine.matched_probe(pattern))?;
        let request = ReceiveRequest::new(Arc::clone(&self.inner), id);
        Some(Matched { status, request })
    }

    // ------------------------------------------------------------------ persistent requests

    /// Returns a send that you can start any number of times with the same envelope: `MPI_Send_init`.
    #[must_use]
    pub fn persistent_send(&self, dest: u32, tag: u32, mode: SendMode) -> PersistentSend<P> {
        PersistentSend { communicator: self.clone(), dest, tag, mode }
    }

    /// Returns a receive that you can start any number of times: `MPI_Recv_init`.
    #[must_use]
    pub fn persistent_recv(
        &self,
        source: impl Into<SourceFilter>,
        tag: impl Into<TagFilter>,
    ) -> PersistentReceive<P> {
        PersistentReceive { communicator: self.clone(), source: source.into(), tag: tag.into() }
    }
}

impl<P: Provider> Clone for Communicator<P> {
    fn clone(&self) -> Self {
        self.in_context(self.context, self.lease.clone())
    }
}

impl<P: Provider> fmt::Debug for Communicator<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("context", &self.context)
            .field("rank", &self.rank)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// A send to one rank with one tag and mode, which you can start any number of times.
#[derive(Debug)]
pub struct PersistentSend<P: Provider> {
    communicator: Communicator<P>,
    dest: u32,
    tag: u32,
    mode: SendMode,
}

impl<P: Provider> PersistentSend<P> {
    /// Begins to send: see [`Communicator::start_send`].
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn start(&self, bytes: Vec<u8>) -> Result<SendRequest<P>, MessageError> {
        self.communicator.start_send(self.dest, self.tag, self.mode, bytes)
    }

    /// Sends: see [`Communicator::send_slices`].
    ///
    /// # Errors
    /// [`MessageError`].
    pub async fn send(&self, bytes: &[u8]) -> Result<(), MessageError> {
        let slices = [IoSlice::new(bytes)];
        self.communicator.send_slices(self.dest, self.tag, self.mode, &slices).await
    }
}

/// A receive from one source with one tag, which you can start any number of times.
#[derive(Debug)]
pub struct PersistentReceive<P: Provider> {
    communicator: Communicator<P>,
    source: SourceFilter,
    tag: TagFilter,
}

impl<P: Provider> PersistentReceive<P> {
    /// Posts the receive: see [`Communicator::start_recv`].
    pub fn start(&self) -> ReceiveRequest<P> {
        self.communicator.start_recv(self.source, self.tag)
    }

    /// Receives: see [`Communicator::recv_into`].
    ///
    /// # Errors
    /// [`MessageError`].
    pub async fn recv_into<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<Status, MessageError> {
        self.communicator.recv_into(self.source, self.tag, sink).await
    }
}
