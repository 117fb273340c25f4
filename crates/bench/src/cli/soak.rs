//! The subcommand `soak`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use vigie_bench::soak::SoakPlan;

use super::output::duration;

#[derive(Debug, Args)]
pub(super) struct Soak {
    /// Minutes to soak, at least; four turns are always made.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = minutes)]
    minutes: f64,
    /// Task switches to make, at least, however long that takes.
    #[arg(long, value_name = "N", default_value_t = 0)]
    switches: u64,
    /// Time of a turn, each on a fresh runtime.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    turn: Duration,
    /// Seed of the first turn; the next ones count on. Default: random, and shown.
    #[arg(long)]
    seed: Option<u64>,
}

const MINUTES_MAX: f64 = 100_000.0;

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "a number of minutes, such as 60 or 0.5")?;
    if (0.0..=MINUTES_MAX).contains(&minutes) {
        Ok(minutes)
    } else {
        Err(format!("minutes must be between 0 and {MINUTES_MAX}"))
    }
}

impl Soak {
    /// Returns status 1 if anything was wrong, or a kind of fault did not happen.
    pub(super) fn run(self) -> ExitCode {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        println!("soak --seed {seed}");
        let mut plan = SoakPlan::new(Duration::from_secs_f64(self.minutes * 60.0), seed);
        plan.switches = self.switches;
        plan.turn = self.turn;
        let report = plan.run(&mut |line| println!("{line}"));
        println!("\n{}", report.table());
        for violation in &report.violations {
            println!("VIOLATION: {violation}");
        }
        let missing = report.missing();
        if !missing.is_empty() {
            println!("NOT HIT: {}", missing.join(", "));
        }
        let is_fine = report.violations.is_empty() && missing.is_empty();
        println!("{}", if is_fine { "all is well" } else { "FAILED" });
        if is_fine { ExitCode::SUCCESS } else { ExitCode::from(1) }
    }
}
