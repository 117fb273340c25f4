//! A connection as a session sees it: plain, or inside TLS.

use std::{
    io,
    task::{Context, Poll},
};

#[cfg(feature = "tls")]
use super::tls::TlsStream;
use super::{connection::Connection, pipes::Pipe, stream::RelayStream};

/// A connected stream, with or without TLS.
#[derive(Debug)]
pub(super) enum PeerStream {
    Plain(Connection),
    /// Boxed, since there may be many plain ones beside it.
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

/// The same for both kinds.
macro_rules! either {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self {
            Self::Plain($stream) => $call,
            #[cfg(feature = "tls")]
            Self::Tls($stream) => $call,
        }
    };
}

impl RelayStream for PeerStream {
    fn poll_readable(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_readable(cx))
    }

    fn poll_read(&self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_read(cx, room))
    }

    fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_write(cx, bytes))
    }

    fn wake_at(&self, bytes: usize) {
        either!(self, stream => stream.wake_at(bytes));
    }

    fn poll_fill(&self, cx: &Context<'_>, pipe: &Pipe, bytes: usize) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_fill(cx, pipe, bytes))
    }

    fn poll_empty(&self, cx: &Context<'_>, pipe: &Pipe, bytes: usize) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_empty(cx, pipe, bytes))
    }

    fn poll_finish(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_finish(cx))
    }

    fn reset(&self) {
        either!(self, stream => stream.reset());
    }

    fn unsent_bytes(&self) -> usize {
        either!(self, stream => stream.unsent_bytes())
    }

    fn can_splice(&self) -> bool {
        either!(self, stream => stream.can_splice())
    }
}

/// A client without an upstream yet: reset if its task ends in between, so that it does not take an end of stream for
/// an answer.
#[derive(Debug)]
pub(super) struct PendingClient(Option<PeerStream>);

impl PendingClient {
    pub(super) const fn new(client: Connection) -> Self {
        Self(Some(PeerStream::Plain(client)))
    }

    /// Returns the client's connection, before it speaks TLS.
    pub(super) const fn connection(&self) -> &Connection {
        match &self.0 {
            Some(PeerStream::Plain(connection)) => connection,
            _ => panic!("invariant: asked for before TLS, and taken only with the whole"),
        }
    }

    /// Puts TLS around the connection.
    #[cfg(feature = "tls")]
    pub(super) fn wrap(&mut self, wrap: impl FnOnce(Connection) -> TlsStream) -> &TlsStream {
        let Some(PeerStream::Plain(connection)) = self.0.take() else {
            unreachable!("invariant: wrapped once, and taken only with the whole")
        };
        match self.0.insert(PeerStream::Tls(Box::new(wrap(connection)))) {
            PeerStream::Tls(stream) => stream,
            PeerStream::Plain(_) => unreachable!("invariant: just wrapped"),
        }
    }

    /// Returns the client, to be served or refused.
    pub(super) const fn take(&mut self) -> PeerStream {
        self.0.take().expect("invariant: taken only with the whole")
    }
}

impl Drop for PendingClient {
    fn drop(&mut self) {
        if let Some(client) = &self.0 {
            client.reset();
        }
    }
}
