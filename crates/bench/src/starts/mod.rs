//! Jobs: the time to start ranks, to let each of them hear from its neighbour in a ring, and to end them.
//!
//! Question: what does a job of many ranks pay before and after its work?
//! Prediction: ranks that connect when they first need each other start in a time that grows with their number, not with its
//! square.
//! Method: `vigie-run`, and the launchers of Open MPI and MPICH, start the same program by turns: each rank sends 8 bytes to the
//! next one, receives from the one before, and ends. The figure is the time from the launcher's start to its end.

use std::cell::OnceCell;
use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::ptr;
use std::time::Duration;

use clap::Args;
use vigie_detect::Instant;

mod rank;

pub(crate) use self::rank::play_if_rank;
use crate::error::{BenchError, Missing};
use crate::host::{BuiltMpi, MPICH, Mpi, OPEN_MPI, output_of};
use crate::report::{Case, Repetition, Row, Show, Subject, Turn, table};

/// Name of the case in rows.
const CASE: &str = "start";

/// Key of the number of ranks.
const RANKS: &str = "ranks";

/// Key of the time from start to end, in milliseconds.
const WALL_MS: &str = "wall_ms";

/// Key of that time in parts of the faster peer's.
const OF_FASTEST: &str = "of_fastest";

/// Key of the anonymous memory of a rank that knows the others and is not connected, in KiB.
const RANK_KIB: &str = "rank_kib";

/// Key of what of that is due to one more rank, in bytes.
const PEER_BYTES: &str = "peer_bytes";

/// The word before that memory in what a rank prints.
const ANONYMOUS: &str = "anonymous KiB:";

/// The environment variable that makes this program a rank of a job.
const VARIABLE: &str = "VIGIE_BENCH_RANK";

/// The same program in C.
const SOURCE: &str = include_str!("ring.c");

/// The time limit of a job.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Which systems start how many ranks.
#[derive(Debug, Args)]
pub(crate) struct StartsPlan {
    /// Numbers of ranks of a job; each is a row.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "2,8,32,64",
          value_parser = clap::value_parser!(u32).range(2..=4096))]
    ranks: Vec<u32>,
    /// Other systems to measure in the same run; without a value, none.
    #[arg(long, num_args = 0.., value_delimiter = ',', value_name = "PEER,…", default_value = "openmpi,mpich")]
    peers: Vec<MpiPeer>,
    /// Number of rounds; each starts every job once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The programs of Open MPI and of MPICH, once they are wanted.
    #[arg(skip)]
    built: [OnceCell<Result<BuiltMpi, Missing>>; 2],
}

/// An implementation of MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MpiPeer {
    Openmpi,
    Mpich,
}

impl MpiPeer {
    const fn mpi(self) -> &'static Mpi {
        match self {
            Self::Openmpi => &OPEN_MPI,
            Self::Mpich => &MPICH,
        }
    }

    const fn subject(self) -> Subject {
        let (name, label) = match self {
            Self::Openmpi => ("openmpi", "Open MPI"),
            Self::Mpich => ("mpich", "MPICH"),
        };
        Subject::Carrier { name, label }
    }
}

const OWN: Subject = Subject::Carrier { name: "vigie", label: "vigie" };

impl StartsPlan {
    fn command(&self, ranks: u32, peer: Option<MpiPeer>) -> Result<Command, BenchError> {
        let Some(peer) = peer else { return Ok(own_command(ranks)?) };
        let built = &self.built[usize::from(ptr::eq(peer.mpi(), &raw const MPICH))];
        let built = built.get_or_init(|| peer.mpi().build(SOURCE));
        Ok(built.as_ref().map_err(Clone::clone)?.command(ranks))
    }
}

/// Returns the command that starts this program as so many ranks.
fn own_command(ranks: u32) -> Result<Command, Missing> {
    let remedy = "`cargo build --profile measure -p vigie --features cli-run --bin vigie-run`";
    let missing = |what: String| Missing::new(what, remedy);
    let program = env::current_exe().map_err(|error| missing(error.to_string()))?;
    let launcher: PathBuf = program.with_file_name("vigie-run");
    if !launcher.exists() {
        return Err(missing(format!("there is no {}", launcher.display())));
    }
    let mut command = Command::new(launcher);
    command.env(VARIABLE, "ring").arg("-n").arg(ranks.to_string()).arg(program);
    Ok(command)
}

/// Reads the memory that a rank of vigie has printed.
fn rank_kib(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.split_once(ANONYMOUS)?.1.trim().parse().ok())
}

impl Case for StartsPlan {
    /// The number of ranks, and the peer, if it is one.
    type Setting = (u32, Option<MpiPeer>);

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn rows(&self) -> Vec<(Self::Setting, Row)> {
        let mut rows = Vec::new();
        for &ranks in &self.ranks {
            let row = |subject| Row::new(subject, CASE).parameter(RANKS, ranks);
            rows.push(((ranks, None), row(OWN)));
            rows.extend(self.peers.iter().map(|peer| ((ranks, Some(*peer)), row(peer.subject()))));
        }
        rows
    }

    fn measure(
        &self,
        &(ranks, peer): &Self::Setting,
        turn: &Turn<'_>,
    ) -> Result<Repetition, BenchError> {
        turn.shows(format!("{}, {ranks} ranks", peer.map_or(OWN, MpiPeer::subject).label()));
        let command = self.command(ranks, peer)?;
        let began = Instant::now();
        let output = output_of(command, TIMEOUT)?;
        let wall_ms = (Instant::now() - began).as_secs_f64() * 1e3;
        let found = Repetition::default().figure(WALL_MS, wall_ms);
        Ok(match rank_kib(&output) {
            Some(kib) => found.figure(RANK_KIB, kib),
            None => found,
        })
    }

    /// What fails for one system says nothing about the others.
    fn is_of_the_row(&self, _setting: &Self::Setting, _error: &BenchError) -> bool {
        true
    }

    fn compare(&self, rows: &mut [Row]) {
        let seen = rows.to_vec();
        let memory = |row: &Row| Some((row.number(RANKS)? as f64, row.figure(RANK_KIB)?));
        let smallest =
            seen.iter().filter_map(memory).min_by(|one, other| one.0.total_cmp(&other.0));
        for row in rows.iter_mut().filter(|row| row.system == OWN) {
            let is_peer =
                |peer: &&Row| peer.system != OWN && peer.number(RANKS) == row.number(RANKS);
            let peers = seen.iter().filter(is_peer).filter_map(|peer| peer.figure(WALL_MS));
            let fastest = peers.reduce(f64::min);
            let parts = row.figure(WALL_MS).zip(fastest).map(|(own, fastest)| own / fastest);
            let peer_bytes = memory(row).zip(smallest).and_then(|(many, few)| {
                (many.0 > few.0).then(|| (many.1 - few.1) * 1024.0 / (many.0 - few.0))
            });
            for (key, value) in [(OF_FASTEST, parts), (PEER_BYTES, peer_bytes)] {
                if let Some(value) = value {
                    *row = row.clone().with_figure(key, value);
                }
            }
        }
    }

    fn tables(&self, rows: &[Row]) -> String {
        let columns = [
            ("ranks", Show::Parameter(RANKS)),
            ("start to end, ms", Show::Number(WALL_MS)),
            ("of the faster peer's", Show::Number(OF_FASTEST)),
            ("memory of a rank, KiB", Show::Number(RANK_KIB)),
            ("for one more rank, B", Show::Number(PEER_BYTES)),
        ];
        table("Jobs: start, 8 bytes from each rank to the next one, end", rows, &columns)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        plan: StartsPlan,
    }

    #[test]
    fn jobs_are_compared_with_the_faster_peer_and_with_the_smallest() {
        // Goal: a ratio to the faster peer of the same size, and the memory that one more rank takes. Method: rows with known
        // figures, and what a rank prints.
        assert_eq!(rank_kib("noise\n[1] anonymous KiB: 752\n"), Some(752.0));
        assert_eq!(rank_kib("anonymous KiB: ?"), None);
        let plan = Cli::parse_from(["x", "--ranks", "2,512"]).plan;
        let mut rows: Vec<Row> = plan.rows().into_iter().map(|(_, row)| row).collect();
        let figures = [(10.0, 752.0), (300.0, 0.0), (40.0, 0.0), (90.0, 1262.0), (30.0, 0.0)];
        for (row, (wall_ms, kib)) in rows.iter_mut().zip(figures) {
            *row = row.clone().with_figure(WALL_MS, wall_ms);
            if row.system == OWN {
                *row = row.clone().with_figure(RANK_KIB, kib);
            }
        }
        plan.compare(&mut rows);
        assert_eq!([0, 3].map(|place| rows[place].figure(OF_FASTEST)), [Some(0.25), Some(3.0)]);
        assert_eq!([0, 3].map(|place| rows[place].figure(PEER_BYTES)), [None, Some(1024.0)]);
        assert!(Cli::parse_from(["x", "--peers"]).plan.peers.is_empty());
    }
}
