//! Connections: the streams of bytes that TCP and Unix sockets share.

use std::{
    cell::Cell,
    fmt,
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    pin::Pin,
    task::{Context, Poll},
};

use rustix::{
    io::Errno,
    net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, send, sendmsg},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    fill,
    halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf},
    simulated,
    socket::{self, StreamSocket},
};
use crate::{
    builtin::{Direction, Readiness},
    detector::{Interest, Ready},
    detectors::AsyncFd,
    network::NetworkSocket,
    server::{Handle, Server},
    sync::Arc,
};

/// A connection: [`TcpStream`](super::TcpStream) or [`UnixStream`](super::UnixStream).
///
/// Reading and writing go through [`AsyncRead`] and [`AsyncWrite`], or the `try_` methods after
/// [`readable`](Self::readable) and [`writable`](Self::writable). A write never raises `SIGPIPE`.
///
/// Dropping it closes the connection in both directions.
pub struct Stream<S: StreamSocket> {
    /// In virtual time: dropped first, since the descriptor is its name.
    simulated: Option<NetworkSocket>,
    fd: AsyncFd<S>,
}

impl<S: StreamSocket> Stream<S> {
    socket::shared_methods!(S, ready);

    /// Takes over a connected socket and puts it into non-blocking mode.
    ///
    /// # Errors
    /// Same as [`AsyncFd::new`].
    pub fn from_std(socket: S) -> io::Result<Self> {
        Self::from_std_on(&Server::current()?, socket)
    }

    /// Like [`from_std`](Self::from_std), on `server`.
    ///
    /// # Errors
    /// Same as [`AsyncFd::new`].
    pub fn from_std_on(server: &Server, socket: S) -> io::Result<Self> {
        Self::watched_by(server.readiness(), socket::unblocked(socket)?)
    }

    /// Takes over a connected socket that is already in non-blocking mode.
    pub(super) fn watched_by(readiness: &Handle<Readiness>, socket: S) -> io::Result<Self> {
        Ok(Self { simulated: None, fd: AsyncFd::watched_by(readiness, socket)? })
    }

    /// Takes over a connection of the simulated network, known by `name`.
    pub(super) fn simulated(
        readiness: &Handle<Readiness>,
        name: S,
        simulated: NetworkSocket,
    ) -> io::Result<Self> {
        Ok(Self { simulated: Some(simulated), fd: AsyncFd::watched_by(readiness, name)? })
    }

    /// Waits for a socket whose connect has begun.
    pub(super) async fn connected(
        server: &Server,
        socket: S,
        simulated: Option<NetworkSocket>,
    ) -> io::Result<Self> {
        let fd = AsyncFd::unready_watched_by(server.readiness(), socket)?;
        let stream = Self { simulated, fd };
        loop {
            let seen = stream.fd.ready(Direction::Write).await?;
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            match stream.peer_addr() {
                Ok(_) => return Ok(stream),
                // A readiness event for a predecessor: the connection is still being established.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                    stream.fd.clear_ready(seen);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the connection of the simulated network that it stands for.
    pub(super) const fn as_simulated(&self) -> Option<&NetworkSocket> {
        self.simulated.as_ref()
    }

    /// Returns the descriptor, for operations of other kinds: `sendfile`, `recvmsg`.
    #[must_use]
    pub const fn as_async_fd(&self) -> &AsyncFd<S> {
        &self.fd
    }

    /// Returns the address of this end.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn local_addr(&self) -> io::Result<S::Address> {
        match &self.simulated {
            None => self.fd.as_inner().local_address(),
            Some(simulated) => simulated::local_address::<S>(simulated),
        }
    }

    /// Returns the address of the other end.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::NotConnected`] if the connection was reset.
    pub fn peer_addr(&self) -> io::Result<S::Address> {
        match &self.simulated {
            None => self.fd.as_inner().peer_address(),
            Some(simulated) => simulated::peer_address::<S>(simulated),
        }
    }

    /// Returns how many bytes have arrived and were not read (`FIONREAD`), whether or not that was announced.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn unread_bytes(&self) -> io::Result<u64> {
        match &self.simulated {
            None => Ok(rustix::io::ioctl_fionread(&self.fd)?),
            Some(simulated) => simulated.unread_bytes(),
        }
    }

    /// Returns how many written bytes the peer's machine has not acknowledged, in virtual time; `None` for a socket of the kernel, which
    /// answers `TIOCOUTQ`.
    #[doc(hidden)]
    #[must_use]
    pub fn simulated_unsent_bytes(&self) -> Option<u64> {
        Some(self.simulated.as_ref()?.unsent_bytes().unwrap_or(0))
    }

    /// Waits until a read is worth trying: see [`try_read`](Self::try_read).
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// Same as [`AsyncFd::ready`].
    pub async fn readable(&self) -> io::Result<()> {
        self.fd.ready(Direction::Read).await.map(|_| ())
    }

    /// Waits until a write is worth trying: see [`try_write`](Self::try_write).
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// Same as [`AsyncFd::ready`].
    pub async fn writable(&self) -> io::Result<()> {
        self.fd.ready(Direction::Write).await.map(|_| ())
    }

    /// The poll-style [`readable`](Self::readable); one waiting task in common with all polls that
    /// read.
    ///
    /// # Errors
    /// Same as [`AsyncFd::poll_ready`].
    pub fn poll_read_ready(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.fd.poll_ready(Direction::Read, cx).map_ok(|_| ())
    }

    /// The poll-style [`writable`](Self::writable); one waiting task in common with all polls that
    /// write.
    ///
    /// # Errors
    /// Same as [`AsyncFd::poll_ready`].
    pub fn poll_write_ready(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.fd.poll_ready(Direction::Write, cx).map_ok(|_| ())
    }

    /// Reads the available bytes into `buffer` and returns their number; zero is the end of the
    /// stream.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if nothing is there; the kernel's error.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let asked = Self::asked(buffer.len());
        self.fd.try_transfer(Direction::Read, asked, |socket| match &self.simulated {
            None => receive(socket, buffer, RecvFlags::empty()),
            Some(simulated) => simulated.read(&mut ReadBuf::new(buffer), false),
        })
    }

    /// Like [`try_read`](Self::try_read), into several buffers, filled in order.
    ///
    /// # Errors
    /// Same as [`try_read`](Self::try_read).
    pub fn try_read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let count = buffers.len().min(SLICES_MAX);
        let buffers = &mut buffers[..count];
        let room = total(buffers.iter().map(|buffer| buffer.len()));
        if room == 0 {
            return Ok(0);
        }
        self.fd.try_transfer(Direction::Read, Self::asked(room), |socket| match &self.simulated {
            None => Ok(rustix::io::readv(socket, buffers)?),
            Some(simulated) => simulated.read_vectored(buffers),
        })
    }

    /// Like [`try_read`](Self::try_read), into the free part of `buffer`, which then has that many bytes more.
    ///
    /// # Errors
    /// Same as [`try_read`](Self::try_read).
    #[cfg(feature = "bytes")]
    pub fn try_read_buf<B: bytes::BufMut>(&self, buffer: &mut B) -> io::Result<usize> {
        self.fd.try_io(Direction::Read, |socket| {
            let receive =
                |room: &mut ReadBuf<'_>| self.receive_into(socket, room, RecvFlags::empty());
            fill::into_buf(buffer, receive).map(|(count, _)| count)
        })
    }

    /// Writes as much of `bytes` as there is room for, and returns the number of bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no room; [`io::ErrorKind::BrokenPipe`] or
    /// [`io::ErrorKind::ConnectionReset`] if the peer no longer reads.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.fd.try_transfer(Direction::Write, bytes.len(), |socket| self.transmit(socket, bytes))
    }

    /// Like [`try_write`](Self::try_write), from several buffers in order; only the first 1024 are
    /// used.
    ///
    /// # Errors
    /// Same as [`try_write`](Self::try_write).
    pub fn try_write_vectored(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let (buffers, asked) = sendable(buffers);
        if asked == 0 {
            return Ok(0);
        }
        self.fd
            .try_transfer(Direction::Write, asked, |socket| self.transmit_vectored(socket, buffers))
    }

    /// Copies available bytes into `buffer` without taking them, and returns their number; zero is
    /// the end of the stream. Waits until there is something.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken out of the stream.
    ///
    /// # Errors
    /// The kernel's error; those of [`AsyncFd::ready`].
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let peek = |socket: &S| match &self.simulated {
            None => receive(socket, buffer, RecvFlags::PEEK),
            Some(simulated) => simulated.read(&mut ReadBuf::new(buffer), true),
        };
        self.fd.async_io(Direction::Read, peek).await
    }

    /// The poll-style [`peek`](Self::peek), into the unfilled part of `buffer`.
    ///
    /// # Errors
    /// Same as [`peek`](Self::peek).
    pub fn poll_peek(&self, cx: &Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(0));
        }
        self.fd.poll_io(Direction::Read, cx, |socket| {
            self.receive_into(socket, buffer, RecvFlags::PEEK)
        })
    }

    /// Splits the stream into a read half and a write half, for two futures of one task. Free.
    pub const fn split(&mut self) -> (ReadHalf<'_, S>, WriteHalf<'_, S>) {
        (ReadHalf::new(self), WriteHalf::new(self))
    }

    /// Splits the stream into halves that two tasks can own, at the cost of an allocation.
    ///
    /// Dropping the write half shuts the connection down in that direction.
    #[must_use = "dropping the halves closes the connection"]
    pub fn into_split(self) -> (OwnedReadHalf<S>, OwnedWriteHalf<S>) {
        let stream = Arc::new(self);
        let read = OwnedReadHalf::new(Arc::clone(&stream));
        (read, OwnedWriteHalf::new(stream))
    }

    /// The number of bytes to compare a read of up to `room` bytes with: 0 if a short read tells
    /// nothing.
    const fn asked(room: usize) -> usize {
        if S::SHORT_READ_EMPTIES { room } else { 0 }
    }

    pub(super) fn poll_read_into(
        &self,
        cx: &Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let asked = Cell::new(Self::asked(buffer.remaining()));
        let read = self.fd.poll_transfer(Direction::Read, cx, &asked, |socket| {
            let Some(simulated) = &self.simulated else {
                return fill::receive(socket, buffer, RecvFlags::empty());
            };
            let (count, is_empty) = simulated.read_and_see(buffer)?;
            if is_empty {
                // As if the read had been short.
                asked.set(usize::MAX);
            }
            Ok(count)
        });
        read.map_ok(|_| ())
    }

    /// Receives into the unfilled part of `buffer`, or peeks.
    fn receive_into(
        &self,
        socket: &S,
        buffer: &mut ReadBuf<'_>,
        flags: RecvFlags,
    ) -> io::Result<usize> {
        match &self.simulated {
            None => fill::receive(socket, buffer, flags),
            Some(simulated) => simulated.read(buffer, flags.contains(RecvFlags::PEEK)),
        }
    }

    fn transmit(&self, socket: &S, bytes: &[u8]) -> io::Result<usize> {
        match &self.simulated {
            None => Ok(send(socket, bytes, SendFlags::NOSIGNAL)?),
            Some(simulated) => simulated.write(&[IoSlice::new(bytes)]),
        }
    }

    fn transmit_vectored(&self, socket: &S, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(simulated) = &self.simulated else {
            let mut control = SendAncillaryBuffer::default();
            return Ok(sendmsg(socket, buffers, &mut control, SendFlags::NOSIGNAL)?);
        };
        simulated.write(buffers)
    }

    pub(super) fn poll_write_from(
        &self,
        cx: &Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.fd.poll_transfer(Direction::Write, cx, &Cell::new(bytes.len()), |socket| {
            self.transmit(socket, bytes)
        })
    }

    pub(super) fn poll_write_from_vectored(
        &self,
        cx: &Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let (buffers, asked) = sendable(buffers);
        if asked == 0 {
            return Poll::Ready(Ok(0));
        }
        self.fd.poll_transfer(Direction::Write, cx, &Cell::new(asked), |socket| {
            self.transmit_vectored(socket, buffers)
        })
    }

    /// Returns whether a parent of this process watches it.
    pub(super) fn is_inherited(&self) -> bool {
        self.fd.readiness().is_inherited()
    }

    /// Ends writing, as [`AsyncWrite::poll_shutdown`] does; the peer sees the end of the stream. Does nothing if the connection
    /// has already ended.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn finish_writing(&self) -> io::Result<()> {
        if let Some(simulated) = &self.simulated {
            simulated.finish_writing();
            return Ok(());
        }
        match rustix::net::shutdown(&self.fd, Shutdown::Write) {
            Ok(()) | Err(Errno::NOTCONN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The most buffers of one vectored call: the kernel's `UIO_MAXIOV`.
const SLICES_MAX: usize = 1024;

/// Returns the buffers that one call takes, and their total length.
fn sendable<'a, 'b>(buffers: &'a [IoSlice<'b>]) -> (&'a [IoSlice<'b>], usize) {
    let buffers = &buffers[..buffers.len().min(SLICES_MAX)];
    (buffers, total(buffers.iter().map(|buffer| buffer.len())))
}

/// Adds up lengths. The same bytes may be in several slices, so the sum may exceed the memory.
fn total(lengths: impl Iterator<Item = usize>) -> usize {
    lengths.fold(0, usize::saturating_add)
}

fn receive(socket: &impl AsFd, room: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    let (received, _) = recv(socket, room, flags)?;
    Ok(received)
}

impl<S: StreamSocket> AsyncRead for Stream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_read_into(cx, buffer)
    }
}

impl<S: StreamSocket> AsyncWrite for Stream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_from(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_from_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.finish_writing())
    }
}

impl<S: StreamSocket> AsFd for Stream<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<S: StreamSocket> AsRawFd for Stream<S> {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl<S: StreamSocket> fmt::Debug for Stream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.simulated {
            None => f.debug_tuple("Stream").field(self.fd.as_inner()).finish(),
            Some(simulated) => f.debug_tuple("Stream").field(simulated).finish(),
        }
    }
}
