//! POSIX signals that announce events: from the handler to the poll of the detector.
//!
//! ```text
//!  handler, on any thread               host
//!  ──────────────────────               ────
//!  Listener: count, raise  ──┐
//!  Raised: any raised      ──┼──▶ park word ──▶ next switch, or out of the wait point
//!  ring                    ──┘                   Raised::collect ───▶ poll the handle
//! ```
//!
//! Handlers are process-wide and belong to `signal-hook-registry`, which calls several actions and a
//! handler that was there before for one signal, saves `errno` and asks for `SA_RESTART`. Ours asks for
//! `SA_ONSTACK` besides, so that a thread with a small stack may be hit.
//!
//! Invariant signals-1: what runs in a handler uses atomics and `write(2)` on the wait point's eventfd,
//! and nothing else: no lock, no allocation, no destructor. The action holds a strong reference to the
//! server's shared part, which is dropped by whoever removes the action, never by the handler.
//!
//! # Source
//! [bouge02, §3.2]: a signal makes the scheduler call the polling routines, which find out what is
//! concerned.

#![expect(unsafe_code, reason = "a handler must be async-signal-safe: signals-1")]

use std::{io, mem, ptr};

use signal_hook_registry::{SigId, register, unregister};

use super::shared::Shared;
use crate::{detector::Listener, error::RegisterError, sync::Arc};

/// A handle's actions on its signal, removed when this is dropped.
pub(crate) struct Listening {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
    actions: [Option<SigId>; 2],
}

impl Listening {
    /// Lets `listener` hear of `signal`.
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        listener: &Arc<Listener>,
        signal: i32,
    ) -> Result<Self, RegisterError> {
        if !is_allowed(signal) {
            return Err(RegisterError::ForbiddenSignal { signal });
        }
        shared.raised.add(listener);
        let (shared, listener) = (Arc::clone(shared), Arc::clone(listener));
        let mut this = Self { shared, listener, actions: [None, None] };
        this.actions[0] = Some(this.act_on(signal, 1).map_err(RegisterError::Signal)?);
        if signal >= libc::SIGRTMIN() {
            // The kernel queues so many real-time signals and no more [signal(7)]. One that a
            // descriptor sends beyond that becomes a SIGIO [fcntl(2), F_SETSIG], which would end the
            // process; and it stands for any number of events.
            let action = this.act_on(libc::SIGIO, 0);
            this.actions[1] = Some(action.map_err(RegisterError::Signal)?);
        }
        Ok(this)
    }

    fn act_on(&self, signal: i32, arrivals: u64) -> io::Result<SigId> {
        let (shared, listener) = (Arc::clone(&self.shared), Arc::clone(&self.listener));
        let action = move || {
            listener.hear(arrivals);
            shared.raised.raise();
            // The ring is a read-modify-write of the word that the driver takes: what was stored
            // before is visible to it. A signal to a forked child does not wake the parent.
            if !shared.is_inherited() && shared.word.ring() {
                shared.gate().wake_from_handler();
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

impl Drop for Listening {
    fn drop(&mut self) {
        // Waits for handlers that run at this moment, which take no lock.
        for action in self.actions.iter_mut().filter_map(Option::take) {
            unregister(action);
        }
        self.shared.raised.remove(&self.listener);
    }
}

/// Returns whether a handler may wait for `signal`. Not for those that cannot be caught, those by which
/// the processor reports a fault of the running code, and those that the C library keeps for itself.
pub(crate) fn is_allowed(signal: i32) -> bool {
    const FORBIDDEN: [i32; 6] =
        [libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
    let is_kept = |signal| (32..libc::SIGRTMIN()).contains(&signal);
    (1..=libc::SIGRTMAX()).contains(&signal) && !FORBIDDEN.contains(&signal) && !is_kept(signal)
}

/// Adds `SA_ONSTACK` to the handler of `signal`.
fn run_on_alternate_stack(signal: i32) -> io::Result<()> {
    // SAFETY: all-zero is a valid `sigaction` on Linux: integers, and a handler that is optional.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: `action` is valid for the write; nothing is installed.
    if unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } != 0 {
        return Err(io::Error::last_os_error());
    }
    action.sa_flags |= libc::SA_ONSTACK;
    // SAFETY: `action` is what the kernel has just returned, and is installed again with one flag more,
    // which changes nothing of what the handler may do.
    if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nothing that cannot or must not be caught gets a handler. Method: the borders of each
    /// range, and the ordinary signals.
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
