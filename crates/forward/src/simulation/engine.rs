//! The events: a resource ends a job, the job goes on, the resource begins the next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use super::Flow;
use super::report::{FlowReport, ResourceReport, SimulationReport};
use super::resource::{Resource, Server};
use crate::model::{Bus, Mode, Placement};

/// What a resource does for a message.
#[derive(Clone, Copy, Debug)]
enum Step {
    Receive,
    BusIn,
    Algorithm,
    BusOut,
    Send,
}

/// A packet, or for [`Step::Algorithm`] a message, that a resource works on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    flow: usize,
    message: u32,
    step: Step,
}

impl Job {
    /// Tells whether it goes before others on a half-duplex bus: what leaves makes room for what comes.
    pub(super) const fn is_urgent(self) -> bool {
        matches!(self.step, Step::BusOut)
    }
}

/// The end of a job: when, which in order of beginning, and where.
type End = Reverse<(u64, u64, Resource)>;

#[derive(Debug)]
pub(super) struct Engine {
    now_ns: u64,
    begun_count: u64,
    ends: BinaryHeap<End>,
    servers: BTreeMap<Resource, Server>,
    flows: Vec<Passage>,
}

impl Engine {
    pub(super) fn new(flows: &[Flow]) -> Self {
        Self {
            now_ns: 0,
            begun_count: 0,
            ends: BinaryHeap::new(),
            servers: BTreeMap::new(),
            flows: flows.iter().map(Passage::new).collect(),
        }
    }

    pub(super) fn run(mut self) -> SimulationReport {
        for flow in 0..self.flows.len() {
            self.receive_next(flow);
        }
        while let Some(Reverse((at_ns, _, resource))) = self.ends.pop() {
            self.now_ns = at_ns;
            if let Some(job) = self.servers.get_mut(&resource).and_then(Server::end) {
                self.advance(job);
            }
            self.begin(resource);
        }
        self.report()
    }

    /// Does what follows from the end of a job.
    fn advance(&mut self, job: Job) {
        let Job { flow, message, step } = job;
        match step {
            Step::Receive => {
                self.flows[flow].is_receiving = false;
                match self.flows[flow].flow.path.placement {
                    Placement::Host => self.enter(Job { step: Step::BusIn, ..job }),
                    Placement::Nic => self.arrived(flow, message),
                }
                self.receive_next(flow);
            }
            Step::BusIn => self.arrived(flow, message),
            Step::Algorithm => {
                let live = self.flows[flow].live(message);
                live.is_processed = true;
                let ready = live.arrived_count;
                self.depart(flow, message, ready);
            }
            Step::BusOut => self.enter(Job { step: Step::Send, ..job }),
            Step::Send => {
                if self.flows[flow].sent(message, self.now_ns) {
                    self.receive_next(flow);
                }
            }
        }
    }

    /// A packet is where the algorithm runs.
    fn arrived(&mut self, flow: usize, message: u32) {
        let passage = &mut self.flows[flow];
        let first_needed = passage.first_needed;
        let live = passage.live(message);
        live.arrived_count += 1;
        if live.is_processed {
            self.depart(flow, message, 1);
        } else if live.arrived_count == first_needed {
            self.enter(Job { flow, message, step: Step::Algorithm });
        }
    }

    /// Sends packets on their way out.
    fn depart(&mut self, flow: usize, message: u32, count: u32) {
        let step = match self.flows[flow].flow.path.placement {
            Placement::Host => Step::BusOut,
            Placement::Nic => Step::Send,
        };
        for _ in 0..count {
            self.enter(Job { flow, message, step });
        }
    }

    /// Puts a flow's next packet before its receive link, if one may enter the node and none is there.
    fn receive_next(&mut self, flow: usize) {
        if let Some(message) = self.flows[flow].next_packet(self.now_ns) {
            self.enter(Job { flow, message, step: Step::Receive });
        }
    }

    fn enter(&mut self, job: Job) {
        let passage = &self.flows[job.flow];
        let (resource, length_ns) = (passage.resource(job.step), passage.length_ns(job.step));
        self.servers.entry(resource).or_default().enter(job, length_ns);
        self.begin(resource);
    }

    fn begin(&mut self, resource: Resource) {
        if let Some(length_ns) = self.servers.get_mut(&resource).and_then(Server::begin) {
            self.begun_count += 1;
            self.ends.push(Reverse((self.now_ns + length_ns, self.begun_count, resource)));
        }
    }

    fn report(self) -> SimulationReport {
        let flows: Vec<_> = self.flows.iter().map(Passage::report).collect();
        let resources = self.servers.iter().map(|(resource, server)| ResourceReport {
            resource: *resource,
            busy: Duration::from_nanos(server.busy_ns),
        });
        SimulationReport {
            elapsed: flows.iter().map(|flow| flow.last_left).max().unwrap_or_default(),
            flows,
            resources: resources.collect(),
        }
    }
}

/// A flow and where its messages are.
#[derive(Debug)]
struct Passage {
    flow: Flow,
    /// Packets that the algorithm waits for.
    first_needed: u32,
    /// Messages in the node, the oldest first.
    live: VecDeque<Live>,
    /// Number of the oldest message in the node.
    oldest: u32,
    /// Packets of the youngest message that have come to the receive link.
    entered_count: u32,
    /// Whether a packet is at the receive link.
    is_receiving: bool,
    first_left_ns: u64,
    last_left_ns: u64,
    latency_ns: (u64, u64),
}

/// A message in the node.
#[derive(Debug, Default)]
struct Live {
    entered_ns: u64,
    arrived_count: u32,
    sent_count: u32,
    is_processed: bool,
}

impl Passage {
    fn new(flow: &Flow) -> Self {
        let nb = flow.parameters.message().nb();
        let first_needed = match flow.path.mode {
            Mode::StoreAndForward => nb,
            Mode::CutThrough => 1,
        };
        Self {
            flow: *flow,
            first_needed,
            live: VecDeque::new(),
            oldest: 0,
            entered_count: nb,
            is_receiving: false,
            first_left_ns: 0,
            last_left_ns: 0,
            latency_ns: (u64::MAX, 0),
        }
    }

    const fn nb(&self) -> u32 {
        self.flow.parameters.message().nb()
    }

    /// Returns the message whose next packet comes to the receive link now.
    fn next_packet(&mut self, now_ns: u64) -> Option<u32> {
        if self.is_receiving {
            return None;
        }
        let in_node = u32::try_from(self.live.len()).ok()?;
        let mut message = self.oldest + in_node;
        if self.entered_count < self.nb() {
            message -= 1;
        } else {
            if message == self.flow.messages || in_node >= self.flow.parameters.window() {
                return None;
            }
            self.live.push_back(Live { entered_ns: now_ns, ..Live::default() });
            self.entered_count = 0;
        }
        self.entered_count += 1;
        self.is_receiving = true;
        Some(message)
    }

    /// Counts a packet of a message as sent, and tells whether the message has left.
    fn sent(&mut self, message: u32, now_ns: u64) -> bool {
        let nb = self.nb();
        let live = self.live(message);
        live.sent_count += 1;
        if live.sent_count < nb {
            return false;
        }
        let latency_ns = now_ns - live.entered_ns;
        self.latency_ns = (self.latency_ns.0.min(latency_ns), self.latency_ns.1.max(latency_ns));
        if self.oldest == 0 {
            self.first_left_ns = now_ns;
        }
        self.last_left_ns = now_ns;
        // Everything on a flow's path serves it in order, so the oldest leaves first.
        debug_assert_eq!(message, self.oldest, "messages of a flow leave in order");
        self.live.pop_front();
        self.oldest += 1;
        true
    }

    fn live(&mut self, message: u32) -> &mut Live {
        let index = usize::try_from(message - self.oldest);
        &mut self.live[index.expect("invariant: at most a window of messages is in the node")]
    }

    fn resource(&self, step: Step) -> Resource {
        match (step, self.flow.path.placement, self.flow.parameters.bus()) {
            (Step::Receive, ..) => Resource::Receive(self.flow.port_in),
            (Step::Send, ..) => Resource::Send(self.flow.port_out),
            (Step::Algorithm, Placement::Host, _) => Resource::HostProcessor,
            (Step::Algorithm, Placement::Nic, _) => Resource::NicProcessor,
            (Step::BusOut, _, Bus::FullDuplex) => Resource::BusOut,
            (Step::BusIn, ..) | (Step::BusOut, _, Bus::HalfDuplex) => Resource::BusIn,
        }
    }

    fn length_ns(&self, step: Step) -> u64 {
        let time = match step {
            Step::Receive => self.flow.parameters.t_rcv(),
            Step::Send => self.flow.parameters.t_snd(),
            Step::BusIn | Step::BusOut => self.flow.parameters.t_pci(),
            Step::Algorithm => self.flow.t_algo,
        };
        u64::try_from(time.as_nanos()).expect("invariant: times are at most TIME_MAX")
    }

    fn report(&self) -> FlowReport {
        FlowReport {
            messages: self.oldest,
            message_bytes: self.flow.parameters.message().bytes(),
            first_left: Duration::from_nanos(self.first_left_ns),
            last_left: Duration::from_nanos(self.last_left_ns),
            latency_min: Duration::from_nanos(self.latency_ns.0),
            latency_max: Duration::from_nanos(self.latency_ns.1),
        }
    }
}
