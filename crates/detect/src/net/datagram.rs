//! Datagrams: what UDP and Unix sockets share.

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    task::{Context, Poll, ready},
};

use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::ReadBuf;

#[cfg(feature = "bytes")]
use super::fill;
use super::{
    simulated,
    socket::{self, DatagramSocket},
};
use crate::{
    builtin::Direction,
    detector::{Interest, Ready},
    detectors::AsyncFd,
    network::NetworkSocket,
    server::Server,
};

/// A socket that carries datagrams: [`UdpSocket`](super::UdpSocket) or
/// [`UnixDatagram`](super::UnixDatagram).
///
/// Any number of tasks may send and receive at once; each datagram goes to one of them. Bytes that do
/// not fit into the receiver's buffer are lost.
pub struct Datagram<S: DatagramSocket> {
    /// In virtual time: dropped first, since the descriptor is its name.
    pub(super) simulated: Option<NetworkSocket>,
    pub(super) fd: AsyncFd<S>,
}

impl<S: DatagramSocket> Datagram<S> {
    socket::shared_methods!(S, ready);

    /// Takes over a socket and puts it into non-blocking mode.
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
        let fd = AsyncFd::new_on(server, socket::unblocked(socket)?)?;
        Ok(Self { simulated: None, fd })
    }

    /// Returns the descriptor, for operations of other kinds: `recvmmsg`, the error queue.
    #[must_use]
    pub const fn as_async_fd(&self) -> &AsyncFd<S> {
        &self.fd
    }

    /// Returns the address to which the socket is bound.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn local_addr(&self) -> io::Result<S::Address> {
        match &self.simulated {
            None => self.fd.as_inner().local_address(),
            Some(simulated) => simulated::local_address::<S>(simulated),
        }
    }

    /// Waits until receiving is worth trying: see [`try_recv`](Self::try_recv).
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// Same as [`AsyncFd::ready`].
    pub async fn readable(&self) -> io::Result<()> {
        self.fd.ready(Direction::Read).await.map(|_| ())
    }

    /// Waits until sending is worth trying: see [`try_send`](Self::try_send).
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// Same as [`AsyncFd::ready`].
    pub async fn writable(&self) -> io::Result<()> {
        self.fd.ready(Direction::Write).await.map(|_| ())
    }

    /// Sends a datagram to the address to which the socket is connected. Returns the number of
    /// bytes, which is all of them.
    ///
    /// # Cancel safety
    /// Cancel safe: the datagram is not sent unless this returns.
    ///
    /// # Errors
    /// The kernel's error, for this datagram or an earlier one:
    /// [`io::ErrorKind::ConnectionRefused`] if no socket receives there, `EMSGSIZE` if it is too
    /// long, `EDESTADDRREQ` or [`io::ErrorKind::NotConnected`] if the socket is not connected. Also
    /// the errors of [`AsyncFd::ready`].
    pub async fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        self.fd.async_io(Direction::Write, |socket| self.transmit(socket, datagram)).await
    }

    /// Waits until there is room to send; the poll-style [`writable`](Self::writable). One waiting task in common with all
    /// polls that send.
    ///
    /// # Errors
    /// Same as [`AsyncFd::poll_ready`].
    pub fn poll_send_ready(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.fd.poll_ready(Direction::Write, cx).map_ok(|_| ())
    }

    /// Waits until a datagram is there; the poll-style [`readable`](Self::readable). One waiting task in common with all
    /// polls that receive.
    ///
    /// # Errors
    /// Same as [`AsyncFd::poll_ready`].
    pub fn poll_recv_ready(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.fd.poll_ready(Direction::Read, cx).map_ok(|_| ())
    }

    /// The poll-style [`send`](Self::send); one waiting task in common with all polls that send.
    ///
    /// # Errors
    /// Same as [`send`](Self::send).
    pub fn poll_send(&self, cx: &Context<'_>, datagram: &[u8]) -> Poll<io::Result<usize>> {
        self.fd.poll_io(Direction::Write, cx, |socket| self.transmit(socket, datagram))
    }

    /// Sends a datagram like [`send`](Self::send), if that can be done without waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no room; otherwise as [`send`](Self::send).
    pub fn try_send(&self, datagram: &[u8]) -> io::Result<usize> {
        self.fd.try_io(Direction::Write, |socket| self.transmit(socket, datagram))
    }

    /// Receives a datagram into `buffer` and returns the number of bytes that fitted.
    ///
    /// # Cancel safety
    /// Cancel safe: a datagram is either returned or still queued.
    ///
    /// # Errors
    /// The kernel's error, also for earlier sends: [`io::ErrorKind::ConnectionRefused`] if no
    /// socket received a datagram. Also the errors of [`AsyncFd::ready`].
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fd
            .async_io(Direction::Read, |socket| self.receive(socket, buffer, RecvFlags::empty()))
            .await
    }

    /// The poll-style [`recv`](Self::recv), into the unfilled part of `buffer`; one waiting task in
    /// common with all polls that receive.
    ///
    /// # Errors
    /// Same as [`recv`](Self::recv).
    pub fn poll_recv(&self, cx: &Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // The whole room: bytes that do not fit are lost.
        let room = buffer.initialize_unfilled();
        let count = ready!(self.fd.poll_io(Direction::Read, cx, |socket| self.receive(
            socket,
            room,
            RecvFlags::empty()
        )))?;
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }

    /// Receives a datagram like [`recv`](Self::recv), if one is there.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no datagram; otherwise as [`recv`](Self::recv).
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fd.try_io(Direction::Read, |socket| self.receive(socket, buffer, RecvFlags::empty()))
    }

    /// Receives a datagram into `buffer`; returns the number of bytes that fitted, and the sender.
    ///
    /// # Cancel safety
    /// Cancel safe: a datagram is either returned or still queued.
    ///
    /// # Errors
    /// Same as [`recv`](Self::recv).
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, S::Address)> {
        self.fd.async_io(Direction::Read, |socket| self.receive_from(socket, buffer)).await
    }

    /// The poll-style [`recv_from`](Self::recv_from), into the unfilled part of `buffer`; one waiting
    /// task in common with all polls that receive.
    ///
    /// # Errors
    /// Same as [`recv`](Self::recv).
    pub fn poll_recv_from(
        &self,
        cx: &Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<S::Address>> {
        let room = buffer.initialize_unfilled();
        let (count, address) =
            ready!(self.fd.poll_io(Direction::Read, cx, |socket| self.receive_from(socket, room)))?;
        buffer.advance(count);
        Poll::Ready(Ok(address))
    }

    /// Receives a datagram like [`recv_from`](Self::recv_from), if one is there.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no datagram; otherwise as [`recv`](Self::recv).
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, S::Address)> {
        self.fd.try_io(Direction::Read, |socket| self.receive_from(socket, buffer))
    }

    /// Waits for a datagram and copies it to `buffer` without taking it; returns the number of bytes
    /// that fitted.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken.
    ///
    /// # Errors
    /// Same as [`recv`](Self::recv).
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fd
            .async_io(Direction::Read, |socket| self.receive(socket, buffer, RecvFlags::PEEK))
            .await
    }

    /// Like [`recv`](Self::recv), into the free part of `buffer`, which then has that many bytes more.
    ///
    /// # Cancel safety
    /// Same as [`recv`](Self::recv).
    ///
    /// # Errors
    /// Same as [`recv`](Self::recv).
    #[cfg(feature = "bytes")]
    pub async fn recv_buf<B: bytes::BufMut>(&self, buffer: &mut B) -> io::Result<usize> {
        self.fd.async_io(Direction::Read, |socket| self.receive_buf(socket, buffer)).await
    }

    /// Like [`try_recv`](Self::try_recv), into the free part of `buffer`, which then has that many bytes more.
    ///
    /// # Errors
    /// Same as [`try_recv`](Self::try_recv).
    #[cfg(feature = "bytes")]
    pub fn try_recv_buf<B: bytes::BufMut>(&self, buffer: &mut B) -> io::Result<usize> {
        self.fd.try_io(Direction::Read, |socket| self.receive_buf(socket, buffer))
    }

    /// Like [`recv_from`](Self::recv_from), into the free part of `buffer`, which then has that many bytes more.
    ///
    /// # Cancel safety
    /// Same as [`recv_from`](Self::recv_from).
    ///
    /// # Errors
    /// Same as [`recv`](Self::recv).
    #[cfg(feature = "bytes")]
    pub async fn recv_buf_from<B: bytes::BufMut>(
        &self,
        buffer: &mut B,
    ) -> io::Result<(usize, S::Address)> {
        self.fd.async_io(Direction::Read, |socket| self.receive_buf_from(socket, buffer)).await
    }

    /// Like [`try_recv_from`](Self::try_recv_from), into the free part of `buffer`, which then has that many bytes more.
    ///
    /// # Errors
    /// Same as [`try_recv_from`](Self::try_recv_from).
    #[cfg(feature = "bytes")]
    pub fn try_recv_buf_from<B: bytes::BufMut>(
        &self,
        buffer: &mut B,
    ) -> io::Result<(usize, S::Address)> {
        self.fd.try_io(Direction::Read, |socket| self.receive_buf_from(socket, buffer))
    }
}

/// The operations, each on the kernel's socket or on the simulated one.
impl<S: DatagramSocket> Datagram<S> {
    fn transmit(&self, socket: &S, datagram: &[u8]) -> io::Result<usize> {
        match &self.simulated {
            None => Ok(send(socket, datagram, SendFlags::NOSIGNAL)?),
            Some(simulated) => simulated.send(datagram, None),
        }
    }

    fn receive(&self, socket: &S, room: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        match &self.simulated {
            None => Ok(recv(socket, room, flags)?.0),
            Some(simulated) => {
                let peeks = flags.contains(RecvFlags::PEEK);
                Ok(simulated.receive(&mut ReadBuf::new(room), peeks)?.0)
            }
        }
    }

    fn receive_from(&self, socket: &S, room: &mut [u8]) -> io::Result<(usize, S::Address)> {
        match &self.simulated {
            None => socket.receive_from(room),
            Some(simulated) => {
                let (count, address) = simulated.receive(&mut ReadBuf::new(room), false)?;
                Ok((count, simulated::address::<S>(simulated, address)))
            }
        }
    }

    #[cfg(feature = "bytes")]
    fn receive_buf(&self, socket: &S, buffer: &mut impl bytes::BufMut) -> io::Result<usize> {
        let receive = |room: &mut ReadBuf<'_>| match &self.simulated {
            None => fill::receive(socket, room, RecvFlags::empty()),
            Some(simulated) => Ok(simulated.receive(room, false)?.0),
        };
        fill::into_buf(buffer, receive).map(|(count, _)| count)
    }

    #[cfg(feature = "bytes")]
    fn receive_buf_from(
        &self,
        socket: &S,
        buffer: &mut impl bytes::BufMut,
    ) -> io::Result<(usize, S::Address)> {
        fill::into_buf(buffer, |room| {
            let (count, address) = self.receive_from(socket, room.initialize_unfilled())?;
            room.advance(count);
            Ok(address)
        })
    }
}

impl<S: DatagramSocket> AsFd for Datagram<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<S: DatagramSocket> AsRawFd for Datagram<S> {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl<S: DatagramSocket> fmt::Debug for Datagram<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.simulated {
            None => f.debug_tuple("Datagram").field(self.fd.as_inner()).finish(),
            Some(simulated) => f.debug_tuple("Datagram").field(simulated).finish(),
        }
    }
}
