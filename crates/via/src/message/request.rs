//! Requests that have begun: held, and waited for, tested or cancelled later.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use vigie_detect::{EngineWaiter, Instant, WaitError};

use super::{
    Message, MessageError, MessageErrorKind,
    endpoint::{Hosted, Inner},
};
use crate::{
    protocol::{CancelState, Engine, RequestError, RequestId, Sink, Status, put_all},
    spin::Look,
    vi::Provider,
};

/// Polls a request until it is ready: inline, looking again for a while, then as the scheduler decides.
pub(super) struct UntilReady<'a, P: Provider, F> {
    inner: &'a Inner<P>,
    id: RequestId,
    attempt: F,
    /// What the engine had done at the last look.
    worked: u64,
    /// Whoever made this has looked for a while in vain.
    has_looked: bool,
    /// When the first looks were over, and how often it has looked on since.
    lost: Option<(Instant, u32)>,
    waiter: EngineWaiter<'a, Hosted<P>>,
}

/// How often a wait looks on at most, also where no time passes meanwhile.
const LOOKS_ON_MAX: u32 = 256;

impl<'a, P: Provider, T, F> UntilReady<'a, P, F>
where
    F: FnMut(&mut Engine<P>, RequestId) -> Poll<Result<T, RequestError>> + Unpin,
{
    pub(super) const fn new(inner: &'a Inner<P>, id: RequestId, attempt: F) -> Self {
        let waiter = inner.host.waiter(id.0);
        Self { inner, id, attempt, worked: 0, has_looked: false, lost: None, waiter }
    }

    /// Looks once only before it hands over for the first time.
    pub(super) const fn has_looked(mut self) -> Self {
        self.has_looked = true;
        self
    }

    #[inline]
    fn look(&mut self) -> Look<Result<T, RequestError>> {
        let Self { inner, id, attempt, worked, .. } = self;
        inner.with(|engine| match attempt(engine, *id) {
            Poll::Ready(result) => Look::Found(result),
            Poll::Pending if std::mem::replace(worked, engine.worked()) == engine.worked() => {
                Look::Nothing
            }
            Poll::Pending => Look::Moved,
        })
    }

    fn look_for_a_while(&mut self) -> Option<Result<T, RequestError>> {
        if std::mem::take(&mut self.has_looked) {
            return None;
        }
        let spin = &self.inner.spin;
        let found = spin.until_idle(self.lost.is_some(), || self.look());
        if found.is_some() {
            self.note_end();
        }
        found
    }

    /// Returns whether it is better to look on than to sleep.
    fn looks_on(&mut self) -> bool {
        let now = Instant::now();
        let (since, looks) = self.lost.get_or_insert((now, 0));
        *looks += 1;
        *looks <= LOOKS_ON_MAX && now - *since < self.inner.spin.patience()
    }

    /// It has found what it waited for, after all.
    fn note_end(&self) {
        if let Some((since, _)) = self.lost {
            self.inner.spin.lasted(Instant::now() - since);
        }
    }
}

impl<P: Provider, T, F> Future for UntilReady<'_, P, F>
where
    F: FnMut(&mut Engine<P>, RequestId) -> Poll<Result<T, RequestError>> + Unpin,
{
    type Output = Result<T, MessageError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.waiter.still_waits(cx) {
            return Poll::Pending;
        }
        if this.inner.host.is_inherited() {
            return Poll::Ready(Err(WaitError::ServerClosed.into()));
        }
        if let Some(result) = this.look_for_a_while() {
            return Poll::Ready(result.map_err(Into::into));
        }
        if this.looks_on() {
            // Other tasks first; the next poll looks again.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Self { id, attempt, waiter, .. } = this;
        let looked = waiter.poll(cx, |hosted| match attempt(hosted.engine(), *id) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        });
        looked.map(|ended| {
            this.note_end();
            ended?.map_err(Into::into)
        })
    }
}

/// Forgets a request whose owner goes before it has ended.
pub(super) struct Owned<'a, P: Provider> {
    inner: &'a Inner<P>,
    id: Option<RequestId>,
    is_send: bool,
}

impl<'a, P: Provider> Owned<'a, P> {
    pub(super) const fn new(inner: &'a Inner<P>, id: RequestId, is_send: bool) -> Self {
        Self { inner, id: Some(id), is_send }
    }

    pub(super) const fn is_over(&mut self) {
        self.id = None;
    }
}

impl<P: Provider> Drop for Owned<'_, P> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            forget(self.inner, id, self.is_send);
        }
    }
}

fn forget<P: Provider>(inner: &Inner<P>, id: RequestId, is_send: bool) {
    inner.let_go(|engine| if is_send { engine.drop_send(id) } else { engine.drop_receive(id) });
}

/// A send that has begun and owns its bytes: `MPI_Isend`. It goes on by itself; dropping it lets the message
/// go on its way.
#[must_use = "whether the message was sent is told to whoever waits for this"]
pub struct SendRequest<P: Provider> {
    pub(super) inner: Arc<Inner<P>>,
    /// `None` once it has ended.
    pub(super) id: Option<RequestId>,
}

impl<P: Provider> SendRequest<P> {
    /// Waits until the send is done, as its mode says.
    ///
    /// # Cancel safety
    /// Cancel safe: the request goes on, and can be waited for again.
    ///
    /// # Errors
    /// [`MessageError`]; [`RequestError::Cancelled`] if [`cancel`](Self::cancel) came in time.
    pub async fn wait(&mut self) -> Result<(), MessageError> {
        let Some(id) = self.id else { return Ok(()) };
        let result = UntilReady::new(&self.inner, id, |engine: &mut Engine<P>, id| {
            engine.poll_send(id, None)
        })
        .await;
        self.id = None;
        result
    }

    /// Returns whether the send is done, without waiting.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn test(&mut self) -> Result<bool, MessageError> {
        let Some(id) = self.id else { return Ok(true) };
        match self.inner.with(|engine| engine.poll_send(id, None)) {
            Poll::Ready(result) => {
                self.id = None;
                result?;
                Ok(true)
            }
            Poll::Pending => Ok(false),
        }
    }

    /// Takes the message back if its receiver has not matched it. Returns whether it was taken back; delivered
    /// and cancelled exclude each other.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn cancel(mut self) -> Result<bool, MessageError> {
        let Some(id) = self.id else { return Ok(false) };
        if self.inner.with(|engine| engine.cancel_send(id)) == CancelState::Cancelled {
            self.id = None;
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
        if let Some(id) = self.id {
            forget(&self.inner, id, true);
        }
    }
}

impl<P: Provider> fmt::Debug for SendRequest<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendRequest").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A receive that is posted: `MPI_Irecv`. Messages are matched with it from its beginning on, whether or not
/// anybody waits for it; of a message in several frames most comes while somebody does.
///
/// Dropping it takes the receive back, and loses a message that was matched to it.
#[must_use = "the message goes to whoever waits for this, and is lost if it is dropped"]
pub struct ReceiveRequest<P: Provider> {
    inner: Arc<Inner<P>>,
    /// `None` once it has ended.
    id: Option<RequestId>,
    /// What has come to a [`wait`](Self::wait) or a [`test`](Self::test) that was not the last.
    bytes: Vec<u8>,
}

impl<P: Provider> ReceiveRequest<P> {
    pub(super) const fn new(inner: Arc<Inner<P>>, id: RequestId) -> Self {
        Self { inner, id: Some(id), bytes: Vec::new() }
    }

    /// Waits for the message.
    ///
    /// # Cancel safety
    /// Cancel safe: the request goes on, keeps what has come, and can be waited for again.
    ///
    /// # Errors
    /// [`MessageError`]; [`RequestError::Unknown`] if the message was handed out before.
    pub async fn wait(&mut self) -> Result<Message, MessageError> {
        let id = self.id.ok_or(RequestError::Unknown)?;
        let bytes = &mut self.bytes;
        let result = UntilReady::new(&self.inner, id, |engine: &mut Engine<P>, id| {
            engine.poll_receive(id, bytes)
        })
        .await;
        self.over(result)
    }

    /// Waits for the message and puts it into `sink`.
    ///
    /// # Cancel safety
    /// The request goes on, and can be waited for again with the same sink, in which a part of the message may
    /// be: with another one that part is lost. After a [`wait`](Self::wait) that was given up nothing is.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn wait_into<S: Sink + ?Sized>(
        &mut self,
        sink: &mut S,
    ) -> Result<Status, MessageError> {
        let id = self.id.ok_or(RequestError::Unknown)?;
        let is_cut = !put_all(sink, &std::mem::take(&mut self.bytes));
        let result = UntilReady::new(&self.inner, id, |engine: &mut Engine<P>, id| {
            engine.poll_receive(id, sink)
        })
        .await;
        self.id = None;
        result.map(|status| if is_cut { status.truncated() } else { status })
    }

    /// Returns the message if it is all there, without waiting.
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
        let bytes = std::mem::take(&mut self.bytes);
        result.map(|status| Message { status, bytes })
    }

    /// Takes the receive back. If a message was matched to it before, the request is given back to be waited
    /// for.
    ///
    /// # Errors
    /// The request, to which a message belongs already.
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

/// A message that a probe has taken off the list: it can be received through this alone.
#[derive(Debug)]
#[must_use = "the message is lost if this is dropped"]
pub struct Matched<P: Provider> {
    pub(super) status: Status,
    pub(super) request: ReceiveRequest<P>,
}

impl<P: Provider> Matched<P> {
    /// Returns what is known of the message.
    #[must_use]
    pub const fn status(&self) -> Status {
        self.status
    }

    /// Receives the message.
    ///
    /// # Cancel safety
    /// Cancel safe, as [`ReceiveRequest::wait`].
    ///
    /// # Errors
    /// As [`ReceiveRequest::wait`].
    pub async fn receive(&mut self) -> Result<Message, MessageError> {
        self.request.wait().await
    }

    /// Receives the message into `sink`.
    ///
    /// # Cancel safety
    /// As [`ReceiveRequest::wait_into`].
    ///
    /// # Errors
    /// As [`ReceiveRequest::wait`].
    pub async fn receive_into<S: Sink + ?Sized>(
        &mut self,
        sink: &mut S,
    ) -> Result<Status, MessageError> {
        self.request.wait_into(sink).await
    }
}
