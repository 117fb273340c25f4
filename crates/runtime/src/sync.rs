//! The only way to atomics, locks and threads: std, or loom under `--cfg loom`.
//!
//! Model-checked code must not bypass this module; a workspace test checks that.

/// For a reference that other threads may read and that no ordering depends on.
pub(crate) use crossbeam::atomic::AtomicCell;
#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
/// For data shared with signal handlers, which is never part of a model.
pub(crate) use std::sync::atomic::{
    AtomicBool as RealAtomicBool, AtomicI32 as RealAtomicI32, AtomicU64 as RealAtomicU64,
};
/// For blocking whole threads, which is never part of a model.
pub(crate) use std::sync::{Condvar, Mutex as RealMutex, MutexGuard as RealGuard, TryLockError};
/// For counters that one thread writes and any thread reads, and that no ordering depends on: loom need not
/// know them.
pub(crate) mod count {
    #[cfg(feature = "stacks")]
    pub(crate) use std::sync::atomic::AtomicU32;
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
/// Every panic of foreign code is caught before it can unwind through one of our locks, so a poisoned lock
/// says nothing about the data behind it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`lock`], outside of all models.
pub(crate) fn lock_real<T>(mutex: &RealMutex<T>) -> RealGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
