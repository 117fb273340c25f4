//! The runs that goals need, and the figures that goals find in them.

use std::time::Duration;

use serde_json::Value;

use crate::barrier::simulation::SimulationPlan;
use crate::barriers::{BarrierPlan, Laps, Over};
use crate::cases;
use crate::cases::container::ContainerPlan;
use crate::cases::crowd::CrowdPlan;
use crate::cases::echo::EchoPlan;
use crate::cases::fairness::{self, FairnessPlan};
use crate::cases::periodic::PeriodicPlan;
use crate::cases::service::ServicePlan;
use crate::compute::YieldEvery;
use crate::error::BenchError;
use crate::forward::{
    self, LivePlan, NicPlan,
    relay::{RelayMeasurement, RelayPeer},
    via::{Carrier, ViaPlan},
};
use crate::http::HttpPlan;
use crate::idle::{self, IdlePlan};
use crate::interrupts::ForeignCallsPlan;
use crate::loads::{self, LoadsPlan, Mix};
use crate::machine::Machine;
use crate::messages;
use crate::messages::plan::{PingPongPlan, absent};
use crate::messages::remote::{remote_carriers, remote_plan};
use crate::pending::{self, PendingPlan};
use crate::progress::Progress;
use crate::reaction::{self, ReactionPlan};
use crate::report::{Outcome, Row, find};
use crate::slowdown::SlowdownPlan;
use crate::switches::{self, SwitchKind, SwitchesPlan};
use crate::system::System;
use crate::timers::TimersPlan;

/// A run that serves one or more goals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Experiment {
    /// Table 1 with the paper's quantum.
    Quantum,
    /// Table 1 with compute tasks that yield often, beside tokio.
    FineYields,
    /// Compute tasks that yield every second, and every 10 ms.
    SeldomYields,
    PaperYields,
    /// The kernel-level flavor beside kernel threads.
    KernelLevel,
    /// What compute tasks do, with few messages.
    Throughput,
    /// Compute tasks with checkpoints, on one thread.
    Checkpoints,
    /// One task that sleeps and computes in turn.
    Periodic,
    /// A service of which some requests compute.
    Service,
    /// A thousand connections.
    Crowd,
    /// Processes of others.
    Fairness,
    /// A quota of one core.
    Container,
    /// Nothing but the echo.
    Echo,
    /// Table 2, its corners.
    Pending,
    /// Servers left alone.
    Idle,
    /// Switches counted.
    Switches,
    /// Messages between processes.
    Messages,
    /// Messages between network namespaces.
    Remote,
    /// Barriers of the simulated cluster.
    BarrierSim,
    /// Barriers that follow on each other, of members on one host.
    BarrierLocal,
    /// The same, with one member that is late.
    BarrierLate,
    /// Barriers that follow on each other, of members in network namespaces.
    BarrierNet,
    /// The same, with one member that is late.
    BarrierNetLate,
    /// The model of forwarding, which is calculated.
    ForwardModel,
    /// Figures 4 to 6 of messages through a node, live.
    ForwardVia,
    /// Frames through forwarders between veth pairs.
    ForwardLive,
    /// Frames that programs at the driver forward.
    ForwardNic,
    /// Relays of streams, beside others.
    ForwardRelay,
    /// Loads with names, and random ones.
    Loads,
    /// A service on hyper.
    Http,
    /// Tail slowdown against offered load.
    Slowdown,
    /// Timers, one and many.
    Timers,
    /// Calls that sleep, beside hogs.
    ForeignCalls,
    /// A quota of half a core.
    HalfCore,
}

impl Experiment {
    pub(crate) const ALL: [Self; 34] = [
        Self::Quantum,
        Self::FineYields,
        Self::SeldomYields,
        Self::PaperYields,
        Self::KernelLevel,
        Self::Throughput,
        Self::Checkpoints,
        Self::Periodic,
        Self::Service,
        Self::Crowd,
        Self::Fairness,
        Self::Container,
        Self::Echo,
        Self::Pending,
        Self::Idle,
        Self::Switches,
        Self::Messages,
        Self::Remote,
        Self::BarrierSim,
        Self::BarrierLocal,
        Self::BarrierLate,
        Self::BarrierNet,
        Self::BarrierNetLate,
        Self::ForwardModel,
        Self::ForwardVia,
        Self::ForwardLive,
        Self::ForwardNic,
        Self::ForwardRelay,
        Self::Loads,
        Self::Http,
        Self::Slowdown,
        Self::Timers,
        Self::ForeignCalls,
        Self::HalfCore,
    ];

    /// Measures this experiment, under a progress bar.
    #[expect(clippy::too_many_lines, reason = "a table: one arm for each experiment")]
    pub(crate) fn run(self, seed: u64) -> Result<Outcome, BenchError> {
        use System::{
            BusyPoll, Threads, Tokio, Vigie, VigieEnhanced, VigieLowCpu, VigieLowLatency,
            VigieNaive, VigieUserLevel,
        };
        match self {
            Self::Quantum => {
                let mut plan = ReactionPlan::new(vec![VigieNaive, VigieEnhanced, VigieUserLevel]);
                plan.compute = vec![1, 2, 5, 10];
                plan.samples = 60;
                plan.budget = Duration::from_secs(20);
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::FineYields => {
                let mut plan = ReactionPlan::new(vec![Vigie, Tokio]);
                plan.compute = vec![2, 5, 10];
                plan.yield_every = YieldEvery::Step(Duration::from_micros(100));
                plan.samples = 1_000;
                plan.budget = Duration::from_secs(6);
                plan.rounds = 4;
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::SeldomYields | Self::PaperYields => self.hogs(seed),
            Self::KernelLevel => kernel_level(seed),
            Self::Throughput => throughput(seed),
            Self::Checkpoints => checkpoints(seed),
            Self::Periodic => {
                let mut plan = PeriodicPlan::new(vec![Vigie, Tokio, Threads]);
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::Service => {
                let mut plan = ServicePlan::new(vec![Vigie, Tokio, Threads]);
                plan.budget = Duration::from_secs(16);
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::Crowd => {
                let plan = CrowdPlan::new(vec![Vigie, Tokio, Threads]);
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::Fairness => {
                let mut plan = FairnessPlan::new(vec![Vigie, Threads]);
                plan.budget = Duration::from_secs(12);
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::Container => {
                let mut plan = ContainerPlan::new(vec![Vigie, Threads]);
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::Echo => {
                let mut plan = EchoPlan::new(vec![
                    Vigie,
                    VigieLowLatency,
                    VigieLowCpu,
                    Tokio,
                    Threads,
                    BusyPoll,
                ]);
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::Pending => {
                let mut plan = PendingPlan::new(vec![VigieEnhanced, VigieUserLevel, Vigie]);
                plan.waiting = vec![1, 8, 10_000];
                plan.rounds = 5;
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::Idle => {
                let plan = IdlePlan::new(vec![VigieUserLevel, Vigie]);
                with_progress(plan.systems.len(), |progress| plan.run(progress))
            }
            Self::Switches => {
                let plan = SwitchesPlan::new(vec![VigieUserLevel, Vigie]);
                with_progress(plan.systems.len(), |progress| plan.run(progress))
            }
            Self::Messages => messages(),
            Self::Remote => {
                let plan = remote_plan(remote_carriers(), &[]);
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::BarrierSim => {
                let mut plan = SimulationPlan::goals();
                plan.seed = seed;
                with_progress(plan.cases(), |progress| Ok(plan.run(progress)))
            }
            Self::BarrierLocal => {
                let plan = BarrierPlan::new(
                    Over::LOCAL.to_vec(),
                    vec![2, 8, 32].into_iter().map(Laps::new).collect(),
                );
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::BarrierLate => {
                let mut laps = Laps::new(32);
                laps.late = Duration::from_millis(100);
                laps.budget = Duration::from_secs(3);
                let mut plan = BarrierPlan::new(Over::LOCAL.to_vec(), vec![laps]);
                plan.peers = vec!["std".to_owned()];
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::BarrierNet => {
                let laps = [8, 32].map(Laps::new).to_vec();
                let mut plan = BarrierPlan::new(Over::NETWORK.to_vec(), laps);
                plan.algorithms = vec!["concurrent".to_owned()];
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::BarrierNetLate => {
                let mut laps = Laps::new(32);
                laps.late = Duration::from_millis(100);
                laps.budget = Duration::from_secs(3);
                let mut plan = BarrierPlan::new(Over::NETWORK.to_vec(), vec![laps]);
                plan.peers = Vec::new();
                plan.algorithms = vec!["concurrent".to_owned()];
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::ForwardModel => forward::model(),
            Self::ForwardVia => {
                let mut plan = ViaPlan::new(Carrier::Udp);
                (plan.messages, plan.rounds) = (300, 5);
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::ForwardLive => {
                let mut plan = LivePlan::default();
                let paths = ["host-xdp", "testpmd-xdp", "host-packet", "testpmd-packet"];
                plan.only = paths.map(str::to_owned).to_vec();
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::ForwardNic => {
                let only = ["nic-rewrite", "nic-route-changing"].map(str::to_owned).to_vec();
                let plan = NicPlan { only, ..NicPlan::default() };
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::ForwardRelay => {
                let plan = RelayMeasurement::new(RelayPeer::ALL.to_vec());
                with_progress(1, |progress| plan.run(progress))
            }
            Self::Loads => loads(seed),
            Self::Http => {
                let mut plan = HttpPlan::new(vec![Vigie, Tokio]);
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::Slowdown => {
                let cores = Machine::probe().cores;
                let mut plan = SlowdownPlan::new(vec![Vigie, Threads, Tokio], cores);
                plan.services.truncate(1);
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::ForeignCalls => {
                let plan = ForeignCallsPlan { seed, ..ForeignCallsPlan::default() };
                with_progress(1, |progress| plan.run(progress))
            }
            Self::HalfCore => {
                let mut plan = ContainerPlan::half_a_core(vec![Vigie, Threads]);
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::Timers => {
                let mut plan = TimersPlan::new(vec![Vigie, VigieUserLevel, Tokio]);
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
        }
    }
}

/// All loads with names, and random ones whose seeds this commit has drawn.
fn loads(seed: u64) -> Result<Outcome, BenchError> {
    const RANDOM: u64 = 40;
    let first = loads::seed_of(&Machine::probe().commit) + seed;
    let named = loads::CASES.iter().filter_map(|case| Mix::named(case.0));
    let mixes: Vec<_> = named.chain((first..first + RANDOM).map(Mix::draw)).collect();
    let count = mixes.len();
    let plan = LoadsPlan::new(mixes, vec![System::Vigie, System::Tokio]);
    with_progress(count, |progress| {
        let outcome = plan.run(&mut |mix| {
            progress.case(mix.mix.name.clone());
            progress.case_done();
        })?;
        Ok(Outcome { rows: outcome.rows(), priority: outcome.priority })
    })
}

/// Numbers of compute tasks beside which vigie is to react as kernel threads do.
pub(crate) const HOGS: [u32; 3] = [2, 5, 10];

impl Experiment {
    /// vigie and kernel threads with as many messages as p99.9 needs, in quick succession; then tokio,
    /// whose messages must be spread over a whole cycle of the compute tasks, and whose answers take so
    /// long that few fit in.
    fn hogs(self, seed: u64) -> Result<Outcome, BenchError> {
        let second = self == Self::SeldomYields;
        let step = if second { Duration::from_secs(1) } else { Duration::from_millis(10) };
        let mut systems = vec![System::Vigie, System::Threads];
        // What a runtime over epoll can reach at best.
        systems.extend(second.then_some(System::EpollThread));
        let mut quick = ReactionPlan::new(systems);
        quick.compute = vec![1, 2, 5, 10];
        quick.yield_every = YieldEvery::Step(step);
        quick.samples = 10_000;
        quick.budget = Duration::from_secs(14);
        quick.pause = Duration::from_micros(400);
        quick.spread = Some(Duration::from_micros(1_200));
        quick.seed = seed;
        let mut slow = ReactionPlan::new(vec![System::Tokio]);
        slow.compute = vec![2, 10];
        slow.yield_every = YieldEvery::Step(step);
        slow.budget = Duration::from_secs(10);
        slow.seed = seed;
        with_progress(quick.cases() + slow.cases(), |progress| {
            let mut outcome = quick.run(progress)?;
            outcome.rows.extend(slow.run(progress)?.rows);
            Ok(outcome)
        })
    }
}

/// The kernel-level flavor and what it is made of, in turns.
fn kernel_level(seed: u64) -> Result<Outcome, BenchError> {
    let mut plan = ReactionPlan::new(vec![System::VigieKernelLevel, System::Threads]);
    plan.compute = HOGS.to_vec();
    plan.samples = 2_000;
    plan.budget = Duration::from_secs(6);
    plan.spread = Some(Duration::from_millis(3));
    plan.seed = seed;
    with_progress(plan.cases(), |progress| plan.run(progress))
}

/// Ten tasks that compute on the one thread of the user-level flavor, with checkpoints every 10 µs.
fn checkpoints(seed: u64) -> Result<Outcome, BenchError> {
    let mut plan = ReactionPlan::new(vec![System::VigieCheckpoint]);
    plan.compute = vec![10];
    plan.yield_every = YieldEvery::Step(Duration::from_micros(10));
    plan.samples = 2_000;
    plan.budget = Duration::from_secs(8);
    plan.spread = Some(Duration::from_millis(3));
    plan.seed = seed;
    with_progress(plan.cases(), |progress| plan.run(progress))
}

/// The work of vigie's and of tokio's compute tasks beside messages so seldom that neither system works
/// for them, however fast it echoes.
fn throughput(seed: u64) -> Result<Outcome, BenchError> {
    let mut plan = ReactionPlan::new(vec![System::Vigie, System::Tokio]);
    plan.compute = vec![2, 10];
    (plan.samples, plan.budget, plan.rounds) = (u32::MAX, Duration::from_secs(12), 4);
    plan.pause = Duration::from_millis(50);
    plan.seed = seed;
    with_progress(plan.cases(), |progress| plan.run(progress))
}

/// Everything that can be measured of messages, up to the size beyond which there is no crossover to
/// look for.
fn messages() -> Result<Outcome, BenchError> {
    let mut plan = PingPongPlan::new(messages::carriers());
    let sizes = PingPongPlan::sizes().into_iter().chain([16_777_216, 67_108_864]);
    plan.measures = PingPongPlan::measures(&sizes.collect::<Vec<_>>());
    plan.rings = vec![8, 32];
    let mut outcome = with_progress(plan.cases(), |progress| plan.run(progress))?;
    // First, since they are the reason why goals have no figure.
    outcome.rows.splice(0..0, absent());
    Ok(outcome)
}

fn with_progress(
    cases: usize,
    run: impl FnOnce(&mut Progress) -> Result<Outcome, BenchError>,
) -> Result<Outcome, BenchError> {
    let mut progress = Progress::new(cases);
    let outcome = run(&mut progress);
    progress.finish();
    outcome
}

/// What a goal found in the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    /// The smallest number of samples behind any part of it.
    pub(crate) samples: u64,
    /// The figure itself could not be had from so few samples: it is this or more.
    pub(crate) is_least: bool,
}

impl Figure {
    pub(crate) const fn new(value: f64, samples: u64) -> Self {
        Self { value, samples, is_least: false }
    }
}

/// The largest mean over 1, 2, 5 and 10 compute tasks to the smallest.
pub(crate) fn mean_spread(rows: &[Row], system: System) -> Option<Figure> {
    let rows = [1, 2, 5, 10]
        .into_iter()
        .map(|compute| find(rows, system, reaction::CASE, (reaction::COMPUTE, compute)))
        .collect::<Option<Vec<_>>>()?;
    let means = rows.iter().map(|row| row.figure("mean_us")).collect::<Option<Vec<_>>>()?;
    let largest = means.iter().copied().fold(f64::MIN, f64::max);
    let smallest = means.iter().copied().fold(f64::MAX, f64::min);
    let samples = rows.iter().map(|row| row.samples()).min()?;
    Some(Figure::new(largest / smallest, samples))
}

/// The largest mean over 1, 2, 5 and 10 compute tasks.
pub(crate) fn largest_mean(rows: &[Row], system: System) -> Option<Figure> {
    largest([1, 2, 5, 10].into_iter().map(|compute| {
        let row = find(rows, system, reaction::CASE, (reaction::COMPUTE, compute))?;
        Some(Figure::new(row.figure("mean_us")?, row.samples()))
    }))
}

/// The largest of a percentile over [`HOGS`] compute tasks.
pub(crate) fn hogs_percentile(rows: &[Row], system: System, key: &str) -> Option<Figure> {
    largest(HOGS.into_iter().map(|compute| {
        let row = find(rows, system, reaction::CASE, (reaction::COMPUTE, compute))?;
        percentile(row, "", key)
    }))
}

/// The largest ratio of two systems' medians over [`HOGS`] compute tasks.
pub(crate) fn hogs_p50_ratio(rows: &[Row], systems: [System; 2]) -> Option<Figure> {
    largest(HOGS.into_iter().map(|compute| p50_ratio(rows, systems, compute)))
}

/// The smallest ratio of two systems' work over the numbers of compute tasks that were measured.
pub(crate) fn least_work_ratio(rows: &[Row], systems: [System; 2]) -> Option<Figure> {
    let of = |system| rows.iter().filter(move |row: &&Row| row.system == system);
    let ratios = of(systems[0]).map(|own| {
        let compute = own.parameters.get(reaction::COMPUTE);
        let base = of(systems[1]).find(|row| row.parameters.get(reaction::COMPUTE) == compute)?;
        quotient(own, base, cases::WORK_PER_S)
    });
    let ratios = ratios.collect::<Option<Vec<_>>>()?;
    ratios.into_iter().min_by(|a, b| a.value.total_cmp(&b.value))
}

/// A percentile of a system's only row of a case. `prefix` names the samples, if they are not the row's
/// own.
pub(crate) fn case_percentile(
    rows: &[Row],
    (system, case): (System, &str),
    prefix: &str,
    key: &str,
) -> Option<Figure> {
    percentile(only(rows, system, case)?, prefix, key)
}

/// A figure of a system's only row of a case that is no percentile.
pub(crate) fn case_figure(
    rows: &[Row],
    (system, case): (System, &str),
    key: &str,
) -> Option<Figure> {
    let row = only(rows, system, case)?;
    Some(Figure::new(row.figure(key)?, row.samples()))
}

/// A figure of the first system to that of the second, in their only rows of a case.
pub(crate) fn case_ratio(
    rows: &[Row],
    systems: [System; 2],
    case: &str,
    key: &str,
) -> Option<Figure> {
    quotient(only(rows, systems[0], case)?, only(rows, systems[1], case)?, key)
}

/// The smallest share of the work that a system kept beside others, to the fair share.
pub(crate) fn least_share(rows: &[Row], system: System) -> Option<Figure> {
    let rows = rows.iter().filter(|row| row.system == system && row.case == fairness::CASE);
    // A case without a figure is no small share, and no large one either: nothing is known.
    let share = |row: &Row| Some(Figure::new(row.figure(fairness::WORK_OF_FAIR)?, row.samples()));
    let shares = rows.map(share).collect::<Option<Vec<_>>>()?;
    shares.into_iter().min_by(|a, b| a.value.total_cmp(&b.value))
}

fn only<'a>(rows: &'a [Row], system: System, case: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.system == system && row.case == case)
}

/// A percentile of a row, or, where its samples are too few, the next lower one that they carry: the
/// figure is that or more. A system so slow that few samples fit in has not escaped its goal.
fn percentile(row: &Row, prefix: &str, key: &str) -> Option<Figure> {
    const UPWARDS: [&str; 4] = ["p50_us", "p90_us", "p99_us", "p99.9_us"];
    let asked = UPWARDS.iter().position(|known| *known == key)?;
    let figure = |key: &str| row.figure(&format!("{prefix}{key}"));
    let samples = row.figures.get(&format!("{prefix}samples")).and_then(Value::as_u64)?;
    let found = UPWARDS[..=asked].iter().enumerate().rev();
    let (position, value) = found.clone().find_map(|(at, key)| Some((at, figure(key)?)))?;
    Some(Figure { value, samples, is_least: position < asked })
}

/// The largest of some figures, if there are all of them.
fn largest(figures: impl Iterator<Item = Option<Figure>>) -> Option<Figure> {
    let figures = figures.collect::<Option<Vec<_>>>()?;
    let samples = figures.iter().map(|figure| figure.samples).min()?;
    let largest = figures.iter().copied().max_by(|a, b| a.value.total_cmp(&b.value))?;
    let is_least = figures.iter().any(|figure| figure.is_least);
    Some(Figure { value: largest.value, samples, is_least })
}

/// The mean at ten compute tasks to that at one.
pub(crate) fn growth(rows: &[Row], system: System) -> Option<Figure> {
    let row = |compute| find(rows, system, reaction::CASE, (reaction::COMPUTE, compute));
    quotient(row(10)?, row(1)?, "mean_us")
}

/// The median of the first system to that of the second.
pub(crate) fn p50_ratio(rows: &[Row], systems: [System; 2], compute: u32) -> Option<Figure> {
    let row = |system| find(rows, system, reaction::CASE, (reaction::COMPUTE, compute));
    let [own, base] = systems.map(row);
    quotient(own?, base?, "p50_us")
}

fn quotient(own: &Row, base: &Row, key: &str) -> Option<Figure> {
    let value = own.figure(key)? / base.figure(key)?;
    Some(Figure::new(value, own.samples().min(base.samples())))
}

/// The completion time to that with the fewest waiting tasks.
pub(crate) fn completion_ratio(rows: &[Row], system: System, waiting: u32) -> Option<Figure> {
    let row = find(rows, system, pending::CASE, (pending::WAITING, waiting))?;
    let samples = row.figures.get("rounds").and_then(Value::as_u64)?;
    Some(Figure::new(row.figure("completion_ratio")?, samples))
}

/// A figure of a server that was left alone.
pub(crate) fn idle_figure(rows: &[Row], system: System, key: &str) -> Option<Figure> {
    let row = rows.iter().find(|row| row.system == system && row.case == idle::CASE)?;
    Some(Figure::new(row.figure(key)?, 1))
}

/// Allocations per switch of a kind.
pub(crate) fn allocations(rows: &[Row], system: System, kind: SwitchKind) -> Option<Figure> {
    per_switch(rows, system, kind, "allocations")
}

/// System calls per switch of a kind.
pub(crate) fn system_calls(rows: &[Row], system: System, kind: SwitchKind) -> Option<Figure> {
    per_switch(rows, system, kind, "system_calls")
}

fn per_switch(rows: &[Row], system: System, kind: SwitchKind, key: &str) -> Option<Figure> {
    let is_kind =
        |row: &&Row| row.parameters.get("kind").and_then(Value::as_str) == Some(kind.name());
    let mut rows = rows.iter().filter(|row| row.system == system && row.case == switches::CASE);
    let row = rows.find(is_kind)?;
    let switches = row.figures.get("switches").and_then(Value::as_u64)?;
    Some(Figure::new(row.figure(key)? / switches as f64, switches))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reacted(system: System, compute: u32, mean_us: f64, samples: u64) -> Row {
        let row = Row::new(system, reaction::CASE).parameter(reaction::COMPUTE, compute);
        let row = row.with_figure("mean_us", mean_us).with_figure("p50_us", mean_us / 2.0);
        row.with_figure("samples", samples)
    }

    #[test]
    fn the_spread_needs_all_of_its_cases() {
        // Goal: largest to smallest, samples of the poorest case, nothing if a case is missing.
        // Method: rows with known figures.
        let system = System::VigieEnhanced;
        let mut rows = vec![
            reacted(system, 1, 5_000.0, 90),
            reacted(system, 2, 4_000.0, 100),
            reacted(system, 5, 4_800.0, 60),
            reacted(System::Tokio, 10, 99_000.0, 5),
        ];
        assert_eq!(mean_spread(&rows, system), None);
        rows.push(reacted(system, 10, 4_400.0, 70));
        assert_eq!(mean_spread(&rows, system), Some(Figure::new(1.25, 60)));
    }

    #[test]
    fn ratios_compare_the_right_rows() {
        // Goal: own figure above, the peer's below. Method: rows with known figures.
        let rows = [reacted(System::Vigie, 2, 30.0, 9), reacted(System::Tokio, 2, 120.0, 7)];
        let ratio = p50_ratio(&rows, [System::Vigie, System::Tokio], 2);
        assert_eq!(ratio, Some(Figure::new(0.25, 7)));
        assert_eq!(p50_ratio(&rows, [System::Vigie, System::Smol], 2), None);
    }

    #[test]
    fn the_worst_number_of_compute_tasks_counts() {
        // Goal: the largest over 2, 5, 10, the fewest samples, and a lower bound where one percentile is
        // missing. Method: rows with known figures.
        let row = |compute, p99, samples| {
            reacted(System::Vigie, compute, 8.0, samples).with_figure("p99_us", p99)
        };
        let mut rows = vec![row(2, 30.0, 2_000), row(5, 50.0, 1_500), row(10, 40.0, 1_700)];
        let found = |rows: &[Row]| hogs_percentile(rows, System::Vigie, "p99_us");
        assert_eq!(found(&rows), Some(Figure::new(50.0, 1_500)));
        rows[2] = reacted(System::Vigie, 10, 9_000.0, 20);
        let least = Figure { is_least: true, ..Figure::new(4_500.0, 20) };
        assert_eq!(found(&rows), Some(least));
        assert_eq!(found(&rows[1..]), None);
    }

    #[test]
    fn the_least_share_needs_all_of_its_cases() {
        // Goal: the smallest share and the smallest work ratio; nothing if a case has none.
        // Method: rows with known figures.
        let row = |share: f64| {
            let row = Row::new(System::Vigie, fairness::CASE).with_figure("samples", 9);
            row.with_figure(fairness::WORK_OF_FAIR, share)
        };
        let mut rows = vec![row(0.99), row(0.91)];
        assert_eq!(least_share(&rows, System::Vigie), Some(Figure::new(0.91, 9)));
        rows.push(Row::new(System::Vigie, fairness::CASE));
        assert_eq!(least_share(&rows, System::Vigie), None);
        let work = |system, compute, work: f64| {
            reacted(system, compute, 1.0, 5).with_figure(cases::WORK_PER_S, work)
        };
        let (own, base) = (System::Vigie, System::Tokio);
        let rows =
            [work(own, 2, 9.0), work(base, 2, 10.0), work(own, 10, 5.0), work(base, 10, 5.0)];
        assert_eq!(least_work_ratio(&rows, [own, base]), Some(Figure::new(0.9, 5)));
        assert_eq!(least_work_ratio(&rows[..3], [own, base]), None);
    }

    #[test]
    fn figures_per_switch() {
        // Goal: each kind has its own row. Method: two rows of one system.
        let row = |kind: SwitchKind, allocations: u64| {
            let row = Row::new(System::Vigie, switches::CASE).parameter("kind", kind.name());
            row.with_figure("switches", 100).with_figure("allocations", allocations)
        };
        let rows = [row(SwitchKind::Yield, 0), row(SwitchKind::Wait, 50)];
        let value = |kind| allocations(&rows, System::Vigie, kind).map(|figure| figure.value);
        assert_eq!((value(SwitchKind::Yield), value(SwitchKind::Wait)), (Some(0.0), Some(0.5)));
        assert_eq!(system_calls(&rows, System::Vigie, SwitchKind::Yield), None);
    }
}
