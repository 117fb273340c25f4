//! What the kernel says of a frame beside its bytes.

/// What is known of the checksum of the packet in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checksum {
    /// Nobody has looked at it.
    Unknown,
    /// The network card or the kernel found it right.
    Verified,
    /// Its sender has left it to a network card, and there was none on the way, as between the ends of a
    /// veth pair: the packet is intact, and its checksum field is not filled in.
    /// [`complete_checksum`](super::complete_checksum) does that.
    Missing,
}

/// The status word of AF_PACKET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Status(pub(super) u32);

impl Status {
    /// The slot belongs to us.
    pub(super) const USER: u32 = 1;
    const CHECKSUM_MISSING: u32 = 1 << 3;
    const TAG_VALID: u32 = 1 << 4;
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

    pub(super) const fn has_tag(self) -> bool {
        self.0 & Self::TAG_VALID != 0
    }
}
