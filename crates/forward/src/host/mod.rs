//! The host path: a pipeline between this machine's interfaces, in user space.
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
//! // A loop that spins; `AsyncForwarder` leaves the waiting to a detection server.
//! loop {
//!     forwarder.tick(vigie_detect::clock::monotonic_now());
//! #   break;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//!   link ──▶ batch ──▶ tag put back, checksum completed, segments cut ──▶ Pipeline::decide ──▶ link
//!    ▲                                                                        │
//!    │ back-pressure: not polled while packets wait                           ▼ no room
//!    └───────────────────────────────────────────────────────────── waiting packets of the port
//! ```
//!
//! # Ways to wait
//! - **Spin**: call [`Forwarder::tick`] in a loop; checking an idle interface costs one load.
//! - **Busy-poll**: the same, with [`LinkBuilder::busy_poll`]: the check also makes the kernel poll the network card.
//! - **Sleep**: [`AsyncForwarder`] is a detector: its host sleeps until a frame arrives, or polls first if that pays.
//!
//! # What senders leave undone
//! Between the ends of a veth pair checksums are not computed and segments are not cut, since each end treats the other
//! as a network card. Checksums are completed before the stages, which can thus rely on them: AF_PACKET tells which are
//! missing; with AF_XDP the partial sum in the field gives them away. Segments pass whole or are cut ([`Segments::Cut`]), or are
//! dropped and counted ([`DropReason::Segments`]).
//!
//! # Interfaces that go down or disappear
//! While an interface is down, packets for it are dropped and counted. An interface that disappears, with its namespace
//! or alone, is reopened when it is back ([`ForwarderBuilder::reopen`]); so is one whose MTU has grown. Each change is
//! reported as a [`HostEvent`].
//!
//! AF_XDP takes frames away from the kernel. With AF_PACKET the kernel still gets every frame: give forwarded
//! interfaces no addresses, so that the kernel does not answer or forward the frames too.

mod async_forwarder;
mod port;

use std::{collections::VecDeque, fmt, time::Duration};

use thiserror::Error;
use vigie_detect::Instant;
use vigie_via::link::{EtherType, Link, LinkBuilder, LinkError, LinkEvent, OpenError, XdpMode};

pub use self::async_forwarder::{AsyncForwarder, HostEvents};
use self::port::{AttachedInterface, FrameRules, Inbound, SendOutcome};
use crate::{
    packet::{Packet, Port},
    pipeline::{DropReason, OnFull, Pipeline},
    tables::TrafficCounters,
};

/// Starts the settings of a link for a forwarder: frames of every protocol and destination, and 1024 slots each way.
pub fn link(name: impl Into<String>) -> LinkBuilder {
    Link::builder(name)
        .ether_type(EtherType::ALL)
        .promiscuous()
        .receive_frames(1024)
        .send_frames(1024)
}

/// The treatment of a frame that holds several segments, which no network card has cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "they pass, or they do not")]
pub enum Segments {
    /// They are dropped and counted.
    #[default]
    Refuse,
    /// They pass whole, of TCP and of UDP, if the link of arrival takes them ([`LinkBuilder::segments`]) and all others send them
    /// ([`LinkBuilder::sends_segments`]), and if each fits all interfaces. Otherwise those of TCP are cut to the smallest MTU of all
    /// interfaces, and those of UDP are dropped and counted.
    Cut,
}

/// An event of a forwarder's interface.
#[derive(Debug)]
#[non_exhaustive]
pub enum HostEvent {
    /// The link changed state.
    Link(Port, LinkEvent),
    /// The interface was reopened.
    Reopened(Port),
    /// Reopening failed. Reported once, until it succeeds.
    NotReopened(Port, OpenError),
    /// The link failed for another reason. It is reopened as if it had disappeared.
    Failed(Port, LinkError),
}

/// The reason why a forwarder could not be built.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ForwarderError {
    /// A link could not be opened.
    #[error("{port}: {source}")]
    Open {
        /// Its port.
        port: Port,
        /// The cause.
        source: OpenError,
    },
    /// Two links for one port.
    #[error("{port} was given twice: a port is one interface")]
    Twice {
        /// The port.
        port: Port,
    },
    /// A setting out of range.
    #[error("{name} is {value}, and must be at least 1")]
    InvalidSetting {
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
    more: Vec<(Port, LinkBuilder, Segments)>,
    batch: usize,
    waiting_packets: usize,
    reopen: Option<Duration>,
}

impl ForwarderBuilder {
    /// Adds an interface that refuses segments.
    pub fn port(self, port: Port, link: LinkBuilder) -> Self {
        self.port_with(port, link, Segments::Refuse)
    }

    /// Adds an interface, with the treatment of its segments.
    pub fn port_with(mut self, port: Port, link: LinkBuilder, segments: Segments) -> Self {
        self.ports.push((port, link, segments));
        self
    }

    /// Adds a link from which a port also receives: links of single protocols see frames later than one of all protocols
    /// does, and so only those that a program at tcx has left. The port reports events and sends by its first link.
    pub fn also_from(mut self, port: Port, link: LinkBuilder, segments: Segments) -> Self {
        self.more.push((port, link, segments));
        self
    }

    vigie_detect::setters! {
        /// Sets how many frames are taken from an interface before it is the next one's turn. Default: 32.
        batch: usize,

        /// Sets the maximum number of packets that wait for a full interface; up to a batch more if the pipeline waits.
        /// Default: 256.
        waiting_packets: usize,

        /// Sets the interval of checks for a missing interface. Default: every 100 ms. `None`: never; then a
        /// running forwarder needs no capabilities.
        reopen: Option<Duration>,
    }

    /// Opens the interfaces, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`ForwarderError`].
    pub fn build(self) -> Result<Forwarder, ForwarderError> {
        for (name, value) in [("batch", self.batch), ("waiting_packets", self.waiting_packets)] {
            if value == 0 {
                return Err(ForwarderError::InvalidSetting { name, value });
            }
        }
        let mut ports = Vec::<AttachedInterface>::new();
        let first = self.ports.into_iter().map(|one| (one, false));
        let more = self.more.into_iter().map(|one| (one, true));
        for ((port, builder, segments), is_more) in first.chain(more) {
            if !is_more && ports.iter().any(|attachment| attachment.port() == port) {
                return Err(ForwarderError::Twice { port });
            }
            let attachment = AttachedInterface::open(port, is_more, builder, segments);
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
            next_release: None,
            events: VecDeque::new(),
        })
    }
}

impl fmt::Debug for ForwarderBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwarderBuilder").field("ports", &self.ports).finish_non_exhaustive()
    }
}

/// The interval at which interfaces are checked for changes while frames arrive.
const WATCH_EVERY: Duration = Duration::from_millis(10);
/// The maximum number of pending events; the oldest is discarded.
const EVENTS_MAX: usize = 256;

/// A pipeline between interfaces. It never waits.
pub struct Forwarder {
    pipeline: Pipeline,
    ports: Vec<AttachedInterface>,
    batch: Vec<Inbound>,
    waiting_packets: usize,
    reopen: Option<Duration>,
    counters: TrafficCounters,
    next_watch: Instant,
    /// The time to check for packets that stages hold.
    next_release: Option<Instant>,
    events: VecDeque<HostEvent>,
}

/// The exit by which packets leave.
struct Exit<'a> {
    ports: &'a mut [AttachedInterface],
    counters: &'a TrafficCounters,
    waiting_packets: usize,
    drops: bool,
    /// Packets and bytes sent.
    sent: (u64, u64),
}

impl Exit<'_> {
    #[inline]
    fn depart(&mut self, port: Port, packet: &Packet, is_copy: bool) {
        let Some(attachment) = self.ports.iter_mut().find(|one| one.port() == port && one.sends())
        else {
            return self.counters.count_dropped(DropReason::NoPort, 1);
        };
        match attachment.send(packet, self.waiting_packets, self.drops || is_copy) {
            SendOutcome::Now => add(&mut self.sent, (1, to_u64(packet.len()))),
            SendOutcome::Waits => {}
            SendOutcome::Dropped(reason) => self.counters.count_dropped(reason, 1),
        }
    }
}

impl Forwarder {
    /// Starts the settings of a forwarder. Messages of several packets do not occur on its links: the pipeline's
    /// buffers are unused, and the pipeline's [`OnFull`] decides what happens at a full interface.
    pub const fn builder(pipeline: Pipeline) -> ForwarderBuilder {
        ForwarderBuilder {
            pipeline,
            ports: Vec::new(),
            more: Vec::new(),
            batch: 32,
            waiting_packets: 256,
            reopen: Some(Duration::from_millis(100)),
        }
    }

    /// Forwards what is ready: at most a batch from each interface. Returns the number of frames received or sent; 0 if
    /// there was nothing to do.
    pub fn tick(&mut self, now: Instant) -> usize {
        let mut moved = self.send_waiting();
        // Before new ones, which wait behind them and might find no room.
        if self.next_release.is_some() {
            moved += self.release(now);
        }
        // If the pipeline waits when full, nothing is taken in while something cannot be sent: new frames wait in the
        // kernel, which drops and counts those for which it has no room.
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

    /// Takes a batch from one interface and forwards it.
    #[inline]
    fn serve(&mut self, at: usize, now: Instant) -> usize {
        let Self { ports, batch, .. } = self;
        let Some(ingress) = ports.get_mut(at) else { return 0 };
        let (count, bytes) = match ingress.receive(batch) {
            Ok((0, _)) => return 0,
            Ok(received) => received,
            Err(error) => {
                self.failed(at, error, now);
                return 0;
            }
        };

        let rules = ingress.rules();
        let rules = ports.iter().map(AttachedInterface::rules).fold(rules, FrameRules::cut_like);
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
                Err(reason) => self.counters.count_dropped(reason, 1),
            }
        }

        self.batch = batch;
        self.flush(now);
        self.next_release = self.pipeline.next_release(now);

        // Only now, so that the counters delay nothing.
        self.counters.count_received(to_u64(count), bytes);
        if sent.0 > 0 {
            self.counters.count_sent(sent.0, sent.1);
        }

        count
    }

    /// Passes a packet through the stages and sends the result. Returns the number of packets, and bytes, sent.
    #[inline]
    fn forward(&mut self, packet: &mut Packet, now: Instant) -> (u64, u64) {
        let (pipeline, mut exit) = self.exit();
        match pipeline.decide(packet, now, &mut |port, packet| exit.depart(port, packet, true)) {
            Ok(Some(port)) => exit.depart(port, packet, false),
            Ok(None) => {}
            Err(reason) => exit.counters.count_dropped(reason, 1),
        }
        exit.sent
    }

    /// Sends the packets that stages have held and that may go on. Returns how many were released.
    fn release(&mut self, now: Instant) -> usize {
        let mut count = 0;
        let (pipeline, mut exit) = self.exit();
        while let Some((packet, decided)) =
            pipeline.release(now, &mut |port, packet| exit.depart(port, packet, true))
        {
            count += 1;
            match decided {
                Ok(Some(port)) => exit.depart(port, &packet, false),
                Ok(None) => {}
                Err(reason) => exit.counters.count_dropped(reason, 1),
            }
        }
        if count > 0 {
            exit.counters.count_sent(exit.sent.0, exit.sent.1);
            self.flush(now);
        }
        self.next_release = self.pipeline.next_release(now);
        count
    }

    #[inline]
    fn exit(&mut self) -> (&mut Pipeline, Exit<'_>) {
        let Self { pipeline, ports, counters, waiting_packets, .. } = self;
        let (drops, waiting_packets) = (pipeline.on_full() == OnFull::Drop, *waiting_packets);
        (pipeline, Exit { ports, counters, waiting_packets, drops, sent: (0, 0) })
    }

    /// Sends waiting packets. Returns how many.
    fn send_waiting(&mut self) -> usize {
        let mut count = 0;
        for attachment in &mut self.ports {
            if attachment.waiting() > 0 {
                let (packets, bytes, lost) = attachment.send_waiting();
                self.counters.count_sent(to_u64(packets), bytes);
                if let Some((reason, lost)) = lost {
                    self.counters.count_dropped(reason, to_u64(lost));
                }
                count += packets;
            }
        }
        count
    }

    fn has_waiting(&self) -> bool {
        self.ports.iter().any(|attachment| attachment.waiting() > 0)
    }

    /// Makes the kernel send what is queued.
    #[inline]
    fn flush(&mut self, now: Instant) {
        for at in 0..self.ports.len() {
            if let Some(Err(error)) = self.ports.get_mut(at).map(AttachedInterface::flush) {
                self.failed(at, error, now);
            }
        }
    }

    /// Checks the interfaces for changes, and reopens those that are gone.
    #[cold]
    fn watch(&mut self, now: Instant) {
        for at in 0..self.ports.len() {
            let Some(attachment) = self.ports.get_mut(at) else { return };
            let events = &mut self.events;
            attachment.watch(now, self.reopen, &mut |event| push_event(events, event));
        }
    }

    #[cold]
    fn failed(&mut self, at: usize, error: LinkError, now: Instant) {
        let Some(attachment) = self.ports.get_mut(at) else { return };
        match error {
            // Reported as events.
            LinkError::Down | LinkError::Removed => {}
            LinkError::Full => return,
            error => {
                push_event(&mut self.events, HostEvent::Failed(attachment.port(), error));
                attachment.close(now);
            }
        }
        self.watch(now);
    }

    /// Returns the next unreported event of an interface, if any.
    pub fn next_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// Returns the pipeline.
    #[must_use]
    pub const fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Returns the AF_XDP mode of a port, if it uses AF_XDP.
    #[must_use]
    pub fn xdp_mode(&self, port: Port) -> Option<XdpMode> {
        self.link_of(port)?.xdp_mode()
    }

    /// Returns the link of a port; `None` while its interface is gone.
    #[must_use]
    pub fn link_of(&self, port: Port) -> Option<&Link> {
        self.ports.iter().find(|one| one.port() == port && one.sends())?.link()
    }

    /// Returns what was received, sent and dropped. Frames that the kernel dropped before the forwarder saw them are in
    /// [`kernel_drops`](Self::kernel_drops).
    #[must_use]
    pub const fn counters(&self) -> &TrafficCounters {
        &self.counters
    }

    /// Returns how many frames the kernel dropped because they were not taken in time, over all interfaces.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn kernel_drops(&mut self) -> Result<u64, LinkError> {
        self.ports.iter_mut().map(AttachedInterface::kernel_drops).sum()
    }

    /// Returns how many packets wait for full interfaces.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.ports.iter().map(AttachedInterface::waiting).sum()
    }

    /// Sends the packets inside without taking in more, for at most `ticks` ticks. Returns whether none is left.
    pub fn drain(&mut self, ticks: usize) -> bool {
        for _ in 0..ticks {
            self.send_waiting();
            self.flush(self.next_watch);
            if !self.has_waiting() && !self.ports.iter_mut().any(AttachedInterface::is_sending) {
                return true;
            }
        }
        false
    }

    /// Prepares to sleep on the links' descriptors. Returns whether something may be ready already.
    fn arm(&mut self) -> Result<bool, LinkError> {
        let takes_in = self.pipeline.on_full() == OnFull::Drop || !self.has_waiting();
        let mut is_ready = !self.events.is_empty();
        for attachment in &mut self.ports {
            is_ready |= attachment.arm(takes_in)?;
        }
        Ok(is_ready)
    }

    /// Returns the time to act without a frame or an event: to check for a missing interface, or for packets that are held.
    fn next_deadline(&self) -> Option<Instant> {
        let retries = self.ports.iter().filter_map(AttachedInterface::retry_at);
        let retry = self.reopen.and_then(|_| retries.min());
        retry.into_iter().chain(self.next_release).min()
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

fn push_event(events: &mut VecDeque<HostEvent>, event: HostEvent) {
    if events.len() == EVENTS_MAX {
        events.pop_front();
    }
    events.push_back(event);
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn add(sum: &mut (u64, u64), more: (u64, u64)) {
    *sum = (sum.0 + more.0, sum.1 + more.1);
}
