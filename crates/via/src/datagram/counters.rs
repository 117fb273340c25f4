//! The traffic of devices and ports.

/// The traffic of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramCounters {
    /// Datagrams that were given to the kernel.
    pub sent: u64,
    /// Datagrams dropped: for a port that this device has not acquired.
    pub no_port: u64,
    /// Datagrams dropped: malformed, cut off, or not from where they claim to be.
    pub malformed: u64,
    /// Datagrams dropped by the kernel, since earlier ones had not been taken. Over a link.
    pub overrun: u64,
    /// Datagrams sent to a port that has no owner, as the peer's kernel reports. Over UDP.
    pub unreachable: u64,
}

/// The traffic of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCounters {
    /// Datagrams put into buffers.
    pub received: u64,
    /// Datagrams dropped: no buffer was posted.
    pub no_buffer: u64,
    /// Datagrams dropped: the buffer posted first was too small. It stays posted.
    pub too_small: u64,
}
