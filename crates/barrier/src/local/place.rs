//! Where code runs: which thread, and how many at once.

/// A thread, told from others by a number; a hint, nothing depends on it being right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(pub(super) u64);

/// The fewest members of a team: a processor that has fewer is not worth an exchange.
#[cfg(not(loom))]
const TEAM_MIN: u32 = 4;

#[cfg(not(loom))]
mod real {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        thread,
    };

    use super::{Place, TEAM_MIN};

    /// The next number of a thread; 0 is nowhere. In no model: which number a thread has does not matter.
    static NEXT: AtomicU64 = AtomicU64::new(1);

    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }

    impl Place {
        /// The calling thread.
        #[inline]
        pub(in super::super) fn here() -> Self {
            // A thread that is ending has no number any more.
            Self(NUMBER.try_with(|number| *number).unwrap_or(0))
        }

        /// Returns whether `other` is a place, and another one.
        #[inline]
        pub(in super::super) const fn is_not(self, other: u64) -> bool {
            other != 0 && other != self.0
        }
    }

    /// Returns how many teams a group of so many tasks has: one for each processor.
    pub(in super::super) fn team_count(size: u32) -> u32 {
        let processors = thread::available_parallelism().map_or(1, Into::into);
        u32::try_from(processors).unwrap_or(u32::MAX).min(size / TEAM_MIN).max(1)
    }
}

/// In a model, everything is elsewhere, and two members are two teams.
#[cfg(loom)]
mod real {
    use super::Place;

    impl Place {
        pub(in super::super) fn here() -> Self {
            Self(1)
        }

        pub(in super::super) const fn is_not(self, _: u64) -> bool {
            true
        }
    }

    pub(in super::super) fn team_count(size: u32) -> u32 {
        size.min(2)
    }
}

pub(super) use real::team_count;
