//! The relays that are measured, and their measurements.

use serde::{Deserialize, Serialize};

use super::links::LinkPace;
use super::peers::RelayPeer;
use crate::report::Subject;

/// Connections up to which a relay with a process for each is measured.
const PROCESSES_MAX: u32 = 256;

/// The relay under test, or its substitute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RelayKind {
    /// Source and sink are connected directly.
    Direct,
    /// vigie's relay with its default settings.
    Vigie,
    VigieCopy,
    VigieSplice,
    Framed(FramedKind),
    Peer(RelayPeer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FramedKind {
    Planned,
    Stored,
    Cut,
}

impl RelayKind {
    /// Whether it can end TLS.
    pub(super) const fn speaks_tls(self) -> bool {
        use RelayPeer::{Haproxy, Nginx};
        matches!(self, Self::Vigie | Self::Peer(Haproxy | Nginx))
    }

    /// Whether it can hold so many streams: socat has a process for each.
    pub(super) fn holds(self, connections: u32) -> bool {
        self != Self::Peer(RelayPeer::Socat) || connections <= PROCESSES_MAX
    }

    /// Whether it can relay datagrams.
    pub(super) const fn relays_datagrams(self) -> bool {
        matches!(self, Self::Direct | Self::Vigie | Self::Peer(RelayPeer::Nginx))
    }

    pub(super) const fn subject(self) -> Subject {
        let (name, label) = match self {
            Self::Direct => ("direct", "no relay"),
            Self::Vigie => ("vigie", "vigie"),
            Self::VigieCopy => ("vigie-copy", "vigie, copy"),
            Self::VigieSplice => ("vigie-splice", "vigie, splice"),
            Self::Framed(FramedKind::Planned) => ("framed", "framed, planned"),
            Self::Framed(FramedKind::Stored) => ("framed-stored", "framed, store-and-forward"),
            Self::Framed(FramedKind::Cut) => ("framed-cut", "framed, cut-through"),
            Self::Peer(peer) => (peer.name(), peer.label()),
        };
        Subject::Carrier { name, label }
    }
}

/// The measurement of one relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RelayMeasure {
    Stream {
        connections: u32,
    },
    Latency {
        connections: u32,
    },
    FramedStream,
    FramedLatency,
    /// A stream on each connection.
    Throughput {
        connections: u32,
    },
    /// A message in flight on each connection.
    Echo {
        connections: u32,
    },
    /// The same, encrypted between the source and the relay.
    TlsEcho {
        connections: u32,
    },
    /// Datagrams of so many clients, one way.
    Datagrams {
        clients: u32,
    },
    /// A stream from the sink to the source, which the relay encrypts, then handshakes of the source.
    Tls {
        connections: u32,
    },
}

impl RelayMeasure {
    /// Whether the relay has a core of its own, and is the program that users run if it is vigie's.
    pub(super) const fn is_apart(self) -> bool {
        matches!(
            self,
            Self::Throughput { .. }
                | Self::Echo { .. }
                | Self::TlsEcho { .. }
                | Self::Tls { .. }
                | Self::Datagrams { .. }
        )
    }

    /// The links between source, relay and sink, unless they use loopback.
    pub(super) const fn links(self) -> Option<LinkPace> {
        match self {
            Self::FramedLatency => Some(LinkPace::Gigabit),
            Self::Datagrams { .. } => Some(LinkPace::Unbounded),
            _ => None,
        }
    }

    /// Whether the relay ends TLS.
    pub(super) const fn is_encrypted(self) -> bool {
        matches!(self, Self::Tls { .. } | Self::TlsEcho { .. })
    }
}
