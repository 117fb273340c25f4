//! Decrements the TTL.

use vigie_detect::Instant;

use super::refused;
use crate::{
    model::{Sees, StageModel, Writes},
    packet::Packet,
    pipeline::{BuiltinStage, Offload, Stage, Verdict},
};

/// Decrements the TTL or hop limit of each IP packet, and drops packets whose limit runs out
/// ([`DropReason::TtlExpired`](crate::pipeline::DropReason::TtlExpired)). Frames that are not IP are dropped.
///
/// The pipeline tells the sender, if [configured](crate::pipeline::PipelineBuilder::icmp_errors).
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
        Offload::Builtin(BuiltinStage::Ttl(self))
    }
}
