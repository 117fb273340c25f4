//! Barriers of members on this host, and on hosts that network namespaces stand for.

use std::time::Duration;

use clap::Args;

use super::Barrier;
use crate::barrier::{BarrierPlan, BarrierTransport, Laps, PEERS, Provider};
use crate::compute::{ParseDurationError, parse_duration};

#[derive(Debug, Args)]
#[group(conflicts_with = "simulate")]
pub(super) struct Live {
    /// What the members are: tasks on two workers, threads, processes over shared memory (shm), or
    /// processes in network namespaces on a bridge over UDP with multicast (udp) or raw Ethernet
    /// (ether), which needs root, or processes over messages of via (via). Default: tasks, threads and shm.
    #[arg(long, value_delimiter = ',', value_name = "KIND,…")]
    over: Vec<BarrierTransport>,
    /// What carries the messages of `--over via`: shared memory, UDP on the loopback interface, or Ethernet in network
    /// namespaces on a bridge, which needs root.
    #[arg(long, value_delimiter = ',', value_name = "PROVIDER,…", default_value = "shm,udp,ether")]
    provider: Vec<Provider>,
    /// The question that the paper leaves open: the 4-ary tree and shuffle exchange, with receivers that poll (a small o_r)
    /// and with receivers that sleep, for 16 members over UDP and raw Ethernet.
    #[arg(long)]
    receivers: bool,
    /// Peers to measure in the same run: openmpi (with each of its algorithms), mpich, std, hurdles,
    /// pthread, tokio; one that is not on this machine is skipped, and the table says how to get it.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "PEER,…",
        value_parser = clap::builder::PossibleValuesParser::new(PEERS),
        default_value = "openmpi,mpich,std,hurdles,pthread,tokio"
    )]
    peers: Vec<String>,
    /// Dummy loop between two barriers; 0 for barriers that follow on each other at once.
    #[arg(long, value_name = "TIME", default_value = "30us", value_parser = pause)]
    dummy: Duration,
    /// Skewed arrival: each member's loop is longer by this much than that of the member before.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = pause)]
    skew: Duration,
    /// Time per system and number of members.
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = parse_duration)]
    budget: Duration,
    /// Turns in which the budget is spent.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// A duration, or none at all.
fn pause(text: &str) -> Result<Duration, ParseDurationError> {
    if text == "0" { Ok(Duration::ZERO) } else { parse_duration(text) }
}

pub(super) fn plan(barrier: Barrier) -> BarrierPlan {
    let members = barrier.members(if barrier.live.receivers { &[16] } else { &[2, 8, 32] });
    let Barrier { live, late, algorithm, .. } = barrier;
    let laps = members.into_iter().map(|members| {
        let mut laps = Laps::new(members);
        laps.budget = live.budget;
        laps.dummy = live.dummy;
        laps.skew = live.skew;
        laps.late = late.unwrap_or_default();
        laps
    });
    let over = match live.over {
        over if !over.is_empty() => over,
        _ if live.receivers => BarrierTransport::NETWORK.to_vec(),
        _ => BarrierTransport::LOCAL.to_vec(),
    };
    let mut plan = BarrierPlan::new(over, laps.collect());
    plan.peers = live.peers;
    plan.providers = live.provider;
    plan.receivers = live.receivers;
    plan.rounds = live.rounds;
    plan.algorithms = algorithm.iter().map(ToString::to_string).collect();
    plan
}
