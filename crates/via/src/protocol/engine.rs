//! The engine: one NIC, a VI to each rank, one completion queue, and the lists of requests.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    os::fd::BorrowedFd,
};

use vigie_detect::{ArmOutcome, Instant};

use super::{
    EngineConfig, EngineError, RequestId,
    config::FRAME_BYTES_MIN,
    greeting,
    incoming::{ArrivedFrame, DirectReceive, Origin},
    link::{self, COOKIE_STAGED, SendOutcome, Staging, rank_of},
    loopback::{LoopbackItem, LoopbackLink},
    matching::PostedReceives,
    payload::{Discard, Sink},
    peer::{Peer, PeerLink, reliable},
    receive::UNATTENDED_AFTER,
    reliable::{ErrorControlCounters, HEADER_BYTES},
    state::{BrokenPeer, EngineEvent, MessageCounters, MessageEngine, region_attributes},
    to_u64,
    unexpected::UnexpectedMessages,
};
use crate::{
    slots::Slots,
    vi::{
        Completion, DisconnectReason, HeadedPoll, NicEvent, Provider, Queue, RegistrationCache,
        ViError,
    },
};

/// The most completions that one call takes.
const BUDGET: usize = 64;

/// Connection requests that may wait for the consumer's answer, beyond those that the ranks need.
const REQUESTS_MAX: usize = 64;

impl<P: Provider> MessageEngine<P> {
    /// Makes the engine of `rank` among `size` ranks, on its own NIC.
    ///
    /// # Errors
    /// [`EngineError`]: a value is out of range, the NIC cannot carry the protocol, or the NIC failed.
    pub fn new(
        mut nic: P,
        rank: u32,
        size: u32,
        mut config: EngineConfig,
    ) -> Result<Self, EngineError> {
        config.check()?;
        if rank >= size || size > 1 << 24 {
            return Err(EngineError::NoSuchRank { rank, size });
        }

        let attributes = nic.attributes();
        let lacks =
            |what| Err(EngineError::UnsupportedProvider { provider: attributes.name, what });
        if attributes.inline_bytes_max < 64 {
            return lacks("it takes less than 64 bytes inline");
        }

        let holds = u32::try_from(attributes.descriptors_max).unwrap_or(u32::MAX);
        config.descriptors = config.descriptors.min(holds);
        config.control_entries = config.control_entries.min(holds / 4);
        if config.is_unreliable() {
            let most = attributes.unreliable_bytes.saturating_sub(to_u64(HEADER_BYTES));
            let most = u32::try_from(most).unwrap_or(u32::MAX).max(FRAME_BYTES_MIN);
            config.frame_bytes_max = config.frame_bytes_max.min(most);
        }
        config.check()?;

        if attributes.max_reliability < config.reliability {
            return lacks("its VIs are less reliable than asked for");
        }

        let (tag, cq) = (nic.create_tag(), nic.create_cq()?);
        // Over unreliable VIs, a header precedes each frame.
        let frame_bytes = (config.frame_bytes_max + 64).next_multiple_of(64);
        let staging_bytes = config.staging_frames as usize * frame_bytes as usize;
        let region = nic.allocate(staging_bytes, region_attributes(tag, false))?;
        let staging =
            Staging::new(region, frame_bytes, config.staging_frames, attributes.inline_bytes_max);

        let mut peers: Vec<Peer> = (0..size).map(|_| Peer::new(PeerLink::Absent)).collect();
        if let Some(own) = peers.get_mut(rank as usize) {
            own.link = PeerLink::Loopback(LoopbackLink::new(config.area_bytes));
            own.frame_bytes_max = config.frame_bytes_max;
            own.window_out = u64::from(config.window_bytes);
            own.announced_out_max = config.announced_messages_max;
        }

        let entries_max = config.cache_entries_max as usize;
        Ok(Self {
            nic,
            cq,
            pool_tag: tag,
            rank,
            config,
            attributes,
            peers,
            staging,
            registrations: RegistrationCache::new(config.cache_bytes_max, entries_max),
            requests: Slots::new(),
            messages: Slots::new(),
            posted: PostedReceives::new(),
            unexpected: UnexpectedMessages::new(),
            ready: Vec::new(),
            forgotten: Vec::new(),
            listed: Vec::new(),
            touched: Vec::new(),
            now: Instant::from_nanos(0),
            buffered_bytes: 0,
            buffers: BTreeMap::new(),
            held_bytes: 0,
            unattended: Vec::new(),
            counters: MessageCounters::default(),
            failures: Vec::new(),
            told: BTreeMap::new(),
            worked: 0,
            events: VecDeque::new(),
            discriminator: None,
            pausing: Vec::new(),
            events_reported: 0,
            broken: Vec::new(),
        })
    }

    /// Returns the time of the last [`progress`](Self::progress).
    #[cfg(feature = "message")]
    pub(crate) const fn now(&self) -> Instant {
        self.now
    }

    /// Returns this engine's rank.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.peers.len()).unwrap_or(u32::MAX)
    }

    /// Returns the NIC.
    #[must_use]
    pub const fn nic(&self) -> &P {
        &self.nic
    }

    /// Returns the NIC, for you to listen, reject requests, and register memory for
    /// [`Payload::Region`](super::Payload).
    pub const fn nic_mut(&mut self) -> &mut P {
        &mut self.nic
    }

    /// Returns the engine's counters.
    #[must_use]
    pub const fn counters(&self) -> MessageCounters {
        self.counters
    }

    /// Returns how many requests, sets of requests and messages the engine keeps; zero when nothing is under way.
    #[must_use]
    pub const fn kept(&self) -> usize {
        self.requests.len() + self.messages.len() + self.unexpected.wholes()
    }

    /// Returns whether everything that was sent has left this side and, over networks and unreliable VIs, has been
    /// acknowledged. A program should wait for this before it ends.
    #[must_use]
    pub fn has_all_left(&self) -> bool {
        self.peers.iter().all(|peer| self.has_left(peer))
            && self.requests.iter().all(|(_, it)| it.leaves_for().is_none())
    }

    /// Returns the other ranks to which something that was sent has not left yet.
    pub(crate) fn unreached(&self) -> BTreeSet<u32> {
        let peers = (0..).zip(&self.peers).filter(|(_, peer)| !self.has_left(peer));
        let requests = self.requests.iter().filter_map(|(_, it)| it.leaves_for());
        let ranks = peers.map(|(rank, _)| rank).chain(requests);
        ranks.filter(|rank| *rank != self.rank).collect()
    }

    /// Returns whether no frame and no control entry for a peer waits on this side.
    fn has_left(&self, peer: &Peer) -> bool {
        let has_left = match &peer.link {
            PeerLink::Reliable(link) => !self.nic.has_unsent(link.vi),
            PeerLink::Unreliable(lossy) => lossy.is_idle(),
            PeerLink::Loopback(own) => own.is_idle(),
            PeerLink::Absent | PeerLink::Prepared(_) => true,
        };
        let is_quiet = peer.pumps.is_empty() && peer.controls.is_empty();
        let is_over = has_left && is_quiet && peer.outbox.is_empty() && peer.settled == 0;
        is_over || peer.failed.is_some()
    }

    // ------------------------------------------------------------------ events

    /// Returns the next event of a connection.
    pub fn next_event(&mut self) -> Option<EngineEvent> {
        self.take_nic_events();
        let event = self.events.pop_front()?;
        self.events_reported = self.events_reported.saturating_sub(1);
        Some(event)
    }

    pub(super) fn take_nic_events(&mut self) -> bool {
        let mut is_any = false;
        while let Some(event) = self.nic.next_event() {
            is_any = true;
            match event {
                NicEvent::Requested { request, discriminator, greeting }
                    if self.discriminator.as_ref() == Some(&discriminator) =>
                {
                    self.called(request, &greeting);
                }
                NicEvent::Requested { request, discriminator, greeting } => {
                    if self.events.len() >= REQUESTS_MAX.saturating_add(4 * self.peers.len()) {
                        // The consumer does not answer them. A peer that has left meanwhile needs no answer.
                        drop(self.nic.reject(request));
                        continue;
                    }
                    let rank = greeting::rank(&greeting);
                    self.events.push_back(EngineEvent::Requested { request, rank, discriminator });
                }
                NicEvent::Connected { vi, greeting } => self.connected(vi, &greeting),
                NicEvent::Refused { vi, reason } => {
                    if let Some(rank) = self.rank_with(vi) {
                        self.refused(rank, reason);
                    }
                }
                NicEvent::Broken { vi, reason } => {
                    if let Some(rank) = self.rank_with(vi) {
                        // The completions that wait are at most as many as all VIs hold.
                        let held = self.attributes.descriptors_max.saturating_mul(2);
                        let until = to_u64(held).saturating_mul(to_u64(self.peers.len()));
                        let until = self.worked.saturating_add(until);
                        self.broken.push(BrokenPeer { rank, reason, until });
                    }
                }
            }
        }
        is_any
    }

    /// Fails the ranks whose connection ended, once everything that they had sent is taken: the last messages
    /// of a rank that leaves are still received. Returns whether any rank failed.
    #[cold]
    fn fail_broken(&mut self, is_drained: bool) -> bool {
        let due = |broken: &BrokenPeer, worked| is_drained || broken.until <= worked;
        let mut has_failed = false;
        while let Some(&BrokenPeer { rank, reason, .. }) =
            self.broken.iter().find(|broken| due(broken, self.worked))
        {
            has_failed = true;
            self.broken.retain(|broken| broken.rank != rank);
            self.peer_failed(rank, reason);
        }
        has_failed
    }

    // ------------------------------------------------------------------ progress

    /// Takes what has arrived, and sends what waited for credit. Returns whether anything was done.
    pub fn progress(&mut self, now: Instant) -> bool {
        self.now = now;
        let mut has_worked = self.nic.progress(now);
        has_worked |= self.take_nic_events() | self.call_again();
        let mut is_drained = false;
        for _ in 0..BUDGET {
            if !self.step(&mut DirectReceive::<Discard>::nothing(&mut Discard)) {
                is_drained = true;
                break;
            }
            has_worked = true;
        }
        if !self.broken.is_empty() {
            has_worked |= self.fail_broken(is_drained);
        }
        has_worked |= self.serve_unattended(now) | self.drop_forgotten();
        has_worked | self.flush() | self.serve_lossy()
    }

    /// Takes one completion. Returns whether there was one.
    #[inline]
    pub(super) fn step<S: Sink + ?Sized>(&mut self, direct: &mut DirectReceive<'_, S>) -> bool {
        let vi = direct.source.and_then(|rank| reliable(&self.peers, rank)).map(|link| link.vi);
        match self.nic.poll_headed_write(self.cq, vi) {
            HeadedPoll::Write(write) => {
                self.worked = self.worked.wrapping_add(1);
                self.take_headed(write, direct);
                return true;
            }
            HeadedPoll::Nothing => {
                if let Some(link) = direct.source.and_then(|rank| reliable(&self.peers, rank)) {
                    link.fetch_next();
                }
                return self.step_own(direct);
            }
            HeadedPoll::Other => {}
        }
        let completion = match vi {
            Some(vi) => self.nic.poll_cq_for(self.cq, vi),
            None => self.nic.poll_cq(self.cq),
        };
        if let Some(completion) = completion {
            self.worked = self.worked.wrapping_add(1);
            self.complete(&completion, direct);
            return true;
        }
        self.step_own(direct)
    }

    /// Takes one frame that this rank sent to itself.
    #[inline]
    fn step_own<S: Sink + ?Sized>(&mut self, direct: &mut DirectReceive<'_, S>) -> bool {
        let rank = self.rank;
        let Some(Peer { link: PeerLink::Loopback(own), .. }) = self.peers.get_mut(rank as usize)
        else {
            return false;
        };
        let Some(item) = own.take() else { return false };
        self.worked = self.worked.wrapping_add(1);
        let handled = match item {
            LoopbackItem::Control(control) => self.control(rank, control),
            LoopbackItem::Frame(bytes) => {
                self.frame(ArrivedFrame::new(rank, bytes.len(), Origin::Heap(bytes)), direct)
            }
        };
        debug_assert!(handled.is_ok(), "from ourselves: {handled:?}");
        true
    }

    #[inline]
    fn complete<S: Sink + ?Sized>(
        &mut self,
        completion: &Completion,
        direct: &mut DirectReceive<'_, S>,
    ) {
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
            // The broken VI's event, if there is one, says why. Everything that had arrived was completed
            // before it.
            self.take_nic_events();
            let broken = self.broken.iter().find(|broken| broken.rank == rank);
            let reason = broken.map_or(DisconnectReason::DescriptorFailed, |broken| broken.reason);
            self.broken.retain(|broken| broken.rank != rank);
            self.peer_failed(rank, reason);
        }
    }

    #[inline]
    fn arrived<S: Sink + ?Sized>(
        &mut self,
        rank: u32,
        immediate: i32,
        direct: &mut DirectReceive<'_, S>,
    ) -> Result<(), &'static str> {
        let Some(Peer { link: PeerLink::Reliable(link), failed: None, is_touched, .. }) =
            self.peers.get_mut(rank as usize)
        else {
            return self.arrived_elsewhere(rank, immediate, direct);
        };

        link.consumed();
        // From now on the peer may be owed credits: it gets them at the latest before the engine sleeps.
        if !std::mem::replace(is_touched, true) {
            self.touched.push(rank);
        }
        self.took(rank, immediate, direct)
    }

    /// Handles an arrival of a reliable VI whose descriptor was accounted for.
    #[inline]
    pub(super) fn took<S: Sink + ?Sized>(
        &mut self,
        rank: u32,
        immediate: i32,
        direct: &mut DirectReceive<'_, S>,
    ) -> Result<(), &'static str> {
        let Some(Peer { link: PeerLink::Reliable(link), failed: None, .. }) =
            self.peers.get_mut(rank as usize)
        else {
            return Ok(());
        };
        match immediate {
            link::CONTROL_IMMEDIATE => {
                let control = link.take_control().ok_or("an unknown control entry")?;
                self.control(rank, control)?;
            }
            link::CREDIT_NOTICE_IMMEDIATE => {
                link.notified()?;
                self.flush_peer(rank);
            }
            link::CREDIT_REQUEST_IMMEDIATE => link.credit_requested(),
            _ => {
                link.note_length(0);
                let found = link.find(immediate).ok_or("an impossible place or length")?;
                let arrival =
                    ArrivedFrame::new(rank, found.length as usize, Origin::Area(found.offset));
                self.frame(arrival, direct)?;
            }
        }

        // Only now, since the place of a frame is free once the frame was handled.
        self.return_credits(rank, false);
        Ok(())
    }

    /// Takes a completion of an unreliable VI, or the first of any VI.
    #[cold]
    fn arrived_elsewhere<S: Sink + ?Sized>(
        &mut self,
        rank: u32,
        immediate: i32,
        direct: &mut DirectReceive<'_, S>,
    ) -> Result<(), &'static str> {
        let is_prepared = |engine: &Self| {
            let peer = engine.peers.get(rank as usize);
            matches!(peer, Some(Peer { link: PeerLink::Prepared(_), .. }))
        };
        if !is_prepared(self) {
            return self.arrived_lossy(rank, immediate, direct);
        }
        // The event of the connection may have arrived with this, after events were last taken.
        self.take_nic_events();
        if is_prepared(self) {
            return Err("it came before its connection");
        }
        self.arrived(rank, immediate, direct)
    }

    /// Takes what arrived over an unreliable VI.
    #[cold]
    fn arrived_lossy<S: Sink + ?Sized>(
        &mut self,
        rank: u32,
        immediate: i32,
        direct: &mut DirectReceive<'_, S>,
    ) -> Result<(), &'static str> {
        let Some(Peer { link: PeerLink::Unreliable(lossy), failed: None, .. }) =
            self.peers.get_mut(rank as usize)
        else {
            return Ok(());
        };

        lossy.repost(&mut self.nic);
        lossy.arrived(immediate)?;

        // The peer is looked up for each item: it may fail while one is handled.
        while let Some(Peer { link: PeerLink::Unreliable(lossy), failed: None, .. }) =
            self.peers.get_mut(rank as usize)
            && let Some(item) = lossy.take()
        {
            match item? {
                LoopbackItem::Control(control) => self.control(rank, control)?,
                LoopbackItem::Frame(bytes) => {
                    self.frame(ArrivedFrame::behind(rank, HEADER_BYTES, bytes), direct)?;
                }
            }
        }
        Ok(())
    }

    /// Acknowledges what arrived over unreliable VIs, and retransmits what is due. Returns whether anything
    /// was retransmitted.
    fn serve_lossy(&mut self) -> bool {
        if !self.config.is_unreliable() {
            return false;
        }

        let mut has_worked = false;
        for rank in 0..self.size() {
            let Some(Peer { link: PeerLink::Unreliable(lossy), failed: None, .. }) =
                self.peers.get_mut(rank as usize)
            else {
                continue;
            };

            match lossy.service(&mut self.nic, &mut self.staging, self.now) {
                Ok(sent) => has_worked |= sent,
                Err(()) => {
                    self.peer_failed(rank, DisconnectReason::TransportFailed);
                    continue;
                }
            }

            // A retransmission carries the acknowledgement with it: only one that is still owed is sent alone.
            if let Some(Peer { link: PeerLink::Unreliable(lossy), .. }) =
                self.peers.get_mut(rank as usize)
                && let SendOutcome::Fault(what) = lossy.acknowledge(&mut self.nic)
            {
                self.peer_fault(rank, what);
            }
        }
        has_worked
    }

    /// Returns the counters of error control for the unreliable VI to a rank; `None` if it has no such VI.
    #[must_use]
    pub fn error_control_counters(&self, rank: u32) -> Option<ErrorControlCounters> {
        match &self.peers.get(rank as usize)?.link {
            PeerLink::Unreliable(lossy) => Some(lossy.counters),
            _ => None,
        }
    }

    /// Gives credits back to a peer, if enough have accumulated or the peer waits for them.
    #[inline]
    pub(super) fn return_credits(&mut self, rank: u32, is_forced: bool) {
        let Some(Peer { link: PeerLink::Reliable(link), failed: None, .. }) =
            self.peers.get_mut(rank as usize)
        else {
            return;
        };
        if !(is_forced || link.owes() || link.is_due()) {
            return;
        }
        match link.give_back(&mut self.nic, is_forced) {
            SendOutcome::Done => {}
            SendOutcome::Blocked => self.touch(rank),
            SendOutcome::Fault(what) => self.peer_fault(rank, what),
        }
    }

    /// Takes what this rank has sent to itself.
    #[cold]
    pub(crate) fn serve_own(&mut self) {
        for _ in 0..BUDGET {
            if !self.step_own(&mut DirectReceive::<Discard>::nothing(&mut Discard)) {
                break;
            }
        }
    }

    /// Returns whether this rank has sent itself something that it has not taken yet.
    fn has_own(&self) -> bool {
        let own = self.peers.get(self.rank as usize);
        matches!(own, Some(Peer { link: PeerLink::Loopback(own), .. }) if !own.is_idle())
    }

    /// Returns whether there is work that nothing will announce if it came up after the engine was armed.
    #[cold]
    pub(crate) fn has_silent_work(&self) -> bool {
        self.has_own()
            || !self.broken.is_empty()
            || !self.listed.is_empty()
            || self.unattended.iter().any(|one| one.since.is_none())
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

    /// Records that something waits for a peer.
    pub(super) fn list(&mut self, rank: u32) {
        // What waits for a connection is sent once that is there.
        if let Some(peer) = self.peers.get_mut(rank as usize)
            && peer.failed.is_none()
            && (peer.is_connected() || peer.address.is_none())
            && !std::mem::replace(&mut peer.is_listed, true)
        {
            self.listed.push(rank);
        }
    }

    /// Moves the requests that became ready since the last call, through any caller's progress, to `ready`. A
    /// request may have ended since, or be named more than once.
    pub fn take_ready(&mut self, ready: &mut Vec<RequestId>) {
        ready.append(&mut self.ready);
    }

    // ------------------------------------------------------------------ sleep

    /// Prepares for sleep: gives all credits back, asks peers to announce the credits that this side lacks,
    /// and arms the NIC. Events that were not taken yet do not keep it awake.
    ///
    /// # Errors
    /// The kernel's.
    pub fn arm(&mut self) -> io::Result<ArmOutcome> {
        // There is time now to look for memory that only the cache still holds.
        if !self.registrations.is_empty() {
            self.registrations.sweep(&mut self.nic);
        }

        self.return_all_credits();
        let mut is_blocked = !self.touched.is_empty();
        for index in 0..self.listed.len() {
            let rank = self.listed[index];
            let Some(Peer { link: PeerLink::Reliable(link), failed: None, .. }) =
                self.peers.get_mut(rank as usize)
            else {
                continue;
            };
            match link.request_credit(&mut self.nic) {
                SendOutcome::Done => {}
                SendOutcome::Blocked => is_blocked = true,
                SendOutcome::Fault(what) => {
                    self.peer_fault(rank, what);
                    is_blocked = true;
                }
            }
        }

        // Events keep the engine awake only for one more poll: perhaps no caller wants them.
        let has_news = self.events.len() > self.events_reported;
        self.events_reported = self.events.len();
        let is_ending = !self.broken.is_empty();
        if is_blocked || is_ending || self.has_own() || !self.ready.is_empty() || has_news {
            return Ok(ArmOutcome::Ready);
        }
        self.nic.arm()
    }

    /// Gives back the credits that are owed to peers, however few.
    pub(crate) fn return_all_credits(&mut self) {
        for rank in std::mem::take(&mut self.touched) {
            if let Some(peer) = self.peers.get_mut(rank as usize) {
                peer.is_touched = false;
            }
            self.return_credits(rank, true);
        }
    }

    /// Makes the descriptor quiet: see [`Provider::quiet`].
    pub fn quiet(&mut self) {
        self.nic.quiet();
    }

    /// Returns the descriptor that becomes readable while the engine is armed: see [`Provider::descriptor`].
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.nic.descriptor()
    }

    /// Returns when [`progress`](Self::progress) has timed work to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let unattended = self.unattended.iter().map(|one| match one.since {
            Some(since) => since.saturating_add(UNATTENDED_AFTER),
            None => self.now,
        });
        let calls = self.pausing.iter().filter_map(|rank| self.peers.get(*rank as usize)?.due());
        let nic = self.nic.next_deadline().into_iter().chain(unattended).chain(calls).min();
        if !self.config.is_unreliable() {
            return nic;
        }
        let lossy = self.peers.iter().filter(|peer| peer.failed.is_none());
        let lossy = lossy.filter_map(|peer| match &peer.link {
            PeerLink::Unreliable(lossy) => lossy.next_deadline(),
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
