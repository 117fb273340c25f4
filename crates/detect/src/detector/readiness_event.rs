//! Readiness of watched descriptors.

use std::ops::BitOr;

/// One readiness event from the poller for a watched descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PollerEvent {
    /// The key under which the detector watched the descriptor.
    pub key: u32,
    /// The operations for which the descriptor became ready.
    pub ready: Ready,
}

/// The readiness of a descriptor: a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ready(u8);

impl Ready {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// A read will not block.
    pub const READABLE: Self = Self(1);
    /// A write will not block.
    pub const WRITABLE: Self = Self(2);
    /// The peer will send no more.
    pub const READ_CLOSED: Self = Self(4);
    /// The peer will read no more.
    pub const WRITE_CLOSED: Self = Self(8);
    /// Urgent data is there.
    pub const PRIORITY: Self = Self(16);
    /// The descriptor has an error to report.
    pub const ERROR: Self = Self(32);
    /// All bits that can end a reader's wait.
    pub const FOR_READ: Self = Self(1 | 4 | 32);
    /// All bits that can end a writer's wait.
    pub const FOR_WRITE: Self = Self(2 | 8 | 32);

    /// Returns whether `self` and `other` have a bit in common.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the bits of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the bits that both have.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns whether a read will not block: there is something, or nothing more will come.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        self.intersects(Self(1 | 4))
    }

    /// Returns whether a write will not block: there is room, or the peer reads no more.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        self.intersects(Self(2 | 8))
    }

    /// Returns whether the peer will send no more.
    #[must_use]
    pub const fn is_read_closed(self) -> bool {
        self.intersects(Self::READ_CLOSED)
    }

    /// Returns whether the peer will read no more.
    #[must_use]
    pub const fn is_write_closed(self) -> bool {
        self.intersects(Self::WRITE_CLOSED)
    }

    /// Returns whether urgent data is there.
    #[must_use]
    pub const fn is_priority(self) -> bool {
        self.intersects(Self::PRIORITY)
    }

    /// Returns whether the descriptor has an error to report.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.intersects(Self::ERROR)
    }

    /// Returns whether no bit is set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
}

impl BitOr for Ready {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

/// The edges of a descriptor that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a descriptor has two directions")]
pub enum Interest {
    /// It can be read.
    Readable,
    /// It can be written.
    Writable,
    /// Either.
    Both,
}

impl Interest {
    /// [`Readable`](Self::Readable), by tokio's name.
    pub const READABLE: Self = Self::Readable;
    /// [`Writable`](Self::Writable), by tokio's name.
    pub const WRITABLE: Self = Self::Writable;

    /// Returns whether it includes reading.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        matches!(self, Self::Readable | Self::Both)
    }

    /// Returns whether it includes writing.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        matches!(self, Self::Writable | Self::Both)
    }

    /// Returns what either includes.
    #[must_use]
    pub const fn add(self, other: Self) -> Self {
        match (self, other) {
            (Self::Readable, Self::Readable) => Self::Readable,
            (Self::Writable, Self::Writable) => Self::Writable,
            _ => Self::Both,
        }
    }
}

impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.add(other)
    }
}
