//! Groups of processes, vigie's: over UDP and raw Ethernet in network namespaces on a bridge, and over messages of `via`.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vigie_barrier::Rank;
use vigie_barrier::net::{MeasureError, MulticastState, NetBarrier, WaitMode};
use vigie_runtime::{Flavor, Runtime};
use vigie_via::datagram::UdpConfig;
use vigie_via::link::{BackEnd, Link};

use super::bridge::{Bridge, address};
use super::lap::{GroupCosts, Laps, MemberResult, run_async};
use super::processes::SharedStopCount;
use super::transport_costs::TransportCosts;
use super::via::{self, Connections, Provider};
use crate::error::{BenchError, Failure};
use crate::host::{Arena, CONTROL_BYTES, INTERFACE, SharedFile, Usage, enter};
use crate::messages::RankContext;
use crate::messages::ranks::RunBootstrap;
use crate::messages::virtual_interface::ADDRESS_BYTES;
use crate::process::{Child, Role, print_result};

/// The time for forming a group and for the barriers under way, beside the budget.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Where members meet, over TCP.
const BOOTSTRAP_PORT: u16 = 4_747;

/// The transport of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Medium {
    Udp,
    /// UDP with multicast on the loopback interface, as for peers without namespaces.
    Loopback,
    Ether,
    Via(Provider),
}

impl Medium {
    /// Whether each member has a network namespace of its own.
    pub(super) const fn is_bridged(self) -> bool {
        !matches!(self, Self::Loopback | Self::Via(Provider::Shm | Provider::Udp))
    }

    /// The address of a member, and of the meeting at the first one.
    fn address(self, rank: u32) -> Ipv4Addr {
        match self {
            Self::Loopback => Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 78, 0, 1)) + rank),
            Self::Udp | Self::Ether | Self::Via(_) => address(rank),
        }
    }
}

/// How members wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Receivers {
    /// They poll for a while, then sleep.
    Adaptive,
    Polling,
    Sleeping,
}

/// How the algorithm is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Named(&'static str),
    /// By typical costs.
    Planned,
    /// By costs that the members measure first.
    Measured,
}

/// The description of a group over a network.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetSetup {
    pub(super) medium: Medium,
    pub(super) choice: Choice,
    pub(super) receivers: Receivers,
}

/// The plan of one member's process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NetPlan {
    laps: Laps,
    rank: u32,
    medium: Medium,
    receivers: Receivers,
    /// None: the planner's.
    algorithm: Option<String>,
    is_measured: bool,
    /// None: its parent's.
    namespace: Option<PathBuf>,
    memory: PathBuf,
    /// For members that meet over messages.
    context: Option<RankContext>,
}

impl Role for NetPlan {
    const NAME: &'static str = "member";
    const KEY: &'static str = "network member";
}

/// Starts a process for each member.
pub(super) fn measure(
    laps: Laps,
    setting: NetSetup,
    bridge: Option<&Bridge>,
) -> Result<GroupCosts, BenchError> {
    let failed = |failure| BenchError::Failed { role: "member", failure };
    let NetSetup { medium, choice, receivers } = setting;
    let memory = SharedFile::create(CONTROL_BYTES).map_err(failed)?;
    let bootstrap = RunBootstrap::new(ADDRESS_BYTES, laps.members).map_err(failed)?;
    let mut children = Vec::new();
    for rank in 0..laps.members {
        let algorithm = match choice {
            Choice::Named(name) => Some(name.to_owned()),
            Choice::Planned | Choice::Measured => None,
        };
        children.push(Child::start(&NetPlan {
            laps,
            rank,
            medium,
            receivers,
            algorithm,
            is_measured: choice == Choice::Measured,
            namespace: bridge.and_then(|bridge| bridge.path(rank)),
            memory: memory.path(),
            context: matches!(medium, Medium::Via(_)).then(|| bootstrap.context(rank, Vec::new())),
        })?);
    }
    GroupCosts::of_processes(&mut children, TIMEOUT + laps.budget * 4)
}

/// Runs one member in this process.
pub(crate) fn play(plan: &NetPlan) -> Result<(), Failure> {
    let stop_count = SharedStopCount(Arena::open(&plan.memory)?);
    if let Some(namespace) = &plan.namespace {
        enter(namespace)?;
    }
    // Its scheduler is what sleeps on the barrier: there is no other thread to wake up.
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build();
    runtime.map_err(Failure::runtime)?.block_on(async {
        let (mut barrier, _connections) = form(plan).await?;
        if let MulticastState::Unavailable { why } = barrier.multicast() {
            return Err(Failure::runtime(format!("multicast does not work: {why}")));
        }
        if plan.is_measured {
            barrier.replan().await.map_err(Failure::runtime)?;
        }
        let before = Usage::of_this_process();
        let wait = async || barrier.wait().await.map(drop);
        let costs = run_async(plan.laps, plan.rank, &stop_count, wait).await;
        let costs = costs.map_err(Failure::runtime)?;
        let used = Usage::of_this_process().since(before);
        let found = find(&mut barrier).await.filter(|_| plan.rank == 0);
        barrier.leave(Duration::from_secs(2)).await.map_err(Failure::runtime)?;
        print_result(&MemberResult { costs, used, found });
        Ok(())
    })
}

/// Forms the group, and returns the objects that must live as long.
async fn form(plan: &NetPlan) -> Result<(NetBarrier, Option<Connections>), Failure> {
    let mut builder =
        NetBarrier::builder().formation_timeout(TIMEOUT).wait_mode(match plan.receivers {
            Receivers::Adaptive => WaitMode::Adaptive,
            Receivers::Polling => WaitMode::Polling,
            Receivers::Sleeping => WaitMode::Sleeping,
        });
    if let Some(name) = &plan.algorithm {
        builder = builder.algorithm(name.parse().map_err(Failure::runtime)?);
    }
    builder = match plan.medium {
        Medium::Udp | Medium::Loopback => {
            builder.network(UdpConfig::new(plan.medium.address(plan.rank).into()))
        }
        Medium::Ether => {
            let link = Link::builder(INTERFACE).back_end(BackEnd::PacketRings).bypass_queue();
            builder.network(link.open().map_err(Failure::runtime)?)
        }
        Medium::Via(provider) => {
            let context =
                plan.context.as_ref().ok_or_else(|| Failure::runtime("it has no rank context"))?;
            let (barrier, connections) = via::form(builder, provider, context).await?;
            return Ok((barrier, Some(connections)));
        }
    };
    let address = (plan.medium.address(0), BOOTSTRAP_PORT).into();
    let bootstrap = builder.form_at(address, Rank(plan.rank), plan.laps.members);
    Ok((bootstrap.await.map_err(Failure::runtime)?, None))
}

/// How often a measurement is tried. Members of a busy machine may answer too late.
const TRIES: u32 = 3;

/// Measures what the transport costs, after the barriers that count. A transport that cannot be measured has no costs,
/// and standard error says why.
async fn find(barrier: &mut NetBarrier) -> Option<TransportCosts> {
    let mut tries = 1;
    let measured = loop {
        match barrier.measure().await {
            // All members get the same error, so that all try again.
            Err(MeasureError::Unanswered) if tries < TRIES => tries += 1,
            measured => break measured,
        }
    };
    let measured = measured.inspect_err(|error| eprintln!("no costs: {error}")).ok()?;
    Some(TransportCosts::new(&measured, &barrier.report().ok()?))
}
