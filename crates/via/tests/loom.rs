//! The sleep word and the rings of shared memory, in every interleaving that loom finds with a bounded number of
//! preemptions:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test --release -p vigie-via --test loom
//! ```
//!
//! The sleep word rests on `membarrier`, which loom does not know: `src/sync.rs` says what replaces it and why the
//! replacement orders no more than it does. One thread of each model of it executes light fences, and there is
//! no fence besides the pair.
//!
//! A model of the sleep word comes with mutants that lack one necessary step; loom must find the interleaving in which
//! the mutant fails, or the model would prove nothing. The mutants of the rings were made by hand: `loom/ring.rs` lists them.

#![cfg(loom)]

use std::panic::{self, AssertUnwindSafe};

#[path = "loom/ring.rs"]
mod ring;
#[path = "loom/sleep.rs"]
mod sleep;
#[path = "loom/socket.rs"]
mod socket;

/// Expects loom to find an interleaving in which `model` fails.
fn fails(model: impl Fn() + Sync + Send + 'static) {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| loom::model(model)));
    assert!(outcome.is_err(), "loom did not find the mutant's fault");
}
