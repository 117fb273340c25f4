//! `vigie-forward`: forwards streams, frames and packets.
//!
//! ```text
//!                ┌───────────────────────── vigie-forward ──────────────────────────┐
//!  arguments ───▶│ cli.rs ──┐                                                       │
//!  file ────────▶│ config/ ─┴▶ instance.rs ── prepare ──▶ flow/                     │
//!                │                 │                       ├ relay.rs ── threads of streams
//!  signals ─────▶│ signals.rs ─────┤                       └ frames/ ─── threads of frames, programs
//!  kernel ──────▶│ kernel/ ────────┤ routes, neighbours       ▲            at the interfaces
//!  stats ◀──────▶│ stats/, metrics/ ┘                          └ migration.rs: where a flow runs
//!                └──────────────────────────────────────────────────────────────────┘
//! ```
//! One thread controls: vigie's user-level flavor, with everything above as a task. Streams are relayed by workers of
//! the hybrid flavor. Capabilities are dropped between `prepare` and the first packet: `privileges.rs`.

mod access_log;
mod cli;
mod config;
mod flow;
mod instance;
mod journal;
mod kernel;
#[path = "../shared/mailbox.rs"]
mod mailbox;
mod metrics;
mod migration;
mod plan;
mod privileges;
mod reload;
mod service_manager;
mod signals;
mod stats;
mod takeover;

use std::{fmt, path::Path, process};

use clap::Parser;

use self::{
    cli::{Cli, Command},
    config::{Config, ConfigError, FlowKind},
};

fn main() {
    journal::install_subscriber();
    let checked = |config: Config| config::check_command_line(&config).map(|()| config);
    let code = match Cli::parse().command {
        Command::Relay(one) => {
            let relay = |relay| FlowKind::Relay(Box::new(relay));
            forward(checked(one.into_config(relay)), None)
        }
        Command::L2(one) => forward(checked(one.into_config(FlowKind::L2)), None),
        Command::L3(one) => forward(checked(one.into_config(FlowKind::L3)), None),
        Command::Nat(one) => forward(checked(one.into_config(FlowKind::Nat)), None),
        Command::Run(run) => {
            forward(config::read(&run.config, flow::file_problems), Some(&run.config))
        }
        Command::Check { config } => check(config::read(&config, flow::file_problems)),
        Command::Plan(arguments) if arguments.probe_program => {
            done(plan::program_cost(arguments.work).map(|text| print!("{text}")))
        }
        Command::Plan(arguments) => done(plan::run(&arguments).map(|text| print!("{text}"))),
        Command::Stats(arguments) => done(stats::stats(&arguments)),
        Command::Move(arguments) => {
            let line = format!("move {} {}", arguments.flow, arguments.to.name());
            done(
                stats::request(arguments.socket.as_deref(), &line).map(|answer| print!("{answer}")),
            )
        }
    };
    // Do not return: a thread may still be blocked in a system call.
    process::exit(code.into());
}

/// Prints the error of a command, and returns its exit code.
fn done<E: fmt::Display>(result: Result<(), E>) -> u8 {
    result.map_or_else(|error| complain(&error, instance::CODE_FAILED), |()| 0)
}

fn complain(error: &impl fmt::Display, code: u8) -> u8 {
    eprintln!("vigie-forward: {error}");
    code
}

/// Forwards. `file` is read again at SIGHUP.
fn forward(config: Result<Config, ConfigError>, file: Option<&Path>) -> u8 {
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            let said = format!("{error}\nnothing was started");
            return complain(&said, instance::CODE_USAGE);
        }
    };
    instance::run(config, file).unwrap_or_else(|error| complain(&error.with_line(), error.code()))
}

/// Prints what a configuration would do.
fn check(config: Result<Config, ConfigError>) -> u8 {
    match config {
        Ok(config) => {
            for flow in &config.flows {
                println!("{}: {}", flow.name, flow.kind);
            }
            let warnings: Vec<_> = config.flows.iter().flat_map(flow::file_warnings).collect();
            for warning in &warnings {
                eprintln!("vigie-forward: warning: {warning}");
            }
            let wrong = match warnings.len() {
                0 => "nothing wrong".to_owned(),
                count => format!("no errors, {}", journal::counted(count as u64, "warning")),
            };
            println!("{}, {wrong}", journal::counted(config.flows.len() as u64, "flow"));
            0
        }
        Err(error) => complain(&error, instance::CODE_USAGE),
    }
}
