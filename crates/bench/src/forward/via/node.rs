//! A node of the live experiment: a process of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use vigie_detect::{
    Reactivity,
    clock::{monotonic_now, thread_cpu_time},
};
use vigie_forward::messages::{
    Busy, Forwarder, ForwarderReport, NodeConfig, Sink, SinkEvent, Source,
};
use vigie_forward::{Bandwidth, Path};
use vigie_via::ether::Ether;
use vigie_via::shm::Shm;
use vigie_via::software_nic::{Secret, SoftwareNicConfig};
use vigie_via::udp::Udp;
use vigie_via::vi::{Address, Provider};

use crate::barrier::bridge::address;
use crate::error::Failure;
use crate::host::INTERFACE;
use crate::process::{Role, print_result};

/// The carriers of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum ViaCarrier {
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

/// The way of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum MessagePath {
    /// From source to sink, without a node between them.
    Direct,
    Host,
    Nic,
    NicCutThrough,
}

impl MessagePath {
    const fn path(self) -> Path {
        match self {
            Self::Direct | Self::Host => Path::HOST,
            Self::Nic => Path::NIC,
            Self::NicCutThrough => Path::NIC_CUT_THROUGH,
        }
    }
}

impl ViaCarrier {
    /// Whether each node has a network namespace of its own.
    pub(super) const fn has_namespaces(self) -> bool {
        matches!(self, Self::UdpNet | Self::Ether)
    }
}

/// What a node is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum NodeRole {
    Sink,
    Forwarder { way: MessagePath, algorithm_ns: u64, next: Vec<u8> },
    Source { next: Vec<u8> },
}

impl NodeRole {
    /// Its place among the namespaces.
    pub(super) const fn rank(&self) -> u32 {
        match self {
            Self::Sink => 0,
            Self::Forwarder { .. } => 1,
            Self::Source { .. } => 2,
        }
    }
}

/// The plan of one node's process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodePlan {
    pub(super) role: NodeRole,
    pub(super) cell: CellPlan,
}

impl Role for NodePlan {
    const NAME: &'static str = "node";
}

/// What all nodes of a run know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CellPlan {
    pub(super) carrier: ViaCarrier,
    pub(super) bytes: u32,
    pub(super) messages: u32,
    pub(super) window: u32,
    pub(super) packet_bytes: u32,
    /// Bytes per second of the links; 0: as fast as they are.
    pub(super) pace: u64,
    /// Whether nodes look for a while before they sleep.
    pub(super) spins: bool,
}

/// What a node says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum NodeMessage {
    /// Where it can be reached.
    At(Vec<u8>),
    /// What it has done.
    Done(NodeCosts),
}

/// What a node's part of a run has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeCosts {
    /// Source: from the first message to the final acknowledgement.
    pub(super) elapsed_ns: u64,
    /// Processor time of the thread that drives the provider.
    pub(super) engine_cpu_ns: u64,
    /// Forwarder: processor time of the program's thread, in all.
    pub(super) program_cpu_ns: u64,
    /// Forwarder: how long it ran.
    pub(super) ran_ns: u64,
    /// Messages that passed.
    pub(super) messages: u64,
    /// Forwarder, host: means of a hand-over one way, and of copying a packet one way.
    pub(super) bell_ns: u64,
    pub(super) copy_ns: u64,
    /// Forwarder: the mean time of the algorithm.
    pub(super) algorithm_ns: u64,
}

/// Messages before those that are measured, by which windows and estimates of the transport settle.
const WARM_UP: u32 = 100;

const DESTINATION: u32 = 1;

fn settings(cell: &CellPlan) -> NodeConfig {
    let reactivity = if cell.spins { Reactivity::LowLatency } else { Reactivity::LowCpu };
    NodeConfig::new()
        .packet_bytes(cell.packet_bytes)
        .packets(256)
        .window(cell.window)
        .pace(Bandwidth::new(cell.pace).ok())
        .reactivity(reactivity)
        .ends_with_sources(true)
}

/// Plays a node in this process.
pub(crate) fn play(plan: &NodePlan) -> Result<(), Failure> {
    // Nodes of one run are of one user on one machine.
    let secret = Secret::new([0x5a; 16]);
    match plan.cell.carrier {
        ViaCarrier::Udp | ViaCarrier::UdpNet => {
            let ip = match plan.cell.carrier {
                ViaCarrier::Udp => Ipv4Addr::LOCALHOST,
                _ => address(plan.role.rank()),
            };
            let here = SocketAddr::from((ip, 0));
            let nic =
                Udp::bind(here, secret, SoftwareNicConfig::default()).map_err(Failure::runtime)?;
            play_on(nic, plan)
        }
        ViaCarrier::Ether => {
            let nic = Ether::builder(INTERFACE).open(secret).map_err(Failure::runtime)?;
            play_on(nic, plan)
        }
        ViaCarrier::Shm => play_on(Shm::open().map_err(Failure::runtime)?, plan),
    }
}

fn play_on<P: Provider>(nic: P, plan: &NodePlan) -> Result<(), Failure> {
    let settings = settings(&plan.cell);
    let costs = match &plan.role {
        NodeRole::Sink => sink(nic, settings)?,
        NodeRole::Forwarder { way, algorithm_ns, next } => {
            let routes = [(DESTINATION, Address(next.clone()))];
            let busy = Busy::new(Duration::from_nanos(*algorithm_ns));
            let started = match algorithm_ns {
                0 => {
                    let basic = vigie_forward::messages::Basic::default();
                    Forwarder::start(nic, settings, &routes, way.path(), basic)
                }
                _ => Forwarder::start(nic, settings, &routes, way.path(), busy),
            };
            let forwarder = started.map_err(Failure::runtime)?;
            print_result(&NodeMessage::At(forwarder.address().0.clone()));
            forwarder_costs(&forwarder.join().map_err(Failure::runtime)?)
        }
        NodeRole::Source { next } => source(nic, settings, &plan.cell, &Address(next.clone()))?,
    };
    print_result(&NodeMessage::Done(costs));
    Ok(())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn forwarder_costs(report: &ForwarderReport) -> NodeCosts {
    let times = report.channel;
    let t_algo = if times.messages > 0 { times.t_algo() } else { report.t_algo_n() };
    NodeCosts {
        engine_cpu_ns: nanos(report.engine_cpu),
        program_cpu_ns: nanos(report.program_cpu),
        ran_ns: nanos(report.elapsed),
        messages: report.forwarded,
        bell_ns: nanos(times.one_way()),
        copy_ns: nanos(times.copy()),
        algorithm_ns: nanos(t_algo),
        ..NodeCosts::default()
    }
}

fn sink<P: Provider>(nic: P, settings: NodeConfig) -> Result<NodeCosts, Failure> {
    let mut sink = Sink::open(nic, settings).map_err(Failure::runtime)?;
    print_result(&NodeMessage::At(sink.address().0));
    let mut costs = NodeCosts::default();
    let before = thread_cpu_time();
    loop {
        match sink.next_event().map_err(Failure::runtime)? {
            Some(SinkEvent::Message(_)) => costs.messages += 1,
            Some(SinkEvent::Lost { .. }) | None => break,
            Some(_) => {}
        }
    }
    costs.engine_cpu_ns = nanos(thread_cpu_time().saturating_sub(before));
    Ok(costs)
}

fn source<P: Provider>(
    nic: P,
    settings: NodeConfig,
    cell: &CellPlan,
    next: &Address,
) -> Result<NodeCosts, Failure> {
    let mut source = Source::connect(nic, next, settings).map_err(Failure::runtime)?;
    let length = usize::try_from(cell.bytes).unwrap_or(0);
    let bytes: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap_or(0)).collect();
    let mut run = |count| {
        for tag in 0..count {
            source.send_forward(DESTINATION, tag, &bytes).map_err(Failure::runtime)?;
        }
        source.finish(DESTINATION).map_err(Failure::runtime)
    };
    run(WARM_UP.min(cell.messages))?;
    let (begun, cpu) = (monotonic_now(), thread_cpu_time());
    run(cell.messages)?;
    let elapsed_ns = nanos(monotonic_now() - begun);
    let engine_cpu_ns = nanos(thread_cpu_time().saturating_sub(cpu));
    let messages = u64::from(cell.messages);
    Ok(NodeCosts { elapsed_ns, engine_cpu_ns, messages, ..NodeCosts::default() })
}
