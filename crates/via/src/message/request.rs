//! Requests that have begun: you hold them, and wait for, test or cancel them later.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use vigie_detect::{EngineWaiter, Probe, SharedWait, WaitError, budget};

use super::{
    Message, MessageError, MessageErrorKind,
    endpoint_engine::{EndpointEngine, EndpointInner},
};
use crate::{
    protocol::{CancelState, MessageEngine, RequestError, RequestId, Sink, Status, put_all},
    vi::Provider,
};

/// Polls a request until it is ready: first inline, then spinning briefly, then as the scheduler decides.
pub(super) struct UntilReady<'a, P: Provider, F> {
    inner: &'a EndpointInner<P>,
    id: RequestId,
    attempt: F,
    /// The engine's work count at the last poll.
    worked: Option<u64>,
    phase: WaitPhase,
    wait: SharedWait<'a>,
    waiter: EngineWaiter<'a, EndpointEngine<P>>,
}

/// The next step of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitPhase {
    Polling,
    /// It has spun for as long as one poll may, without result.
    Yielding,
    Sleeping,
}

impl WaitPhase {
    /// The phase after polls that found nothing.
    pub(super) const fn after<T>(polled: &Poll<T>) -> Self {
        if polled.is_pending() { Self::Yielding } else { Self::Sleeping }
    }
}

impl<'a, P: Provider, T, F> UntilReady<'a, P, F>
where
    F: FnMut(&mut MessageEngine<P>, RequestId) -> Poll<Result<T, RequestError>> + Unpin,
{
    pub(super) fn new(inner: &'a EndpointInner<P>, id: RequestId, attempt: F) -> Self {
        let (wait, waiter) = (inner.waiter.wait(), inner.host.waiter(id.0));
        Self { inner, id, attempt, worked: None, phase: WaitPhase::Polling, wait, waiter }
    }

    /// Continues a wait that polled before there was a request.
    pub(super) fn after(self, wait: SharedWait<'a>, phase: WaitPhase) -> Self {
        Self { wait, phase, ..self }
    }

    /// Spins for as long as one poll may. `Ready(None)`: it is time to sleep.
    fn spin(&mut self, cx: &Context<'_>) -> Poll<Option<Result<T, RequestError>>> {
        let Self { inner, id, attempt, worked, .. } = self;
        let mut poll = || {
            inner.with(|engine| {
                let before = worked.unwrap_or_else(|| engine.worked());
                match attempt(engine, *id) {
                    Poll::Ready(result) => return Probe::Ready(result),
                    Poll::Pending => *worked = Some(engine.worked()),
                }
                if *worked == Some(before) { Probe::Pending } else { Probe::Progress }
            })
        };
        match self.phase {
            WaitPhase::Polling => self.wait.poll_spin(cx, poll),
            WaitPhase::Sleeping => Poll::Ready(None),
            WaitPhase::Yielding => {
                self.phase = WaitPhase::Polling;
                if let Probe::Ready(result) = poll() {
                    return Poll::Ready(Some(result));
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl<P: Provider, T, F> Future for UntilReady<'_, P, F>
where
    F: FnMut(&mut MessageEngine<P>, RequestId) -> Poll<Result<T, RequestError>> + Unpin,
{
    type Output = Result<T, MessageError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.waiter.renew_waker(cx) {
            return Poll::Pending;
        }
        if this.inner.host.is_inherited() {
            return Poll::Ready(Err(WaitError::ServerClosed.into()));
        }
        // A task may ask again at once, whatever the result: after a time, others run in between.
        ready!(budget::poll_proceed(cx));
        if let Some(result) = ready!(this.spin(cx)) {
            return Poll::Ready(result.map_err(Into::into));
        }
        this.phase = WaitPhase::Sleeping;
        let Self { id, attempt, waiter, .. } = this;
        let polled =
            waiter.poll(cx, |endpoint_engine| match attempt(endpoint_engine.engine(), *id) {
                Poll::Ready(result) => Some(result),
                Poll::Pending => None,
            });
        polled.map(|ended| {
            this.wait.slept();
            ended?.map_err(Into::into)
        })
    }
}

/// Forgets a request whose owner is dropped before it has ended.
pub(super) struct RequestGuard<'a, P: Provider> {
    inner: &'a EndpointInner<P>,
    id: Option<RequestId>,
    is_send: bool,
}

impl<'a, P: Provider> RequestGuard<'a, P> {
    pub(super) const fn new(inner: &'a EndpointInner<P>, id: RequestId, is_send: bool) -> Self {
        Self { inner, id: Some(id), is_send }
    }

    pub(super) const fn is_over(&mut self) {
        self.id = None;
    }
}

impl<P: Provider> Drop for RequestGuard<'_, P> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            forget(self.inner, id, self.is_send);
        }
    }
}

fn forget<P: Provider>(inner: &EndpointInner<P>, id: RequestId, is_send: bool) {
    inner.drop_with(|engine| if is_send { engine.drop_send(id) } else { engine.drop_receive(id) });
}

/// A send that has begun and owns its bytes: `MPI_Isend`. It needs no polling; the message is sent even if
/// you drop this.
#[must_use = "only a wait for this tells whether the message was sent"]
pub struct SendRequest<P: Provider> {
    /// `None` once it has ended. One that was sent at once holds nothing: to count a holder would wait for the stores of the message.
    pub(super) pending: Option<(Arc<EndpointInner<P>>, RequestId)>,
}

impl<P: Provider> SendRequest<P> {
    /// Waits until the send is done, as its mode says.
    ///
    /// # Cancel safety
    /// Cancel safe: the request goes on, and you can wait for it again.
    ///
    /// # Errors
    /// [`MessageError`]; [`RequestError::Cancelled`] if [`cancel`](Self::cancel) was in time.
    pub async fn wait(&mut self) -> Result<(), MessageError> {
        let Some((inner, id)) = &self.pending else { return Ok(()) };
        let result = UntilReady::new(inner, *id, |engine: &mut MessageEngine<P>, id| {
            engine.poll_send(id, None)
        })
        .await;
        self.pending = None;
        result
    }

    /// Returns whether the send is done, without waiting.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn test(&mut self) -> Result<bool, MessageError> {
        let Some((inner, id)) = &self.pending else { return Ok(true) };
        match inner.with(|engine| engine.poll_send(*id, None)) {
            Poll::Ready(result) => {
                self.pending = None;
                result?;
                Ok(true)
            }
            Poll::Pending => Ok(false),
        }
    }

    /// Takes the message back if its receiver has not matched it. Returns whether it was taken back: a message
    /// is delivered or cancelled, never both.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn cancel(mut self) -> Result<bool, MessageError> {
        let Some((inner, id)) = &self.pending else { return Ok(false) };
        if inner.with(|engine| engine.cancel_send(*id)) == CancelState::Cancelled {
            self.pending = None;
            return Ok(true);
        }
        match self.wait().await {
            Ok(()) => Ok(false),
            Err(error) => match error.kind() {
                MessageErrorKind::Request(RequestError::Cancelled) => Ok(true),
                _ => Err(error),
            },
        }
    }
}

impl<P: Provider> Drop for SendRequest<P> {
    fn drop(&mut self) {
        if let Some((inner, id)) = &self.pending {
            forget(inner, *id, true);
        }
    }
}

impl<P: Provider> fmt::Debug for SendRequest<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.pending.as_ref().map(|(_, id)| id);
        f.debug_struct("SendRequest").field("id", &id).finish_non_exhaustive()
    }
}

/// A receive that is posted: `MPI_Irecv`. From then on the next message that fits is matched with it and arrives, whether
/// or not a task waits for it.
///
/// Dropping it takes the receive back, and loses a message that was matched to it.
#[must_use = "only a wait for this returns the message, which is lost if this is dropped"]
pub struct ReceiveRequest<P: Provider> {
    pub(super) inner: Arc<EndpointInner<P>>,
    /// `None` once it has ended.
    pub(super) id: Option<RequestId>,
    /// Bytes that arrived during a [`wait`](Self::wait) or a [`test`](Self::test) that did not finish.
    pub(super) bytes: Vec<u8>,
}

impl<P: Provider> ReceiveRequest<P> {
    pub(super) const fn new(inner: Arc<EndpointInner<P>>, id: RequestId) -> Self {
        Self { inner, id: Some(id), bytes: Vec::new() }
    }

    /// Waits for the message.
    ///
    /// # Cancel safety
    /// Cancel safe: the request goes on, keeps what has arrived, and you can wait for it again.
    ///
    /// # Errors
    /// [`MessageError`]; [`RequestError::Unknown`] if the message was already returned.
    pub async fn wait(&mut self) -> Result<Message, MessageError> {
        let id = self.id.ok_or(RequestError::Unknown)?;
        let bytes = &mut self.bytes;
        let result = UntilReady::new(&self.inner, id, |engine: &mut MessageEngine<P>, id| {
            engine.poll_receive(id, bytes)
        })
        .await;
        self.over(result)
    }

    /// Waits for the message and puts it into `sink`.
    ///
    /// # Cancel safety
    /// The request goes on, and you can wait for it again with the same sink, which may hold part of the
    /// message: with another sink that part is lost. Nothing is lost after a dropped [`wait`](Self::wait).
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn wait_into<S: Sink + ?Sized>(
        &mut self,
        sink: &mut S,
    ) -> Result<Status, MessageError> {
        let id = self.id.ok_or(RequestError::Unknown)?;
        // Apart from the wait, so that the status need not travel through memory.
        if self.bytes.is_empty()
            && !self.inner.host.is_inherited()
            && let Some(status) = self.inner.with(|engine| engine.receive_posted_headed(id, sink))
        {
            self.id = None;
            return Ok(status);
        }
        let is_cut = !put_all(sink, &std::mem::take(&mut self.bytes));
        let result = UntilReady::new(&self.inner, id, |engine: &mut MessageEngine<P>, id| {
            engine.poll_receive(id, sink)
        })
        .await;
        self.id = None;
        result.map(|status| if is_cut { status.truncated() } else { status })
    }

    /// Returns the message if all of it has arrived, without waiting.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn test(&mut self) -> Result<Option<Message>, MessageError> {
        let id = self.id.ok_or(RequestError::Unknown)?;
        let (inner, bytes) = (&self.inner, &mut self.bytes);
        match inner.with(|engine| engine.poll_receive(id, bytes)) {
            Poll::Ready(result) => self.over(result.map_err(Into::into)).map(Some),
            Poll::Pending => Ok(None),
        }
    }

    fn over(&mut self, result: Result<Status, MessageError>) -> Result<Message, MessageError> {
        self.id = None;
        result.map(|status| self.take_message(status))
    }

    pub(super) fn take_message(&mut self, status: Status) -> Message {
        Message { status, bytes: std::mem::take(&mut self.bytes) }
    }

    /// Receives the message into the memory of `buffer`, whose content is lost: nothing is allocated if its capacity suffices.
    /// Call it before you wait.
    pub fn with_buffer(mut self, mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        buffer.append(&mut self.bytes);
        self.bytes = buffer;
        self
    }

    /// Leaves the receive to itself: it stays posted, and the message that it is matched with, now or later, is discarded. Dropping it
    /// takes it back instead, so that the message goes to another receive.
    pub fn forget(mut self) {
        if let Some(id) = self.id.take() {
            self.inner.drop_with(|engine| engine.forget_receive(id));
        }
    }

    /// Takes the receive back. If a message was already matched to it, the request is returned, for you to
    /// wait for.
    ///
    /// # Errors
    /// The request, if a message already belongs to it.
    pub fn cancel(mut self) -> Result<(), Self> {
        let Some(id) = self.id else { return Ok(()) };
        if self.inner.with(|engine| engine.cancel_receive(id)) == CancelState::Cancelled {
            self.id = None;
            return Ok(());
        }
        Err(self)
    }
}

impl<P: Provider> Drop for ReceiveRequest<P> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            forget(&self.inner, id, false);
        }
    }
}

impl<P: Provider> fmt::Debug for ReceiveRequest<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveRequest").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A message that a probe has taken off the list: only this can receive it.
#[derive(Debug)]
#[must_use = "the message is lost if this is dropped"]
pub struct Matched<P: Provider> {
    pub(super) status: Status,
    pub(super) request: ReceiveRequest<P>,
}

impl<P: Provider> Matched<P> {
    /// Returns the message's sender, tag and length.
    #[must_use]
    pub const fn status(&self) -> Status {
        self.status
    }

    /// Turns it into a request like any other, to be waited for later or in a [`RequestSet`](super::RequestSet): `MPI_Imrecv`. The
    /// message arrives meanwhile; [`ReceiveRequest::with_buffer`] says where.
    pub fn start(self) -> ReceiveRequest<P> {
        self.request
    }

    /// Receives the message.
    ///
    /// # Cancel safety
    /// Cancel safe, as [`ReceiveRequest::wait`].
    ///
    /// # Errors
    /// As [`ReceiveRequest::wait`].
    pub async fn recv(&mut self) -> Result<Message, MessageError> {
        self.request.wait().await
    }

    /// Receives the message into `sink`.
    ///
    /// # Cancel safety
    /// As [`ReceiveRequest::wait_into`].
    ///
    /// # Errors
    /// As [`ReceiveRequest::wait`].
    pub async fn recv_into<S: Sink + ?Sized>(
        &mut self,
        sink: &mut S,
    ) -> Result<Status, MessageError> {
        self.request.wait_into(sink).await
    }
}
