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

/// How many short polls a task has had, less what long ones took away. Written by the thread that polls.
#[derive(Debug)]
pub(crate) struct Trust(AtomicU8);

impl Trust {
    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Returns whether the task has shown itself that it holds no thread for long.
    pub(crate) fn is_proven(&self) -> bool {
        self.0.load(RELAXED) >= TRUST
    }

    /// Takes note of a poll, which computed for a long time or not.
    pub(crate) fn note_poll(&self, has_computed: bool) {
        let before = self.0.load(RELAXED);
        let after = if has_computed { before.saturating_sub(LOST) } else { (before + 1).min(MOST) };
        if after != before {
            self.0.store(after, RELAXED);
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
}
