//! Detects whether this process created an object or inherited it by fork.
//!
//! A process that forks without exec gives its child a copy of all memory. Locks keep their state, so one
//! that another thread of the parent held stays locked for ever in the child. Kernel objects are not
//! copied: epoll, eventfd, timerfd and an io_uring's queue still belong to the parent. A child that dropped
//! a registration as usual would wait for such a lock, or end the parent's interest in a descriptor. So
//! everything that a server owns records the fork generation that created it. Objects of an earlier
//! generation are left alone: dropping one does nothing, using one returns an error.

#![expect(unsafe_code, reason = "pthread_atfork has no safe interface")]

use crate::sync::{
    OnceLock,
    signal_safe::{AtomicU64, Ordering},
};

/// The number of forks between the first process and this one, as far as glibc sees them. `Relaxed`:
/// written by the only thread of a child before `fork` returns there.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The fork generation in which an object was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkGeneration(u64);

impl ForkGeneration {
    /// Returns the present generation. Counting begins with the first call.
    pub(crate) fn current() -> Self {
        static COUNTS: OnceLock<()> = OnceLock::new();
        COUNTS.get_or_init(|| {
            // SAFETY: the function takes no argument and is async-signal-safe: one atomic addition.
            let error = unsafe { libc::pthread_atfork(None, None, Some(count)) };
            if error != 0 {
                let error = std::io::Error::from_raw_os_error(error);
                tracing::warn!(%error, "forks go unnoticed: a child must not drop what it inherits");
            }
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether a parent of this process created the object: one load. Async-signal-safe.
    #[inline]
    pub(crate) fn is_inherited(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }
}

extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
