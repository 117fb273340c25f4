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
