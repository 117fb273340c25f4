//! A received datagram.

use super::NodeAddress;

/// A datagram, in the buffer that was posted for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The buffer, with the length that it was posted with: post it again.
    pub buffer: Vec<u8>,
    /// The number of its bytes that belong to the datagram.
    pub length: usize,
    /// The node that claims to have sent it.
    pub from: NodeAddress,
    /// The sender's port.
    pub from_port: u8,
    /// True if it was sent to a group.
    pub is_multicast: bool,
}

impl Received {
    /// Returns the datagram.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.buffer.get(..self.length).unwrap_or_default()
    }
}
