//! The key of a request, its mode, and its cancellation.

/// The key of one pending request: unique within its handle while it is pending. It fits in a `u64`
/// for devices that carry one along (`user_data`, `wr_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Key {
    /// Returns the key as a number.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        ((self.generation as u64) << 32) | self.index as u64
    }

    /// Returns a small number that no other pending request of the handle has: an index for tables
    /// beside the requests.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// Returns the key that [`to_bits`](Self::to_bits) turned into a number. Any number is accepted:
    /// one that names no pending request is treated like a request that is gone.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the number are wanted")]
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// The number of events that a request waits for: one, or a stream of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a request has one event or many")]
pub enum Mode {
    /// The first event ends the request.
    Once,
    /// The request stays pending from event to event (multishot).
    Stream,
}

/// A detector's answer when a request is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request in flight must not be freed"]
#[expect(clippy::exhaustive_enums, reason = "implementers must be able to return every case")]
pub enum CancelOutcome {
    /// The detector has forgotten the request; it may be freed now.
    Released,
    /// The kernel or a device may still access what the request owns. The request stays at its
    /// address until the detector completes its key.
    InFlight,
}
