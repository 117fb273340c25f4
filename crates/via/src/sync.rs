//! Fences of what is model-checked: the sleep word of a NIC has one side that is always in a hurry and one that seldom
//! acts. The hurried side only keeps the compiler from reordering; the other one lets the kernel execute a full fence in every
//! thread (`membarrier`). loom knows no `membarrier`, so in its models both are `SeqCst` fences. That takes nothing for ordered
//! that is not, as long as one thread alone executes light fences, and no full fence stands beside the pair: `src/sync.rs` of
//! `vigie-detect` says why.

use std::sync::atomic::{Ordering, compiler_fence};

/// Keeps the compiler from reordering; the processor is fenced by the other side.
#[inline]
pub(crate) fn light_fence() {
    compiler_fence(Ordering::SeqCst);
}
