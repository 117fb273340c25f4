//! Whom a round of detection wakes.

use std::task::Waker;

use crate::error::caught;

/// The wakers of one round, woken by the host once it holds no lock.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) wakers: Vec<Waker>,
    /// The handle's policy is due to be asked, once the tasks are woken.
    pub(crate) is_stale: bool,
}

impl Batch {
    /// Wakes everyone. The caller holds no lock of the server.
    pub(crate) fn wake_all(&mut self) {
        for waker in self.wakers.drain(..) {
            // One waker's panic must not cost the others their wake-up.
            let _ = caught("wake", || waker.wake());
        }
    }
}
