//! The table behind its lock: flows, the lines that lead to them, and when they end.
//!
//! ```text
//!                 both sides answered            FIN from both, or RST
//!   Opening ───────────────────▶ Established ───────────────▶ Closing
//!      └───────────────────────── RST ───────────────────────────▲
//! ```
//! These are states of TCP; flows of other protocols have one time for all. A flow ends when its state's time has
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

use super::{Endpoint, NatChange, NatError, NatFlow, NatTimeouts, NatTuple, pool::Pool};
use crate::{
    packet::{TCP, TcpFlags, UDP},
    tables::feed::Log,
};

/// Flows that are looked at with each new one, whether they have ended.
const EXPIRED_PER_OPEN: usize = 4;

/// A hash that strangers cannot foretell, so that they cannot make all flows meet in one place.
#[derive(Clone, Copy)]
struct Keyed(u64, u64);

impl BuildHasher for Keyed {
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
struct Entry {
    flow: NatFlow,
    /// The address and port that were taken out of a pool.
    port: Option<Endpoint>,
    last_used: Instant,
    phase: Phase,
    /// Which sides have closed: those who began the flow, and the others.
    closed: [bool; 2],
    /// The number of its only valid place in the row of ends.
    ticket: u64,
}

impl Entry {
    /// Takes in a packet. Returns whether it ends sooner than the row of ends says.
    fn used(&mut self, is_reply: bool, flags: Option<TcpFlags>, now: Instant) -> bool {
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
            // The same ports again, for a new connection.
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

    fn end(&self, timeouts: &NatTimeouts) -> Instant {
        self.last_used + self.timeout(timeouts)
    }
}

#[derive(Clone, Copy, Debug)]
struct Line {
    entry: usize,
    becomes: NatTuple,
    is_reply: bool,
}

pub(super) struct State {
    entries: Slab<Entry>,
    lines: IndexMap<NatTuple, Line, Keyed>,
    /// By address and protocol.
    pools: BTreeMap<(IpAddr, u8), Pool>,
    /// Each flow once, with a time at which it does not end earlier; and places that are not valid any more.
    ends: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    next_ticket: u64,
    log: Log<NatChange>,
    version: u64,
    flows_max: usize,
    ports: (u16, u16),
    timeouts: NatTimeouts,
    rng: Rng,
}

impl State {
    pub(super) fn new(
        flows_max: usize,
        ports: (u16, u16),
        timeouts: NatTimeouts,
        seed: u64,
    ) -> Self {
        let mut rng = Rng::with_seed(seed);
        let keyed = Keyed(rng.u64(..), rng.u64(..));
        Self {
            entries: Slab::new(),
            lines: IndexMap::with_hasher(keyed),
            pools: BTreeMap::new(),
            ends: BinaryHeap::new(),
            next_ticket: 0,
            log: Log::new(),
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

    pub(super) const fn log(&self) -> &Log<NatChange> {
        &self.log
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn flows(&self) -> Vec<NatFlow> {
        self.entries.iter().map(|(_, entry)| entry.flow).collect()
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.ends.peek().map(|Reverse((end, ..))| *end)
    }

    pub(super) fn peek(&self, tuple: &NatTuple) -> Option<NatTuple> {
        self.lines.get(tuple).map(|line| line.becomes)
    }

    pub(super) fn translate(
        &mut self,
        tuple: &NatTuple,
        flags: Option<TcpFlags>,
        now: Instant,
    ) -> Option<NatTuple> {
        let line = *self.lines.get(tuple)?;
        let entry = self.entries.get_mut(line.entry)?;
        if entry.end(&self.timeouts) <= now {
            self.remove(line.entry);
            return None;
        }
        if entry.used(line.is_reply, flags, now) {
            self.put_in_row(line.entry);
        }
        Some(line.becomes)
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
        let source = Endpoint::new(external, port.ok_or(error)?);
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
        internal: Endpoint,
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

    fn pool(&mut self, key: (IpAddr, u8)) -> &mut Pool {
        let (ports, rng) = (self.ports, &mut self.rng);
        self.pools.entry(key).or_insert_with(|| Pool::new(ports, rng))
    }

    fn add(
        &mut self,
        flow: NatFlow,
        port: Option<Endpoint>,
        flags: Option<TcpFlags>,
        now: Instant,
    ) -> Result<(), NatError> {
        let [(there, becomes), (back, becomes_back)] = flow.lines();
        if there == back || self.lines.contains_key(&there) || self.lines.contains_key(&back) {
            return Err(NatError::Conflict);
        }
        let mut entry = Entry {
            flow,
            port,
            last_used: now,
            phase: Phase::Opening,
            closed: [false, false],
            ticket: 0,
        };
        // It is in no row yet, so that nothing is sooner than that.
        let _ = entry.used(false, flags, now);
        let entry = self.entries.insert(entry);
        self.lines.insert(there, Line { entry, becomes, is_reply: false });
        self.lines.insert(back, Line { entry, becomes: becomes_back, is_reply: true });
        self.put_in_row(entry);
        self.version = self.log.push(NatChange::Added(flow));
        Ok(())
    }

    /// Puts a flow into the row of ends; an older place there is not valid any more.
    fn put_in_row(&mut self, number: usize) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if let Some(entry) = self.entries.get_mut(number) {
            entry.ticket = ticket;
            self.ends.push(Reverse((entry.end(&self.timeouts), ticket, number)));
        }
    }

    fn remove(&mut self, number: usize) {
        let Some(entry) = self.entries.try_remove(number) else { return };
        for (line, _) in entry.flow.lines() {
            self.lines.swap_remove(&line);
        }
        if let Some(port) = entry.port {
            self.pool((port.address, entry.flow.original.protocol)).give_back(port.port);
        }
        self.version = self.log.push(NatChange::Removed(entry.flow));
    }

    /// Ends flows whose time is over, looking at no more than `count`. Returns how many ended.
    pub(super) fn expire(&mut self, now: Instant, count: usize) -> usize {
        let mut ended = 0;
        let mut looked = 0;
        while looked < count
            && let Some(&Reverse((end, ticket, number))) = self.ends.peek()
            && end <= now
        {
            self.ends.pop();
            looked += 1;
            let Some(entry) = self.entries.get(number).filter(|entry| entry.ticket == ticket)
            else {
                continue;
            };
            if entry.end(&self.timeouts) <= now {
                self.remove(number);
                ended += 1;
            } else {
                // It was used since.
                self.put_in_row(number);
            }
        }
        ended
    }
}
