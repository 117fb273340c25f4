//! The signals raised by handlers, until the driver takes them.

use std::collections::BTreeSet;

use crate::{
    detector::{HandleAddress, SignalListener},
    sync::{
        Arc, Mutex, lock,
        signal_safe::{AtomicBool, Ordering},
    },
};

/// The signals that handlers have raised for one server.
#[derive(Default)]
pub(crate) struct RaisedSignals {
    /// A listener is raised. Written by handlers after the listener's own flag; taken by the driver.
    is_any_raised: AtomicBool,
    listeners: Mutex<Vec<Arc<SignalListener>>>,
    /// In virtual time: the signals that have had a listener.
    caught: Mutex<BTreeSet<i32>>,
}

impl RaisedSignals {
    pub(crate) fn add(&self, listener: &Arc<SignalListener>) {
        lock(&self.listeners).push(Arc::clone(listener));
    }

    pub(crate) fn remove(&self, listener: &Arc<SignalListener>) {
        lock(&self.listeners).retain(|other| !Arc::ptr_eq(other, listener));
    }

    /// Notes that nothing has its default action any more for this signal, until the server ends.
    pub(crate) fn catch(&self, signal: i32) {
        lock(&self.caught).insert(signal);
    }

    /// Returns whether there is, or was, a listener to this signal, in virtual time.
    pub(crate) fn is_caught(&self, signal: i32) -> bool {
        lock(&self.caught).contains(&signal)
    }

    /// Does what the handler of a signal does, in virtual time.
    pub(crate) fn deliver(&self, signal: i32) {
        for listener in lock(&self.listeners).iter().filter(|it| it.signal() == signal) {
            listener.record(1);
        }
        self.raise();
    }

    /// Records that a listener is raised. Async-signal-safe: one atomic write.
    pub(crate) fn raise(&self) {
        self.is_any_raised.store(true, Ordering::Release);
    }

    /// Appends the handles whose signal arrived since the last call.
    pub(crate) fn collect(&self, addresses: &mut Vec<HandleAddress>) {
        if !self.is_any_raised.load(Ordering::Relaxed)
            || !self.is_any_raised.swap(false, Ordering::AcqRel)
        {
            return;
        }
        let listeners = lock(&self.listeners);
        let raised = listeners.iter().filter(|listener| listener.take_raised());
        addresses.extend(raised.map(|listener| listener.address()));
    }
}
