//! The subcommand `slowdown`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use vigie_bench::BenchError;
use vigie_bench::host::machine::Machine;
use vigie_bench::report::Report;
use vigie_bench::slowdown::{SERVICES, Service, SlowdownPlan};
use vigie_bench::system::System;

use super::output::{Output, duration, measure};

#[derive(Debug, Args)]
pub(super) struct Slowdown {
    /// Distributions of service times: 99.5-0.5 (10 µs and 10 ms), 50-50 (1 µs and 100 µs),
    /// exponential-10, exponential-25.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME,…",
        default_value = "99.5-0.5,50-50,exponential-25",
        value_parser = service
    )]
    service: Vec<Service>,
    /// Loads, in rising order; 1 is the maximum of a server without overhead, beside the client.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LOAD,…",
        default_value = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9"
    )]
    loads: Vec<f64>,
    /// Connections; each request takes the one that has been idle for longest.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Time per run, after 0.3 s of warm-up.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    budget: Duration,
    /// Systems to measure [default: vigie,threads,tokio, and go where it is installed].
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM,…")]
    peers: Option<Vec<System>>,
    /// Worker threads, where a system has a choice.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    #[command(flatten)]
    pub(super) output: Output,
}

fn service(name: &str) -> Result<Service, String> {
    let known = SERVICES.iter().find(|service| service.name == name).copied();
    known.ok_or_else(|| {
        let names: Vec<_> = SERVICES.iter().map(|service| service.name).collect();
        format!("there are {}", names.join(", "))
    })
}

impl Slowdown {
    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let systems = self.peers.unwrap_or_else(|| {
            let systems = [System::Vigie, System::Threads, System::Tokio, System::Go];
            systems.into_iter().filter(|system| system.is_installed()).collect()
        });
        let mut plan = SlowdownPlan::new(systems, machine.cores);
        (plan.services, plan.loads) = (self.service, self.loads);
        (plan.connections, plan.span) = (self.connections, self.budget);
        (plan.workers, plan.seed) = (self.workers, self.output.seed);
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        println!("\n{}", plan.tables(&outcome.rows));
        let report = Report::new(machine, self.output.seed, outcome);
        self.output.finish(report, &[])?;
        Ok(ExitCode::SUCCESS)
    }
}
