//! Tests that run with many seeds.

use std::{
    env,
    future::Future,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use vigie_detect::{Flavor, TraceDetail, TraceEvent};

use super::{failure, world::World};
use crate::{flavor::simulated::SimulatedWorld, runtime::Runtime};

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
    let mut run = |seed: u64, is_compared: bool| {
        let mut world = World::new(seed);
        if is_compared {
            record_polls(world.simulated());
        }
        test(&mut world);
        is_compared.then(|| RunTrace::of(world.simulated()))
    };
    for seed in seeds(0..count) {
        replayable(seed, || {
            let is_compared = seed % TWICE_ONE_IN == 0;
            if let Some(trace) = run(seed, is_compared) {
                trace.assert_same(seed, run(seed, true).as_ref());
            }
        });
    }
}

/// How many events are recorded of a run that is compared with another one of its seed.
const COMPARED_EVENTS: usize = 1 << 16;

fn record_polls(world: &SimulatedWorld) {
    world.recorder.log.record(TraceDetail::Polls, COMPARED_EVENTS);
}

/// A run, to be compared with another one of its seed.
struct RunTrace {
    hash: u64,
    events: Vec<TraceEvent>,
    /// By their index.
    node_names: Vec<String>,
}

impl RunTrace {
    fn of(world: &SimulatedWorld) -> Self {
        let hash = world.trace_hash();
        Self { hash, events: world.recorder.log.events(), node_names: world.network.names() }
    }

    /// Fails if two runs of a seed differ.
    fn assert_same(&self, seed: u64, other: Option<&Self>) {
        let Some(other) = other.filter(|other| other.hash != self.hash) else { return };
        let show = |run: &Self, index: usize| match run.events.get(index) {
            None => "nothing".to_owned(),
            Some(TraceEvent { at, node, kind, .. }) => {
                format!("at {at:?} on node {}: {kind}", run.node_names[node.index()])
            }
        };
        let count = self.events.len().max(other.events.len());
        let differs = |index: &usize| self.events.get(*index) != other.events.get(*index);
        let first = match (0..count).find(differs) {
            Some(index) => format!(
                "the first event that differs is number {index}, {} in one run and {} in the other",
                show(self, index),
                show(other, index)
            ),
            None => format!("their first {count} events are the same"),
        };
        panic!(
            "two runs with the seed {seed} differ: the test depends on something else, such as a real clock, a thread, \
             `select!` without `biased`, or the iteration order of a `HashMap`; {first}"
        );
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
    let run = |seed: u64, is_compared: bool| {
        let builder = Runtime::builder().flavor(Flavor::Simulated { seed });
        let runtime = builder.build().expect("invariant: it needs no thread and no descriptor");
        let world = runtime.handle().simulated_world();
        if let Some(world) = world.filter(|_| is_compared) {
            record_polls(world);
        }
        let outcome = runtime.block_on(test());
        (outcome, world.filter(|_| is_compared).map(|world| RunTrace::of(world)))
    };
    let seeds = seeds(default..default.saturating_add(1));
    let compares = seeds.clone().count() > 1;
    let mut last = None;
    for seed in seeds {
        let outcome = replayable(seed, || {
            let (outcome, trace) = run(seed, compares && seed % TWICE_ONE_IN == 0);
            if let Some(trace) = trace {
                trace.assert_same(seed, run(seed, true).1.as_ref());
            }
            outcome
        });
        let has_failed = outcome.is_failure();
        last = Some(outcome);
        if has_failed {
            eprintln!("{}", failure::report(seed));
            break;
        }
    }
    last.expect("`VIGIE_SEEDS` names at least one seed")
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
            eprintln!("{}", failure::report(seed));
            resume_unwind(panic);
        }
    }
}
