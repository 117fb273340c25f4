//! Makes any descriptor asynchronous: the basis of the sockets of [`net`](crate::net).

#[cfg(test)]
mod tests;

use std::{
    cell::Cell,
    fmt,
    future::Future,
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use crate::{
    budget,
    builtin::{Direction, IoSource, Readiness, ReadinessRequest, ReadyEvent},
    detector::Interest,
    request::{WaiterKind, WaiterToken},
    server::{EventStream, Handle, Server, thread_poller},
    sync::Arc,
};

/// A descriptor watched for readiness: sockets, pipes, terminals, eventfds, pidfds.
///
/// The descriptor must be in non-blocking mode. It is watched at one server for the life of this
/// value. In each direction one task may wait with the `poll_` methods (a later one replaces it), and
/// any number with the `async` ones. A readiness event wakes all that wait in its direction.
///
/// Dropped in a forked child, it closes the child's descriptor; the parent's is still watched.
///
/// # Cost
/// A wait takes the lock of its descriptor and direction, and none shared between descriptors: once when it
/// begins, and an `async` one again when it ends. It does not allocate, unless more `async` methods wait in one
/// direction than ever before.
pub struct AsyncFd<T: AsFd> {
    /// `None` only in `into_inner` and `drop`.
    inner: Option<T>,
    readiness: Handle<Readiness>,
    source: Arc<IoSource>,
    reader: EventStream<Readiness>,
    writer: EventStream<Readiness>,
}

impl<T: AsFd> AsyncFd<T> {
    /// Watches `inner` at the [current](Server::current) server.
    ///
    /// # Errors
    /// [`NoServer`](crate::NoServer) as [`io::ErrorKind::NotConnected`]; the kernel's error if the
    /// descriptor cannot be watched: `EPERM` for a regular file, `EBADF` for a closed one.
    pub fn new(inner: T) -> io::Result<Self> {
        Self::new_on(&Server::current()?, inner)
    }

    /// Watches `inner` at `server`.
    ///
    /// # Errors
    /// Same as [`new`](Self::new).
    pub fn new_on(server: &Server, inner: T) -> io::Result<Self> {
        Self::watched_by(server.readiness(), inner)
    }

    /// Watches `inner` at the server of `readiness`.
    pub(crate) fn watched_by(readiness: &Handle<Readiness>, inner: T) -> io::Result<Self> {
        // Tried before waiting: a fresh socket is nearly always writable, and a newly accepted
        // connection often has its first request with it.
        let this = Self::unready_watched_by(readiness, inner)?;
        this.source.assume_ready();
        Ok(this)
    }

    /// Watches `inner`, which is known not to be ready: a socket that is still connecting.
    pub(crate) fn unready_watched_by(readiness: &Handle<Readiness>, inner: T) -> io::Result<Self> {
        let readiness = readiness.clone();
        let source = if thread_poller::is_for(&readiness) {
            readiness.leave_to_threads(inner.as_fd())?
        } else {
            readiness.watch(inner.as_fd(), Interest::Both)?
        };
        let streams = [Direction::Read, Direction::Write].map(|direction| {
            readiness.stream(ReadinessRequest { source: Arc::clone(&source), direction })
        });
        match streams {
            [Ok(reader), Ok(writer)] => {
                Ok(Self { inner: Some(inner), readiness, source, reader, writer })
            }
            [Err(error), _] | [_, Err(error)] => {
                readiness.unwatch(inner.as_fd(), &source);
                Err(error.into())
            }
        }
    }

    /// Returns the handle at which the descriptor is watched. It does not keep the server alive.
    pub(crate) const fn readiness(&self) -> &Handle<Readiness> {
        &self.readiness
    }

    /// Returns the value passed to [`new`](Self::new).
    ///
    /// # Panics
    /// Never: it is missing only while `self` is taken apart.
    #[must_use]
    pub fn as_inner(&self) -> &T {
        self.inner.as_ref().expect("invariant: gone only in into_inner and drop")
    }

    /// Stops watching the descriptor and returns it.
    ///
    /// # Panics
    /// Never: it is missing only while `self` is taken apart.
    #[must_use]
    pub fn into_inner(mut self) -> T {
        let inner = self.inner.take().expect("invariant: gone only in into_inner and drop");
        self.readiness.unwatch(inner.as_fd(), &self.source);
        inner
    }

    /// Returns what the descriptor is ready for, or registers the waker of `cx` for the next
    /// readiness event. At the end of the poll's [budget] it yields, and the readiness stays.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] once the server is shut down.
    #[inline]
    pub fn poll_ready(
        &self,
        direction: Direction,
        cx: &Context<'_>,
    ) -> Poll<io::Result<ReadyEvent>> {
        self.poll_as(WaiterKind::Last, direction, cx)
    }

    #[inline]
    fn poll_as(
        &self,
        waiter: WaiterKind<'_>,
        direction: Direction,
        cx: &Context<'_>,
    ) -> Poll<io::Result<ReadyEvent>> {
        self.source.poll_ready(direction, cx, || {
            // The events stay in the stream, merged into one: the bits are more accurate, since they may
            // have been cleared.
            self.stream(direction).register(cx.waker(), waiter)?;
            if self.source.is_watched_by_server() {
                return Ok(());
            }
            self.watch_here(direction, cx.waker())
        })
    }

    const fn stream(&self, direction: Direction) -> &EventStream<Readiness> {
        match direction {
            Direction::Read => &self.reader,
            Direction::Write => &self.writer,
        }
    }

    /// Returns the wait of one task beside others.
    const fn waiting(&self, direction: Direction) -> Waiting<'_, T> {
        Waiting { fd: self, direction, place: None }
    }

    /// Lets this thread's own poller see the next readiness; or the server's, if there is none or
    /// the waiter is not the thread's task.
    #[cold]
    fn watch_here(&self, direction: Direction, waker: &Waker) -> io::Result<()> {
        let descriptor = self.as_raw_fd();
        if thread_poller::register(&self.readiness, &self.source, direction, descriptor, waker) {
            return Ok(());
        }
        self.readiness.watch_from_now_on(descriptor, &self.source)
    }

    /// Reports that the descriptor was not ready after all; a readiness event newer than `seen`
    /// stays.
    #[inline]
    pub fn clear_ready(&self, seen: ReadyEvent) {
        self.source.clear(seen);
    }

    /// Waits until the descriptor is ready in `direction`. The readiness may be gone by the time
    /// you use it: try, and [clear](Self::clear_ready) it on [`io::ErrorKind::WouldBlock`].
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped wait takes no readiness with it, and the other waits in this direction are woken
    /// regardless.
    ///
    /// # Errors
    /// Those of [`poll_ready`](Self::poll_ready); once the server is shut down, also if the descriptor is
    /// ready.
    pub async fn ready(&self, direction: Direction) -> io::Result<ReadyEvent> {
        if self.readiness.is_over() {
            return Err(crate::WaitError::ServerClosed.into());
        }
        self.waiting(direction).await
    }

    /// Calls `operation` if the descriptor is ready in `direction`, and clears the readiness if the
    /// operation would block.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if it is not ready; the error of `operation`.
    #[inline]
    pub fn try_io<R>(
        &self,
        direction: Direction,
        operation: impl FnOnce(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        let seen = self.source.ready(direction);
        if seen.ready.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let result = operation(self.as_inner());
        if matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            self.source.clear(seen);
        }
        result
    }

    /// Calls `operation` until it does not block, waiting in between.
    ///
    /// # Cancel safety
    /// Cancel safe: `operation` is never interrupted.
    ///
    /// # Errors
    /// The error of `operation`; those of [`poll_ready`](Self::poll_ready).
    pub async fn async_io<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut waiting = self.waiting(direction);
        loop {
            let seen = (&mut waiting).await?;
            match operation(self.as_inner()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.source.clear(seen),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// The poll-style [`async_io`](Self::async_io); one waiting task in each direction.
    ///
    /// # Errors
    /// Same as [`async_io`](Self::async_io).
    #[inline]
    pub fn poll_io<R>(
        &self,
        direction: Direction,
        cx: &Context<'_>,
        mut operation: impl FnMut(&T) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            let seen = ready!(self.poll_ready(direction, cx))?;
            match operation(self.as_inner()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.source.clear(seen),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return Poll::Ready(result),
            }
        }
    }

    /// Like [`try_io`](Self::try_io), for a transfer of `asked` bytes, where a shorter transfer
    /// shows that the kernel's queue is used up; 0 if a shorter transfer shows nothing.
    #[inline]
    pub(crate) fn try_transfer(
        &self,
        direction: Direction,
        asked: usize,
        operation: impl FnOnce(&T) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let seen = self.source.ready(direction);
        if seen.ready.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let result = operation(self.as_inner());
        self.learn(seen, asked, &result);
        result
    }

    /// Like [`poll_io`](Self::poll_io), for a transfer as in [`try_transfer`](Self::try_transfer). The operation may change what it is
    /// compared with.
    #[inline]
    pub(crate) fn poll_transfer(
        &self,
        direction: Direction,
        cx: &Context<'_>,
        asked: &Cell<usize>,
        mut operation: impl FnMut(&T) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let seen = ready!(self.poll_ready(direction, cx))?;
            let result = operation(self.as_inner());
            self.learn(seen, asked.get(), &result);
            match result {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                result => return Poll::Ready(result),
            }
        }
    }

    /// Clears the readiness if the transfer has shown that it is used up.
    ///
    /// epoll announces edges. One comes when bytes arrive after a queue was found empty, or room after
    /// it was found full; and a short transfer proves that as surely as [`io::ErrorKind::WouldBlock`].
    /// Relying on it saves the call that would block. If the queue has changed since, its edge was
    /// announced after `seen`, and stays.
    #[inline]
    fn learn(&self, seen: ReadyEvent, asked: usize, result: &io::Result<usize>) {
        match result {
            // Zero bytes is the end of the stream, which every later read will see as well.
            Ok(moved @ 1..) => {
                if *moved < asked {
                    self.source.clear_used_up(seen);
                }
                budget::note_transfer(*moved);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.source.clear(seen),
            _ => {}
        }
    }
}

/// The wait of one task, which has a place beside others from its first pending poll on. It may be awaited again.
struct Waiting<'a, T: AsFd> {
    fd: &'a AsyncFd<T>,
    direction: Direction,
    place: Option<WaiterToken>,
}

impl<T: AsFd> Future for Waiting<'_, T> {
    type Output = io::Result<ReadyEvent>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.fd.poll_as(WaiterKind::Beside(&mut this.place), this.direction, cx)
    }
}

impl<T: AsFd> Drop for Waiting<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.fd.stream(self.direction).unregister(place);
        }
    }
}

impl<T: AsFd> Drop for AsyncFd<T> {
    fn drop(&mut self) {
        if let Some(inner) = &self.inner {
            self.readiness.unwatch(inner.as_fd(), &self.source);
        }
    }
}

impl<T: AsFd> AsRawFd for AsyncFd<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_inner().as_fd().as_raw_fd()
    }
}

impl<T: AsFd> AsFd for AsyncFd<T> {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.as_inner().as_fd()
    }
}

impl<T: AsFd + fmt::Debug> fmt::Debug for AsyncFd<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncFd").field("inner", &self.inner).finish_non_exhaustive()
    }
}
