//! The relays that are measured, and their measurements.

use serde::{Deserialize, Serialize};

use super::peers::RelayPeer;
use crate::report::Subject;

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
    Stream { connections: u32 },
    Latency { connections: u32 },
    FramedStream,
    FramedLatency,
}
