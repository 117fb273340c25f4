//! Processes that fork without exec.

#![expect(unsafe_code, reason = "fork and waitpid have no safe interface")]

use std::panic::{AssertUnwindSafe, catch_unwind};

/// After this many seconds a hanging child is ended by a signal.
const HANG_SECONDS: u32 = 60;

/// Runs `body` in a forked child. Returns whether it came to its end, without a panic.
pub(crate) fn ends_in_fork(body: impl FnOnce()) -> bool {
    // SAFETY: the child calls `body` and `_exit`; glibc makes its allocator usable in the child, and what else other threads may
    // have held at the moment of the fork is what the tests are about.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no fork");
    if child == 0 {
        // SAFETY: no memory is concerned.
        unsafe { libc::alarm(HANG_SECONDS) };
        let ended = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: ends the process at once, without destructors that belong to the parent.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the child was just made, and `status` is valid for a write.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}
