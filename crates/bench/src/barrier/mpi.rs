//! Open MPI and MPICH, by a program in C that each one's own compiler builds.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::lap::{GroupCosts, Laps};
use crate::clock::nanoseconds;
use crate::error::{BenchError, Failure};
use crate::host::missing::Missing;
use crate::host::program::{TempDir, describe, is_installed, output_of};

/// The program.
const SOURCE: &str = include_str!("mpi.c");

/// The time limit of the compiler.
const BUILDING: Duration = Duration::from_secs(120);

/// The time limit for starting and ending the ranks, and for barriers that may take milliseconds
/// each.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An implementation of MPI.
#[derive(Debug)]
pub(super) struct Mpi {
    compiler: &'static str,
    launcher: &'static str,
    arguments: &'static [&'static str],
    packages: &'static str,
}

/// It has to be told that there may be more ranks than cores, and that root may run it.
pub(super) static OPEN_MPI: Mpi = Mpi {
    compiler: "mpicc.openmpi",
    launcher: "mpiexec.openmpi",
    arguments: &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
    packages: "openmpi-bin libopenmpi-dev",
};

pub(super) static MPICH: Mpi = Mpi {
    compiler: "mpicc.mpich",
    launcher: "mpiexec.mpich",
    arguments: &["-bind-to", "none"],
    packages: "mpich libmpich-dev",
};

/// What carries its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MpiTransport {
    /// Its default: shared memory.
    Own,
    /// TCP on the loopback interface; for Open MPI.
    Tcp,
}

/// The program, built for one implementation.
#[derive(Debug)]
pub(super) struct BuiltMpi {
    mpi: &'static Mpi,
    program: PathBuf,
    // The program is in it.
    _folder: TempDir,
}

impl Mpi {
    pub(super) fn build(&'static self) -> Result<BuiltMpi, Missing> {
        for program in [self.compiler, self.launcher] {
            if !is_installed(program) {
                let remedy = format!("on Debian: apt install {}", self.packages);
                return Err(Missing::new(format!("there is no {program}"), remedy));
            }
        }
        self.compile().map_err(|error| {
            let what = format!("{} cannot build: {}", self.compiler, describe(&error));
            Missing::new(what, format!("on Debian: apt install {}", self.packages))
        })
    }

    fn compile(&'static self) -> Result<BuiltMpi, BenchError> {
        let io = |error| BenchError::Start { role: "compiler", source: error };
        let folder = TempDir::create().map_err(io)?;
        let source = folder.path().join("mpi.c");
        let program = folder.path().join("mpi");
        fs::write(&source, SOURCE).map_err(io)?;
        let mut command = Command::new(self.compiler);
        command.arg("-O2").arg("-o").arg(&program).arg(&source);
        output_of(command, BUILDING)?;
        Ok(BuiltMpi { mpi: self, program, _folder: folder })
    }
}

impl BuiltMpi {
    /// Measures; Open MPI takes the algorithm of this number of its `tuned` component if there is one.
    pub(super) fn measure(
        &self,
        laps: Laps,
        algorithm: Option<u32>,
        wire: MpiTransport,
    ) -> Result<GroupCosts, BenchError> {
        let timeout = TIMEOUT + laps.budget * 4;
        let mut command = Command::new(self.mpi.launcher);
        command.args(self.mpi.arguments).arg("-n").arg(laps.members.to_string());
        command.arg(&self.program);
        command.arg(laps.budget.as_micros().to_string());
        command.args([laps.dummy, laps.skew].map(|time| nanoseconds(time).to_string()));
        command.arg(laps.late.as_micros().to_string());
        command.arg((timeout.as_secs() + 1).to_string());
        if let Some(algorithm) = algorithm {
            command.env("OMPI_MCA_coll_tuned_use_dynamic_rules", "1");
            command.env("OMPI_MCA_coll_tuned_barrier_algorithm", algorithm.to_string());
        }
        if wire == MpiTransport::Tcp {
            command.env("OMPI_MCA_pml", "ob1").env("OMPI_MCA_btl", "self,tcp");
            command.env("OMPI_MCA_btl_tcp_if_include", "lo");
        }
        let output = output_of(command, timeout)?;
        parse(&output).map_err(|failure| BenchError::Failed { role: "peer", failure })
    }
}

/// Reads the line that rank 0 has printed.
fn parse(output: &str) -> Result<GroupCosts, Failure> {
    let numbers = |line: &str| -> Option<GroupCosts> {
        let numbers = line.split_whitespace().map(str::parse::<u64>);
        let numbers: Vec<_> = numbers.collect::<Result<_, _>>().ok()?;
        let [count, min, mean, max, wall_ns, cpu_ns, samples @ ..] = &numbers[..] else {
            return None;
        };
        Some(GroupCosts {
            min_ns: *min as f64,
            mean_ns: *mean as f64,
            max_ns: *max as f64,
            count: *count,
            samples_ns: samples.to_vec(),
            wall_ns: *wall_ns,
            cpu_ns: *cpu_ns,
            found: None,
        })
    };
    let found = output.lines().find_map(|line| numbers(line.trim().strip_prefix("laps ")?));
    found.ok_or_else(|| Failure::runtime(format!("it printed no result: {output:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_understood() {
        // Goal: the line is found and read; anything else is an error. Method: known text.
        let costs = parse("noise\n laps 2 10 20 30 400 500 7 9\n").unwrap();
        assert_eq!((costs.count, costs.wall_ns, costs.cpu_ns), (2, 400, 500));
        assert_eq!((costs.mean_ns, &costs.samples_ns[..]), (20.0, &[7, 9][..]));
        assert!(parse("laps 2 10 x").is_err() && parse("").is_err());
    }
}
