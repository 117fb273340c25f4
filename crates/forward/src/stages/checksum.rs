//! Checksums of whole packets.

use vigie_detect::Instant;

use super::UNREADABLE;
use crate::{
    cost::{Bandwidth, Cost},
    model::{Sees, StageModel, Writes},
    packet::{Packet, Verified},
    pipeline::{BuiltinStage, DropReason, Offload, Stage, Verdict},
};

/// The treatment of checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChecksumMode {
    /// Packets with a wrong checksum are dropped ([`DropReason::ChecksumWrong`]).
    Verify,
    /// Packets with a wrong checksum of the IPv4 header are dropped; others are not looked at.
    VerifyHeader,
    /// Checksums are recomputed.
    Fill,
}

/// Verifies or computes the checksums of the IPv4 header and of TCP, UDP and ICMP. It must see everything, so messages
/// never cut through it [fast-forward, §5]; except [of the header alone](Self::verify_header), as every router must (RFC
/// 1812, §5.2.2).
///
/// Frames that are not IP, and fragments, pass unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a pipeline takes it"]
pub struct Checksum {
    mode: ChecksumMode,
}

impl Checksum {
    /// Creates a stage that drops packets with wrong checksums.
    pub const fn verify() -> Self {
        Self { mode: ChecksumMode::Verify }
    }

    /// Creates a stage that drops IPv4 packets whose header has a wrong checksum.
    pub const fn verify_header() -> Self {
        Self { mode: ChecksumMode::VerifyHeader }
    }

    /// Creates a stage that recomputes checksums.
    pub const fn fill() -> Self {
        Self { mode: ChecksumMode::Fill }
    }

    /// Returns the treatment.
    #[must_use]
    pub const fn mode(&self) -> ChecksumMode {
        self.mode
    }
}

impl Stage for Checksum {
    fn model(&self) -> StageModel {
        if self.mode == ChecksumMode::VerifyHeader {
            return StageModel::new("header checksum").sees(Sees::Header).writes(Writes::Yes);
        }
        // Unmeasured, assume about 10 GB/s on one core.
        let cost = Bandwidth::new(10_000_000_000).map_or(Cost::ZERO, Cost::per_byte);
        let model = StageModel::new("checksum").sees(Sees::Everything).writes(Writes::Yes);
        model.on_host(cost).on_nic(cost)
    }

    fn process(&mut self, packet: &mut Packet, _: Instant) -> Verdict {
        let done = match self.mode {
            ChecksumMode::Verify => packet.verify(),
            ChecksumMode::VerifyHeader => packet.verify_header(),
            ChecksumMode::Fill => packet.fill_checksums().map(|_| Verified::Right),
        };
        match done {
            Ok(Verified::Wrong) => Verdict::Drop(DropReason::ChecksumWrong),
            Ok(_) => Verdict::Pass,
            Err(_) => UNREADABLE,
        }
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Builtin(BuiltinStage::Checksum(self))
    }
}
