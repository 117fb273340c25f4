//! The only door to atomics, locks and threads: std, or loom under `--cfg loom`.
//!
//! Code that is model-checked must not reach around this module; a test of the workspace looks.
//!
//! # Fences of two weights
//! The lock of engines, and the sleep word of `vigie-via`, have one side that is always in a hurry and one that seldom acts. Each side
//! writes one place, then reads the other's, and needs a full fence in between. The hurried side only keeps
//! the compiler from reordering ([`light_fence`]); the other one lets the kernel execute a full fence in every
//! thread (`membarrier`).
//!
//! loom knows no `membarrier`, so in its models both are `SeqCst` fences. That takes nothing for ordered that
//! is not, because of what the kernel promises (membarrier(2), the table of pairs): a light fence and a
//! `membarrier` are ordered as two full fences are; two light fences are not; nor are a light one and a full
//! one. `SeqCst` fences in place of both would promise too much only for the pairs of the last two kinds. So
//! a model must not contain them:
//!
//! - one thread alone executes light fences: what it does itself is ordered anyway;
//! - a full fence that the other side executes in addition is left out of the model.
//!
//! `tests/loom.rs` keeps to that, and its mutants show that both fences count.

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::yield_now,
};
/// Without loom's bookkeeping: what is inside must show to the model who reaches it.
pub(crate) use std::cell::UnsafeCell;
/// For memory that is shared with the kernel, which no model knows.
#[cfg(feature = "uring")]
pub(crate) use std::sync::atomic::AtomicU16;
/// For what is part of no model.
use std::sync::atomic::AtomicU64 as RealAtomicU64;
#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::yield_now,
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

/// No thread.
pub(crate) const NOBODY: u64 = 0;

/// The next number of a thread. In no model: which number a thread has does not matter.
static NEXT: RealAtomicU64 = RealAtomicU64::new(1);

/// Returns a number that no other thread of the process ever has.
#[cfg(not(loom))]
#[inline]
pub(crate) fn thread_number() -> u64 {
    thread_local! {
        static NUMBER: std::cell::Cell<u64> = const { std::cell::Cell::new(NOBODY) };
    }
    // Needs no drop, so it is there until the thread has ended.
    NUMBER.with(|number| {
        if number.get() == NOBODY {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// As above: loom's threads are all on one of the system's.
#[cfg(loom)]
pub(crate) fn thread_number() -> u64 {
    loom::thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// Gives `f` how many callbacks this thread is in.
#[cfg(not(loom))]
#[inline]
pub(crate) fn callbacks<T>(f: impl FnOnce(&std::cell::Cell<u32>) -> T) -> T {
    thread_local! {
        static CALLBACKS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    CALLBACKS.with(f)
}

/// As above: loom's threads are all on one of the system's.
#[cfg(loom)]
pub(crate) fn callbacks<T>(f: impl FnOnce(&std::cell::Cell<u32>) -> T) -> T {
    loom::thread_local! {
        static CALLBACKS: std::cell::Cell<u32> = std::cell::Cell::new(0);
    }
    CALLBACKS.with(f)
}

/// Keeps the compiler from reordering; the processor is fenced by the other side.
#[cfg(not(loom))]
#[inline]
pub(crate) fn light_fence() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// As above, in a model: see this module's page.
#[cfg(loom)]
pub(crate) fn light_fence() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

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
