//! Barriers of members on one host, and on hosts simulated by network namespaces: vigie's and its
//! peers'.
//!
//! The method is that of the paper's figure 4 [eth-barrier, §4.3]: each member loops over a barrier and a dummy
//! loop of 30 µs and measures the barrier alone; minimum, mean and maximum of each member are averaged over all
//! members. On fewer cores than members, the dummy loops of the others are part of a member's wait, so goals use
//! barriers that follow on each other at once: their p50 is the cost of a barrier.

pub(crate) mod bridge;
mod inside;
pub(crate) mod lap;
mod mpi;
pub(crate) mod network;
pub(crate) mod processes;
pub(crate) mod transport_costs;
mod via;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::lap::{GroupCosts, Laps};
use self::network::{Choice, Medium, NetSetup, Receivers};
pub use self::transport_costs::TransportCosts;
pub use self::via::{Provider, UnknownProvider};
use crate::clock::nanoseconds;
use crate::error::{BenchError, Failure};
use crate::process::{Child, Role, print_result};
use crate::report::figure::Figure;
use crate::report::progress::Progress;
use crate::report::show::failures;
use crate::report::table::{Table, three_digits};
use crate::report::{Outcome, Row, Subject};
use crate::statistics::{Samples, microseconds};

/// The case of rows in which no member is late.
pub const CASE: &str = "barrier";

/// The case of rows in which the last member is late each time.
pub const LATE: &str = "late";

/// Parameter of a row: members of the group.
pub const MEMBERS: &str = "members";

/// Figure: processor time of all members divided by the elapsed time.
pub const CPU_CORES: &str = "cpu_cores";

/// The time limit of a run in a child, beside its budget.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The kinds of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BarrierTransport {
    /// Tasks on two workers.
    Tasks,
    /// Threads.
    Threads,
    /// Processes over shared memory.
    Shm,
    /// Processes in network namespaces on a bridge, over UDP with multicast.
    Udp,
    /// The same, over raw Ethernet.
    Ether,
    /// Processes over messages of `via`, by one of its providers.
    Via,
}

impl BarrierTransport {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Tasks, Self::Threads, Self::Shm, Self::Udp, Self::Ether, Self::Via];

    /// Those on one host.
    pub const LOCAL: [Self; 3] = [Self::Tasks, Self::Threads, Self::Shm];

    /// Those over a network.
    pub const NETWORK: [Self; 2] = [Self::Udp, Self::Ether];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tasks => "tasks",
            Self::Threads => "threads",
            Self::Shm => "shm",
            Self::Udp => "udp",
            Self::Ether => "ether",
            Self::Via => "via",
        }
    }
}

impl fmt::Display for BarrierTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BarrierTransport {
    type Err = UnknownBarrierTransport;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|over| over.name() == name);
        known.ok_or_else(|| UnknownBarrierTransport { name: name.to_owned() })
    }
}

/// An unknown kind of member.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no members are {name:?}; there are {}", BarrierTransport::ALL.map(BarrierTransport::name).join(", "))]
#[non_exhaustive]
pub struct UnknownBarrierTransport {
    /// The given text.
    pub name: String,
}

/// How a system is measured.
#[derive(Clone, Copy)]
enum Harness {
    /// By a process of this program.
    Inside(fn(Laps) -> Result<GroupCosts, Failure>),
    /// By a process of this program for each member.
    Processes { blocks: bool },
    /// By a program of its own.
    Mpi { mpi: &'static mpi::Mpi, algorithm: Option<u32>, wire: mpi::MpiTransport },
    /// By a process of this program for each member, over a network.
    Network(NetSetup),
}

/// A barrier under test.
#[derive(Clone, Copy)]
pub struct Contestant {
    name: &'static str,
    label: &'static str,
    /// The word of `--peers` for it; none for vigie's own.
    peer: Option<&'static str>,
    over: BarrierTransport,
    how: Harness,
}

impl fmt::Debug for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contestant").field("name", &self.name).finish_non_exhaustive()
    }
}

const fn inside(
    name: &'static str,
    label: &'static str,
    peer: Option<&'static str>,
    over: BarrierTransport,
    measure: fn(Laps) -> Result<GroupCosts, Failure>,
) -> Contestant {
    Contestant { name, label, peer, over, how: Harness::Inside(measure) }
}

const fn open_mpi(name: &'static str, label: &'static str, algorithm: Option<u32>) -> Contestant {
    let how = Harness::Mpi { mpi: &mpi::OPEN_MPI, algorithm, wire: mpi::MpiTransport::Own };
    Contestant { name, label, peer: Some("openmpi"), over: BarrierTransport::Shm, how }
}

const fn open_mpi_tcp(
    name: &'static str,
    label: &'static str,
    algorithm: Option<u32>,
) -> Contestant {
    let how = Harness::Mpi { mpi: &mpi::OPEN_MPI, algorithm, wire: mpi::MpiTransport::Tcp };
    Contestant { name, label, peer: Some("openmpi"), over: BarrierTransport::Udp, how }
}

/// A group over a network whose members wait in the usual way.
const fn net(
    name: &'static str,
    label: &'static str,
    medium: Medium,
    choice: Choice,
) -> Contestant {
    let receivers = Receivers::Adaptive;
    let over = match medium {
        Medium::Udp | Medium::Loopback => BarrierTransport::Udp,
        Medium::Ether => BarrierTransport::Ether,
        Medium::Via(_) => BarrierTransport::Via,
    };
    let how = Harness::Network(NetSetup { medium, choice, receivers });
    Contestant { name, label, peer: None, over, how }
}

/// A group over a network whose members poll, or sleep.
const fn cell(
    name: &'static str,
    label: &'static str,
    medium: Medium,
    algorithm: &'static str,
    receivers: Receivers,
) -> Contestant {
    let how = Harness::Network(NetSetup { medium, choice: Choice::Named(algorithm), receivers });
    Contestant { how, ..net(name, label, medium, Choice::Planned) }
}

/// Name of a row: vigie's tasks on the hybrid flavor.
pub const HYBRID: &str = "vigie";
/// Name of a row: vigie's tasks on the user-level flavor.
pub const USER_LEVEL: &str = "vigie-user-level";
/// Name of a row: the floor set by the kernel's scheduler.
pub const FLOOR: &str = "kernel-floor";
/// Name of a row: vigie's threads.
pub const THREADS: &str = "vigie-threads";
/// Name of a row: vigie's processes, awaiting.
pub const SHM: &str = "vigie-shm";
/// Name of a row: vigie's processes, blocking.
pub const SHM_BLOCKING: &str = "vigie-shm-blocking";
/// Name of a row: vigie's processes over UDP, with the planner's algorithm.
pub const UDP: &str = "vigie-udp";
/// Name of a row: vigie's processes over UDP on the loopback interface, as Open MPI's over TCP are.
pub const LOOPBACK: &str = "vigie-udp-loopback";
/// Name of a row: vigie's processes over raw Ethernet, with the planner's algorithm.
pub const ETHER: &str = "vigie-ether";
/// Name of a row: Open MPI over TCP, as it comes.
pub const OPEN_MPI_TCP: &str = "openmpi-tcp";
/// Peers among threads.
const THREAD_PEERS: [&str; 3] = ["std", "pthread", "hurdles"];

/// All systems, in the order of the tables.
static CONTESTANTS: &[Contestant] = &[
    inside(
        USER_LEVEL,
        "vigie, tasks, user-level",
        None,
        BarrierTransport::Tasks,
        inside::user_level,
    ),
    inside(HYBRID, "vigie, tasks, hybrid", None, BarrierTransport::Tasks, inside::hybrid),
    inside(
        "vigie-on-tokio",
        "vigie, tasks on tokio",
        None,
        BarrierTransport::Tasks,
        inside::own_on_tokio,
    ),
    inside(FLOOR, "floor of kernel threads", None, BarrierTransport::Tasks, inside::kernel_floor),
    inside("tokio", "tokio::sync::Barrier", Some("tokio"), BarrierTransport::Tasks, inside::tokio),
    inside(THREADS, "vigie, threads", None, BarrierTransport::Threads, inside::threads),
    inside("std", "std::sync::Barrier", Some("std"), BarrierTransport::Threads, inside::std),
    inside(
        "pthread",
        "pthread_barrier",
        Some("pthread"),
        BarrierTransport::Threads,
        inside::pthread,
    ),
    inside("hurdles", "hurdles", Some("hurdles"), BarrierTransport::Threads, inside::hurdles),
    Contestant {
        name: SHM,
        label: "vigie, shared memory, awaited",
        peer: None,
        over: BarrierTransport::Shm,
        how: Harness::Processes { blocks: false },
    },
    Contestant {
        name: SHM_BLOCKING,
        label: "vigie, shared memory, blocking",
        peer: None,
        over: BarrierTransport::Shm,
        how: Harness::Processes { blocks: true },
    },
    open_mpi("openmpi", "Open MPI, its choice", None),
    open_mpi("openmpi-linear", "Open MPI, linear", Some(1)),
    open_mpi("openmpi-double-ring", "Open MPI, double ring", Some(2)),
    open_mpi("openmpi-doubling", "Open MPI, recursive doubling", Some(3)),
    open_mpi("openmpi-bruck", "Open MPI, Bruck", Some(4)),
    open_mpi("openmpi-tree", "Open MPI, tree", Some(6)),
    Contestant {
        name: "mpich",
        label: "MPICH",
        peer: Some("mpich"),
        over: BarrierTransport::Shm,
        how: Harness::Mpi { mpi: &mpi::MPICH, algorithm: None, wire: mpi::MpiTransport::Own },
    },
    net(UDP, "vigie, UDP, planned", Medium::Udp, Choice::Planned),
    net(LOOPBACK, "vigie, UDP on loopback, planned", Medium::Loopback, Choice::Planned),
    net("vigie-udp-measured", "vigie, UDP, measured and planned", Medium::Udp, Choice::Measured),
    net("vigie-udp-concurrent", "vigie, UDP, concurrent", Medium::Udp, Choice::Named("concurrent")),
    net("vigie-udp-ternary", "vigie, UDP, ternary tree", Medium::Udp, Choice::Named("ternary")),
    net("vigie-udp-binary", "vigie, UDP, binary tree", Medium::Udp, Choice::Named("binary")),
    net(
        "vigie-udp-dissemination",
        "vigie, UDP, dissemination",
        Medium::Udp,
        Choice::Named("dissemination"),
    ),
    net("vigie-udp-central", "vigie, UDP, central, unicast", Medium::Udp, Choice::Named("central")),
    cell(
        "vigie-udp-nomial-4-polling",
        "vigie, UDP, 4-ary tree, polling",
        Medium::Udp,
        "nomial-4",
        Receivers::Polling,
    ),
    cell(
        "vigie-udp-nomial-4-sleeping",
        "vigie, UDP, 4-ary tree, sleeping",
        Medium::Udp,
        "nomial-4",
        Receivers::Sleeping,
    ),
    cell(
        "vigie-udp-shuffle-exchange-polling",
        "vigie, UDP, shuffle exchange, polling",
        Medium::Udp,
        "shuffle-exchange",
        Receivers::Polling,
    ),
    cell(
        "vigie-udp-shuffle-exchange-sleeping",
        "vigie, UDP, shuffle exchange, sleeping",
        Medium::Udp,
        "shuffle-exchange",
        Receivers::Sleeping,
    ),
    open_mpi_tcp(OPEN_MPI_TCP, "Open MPI, TCP on loopback, its choice", None),
    open_mpi_tcp("openmpi-tcp-linear", "Open MPI, TCP on loopback, linear", Some(1)),
    open_mpi_tcp("openmpi-tcp-doubling", "Open MPI, TCP on loopback, recursive doubling", Some(3)),
    open_mpi_tcp("openmpi-tcp-bruck", "Open MPI, TCP on loopback, Bruck", Some(4)),
    open_mpi_tcp("openmpi-tcp-tree", "Open MPI, TCP on loopback, tree", Some(6)),
    net(ETHER, "vigie, Ethernet, planned", Medium::Ether, Choice::Planned),
    net(
        "vigie-ether-measured",
        "vigie, Ethernet, measured and planned",
        Medium::Ether,
        Choice::Measured,
    ),
    net(
        "vigie-ether-concurrent",
        "vigie, Ethernet, concurrent",
        Medium::Ether,
        Choice::Named("concurrent"),
    ),
    net(
        "vigie-ether-ternary",
        "vigie, Ethernet, ternary tree",
        Medium::Ether,
        Choice::Named("ternary"),
    ),
    net(
        "vigie-ether-binary",
        "vigie, Ethernet, binary tree",
        Medium::Ether,
        Choice::Named("binary"),
    ),
    net(
        "vigie-ether-dissemination",
        "vigie, Ethernet, dissemination",
        Medium::Ether,
        Choice::Named("dissemination"),
    ),
    cell(
        "vigie-ether-nomial-4-polling",
        "vigie, Ethernet, 4-ary tree, polling",
        Medium::Ether,
        "nomial-4",
        Receivers::Polling,
    ),
    cell(
        "vigie-ether-nomial-4-sleeping",
        "vigie, Ethernet, 4-ary tree, sleeping",
        Medium::Ether,
        "nomial-4",
        Receivers::Sleeping,
    ),
    cell(
        "vigie-ether-shuffle-exchange-polling",
        "vigie, Ethernet, shuffle exchange, polling",
        Medium::Ether,
        "shuffle-exchange",
        Receivers::Polling,
    ),
    cell(
        "vigie-ether-shuffle-exchange-sleeping",
        "vigie, Ethernet, shuffle exchange, sleeping",
        Medium::Ether,
        "shuffle-exchange",
        Receivers::Sleeping,
    ),
    net(
        "vigie-via-shm",
        "vigie, messages over shared memory, planned",
        Medium::Via(Provider::Shm),
        Choice::Planned,
    ),
    net(
        "vigie-via-shm-measured",
        "vigie, messages over shared memory, measured and planned",
        Medium::Via(Provider::Shm),
        Choice::Measured,
    ),
    net(
        "vigie-via-shm-dissemination",
        "vigie, messages over shared memory, dissemination",
        Medium::Via(Provider::Shm),
        Choice::Named("dissemination"),
    ),
    net(
        "vigie-via-udp",
        "vigie, messages over UDP, planned",
        Medium::Via(Provider::Udp),
        Choice::Planned,
    ),
    net(
        "vigie-via-udp-measured",
        "vigie, messages over UDP, measured and planned",
        Medium::Via(Provider::Udp),
        Choice::Measured,
    ),
    net(
        "vigie-via-udp-dissemination",
        "vigie, messages over UDP, dissemination",
        Medium::Via(Provider::Udp),
        Choice::Named("dissemination"),
    ),
    net(
        "vigie-via-ether",
        "vigie, messages over Ethernet, planned",
        Medium::Via(Provider::Ether),
        Choice::Planned,
    ),
    net(
        "vigie-via-ether-measured",
        "vigie, messages over Ethernet, measured and planned",
        Medium::Via(Provider::Ether),
        Choice::Measured,
    ),
    net(
        "vigie-via-ether-dissemination",
        "vigie, messages over Ethernet, dissemination",
        Medium::Via(Provider::Ether),
        Choice::Named("dissemination"),
    ),
];

/// The words of `--peers`.
pub const PEERS: [&str; 6] = ["openmpi", "mpich", "std", "hurdles", "pthread", "tokio"];

/// The systems and their measurements.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BarrierPlan {
    /// The kinds of members.
    pub over: Vec<BarrierTransport>,
    /// The peers beside vigie's own, of [`PEERS`].
    pub peers: Vec<String>,
    /// The runs: one for each row of a system.
    pub laps: Vec<Laps>,
    /// Turns in which the budget is spent, each with new processes.
    pub rounds: u32,
    /// The algorithms of barriers over a network, by name; all if empty. The planner's choice is always there.
    pub algorithms: Vec<String>,
    /// Which of them carry messages of `via`.
    pub providers: Vec<Provider>,
    /// Only the paper's question [eth-barrier, §6]: the 4-ary tree and shuffle exchange over a network, with receivers that
    /// poll and with receivers that sleep.
    pub receivers: bool,
}

impl BarrierPlan {
    /// Plans one kind of members and all peers, in 3 turns.
    #[must_use]
    pub fn new(over: Vec<BarrierTransport>, laps: Vec<Laps>) -> Self {
        Self {
            over,
            peers: PEERS.map(str::to_owned).to_vec(),
            laps,
            rounds: 3,
            algorithms: Vec::new(),
            providers: Provider::ALL.to_vec(),
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
        CONTESTANTS.iter().filter(is_in)
    }

    /// Returns how many cases [`run`](Self::run) measures, for its progress bar.
    #[must_use]
    pub fn cases(&self) -> usize {
        self.contestants().count() * self.laps.len() * self.rounds as usize
    }

    /// Measures all systems in turns. A system that is missing or fails is not an error: its rows say so.
    ///
    /// # Errors
    /// None at present.
    pub fn run(&self, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let contestants: Vec<_> = self.contestants().collect();
        let built: Vec<_> = contestants
            .iter()
            .map(|contestant| match contestant.how {
                Harness::Mpi { mpi, .. } => Some(mpi.build()),
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

    /// Shows a line for each system and number of members.
    #[must_use]
    pub fn tables(&self, rows: &[Row]) -> String {
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
                let figure =
                    |key: &str| row.figure(key).map_or_else(|| "–".to_owned(), three_digits);
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
    built: Option<&Result<mpi::BuiltMpi, crate::messages::Missing>>,
    bridge: Option<&Result<bridge::Bridge, crate::messages::Missing>>,
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
            built.measure(laps, algorithm, wire)
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
    let known = CONTESTANTS.iter().find(|contestant| contestant.name == plan.name);
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

/// Finds the row of a system for this many members.
fn find<'a>(rows: &'a [Row], name: &str, case: &str, members: u32) -> Option<&'a Row> {
    let is_it = |row: &&Row| {
        let count = row.parameters.get(MEMBERS).and_then(serde_json::Value::as_u64);
        row.system.name() == name && row.case == case && count == Some(members.into())
    };
    rows.iter().find(is_it)
}

/// A figure of a row.
pub(crate) fn figure(
    rows: &[Row],
    name: &str,
    (case, members): (&str, u32),
    key: &str,
) -> Option<Figure> {
    let row = find(rows, name, case, members)?;
    Some(Figure::new(row.figure(key)?, row.samples()))
}

/// The p50 of a system divided by that of another one.
pub(crate) fn ratio(rows: &[Row], [one, other]: [&str; 2], members: u32) -> Option<Figure> {
    let [one, other] = [one, other].map(|name| figure(rows, name, (CASE, members), "p50_us"));
    let (one, other) = (one?, other?);
    Some(Figure::new(one.value / other.value, one.samples.min(other.samples)))
}

/// The p50 of vigie's threads divided by that of the best peer.
pub(crate) fn ratio_to_best_of_threads(rows: &[Row], members: u32) -> Option<Figure> {
    largest(THREAD_PEERS.map(|peer| ratio(rows, [THREADS, peer], members)))
}

/// The p50 of vigie's processes divided by that of Open MPI's best algorithm.
pub(crate) fn ratio_to_best_of_open_mpi(rows: &[Row], name: &str, members: u32) -> Option<Figure> {
    let is_peer =
        |one: &&Contestant| one.peer == Some("openmpi") && one.over == BarrierTransport::Shm;
    let peers = CONTESTANTS.iter().filter(is_peer);
    largest(peers.map(|peer| ratio(rows, [name, peer.name], members)))
}

/// The p50 of Open MPI's best algorithm over TCP divided by that of one of vigie's rows over UDP.
pub(crate) fn ratio_of_best_over_tcp(rows: &[Row], name: &str, members: u32) -> Option<Figure> {
    let is_peer =
        |one: &&Contestant| one.peer == Some("openmpi") && one.over == BarrierTransport::Udp;
    let ratios =
        CONTESTANTS.iter().filter(is_peer).map(|one| ratio(rows, [one.name, name], members));
    let ratios: Vec<_> = ratios.collect::<Option<_>>()?;
    ratios.into_iter().min_by(|one, other| one.value.total_cmp(&other.value))
}

/// The largest of the ratios; `None` if one of them is unknown.
fn largest(ratios: impl IntoIterator<Item = Option<Figure>>) -> Option<Figure> {
    let ratios: Vec<_> = ratios.into_iter().collect::<Option<_>>()?;
    ratios.into_iter().max_by(|one, other| one.value.total_cmp(&other.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_p50(name: &'static str, p50: f64) -> Row {
        let subject = Subject::Carrier { name, label: name };
        let row = row_of(subject, CASE, Laps::new(8)).with_figure("p50_us", p50);
        row.with_figure("samples", 100)
    }

    #[test]
    fn ratios_are_to_the_best() {
        // Goal: the best peer is the one with the least time, and a peer that is missing leaves no figure. Method:
        // rows with known figures.
        let mut rows =
            vec![with_p50(THREADS, 6.0), with_p50("std", 60.0), with_p50("pthread", 30.0)];
        assert!(ratio_to_best_of_threads(&rows, 8).is_none());
        rows.push(with_p50("hurdles", 5.0));
        assert!((ratio_to_best_of_threads(&rows, 8).unwrap().value - 1.2).abs() < 1e-9);
        assert!(ratio_to_best_of_threads(&rows, 2).is_none(), "other members");
    }

    #[test]
    fn every_peer_has_a_name() {
        // Goal: all names on the command line exist and are unique. Method: all of them.
        for peer in PEERS {
            assert!(CONTESTANTS.iter().any(|contestant| contestant.peer == Some(peer)), "{peer}");
        }
        let mut names: Vec<_> = CONTESTANTS.iter().map(|contestant| contestant.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CONTESTANTS.len());
        assert!(BarrierTransport::ALL.into_iter().all(|over| over.name().parse() == Ok(over)));
        assert!(
            "fibres"
                .parse::<BarrierTransport>()
                .unwrap_err()
                .to_string()
                .contains("tasks, threads, shm, udp")
        );
    }
}
