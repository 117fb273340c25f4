//! The world of a simulation: its time, what is going to happen, and the way from NIC to NIC.

use std::collections::BTreeMap;

use super::{
    FaultCounts, FaultPlan,
    objects::{Caller, End, Link, Nic, NicIndex},
};
use crate::vi::{Attributes, NicEvent, Reason, RemoteSegment, Status, ViEvent, ViId};

/// Something that will happen at its time.
#[derive(Debug)]
pub(super) enum Happening {
    /// The next send descriptor of a VI has its turn.
    Depart {
        nic: NicIndex,
        vi: ViId,
    },
    /// A frozen NIC goes on with what it wanted to send.
    Leave(Packet),
    Arrive(Packet),
    /// The deadline of an attempt to connect.
    Expire {
        nic: NicIndex,
        vi: ViId,
        link: Link,
    },
    /// A NIC notices that another one has crashed.
    Bereave {
        nic: NicIndex,
        of: NicIndex,
    },
    Crash {
        nic: NicIndex,
    },
}

impl Happening {
    /// The NIC that has to be awake for it.
    const fn place(&self) -> NicIndex {
        match self {
            Self::Depart { nic, .. }
            | Self::Expire { nic, .. }
            | Self::Bereave { nic, .. }
            | Self::Crash { nic } => *nic,
            Self::Leave(packet) => packet.from.nic,
            Self::Arrive(packet) => packet.to,
        }
    }

    /// What the trace remembers of it.
    fn digest(&self) -> u64 {
        let (kind, detail) = match self {
            Self::Depart { vi, .. } => (1, u64::from(vi.0)),
            Self::Leave(packet) => (2, packet.link),
            Self::Arrive(packet) => (3, packet.link ^ (packet.body.size() << 20)),
            Self::Expire { link, .. } => (4, *link),
            Self::Bereave { .. } => (5, 0),
            Self::Crash { .. } => (6, 0),
        };
        let place = u64::try_from(self.place()).unwrap_or(u64::MAX);
        kind ^ (place << 8) ^ (detail << 24)
    }
}

/// What one NIC sends to another.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) from: End,
    pub(super) to: NicIndex,
    /// The VI it is for; `None` where the sender does not know one.
    pub(super) vi: Option<ViId>,
    pub(super) link: Link,
    pub(super) body: Body,
}

#[derive(Clone, Debug)]
pub(super) enum Body {
    /// Asks for a connection.
    Call { caller: Caller, discriminator: Vec<u8>, is_peer: bool },
    /// Answers a call with a VI.
    Agree { greeting: Vec<u8> },
    /// Says that the answer was heard: both are connected.
    Agreed,
    /// Ends an attempt or a connection.
    Over(Reason),
    /// A send (`place` is `None`) or an RDMA write.
    Data {
        slot: u64,
        /// Of unreliable data, the sender's count from 1; zero: reliable.
        number: u64,
        place: Option<RemoteSegment>,
        bytes: Vec<u8>,
        immediate: Option<i32>,
        /// Whether it is the second copy that the network made.
        is_copy: bool,
    },
    /// Asks for data.
    Read { slot: u64, place: RemoteSegment, length: u64 },
    /// The data asked for, or why there is none.
    Answer { slot: u64, result: Result<Vec<u8>, Status> },
    /// What became of a send or an RDMA write.
    Ack { slot: u64, status: Status },
}

/// The bytes of a packet beside its data.
const HEADER_BYTES: u64 = 32;

impl Body {
    fn size(&self) -> u64 {
        let bytes = match self {
            Self::Call { caller, discriminator, .. } => caller.greeting.len() + discriminator.len(),
            Self::Agree { greeting } => greeting.len(),
            Self::Data { bytes, .. } | Self::Answer { result: Ok(bytes), .. } => bytes.len(),
            _ => 0,
        };
        HEADER_BYTES.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    const fn is_unreliable(&self) -> bool {
        matches!(self, Self::Data { number, .. } if *number > 0)
    }
}

#[derive(Debug)]
pub(super) struct World {
    /// Nanoseconds.
    pub(super) now: u64,
    pub(super) random: fastrand::Rng,
    pub(super) plan: FaultPlan,
    pub(super) counts: FaultCounts,
    pub(super) nics: Vec<Nic>,
    /// By time, and among those of one time by age.
    agenda: BTreeMap<(u64, u64), Happening>,
    scheduled: u64,
    links: Link,
    pub(super) trace: u64,
}

impl World {
    pub(super) fn new(seed: u64, plan: FaultPlan) -> Self {
        Self {
            now: 0,
            random: fastrand::Rng::with_seed(seed),
            plan,
            counts: FaultCounts::default(),
            nics: Vec::new(),
            agenda: BTreeMap::new(),
            scheduled: 0,
            links: 0,
            trace: seed,
        }
    }

    pub(super) fn add_nic(&mut self, attributes: Attributes) -> NicIndex {
        self.nics.push(Nic::new(attributes));
        self.nics.len() - 1
    }

    pub(super) fn fresh_link(&mut self) -> Link {
        self.links += 1;
        self.links
    }

    // -------------------------------------------------------------- time

    /// Plans something. Returns its place in the agenda.
    pub(super) fn schedule(&mut self, time: u64, happening: Happening) -> (u64, u64) {
        self.scheduled += 1;
        let place = (time.max(self.now), self.scheduled);
        self.agenda.insert(place, happening);
        place
    }

    /// Plans no longer what stood at a place in the agenda.
    pub(super) fn unschedule(&mut self, place: (u64, u64)) {
        self.agenda.remove(&place);
    }

    pub(super) fn next_time(&self) -> Option<u64> {
        self.agenda.first_key_value().map(|((time, _), _)| *time)
    }

    /// Lets the next thing happen.
    pub(super) fn step(&mut self) -> bool {
        let Some(((time, _), happening)) = self.agenda.pop_first() else { return false };
        self.now = self.now.max(time);
        let mixed = self.trace ^ happening.digest() ^ time.rotate_left(32);
        self.trace = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        self.happen(happening);
        true
    }

    /// Lets everything up to `time` happen. Returns whether anything did.
    pub(super) fn advance_to(&mut self, time: u64) -> bool {
        let time = time.max(self.now);
        let mut has_happened = false;
        while self.next_time().is_some_and(|next| next <= time) {
            has_happened |= self.step();
        }
        self.now = time;
        has_happened
    }

    fn happen(&mut self, happening: Happening) {
        let nic = &mut self.nics[happening.place()];
        if nic.has_crashed {
            if matches!(happening, Happening::Arrive(_)) {
                self.counts.stale += 1;
            }
            return;
        }
        if nic.is_frozen && !matches!(happening, Happening::Crash { .. }) {
            nic.held.push(happening);
            return;
        }
        match happening {
            Happening::Depart { nic, vi } => self.depart(nic, vi),
            Happening::Leave(packet) => self.transmit(packet),
            Happening::Arrive(packet) => self.arrive(packet),
            Happening::Expire { nic, vi, link } => self.expire(nic, vi, link),
            Happening::Bereave { nic, of } => self.bereave(nic, of),
            Happening::Crash { nic } => self.crash(nic),
        }
    }

    // -------------------------------------------------------------- the way from NIC to NIC

    /// Puts a packet on the way. Reliable data and everything about connections stays in order.
    pub(super) fn transmit(&mut self, packet: Packet) {
        let from = packet.from.nic;
        let nic = &mut self.nics[from];
        if nic.has_crashed {
            return;
        }
        if nic.is_frozen {
            nic.held.push(Happening::Leave(packet));
            return;
        }
        if nic.crashes_at == Some(nic.transmissions) {
            self.crash(from);
            return;
        }
        nic.transmissions += 1;
        self.counts.transmissions += 1;
        let picos = packet.body.size().saturating_mul(self.plan.picos_per_byte);
        nic.busy_until = nic.busy_until.max(self.now).saturating_add(picos / 1000);
        let sent = nic.busy_until;
        let arrival = sent.saturating_add(self.travel());
        // Chance alone changes the order, and only of unreliable data: jitter does not.
        let in_order = nic_vi(&mut self.nics, packet.from).map_or(arrival, |vi| {
            vi.latest_arrival = vi.latest_arrival.max(arrival);
            vi.latest_arrival
        });
        if packet.body.is_unreliable() {
            self.transmit_unreliably(packet, in_order);
        } else {
            self.schedule(in_order, Happening::Arrive(packet));
        }
    }

    fn travel(&mut self) -> u64 {
        nanos(self.plan.latency).saturating_add(self.random_up_to(nanos(self.plan.jitter)))
    }

    fn random_up_to(&mut self, most: u64) -> u64 {
        if most == 0 { 0 } else { self.random.u64(0..=most) }
    }

    fn occurs(&mut self, share: f64) -> bool {
        share > 0.0 && self.random.f64() < share
    }

    fn transmit_unreliably(&mut self, packet: Packet, arrival: u64) {
        let plan = self.plan;
        let longest = &mut self.counts.unreliable_bytes_max;
        *longest = packet.body.size().saturating_sub(HEADER_BYTES).max(*longest);
        if self.occurs(plan.duplication) {
            let mut copy = packet.clone();
            if let Body::Data { is_copy, .. } = &mut copy.body {
                *is_copy = true;
            }
            let later = self.random_up_to(nanos(plan.reordering_max));
            self.send_astray(copy, arrival.saturating_add(later));
        }
        self.send_astray(packet, arrival);
    }

    fn send_astray(&mut self, mut packet: Packet, arrival: u64) {
        let plan = self.plan;
        if self.occurs(plan.loss) {
            self.counts.lost += 1;
            return;
        }
        if self.occurs(plan.corruption) {
            self.corrupt(&mut packet.body);
        }
        let is_late = self.occurs(plan.reordering);
        let extra = if is_late { self.random_up_to(nanos(plan.reordering_max)) } else { 0 };
        self.schedule(arrival.saturating_add(extra), Happening::Arrive(packet));
    }

    /// Flips one to three bits, of the data or of the immediate data.
    fn corrupt(&mut self, body: &mut Body) {
        let Body::Data { bytes, immediate, .. } = body else { return };
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

    /// The end of a NIC, by a crash or since its consumer is done with it.
    pub(super) fn end(&mut self, index: NicIndex) {
        let nic = &mut self.nics[index];
        if nic.has_crashed {
            return;
        }
        nic.has_crashed = true;
        nic.held.clear();
        // What is on the way arrives before anybody misses its sender.
        let latest = nic.vis.values().map(|vi| vi.latest_arrival).max().unwrap_or(0);
        let noticed = self.now.saturating_add(nanos(self.plan.detection)).max(latest);
        for nic in (0..self.nics.len()).filter(|nic| *nic != index) {
            self.schedule(noticed, Happening::Bereave { nic, of: index });
        }
    }

    /// Ends what `nic` has to do with the crashed NIC `of`.
    fn bereave(&mut self, nic: NicIndex, of: NicIndex) {
        let this = &mut self.nics[nic];
        this.requests.retain(|_, caller| caller.end.nic != of);
        this.peer_requests.retain(|(_, caller)| caller.end.nic != of);
        let ids: Vec<ViId> = this.vis.keys().copied().collect();
        for id in ids {
            let Some(vi) = self.nics[nic].vis.get(&id) else { continue };
            if vi.connection.is_some_and(|connection| connection.peer.nic == of) {
                self.break_vi(End { nic, vi: id }, Reason::PeerDied, Tells::Nobody);
            } else if vi.attempt.as_ref().is_some_and(|attempt| attempt.other() == of) {
                self.refuse(End { nic, vi: id }, Reason::PeerDied);
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
        for happening in std::mem::take(&mut nic.held) {
            self.schedule(self.now, happening);
        }
    }

    /// Breaks every connection between two NICs.
    pub(super) fn cut(&mut self, one: NicIndex, other: NicIndex) {
        for (nic, peer) in [(one, other), (other, one)] {
            let is_between = |vi: &super::objects::Vi| {
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
                self.break_vi(End { nic, vi }, Reason::TransportFailed, Tells::Nobody);
            }
        }
    }

    // -------------------------------------------------------------- ends of connections

    /// Breaks a connection: flushes what is posted, and tells the consumer and perhaps the peer.
    pub(super) fn break_vi(&mut self, end: End, reason: Reason, tells: Tells) {
        let Some(vi) = self.vi(end) else { return };
        let Some(connection) = vi.connection.take() else { return };
        vi.change(ViEvent::Break);
        self.flush(end);
        self.nics[end.nic].events.push_back(NicEvent::Broken { vi: end.vi, reason });
        if tells == Tells::Peer {
            self.transmit(Packet {
                from: end,
                to: connection.peer.nic,
                vi: Some(connection.peer.vi),
                link: connection.link,
                body: Body::Over(reason),
            });
        }
    }

    pub(super) fn vi(&mut self, end: End) -> Option<&mut super::objects::Vi> {
        nic_vi(&mut self.nics, end)
    }
}

/// Whether the peer must be told of the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tells {
    Peer,
    Nobody,
}

fn nic_vi(nics: &mut [Nic], end: End) -> Option<&mut super::objects::Vi> {
    nics[end.nic].vis.get_mut(&end.vi)
}

pub(super) fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
