//! The only door to atomics, locks and threads: std, or loom under `--cfg loom`.
//!
//! Code that is model-checked must not reach around this module; a test of the workspace looks.

/// For a reference that others may look at, which no order depends on.
pub(crate) use crossbeam::atomic::AtomicCell;
#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
/// For what signal handlers share, which is never part of a model.
pub(crate) use std::sync::atomic::{
    AtomicBool as RealAtomicBool, AtomicI32 as RealAtomicI32, AtomicU64 as RealAtomicU64,
};
/// For what blocks whole threads and is never part of a model.
pub(crate) use std::sync::{Condvar, Mutex as RealMutex, MutexGuard as RealGuard, TryLockError};
/// For counters that one thread writes and anybody reads, which no order depends on: loom need not know.
pub(crate) mod count {
    pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64};

    pub(crate) const RELAXED: std::sync::atomic::Ordering = std::sync::atomic::Ordering::Relaxed;
}
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
pub(crate) use std::{
    sync::{Arc, OnceLock, PoisonError, Weak},
    thread, thread_local,
};

/// A thread's own sleep.
pub(crate) mod parking {
    #[cfg(loom)]
    pub(crate) use loom::thread::{Thread, current, park};
    #[cfg(not(loom))]
    pub(crate) use std::thread::{Thread, current, park};
}

/// Locks `mutex`, whether or not a thread panicked while it held the lock.
///
/// Every panic of foreign code is caught before it can cross a lock of ours, so that a poisoned
/// lock says nothing about the data behind it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
