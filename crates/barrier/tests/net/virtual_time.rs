//! Members over messages of a simulated network, all at one simulated server: every time-out is one of virtual time.

use std::time::Duration;

use vigie_barrier::{
    Algorithm, Rank,
    net::{Faults, NetBarrier, NetBuilder, NetCounters},
};
use vigie_detect::{Instant, Server, Simulation};
use vigie_via::{
    message::Endpoint,
    protocol::{EngineConfig, EngineEvent, MessageEngine},
    sim::{FaultPlan, SimNetwork, SimNic},
    vi::{Provider, Reliability},
};

use crate::stage::Entries;

/// Connects `size` ranks with each other.
async fn ranks(
    server: &Server,
    network: &SimNetwork,
    size: u32,
    config: EngineConfig,
) -> Vec<Endpoint<SimNic>> {
    let ends: Vec<_> = (0..size)
        .map(|rank| {
            let mut nic = network.nic();
            nic.listen(b"ranks").expect("listens");
            let engine = MessageEngine::new(nic, rank, size, config).expect("an engine");
            Endpoint::new(server, engine).expect("an endpoint")
        })
        .collect();
    for (one, first) in (0..).zip(&ends) {
        for (other, second) in (0..).zip(&ends).skip(one as usize + 1) {
            let address = second.with(|engine| engine.nic().address());
            let asked =
                first.with(|engine| engine.connect(other, &address, b"ranks", Instant::MAX));
            asked.expect("asks");
            let event = second.next_event().await.expect("a server");
            let EngineEvent::Requested { request, .. } = event else { panic!("{event:?}") };
            second.with(|engine| engine.accept(request, one)).expect("accepts");
            for end in [first, second] {
                let event = end.next_event().await.expect("a server");
                assert!(matches!(event, EngineEvent::Connected { .. }), "{event:?}");
            }
        }
    }
    ends
}

/// A group and its world.
struct Stage {
    simulation: Simulation,
    network: SimNetwork,
    /// They keep the connections.
    ends: Vec<Endpoint<SimNic>>,
}

impl Stage {
    fn new(seed: u64, size: u32, plan: FaultPlan, config: EngineConfig) -> Self {
        let mut simulation = Simulation::new(seed);
        let network = SimNetwork::over(simulation.network(), FaultPlan::reliable());
        let server = simulation.server().clone();
        let ends = simulation.block_on(ranks(&server, &network, size, config));
        network.set_plan(plan);
        Self { ends: ends.expect("no deadlock"), simulation, network }
    }

    /// Runs `body` for each member. Returns what they return, by rank.
    fn play<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        builder: impl Fn(NetBuilder) -> NetBuilder,
        body: impl Fn(NetBarrier, Server) -> F,
    ) -> Vec<T> {
        let server = self.simulation.server().clone();
        let mut tasks = Vec::new();
        for end in &self.ends {
            let builder = builder(NetBarrier::builder().server(&server));
            let barrier = builder.over(&end.communicator()).expect("a barrier");
            tasks.push(self.simulation.spawn(body(barrier, server.clone())));
        }
        let all = async {
            let mut all = Vec::new();
            for task in tasks {
                all.push(task.await);
            }
            all
        };
        self.simulation.block_on(all).expect("no deadlock")
    }
}

async fn wait(server: &Server, time: Duration) {
    server.timers().wait(server.now() + time).await.expect("a server");
}

const MEMBERS: u32 = 5;
const EPOCHS: u32 = 20;

/// The events of a run.
#[derive(Debug, PartialEq)]
struct Run {
    /// When each member has passed each barrier, and what it has counted.
    members: Vec<(Vec<Instant>, NetCounters)>,
    ended_at: Instant,
    traces: [u64; 2],
}

fn run(seed: u64, algorithm: Algorithm) -> Run {
    let config = EngineConfig::default().reliability(Reliability::Unreliable);
    let mut stage = Stage::new(seed, MEMBERS, FaultPlan::lossy(0.03), config);
    let entries = Entries::default();
    let members = stage.play(
        |builder| {
            let faults = Faults::losing(seed, 30).with_duplicates_and_delays(30, 30);
            let builder = builder.algorithm(algorithm).repeat_after(Duration::from_millis(1));
            builder.faults(faults)
        },
        |mut barrier, server| {
            let entries = entries.clone();
            async move {
                let mut chance = fastrand::Rng::with_seed(seed ^ u64::from(barrier.rank().0));
                let mut passed = Vec::new();
                for epoch in 0..EPOCHS {
                    wait(&server, Duration::from_nanos(chance.u64(..200_000))).await;
                    entries.enter();
                    barrier.wait().await.expect("passed");
                    entries.check(epoch, MEMBERS);
                    passed.push(server.now());
                }
                let counters = barrier.counters();
                barrier.leave(Duration::from_secs(1)).await.expect("a server");
                (passed, counters)
            }
        },
    );
    let counts = stage.network.counts();
    assert!(counts.lost > 0 && counts.reordered > 0, "{counts:?}");
    let traces = [stage.network.trace_hash(), stage.simulation.trace_hash()];
    Run { members, ended_at: stage.simulation.now(), traces }
}

/// Goal: no member leaves a barrier that not all have entered, though the network and the transport lose, double and reorder; what
/// is lost is asked for by virtual time; a seed gives the same run again, to the nanosecond, and another one another. Method:
/// some seeds for several algorithms, with pauses before each barrier.
#[test]
fn a_barrier_is_a_function_of_its_seed() {
    for name in ["dissemination", "central", "concurrent", "ternary"] {
        let algorithm: Algorithm = name.parse().expect("a name");
        let mut asked = 0;
        let mut runs: Vec<Run> = Vec::new();
        for seed in 0..4 {
            let found = run(seed, algorithm);
            assert!(run(seed, algorithm) == found, "{name}: seed {seed} is not replayed");
            let constant_time_eq = |run: &Run| run.members == found.members;
            assert!(!runs.iter().any(constant_time_eq), "{name}: seed {seed} changes nothing");
            asked += found.members.iter().map(|(_, counters)| counters.member.nacks).sum::<u64>();
            runs.push(found);
        }
        assert!(asked > 0, "{name}: nothing was missed");
    }
}

/// Goal: a late member is waited for, not believed dead, even if all others keep asking it; its host answers.
/// Method: each member in turn comes three failure timeouts late.
#[test]
fn who_is_late_is_waited_for() {
    let timeout = Duration::from_millis(500);
    for late in 0..3 {
        let mut stage = Stage::new(late, 3, FaultPlan::reliable(), EngineConfig::default());
        let answered = stage.play(
            |builder| builder.failure_timeout(timeout).repeat_after(Duration::from_millis(10)),
            |mut barrier, server| async move {
                for _ in 0..50 {
                    barrier.wait().await.expect("passed");
                }
                let began = server.now();
                if u64::from(barrier.rank().0) == late {
                    wait(&server, 3 * timeout).await;
                }
                barrier.wait().await.expect("passed");
                assert!(server.now() - began >= 3 * timeout);
                barrier.wait().await.expect("passed");
                barrier.counters().member.alive_replies
            },
        );
        assert!(answered[usize::try_from(late).expect("small")] > 0, "{answered:?}");
        assert!(stage.simulation.now() < Instant::from_nanos(0) + 4 * timeout);
    }
}

/// Goal: a member that falls silent is named on all others within the failure timeout, in virtual time, and the rest goes on. Method:
/// the NIC of each member in turn stands still.
#[test]
fn who_falls_silent_is_named_in_time() {
    let timeout = Duration::from_secs(2);
    for silent in 0..4 {
        let mut stage = Stage::new(7, 4, FaultPlan::reliable(), EngineConfig::default());
        let network = stage.network.clone();
        let nics: Vec<_> =
            stage.ends.iter().map(|end| end.with(|engine| engine.nic().id())).collect();
        let named = stage.play(
            |builder| builder.failure_timeout(timeout),
            move |mut barrier, server| {
                let (network, nics) = (network.clone(), nics.clone());
                async move {
                    for _ in 0..10 {
                        barrier.wait().await.expect("passed");
                    }
                    wait(&server, Duration::from_millis(1)).await;
                    if barrier.rank() == Rank(silent) {
                        network.freeze(nics[silent as usize]);
                        return None;
                    }
                    wait(&server, Duration::from_millis(1)).await;
                    let began = server.now();
                    let error = barrier.wait().await.expect_err("one is silent");
                    let after = server.now() - began;
                    assert_eq!(error.lost(), [Rank(silent)], "{error}");
                    assert_eq!(barrier.shrink().await.expect("shrunk").len(), 3);
                    for _ in 0..10 {
                        barrier.wait().await.expect("passed");
                    }
                    barrier.leave(Duration::from_secs(1)).await.expect("a server");
                    Some(after)
                }
            },
        );
        let named: Vec<_> = named.into_iter().flatten().collect();
        assert_eq!(named.len(), 3);
        assert!(named.iter().all(|after| (timeout / 2..=timeout).contains(after)), "{named:?}");
    }
}
