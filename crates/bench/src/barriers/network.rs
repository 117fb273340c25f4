//! Groups of processes in network namespaces on a bridge: vigie's, over UDP and raw Ethernet.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};
use vigie_barrier::Rank;
use vigie_barrier::net::{MulticastState, NetBarrier};
use vigie_runtime::{Flavor, Runtime};
use vigie_via::datagram::UdpSettings;
use vigie_via::link::{BackEnd, Link};

use super::bridge::{Bridge, address};
use super::lap::{GroupCosts, Laps, Member};
use super::processes::Board;
use crate::child::{Child, Message, Role};
use crate::error::{BenchError, Failure};
use crate::messages::arena::{Arena, BOARD_BYTES, SharedFile};
use crate::messages::datagram::namespaces::INTERFACE;
use crate::usage::Usage;

/// What forming a group and the barriers under way may take, beside the budget.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where members meet, over TCP.
const MEETING_PORT: u16 = 4_747;

/// What packets go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Medium {
    Udp,
    Ether,
}

/// What one member's process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NetPlan {
    laps: Laps,
    rank: u32,
    medium: Medium,
    /// None: the planner's.
    algorithm: Option<String>,
    namespace: PathBuf,
    memory: PathBuf,
}

/// Starts a process for each member.
pub(super) fn measure(
    laps: Laps,
    medium: Medium,
    algorithm: Option<&str>,
    bridge: &Bridge,
) -> Result<GroupCosts, BenchError> {
    let failed = |failure| BenchError::Failed { role: "member", failure };
    let memory = SharedFile::create(BOARD_BYTES).map_err(failed)?;
    let mut children = Vec::new();
    for rank in 0..laps.members {
        let namespace = bridge.path(rank).unwrap_or_default();
        let (algorithm, memory) = (algorithm.map(str::to_owned), memory.path());
        let plan = NetPlan { laps, rank, medium, algorithm, namespace, memory };
        children.push(Child::start(&Role::NetMember(plan))?);
    }
    let patience = PATIENCE + laps.budget * 4;
    let mut members = Vec::new();
    let (mut wall_ns, mut cpu_ns) = (0, 0);
    for child in &mut children {
        match child.next(patience)? {
            Message::Laps { costs, used } => {
                members.push(costs);
                wall_ns = used.at_ns.max(wall_ns);
                cpu_ns += used.cpu_ns;
            }
            other => return Err(child.unexpected(&other)),
        }
    }
    Ok(GroupCosts { wall_ns, cpu_ns, ..GroupCosts::of(members) })
}

/// Plays one member in this process.
pub(crate) fn play(plan: &NetPlan) -> Result<(), Failure> {
    let board = Board(Arena::open(&plan.memory)?);
    let namespace = File::open(&plan.namespace).map_err(Failure::io("opening a namespace"))?;
    // Before any other thread is started, which would stay outside.
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| Failure::io("entering a network namespace")(error.into()))?;
    let mut builder = NetBarrier::builder().formation_timeout(PATIENCE);
    if let Some(name) = &plan.algorithm {
        builder = builder.algorithm(name.parse().map_err(Failure::runtime)?);
    }
    builder = match plan.medium {
        Medium::Udp => builder.network(UdpSettings::new(address(plan.rank).into())),
        Medium::Ether => {
            let link = Link::builder(INTERFACE).back_end(BackEnd::PacketRings).bypass_queue();
            builder.network(link.open().map_err(Failure::runtime)?)
        }
    };
    let place = (address(0), MEETING_PORT).into();
    // Its scheduler is what sleeps on the barrier: there is no other thread to wake up.
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build();
    runtime.map_err(Failure::runtime)?.block_on(async {
        let meeting = builder.meet(place, Rank(plan.rank), plan.laps.members);
        let mut barrier = meeting.await.map_err(Failure::runtime)?;
        if let MulticastState::Blocked { why } = barrier.multicast() {
            return Err(Failure::runtime(format!("multicast does not work: {why}")));
        }
        let before = Usage::of_this_process();
        let mut state = Member::new(plan.laps, plan.rank, &board);
        loop {
            let lateness = state.lateness();
            if !lateness.is_zero() {
                // Nobody else runs on this thread.
                crate::clock::sleep(lateness);
            }
            state.enter();
            barrier.wait().await.map_err(Failure::runtime)?;
            if !state.leave() {
                break;
            }
        }
        let used = Usage::of_this_process().since(before);
        let costs = state.finish();
        barrier.leave(Duration::from_secs(2)).await.map_err(Failure::runtime)?;
        Message::Laps { costs, used }.print();
        Ok(())
    })
}
