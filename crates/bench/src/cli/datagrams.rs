//! Datagrams between processes, as a subcommand.

use std::time::Duration;

use clap::Args;

use crate::compute::parse_duration;
use crate::messages::datagram::{BYTES_MAX, datagram_carrier, datagram_carriers, datagram_plan};
use crate::messages::plan::PingPongPlan;
use crate::messages::{Carrier, UnknownCarrier};

#[derive(Debug, Args)]
pub(super) struct Datagrams {
    /// Measure these systems only. Default: all; those over a veth pair need the right to make network
    /// namespaces, and are skipped without it.
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM,…", value_parser = this)]
    only: Vec<&'static dyn Carrier>,
    /// Sizes of datagrams in bytes. Default: from 1 to as many as fit into a packet.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BYTES,…",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BYTES_MAX))
    )]
    sizes: Vec<u32>,
    /// Time per system and measure.
    #[arg(long, value_name = "TIME", default_value = "150ms", value_parser = parse_duration)]
    budget: Duration,
    /// Turns in which the budget is spent.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

fn this(word: &str) -> Result<&'static dyn Carrier, UnknownCarrier> {
    datagram_carrier(word)
}

impl Datagrams {
    pub(super) fn plan(self) -> PingPongPlan {
        let carriers = if self.only.is_empty() { datagram_carriers() } else { self.only };
        let mut plan = datagram_plan(carriers, &self.sizes);
        plan.budget = self.budget;
        plan.rounds = self.rounds;
        plan
    }
}
