//! The only door to atomics, locks and threads: std, or loom under `--cfg loom`.
//!
//! Code that is model-checked must not reach around this module; a test of the workspace looks.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
/// For memory that is shared with the kernel, which no model knows.
#[cfg(feature = "uring")]
pub(crate) use std::sync::atomic::AtomicU16;
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
/// For what signal handlers write, which no model knows.
pub(crate) mod signal_safe {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}
/// For what blocks whole threads and is never part of a model.
pub(crate) use std::sync::{Mutex as RealMutex, MutexGuard as RealGuard};
pub(crate) use std::{
    sync::{Arc, OnceLock, PoisonError, Weak},
    thread, thread_local,
};

/// Stands where the one order of all `SeqCst` operations is relied on: loom knows that order of fences
/// alone, and takes `SeqCst` operations for weaker ones.
#[inline]
pub(crate) fn order_for_loom() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Locks `mutex`, whether or not a thread panicked while it held the lock.
///
/// Every panic of foreign code is caught before it can cross a lock of ours, so that a poisoned
/// lock says nothing about the data behind it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    LOCKS.with(|count| count.set(count.get() + 1));
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks `mutex` if it is free at this moment.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
thread_local! {
    static LOCKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns how many locks the present thread has taken.
#[cfg(test)]
pub(crate) fn lock_count() -> u64 {
    LOCKS.with(std::cell::Cell::get)
}
