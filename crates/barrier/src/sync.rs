//! The door to atomics and locks for what is model-checked: std, or loom under `--cfg loom`.

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

/// Stands where the one order of all `SeqCst` operations is relied on: loom knows that order of fences
/// alone, and takes `SeqCst` operations for weaker ones.
#[inline]
pub(crate) fn order_for_loom() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Locks `mutex`, whether or not a thread panicked while it held the lock: what is behind ours is
/// whole at every moment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
