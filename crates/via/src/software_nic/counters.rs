//! The counters of a software NIC.

/// Counters of a software NIC since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoftwareNicCounters {
    /// Packets handed to the wire.
    pub packets_sent: u64,
    /// Packets that arrived.
    pub packets_received: u64,
    /// Of those, packets without a valid tag or CRC, malformed, or outside a window. They changed nothing.
    pub packets_refused: u64,
    /// Of those, data for an unknown connection, or from another path than its own.
    pub packets_without_connection: u64,
    /// Fragments that were sent again.
    pub fragments_sent_again: u64,
    /// Fragments that arrived again, or too late to be useful.
    pub fragments_repeated: u64,
    /// Connections whose peer was silent for too long.
    pub peers_silent: u64,
    /// Failures of the wire.
    pub wire_errors: u64,
}
