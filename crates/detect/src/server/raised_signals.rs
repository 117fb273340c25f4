//! The signals raised by handlers, until the driver takes them.

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
}

impl RaisedSignals {
    pub(crate) fn add(&self, listener: &Arc<SignalListener>) {
        lock(&self.listeners).push(Arc::clone(listener));
    }

    pub(crate) fn remove(&self, listener: &Arc<SignalListener>) {
        lock(&self.listeners).retain(|other| !Arc::ptr_eq(other, listener));
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
