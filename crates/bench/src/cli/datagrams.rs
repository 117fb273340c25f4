//! Datagrams between processes, as a subcommand.

use clap::Args;

use super::options::Options;
use crate::error::BenchError;
use crate::messages::datagram::{BYTES_MAX, SYSTEMS, datagram_carrier, datagram_plan};
use crate::messages::plan::PingPongPlan;
use crate::messages::{Carrier, UnknownCarrier};
use crate::report::{Plan, Turns, by_default};

#[derive(Debug, Args)]
#[command(mut_arg("budget", by_default("150ms")), mut_arg("rounds", by_default("3")))]
pub(super) struct Datagrams {
    /// Measure only these systems. Default: all; those over a veth pair are skipped unless you may make network namespaces.
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM,…", value_parser = this)]
    only: Vec<&'static Carrier>,
    /// Sizes of datagrams in bytes. Default: from 1 byte to a full packet.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BYTES,…",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BYTES_MAX))
    )]
    sizes: Vec<u32>,
    #[command(flatten)]
    turns: Turns,
}

fn this(word: &str) -> Result<&'static Carrier, UnknownCarrier> {
    datagram_carrier(word)
}

impl Options for Datagrams {
    fn planned(self) -> Result<Box<dyn Plan>, BenchError> {
        Ok(Box::new(self.plan()))
    }
}

impl Datagrams {
    fn plan(self) -> PingPongPlan {
        let carriers = if self.only.is_empty() { SYSTEMS.to_vec() } else { self.only };
        let mut plan = datagram_plan(carriers, &self.sizes);
        plan.budget = self.turns.budget;
        plan.rounds = self.turns.rounds;
        plan
    }
}
