//! The sink: the final destination.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use vigie_detect::Instant;
use vigie_via::vi::{Address, Provider, Reason, ViId};

use super::DISCRIMINATOR;
use super::assembly::Sequence;
use super::error::MessagesError;
use super::idle::{Patience, Rest, sharpen};
use super::packet::{Header, Kind, Role};
use super::port::{Arrival, Port, PortEvent};
use super::settings::Settings;

/// A message that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The number of its source, as the forwarder gives it out; zero without a forwarder.
    pub source: u32,
    /// Its destination's number, as the source knows it.
    pub destination: u32,
    /// Its tag.
    pub tag: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What comes to a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkEvent {
    /// A message.
    Message(Received),
    /// A source has sent everything, and is given the final acknowledgement, if it is still there.
    Finished {
        /// The number of the source.
        source: u32,
        /// Messages of it that were taken.
        messages: u32,
    },
    /// A connection is over; what had begun to arrive over it is lost.
    Lost {
        /// Why.
        reason: Reason,
    },
}

/// A message that arrives, and what came before it.
#[derive(Debug, Default)]
struct Flow {
    sequence: Sequence,
    bytes: Vec<u8>,
    /// Messages taken, and those that were dropped on the way.
    taken: u32,
    dropped: u32,
}

/// A destination of messages.
///
/// Its provider is driven by the calling thread, in each call. Nobody else takes messages from the interface: a sink that does not
/// call [`receive`](Self::receive) fills the window and the buffers of those before it, which wait. If it does not call for
/// longer than its provider's peers bear, it is taken for dead.
pub struct Sink<P: Provider> {
    port: Port<P>,
    settings: Settings,
    /// Connections, in the order of their turns.
    hops: VecDeque<ViId>,
    /// Those of them that have ended: what came before that is taken first.
    over: BTreeMap<ViId, Reason>,
    flows: BTreeMap<(ViId, u32, u32), Flow>,
    events: VecDeque<SinkEvent>,
    rest: Rest,
}

impl<P: Provider> Sink<P> {
    /// Opens a sink, which forwarders and sources can connect to at once.
    ///
    /// # Errors
    /// [`MessagesError`].
    pub fn open(nic: P, settings: Settings) -> Result<Self, MessagesError> {
        let accepts = &[Role::Forwarder, Role::Source];
        let config = settings.port(Role::Sink, accepts, settings.longest())?;
        let mut port = Port::new(nic, settings.clock.clone(), config)?;
        port.listen(DISCRIMINATOR)?;
        let rest = Rest::new(settings.idle);
        let (hops, over, flows) = (VecDeque::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self { port, settings, hops, over, flows, events: VecDeque::new(), rest })
    }

    /// Returns where nodes reach it.
    #[must_use]
    pub fn address(&self) -> Address {
        self.port.address()
    }

    /// Waits for what comes next, within [`Settings::patience`]: `None` if nothing does.
    ///
    /// # Errors
    /// [`MessagesError`].
    pub fn receive(&mut self) -> Result<Option<SinkEvent>, MessagesError> {
        sharpen();
        let mut patience = Patience::new(self.settings.patience, self.port.now());
        self.receive_while(|now| (!patience.is_over(now)).then(|| patience.until()))
    }

    /// The same, until an instant of the settings' clock.
    ///
    /// # Errors
    /// [`MessagesError`].
    pub fn receive_until(&mut self, deadline: Instant) -> Result<Option<SinkEvent>, MessagesError> {
        self.receive_while(|now| (now < deadline).then_some(deadline))
    }

    /// The same, as long as there is an instant to wait for.
    fn receive_while(
        &mut self,
        mut until: impl FnMut(Instant) -> Option<Instant>,
    ) -> Result<Option<SinkEvent>, MessagesError> {
        loop {
            if let Some(event) = self.poll()? {
                self.rest.worked();
                return Ok(Some(event));
            }
            // What was taken meanwhile makes credit, for which a sender may wait that has nothing else to wait for.
            let has_worked = self.port.turn()?;
            let Some(until) = until(self.port.now()) else { return Ok(None) };
            if has_worked {
                continue;
            }
            self.rest.rest(&mut self.port, None, until)?;
        }
    }

    /// Takes what is there, without waiting.
    ///
    /// # Errors
    /// [`MessagesError`].
    pub fn poll(&mut self) -> Result<Option<SinkEvent>, MessagesError> {
        if let Some(event) = self.take()? {
            return Ok(Some(event));
        }
        self.port.turn()?;
        self.take()
    }

    /// Takes what has arrived already.
    fn take(&mut self) -> Result<Option<SinkEvent>, MessagesError> {
        while let Some(event) = self.port.event() {
            match event {
                PortEvent::Opened(vi, _) => self.hops.push_back(vi),
                PortEvent::Closed(vi, reason) if self.hops.contains(&vi) => {
                    self.over.insert(vi, reason);
                }
                PortEvent::Closed(_, reason) => self.events.push_back(SinkEvent::Lost { reason }),
                PortEvent::Told(vi, _) => {
                    self.port.close(vi, Reason::PeerFault("a packet that is not for a sink"));
                }
            }
        }
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        for _ in 0..self.hops.len() {
            let Some(vi) = self.hops.front().copied() else { break };
            while let Some(arrival) = self.port.arrival(vi) {
                let header = arrival.header;
                let found = self.arrived(vi, &header, &arrival)?;
                self.port.release(arrival);
                match found {
                    Ok(None) => {}
                    Ok(Some(event)) => {
                        self.hops.rotate_left(1);
                        return Ok(Some(event));
                    }
                    Err(what) => self.port.close(vi, Reason::PeerFault(what)),
                }
            }
            if let Some(reason) = self.over.remove(&vi) {
                self.hops.retain(|hop| *hop != vi);
                self.flows.retain(|(hop, ..), _| *hop != vi);
                return Ok(Some(SinkEvent::Lost { reason }));
            }
            self.hops.rotate_left(1);
        }
        Ok(None)
    }

    /// Takes a packet. The inner error tells what the peer did wrong.
    fn arrived(
        &mut self,
        vi: ViId,
        header: &Header,
        arrival: &Arrival,
    ) -> Result<Result<Option<SinkEvent>, &'static str>, MessagesError> {
        let (source, destination) = (header.source, header.destination);
        if header.kind == Kind::Abort {
            self.flows.retain(|(hop, number, _), _| (*hop, *number) != (vi, source));
            return Ok(Ok(None));
        }
        // A hostile peer may make up sources: it has no more of them than packets here.
        if self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&(vi, source, destination)) {
            return Ok(Err("more sources than a sink keeps count of"));
        }
        let flow = self.flows.entry((vi, source, destination)).or_default();
        match header.kind {
            Kind::Data => {
                let longest = self.settings.longest();
                let piece = match flow.sequence.take(header, self.port.payload_bytes(), longest) {
                    Ok(piece) => piece,
                    Err(what) => return Ok(Err(what)),
                };
                if piece.is_first {
                    let length = usize::try_from(header.length).unwrap_or(0);
                    flow.bytes = Vec::with_capacity(length);
                }
                self.port.read_onto(arrival, usize::MAX, &mut flow.bytes)?;
                if !piece.is_last {
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
            Kind::Dropped if flow.sequence.is_open() => Ok(Err("an end in the middle")),
            Kind::Dropped => {
                flow.dropped = flow.dropped.wrapping_add(1);
                let count = flow.taken.wrapping_add(flow.dropped);
                self.count(vi, header, count);
                Ok(Ok(None))
            }
            Kind::Finish if flow.sequence.is_open() => Ok(Err("an end in the middle")),
            Kind::Finish => {
                let mut answer = Header::new(Kind::Finished, destination, source);
                (answer.message, answer.length) = (flow.taken, flow.dropped);
                self.port.tell(vi, answer);
                Ok(Ok(Some(SinkEvent::Finished { source, messages: flow.taken })))
            }
            _ => Ok(Err("a packet that is not for a sink")),
        }
    }

    /// Tells the source, if it wants that, how many of its messages are out of its window.
    fn count(&mut self, vi: ViId, header: &Header, count: u32) {
        if header.wants_delivered {
            let mut answer = Header::new(Kind::Delivered, header.destination, header.source);
            answer.message = count;
            self.port.tell(vi, answer);
        }
    }

    /// Sends what there is to send, without taking anything: for those who are busy with other things.
    ///
    /// # Errors
    /// [`MessagesError`].
    pub fn turn(&mut self) -> Result<bool, MessagesError> {
        self.port.turn()
    }
}

/// The most sources of which a sink keeps count, whoever invents them.
const FLOWS_MAX: usize = 4096;

impl<P: Provider> fmt::Debug for Sink<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink")
            .field("settings", &self.settings)
            .field("flows", &self.flows.len())
            .finish_non_exhaustive()
    }
}
