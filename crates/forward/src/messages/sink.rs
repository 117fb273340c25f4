//! The sink: the final destination.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use vigie_detect::Instant;
use vigie_via::vi::{Address, DisconnectReason, Provider, ViId};

use super::DISCRIMINATOR;
use super::config::NodeConfig;
use super::error::MessagesError;
use super::node::{BlockingNode, NodeMachine, StepResult};
use super::packet::{PacketHeader, PacketKind, Role};
use super::port::{Arrival, NodePort, PortEvent};
use super::reassembly::Reassembly;
use super::wait_budget::WaitBudget;

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The number of its source, assigned by the forwarder; zero without a forwarder.
    pub source: u32,
    /// Its destination's number, as the source knows it.
    pub destination: u32,
    /// Its tag.
    pub tag: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// An event of a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkEvent {
    /// A message.
    Message(Received),
    /// A source has sent everything, and gets the final acknowledgement if it is still connected.
    Finished {
        /// The number of the source.
        source: u32,
        /// The number of its messages that were taken.
        messages: u32,
    },
    /// A connection has ended; incomplete messages on it are lost.
    Lost {
        /// The cause.
        reason: DisconnectReason,
    },
}

/// An incomplete message, and the counts before it.
#[derive(Debug, Default)]
struct SinkFlow {
    reassembly: Reassembly,
    bytes: Vec<u8>,
    /// Messages taken, and messages dropped on the way.
    taken: u32,
    dropped: u32,
}

/// A destination of messages.
///
/// The calling thread drives its provider, in each call. Only calls take messages from the interface: a sink that does
/// not call [`next_event`](Self::next_event) fills the window and the buffers of the nodes before it, which wait. If it makes
/// no call for longer than the provider's peers tolerate, it is considered dead.
pub struct Sink<P: Provider> {
    node: BlockingNode<SinkNode<P>>,
}

impl<P: Provider> Sink<P> {
    /// Opens a sink; forwarders and sources can connect to it at once.
    ///
    /// # Errors
    /// [`MessagesError`].
    pub fn open(nic: P, config: NodeConfig) -> Result<Self, MessagesError> {
        let reactivity = config.reactivity;
        Ok(Self { node: BlockingNode::new(SinkNode::open(nic, config)?, reactivity)? })
    }

    /// Returns the address that other nodes connect to.
    #[must_use]
    pub fn address(&self) -> Address {
        self.node.with(|sink| sink.address())
    }

    /// Waits for the next event, within [`NodeConfig::timeout`]: `None` if there is none.
    ///
    /// # Errors
    /// [`MessagesError`].
    pub fn next_event(&mut self) -> Result<Option<SinkEvent>, MessagesError> {
        let step = self.node.with(|sink| sink.event_steps());
        self.node.wait(step)
    }

    /// As [`next_event`](Self::next_event), until an instant of the settings' clock.
    ///
    /// # Errors
    /// [`MessagesError`].
    pub fn next_event_until(
        &mut self,
        deadline: Instant,
    ) -> Result<Option<SinkEvent>, MessagesError> {
        self.node.wait(SinkNode::event_steps_while(move |now| (now < deadline).then_some(deadline)))
    }

    /// Returns the next event if there is one, without waiting.
    ///
    /// # Errors
    /// [`MessagesError`].
    pub fn try_next_event(&mut self) -> Result<Option<SinkEvent>, MessagesError> {
        self.node.with(SinkNode::try_next_event)
    }

    /// Sends what is pending, without receiving: for callers that are busy otherwise.
    ///
    /// # Errors
    /// [`MessagesError`].
    pub fn tick(&mut self) -> Result<bool, MessagesError> {
        self.node.with(SinkNode::tick)
    }
}

/// A sink without a thread to drive it.
pub(super) struct SinkNode<P: Provider> {
    port: NodePort<P>,
    config: NodeConfig,
    /// Connections, in round-robin order.
    connections: VecDeque<ViId>,
    /// Those that have ended: what they received before is taken first.
    ended: BTreeMap<ViId, DisconnectReason>,
    flows: BTreeMap<(ViId, u32, u32), SinkFlow>,
    events: VecDeque<SinkEvent>,
}

impl<P: Provider> SinkNode<P> {
    pub(super) fn open(nic: P, config: NodeConfig) -> Result<Self, MessagesError> {
        let accepts = &[Role::Forwarder, Role::Source];
        let port_config = config.port(Role::Sink, accepts, config.longest())?;
        let mut port = NodePort::new(nic, config.clock.clone(), port_config)?;
        port.listen(DISCRIMINATOR)?;
        let (connections, ended, flows) = (VecDeque::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self { port, config, connections, ended, flows, events: VecDeque::new() })
    }

    pub(super) fn address(&self) -> Address {
        self.port.address()
    }

    /// Returns the steps until an event comes, or the wait budget is exhausted.
    pub(super) fn event_steps(
        &self,
    ) -> impl FnMut(&mut Self, &mut Option<Instant>) -> StepResult<Option<SinkEvent>> + use<P> {
        let mut budget = WaitBudget::new(self.config.timeout, self.port.now());
        Self::event_steps_while(move |now| (!budget.is_exhausted(now)).then(|| budget.next_check()))
    }

    /// The same, as long as there is an instant to wait for.
    fn event_steps_while(
        mut wait_until: impl FnMut(Instant) -> Option<Instant>,
    ) -> impl FnMut(&mut Self, &mut Option<Instant>) -> StepResult<Option<SinkEvent>> {
        let mut has_ticked = false;
        move |sink, until| {
            if let Some(event) = sink.take()? {
                return Ok(Some(Some(event)));
            }
            if !std::mem::replace(&mut has_ticked, true) {
                return Ok(None);
            }
            *until = wait_until(sink.port.now());
            if until.is_none() {
                // Messages taken meanwhile free credit, which a sender may be waiting for.
                let _ = sink.port.tick()?;
                return Ok(Some(None));
            }
            Ok(None)
        }
    }

    pub(super) fn try_next_event(&mut self) -> Result<Option<SinkEvent>, MessagesError> {
        if let Some(event) = self.take()? {
            return Ok(Some(event));
        }
        self.port.tick()?;
        self.take()
    }

    /// Takes the next event that has already arrived.
    fn take(&mut self) -> Result<Option<SinkEvent>, MessagesError> {
        while let Some(event) = self.port.next_event() {
            match event {
                PortEvent::Opened(vi, _) => self.connections.push_back(vi),
                PortEvent::Closed(vi, reason) if self.connections.contains(&vi) => {
                    self.ended.insert(vi, reason);
                }
                PortEvent::Closed(_, reason) => self.events.push_back(SinkEvent::Lost { reason }),
                PortEvent::Control(vi, _) => {
                    self.port
                        .close(vi, DisconnectReason::PeerFault("a packet that is not for a sink"));
                }
            }
        }

        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }

        for _ in 0..self.connections.len() {
            let Some(vi) = self.connections.front().copied() else { break };
            while let Some(arrival) = self.port.arrival(vi) {
                let header = arrival.header;
                let found = self.arrived(vi, &header, &arrival)?;
                self.port.release(arrival);
                match found {
                    Ok(None) => {}
                    Ok(Some(event)) => {
                        self.connections.rotate_left(1);
                        return Ok(Some(event));
                    }
                    Err(what) => self.port.close(vi, DisconnectReason::PeerFault(what)),
                }
            }
            if let Some(reason) = self.ended.remove(&vi) {
                self.connections.retain(|connection| *connection != vi);
                self.flows.retain(|(connection, ..), _| *connection != vi);
                return Ok(Some(SinkEvent::Lost { reason }));
            }
            self.connections.rotate_left(1);
        }

        Ok(None)
    }

    /// Handles a packet. The inner error says what the peer did wrong.
    fn arrived(
        &mut self,
        vi: ViId,
        header: &PacketHeader,
        arrival: &Arrival,
    ) -> Result<Result<Option<SinkEvent>, &'static str>, MessagesError> {
        let (source, destination) = (header.source, header.destination);
        if header.kind == PacketKind::Abort {
            self.flows.retain(|(connection, number, _), _| (*connection, *number) != (vi, source));
            return Ok(Ok(None));
        }

        // A hostile peer may invent sources: it cannot have more of them than packets here.
        if self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&(vi, source, destination)) {
            return Ok(Err("more sources than a sink keeps count of"));
        }

        let flow = self.flows.entry((vi, source, destination)).or_default();
        match header.kind {
            PacketKind::Data => {
                let longest = self.config.longest();
                let fragment =
                    match flow.reassembly.take(header, self.port.payload_bytes(), longest) {
                        Ok(fragment) => fragment,
                        Err(what) => return Ok(Err(what)),
                    };
                if fragment.is_first {
                    let length = usize::try_from(header.length).unwrap_or(0);
                    flow.bytes = Vec::with_capacity(length);
                }
                self.port.read_onto(arrival, usize::MAX, &mut flow.bytes)?;
                if !fragment.is_last {
                    return Ok(Ok(None));
                }
                flow.taken = flow.taken.wrapping_add(1);
                let bytes = std::mem::take(&mut flow.bytes);
                let count = flow.taken.wrapping_add(flow.dropped);
                self.count(vi, header, count);
                let tag = header.tag;
                let received = Received { source, destination, tag, bytes };
                Ok(Ok(Some(SinkEvent::Message(received))))
            }
            PacketKind::Dropped if flow.reassembly.is_open() => Ok(Err("an end in the middle")),
            PacketKind::Dropped => {
                flow.dropped = flow.dropped.wrapping_add(1);
                let count = flow.taken.wrapping_add(flow.dropped);
                self.count(vi, header, count);
                Ok(Ok(None))
            }
            PacketKind::Finish if flow.reassembly.is_open() => Ok(Err("an end in the middle")),
            PacketKind::Finish => {
                let mut answer = PacketHeader::new(PacketKind::Finished, destination, source);
                (answer.message, answer.length) = (flow.taken, flow.dropped);
                self.port.send_control(vi, answer);
                Ok(Ok(Some(SinkEvent::Finished { source, messages: flow.taken })))
            }
            _ => Ok(Err("a packet that is not for a sink")),
        }
    }

    /// Tells the source, if it wants that, how many of its messages have left its window.
    fn count(&mut self, vi: ViId, header: &PacketHeader, count: u32) {
        if header.wants_delivered {
            let mut answer =
                PacketHeader::new(PacketKind::Delivered, header.destination, header.source);
            answer.message = count;
            self.port.send_control(vi, answer);
        }
    }
}

impl<P: Provider> NodeMachine for SinkNode<P> {
    type Nic = P;

    fn port(&self) -> &NodePort<P> {
        &self.port
    }

    fn port_mut(&mut self) -> &mut NodePort<P> {
        &mut self.port
    }
}

/// The maximum number of sources that a sink keeps counts for, even if a peer invents them.
const FLOWS_MAX: usize = 4096;

impl<P: Provider> fmt::Debug for Sink<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.with(|sink| {
            f.debug_struct("Sink")
                .field("config", &sink.config)
                .field("flows", &sink.flows.len())
                .finish_non_exhaustive()
        })
    }
}
