//! The runs that goals need.

use std::time::Duration;

use super::figures::HOGS;
use crate::barrier::{BarrierPlan, BarrierTransport, Laps};
use crate::cases::container::ContainerPlan;
use crate::cases::crowd::CrowdPlan;
use crate::cases::echo::EchoPlan;
use crate::cases::fairness::FairnessPlan;
use crate::cases::periodic::PeriodicPlan;
use crate::cases::service::ServicePlan;
use crate::cluster::simulation::SimulationPlan;
use crate::compute::YieldEvery;
use crate::error::BenchError;
use crate::forward::{
    self, LivePlan, NicPlan,
    relay::{RelayMeasurement, RelayPeer},
    via::{ViaCarrier, ViaPlan},
};
use crate::host::machine::Machine;
use crate::http::HttpPlan;
use crate::idle::IdlePlan;
use crate::interrupts::ForeignCallsPlan;
use crate::loads::{self, LoadsPlan, Mix};
use crate::messages;
use crate::messages::plan::{PingPongPlan, absent};
use crate::messages::remote::{remote_carriers, remote_plan};
use crate::pending::PendingPlan;
use crate::reaction::ReactionPlan;
use crate::report::Outcome;
use crate::report::progress::Progress;
use crate::schedulers::System;
use crate::slowdown::SlowdownPlan;
use crate::switches::SwitchesPlan;
use crate::timers::TimersPlan;
use crate::virtual_time;
use crate::waits::WaitsPlan;

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
    /// Compute tasks, with few messages.
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
    /// An event beside tasks that wait.
    Waits,
    /// The scheduler in virtual time.
    Simulation,
}

impl Experiment {
    pub(crate) const ALL: [Self; 36] = [
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
        Self::Waits,
        Self::Simulation,
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
                    BarrierTransport::LOCAL.to_vec(),
                    vec![2, 8, 32].into_iter().map(Laps::new).collect(),
                );
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::BarrierLate => {
                let mut laps = Laps::new(32);
                laps.late = Duration::from_millis(100);
                laps.budget = Duration::from_secs(3);
                let mut plan = BarrierPlan::new(BarrierTransport::LOCAL.to_vec(), vec![laps]);
                plan.peers = vec!["std".to_owned()];
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::BarrierNet => {
                let laps = [8, 32].map(Laps::new).to_vec();
                let mut plan = BarrierPlan::new(BarrierTransport::NETWORK.to_vec(), laps);
                plan.algorithms = vec!["concurrent".to_owned()];
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::BarrierNetLate => {
                let mut laps = Laps::new(32);
                laps.late = Duration::from_millis(100);
                laps.budget = Duration::from_secs(3);
                let mut plan = BarrierPlan::new(BarrierTransport::NETWORK.to_vec(), vec![laps]);
                plan.peers = Vec::new();
                plan.algorithms = vec!["concurrent".to_owned()];
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::ForwardModel => forward::model(),
            Self::ForwardVia => {
                let mut plan = ViaPlan::new(ViaCarrier::Udp);
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
            Self::Waits => {
                let plan = WaitsPlan::default();
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::Simulation => Ok(virtual_time::run()),
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

impl Experiment {
    /// vigie and kernel threads with as many messages as p99.9 needs, in quick succession; then tokio,
    /// whose messages must be spread over a whole cycle of the compute tasks, and whose answers take so
    /// long that few fit in.
    fn hogs(self, seed: u64) -> Result<Outcome, BenchError> {
        let second = self == Self::SeldomYields;
        let step = if second { Duration::from_secs(1) } else { Duration::from_millis(10) };
        let mut systems = vec![System::Vigie, System::Threads];
        // The best that a runtime over epoll can reach.
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
