//! The errors that end a relayed connection early.

use std::{fmt, io, net::IpAddr, time::Duration};

use thiserror::Error;

use super::{access::RefusedClient, endpoint::Endpoint, framed::FrameError, proxy::ProxyError};
use crate::model::SwitchingMode;

named! {
    /// A peer of the relay.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[expect(clippy::exhaustive_enums, reason = "a relay stands between two")]
    pub enum Peer {
        /// The peer that connected to the relay.
        Client => "client",
        /// The peer that the relay connected to.
        Upstream => "upstream",
    }
}

impl Peer {
    /// Returns the peer on the other side of the relay.
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Upstream,
            Self::Upstream => Self::Client,
        }
    }
}

/// The reason why a relayed connection ended before both peers had finished.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RelayError {
    /// No upstream was reachable.
    #[error("no upstream is reachable: {}", listed(attempts))]
    NoUpstream {
        /// The upstreams in the order of the attempts, each with its error.
        attempts: Vec<(Endpoint, io::Error)>,
    },
    /// An upstream was not reachable, and the budget of retries did not allow trying another one.
    #[error(
        "no other upstream is tried, since too many connections do (`retries`): {}",
        listed(attempts)
    )]
    OverRetryBudget {
        /// The upstreams that were tried, each with its error.
        attempts: Vec<(Endpoint, io::Error)>,
    },
    /// A peer reset the connection, or the kernel closed it with an error.
    #[error("the connection to the {peer} failed: {source}")]
    Failed {
        /// The peer.
        peer: Peer,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// A peer had ended its stream, and then did not take what the other one still sent: it has closed the connection.
    #[error("the {peer} had ended its stream, and takes no more bytes: {source}")]
    Closed {
        /// The peer.
        peer: Peer,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// A peer closed the connection without TLS's end (`close_notify`), and what it had sent may have been cut.
    #[error(
        "the {peer} closed the connection without TLS's close_notify, so its last bytes may be missing"
    )]
    Unclean {
        /// The peer.
        peer: Peer,
    },
    /// No traffic in either direction for the idle time-out.
    #[error("no traffic for {after:?}: raise the idle time-out if peers may be silent longer")]
    Idle {
        /// The idle time-out.
        after: Duration,
    },
    /// A peer closed or reset its stream in the middle of a message.
    #[error("the {peer} broke off after {received} of {length} bytes of a message ({})", outcome(*mode))]
    Torn {
        /// The sender of the message.
        peer: Peer,
        /// Bytes of the message received, including its header.
        received: u64,
        /// Bytes of the whole message, including its header; 0 if the header was incomplete.
        length: u64,
        /// Cut-through if the receiver has got a part of it.
        mode: SwitchingMode,
        /// The reset; `None` if the stream was closed.
        #[source]
        source: Option<io::Error>,
    },
    /// A message with an invalid length.
    #[error("a message of the {peer} is refused: {source}")]
    Frame {
        /// The sender of the message.
        peer: Peer,
        /// The cause.
        #[source]
        source: FrameError,
    },
    /// The client's address is not served.
    #[error(transparent)]
    Denied(#[from] RefusedClient),
    /// The client's source has as many connections as it may.
    #[error("{client}, or its network, has as many connections as `per_source_max` allows")]
    OverSourceMax {
        /// The client.
        client: IpAddr,
    },
    /// The client sent no valid PROXY protocol header.
    #[error("the client's header is refused: {0}")]
    Proxy(#[from] ProxyError),
    /// The TLS handshake with the client failed.
    #[cfg(feature = "tls")]
    #[error("TLS with the client failed: {0}")]
    Tls(#[from] super::tls::TlsError),
    /// The relay was drained, and the deadline passed.
    #[error("the relay ended before the connection did")]
    Cut,
}

/// A connection that was closed without TLS's end.
#[derive(Debug, Error)]
#[error("it was closed without TLS's close_notify, so its last bytes may be missing")]
pub(super) struct UncleanEnd {
    /// It ended within a record, a part of which was lost.
    pub(super) is_cut: bool,
}

impl From<UncleanEnd> for io::Error {
    fn from(end: UncleanEnd) -> Self {
        Self::new(io::ErrorKind::UnexpectedEof, end)
    }
}

/// The streams that have ended as they should: for each, how many bytes had come from the other peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EndedStreams {
    pub(super) up: Option<u64>,
    pub(super) down: Option<u64>,
}

impl EndedStreams {
    const fn of(self, peer: Peer) -> Option<u64> {
        match peer {
            Peer::Client => self.up,
            Peer::Upstream => self.down,
        }
    }
}

impl RelayError {
    /// Tells the close of a connection from its failure. `bytes` have come from client and upstream. `Ok` with the peer that has closed it without
    /// TLS's end, but had answered, and had sent nothing more since the other one ended its own stream: most programs close so then.
    pub(super) fn or_close(self, ended: EndedStreams, bytes: (u64, u64)) -> Result<Peer, Self> {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        let Self::Failed { peer, source } = self else { return Err(self) };
        if let Some(end) = source.get_ref().and_then(|inner| inner.downcast_ref::<UncleanEnd>()) {
            let sent = if peer == Peer::Client { bytes.0 } else { bytes.1 };
            let is_quiet = sent > 0 && ended.of(peer.other()) == Some(sent) && !end.is_cut;
            return if is_quiet { Ok(peer) } else { Err(Self::Unclean { peer }) };
        }
        if ended.of(peer).is_some() && matches!(source.kind(), BrokenPipe | ConnectionReset) {
            return Err(Self::Closed { peer, source });
        }
        Err(Self::Failed { peer, source })
    }
}

/// Returns the targets that were tried, each with its error.
pub(super) fn listed(attempts: &[(impl fmt::Display, io::Error)]) -> String {
    if attempts.is_empty() {
        return "no address of any is known".to_owned();
    }
    let shown = attempts.iter().map(|(target, error)| format!("{target}: {error}"));
    shown.collect::<Vec<_>>().join(", ")
}

const fn outcome(mode: SwitchingMode) -> &'static str {
    match mode {
        SwitchingMode::StoreAndForward => "nothing of it was forwarded, but a reset",
        SwitchingMode::CutThrough => "a part was forwarded, then a reset",
    }
}

/// An end of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamSide {
    From,
    To,
}

/// The failure of one direction.
#[derive(Debug)]
pub(super) enum PumpError {
    Io { side: StreamSide, source: io::Error },
    Torn { received: u64, length: u64, mode: SwitchingMode, source: Option<io::Error> },
    Frame(FrameError),
}

impl PumpError {
    pub(super) const fn io(side: StreamSide, source: io::Error) -> Self {
        Self::Io { side, source }
    }

    /// Names the peers, given the sender of this direction.
    pub(super) fn between(self, from: Peer) -> RelayError {
        let to = from.other();
        match self {
            Self::Io { side, source } => {
                let peer = if side == StreamSide::From { from } else { to };
                RelayError::Failed { peer, source }
            }
            Self::Torn { received, length, mode, source } => {
                RelayError::Torn { peer: from, received, length, mode, source }
            }
            Self::Frame(source) => RelayError::Frame { peer: from, source },
        }
    }
}
