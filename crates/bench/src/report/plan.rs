//! Plans: what a command measures, with its options as fields, and the one way to carry a plan out.

use std::time::Duration;

use clap::{Arg, Args, ValueEnum};

use super::progress::Progress;
use super::repetition::{Repetition, Turn, in_repetitions};
use super::row::{Outcome, Row};
use super::show::{Column, table};
use crate::compute::parse_duration;
use crate::error::BenchError;
use crate::schedulers::System;

/// What a command measures.
pub(crate) trait Plan {
    /// Returns how many cases [`run`](Self::run) measures, for its progress bar.
    fn cases(&self) -> usize;

    /// Measures all cases, systems in turns. What fails for one system alone is no error: the row of that system says so.
    ///
    /// # Errors
    /// Those of the measurement's own processes.
    fn run(&self, seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError>;

    /// Shows what was measured.
    fn tables(&self, rows: &[Row]) -> String;

    /// Draws what was measured, if that was asked for.
    ///
    /// # Errors
    /// [`BenchError::File`].
    fn draw(&self, _rows: &[Row]) -> Result<(), BenchError> {
        Ok(())
    }
}

/// Carries a plan out, under a progress bar.
pub(crate) fn measure(plan: &dyn Plan, seed: u64) -> Result<Outcome, BenchError> {
    let mut progress = Progress::new(plan.cases());
    let outcome = plan.run(seed, &mut progress);
    progress.finish();
    outcome
}

/// A plan whose rows are measured one after the other, in several turns.
pub(crate) trait Case {
    /// What a row measures.
    type Setting;

    /// Returns the number of turns.
    fn rounds(&self) -> u32;

    /// Returns the rows, without figures, in the order of the table.
    fn rows(&self) -> Vec<(Self::Setting, Row)>;

    /// Makes sure that anything can be measured. If not, every row gets the reason.
    fn prepare(&self) -> Result<(), BenchError> {
        Ok(())
    }

    /// Measures one row in one turn.
    fn measure(&self, setting: &Self::Setting, turn: &Turn<'_>) -> Result<Repetition, BenchError>;

    /// Tells whether an error is about one row alone, so that the others are still measured.
    fn is_of_the_row(&self, _setting: &Self::Setting, error: &BenchError) -> bool {
        error.is_of_the_system()
    }

    /// Adds figures that need all rows.
    fn compare(&self, _rows: &mut [Row]) {}

    /// Shows what was measured.
    fn tables(&self, rows: &[Row]) -> String;
}

impl<C: Case> Plan for C {
    fn cases(&self) -> usize {
        self.rows().len() * self.rounds() as usize
    }

    fn run(&self, seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let mut rows = self.rows();
        if let Err(reason) = self.prepare() {
            for (_, row) in &mut rows {
                row.failure = Some(reason.to_string());
            }
            let name = rows.first().map_or("empty", |(_, row)| row.case);
            eprintln!("SKIPPED: the {name} case: {reason}");
        }
        let mut outcome = in_repetitions(self, rows, seed, progress)?;
        self.compare(&mut outcome.rows);
        Ok(outcome)
    }

    fn tables(&self, rows: &[Row]) -> String {
        Case::tables(self, rows)
    }
}

/// A case with a row for each system.
pub(crate) trait SystemCase {
    /// Its name in rows.
    const CASE: &'static str;
    /// What is measured by default, before the peers.
    const OWN: &'static [System] = &[System::Vigie, System::Threads];
    /// What its table shows.
    const COLUMNS: &'static [Column];

    /// Returns how long which systems are measured.
    fn amount(&self) -> &Amount;

    /// Adds the settings to a row.
    fn parameters(&self, row: Row) -> Row;

    /// The same as [`Case::prepare`].
    fn prepare(&self) -> Result<(), BenchError> {
        Ok(())
    }

    /// Measures one system in one turn.
    fn measure(&self, system: System, turn: &Turn<'_>) -> Result<Repetition, BenchError>;

    /// Returns the title of its table.
    fn title(&self) -> String;

    /// Returns what is said below its table.
    fn note(&self) -> &'static str {
        ""
    }
}

impl<C: SystemCase> Case for C {
    type Setting = System;

    fn rounds(&self) -> u32 {
        self.amount().rounds()
    }

    fn rows(&self) -> Vec<(System, Row)> {
        let workers = self.amount().workers();
        let row = |system| {
            let row = self.parameters(Row::new(system, C::CASE));
            (system, row.parameter("workers", workers))
        };
        self.amount().systems(C::OWN).into_iter().map(row).collect()
    }

    fn prepare(&self) -> Result<(), BenchError> {
        SystemCase::prepare(self)
    }

    fn measure(&self, system: &System, turn: &Turn<'_>) -> Result<Repetition, BenchError> {
        SystemCase::measure(self, *system, turn)
    }

    fn tables(&self, rows: &[Row]) -> String {
        format!("{}{}", table(&self.title(), rows, C::COLUMNS), self.note())
    }
}

/// The systems that a command measures.
#[derive(Clone, Debug, Args)]
pub(crate) struct Systems {
    /// Other systems to measure in the same run, after vigie's own rows: tokio, smol, … (an unknown name lists all).
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM,…", default_value = "tokio")]
    peers: Vec<System>,
    /// Measure only these systems, instead of vigie's rows and --peers.
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM,…")]
    only: Vec<System>,
    /// Worker threads of systems that let you choose their number.
    #[arg(long, default_value_t = 2)]
    pub(crate) workers: usize,
}

impl Systems {
    /// Returns the systems to measure: vigie's `own` rows and the peers, or what was asked for.
    pub(crate) fn or(&self, own: &[System]) -> Vec<System> {
        if !self.only.is_empty() {
            return self.only.clone();
        }
        let peers = self.peers.iter().filter(|peer| !own.contains(peer));
        own.iter().chain(peers).copied().collect()
    }
}

/// How long to measure. Each plan sets the defaults with [`by_default`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Turns {
    /// Time limit for each row of the table, in all rounds together.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) budget: Duration,
    /// Number of rounds, over which samples and --budget are spread; in each, all systems are measured in turn (from 1).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
}

/// How long to measure which systems.
#[derive(Clone, Debug, Args)]
pub(crate) struct Amount {
    #[command(flatten)]
    turns: Turns,
    #[command(flatten)]
    systems: Systems,
}

impl Amount {
    pub(crate) const fn rounds(&self) -> u32 {
        self.turns.rounds
    }

    pub(crate) const fn workers(&self) -> usize {
        self.systems.workers
    }

    /// Returns the systems to measure: vigie's `own` rows and the peers, or what was asked for.
    pub(crate) fn systems(&self, own: &[System]) -> Vec<System> {
        self.systems.or(own)
    }

    /// Returns a row for each value of `key` and each system.
    pub(crate) fn rows_by(
        &self,
        own: &[System],
        values: &[u32],
        row: impl Fn(System, u32) -> Row,
    ) -> Vec<((System, u32), Row)> {
        let workers = self.workers();
        let one =
            |value, system| ((system, value), row(system, value).parameter("workers", workers));
        let systems = self.systems(own);
        let all = values.iter().flat_map(|value| systems.iter().map(|system| one(*value, *system)));
        all.collect()
    }

    /// Returns the time that a row has in one turn.
    pub(crate) fn of_turn(&self) -> Duration {
        self.turns.budget / self.turns.rounds
    }
}

/// Returns the name of a choice on the command line, which is also its name in results.
pub(crate) fn name_of(choice: impl ValueEnum) -> String {
    let value = choice.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Gives an option of a group its default value, for `mut_arg`.
pub(crate) fn by_default(value: &'static str) -> impl FnOnce(Arg) -> Arg {
    move |option| option.required(false).default_value(value)
}

/// Returns the plan that a command line describes, given by the words behind the command's name.
#[cfg(test)]
pub(crate) fn planned<P: Args>(words: &str) -> P {
    let command = P::augment_args(clap::Command::new("plan").no_binary_name(true));
    let matches = command.get_matches_from(words.split_whitespace());
    P::from_arg_matches(&matches).expect("invariant: clap has checked the words")
}
