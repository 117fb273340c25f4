//! The relay's interface to streams.

use std::{
    io,
    task::{Context, Poll},
};

use super::{pipes::Pipe, resources::RelayResources};

/// A stream: [`Connection`](super::Connection), one with TLS, or a simulated one in tests.
///
/// One task waits in each direction. A read or a fill of no bytes means the end of the stream.
pub(super) trait RelayStream {
    /// Waits until it is worth trying to read or to fill. Ready by default.
    fn poll_readable(&self, _: &Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_read(&self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>>;

    fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Asks to be woken only when this many bytes are available, or no more will come. A waiting task is woken if that
    /// is already the case. Ask for no more than is sure to come; does nothing by default.
    fn wake_at(&self, _: usize) {}

    /// Moves at most `bytes` from the stream into an empty pipe.
    fn poll_fill(&self, _: &Context<'_>, _: &Pipe, _: usize) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Moves at most `bytes` from a pipe that holds as many into the stream.
    fn poll_empty(&self, _: &Context<'_>, _: &Pipe, _: usize) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Ends writing, once what must come before the end has left. Has no effect on a stream that is already over.
    fn poll_finish(&self, cx: &Context<'_>) -> Poll<io::Result<()>>;

    /// Makes dropping the stream an error for the peer instead of an end.
    fn reset(&self);

    /// Returns how many written bytes a reset would discard.
    fn unsent_bytes(&self) -> usize;

    fn can_splice(&self) -> bool {
        false
    }
}

/// The context of a poll of one direction.
pub(super) struct PumpContext<'a, A, B> {
    pub(super) from: &'a A,
    pub(super) to: &'a B,
    pub(super) resources: &'a RelayResources,
    /// The bytes moved so far.
    pub(super) moved: &'a mut u64,
}
