//! Registration: how a detector gets its place at a server.

use super::{
    current::in_simulation, handle::Handle, handle_inner::HandleInner, registered::Registered,
    registration::Registration, shared::ServerShared, signals::SignalRegistration,
};
use crate::{
    detector::{Detector, DriverHandle, Flavor, Methods, SignalListener},
    error::{RegisterError, WaitError, caught},
    policy::{Decision, History, Policy, strategies},
    sync::{Arc, Weak, lock},
};

/// Returns the methods that a simulated process can use: it has no helper threads.
fn without_threads(shared: &ServerShared, methods: Methods) -> Result<Methods, RegisterError> {
    if !matches!(shared.flavor(), Flavor::Simulated { .. }) || !methods.contains(Methods::BLOCK) {
        return Ok(methods);
    }
    let rest = methods.without(Methods::BLOCK);
    if rest.is_empty() {
        let remedy = "offer a method that polls, or make a single call with `spawn_blocking`";
        let error = in_simulation("detectors that only block, on a thread of their own", remedy);
        return Err(RegisterError::Attach(error));
    }
    Ok(rest)
}

/// Registers a detector with `policy`, or with the policy of the registration or the server.
pub(crate) fn register<D: Detector>(
    shared: &Arc<ServerShared>,
    detector: D,
    mut registration: Registration,
    policy: Option<Box<dyn Policy>>,
) -> Result<Handle<D>, RegisterError> {
    if shared.is_inherited() {
        return Err(RegisterError::ServerClosed);
    }

    let panicked = |error: WaitError| RegisterError::Panicked { message: error.to_string() };
    let methods = caught("methods", || detector.methods()).map_err(panicked)?;
    let arming = caught("arming", || detector.arming()).map_err(panicked)?;
    if methods.is_empty() {
        return Err(RegisterError::NoMethod);
    }
    let methods = without_threads(shared, methods)?;
    let signal = if methods.contains(Methods::SIGNAL) {
        let signal = caught("signal", || detector.signal()).map_err(panicked)?;
        Some(signal.ok_or(RegisterError::NoSignal)?)
    } else {
        None
    };

    let policy = policy.or_else(|| registration.policy.take());
    let policy = policy.unwrap_or_else(|| Box::new(shared.default_policy));
    let history = History::default();
    let situation = shared.situation(shared.now(), methods, &history, 0);
    if let Ok(Decision { strategy, .. }) = caught("decide", || policy.decide(&situation))
        && !strategies(shared.flavor(), methods).allow(strategy)
    {
        return Err(RegisterError::Unsupported { strategy: strategy.to_string() });
    }

    let address = shared.reserve()?;
    let listener = signal.map(|signal| SignalListener::new(address, signal));
    let home: Weak<ServerShared> = Arc::downgrade(shared);
    let clock = (shared.clock().clone(), shared.flavor());
    let driver = DriverHandle::new(home, clock, address, listener.clone());
    let inner =
        HandleInner::new(detector, (methods, arming), registration, policy, (shared, driver));
    let inner = Arc::new(inner);

    {
        let mut table = lock(&shared.table);
        let handle: Arc<dyn Registered> = Arc::<HandleInner<D>>::clone(&inner);
        // Gone if the server was closed since the row was reserved.
        let Some(row) = table.rows.get_mut(address.index as usize) else {
            drop(table);
            return Err(RegisterError::ServerClosed);
        };
        row.handle = Some(handle);
    }
    shared.table_changed();

    // Before the detector can request the signal, which may end the process while there is no
    // handler.
    let signal_registration = match (signal, &listener) {
        (Some(signal), Some(listener)) => {
            SignalRegistration::begin(shared, listener, signal).map(Some)
        }
        _ => Ok(None),
    };
    let attached = signal_registration.and_then(|signal_registration| {
        inner.attach(signal_registration)?;
        Ok(Handle::new(inner))
    });

    if attached.is_err() {
        shared.deregister(address);
    }

    // A server that closed meanwhile has not seen this handle.
    if shared.is_closed() {
        shared.deregister(address);
        return Err(RegisterError::ServerClosed);
    }
    attached
}
