//! The wakers that a poll collects.

use std::task::Waker;

use crate::error::caught;

/// The wakers of one poll, woken by the host once it holds no lock.
#[derive(Debug, Default)]
pub(crate) struct WakeList {
    pub(crate) wakers: Vec<Waker>,
    /// The handle's policy must be asked again, once the tasks are woken.
    pub(crate) is_stale: bool,
}

impl WakeList {
    /// Wakes all wakers. The caller holds no lock of the server.
    pub(crate) fn wake_all(&mut self) {
        let mut wakers = self.wakers.drain(..);
        while wakers.len() > 0 {
            // One waker's panic must not cost those behind it their wake-up.
            let _ = caught("wake", || wakers.by_ref().for_each(Waker::wake));
        }
    }
}
