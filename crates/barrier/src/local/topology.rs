//! The thread on which code runs, and the number of processors.

/// A number that identifies a thread; a hint, nothing depends on it being right.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadNumber(pub(super) u64);

/// The smallest team: a processor with fewer members is not worth an exchange.
#[cfg(not(loom))]
const TEAM_MIN: u32 = 4;

#[cfg(not(loom))]
mod real {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        thread,
    };

    use super::{TEAM_MIN, ThreadNumber};

    /// The next thread number; 0 is no thread. Not part of any model: the number itself does not matter.
    static NEXT: AtomicU64 = AtomicU64::new(1);

    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }

    impl ThreadNumber {
        /// The calling thread.
        #[inline]
        pub(in super::super) fn current() -> Self {
            // A thread that is ending no longer has a number.
            Self(NUMBER.try_with(|number| *number).unwrap_or(0))
        }

        /// Returns whether `other` is a thread, and a different one.
        #[inline]
        pub(in super::super) const fn is_other(self, other: u64) -> bool {
            other != 0 && other != self.0
        }
    }

    /// Returns the number of teams for a group of this many tasks: one per processor.
    pub(in super::super) fn team_count(size: u32) -> u32 {
        let processors = thread::available_parallelism().map_or(1, Into::into);
        u32::try_from(processors).unwrap_or(u32::MAX).min(size / TEAM_MIN).max(1)
    }
}

/// In a model, every thread counts as another one, and two members are two teams.
#[cfg(loom)]
mod real {
    use super::ThreadNumber;

    impl ThreadNumber {
        pub(in super::super) fn current() -> Self {
            Self(1)
        }

        pub(in super::super) const fn is_other(self, _: u64) -> bool {
            true
        }
    }

    pub(in super::super) fn team_count(size: u32) -> u32 {
        size.min(2)
    }
}

pub(super) use real::team_count;
