//! Numbers of tasks.

use std::{cell::Cell, fmt, ops::Range};

use crate::sync::{
    count::{AtomicU64, RELAXED},
    thread_local,
};

/// The number of a task: no other task of the process has it. Numbers do not say in which order tasks were
/// spawned, since each thread takes them in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u64);

/// The number of ids that a thread takes at once, so that threads that spawn do not share a cache line.
const BLOCK: u64 = 64;

thread_local! {
    static FREE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// The task whose future this thread polls or drops; zero for none. Handlers of signals read it on their own thread, hence
    /// an atomic.
    static CURRENT: AtomicU64 = const { AtomicU64::new(0) };
}

impl Id {
    /// Takes a number that no task has had.
    pub(super) fn next() -> Self {
        let taken = FREE.try_with(|free| {
            let (mut next, mut end) = free.get();
            if next == end {
                Range { start: next, end } = take_block();
            }
            free.set((next + 1, end));
            next
        });
        // While the thread's variables are destroyed.
        Self(taken.unwrap_or_else(|_| take_block().start))
    }

    /// Returns the number itself, which is not zero.
    #[cfg(feature = "stacks")]
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    /// Makes this the task of the calling thread until the guard is dropped.
    pub(super) fn enter(self) -> EnteredTask {
        EnteredTask(
            CURRENT
                .try_with(|current| {
                    let before = current.load(RELAXED);
                    current.store(self.0, RELAXED);
                    before
                })
                .unwrap_or(0),
        )
    }
}

/// From one on, since zero stands for no task.
fn take_block() -> Range<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let start = NEXT.fetch_add(BLOCK, RELAXED);
    start..start + BLOCK
}

/// Sets the previous task again when it is dropped.
pub(super) struct EnteredTask(u64);

impl Drop for EnteredTask {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|current| current.store(self.0, RELAXED));
    }
}

/// Returns the number of the calling task.
///
/// # Panics
/// Outside tasks. The future of a `block_on` is no task.
#[must_use]
#[track_caller]
pub fn id() -> Id {
    match try_id() {
        Some(id) => id,
        None => {
            panic!("there is no task here: call `task::id` inside a task, or use `task::try_id`")
        }
    }
}

/// Returns the number of the calling task, or `None` outside tasks.
#[must_use]
pub fn try_id() -> Option<Id> {
    let current = CURRENT.try_with(|current| current.load(RELAXED)).unwrap_or(0);
    (current != 0).then_some(Id(current))
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
