//! Tests that run with many seeds.

use std::{
    env,
    future::Future,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use vigie_detect::{Flavor, TraceDetail, TraceEvent};

use super::{escapes, failure, shrink, timeline, world::World};
use crate::{
    flavor::simulated::{FaultPlan, SimulatedWorld},
    runtime::Runtime,
    sync::{Arc, thread},
};

/// Every eighth seed is run twice, and the traces are compared.
const TWICE_ONE_IN: u64 = 8;

/// Runs `test` in a new world for each of `count` seeds, from 0 on.
///
/// - `VIGIE_SEEDS=5000` replaces the count, `VIGIE_SEEDS=5000..9000` names the range.
/// - `VIGIE_SEED=37` runs that seed alone: a failure prints the command for it.
/// - `VIGIE_FAULTS=2,5` carries out no other faults of a run, `VIGIE_NODES=3` replaces [`World::node_count`]: see below.
/// - `VIGIE_TRACES=1` prints a hash of the traces of all seeds, to be compared with that of another build or machine.
/// - `VIGIE_TIMELINE=folder` writes the [timeline](World::timeline) of a seed that fails, or is alone, into a folder.
///
/// Every eighth seed is run twice, and the [traces](World::trace_hash) are compared: a difference is a failure, since the test
/// then depends on more than its seed, for example on the iteration order of a `HashMap`.
///
/// A seed that fails is run up to 200 times more, with fewer nodes and without some of its faults, and the smallest run that fails
/// in the same place is printed. A fault is a call of a [`Node`](super::Node) that harms it or its links; a node's restart after a
/// crash, `resume` and `heal` end one.
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
    run_seeds(seeds(0..count), true, &mut |seed, detail, plan| {
        let mut world = World::of_seed_run(seed);
        world.simulated().recorder.set_plan(plan.clone());
        record(world.simulated(), detail);
        let result = catch_unwind(AssertUnwindSafe(|| test(&mut world)));
        Attempt { result, world: Arc::clone(world.simulated()) }
    });
}

/// Runs a test once, with what a plan leaves of it, and records it with a detail.
pub(super) type RunSeed<'a, T> = dyn FnMut(u64, TraceDetail, &FaultPlan) -> Attempt<T> + 'a;

/// A test's result with a seed, and its world, which has ended.
pub(super) struct Attempt<T> {
    result: thread::Result<T>,
    pub(super) world: Arc<SimulatedWorld>,
}

impl<T: TestOutcome> Attempt<T> {
    pub(super) fn is_failure(&self) -> bool {
        self.result.as_ref().map_or(true, TestOutcome::is_failure)
    }

    /// Records a failure that did not leave `block_on`.
    pub(super) fn note_failure(&self) {
        match &self.result {
            Ok(outcome) if outcome.is_failure() => self.world.note_failure(None),
            Ok(_) => {}
            Err(panic) => self.world.note_failure(Some(&**panic)),
        }
    }
}

/// Runs a test with each seed until it fails, one of eight twice if `compares`; returns the last result.
fn run_seeds<T: TestOutcome>(seeds: Range<u64>, compares: bool, run: &mut RunSeed<'_, T>) -> T {
    let is_single = seeds.end.saturating_sub(seeds.start) == 1;
    let plan = shrink::plan_of_environment();
    let (mut last, mut traces) = (None, TraceSum::default());
    for seed in seeds.clone() {
        let is_compared = compares && seed % TWICE_ONE_IN == 0;
        let detail = if is_compared { TraceDetail::Polls } else { TraceDetail::Off };
        let first = run(seed, detail, &plan);
        let outcome = match first.result {
            Ok(outcome) => outcome,
            Err(panic) => {
                explain(&first.world, &plan, run);
                resume_unwind(panic);
            }
        };
        if outcome.is_failure() {
            explain(&first.world, &plan, run);
            return outcome;
        }
        traces.add(first.world.trace_hash());
        if is_compared {
            let trace = RunTrace::of(&first.world);
            let second = run(seed, detail, &plan);
            if let Some(difference) = trace.difference(&RunTrace::of(&second.world)) {
                explain(&second.world, &plan, run);
                panic!("{}", difference_message(seed, &difference));
            }
        }
        if is_single && timeline::folder().is_some() {
            timeline::keep(&run(seed, TraceDetail::Events, &plan).world);
        }
        last = Some(outcome);
    }
    if env::var_os("VIGIE_TRACES").is_some() {
        eprintln!("the traces of the seeds {seeds:?}: {:016x}", traces.0);
    }
    last.expect("`VIGIE_SEEDS` names at least one seed")
}

/// A hash of hashes: FNV-1a over words.
#[derive(Default)]
struct TraceSum(u64);

impl TraceSum {
    fn add(&mut self, hash: u64) {
        self.0 = (self.0 ^ hash).wrapping_mul(0x0000_0100_0000_01B3);
    }
}

/// Says how to repeat a failure, what it needs, and where its page is.
fn explain<T: TestOutcome>(failed: &SimulatedWorld, plan: &FaultPlan, run: &mut RunSeed<'_, T>) {
    let seed = failed.seed;
    eprintln!("{}", failure::report(seed));
    let can_shrink = failed.recorder.can_shrink();
    let shrunk = can_shrink.then(|| shrink::shrink(seed, plan, run));
    if let Some(None) = &shrunk {
        eprintln!("it has not failed again, so it depends on more than its seed: {}", suspects());
    }
    if let Some(shrunk) = shrunk.flatten() {
        let command = failure::command(seed);
        eprintln!("{}: replay that with `{}{command}`", shrunk.report(), shrunk.variables());
        timeline::keep(&shrunk.world);
    } else if timeline::folder().is_some() {
        let attempt = run(seed, TraceDetail::Events, plan);
        attempt.note_failure();
        timeline::keep(&attempt.world);
    }
}

/// The number of events that are recorded of a run that is compared with another one of its seed.
const COMPARED_EVENTS: usize = 1 << 16;

fn record(world: &SimulatedWorld, detail: TraceDetail) {
    match detail {
        TraceDetail::Off => {}
        TraceDetail::Events => timeline::record(world),
        TraceDetail::Polls => world.recorder.log.start_recording(detail, COMPARED_EVENTS),
    }
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

    /// Returns how two runs differ, if they do.
    fn difference(&self, other: &Self) -> Option<String> {
        if self.hash == other.hash {
            return None;
        }
        let show = |run: &Self, index: usize| match run.events.get(index) {
            None => "nothing".to_owned(),
            Some(TraceEvent { at, node, kind, .. }) => {
                format!("at {at:?} on node {}: {kind}", run.node_names[node.index()])
            }
        };
        let count = self.events.len().max(other.events.len());
        let differs = |index: &usize| self.events.get(*index) != other.events.get(*index);
        Some(match (0..count).find(differs) {
            Some(index) => format!(
                "the first event that differs is number {index}, {} in one run and {} in the other; the one before it was {} in both",
                show(self, index),
                show(other, index),
                index.checked_sub(1).map_or_else(|| "none".to_owned(), |before| show(self, before)),
            ),
            None => format!("their first {count} events are the same"),
        })
    }
}

fn difference_message(seed: u64, difference: &str) -> String {
    let suspects = suspects();
    format!(
        "two runs with the seed {seed} differ, so the test depends on more: {suspects}; {difference}"
    )
}

/// Says what usually makes two runs of a seed differ in this program.
fn suspects() -> &'static str {
    if escapes::are_caught() {
        "probably on the iteration order of a `HashMap` (take a `BTreeMap`, or a hasher without random keys), or on tokio's \
         `select!`, which draws the branch that it polls first (write `biased;` as its first line)"
    } else {
        "on a real clock, a thread, a random number of the system (`vigie::simulation::catch_escapes!()` in the test program excludes \
         these three), the iteration order of a `HashMap` (take a `BTreeMap`, or a hasher without random keys), or tokio's `select!`, which draws \
         the branch that it polls first (write `biased;` as its first line)"
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
/// Same as [`for_each_seed`].
pub fn run_test<F: Future>(default: u64, test: impl Fn() -> F) -> F::Output
where
    F::Output: TestOutcome,
{
    let seeds = seeds(default..default.saturating_add(1));
    let compares = seeds.end.saturating_sub(seeds.start) > 1;
    run_seeds(seeds, compares, &mut |seed, detail, plan| {
        let builder = Runtime::builder().flavor(Flavor::Simulated { seed });
        let runtime = builder.build().expect("invariant: it needs no thread and no descriptor");
        let world = runtime.handle().simulated_world().expect("the flavor was given");
        world.recorder.set_plan(plan.clone());
        record(world, detail);
        let result = catch_unwind(AssertUnwindSafe(|| runtime.block_on(test())));
        Attempt { result, world: Arc::clone(world) }
    })
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
