//! The ports of one address that are free.

use std::collections::VecDeque;

use fastrand::Rng;

/// Free ports, in the order in which they are given out.
#[derive(Debug)]
pub(super) struct Pool {
    free: VecDeque<u16>,
}

impl Pool {
    /// All ports of a range, shuffled (RFC 6056: nobody should foretell the next one).
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
