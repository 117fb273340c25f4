//! `vigie-bench`: reproduces the measurements of vigie's papers, beside peers, and checks the goals.

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use vigie_bench::cli::Cli;
use vigie_bench::counting::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    vigie_bench::child::maybe_run_child();
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("vigie-bench: {}", chain(&error));
            ExitCode::from(2)
        }
    }
}

/// Shows an error and its sources.
fn chain(error: &dyn Error) -> String {
    let mut shown = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let text = error.to_string();
        // Some errors show their source themselves.
        if !shown.contains(&text) {
            shown = format!("{shown}: {text}");
        }
        source = error.source();
    }
    shown
}
