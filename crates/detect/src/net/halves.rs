//! The two directions of a [`Stream`], for two futures or two tasks.

use std::{
    error, fmt,
    io::{self, IoSlice, IoSliceMut},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{socket::StreamSocket, stream::Stream};
use crate::{
    detector::{Interest, Ready},
    sync::Arc,
};

/// The read half of a borrowed [`Stream`]: see [`Stream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a, S: StreamSocket> {
    stream: &'a Stream<S>,
}

/// The write half of a borrowed [`Stream`]: see [`Stream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a, S: StreamSocket> {
    stream: &'a Stream<S>,
}

/// The read half of a [`Stream`]: see [`Stream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf<S: StreamSocket> {
    stream: Arc<Stream<S>>,
}

/// The write half of a [`Stream`]: see [`Stream::into_split`]. Dropping it shuts the connection down in
/// that direction: the peer reads what was written, and then the end. In a forked child it does not,
/// since the connection is the parent's.
#[derive(Debug)]
pub struct OwnedWriteHalf<S: StreamSocket> {
    stream: Arc<Stream<S>>,
    on_drop: OnDrop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnDrop {
    Shutdown,
    Nothing,
}

impl<'a, S: StreamSocket> ReadHalf<'a, S> {
    pub(super) const fn new(stream: &'a Stream<S>) -> Self {
        Self { stream }
    }
}

impl<'a, S: StreamSocket> WriteHalf<'a, S> {
    pub(super) const fn new(stream: &'a Stream<S>) -> Self {
        Self { stream }
    }

    fn finish_writing(&self) -> io::Result<()> {
        self.stream.finish_writing()
    }
}

impl<S: StreamSocket> OwnedReadHalf<S> {
    pub(super) const fn new(stream: Arc<Stream<S>>) -> Self {
        Self { stream }
    }

    /// Puts the two halves of a stream back together.
    ///
    /// # Errors
    /// Returns both halves if they belong to different streams.
    pub fn reunite(self, write: OwnedWriteHalf<S>) -> Result<Stream<S>, ReuniteError<S>> {
        write.reunite(self)
    }
}

impl<S: StreamSocket> OwnedWriteHalf<S> {
    pub(super) const fn new(stream: Arc<Stream<S>>) -> Self {
        Self { stream, on_drop: OnDrop::Shutdown }
    }

    /// Puts the two halves of a stream back together.
    ///
    /// # Errors
    /// Returns both halves if they belong to different streams.
    #[expect(clippy::missing_panics_doc, reason = "a stream has two halves, and no third owner")]
    pub fn reunite(self, read: OwnedReadHalf<S>) -> Result<Stream<S>, ReuniteError<S>> {
        if !Arc::ptr_eq(&self.stream, &read.stream) {
            return Err(ReuniteError(read, self));
        }
        self.forget();
        Ok(Arc::into_inner(read.stream).expect("invariant: a stream has two halves"))
    }

    /// Ends the direction. The drop then leaves it alone.
    fn finish_writing(&mut self) -> io::Result<()> {
        self.stream.finish_writing()?;
        self.on_drop = OnDrop::Nothing;
        Ok(())
    }

    /// Drops the half without shutting the connection down.
    pub fn forget(mut self) {
        self.on_drop = OnDrop::Nothing;
    }
}

impl<S: StreamSocket> Drop for OwnedWriteHalf<S> {
    fn drop(&mut self) {
        // A forked child shares the connection, which is the parent's to end.
        if self.on_drop == OnDrop::Shutdown
            && !self.stream.is_inherited()
            && let Err(error) = self.stream.finish_writing()
        {
            tracing::debug!(%error, "a connection could not be shut down for writing");
        }
    }
}

/// The error if the halves belong to different streams; it has both.
#[expect(clippy::exhaustive_structs, reason = "tokio's type of the same name")]
pub struct ReuniteError<S: StreamSocket>(pub OwnedReadHalf<S>, pub OwnedWriteHalf<S>);

impl<S: StreamSocket> fmt::Debug for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReuniteError").field(&self.0).field(&self.1).finish()
    }
}

impl<S: StreamSocket> fmt::Display for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the two halves belong to different streams")
    }
}

impl<S: StreamSocket> error::Error for ReuniteError<S> {}

impl<S: StreamSocket> AsRef<Stream<S>> for ReadHalf<'_, S> {
    fn as_ref(&self) -> &Stream<S> {
        self.stream
    }
}

impl<S: StreamSocket> AsRef<Stream<S>> for WriteHalf<'_, S> {
    fn as_ref(&self) -> &Stream<S> {
        self.stream
    }
}

impl<S: StreamSocket> AsRef<Stream<S>> for OwnedReadHalf<S> {
    fn as_ref(&self) -> &Stream<S> {
        &self.stream
    }
}

impl<S: StreamSocket> AsRef<Stream<S>> for OwnedWriteHalf<S> {
    fn as_ref(&self) -> &Stream<S> {
        &self.stream
    }
}

/// The methods of a [`Stream`] that make sense on a half.
macro_rules! impl_half {
    ($half:ty, read) => {
        impl_half!($half, both);

        impl<S: StreamSocket> $half {
            /// Same as [`Stream::readable`].
            ///
            /// # Cancel safety
            /// Cancel safe.
            ///
            /// # Errors
            /// Same as [`Stream::readable`].
            pub async fn readable(&self) -> io::Result<()> {
                self.stream.readable().await
            }

            /// Same as [`Stream::try_read`].
            ///
            /// # Errors
            /// Same as [`Stream::try_read`].
            pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
                self.stream.try_read(buffer)
            }

            /// Same as [`Stream::try_read_vectored`].
            ///
            /// # Errors
            /// Same as [`Stream::try_read`].
            pub fn try_read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.stream.try_read_vectored(buffers)
            }

            /// Same as [`Stream::peek`].
            ///
            /// # Cancel safety
            /// Cancel safe.
            ///
            /// # Errors
            /// Same as [`Stream::peek`].
            pub async fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.stream.peek(buffer).await
            }

            /// Same as [`Stream::poll_peek`].
            ///
            /// # Errors
            /// Same as [`Stream::peek`].
            pub fn poll_peek(
                &mut self,
                cx: &Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<usize>> {
                self.stream.poll_peek(cx, buffer)
            }
        }

        impl<S: StreamSocket> AsyncRead for $half {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                self.stream.poll_read_into(cx, buffer)
            }
        }
    };
    ($half:ty, write) => {
        impl_half!($half, both);

        impl<S: StreamSocket> $half {
            /// Same as [`Stream::writable`].
            ///
            /// # Cancel safety
            /// Cancel safe.
            ///
            /// # Errors
            /// Same as [`Stream::writable`].
            pub async fn writable(&self) -> io::Result<()> {
                self.stream.writable().await
            }

            /// Same as [`Stream::try_write`].
            ///
            /// # Errors
            /// Same as [`Stream::try_write`].
            pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
                self.stream.try_write(bytes)
            }

            /// Same as [`Stream::try_write_vectored`].
            ///
            /// # Errors
            /// Same as [`Stream::try_write`].
            pub fn try_write_vectored(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
                self.stream.try_write_vectored(buffers)
            }
        }

        impl<S: StreamSocket> AsyncWrite for $half {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.stream.poll_write_from(cx, bytes)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffers: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.stream.poll_write_from_vectored(cx, buffers)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(self.get_mut().finish_writing())
            }
        }
    };
    ($half:ty, both) => {
        impl<S: StreamSocket> $half {
            /// Same as [`Stream::ready`].
            ///
            /// # Cancel safety
            /// Cancel safe.
            ///
            /// # Errors
            /// Same as [`Stream::ready`].
            pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                self.stream.ready(interest).await
            }

            /// Same as [`Stream::local_addr`].
            ///
            /// # Errors
            /// The kernel's error.
            pub fn local_addr(&self) -> io::Result<S::Address> {
                self.stream.local_addr()
            }

            /// Same as [`Stream::peer_addr`].
            ///
            /// # Errors
            /// Same as [`Stream::peer_addr`].
            pub fn peer_addr(&self) -> io::Result<S::Address> {
                self.stream.peer_addr()
            }
        }
    };
}

impl_half!(ReadHalf<'_, S>, read);
impl_half!(OwnedReadHalf<S>, read);
impl_half!(WriteHalf<'_, S>, write);
impl_half!(OwnedWriteHalf<S>, write);
