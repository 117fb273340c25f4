//! Messages between processes, as a subcommand.

use std::path::PathBuf;

use clap::Args;

use super::options::Options;
use crate::barrier::Provider;
use crate::error::BenchError;
use crate::messages::plan::PingPongPlan;
use crate::messages::remote::{self, remote_plan};
use crate::messages::{Carrier, CarrierKind, Measure, UnknownCarrier, carriers, named};
use crate::report::{Plan, Turns, by_default};

#[derive(Debug, Args)]
#[command(mut_arg("budget", by_default("300ms")), mut_arg("rounds", by_default("3")))]
pub(super) struct PingPong {
    /// What carries vigie's messages. With udp and ether, the ranks are in two network namespaces with a veth pair between
    /// them (needs root), and TCP and UDP sockets are measured there; do not combine shm with them.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "PROVIDER,…",
        default_value = "shm"
    )]
    provider: Vec<Provider>,
    /// Other systems to measure in the same run, after vigie's own rows and the limits; the table says how to install missing
    /// ones.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "PEER,…",
        value_parser = these,
        default_value = "openmpi,mpich,ucx,iceoryx2,tcp,uds"
    )]
    peers: Vec<Selection>,
    /// Measure only these systems, instead of vigie's rows, the limits and --peers.
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM,…", value_parser = these)]
    only: Vec<Selection>,
    /// The cases to measure. Default: all.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "CASE,…",
        value_parser = clap::builder::PossibleValuesParser::new(Measure::CASES)
    )]
    cases: Vec<String>,
    /// Sizes of the messages of the latency case, in bytes, up to 1 GiB. Default: those of the paper's Table 1 (via-lam), and
    /// 64 KiB to 4 MiB.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BYTES,…",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BYTES_MAX))
    )]
    sizes: Vec<u32>,
    /// Numbers of ranks of the cases ring, alltoall and manytoone, 2 to 256, on two cores.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N,…",
        default_value = "4,8,16,32",
        value_parser = clap::value_parser!(u32).range(2..=i64::from(RANKS_MAX))
    )]
    ranks: Vec<u32>,
    /// Other processes that compute beside the ranks, at ordinary priority and on any core, 0 to 16. They are there for all
    /// systems.
    #[arg(
        long,
        value_name = "N",
        default_value = "0",
        value_parser = clap::value_parser!(u32).range(0..=16)
    )]
    beside: u32,
    #[command(flatten)]
    turns: Turns,
    /// Draw latency by size to this file, and the ring case to a second one beside it, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Bytes of a message, at most.
const BYTES_MAX: u32 = 1 << 30;

/// Ranks on two cores, at most.
const RANKS_MAX: u32 = 256;

/// The systems that a word stands for.
type Selection = Vec<&'static Carrier>;

fn these(word: &str) -> Result<Selection, UnknownCarrier> {
    named(word)
}

impl Options for PingPong {
    fn planned(self) -> Result<Box<dyn Plan>, BenchError> {
        Ok(Box::new(self.plan()))
    }
}

impl PingPong {
    fn plan(self) -> PingPongPlan {
        let is_remote = !self.provider.contains(&Provider::Shm);
        let mut plan =
            if is_remote { remote_plan(self.remote(), &self.sizes) } else { self.local() };
        let is_asked = |measure: &Measure| {
            self.cases.is_empty() || self.cases.iter().any(|case| case == measure.case())
        };
        plan.measures.retain(is_asked);
        plan.crowds.retain(is_asked);
        if !is_remote {
            plan.ranks = self.ranks;
        }
        plan.budget = self.turns.budget;
        plan.rounds = self.turns.rounds;
        plan.beside = self.beside;
        plan.plot = self.plot;
        plan
    }

    /// What is measured within this host.
    fn local(&self) -> PingPongPlan {
        let mut plan = PingPongPlan::new(self.systems());
        let sizes = if self.sizes.is_empty() { PingPongPlan::sizes() } else { self.sizes.clone() };
        plan.measures = PingPongPlan::measures(&sizes);
        plan
    }

    /// vigie's own systems between namespaces and their peers, or what was asked for.
    fn remote(&self) -> Vec<&'static Carrier> {
        let is_wanted = |carrier: &&'static Carrier| {
            if !self.only.is_empty() {
                return self.only.iter().flatten().any(|one| one.name == carrier.name);
            }
            let is_of =
                |provider, family| self.provider.contains(&provider) && carrier.family == family;
            carrier.kind != CarrierKind::Vigie
                || is_of(Provider::Udp, "udp")
                || is_of(Provider::Ether, "ether")
        };
        remote::SYSTEMS.into_iter().filter(is_wanted).collect()
    }

    /// vigie's own systems, the limits and the peers, or what was asked for; each once.
    fn systems(&self) -> Vec<&'static Carrier> {
        let meant = |words: &[Selection], carrier: &&Carrier| {
            words.iter().flatten().any(|one| one.name == carrier.name)
        };
        let is_wanted = |carrier: &&'static Carrier| {
            if !self.only.is_empty() {
                return meant(&self.only, carrier);
            }
            carrier.kind != CarrierKind::Peer || meant(&self.peers, carrier)
        };
        carriers().into_iter().filter(is_wanted).collect()
    }
}
