//! Fences that loom can model: of the two sides of a NIC's sleep word, the fast one runs all the time and the slow one
//! seldom. The fast side only keeps the compiler from reordering; the slow side has the kernel execute a full fence in
//! every thread (`membarrier`). loom does not know `membarrier`, so its models use `SeqCst` fences on both sides. They
//! order no more than the real ones as long as a single thread executes light fences and no full fence stands beside
//! the pair: `src/sync.rs` of `vigie-detect` says why.

use std::sync::atomic::{Ordering, compiler_fence};

/// Keeps the compiler from reordering; the other side's fence covers the processor.
#[inline]
pub(crate) fn light_fence() {
    compiler_fence(Ordering::SeqCst);
}
