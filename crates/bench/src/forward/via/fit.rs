//! The model's parameters, measured on the live system.
//!
//! ```text
//! D(n)     time of a message of n bytes without a node between           T_net(2048) = (D(8 packets) − D(1 packet)) / 7
//! D'(n)    the same, in packets of 64 bytes                              T_net(64)   = (D'(8 packets) − D'(1 packet)) / 7
//! N(64)    the same through the interface, store-and-forward             T_idle = N(64) − 2 T_net(64)
//! host     stamps in the messages that pass, 64 and 8192 bytes           T_pci(n), T_handover
//! busy     what an algorithm says that its runs took                     T_algo
//! CPU      processor time of source and sink by D, of the engine by N,    shared processors, engine
//!          1 and 8 packets, with the window
//! ```
//! T_idle is the time in which no resource is busy: threads that wake up, at each node and both ways, and the window's
//! way back. With the measured window, it is the same for all paths. (The extra time of a single packet of 2048 bytes
//! over one of 64 does not measure T_net: on a machine whose processors fall asleep, the longer the link was busy before,
//! the less waking up takes.)

use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Duration;

use vigie_forward::{Bus, Cost, Node, SharedProcessors};

use super::super::keys::NONE;
use super::keys::PACKET_BYTES_U32;
use super::node::MessagePath;
use super::{RunCosts, ViaPlan, ViaTopology};
use crate::error::BenchError;
use crate::error::ModelError;
use crate::report::{Row, name_of};
use crate::statistics;

/// The algorithm by which T_algo is measured.
const T_ALGO: Duration = Duration::from_micros(50);

/// Packets of the long message.
const PACKETS: u32 = 8;

/// The smallest message that is measured.
const SMALL: u32 = 64;

/// How often each run is made.
const ROUNDS: usize = 5;

/// Parameters of the model, as they were found.
#[derive(Clone, Debug)]
pub(super) struct FittedParameters {
    t_net: [Duration; 2],
    t_pci: [Duration; 2],
    t_handover: Duration,
    t_idle: Duration,
    t_algo_excess: Duration,
    shared: SharedProcessors,
    node: Node,
}

fn us(time: f64) -> Duration {
    Duration::try_from_secs_f64(time.max(0.001) / 1e6).unwrap_or_default()
}

/// The median of a figure of some runs.
fn median(runs: &[RunCosts], figure: impl Fn(&RunCosts) -> f64) -> f64 {
    let values: Vec<f64> = runs.iter().map(figure).collect();
    statistics::median(&values).unwrap_or_default()
}

/// Runs everything that parameters are found by, in turns.
pub(super) fn fit(plan: &ViaPlan, topology: &ViaTopology) -> Result<FittedParameters, BenchError> {
    let big = PACKETS * PACKET_BYTES_U32;
    let kinds = [
        (MessagePath::Direct, SMALL, 0),
        (MessagePath::Direct, PACKET_BYTES_U32, 0),
        (MessagePath::Direct, big, 0),
        (MessagePath::Nic, SMALL, 0),
        (MessagePath::Host, SMALL, 0),
        (MessagePath::Host, 4 * PACKET_BYTES_U32, 0),
        (MessagePath::Nic, SMALL, T_ALGO.subsec_nanos()),
        (MessagePath::Direct, PACKET_BYTES_U32, 0),
        (MessagePath::Direct, big, 0),
        (MessagePath::Nic, PACKET_BYTES_U32, 0),
        (MessagePath::Nic, big, 0),
        (MessagePath::Direct, PACKETS * SMALL, 0),
    ];
    let in_small_packets = kinds.len() - 1;
    // Processor times are those of the window to be predicted: a node with more work at once sleeps less.
    let first_of_cpu = 7;
    let mut found = vec![Vec::new(); kinds.len()];
    for _ in 0..ROUNDS {
        for (at, ((way, bytes, algorithm_ns), runs)) in kinds.iter().zip(&mut found).enumerate() {
            let mut node_settings = plan.template(*bytes);
            let is_alone = at < first_of_cpu || at == in_small_packets;
            node_settings.window = if is_alone { 1 } else { plan.window };
            if at == in_small_packets {
                node_settings.packet_bytes = SMALL;
            }
            node_settings.messages = plan.messages.min(300);
            runs.push(topology.run(node_settings, *way, u64::from(*algorithm_ns))?);
        }
    }
    let time = |at: usize| median(&found[at], RunCosts::us);
    let of_forwarder = |at: usize, figure: fn(&super::NodeCosts) -> u64| {
        median(&found[at], |run| run.forwarder.as_ref().map_or(0, figure) as f64 / 1e3)
    };
    let packet = (time(2) - time(1)).max(0.1) / f64::from(PACKETS - 1);
    let small =
        ((time(in_small_packets) - time(0)) / f64::from(PACKETS - 1)).clamp(0.05, packet.max(0.05));
    let t_pci = [of_forwarder(4, |node| node.copy_ns), of_forwarder(5, |node| node.copy_ns)];
    let handover =
        f64::midpoint(of_forwarder(4, |node| node.bell_ns), of_forwarder(5, |node| node.bell_ns));
    let excess = of_forwarder(6, |node| node.algorithm_ns) - T_ALGO.as_secs_f64() * 1e6;
    let t_net = [us(small), us(packet)];
    let t_pci = t_pci.map(us);
    let t_idle = us(time(3) - 2.0 * small);
    let shared = shared(&found)?;
    let line = |[small, packet]: [Duration; 2]| {
        let points = ((u64::from(SMALL), small), (u64::from(PACKET_BYTES_U32), packet));
        Cost::through(points.0, points.1).map_err(ModelError::from)
    };
    let node = Node::new(line(t_net)?, line(t_pci)?)
        .t_handover(us(handover))
        .t_idle(t_idle)
        .shared(shared)
        .bus(Bus::HalfDuplex)
        .window(plan.window);
    let t_algo_excess = us(excess);
    Ok(FittedParameters {
        t_net,
        t_pci,
        t_handover: us(handover),
        t_idle,
        t_algo_excess,
        shared,
        node,
    })
}

/// The processor time of moving a message: the sum over all nodes, at two sizes.
fn shared(found: &[Vec<RunCosts>]) -> Result<SharedProcessors, BenchError> {
    let all = |at: usize| {
        median(&found[at], |run| {
            let per =
                |node: &super::NodeCosts| node.engine_cpu_ns as f64 / node.messages.max(1) as f64;
            (per(&run.source) + per(&run.sink)) / 1e3
        })
    };
    let packet = (all(8) - all(7)).max(0.0) / f64::from(PACKETS - 1);
    let program = median(&found[4], |run| {
        run.forwarder.map_or(0.0, |node| node.program_cpu_ns as f64 / node.messages.max(1) as f64)
    });
    let engine = |at: usize| {
        median(&found[at], |run| {
            run.forwarder
                .map_or(0.0, |node| node.engine_cpu_ns as f64 / 1e3 / node.messages.max(1) as f64)
        })
    };
    let engine_packet = (engine(10) - engine(9)).max(0.0) / f64::from(PACKETS - 1);
    let processors = available_parallelism().map_or(1, NonZero::get);
    Ok(SharedProcessors {
        processors: u32::try_from(processors).unwrap_or(u32::MAX),
        link: Cost::fixed(us(packet)),
        bus: Cost::ZERO,
        handover: us(program / 2e3),
        engine: Cost::fixed(us(engine_packet)),
        engine_message: us(engine(9) - engine_packet),
    })
}

impl FittedParameters {
    /// Returns the planner's input.
    pub(super) const fn node(&self) -> Node {
        self.node
    }

    /// Returns T_algoN of an algorithm that is to compute for `asked`; zero for zero.
    pub(super) fn t_algo(&self, asked: Duration) -> Duration {
        if asked.is_zero() { asked } else { asked + self.t_algo_excess }
    }

    /// Returns the parameters as a row.
    pub(super) fn row(&self, plan: &ViaPlan) -> Row {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        Row::new(NONE, "parameters")
            .parameter("carrier", name_of(plan.carrier))
            .parameter("link_bytes_per_s", plan.rate)
            .parameter(super::WINDOW, plan.window)
            .with_figure("samples", ROUNDS)
            .with_figure("t_net_64_us", us(self.t_net[0]))
            .with_figure("t_net_2048_us", us(self.t_net[1]))
            .with_figure("t_pci_64_us", us(self.t_pci[0]))
            .with_figure("t_pci_2048_us", us(self.t_pci[1]))
            .with_figure("t_bell_us", us(self.t_handover))
            .with_figure("t_turn_us", us(self.t_idle))
            .with_figure("t_algo_excess_us", us(self.t_algo_excess))
            .with_figure("cpu_link_us", us(self.shared.link.at(2048)))
            .with_figure("cpu_handover_us", us(self.shared.handover))
            .with_figure("cpu_engine_packet_us", us(self.shared.engine.at(2048)))
            .with_figure("cpu_engine_message_us", us(self.shared.engine_message))
    }
}
