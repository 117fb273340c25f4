//! The messages sent and received: each one once.

use std::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering},
};

/// The messages of one run. Receiving is entered in the same poll as the message is taken, so that an
/// abort cannot come in between.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// By number: how often it was received.
    received: Mutex<Vec<u8>>,
    sent_count: AtomicU32,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self { received: Mutex::new(Vec::new()), sent_count: AtomicU32::new(0) }
    }

    /// Returns the number of a new message.
    pub(crate) fn send(&self) -> u32 {
        let mut received = self.received.lock().expect("no panic");
        received.push(0);
        self.sent_count.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn receive(&self, number: u32) {
        let mut received = self.received.lock().expect("no panic");
        received[number as usize] += 1;
    }

    /// # Panics
    /// Panics unless each message was received once.
    pub(crate) fn assert_balanced(&self) {
        let received = self.received.lock().expect("no panic");
        assert_eq!(received.len(), self.sent_count.load(Ordering::SeqCst) as usize);
        let wrong: Vec<_> =
            received.iter().enumerate().filter(|&(_, &count)| count != 1).take(10).collect();
        assert!(wrong.is_empty(), "not received once (number, times): {wrong:?}");
        assert!(received.len() > 500, "hardly anything happened: {}", received.len());
    }
}
