//! The source: `send_forward`.

use std::collections::BTreeMap;
use std::fmt;

use vigie_detect::Instant;
use vigie_via::vi::{Address, DisconnectReason, Provider, ViId};

use super::DISCRIMINATOR;
use super::config::NodeConfig;
use super::error::MessagesError;
use super::node::{BlockingNode, NodeMachine, StepResult};
use super::packet::{Greeting, PacketHeader, PacketKind, Role};
use super::port::{NodePort, PortEvent};
use super::wait_budget::{STOPPED_MAX, WaitBudget};

/// The content of the final acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeliveryReport {
    /// Messages that the sink has taken since the connection was established.
    pub delivered: u32,
    /// Messages that the forwarder's algorithm has dropped.
    pub dropped: u32,
}

/// The messages to one destination.
#[derive(Debug, Default)]
struct SourceFlow {
    /// Messages whose first packet was sent.
    sent: u32,
    /// Messages known to have left the window.
    delivered: u32,
    is_gone: bool,
    finished: Option<DeliveryReport>,
}

/// The time that a call may still wait, and its position when that was set.
#[derive(Clone, Copy, Debug)]
struct WaitState {
    position: u64,
    budget: WaitBudget,
}

/// The progress of sending a message.
#[derive(Debug)]
pub(super) struct SendState {
    header: PacketHeader,
    /// It has started, and counts towards the window.
    is_begun: bool,
}

/// A source of messages, connected to a forwarder, or directly to a sink.
///
/// The calling thread drives its provider, in each call, and only then: a source that makes no call for longer than its
/// provider's peers tolerate is considered dead.
pub struct Source<P: Provider> {
    node: BlockingNode<SourceNode<P>>,
}

impl<P: Provider> Source<P> {
    /// Connects to the next node, within [`NodeConfig::timeout`].
    ///
    /// # Errors
    /// [`MessagesError`].
    pub fn connect(nic: P, address: &Address, config: NodeConfig) -> Result<Self, MessagesError> {
        let reactivity = config.reactivity;
        let source = SourceNode::begin(nic, address, config)?;
        let connect_steps = source.connect_steps();
        let mut node = BlockingNode::new(source, reactivity)?;
        node.wait(connect_steps)?;
        Ok(Self { node })
    }

    /// Returns the longest message that the next node accepts, in bytes.
    #[must_use]
    pub fn message_bytes_max(&self) -> u32 {
        self.node.with(|source| source.message_bytes_max())
    }

    /// Sends a message to `destination`, through the forwarder. Returns when all of it has been handed to the
    /// interface: then `bytes` may be reused. Blocks while the window is full.
    ///
    /// # Source
    /// `bip_send_forward` [fast-forward, §3.3].
    ///
    /// # Errors
    /// [`MessagesError::TooLong`], before anything is sent; [`MessagesError::Gone`], [`MessagesError::Lost`],
    /// [`MessagesError::Stalled`] after [`NodeConfig::timeout`] without any room. After an error part of the message
    /// may have been sent, and the source is unusable, except after `TooLong` and, for other destinations, `Gone`.
    pub fn send_forward(
        &mut self,
        destination: u32,
        tag: u32,
        bytes: &[u8],
    ) -> Result<(), MessagesError> {
        let sending = self.node.with(|source| source.begin_send(destination, tag, bytes))?;
        self.node.wait(SourceNode::send_steps(sending, bytes))
    }

    /// Waits for the final acknowledgement: the destination has taken everything sent to it so far.
    ///
    /// # Source
    /// [fast-forward, §3.2].
    ///
    /// # Errors
    /// As [`send_forward`](Self::send_forward).
    pub fn finish(&mut self, destination: u32) -> Result<DeliveryReport, MessagesError> {
        self.node.wait(SourceNode::finish_steps(destination))
    }
}

/// A source without a thread to drive it.
pub(super) struct SourceNode<P: Provider> {
    port: NodePort<P>,
    connection: ViId,
    peer: Greeting,
    config: NodeConfig,
    flows: BTreeMap<u32, SourceFlow>,
    is_open: bool,
    lost: Option<DisconnectReason>,
}

impl<P: Provider> SourceNode<P> {
    /// Starts connecting.
    pub(super) fn begin(
        nic: P,
        address: &Address,
        config: NodeConfig,
    ) -> Result<Self, MessagesError> {
        let port_config = config.port(Role::Source, &[Role::Forwarder, Role::Sink], 0)?;
        let peer = port_config.greeting;
        let mut port = NodePort::new(nic, config.clock.clone(), port_config)?;
        let deadline = port.now() + config.timeout + STOPPED_MAX;
        let connection = port.connect(address, DISCRIMINATOR, deadline)?;
        let (flows, is_open, lost) = (BTreeMap::new(), false, None);
        Ok(Self { port, connection, peer, config, flows, is_open, lost })
    }

    /// Returns whether the connection is established.
    pub(super) fn is_open(&self) -> Result<bool, MessagesError> {
        match self.lost {
            Some(DisconnectReason::Mismatch(what)) if !self.is_open => {
                Err(MessagesError::Mismatch(what))
            }
            Some(reason) if !self.is_open => Err(MessagesError::Refused(reason)),
            _ => Ok(self.is_open),
        }
    }

    pub(super) const fn message_bytes_max(&self) -> u32 {
        self.peer.message_bytes_max
    }

    /// Returns the steps until the connection is established.
    pub(super) fn connect_steps(
        &self,
    ) -> impl FnMut(&mut Self, &mut Option<Instant>) -> StepResult<()> + use<P> {
        let mut budget = WaitBudget::new(self.config.timeout, self.port.now());
        move |source, until| {
            if source.is_open()? {
                return Ok(Some(()));
            }
            if budget.is_exhausted(source.port.now()) {
                return Err(MessagesError::Refused(DisconnectReason::TimedOut));
            }
            *until = Some(budget.next_check());
            Ok(None)
        }
    }

    /// Returns the steps until all of a message has been handed to the interface.
    pub(super) fn send_steps(
        mut sending: SendState,
        bytes: &[u8],
    ) -> impl FnMut(&mut Self, &mut Option<Instant>) -> StepResult<()> {
        let mut waiting = None;
        move |source, until| {
            if source.pump(&mut sending, bytes)? {
                return Ok(Some(()));
            }
            let position = u64::from(sending.is_begun) << 32 | u64::from(sending.header.offset);
            *until = Some(source.wait_at(&mut waiting, position)?);
            Ok(None)
        }
    }

    /// Returns the steps until the final acknowledgement.
    pub(super) fn finish_steps(
        destination: u32,
    ) -> impl FnMut(&mut Self, &mut Option<Instant>) -> StepResult<DeliveryReport> {
        let (mut is_asked, mut waiting) = (false, None);
        move |source, until| {
            is_asked = is_asked || source.request_finish(destination)?;
            if let Some(finished) = source.finished(destination)? {
                return Ok(Some(finished));
            }
            let delivered = source.flows.get(&destination).map_or(0, |flow| flow.delivered);
            let position = u64::from(is_asked) << 32 | u64::from(delivered);
            *until = Some(source.wait_at(&mut waiting, position)?);
            Ok(None)
        }
    }

    /// Records that the caller has reached `position` and waits. Returns the latest time at which to check again.
    fn wait_at(
        &self,
        waiting: &mut Option<WaitState>,
        position: u64,
    ) -> Result<Instant, MessagesError> {
        let now = self.port.now();
        let budget = WaitBudget::new(self.config.timeout, now);
        // Signs of life from the peer are not progress.
        let is_same = waiting.is_some_and(|waiting| waiting.position == position);
        let waiting = waiting.get_or_insert(WaitState { position, budget });
        if !is_same {
            *waiting = WaitState { position, budget };
        } else if waiting.budget.is_exhausted(now) {
            return Err(MessagesError::Stalled { waited: self.config.timeout });
        }
        Ok(waiting.budget.next_check())
    }

    // ------------------------------------------------------------------ steps, without waiting

    pub(super) fn begin_send(
        &self,
        destination: u32,
        tag: u32,
        bytes: &[u8],
    ) -> Result<SendState, MessagesError> {
        let most = self.peer.message_bytes_max;
        let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= most);
        let length = length.ok_or(MessagesError::TooLong { bytes: bytes.len(), most })?;
        let mut header = PacketHeader::new(PacketKind::Data, destination, 0);
        (header.tag, header.length) = (tag, length);
        Ok(SendState { header, is_begun: false })
    }

    /// Sends as much as there is room for. Returns whether the message is complete.
    pub(super) fn pump(
        &mut self,
        sending: &mut SendState,
        bytes: &[u8],
    ) -> Result<bool, MessagesError> {
        self.check(sending.header.destination)?;
        let window = self.config.window_messages();
        let flow = self.flows.entry(sending.header.destination).or_default();
        if !sending.is_begun {
            if flow.sent.wrapping_sub(flow.delivered) >= window {
                return Ok(false);
            }
            sending.is_begun = true;
            sending.header.message = flow.sent;
            // Often enough for a window that is half full.
            let often = (window / 2).max(1);
            sending.header.wants_delivered = (flow.sent % often) == often - 1;
            flow.sent = flow.sent.wrapping_add(1);
            flow.finished = None;
        }

        let payload_max = self.port.payload_bytes();
        loop {
            let header = sending.header;
            let count = header.payload_bytes(payload_max).unwrap_or(0);
            let (from, count) = (usize::try_from(header.offset), usize::try_from(count));
            let (from, count) = (from.unwrap_or(usize::MAX), count.unwrap_or(0));
            let fragment = bytes.get(from..from.saturating_add(count)).unwrap_or(&[]);
            if !self.port.send(self.connection, header, fragment)? {
                return Ok(false);
            }
            if header.is_last(payload_max) {
                return Ok(true);
            }
            sending.header.offset += payload_max;
        }
    }

    /// Requests the final acknowledgement. Returns whether there was room for that.
    pub(super) fn request_finish(&mut self, destination: u32) -> Result<bool, MessagesError> {
        self.check(destination)?;
        self.flows.entry(destination).or_default().finished = None;
        self.port.send(self.connection, PacketHeader::new(PacketKind::Finish, destination, 0), &[])
    }

    pub(super) fn finished(
        &mut self,
        destination: u32,
    ) -> Result<Option<DeliveryReport>, MessagesError> {
        let finished = self.flows.get(&destination).and_then(|flow| flow.finished);
        if finished.is_none() {
            self.check(destination)?;
        }
        // A sink may disconnect as soon as it has acknowledged everything.
        Ok(finished)
    }

    fn check(&self, destination: u32) -> Result<(), MessagesError> {
        if let Some(reason) = self.lost {
            return Err(MessagesError::Lost { node: "next node", reason });
        }
        match self.flows.get(&destination) {
            Some(SourceFlow { is_gone: true, .. }) => Err(MessagesError::Gone { destination }),
            _ => Ok(()),
        }
    }

    fn handle_control(&mut self, header: &PacketHeader) -> Result<(), &'static str> {
        let unknown = "word of messages that were not sent";
        let flow = self.flows.get_mut(&header.destination).ok_or(unknown)?;
        match header.kind {
            PacketKind::Delivered => {
                let advance = header.message.wrapping_sub(flow.delivered);
                if advance > flow.sent.wrapping_sub(flow.delivered) {
                    return Err(unknown);
                }
                flow.delivered = header.message;
            }
            PacketKind::Finished => {
                let (delivered, dropped) = (header.message, header.length);
                if delivered.wrapping_add(dropped) != flow.sent {
                    return Err("a final acknowledgement of another number of messages");
                }
                flow.delivered = flow.sent;
                flow.finished = Some(DeliveryReport { delivered, dropped });
            }
            PacketKind::Gone => flow.is_gone = true,
            _ => return Err("a packet that is not for a source"),
        }
        Ok(())
    }
}

impl<P: Provider> NodeMachine for SourceNode<P> {
    type Nic = P;

    fn port(&self) -> &NodePort<P> {
        &self.port
    }

    fn port_mut(&mut self) -> &mut NodePort<P> {
        &mut self.port
    }

    fn tick(&mut self) -> Result<bool, MessagesError> {
        let mut has_worked = self.port.tick()?;
        while let Some(event) = self.port.next_event() {
            has_worked = true;
            match event {
                PortEvent::Closed(_, reason) => self.lost = Some(reason),
                PortEvent::Opened(_, greeting) => (self.peer, self.is_open) = (greeting, true),
                PortEvent::Control(vi, header) => {
                    if let Err(what) = self.handle_control(&header) {
                        self.port.close(vi, DisconnectReason::PeerFault(what));
                    }
                }
            }
        }
        // A source never receives data.
        if self.port.next_header(self.connection).is_some() {
            self.port.close(self.connection, DisconnectReason::PeerFault("data for a source"));
        }
        Ok(has_worked)
    }
}

impl<P: Provider> fmt::Debug for Source<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.with(|source| {
            f.debug_struct("Source")
                .field("config", &source.config)
                .field("flows", &source.flows)
                .field("lost", &source.lost)
                .finish_non_exhaustive()
        })
    }
}
