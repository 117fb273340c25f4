//! The table behind its lock: flows, the translations that lead to them, and their expiry.
//!
//! ```text
//!                 both sides answered            FIN from both, or RST
//!   Opening ───────────────────▶ Established ───────────────▶ Closing
//!      └───────────────────────── RST ───────────────────────────▲
//! ```
//! These are states of TCP; each other protocol has a single time-out. A flow expires when its state's time-out has
//! passed since its last packet.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    hash::{BuildHasher, Hasher},
    net::IpAddr,
    time::Duration,
};

use fastrand::Rng;
use indexmap::IndexMap;
use siphasher::sip::SipHasher13;
use slab::Slab;
use vigie_detect::Instant;

use super::{NatChange, NatEndpoint, NatError, NatFlow, NatTimeouts, NatTuple, pool::PortPool};
use crate::{
    packet::{TCP, TcpFlags, UDP},
    tables::feed::ChangeLog,
};

/// The number of flows checked for expiry with each new one.
const EXPIRED_PER_OPEN: usize = 4;

/// A keyed hash, so that strangers cannot make all flows collide.
#[derive(Clone, Copy)]
struct KeyedHashBuilder(u64, u64);

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
    Established,
    Closing,
}

#[derive(Debug)]
struct NatEntry {
    flow: NatFlow,
    /// The address and port taken from a pool.
    port: Option<NatEndpoint>,
    last_used: Instant,
    phase: Phase,
    /// Which sides have closed: the initiator, and the other side.
    closed: [bool; 2],
    /// The number of its only valid entry in the expiry queue.
    ticket: u64,
}

impl NatEntry {
    /// Records a packet. Returns whether the flow now expires sooner than the expiry queue says.
    fn note_packet(&mut self, is_reply: bool, flags: Option<TcpFlags>, now: Instant) -> bool {
        self.last_used = self.last_used.max(now);
        let Some(flags) = flags else { return false };
        let before = self.phase;
        if flags.contains(TcpFlags::FIN) {
            self.closed[usize::from(is_reply)] = true;
        }
        let is_new = flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK);
        if flags.contains(TcpFlags::RST) || self.closed == [true, true] {
            self.phase = Phase::Closing;
        } else if is_reply && before == Phase::Opening {
            self.phase = Phase::Established;
        }
        if is_new && before == Phase::Closing && !is_reply {
            // The same ports are reused for a new connection.
            self.phase = Phase::Opening;
            self.closed = [false, false];
        }
        before == Phase::Established && self.phase == Phase::Closing
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

pub(super) struct NatState {
    entries: Slab<NatEntry>,
    translations: IndexMap<NatTuple, Translation, KeyedHashBuilder>,
    /// By address and protocol.
    pools: BTreeMap<(IpAddr, u8), PortPool>,
    /// Each flow once, with a lower bound of its expiry; and stale entries.
    expiries: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    next_ticket: u64,
    log: ChangeLog<NatChange>,
    version: u64,
    flows_max: usize,
    ports: (u16, u16),
    timeouts: NatTimeouts,
    rng: Rng,
}

impl NatState {
    pub(super) fn new(
        flows_max: usize,
        ports: (u16, u16),
        timeouts: NatTimeouts,
        seed: u64,
    ) -> Self {
        let mut rng = Rng::with_seed(seed);
        let keyed = KeyedHashBuilder(rng.u64(..), rng.u64(..));
        Self {
            entries: Slab::new(),
            translations: IndexMap::with_hasher(keyed),
            pools: BTreeMap::new(),
            expiries: BinaryHeap::new(),
            next_ticket: 0,
            log: ChangeLog::new(),
            version: 0,
            flows_max,
            ports,
            timeouts,
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

    pub(super) fn peek(&self, tuple: &NatTuple) -> Option<NatTuple> {
        self.translations.get(tuple).map(|translation| translation.becomes)
    }

    pub(super) fn translate(
        &mut self,
        tuple: &NatTuple,
        flags: Option<TcpFlags>,
        now: Instant,
    ) -> Option<NatTuple> {
        let translation = *self.translations.get(tuple)?;
        let entry = self.entries.get_mut(translation.entry)?;
        if entry.expires_at(&self.timeouts) <= now {
            self.remove(translation.entry);
            return None;
        }
        if entry.note_packet(translation.is_reply, flags, now) {
            self.schedule_expiry(translation.entry);
        }
        Some(translation.becomes)
    }

    pub(super) fn open_source(
        &mut self,
        original: NatTuple,
        external: IpAddr,
        flags: Option<TcpFlags>,
        now: Instant,
    ) -> Result<NatTuple, NatError> {
        self.make_room(now)?;
        let protocol = original.protocol;
        let key = (external, protocol);
        let error = NatError::Ports { address: external, protocol };
        let mut port = self.pool(key).take();
        if port.is_none() && self.expire(now, usize::MAX) > 0 {
            port = self.pool(key).take();
        }
        let source = NatEndpoint::new(external, port.ok_or(error)?);
        let translated = NatTuple { source, ..original };
        let added = self.add(NatFlow { original, translated }, Some(source), flags, now);
        if added.is_err() {
            self.pool(key).give_back(source.port);
        }
        added.map(|()| translated)
    }

    pub(super) fn open_destination(
        &mut self,
        original: NatTuple,
        internal: NatEndpoint,
        flags: Option<TcpFlags>,
        now: Instant,
    ) -> Result<NatTuple, NatError> {
        self.make_room(now)?;
        let translated = NatTuple { destination: internal, ..original };
        self.add(NatFlow { original, translated }, None, flags, now)?;
        Ok(translated)
    }

    fn make_room(&mut self, now: Instant) -> Result<(), NatError> {
        self.expire(now, EXPIRED_PER_OPEN);
        if self.entries.len() >= self.flows_max && self.expire(now, usize::MAX) == 0 {
            return Err(NatError::Full { max: self.flows_max });
        }
        Ok(())
    }

    fn pool(&mut self, key: (IpAddr, u8)) -> &mut PortPool {
        let (ports, rng) = (self.ports, &mut self.rng);
        self.pools.entry(key).or_insert_with(|| PortPool::new(ports, rng))
    }

    fn add(
        &mut self,
        flow: NatFlow,
        port: Option<NatEndpoint>,
        flags: Option<TcpFlags>,
        now: Instant,
    ) -> Result<(), NatError> {
        let [(there, becomes), (back, becomes_back)] = flow.translations();
        if there == back
            || self.translations.contains_key(&there)
            || self.translations.contains_key(&back)
        {
            return Err(NatError::Conflict);
        }
        let mut entry = NatEntry {
            flow,
            port,
            last_used: now,
            phase: Phase::Opening,
            closed: [false, false],
            ticket: 0,
        };
        // It is not in the expiry queue yet, so there is no entry to compare with.
        let _ = entry.note_packet(false, flags, now);
        let entry = self.entries.insert(entry);
        self.translations.insert(there, Translation { entry, becomes, is_reply: false });
        self.translations
            .insert(back, Translation { entry, becomes: becomes_back, is_reply: true });
        self.schedule_expiry(entry);
        self.version = self.log.push(NatChange::Added(flow));
        Ok(())
    }

    /// Adds a flow to the expiry queue; older entries of it become invalid.
    fn schedule_expiry(&mut self, number: usize) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if let Some(entry) = self.entries.get_mut(number) {
            entry.ticket = ticket;
            self.expiries.push(Reverse((entry.expires_at(&self.timeouts), ticket, number)));
        }
    }

    fn remove(&mut self, number: usize) {
        let Some(entry) = self.entries.try_remove(number) else { return };
        for (translation, _) in entry.flow.translations() {
            self.translations.swap_remove(&translation);
        }
        if let Some(port) = entry.port {
            self.pool((port.address, entry.flow.original.protocol)).give_back(port.port);
        }
        self.version = self.log.push(NatChange::Removed(entry.flow));
    }

    /// Removes expired flows, checking no more than `count`. Returns how many were removed.
    pub(super) fn expire(&mut self, now: Instant, count: usize) -> usize {
        let mut ended = 0;
        let mut looked = 0;
        while looked < count
            && let Some(&Reverse((expires_at, ticket, number))) = self.expiries.peek()
            && expires_at <= now
        {
            self.expiries.pop();
            looked += 1;
            let Some(entry) = self.entries.get(number).filter(|entry| entry.ticket == ticket)
            else {
                continue;
            };
            if entry.expires_at(&self.timeouts) <= now {
                self.remove(number);
                ended += 1;
            } else {
                // It was used since.
                self.schedule_expiry(number);
            }
        }
        ended
    }
}
