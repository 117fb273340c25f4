//! The source: `send_forward`.

use std::collections::BTreeMap;
use std::fmt;

use vigie_via::vi::{Address, Provider, Reason, ViId};

use super::DISCRIMINATOR;
use super::error::MessagesError;
use super::idle::{Patience, Rest, STOPPED_MAX, sharpen};
use super::packet::{Greeting, Header, Kind, Role};
use super::port::{Port, PortEvent};
use super::settings::Settings;

/// What the final acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finished {
    /// Messages that the sink has taken, since the connection began.
    pub delivered: u32,
    /// Messages that the forwarder's algorithm has dropped.
    pub dropped: u32,
}

/// Messages to one destination.
#[derive(Debug, Default)]
struct Flow {
    /// Messages whose first packet was sent.
    sent: u32,
    /// Messages that are out of the window, as far as is known.
    delivered: u32,
    is_gone: bool,
    finished: Option<Finished>,
}

/// How long a caller still waits, and where it was when that was set.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    place: u64,
    patience: Patience,
}

/// Where a message is on its way out.
#[derive(Debug)]
pub(super) struct Sending {
    header: Header,
    /// It has begun, and the window counts it.
    is_begun: bool,
}

/// A source of messages, connected with a forwarder, or with a sink without one between them.
///
/// Its provider is driven by the calling thread, in each call. Between calls nothing is: a source that is silent for longer than
/// its provider's peers bear is taken for dead.
pub struct Source<P: Provider> {
    port: Port<P>,
    hop: ViId,
    peer: Greeting,
    settings: Settings,
    flows: BTreeMap<u32, Flow>,
    lost: Option<Reason>,
    rest: Rest,
}

impl<P: Provider> Source<P> {
    /// Connects with the next node, within [`Settings::patience`].
    ///
    /// # Errors
    /// [`MessagesError`].
    pub fn connect(nic: P, address: &Address, settings: Settings) -> Result<Self, MessagesError> {
        let mut source = Self::begin(nic, address, settings)?;
        sharpen();
        let mut patience = Patience::new(source.settings.patience, source.port.now());
        while !source.is_connected()? {
            if patience.is_over(source.port.now()) {
                return Err(MessagesError::Refused(Reason::TimedOut));
            }
            source.rest.rest(&mut source.port, None, patience.until())?;
        }
        Ok(source)
    }

    /// Begins to connect.
    pub(super) fn begin(
        nic: P,
        address: &Address,
        settings: Settings,
    ) -> Result<Self, MessagesError> {
        let config = settings.port(Role::Source, &[Role::Forwarder, Role::Sink], 0)?;
        let peer = config.greeting;
        let mut port = Port::new(nic, settings.clock.clone(), config)?;
        let deadline = port.now() + settings.patience + STOPPED_MAX;
        let hop = port.connect(address, DISCRIMINATOR, deadline)?;
        let rest = Rest::new(settings.idle);
        Ok(Self { port, hop, peer, settings, flows: BTreeMap::new(), lost: None, rest })
    }

    /// Goes on connecting. Returns whether that is done.
    pub(super) fn is_connected(&mut self) -> Result<bool, MessagesError> {
        self.port.turn()?;
        match self.port.event() {
            Some(PortEvent::Opened(_, greeting)) => {
                self.peer = greeting;
                Ok(true)
            }
            Some(PortEvent::Closed(_, Reason::Mismatch(what))) => {
                Err(MessagesError::Mismatch(what))
            }
            Some(PortEvent::Closed(_, reason)) => Err(MessagesError::Refused(reason)),
            _ => Ok(false),
        }
    }

    /// Returns the longest message that the next node takes, in bytes.
    #[must_use]
    pub const fn message_bytes_max(&self) -> u32 {
        self.peer.message_bytes_max
    }

    /// Sends a message to `destination`, through the forwarder, and returns when all of it has been handed to the
    /// interface: `bytes` may be used again. Blocks while the window is full.
    ///
    /// # Source
    /// `bip_send_forward` [fast-forward, §3.3].
    ///
    /// # Errors
    /// [`MessagesError::TooLong`], before anything was sent; [`MessagesError::Gone`], [`MessagesError::Lost`],
    /// [`MessagesError::Stalled`] after [`Settings::patience`] without any room. After an error part of the message may have
    /// been sent, and the source is of no more use, but for `TooLong` and, with other destinations, `Gone`.
    pub fn send_forward(
        &mut self,
        destination: u32,
        tag: u32,
        bytes: &[u8],
    ) -> Result<(), MessagesError> {
        let mut sending = self.sending(destination, tag, bytes)?;
        let mut waiting = None;
        while !self.pump(&mut sending, bytes)? {
            let place = u64::from(sending.is_begun) << 32 | u64::from(sending.header.offset);
            self.wait(&mut waiting, place)?;
        }
        Ok(())
    }

    /// Waits until the destination has taken everything that was sent to it so far: the final acknowledgement.
    ///
    /// # Source
    /// [fast-forward, §3.2].
    ///
    /// # Errors
    /// As [`send_forward`](Self::send_forward).
    pub fn finish(&mut self, destination: u32) -> Result<Finished, MessagesError> {
        let mut is_asked = false;
        let mut waiting = None;
        loop {
            if !is_asked {
                is_asked = self.ask_finish(destination)?;
            }
            if let Some(finished) = self.finished(destination)? {
                return Ok(finished);
            }
            let delivered = self.flows.get(&destination).map_or(0, |flow| flow.delivered);
            self.wait(&mut waiting, u64::from(is_asked) << 32 | u64::from(delivered))?;
        }
    }

    /// Makes a turn, or rests if there was nothing to do. Where the caller is tells whether it gets on.
    fn wait(&mut self, waiting: &mut Option<Waiting>, place: u64) -> Result<(), MessagesError> {
        let has_worked = self.turn()?;
        if has_worked {
            self.rest.worked();
        }
        let now = self.port.now();
        let patience = match waiting {
            Some(waiting) if waiting.place == place => &mut waiting.patience,
            _ => {
                let patience = Patience::new(self.settings.patience, now);
                *waiting = Some(Waiting { place, patience });
                return Ok(());
            }
        };
        // A peer that only shows signs of life is no progress.
        if patience.is_over(now) {
            return Err(MessagesError::Stalled { waited: self.settings.patience });
        }
        if has_worked {
            // What has come may be what the caller waits for.
            return Ok(());
        }
        self.rest.rest(&mut self.port, None, patience.until())
    }

    // ------------------------------------------------------------------ steps, without waiting

    pub(super) fn sending(
        &self,
        destination: u32,
        tag: u32,
        bytes: &[u8],
    ) -> Result<Sending, MessagesError> {
        let most = self.peer.message_bytes_max;
        let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= most);
        let length = length.ok_or(MessagesError::TooLong { bytes: bytes.len(), most })?;
        let mut header = Header::new(Kind::Data, destination, 0);
        (header.tag, header.length) = (tag, length);
        Ok(Sending { header, is_begun: false })
    }

    /// Sends as much as there is room for. Returns whether that was the rest.
    pub(super) fn pump(
        &mut self,
        sending: &mut Sending,
        bytes: &[u8],
    ) -> Result<bool, MessagesError> {
        self.check(sending.header.destination)?;
        let window = self.settings.window_messages();
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
            let piece = bytes.get(from..from.saturating_add(count)).unwrap_or(&[]);
            if !self.port.send(self.hop, header, piece)? {
                return Ok(false);
            }
            if header.is_last(payload_max) {
                return Ok(true);
            }
            sending.header.offset += payload_max;
        }
    }

    /// Asks for the final acknowledgement. Returns whether there was room for that.
    pub(super) fn ask_finish(&mut self, destination: u32) -> Result<bool, MessagesError> {
        self.check(destination)?;
        self.flows.entry(destination).or_default().finished = None;
        self.port.send(self.hop, Header::new(Kind::Finish, destination, 0), &[])
    }

    pub(super) fn finished(&mut self, destination: u32) -> Result<Option<Finished>, MessagesError> {
        let finished = self.flows.get(&destination).and_then(|flow| flow.finished);
        if finished.is_none() {
            self.check(destination)?;
        }
        // A sink may go as soon as it has acknowledged everything.
        Ok(finished)
    }

    fn check(&self, destination: u32) -> Result<(), MessagesError> {
        if let Some(reason) = self.lost {
            return Err(MessagesError::Lost { node: "next node", reason });
        }
        match self.flows.get(&destination) {
            Some(Flow { is_gone: true, .. }) => Err(MessagesError::Gone { destination }),
            _ => Ok(()),
        }
    }

    /// Does what there is to do. Returns whether anything was done.
    pub(super) fn turn(&mut self) -> Result<bool, MessagesError> {
        let mut has_worked = self.port.turn()?;
        while let Some(event) = self.port.event() {
            has_worked = true;
            match event {
                PortEvent::Closed(_, reason) => self.lost = Some(reason),
                PortEvent::Opened(..) => {}
                PortEvent::Told(vi, header) => {
                    if let Err(what) = self.told(&header) {
                        self.port.close(vi, Reason::PeerFault(what));
                    }
                }
            }
        }
        // Nobody has data for a source.
        if self.port.next_header(self.hop).is_some() {
            self.port.close(self.hop, Reason::PeerFault("data for a source"));
        }
        Ok(has_worked)
    }

    fn told(&mut self, header: &Header) -> Result<(), &'static str> {
        let unknown = "word of messages that were not sent";
        let flow = self.flows.get_mut(&header.destination).ok_or(unknown)?;
        match header.kind {
            Kind::Delivered => {
                let advance = header.message.wrapping_sub(flow.delivered);
                if advance > flow.sent.wrapping_sub(flow.delivered) {
                    return Err(unknown);
                }
                flow.delivered = header.message;
            }
            Kind::Finished => {
                let (delivered, dropped) = (header.message, header.length);
                if delivered.wrapping_add(dropped) != flow.sent {
                    return Err("a final acknowledgement of another number of messages");
                }
                flow.delivered = flow.sent;
                flow.finished = Some(Finished { delivered, dropped });
            }
            Kind::Gone => flow.is_gone = true,
            _ => return Err("a packet that is not for a source"),
        }
        Ok(())
    }
}

impl<P: Provider> fmt::Debug for Source<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("settings", &self.settings)
            .field("flows", &self.flows)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}
