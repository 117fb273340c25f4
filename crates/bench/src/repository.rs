//! The repository itself: its size, and the time of a first build and of all tests.
//!
//! Run in a checkout, on a quiet machine. Builds go into a target directory of their own, which is empty at the start.

use std::env;
use std::path::Path;
use std::process::Command;

use clap::Args;

use crate::clock;
use crate::error::BenchError;
use crate::report::{Outcome, Plan, Progress, Row, Show, table};
use crate::schedulers::System;

/// Name of the case in rows.
const CASE: &str = "repository";

/// Keys of the figures: lines of code of `vigie-bench` and of all else, repetitions; seconds until README's first command runs, of compiling the
/// tests, and of compiling and running them.
const BENCH: &str = "bench_lines";
const PRODUCT: &str = "lines";
const REPETITIONS: &str = "repetitions";
const FIRST: &str = "first_s";
const COMPILE: &str = "compile_s";
const TESTS: &str = "tests_s";

/// The repository: a quarter of an hour on two cores.
#[derive(Clone, Debug, Args)]
pub(crate) struct RepositoryPlan {}

impl Plan for RepositoryPlan {
    fn cases(&self) -> usize {
        1
    }

    fn run(&self, _seed: u64, _progress: &mut Progress) -> Result<Outcome, BenchError> {
        let mut row = Row::new(System::Vigie, CASE).with_figure("samples", 1);
        match figures() {
            Ok(figures) => {
                for (key, figure) in figures {
                    row = row.with_figure(key, figure);
                }
            }
            Err(failure) => row.failure = Some(failure),
        }
        Ok(Outcome { rows: vec![row], priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        let columns = [
            ("lines", Show::Count(PRODUCT)),
            ("of bench", Show::Count(BENCH)),
            ("repetitions", Show::Count(REPETITIONS)),
            ("first run (s)", Show::Count(FIRST)),
            ("compiling tests (s)", Show::Count(COMPILE)),
            ("with tests (s)", Show::Count(TESTS)),
        ];
        table("The repository", rows, &columns)
    }
}

/// Measures all figures, the sizes first.
fn figures() -> Result<Vec<(&'static str, u64)>, String> {
    if !Path::new("scripts/lines").exists() {
        return Err("no scripts/lines here: run it in a checkout".to_owned());
    }
    let lines = output(&mut Command::new("scripts/lines"))?;
    let repetitions = output(&mut Command::new("scripts/repetitions"))?;
    let sizes = [
        (PRODUCT, count(&lines, "all but bench")),
        (BENCH, count(&lines, "bench")),
        (REPETITIONS, count(&repetitions, "repetitions of")),
    ];

    let target = env::temp_dir().join(format!("vigie-repository-{}", std::process::id()));
    let build = |words: &str| {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(words.split(' ')).env("CARGO_TARGET_DIR", &target);
        let begin = clock::now();
        output(&mut cargo).map(|_| (clock::now() - begin).as_secs())
    };
    let times = times(build);
    // What is left there is in the way of nothing.
    let _ = std::fs::remove_dir_all(&target);

    let sizes = sizes.map(|(key, count)| {
        count.map(|count| (key, count)).ok_or_else(|| format!("the scripts tell nothing of {key}"))
    });
    sizes.into_iter().chain(times?.map(Ok)).collect()
}

/// Measures README's two commands.
fn times(build: impl Fn(&str) -> Result<u64, String>) -> Result<[(&'static str, u64); 3], String> {
    let first = build("build --release --example health --features hyper")?;
    let compile = build("test --workspace --all-features --no-run")?;
    let tests = build("test --workspace --all-features")?;
    Ok([(FIRST, first), (COMPILE, compile), (TESTS, compile + tests)])
}

/// Runs a command to its end. Returns what it said.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}: {}", output.status, errors.lines().last().unwrap_or_default()))
}

/// Reads the number of the line that begins with it and goes on with `name`.
fn count(said: &str, name: &str) -> Option<u64> {
    said.lines().find_map(|line| {
        let (number, rest) = line.trim_start().split_once(' ')?;
        rest.starts_with(name).then(|| number.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the scripts' counts are read by name. Method: what they print.
    #[test]
    fn counts_are_read() {
        let said = "  10061 barrier\n  21950 bench\n 114077 all but bench\n";
        assert_eq!(count(said, "bench"), Some(21_950));
        assert_eq!(count(said, "all but bench"), Some(114_077));
        assert_eq!(count("17 repetitions of 6 lines or more\n", "repetitions of"), Some(17));
        assert_eq!(count(said, "via"), None);
    }
}
