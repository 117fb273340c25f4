//! The barriers under test, in the order of the tables.

use std::fmt;
use std::sync::LazyLock;

use super::inside;
use super::lap::{GroupCosts, Laps};
use super::mpi::MpiTransport;
use super::network::{Choice, Medium, NetSetup, Receivers};
use super::{BarrierTransport, Provider};
use crate::error::Failure;
use crate::host::{MPICH, Mpi, OPEN_MPI};

/// How a barrier is measured.
#[derive(Clone, Copy)]
pub(super) enum Harness {
    /// By a process of this program.
    Inside(fn(Laps) -> Result<GroupCosts, Failure>),
    /// By a process of this program for each member.
    Processes { blocks: bool },
    /// By a program of its own.
    Mpi { mpi: &'static Mpi, algorithm: Option<u32>, wire: MpiTransport },
    /// By a process of this program for each member, over a network.
    Network(NetSetup),
}

/// A barrier under test.
#[derive(Clone, Copy)]
pub(crate) struct Contestant {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    /// The word of `--peers` for it; none for vigie's own.
    pub(super) peer: Option<&'static str>,
    pub(super) over: BarrierTransport,
    pub(super) how: Harness,
}

impl fmt::Debug for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contestant").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Everything that can be asked for with `--peers`.
pub(crate) const PEERS: [&str; 6] = ["openmpi", "mpich", "std", "hurdles", "pthread", "tokio"];

/// The algorithms of Open MPI: their number, and what it adds to name and label.
const OPEN_MPI_ALGORITHMS: [(Option<u32>, &str, &str); 6] = [
    (None, "", "its choice"),
    (Some(1), "-linear", "linear"),
    (Some(2), "-double-ring", "double ring"),
    (Some(3), "-doubling", "recursive doubling"),
    (Some(4), "-bruck", "Bruck"),
    (Some(6), "-tree", "tree"),
];

/// Algorithms over a network, with their words in labels.
const ALGORITHMS: [(&str, &str); 5] = [
    ("concurrent", "concurrent"),
    ("ternary", "ternary tree"),
    ("binary", "binary tree"),
    ("dissemination", "dissemination"),
    ("central", "central, unicast"),
];

/// All systems.
static CONTESTANTS: LazyLock<Vec<Contestant>> = LazyLock::new(|| {
    let mut all = in_processes();
    let udp = NetworkGroups { medium: Medium::Udp, name: "vigie-udp", label: "vigie, UDP" };
    all.extend(udp.planned(&ALGORITHMS));
    let (name, label) = ("vigie-udp-loopback", "vigie, UDP on loopback");
    all.push(NetworkGroups { medium: Medium::Loopback, name, label }.with(
        Choice::Planned,
        "",
        "planned",
    ));
    all.extend(udp.receivers());
    all.extend(open_mpi(MpiTransport::Tcp));
    let ether =
        NetworkGroups { medium: Medium::Ether, name: "vigie-ether", label: "vigie, Ethernet" };
    all.extend(ether.planned(&ALGORITHMS[..4]));
    all.extend(ether.receivers());
    for (provider, name, label) in [
        (Provider::Shm, "vigie-via-shm", "vigie, messages over shared memory"),
        (Provider::Udp, "vigie-via-udp", "vigie, messages over UDP"),
        (Provider::Ether, "vigie-via-ether", "vigie, messages over Ethernet"),
    ] {
        let network = NetworkGroups { medium: Medium::Via(provider), name, label };
        all.extend(network.planned(&ALGORITHMS[3..4]));
    }
    all
});

/// Returns all systems, in the order of the tables.
pub(super) fn all() -> &'static [Contestant] {
    &CONTESTANTS
}

/// Systems whose members are on one host and need no network.
fn in_processes() -> Vec<Contestant> {
    use BarrierTransport::{Shm, Tasks, Threads};

    let inside = |name, label, over, measure| {
        let peer = PEERS.contains(&name).then_some(name);
        Contestant { name, label, peer, over, how: Harness::Inside(measure) }
    };
    let processes = |name, label, blocks| {
        let how = Harness::Processes { blocks };
        Contestant { name, label, peer: None, over: Shm, how }
    };
    let mut all = vec![
        inside("vigie-user-level", "vigie, tasks, user-level", Tasks, inside::user_level),
        inside("vigie", "vigie, tasks, hybrid", Tasks, inside::hybrid),
        inside("vigie-on-tokio", "vigie, tasks on tokio", Tasks, inside::own_on_tokio),
        inside("kernel-floor", "floor of kernel threads", Tasks, inside::kernel_floor),
        inside("tokio", "tokio::sync::Barrier", Tasks, inside::tokio),
        inside("vigie-threads", "vigie, threads", Threads, inside::threads),
        inside("std", "std::sync::Barrier", Threads, inside::std),
        inside("pthread", "pthread_barrier", Threads, inside::pthread),
        inside("hurdles", "hurdles", Threads, inside::hurdles),
        processes("vigie-shm", "vigie, shared memory, awaited", false),
        processes("vigie-shm-blocking", "vigie, shared memory, blocking", true),
    ];
    all.extend(open_mpi(MpiTransport::Own));
    let how = Harness::Mpi { mpi: &MPICH, algorithm: None, wire: MpiTransport::Own };
    all.push(Contestant { name: "mpich", label: "MPICH", peer: Some("mpich"), over: Shm, how });
    all
}

/// Open MPI, with each of its algorithms; over TCP without the double ring.
fn open_mpi(wire: MpiTransport) -> impl Iterator<Item = Contestant> {
    let (prefix, label, over) = match wire {
        MpiTransport::Own => ("openmpi", "Open MPI", BarrierTransport::Shm),
        MpiTransport::Tcp => ("openmpi-tcp", "Open MPI, TCP on loopback", BarrierTransport::Udp),
    };
    let is_there = move |(number, ..): &(Option<u32>, &str, &str)| {
        wire == MpiTransport::Own || *number != Some(2)
    };
    OPEN_MPI_ALGORITHMS.into_iter().filter(is_there).map(move |(algorithm, name, words)| {
        Contestant {
            name: format!("{prefix}{name}").leak(),
            label: format!("{label}, {words}").leak(),
            peer: Some("openmpi"),
            over,
            how: Harness::Mpi { mpi: &OPEN_MPI, algorithm, wire },
        }
    })
}

/// What connects vigie's members, as the beginning of name and label. Both are made once and live as long as the program.
struct NetworkGroups {
    medium: Medium,
    name: &'static str,
    label: &'static str,
}

impl NetworkGroups {
    /// Groups with the planner's choice, by assumed and by measured costs, and with some algorithms.
    fn planned(&self, algorithms: &[(&'static str, &'static str)]) -> Vec<Contestant> {
        let mut all = vec![
            self.with(Choice::Planned, "", "planned"),
            self.with(Choice::Measured, "-measured", "measured and planned"),
        ];
        all.extend(algorithms.iter().map(|(algorithm, words)| {
            self.with(Choice::Named(algorithm), &format!("-{algorithm}"), words)
        }));
        all
    }

    /// A group whose members wait in the usual way.
    fn with(&self, choice: Choice, name: &str, words: &str) -> Contestant {
        let over = match self.medium {
            Medium::Udp | Medium::Loopback => BarrierTransport::Udp,
            Medium::Ether => BarrierTransport::Ether,
            Medium::Via(_) => BarrierTransport::Via,
        };
        let (medium, receivers) = (self.medium, Receivers::Adaptive);
        Contestant {
            name: format!("{}{name}", self.name).leak(),
            label: format!("{}, {words}", self.label).leak(),
            peer: None,
            over,
            how: Harness::Network(NetSetup { medium, choice, receivers }),
        }
    }

    /// Groups whose members poll, and groups whose members sleep.
    fn receivers(&self) -> Vec<Contestant> {
        let mut all = Vec::new();
        for (algorithm, words) in
            [("nomial-4", "4-ary tree"), ("shuffle-exchange", "shuffle exchange")]
        {
            let choice = Choice::Named(algorithm);
            for (receivers, how) in
                [(Receivers::Polling, "polling"), (Receivers::Sleeping, "sleeping")]
            {
                let name = format!("-{algorithm}-{how}");
                let usual = self.with(choice, &name, &format!("{words}, {how}"));
                let how = Harness::Network(NetSetup { medium: self.medium, choice, receivers });
                all.push(Contestant { how, ..usual });
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_has_a_name() {
        // Goal: all names on the command line exist and are unique. Method: all of them.
        for peer in PEERS {
            assert!(all().iter().any(|contestant| contestant.peer == Some(peer)), "{peer}");
        }
        let mut names: Vec<_> = all().iter().map(|contestant| contestant.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
    }
}
