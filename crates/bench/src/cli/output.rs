//! Where results go.

use std::fs::File;
use std::path::PathBuf;

use clap::Args;

use crate::error::BenchError;
use crate::goals::Checked;
use crate::report::Report;

#[derive(Debug, Args)]
pub(super) struct Output {
    /// Also write machine, command, rows and raw samples to this file, as one JSON object.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Seed for random pauses and orders.
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
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
