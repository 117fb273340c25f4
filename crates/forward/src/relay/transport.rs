//! What a relay needs of a stream.

use std::{
    io,
    task::{Context, Poll},
};

use super::pipes::Pipe;

/// A stream as a relay sees it: [`Connection`](super::Connection), or a simulated one in tests.
///
/// One task waits in each direction. A read or a fill of no bytes is the end of the stream.
pub(super) trait Transport {
    fn poll_read(&self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>>;

    fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Asks to be woken only when so many bytes are there, or no more will come. Who waits already is woken if that is so now. At most
    /// what is sure to come may be asked for; where this is not known, nothing happens.
    fn wake_at(&self, _: usize) {}

    /// Moves at most `bytes` from the stream into an empty pipe.
    fn poll_fill(&self, _: &Context<'_>, _: &Pipe, _: usize) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Moves at most `bytes` from a pipe that holds so many into the stream.
    fn poll_empty(&self, _: &Context<'_>, _: &Pipe, _: usize) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Says that nothing more will be written. A stream that is over already needs no word.
    fn finish_writing(&self) -> io::Result<()>;

    /// Lets the peer see an error instead of an end, once the stream is dropped.
    fn reset(&self);

    /// Returns how many bytes were written that a reset would take back.
    fn unsent_bytes(&self) -> usize;

    fn can_splice(&self) -> bool {
        false
    }
}
