//! What most commands have: systems, a seed, a file, a progress bar.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use vigie_bench::BenchError;
use vigie_bench::compute::{ParseDurationError, parse_duration};
use vigie_bench::goals::Checked;
use vigie_bench::report::progress::Progress;
use vigie_bench::report::{Outcome, Report};
use vigie_bench::system::System;

#[derive(Debug, Args)]
pub(super) struct Common {
    /// Peers to measure in the same run, after vigie's own rows.
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM,…", default_value = "tokio")]
    pub(super) peers: Vec<System>,
    /// Measure exactly these systems instead of vigie's rows and the peers.
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM,…")]
    pub(super) only: Vec<System>,
    /// Worker threads, where a system has a choice.
    #[arg(long, default_value_t = 2)]
    pub(super) workers: usize,
    #[command(flatten)]
    pub(super) output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Output {
    /// Write machine, command, rows and raw samples to this file, as one JSON object.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Seed of pauses and choices.
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
}

pub(super) fn duration(text: &str) -> Result<Duration, ParseDurationError> {
    parse_duration(text)
}

impl Common {
    /// The systems to measure: vigie's `own` rows and the peers, or what was asked for.
    pub(super) fn systems(&self, own: &[System]) -> Vec<System> {
        if !self.only.is_empty() {
            return self.only.clone();
        }
        let mut systems = own.to_vec();
        systems.extend(self.peers.iter().filter(|peer| !own.contains(peer)));
        systems
    }
}

impl Output {
    /// Makes sure that the file can be written, before minutes of measuring.
    pub(super) fn prepare(&self) -> Result<(), BenchError> {
        let Some(path) = &self.json else { return Ok(()) };
        let opened = File::options().append(true).create(true).open(path);
        opened.map(drop).map_err(|source| BenchError::File { path: path.clone(), source })
    }

    /// Says how the client was scheduled, and writes the file if one was asked for.
    pub(super) fn finish(&self, mut report: Report, goals: &[Checked]) -> Result<(), BenchError> {
        if let Some(priority) = &report.client_priority {
            println!("client priority: {priority}; seed {}", self.seed);
        }
        report.goals = goals.iter().map(Checked::to_json).collect();
        if let Some(path) = &self.json {
            report.write(path)?;
            println!("written: {}", path.display());
        }
        Ok(())
    }
}

/// Writes a plot.
pub(super) fn draw(path: &Path, svg: String) -> Result<(), BenchError> {
    let error = |source| BenchError::File { path: path.to_owned(), source };
    fs::write(path, svg).map_err(error)?;
    println!("written: {}", path.display());
    Ok(())
}

/// Runs a plan under a progress bar.
pub(super) fn measure(
    cases: usize,
    run: impl FnOnce(&mut Progress) -> Result<Outcome, BenchError>,
) -> Result<Outcome, BenchError> {
    let mut progress = Progress::new(cases);
    let outcome = run(&mut progress);
    progress.finish();
    outcome
}
