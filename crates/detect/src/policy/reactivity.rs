//! The processor time that may be spent to react early.

use std::{fmt, time::Duration};

/// The processor time that may be spent to react early: the three settings of
/// [`Adaptive`](crate::Adaptive).
///
/// | | polls first, before a sleep | a microsecond of delay is worth | polls while tasks run | timers' slack |
/// | --- | --- | --- | --- | --- |
/// | `LowCpu` | never | nothing | every 100 µs | 1 ms |
/// | `Balanced` | up to 10 µs | a microsecond of processor time | every 50 µs | 50 µs |
/// | `LowLatency` | up to 200 µs | eight of them | every 20 µs | none |
///
/// None of them polls first if that did not pay lately, if other threads need the core
/// ([`Load`](crate::Load)), or twice without an event in between: an idle process sleeps for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reactivity {
    /// As little processor time as possible.
    LowCpu,
    /// A balance of both. The default.
    #[default]
    Balanced,
    /// As early as possible, while cores are free.
    LowLatency,
}

impl Reactivity {
    /// Returns the longest time to poll before a sleep: none, 10 µs, 200 µs.
    #[must_use]
    pub const fn spin_max(self) -> Duration {
        match self {
            Self::LowCpu => Duration::ZERO,
            Self::Balanced => Duration::from_micros(10),
            Self::LowLatency => Duration::from_micros(200),
        }
    }

    /// Returns how much later than its deadline a timer may fire to share a wake-up with others: 1 ms, 50 µs,
    /// none.
    #[must_use]
    pub const fn timer_slack(self) -> Duration {
        match self {
            Self::LowCpu => Duration::from_millis(1),
            Self::Balanced => Duration::from_micros(50),
            Self::LowLatency => Duration::ZERO,
        }
    }
}

impl fmt::Display for Reactivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LowCpu => "low-cpu",
            Self::Balanced => "balanced",
            Self::LowLatency => "low-latency",
        })
    }
}
