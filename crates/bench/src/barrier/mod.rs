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

use std::cell::OnceCell;
use std::ptr;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub(crate) use self::contestants::PEERS;
use self::contestants::{Contestant, Harness};
use self::lap::CPU_CORES;
pub(crate) use self::lap::{GroupCosts, Laps};
use self::network::{Choice, Medium, NetSetup, Receivers};
pub(crate) use self::via::Provider;
use crate::clock::nanoseconds;
use crate::error::{BenchError, Failure, Missing};
use crate::host::{BuiltMpi, MPICH};
use crate::process::{Child, Role, print_result};
use crate::report::{Case, Column, Repetition, Row, Show, Subject, Turn, failures, lines};
use crate::statistics::microseconds;

/// The case of rows in which no member is late.
pub(crate) const CASE: &str = "barrier";

/// The case of rows in which the last member is late each time.
pub(crate) const LATE: &str = "late";

/// Parameter of a row: members of the group.
pub(crate) const MEMBERS: &str = "members";

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
#[derive(Debug)]
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
    /// The programs of Open MPI and of MPICH, once they are wanted.
    built: [OnceCell<Result<BuiltMpi, Missing>>; 2],
    /// The bridge between network namespaces, once it is wanted.
    bridge: OnceCell<Result<bridge::Bridge, Missing>>,
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
            built: Default::default(),
            bridge: OnceCell::new(),
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

impl Case for BarrierPlan {
    type Setting = (&'static Contestant, Laps);

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn rows(&self) -> Vec<(Self::Setting, Row)> {
        let row = |contestant: &'static Contestant, laps: Laps| {
            let subject = Subject::Carrier { name: contestant.name, label: contestant.label };
            let case = if laps.late.is_zero() { CASE } else { LATE };
            ((contestant, laps), row_of(subject, case, laps))
        };
        let of_laps = |laps: &Laps| self.contestants().map(|one| row(one, *laps)).collect();
        let rows: Vec<Vec<_>> = self.laps.iter().map(of_laps).collect();
        rows.into_iter().flatten().collect()
    }

    fn measure(
        &self,
        &(contestant, laps): &Self::Setting,
        turn: &Turn<'_>,
    ) -> Result<Repetition, BenchError> {
        turn.shows(format!("{}, {} members", contestant.name, laps.members));
        let laps = Laps { budget: laps.budget / self.rounds.max(1), ..laps };
        let costs = match contestant.how {
            Harness::Inside(_) => start(contestant.name, laps)?,
            Harness::Processes { blocks } => processes::measure(laps, blocks)?,
            Harness::Network(setting) if setting.medium.is_bridged() => {
                let members = self.laps.iter().map(|laps| laps.members).max().unwrap_or(0);
                let bridge = self.bridge.get_or_init(|| bridge::Bridge::make(members));
                network::measure(laps, setting, Some(bridge.as_ref().map_err(Clone::clone)?))?
            }
            Harness::Network(setting) => network::measure(laps, setting, None)?,
            Harness::Mpi { mpi, algorithm, wire } => {
                let built = &self.built[usize::from(ptr::eq(mpi, &raw const MPICH))];
                let built = built.get_or_init(|| mpi::build(mpi));
                mpi::measure(built.as_ref().map_err(Clone::clone)?, laps, algorithm, wire)?
            }
        };
        Ok(costs.repetition())
    }

    /// What fails for one system says nothing about the others.
    fn is_of_the_row(&self, _setting: &Self::Setting, _error: &BenchError) -> bool {
        true
    }

    fn compare(&self, rows: &mut [Row]) {
        rows.iter_mut().for_each(transport_costs::compare);
    }

    fn tables(&self, rows: &[Row]) -> String {
        const COLUMNS: [Column; 8] = [
            ("members", Show::Parameter(MEMBERS)),
            ("p50 µs", Show::Number("p50_us")),
            ("p99 µs", Show::Number("p99_us")),
            ("min µs", Show::Number("min_us")),
            ("mean µs", Show::Number("mean_us")),
            ("max µs", Show::Number("max_us")),
            ("cores", Show::Number(CPU_CORES)),
            ("n", Show::Number("count")),
        ];
        let mut tables = String::new();
        for laps in &self.laps {
            let title = format!(
                "Barrier of {} members, dummy loop {:?}, skew {:?}, late {:?} (min, mean, max: over \
                 all members [eth-barrier, §4.3])",
                laps.members, laps.dummy, laps.skew, laps.late
            );
            let parameters = |row: &Row| row_of(row.system, row.case, *laps).parameters;
            let is_of = |row: &&Row| row.parameters == parameters(row);
            let table = lines(&title, "system", rows.iter().filter(is_of), &COLUMNS);
            let found = transport_costs::table(laps.members, rows.iter().filter(is_of));
            tables = format!("{tables}{table}\n\n{found}");
        }
        format!("{tables}{}", failures(rows))
    }
}

fn row_of(subject: Subject, case: &'static str, laps: Laps) -> Row {
    let row = Row::new(subject, case).parameter(MEMBERS, laps.members);
    row.parameter("dummy_us", microseconds(nanoseconds(laps.dummy)))
        .parameter("skew_us", microseconds(nanoseconds(laps.skew)))
        .parameter("late_us", microseconds(nanoseconds(laps.late)))
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
