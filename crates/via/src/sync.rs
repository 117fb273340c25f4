//! The door to atomics, locks and threads for what is model-checked: std, or loom under `--cfg loom`.
//!
//! # Fences of two weights
//! The lock and the sleep word have one side that is always in a hurry and one that seldom acts. Each side
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

#[cfg(not(loom))]
use std::{cell::Cell, sync::atomic::compiler_fence, thread_local};

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::yield_now,
};
/// Without loom's bookkeeping: what is inside must show to the model who reaches it.
pub(crate) use std::cell::UnsafeCell;
/// For what is part of no model.
use std::sync::atomic::AtomicU64 as RealAtomicU64;
#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::yield_now,
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
        static NUMBER: Cell<u64> = const { Cell::new(NOBODY) };
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

/// Keeps the compiler from reordering; the processor is fenced by the other side.
#[cfg(not(loom))]
#[inline]
pub(crate) fn light_fence() {
    compiler_fence(Ordering::SeqCst);
}

/// As above, in a model: see this module's page.
#[cfg(loom)]
pub(crate) fn light_fence() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}
