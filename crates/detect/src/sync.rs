//! The only place that imports atomics, locks and threads: from std, or from loom under `--cfg
//! loom`.
//!
//! Model-checked code must not bypass this module; a workspace test enforces it.
//!
//! # Fences of two weights
//! The lock of engines, and the sleep word of `vigie-via`, have one side that must be fast and one that seldom acts. Each side writes
//! one location, then reads the other's, with a full fence in between. The fast side only stops the compiler from reordering
//! ([`light_fence`]); the other side makes the kernel execute a full fence in every thread (`membarrier`).
//! loom does not know `membarrier`, so both are `SeqCst` fences in its models. This is no stronger than what
//! the kernel promises (membarrier(2), the table of pairs) as long as only certain pairs occur: a light fence
//! and a `membarrier` are ordered like two full fences, but two light fences are not, nor are a light and a
//! full one. `SeqCst` fences would promise too much for the last two kinds of pairs, so a model must not
//! contain them:
//!
//! - only one thread executes light fences: its own operations are ordered anyway;
//! - a full fence that the other side executes in addition is left out of the model.
//!
//! `tests/loom.rs` obeys these rules, and its mutants show that both fences matter.

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::yield_now,
};
/// Without loom's bookkeeping: the contents themselves must show the model who accesses them.
pub(crate) use std::cell::UnsafeCell;
/// For memory shared with the kernel, which no model covers.
#[cfg(feature = "uring")]
pub(crate) use std::sync::atomic::AtomicU16;
/// For state outside all models.
use std::sync::atomic::AtomicU64 as RealAtomicU64;
/// The queue of the detector `detectors::channel`, and of a test's triggers: no model covers them.
pub(crate) use std::sync::mpsc;
#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::yield_now,
};
/// For state that signal handlers write, which no model covers.
pub(crate) mod signal_safe {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}
/// For code that blocks whole threads and is never part of a model.
pub(crate) use std::sync::{Mutex as RealMutex, MutexGuard as RealGuard};
pub(crate) use std::{
    sync::{Arc, OnceLock, PoisonError, Weak},
    thread, thread_local,
};

/// No thread.
pub(crate) const NOBODY: u64 = 0;

/// The next thread number. Outside all models: which number a thread has does not matter.
static NEXT: RealAtomicU64 = RealAtomicU64::new(1);

/// Returns a number that is unique to this thread in the whole life of the process.
#[cfg(not(loom))]
#[inline]
pub(crate) fn thread_number() -> u64 {
    thread_local! {
        static NUMBER: std::cell::Cell<u64> = const { std::cell::Cell::new(NOBODY) };
    }
    // Needs no drop, so it is valid until the thread ends.
    NUMBER.with(|number| {
        if number.get() == NOBODY {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// As above: loom runs all its threads on one system thread.
#[cfg(loom)]
pub(crate) fn thread_number() -> u64 {
    loom::thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// Passes `f` the number of callbacks that this thread is in.
#[cfg(not(loom))]
#[inline]
pub(crate) fn callbacks<T>(f: impl FnOnce(&std::cell::Cell<u32>) -> T) -> T {
    thread_local! {
        static CALLBACKS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    CALLBACKS.with(f)
}

/// As above: loom runs all its threads on one system thread.
#[cfg(loom)]
pub(crate) fn callbacks<T>(f: impl FnOnce(&std::cell::Cell<u32>) -> T) -> T {
    loom::thread_local! {
        static CALLBACKS: std::cell::Cell<u32> = std::cell::Cell::new(0);
    }
    CALLBACKS.with(f)
}

/// Stops the compiler from reordering; the other side fences the processor.
#[cfg(not(loom))]
#[inline]
pub(crate) fn light_fence() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// As above, in a model: see the module's documentation.
#[cfg(loom)]
pub(crate) fn light_fence() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Marks a place that relies on the total order of `SeqCst` operations: loom implements that order
/// only for fences and treats `SeqCst` operations as weaker.
#[inline]
pub(crate) fn order_for_loom() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Locks `mutex`, whether or not a thread panicked while it held the lock.
///
/// Every panic of foreign code is caught before it can cross one of our locks, so a poisoned lock
/// says nothing about the data behind it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    LOCKS.with(|count| count.set(count.get() + 1));
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks `mutex` if it is free now.
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

/// Returns how many locks the calling thread has taken.
#[cfg(test)]
pub(crate) fn lock_count() -> u64 {
    LOCKS.with(std::cell::Cell::get)
}
