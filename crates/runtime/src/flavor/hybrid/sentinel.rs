//! The sentinel: the reserve thread in the poller, which others may have to wake.
//!
//! ```text
//!   a thread that queues a task    the sentinel
//!   push it                        announce itself
//!   fence (in `Idle::choose`)      fence (in `Sentinel::take`)
//!   is there a sentinel? wake it   is there a task? stay awake
//! ```
//! Whichever fence comes first, either the sentinel is seen, or it sees the task.

use crate::sync::{AtomicUsize, Ordering, fence};

/// The sentinel, if there is one.
pub(crate) struct Sentinel {
    /// The sentinel's place among the remotes plus one, or zero. Stored by the thread that holds the
    /// poller, so by one thread at a time; cleared by the same thread once it has left.
    holder: AtomicUsize,
}

impl Sentinel {
    pub(crate) fn new() -> Self {
        Self { holder: AtomicUsize::new(0) }
    }

    /// The thread at `place` is about to sleep in the poller, unless `must_stay` says that it must stay
    /// awake, which is called once others can see the announcement. Returns its answer.
    pub(crate) fn take(&self, place: usize, must_stay: impl FnOnce() -> bool) -> bool {
        // A swap, which is ordered either before or after the previous sentinel's clearing.
        self.holder.swap(place + 1, Ordering::SeqCst);
        // See the module's drawing; this does not depend on the queue's own ordering.
        fence(Ordering::SeqCst);
        must_stay()
    }

    /// The thread at `place` has left the poller, if it was there. The next one may be there
    /// already.
    pub(crate) fn give_up(&self, place: usize) {
        let _ = self.holder.compare_exchange(place + 1, 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Returns the place of the sentinel. To be called after a push and a fence.
    pub(crate) fn holder(&self) -> Option<usize> {
        self.holder.load(Ordering::SeqCst).checked_sub(1)
    }
}

// The models of `tests/loom.rs` compile this file too, but not the test below.
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Goal: the sentinel is the last thread that went to the poller, while it is there; one that has left it clears
    /// nothing of the next one. Method: two threads, one after the other, by hand.
    #[test]
    fn the_next_sentinel_is_not_cleared() {
        let sentinel = Sentinel::new();
        assert_eq!(sentinel.holder(), None);
        assert!(
            sentinel.take(0, || sentinel.holder() == Some(0)),
            "it is announced when it is asked"
        );
        assert!(!sentinel.take(3, || sentinel.holder() != Some(3)));
        sentinel.give_up(0);
        assert_eq!(sentinel.holder(), Some(3));
        sentinel.give_up(3);
        assert_eq!(sentinel.holder(), None);
    }
}
