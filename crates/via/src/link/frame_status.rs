//! The kernel's report about a frame beside its bytes.

use super::address::EtherType;

/// The state of the checksum of the packet in a frame, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checksum {
    /// It has not been checked.
    Unknown,
    /// The network card or the kernel has verified it.
    Verified,
    /// The sender left it to a network card, and there was none on the way, as between the ends of a veth
    /// pair: the packet is intact, but its checksum field is not filled in.
    /// [`complete_checksum`](super::complete_checksum) does that.
    Missing,
}

/// A VLAN tag that the kernel has removed from a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VlanTag {
    /// The protocol that announced the tag: 0x8100 (802.1Q), or 0x88a8 for an outer tag (802.1ad).
    pub protocol: EtherType,
    /// Priority, drop eligibility, VLAN number.
    pub control: u16,
}

/// The status word of AF_PACKET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameStatus(pub(super) u32);

impl FrameStatus {
    /// The slot belongs to this side.
    pub(super) const USER: u32 = 1;
    const CHECKSUM_MISSING: u32 = 1 << 3;
    const TAG_VALID: u32 = 1 << 4;
    const TAG_PROTOCOL_VALID: u32 = 1 << 6;
    const CHECKSUM_VALID: u32 = 1 << 7;

    pub(super) const fn checksum(self) -> Checksum {
        if self.0 & Self::CHECKSUM_MISSING != 0 {
            Checksum::Missing
        } else if self.0 & Self::CHECKSUM_VALID != 0 {
            Checksum::Verified
        } else {
            Checksum::Unknown
        }
    }

    /// Returns the tag that the kernel has removed: `control` and `protocol` are valid if the status says so.
    pub(super) const fn tag(self, control: u16, protocol: u16) -> Option<VlanTag> {
        if self.0 & Self::TAG_VALID == 0 {
            return None;
        }
        let is_known = self.0 & Self::TAG_PROTOCOL_VALID != 0;
        let protocol = if is_known { EtherType(protocol) } else { EtherType(0x8100) };
        Some(VlanTag { protocol, control })
    }
}
