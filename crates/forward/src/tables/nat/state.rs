//! The table behind its lock: flows, the translations that lead to them, and their expiry.
//!
//! ```text
//!            answered           used again          FINs, or RST
//!   Opening ──────────▶ Answered ──────────▶ Established ──────────▶ Closing
//!      ▲                   └────────────────── RST ───────────────────▲ │
//!      └──────────────────────────────── SYN ───────────────────────────┘
//! ```
//! All protocols open; only TCP closes, by segments inside the window of the other end. A flow expires when its state's
//! time-out has passed since its last packet. Flows that are not established are evicted where room is lacking: those of
//! the host that wants more than its share, or else of the largest one.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    hash::{BuildHasher, Hasher},
    net::IpAddr,
    sync::Weak,
    time::Duration,
};

use fastrand::Rng;
use indexmap::IndexMap;
use siphasher::sip::SipHasher13;
use slab::Slab;
use vigie_detect::Instant;

use super::{
    FlowProcessor, NatChange, NatEnd, NatEndpoint, NatError, NatEvent, NatFlow, NatLimit,
    NatTimeouts, NatTuple, NatUsage, PortBlocks,
    mapping::{Mappings, PoolKey},
    pool::{PortLayout, PortPool, Standing},
    saved::SavedFlow,
    tcp::{TcpProgress, TcpSides},
};
use crate::{
    packet::{TCP, TcpFlags, UDP},
    tables::feed::ChangeLog,
};

/// The number of flows checked for expiry with each new one.
const EXPIRED_PER_OPEN: usize = 4;
/// The number of candidates for eviction that are examined for one port, or for one flow: several flows may share a port, and other
/// processors may use some.
const CANDIDATES_MAX: usize = 32;
/// How much older than its packet a time of another processor may be: its clock may go by ticks.
const TICK_MAX: Duration = Duration::from_millis(10);

/// A keyed hash, so that strangers cannot make all flows collide.
#[derive(Clone, Copy)]
pub(super) struct KeyedHashBuilder(u64, u64);

impl BuildHasher for KeyedHashBuilder {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        let hasher = SipHasher13::new_with_keys(self.0, self.1);
        debug_assert_eq!(hasher.finish(), hasher.finish());
        hasher
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Answered,
    Established,
    Closing,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Opening, Self::Answered, Self::Established, Self::Closing];
}

#[derive(Debug)]
struct NatEntry {
    flow: NatFlow,
    /// The pool whose ports it uses, and the inside host whose share it counts against.
    pool: PoolKey,
    host: IpAddr,
    /// The mappings of its source and of its destination.
    mappings: [Option<usize>; 2],
    began: Instant,
    last_used: Instant,
    phase: Phase,
    tcp: TcpSides,
    /// Its number, in the order of beginning.
    number: u64,
    /// The number of its only valid entry in the expiry queue.
    ticket: u64,
}

impl NatEntry {
    /// Records a packet. Returns whether the flow now expires sooner than the expiry queue says. If `is_old`, another
    /// processor has forwarded it.
    fn note_packet(
        &mut self,
        is_reply: bool,
        tcp: Option<&TcpProgress>,
        is_old: bool,
        now: Instant,
    ) -> bool {
        self.last_used = self.last_used.max(now);
        let before = self.phase;
        let has = |flag| tcp.is_some_and(|tcp| tcp.flags.contains(flag));

        if before == Phase::Closing && has(TcpFlags::SYN) && !has(TcpFlags::ACK) {
            // The same ports are reused for a new connection.
            self.phase = Phase::Opening;
            self.tcp = TcpSides::default();
        }

        // A reset ends a connection; it does not show that both ends use it.
        if !has(TcpFlags::RST) {
            self.phase = match self.phase {
                Phase::Opening if is_reply => Phase::Answered,
                Phase::Answered if !is_reply => Phase::Established,
                phase => phase,
            };
        }

        let has_ended = tcp.is_some_and(|tcp| match is_old {
            true => self.tcp.note_old(is_reply, tcp),
            false => self.tcp.note(is_reply, tcp),
        });
        if has_ended {
            self.phase = Phase::Closing;
        }
        before == Phase::Established && self.phase == Phase::Closing
    }

    const fn standing(&self) -> Standing {
        match self.phase {
            Phase::Opening => Standing::Unanswered,
            Phase::Established if !self.flow.original.is_echo() => Standing::Assured,
            _ => Standing::Brief,
        }
    }

    /// The outside peer that it lets in by the mapping of its source.
    fn peer(&self) -> Option<IpAddr> {
        let is_hairpin = self.flow.original.destination != self.flow.translated.destination;
        (!is_hairpin).then_some(self.flow.original.destination.address)
    }

    const fn timeout(&self, timeouts: &NatTimeouts) -> Duration {
        match (self.flow.original.protocol, self.phase) {
            (TCP, Phase::Established) => timeouts.tcp_established,
            (TCP, _) => timeouts.tcp_transitory,
            (UDP, _) => timeouts.udp,
            _ => timeouts.icmp,
        }
    }

    fn expires_at(&self, timeouts: &NatTimeouts) -> Instant {
        self.last_used + self.timeout(timeouts)
    }
}

#[derive(Clone, Copy, Debug)]
struct Translation {
    entry: usize,
    becomes: NatTuple,
    is_reply: bool,
}

/// The settings of a table.
#[derive(Clone, Debug)]
pub(super) struct NatLimits {
    pub(super) flows_max: usize,
    /// The share of one inside host, in percent.
    pub(super) host_percent: u8,
    pub(super) ports: (u16, u16),
    pub(super) low_ports: Option<(u16, u16)>,
    pub(super) blocks: Option<PortBlocks>,
    pub(super) timeouts: NatTimeouts,
}

impl NatLimits {
    fn layout(&self) -> PortLayout {
        match &self.blocks {
            None => PortLayout::Shared { ports: self.ports, low_ports: self.low_ports },
            Some(blocks) => PortLayout::Blocks {
                first: self.ports.0,
                size: blocks.size(),
                count: blocks.count(self.ports),
            },
        }
    }

    /// Returns the block of a host's ports, if hosts have such: its index.
    fn block(&self, host: IpAddr) -> Result<Option<usize>, NatError> {
        let Some(blocks) = &self.blocks else { return Ok(None) };
        let index = blocks.index_of(host).filter(|index| *index < blocks.count(self.ports));
        index.map(Some).ok_or(NatError::NoBlock { host })
    }

    /// Returns the number of ports that one host may have.
    fn ports_of_host(&self) -> usize {
        let shared = || self.share(self.layout().count());
        self.blocks.as_ref().map_or_else(shared, |blocks| blocks.size().into())
    }

    /// Returns the share that one host may have of something.
    fn share(&self, of: usize) -> usize {
        (of * usize::from(self.host_percent) / 100).max(1)
    }
}

pub(super) struct NatState {
    entries: Slab<NatEntry>,
    translations: IndexMap<NatTuple, Translation, KeyedHashBuilder>,
    mappings: Mappings,
    pools: BTreeMap<PoolKey, PortPool>,
    /// Each flow once, with a lower bound of its expiry; and stale entries.
    expiries: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    next_ticket: u64,
    log: ChangeLog<NatChange>,
    /// Events that were not taken yet; `None` without an observer.
    events: Option<Vec<NatEvent>>,
    /// Those that translate packets of these flows by themselves.
    processors: Vec<Weak<dyn FlowProcessor>>,
    /// The ends that are published, and the flows begun to them.
    reserved: BTreeMap<(u8, NatEndpoint), u64>,
    version: u64,
    limits: NatLimits,
    evicted: u64,
    refused: u64,
    /// The reason for the last eviction or refusal.
    limit: Option<NatLimit>,
    rng: Rng,
}

impl NatState {
    pub(super) fn new(limits: NatLimits, seed: u64, is_observed: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let keyed = KeyedHashBuilder(rng.u64(..), rng.u64(..));
        Self {
            entries: Slab::new(),
            translations: IndexMap::with_hasher(keyed),
            mappings: Mappings::new(keyed),
            pools: BTreeMap::new(),
            expiries: BinaryHeap::new(),
            next_ticket: 0,
            log: ChangeLog::new(),
            events: is_observed.then(Vec::new),
            processors: Vec::new(),
            reserved: BTreeMap::new(),
            version: 0,
            limits,
            evicted: 0,
            refused: 0,
            limit: None,
            rng,
        }
    }

    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    pub(super) const fn log(&self) -> &ChangeLog<NatChange> {
        &self.log
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn flows(&self) -> Vec<NatFlow> {
        self.entries.iter().map(|(_, entry)| entry.flow).collect()
    }

    pub(super) fn flows_with_ages(&self, now: Instant) -> Vec<(NatFlow, Duration)> {
        self.entries.iter().map(|(_, entry)| (entry.flow, now - entry.began)).collect()
    }

    pub(super) fn usage(&self) -> NatUsage {
        let ports_max = self.limits.layout().count();
        let used = self.pools.values().map(|pool| ports_max.saturating_sub(pool.free()));
        NatUsage {
            flows: self.entries.len(),
            flows_max: self.limits.flows_max,
            ports: used.max().unwrap_or(0),
            ports_max,
            evicted: self.evicted,
            refused: self.refused,
            limit: self.limit,
        }
    }

    pub(super) fn peek(&self, tuple: &NatTuple) -> Option<NatTuple> {
        self.translations.get(tuple).map(|translation| translation.becomes)
    }

    pub(super) fn timeout_of(&self, tuple: &NatTuple) -> Option<Duration> {
        let entry = self.entries.get(self.translations.get(tuple)?.entry)?;
        Some(entry.timeout(&self.limits.timeouts))
    }

    pub(super) fn internal(
        &self,
        protocol: u8,
        external: NatEndpoint,
        peer: Option<IpAddr>,
    ) -> Option<NatEndpoint> {
        let slot = self.mappings.of_external((protocol, external), peer)?;
        self.mappings.get(slot).map(|mapping| mapping.internal)
    }

    pub(super) fn translate(
        &mut self,
        tuple: &NatTuple,
        tcp: Option<&TcpProgress>,
        is_old: bool,
        now: Instant,
    ) -> Option<NatTuple> {
        let translation = *self.translations.get(tuple)?;
        let slot = translation.entry;
        let entry = self.entries.get_mut(slot)?;

        // The expiry queue may not have come to this flow yet.
        if entry.expires_at(&self.limits.timeouts) <= now {
            self.expire_one(slot, now);
            return None;
        }

        let before = entry.standing();
        let was_closing = entry.phase == Phase::Closing;
        let is_sooner = entry.note_packet(translation.is_reply, tcp, is_old, now);
        let after = entry.standing();
        if was_closing && entry.phase == Phase::Opening {
            let (flow, began) = (entry.flow, std::mem::replace(&mut entry.began, now));
            self.note(NatEvent::Ended { flow, duration: now - began, end: NatEnd::Replaced });
            self.note(NatEvent::Began(flow));
        }
        if before != after {
            self.set_standing(slot, Some(before), Some(after));
        }
        if is_sooner {
            self.schedule_expiry(slot);
        }
        Some(translation.becomes)
    }

    /// Starts a flow: its source becomes a port of `source`, its destination `destination`.
    pub(super) fn open(
        &mut self,
        original: NatTuple,
        (source, destination): (Option<IpAddr>, Option<NatEndpoint>),
        tcp: Option<&TcpProgress>,
        now: Instant,
    ) -> Result<NatTuple, NatError> {
        let opened = self.try_open(original, (source, destination), tcp, now);
        self.refused += u64::from(opened.is_err());
        opened
    }

    fn try_open(
        &mut self,
        original: NatTuple,
        (source, destination): (Option<IpAddr>, Option<NatEndpoint>),
        tcp: Option<&TcpProgress>,
        now: Instant,
    ) -> Result<NatTuple, NatError> {
        let protocol = original.protocol;

        // A flow that goes back inside counts against the host that begins it: its source takes a port.
        let (pool, host) = match (source, destination) {
            (Some(external), _) => ((external, protocol), original.source.address),
            (None, Some(internal)) => ((original.destination.address, protocol), internal.address),
            (None, None) => return Err(NatError::Conflict),
        };

        // First of all, since an eviction may end the mappings that are looked up below.
        self.make_room(pool, host, now)?;

        let mut translated = original;
        let mut mappings = [None; 2];
        if source.is_some() {
            let slot = match self.mappings.of_internal(pool, original.source) {
                Some(slot) => slot,
                None => {
                    let port = self.take_port(pool, host, original.source.port, now)?;
                    self.mappings.add(pool, original.source, port)
                }
            };
            mappings[0] = Some(slot);
            translated.source = self.mappings.get(slot).map_or(original.source, |one| one.external);
        }

        // After the source: to take a port for it may evict the last flow of this mapping.
        if let Some(internal) = destination {
            let slot = self.mappings.of_external((protocol, original.destination), None);
            let is_its = |slot: &usize| {
                self.mappings.get(*slot).is_some_and(|mapping| mapping.internal == internal)
            };
            // A published destination has no mapping: one that another host still has at that port is not joined.
            mappings[1] = slot.filter(is_its);
            translated.destination = internal;
        }

        let number = self.next_ticket;
        let mut entry = NatEntry {
            flow: NatFlow { original, translated },
            pool,
            host,
            mappings,
            began: now,
            last_used: now,
            phase: Phase::Opening,
            tcp: TcpSides::default(),
            number,
            ticket: number,
        };
        // It is not in the expiry queue yet, so there is no entry to compare with.
        let _ = entry.note_packet(false, tcp, false, now);
        self.add(entry)?;
        if let Some(count) = self.reserved.get_mut(&(protocol, original.destination)) {
            *count += 1;
        }
        self.note(NatEvent::Began(NatFlow { original, translated }));
        Ok(translated)
    }

    /// Returns all flows as they are saved.
    pub(super) fn save(&self, now: Instant) -> Vec<SavedFlow> {
        let saved = |entry: &NatEntry| SavedFlow {
            flow: entry.flow,
            phase: entry.phase as u8,
            idle: now - entry.last_used,
        };
        self.entries.iter().map(|(_, entry)| saved(entry)).collect()
    }

    /// Takes over a flow that was saved `age` ago, with its port. Returns whether it has.
    pub(super) fn restore(&mut self, saved: &SavedFlow, age: Duration, now: Instant) -> bool {
        let NatFlow { original, translated } = saved.flow;
        let Some(phase) = Phase::ALL.get(usize::from(saved.phase)).copied() else { return false };
        let (is_source, is_destination) =
            (original.source != translated.source, original.destination != translated.destination);
        let protocol = original.protocol;
        let (pool, host) = match (is_source, is_destination) {
            (true, _) => ((translated.source.address, protocol), original.source.address),
            (false, true) => {
                ((original.destination.address, protocol), translated.destination.address)
            }
            (false, false) => return false,
        };
        if translated.protocol != protocol || self.entries.len() >= self.limits.flows_max {
            return false;
        }

        let mut mappings = [None; 2];
        let mut is_new = false;
        if is_source {
            let port = translated.source.port;
            let Ok(block) = self.limits.block(host) else { return false };
            mappings[0] = match self.mappings.of_internal(pool, original.source) {
                Some(slot) => Some(slot).filter(|slot| {
                    self.mappings.get(*slot).is_some_and(|one| one.external == translated.source)
                }),
                None if self.pool(pool).take_exactly(block, port) => {
                    self.pool(pool).host(host).ports += 1;
                    is_new = true;
                    Some(self.mappings.add(pool, original.source, port))
                }
                None => None,
            };
            if mappings[0].is_none() {
                return false;
            }
        }
        if is_destination {
            let slot = self.mappings.of_external((protocol, original.destination), None);
            mappings[1] = slot.filter(|slot| {
                self.mappings.get(*slot).is_some_and(|one| one.internal == translated.destination)
            });
        }

        let number = self.next_ticket;
        let idle = saved.idle.saturating_add(age);
        let entry = NatEntry {
            flow: saved.flow,
            pool,
            host,
            mappings,
            began: now,
            last_used: now - idle,
            phase,
            tcp: TcpSides::default(),
            number,
            ticket: number,
        };
        if entry.timeout(&self.limits.timeouts) <= idle {
            if is_new {
                // Its mapping has no flow yet: as if one had come and gone.
                self.join(mappings, entry.peer());
                self.leave(mappings, entry.peer());
            }
            return false;
        }
        self.add(entry).is_ok()
    }

    fn make_room(&mut self, pool: PoolKey, host: IpAddr, now: Instant) -> Result<(), NatError> {
        let max = self.limits.share(self.limits.flows_max);
        self.expire(now, EXPIRED_PER_OPEN);

        // A host at its limit loses one of its own flows, never one of another host.
        let share = self.pool(pool).hosts.get(&host);
        if share.is_some_and(|share| share.flows >= max) {
            let victim = |state: &Self| state.pools.get(&pool)?.hosts.get(&host)?.victim();
            let limit = NatLimit::HostFlows { host, max };
            self.evict_first(victim, (limit, NatError::Host { host, max }), now)?;
        }

        if self.entries.len() >= self.limits.flows_max && self.expire(now, usize::MAX) == 0 {
            let victim = |state: &Self| {
                let victims = state.pools.values().filter_map(|pool| pool.victim(|one| one.flows));
                victims.max().map(|(_, slot)| slot)
            };
            let error = NatError::Full { max: self.limits.flows_max };
            self.evict_first(victim, (NatLimit::Flows, error), now)?;
        }
        Ok(())
    }

    /// Evicts one of the flows that `victim` finds, or fails with `error`.
    fn evict_first(
        &mut self,
        victim: impl Fn(&Self) -> Option<usize>,
        (limit, error): (NatLimit, NatError),
        now: Instant,
    ) -> Result<(), NatError> {
        self.limit = Some(limit);
        for _ in 0..CANDIDATES_MAX {
            if self.evict(victim(self).ok_or(error)?, now) {
                return Ok(());
            }
        }
        Err(error)
    }

    fn take_port(
        &mut self,
        key: PoolKey,
        host: IpAddr,
        like: u16,
        now: Instant,
    ) -> Result<u16, NatError> {
        let max = self.limits.ports_of_host();
        let block = match self.limits.block(host) {
            Ok(block) => block,
            Err(error) => {
                self.limit = None;
                return Err(error);
            }
        };
        let mut error = NatError::Ports { address: key.0, protocol: key.1 };

        // Several flows may share a port: one eviction need not free any.
        for attempt in 0..=CANDIDATES_MAX {
            let pool = self.pool(key);
            let share = pool.host(host);
            let (mut has_all, mut victim) = (share.ports >= max, share.victim());
            if !has_all {
                if let Some(port) = pool.take(block, like) {
                    pool.host(host).ports += 1;
                    return Ok(port);
                }
                // Ports of other hosts are of no use to one that has a block.
                has_all = block.is_some();
                if !has_all {
                    victim = pool.victim(|host| host.ports).map(|(_, slot)| slot);
                }
            }

            error = if has_all { NatError::Host { host, max } } else { error };
            if attempt == CANDIDATES_MAX {
                break;
            }
            // The first attempt removes all expired flows, so the later ones need not look for them.
            if attempt > 0 || self.expire(now, usize::MAX) == 0 {
                let NatLimits { blocks, ports, .. } = &self.limits;
                let block = blocks.as_ref().and_then(|blocks| blocks.of_host(host, *ports));
                self.limit = Some(match block {
                    Some(block) => NatLimit::Block(block),
                    None if has_all => NatLimit::HostPorts { host, max },
                    None => NatLimit::Ports,
                });
                self.evict(victim.ok_or(error)?, now);
            }
        }
        Err(error)
    }

    /// Evicts a flow, unless other processors have translated packets that make it one to be evicted later, or never. Returns whether
    /// it has.
    fn evict(&mut self, slot: usize, now: Instant) -> bool {
        if self.learn_use(slot) {
            return false;
        }
        self.evicted += 1;
        self.end(slot, NatEnd::Evicted, now);
        true
    }

    /// Asks other processors for packets of a flow that is to be evicted. Returns whether its standing has changed.
    fn learn_use(&mut self, slot: usize) -> bool {
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        let before = entry.standing();
        let [there, back] = entry.flow.translations().map(|(tuple, _)| tuple);
        // Of another flow that had these ends, too, there may be an older time.
        let since = entry.began - TICK_MAX;
        let last_used = |tuple: &NatTuple| {
            let processors = self.processors.iter().filter_map(Weak::upgrade);
            processors.filter_map(|one| one.last_used(tuple)).filter(|at| *at >= since).max()
        };
        if entry.phase == Phase::Opening
            && let Some(at) = last_used(&back)
        {
            let _ = entry.note_packet(true, None, true, at);
        }
        if entry.phase == Phase::Answered
            && let Some(at) = last_used(&there)
        {
            let _ = entry.note_packet(false, None, true, at);
        }
        let after = entry.standing();
        if before != after {
            self.set_standing(slot, Some(before), Some(after));
        }
        before != after
    }

    #[cfg(any(test, feature = "nic"))]
    pub(super) fn add_processor(&mut self, processor: Weak<dyn FlowProcessor>) {
        self.processors.retain(|one| one.strong_count() > 0);
        self.processors.push(processor);
    }

    fn expire_one(&mut self, slot: usize, now: Instant) {
        let is_closing = self.entries.get(slot).is_some_and(|one| one.phase == Phase::Closing);
        self.end(slot, if is_closing { NatEnd::Closed } else { NatEnd::TimedOut }, now);
    }

    fn end(&mut self, slot: usize, end: NatEnd, now: Instant) {
        if let Some(entry) = self.entries.get(slot) {
            let (flow, duration) = (entry.flow, now - entry.began);
            self.note(NatEvent::Ended { flow, duration, end });
        }
        self.remove(slot);
    }

    fn note(&mut self, event: NatEvent) {
        if let Some(events) = &mut self.events {
            events.push(event);
        }
    }

    /// Calls a function with each event since the last call.
    pub(super) fn take_events(&mut self, each: impl Fn(&NatEvent)) {
        if let Some(events) = &mut self.events {
            events.drain(..).for_each(|event| each(&event));
        }
    }

    pub(super) fn reserved(&self) -> Vec<((u8, NatEndpoint), u64)> {
        self.reserved.iter().map(|(end, count)| (*end, *count)).collect()
    }

    /// Takes a port out of those for mappings.
    pub(super) fn reserve(&mut self, protocol: u8, external: NatEndpoint) {
        self.pool((external.address, protocol)).reserve(external.port);
        self.reserved.entry((protocol, external)).or_insert(0);
    }

    fn pool(&mut self, key: PoolKey) -> &mut PortPool {
        let (limits, rng) = (&self.limits, &mut self.rng);
        self.pools.entry(key).or_insert_with(|| PortPool::new(limits.layout(), rng))
    }

    fn add(&mut self, entry: NatEntry) -> Result<(), NatError> {
        let flow = entry.flow;
        let [(there, becomes), (back, becomes_back)] = flow.translations();
        let is_known = |tuple| self.translations.contains_key(tuple);
        let is_conflict = there == back || is_known(&there) || is_known(&back);
        let (standing, mappings, peer) = (entry.standing(), entry.mappings, entry.peer());

        // A flow in conflict joins and leaves too: that frees the port of a mapping that was made only for it.
        self.join(mappings, peer);
        if is_conflict {
            self.leave(mappings, peer);
            return Err(NatError::Conflict);
        }

        self.pool(entry.pool).host(entry.host).flows += 1;

        let entry = self.entries.insert(entry);
        self.set_standing(entry, None, Some(standing));
        self.translations.insert(there, Translation { entry, becomes, is_reply: false });
        self.translations
            .insert(back, Translation { entry, becomes: becomes_back, is_reply: true });

        self.schedule_expiry(entry);
        self.version = self.log.push(NatChange::Added(flow));
        Ok(())
    }

    fn join(&mut self, [source, destination]: [Option<usize>; 2], peer: Option<IpAddr>) {
        source.into_iter().for_each(|slot| self.mappings.join(slot, peer));
        destination.into_iter().for_each(|slot| self.mappings.join(slot, None));
    }

    /// Leaves mappings; the port of one that nothing uses any more is free.
    fn leave(&mut self, [source, destination]: [Option<usize>; 2], peer: Option<IpAddr>) {
        let left = [
            source.and_then(|slot| self.mappings.leave(slot, peer)),
            destination.and_then(|slot| self.mappings.leave(slot, None)),
        ];
        for mapping in left.into_iter().flatten() {
            let (pool, host) = (self.pool(mapping.pool), mapping.internal.address);
            pool.give_back(mapping.external.port);
            pool.host(host).ports -= 1;
            pool.forget(host);
        }
    }

    fn set_standing(&mut self, slot: usize, from: Option<Standing>, to: Option<Standing>) {
        let Some(&NatEntry { pool, host, number, .. }) = self.entries.get(slot) else { return };
        self.pool(pool).host(host).set_standing((number, slot), from, to);
    }

    /// Adds a flow to the expiry queue; older entries of it become invalid.
    fn schedule_expiry(&mut self, number: usize) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if let Some(entry) = self.entries.get_mut(number) {
            entry.ticket = ticket;
            let expires_at = entry.expires_at(&self.limits.timeouts);
            self.expiries.push(Reverse((expires_at, ticket, number)));
        }
    }

    fn remove(&mut self, number: usize) {
        let Some(standing) = self.entries.get(number).map(NatEntry::standing) else { return };
        self.set_standing(number, Some(standing), None);

        let Some(entry) = self.entries.try_remove(number) else { return };
        for (translation, _) in entry.flow.translations() {
            self.translations.swap_remove(&translation);
        }

        self.leave(entry.mappings, entry.peer());
        let pool = self.pool(entry.pool);
        pool.host(entry.host).flows -= 1;
        pool.forget(entry.host);
        self.version = self.log.push(NatChange::Removed(entry.flow));
    }

    /// Removes expired flows, checking no more than `count`. Returns how many were removed.
    pub(super) fn expire(&mut self, now: Instant, count: usize) -> usize {
        let mut ended = 0;
        let mut checked = 0;
        while checked < count
            && let Some(&Reverse((expires_at, ticket, number))) = self.expiries.peek()
            && expires_at <= now
        {
            self.expiries.pop();
            checked += 1;
            let Some(entry) = self.entries.get(number).filter(|entry| entry.ticket == ticket)
            else {
                continue;
            };
            if entry.expires_at(&self.limits.timeouts) <= now {
                self.expire_one(number, now);
                ended += 1;
            } else {
                // It was used since.
                self.schedule_expiry(number);
            }
        }
        ended
    }
}
