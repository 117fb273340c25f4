//! The connection of ranks: by the caller, or by the engine when a rank is first needed.
//!
//! ```text
//!             needed                 the NIC's answer
//!   Apart ──────────▶ Calling ─────────────────────────▶ connected
//!     │                 │  ▲                                 ▲
//!     │ called          │  │ due                             │
//!     ▼       refused   ▼  │                                 │
//!   Answering ──────▶ Pausing          Answering ────────────┘
//! ```
//!
//! Two ranks that need each other may call at once. Then the call of the lower rank counts: the lower one refuses the other's
//! call, and the higher one keeps the lower one's until its own is refused, and accepts it with the same VI. So neither takes
//! back a call, and no order of events makes two connections or none.
//!
//! A call has no deadline, since a rank may compute for a long time before it answers. It ends when nothing listens at the
//! address any more, or when [`MessageEngine::rank_is_gone`] says so.

use std::time::Duration;

use vigie_detect::Instant;

use super::{
    EngineError, EngineEvent, MessageEngine, greeting,
    link::{self, LocalResources, cookie_of},
    peer::{Approach, Peer, PeerLink},
    reliable::UnreliableLink,
    state::region_attributes,
};
use crate::{
    auth::Secret,
    vi::{
        Address, Connect, DisconnectReason, ProtectionTag, Provider, ReceiveDescriptor,
        Reliability, RequestId, ViAttributes, ViError, ViId,
    },
};

/// The first pause before a rank is called again; it doubles up to 64 times that.
const PAUSE: Duration = Duration::from_millis(1);
/// The number of times that a rank is called again before it counts as unreachable: for some two seconds.
const TRIES_MAX: u32 = 36;

impl Peer {
    /// Returns whether messages can be sent to this peer.
    #[inline]
    pub(super) const fn is_connected(&self) -> bool {
        !matches!(self.link, PeerLink::Absent | PeerLink::Prepared(_))
    }

    /// Returns when the peer is called again.
    pub(super) const fn due(&self) -> Option<Instant> {
        match self.approach {
            Approach::Pausing { until, .. } => Some(until),
            _ => None,
        }
    }
}

impl<P: Provider> MessageEngine<P> {
    // ------------------------------------------------------------------ by the caller

    fn peer_to_be(&mut self, rank: u32) -> Result<&mut Peer, EngineError> {
        let size = self.size();
        let own = self.rank;
        self.peers
            .get_mut(rank as usize)
            .filter(|_| rank != own)
            .ok_or(EngineError::NoSuchRank { rank, size })
    }

    /// Makes a VI for a rank, with its area, its control region and its preposted descriptors. Returns it
    /// with the greeting that must travel with the connection. Repeated calls return the same.
    ///
    /// # Errors
    /// [`EngineError::NoSuchRank`], or the NIC's.
    pub fn greeting(&mut self, rank: u32) -> Result<(ViId, Vec<u8>), EngineError> {
        self.peer_to_be(rank)?;
        if !matches!(self.peers[rank as usize].link, PeerLink::Prepared(_)) {
            let own = self.prepare(rank)?;
            self.peers[rank as usize].link = PeerLink::Prepared(own);
        }
        let PeerLink::Prepared(own) = &self.peers[rank as usize].link else {
            return Err(EngineError::Greeting { rank, what: "it was made before" });
        };
        let key = self.peers[rank as usize].key.as_ref();
        Ok((own.vi, greeting::encode((self.rank, rank), self.size(), &self.config, own, key)))
    }

    fn prepare(&mut self, rank: u32) -> Result<LocalResources, EngineError> {
        let config = self.config;
        let tag = self.tag(rank)?;
        let vi = self.nic.create_vi(ViAttributes {
            reliability: config.reliability,
            tag,
            send_cq: Some(self.cq),
            receive_cq: Some(self.cq),
            allows_write: true,
            allows_read: config.reliability != Reliability::Unreliable,
        })?;

        let writable = region_attributes(tag, true);
        let area = self.nic.allocate(config.area_bytes as usize, writable)?;
        let bytes = link::control_region_bytes(config.control_entries);
        let control = self.nic.allocate(bytes, writable)?;
        let staged = self.staging.register_for(&mut self.nic, tag)?;

        // The descriptors are posted before the connection is made: the peer may send as soon as it has one.
        let cookie = cookie_of(rank);
        for _ in 0..config.descriptors {
            self.nic.post_receive(vi, &ReceiveDescriptor { cookie, segments: &[] })?;
        }

        Ok(LocalResources {
            vi,
            area,
            control,
            staged,
            area_bytes: config.area_bytes,
            descriptors: config.descriptors,
            control_entries: config.control_entries,
            cookie,
            signal_every: u32::try_from(self.attributes.descriptors_max / 4).unwrap_or(64).max(1),
        })
    }

    /// Accepts the greeting of a rank whose VI is connected: from now on you can send to it.
    ///
    /// # Errors
    /// [`EngineError::Greeting`]; disconnect the VI then.
    pub fn accept_greeting(&mut self, rank: u32, bytes: &[u8]) -> Result<(), EngineError> {
        let (own, size, config) = (self.rank, self.size(), self.config);
        let peer = self.peer_to_be(rank)?;
        let parameters = greeting::decode(bytes, (rank, own), size, &config, peer.key.as_ref())?;
        match std::mem::replace(&mut peer.link, PeerLink::Absent) {
            PeerLink::Prepared(own) => {
                peer.frame_bytes_max = config.frame_bytes_max.min(parameters.frame_bytes_max);
                peer.window_out = u64::from(parameters.window_bytes);
                peer.announced_out_max = parameters.announced_messages_max;
                peer.failed = None;
                let (vi, memories) = (own.vi, [own.area.handle, own.control.handle]);
                peer.link = if config.is_unreliable() {
                    PeerLink::Unreliable(Box::new(UnreliableLink::new(own, parameters, &config)))
                } else {
                    PeerLink::Reliable(link::ReliableLink::new(own, parameters))
                };
                if !config.is_unreliable() {
                    for memory in memories {
                        self.nic.take_headed_writes(vi, memory);
                    }
                }
                Ok(())
            }
            other => {
                peer.link = other;
                Err(EngineError::Greeting { rank, what: "this side did not wait for it" })
            }
        }
    }

    /// Asks for a connection to a rank. The result is [`EngineEvent::Connected`] or [`EngineEvent::Refused`].
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
        Ok(self
            .nic
            .connect(Connect::new(vi, address, discriminator, deadline).greeting(&greeting))?)
    }

    /// Accepts the request of a rank.
    ///
    /// # Errors
    /// As [`greeting`](Self::greeting), and those of [`Provider::accept`].
    pub fn accept(&mut self, request: RequestId, rank: u32) -> Result<(), EngineError> {
        let (vi, greeting) = self.greeting(rank)?;
        Ok(self.nic.accept(request, vi, &greeting)?)
    }

    pub(super) fn rank_with(&self, vi: ViId) -> Option<u32> {
        (0..self.size()).zip(&self.peers).find_map(|(rank, peer)| {
            let found = match &peer.link {
                PeerLink::Prepared(own) => own.vi,
                PeerLink::Reliable(direct) => direct.vi,
                PeerLink::Unreliable(lossy) => lossy.own.vi,
                PeerLink::Absent | PeerLink::Loopback(_) => return None,
            };
            (found == vi).then_some(rank)
        })
    }

    pub(super) fn connected(&mut self, vi: ViId, greeting: &[u8]) {
        let Some(rank) = self.rank_with(vi) else { return };
        match self.accept_greeting(rank, greeting) {
            Ok(()) if self.peers[rank as usize].approach == Approach::Apart => {
                self.events.push_back(EngineEvent::Connected { rank });
            }
            Ok(()) => self.met(rank),
            Err(_) => self
                .peer_failed(rank, DisconnectReason::Mismatch("the greeting is of no such rank")),
        }
    }

    // ------------------------------------------------------------------ on demand

    /// Connects on demand from now on: the engine accepts the calls of other ranks that name `discriminator`, and calls a rank
    /// that was [introduced](Self::introduce) when a send, a posted receive or a probe first names it. No [`EngineEvent`]
    /// tells of such connections, except of failures.
    ///
    /// # Errors
    /// As [`Provider::listen`].
    pub fn connect_on_demand(&mut self, discriminator: &[u8]) -> Result<(), EngineError> {
        self.nic.listen(discriminator)?;
        self.discriminator = Some(discriminator.to_vec());
        Ok(())
    }

    /// Tells where a rank can be reached, for connections [on demand](Self::connect_on_demand).
    ///
    /// # Errors
    /// [`EngineError::NoSuchRank`].
    pub fn introduce(&mut self, rank: u32, address: Address) -> Result<(), EngineError> {
        let config = self.config;
        let peer = self.peer_to_be(rank)?;
        peer.address = Some(address);
        if !peer.is_connected() {
            // Until its greeting says more, it is taken to be like this one.
            peer.frame_bytes_max = config.frame_bytes_max;
            peer.window_out = u64::from(config.window_bytes);
            peer.announced_out_max = config.announced_messages_max;
        }
        Ok(())
    }

    /// Demands that a rank proves who it is when it is connected, by the key that only it and this rank know: a greeting without that
    /// proof is refused, and this rank's own greeting carries it. Both must demand it before either calls the other.
    ///
    /// # Errors
    /// [`EngineError::NoSuchRank`].
    pub fn require_proof(&mut self, rank: u32, key: Secret) -> Result<(), EngineError> {
        self.peer_to_be(rank)?.key = Some(key);
        Ok(())
    }

    /// Records that a rank has ended, as its launcher says. A rank that is connected, or is about to be, fails only when its
    /// connection ends, since its last messages may still have to be taken.
    pub fn rank_is_gone(&mut self, rank: u32) {
        let Some(peer) = self.peers.get(rank as usize) else { return };
        if !peer.is_connected() && peer.approach != Approach::Answering {
            self.peer_failed(rank, DisconnectReason::PeerDied);
        }
    }

    /// Connects to a rank on demand, unless it is connected.
    #[inline]
    pub(super) fn need(&mut self, rank: u32) {
        if self.peers.get(rank as usize).is_some_and(|peer| !peer.is_connected()) {
            self.call(rank, 0);
        }
    }

    /// Calls a rank for the `tries`th time, unless an attempt is under way.
    #[cold]
    fn call(&mut self, rank: u32, tries: u32) {
        let Some(discriminator) = self.discriminator.clone() else { return };
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        if peer.approach != Approach::Apart || peer.failed.is_some() {
            return;
        }
        let Some(address) = peer.address.clone() else { return };
        peer.approach = Approach::Calling { tries, held: None };
        match self.connect(rank, &address, &discriminator, Instant::MAX) {
            // It may be refused at once, which nothing else announces.
            Ok(()) => _ = self.take_nic_events(),
            Err(EngineError::Vi(ViError::Io(_))) => self.pause(rank, tries),
            Err(_) => self.peer_failed(rank, DisconnectReason::TransportFailed),
        }
    }

    /// Calls a rank again later.
    fn pause(&mut self, rank: u32, tries: u32) {
        if tries >= TRIES_MAX {
            return self.peer_failed(rank, DisconnectReason::TransportFailed);
        }
        let until = self.now.saturating_add(PAUSE * (1 << tries.min(6)));
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.approach = Approach::Pausing { tries: tries + 1, until };
            self.pausing.push(rank);
        }
    }

    /// Calls the ranks whose pause is over. Returns whether there were any.
    pub(super) fn call_again(&mut self) -> bool {
        let mut has_worked = false;
        for rank in std::mem::take(&mut self.pausing) {
            match self.peers.get_mut(rank as usize).map(|peer| &mut peer.approach) {
                Some(&mut Approach::Pausing { until, .. }) if until > self.now => {
                    self.pausing.push(rank);
                }
                Some(approach @ &mut Approach::Pausing { tries, .. }) => {
                    *approach = Approach::Apart;
                    has_worked = true;
                    self.call(rank, tries);
                }
                _ => {}
            }
        }
        has_worked
    }

    /// Handles the call of a process that says in its greeting to be a rank.
    pub(super) fn called(&mut self, request: RequestId, greeting: &[u8]) {
        let own = self.rank;
        let key_of = |rank: u32| self.peers.get(rank as usize)?.key.as_ref();
        let rank = greeting::proven_rank(greeting, own, key_of);
        let found = rank.and_then(|rank| Some((rank, self.peers.get_mut(rank as usize)?)));
        let found = found.filter(|(_, peer)| !peer.is_connected() && peer.failed.is_none());
        match found.map(|(rank, peer)| (rank, &mut peer.approach)) {
            Some((rank, Approach::Apart | Approach::Pausing { .. })) => self.answer(request, rank),
            Some((rank, Approach::Calling { held, .. })) if rank < own => {
                let former = held.replace(request);
                former.into_iter().for_each(|former| self.turn_away(former));
            }
            _ => self.turn_away(request),
        }
    }

    fn turn_away(&mut self, request: RequestId) {
        // If that fails, its caller has gone.
        drop(self.nic.reject(request));
    }

    fn answer(&mut self, request: RequestId, rank: u32) {
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.approach = Approach::Answering;
        }
        if self.accept(request, rank).is_err() {
            // Its caller has gone, or there is no memory for it now.
            self.turn_away(request);
            self.pause(rank, 0);
        }
    }

    /// Handles a connection that was not made.
    pub(super) fn refused(&mut self, rank: u32, reason: DisconnectReason) {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        let (tries, held) = match peer.approach {
            Approach::Calling { tries, held } => (tries, held),
            Approach::Answering => (0, None),
            Approach::Apart | Approach::Pausing { .. } => {
                return self.events.push_back(EngineEvent::Refused { rank, reason });
            }
        };

        // Both ranks have called: the call of the lower rank was kept until this rank's own was refused.
        if let Some(request) = held {
            return self.answer(request, rank);
        }

        match reason {
            DisconnectReason::Rejected
            | DisconnectReason::Disconnected
            | DisconnectReason::TransportFailed
            | DisconnectReason::TimedOut => self.pause(rank, tries),
            DisconnectReason::NotListening => self.peer_failed(rank, DisconnectReason::PeerDied),
            reason => self.peer_failed(rank, reason),
        }
    }

    /// Sends what has waited for a connection.
    fn met(&mut self, rank: u32) {
        self.end_approach(rank);
        if self.peers.get(rank as usize).is_some_and(Peer::has_work) {
            self.list(rank);
        }
    }

    /// Forgets what was under way with a rank.
    pub(super) fn end_approach(&mut self, rank: u32) {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        let former = std::mem::take(&mut peer.approach);
        if let Approach::Calling { held: Some(request), .. } = former {
            self.turn_away(request);
        }
    }

    /// Returns the protection tag of the VI to a rank: register memory with it that the rank may reach, and no other one. No
    /// VI has this rank's own one.
    ///
    /// # Errors
    /// [`EngineError::NoSuchRank`].
    pub fn tag(&mut self, rank: u32) -> Result<ProtectionTag, EngineError> {
        if rank == self.rank {
            return Ok(self.pool_tag);
        }
        let known = self.peer_to_be(rank)?.tag;
        let tag = known.unwrap_or_else(|| self.nic.create_tag());
        self.peers[rank as usize].tag = Some(tag);
        Ok(tag)
    }
}
