//! The events: a resource ends a job, the job moves on, the resource starts the next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use super::flow::Flow;
use super::job::{JobStep, ResourceJob};
use super::report::{FlowReport, ResourceReport, SimulationReport};
use super::resource::{Resource, ResourceServer};
use crate::model::{Bus, Placement, SwitchingMode};

/// The end of a job: the time, the sequence number of its start, and the resource.
type JobEnd = Reverse<(u64, u64, Resource)>;

#[derive(Debug)]
pub(super) struct SimulationEngine {
    now_ns: u64,
    begun_count: u64,
    ends: BinaryHeap<JobEnd>,
    servers: BTreeMap<Resource, ResourceServer>,
    flows: Vec<FlowProgress>,
}

impl SimulationEngine {
    pub(super) fn new(flows: &[Flow]) -> Self {
        Self {
            now_ns: 0,
            begun_count: 0,
            ends: BinaryHeap::new(),
            servers: BTreeMap::new(),
            flows: flows.iter().map(FlowProgress::new).collect(),
        }
    }

    pub(super) fn run(mut self) -> SimulationReport {
        for flow in 0..self.flows.len() {
            self.receive_next(flow);
        }
        while let Some(Reverse((at_ns, _, resource))) = self.ends.pop() {
            self.now_ns = at_ns;
            if let Some(job) = self.servers.get_mut(&resource).and_then(ResourceServer::end) {
                self.advance(job);
            }
            self.begin(resource);
        }
        self.report()
    }

    /// Moves a finished job on to its next step.
    fn advance(&mut self, job: ResourceJob) {
        let ResourceJob { flow, message, step } = job;
        match step {
            JobStep::Receive => {
                self.flows[flow].is_receiving = false;
                match self.flows[flow].flow.path.placement {
                    Placement::Host => self.enter(ResourceJob { step: JobStep::BusIn, ..job }),
                    Placement::Nic => self.arrived(flow, message),
                }
                self.receive_next(flow);
            }
            JobStep::BusIn => self.arrived(flow, message),
            JobStep::Algorithm => {
                let in_flight = self.flows[flow].in_flight(message);
                in_flight.is_processed = true;
                let ready = in_flight.arrived_count;
                self.depart(flow, message, ready);
            }
            JobStep::BusOut => self.enter(ResourceJob { step: JobStep::Send, ..job }),
            JobStep::Send => {
                if self.flows[flow].sent(message, self.now_ns) {
                    self.receive_next(flow);
                }
            }
        }
    }

    /// Handles a packet that has arrived where the algorithm runs.
    fn arrived(&mut self, flow: usize, message: u32) {
        let passage = &mut self.flows[flow];
        let first_needed = passage.first_needed;
        let in_flight = passage.in_flight(message);
        in_flight.arrived_count += 1;
        if in_flight.is_processed {
            self.depart(flow, message, 1);
        } else if in_flight.arrived_count == first_needed {
            self.enter(ResourceJob { flow, message, step: JobStep::Algorithm });
        }
    }

    /// Sends packets on their way out.
    fn depart(&mut self, flow: usize, message: u32, count: u32) {
        let step = match self.flows[flow].flow.path.placement {
            Placement::Host => JobStep::BusOut,
            Placement::Nic => JobStep::Send,
        };
        for _ in 0..count {
            self.enter(ResourceJob { flow, message, step });
        }
    }

    /// Queues a flow's next packet at its receive link, if one may enter the node and none is there.
    fn receive_next(&mut self, flow: usize) {
        if let Some(message) = self.flows[flow].next_packet(self.now_ns) {
            self.enter(ResourceJob { flow, message, step: JobStep::Receive });
        }
    }

    fn enter(&mut self, job: ResourceJob) {
        let passage = &self.flows[job.flow];
        let (resource, length_ns) = (passage.resource(job.step), passage.length_ns(job.step));
        self.servers.entry(resource).or_default().enter(job, length_ns);
        self.begin(resource);
    }

    fn begin(&mut self, resource: Resource) {
        if let Some(length_ns) = self.servers.get_mut(&resource).and_then(ResourceServer::begin) {
            self.begun_count += 1;
            self.ends.push(Reverse((self.now_ns + length_ns, self.begun_count, resource)));
        }
    }

    fn report(self) -> SimulationReport {
        let flows: Vec<_> = self.flows.iter().map(FlowProgress::report).collect();
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

/// A flow, and the progress of its messages.
#[derive(Debug)]
struct FlowProgress {
    flow: Flow,
    /// The number of packets that the algorithm waits for.
    first_needed: u32,
    /// Messages in the node, the oldest first.
    in_flight: VecDeque<InFlightMessage>,
    /// The number of the oldest message in the node.
    oldest: u32,
    /// Packets of the newest message that have reached the receive link.
    entered_count: u32,
    /// True if a packet is at the receive link.
    is_receiving: bool,
    first_left_ns: u64,
    last_left_ns: u64,
    latency_ns: (u64, u64),
}

/// A message in the node.
#[derive(Debug, Default)]
struct InFlightMessage {
    entered_ns: u64,
    arrived_count: u32,
    sent_count: u32,
    is_processed: bool,
}

impl FlowProgress {
    fn new(flow: &Flow) -> Self {
        let nb = flow.parameters.message().nb();
        let first_needed = match flow.path.mode {
            SwitchingMode::StoreAndForward => nb,
            SwitchingMode::CutThrough => 1,
        };
        Self {
            flow: *flow,
            first_needed,
            in_flight: VecDeque::new(),
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

    /// Returns the message whose next packet reaches the receive link now.
    fn next_packet(&mut self, now_ns: u64) -> Option<u32> {
        if self.is_receiving {
            return None;
        }
        let in_node = u32::try_from(self.in_flight.len()).ok()?;
        let mut message = self.oldest + in_node;
        if self.entered_count < self.nb() {
            message -= 1;
        } else {
            if message == self.flow.messages || in_node >= self.flow.parameters.window() {
                return None;
            }
            self.in_flight
                .push_back(InFlightMessage { entered_ns: now_ns, ..InFlightMessage::default() });
            self.entered_count = 0;
        }
        self.entered_count += 1;
        self.is_receiving = true;
        Some(message)
    }

    /// Counts a packet as sent, and returns whether its message has left.
    fn sent(&mut self, message: u32, now_ns: u64) -> bool {
        let nb = self.nb();
        let in_flight = self.in_flight(message);
        in_flight.sent_count += 1;
        if in_flight.sent_count < nb {
            return false;
        }
        let latency_ns = now_ns - in_flight.entered_ns;
        self.latency_ns = (self.latency_ns.0.min(latency_ns), self.latency_ns.1.max(latency_ns));
        if self.oldest == 0 {
            self.first_left_ns = now_ns;
        }
        self.last_left_ns = now_ns;
        // Every resource serves a flow in order, so the oldest message leaves first.
        debug_assert_eq!(message, self.oldest, "messages of a flow leave in order");
        self.in_flight.pop_front();
        self.oldest += 1;
        true
    }

    fn in_flight(&mut self, message: u32) -> &mut InFlightMessage {
        let index = usize::try_from(message - self.oldest);
        &mut self.in_flight[index.expect("invariant: at most a window of messages is in the node")]
    }

    fn resource(&self, step: JobStep) -> Resource {
        match (step, self.flow.path.placement, self.flow.parameters.bus()) {
            (JobStep::Receive, ..) => Resource::Receive(self.flow.port_in),
            (JobStep::Send, ..) => Resource::Send(self.flow.port_out),
            (JobStep::Algorithm, Placement::Host, _) => Resource::HostProcessor,
            (JobStep::Algorithm, Placement::Nic, _) => Resource::NicProcessor,
            (JobStep::BusOut, _, Bus::FullDuplex) => Resource::BusOut,
            (JobStep::BusIn, ..) | (JobStep::BusOut, _, Bus::HalfDuplex) => Resource::BusIn,
        }
    }

    fn length_ns(&self, step: JobStep) -> u64 {
        let time = match step {
            JobStep::Receive => self.flow.parameters.t_rcv(),
            JobStep::Send => self.flow.parameters.t_snd(),
            JobStep::BusIn | JobStep::BusOut => self.flow.parameters.t_pci(),
            JobStep::Algorithm => self.flow.t_algo,
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
