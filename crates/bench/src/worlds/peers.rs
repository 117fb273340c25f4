//! One service over TCP on vigie's simulated flavor, turmoil and madsim: what `scripts/simulators` measures and prints, as rows.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::report::{Row, Show, Subject, table};

/// Name of the case in rows.
pub(super) const CASE: &str = "simulators";

const SEEDS_PER_HOUR: &str = "seeds_per_processor_hour";
const CALLS: &str = "calls";

const SCRIPT: &str = "scripts/simulators";

/// The seeds of each of the script's three runs.
const SEEDS: &str = "200";

/// The simulators that the script runs. They are no systems of other cases.
const SIMULATORS: [Subject; 3] = [
    Subject::Model { name: "vigie", label: "vigie" },
    Subject::Model { name: "turmoil", label: "turmoil" },
    Subject::Model { name: "madsim", label: "madsim" },
];

/// Runs the script, and returns a row for each simulator. Its programs are kept in `folder`, so that they are built once.
pub(super) fn rows(folder: &Path) -> Vec<Row> {
    let printed = if Path::new(SCRIPT).exists() {
        let output = Command::new(SCRIPT)
            .arg(SEEDS)
            .env("SIMULATORS_DIR", folder.join("simulators"))
            .stderr(Stdio::inherit())
            .output();
        output.map_err(|error| format!("{SCRIPT} does not start: {error}"))
    } else {
        Err(format!("no {SCRIPT} here: run it in a checkout"))
    };
    let printed = printed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    SIMULATORS.map(|simulator| row(simulator, printed.as_deref())).into()
}

pub(super) fn table_of(rows: &[Row]) -> String {
    let columns = [
        ("seeds in an hour of processor time", Show::Number(SEEDS_PER_HOUR)),
        ("calls in a seed", Show::Count(CALLS)),
    ];
    table("Three nodes that call each other over TCP for 10 simulated seconds", rows, &columns)
}

/// Makes a simulator's row of all that the script has printed.
fn row(simulator: Subject, printed: Result<&str, &String>) -> Row {
    let row = Row::new(simulator, CASE);
    let failed = |failure: String| Row { failure: Some(failure), ..row.clone() };
    let printed = match printed {
        Ok(printed) => printed,
        Err(failure) => return failed(failure.clone()),
    };
    let name = simulator.name();
    let runs: Vec<(f64, u64)> = printed.lines().filter_map(|line| read(line, name)).collect();
    let Some((_, calls)) = runs.first() else {
        return failed(format!("{name} was not built or did not run: see standard error"));
    };
    let per_hour: Vec<f64> = runs.iter().map(|(per_hour, _)| *per_hour).collect();
    row.with_figure("samples", runs.len())
        .with_figure(SEEDS_PER_HOUR, super::median(&per_hour).unwrap_or_default())
        .with_figure(CALLS, *calls)
}

/// Reads the seeds in an hour of processor time, and the calls, of a line like
/// `madsim   1080000 seeds an hour, 2305 calls each, 1079000 by processor time`.
fn read(line: &str, name: &str) -> Option<(f64, u64)> {
    let mut parts = line.split(", ");
    let seeds = parts.next()?.strip_suffix(" seeds an hour")?;
    let calls = parts.next()?.strip_suffix(" calls each")?;
    let per_hour = parts.next()?.strip_suffix(" by processor time")?;
    let is_named = seeds.split_whitespace().next() == Some(name);
    Some((per_hour.parse().ok()?, calls.parse().ok()?)).filter(|_| is_named)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each simulator has the median of its own runs; one that the script could not build says so, and so do all if the
    /// script is absent. Method: the script's lines, without those of turmoil.
    #[test]
    fn what_the_script_prints_becomes_rows() {
        let printed = "vigie        849000 seeds an hour, 2288 calls each, 853000 by processor time\n\
                       madsim      1080000 seeds an hour, 2305 calls each, 1079000 by processor time\n\
                       vigie        832000 seeds an hour, 2288 calls each, 841000 by processor time\n\
                       vigie        840000 seeds an hour, 2288 calls each, 845000 by processor time\n";
        let [vigie, turmoil, madsim] = SIMULATORS.map(|simulator| row(simulator, Ok(printed)));
        assert_eq!(vigie.figure(SEEDS_PER_HOUR), Some(845_000.0));
        assert_eq!((vigie.samples(), vigie.figure(CALLS)), (3, Some(2288.0)));
        assert_eq!((madsim.samples(), madsim.figure(SEEDS_PER_HOUR)), (1, Some(1_079_000.0)));
        assert!(
            turmoil.failure.is_some_and(|failure| failure.starts_with("turmoil was not built"))
        );
        assert!(table_of(&[vigie]).contains("845000"));
        let absent = "no script".to_owned();
        assert_eq!(row(SIMULATORS[0], Err(&absent)).failure, Some(absent));
    }
}
