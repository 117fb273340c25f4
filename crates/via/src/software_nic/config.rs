//! The configuration of a software NIC.

use std::time::Duration;

use vigie_detect::setters;

use super::packet::PACKET_BYTES_MAX;

/// The configuration of a software NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoftwareNicConfig {
    pub(crate) keep_alive: Duration,
    pub(crate) dead_after: Duration,
    pub(crate) packet_bytes_max: usize,
    pub(crate) window_bytes: usize,
    pub(crate) is_tagged: bool,
}

impl SoftwareNicConfig {
    setters! {
        /// Sets the silence after which a peer is asked whether it is there. Default 2 s.
        keep_alive: Duration,

        /// Sets the time without an answer after which a peer counts as dead. Default 10 s.
        dead_after: Duration,

        /// Sets the longest packet, whatever the path takes, in bytes: 1200 to 65 000, other values count as the nearest. Default 65 000.
        packet_bytes_max: usize,

        /// Sets the bytes of one connection that may be in flight to this NIC; four packets if that is more. Default 128 KiB; a wire with
        /// smaller buffers loses what does not fit.
        window_bytes: usize,

        /// Gives each packet a tag under a key of its connection in place of a CRC: 8 bytes, and about a nanosecond per byte, on either side. Both ends of a
        /// connection must agree. Default `false`: only calls have tags, and an attacker that can read packets in transit can forge some.
        is_tagged: bool,
    }
}

impl Default for SoftwareNicConfig {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(2),
            dead_after: Duration::from_secs(10),
            packet_bytes_max: PACKET_BYTES_MAX,
            window_bytes: 128 << 10,
            is_tagged: false,
        }
    }
}
