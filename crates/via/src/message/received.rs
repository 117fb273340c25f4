//! A message that was received.

use crate::protocol::Status;

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Its sender, tag and length.
    pub status: Status,
    /// Its bytes.
    pub bytes: Vec<u8>,
}
