//! The messages that one side of a connection has announced to the other, since that has paused it.

use std::collections::VecDeque;

/// The messages that one side of a connection has announced, in order.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    /// How many there have been.
    pub(super) count: u64,
    /// The numbers and keys of those whose bytes were not asked for, and of some that have ended since.
    pub(super) waiting: VecDeque<(u64, u64)>,
}

impl Announcements {
    /// Counts one. `key`: it has bytes that are sent when they are asked for.
    pub(super) fn add(&mut self, key: Option<u64>) {
        self.count += 1;
        self.waiting.extend(key.map(|key| (self.count, key)));
    }

    /// Forgets those that have ended, if they may be most of all.
    pub(super) fn prune(&mut self, expected: u32, waits: impl Fn(u64) -> bool) {
        if self.waiting.len() > 2 * expected as usize + 64 {
            self.waiting.retain(|(_, key)| waits(*key));
        }
    }

    /// Takes the next one, if its number is at most `through`.
    pub(super) fn next_through(&mut self, through: u64) -> Option<u64> {
        self.waiting.pop_front_if(|(number, _)| *number <= through).map(|(_, key)| key)
    }
}
