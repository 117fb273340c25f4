//! Copies for somebody who watches.

use vigie_detect::Instant;

use crate::{
    model::{Sees, StageModel, Writes},
    packet::{Packet, Port},
    pipeline::{Offload, Stage, Stock, Verdict},
};

/// Sends a copy of each packet, as it is when it comes to this stage, to a port.
///
/// A copy for which there is no room is dropped and counted; what was copied goes on.
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

    /// Copies only what has arrived on a port.
    pub const fn from(mut self, port: Port) -> Self {
        self.from = Some(port);
        self
    }

    /// Returns where copies go.
    #[must_use]
    pub const fn port(&self) -> Port {
        self.to
    }

    /// Returns on which port has arrived what is copied; without one, on any.
    #[must_use]
    pub const fn arrival(&self) -> Option<Port> {
        self.from
    }
}

impl Stage for Mirror {
    fn model(&self) -> StageModel {
        // It needs no byte, but every packet.
        StageModel::new("mirror").sees(Sees::Everything).writes(Writes::No)
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet, _: Instant) -> Verdict {
        if self.from.is_none_or(|from| from == packet.arrival()) {
            Verdict::Copy(self.to)
        } else {
            Verdict::Pass
        }
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Stock(Stock::Mirror(self))
    }
}
