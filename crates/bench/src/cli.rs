//! The command line.

mod barrier;
mod datagrams;
mod forward;
mod messages;
mod options;
mod output;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use self::options::Options;
use self::output::Output;
use crate::cases::container::ContainerPlan;
use crate::cases::crowd::CrowdPlan;
use crate::cases::echo::EchoPlan;
use crate::cases::fairness::FairnessPlan;
use crate::cases::periodic::PeriodicPlan;
use crate::cases::service::ServicePlan;
use crate::drawn::DrawnPlan;
use crate::error::BenchError;
use crate::files::FilesPlan;
use crate::goals::{self, Area};
use crate::host::Machine;
use crate::http::HttpPlan;
use crate::idle::IdlePlan;
use crate::interrupts::{ForeignCallsPlan, InterruptsPlan};
use crate::loads::LoadsPlan;
use crate::pending::PendingPlan;
use crate::reaction::ReactionPlan;
use crate::report::{Plan, Report, Table, measure};
use crate::repository::RepositoryPlan;
use crate::slowdown::SlowdownPlan;
use crate::soak::SoakPlan;
use crate::starts::StartsPlan;
use crate::switches::SwitchesPlan;
use crate::timers::TimersPlan;
use crate::virtual_time::VirtualTimePlan;
use crate::waits::WaitsPlan;
use crate::watch::{Dump, Watch};
use crate::worlds::WorldsPlan;

/// Measures vigie beside other systems (peers), checks vigie's goals, and shows running programs.
///
/// Server and client are separate processes on this machine; the client has real-time priority where that is allowed.
/// Reaction is the time from a message to its echo; Table 1 and Table 2 are those of the paper (docs/papers.md, bouge02).
/// Times have a unit: ns, us, ms or s. Exit code: 0 done, 1 a goal is missed, 2 the measurement failed.
#[derive(Debug, Parser)]
#[command(name = "vigie-bench", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "a program has one of them")]
enum Command {
    #[command(flatten)]
    Measurement(Measurement),
    /// Random mixes of tasks, drawn by seed, on vigie and tokio; the bounds follow the same mix on kernel threads (5 minutes).
    Loads(LoadsPlan),
    /// Which sources of signals end sleeping system calls early, and what a signal costs (about 3 minutes).
    Interrupts(Interrupts),
    /// Stress run of all parts at once, with injected faults: checks results, measures nothing (a minute).
    Soak(SoakPlan),
    /// Measures what vigie's goals need, and shows each goal beside its figure; exit code 1 if one is missed.
    Goals(Goals),
    /// Shows the metrics of a running program that was built with `metrics_socket`.
    Watch(Watch),
    /// Shows all tasks of such a program: state, time in that state, and the event for which each waits.
    Dump(Dump),
}

/// Defines the commands that carry out a plan and report its rows. Each has the type of its options, from which its plan
/// is made.
macro_rules! measurements {
    ($($(#[$attribute:meta])* $name:ident($options:ty),)*) => {
        /// The commands that carry out a plan and report its rows.
        #[derive(Debug, Subcommand)]
        enum Measurement {
            $($(#[$attribute])* $name(Measured<$options>),)*
        }

        impl Measurement {
            fn split(self) -> Result<(Box<dyn Plan>, Output), BenchError> {
                Ok(match self {
                    $(Self::$name(Measured { plan, output }) => (plan.planned()?, output),)*
                })
            }
        }
    };
}

measurements! {
    /// Table 1: reaction beside N tasks that compute (about a minute).
    Reaction(ReactionPlan),
    /// Table 2: run time of a task that yields often, beside K tasks that wait for messages (about 2 minutes).
    Pending(PendingPlan),
    /// Reaction beside one task that alternately sleeps and computes.
    Periodic(PeriodicPlan),
    /// Reaction of a service some of whose requests compute, on open and on new connections.
    Service(ServicePlan),
    /// Reaction on many connections, each of which sends at fixed times, beside tasks that compute.
    Crowd(CrowdPlan),
    /// Processor time that tasks get beside other processes that compute.
    Fairness(FairnessPlan),
    /// Reaction in a control group with a processor quota, beside tasks that compute (needs root).
    Container(ContainerPlan),
    /// Echo on an idle machine: time and processor time per message.
    Echo(EchoPlan),
    /// Messages between processes of this host, beside the machine's limits and other message systems (about 3 minutes).
    Pingpong(messages::PingPong),
    /// Datagrams between two processes, over UDP and raw Ethernet, beside UDP sockets and the VI layer (half a minute; over
    /// a veth pair only as root).
    Datagrams(datagrams::Datagrams),
    /// Barriers of tasks, threads, processes and hosts, beside peers (about 2 minutes); with --simulate, the paper's
    /// cluster in simulation.
    Barrier(barrier::Barrier),
    /// Forwarding: the paper's model and its simulation (a second), or a measurement: messages through a forwarding process
    /// (a minute for each 300 messages and row), frames between interfaces, relays of streams.
    Forward(forward::Forward),
    /// Cached files: reads at random offsets, and appends with fsync, on vigie and on tokio (a minute and a half).
    Files(FilesPlan),
    /// Run time of empty jobs of 2 to 64 ranks, beside Open MPI and MPICH (a minute and a half).
    Starts(StartsPlan),
    /// A hyper service on vigie and on tokio: requests per second under `wrk`, and times of pings beside more computation
    /// than the cores can do (a minute and a half).
    Http(HttpPlan),
    /// Slowdown of requests of widely differing sizes, by offered load, beside a simulated optimal scheduler (5 minutes).
    Slowdown(SlowdownPlan),
    /// Timers: processor time and lateness of each, and an echo beside many timers (3 minutes).
    Timers(TimersPlan),
    /// Reaction beside tasks that wait in barriers, for messages and for datagrams (a minute).
    Waits(WaitsPlan),
    /// Random programs of messages and attacks on them, by the tests that draw them, for the goals (ten minutes; in a checkout).
    #[command(hide = true)]
    Drawn(DrawnPlan),
    /// The activity of a server that is left alone, for the goals.
    #[command(hide = true)]
    Idle(IdlePlan),
    /// Allocations and system calls of task switches, for the goals.
    #[command(hide = true)]
    Switches(SwitchesPlan),
    /// The scheduler in virtual time, for the goals.
    #[command(hide = true)]
    Simulation(VirtualTimePlan),
    /// The size of the repository, and the time of a first build and of all tests, for the goals.
    #[command(hide = true)]
    Repository(RepositoryPlan),
    /// What simulated worlds cost, for the goals.
    #[command(hide = true)]
    Worlds(WorldsPlan),
}

/// What to measure, and where the results go.
#[derive(Debug, Args)]
struct Measured<P: Args> {
    #[command(flatten)]
    plan: P,
    #[command(flatten, next_help_heading = "Results")]
    output: Output,
}

impl Measurement {
    fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let (plan, output) = self.split()?;
        output.prepare()?;
        let outcome = measure(&*plan, output.seed)?;
        println!("\n{}", plan.tables(&outcome.rows));
        plan.draw(&outcome.rows)?;
        output.finish(Report::new(machine, output.seed, outcome), &[])?;
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Debug, Args)]
struct Interrupts {
    #[command(flatten)]
    sources: InterruptsPlan,
    #[command(flatten)]
    foreign: ForeignCallsPlan,
}

#[derive(Debug, Args)]
struct Goals {
    /// The area whose goals are checked. Default: all areas.
    area: Option<Area>,
    #[command(flatten)]
    output: Output,
}

impl Cli {
    /// Runs the command and returns the exit status.
    ///
    /// # Errors
    /// Those of the measurement.
    pub fn run(self) -> Result<ExitCode, BenchError> {
        // It measures nothing, so it needs no words about this machine.
        let shown = match &self.command {
            Command::Watch(watch) => Some(watch.run()),
            Command::Dump(dump) => Some(dump.run()),
            _ => None,
        };
        if let Some(shown) = shown {
            return Ok(shown.map(|()| ExitCode::SUCCESS)?);
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
        match self.command {
            Command::Measurement(measurement) => measurement.run(machine),
            Command::Loads(plan) => run_loads(&plan, machine),
            Command::Interrupts(Interrupts { sources, foreign }) => {
                if foreign.is_asked() {
                    let outcome = measure(&foreign, sources.seed)?;
                    println!("\n{}", foreign.tables(&outcome.rows));
                } else {
                    println!("\n{}", sources.run());
                }
                Ok(ExitCode::SUCCESS)
            }
            Command::Soak(plan) => Ok(status(plan.run_and_show())),
            Command::Goals(goals) => goals.run(machine),
            Command::Watch(_) | Command::Dump(_) => unreachable!("it has run"),
        }
    }
}

fn status(is_fine: bool) -> ExitCode {
    if is_fine { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn run_loads(plan: &LoadsPlan, machine: Machine) -> Result<ExitCode, BenchError> {
    let mixes = plan.mixes(0)?;
    if plan.dry_run {
        mixes.iter().for_each(|mix| println!("{mix}"));
        return Ok(ExitCode::SUCCESS);
    }
    let seed = mixes.first().map_or(0, |mix| mix.seed);
    let outcome = plan.run_and_show(&mixes)?;
    let output = Output { json: plan.json.clone(), seed };
    output.finish(Report::new(machine, seed, outcome), &[])?;
    Ok(ExitCode::SUCCESS)
}

impl Goals {
    fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        self.output.prepare()?;
        let seed = self.output.seed;
        let run = &mut |words: &str| measure(&*plan_of(words)?, seed);
        let (checked, outcome) = goals::check(self.area, run)?;
        let headings = ["area", "case", "figure", "goal", "measured", "verdict"];
        let mut table = Table::with_text_columns(3, "\nGoals", headings.map(str::to_owned));
        for goal in &checked {
            table.row(goal.cells());
        }
        println!("{table}");
        let not_met: Vec<_> = checked.iter().filter(|goal| !goal.verdict.is_met()).collect();
        println!("{} of {} goals met", checked.len() - not_met.len(), checked.len());
        for goal in &not_met {
            let [_, case, figure, ..] = goal.cells();
            println!("  {case}, {figure}");
            println!("    again: {}", goal.goal.command);
            if let Some(reason) = goal.unmeasured_because() {
                println!("    not measured: {reason}");
            }
            if let Some((known, reason)) = goal.shortfall() {
                println!("    known ({}): {}\n    {}", known.measured, reason.text, reason.page);
            }
        }
        let is_met = not_met.is_empty();
        self.output.finish(Report::new(machine, seed, outcome), &checked)?;
        Ok(status(is_met))
    }
}

/// Returns the plan of a command line, given by the words behind the program's name.
fn plan_of(words: &str) -> Result<Box<dyn Plan>, BenchError> {
    let words = ["vigie-bench"].into_iter().chain(words.split_whitespace());
    let cli = Cli::try_parse_from(words);
    match cli.expect("invariant: a test parses the command lines of all goals").command {
        Command::Measurement(measurement) => Ok(measurement.split()?.0),
        Command::Loads(plan) => Ok(Box::new(plan)),
        Command::Interrupts(Interrupts { foreign, .. }) => Ok(Box::new(foreign)),
        Command::Soak(_) | Command::Goals(_) | Command::Watch(_) | Command::Dump(_) => {
            panic!("invariant: goals are about what is measured")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the command line is consistent, and each run of the goals is a plan with cases. Method: all of them.
    #[test]
    fn the_runs_of_all_goals_are_plans() {
        use clap::CommandFactory as _;

        Cli::command().debug_assert();
        for words in goals::all_runs() {
            let plan = plan_of(words).expect("a plan");
            assert!(plan.cases() > 0, "{words}");
        }
    }

    /// Goal: the model of forwarding reaches its goals, which measure nothing: so its rows have the names that goals give.
    /// Method: the whole calculation.
    #[test]
    fn the_model_of_forwarding_reaches_its_goals() {
        let run = &mut |words: &str| measure(&*plan_of(words)?, 0);
        let (checked, _) =
            goals::check(Some(Area::ForwardModel), run).expect("nothing is measured");
        assert_eq!(checked.len(), 7);
        for goal in checked {
            assert!(goal.verdict.is_met(), "{goal:?}");
        }
    }

    /// Goal: each relay is measured where it can do what is measured: socat up to 256 streams, TLS only by those that end it. Method:
    /// the numbers of cases.
    #[test]
    fn relays_are_measured_where_they_can_be() {
        for (words, cases) in [
            // Without a relay, vigie and socat; the first two.
            ("throughput --peers socat --connections 256,257", 5),
            // vigie, HAProxy and nginx, twice.
            ("tls-echo", 6),
        ] {
            let plan =
                plan_of(&format!("forward --relay --rounds 1 --only {words}")).expect("a plan");
            assert_eq!(plan.cases(), cases, "{words}");
        }
    }

    /// Goal: options of one way to measure are refused with another, and defaults of others are in no way. Method: a
    /// table.
    #[test]
    fn options_belong_to_their_ways() {
        for (words, is_accepted) in [
            ("barrier --over tasks --skew 5us", true),
            ("barrier --simulate --loss 0.1", true),
            ("barrier --simulate --over tasks", false),
            ("barrier --simulate --rounds 1", false),
            ("barrier --loss 0.1", false),
            ("forward --over shm --window 2", true),
            ("forward --relay --engines", true),
        ] {
            let words_of_all = ["vigie-bench"].into_iter().chain(words.split_whitespace());
            assert_eq!(Cli::try_parse_from(words_of_all).is_ok(), is_accepted, "{words}");
        }
    }
}
