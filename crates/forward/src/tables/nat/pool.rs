//! The free ports of one address.

use std::collections::VecDeque;

use fastrand::Rng;

/// Free ports, in the order of assignment.
#[derive(Debug)]
pub(super) struct PortPool {
    free: VecDeque<u16>,
}

impl PortPool {
    /// All ports of a range, shuffled, so that the next one is unpredictable (RFC 6056).
    pub(super) fn new(ports: (u16, u16), rng: &mut Rng) -> Self {
        let mut free: Vec<u16> = (ports.0..=ports.1).collect();
        rng.shuffle(&mut free);
        Self { free: free.into() }
    }

    pub(super) fn take(&mut self) -> Option<u16> {
        self.free.pop_front()
    }

    pub(super) fn give_back(&mut self, port: u16) {
        self.free.push_back(port);
    }
}
