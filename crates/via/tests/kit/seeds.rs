//! Tests that run once for each of many seeds.
//!
//! `SIM_SEEDS` is the number of seeds of each test, `SIM_SEED` the first; a failure names its seed.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

/// Returns a number from the environment, if it is there.
pub(crate) fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

/// Runs `run` for each seed, and names the one that fails.
pub(crate) fn for_each_seed(default: u64, mut run: impl FnMut(u64)) {
    let first = number("SIM_SEED").unwrap_or(0);
    for seed in first..first + number("SIM_SEEDS").unwrap_or(default) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            let (package, test) = (env!("CARGO_PKG_NAME"), env!("CARGO_CRATE_NAME"));
            eprintln!("failed: SIM_SEED={seed} SIM_SEEDS=1 cargo test -p {package} --test {test}");
            resume_unwind(panic);
        }
    }
}
