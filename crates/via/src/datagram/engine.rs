//! Sends, receives and posts at the ports of a device, without waiting.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::BorrowedFd,
};

use vigie_detect::{ArmOutcome, Engine, EngineContext, WatchedDescriptor};

use super::{
    DatagramCounters, PortCounters, Received, UdpConfig,
    error::{DatagramError, NodeAddress, PostError, SendFailed},
    over_link::OverLink,
    over_simulated::OverSimulated,
    over_udp::OverUdp,
    ports::{DatagramRoute, PortState, Ports},
};
use crate::spinning::UNCLAIMED_READINESS_MAX;

/// The most buffers of one port.
const BUFFERS_MAX: usize = 1024;
/// The most datagrams that wait to be sent.
const SENDING_MAX: usize = 256;

/// The transport that carries the datagrams.
#[derive(Debug)]
pub(super) enum DatagramTransport {
    Link(Box<OverLink>),
    Udp(OverUdp),
    Simulated(OverSimulated),
}

impl DatagramTransport {
    /// Carries datagrams over UDP: the kernel's, or that of the simulation which the calling thread runs.
    pub(super) fn udp(config: UdpConfig) -> Result<Self, DatagramError> {
        let config = config.check()?;
        Ok(match OverSimulated::open(config)? {
            Some(simulated) => Self::Simulated(simulated),
            None => Self::Udp(OverUdp::new(config)?),
        })
    }
}

/// A datagram that waits for room.
#[derive(Debug)]
struct Outgoing {
    ticket: u64,
    route: DatagramRoute,
    payload: Vec<u8>,
}

type SendResult = Result<Vec<u8>, SendFailed>;

/// The purpose of a wait on a device.
#[derive(Clone, Copy, Debug)]
pub(super) enum DatagramRequest {
    Received(u8),
    Sent(u64),
}

#[derive(Debug)]
pub(super) enum DatagramOutput {
    Received(Received),
    Sent(SendResult),
    Failed(DatagramError),
}

/// A device with its ports.
#[derive(Debug)]
pub(super) struct DatagramEngine {
    pub(super) transport: DatagramTransport,
    ports: Ports,
    sending: VecDeque<Outgoing>,
    /// The result of each awaited send, once it is known.
    sent: BTreeMap<u64, Option<SendResult>>,
    next_ticket: u64,
}

impl DatagramEngine {
    pub(super) fn new(transport: DatagramTransport) -> Self {
        Self {
            transport,
            ports: Ports::default(),
            sending: VecDeque::new(),
            sent: BTreeMap::new(),
            next_ticket: 0,
        }
    }

    pub(super) fn acquire(&mut self, number: u8) -> Result<(), DatagramError> {
        match &mut self.transport {
            DatagramTransport::Link(link) => link.acquire(number)?,
            DatagramTransport::Udp(udp) => udp.acquire(number)?,
            DatagramTransport::Simulated(udp) => udp.acquire(number)?,
        }
        self.ports.states.insert(number, PortState::default());
        Ok(())
    }

    pub(super) fn release(&mut self, number: u8) {
        self.ports.states.remove(&number);
        // Waiting datagrams are sent now, or never: over UDP their socket is closed with the port.
        self.pump();
        match &mut self.transport {
            DatagramTransport::Link(link) => link.release(number),
            DatagramTransport::Udp(udp) => udp.release(number),
            DatagramTransport::Simulated(udp) => udp.release(number),
        }
    }

    pub(super) fn join(&mut self, group: NodeAddress) -> Result<(), DatagramError> {
        if !group.is_group() {
            return Err(DatagramError::WrongNode { node: group, wanted: "a group" });
        }
        match &mut self.transport {
            DatagramTransport::Link(link) => link.join(group),
            DatagramTransport::Udp(udp) => udp.join(group),
            DatagramTransport::Simulated(udp) => udp.join(group),
        }
    }

    pub(super) fn disable_loopback(&self) -> Result<(), DatagramError> {
        match &self.transport {
            // They do not receive what they send.
            DatagramTransport::Link(_) | DatagramTransport::Simulated(_) => Ok(()),
            DatagramTransport::Udp(udp) => udp.disable_loopback(),
        }
    }

    pub(super) fn node(&self) -> NodeAddress {
        match &self.transport {
            DatagramTransport::Link(link) => link.node(),
            DatagramTransport::Udp(udp) => udp.node(),
            DatagramTransport::Simulated(udp) => udp.node(),
        }
    }

    pub(super) fn payload_max(&self) -> usize {
        match &self.transport {
            DatagramTransport::Link(link) => link.payload_max(),
            DatagramTransport::Udp(udp) => udp.payload_max(),
            DatagramTransport::Simulated(udp) => udp.payload_max(),
        }
    }

    pub(super) fn counters(&mut self) -> Result<DatagramCounters, DatagramError> {
        let mut counters = self.ports.counters;
        if let DatagramTransport::Link(link) = &mut self.transport {
            counters.overrun = link.dropped()?;
        }
        Ok(counters)
    }

    pub(super) fn port_counters(&self, number: u8) -> PortCounters {
        self.ports.states.get(&number).map_or_else(PortCounters::default, |port| port.counters)
    }

    pub(super) fn post(&mut self, number: u8, buffer: Vec<u8>) -> Result<(), PostError> {
        match self.ports.state(number) {
            Some(port) if port.posted.len() + port.arrived.len() < BUFFERS_MAX => {
                port.posted.push_back(buffer);
                Ok(())
            }
            _ => Err(PostError { buffer }),
        }
    }

    /// Posts a buffer whose datagram was read, as the next one: it is in the cache.
    #[inline]
    pub(super) fn post_again(&mut self, number: u8, buffer: Vec<u8>) {
        if let Some(port) = self.ports.state(number) {
            port.posted.push_front(buffer);
        }
    }

    /// Sends at once what does not have to wait for others.
    #[inline]
    pub(super) fn try_send(
        &mut self,
        route: DatagramRoute,
        payload: &[u8],
    ) -> Result<(), DatagramError> {
        if !self.sending.is_empty() {
            self.pump();
            if !self.sending.is_empty() {
                return Err(DatagramError::Full);
            }
        }
        self.carry(route, payload)?;
        self.flush()
    }

    #[inline]
    fn carry(&mut self, route: DatagramRoute, payload: &[u8]) -> Result<(), DatagramError> {
        let (length, max) = (payload.len(), self.payload_max());
        if length > max {
            return Err(DatagramError::TooLong { length, max });
        }
        match &mut self.transport {
            DatagramTransport::Link(link) => link.send(route, payload),
            DatagramTransport::Udp(udp) => udp.send(route, payload, &mut self.ports),
            DatagramTransport::Simulated(udp) => udp.send(route, payload),
        }?;
        self.ports.counters.sent += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DatagramError> {
        match &mut self.transport {
            DatagramTransport::Link(link) => link.flush(),
            DatagramTransport::Udp(_) | DatagramTransport::Simulated(_) => Ok(()),
        }
    }

    /// Sends a datagram, or queues it until there is room and returns its ticket.
    pub(super) fn start_send(
        &mut self,
        route: DatagramRoute,
        payload: Vec<u8>,
    ) -> Result<SendResult, u64> {
        match self.try_send(route, &payload) {
            Ok(()) => Ok(Ok(payload)),
            Err(DatagramError::Full) if self.sending.len() < SENDING_MAX => {
                let ticket = self.next_ticket;
                self.next_ticket += 1;
                self.sending.push_back(Outgoing { ticket, route, payload });
                self.sent.insert(ticket, None);
                Err(ticket)
            }
            Err(error) => Ok(Err(SendFailed { error, payload })),
        }
    }

    /// Forgets a send that is no longer awaited; the datagram is still sent.
    pub(super) fn forget(&mut self, ticket: u64) {
        self.sent.remove(&ticket);
    }

    /// Sends queued datagrams, as far as there is room.
    fn pump(&mut self) {
        while let Some(one) = self.sending.pop_front() {
            let Outgoing { ticket, route, payload } = one;
            let sent = match self.carry(route, &payload) {
                Err(DatagramError::Full) => {
                    let one = Outgoing { ticket, route, payload };
                    self.sending.push_front(one);
                    break;
                }
                Ok(()) => Ok(payload),
                Err(error) => Err(SendFailed { error, payload }),
            };
            if let Some(place) = self.sent.get_mut(&ticket) {
                *place = Some(sent);
            }
        }
        // What cannot be sent now waits in the link's slots.
        let _ = self.flush();
    }

    /// Takes in what has arrived, at least for port `number`.
    #[inline]
    fn poll_port(&mut self, number: u8) -> Result<(), DatagramError> {
        match &mut self.transport {
            DatagramTransport::Link(link) => link.poll(&mut self.ports),
            DatagramTransport::Udp(udp) => udp.poll(number, &mut self.ports),
            DatagramTransport::Simulated(udp) => udp.poll(number, &mut self.ports),
        }
    }

    /// Returns the oldest of the datagrams already taken in.
    #[inline]
    pub(super) fn arrived(&mut self, number: u8) -> Option<Received> {
        self.ports.state(number)?.arrived.pop_front()
    }

    /// Returns the oldest datagram of a port.
    #[inline]
    pub(super) fn receive(&mut self, number: u8) -> Result<Option<Received>, DatagramError> {
        let arrived = |ports: &mut Ports| ports.state(number)?.arrived.pop_front();
        if let Some(received) = arrived(&mut self.ports) {
            return Ok(Some(received));
        }
        let polled = self.poll_port(number);
        match (arrived(&mut self.ports), polled) {
            (Some(received), _) => Ok(Some(received)),
            // Datagrams come again when the interface is up.
            (None, Ok(()) | Err(DatagramError::Down)) => Ok(None),
            (None, Err(error)) => Err(error),
        }
    }
}

impl DatagramEngine {
    /// Prepares for sleep. Returns whether something may be there already.
    pub(super) fn prepare(&mut self) -> io::Result<bool> {
        self.pump();
        let waits = self.sending.front().map(|one| one.route.from_port);
        let has_arrived = self.ports.states.values().any(|port| !port.arrived.is_empty());
        let is_ready = match &mut self.transport {
            DatagramTransport::Link(link) => link.arm(waits.is_some()),
            DatagramTransport::Udp(udp) => udp.arm(waits),
            DatagramTransport::Simulated(udp) => Ok(udp.arm()),
        };
        Ok(is_ready.map_err(io::Error::other)? || has_arrived)
    }

    /// Returns the descriptor that then becomes readable; it never changes.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.transport {
            DatagramTransport::Link(link) => link.descriptor(),
            DatagramTransport::Udp(udp) => udp.descriptor(),
            DatagramTransport::Simulated(udp) => udp.descriptor(),
        }
    }
}

impl Engine for DatagramEngine {
    type Request = DatagramRequest;
    type Output = DatagramOutput;

    fn take(&mut self, want: &DatagramRequest) -> Option<DatagramOutput> {
        self.pump();
        match *want {
            DatagramRequest::Received(number) => match self.receive(number) {
                Ok(received) => received.map(DatagramOutput::Received),
                Err(error) => Some(DatagramOutput::Failed(error)),
            },
            DatagramRequest::Sent(ticket) => {
                let sent = self.sent.get_mut(&ticket)?.take()?;
                self.sent.remove(&ticket);
                Some(DatagramOutput::Sent(sent))
            }
        }
    }

    fn put_back(
        &mut self,
        want: &DatagramRequest,
        found: DatagramOutput,
    ) -> Option<DatagramOutput> {
        match (want, found) {
            (DatagramRequest::Received(number), DatagramOutput::Received(received)) => {
                let Some(port) = self.ports.state(*number) else {
                    return Some(DatagramOutput::Received(received));
                };
                port.arrived.push_front(received);
                None
            }
            (_, found) => Some(found),
        }
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        self.prepare().map(ArmOutcome::ready_if)
    }

    fn has_unannounced_work(&self) -> bool {
        !self.sending.is_empty()
    }

    fn has_new_events(&self) -> bool {
        self.ports.states.values().any(|port| !port.arrived.is_empty())
            || self.sent.values().any(Option::is_some)
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        each(WatchedDescriptor::readable(self.descriptor()));
    }

    fn spurious_events_max(&self) -> Option<u32> {
        Some(UNCLAIMED_READINESS_MAX)
    }
}
