//! Trust: a task whose own polls were short holds no thread for long.

use crate::sync::count::{AtomicU8, RELAXED};

/// The number of short polls that makes a task trusted, the cap of its count, and the penalty of a long poll.
/// A thread's clock can be wrong by the time that the host of a virtual machine takes away, so a single poll
/// means little.
const TRUST: u8 = 4;
const MOST: u8 = 16;
const LOST: u8 = 8;

/// The most that is charged for a poll of a proven task, in nanoseconds: a usually short task should not pay
/// 0.4 s for a clock that went wrong.
const PROVEN_MOST_NS: u64 = 1_000_000;

/// The number of first polls of a task that predict those of others of its kind.
const EARLY: u8 = 4;

/// One of a task's first polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Early {
    /// The very first, which often only begins to wait.
    First,
    /// One of the following polls.
    Later,
}

/// The number of short polls that a task has had, less the penalties of long ones. Written by the thread that polls.
#[derive(Debug)]
pub(crate) struct Trust {
    short: AtomicU8,
    /// All polls, up to [`EARLY`].
    polls: AtomicU8,
    /// Those of them that computed for a long time.
    long: AtomicU8,
}

impl Trust {
    pub(crate) const fn new() -> Self {
        Self { short: AtomicU8::new(0), polls: AtomicU8::new(0), long: AtomicU8::new(0) }
    }

    /// Returns whether the task's own polls have shown that it holds no thread for long.
    pub(crate) fn is_proven(&self) -> bool {
        self.short.load(RELAXED) >= TRUST
    }

    /// Returns which of the predictive first polls comes next, if any.
    pub(crate) fn early(&self) -> Option<Early> {
        match self.polls.load(RELAXED) {
            0 => Some(Early::First),
            polls => (polls < EARLY).then_some(Early::Later),
        }
    }

    /// Returns the same for a task that has not computed for a long time yet: it may be short although others of its kind are long.
    pub(crate) fn early_if_short(&self) -> Option<Early> {
        self.early().filter(|_| self.long.load(RELAXED) == 0)
    }

    /// Records a poll, and whether it computed for a long time.
    pub(crate) fn note_poll(&self, has_computed: bool) {
        let before = self.short.load(RELAXED);
        let after = if has_computed { before.saturating_sub(LOST) } else { (before + 1).min(MOST) };
        if after != before {
            self.short.store(after, RELAXED);
        }
        let polls = self.polls.load(RELAXED);
        if polls < EARLY {
            self.polls.store(polls + 1, RELAXED);
            if has_computed {
                self.long.store(self.long.load(RELAXED) + 1, RELAXED);
            }
        }
    }
}

/// Returns the most that a poll of a task costs, in nanoseconds of processor time, depending on whether it is
/// proven.
pub(crate) const fn most_ns(is_proven: bool) -> u64 {
    if is_proven { PROVEN_MOST_NS } else { u64::MAX }
}

// The models of `tests/loom.rs` compile this file too, but not the tests below.
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Goal: a few short polls prove a task, many of them outlast one long one, and two long ones end it. Method:
    /// counts around each bound.
    #[test]
    fn short_polls_prove_a_task() {
        let trust = Trust::new();
        let polls = |count: u8, has_computed: bool| {
            (0..count).for_each(|_| trust.note_poll(has_computed));
            trust.is_proven()
        };
        assert!(!polls(TRUST - 1, false));
        assert!(polls(1, false));
        assert!(!polls(1, true));
        assert!(polls(100, false));
        assert!(polls(1, true), "once means little");
        assert!(!polls(1, true));
    }

    /// Goal: the first polls of a task are early, whatever they are like, and no other. Method: one more than that.
    #[test]
    fn first_polls_are_early() {
        let trust = Trust::new();
        for poll in 0..=EARLY {
            let early = if poll == 0 { Early::First } else { Early::Later };
            assert_eq!(trust.early(), Some(early).filter(|_| poll < EARLY));
            assert_eq!(trust.early_if_short(), trust.early().filter(|_| poll < 2), "{poll}");
            trust.note_poll(poll % 2 == 1);
        }
    }
}
