//! Tests that draw their cases by seed, with many times the seeds that `cargo test` takes.
//!
//! Run in a checkout. They are built for release, into cargo's usual target directory.

use std::env;
use std::path::Path;
use std::process::Command;

use clap::Args;

use crate::clock;
use crate::error::BenchError;
use crate::report::{Outcome, Plan, Progress, Row, Show, table};
use crate::schedulers::System;

/// Name of the case in rows.
const CASE: &str = "drawn";

/// Parameter of a row: what is drawn.
const TEST: &str = "test";

/// Figures: seeds that were tried, tests that failed (0 or 1: it ends with the first seed that fails), and seconds.
const SEEDS: &str = "samples";
const FAILED: &str = "failed";
const SECONDS: &str = "seconds";

/// A test of vigie-via, and the variable that says how many seeds it tries.
struct Drawn {
    name: &'static str,
    target: &'static str,
    test: &'static str,
    variable: &'static str,
    share: u64,
}

/// All of them. Attacks are fewer, since each waits for its victims.
const ALL: [Drawn; 4] = [
    Drawn {
        name: "programs-shm",
        target: "programs",
        test: "random_legal_programs_end_over_shared_memory",
        variable: "SIM_RUNS",
        share: 1,
    },
    Drawn {
        name: "programs-udp",
        target: "programs",
        test: "random_legal_programs_end_over_udp",
        variable: "SIM_RUNS",
        share: 1,
    },
    Drawn {
        name: "programs-simulated",
        target: "protocol",
        test: "progress::random_legal_programs_end",
        variable: "SIM_RUNS",
        share: 1,
    },
    Drawn {
        name: "scribbles",
        target: "hostile_rank",
        test: "a_third_rank_scribbles_in_vain",
        variable: "VIGIE_HOSTILE_SEEDS",
        share: 10,
    },
];

/// Random programs of messages, and attacks on them: ten minutes on two cores.
#[derive(Clone, Debug, Args)]
pub(crate) struct DrawnPlan {
    /// Seeds of random programs, at least 10; a tenth as many attacks.
    #[arg(long, value_name = "N", default_value = "10000", value_parser = clap::value_parser!(u64).range(10..))]
    seeds: u64,
}

impl Plan for DrawnPlan {
    fn cases(&self) -> usize {
        ALL.len()
    }

    fn run(&self, seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let rows = ALL.iter().map(|drawn| {
            progress.case(drawn.name);
            let row = drawn.row(self.seeds / drawn.share, seed);
            progress.case_done();
            row
        });
        Ok(Outcome { rows: rows.collect(), priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        let columns = [
            ("test", Show::Parameter(TEST)),
            ("seeds", Show::Count(SEEDS)),
            ("failed", Show::Count(FAILED)),
            ("seconds", Show::Count(SECONDS)),
        ];
        table("Tests that draw their cases", rows, &columns)
    }
}

impl Drawn {
    /// Tries so many seeds, from `first` on where the test takes a first seed.
    fn row(&self, seeds: u64, first: u64) -> Row {
        let mut row = Row::new(System::Vigie, CASE).parameter(TEST, self.name);
        match self.fails(seeds, first) {
            Ok((fails, seconds)) => {
                let row = row.with_figure(SEEDS, seeds).with_figure(FAILED, u64::from(fails));
                row.with_figure(SECONDS, seconds)
            }
            Err(failure) => {
                row.failure = Some(failure);
                row
            }
        }
    }

    /// Runs the test. Returns whether it fails, and how many seconds it took.
    fn fails(&self, seeds: u64, first: u64) -> Result<(bool, u64), String> {
        if !Path::new("crates/via/tests").exists() {
            return Err("no crates/via/tests here: run it in a checkout".to_owned());
        }
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["test", "--release", "-p", "vigie-via", "--test", self.target, "--"]);
        cargo.args([self.test, "--exact"]);
        cargo.env(self.variable, seeds.to_string()).env("SIM_SEED", first.to_string());
        let begin = clock::now();
        let output = cargo.output().map_err(|error| format!("{cargo:?}: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let passes = said.contains("1 passed");
        if !passes && !said.contains("1 failed") {
            return Err(format!("{cargo:?}: {}: no test has run", output.status));
        }
        Ok((!passes, begin.elapsed().as_secs()))
    }
}
