//! All chance of a test comes from one number, which is printed: libtest shows it if the test fails.

use std::env;

/// Returns the generator of `test`. `VIGIE_SEED` replays a run, as far as threads allow.
///
/// # Panics
/// Panics if `VIGIE_SEED` is not a number.
pub(crate) fn random(test: &str) -> fastrand::Rng {
    let seed = match env::var("VIGIE_SEED") {
        Ok(seed) => seed.parse().expect("VIGIE_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("{test}: replay with VIGIE_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}
