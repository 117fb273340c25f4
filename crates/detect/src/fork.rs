//! Whether this process has made what it uses, or has got it by fork.
//!
//! A process that forks without exec gives its child a copy of all memory: locks stay as they were at that
//! moment, held by threads that the child does not have, for ever. What the kernel keeps for it is no copy:
//! epoll, eventfd, timerfd and the queue of an io_uring are the parent's own. A child that dropped a
//! registration like any other would wait for such a lock, or end the parent's interest in a descriptor. So
//! everything that a server owns knows the generation that it was made in, and what is of an earlier one is
//! left alone: dropping it does nothing, using it ends in an error.

#![expect(unsafe_code, reason = "pthread_atfork has no safe interface")]

use crate::sync::{
    OnceLock,
    signal_safe::{AtomicU64, Ordering},
};

/// How many forks lie between the first process and this one, of those that glibc knows. `Relaxed`: written
/// by the only thread of a child before `fork` returns there.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// When something was made, in forks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkGeneration(u64);

impl ForkGeneration {
    /// Returns the present one. Forks are counted from the first call on.
    pub(crate) fn current() -> Self {
        static COUNTS: OnceLock<()> = OnceLock::new();
        COUNTS.get_or_init(|| {
            // SAFETY: the function takes no argument and is async-signal-safe: one atomic addition.
            let error = unsafe { libc::pthread_atfork(None, None, Some(count)) };
            if error != 0 {
                let error = std::io::Error::from_raw_os_error(error);
                tracing::warn!(%error, "forks are not noticed: a child must not drop what it inherits");
            }
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether a parent of this process has made it: one load. It may be asked in a signal handler.
    #[inline]
    pub(crate) fn is_inherited(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }
}

extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
