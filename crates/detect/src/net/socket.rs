//! The differences between the families of sockets.

use std::{
    fmt,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    pin::pin,
    task::Poll,
};

use rustix::{
    io::Errno,
    net::{SocketAddrAny, SocketFlags, acceptfrom_with},
};

use crate::{
    builtin::Direction,
    detector::{Interest, Ready},
    detectors::AsyncFd,
};

/// A socket of the standard library of a kind that has an asynchronous form here. Sealed.
pub trait Socket: sealed::Sealed + AsFd + fmt::Debug + Send + Sync + Unpin + 'static {
    /// The address of one end of the socket.
    type Address: Clone + fmt::Debug + Send + Sync + 'static;

    #[doc(hidden)]
    fn local_address(&self) -> io::Result<Self::Address>;

    /// Returns an address in the simulated network, which stands for `name` if it has one.
    #[doc(hidden)]
    fn simulated_address(address: SocketAddr, name: Option<Vec<u8>>) -> Self::Address;
}

/// A connected socket that carries bytes: TCP or Unix. Sealed.
pub trait StreamSocket: Socket {
    /// True if a read of fewer bytes than requested shows that there are no more for now.
    #[doc(hidden)]
    const SHORT_READ_EMPTIES: bool;

    #[doc(hidden)]
    fn peer_address(&self) -> io::Result<Self::Address>;
}

/// A socket that accepts connections: TCP or Unix. Sealed.
pub trait ListenerSocket: Socket {
    /// The type of its connections.
    type Stream: StreamSocket<Address = Self::Address> + From<OwnedFd>;

    /// Accepts one connection, in non-blocking mode and closed on exec.
    #[doc(hidden)]
    fn accept_one(&self) -> io::Result<(Self::Stream, Self::Address)>;
}

/// A socket that carries datagrams: UDP or Unix. Sealed.
pub trait DatagramSocket: Socket {
    #[doc(hidden)]
    fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, Self::Address)>;
}

pub(super) mod sealed {
    #[expect(unnameable_types, reason = "no other crate shall implement it")]
    pub trait Sealed {}
}

/// The methods that all kinds of sockets have, and with `ready` those of the sockets that carry data.
macro_rules! shared_methods {
    ($socket:ty) => {
        /// Returns the socket, which stays in non-blocking mode.
        ///
        /// # Errors
        /// [`io::ErrorKind::Unsupported`] in virtual time.
        pub fn into_std(self) -> io::Result<$socket> {
            if self.simulated.is_some() {
                return Err(simulated::unsupported(
                    "a simulated socket is none of the standard library: use it as it is",
                ));
            }
            Ok(self.fd.into_inner())
        }

        /// Takes the socket's pending error.
        ///
        /// # Errors
        /// The kernel's error, if the socket no longer exists.
        pub fn take_error(&self) -> io::Result<Option<io::Error>> {
            match &self.simulated {
                None => socket::take_error(self.fd.as_inner()),
                Some(simulated) => simulated.take_error(),
            }
        }
    };
    ($socket:ty, ready) => {
        socket::shared_methods!($socket);

        /// Waits until it is ready for any of `interest`, and returns what it is ready for. The
        /// readiness may be gone by the time you use it.
        ///
        /// # Cancel safety
        /// Cancel safe.
        ///
        /// # Errors
        /// Same as [`AsyncFd::ready`].
        pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
            socket::ready(&self.fd, interest).await
        }

        /// Calls `operation`, which uses the socket itself, if the socket is ready for any of `interest`. If the
        /// operation would block, that readiness is cleared.
        ///
        /// # Errors
        /// [`io::ErrorKind::WouldBlock`] if it is not ready; the error of `operation`.
        pub fn try_io<R>(
            &self,
            interest: Interest,
            operation: impl FnOnce() -> io::Result<R>,
        ) -> io::Result<R> {
            socket::try_io(&self.fd, interest, operation)
        }

        /// Calls `operation`, which uses the socket itself, until it does not block, and waits for `interest` in
        /// between.
        ///
        /// # Cancel safety
        /// Cancel safe: `operation` is never interrupted.
        ///
        /// # Errors
        /// The error of `operation`; those of [`AsyncFd::ready`].
        pub async fn async_io<R>(
            &self,
            interest: Interest,
            operation: impl FnMut() -> io::Result<R>,
        ) -> io::Result<R> {
            socket::async_io(&self.fd, interest, operation).await
        }
    };
}
pub(super) use shared_methods;

/// Waits until the socket is ready for any of `interest`.
pub(super) async fn ready<T: AsFd>(fd: &AsyncFd<T>, interest: Interest) -> io::Result<Ready> {
    match interest {
        Interest::Readable => Ok(fd.ready(Direction::Read).await?.ready),
        Interest::Writable => Ok(fd.ready(Direction::Write).await?.ready),
        Interest::Both => {
            let mut read = pin!(fd.ready(Direction::Read));
            let mut write = pin!(fd.ready(Direction::Write));
            poll_fn(|cx| match (read.as_mut().poll(cx), write.as_mut().poll(cx)) {
                (Poll::Ready(Ok(read)), Poll::Ready(Ok(write))) => {
                    Poll::Ready(Ok(read.ready | write.ready))
                }
                (Poll::Ready(one), _) | (_, Poll::Ready(one)) => {
                    Poll::Ready(one.map(|readable| readable.ready))
                }
                (Poll::Pending, Poll::Pending) => Poll::Pending,
            })
            .await
        }
    }
}

/// Calls `operation` if the socket is ready for any of `interest`, and clears that readiness if it would block.
pub(super) fn try_io<T: AsFd, R>(
    fd: &AsyncFd<T>,
    interest: Interest,
    operation: impl FnOnce() -> io::Result<R>,
) -> io::Result<R> {
    let reads = interest.is_readable()
        && (!interest.is_writable() || fd.try_io(Direction::Read, |_| Ok(())).is_ok());
    let direction = if reads { Direction::Read } else { Direction::Write };
    fd.try_io(direction, |_| operation())
}

/// Calls `operation` until it does not block, waiting for `interest` in between.
pub(super) async fn async_io<T: AsFd, R>(
    fd: &AsyncFd<T>,
    interest: Interest,
    mut operation: impl FnMut() -> io::Result<R>,
) -> io::Result<R> {
    loop {
        ready(fd, interest).await?;
        match try_io(fd, interest, &mut operation) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Puts a socket into non-blocking mode.
pub(super) fn unblocked<S: AsFd>(socket: S) -> io::Result<S> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// Takes the pending error of a socket of the kernel.
pub(super) fn take_error(socket: &impl AsFd) -> io::Result<Option<io::Error>> {
    Ok(rustix::net::sockopt::socket_error(socket)?.err().map(Into::into))
}

/// Accepts a connection, in non-blocking mode and closed on exec.
///
/// Skips connections that failed while they were queued [accept(2), "Error handling"], at most
/// [`RETRIES_MAX`] of them, so that a flood of them cannot occupy the task.
pub(super) fn accept(listener: &impl AsFd) -> io::Result<(OwnedFd, Option<SocketAddrAny>)> {
    let mut retries = 0;
    loop {
        match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            // Not EOPNOTSUPP, which the manual page lists too: a socket that cannot accept streams
            // would return it every time.
            Err(
                Errno::CONNABORTED
                | Errno::INTR
                | Errno::NETDOWN
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH,
            ) if retries < RETRIES_MAX => retries += 1,
            result => return Ok(result?),
        }
    }
}

/// The most failed connections that one accept skips.
const RETRIES_MAX: u32 = 64;
