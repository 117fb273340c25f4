//! Pipes and FIFOs: one-way streams of bytes within the host.

use std::{
    fs::OpenOptions,
    io::{self, IoSlice},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::fs::{FileTypeExt, OpenOptionsExt},
    },
    path::Path,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{fill, socket};
use crate::{
    builtin::Direction,
    detector::{Interest, Ready},
    detectors::AsyncFd,
    server::Server,
};

/// Creates a pipe: bytes written to the sender come out of the receiver.
///
/// # Errors
/// Out of descriptors; otherwise as [`AsyncFd::new`].
pub fn pipe() -> io::Result<(Sender, Receiver)> {
    let (read, write) = io::pipe()?;
    Ok((Sender::from_owned_fd(write.into())?, Receiver::from_owned_fd(read.into())?))
}

/// The end of a pipe or FIFO that is read.
#[derive(Debug)]
pub struct Receiver {
    fd: AsyncFd<OwnedFd>,
}

/// The end of a pipe or FIFO that is written. A write to a pipe without readers fails with
/// [`io::ErrorKind::BrokenPipe`]; the `SIGPIPE` that the kernel sends along is ignored by Rust programs.
#[derive(Debug)]
pub struct Sender {
    fd: AsyncFd<OwnedFd>,
}

/// Implements the methods that both ends share.
macro_rules! impl_end {
    ($end:ident) => {
        impl $end {
            /// Takes over a descriptor and puts it into non-blocking mode.
            ///
            /// # Errors
            /// Same as [`AsyncFd::new`].
            pub fn from_owned_fd(fd: OwnedFd) -> io::Result<Self> {
                Self::from_owned_fd_on(&Server::current()?, fd)
            }

            /// Like [`from_owned_fd`](Self::from_owned_fd), watched at `server`.
            ///
            /// # Errors
            /// Same as [`AsyncFd::new`].
            pub fn from_owned_fd_on(server: &Server, fd: OwnedFd) -> io::Result<Self> {
                Ok(Self { fd: AsyncFd::new_on(server, socket::unblocked(fd)?)? })
            }

            /// Returns the descriptor, in non-blocking mode.
            ///
            /// # Errors
            /// None today; the type is that of tokio's method.
            pub fn into_nonblocking_fd(self) -> io::Result<OwnedFd> {
                Ok(self.fd.into_inner())
            }

            /// Returns the descriptor, in blocking mode, for another process or thread.
            ///
            /// # Errors
            /// The kernel's error.
            pub fn into_blocking_fd(self) -> io::Result<OwnedFd> {
                let fd = self.fd.into_inner();
                rustix::io::ioctl_fionbio(&fd, false)?;
                Ok(fd)
            }

            /// Waits until the end is ready for any of `interest`.
            ///
            /// # Cancel safety
            /// Cancel safe.
            ///
            /// # Errors
            /// Same as [`AsyncFd::ready`].
            pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                socket::ready(&self.fd, interest).await
            }
        }

        impl AsFd for $end {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.fd.as_fd()
            }
        }

        impl AsRawFd for $end {
            fn as_raw_fd(&self) -> RawFd {
                self.fd.as_raw_fd()
            }
        }
    };
}

impl_end!(Receiver);
impl_end!(Sender);

fn open(path: &Path, options: &mut OpenOptions) -> io::Result<OwnedFd> {
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.file_type().is_fifo() {
        let problem = format!("{} is not a FIFO: create one with mkfifo", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    Ok(file.into())
}

impl Receiver {
    /// Opens the FIFO at `path` to read, without waiting for a writer.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if there is no FIFO but another file; the kernel's error.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::from_owned_fd(open(path.as_ref(), OpenOptions::new().read(true))?)
    }

    /// Waits until a read is worth trying.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// Same as [`AsyncFd::ready`].
    pub async fn readable(&self) -> io::Result<()> {
        self.fd.ready(Direction::Read).await.map(|_| ())
    }

    /// Reads the available bytes into `buffer` and returns their number; zero is the end.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if nothing is there; the kernel's error.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fd.try_io(Direction::Read, |fd| Ok(rustix::io::read(fd, &mut *buffer)?))
    }
}

impl Sender {
    /// Opens the FIFO at `path` to write.
    ///
    /// # Errors
    /// `ENXIO` if the FIFO has no reader: try again after a while. [`io::ErrorKind::InvalidInput`] if there is no FIFO but
    /// another file; the kernel's error.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::from_owned_fd(open(path.as_ref(), OpenOptions::new().write(true))?)
    }

    /// Waits until a write is worth trying.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// Same as [`AsyncFd::ready`].
    pub async fn writable(&self) -> io::Result<()> {
        self.fd.ready(Direction::Write).await.map(|_| ())
    }

    /// Writes as much of `bytes` as there is room for, and returns the number of bytes. Up to 4096 bytes are written as a
    /// whole or not at all.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no room; [`io::ErrorKind::BrokenPipe`] if the other end is closed.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.fd.try_io(Direction::Write, |fd| Ok(rustix::io::write(fd, bytes)?))
    }
}

impl AsyncRead for Receiver {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        self.fd.poll_io(Direction::Read, cx, |fd| fill::read(fd, buffer).map(drop))
    }
}

impl AsyncWrite for Sender {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.fd.poll_io(Direction::Write, cx, |fd| Ok(rustix::io::write(fd, bytes)?))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.fd.poll_io(Direction::Write, cx, |fd| Ok(rustix::io::writev(fd, buffers)?))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Does nothing: the reader sees the end once the sender is dropped.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
