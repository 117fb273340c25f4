//! Tests that run once for each of many seeds, and the budget of fuzzers.
//!
//! `SIM_RUNS` is the number of seeds of each test, `SIM_SEED` the first; a failure names its seed. `VIGIE_FUZZ_SEED` and
//! `VIGIE_FUZZ_SECONDS` are those of fuzzers, `VIGIE_SEED` that of tests with threads.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::Duration,
};

use vigie_detect::Instant;

/// Returns a number from the environment, if it is there.
pub(crate) fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

/// Runs `run` for each seed, and names the one that fails. A seed that is named runs alone.
pub(crate) fn for_each_seed(default: u64, run: impl FnMut(u64)) {
    let named = number("SIM_SEED");
    let first = named.unwrap_or(0);
    let count = number("SIM_RUNS").unwrap_or_else(|| named.map_or(default, |_| 1));
    each("SIM_SEED", first..first + count, run);
}

/// Runs `run` for seeds from `VIGIE_FUZZ_SEED` on (default 1), for as long as `VIGIE_FUZZ_SECONDS` says, by default for `count`
/// seeds; names the one that fails.
pub(crate) fn fuzz_seeds(count: u64, run: impl FnMut(u64)) {
    let first = number("VIGIE_FUZZ_SEED").unwrap_or(1);
    each("VIGIE_FUZZ_SEED", within_budget(count).map(|number| first + number), run);
}

/// Counts from 0 for as long as `VIGIE_FUZZ_SECONDS` says, by default up to `count`.
pub(crate) fn within_budget(count: u64) -> impl Iterator<Item = u64> {
    let end =
        number("VIGIE_FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    (0..).take_while(move |number| end.map_or(*number < count, |end| Instant::now() < end))
}

fn each(variable: &str, seeds: impl Iterator<Item = u64>, mut run: impl FnMut(u64)) {
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            let (package, test) = (env!("CARGO_PKG_NAME"), env!("CARGO_CRATE_NAME"));
            eprintln!("replay: {variable}={seed} cargo test -p {package} --test {test}");
            resume_unwind(panic);
        }
    }
}

/// Returns the generator of `test`, and prints its seed. `VIGIE_SEED` replays a run, as far as threads allow.
pub(crate) fn random(test: &str) -> fastrand::Rng {
    let seed = number("VIGIE_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("{test}: replay with VIGIE_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}
