//! The software NIC in virtual time, over a network with realistic faults.
//!
//! `SIM_SEEDS` is the number of seeds of each test, `SIM_SEED` the first; a failure names its seed.

mod conforming;
mod faults;
mod hostile;
mod network;
mod pair;
mod traffic;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Runs `run` for each seed, and names the one that fails.
fn for_each_seed(default: u64, mut run: impl FnMut(u64)) {
    let first = number("SIM_SEED", 0);
    for seed in first..first + number("SIM_SEEDS", default) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!(
                "failed: SIM_SEED={seed} SIM_SEEDS=1 cargo test -p vigie-via --test software_nic"
            );
            resume_unwind(panic);
        }
    }
}
