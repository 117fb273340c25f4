//! The waiter's side: [`Handle`], the [`Wait`] future and the [`EventStream`].

use std::{
    borrow::Borrow,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use super::{
    handle_inner::{BeforeSubmit, HandleInner, Submission},
    registered::{PollCause, Registered},
};
use crate::{
    detector::{Detector, Key, Mode, PollerEvent, WakeList},
    error::WaitError,
    policy::{History, Strategy},
    request::{EventSlot, SlotEnd, SlotItem, WaiterKind, WaiterToken},
    sync::Arc,
};

/// A registered detector; use it to wait for events. Clones are the same handle. When the last is
/// dropped, the detector is deregistered as soon as nothing of it is in flight.
pub struct Handle<D: Detector> {
    user: Arc<HandleUser<D>>,
}

/// Separate from [`HandleInner`], which the server keeps too, so that the last user's drop is
/// noticed.
struct HandleUser<D: Detector> {
    inner: Arc<HandleInner<D>>,
}

impl<D: Detector> Drop for HandleUser<D> {
    fn drop(&mut self) {
        if self.inner.drain() {
            self.inner.shared().deregister(self.inner.driver.address());
        }
    }
}

impl<D: Detector> Handle<D> {
    pub(crate) fn new(inner: Arc<HandleInner<D>>) -> Self {
        Self { user: Arc::new(HandleUser { inner }) }
    }

    /// Waits for one event.
    ///
    /// # Source
    /// [bouge02, §2.2]: `thread_IO_wait(handle, arg)`.
    ///
    /// # Cost
    /// If the event is already there, the first poll returns it. Otherwise two short locks and no allocation,
    /// unless more requests are pending than recently: 1024 spare entries are kept, or as many as are
    /// pending.
    ///
    /// # Cancel safety
    /// Cancel safe if the detector is: a future dropped before its event asks the detector to forget
    /// the request. An event that arrived in the meantime is dropped with it; the detector's
    /// documentation says whether anything is lost.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait(&self, request: D::Request) -> Wait<D, &Self> {
        Wait { handle: self, state: WaitState::New(Some(request)), before_submit: None }
    }

    /// Like [`wait`](Self::wait), but the future owns a handle.
    pub fn wait_owned(&self, request: D::Request) -> Wait<D> {
        Wait { handle: self.clone(), state: WaitState::New(Some(request)), before_submit: None }
    }

    /// Makes one request with many events (multishot). It is submitted at once and stays pending
    /// until the stream is dropped or the detector ends it. Use it as a reusable waiter in
    /// poll-style code.
    ///
    /// # Errors
    /// [`WaitError`] if the detector refuses the request.
    pub fn stream(&self, request: D::Request) -> Result<EventStream<D>, WaitError> {
        match self.user.inner.submit(request, Mode::Stream, None)? {
            Submission::Pending(key, slot) => Ok(EventStream { handle: self.clone(), key, slot }),
            Submission::Ready(_) => unreachable!("invariant: a stream is never over at once"),
        }
    }

    /// Calls `f` with the detector, under the handle's lock, for those of the detector's own
    /// methods that do not wait. Returns `None` once the server is shut down, and in a forked
    /// child.
    pub fn with_detector<T>(&self, f: impl FnOnce(&mut D) -> T) -> Option<T> {
        self.user.inner.with_detector(f)
    }

    /// Returns whether a parent of this process registered it.
    pub(crate) fn is_inherited(&self) -> bool {
        self.user.inner.shared().is_inherited()
    }

    /// Returns whether no further event can come: the server is shut down, or is a parent's. Two
    /// loads.
    pub(crate) fn is_over(&self) -> bool {
        let shared = self.user.inner.shared();
        shared.is_inherited() || shared.is_closed()
    }

    /// Returns why no further event can come.
    pub(crate) fn end(&self) -> WaitError {
        self.user.inner.end()
    }

    /// Returns whether both are the same registered detector.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.user.inner, &other.user.inner)
    }

    /// Passes a readiness event to the detector, on the thread that saw it. The caller wakes the
    /// waiters.
    pub(crate) fn deliver(&self, ready_event: PollerEvent, batch: &mut WakeList) {
        let inner = &*self.user.inner;
        inner.poll(PollCause::Ready(&[ready_event]), inner.driver.now(), batch);
    }

    /// Polls the detector on this thread, whether or not anything is pending: for the conformance
    /// suite.
    pub(crate) fn poll_now(&self) {
        let mut batch = WakeList::default();
        let inner = &*self.user.inner;
        inner.poll(PollCause::Poll, inner.driver.now(), &mut batch);
        batch.wake_all();
    }

    /// Returns the history of this handle, and the present strategy.
    #[must_use]
    pub fn history(&self) -> (History, Strategy) {
        self.user.inner.history()
    }

    /// Returns how many requests are pending.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.user.inner.pending_count()
    }

    /// Returns the name under which the handle was registered.
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
    Pending(Key, Arc<EventSlot<D::Event>>),
    Over,
}

/// The request moves to the detector's side before it needs a stable address.
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
            // In case the submission panics.
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
            SlotItem::Event(event) | SlotItem::Relief(event) => Ok(event),
            SlotItem::End(SlotEnd::Failed(error)) => Err(error),
            SlotItem::End(SlotEnd::Finished) => Err(WaitError::Ended),
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

/// The events of one multishot request: see [`Handle::stream`].
pub struct EventStream<D: Detector> {
    handle: Handle<D>,
    key: Key,
    slot: Arc<EventSlot<D::Event>>,
}

impl<D: Detector> EventStream<D> {
    /// Takes the oldest event, or registers the waker of `cx` for the next one, replacing an
    /// earlier waker. `Ready(None)` is the end.
    ///
    /// # Cost
    /// One lock that only this stream's waiter and the poll that fills it share. No allocation.
    ///
    /// # Errors
    /// [`WaitError`], once; then the stream is at its end.
    pub fn poll_event(&self, cx: &Context<'_>) -> Poll<Option<Result<D::Event, WaitError>>> {
        self.slot.poll(cx).map(|taken| match taken {
            SlotItem::Event(event) => Some(Ok(event)),
            SlotItem::Relief(event) => {
                // The detector holds events back; there is room for them now.
                self.handle.user.inner.driver.notify();
                Some(Ok(event))
            }
            SlotItem::End(SlotEnd::Failed(error)) => Some(Err(error)),
            SlotItem::End(SlotEnd::Finished) => None,
        })
    }

    /// Registers `waker` for the next event or the end: see [`EventSlot::register`].
    ///
    /// # Errors
    /// The error with which the stream has ended; [`WaitError::ServerClosed`] in a forked child, which no thread wakes and where the
    /// lock may have been held at the fork.
    pub(crate) fn register(&self, waker: &Waker, waiter: WaiterKind<'_>) -> Result<(), WaitError> {
        if self.handle.is_inherited() {
            return Err(WaitError::ServerClosed);
        }
        self.slot.register(waker, waiter)
    }

    /// Gives up the place of a waiter that leaves.
    pub(crate) fn unregister(&self, place: WaiterToken) {
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
    /// Those of [`poll_event`](Self::poll_event).
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
