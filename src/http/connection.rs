//! One connection of the server, from its first bytes, which have a time limit, to its close, which loses nothing.
//!
//! **The beginning.** hyper reads the bytes by which it tells HTTP/2 from HTTP/1 before it knows the version, and its limits for
//! heads are those of a version: without a limit of ours, a client that connects and sends nothing would hold its connection for ever.
//!
//! **The end.** When hyper is told to shut down, it closes an idle connection without reading the socket again, and the kernel
//! resets a connection that is closed over unread bytes: the client would lose a request that it had sent in time, or an answer that it
//! had not read yet. So the server reads what has come before it tells hyper, and what comes while it closes.

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{rt::TokioIo, server::graceful::GracefulConnection};
use tokio::sync::watch;
use vigie_detect::net::{Stream, StreamSocket};

use super::unless;
use crate::time::{self, Sleep};

/// With these bytes, HTTP/2 begins; whatever differs from them is HTTP/1.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The time that a client that still sends may take to read the last answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of bytes that are read from it meanwhile.
const CLOSE_BYTES_MAX: usize = 4 << 20;

/// Serves a connection until it ends. When `shutdown` changes, the requests that have come are still answered.
pub(super) async fn serve<C: GracefulConnection>(
    connection: C,
    unread: Arc<Unread>,
    mut shutdown: watch::Receiver<()>,
) -> Result<(), C::Error> {
    let mut connection = pin!(connection);
    if let Some(ended) = unless(pin!(shutdown.changed()), connection.as_mut()).await {
        return ended;
    }
    unread.is_wanted.store(true, Ordering::Relaxed);
    let ended = poll_fn(|cx| {
        unread.is_there.store(false, Ordering::Relaxed);
        match connection.as_mut().poll(cx) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            // It waits to be readable, which it is: its waker is about to be called.
            Poll::Pending if unread.is_there.load(Ordering::Relaxed) => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        }
    });
    if let Some(ended) = ended.await {
        return ended;
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

/// The state that a connection's task shares with its stream, which hyper owns. Only that task uses it.
#[derive(Default)]
pub(super) struct Unread {
    /// The task wants to know whether bytes are left when hyper waits for some.
    is_wanted: AtomicBool,
    /// The kernel has bytes of which the scheduler has not heard yet.
    is_there: AtomicBool,
}

/// The stream of a connection. It fails unless its first bytes tell the version in time.
pub(super) struct ServerStream<S: StreamSocket> {
    stream: TokioIo<Stream<S>>,
    /// `None` once the version is known.
    opening: Option<Opening>,
    unread: Arc<Unread>,
    /// While the last answer is on its way to a client that still sends.
    closing: Option<Closing>,
}

struct Opening {
    end: Sleep,
    /// The number of bytes of the preface that have come.
    seen: usize,
}

struct Closing {
    end: Sleep,
    left_bytes: usize,
}

impl<S: StreamSocket> ServerStream<S> {
    pub(super) fn new(stream: Stream<S>, time: Duration) -> Self {
        let opening = Some(Opening { end: time::sleep(time), seen: 0 });
        Self { stream: TokioIo::new(stream), opening, unread: Arc::default(), closing: None }
    }

    pub(super) const fn unread(&self) -> &Arc<Unread> {
        &self.unread
    }

    /// Returns whether the kernel has bytes that were not read.
    fn has_unread(&self) -> bool {
        self.stream.inner().unread_bytes().is_ok_and(|bytes| bytes > 0)
    }
}

impl Opening {
    /// Returns whether these bytes, the next ones, still leave the version open.
    fn is_open_after(&mut self, bytes: &[u8]) -> bool {
        let is_preface = !bytes.is_empty() && PREFACE[self.seen..].starts_with(bytes);
        self.seen += bytes.len();
        is_preface && self.seen < PREFACE.len()
    }
}

impl<S: StreamSocket> ServerStream<S> {
    fn poll_read_opening(
        &mut self,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(opening) = &mut self.opening else {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        };
        // Into a buffer of ours, since the bytes in hyper's cannot be read again. So no more than the preface comes at once.
        let mut bytes = [0; PREFACE.len()];
        let room = bytes.len().min(buffer.remaining());
        let mut read = hyper::rt::ReadBuf::new(&mut bytes[..room]);
        match Pin::new(&mut self.stream).poll_read(cx, read.unfilled()) {
            Poll::Ready(Ok(())) => {
                buffer.put_slice(read.filled());
                if !opening.is_open_after(read.filled()) {
                    self.opening = None;
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Pin::new(&mut opening.end).poll(cx).map(|()| {
                Err(io::Error::new(io::ErrorKind::TimedOut, "no request has begun in time"))
            }),
        }
    }

    /// Reads what the client still sends, for a while, until it has closed the connection.
    fn poll_closing(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(closing) = &mut self.closing else { return Poll::Ready(()) };
        let mut bytes = [0; 4096];
        while closing.left_bytes > 0 {
            let mut read = hyper::rt::ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(cx, read.unfilled()) {
                Poll::Ready(Ok(())) if !read.filled().is_empty() => {
                    closing.left_bytes = closing.left_bytes.saturating_sub(read.filled().len());
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Pin::new(&mut closing.end).poll(cx),
            }
        }
        Poll::Ready(())
    }
}

impl<S: StreamSocket> Read for ServerStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.poll_read_opening(cx, buffer);
        if read.is_pending() && self.unread.is_wanted.load(Ordering::Relaxed) {
            self.unread.is_there.store(self.has_unread(), Ordering::Relaxed);
        }
        read
    }
}

impl<S: StreamSocket> Write for ServerStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closing.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            if !self.has_unread() {
                return Poll::Ready(Ok(()));
            }
            let end = time::sleep(CLOSE_TIMEOUT);
            self.closing = Some(Closing { end, left_bytes: CLOSE_BYTES_MAX });
        }
        self.poll_closing(cx).map(Ok)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the limit ends exactly when hyper knows the version. Method: beginnings in pieces of each size.
    #[test]
    fn the_version_is_known() {
        crate::Runtime::builder().workers(1).build().expect("a runtime").block_on(async {
            for (bytes, known_after) in [
                (PREFACE, PREFACE.len()),
                (&b"GET / HTTP/1.1"[..], 1),
                (b"PRI * HTTP/1.1", 12),
                (b"POST /", 2),
            ] {
                for size in 1..=bytes.len() {
                    let mut limit = Opening { end: time::sleep(Duration::MAX), seen: 0 };
                    let open = bytes.chunks(size).take_while(|piece| limit.is_open_after(piece));
                    assert_eq!(open.count(), (known_after - 1) / size, "{size}");
                }
            }
            let mut limit = Opening { end: time::sleep(Duration::MAX), seen: 0 };
            assert!(!limit.is_open_after(b""), "the end of the stream");
        });
    }
}
