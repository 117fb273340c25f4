//! The scheduler's own code in virtual time, under loads and machines drawn by seed.
//!
//! The simulation is a test of `vigie-runtime`, which compiles the scheduler's modules as they stand. So it is run by cargo, in
//! the present directory, which must be a checkout.

use std::env;
use std::path::Path;
use std::process::Command;

use clap::Args;

use crate::error::BenchError;
use crate::report::{Outcome, Plan, Progress, Row, Show, table};
use crate::schedulers::System;

/// Name of the case in rows.
const CASE: &str = "simulation";

/// Key of the seeds that broke a check.
const BROKEN: &str = "broken";

/// The seeds that are run.
const SEEDS: u64 = 100_000;

/// Where the simulation stands in a checkout.
const SOURCE: &str = "crates/runtime/tests/scheduler.rs";

/// The simulation: a quarter of an hour on two cores.
#[derive(Clone, Debug, Args)]
pub(crate) struct VirtualTimePlan {}

impl Plan for VirtualTimePlan {
    fn cases(&self) -> usize {
        1
    }

    fn run(&self, _seed: u64, _progress: &mut Progress) -> Result<Outcome, BenchError> {
        let mut row = Row::new(System::Vigie, CASE);
        match broken_seeds() {
            Ok((broken, runs)) => {
                row = row.with_figure(BROKEN, broken).with_figure("samples", runs);
            }
            Err(failure) => row.failure = Some(failure),
        }
        Ok(Outcome { rows: vec![row], priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        let columns = [("seeds", Show::Count("samples")), ("that break", Show::Count(BROKEN))];
        table("The scheduler in virtual time", rows, &columns)
    }
}

/// Returns how many seeds broke a check, and how many ran.
fn broken_seeds() -> Result<(u64, u64), String> {
    if !Path::new(SOURCE).exists() {
        return Err(format!("no {SOURCE} here: run it in a checkout"));
    }
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--release", "-p", "vigie-runtime", "--test", "scheduler"]);
    cargo.args(["named_seeds", "--", "--ignored", "--nocapture"]);
    cargo.env("VIGIE_SEEDS", format!("0..{SEEDS}"));
    // Broken seeds make the test fail, and the measurement not: it has said how many they are before.
    let output = cargo.output().map_err(|error| format!("cargo does not start: {error}"))?;
    let failure = || {
        let errors = String::from_utf8_lossy(&output.stderr);
        errors.lines().last().unwrap_or("the simulation said nothing").to_owned()
    };
    read(&String::from_utf8_lossy(&output.stdout)).ok_or_else(failure)
}

/// Reads a line like `seeds 0..100: 3 of 100 runs failed; …`.
fn read(said: &str) -> Option<(u64, u64)> {
    let sums = said.lines().find(|line| line.starts_with("seeds "))?;
    let (counts, _) = sums.split_once(": ")?.1.split_once(" runs failed")?;
    let (broken, runs) = counts.split_once(" of ")?;
    Some((broken.parse().ok()?, runs.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what the simulation says of its seeds is read, and nothing else is taken for it. Method: its lines.
    #[test]
    fn sums_are_read() {
        let said = "VIGIE_SEEDS=5229..5230 Options\n   words\nseeds 0..100000: 87 of 100000 runs failed; 5 polls\n";
        assert_eq!(read(said), Some((87, 100_000)));
        assert_eq!(read("seeds 0..9: none"), None);
        assert_eq!(read("error: could not compile"), None);
    }
}
