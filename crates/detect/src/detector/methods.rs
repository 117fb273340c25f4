//! The methods by which events can be detected.

use std::ops::BitOr;

/// The methods that a detector offers, a non-empty subset of five.
///
/// # Source
/// [bouge02, §2.2, §3]: the callbacks of `thread_IO_register`. *Deviation:* `notify` is ours; in
/// 2002 there was no descriptor that many requests could share and on which a scheduler could
/// sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Methods(u8);

impl Methods {
    /// [`Detector::check`](crate::Detector::check) tests one request without blocking.
    pub const CHECK: Self = Self(1);
    /// [`Detector::group`](crate::Detector::group) and [`Detector::poll`](crate::Detector::poll) serve all requests with one call.
    pub const GROUP: Self = Self(2);
    /// A watched descriptor or a [`Notifier`](crate::Notifier) announces events, after
    /// [`Detector::arm`](crate::Detector::arm) where [`Detector::arming`](crate::Detector::arming) says so.
    pub const NOTIFY: Self = Self(4);
    /// [`Detector::blocker`](crate::Detector::blocker) returns a call that blocks until an event may be
    /// there. The simulated flavor has no threads: it uses the other methods, and refuses a detector that has none.
    pub const BLOCK: Self = Self(8);
    /// [`Detector::signal`](crate::Detector::signal) names a POSIX signal that announces events. In virtual time, it comes from
    /// [`Server::raise`](crate::Server::raise) alone.
    pub const SIGNAL: Self = Self(16);

    /// Returns the set without a method, to which others are added with `|`.
    #[must_use]
    pub const fn empty() -> Self {
        Self(0)
    }

    /// Returns whether all methods of `other` are in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the methods of this set that are not in `other`.
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether the set is empty; registration refuses such a detector.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the scheduler can poll: the set has [`CHECK`](Self::CHECK) or
    /// [`GROUP`](Self::GROUP).
    #[must_use]
    pub const fn can_poll(self) -> bool {
        self.0 & (Self::CHECK.0 | Self::GROUP.0) != 0
    }
}

impl BitOr for Methods {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
