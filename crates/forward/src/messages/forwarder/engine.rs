//! The engine: it alone touches the provider; on the interface's path it does everything.
//!
//! ```text
//!                    +--------------------- cut-through: each packet at once ----------------------+
//!   port: packets ---+-- store-and-forward: held until the last, algorithm ------------------------+--> routes --> port
//!   of each source   +-- host: copied out, handed over -> program: algorithm -> copied in ----------+
//! ```
//! Each source has at most one unfinished message. Packets that the next node has no room for stay in its route; a
//! source whose packets cannot leave is not read, so that its credit runs out.

use std::collections::BTreeMap;

use vigie_detect::Instant;
use vigie_detect::clock::monotonic_now;
use vigie_via::vi::{Address, DisconnectReason, Provider, ViId};

use super::ForwarderReport;
use super::route_queue::{Outbound, RouteQueue};
use crate::messages::DISCRIMINATOR;
use crate::messages::algorithm::{Algorithm, Envelope, HEAD_BYTES, MessageVerdict};
use crate::messages::config::NodeConfig;
use crate::messages::error::MessagesError;
use crate::messages::node::{NodeMachine, StepResult};
use crate::messages::packet::{PacketHeader, PacketKind, Role};
use crate::messages::port::{Arrival, NodePort, PortEvent};
use crate::messages::program_channel::{ProgramChannel, ProgramMessage};
use crate::messages::reassembly::{FragmentPosition, Reassembly};
use crate::messages::wait_budget::{STOPPED_MAX, WaitBudget};
use crate::model::Sees;

/// The maximum number of packets taken from one source before it is the next one's turn.
const PACKETS_PER_TURN: usize = 32;

/// The place where the algorithm runs, and its mode.
pub(in crate::messages) enum Execution {
    Nic { algorithm: Box<dyn Algorithm>, is_cut: bool },
    Host(ProgramChannel),
}

/// The fate of the rest of a message after its first packet was processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remainder {
    /// It is forwarded under this tag.
    Goes(u32),
    /// Its packets are released.
    Dropped,
}

/// A source.
struct SourceState {
    number: u32,
    reassembly: Reassembly,
    /// For cut-through, and for a message without a destination.
    rest: Remainder,
    /// Store-and-forward: packets that wait for the last one.
    held: Vec<Arrival>,
    /// Host: the bytes received so far.
    bytes: Vec<u8>,
    /// Host: a message that the program had no room for.
    stalled: Option<ProgramMessage>,
    /// It has disconnected; the packets it had sent are processed first.
    is_over: bool,
}

/// The engine of a forwarder.
pub(in crate::messages) struct ForwarderEngine<P: Provider> {
    port: NodePort<P>,
    execution: Execution,
    longest: u32,
    connect_deadline: Instant,
    config: NodeConfig,
    is_listening: bool,
    routes: BTreeMap<u32, RouteQueue>,
    sources: BTreeMap<ViId, SourceState>,
    next_number: u32,
    /// Its sources have gone, and it was set to end with them.
    is_over: bool,
    /// The buffer in which the algorithm sees a message's bytes, on the interface.
    scratch: Vec<u8>,
    report: ForwarderReport,
}

/// A packet of a message, from the source at `vi`.
struct DataPacket {
    vi: ViId,
    header: PacketHeader,
    arrival: Arrival,
    fragment: FragmentPosition,
}

impl<P: Provider> ForwarderEngine<P> {
    pub(in crate::messages) fn new(
        nic: P,
        config: &NodeConfig,
        execution: Execution,
    ) -> Result<Self, MessagesError> {
        // A stored message must fit into the interface.
        let longest = match execution {
            Execution::Nic { is_cut: false, .. } => config.half_bytes(),
            _ => config.longest(),
        };
        let accepts = &[Role::Source, Role::Sink];
        let port_config = config.port(Role::Forwarder, accepts, longest)?;
        let port = NodePort::new(nic, config.clock.clone(), port_config)?;
        let connect_deadline = port.now() + config.timeout + STOPPED_MAX;
        Ok(Self {
            port,
            execution,
            longest,
            connect_deadline,
            config: config.clone(),
            is_listening: false,
            routes: BTreeMap::new(),
            sources: BTreeMap::new(),
            next_number: 1,
            is_over: false,
            scratch: Vec::new(),
            report: ForwarderReport::default(),
        })
    }

    pub(in crate::messages) fn address(&self) -> Address {
        self.port.address()
    }

    pub(in crate::messages) fn now(&self) -> Instant {
        self.config.clock.now()
    }

    /// Returns the steps until it accepts sources: until it is connected to all sinks.
    pub(in crate::messages) fn connect_steps(
        &self,
    ) -> impl FnMut(&mut Self, &mut Option<Instant>) -> StepResult<()> + use<P> {
        let mut budget = WaitBudget::new(self.config.timeout, self.now());
        move |engine, until| {
            if engine.is_listening {
                return Ok(Some(()));
            }
            if budget.is_exhausted(engine.now()) {
                return Err(MessagesError::Refused(DisconnectReason::TimedOut));
            }
            *until = Some(budget.next_check());
            Ok(None)
        }
    }

    pub(in crate::messages) const fn is_over(&self) -> bool {
        self.is_over
    }

    pub(in crate::messages) fn report(&self) -> ForwarderReport {
        let channel = match &self.execution {
            Execution::Nic { .. } => Default::default(),
            Execution::Host(host) => host.times,
        };
        ForwarderReport { channel, ..self.report }
    }

    /// Starts connecting to the sinks.
    pub(in crate::messages) fn connect(
        &mut self,
        routes: &[(u32, Address)],
    ) -> Result<(), MessagesError> {
        for (destination, address) in routes {
            let connection = self.port.connect(address, DISCRIMINATOR, self.connect_deadline)?;
            self.routes.insert(*destination, RouteQueue::new(connection));
        }
        Ok(())
    }

    /// Continues connecting; once done, listens for sources. Returns whether it does.
    pub(in crate::messages) fn is_ready(&mut self) -> Result<bool, MessagesError> {
        self.port.tick()?;
        while let Some(event) = self.port.next_event() {
            match event {
                PortEvent::Opened(vi, greeting) => {
                    if greeting.role != Role::Sink {
                        return Err(MessagesError::Mismatch("the next node is not a sink"));
                    }
                    self.longest = self.longest.min(greeting.message_bytes_max);
                    self.routes
                        .values_mut()
                        .filter(|route| route.connection == vi)
                        .for_each(|route| route.is_open = true);
                }
                PortEvent::Closed(_, DisconnectReason::Mismatch(what)) => {
                    return Err(MessagesError::Mismatch(what));
                }
                PortEvent::Closed(_, reason) => return Err(MessagesError::Refused(reason)),
                PortEvent::Control(..) => {}
            }
        }

        if !self.is_listening && self.routes.values().all(|route| route.is_open) {
            self.port.limit_messages(self.longest);
            self.port.listen(DISCRIMINATOR)?;
            self.is_listening = true;
        }

        Ok(self.is_listening)
    }

    /// Takes packets that have arrived, and sends those that can leave. Returns whether anything was done.
    fn forward(&mut self) -> Result<bool, MessagesError> {
        let mut has_worked = self.port.tick()?;
        while let Some(event) = self.port.next_event() {
            has_worked = true;
            match event {
                PortEvent::Opened(vi, _) => self.add_source(vi),
                PortEvent::Closed(vi, _) => match self.sources.get_mut(&vi) {
                    Some(source) => source.is_over = true,
                    None => {
                        self.port.forget(vi);
                        self.remove_peer(vi);
                    }
                },
                PortEvent::Control(vi, header) => {
                    if let Err(what) = self.relay_control(vi, header) {
                        self.port.close(vi, DisconnectReason::PeerFault(what));
                    }
                }
            }
        }

        has_worked |= self.take_from_program()?;
        let sources: Vec<ViId> = self.sources.keys().copied().collect();
        for vi in sources {
            has_worked |= self.poll_source(vi)?;
        }

        Ok(self.pump()? || has_worked)
    }

    // ------------------------------------------------------------------ connections

    fn add_source(&mut self, vi: ViId) {
        let number = self.next_number;
        self.next_number = self.next_number.wrapping_add(1).max(1);
        let reassembly = Reassembly::default();
        let (held, bytes) = (Vec::new(), Vec::new());
        let rest = Remainder::Dropped;
        let (stalled, is_over) = (None, false);
        let source = SourceState { number, reassembly, rest, held, bytes, stalled, is_over };
        self.sources.insert(vi, source);
    }

    fn remove_peer(&mut self, vi: ViId) {
        if let Some(source) = self.sources.remove(&vi) {
            for arrival in source.held {
                self.port.release(arrival);
            }
            self.report.lost += u64::from(source.reassembly.is_open());
            // Queued after its complete messages: those are still forwarded.
            let mark =
                |destination| PacketHeader::new(PacketKind::Abort, destination, source.number);
            let destinations: Vec<u32> = self.routes.keys().copied().collect();
            for destination in destinations {
                self.enqueue(destination, ProgramMessage::new(mark(destination), Vec::new()));
            }
            self.is_over = self.config.ends_with_sources && self.sources.is_empty();
            return;
        }
        let lost = self.routes.iter_mut().filter(|(_, route)| route.connection == vi);
        for (destination, route) in lost {
            route.is_gone = true;
            for out in route.out.drain(..) {
                match out {
                    Outbound::Passing(_, arrival) => self.port.release(arrival),
                    Outbound::Message(..) => {
                        self.report.lost += 1;
                        if let Execution::Host(host) = &mut self.execution {
                            host.in_flight = host.in_flight.saturating_sub(1);
                        }
                    }
                    Outbound::Mark(_) => {}
                }
            }
            for (source, SourceState { number, .. }) in &self.sources {
                self.port.send_control(
                    *source,
                    PacketHeader::new(PacketKind::Gone, *destination, *number),
                );
            }
        }
    }

    /// Relays a sink's control packet to the source that it concerns.
    fn relay_control(&mut self, vi: ViId, header: PacketHeader) -> Result<(), &'static str> {
        let route = self.routes.get(&header.destination).filter(|route| route.connection == vi);
        if route.is_none() || !matches!(header.kind, PacketKind::Delivered | PacketKind::Finished) {
            return Err("a packet that is not for a forwarder");
        }
        let is_meant = |(_, source): &(&ViId, &SourceState)| source.number == header.source;
        // A source that has gone needs no notice.
        if let Some((source, _)) = self.sources.iter().find(is_meant) {
            self.port.send_control(*source, header);
        }
        Ok(())
    }

    // ------------------------------------------------------------------ packets of sources

    fn poll_source(&mut self, vi: ViId) -> Result<bool, MessagesError> {
        let mut has_worked = false;
        for _ in 0..PACKETS_PER_TURN {
            let Some(source) = self.sources.get_mut(&vi) else { break };
            if let Some(item) = source.stalled.take() {
                self.give(vi, item)?;
                if self.sources.get(&vi).is_some_and(|source| source.stalled.is_some()) {
                    break;
                }
                has_worked = true;
                continue;
            }
            let is_over = source.is_over;
            let Some(arrival) = self.port.arrival(vi) else {
                if is_over {
                    self.remove_peer(vi);
                    has_worked = true;
                }
                break;
            };
            has_worked = true;
            if let Err(what) = self.arrived(vi, arrival)? {
                self.port.close(vi, DisconnectReason::PeerFault(what));
            }
        }
        Ok(has_worked)
    }

    /// Handles a packet. The inner error says what the peer did wrong.
    fn arrived(
        &mut self,
        vi: ViId,
        arrival: Arrival,
    ) -> Result<Result<(), &'static str>, MessagesError> {
        let Some(source) = self.sources.get_mut(&vi) else {
            self.port.release(arrival);
            return Ok(Ok(()));
        };

        let mut header = arrival.header;
        header.source = source.number;
        let fragment = match header.kind {
            PacketKind::Finish if !source.reassembly.is_open() => None,
            PacketKind::Data => {
                let payload_max = self.port.payload_bytes();
                match source.reassembly.take(&header, payload_max, self.longest) {
                    Ok(fragment) => Some(fragment),
                    Err(what) => {
                        self.port.release(arrival);
                        return Ok(Err(what));
                    }
                }
            }
            _ => {
                self.port.release(arrival);
                return Ok(Err("a packet that is not for a forwarder"));
            }
        };

        let is_open = self.routes.get(&header.destination).is_some_and(|route| !route.is_gone);
        if !is_open {
            self.lose(vi, header, arrival, fragment);
            return Ok(Ok(()));
        }

        let Some(fragment) = fragment else {
            self.port.release(arrival);
            self.give_mark(vi, header)?;
            return Ok(Ok(()));
        };

        let packet = DataPacket { vi, header, arrival, fragment };
        match &self.execution {
            Execution::Nic { is_cut: true, .. } => self.cut_through(packet)?,
            Execution::Nic { .. } => self.store(packet)?,
            Execution::Host(_) => self.copy_out(packet)?,
        }

        Ok(Ok(()))
    }

    /// Discards a packet for an unknown destination, and tells the source once per message.
    fn lose(
        &mut self,
        vi: ViId,
        header: PacketHeader,
        arrival: Arrival,
        fragment: Option<FragmentPosition>,
    ) {
        let Some(source) = self.sources.get_mut(&vi) else { return };
        source.bytes = Vec::new();
        for held in source.held.drain(..) {
            self.port.release(held);
        }
        self.port.release(arrival);
        if fragment.is_none_or(|fragment| fragment.is_last) {
            self.report.lost += u64::from(fragment.is_some());
            self.port.send_control(
                vi,
                PacketHeader::new(PacketKind::Gone, header.destination, header.source),
            );
        }
    }

    /// Queues a control packet in order among the messages.
    fn give_mark(&mut self, vi: ViId, header: PacketHeader) -> Result<(), MessagesError> {
        let item = ProgramMessage::new(header, Vec::new());
        match &self.execution {
            Execution::Host(_) => self.give(vi, item),
            Execution::Nic { .. } => {
                self.enqueue(header.destination, item);
                Ok(())
            }
        }
    }

    // ------------------------------------------------------------------ on the interface

    /// Runs the algorithm on a message whose first packets are `arrivals`.
    fn run(
        &mut self,
        header: &PacketHeader,
        arrivals: &[Arrival],
    ) -> Result<Remainder, MessagesError> {
        let Execution::Nic { algorithm, .. } = &mut self.execution else {
            return Ok(Remainder::Dropped);
        };

        let seen = match algorithm.sees() {
            Sees::Nothing => 0,
            Sees::Header => HEAD_BYTES,
            Sees::Everything => usize::MAX,
        };

        let begun = monotonic_now();
        self.scratch.clear();
        for arrival in arrivals {
            let room = seen - self.scratch.len();
            if room == 0 {
                break;
            }
            self.port.read_onto(arrival, room, &mut self.scratch)?;
        }

        let PacketHeader { source, destination, tag, length, .. } = *header;
        let mut envelope = Envelope { source, destination, tag, length };
        let verdict = algorithm.run(&mut envelope, &mut self.scratch);
        if verdict == MessageVerdict::Forward {
            let mut rest = &self.scratch[..];
            for arrival in arrivals {
                let count = usize::try_from(arrival.payload).unwrap_or(0).min(rest.len());
                let (fragment, others) = rest.split_at(count);
                self.port.write(arrival, fragment)?;
                rest = others;
            }
        }

        self.report.nic_runs += 1;
        self.report.nic_algorithm += monotonic_now() - begun;
        match verdict {
            MessageVerdict::Forward => {
                self.report.forwarded += 1;
                self.report.bytes += u64::from(length);
                Ok(Remainder::Goes(envelope.tag))
            }
            MessageVerdict::Drop => {
                self.report.dropped += 1;
                Ok(Remainder::Dropped)
            }
        }
    }

    /// Sends each packet on as it arrives.
    fn cut_through(&mut self, packet: DataPacket) -> Result<(), MessagesError> {
        let DataPacket { vi, mut header, arrival, fragment } = packet;
        if fragment.is_first {
            let rest = self.run(&header, std::slice::from_ref(&arrival))?;
            if let Some(source) = self.sources.get_mut(&vi) {
                source.rest = rest;
            }
            if rest == Remainder::Dropped {
                self.enqueue_marker(header, PacketKind::Dropped);
            }
        }
        match self.sources.get(&vi).map(|source| source.rest) {
            Some(Remainder::Goes(tag)) => {
                header.tag = tag;
                self.enqueue_outbound(header.destination, Outbound::Passing(header, arrival));
            }
            _ => self.port.release(arrival),
        }
        Ok(())
    }

    /// Holds packets until the last one, and then sends all.
    fn store(&mut self, packet: DataPacket) -> Result<(), MessagesError> {
        let DataPacket { vi, header, arrival, fragment } = packet;
        let Some(source) = self.sources.get_mut(&vi) else { return Ok(()) };
        source.held.push(arrival);
        if !fragment.is_last {
            return Ok(());
        }
        let held = std::mem::take(&mut source.held);
        match self.run(&header, &held)? {
            Remainder::Goes(tag) => {
                for arrival in held {
                    let mut header = arrival.header;
                    (header.source, header.tag) = (self.number(vi), tag);
                    self.enqueue_outbound(header.destination, Outbound::Passing(header, arrival));
                }
            }
            Remainder::Dropped => {
                held.into_iter().for_each(|arrival| self.port.release(arrival));
                self.enqueue_marker(header, PacketKind::Dropped);
            }
        }
        Ok(())
    }

    fn number(&self, vi: ViId) -> u32 {
        self.sources.get(&vi).map_or(0, |source| source.number)
    }

    // ------------------------------------------------------------------ by the host

    /// Copies a packet into the program's memory, and hands over the message when it is complete.
    fn copy_out(&mut self, packet: DataPacket) -> Result<(), MessagesError> {
        let DataPacket { vi, mut header, arrival, fragment } = packet;
        let Some(source) = self.sources.get_mut(&vi) else { return Ok(()) };
        let Execution::Host(host) = &mut self.execution else { return Ok(()) };
        let begun = monotonic_now();
        if fragment.is_first {
            let length = usize::try_from(header.length).unwrap_or(0);
            source.bytes = Vec::with_capacity(length);
        }
        self.port.read_onto(&arrival, usize::MAX, &mut source.bytes)?;
        self.port.release(arrival);
        host.times.packets += 1;
        host.times.copying += monotonic_now() - begun;
        if !fragment.is_last {
            return Ok(());
        }
        let bytes = std::mem::take(&mut source.bytes);
        header.offset = 0;
        self.give(vi, ProgramMessage::new(header, bytes))
    }

    fn give(&mut self, vi: ViId, item: ProgramMessage) -> Result<(), MessagesError> {
        let Execution::Host(host) = &mut self.execution else { return Ok(()) };
        let refused = host.give(item)?;
        if let Some(source) = self.sources.get_mut(&vi) {
            source.stalled = refused;
        }
        Ok(())
    }

    fn take_from_program(&mut self) -> Result<bool, MessagesError> {
        let mut has_worked = false;
        while let Execution::Host(host) = &mut self.execution {
            let Some(item) = host.take()? else { break };
            has_worked = true;
            match item.header.kind {
                PacketKind::Data => {
                    self.report.forwarded += 1;
                    self.report.bytes += u64::from(item.header.length);
                }
                PacketKind::Dropped => self.report.dropped += 1,
                _ => {}
            }
            if item.header.kind != PacketKind::Data {
                host.in_flight = host.in_flight.saturating_sub(1);
            }
            self.enqueue(item.header.destination, item);
        }
        Ok(has_worked)
    }

    // ------------------------------------------------------------------ sending

    fn enqueue_marker(&mut self, header: PacketHeader, kind: PacketKind) {
        let header = PacketHeader { kind, length: 0, offset: 0, ..header };
        self.enqueue(header.destination, ProgramMessage::new(header, Vec::new()));
    }

    fn enqueue(&mut self, destination: u32, item: ProgramMessage) {
        let ProgramMessage { header, bytes, .. } = item;
        let out = match header.kind {
            PacketKind::Data => Outbound::Message(header, bytes),
            _ => Outbound::Mark(header),
        };
        self.enqueue_outbound(destination, out);
    }

    fn enqueue_outbound(&mut self, destination: u32, out: Outbound) {
        match self.routes.get_mut(&destination) {
            Some(route) if !route.is_gone => route.out.push_back(out),
            _ => {
                self.report.lost += u64::from(matches!(out, Outbound::Message(..)));
                match (out, &mut self.execution) {
                    (Outbound::Passing(_, arrival), _) => self.port.release(arrival),
                    (Outbound::Message(..), Execution::Host(host)) => {
                        host.in_flight = host.in_flight.saturating_sub(1);
                    }
                    _ => {}
                }
            }
        }
    }

    fn pump(&mut self) -> Result<bool, MessagesError> {
        let mut has_worked = false;
        for route in self.routes.values_mut() {
            if route.out.is_empty() {
                continue;
            }
            let begun = monotonic_now();
            let departed = route.pump(&mut self.port)?;
            has_worked |= departed.packets > 0;
            if let Execution::Host(host) = &mut self.execution {
                host.in_flight = host.in_flight.saturating_sub(departed.messages);
                host.times.packets += departed.packets;
                host.times.copying += monotonic_now() - begun;
            }
        }
        Ok(has_worked)
    }
}

impl<P: Provider> NodeMachine for ForwarderEngine<P> {
    type Nic = P;

    fn port(&self) -> &NodePort<P> {
        &self.port
    }

    fn port_mut(&mut self) -> &mut NodePort<P> {
        &mut self.port
    }

    fn tick(&mut self) -> Result<bool, MessagesError> {
        if self.is_listening { self.forward() } else { self.is_ready() }
    }

    /// Its user waits for its start and its end only.
    fn has_updates(&self) -> bool {
        !self.is_listening || self.is_over
    }
}
