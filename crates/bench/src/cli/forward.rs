//! Forwarding, as a subcommand.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use vigie_bench::BenchError;
use vigie_bench::forward;
use vigie_bench::machine::Machine;
use vigie_bench::report::Report;

use super::{Output, draw};

#[derive(Debug, Args)]
pub(super) struct Forward {
    /// Calculate and simulate the paper's node, beside what the paper says of it. Nothing is measured.
    #[arg(long, required = true)]
    model: bool,
    /// Draw figure 4 to this file, and figures 5 and 6 to two beside it, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    pub(super) output: Output,
}

impl Forward {
    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let outcome = forward::model()?;
        println!("\n{}", forward::tables(&outcome.rows));
        if let Some(path) = &self.plot {
            draw(path, forward::by_size(&outcome.rows))?;
            for (bytes, extension) in [(1024, "figure5.svg"), (8192, "figure6.svg")] {
                draw(&path.with_extension(extension), forward::by_delta(&outcome.rows, bytes))?;
            }
        }
        self.output.finish(Report::new(machine, self.output.seed, outcome), &[])?;
        Ok(ExitCode::SUCCESS)
    }
}
