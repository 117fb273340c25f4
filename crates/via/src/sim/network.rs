//! The NICs of a network, and the paths between them. Time and what is to happen are the simulated network's.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use vigie_detect::{CallId, Instant, Notifier, SimulatedNetwork};

use super::{
    objects::Nic,
    packet::{ConnectionId, HEADER_BYTES, NicIndex, PacketBody, SimEvent, SimPacket, ViEndpoint},
    plan::{FaultCounts, FaultPlan},
};
use crate::vi::{Completion, DisconnectReason, NicAttributes, NicEvent, ViEvent, ViId};

#[derive(Debug)]
pub(super) struct NetworkState {
    /// Has the time, and what is to happen.
    pub(super) network: SimulatedNetwork,
    /// This network, for what is to happen.
    own: Weak<Mutex<Self>>,
    pub(super) random: fastrand::Rng,
    pub(super) plan: FaultPlan,
    pub(super) counts: FaultCounts,
    pub(super) nics: Vec<Nic>,
    /// The hosts to wake once the world is unlocked.
    pending_wakes: Vec<Notifier>,
    connection_count: ConnectionId,
}

impl NetworkState {
    pub(super) fn new(network: &SimulatedNetwork, plan: FaultPlan) -> Arc<Mutex<Self>> {
        Arc::new_cyclic(|own| {
            Mutex::new(Self {
                network: network.clone(),
                own: Weak::clone(own),
                random: network.fork_random(),
                plan,
                counts: FaultCounts::default(),
                nics: Vec::new(),
                pending_wakes: Vec::new(),
                connection_count: 0,
            })
        })
    }

    pub(super) fn add_nic(&mut self, attributes: NicAttributes) -> NicIndex {
        self.nics.push(Nic::new(attributes));
        self.nics.len() - 1
    }

    pub(super) fn next_connection_id(&mut self) -> ConnectionId {
        self.connection_count += 1;
        self.connection_count
    }

    // -------------------------------------------------------------- time

    pub(super) fn now(&self) -> Instant {
        self.network.now()
    }

    /// Schedules an event, and wakes all hosts that would sleep past it: a host drives its NIC only
    /// while a task waits there, so waking just one host might leave the event undone.
    pub(super) fn schedule(&mut self, time: Instant, sim_event: SimEvent) -> CallId {
        for nic in 0..self.nics.len() {
            if self.nics[nic].armed_until.is_some_and(|until| time < until) {
                self.wake_host(nic);
            }
        }
        let (own, digest) = (Weak::clone(&self.own), sim_event.digest());
        self.network.call_at(time, digest, move || {
            if let Some(world) = own.upgrade() {
                lock(&world).process(sim_event);
            }
        })
    }

    // -------------------------------------------------------------- hosts

    /// Takes the hosts that are to be woken without the world's lock.
    pub(super) fn take_pending_wakes(&mut self) -> Vec<Notifier> {
        std::mem::take(&mut self.pending_wakes)
    }

    /// Marks the host of a NIC to be woken, if it may sleep.
    pub(super) fn wake_host(&mut self, nic: NicIndex) {
        let nic = &mut self.nics[nic];
        if nic.armed_until.take().is_some() {
            self.pending_wakes.extend(nic.notifier.clone());
        }
    }

    /// Delivers an event to a NIC's consumer.
    pub(super) fn announce(&mut self, nic: NicIndex, event: NicEvent) {
        self.nics[nic].events.push_back(event);
        self.wake_host(nic);
    }

    /// Delivers a completion to a NIC's consumer.
    pub(super) fn complete(&mut self, nic: NicIndex, completion: Completion) {
        self.nics[nic].complete(completion);
        self.wake_host(nic);
    }

    fn process(&mut self, sim_event: SimEvent) {
        let nic = &mut self.nics[sim_event.nic()];
        if nic.has_crashed {
            if matches!(sim_event, SimEvent::Arrive(_)) {
                self.counts.stale += 1;
            }
            return;
        }
        if nic.is_frozen && !matches!(sim_event, SimEvent::Crash { .. }) {
            nic.held.push(sim_event);
            return;
        }
        match sim_event {
            SimEvent::Depart { nic, vi } => self.depart(nic, vi),
            SimEvent::Leave(packet) => self.transmit(packet),
            SimEvent::Arrive(packet) => self.arrive(packet),
            SimEvent::Expire { nic, vi, connection_id } => self.expire(nic, vi, connection_id),
            SimEvent::PeerCrashed { nic, of } => self.handle_peer_crash(nic, of),
            SimEvent::Crash { nic } => self.crash(nic),
        }
    }

    // -------------------------------------------------------------- the way from NIC to NIC

    /// Sends a packet. Reliable data and everything about connections stays in order.
    pub(super) fn transmit(&mut self, packet: SimPacket) {
        let (from, now) = (packet.from.nic, self.now());
        let nic = &mut self.nics[from];
        if nic.has_crashed {
            return;
        }
        if nic.is_frozen {
            nic.held.push(SimEvent::Leave(packet));
            return;
        }

        if nic.crashes_at == Some(nic.transmissions) {
            self.crash(from);
            return;
        }

        nic.transmissions += 1;
        self.counts.transmissions += 1;
        let picos = packet.body.size().saturating_mul(self.plan.picos_per_byte);
        nic.busy_until = nic.busy_until.max(now).saturating_add(Duration::from_nanos(picos / 1000));
        let sent = nic.busy_until;
        let arrival = sent.saturating_add(self.travel());
        // Only an intended fault reorders, and only unreliable data: jitter does not.
        let in_order = nic_vi(&mut self.nics, packet.from).map_or(arrival, |vi| {
            vi.latest_arrival = vi.latest_arrival.max(arrival);
            vi.latest_arrival
        });

        if packet.body.is_unreliable() {
            self.transmit_unreliably(packet, in_order);
        } else {
            self.schedule(in_order, SimEvent::Arrive(packet));
        }
    }

    fn travel(&mut self) -> Duration {
        self.plan.latency.saturating_add(self.random_up_to(self.plan.jitter))
    }

    fn random_up_to(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(if most == 0 { 0 } else { self.random.u64(0..=most) })
    }

    fn occurs(&mut self, share: f64) -> bool {
        share > 0.0 && self.random.f64() < share
    }

    fn transmit_unreliably(&mut self, packet: SimPacket, arrival: Instant) {
        let plan = self.plan;
        let longest = &mut self.counts.unreliable_bytes_max;
        *longest = packet.body.size().saturating_sub(HEADER_BYTES).max(*longest);
        if self.occurs(plan.duplication) {
            let mut copy = packet.clone();
            if let PacketBody::Data { is_copy, .. } = &mut copy.body {
                *is_copy = true;
            }
            let later = self.random_up_to(plan.reordering_max);
            self.send_astray(copy, arrival.saturating_add(later));
        }
        self.send_astray(packet, arrival);
    }

    fn send_astray(&mut self, mut packet: SimPacket, arrival: Instant) {
        let plan = self.plan;
        if self.occurs(plan.loss) {
            self.counts.lost += 1;
            return;
        }
        if self.occurs(plan.corruption) {
            self.corrupt(&mut packet.body);
        }
        let is_late = self.occurs(plan.reordering);
        let extra = if is_late { self.random_up_to(plan.reordering_max) } else { Duration::ZERO };
        self.schedule(arrival.saturating_add(extra), SimEvent::Arrive(packet));
    }

    /// Flips one to three bits, in the data or in the immediate data.
    fn corrupt(&mut self, body: &mut PacketBody) {
        let PacketBody::Data { bytes, immediate, .. } = body else { return };
        let flips_immediate = immediate.is_some() && (bytes.is_empty() || self.random.bool());
        if let (true, Some(word)) = (flips_immediate, immediate.as_mut()) {
            *word ^= 1 << self.random.u32(0..32);
            self.counts.corrupted_immediates += 1;
        } else if !bytes.is_empty() {
            // An odd number of flips never undoes itself.
            let flips = if self.random.bool() { 1 } else { 3 };
            for _ in 0..flips {
                let index = self.random.usize(0..bytes.len());
                bytes[index] ^= 1 << self.random.u8(0..8);
            }
            self.counts.corrupted_data += 1;
        }
    }

    // -------------------------------------------------------------- crashes and stops

    pub(super) fn crash(&mut self, index: NicIndex) {
        self.counts.crashes += u64::from(!self.nics[index].has_crashed);
        self.end(index);
    }

    /// Ends a NIC: it has crashed, or its consumer is done with it.
    pub(super) fn end(&mut self, index: NicIndex) {
        let nic = &mut self.nics[index];
        if nic.has_crashed {
            return;
        }
        nic.has_crashed = true;
        nic.held.clear();
        // Packets in flight arrive before any peer notices the end.
        let latest = nic.vis.values().map(|vi| vi.latest_arrival).max();
        let noticed = self.now().saturating_add(self.plan.detection);
        let noticed = latest.map_or(noticed, |latest| noticed.max(latest));
        for nic in (0..self.nics.len()).filter(|nic| *nic != index) {
            self.schedule(noticed, SimEvent::PeerCrashed { nic, of: index });
        }
    }

    /// Ends everything that connects `nic` to the crashed NIC `of`.
    fn handle_peer_crash(&mut self, nic: NicIndex, of: NicIndex) {
        let this = &mut self.nics[nic];
        this.requests.retain(|_, caller| caller.end.nic != of);
        this.peer_requests.retain(|(_, caller)| caller.end.nic != of);
        let ids: Vec<ViId> = this.vis.keys().copied().collect();
        for id in ids {
            let Some(vi) = self.nics[nic].vis.get(&id) else { continue };
            if vi.connection.is_some_and(|connection| connection.peer.nic == of) {
                self.break_vi(
                    ViEndpoint { nic, vi: id },
                    DisconnectReason::PeerDied,
                    NotifyPeer::No,
                );
            } else if vi.attempt.as_ref().is_some_and(|attempt| attempt.other() == of) {
                self.refuse(ViEndpoint { nic, vi: id }, DisconnectReason::PeerDied);
            }
        }
    }

    pub(super) fn freeze(&mut self, index: NicIndex) {
        let nic = &mut self.nics[index];
        if !nic.has_crashed && !nic.is_frozen {
            nic.is_frozen = true;
            self.counts.freezes += 1;
        }
    }

    pub(super) fn unfreeze(&mut self, index: NicIndex) {
        let nic = &mut self.nics[index];
        nic.is_frozen = false;
        for sim_event in std::mem::take(&mut nic.held) {
            self.schedule(self.now(), sim_event);
        }
    }

    /// Breaks every connection between two NICs.
    pub(super) fn cut(&mut self, one: NicIndex, other: NicIndex) {
        for (nic, peer) in [(one, other), (other, one)] {
            let is_between = |vi: &super::objects::SimVi| {
                vi.connection.is_some_and(|connection| connection.peer.nic == peer)
            };
            let cut: Vec<ViId> = self.nics[nic]
                .vis
                .iter()
                .filter(|(_, vi)| is_between(vi))
                .map(|(id, _)| *id)
                .collect();
            for vi in cut {
                self.counts.cuts += u64::from(nic == one);
                self.break_vi(
                    ViEndpoint { nic, vi },
                    DisconnectReason::TransportFailed,
                    NotifyPeer::No,
                );
            }
        }
    }

    // -------------------------------------------------------------- ends of connections

    /// Breaks a connection: flushes posted descriptors, tells the consumer and perhaps the peer.
    pub(super) fn break_vi(
        &mut self,
        end: ViEndpoint,
        reason: DisconnectReason,
        notify: NotifyPeer,
    ) {
        let Some(vi) = self.vi(end) else { return };
        let Some(connection) = vi.connection.take() else { return };
        vi.core.change(ViEvent::Break);
        self.flush(end);
        self.announce(end.nic, NicEvent::Broken { vi: end.vi, reason });
        if notify == NotifyPeer::Yes {
            self.transmit(connection.packet(end, PacketBody::Over(reason)));
        }
    }

    pub(super) fn vi(&mut self, end: ViEndpoint) -> Option<&mut super::objects::SimVi> {
        nic_vi(&mut self.nics, end)
    }
}

/// The choice whether the peer is told that a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotifyPeer {
    Yes,
    No,
}

fn nic_vi(nics: &mut [Nic], end: ViEndpoint) -> Option<&mut super::objects::SimVi> {
    nics[end.nic].vis.get_mut(&end.vi)
}

/// Locks a world. A panic of another thread leaves it as it is.
pub(super) fn lock(world: &Mutex<NetworkState>) -> Locked<'_> {
    let world = world.lock().unwrap_or_else(PoisonError::into_inner);
    Locked { world, pending_wakes: WakeOnDrop(Vec::new()) }
}

/// A locked world. Dropping it wakes the hosts that were marked meanwhile.
///
/// Lock order: a world's lock comes after that of the engine whose NIC is used. A notifier takes only a lock
/// of the server, under which no other lock is taken. The thread that rings may therefore hold the lock
/// of any engine, including the one woken, but does not hold the world's.
pub(super) struct Locked<'a> {
    world: MutexGuard<'a, NetworkState>,
    // Dropped after the guard, when the world is unlocked.
    pending_wakes: WakeOnDrop,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.pending_wakes.0 = self.world.take_pending_wakes();
    }
}

impl Deref for Locked<'_> {
    type Target = NetworkState;

    fn deref(&self) -> &NetworkState {
        &self.world
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut NetworkState {
        &mut self.world
    }
}

struct WakeOnDrop(Vec<Notifier>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(Notifier::notify);
    }
}
