//! A message and how it is cut into packets.

use crate::error::ModelError;
pub use crate::error::PACKETS_MAX;

/// A message of ℓ bytes in nb(ℓ) packets of sz(ℓ) bytes [fast-forward, §2.1].
///
/// *Deviation:* the paper assumes ℓ = nb(ℓ) × sz(ℓ). Here any ℓ is cut into packets of equal size, rounded up, so that
/// the last one may be up to nb − 1 bytes shorter; the formulas treat it as full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    bytes: u64,
    nb: u32,
}

impl Message {
    /// Creates a message that is not cut: nb(ℓ) = 1, sz(ℓ) = ℓ.
    ///
    /// # Errors
    /// [`ModelError::EmptyMessage`] if `bytes` is zero.
    pub const fn whole(bytes: u64) -> Result<Self, ModelError> {
        if bytes == 0 { Err(ModelError::EmptyMessage) } else { Ok(Self { bytes, nb: 1 }) }
    }

    /// Creates a message of `bytes` in the fewest packets of at most `packet_bytes_max`.
    ///
    /// ```
    /// # use vigie_forward::Message;
    /// let message = Message::cut(8192, 2048)?;
    /// assert_eq!((message.nb(), message.sz()), (4, 2048));
    /// # Ok::<(), vigie_forward::ModelError>(())
    /// ```
    ///
    /// # Errors
    /// [`ModelError`] if a size is zero, or [`PACKETS_MAX`] packets are not enough.
    pub fn cut(bytes: u64, packet_bytes_max: u64) -> Result<Self, ModelError> {
        if bytes == 0 {
            return Err(ModelError::EmptyMessage);
        }
        if packet_bytes_max == 0 {
            return Err(ModelError::EmptyPackets);
        }
        let count = bytes.div_ceil(packet_bytes_max);
        let nb = u32::try_from(count).ok().filter(|nb| *nb <= PACKETS_MAX);
        let nb = nb.ok_or(ModelError::TooManyPackets { count })?;
        Ok(Self { bytes, nb })
    }

    /// Returns ℓ, the length in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns nb(ℓ), the number of packets.
    #[must_use]
    pub const fn nb(self) -> u32 {
        self.nb
    }

    /// Returns sz(ℓ), the bytes of a packet.
    #[must_use]
    pub fn sz(self) -> u64 {
        self.bytes.div_ceil(u64::from(self.nb))
    }
}
