//! Barriers of members on one host, and on hosts simulated by network namespaces: vigie's and its
//! peers'.
//!
//! The method is that of the paper's figure 4 [eth-barrier, §4.3]: each member loops over a barrier and a dummy
//! loop of 30 µs and measures the barrier alone; minimum, mean and maximum of each member are averaged over all
//! members. On fewer cores than members, the dummy loops of the others are part of a member's wait, so goals use
//! barriers that follow on each other at once: their p50 is the cost of a barrier.

pub(crate) mod bridge;
mod contestants;
mod inside;
pub(crate) mod lap;
mod mpi;
pub(crate) mod network;
pub(crate) mod processes;
pub(crate) mod transport_costs;
mod via;

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub(crate) use self::contestants::PEERS;
use self::contestants::{Contestant, Harness};
pub(crate) use self::lap::{GroupCosts, Laps};
use self::network::{Choice, Medium, NetSetup, Receivers};
pub(crate) use self::via::Provider;
use crate::clock::nanoseconds;
use crate::error::{BenchError, Failure};
use crate::host::{BuiltMpi, Missing};
use crate::process::{Child, Role, print_result};
use crate::report::{
    Outcome, Plan, Progress, Row, Subject, Table, failures, or_dash, three_digits,
};
use crate::statistics::{Samples, microseconds};

/// The case of rows in which no member is late.
pub(crate) const CASE: &str = "barrier";

/// The case of rows in which the last member is late each time.
pub(crate) const LATE: &str = "late";

/// Parameter of a row: members of the group.
pub(crate) const MEMBERS: &str = "members";

/// Figure: processor time of all members divided by the elapsed time.
pub(crate) const CPU_CORES: &str = "cpu_cores";

/// The time limit of a run in a child, beside its budget.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The kinds of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BarrierTransport {
    /// Tasks on two workers.
    Tasks,
    /// Threads.
    Threads,
    /// Processes over shared memory.
    Shm,
    /// Processes in network namespaces on a bridge, over UDP with multicast.
    Udp,
    /// The same over raw Ethernet.
    Ether,
    /// Processes over messages of via.
    Via,
}

impl BarrierTransport {
    /// Those that need no network.
    pub(crate) const LOCAL: [Self; 3] = [Self::Tasks, Self::Threads, Self::Shm];

    /// Those over a network.
    pub(crate) const NETWORK: [Self; 2] = [Self::Udp, Self::Ether];
}

/// The systems and their measurements.
#[derive(Clone, Debug)]
pub(crate) struct BarrierPlan {
    /// The kinds of members.
    pub(crate) over: Vec<BarrierTransport>,
    /// The peers beside vigie's own, of [`PEERS`].
    pub(crate) peers: Vec<String>,
    /// The runs: one for each row of a system.
    pub(crate) laps: Vec<Laps>,
    /// Turns in which the budget is spent, each with new processes.
    pub(crate) rounds: u32,
    /// The algorithms of barriers over a network, by name; all if empty. The planner's choice is always there.
    pub(crate) algorithms: Vec<String>,
    /// Which of them carry messages of `via`.
    pub(crate) providers: Vec<Provider>,
    /// Only the paper's question [eth-barrier, §6]: the 4-ary tree and shuffle exchange over a network, with receivers that
    /// poll and with receivers that sleep.
    pub(crate) receivers: bool,
}

impl BarrierPlan {
    /// Plans one kind of members and all peers, in 3 turns.
    pub(crate) fn new(over: Vec<BarrierTransport>, laps: Vec<Laps>) -> Self {
        Self {
            over,
            peers: PEERS.map(str::to_owned).to_vec(),
            laps,
            rounds: 3,
            algorithms: Vec::new(),
            providers: Provider::value_variants().to_vec(),
            receivers: false,
        }
    }

    /// Measures only these systems, beside vigie's own.
    fn contestants(&self) -> impl Iterator<Item = &'static Contestant> {
        let is_asked = |peer: &str| self.peers.iter().any(|asked| asked == peer);
        let is_in = move |contestant: &&Contestant| {
            if let Harness::Network(NetSetup { medium, choice, receivers }) = contestant.how {
                let is_named = match choice {
                    Choice::Named(name) if receivers == Receivers::Adaptive => {
                        self.algorithms.is_empty()
                            || self.algorithms.iter().any(|asked| asked == name)
                    }
                    _ => true,
                };
                let is_carried = match medium {
                    Medium::Via(provider) => self.providers.contains(&provider),
                    Medium::Udp | Medium::Loopback | Medium::Ether => true,
                };
                let is_cell = receivers != Receivers::Adaptive;
                if !is_named || !is_carried || is_cell != self.receivers {
                    return false;
                }
            } else if self.receivers {
                return false;
            }
            self.over.contains(&contestant.over) && contestant.peer.is_none_or(is_asked)
        };
        contestants::all().iter().filter(is_in)
    }
}

impl Plan for BarrierPlan {
    fn cases(&self) -> usize {
        self.contestants().count() * self.laps.len() * self.rounds as usize
    }

    fn run(&self, _seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let contestants: Vec<_> = self.contestants().collect();
        let built: Vec<_> = contestants
            .iter()
            .map(|contestant| match contestant.how {
                Harness::Mpi { mpi, .. } => Some(mpi::build(mpi)),
                Harness::Inside(_) | Harness::Processes { .. } | Harness::Network(_) => None,
            })
            .collect();
        let is_networked = |one: &&Contestant| match one.how {
            Harness::Network(setting) => setting.medium.is_bridged(),
            _ => false,
        };
        let members = self.laps.iter().map(|laps| laps.members).max().unwrap_or(0);
        let bridge = contestants.iter().any(is_networked).then(|| bridge::Bridge::make(members));
        let cases: Vec<(usize, Laps)> = self
            .laps
            .iter()
            .flat_map(|laps| (0..contestants.len()).map(|index| (index, *laps)))
            .collect();
        let mut rows: Vec<_> =
            cases.iter().map(|&(index, laps)| row(contestants[index], laps)).collect();
        let mut found = vec![Vec::new(); rows.len()];
        for _ in 0..self.rounds {
            for (place, &(index, laps)) in cases.iter().enumerate() {
                let contestant = contestants[index];
                progress.case(format!("{}, {} members", contestant.name, laps.members));
                if rows[place].failure.is_none() {
                    let budget = laps.budget / self.rounds.max(1);
                    let laps = Laps { budget, ..laps };
                    match measure(contestant, built[index].as_ref(), bridge.as_ref(), laps) {
                        Ok(costs) => found[place].push(costs),
                        Err(failure) => rows[place].failure = Some(failure),
                    }
                }
                progress.case_done();
            }
        }
        for (row, found) in rows.iter_mut().zip(&found) {
            if row.failure.is_none() {
                sum_up(row, &GroupCosts::merged(found));
            }
        }
        Ok(Outcome { rows, priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        let headings =
            ["system", "members", "p50 µs", "p99 µs", "min µs", "mean µs", "max µs", "cores", "n"];
        let mut tables = String::new();
        for laps in &self.laps {
            let title = format!(
                "Barrier of {} members, dummy loop {:?}, skew {:?}, late {:?} (min, mean, max: over \
                 all members [eth-barrier, §4.3])",
                laps.members, laps.dummy, laps.skew, laps.late
            );
            let mut table = Table::new(title, headings.map(str::to_owned));
            let parameters = |row: &Row| row_of(row.system, row.case, *laps).parameters;
            let is_of = |row: &&Row| row.parameters == parameters(row);
            for row in rows.iter().filter(is_of) {
                let figure = |key: &str| or_dash(row.figure(key).map(three_digits));
                let members = laps.members.to_string();
                let keys = ["p50_us", "p99_us", "min_us", "mean_us", "max_us", CPU_CORES, "count"];
                let cells = keys.map(figure);
                table.row([row.system.label().to_owned(), members].into_iter().chain(cells));
            }
            let found = transport_costs::table(laps.members, rows.iter().filter(is_of));
            tables = format!("{tables}{table}\n\n{found}");
        }
        let failed: Vec<_> = rows.iter().filter(|row| row.failure.is_some()).cloned().collect();
        format!("{tables}{}", failures(&failed))
    }
}

fn row(contestant: &Contestant, laps: Laps) -> Row {
    let subject = Subject::Carrier { name: contestant.name, label: contestant.label };
    row_of(subject, if laps.late.is_zero() { CASE } else { LATE }, laps)
}

fn row_of(subject: Subject, case: &'static str, laps: Laps) -> Row {
    let row = Row::new(subject, case).parameter(MEMBERS, laps.members);
    row.parameter("dummy_us", microseconds(nanoseconds(laps.dummy)))
        .parameter("skew_us", microseconds(nanoseconds(laps.skew)))
        .parameter("late_us", microseconds(nanoseconds(laps.late)))
}

fn measure(
    contestant: &Contestant,
    built: Option<&Result<BuiltMpi, Missing>>,
    bridge: Option<&Result<bridge::Bridge, Missing>>,
    laps: Laps,
) -> Result<GroupCosts, String> {
    let costs = match (contestant.how, built) {
        (Harness::Inside(_), _) => start(contestant.name, laps),
        (Harness::Processes { blocks }, _) => processes::measure(laps, blocks),
        (Harness::Network(setting), _) if !setting.medium.is_bridged() => {
            network::measure(laps, setting, None)
        }
        (Harness::Network(setting), _) => match bridge {
            Some(Ok(bridge)) => network::measure(laps, setting, Some(bridge)),
            Some(Err(missing)) => return Err(missing.to_string()),
            None => return Err("there is no bridge".to_owned()),
        },
        (Harness::Mpi { algorithm, wire, .. }, Some(Ok(built))) => {
            mpi::measure(built, laps, algorithm, wire)
        }
        (Harness::Mpi { .. }, Some(Err(missing))) => return Err(missing.to_string()),
        (Harness::Mpi { .. }, None) => return Err("it was not built".to_owned()),
    };
    costs.map_err(|error| error.to_string())
}

/// The plan of a process that measures a group within itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GroupPlan {
    name: String,
    laps: Laps,
}

impl Role for GroupPlan {
    const NAME: &'static str = "group";
}

fn start(name: &str, laps: Laps) -> Result<GroupCosts, BenchError> {
    let mut child = Child::start(&GroupPlan { name: name.to_owned(), laps })?;
    child.result(TIMEOUT + laps.budget * 4)
}

/// Measures a group within this process.
pub(crate) fn play(plan: &GroupPlan) -> Result<(), Failure> {
    let known = contestants::all().iter().find(|contestant| contestant.name == plan.name);
    let Some(Contestant { how: Harness::Inside(measure), .. }) = known else {
        return Err(Failure::runtime(format!("there is no {:?}", plan.name)));
    };
    print_result(&measure(plan.laps)?);
    Ok(())
}

fn sum_up(row: &mut Row, costs: &GroupCosts) {
    let samples: Samples = costs.samples_ns.iter().copied().collect();
    if let Some(summary) = samples.summary() {
        row.figures = summary.figures();
    }
    let mut set = |key: &str, value: f64| row.figures.insert(key.to_owned(), value.into());
    set("min_us", costs.min_ns / 1e3);
    set("mean_us", costs.mean_ns / 1e3);
    set("max_us", costs.max_ns / 1e3);
    set(CPU_CORES, costs.cpu_ns as f64 / costs.wall_ns.max(1) as f64);
    set("count", costs.count as f64);
    transport_costs::note(row, costs);
    row.samples_ns.insert("barrier", costs.samples_ns.clone());
}
