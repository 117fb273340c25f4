//! The strategy by which the server watches one handle.

use std::{fmt, time::Duration};

use crate::detector::Methods;

/// The frequency of polls of a handle while tasks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Frequency {
    /// Once every this many task switches, at least 1: the paper's unit [bouge02, §3.1].
    Switches(u32),
    /// At the first switch after this much time. The better unit if switches differ in length.
    Time(Duration),
}

/// A strategy by which the server sees the events of one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// Checks every request separately at each poll ("naive polling").
    CheckEach {
        /// The frequency of polls while tasks run. With nothing to run, the server polls at this interval for
        /// `Time`, or continuously for `Switches`.
        every: Frequency,
    },
    /// Polls for all requests with one call ("enhanced polling").
    PollGroup {
        /// As in [`CheckEach`](Self::CheckEach).
        every: Frequency,
    },
    /// Sleeps until the detector announces an event; while tasks run, polls for readiness events as
    /// often as `every` says.
    Sleep {
        /// The frequency of polls for readiness events while tasks run.
        every: Frequency,
    },
    /// Polls for up to `spin` before it sleeps.
    PollThenSleep {
        /// The frequency of polls while tasks run.
        every: Frequency,
        /// The time to poll before a sleep when there is nothing to run.
        spin: Duration,
    },
    /// Lets a kernel thread block in [`Detector::blocker`](crate::Detector::blocker).
    Block,
    /// Waits for the signal named by [`Detector::signal`](crate::Detector::signal).
    Signal,
}

impl Strategy {
    /// Returns whether a detector with `methods` can be watched by this strategy.
    #[must_use]
    pub const fn is_offered_by(self, methods: Methods) -> bool {
        match self {
            Self::CheckEach { .. } => methods.contains(Methods::CHECK),
            Self::PollGroup { .. } => methods.can_poll(),
            Self::Sleep { .. } => methods.contains(Methods::NOTIFY),
            Self::PollThenSleep { .. } => methods.contains(Methods::NOTIFY),
            Self::Block => methods.contains(Methods::BLOCK),
            Self::Signal => methods.contains(Methods::SIGNAL),
        }
    }

    /// Returns how often to poll while tasks run.
    #[must_use]
    pub const fn every(self) -> Option<Frequency> {
        match self {
            Self::CheckEach { every }
            | Self::PollGroup { every }
            | Self::Sleep { every }
            | Self::PollThenSleep { every, .. } => Some(every),
            Self::Block | Self::Signal => None,
        }
    }

    /// Returns whether the server must poll on its own, because nothing will be announced.
    #[must_use]
    pub const fn is_polling(self) -> bool {
        matches!(self, Self::CheckEach { .. } | Self::PollGroup { .. })
    }

    /// Returns how long to poll before a sleep.
    #[must_use]
    pub const fn spin(self) -> Duration {
        match self {
            Self::PollThenSleep { spin, .. } => spin,
            _ => Duration::ZERO,
        }
    }

    /// Returns the strategy's name, used as the label of its counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CheckEach { .. } => "check-each",
            Self::PollGroup { .. } => "poll-group",
            Self::Sleep { .. } => "sleep",
            Self::PollThenSleep { .. } => "poll-then-sleep",
            Self::Block => "block",
            Self::Signal => "signal",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
