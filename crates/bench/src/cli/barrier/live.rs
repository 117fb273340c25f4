//! Barriers of members on this host, and on hosts that network namespaces stand for.

use std::time::Duration;

use clap::Args;

use super::Barrier;
use crate::barrier::{BarrierPlan, BarrierTransport, Laps, PEERS, Provider};
use crate::compute::{ParseDurationError, parse_duration};

#[derive(Debug, Args)]
#[group(conflicts_with = "simulate")]
#[command(next_help_heading = "Without --simulate")]
pub(super) struct Live {
    /// What the members are, and how they meet (udp and ether need root). Default: tasks, threads, shm.
    #[arg(long, value_delimiter = ',', value_name = "KIND,…")]
    over: Vec<BarrierTransport>,
    /// What carries the messages of `--over via`: shared memory, UDP at the loopback interface, or Ethernet between network
    /// namespaces (needs root).
    #[arg(long, value_delimiter = ',', value_name = "PROVIDER,…", default_value = "shm,udp,ether")]
    provider: Vec<Provider>,
    /// Compare the 4-ary tree with shuffle exchange, with receivers that poll and with receivers that sleep, for 16 members
    /// over UDP and raw Ethernet: a question that the paper leaves open (needs root).
    #[arg(long)]
    receivers: bool,
    /// Other systems to measure in the same run (openmpi with each of its algorithms); the table says how to install missing
    /// ones.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "PEER,…",
        value_parser = clap::builder::PossibleValuesParser::new(PEERS),
        default_value = "openmpi,mpich,std,hurdles,pthread,tokio"
    )]
    peers: Vec<String>,
    /// Computation of each member between two barriers; 0 for none.
    #[arg(long, value_name = "TIME", default_value = "30us", value_parser = pause)]
    dummy: Duration,
    /// Skew: each member computes longer by this than the member before it; 0 for none.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = pause)]
    skew: Duration,
    /// Time for each system and number of members.
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = parse_duration)]
    budget: Duration,
    /// Number of rounds, over which --budget is spread (from 1).
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
