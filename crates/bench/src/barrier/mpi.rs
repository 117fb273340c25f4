//! Open MPI and MPICH, by a program in C that each one's own compiler builds.

use std::time::Duration;

use super::lap::{GroupCosts, Laps};
use crate::clock::nanoseconds;
use crate::error::{BenchError, Failure, Missing};
use crate::host::{BuiltMpi, Mpi, output_of};

/// The program.
const SOURCE: &str = include_str!("mpi.c");

/// The time limit for starting and ending the ranks, and for barriers that may take milliseconds
/// each.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What carries its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MpiTransport {
    /// Its default: shared memory.
    Own,
    /// TCP on the loopback interface; for Open MPI.
    Tcp,
}

/// Builds the program that measures.
pub(super) fn build(mpi: &'static Mpi) -> Result<BuiltMpi, Missing> {
    mpi.build(SOURCE)
}

/// Runs the program, and returns what it found.
pub(super) fn measure(
    built: &BuiltMpi,
    laps: Laps,
    algorithm: Option<u32>,
    wire: MpiTransport,
) -> Result<GroupCosts, BenchError> {
    let timeout = TIMEOUT + laps.budget * 4;
    let mut command = built.command(laps.members);
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
