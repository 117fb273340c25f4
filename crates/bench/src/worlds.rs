//! What a simulated world costs: seeds of the example `lost_answer`, an idle node, and a service beside other simulators.
//!
//! Question: how many seeds does an hour of one core try, what does a simulated second of a node cost that does nothing, and how many seeds of
//! one service over TCP does vigie run for one of turmoil's or madsim's?
//! Prediction: a seed of the example is some 1500 polls and 500 packets of less than a microsecond each, so less than a millisecond, or
//! some 4 million seeds in an hour; an idle node has one timer each second, so one step of the loop, a microsecond; fewer seeds than madsim, whose
//! messages are one event where vigie's TCP has packets. Method: the example's own program, with its 229 worlds, as long as its process runs; a
//! node with an interval of a second for 50 000 simulated seconds. One core, seven runs, of which the median counts. The peers: `scripts/simulators`.

mod peers;

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use vigie_detect::Instant;
use vigie_detect::clock::monotonic_now;
use vigie_runtime::simulation::World;
use vigie_runtime::time;

use crate::error::BenchError;
use crate::report::{Outcome, Plan, Progress, Row, Show, table};
use crate::schedulers::System;
use crate::statistics::median;

/// Name of the case in rows.
const CASE: &str = "worlds";

const SEEDS_PER_HOUR: &str = "seeds_per_hour";
const IDLE_US: &str = "idle_us";

/// The worlds that the example runs: until seed 2 fails, that one again, and 200 that pass, each eighth of them twice.
const EXAMPLE_SEEDS: f64 = 229.0;

const IDLE_SECONDS: u32 = 50_000;

const RUNS: usize = 7;

/// Simulated worlds: five minutes, of which most build the example and the peers.
#[derive(Clone, Debug, Args)]
pub(crate) struct WorldsPlan {}

impl Plan for WorldsPlan {
    fn cases(&self) -> usize {
        2
    }

    fn run(&self, _seed: u64, _progress: &mut Progress) -> Result<Outcome, BenchError> {
        let mut row = Row::new(System::Vigie, CASE).with_figure("samples", RUNS as u64);
        let idle: Vec<f64> = (0..RUNS).map(|_| idle_us()).collect();
        row = row.with_figure(IDLE_US, median(&idle).unwrap_or_default());
        match example_seconds() {
            Ok(seconds) => {
                let per_hour = EXAMPLE_SEEDS / seconds * 3600.0;
                row = row.with_figure(SEEDS_PER_HOUR, per_hour);
            }
            Err(failure) => row.failure = Some(failure),
        }
        let mut rows = vec![row];
        rows.extend(peers::rows(Path::new(&target_folder())));
        Ok(Outcome { rows, priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        let columns = [
            ("seeds of lost_answer an hour", Show::Number(SEEDS_PER_HOUR)),
            ("µs for a second of an idle node", Show::Fixed(IDLE_US, 2)),
        ];
        let (own, beside): (Vec<Row>, Vec<Row>) =
            rows.iter().cloned().partition(|row| row.case == CASE);
        format!("{}\n{}", table("Simulated worlds", &own, &columns), peers::table_of(&beside))
    }
}

/// Returns what a simulated second of an idle node costs.
fn idle_us() -> f64 {
    let mut world = World::new(1);
    world.node("idle").run(|| async {
        let mut ticks = time::interval(Duration::from_secs(1));
        loop {
            ticks.tick().await;
        }
    });
    let seconds = Duration::from_secs(IDLE_SECONDS.into());
    let begin = monotonic_now();
    world.block_on(async { time::sleep(seconds).await });
    since(begin) * 1e6 / f64::from(IDLE_SECONDS)
}

/// Builds the example, and returns how long its process takes.
fn example_seconds() -> Result<f64, String> {
    if !Path::new("examples/lost_answer.rs").exists() {
        return Err("no examples/lost_answer.rs here: run it in a checkout".to_owned());
    }
    let cargo = |verb: &str| {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args([
            verb,
            "--quiet",
            "--release",
            "--features",
            "hyper-client",
            "--example",
            "lost_answer",
        ]);
        cargo
    };
    let status =
        cargo("build").status().map_err(|error| format!("cargo does not start: {error}"))?;
    if !status.success() {
        return Err("the example does not build".to_owned());
    }
    let program = Path::new(&target_folder()).join("release/examples/lost_answer");
    let run = || {
        let begin = monotonic_now();
        let status = Command::new(&program).stdout(Stdio::null()).status();
        match status {
            Ok(status) if status.success() => Ok(since(begin)),
            Ok(status) => Err(format!("{}: {status}", program.display())),
            Err(error) => Err(format!("{}: {error}", program.display())),
        }
    };
    let seconds: Vec<f64> = (0..RUNS).map(|_| run()).collect::<Result<_, _>>()?;
    Ok(median(&seconds).unwrap_or_default())
}

fn target_folder() -> OsString {
    env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())
}

fn since(begin: Instant) -> f64 {
    (monotonic_now() - begin).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the figures are those of the rows. Method: the table of a row with known figures.
    #[test]
    fn a_table_shows_both_figures() {
        let row = Row::new(System::Vigie, CASE)
            .with_figure(IDLE_US, 1.25)
            .with_figure(SEEDS_PER_HOUR, 7e6);
        let text = WorldsPlan {}.tables(&[row]);
        assert!(text.contains("1.25") && text.contains("7000000"), "{text}");
    }
}
