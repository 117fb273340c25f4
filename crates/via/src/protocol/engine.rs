//! The engine: one NIC, a VI to each rank, one completion queue, and the lists of requests.

use std::{collections::VecDeque, io, os::fd::BorrowedFd};

use vigie_detect::{Armed, Instant};

use super::{
    Config, EngineError, RequestId,
    config::FRAME_BYTES_MIN,
    greeting,
    incoming::{Arrival, Direct, Origin},
    link::{self, COOKIE_STAGED, Own, Sent, Staging, cookie_of, rank_of},
    matching::{Posted, Unexpected},
    payload::{Nowhere, Sink},
    peer::{Item, Link, Loop, Peer},
    reliable::{HEADER_BYTES, Lossy, ReliableCounters},
    request::{Message, Request},
    slots::Slots,
    wide,
};
use crate::vi::{
    Address, Attributes, Completion, CqId, MemoryAttributes, NicEvent, ProtectionTag, Provider,
    Queue, Reason, ReceiveDescriptor, RegistrationCache, Reliability, ViAttributes, ViError, ViId,
};

/// Completions that one call takes at most.
const BUDGET: usize = 64;

/// Requests for connections that wait for the consumer's answer, beside what the ranks need.
const REQUESTS_MAX: usize = 64;

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineEvent {
    /// A peer wants to connect: [`Engine::accept`] it, or reject it at the NIC.
    Requested {
        /// Names the request.
        request: crate::vi::RequestId,
        /// The rank that it claims to be, if its greeting is one of this protocol.
        rank: Option<u32>,
        /// What was listened for.
        discriminator: Vec<u8>,
    },
    /// A rank can be sent to.
    Connected {
        /// Which.
        rank: u32,
    },
    /// No connection to a rank came about: try again, or give it up.
    Refused {
        /// Which.
        rank: u32,
        /// Why.
        reason: Reason,
    },
    /// A rank has failed; what waited for it has ended with an error.
    Failed {
        /// Which.
        rank: u32,
        /// Why.
        reason: Reason,
    },
}

/// What an engine has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Messages that were sent.
    pub messages_sent: u64,
    /// Messages whose first frame arrived.
    pub messages_received: u64,
    /// Of these, those that no receive waited for.
    pub unexpected: u64,
    /// Of these, those in ready mode.
    pub ready_unexpected: u64,
    /// Frames that found no credit when they were to be sent.
    pub blocked: u64,
    /// Times that a peer was told to pause.
    pub pauses: u64,
    /// Messages that were read from the sender's memory in one copy.
    pub remote_reads: u64,
}

/// The message engine of one rank.
///
/// # Source
/// [via-lam, §4].
#[derive(Debug)]
pub struct Engine<P: Provider> {
    pub(super) nic: P,
    pub(super) cq: CqId,
    tag: ProtectionTag,
    pub(super) rank: u32,
    pub(super) config: Config,
    pub(super) attributes: Attributes,
    pub(super) peers: Vec<Peer>,
    pub(super) staging: Staging,
    pub(super) registrations: RegistrationCache,
    pub(super) requests: Slots<Request>,
    pub(super) messages: Slots<Message>,
    pub(super) posted: Posted,
    pub(super) unexpected: Unexpected,
    /// Requests that became ready while their owners did not look.
    pub(super) ready: Vec<RequestId>,
    /// Peers for which something waits.
    pub(super) listed: Vec<u32>,
    /// Peers that may be owed credits.
    touched: Vec<u32>,
    pub(super) now: Instant,
    pub(super) buffered_bytes: u64,
    pub(super) counters: Counters,
    /// The ranks that have failed, in this order.
    pub(super) failures: Vec<u32>,
    /// Counts completions and frames: whoever waits sees that something goes on.
    pub(super) worked: u64,
    pub(super) events: VecDeque<EngineEvent>,
    /// How many of them were there when the engine last did not sleep for their sake.
    pub(super) events_told: usize,
    /// VIs that are broken, while what had arrived over them may still have to be taken.
    pub(super) broken: Vec<Broken>,
}

/// A connection that ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken {
    pub(super) rank: u32,
    reason: Reason,
    /// What [`Engine::worked`] will be when everything that had arrived is taken for certain.
    until: u64,
}

fn region_attributes(tag: ProtectionTag, allows_write: bool) -> MemoryAttributes {
    MemoryAttributes { allows_write, ..MemoryAttributes::private(tag) }
}

impl<P: Provider> Engine<P> {
    /// Makes the engine of `rank` among `size` ranks, on a NIC of its own.
    ///
    /// # Errors
    /// [`EngineError`]: a value out of range, a NIC that cannot carry the protocol, or the NIC's.
    pub fn new(mut nic: P, rank: u32, size: u32, mut config: Config) -> Result<Self, EngineError> {
        config.check()?;
        if rank >= size || size > 1 << 24 {
            return Err(EngineError::NoSuchRank { rank, size });
        }
        let attributes = nic.attributes();
        let lacks = |what| Err(EngineError::Provider { provider: attributes.name, what });
        if attributes.max_inline < 64 {
            return lacks("it takes less than 64 bytes inline");
        }
        let holds = u32::try_from(attributes.max_descriptors).unwrap_or(u32::MAX);
        config.descriptors = config.descriptors.min(holds);
        config.control_entries = config.control_entries.min(holds / 4);
        if config.is_unreliable() {
            let most = attributes.unreliable_bytes.saturating_sub(wide(HEADER_BYTES));
            let most = u32::try_from(most).unwrap_or(u32::MAX).max(FRAME_BYTES_MIN);
            config.frame_bytes_max = config.frame_bytes_max.min(most);
        }
        config.check()?;
        if attributes.reliability < config.reliability {
            return lacks("its VIs are less reliable than asked for");
        }
        let (tag, cq) = (nic.create_tag(), nic.create_cq()?);
        // Over unreliable VIs a header stands before each frame.
        let frame_bytes = (config.frame_bytes_max + 64).next_multiple_of(64);
        let staging_bytes = config.staging_frames as usize * frame_bytes as usize;
        let region = nic.allocate(staging_bytes, region_attributes(tag, false))?;
        let staging =
            Staging::new(region, frame_bytes, config.staging_frames, attributes.max_inline);
        let mut peers: Vec<Peer> = (0..size).map(|_| Peer::new(Link::Absent)).collect();
        if let Some(own) = peers.get_mut(rank as usize) {
            own.link = Link::Loop(Loop::new(config.area_bytes));
            own.frame_bytes_max = config.frame_bytes_max;
            own.window_out = u64::from(config.window_bytes);
        }
        let entries_max = config.cache_entries_max as usize;
        Ok(Self {
            nic,
            cq,
            tag,
            rank,
            config,
            attributes,
            peers,
            staging,
            registrations: RegistrationCache::new(config.cache_bytes_max, entries_max),
            requests: Slots::new(),
            messages: Slots::new(),
            posted: Posted::new(),
            unexpected: Unexpected::new(),
            ready: Vec::new(),
            listed: Vec::new(),
            touched: Vec::new(),
            now: Instant::from_nanos(0),
            buffered_bytes: 0,
            counters: Counters::default(),
            failures: Vec::new(),
            worked: 0,
            events: VecDeque::new(),
            events_told: 0,
            broken: Vec::new(),
        })
    }

    /// Returns this engine's rank.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns how many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.peers.len()).unwrap_or(u32::MAX)
    }

    /// Returns the NIC.
    #[must_use]
    pub const fn nic(&self) -> &P {
        &self.nic
    }

    /// Returns the NIC, to listen, to reject, and to register memory for [`Payload::Region`](super::Payload).
    pub const fn nic_mut(&mut self) -> &mut P {
        &mut self.nic
    }

    /// Returns the protection tag of the engine's VIs: what memory for them is registered with.
    #[must_use]
    pub const fn tag(&self) -> ProtectionTag {
        self.tag
    }

    /// Returns what was done so far.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns how many requests and messages the engine keeps; zero when nothing is on its way.
    #[must_use]
    pub const fn kept(&self) -> usize {
        self.requests.len() + self.messages.len()
    }

    /// Returns whether everything that was sent has left this side, and over unreliable VIs has been
    /// acknowledged: what a program waits for before it ends.
    #[must_use]
    pub fn has_all_left(&self) -> bool {
        self.peers.iter().filter(|peer| peer.failed.is_none()).all(|peer| {
            let is_over = match &peer.link {
                Link::Lossy(lossy) => lossy.is_idle(),
                Link::Loop(own) => own.is_idle(),
                Link::Direct(_) | Link::Absent | Link::Prepared(_) => true,
            };
            is_over && peer.outbox.is_empty() && peer.pumps.is_empty() && peer.controls.is_empty()
        })
    }

    // ------------------------------------------------------------------ connections

    fn peer_to_be(&mut self, rank: u32) -> Result<&mut Peer, EngineError> {
        let size = self.size();
        let own = self.rank;
        self.peers
            .get_mut(rank as usize)
            .filter(|_| rank != own)
            .ok_or(EngineError::NoSuchRank { rank, size })
    }

    /// Makes a VI for a rank, with its area, its control region and its preposted descriptors, and returns
    /// it with the greeting that is to travel with the connection. Repeated calls return the same.
    ///
    /// # Errors
    /// [`EngineError::NoSuchRank`], or the NIC's.
    pub fn greeting(&mut self, rank: u32) -> Result<(ViId, Vec<u8>), EngineError> {
        self.peer_to_be(rank)?;
        if !matches!(self.peers[rank as usize].link, Link::Prepared(_)) {
            let own = self.prepare(rank)?;
            self.peers[rank as usize].link = Link::Prepared(own);
        }
        let Link::Prepared(own) = &self.peers[rank as usize].link else {
            return Err(EngineError::Greeting { rank, what: "it was made before" });
        };
        Ok((own.vi, greeting::encode(self.rank, self.size(), &self.config, own)))
    }

    fn prepare(&mut self, rank: u32) -> Result<Own, EngineError> {
        let config = self.config;
        let vi = self.nic.create_vi(ViAttributes {
            reliability: config.reliability,
            tag: self.tag,
            send_cq: Some(self.cq),
            receive_cq: Some(self.cq),
            allows_write: true,
            allows_read: config.reliability != Reliability::Unreliable,
        })?;
        let writable = region_attributes(self.tag, true);
        let area = self.nic.allocate(config.area_bytes as usize, writable)?;
        let bytes = link::control_region_bytes(config.control_entries);
        let control = self.nic.allocate(bytes, writable)?;
        let cookie = cookie_of(rank);
        for _ in 0..config.descriptors {
            self.nic.post_receive(vi, &ReceiveDescriptor { cookie, segments: &[] })?;
        }
        Ok(Own {
            vi,
            area,
            control,
            area_bytes: config.area_bytes,
            descriptors: config.descriptors,
            control_entries: config.control_entries,
            cookie,
            signal_every: u32::try_from(self.attributes.max_descriptors / 4).unwrap_or(64).max(1),
        })
    }

    /// Takes the greeting of a rank whose VI is connected: it can be sent to from now on.
    ///
    /// # Errors
    /// [`EngineError::Greeting`]; the VI should be disconnected then.
    pub fn accept_greeting(&mut self, rank: u32, bytes: &[u8]) -> Result<(), EngineError> {
        let (size, config) = (self.size(), self.config);
        let peer = self.peer_to_be(rank)?;
        let terms = greeting::decode(bytes, rank, size, &config)?;
        match std::mem::replace(&mut peer.link, Link::Absent) {
            Link::Prepared(own) => {
                peer.frame_bytes_max = config.frame_bytes_max.min(terms.frame_bytes_max);
                peer.window_out = u64::from(terms.window_bytes);
                peer.failed = None;
                peer.link = if config.is_unreliable() {
                    Link::Lossy(Box::new(Lossy::new(own, terms, &config)))
                } else {
                    Link::Direct(link::Direct::new(own, terms))
                };
                Ok(())
            }
            other => {
                peer.link = other;
                Err(EngineError::Greeting { rank, what: "nobody waited for it" })
            }
        }
    }

    /// Asks for a connection to a rank: ends in [`EngineEvent::Connected`] or [`EngineEvent::Refused`].
    ///
    /// # Errors
    /// As [`greeting`](Self::greeting), and those of [`Provider::connect`].
    pub fn connect(
        &mut self,
        rank: u32,
        address: &Address,
        discriminator: &[u8],
        deadline: Instant,
    ) -> Result<(), EngineError> {
        let (vi, greeting) = self.greeting(rank)?;
        Ok(self.nic.connect(vi, address, discriminator, &greeting, deadline)?)
    }

    /// Accepts the request of a rank.
    ///
    /// # Errors
    /// As [`greeting`](Self::greeting), and those of [`Provider::accept`].
    pub fn accept(&mut self, request: crate::vi::RequestId, rank: u32) -> Result<(), EngineError> {
        let (vi, greeting) = self.greeting(rank)?;
        Ok(self.nic.accept(request, vi, &greeting)?)
    }

    fn rank_with(&self, vi: ViId) -> Option<u32> {
        (0..self.size()).zip(&self.peers).find_map(|(rank, peer)| {
            let found = match &peer.link {
                Link::Prepared(own) => own.vi,
                Link::Direct(direct) => direct.vi,
                Link::Lossy(lossy) => lossy.own.vi,
                Link::Absent | Link::Loop(_) => return None,
            };
            (found == vi).then_some(rank)
        })
    }

    /// Takes the next event of a connection.
    pub fn event(&mut self) -> Option<EngineEvent> {
        self.take_nic_events();
        let event = self.events.pop_front()?;
        self.events_told = self.events_told.saturating_sub(1);
        Some(event)
    }

    fn take_nic_events(&mut self) -> bool {
        let mut is_any = false;
        while let Some(event) = self.nic.event() {
            is_any = true;
            match event {
                NicEvent::Requested { request, discriminator, greeting } => {
                    if self.events.len() >= REQUESTS_MAX.saturating_add(4 * self.peers.len()) {
                        // Nobody answers them. Whoever has gone meanwhile needs no answer.
                        drop(self.nic.reject(request));
                        continue;
                    }
                    let rank = greeting::rank(&greeting);
                    self.events.push_back(EngineEvent::Requested { request, rank, discriminator });
                }
                NicEvent::Connected { vi, greeting } => self.connected(vi, &greeting),
                NicEvent::Refused { vi, reason } => {
                    if let Some(rank) = self.rank_with(vi) {
                        self.events.push_back(EngineEvent::Refused { rank, reason });
                    }
                }
                NicEvent::Broken { vi, reason } => {
                    if let Some(rank) = self.rank_with(vi) {
                        // Completions that wait are at most what all VIs hold.
                        let held = self.attributes.max_descriptors.saturating_mul(2);
                        let until = wide(held).saturating_mul(wide(self.peers.len()));
                        let until = self.worked.saturating_add(until);
                        self.broken.push(Broken { rank, reason, until });
                    }
                }
            }
        }
        is_any
    }

    /// Lets ranks fail whose connection ended, as soon as all is taken that they had sent: whoever says its
    /// last words and leaves is heard. Returns whether any did.
    #[cold]
    fn fail_broken(&mut self, is_drained: bool) -> bool {
        let due = |broken: &Broken, worked| is_drained || broken.until <= worked;
        let mut has_failed = false;
        while let Some(&Broken { rank, reason, .. }) =
            self.broken.iter().find(|broken| due(broken, self.worked))
        {
            has_failed = true;
            self.broken.retain(|broken| broken.rank != rank);
            self.peer_failed(rank, reason);
        }
        has_failed
    }

    fn connected(&mut self, vi: ViId, greeting: &[u8]) {
        let Some(rank) = self.rank_with(vi) else { return };
        match self.accept_greeting(rank, greeting) {
            Ok(()) => self.events.push_back(EngineEvent::Connected { rank }),
            Err(_) => self.peer_failed(rank, Reason::Mismatch("the greeting is of no such rank")),
        }
    }

    // ------------------------------------------------------------------ progress

    /// Takes what has arrived, and sends what waited for credit. Returns whether anything was done.
    pub fn progress(&mut self, now: Instant) -> bool {
        self.now = now;
        let mut has_worked = self.nic.progress(now);
        has_worked |= self.take_nic_events();
        let mut is_drained = false;
        for _ in 0..BUDGET {
            if !self.step(&mut Direct::<Nowhere>::nothing(&mut Nowhere)) {
                is_drained = true;
                break;
            }
            has_worked = true;
        }
        if !self.broken.is_empty() {
            has_worked |= self.fail_broken(is_drained);
        }
        has_worked | self.flush() | self.serve_lossy()
    }

    /// Takes one completion. Returns whether there was one.
    #[inline]
    pub(super) fn step<S: Sink + ?Sized>(&mut self, direct: &mut Direct<'_, S>) -> bool {
        if let Some(completion) = self.nic.poll(self.cq) {
            self.worked = self.worked.wrapping_add(1);
            self.complete(&completion, direct);
            return true;
        }
        self.step_own(direct)
    }

    /// Takes one frame of this rank to itself.
    #[inline]
    fn step_own<S: Sink + ?Sized>(&mut self, direct: &mut Direct<'_, S>) -> bool {
        let rank = self.rank;
        let Some(Peer { link: Link::Loop(own), .. }) = self.peers.get_mut(rank as usize) else {
            return false;
        };
        let Some(item) = own.take() else { return false };
        self.worked = self.worked.wrapping_add(1);
        let handled = match item {
            Item::Control(control) => self.control(rank, control),
            Item::Frame(bytes) => {
                self.frame(Arrival::new(rank, bytes.len(), Origin::Heap(bytes)), direct)
            }
        };
        debug_assert!(handled.is_ok(), "from ourselves: {handled:?}");
        true
    }

    #[inline]
    fn complete<S: Sink + ?Sized>(&mut self, completion: &Completion, direct: &mut Direct<'_, S>) {
        let rank = rank_of(completion.cookie);
        if completion.queue == Queue::Receive && completion.status.is_done() {
            let immediate = completion.immediate.unwrap_or(i32::MIN);
            if let Err(what) = self.arrived(rank, immediate, direct) {
                self.peer_fault(rank, what);
            }
            return;
        }
        if completion.cookie & COOKIE_STAGED != 0 {
            self.staging.give_back(completion.cookie);
        }
        if !completion.status.is_done() {
            // The event of the broken VI says why, if there is one. All that had arrived was completed before.
            self.take_nic_events();
            let broken = self.broken.iter().find(|broken| broken.rank == rank);
            let reason = broken.map_or(Reason::DescriptorFailed, |broken| broken.reason);
            self.broken.retain(|broken| broken.rank != rank);
            self.peer_failed(rank, reason);
        }
    }

    #[inline]
    fn arrived<S: Sink + ?Sized>(
        &mut self,
        rank: u32,
        immediate: i32,
        direct: &mut Direct<'_, S>,
    ) -> Result<(), &'static str> {
        let Some(Peer { link: Link::Direct(link), failed: None, is_touched, .. }) =
            self.peers.get_mut(rank as usize)
        else {
            return self.arrived_elsewhere(rank, immediate, direct);
        };
        link.consumed();
        if !std::mem::replace(is_touched, true) {
            self.touched.push(rank);
        }
        match immediate {
            link::CONTROL_IMMEDIATE => {
                let control = link.take_control().ok_or("an unknown control entry")?;
                self.control(rank, control)?;
            }
            link::NOTICE_IMMEDIATE => {
                link.noticed()?;
                self.flush_peer(rank);
            }
            link::WISH_IMMEDIATE => link.wished(),
            _ => {
                let found = link.find(immediate).ok_or("an impossible place or length")?;
                let arrival = Arrival::new(rank, found.length as usize, Origin::Area(found.offset));
                self.frame(arrival, direct)?;
            }
        }
        self.return_credits(rank, false);
        Ok(())
    }

    /// Takes what came over an unreliable VI, or as the first over any.
    #[cold]
    fn arrived_elsewhere<S: Sink + ?Sized>(
        &mut self,
        rank: u32,
        immediate: i32,
        direct: &mut Direct<'_, S>,
    ) -> Result<(), &'static str> {
        let is_prepared = |engine: &Self| {
            let peer = engine.peers.get(rank as usize);
            matches!(peer, Some(Peer { link: Link::Prepared(_), .. }))
        };
        if !is_prepared(self) {
            return self.arrived_lossy(rank, immediate, direct);
        }
        // What tells of the connection may have come with this, and after events were taken last.
        self.take_nic_events();
        if is_prepared(self) {
            return Err("it came before its connection");
        }
        self.arrived(rank, immediate, direct)
    }

    /// Takes what came over an unreliable VI.
    #[cold]
    fn arrived_lossy<S: Sink + ?Sized>(
        &mut self,
        rank: u32,
        immediate: i32,
        direct: &mut Direct<'_, S>,
    ) -> Result<(), &'static str> {
        let Some(Peer { link: Link::Lossy(lossy), failed: None, .. }) =
            self.peers.get_mut(rank as usize)
        else {
            return Ok(());
        };
        lossy.repost(&mut self.nic);
        lossy.arrived(immediate)?;
        while let Some(Peer { link: Link::Lossy(lossy), failed: None, .. }) =
            self.peers.get_mut(rank as usize)
            && let Some(item) = lossy.take()
        {
            match item? {
                Item::Control(control) => self.control(rank, control)?,
                Item::Frame(bytes) => {
                    self.frame(Arrival::behind(rank, HEADER_BYTES, bytes), direct)?;
                }
            }
        }
        Ok(())
    }

    /// Acknowledges what came over unreliable VIs, and sends again what is due. Returns whether anything was
    /// sent again.
    fn serve_lossy(&mut self) -> bool {
        if !self.config.is_unreliable() {
            return false;
        }
        let mut has_worked = false;
        for rank in 0..self.size() {
            let Some(Peer { link: Link::Lossy(lossy), failed: None, .. }) =
                self.peers.get_mut(rank as usize)
            else {
                continue;
            };
            match lossy.service(&mut self.nic, &mut self.staging, self.now) {
                Ok(sent) => has_worked |= sent,
                Err(()) => {
                    self.peer_failed(rank, Reason::TransportFailed);
                    continue;
                }
            }
            if let Some(Peer { link: Link::Lossy(lossy), .. }) = self.peers.get_mut(rank as usize)
                && let Sent::Fault(what) = lossy.acknowledge(&mut self.nic)
            {
                self.peer_fault(rank, what);
            }
        }
        has_worked
    }

    /// Returns what the error control over the unreliable VI to a rank did; `None` if there is none.
    #[must_use]
    pub fn reliable_counters(&self, rank: u32) -> Option<ReliableCounters> {
        match &self.peers.get(rank as usize)?.link {
            Link::Lossy(lossy) => Some(lossy.counters),
            _ => None,
        }
    }

    /// Gives credits back to a peer, if enough have gathered or it waits for them.
    #[inline]
    pub(super) fn return_credits(&mut self, rank: u32, is_forced: bool) {
        let Some(Peer { link: Link::Direct(link), failed: None, .. }) =
            self.peers.get_mut(rank as usize)
        else {
            return;
        };
        if !(is_forced || link.owes() || link.is_due()) {
            return;
        }
        match link.give_back(&mut self.nic, is_forced) {
            Sent::Done => {}
            Sent::Blocked => self.touch(rank),
            Sent::Fault(what) => self.peer_fault(rank, what),
        }
    }

    /// Takes what this rank has sent to itself.
    #[cold]
    pub(crate) fn serve_own(&mut self) {
        for _ in 0..BUDGET {
            if !self.step_own(&mut Direct::<Nowhere>::nothing(&mut Nowhere)) {
                break;
            }
        }
    }

    /// Returns whether something that this rank has sent to itself was not taken yet.
    fn has_own(&self) -> bool {
        let own = self.peers.get(self.rank as usize);
        matches!(own, Some(Peer { link: Link::Loop(own), .. }) if !own.is_idle())
    }

    /// Returns whether there is work that nobody rings for, should the engine have been armed before it came
    /// up.
    #[cold]
    pub(crate) fn has_silent_work(&self) -> bool {
        self.has_own()
            || !self.broken.is_empty()
            || !self.listed.is_empty()
            || self.nic.has_backlog()
    }

    pub(super) fn touch(&mut self, rank: u32) {
        if let Some(peer) = self.peers.get_mut(rank as usize)
            && !std::mem::replace(&mut peer.is_touched, true)
        {
            self.touched.push(rank);
        }
    }

    /// Sends what waits for any peer. Returns whether anything was sent.
    #[inline]
    pub(super) fn flush(&mut self) -> bool {
        if self.listed.is_empty() {
            return false;
        }
        let mut has_worked = false;
        for rank in std::mem::take(&mut self.listed) {
            if let Some(peer) = self.peers.get_mut(rank as usize) {
                peer.is_listed = false;
            }
            has_worked |= self.flush_peer(rank);
        }
        has_worked
    }

    /// Remembers that something waits for a peer.
    pub(super) fn list(&mut self, rank: u32) {
        if let Some(peer) = self.peers.get_mut(rank as usize)
            && peer.failed.is_none()
            && !std::mem::replace(&mut peer.is_listed, true)
        {
            self.listed.push(rank);
        }
    }

    /// Moves the requests that became ready since the last call, by anybody's progress, to `ready`.
    /// A request may be named that has ended since, or more than once.
    pub fn take_ready(&mut self, ready: &mut Vec<RequestId>) {
        ready.append(&mut self.ready);
    }

    // ------------------------------------------------------------------ sleep

    /// Prepares for sleep: gives all credits back, asks peers to ring for those that are missed here, and
    /// arms the NIC. Events that nobody took yet do not keep it awake.
    ///
    /// # Errors
    /// The kernel's.
    pub fn arm(&mut self) -> io::Result<Armed> {
        // There is time to look for memory that nobody else holds any more.
        if !self.registrations.is_empty() {
            self.registrations.sweep(&mut self.nic);
        }
        for rank in std::mem::take(&mut self.touched) {
            if let Some(peer) = self.peers.get_mut(rank as usize) {
                peer.is_touched = false;
            }
            self.return_credits(rank, true);
        }
        let mut is_blocked = !self.touched.is_empty();
        for index in 0..self.listed.len() {
            let rank = self.listed[index];
            let Some(Peer { link: Link::Direct(link), failed: None, .. }) =
                self.peers.get_mut(rank as usize)
            else {
                continue;
            };
            match link.wish(&mut self.nic) {
                Sent::Done => {}
                Sent::Blocked => is_blocked = true,
                Sent::Fault(what) => {
                    self.peer_fault(rank, what);
                    is_blocked = true;
                }
            }
        }
        // Events keep nobody awake for longer than it takes to look for them: perhaps nobody wants them.
        let has_news = self.events.len() > self.events_told;
        self.events_told = self.events.len();
        let is_ending = !self.broken.is_empty();
        if is_blocked || is_ending || self.has_own() || !self.ready.is_empty() || has_news {
            return Ok(Armed::Ready);
        }
        self.nic.arm()
    }

    /// Makes the descriptor quiet: see [`Provider::quiet`].
    pub fn quiet(&mut self) {
        self.nic.quiet();
    }

    /// Returns what becomes readable while the engine is armed: see [`Provider::descriptor`].
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.nic.descriptor()
    }

    /// Returns when [`progress`](Self::progress) has work that only time brings.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let nic = self.nic.next_deadline();
        if !self.config.is_unreliable() {
            return nic;
        }
        let lossy = self.peers.iter().filter(|peer| peer.failed.is_none());
        let lossy = lossy.filter_map(|peer| match &peer.link {
            Link::Lossy(lossy) => lossy.next_deadline(),
            _ => None,
        });
        lossy.chain(nic).min()
    }
}

impl From<EngineError> for io::Error {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Vi(ViError::Io(error)) => error,
            other => Self::other(other),
        }
    }
}

#[cfg(test)]
mod tests;
