//! The waiter's side: [`Handle`], the [`Wait`] future and the [`EventStream`].

use std::{
    borrow::Borrow,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use super::{
    inner::{BeforeSubmit, Inner, Submission},
    registered::{Cause, Registered},
};
use crate::{
    detector::{Batch, Detector, Key, Mode, Notice},
    error::WaitError,
    policy::{History, Strategy},
    request::{End, Place, Slot, Taken, Waiter},
    sync::Arc,
};

/// A registered detector, through which its events are waited for. Clones are the same handle; when
/// the last is dropped, the detector is deregistered, once nothing of it is in flight.
pub struct Handle<D: Detector> {
    user: Arc<User<D>>,
}

/// Apart from [`Inner`], which the server keeps too: so the last user's drop is noticed.
struct User<D: Detector> {
    inner: Arc<Inner<D>>,
}

impl<D: Detector> Drop for User<D> {
    fn drop(&mut self) {
        if self.inner.drain() {
            self.inner.shared().deregister(self.inner.site.address());
        }
    }
}

impl<D: Detector> Handle<D> {
    pub(crate) fn new(inner: Arc<Inner<D>>) -> Self {
        Self { user: Arc::new(User { inner }) }
    }

    /// Waits for one event.
    ///
    /// # Source
    /// [bouge02, §2.2]: `thread_IO_wait(handle, arg)`.
    ///
    /// # Cost
    /// An event that is there already is returned by the first poll. Otherwise two short locks and
    /// no allocation, unless more requests are pending than were lately: entries are kept for 1024, or for as
    /// many again as are pending.
    ///
    /// # Cancel safety
    /// Cancel safe as far as the detector is: a future dropped before its event asks the detector to
    /// forget the request. An event that came in meanwhile is dropped with it; the detector's
    /// documentation says whether that loses something.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait(&self, request: D::Request) -> Wait<D, &Self> {
        Wait { handle: self, state: WaitState::New(Some(request)), before_submit: None }
    }

    /// Like [`wait`](Self::wait), with a future that keeps the handle alive by itself.
    pub fn wait_owned(&self, request: D::Request) -> Wait<D> {
        Wait { handle: self.clone(), state: WaitState::New(Some(request)), before_submit: None }
    }

    /// Makes one request with many events (multishot). It is submitted at once and stays pending
    /// until the stream is dropped or the detector ends it: the reusable waiter of poll-style code.
    ///
    /// # Errors
    /// [`WaitError`] if the detector refuses the request.
    pub fn stream(&self, request: D::Request) -> Result<EventStream<D>, WaitError> {
        match self.user.inner.submit(request, Mode::Stream, None)? {
            Submission::Pending(key, slot) => Ok(EventStream { handle: self.clone(), key, slot }),
            Submission::Ready(_) => unreachable!("invariant: a stream is never over at once"),
        }
    }

    /// Calls `f` with the detector, under the handle's lock: for what the detector's own interface
    /// offers beside waiting. Returns `None` once the server is shut down, and in a forked child.
    pub fn with_detector<T>(&self, f: impl FnOnce(&mut D) -> T) -> Option<T> {
        self.user.inner.with_detector(f)
    }

    /// Returns whether a parent of this process has registered it.
    pub(crate) fn is_inherited(&self) -> bool {
        self.user.inner.shared().is_inherited()
    }

    /// Returns whether no event comes any more: the server is shut down, or a parent's. Two loads.
    pub(crate) fn is_over(&self) -> bool {
        let shared = self.user.inner.shared();
        shared.is_inherited() || shared.is_closed()
    }

    /// Returns why no event comes any more.
    pub(crate) fn end(&self) -> WaitError {
        self.user.inner.end()
    }

    /// Returns whether both are the same registered detector.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.user.inner, &other.user.inner)
    }

    /// Hands an announcement to the detector, on the thread that has seen it. The caller wakes who
    /// waited.
    pub(crate) fn deliver(&self, notice: Notice, batch: &mut Batch) {
        let inner = &*self.user.inner;
        inner.round(Cause::Notices(&[notice]), inner.site.now(), batch);
    }

    /// Polls the detector on this thread, whether or not anything is pending: for the conformance
    /// suite.
    pub(crate) fn poll_now(&self) {
        let mut batch = Batch::default();
        let inner = &*self.user.inner;
        inner.round(Cause::Poll, inner.site.now(), &mut batch);
        batch.wake_all();
    }

    /// Returns what was seen of this handle so far, and the present strategy.
    #[must_use]
    pub fn history(&self) -> (History, Strategy) {
        self.user.inner.history()
    }

    /// Returns how many requests wait.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.user.inner.pending_count()
    }

    /// Returns the name that the handle was registered under.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.user.inner.name
    }
}

impl<D: Detector> Clone for Handle<D> {
    fn clone(&self) -> Self {
        Self { user: Arc::clone(&self.user) }
    }
}

impl<D: Detector> fmt::Debug for Handle<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// The future of [`Handle::wait`].
#[must_use = "nothing is waited for before the future is polled"]
pub struct Wait<D: Detector, H: Borrow<Handle<D>> = Handle<D>> {
    handle: H,
    state: WaitState<D>,
    pub(crate) before_submit: Option<BeforeSubmit<D>>,
}

enum WaitState<D: Detector> {
    New(Option<D::Request>),
    Pending(Key, Arc<Slot<D::Event>>),
    Over,
}

/// The request is moved to the detector's side before it needs a stable address.
impl<D: Detector, H: Borrow<Handle<D>>> Unpin for Wait<D, H> {}

impl<D: Detector, H: Borrow<Handle<D>>> Future for Wait<D, H> {
    type Output = Result<D::Event, WaitError>;

    /// # Panics
    /// Panics if polled again after it has returned its result.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let inner = &this.handle.borrow().user.inner;
        if let WaitState::New(request) = &mut this.state {
            let request = request.take().expect("invariant: a new wait has its request");
            // Over, should the submission panic.
            this.state = WaitState::Over;
            match inner.submit(request, Mode::Once, this.before_submit) {
                Ok(Submission::Ready(event)) => return Poll::Ready(Ok(event)),
                Ok(Submission::Pending(key, slot)) => this.state = WaitState::Pending(key, slot),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let WaitState::Pending(key, slot) = &this.state else {
            panic!("a wait was polled after it had returned its result");
        };
        let Poll::Ready(taken) = slot.poll(cx) else { return Poll::Pending };
        inner.release(*key, slot);
        this.state = WaitState::Over;
        Poll::Ready(match taken {
            Taken::Event(event) | Taken::Relief(event) => Ok(event),
            Taken::End(End::Failed(error)) => Err(error),
            Taken::End(End::Finished) => Err(WaitError::Ended),
        })
    }
}

impl<D: Detector, H: Borrow<Handle<D>>> Drop for Wait<D, H> {
    fn drop(&mut self) {
        if let WaitState::Pending(key, slot) = &self.state {
            self.handle.borrow().user.inner.release(*key, slot);
        }
    }
}

impl<D: Detector, H: Borrow<Handle<D>>> fmt::Debug for Wait<D, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            WaitState::New(_) => "new",
            WaitState::Pending(..) => "pending",
            WaitState::Over => "over",
        };
        f.debug_struct("Wait").field("state", &state).finish_non_exhaustive()
    }
}

/// The events of one request that has many: see [`Handle::stream`].
pub struct EventStream<D: Detector> {
    handle: Handle<D>,
    key: Key,
    slot: Arc<Slot<D::Event>>,
}

impl<D: Detector> EventStream<D> {
    /// Takes the oldest event, or leaves the waker of `cx` for the next one; one waker at a time.
    /// `Ready(None)` is the end.
    ///
    /// # Cost
    /// One lock that only this stream's waiter and the round that fills it share. No allocation.
    ///
    /// # Errors
    /// [`WaitError`], once; then the stream is at its end.
    pub fn poll_event(&self, cx: &Context<'_>) -> Poll<Option<Result<D::Event, WaitError>>> {
        self.slot.poll(cx).map(|taken| match taken {
            Taken::Event(event) => Some(Ok(event)),
            Taken::Relief(event) => {
                // The detector holds events back for which there is room now.
                self.handle.user.inner.site.ring_again();
                Some(Ok(event))
            }
            Taken::End(End::Failed(error)) => Some(Err(error)),
            Taken::End(End::Finished) => None,
        })
    }

    /// Leaves `waker` to be woken by the next event or by the end: see [`Slot::register`].
    ///
    /// # Errors
    /// How the stream has ended; [`WaitError::ServerClosed`] in a forked child, where nobody wakes and the lock may
    /// have been held at the fork.
    pub(crate) fn register(&self, waker: &Waker, waiter: Waiter<'_>) -> Result<(), WaitError> {
        if self.handle.is_inherited() {
            return Err(WaitError::ServerClosed);
        }
        self.slot.register(waker, waiter)
    }

    /// Gives up the place of a waiter that goes.
    pub(crate) fn unregister(&self, place: Place) {
        if !self.handle.is_inherited() {
            self.slot.unregister(place);
        }
    }

    /// Waits for the next event; `None` is the end.
    ///
    /// # Cancel safety
    /// Cancel safe: an event is either returned or still in the stream.
    ///
    /// # Errors
    /// As [`poll_event`](Self::poll_event).
    pub async fn next(&mut self) -> Option<Result<D::Event, WaitError>> {
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }
}

impl<D: Detector> Drop for EventStream<D> {
    fn drop(&mut self) {
        self.handle.user.inner.release(self.key, &self.slot);
    }
}

impl<D: Detector> fmt::Debug for EventStream<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("handle", &self.handle).finish_non_exhaustive()
    }
}
