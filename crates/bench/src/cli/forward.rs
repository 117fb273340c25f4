//! Forwarding, as a subcommand.

use std::path::PathBuf;

use clap::Args;

use super::options::Options;
use crate::error::BenchError;
use crate::forward::relay::RelayMeasurement;
use crate::forward::via::{ViaCarrier, ViaPlan};
use crate::forward::{InterfacesPlan, ModelPlan};
use crate::report::Plan;

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["model", "over", "relay", "live"])))]
pub(super) struct Forward {
    /// Calculate and simulate the paper's forwarding node, and compare with the paper. Nothing is measured.
    #[arg(long)]
    model: bool,
    /// Measure the paper's figures 4 to 6: source, forwarder and sink are processes that send messages over this provider.
    #[arg(long, value_name = "PROVIDER")]
    over: Option<ViaCarrier>,
    /// Measure relays of raw and framed streams (about a minute; framed ones need root, for links between network namespaces).
    #[arg(long)]
    relay: bool,
    /// Measure forwarding between two veth pairs: the rate of 64-byte frames and the added latency, by processes on the host
    /// (beside DPDK's testpmd, if it is installed) and by programs at the driver (about a minute; needs root, two cores and
    /// iproute2).
    #[arg(long)]
    live: bool,
    /// Number of rounds, over which figures are medians (from 1). Default: 3; with --over 1.
    #[arg(long, conflicts_with = "model", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Measure only these: `raw` or `framed` with --relay, and `throughput`, `echo`, `datagrams`, `tls` or `tls-echo`, which are measured only if
    /// they are named (they need `vigie-forward` beside this program, and two cores; three minutes); with --live, names of paths as in the results (host-xdp,
    /// testpmd-xdp, nic-route, …; `segments` is measured only if it is named: TCP through `vigie-forward`, which must be beside this
    /// program, and through the kernel, by iperf3, two minutes; `frames` likewise: frames of 64 bytes, with ethtool, two minutes; `operations`: what reloads, restarts and floods
    /// cost others, a minute).
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", conflicts_with_all = ["model", "over"])]
    only: Vec<String>,
    /// Draw figure 4 to this file, and figures 5 and 6 to two beside it, as SVG.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["relay", "live"])]
    plot: Option<PathBuf>,
    #[command(flatten)]
    messages: ViaPlan,
    #[command(flatten)]
    relays: RelayMeasurement,
}

impl Options for Forward {
    fn planned(self) -> Result<Box<dyn Plan>, BenchError> {
        let Self { plot, rounds, only, .. } = self;
        if let Some(carrier) = self.over {
            let rounds = rounds.unwrap_or(1);
            let mut plan = self.messages;
            (plan.carrier, plan.rounds, plan.plot) = (carrier, rounds, plot);
            return Ok(Box::new(plan));
        }
        let rounds = rounds.unwrap_or(3);
        if self.relay {
            let is_asked = |name| only.is_empty() || only.iter().any(|only| only == name);
            let (raw, framed) = (is_asked("raw"), is_asked("framed"));
            let names = ["throughput", "echo", "datagrams", "tls", "tls-echo"];
            let named = names.map(|name| only.iter().any(|only| only == name));
            let [throughput, echo, datagrams, tls, tls_echo] = named;
            if !raw && !framed && !named.contains(&true) {
                let known = "raw, framed, throughput, echo, datagrams, tls and tls-echo";
                return Err(BenchError::NothingNamed { known });
            }
            let mut plan = self.relays;
            (plan.raw, plan.framed, plan.rounds) = (raw, framed, rounds);
            (plan.throughput, plan.echo, plan.datagrams) = (throughput, echo, datagrams);
            (plan.tls, plan.tls_echo) = (tls, tls_echo);
            return Ok(Box::new(plan));
        }
        if self.live {
            return Ok(Box::new(InterfacesPlan::new(&only, rounds)));
        }
        Ok(Box::new(ModelPlan { plot }))
    }
}
