//! Forwarding, as a subcommand.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use vigie_bench::BenchError;
use vigie_bench::forward::relay::{self, RelayMeasurement, RelayPeer};
use vigie_bench::forward::via::{self, ViaCarrier, ViaPlan};
use vigie_bench::forward::{self, LivePlan, NicPlan};
use vigie_bench::host::machine::Machine;
use vigie_bench::report::{Outcome, Report};

use super::output::{Output, draw, duration, measure};

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["model", "over", "relay", "live"])))]
pub(super) struct Forward {
    /// Calculate and simulate the paper's node, and compare with the paper. Nothing is measured.
    #[arg(long)]
    model: bool,
    /// Measure figures 4 to 6 live: source, forwarder and sink as processes, messages over this provider.
    #[arg(long, value_name = "PROVIDER")]
    over: Option<ForwardTransport>,
    /// Measure relays: raw and framed streams (about a minute; the links between namespaces need root).
    #[arg(long)]
    relay: bool,
    /// Measure the host paths between two veth pairs: rate of 64-byte frames, and what is added to their time
    /// (about a minute; needs root, two cores and iproute2). DPDK's testpmd is a peer if it is installed. And the path
    /// by the interface: programs at the driver between three network namespaces, fed with live XDP frames.
    #[arg(long)]
    live: bool,
    /// Turns, over which figures are medians. Default: 3; over a provider 1.
    #[arg(long, conflicts_with = "model", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Measure these only: raw or framed relays, or live paths by their names in the results (host-xdp, testpmd-xdp,
    /// nic-route, …).
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", conflicts_with_all = ["model", "over"])]
    only: Vec<String>,
    #[command(flatten)]
    messages: Messages,
    #[command(flatten)]
    relays: Relays,
    /// Draw figure 4 to this file, and figures 5 and 6 to two beside it, as SVG.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["relay", "live"])]
    plot: Option<PathBuf>,
    #[command(flatten)]
    pub(super) output: Output,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Messages (--over)")]
struct Messages {
    /// Messages of a run, before the final acknowledgement.
    #[arg(long, default_value_t = 10_000, requires = "over", value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// Messages under way at once.
    #[arg(long, default_value_t = 1, requires = "over", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    window: u32,
    /// Bytes per second of each link, paced by the sending node; 0: as fast as the machine allows.
    #[arg(long, default_value_t = 20_000_000, requires = "over")]
    rate: u64,
    /// Nodes look for a while before they sleep, where that pays: the strategy for low latency.
    #[arg(long, requires = "over")]
    spin: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Relays (--relay)")]
struct Relays {
    /// Relays of others to measure in the same run.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "RELAY,…",
        default_value = "socat,haproxy,nginx,tokio",
        requires = "relay"
    )]
    peers: Vec<RelayPeer>,
    /// Measure vigie's engines, copy and splice, one by one too.
    #[arg(long, requires = "relay")]
    engines: bool,
    /// Numbers of connections.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "1,16", requires = "relay", value_parser = clap::value_parser!(u32).range(1..))]
    connections: Vec<u32>,
    /// Time of one stream.
    #[arg(long, value_name = "TIME", default_value = "700ms", value_parser = duration, requires = "relay")]
    budget: Duration,
}

/// The carriers of messages.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ForwardTransport {
    /// UDP over the loopback interface.
    #[value(alias = "via")]
    Udp,
    /// Shared memory.
    Shm,
    /// UDP between network namespaces on a bridge, one for each node (needs root).
    UdpNet,
    /// Frames of Ethernet between them (needs root).
    Ether,
}

impl Forward {
    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let outcome = match self.over {
            Some(over) => self.through_via(over)?,
            None if self.relay => self.relays()?,
            None if self.live => self.between_interfaces()?,
            None => {
                let outcome = forward::model()?;
                println!("\n{}", forward::tables(&outcome.rows));
                outcome
            }
        };
        if let Some(path) = &self.plot {
            draw(path, forward::by_size(&outcome.rows))?;
            for (bytes, extension) in [(1024, "figure5.svg"), (8192, "figure6.svg")] {
                draw(&path.with_extension(extension), forward::by_delta(&outcome.rows, bytes))?;
            }
        }
        self.output.finish(Report::new(machine, self.output.seed, outcome), &[])?;
        Ok(ExitCode::SUCCESS)
    }

    fn through_via(&self, over: ForwardTransport) -> Result<Outcome, BenchError> {
        let carrier = match over {
            ForwardTransport::Udp => ViaCarrier::Udp,
            ForwardTransport::Shm => ViaCarrier::Shm,
            ForwardTransport::UdpNet => ViaCarrier::UdpNet,
            ForwardTransport::Ether => ViaCarrier::Ether,
        };
        let Messages { messages, window, rate, spin } = self.messages;
        let mut plan = ViaPlan::new(carrier);
        (plan.messages, plan.rounds) = (messages, self.rounds.unwrap_or(1));
        (plan.window, plan.pace, plan.spins) = (window, rate, spin);
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        println!("\n{}", via::tables(&outcome.rows));
        Ok(outcome)
    }

    fn relays(&self) -> Result<Outcome, BenchError> {
        let mut plan = RelayMeasurement::new(self.relays.peers.clone());
        plan.engines = self.relays.engines;
        let measures = |name| self.only.is_empty() || self.only.iter().any(|only| only == name);
        (plan.raw, plan.framed) = (measures("raw"), measures("framed"));
        if !plan.raw && !plan.framed {
            return Err(BenchError::NothingNamed { known: "raw and framed" });
        }
        plan.connections.clone_from(&self.relays.connections);
        plan.budget = self.relays.budget;
        plan.rounds = self.rounds.unwrap_or(3);
        let outcome = measure(1, |progress| plan.run(progress))?;
        println!("\n{}", relay::tables(&outcome.rows));
        Ok(outcome)
    }

    fn between_interfaces(&self) -> Result<Outcome, BenchError> {
        let mut plan = LivePlan::default();
        plan.rounds = self.rounds.unwrap_or(3);
        plan.only.clone_from(&self.only);
        let mut by_nic = NicPlan::default();
        // Its turns are short.
        by_nic.rounds = 2 * plan.rounds;
        by_nic.only = self.only.iter().filter(|name| by_nic.has(name)).cloned().collect();
        plan.only.retain(|name| !by_nic.has(name));
        let mut found: Option<Outcome> = None;
        if self.only.is_empty() || !plan.only.is_empty() {
            let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
            println!("\n{}", forward::live_tables(&outcome.rows));
            found = Some(outcome);
        }
        if self.only.is_empty() || !by_nic.only.is_empty() {
            let outcome = measure(by_nic.cases(), |progress| by_nic.run(progress))?;
            println!("\n{}", forward::nic_tables(&outcome.rows));
            match &mut found {
                Some(found) => found.rows.extend(outcome.rows),
                None => found = Some(outcome),
            }
        }
        found.ok_or(BenchError::NothingNamed { known: "what the results name" })
    }
}
