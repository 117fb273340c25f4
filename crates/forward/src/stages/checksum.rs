//! Checksums of whole packets.

use super::verdict::{UNREADABLE, Verdict};
use crate::{
    drop_reason::DropReason,
    packet::{Packet, Verified},
};

/// The treatment of checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChecksumMode {
    /// Packets with a wrong checksum are dropped ([`DropReason::ChecksumWrong`]).
    Verify,
    /// Packets with a wrong checksum of the IPv4 header are dropped; others are not checked.
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

    /// Verifies or fills the checksums of a packet.
    #[inline]
    pub(super) fn decide(self, packet: &mut Packet) -> Verdict {
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
}
