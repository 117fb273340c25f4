//! Members, their clocks, and a network that loses, repeats, delays and changes packets, as one seed says.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use vigie_barrier::{
    Algorithm, Group, Network, Rank, Schedule, Target,
    member::{DeathReason, Event, Member, MemberConfig, Quorum},
    packet::{Body, GroupId, Packet},
    reduction::{Builtin, Element, Reduction},
};
use vigie_detect::Instant;

pub(crate) const MICROSECOND: u64 = 1000;
pub(crate) const MILLISECOND: u64 = 1000 * MICROSECOND;
pub(crate) const SECOND: u64 = 1000 * MILLISECOND;

/// One way without any fault, at least.
const DELAY: u64 = 50 * MICROSECOND;

/// The class of a packet, as faults tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Signal,
    Multicast,
    Nack,
    Alive,
    View,
}

pub(crate) const CLASSES: [Class; 5] =
    [Class::Signal, Class::Multicast, Class::Nack, Class::Alive, Class::View];

/// The faults, per thousand packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost: BTreeMap<Class, u32>,
    pub(crate) duplicated: u32,
    pub(crate) late: u32,
    pub(crate) changed: u32,
    /// Sent once more much later: barriers later.
    pub(crate) replayed: u32,
    /// Chance of each delivery that the receiver's clock jumps ahead, or stands still.
    pub(crate) jumps: u32,
}

/// The faults that happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) lost: BTreeMap<Class, u64>,
    pub(crate) duplicated: u64,
    pub(crate) late: u64,
    pub(crate) changed: u64,
    pub(crate) replayed: u64,
    pub(crate) jumps: u64,
    pub(crate) stood_still: u64,
    /// Messages that came before their receiver had entered, and in a barrier before theirs.
    pub(crate) early: u64,
    pub(crate) next_epoch: u64,
    /// Dropped by members, and what they did about losses.
    pub(crate) stale: u64,
    pub(crate) duplicates: u64,
    pub(crate) refused: u64,
    pub(crate) nacks: u64,
    pub(crate) retransmitted: u64,
    pub(crate) alive_replies: u64,
    pub(crate) sent: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Self) {
        for (class, count) in &other.lost {
            *self.lost.entry(*class).or_default() += count;
        }
        for (sum, count) in [
            (&mut self.duplicated, other.duplicated),
            (&mut self.late, other.late),
            (&mut self.changed, other.changed),
            (&mut self.replayed, other.replayed),
            (&mut self.jumps, other.jumps),
            (&mut self.stood_still, other.stood_still),
            (&mut self.early, other.early),
            (&mut self.next_epoch, other.next_epoch),
            (&mut self.stale, other.stale),
            (&mut self.duplicates, other.duplicates),
            (&mut self.refused, other.refused),
            (&mut self.nacks, other.nacks),
            (&mut self.retransmitted, other.retransmitted),
            (&mut self.alive_replies, other.alive_replies),
            (&mut self.sent, other.sent),
        ] {
            *sum += count;
        }
    }
}

/// Packets and events under way.
#[derive(Clone, Debug)]
enum Due {
    Packet { to: usize, packet: Vec<u8> },
    Enter { node: usize, generation: u32 },
}

/// A process with a member.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) member: Member,
    pub(crate) is_alive: bool,
    /// How far its clock is ahead of the world's.
    clock: u64,
    /// Which barriers it has entered and left in this group.
    pub(crate) entered: u32,
    pub(crate) exited: u32,
    pub(crate) failures: Vec<(u64, Vec<Rank>, DeathReason)>,
    pub(crate) agreed: Option<Vec<Rank>>,
    /// How many packets it has sent.
    pub(crate) sent: u64,
    /// It dies instead of sending this packet.
    pub(crate) dies_at: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) random: Rng,
    pub(crate) faults: Faults,
    pub(crate) seen: Seen,
    number: u64,
    under_way: BTreeMap<(u64, u64), Due>,
    /// Counts groups, so that what was to happen in one does not happen in the next.
    generation: u32,
    pub(crate) nodes: Vec<Node>,
    /// Which node is which rank of the present group.
    pub(crate) ranks: Vec<usize>,
    /// Barriers of this group after which members rest.
    pub(crate) barriers: u32,
    /// The longest a member computes between barriers.
    pub(crate) skew: u64,
    value_bytes: usize,
    /// Combines two values, if values are reduced.
    pub(crate) fold: fn(u64, u64) -> u64,
    pub(crate) died_at: u64,
    /// How members have learnt of deaths, in all groups.
    pub(crate) reasons: Vec<DeathReason>,
    /// A network that brings nothing.
    pub(crate) down: Option<Network>,
    /// Everything that was sent, if it is recorded.
    pub(crate) record: Option<Vec<Vec<u8>>>,
}

/// The name of a group.
pub(crate) const fn group(seed: u64) -> GroupId {
    GroupId(seed ^ 0x5eed_5eed_5eed_5eed)
}

/// The configuration of a group, with time-outs that are short for the network's delay.
pub(crate) fn config(seed: u64) -> MemberConfig {
    let mut config = MemberConfig::new(group(seed))
        .repeat_after(Duration::from_millis(10))
        .failure_timeout(Duration::from_secs(4));
    // Most tests continue with any number of survivors; those of partitions set it.
    config = config.quorum(Quorum::Any);
    config
}

pub(crate) fn sums() -> Reduction {
    Reduction::builtin(Builtin::Sum, Element::U64, 1).expect("short")
}

pub(crate) fn schedule(algorithm: Algorithm, size: u32) -> Arc<Schedule> {
    let group = Group::new(size).expect("a size");
    Arc::new(algorithm.schedule(group).expect("suits"))
}

impl World {
    pub(crate) fn new(seed: u64, algorithm: Algorithm, size: u32, config: &MemberConfig) -> Self {
        let schedule = schedule(algorithm, size);
        let mut random = Rng::with_seed(seed);
        let nodes: Vec<Node> = (0..size)
            .map(|rank| Node {
                member: Member::new(Arc::clone(&schedule), Rank(rank), config.clone())
                    .expect("a member"),
                is_alive: true,
                clock: random.u64(..SECOND),
                entered: 0,
                exited: 0,
                failures: Vec::new(),
                agreed: None,
                sent: 0,
                dies_at: None,
            })
            .collect();
        Self {
            now: SECOND,
            random,
            faults: Faults::default(),
            seen: Seen::default(),
            number: 0,
            under_way: BTreeMap::new(),
            generation: 0,
            ranks: (0..nodes.len()).collect(),
            nodes,
            barriers: 0,
            skew: 2 * MILLISECOND,
            value_bytes: config.value_bytes(),
            fold: |one, other| one + other,
            died_at: 0,
            reasons: Vec::new(),
            down: None,
            record: None,
        }
    }

    pub(crate) fn chance(&mut self, per_thousand: u32) -> bool {
        self.random.u32(..1000) < per_thousand
    }

    fn at(&mut self, time: u64, due: Due) {
        self.number += 1;
        self.under_way.insert((time, self.number), due);
    }

    pub(crate) fn instant(&self, node: usize) -> Instant {
        Instant::from_nanos(self.now + self.nodes[node].clock)
    }

    /// Makes a node's clock leap, and lets it check its deadline, as a process that sleeps on one does.
    pub(crate) fn leap(&mut self, node: usize, by: u64, is_ahead: bool) {
        let clock = &mut self.nodes[node].clock;
        *clock = if is_ahead { *clock + by } else { clock.saturating_sub(by) };
        let now = self.instant(node);
        self.nodes[node].member.handle_deadline(now);
        self.after(node);
    }

    /// Lets all members enter that many barriers, one after the other.
    pub(crate) fn begin(&mut self, barriers: u32) {
        self.barriers = barriers;
        self.generation += 1;
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_alive {
                let later = self.random.u64(..=self.skew);
                let generation = self.generation;
                self.at(self.now + later, Due::Enter { node, generation });
            }
        }
    }

    /// The number with which a node enters a barrier.
    fn number(node: usize, epoch: u32) -> u64 {
        (u64::from(epoch) + 1) * 1000 + (1 << node)
    }

    /// The number as often as a value holds it.
    fn value(&self, number: u64) -> Vec<u8> {
        number.to_le_bytes().repeat(self.value_bytes / 8)
    }

    /// Runs until `is_over`, for at most so long; returns whether it is.
    pub(crate) fn run(&mut self, most: u64, is_over: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + most;
        let mut steps = 0;
        while !is_over(self) {
            steps += 1;
            assert!(steps < 1_000_000, "time stands still: {self:#?}");
            let deadline = (0..self.nodes.len())
                .filter(|node| self.nodes[*node].is_alive)
                .filter_map(|node| {
                    let deadline = self.nodes[node].member.next_deadline()?.as_nanos();
                    Some((deadline.saturating_sub(self.nodes[node].clock).max(self.now), node))
                })
                .min();
            let due = self.under_way.first_key_value().map(|((at, _), _)| *at);
            match (due, deadline) {
                (Some(at), deadline) if deadline.is_none_or(|(time, _)| at <= time) => {
                    if at > end {
                        break;
                    }
                    self.now = self.now.max(at);
                    let Some((_, due)) = self.under_way.pop_first() else { break };
                    self.happen(due);
                }
                (_, Some((time, node))) => {
                    if time > end {
                        break;
                    }
                    self.now = time;
                    let now = self.instant(node);
                    self.nodes[node].member.handle_deadline(now);
                    self.after(node);
                }
                (_, None) => break,
            }
        }
        let is_over = is_over(self);
        if !is_over {
            self.now = end;
        }
        is_over
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Packet { to, packet } => self.deliver(to, &packet),
            Due::Enter { node, generation } => {
                let is_ready = generation == self.generation && {
                    let node = &self.nodes[node];
                    node.is_alive && node.failures.is_empty() && node.entered < self.barriers
                };
                if is_ready {
                    let epoch = self.nodes[node].entered;
                    let value = self.value(Self::number(node, epoch));
                    let now = self.instant(node);
                    self.nodes[node].entered += 1;
                    self.nodes[node].member.enter(now, &value).expect("neither inside nor failed");
                    self.after(node);
                }
            }
        }
    }

    fn deliver(&mut self, to: usize, packet: &[u8]) {
        if !self.nodes[to].is_alive {
            return;
        }
        if self.chance(self.faults.jumps) {
            if self.random.bool() {
                self.nodes[to].clock += self.random.u64(..3600) * SECOND;
                self.seen.jumps += 1;
            } else {
                // An earlier time of the clock.
                self.seen.stood_still += 1;
                let now = Instant::from_nanos(self.instant(to).as_nanos() - 20 * MILLISECOND);
                let _ = self.nodes[to].member.receive(now, packet);
                return self.after(to);
            }
        }
        let now = self.instant(to);
        let member = &mut self.nodes[to].member;
        if let Ok(Packet { epoch, body: Body::Signal { .. }, .. }) = Packet::parse(packet, None) {
            let (own, is_inside) = (member.epoch(), member.is_inside());
            self.seen.early += u64::from(!is_inside && epoch == own);
            self.seen.next_epoch += u64::from(is_inside && epoch == own.wrapping_add(1));
        }
        let _ = member.receive(now, packet);
        self.after(to);
    }

    /// Takes what a member has to say.
    pub(crate) fn after(&mut self, node: usize) {
        while let Some(transmit) = self.nodes[node].member.poll_transmit() {
            if self.nodes[node].dies_at == Some(self.nodes[node].sent) {
                self.kill(node);
                return;
            }
            self.nodes[node].sent += 1;
            self.seen.sent += 1;
            if let Some(record) = &mut self.record {
                record.push(transmit.packet.clone());
            }
            if self.down == Some(transmit.network) {
                continue;
            }
            match transmit.to {
                Target::Member(rank) => {
                    let class = class(&transmit.packet, false);
                    self.send(self.ranks[rank.index()], class, &transmit.packet);
                }
                _ => {
                    for to in self.ranks.clone() {
                        if to != node {
                            self.send(to, class(&transmit.packet, true), &transmit.packet);
                        }
                    }
                }
            }
        }
        while let Some(event) = self.nodes[node].member.poll_event() {
            self.check(node, event);
        }
    }

    fn check(&mut self, index: usize, event: Event) {
        match event {
            Event::Exited { epoch, value } => {
                let node = &mut self.nodes[index];
                assert_eq!(epoch, node.exited, "one after the other");
                node.exited += 1;
                for other in &self.ranks {
                    let entered = self.nodes[*other].entered;
                    assert!(entered > epoch, "{index} left {epoch} before {other} entered");
                }
                let numbers = self.ranks.iter().map(|node| Self::number(*node, epoch));
                let all = numbers.reduce(self.fold).expect("not empty");
                assert_eq!(value, self.value(all), "{index}, epoch {epoch}");
                let later = self.random.u64(..=self.skew);
                let generation = self.generation;
                self.at(self.now + later, Due::Enter { node: index, generation });
            }
            Event::Failed { ranks, reason } => {
                self.reasons.push(reason);
                self.nodes[index].failures.push((self.now, ranks, reason));
            }
            Event::Agreed { survivors } => {
                assert!(self.nodes[index].agreed.is_none(), "only once");
                self.nodes[index].agreed = Some(survivors);
            }
            other => panic!("{other:?}"),
        }
    }

    fn send(&mut self, to: usize, class: Class, packet: &[u8]) {
        if self.chance(self.faults.lost.get(&class).copied().unwrap_or(0)) {
            *self.seen.lost.entry(class).or_default() += 1;
            return;
        }
        let mut packet = packet.to_vec();
        if self.chance(self.faults.replayed) {
            self.seen.replayed += 1;
            let later = self.random.u64(..100 * MILLISECOND);
            self.at(self.now + later, Due::Packet { to, packet: packet.clone() });
        }
        if self.chance(self.faults.changed) {
            self.seen.changed += 1;
            let bit = self.random.usize(..packet.len() * 8);
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        let copies = 1 + u32::from(self.chance(self.faults.duplicated));
        self.seen.duplicated += u64::from(copies - 1);
        for _ in 0..copies {
            let mut delay = DELAY + self.random.u64(..DELAY);
            if self.chance(self.faults.late) {
                self.seen.late += 1;
                delay += self.random.u64(..20 * MILLISECOND);
            }
            self.at(self.now + delay, Due::Packet { to, packet: packet.clone() });
        }
    }

    /// Puts a packet on its way that no member has sent.
    pub(crate) fn inject(&mut self, to: usize, packet: Vec<u8>) {
        let delay = self.random.u64(..DELAY);
        self.at(self.now + delay, Due::Packet { to, packet });
    }

    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].is_alive = false;
        self.died_at = self.now;
    }

    pub(crate) fn alive(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.is_alive)
    }

    /// Whether everybody has left the last barrier.
    pub(crate) fn is_done(&self) -> bool {
        self.nodes.iter().filter(|node| node.is_alive).all(|node| node.exited == self.barriers)
    }

    /// Lets all survivors shrink, one after the other in a random order with time in between, and returns once all have.
    pub(crate) fn shrink(&mut self, algorithm: Algorithm) {
        let survivors = self.nodes[self.alive().next().expect("not empty").0].agreed.clone();
        let survivors = survivors.expect("agreed");
        let schedule = schedule(algorithm, u32::try_from(survivors.len()).expect("few"));
        self.ranks = survivors.iter().map(|rank| self.ranks[rank.index()]).collect();
        for node in self.ranks.clone() {
            let node = &mut self.nodes[node];
            assert_eq!(node.agreed.take().as_ref(), Some(&survivors), "all agree");
            node.member.shrink(Arc::clone(&schedule)).expect("decided");
            (node.entered, node.exited) = (0, 0);
            node.failures.clear();
        }
        let alive: BTreeSet<usize> = self.alive().map(|(node, _)| node).collect();
        assert_eq!(alive, self.ranks.iter().copied().collect(), "the living, and only they");
    }

    /// Adds up what members have counted.
    pub(crate) fn total(&self) -> Seen {
        let mut seen = self.seen.clone();
        for node in &self.nodes {
            let counters = node.member.counters();
            seen.stale += counters.stale;
            seen.duplicates += counters.duplicates;
            seen.refused += counters.malformed + counters.forged;
            seen.nacks += counters.nacks;
            seen.retransmitted += counters.retransmitted;
            seen.alive_replies += counters.alive_replies;
        }
        seen
    }
}

fn class(packet: &[u8], is_multicast: bool) -> Class {
    // Behind the magic and the version; packets here may carry a tag.
    match packet[3] {
        1 if is_multicast => Class::Multicast,
        1 => Class::Signal,
        2 => Class::Nack,
        3 => Class::Alive,
        _ => Class::View,
    }
}
