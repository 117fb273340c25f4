//! The central counter, its sleepers and the barrier of tasks, in every interleaving that loom finds with a bounded
//! number of preemptions:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test --release -p vigie-barrier --test loom
//! ```
//!
//! A lost wake-up is a deadlock, which loom reports; that what members did before they entered is visible after they
//! have passed, words show that have no order of their own.
//!
//! Each model stands beside mutants of what it checks, each without a step that makes it right; loom must find the
//! interleaving in which the mutant fails, or the model would prove nothing.

#![cfg(loom)]

use std::panic::{self, AssertUnwindSafe};

#[path = "loom/sleepers.rs"]
mod sleepers;
#[path = "loom/tasks.rs"]
mod tasks;

/// Expects loom to find an interleaving in which `model` fails.
fn fails(model: impl Fn() + Sync + Send + 'static) {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| loom::model(model)));
    assert!(outcome.is_err(), "loom did not find the mutant's fault");
}
