//! Tests that run with many seeds.

use std::{
    env,
    future::Future,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
};

use vigie_detect::Flavor;

use super::world::World;
use crate::{runtime::Runtime, sync::thread};

/// One of so many seeds is run twice, and the traces are compared.
const TWICE_ONE_IN: u64 = 8;

/// Runs `test` in a new world for each of `count` seeds, from 0 on.
///
/// - `VIGIE_SEEDS=5000` replaces the count, `VIGIE_SEEDS=5000..9000` names the range.
/// - `VIGIE_SEED=37` runs that seed alone: a failure prints the command for it.
///
/// Every eighth seed is run twice, and the [traces](World::trace_hash) are compared: a difference is a failure, since the test
/// then depends on more than its seed, for example on the iteration order of a `HashMap`.
///
/// # Panics
/// With the panic of the test; if two runs of a seed differ; if a variable is not what it should be.
///
/// # Examples
/// ```
/// use vigie_runtime::{simulation, spawn, time};
///
/// simulation::for_each_seed(20, |world| {
///     world.block_on(async {
///         let task = spawn(time::sleep(time::Duration::from_secs(60)));
///         time::sleep(time::Duration::from_secs(61)).await;
///         assert!(task.is_finished());
///     });
/// });
/// ```
pub fn for_each_seed(count: u64, mut test: impl FnMut(&mut World)) {
    let mut run = |seed: u64| {
        let mut world = World::new(seed);
        test(&mut world);
        world.trace_hash()
    };
    for seed in seeds(0..count) {
        replayable(seed, || {
            let trace = run(seed);
            if seed % TWICE_ONE_IN == 0 {
                same_trace(seed, trace, run(seed));
            }
        });
    }
}

/// The result of a test: see [`run_test`].
pub trait TestOutcome {
    /// Returns whether the test has failed without a panic.
    fn is_failure(&self) -> bool;
}

impl TestOutcome for () {
    fn is_failure(&self) -> bool {
        false
    }
}

impl<T, E> TestOutcome for Result<T, E> {
    fn is_failure(&self) -> bool {
        self.is_err()
    }
}

/// Runs a test of one runtime with the seeds that the environment names, as [`for_each_seed`] does, or with `default`; ends with
/// the first that fails. `#[vigie::test(simulated)]` calls it.
///
/// # Panics
/// Where [`for_each_seed`] does.
pub fn run_test<F: Future>(default: u64, test: impl Fn() -> F) -> F::Output
where
    F::Output: TestOutcome,
{
    let run = |seed: u64| {
        let builder = Runtime::builder().flavor(Flavor::Simulated { seed });
        let runtime = builder.build().expect("invariant: it needs no thread and no descriptor");
        let outcome = runtime.block_on(test());
        (outcome, runtime.handle().simulation_trace())
    };
    let seeds = seeds(default..default.saturating_add(1));
    let compares = seeds.clone().count() > 1;
    let mut last = None;
    for seed in seeds {
        let outcome = replayable(seed, || {
            let (outcome, trace) = run(seed);
            if compares && seed % TWICE_ONE_IN == 0 {
                same_trace(seed, trace, run(seed).1);
            }
            outcome
        });
        let has_failed = outcome.is_failure();
        last = Some(outcome);
        if has_failed {
            eprintln!("seed {seed} fails: replay it with `{}`", command(seed));
            break;
        }
    }
    last.expect("`VIGIE_SEEDS` names at least one seed")
}

/// Fails if two runs of a seed differ.
fn same_trace<T: PartialEq>(seed: u64, one: T, other: T) {
    assert!(
        one == other,
        "two runs with the seed {seed} differ: the test depends on something else, such as a real clock, a thread, or the \
         iteration order of a `HashMap`"
    );
}

/// Returns the seeds that the environment names, or `default`.
fn seeds(default: Range<u64>) -> Range<u64> {
    let number = |name: &str, text: &str| {
        text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}"))
    };
    if let Ok(text) = env::var("VIGIE_SEED") {
        let seed = number("VIGIE_SEED", &text);
        return seed..seed.saturating_add(1);
    }
    match env::var("VIGIE_SEEDS") {
        Ok(text) => match text.split_once("..") {
            Some((from, to)) => number("VIGIE_SEEDS", from)..number("VIGIE_SEEDS", to),
            None => 0..number("VIGIE_SEEDS", &text),
        },
        Err(_) => default,
    }
}

/// Runs a test; if it panics, prints the seed and the command that replays it.
fn replayable<T>(seed: u64, test: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(test)) {
        Ok(value) => value,
        Err(panic) => {
            eprintln!("seed {seed} fails: replay it with `{}`", command(seed));
            resume_unwind(panic);
        }
    }
}

/// Returns the command that runs the calling test with one seed.
fn command(seed: u64) -> String {
    let program = env::args().next().unwrap_or_default();
    let stem = Path::new(&program).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // cargo appends a hash.
    let target = stem.rsplit_once('-').map_or(&*stem, |(name, _)| name);
    let package = env::var("CARGO_PKG_NAME").map(|name| format!(" -p {name}")).unwrap_or_default();
    match thread::current().name() {
        Some(test) if test != "main" => {
            format!("VIGIE_SEED={seed} cargo test{package} {test} -- --exact")
        }
        _ => format!("VIGIE_SEED={seed} {target}"),
    }
}
