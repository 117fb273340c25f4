//! The counters of a link.

/// The traffic of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Frames received.
    pub received: u64,
    /// Frames dropped because earlier ones had not been taken.
    pub dropped: u64,
    /// Frames longer than a slot.
    pub cut: u64,
    /// Frames given to the kernel.
    pub sent: u64,
    /// Frames that found no room.
    pub refused: u64,
}
