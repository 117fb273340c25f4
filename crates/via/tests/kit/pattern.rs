//! Contents of messages.

/// Returns bytes that differ from message to message.
pub(crate) fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + index / 251 + seed).to_le_bytes()[0]).collect()
}
