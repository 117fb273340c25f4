//! The engine: it alone touches the provider, and on the interface's path it does everything.
//!
//! ```text
//!                    +--------------------- cut-through: each packet at once ----------------------+
//!   port: packets ---+-- store-and-forward: held until the last, algorithm ------------------------+--> routes --> port
//!   of each source   +-- host: copied out, handed over -> program: algorithm -> copied in ----------+
//! ```
//! Each source has one message in the middle at a time. What the next node has no room for stays in its route; a source whose
//! packets have nowhere to go is not listened to, so that its credit runs out.

use std::collections::BTreeMap;

use vigie_detect::Instant;
use vigie_detect::clock::monotonic_now;
use vigie_via::vi::{Address, Provider, Reason, ViId};

use super::ForwarderReport;
use super::route::{Out, Route};
use crate::messages::DISCRIMINATOR;
use crate::messages::assembly::{Piece, Sequence};
use crate::messages::error::MessagesError;
use crate::messages::hand_over::{HandOver, Item};
use crate::messages::idle::STOPPED_MAX;
use crate::messages::packet::{Header, Kind, Role};
use crate::messages::port::{Arrival, Port, PortEvent};
use crate::messages::settings::Settings;
use crate::messages::work::{Envelope, Fate, HEAD_BYTES, Work};
use crate::model::Sees;

/// How many packets of one source are taken before it is the next one's turn.
const PACKETS_PER_TURN: usize = 32;

/// Where the algorithm runs, and how.
pub(in crate::messages) enum Way {
    Nic { work: Box<dyn Work>, is_cut: bool },
    Host(HandOver),
}

/// What becomes of the rest of a message whose beginning was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// It goes on under this tag.
    Goes(u32),
    /// Its packets are released.
    Dropped,
}

/// A source.
struct Origin {
    number: u32,
    sequence: Sequence,
    /// By cut-through, or of a message that goes nowhere.
    rest: Rest,
    /// Store-and-forward: packets that wait for the last one.
    held: Vec<Arrival>,
    /// Host: the message so far.
    bytes: Vec<u8>,
    /// Host: what the program had no room for.
    stalled: Option<Item>,
    /// It has gone: what it had sent before is taken first.
    is_over: bool,
}

/// The engine of a forwarder.
pub(in crate::messages) struct Engine<P: Provider> {
    port: Port<P>,
    way: Way,
    longest: u32,
    patience_until: Instant,
    settings: Settings,
    is_listening: bool,
    routes: BTreeMap<u32, Route>,
    origins: BTreeMap<ViId, Origin>,
    next_number: u32,
    /// Its sources have gone, and it was to end with them.
    is_over: bool,
    /// Where the algorithm's bytes are while it sees them, on the interface.
    scratch: Vec<u8>,
    report: ForwarderReport,
}

impl<P: Provider> Engine<P> {
    pub(in crate::messages) fn new(
        nic: P,
        settings: &Settings,
        way: Way,
    ) -> Result<Self, MessagesError> {
        // What is stored in the interface must fit there.
        let longest = match way {
            Way::Nic { is_cut: false, .. } => settings.half_bytes(),
            _ => settings.longest(),
        };
        let accepts = &[Role::Source, Role::Sink];
        let config = settings.port(Role::Forwarder, accepts, longest)?;
        let port = Port::new(nic, settings.clock.clone(), config)?;
        let patience_until = port.now() + settings.patience + STOPPED_MAX;
        Ok(Self {
            port,
            way,
            longest,
            patience_until,
            settings: settings.clone(),
            is_listening: false,
            routes: BTreeMap::new(),
            origins: BTreeMap::new(),
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
        self.settings.clock.now()
    }

    pub(in crate::messages) const fn port(&mut self) -> &mut Port<P> {
        &mut self.port
    }

    pub(in crate::messages) const fn is_over(&self) -> bool {
        self.is_over
    }

    pub(in crate::messages) fn report(&self) -> ForwarderReport {
        let hand_over = match &self.way {
            Way::Nic { .. } => Default::default(),
            Way::Host(host) => host.times,
        };
        ForwarderReport { hand_over, ..self.report }
    }

    /// Begins to connect with the sinks.
    pub(in crate::messages) fn connect(
        &mut self,
        routes: &[(u32, Address)],
    ) -> Result<(), MessagesError> {
        for (destination, address) in routes {
            let hop = self.port.connect(address, DISCRIMINATOR, self.patience_until)?;
            self.routes.insert(*destination, Route::new(hop));
        }
        Ok(())
    }

    /// Goes on connecting; then it listens for sources. Returns whether it does.
    pub(in crate::messages) fn is_ready(&mut self) -> Result<bool, MessagesError> {
        self.port.turn()?;
        while let Some(event) = self.port.event() {
            match event {
                PortEvent::Opened(vi, greeting) => {
                    if greeting.role != Role::Sink {
                        return Err(MessagesError::Mismatch("the next node is no sink"));
                    }
                    self.longest = self.longest.min(greeting.message_bytes_max);
                    self.routes
                        .values_mut()
                        .filter(|route| route.hop == vi)
                        .for_each(|route| route.is_open = true);
                }
                PortEvent::Closed(_, Reason::Mismatch(what)) => {
                    return Err(MessagesError::Mismatch(what));
                }
                PortEvent::Closed(_, reason) => return Err(MessagesError::Refused(reason)),
                PortEvent::Told(..) => {}
            }
        }
        if !self.is_listening && self.routes.values().all(|route| route.is_open) {
            self.port.limit_messages(self.longest);
            self.port.listen(DISCRIMINATOR)?;
            self.is_listening = true;
        }
        Ok(self.is_listening)
    }

    /// Does what there is to do, without waiting. Returns whether anything was done.
    pub(in crate::messages) fn turn(&mut self) -> Result<bool, MessagesError> {
        let mut has_worked = self.port.turn()?;
        while let Some(event) = self.port.event() {
            has_worked = true;
            match event {
                PortEvent::Opened(vi, _) => self.came(vi),
                PortEvent::Closed(vi, _) => match self.origins.get_mut(&vi) {
                    Some(origin) => origin.is_over = true,
                    None => {
                        self.port.forget(vi);
                        self.went(vi);
                    }
                },
                PortEvent::Told(vi, header) => {
                    if let Err(what) = self.relay(vi, header) {
                        self.port.close(vi, Reason::PeerFault(what));
                    }
                }
            }
        }
        has_worked |= self.take_from_program()?;
        let sources: Vec<ViId> = self.origins.keys().copied().collect();
        for vi in sources {
            has_worked |= self.listen_to(vi)?;
        }
        Ok(self.pump()? || has_worked)
    }

    // ------------------------------------------------------------------ who comes and goes

    fn came(&mut self, vi: ViId) {
        let number = self.next_number;
        self.next_number = self.next_number.wrapping_add(1).max(1);
        let sequence = Sequence::default();
        let (held, bytes) = (Vec::new(), Vec::new());
        let rest = Rest::Dropped;
        let (stalled, is_over) = (None, false);
        let origin = Origin { number, sequence, rest, held, bytes, stalled, is_over };
        self.origins.insert(vi, origin);
    }

    fn went(&mut self, vi: ViId) {
        if let Some(origin) = self.origins.remove(&vi) {
            for arrival in origin.held {
                self.port.release(arrival);
            }
            self.report.lost += u64::from(origin.sequence.is_open());
            // Behind what it has sent completely: that goes on.
            let mark = |destination| Header::new(Kind::Abort, destination, origin.number);
            let destinations: Vec<u32> = self.routes.keys().copied().collect();
            for destination in destinations {
                self.leave(destination, Item::new(mark(destination), Vec::new()));
            }
            self.is_over = self.settings.ends_with_sources && self.origins.is_empty();
            return;
        }
        let lost = self.routes.iter_mut().filter(|(_, route)| route.hop == vi);
        for (destination, route) in lost {
            route.is_gone = true;
            for out in route.out.drain(..) {
                match out {
                    Out::Passing(_, arrival) => self.port.release(arrival),
                    Out::Message(..) => {
                        self.report.lost += 1;
                        if let Way::Host(host) = &mut self.way {
                            host.inside = host.inside.saturating_sub(1);
                        }
                    }
                    Out::Mark(_) => {}
                }
            }
            for (origin, Origin { number, .. }) in &self.origins {
                self.port.tell(*origin, Header::new(Kind::Gone, *destination, *number));
            }
        }
    }

    /// Passes word of a sink on to the source that it is about.
    fn relay(&mut self, vi: ViId, header: Header) -> Result<(), &'static str> {
        let route = self.routes.get(&header.destination).filter(|route| route.hop == vi);
        if route.is_none() || !matches!(header.kind, Kind::Delivered | Kind::Finished) {
            return Err("a packet that is not for a forwarder");
        }
        let is_meant = |(_, origin): &(&ViId, &Origin)| origin.number == header.source;
        // A source that has gone needs no word.
        if let Some((origin, _)) = self.origins.iter().find(is_meant) {
            self.port.tell(*origin, header);
        }
        Ok(())
    }

    // ------------------------------------------------------------------ packets of sources

    fn listen_to(&mut self, vi: ViId) -> Result<bool, MessagesError> {
        let mut has_worked = false;
        for _ in 0..PACKETS_PER_TURN {
            let Some(origin) = self.origins.get_mut(&vi) else { break };
            if let Some(item) = origin.stalled.take() {
                self.give(vi, item)?;
                if self.origins.get(&vi).is_some_and(|origin| origin.stalled.is_some()) {
                    break;
                }
                has_worked = true;
                continue;
            }
            let is_over = origin.is_over;
            let Some(arrival) = self.port.arrival(vi) else {
                if is_over {
                    self.went(vi);
                    has_worked = true;
                }
                break;
            };
            has_worked = true;
            if let Err(what) = self.arrived(vi, arrival)? {
                self.port.close(vi, Reason::PeerFault(what));
            }
        }
        Ok(has_worked)
    }

    /// Takes a packet. The inner error tells what the peer did wrong.
    fn arrived(
        &mut self,
        vi: ViId,
        arrival: Arrival,
    ) -> Result<Result<(), &'static str>, MessagesError> {
        let Some(origin) = self.origins.get_mut(&vi) else {
            self.port.release(arrival);
            return Ok(Ok(()));
        };
        let mut header = arrival.header;
        header.source = origin.number;
        let piece = match header.kind {
            Kind::Finish if !origin.sequence.is_open() => None,
            Kind::Data => {
                let payload_max = self.port.payload_bytes();
                match origin.sequence.take(&header, payload_max, self.longest) {
                    Ok(piece) => Some(piece),
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
            self.lose(vi, header, arrival, piece);
            return Ok(Ok(()));
        }
        let Some(piece) = piece else {
            self.port.release(arrival);
            self.give_mark(vi, header)?;
            return Ok(Ok(()));
        };
        match &self.way {
            Way::Nic { is_cut: true, .. } => self.cut_through(vi, header, arrival, piece)?,
            Way::Nic { .. } => self.store(vi, header, arrival, piece)?,
            Way::Host(_) => self.copy_out(vi, header, arrival, piece)?,
        }
        Ok(Ok(()))
    }

    /// Loses a packet for a destination that there is not, and tells the source once for each message.
    fn lose(&mut self, vi: ViId, header: Header, arrival: Arrival, piece: Option<Piece>) {
        let Some(origin) = self.origins.get_mut(&vi) else { return };
        origin.bytes = Vec::new();
        for held in origin.held.drain(..) {
            self.port.release(held);
        }
        self.port.release(arrival);
        if piece.is_none_or(|piece| piece.is_last) {
            self.report.lost += u64::from(piece.is_some());
            self.port.tell(vi, Header::new(Kind::Gone, header.destination, header.source));
        }
    }

    /// A packet of ours that takes its turn among the messages.
    fn give_mark(&mut self, vi: ViId, header: Header) -> Result<(), MessagesError> {
        let item = Item::new(header, Vec::new());
        match &self.way {
            Way::Host(_) => self.give(vi, item),
            Way::Nic { .. } => {
                self.leave(header.destination, item);
                Ok(())
            }
        }
    }

    // ------------------------------------------------------------------ on the interface

    /// Runs the algorithm on a message whose packets from the first on are `arrivals`.
    fn run(&mut self, header: &Header, arrivals: &[Arrival]) -> Result<Rest, MessagesError> {
        let Way::Nic { work, .. } = &mut self.way else { return Ok(Rest::Dropped) };
        let seen = match work.sees() {
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
        let Header { source, destination, tag, length, .. } = *header;
        let mut envelope = Envelope { source, destination, tag, length };
        let fate = work.run(&mut envelope, &mut self.scratch);
        if fate == Fate::Forward {
            let mut rest = &self.scratch[..];
            for arrival in arrivals {
                let count = usize::try_from(arrival.payload).unwrap_or(0).min(rest.len());
                let (piece, others) = rest.split_at(count);
                self.port.write(arrival, piece)?;
                rest = others;
            }
        }
        self.report.nic_runs += 1;
        self.report.nic_algorithm += monotonic_now() - begun;
        match fate {
            Fate::Forward => {
                self.report.forwarded += 1;
                self.report.bytes += u64::from(length);
                Ok(Rest::Goes(envelope.tag))
            }
            Fate::Drop => {
                self.report.dropped += 1;
                Ok(Rest::Dropped)
            }
        }
    }

    /// Sends each packet on as it comes.
    fn cut_through(
        &mut self,
        vi: ViId,
        mut header: Header,
        arrival: Arrival,
        piece: Piece,
    ) -> Result<(), MessagesError> {
        if piece.is_first {
            let rest = self.run(&header, std::slice::from_ref(&arrival))?;
            if let Some(origin) = self.origins.get_mut(&vi) {
                origin.rest = rest;
            }
            if rest == Rest::Dropped {
                self.leave_mark(header, Kind::Dropped);
            }
        }
        match self.origins.get(&vi).map(|origin| origin.rest) {
            Some(Rest::Goes(tag)) => {
                header.tag = tag;
                self.depart(header.destination, Out::Passing(header, arrival));
            }
            _ => self.port.release(arrival),
        }
        Ok(())
    }

    /// Holds packets until the last one, and sends all on then.
    fn store(
        &mut self,
        vi: ViId,
        header: Header,
        arrival: Arrival,
        piece: Piece,
    ) -> Result<(), MessagesError> {
        let Some(origin) = self.origins.get_mut(&vi) else { return Ok(()) };
        origin.held.push(arrival);
        if !piece.is_last {
            return Ok(());
        }
        let held = std::mem::take(&mut origin.held);
        match self.run(&header, &held)? {
            Rest::Goes(tag) => {
                for arrival in held {
                    let mut header = arrival.header;
                    (header.source, header.tag) = (self.number(vi), tag);
                    self.depart(header.destination, Out::Passing(header, arrival));
                }
            }
            Rest::Dropped => {
                held.into_iter().for_each(|arrival| self.port.release(arrival));
                self.leave_mark(header, Kind::Dropped);
            }
        }
        Ok(())
    }

    fn number(&self, vi: ViId) -> u32 {
        self.origins.get(&vi).map_or(0, |origin| origin.number)
    }

    // ------------------------------------------------------------------ by the host

    /// Copies a packet into the program's memory, and hands the message over when it is there.
    fn copy_out(
        &mut self,
        vi: ViId,
        header: Header,
        arrival: Arrival,
        piece: Piece,
    ) -> Result<(), MessagesError> {
        let Some(origin) = self.origins.get_mut(&vi) else { return Ok(()) };
        let Way::Host(host) = &mut self.way else { return Ok(()) };
        let begun = monotonic_now();
        if piece.is_first {
            let length = usize::try_from(header.length).unwrap_or(0);
            origin.bytes = Vec::with_capacity(length);
        }
        self.port.read_onto(&arrival, usize::MAX, &mut origin.bytes)?;
        self.port.release(arrival);
        host.times.packets += 1;
        host.times.copying += monotonic_now() - begun;
        if !piece.is_last {
            return Ok(());
        }
        let bytes = std::mem::take(&mut origin.bytes);
        let mut header = header;
        header.offset = 0;
        self.give(vi, Item::new(header, bytes))
    }

    fn give(&mut self, vi: ViId, item: Item) -> Result<(), MessagesError> {
        let Way::Host(host) = &mut self.way else { return Ok(()) };
        let refused = host.give(item)?;
        if let Some(origin) = self.origins.get_mut(&vi) {
            origin.stalled = refused;
        }
        Ok(())
    }

    fn take_from_program(&mut self) -> Result<bool, MessagesError> {
        let mut has_worked = false;
        while let Way::Host(host) = &mut self.way {
            let Some(item) = host.take()? else { break };
            has_worked = true;
            match item.header.kind {
                Kind::Data => {
                    self.report.forwarded += 1;
                    self.report.bytes += u64::from(item.header.length);
                }
                Kind::Dropped => self.report.dropped += 1,
                _ => {}
            }
            if item.header.kind != Kind::Data {
                host.inside = host.inside.saturating_sub(1);
            }
            self.leave(item.header.destination, item);
        }
        Ok(has_worked)
    }

    // ------------------------------------------------------------------ what leaves

    fn leave_mark(&mut self, header: Header, kind: Kind) {
        let header = Header { kind, length: 0, offset: 0, ..header };
        self.leave(header.destination, Item::new(header, Vec::new()));
    }

    fn leave(&mut self, destination: u32, item: Item) {
        let Item { header, bytes, .. } = item;
        let out = match header.kind {
            Kind::Data => Out::Message(header, bytes),
            _ => Out::Mark(header),
        };
        self.depart(destination, out);
    }

    fn depart(&mut self, destination: u32, out: Out) {
        match self.routes.get_mut(&destination) {
            Some(route) if !route.is_gone => route.out.push_back(out),
            _ => {
                self.report.lost += u64::from(matches!(out, Out::Message(..)));
                match (out, &mut self.way) {
                    (Out::Passing(_, arrival), _) => self.port.release(arrival),
                    (Out::Message(..), Way::Host(host)) => {
                        host.inside = host.inside.saturating_sub(1);
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
            if let Way::Host(host) = &mut self.way {
                host.inside = host.inside.saturating_sub(departed.messages);
                host.times.packets += departed.packets;
                host.times.copying += monotonic_now() - begun;
            }
        }
        Ok(has_worked)
    }
}
