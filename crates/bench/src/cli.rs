//! The command line.

mod barrier;
mod cases;
mod datagrams;
mod forward;
mod http;
mod interrupts;
mod loads;
mod messages;
mod output;
mod slowdown;
mod soak;
mod timers;
mod waits;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use self::output::{Common, Output, duration, measure};
use clap::{Args, Parser, Subcommand};
use vigie_bench::BenchError;
use vigie_bench::compute::YieldEvery;
use vigie_bench::goals;
use vigie_bench::goals::{Area, Shortfall};
use vigie_bench::host::machine::Machine;
use vigie_bench::pending::PendingPlan;
use vigie_bench::reaction::ReactionPlan;
use vigie_bench::report::Report;
use vigie_bench::report::table::Table;
use vigie_bench::system::System;

/// Reproduces the measurements of vigie's papers, beside peers, and checks vigie's goals.
///
/// Server and client are separate processes on this machine; the client has real-time priority where
/// that is allowed. Exit status: 0 done, 1 a goal is missed, 2 the measurement failed.
#[derive(Debug, Parser)]
#[command(name = "vigie-bench", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Table 1: time until a message is echoed, beside N compute tasks (about a minute).
    Reaction(Reaction),
    /// Table 2: time of a task with many switches, beside K tasks that wait for messages (about 2 minutes).
    Pending(Pending),
    /// Reaction beside one task that sleeps and computes in turn.
    Periodic(cases::Periodic),
    /// Reaction of a service of which some requests compute, on old and on new connections.
    Service(cases::Service),
    /// Reaction on many connections that send by the clock, beside compute tasks.
    Crowd(cases::Crowd),
    /// The share of the processor that compute tasks keep beside foreign processes.
    Fairness(cases::Fairness),
    /// Reaction with a quota of one core, or another, in a control group (needs root).
    Container(cases::Container),
    /// Echo while nothing else runs: its time, and processor time per message.
    Echo(cases::Echo),
    /// Messages between two processes of this host, beside limits and peers (about 3 minutes).
    Pingpong(messages::PingPong),
    /// Datagrams between two processes, over UDP and links, beside plain UDP and the VI layer (about half a
    /// minute; as root, over a veth pair too).
    Datagrams(datagrams::Datagrams),
    /// Barriers of tasks, threads, processes and hosts, beside peers (about 2 minutes); or the paper's cluster,
    /// simulated.
    Barrier(barrier::Barrier),
    /// Forwarding: the paper's model beside its simulation (calculated, in a second); or live: messages through a
    /// node in the middle (a minute per 300 messages and cell), paths between interfaces, relays of streams.
    Forward(forward::Forward),
    /// A service on hyper, on vigie and on tokio: requests per second under `wrk`, and pings beside too much
    /// computation (a minute and a half).
    Http(http::Http),
    /// Random mixes of behaviour, drawn by seed, judged by what kernel threads make of them.
    Loads(loads::Loads),
    /// Tail slowdown against offered load, with service times that differ widely, beside an oracle (5 minutes).
    Slowdown(slowdown::Slowdown),
    /// Timers: the cost and lateness of a fired one, and an echo beside many (3 minutes).
    Timers(timers::Timers),
    /// An event beside tasks that wait in barriers, for messages and for datagrams (1 minute).
    Waits(waits::Waits),
    /// Sleeping calls that are cut short, for each source of signals; the cost of a signal (about 3
    /// minutes).
    Interrupts(interrupts::Interrupts),
    /// Long stress run of everything at once, with faults: checks everything, measures nothing.
    Soak(soak::Soak),
    /// Measures what the goals need, and shows goal and figure side by side.
    Goals(Goals),
    /// Shows the metrics of a running program that has opened a metrics socket.
    Watch(Watch),
}

#[derive(Debug, Args)]
struct Watch {
    /// The path that the program gave to `Runtime::builder().metrics_socket(…)`.
    socket: PathBuf,
    /// Time between two views.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    interval: Duration,
    /// Show one view and end.
    #[arg(long)]
    once: bool,
    /// Print the program's own lines of JSON.
    #[arg(long)]
    json: bool,
}

impl Watch {
    fn run(self) -> Result<ExitCode, BenchError> {
        let mut watch = vigie_bench::watch::Watch::new(self.socket);
        watch.interval = self.interval;
        watch.is_once = self.once;
        watch.is_json = self.json;
        watch.run()?;
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Debug, Args)]
struct Reaction {
    /// Numbers of compute tasks.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "0,1,2,5,10")]
    compute: Vec<u32>,
    /// How often each compute task yields: a duration, or `never`.
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    yield_every: YieldEvery,
    /// Messages per system and number of compute tasks, at most.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// Time per system and number of compute tasks, at most.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    budget: Duration,
    /// Turns in which samples and budget are spent.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Shortest pause between an echo and the next message.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = duration)]
    pause: Duration,
    /// Range over which the pauses spread. Default: a whole cycle of the compute tasks, from 3 ms to 1 s;
    /// a system whose echo does not wait for a task to yield gives more samples with less.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    spread: Option<Duration>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Pending {
    /// Numbers of waiting tasks; the first is what the others are compared with.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "K,…",
        default_value = "1,2,3,4,5,6,7,8,64,1000,10000",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    waiting: Vec<u32>,
    /// Steps of the task, with a yield after each.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Length of a step.
    #[arg(long, value_name = "TIME", default_value = "5us", value_parser = duration)]
    step: Duration,
    /// Turns; figures are medians over them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Goals {
    /// Check the goals of this area only: reaction, hogs, service, fairness, echo, pending, idle,
    /// costs, messages, remote, barrier-sim, barrier-local, barrier-net, forward-model, forward-via, forward-live,
    /// forward-nic, forward-relay, loads, http, slowdown, timers, waits or simulation.
    area: Option<Area>,
    #[command(flatten)]
    output: Output,
}

impl Cli {
    /// Runs the command and returns the exit status.
    pub(crate) fn run(self) -> Result<ExitCode, BenchError> {
        // It measures nothing, so it needs no words about this machine.
        if let Command::Watch(watch) = self.command {
            return watch.run();
        }
        let machine = Machine::probe();
        println!("{machine}");
        if machine.profile != "measure" {
            println!(
                "WARNING: not built for measuring; run with `cargo run --profile measure -p vigie-bench`"
            );
        }
        if machine.is_busy() {
            println!(
                "WARNING: other programs run here (load {}): means and ratios suffer",
                machine.load
            );
        }
        if let Some(output) = self.command.output() {
            output.prepare()?;
        }
        match self.command {
            Command::Reaction(command) => command.run(machine),
            Command::Pending(command) => command.run(machine),
            Command::Periodic(command) => command.run(machine),
            Command::Service(command) => command.run(machine),
            Command::Crowd(command) => command.run(machine),
            Command::Fairness(command) => command.run(machine),
            Command::Container(command) => command.run(machine),
            Command::Echo(command) => command.run(machine),
            Command::Pingpong(command) => command.run(machine),
            Command::Datagrams(command) => command.run(machine),
            Command::Barrier(command) => command.run(machine),
            Command::Forward(command) => command.run(machine),
            Command::Http(command) => command.run(machine),
            Command::Loads(command) => command.run(machine),
            Command::Slowdown(command) => command.run(machine),
            Command::Timers(command) => command.run(machine),
            Command::Waits(command) => command.run(machine),
            Command::Interrupts(command) => command.run(),
            Command::Soak(command) => Ok(command.run()),
            Command::Goals(command) => command.run(machine),
            Command::Watch(watch) => watch.run(),
        }
    }
}

impl Command {
    const fn output(&self) -> Option<&Output> {
        match self {
            Self::Reaction(command) => Some(&command.common.output),
            Self::Pending(command) => Some(&command.common.output),
            Self::Periodic(command) => Some(&command.amount.common.output),
            Self::Service(command) => Some(&command.amount.common.output),
            Self::Crowd(command) => Some(&command.amount.common.output),
            Self::Fairness(command) => Some(&command.amount.common.output),
            Self::Container(command) => Some(&command.amount.common.output),
            Self::Echo(command) => Some(&command.amount.common.output),
            Self::Pingpong(command) => Some(&command.output),
            Self::Datagrams(command) => Some(&command.output),
            Self::Barrier(command) => Some(&command.output),
            Self::Forward(command) => Some(&command.output),
            Self::Http(command) => Some(&command.amount.common.output),
            Self::Slowdown(command) => Some(&command.output),
            Self::Timers(command) => Some(command.output()),
            Self::Waits(command) => Some(command.output()),
            Self::Goals(command) => Some(&command.output),
            Self::Watch(_) | Self::Soak(_) | Self::Loads(_) | Self::Interrupts(_) => None,
        }
    }
}

impl Reaction {
    fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let own = [System::VigieNaive, System::VigieEnhanced, System::VigieBlocking, System::Vigie];
        let mut plan = ReactionPlan::new(self.common.systems(&own));
        plan.compute = self.compute;
        plan.yield_every = self.yield_every;
        plan.samples = self.samples;
        plan.budget = self.budget;
        plan.rounds = self.rounds;
        plan.pause = self.pause;
        plan.spread = self.spread;
        plan.workers = self.common.workers;
        plan.seed = self.common.output.seed;
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        println!("\n{}", plan.tables(&outcome.rows));
        self.common.output.finish(Report::new(machine, plan.seed, outcome), &[])?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Pending {
    fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let own = [System::VigieNaive, System::VigieEnhanced, System::Vigie];
        let mut plan = PendingPlan::new(self.common.systems(&own));
        plan.waiting = self.waiting;
        plan.steps = self.steps;
        plan.step = self.step;
        plan.rounds = self.rounds;
        plan.workers = self.common.workers;
        plan.seed = self.common.output.seed;
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        println!("\n{}", plan.tables(&outcome.rows));
        self.common.output.finish(Report::new(machine, plan.seed, outcome), &[])?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Goals {
    fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let (checked, outcome) = goals::check(self.area, self.output.seed)?;
        let headings = ["area", "case", "figure", "goal", "measured", "verdict"];
        let mut table = Table::with_text_columns(3, "\nGoals", headings.map(str::to_owned));
        for goal in &checked {
            table.row(goal.cells());
        }
        println!("{table}");
        let not_met: Vec<_> = checked.iter().filter(|goal| !goal.verdict.is_met()).collect();
        println!("{} of {} goals met", checked.len() - not_met.len(), checked.len());
        for goal in &not_met {
            println!("  again: {}", goal.goal.command);
            if let Some(known) = goal.shortfall() {
                let Shortfall { measured, reason, page, .. } = known;
                println!("    known ({measured}): {reason}\n    {page}");
            }
        }
        let report = Report::new(machine, self.output.seed, outcome);
        self.output.finish(report, &checked)?;
        Ok(if not_met.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }
}
