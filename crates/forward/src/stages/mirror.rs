//! Copies of packets, for monitoring.

use super::verdict::Verdict;
use crate::packet::{Packet, Port};

/// Sends a copy of each packet, as it is at this stage, to a port.
///
/// A copy for which there is no room is dropped and counted; the original is unaffected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a pipeline takes it"]
pub struct Mirror {
    to: Port,
    from: Option<Port>,
}

impl Mirror {
    /// Creates a stage that copies everything to a port.
    pub const fn to(to: Port) -> Self {
        Self { to, from: None }
    }

    /// Copies only packets that arrived on a port.
    pub const fn from(mut self, port: Port) -> Self {
        self.from = Some(port);
        self
    }

    /// Returns the port for copies.
    #[must_use]
    pub const fn port(&self) -> Port {
        self.to
    }

    /// Returns the ingress port whose packets are copied; `None` for all.
    #[must_use]
    pub const fn ingress(&self) -> Option<Port> {
        self.from
    }

    /// Copies a packet, if it arrived on the port.
    #[inline]
    pub(super) fn decide(self, packet: &Packet) -> Verdict {
        if self.from.is_none_or(|from| from == packet.ingress()) {
            Verdict::Copy(self.to)
        } else {
            Verdict::Pass
        }
    }
}
