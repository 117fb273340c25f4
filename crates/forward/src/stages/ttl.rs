//! One router less.

use vigie_detect::Instant;

use super::refused;
use crate::{
    model::{Sees, StageModel, Writes},
    packet::Packet,
    pipeline::{Offload, Stage, Stock, Verdict},
};

/// Lets each packet of IP cross one router less, and drops what would cross none
/// ([`Reason::TtlExpired`](crate::pipeline::Reason::TtlExpired)). What is no IP is dropped.
///
/// The pipeline tells its sender, if it [is to](crate::pipeline::PipelineBuilder::answers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a pipeline takes it"]
#[expect(clippy::exhaustive_structs, reason = "there is nothing to set")]
pub struct Ttl;

impl Ttl {
    /// Creates the stage.
    pub const fn new() -> Self {
        Self
    }
}

impl Stage for Ttl {
    fn model(&self) -> StageModel {
        StageModel::new("ttl").sees(Sees::Header).writes(Writes::Yes)
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet, _: Instant) -> Verdict {
        match packet.decrement_ttl() {
            Ok(_) => Verdict::Pass,
            Err(error) => refused(&error),
        }
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Stock(Stock::Ttl(self))
    }
}
