//! The subcommand `loads`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use vigie_bench::BenchError;
use vigie_bench::host::machine::Machine;
use vigie_bench::loads::{CASES, LoadsPlan, Mix, seed_of};
use vigie_bench::report::{Outcome, Report};
use vigie_bench::system::System;

#[derive(Debug, Args)]
#[command(after_help = cases_help())]
pub(super) struct Loads {
    /// Seed of the first mix; the next ones count on, and each shows its own. `--seed S --count 1`
    /// replays one mix. Default: drawn from the commit's hash.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of mixes. 200 take about 40 minutes: each runs for about 2 s on threads, on each
    /// of `--peers`, and on threads two times more; once more if the host of this machine took time away.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Loads with names instead of drawn ones, or `all`; see below.
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", conflicts_with = "count")]
    case: Vec<String>,
    /// Seconds for which each run is measured, after 0.4 s of warm-up.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.5, value_parser = seconds)]
    seconds: f64,
    /// Systems that are judged by threads, which are always measured (three times).
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "SYSTEM,…",
        default_value = "vigie,threads,tokio"
    )]
    peers: Vec<System>,
    /// Worker threads, where a system has a choice.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Show a table for each mix, not only what is missed.
    #[arg(long)]
    tables: bool,
    /// Say what would run, in words, and run nothing.
    #[arg(long)]
    dry_run: bool,
    /// Write machine, command and rows to this file, as one JSON object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds, such as 1.5")?;
    if (0.05..=3_600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("seconds must be between 0.05 and 3600".to_owned())
    }
}

fn cases_help() -> String {
    let lines: String =
        CASES.iter().map(|(name, about, _)| format!("  {name:<20} {about}\n")).collect();
    format!("Names for --case:\n{lines}")
}

impl Loads {
    fn mixes(&self, commit: &str) -> Result<Vec<Mix>, BenchError> {
        if self.case.is_empty() {
            let first = self.seed.unwrap_or_else(|| seed_of(commit));
            return Ok((0..u64::from(self.count)).map(|index| Mix::draw(first + index)).collect());
        }
        let all = self.case.iter().any(|name| name == "all");
        let named = |name: &str| {
            Mix::named(name).ok_or_else(|| BenchError::NoCase { name: name.to_owned() })
        };
        if all {
            return CASES.iter().map(|case| named(case.0)).collect();
        }
        self.case.iter().map(|name| named(name)).collect()
    }

    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let mixes = self.mixes(&machine.commit)?;
        if self.dry_run {
            for mix in &mixes {
                println!("{mix}");
            }
            return Ok(ExitCode::SUCCESS);
        }
        let seed = mixes.first().map_or(0, |mix| mix.seed);
        let shows_tables = self.tables || !self.case.is_empty() || mixes.len() == 1;
        let mut plan = LoadsPlan::new(mixes, self.peers);
        plan.workers = self.workers;
        plan.span = Duration::from_secs_f64(self.seconds);
        let outcome = plan.run(&mut |mix| {
            println!("{}", if shows_tables { mix.table() } else { mix.line() });
        })?;
        println!("\n{}", outcome.summary());
        let rows = outcome.rows();
        let mut all = Outcome::default();
        (all.rows, all.priority) = (rows, outcome.priority);
        let report = Report::new(machine, seed, all);
        if let Some(priority) = &report.client_priority {
            println!("client priority: {priority}; seed {seed}");
        }
        if let Some(path) = &self.json {
            report.write(path)?;
            println!("written: {}", path.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}
