//! Trust: a task whose own polls were short holds no thread for long.

use crate::sync::count::{AtomicU8, RELAXED};

/// How many short polls make a task trusted, to how many one adds up, and how many a long one takes away. Clocks of
/// threads go wrong, by time that the host of a virtual machine takes away: once means little.
const TRUST: u8 = 4;
const MOST: u8 = 16;
const LOST: u8 = 8;

/// The most that is charged for a poll of a proven task, in nanoseconds: one that is short as a rule should not pay
/// for a clock that went wrong with 0.4 s.
const PROVEN_MOST_NS: u64 = 1_000_000;

/// So many polls of a task tell what others of its kind begin with.
const EARLY: u8 = 4;

/// Which of a task's first polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Early {
    /// The very first, which often does no more than begin to wait.
    First,
    /// One of the next.
    Later,
}

/// How many short polls a task has had, less what long ones took away. Written by the thread that polls.
#[derive(Debug)]
pub(crate) struct Trust {
    short: AtomicU8,
    /// All polls, up to [`EARLY`].
    polls: AtomicU8,
}

impl Trust {
    pub(crate) const fn new() -> Self {
        Self { short: AtomicU8::new(0), polls: AtomicU8::new(0) }
    }

    /// Returns whether the task has shown itself that it holds no thread for long.
    pub(crate) fn is_proven(&self) -> bool {
        self.short.load(RELAXED) >= TRUST
    }

    /// Returns which the next poll is of those that tell what others of its kind begin with.
    pub(crate) fn early(&self) -> Option<Early> {
        match self.polls.load(RELAXED) {
            0 => Some(Early::First),
            polls => (polls < EARLY).then_some(Early::Later),
        }
    }

    /// Takes note of a poll, which computed for a long time or not.
    pub(crate) fn note_poll(&self, has_computed: bool) {
        let before = self.short.load(RELAXED);
        let after = if has_computed { before.saturating_sub(LOST) } else { (before + 1).min(MOST) };
        if after != before {
            self.short.store(after, RELAXED);
        }
        let polls = self.polls.load(RELAXED);
        if polls < EARLY {
            self.polls.store(polls + 1, RELAXED);
        }
    }
}

/// Returns the most that a poll of a task costs, in nanoseconds of processor time, by whether it is proven.
pub(crate) const fn most_ns(is_proven: bool) -> u64 {
    if is_proven { PROVEN_MOST_NS } else { u64::MAX }
}

// The models of `tests/loom.rs` compile this file, too: the tests below are none of them.
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
            trust.note_poll(poll % 2 == 0);
        }
    }
}
