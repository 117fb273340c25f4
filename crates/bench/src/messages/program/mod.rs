//! Peers that are programs of their own.
//!
//! Those that are libraries get a program written by us, kept here as text and built at run time with
//! the library's own compiler. All of these are told and answer alike:
//!
//! ```text
//! program [its own arguments] CORE,… BUDGET_US REST_US LIFE_S CASE:BYTES:WINDOW …
//! rank 0: played OPERATIONS ALL_OPERATIONS WALL_NS CPU_NS CPU_FOLLOWER_NS SAMPLE_NS …
//! ```
//! with a line for each measure, in order. A program ends itself after `LIFE_S` seconds, whatever
//! becomes of who started it.

pub(super) mod iceoryx2;
pub(super) mod mpi;
pub(super) mod ucx;

use std::time::Duration;

use super::keys::REST;
use super::{MeasureResult, Run};
use crate::error::Failure;

/// The arguments by which our programs are told what to measure.
fn arguments(run: &Run, cores: &[usize]) -> Vec<String> {
    let cores: Vec<_> = cores.iter().map(usize::to_string).collect();
    let budget = run.budget.as_micros().to_string();
    let life = (life(run).as_secs() + 1).to_string();
    let mut arguments = vec![cores.join(","), budget, REST.as_micros().to_string(), life];
    arguments.extend(run.measures.iter().map(|measure| measure.word()));
    arguments
}

/// How long a program may take for a run.
fn life(run: &Run) -> Duration {
    let measures = u32::try_from(run.measures.len()).unwrap_or(u32::MAX);
    run.timeout() + run.budget.saturating_mul(measures).saturating_mul(2)
}

/// Reads the lines that rank 0 of one of our programs has printed.
fn parse(output: &str, run: &Run) -> Result<Vec<MeasureResult>, Failure> {
    let lines = output.lines().filter_map(|line| line.trim().strip_prefix("played "));
    let played: Vec<_> = lines.map(parse_line).collect::<Option<_>>().unwrap_or_default();
    if played.len() == run.measures.len() {
        return Ok(played);
    }
    Err(Failure::runtime(format!(
        "{} results for {} measures: {output:?}",
        played.len(),
        run.measures.len()
    )))
}

fn parse_line(line: &str) -> Option<MeasureResult> {
    let numbers = line.split_whitespace().map(str::parse::<u64>);
    let numbers: Vec<_> = numbers.collect::<Result<_, _>>().ok()?;
    let [operations, operations_all, wall_ns, cpu_ns, cpu_follower_ns, samples @ ..] = &numbers[..]
    else {
        return None;
    };
    Some(MeasureResult {
        operations: u32::try_from(*operations).ok()?,
        samples_ns: samples.to_vec(),
        operations_behind: None,
        operations_all: *operations_all,
        wall_ns: *wall_ns,
        cpu_ns: *cpu_ns,
        cpu_follower_ns: *cpu_follower_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::Measure;

    fn run() -> Run {
        Run {
            measures: vec![Measure::Quiet, Measure::Window { bytes: 8, window: 64 }],
            budget: Duration::from_millis(5),
            ranks: 2,
            cores: vec![0, 1],
        }
    }

    #[test]
    fn a_program_is_told_and_understood() {
        // Goal: arguments and answers are what the programs' texts expect; an answer with a line too few
        // or a word that is no number is an error. Method: known text.
        let words = arguments(&run(), &[0, 1]);
        assert_eq!(words[..3], ["0,1", "5000", "2000"].map(str::to_owned));
        assert_eq!(words[4..], ["quiet:8:1", "window:8:64"].map(str::to_owned));
        let played = parse("noise\nplayed 1 0 9 8 7\nplayed 4 12 5 4 3 100 200\n", &run()).unwrap();
        assert_eq!((played[0].cpu_follower_ns, played[0].samples_ns.len()), (7, 0));
        assert_eq!((played[1].operations, &played[1].samples_ns[..]), (4, &[100, 200][..]));
        assert!(parse("played 1 0 9 8 7\n", &run()).is_err());
        assert!(parse("played 1 0 9 8 7\nplayed 4 12 5 4 3 x\n", &run()).is_err());
    }
}
