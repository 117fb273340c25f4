//! A time limit for the bytes by which the server tells HTTP/2 from HTTP/1.
//!
//! hyper reads them before it knows the version, and its limits for heads are those of a version: without this one, a client that
//! connects and sends nothing would hold its connection for ever.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use hyper::rt::{Read, ReadBufCursor, Write};

use crate::time::{self, Sleep};

/// With these bytes, HTTP/2 begins; whatever differs from them is HTTP/1.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream that fails unless its first bytes tell the version in time.
pub(super) struct Opening<S> {
    stream: S,
    /// `None` once the version is known.
    limit: Option<Limit>,
}

struct Limit {
    end: Sleep,
    /// How many bytes of the preface have come.
    seen: usize,
}

impl<S> Opening<S> {
    pub(super) fn new(stream: S, time: Duration) -> Self {
        Self { stream, limit: Some(Limit { end: time::sleep(time), seen: 0 }) }
    }
}

impl Limit {
    /// Returns whether these bytes, the next ones, still leave the version open.
    fn is_open_after(&mut self, bytes: &[u8]) -> bool {
        let is_preface = !bytes.is_empty() && PREFACE[self.seen..].starts_with(bytes);
        self.seen += bytes.len();
        is_preface && self.seen < PREFACE.len()
    }
}

impl<S: Read + Unpin> Read for Opening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, limit } = &mut *self;
        let Some(opening) = limit else { return Pin::new(stream).poll_read(cx, buffer) };
        // Into a buffer of ours, since the bytes in hyper's cannot be read again. So no more than the preface comes at once.
        let mut bytes = [0; PREFACE.len()];
        let room = bytes.len().min(buffer.remaining());
        let mut read = hyper::rt::ReadBuf::new(&mut bytes[..room]);
        match Pin::new(stream).poll_read(cx, read.unfilled()) {
            Poll::Ready(Ok(())) => {
                buffer.put_slice(read.filled());
                if !opening.is_open_after(read.filled()) {
                    *limit = None;
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Pin::new(&mut opening.end).poll(cx).map(|()| {
                Err(io::Error::new(io::ErrorKind::TimedOut, "no request has begun in time"))
            }),
        }
    }
}

impl<S: Write + Unpin> Write for Opening<S> {
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
        Pin::new(&mut self.stream).poll_shutdown(cx)
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
                    let mut limit = Limit { end: time::sleep(Duration::MAX), seen: 0 };
                    let open = bytes.chunks(size).take_while(|piece| limit.is_open_after(piece));
                    assert_eq!(open.count(), (known_after - 1) / size, "{size}");
                }
            }
            let mut limit = Limit { end: time::sleep(Duration::MAX), seen: 0 };
            assert!(!limit.is_open_after(b""), "the end of the stream");
        });
    }
}
