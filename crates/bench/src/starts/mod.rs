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

/// The environment variable that makes this program a rank of a job.
const VARIABLE: &str = "VIGIE_BENCH_RANK";

/// The same program in C.
const SOURCE: &str = include_str!("ring.c");

/// The time limit of a job.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Which systems start how many ranks.
#[derive(Debug, Args)]
pub(crate) struct StartsPlan {
    /// Ranks of a job.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "2,8,32,64",
          value_parser = clap::value_parser!(u32).range(2..=4096))]
    ranks: Vec<u32>,
    /// Peers to measure in the same run; none if the option has no value.
    #[arg(long, num_args = 0.., value_delimiter = ',', value_name = "PEER,…", default_value = "openmpi,mpich")]
    peers: Vec<MpiPeer>,
    /// Turns, each of which starts every job once.
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
        output_of(command, TIMEOUT)?;
        Ok(Repetition::default().figure(WALL_MS, (Instant::now() - began).as_secs_f64() * 1e3))
    }

    /// What fails for one system says nothing about the others.
    fn is_of_the_row(&self, _setting: &Self::Setting, _error: &BenchError) -> bool {
        true
    }

    fn compare(&self, rows: &mut [Row]) {
        for place in 0..rows.len() {
            let (own, ranks) = (&rows[place], rows[place].number(RANKS));
            let peers = rows.iter().filter(|row| row.system != OWN && row.number(RANKS) == ranks);
            let fastest = peers.filter_map(|row| row.figure(WALL_MS)).reduce(f64::min);
            if own.system == OWN
                && let Some((own, fastest)) = own.figure(WALL_MS).zip(fastest)
            {
                rows[place] = rows[place].clone().with_figure(OF_FASTEST, own / fastest);
            }
        }
    }

    fn tables(&self, rows: &[Row]) -> String {
        let columns = [
            ("ranks", Show::Parameter(RANKS)),
            ("start to end, ms", Show::Number(WALL_MS)),
            ("of the faster peer's", Show::Number(OF_FASTEST)),
        ];
        table("Jobs: start, 8 bytes from each rank to the next one, end", rows, &columns)
    }
}
