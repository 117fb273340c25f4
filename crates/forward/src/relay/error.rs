//! How a relayed connection can end before its time.

use std::{fmt, io, time::Duration};

use thiserror::Error;

use super::{endpoint::Endpoint, framed::FrameError, proxy::ProxyError};
use crate::model::Mode;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a relay stands between two")]
pub enum Peer {
    /// Who connected to the relay.
    Client,
    /// Whom the relay connected to.
    Upstream,
}

impl Peer {
    /// Returns the one at the other side of the relay.
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Upstream,
            Self::Upstream => Self::Client,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Client => "client",
            Self::Upstream => "upstream",
        })
    }
}

/// Why a relayed connection ended before both peers had said all.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RelayError {
    /// No upstream could be reached.
    #[error("no upstream can be reached: {}", listed(attempts))]
    NoUpstream {
        /// Each upstream in the order in which they were tried, and what came of it.
        attempts: Vec<(Endpoint, io::Error)>,
    },
    /// A peer reset the connection, or the kernel failed it.
    #[error("the connection to the {peer} failed")]
    Failed {
        /// Which.
        peer: Peer,
        /// How.
        #[source]
        source: io::Error,
    },
    /// Nothing moved in either direction.
    #[error("nothing moved for {after:?}: raise the idle time-out if peers may be silent longer")]
    Idle {
        /// The idle time-out.
        after: Duration,
    },
    /// A peer ended or reset its stream in the middle of a message.
    #[error("the {peer} broke off after {received} of {length} bytes of a message ({})", fate(*mode))]
    Torn {
        /// Who broke off.
        peer: Peer,
        /// Bytes of the message that arrived, with its header.
        received: u64,
        /// Bytes that it should have had, with its header; 0 if not even the header was complete.
        length: u64,
        /// Whether the receiver has got a part of it.
        mode: Mode,
        /// The reset, if it was no end.
        #[source]
        source: Option<io::Error>,
    },
    /// A message's length cannot be.
    #[error("a message of the {peer} is refused")]
    Frame {
        /// Who sent it.
        peer: Peer,
        /// Why.
        #[source]
        source: FrameError,
    },
    /// What should have been a header of the PROXY protocol was none.
    #[error("the client's header is refused")]
    Proxy(#[from] ProxyError),
    /// The relay was drained, and its deadline came.
    #[error("the relay ended before the connection did")]
    Cut,
}

fn listed(attempts: &[(Endpoint, io::Error)]) -> String {
    if attempts.is_empty() {
        return "none is configured".to_owned();
    }
    let shown = attempts.iter().map(|(endpoint, error)| format!("{endpoint}: {error}"));
    shown.collect::<Vec<_>>().join(", ")
}

const fn fate(mode: Mode) -> &'static str {
    match mode {
        Mode::StoreAndForward => "nothing of it was forwarded, but a reset",
        Mode::CutThrough => "a part was forwarded, then a reset",
    }
}

/// Which end of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    From,
    To,
}

/// How one direction failed.
#[derive(Debug)]
pub(super) enum Fault {
    Io { side: Side, source: io::Error },
    Torn { received: u64, length: u64, mode: Mode, source: Option<io::Error> },
    Frame(FrameError),
}

impl Fault {
    pub(super) const fn io(side: Side, source: io::Error) -> Self {
        Self::Io { side, source }
    }

    /// Says which peers it was, given who sends in this direction.
    pub(super) fn between(self, from: Peer) -> RelayError {
        let to = from.other();
        match self {
            Self::Io { side, source } => {
                let peer = if side == Side::From { from } else { to };
                RelayError::Failed { peer, source }
            }
            Self::Torn { received, length, mode, source } => {
                RelayError::Torn { peer: from, received, length, mode, source }
            }
            Self::Frame(source) => RelayError::Frame { peer: from, source },
        }
    }
}
