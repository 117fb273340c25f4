//! The host path: a pipeline between the interfaces of this machine, in user space.
//!
//! ```no_run
//! use vigie_forward::host::{self, Forwarder};
//! use vigie_forward::packet::Port;
//! use vigie_forward::pipeline::Pipeline;
//! use vigie_forward::stages::Rewrite;
//!
//! let pipeline = Pipeline::builder().stage(Rewrite::new().send(Port(1))).build()?;
//! let mut forwarder = Forwarder::builder(pipeline)
//!     .port(Port(0), host::link("eth0"))
//!     .port(Port(1), host::link("eth1"))
//!     .build()?;
//! // A loop that spins; `Hosted` leaves the waiting to a detection server.
//! loop {
//!     forwarder.turn(vigie_detect::clock::monotonic_now());
//! #   break;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//!   link ──▶ batch ──▶ tag put back, checksum completed, segments cut ──▶ Pipeline::decide ──▶ link
//!    ▲                                                                        │
//!    │ back-pressure: not looked at while packets wait                        ▼ no room
//!    └───────────────────────────────────────────────────────────── waiting packets of the port
//! ```
//!
//! # Ways to wait
//! - **Spin**: call [`Forwarder::turn`] again and again; a look at an interface where nothing is costs a load.
//! - **Busy-poll**: the same, with [`LinkBuilder::busy_poll`]: the kernel looks at the network card in the look.
//! - **Sleep**: [`Hosted`] is a detector: its host sleeps until a frame is there, or polls first if that pays.
//!
//! # What senders leave undone
//! Between the ends of a veth pair nobody computes checksums and nobody cuts segments, since the sender takes the other
//! end for a network card. Checksums are completed before the stages, so that these can count on them: AF_PACKET
//! tells which are missing, and with AF_XDP they are known by what stands in their place. Segments are cut
//! ([`Segments::Cut`]) or dropped and counted ([`Reason::Segments`]).
//!
//! # What becomes of interfaces
//! An interface that is down is waited for, and what was to leave by it is dropped and counted. One that is
//! gone, with its namespace or alone, is opened again when it is back ([`ForwarderBuilder::reopen`]); so is one whose MTU
//! has grown. Everything is told as a [`HostEvent`].
//!
//! AF_XDP takes frames from the kernel. With AF_PACKET the kernel still gets every frame: interfaces that are
//! forwarded should have no addresses, so that it does not answer or forward too.

mod hosted;
mod port;

use std::{collections::VecDeque, fmt, time::Duration};

use thiserror::Error;
use vigie_detect::Instant;
use vigie_via::link::{EtherType, Link, LinkBuilder, LinkError, LinkEvent, OpenError, XdpMode};

pub use self::hosted::{HostEvents, Hosted};
use self::port::{Attachment, Inbound, Rules, Sent};
use crate::{
    packet::{Packet, Port},
    pipeline::{OnFull, Pipeline, Reason},
    tables::Counters,
};

/// Begins with the settings of a link as a forwarder needs it: frames of every protocol, to everybody, and
/// 1024 of them each way.
pub fn link(name: impl Into<String>) -> LinkBuilder {
    Link::builder(name)
        .ether_type(EtherType::ALL)
        .promiscuous()
        .receive_frames(1024)
        .send_frames(1024)
}

/// What is done with several segments of TCP in one frame, which no network card has cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "they are cut, or they are not")]
pub enum Segments {
    /// They are dropped and counted.
    #[default]
    Refuse,
    /// They are cut to the smallest MTU of all interfaces: how long the sender made them the frame does not say, and longer ones
    /// would be refused again and again where they leave. Its link must take them whole
    /// ([`LinkBuilder::segments`]), and is AF_PACKET's. Segments of UDP are refused all the same: where to
    /// cut them the frame does not say.
    Cut,
}

/// What happened to an interface of a forwarder.
#[derive(Debug)]
#[non_exhaustive]
pub enum HostEvent {
    /// Something became of it.
    Link(Port, LinkEvent),
    /// It was opened again.
    Reopened(Port),
    /// It was to be opened again, and cannot be now. Told once until it succeeds.
    NotReopened(Port, OpenError),
    /// It does not work, for another reason. It is opened again as if it had gone.
    Failed(Port, LinkError),
}

/// A forwarder that cannot be.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ForwarderError {
    /// A link cannot be opened.
    #[error("{port}: {source}")]
    Open {
        /// Its port.
        port: Port,
        /// Why.
        source: OpenError,
    },
    /// Two links of one port.
    #[error("{port} was given twice: a port is one interface")]
    Twice {
        /// The port.
        port: Port,
    },
    /// A setting out of its range.
    #[error("{name} is {value}, and must be at least 1")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: usize,
    },
}

/// The settings of a [`Forwarder`].
#[must_use = "`build` makes the forwarder"]
pub struct ForwarderBuilder {
    pipeline: Pipeline,
    ports: Vec<(Port, LinkBuilder, Segments)>,
    batch: usize,
    waiting_packets: usize,
    reopen: Option<Duration>,
}

impl ForwarderBuilder {
    /// Adds an interface, whose segments are refused.
    pub fn port(self, port: Port, link: LinkBuilder) -> Self {
        self.port_with(port, link, Segments::Refuse)
    }

    /// Adds an interface, and says what is done with its segments.
    pub fn port_with(mut self, port: Port, link: LinkBuilder, segments: Segments) -> Self {
        self.ports.push((port, link, segments));
        self
    }

    /// Sets how many frames are taken from an interface before the next one's turn. Default: 32.
    pub const fn batch(mut self, frames: usize) -> Self {
        self.batch = frames;
        self
    }

    /// Sets how many packets wait for an interface that takes no more, at most; a batch more where the
    /// pipeline waits. Default: 256.
    pub const fn waiting_packets(mut self, count: usize) -> Self {
        self.waiting_packets = count;
        self
    }

    /// Sets how often an interface that is gone is looked for. Default: every 100 ms. `None`: never; then no
    /// rights are needed once it runs.
    pub const fn reopen(mut self, every: Option<Duration>) -> Self {
        self.reopen = every;
        self
    }

    /// Opens the interfaces, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`ForwarderError`].
    pub fn build(self) -> Result<Forwarder, ForwarderError> {
        for (name, value) in [("batch", self.batch), ("waiting_packets", self.waiting_packets)] {
            if value == 0 {
                return Err(ForwarderError::Setting { name, value });
            }
        }
        let mut ports = Vec::<Attachment>::new();
        for (port, builder, segments) in self.ports {
            if ports.iter().any(|attachment| attachment.port() == port) {
                return Err(ForwarderError::Twice { port });
            }
            let attachment = Attachment::open(port, builder, segments);
            ports.push(attachment.map_err(|source| ForwarderError::Open { port, source })?);
        }
        let batch = (0..self.batch).map(|_| Inbound::default()).collect();
        Ok(Forwarder {
            counters: self.pipeline.counters().clone(),
            pipeline: self.pipeline,
            ports,
            batch,
            waiting_packets: self.waiting_packets,
            reopen: self.reopen,
            next_watch: Instant::from_nanos(0),
            events: VecDeque::new(),
        })
    }
}

impl fmt::Debug for ForwarderBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwarderBuilder").field("ports", &self.ports).finish_non_exhaustive()
    }
}

/// How often interfaces are asked what became of them while frames come.
const WATCH_EVERY: Duration = Duration::from_millis(10);
/// Events that nobody has taken; the oldest gives way.
const EVENTS_MAX: usize = 256;

/// A pipeline between interfaces. It never waits.
pub struct Forwarder {
    pipeline: Pipeline,
    ports: Vec<Attachment>,
    batch: Vec<Inbound>,
    waiting_packets: usize,
    reopen: Option<Duration>,
    counters: Counters,
    next_watch: Instant,
    events: VecDeque<HostEvent>,
}

impl Forwarder {
    /// Begins with the settings of a forwarder. Messages of several packets do not occur on its links: the
    /// pipeline's buffers are not used, and what a full interface means is as the pipeline says
    /// ([`OnFull`]).
    pub const fn builder(pipeline: Pipeline) -> ForwarderBuilder {
        ForwarderBuilder {
            pipeline,
            ports: Vec::new(),
            batch: 32,
            waiting_packets: 256,
            reopen: Some(Duration::from_millis(100)),
        }
    }

    /// Moves what is there: at most a batch from each interface. Returns how many frames came or went; 0 if
    /// there was nothing to do.
    pub fn turn(&mut self, now: Instant) -> usize {
        let mut moved = self.send_waiting();
        // Where the pipeline waits, nothing is taken in while something cannot leave: it waits in the
        // kernel, which drops and counts what has no room there.
        if self.pipeline.on_full() == OnFull::Drop || moved == 0 && !self.has_waiting() {
            for at in 0..self.ports.len() {
                moved += self.serve(at, now);
            }
        }
        if now >= self.next_watch {
            self.next_watch = now + WATCH_EVERY;
            self.watch(now);
        }
        moved
    }

    /// Takes a batch from one interface and sends it on.
    #[inline]
    fn serve(&mut self, at: usize, now: Instant) -> usize {
        let Self { ports, batch, .. } = self;
        let Some(arrival) = ports.get_mut(at) else { return 0 };
        let (count, bytes) = match arrival.receive(batch) {
            Ok((0, _)) => return 0,
            Ok(received) => received,
            Err(error) => {
                self.failed(at, error, now);
                return 0;
            }
        };
        let rules = arrival.rules();
        let rules = ports.iter().map(Attachment::rules).fold(rules, Rules::cut_like);
        let mut batch = std::mem::take(&mut self.batch);
        let mut sent = (0, 0);
        for inbound in batch.iter_mut().take(count) {
            match inbound.prepare(rules) {
                Ok(None) => add(&mut sent, self.forward(&mut inbound.packet, now)),
                Ok(Some(pieces)) => {
                    for mut piece in pieces {
                        add(&mut sent, self.forward(&mut piece, now));
                    }
                }
                Err(reason) => self.counters.dropped(reason, 1),
            }
        }
        self.batch = batch;
        self.flush(now);
        // Only now: nothing waits for it.
        self.counters.received(wide(count), bytes);
        if sent.0 > 0 {
            self.counters.sent(sent.0, sent.1);
        }
        count
    }

    /// Leads a packet through the stages and sends it. Returns how many packets, and bytes, were sent.
    #[inline]
    fn forward(&mut self, packet: &mut Packet, now: Instant) -> (u64, u64) {
        let Self { pipeline, ports, counters, waiting_packets, .. } = self;
        let drops = pipeline.on_full() == OnFull::Drop;
        let mut sent = (0, 0);
        let mut depart = |port: Port, packet: &Packet, is_copy: bool| {
            let Some(attachment) = ports.iter_mut().find(|one| one.port() == port) else {
                counters.dropped(Reason::NoPort, 1);
                return;
            };
            match attachment.send(packet, *waiting_packets, drops || is_copy) {
                Sent::Now => add(&mut sent, (1, wide(packet.len()))),
                Sent::Waits => {}
                Sent::Dropped(reason) => counters.dropped(reason, 1),
            }
        };
        match pipeline.decide(packet, now, &mut |port, packet| depart(port, packet, true)) {
            Ok(port) => depart(port, packet, false),
            Err(reason) => counters.dropped(reason, 1),
        }
        sent
    }

    /// Sends what waited. Returns how many packets that were.
    fn send_waiting(&mut self) -> usize {
        let mut count = 0;
        for attachment in &mut self.ports {
            if attachment.waiting() > 0 {
                let (packets, bytes, lost) = attachment.send_waiting();
                self.counters.sent(wide(packets), bytes);
                if let Some((reason, lost)) = lost {
                    self.counters.dropped(reason, wide(lost));
                }
                count += packets;
            }
        }
        count
    }

    fn has_waiting(&self) -> bool {
        self.ports.iter().any(|attachment| attachment.waiting() > 0)
    }

    /// Makes the kernel send what it was given.
    #[inline]
    fn flush(&mut self, now: Instant) {
        for at in 0..self.ports.len() {
            if let Some(Err(error)) = self.ports.get_mut(at).map(Attachment::flush) {
                self.failed(at, error, now);
            }
        }
    }

    /// Asks the interfaces what became of them, and opens again those that are gone.
    #[cold]
    fn watch(&mut self, now: Instant) {
        for at in 0..self.ports.len() {
            let Some(attachment) = self.ports.get_mut(at) else { return };
            let events = &mut self.events;
            attachment.watch(now, self.reopen, &mut |event| tell(events, event));
        }
    }

    #[cold]
    fn failed(&mut self, at: usize, error: LinkError, now: Instant) {
        let Some(attachment) = self.ports.get_mut(at) else { return };
        match error {
            // Told as events.
            LinkError::Down | LinkError::Removed => {}
            LinkError::Full => return,
            error => {
                tell(&mut self.events, HostEvent::Failed(attachment.port(), error));
                attachment.close(now);
            }
        }
        self.watch(now);
    }

    /// Returns what happened to an interface, if that was not told yet.
    pub fn event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// Returns the pipeline.
    #[must_use]
    pub const fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Returns how AF_XDP carries the frames of a port, if it does.
    #[must_use]
    pub fn xdp_mode(&self, port: Port) -> Option<XdpMode> {
        self.link_of(port)?.xdp_mode()
    }

    /// Returns the link of a port, unless its interface is gone.
    #[must_use]
    pub fn link_of(&self, port: Port) -> Option<&Link> {
        self.ports.iter().find(|attachment| attachment.port() == port)?.link()
    }

    /// Returns what was received, sent and dropped. What the kernel dropped before it was looked at is in
    /// [`kernel_drops`](Self::kernel_drops).
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns how many frames the kernel dropped since nobody took them in time, of all interfaces.
    ///
    /// # Errors
    /// The kernel's.
    pub fn kernel_drops(&mut self) -> Result<u64, LinkError> {
        self.ports.iter_mut().map(Attachment::kernel_drops).sum()
    }

    /// Returns how many packets wait for interfaces that take no more.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.ports.iter().map(Attachment::waiting).sum()
    }

    /// Sends what is inside, taking nothing more in, for at most so many turns. Returns whether nothing is left.
    pub fn drain(&mut self, turns: usize) -> bool {
        for _ in 0..turns {
            self.send_waiting();
            self.flush(self.next_watch);
            if !self.has_waiting() && !self.ports.iter_mut().any(Attachment::is_sending) {
                return true;
            }
        }
        false
    }

    /// Prepares for sleep on the links' descriptors. Returns whether something may be there already.
    fn arm(&mut self) -> Result<bool, LinkError> {
        let takes_in = self.pipeline.on_full() == OnFull::Drop || !self.has_waiting();
        let mut is_ready = !self.events.is_empty();
        for attachment in &mut self.ports {
            is_ready |= attachment.arm(takes_in)?;
        }
        Ok(is_ready)
    }

    /// When something is to be done without a frame or an event: an interface that is gone is looked for.
    fn next_deadline(&self) -> Option<Instant> {
        self.reopen?;
        self.ports.iter().filter_map(Attachment::retry_at).min()
    }
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder")
            .field("ports", &self.ports)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

fn tell(events: &mut VecDeque<HostEvent>, event: HostEvent) {
    if events.len() == EVENTS_MAX {
        events.pop_front();
    }
    events.push_back(event);
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn add(sum: &mut (u64, u64), more: (u64, u64)) {
    *sum = (sum.0 + more.0, sum.1 + more.1);
}
