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
