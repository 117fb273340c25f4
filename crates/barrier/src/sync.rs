//! The only way to atomics and locks for model-checked code: std, or loom under `--cfg loom`.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
pub(crate) use std::sync::PoisonError;
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// Marks a place that relies on the single total order of `SeqCst` operations: loom provides that order only for
/// fences, and treats `SeqCst` operations as weaker.
#[inline]
pub(crate) fn order_for_loom() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Locks `mutex`, whether or not a thread panicked while it held the lock: the data behind our locks is consistent at
/// every moment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
