//! Decrements the TTL.

use super::verdict::{Verdict, refused};
use crate::packet::Packet;

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

    /// Decrements the TTL of a packet.
    #[inline]
    pub(super) fn decide(packet: &mut Packet) -> Verdict {
        match packet.decrement_ttl() {
            Ok(_) => Verdict::Pass,
            Err(error) => refused(&error),
        }
    }
}
