//! What a sleeper waits for.

use loom::sync::{Condvar, Mutex};

/// The socket, in the sleeper's epoll: wake-ups stay until they are taken. A sleeper that is never
/// notified is a deadlock, which loom reports.
pub(crate) struct Socket {
    wakeups: Mutex<u64>,
    notified: Condvar,
}

impl Default for Socket {
    fn default() -> Self {
        Self { wakeups: Mutex::new(0), notified: Condvar::new() }
    }
}

impl Socket {
    pub(crate) fn ring(&self, count: u64) {
        if count > 0 {
            *self.wakeups.lock().expect("not poisoned") += count;
            self.notified.notify_one();
        }
    }

    /// Sleeps until there is a wake-up, and takes it.
    pub(crate) fn sleep(&self) -> u64 {
        let mut wakeups = self.wakeups.lock().expect("not poisoned");
        while *wakeups == 0 {
            wakeups = self.notified.wait(wakeups).expect("not poisoned");
        }
        std::mem::take(&mut *wakeups)
    }

    /// Returns how many wake-ups are there.
    pub(crate) fn wakeups(&self) -> u64 {
        *self.wakeups.lock().expect("not poisoned")
    }
}
