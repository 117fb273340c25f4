//! POSIX signals that announce events: from the handler to the poll of the detector.
//!
//! ```text
//!  handler, on any thread               host
//!  ──────────────────────               ────
//!  SignalListener: raise   ──┐
//!  RaisedSignals: raise    ──┼──▶ park state ──▶ next switch, or out of the poller
//!  notify                  ──┘                   RaisedSignals::collect ───▶ poll the handle
//! ```
//!
//! Handlers are process-wide and belong to `signal-hook-registry`, which calls several actions and any
//! earlier handler of a signal, saves `errno` and sets `SA_RESTART`. We add `SA_ONSTACK`, so that a
//! handler may interrupt a thread with a small stack, and a full mask, so that handlers do not nest there.
//!
//! Invariant signals-1: the code in a handler uses atomics and `write(2)` on the poller's eventfd, and
//! nothing else: no lock, no allocation, no destructor. The action holds a strong reference to the
//! server's shared part, which is dropped by the thread that removes the action, never by the handler.
//!
//! # Source
//! [bouge02, §3.2]: a signal makes the scheduler call the polling routines, which find out what it
//! concerns.

#![expect(unsafe_code, reason = "a handler must be async-signal-safe: signals-1")]

use std::{io, mem, ptr};

use signal_hook_registry::{SigId, register, unregister};

use super::shared::ServerShared;
use crate::{detector::SignalListener, error::RegisterError, sync::Arc};

/// A handle's actions on its signal, removed when this is dropped.
pub(crate) struct SignalRegistration {
    shared: Arc<ServerShared>,
    listener: Arc<SignalListener>,
    actions: [Option<SigId>; 2],
}

impl SignalRegistration {
    /// Connects `listener` to `signal`.
    pub(crate) fn begin(
        shared: &Arc<ServerShared>,
        listener: &Arc<SignalListener>,
        signal: i32,
    ) -> Result<Self, RegisterError> {
        if !is_allowed(signal) {
            return Err(RegisterError::ForbiddenSignal { signal });
        }
        shared.raised.add(listener);
        let (shared, listener) = (Arc::clone(shared), Arc::clone(listener));
        let mut this = Self { shared, listener, actions: [None, None] };
        if this.shared.is_virtual() {
            // A simulated process has signals of its own: see `Server::raise`.
            this.shared.raised.catch(signal);
            return Ok(this);
        }
        this.actions[0] = Some(this.act_on(signal, 1).map_err(RegisterError::Signal)?);
        if signal >= libc::SIGRTMIN() {
            // The kernel queues a limited number of real-time signals [signal(7)]. One that a
            // descriptor sends beyond that becomes a SIGIO [fcntl(2), F_SETSIG], which would end the
            // process and stands for any number of events.
            let action = this.act_on(libc::SIGIO, 0);
            this.actions[1] = Some(action.map_err(RegisterError::Signal)?);
        }
        Ok(this)
    }

    fn act_on(&self, signal: i32, arrivals: u64) -> io::Result<SigId> {
        let (shared, listener) = (Arc::clone(&self.shared), Arc::clone(&self.listener));
        let action = move || {
            listener.record(arrivals);
            shared.raised.raise();
            // The notification is a read-modify-write of the word that the driver takes, so earlier
            // stores are visible to the driver. A signal to a forked child does not wake the parent.
            if !shared.is_inherited() && shared.park_state.notify() {
                shared.poller_handle().wake_from_handler();
            }
        };
        // SAFETY: the action is async-signal-safe (signals-1): three atomic writes, one
        // read-modify-write, and at most one `write` on an eventfd.
        let id = unsafe { register(signal, action) }?;
        if let Err(error) = run_on_alternate_stack(signal) {
            unregister(id);
            return Err(error);
        }
        Ok(id)
    }
}

impl Drop for SignalRegistration {
    fn drop(&mut self) {
        // Waits for handlers that run at this moment; they take no lock.
        for action in self.actions.iter_mut().filter_map(Option::take) {
            unregister(action);
        }
        self.shared.raised.remove(&self.listener);
    }
}

/// Returns whether a handler may listen to `signal`: not to one that cannot be caught, one by which the
/// processor reports a fault of the running code, or one that the C library reserves.
pub(crate) fn is_allowed(signal: i32) -> bool {
    const FORBIDDEN: [i32; 6] =
        [libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
    let is_kept = |signal| (32..libc::SIGRTMIN()).contains(&signal);
    (1..=libc::SIGRTMAX()).contains(&signal) && !FORBIDDEN.contains(&signal) && !is_kept(signal)
}

/// Adds `SA_ONSTACK` to the handler of `signal`, and lets no other signal interrupt it: an alternate stack, as Rust gives one
/// to each thread, has room for two frames of signals on processors with large registers, and several signals at once would
/// need more.
fn run_on_alternate_stack(signal: i32) -> io::Result<()> {
    // SAFETY: all-zero is a valid `sigaction` on Linux: integers, and a handler that is optional.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: `action` is valid for the write; nothing is installed.
    if unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } != 0 {
        return Err(io::Error::last_os_error());
    }
    action.sa_flags |= libc::SA_ONSTACK;
    // SAFETY: the set is valid for the write.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    // SAFETY: `action` is what the kernel has just returned, and is installed again with one flag and a wider mask, which
    // change nothing of what the handler may do.
    if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no handler is installed for a signal that cannot or must not be caught. Method: the
    /// borders of each range, and the ordinary signals.
    #[test]
    fn forbidden_signals() {
        let forbidden =
            [-1, 0, 32, 33, libc::SIGRTMAX() + 1, libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV];
        assert!(forbidden.into_iter().all(|signal| !is_allowed(signal)));
        let allowed =
            [libc::SIGHUP, libc::SIGTERM, libc::SIGUSR1, libc::SIGRTMIN(), libc::SIGRTMAX()];
        assert!(allowed.into_iter().all(is_allowed));
    }
}
