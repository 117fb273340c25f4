//! Fewer faults and nodes with which a seed still fails.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    env,
    panic::{self, PanicHookInfo},
    time::Duration,
};

use vigie_detect::{Instant, TraceDetail, TraceEvent, TraceEventKind};

use super::seeds::{Attempt, RunSeed, TestOutcome};
use crate::{
    flavor::simulated::{FaultPlan, SimulatedWorld},
    sync::{Arc, OnceLock, thread_local},
};

/// The most runs of one seed.
const RUNS_MAX: u32 = 200;

/// A run without some of its faults is given up after twice the time of the first one, and this.
const LATE: Duration = Duration::from_secs(600);

/// A failure shrunk to the parts that it needs.
pub(super) struct Shrunk {
    pub(super) plan: FaultPlan,
    /// The last run with it, which failed.
    pub(super) world: Arc<SimulatedWorld>,
    /// The faults of the first run and of the last one.
    faults: (usize, Vec<String>),
    /// The nodes that the first run drew, and those of the last one.
    nodes: Option<(usize, usize)>,
    runs: u32,
}

impl Shrunk {
    /// Returns what is said of it.
    pub(super) fn report(&self) -> String {
        let (count, faults) = &self.faults;
        let nodes = self.nodes.map(|(before, now)| format!("{now} of {before} nodes and "));
        let nodes = nodes.unwrap_or_default();
        let mut text = format!(
            "it still fails there with {nodes}{} of {count} faults, as {} runs have shown",
            faults.len(),
            self.runs
        );
        for fault in faults {
            text.push_str("\n  ");
            text.push_str(fault);
        }
        text
    }

    /// Returns the variables that repeat the last run.
    pub(super) fn variables(&self) -> String {
        let kept = self.plan.kept.iter().flatten().map(u32::to_string);
        let mut text = format!("VIGIE_FAULTS={} ", kept.collect::<Vec<_>>().join(","));
        if let Some(size) = self.plan.size {
            text.push_str(&format!("VIGIE_NODES={size} "));
        }
        text
    }
}

/// Returns the plan that the environment asks for, as [`Shrunk::variables`] writes it.
///
/// # Panics
/// If a variable is not what it should be.
pub(super) fn plan_of_environment() -> FaultPlan {
    let number = |text: &str| {
        text.parse().unwrap_or_else(|_| panic!("VIGIE_FAULTS has numbers, not {text:?}"))
    };
    let kept = env::var("VIGIE_FAULTS").ok();
    let kept = kept.map(|text| text.split(',').filter(|it| !it.is_empty()).map(number).collect());
    let size = env::var("VIGIE_NODES").ok();
    let size = size.map(|text| text.parse().unwrap_or_else(|_| panic!("VIGIE_NODES is a number")));
    FaultPlan { kept, size, is_quiet: false, until: None }
}

/// Runs a failing seed with fewer nodes and faults, as long as it fails in the same place. `None` if it does not
/// fail again.
pub(super) fn shrink<T: TestOutcome>(
    seed: u64,
    plan: &FaultPlan,
    run: &mut RunSeed<'_, T>,
) -> Option<Shrunk> {
    let mut runs = 0;
    let mut fails = |plan: &FaultPlan| {
        runs += 1;
        let (attempt, place) = quietly(|| run(seed, TraceDetail::Events, plan));
        let is_failure = attempt.is_failure();
        attempt.note_failure();
        (is_failure && runs <= RUNS_MAX).then_some((place, attempt.world))
    };
    let mut plan = FaultPlan { is_quiet: true, ..plan.clone() };
    let (place, mut world) = fails(&plan)?;
    let end = world.recorder.now();
    plan.until = Some(end + end.saturating_duration_since(Instant::from_nanos(0)) + LATE);
    let mut fails_there =
        |plan: &FaultPlan| fails(plan).filter(|(there, _)| *there == place).map(|(_, world)| world);
    let before = faults(&world);
    let drawn = world.recorder.drawn_size();
    if let Some((min, size)) = drawn {
        for smaller in min..size {
            let candidate = FaultPlan { size: Some(smaller), ..plan.clone() };
            if let Some(failed) = fails_there(&candidate) {
                (plan, world) = (candidate, failed);
                break;
            }
        }
    }

    // Delta debugging: without each half, quarter and so on of them.
    let mut kept: Vec<u32> = faults(&world).iter().map(|(index, _)| *index).collect();
    let mut part = kept.len();
    while part > 0 {
        let mut begin = 0;
        while begin < kept.len() {
            let end = (begin + part).min(kept.len());
            let rest: BTreeSet<u32> = [&kept[..begin], &kept[end..]].concat().into_iter().collect();
            let candidate = FaultPlan { kept: Some(rest), ..plan.clone() };
            match fails_there(&candidate) {
                Some(failed) => {
                    kept.drain(begin..end);
                    (plan, world) = (candidate, failed);
                }
                None => begin = end,
            }
        }
        part /= 2;
    }
    plan.kept.get_or_insert_with(|| kept.into_iter().collect());
    let nodes = drawn.map(|(_, size)| (size, plan.size.unwrap_or(size)));
    let now = faults(&world).into_iter().map(|(_, text)| text).collect();
    Some(Shrunk { plan, world, faults: (before.len(), now), nodes, runs })
}

/// Returns the faults of a run that was recorded.
fn faults(world: &SimulatedWorld) -> Vec<(u32, String)> {
    let names = world.network.names();
    let events = world.recorder.log.events();
    let fault = |TraceEvent { at, node, kind, .. }: &TraceEvent| match kind {
        TraceEventKind::Fault { index, .. } => {
            let at = Duration::from_nanos(at.as_nanos());
            Some((*index, format!("{kind}, at {at:?} on node {}", names[node.index()])))
        }
        _ => None,
    };
    events.iter().filter_map(fault).collect()
}

thread_local! {
    /// Set while panics of this thread are not printed: the place of the last one.
    static QUIET: RefCell<Option<Option<String>>> = const { RefCell::new(None) };
}

/// Calls `run` without printing the panics of this thread, and returns the place of the last one, too.
fn quietly<T>(run: impl FnOnce() -> Attempt<T>) -> (Attempt<T>, Option<String>) {
    /// The hook that prints the panics of other threads.
    static HOOKED: OnceLock<()> = OnceLock::new();
    HOOKED.get_or_init(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !is_quiet(info) {
                previous(info);
            }
        }));
    });
    QUIET.with(|quiet| *quiet.borrow_mut() = Some(None));
    let attempt = run();
    let place = QUIET.with(|quiet| quiet.borrow_mut().take());
    (attempt, place.flatten())
}

/// Notes the place of a panic that is not to be printed; returns whether it is one.
fn is_quiet(info: &PanicHookInfo<'_>) -> bool {
    let note = |quiet: &RefCell<Option<Option<String>>>| {
        let mut quiet = quiet.borrow_mut();
        let is_quiet = quiet.is_some();
        if is_quiet {
            *quiet = Some(info.location().map(ToString::to_string));
        }
        is_quiet
    };
    QUIET.try_with(note).unwrap_or(false)
}
