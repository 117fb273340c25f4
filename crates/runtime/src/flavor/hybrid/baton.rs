//! Which reserve thread is in the wait point: the sentinel, whom others may have to wake.
//!
//! ```text
//!   whoever queues a task          the sentinel
//!   push it                        announce itself
//!   fence (in `Idle::choose`)      fence (in `Baton::take`)
//!   is there a sentinel? wake it   is there a task? stay awake
//! ```
//! Whichever fence comes first: either it is seen, or it sees the task.

use crate::sync::{AtomicUsize, Ordering, fence};

/// Names one thread, or none.
pub(crate) struct Baton {
    /// The sentinel's place among the remotes plus one, or zero. Stored by whoever holds the wait
    /// point, so by one thread at a time; cleared by the same thread once it has left.
    holder: AtomicUsize,
}

impl Baton {
    pub(crate) fn new() -> Self {
        Self { holder: AtomicUsize::new(0) }
    }

    /// The thread at `place` is about to sleep in the wait point, unless it `must_stay` awake, which
    /// is asked once others can see the announcement. Returns the answer.
    pub(crate) fn take(&self, place: usize, must_stay: impl FnOnce() -> bool) -> bool {
        // A swap, which stands either before or after the clearing of the one that was here last.
        self.holder.swap(place + 1, Ordering::SeqCst);
        // See the module's drawing; the queue's own order need not be known for this.
        fence(Ordering::SeqCst);
        must_stay()
    }

    /// The thread at `place` has left the wait point, if it was there. The next one may be there
    /// already.
    pub(crate) fn give_up(&self, place: usize) {
        let _ = self.holder.compare_exchange(place + 1, 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Returns the place of the sentinel. Asked after a push and a fence.
    pub(crate) fn holder(&self) -> Option<usize> {
        self.holder.load(Ordering::SeqCst).checked_sub(1)
    }
}

// The models of `tests/loom.rs` compile this file, too: the test below is none of them.
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Goal: the sentinel is who went to the wait point last, while it is there; who has left it clears
    /// nothing of the next one. Method: two threads, one after the other, by hand.
    #[test]
    fn the_next_sentinel_is_not_cleared() {
        let baton = Baton::new();
        assert_eq!(baton.holder(), None);
        assert!(baton.take(0, || baton.holder() == Some(0)), "it is announced when it is asked");
        assert!(!baton.take(3, || baton.holder() != Some(3)));
        baton.give_up(0);
        assert_eq!(baton.holder(), Some(3));
        baton.give_up(3);
        assert_eq!(baton.holder(), None);
    }
}
