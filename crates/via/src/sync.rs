//! What differs under loom: the words of shared memory, and fences.
//!
//! # Words
//! Memory that others may write consists of [`SharedWord`]s. Under loom these are loom's atomics, which also take eight bytes and lie in the
//! memory itself, so the models run the provider's own code on its own mappings.
//!
//! # Fences
//! Fences that loom can model: of the two sides of a NIC's sleep word, the fast one runs all the time and the slow one
//! seldom. The fast side only keeps the compiler from reordering; the slow side has the kernel execute a full fence in
//! every thread (`membarrier`). loom does not know `membarrier`, so its models use `SeqCst` fences on both sides. They
//! order no more than the real ones as long as a single thread executes light fences and no full fence stands beside
//! the pair: `src/sync.rs` of `vigie-detect` says why.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64 as SharedWord, fence};
pub(crate) use std::sync::atomic::Ordering;
use std::sync::atomic::compiler_fence;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64 as SharedWord, fence};

/// Keeps the compiler from reordering; the other side's fence covers the processor.
#[inline]
pub(crate) fn light_fence() {
    compiler_fence(Ordering::SeqCst);
}
