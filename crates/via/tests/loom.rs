//! The sleep word, in every interleaving that loom finds with a bounded number of
//! preemptions:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test --release -p vigie-via --test loom
//! ```
//!
//! It rests on `membarrier`, which loom does not know: `src/sync.rs` says what stands for it and why that
//! takes nothing for ordered that is not. One thread of each model executes light fences, and no fence is
//! there beside the pair.
//!
//! Each model stands beside mutants of what it checks, each without a step that makes it right; loom must
//! find the interleaving in which the mutant fails, or the model would prove nothing.

#![cfg(loom)]

use std::panic::{self, AssertUnwindSafe};

#[path = "loom/sleep.rs"]
mod sleep;

/// Expects loom to find an interleaving in which `model` fails.
fn fails(model: impl Fn() + Sync + Send + 'static) {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| loom::model(model)));
    assert!(outcome.is_err(), "loom did not find the mutant's fault");
}
