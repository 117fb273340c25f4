//! Which relays are measured, and what of them.

use serde::{Deserialize, Serialize};

use super::peers::RelayPeer;
use crate::report::Subject;

/// The relay under test, or what stands in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
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

impl Kind {
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

/// What is measured of one relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Measure {
    Stream { connections: u32 },
    Latency { connections: u32 },
    FramedStream,
    FramedLatency,
}
