//! Packets whose neighbour is not known yet: they wait for its address, as in the kernel.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use vigie_detect::Instant;

use crate::{
    drop_reason::DropReason,
    packet::{Packet, Port},
};

/// A neighbour: the port of its link, and its address.
pub(super) type Neighbour = (Port, IpAddr);

/// The time that a packet waits: as long as the kernel asks, three times a second apart.
const WAITS: Duration = Duration::from_secs(3);
/// The maximum number of packets that wait for one neighbour; the oldest is dropped. About as many as the kernel's
/// `unres_qlen_bytes` holds.
const OF_ONE_MAX: usize = 100;
/// The maximum number of packets that wait.
const ALL_MAX: usize = 1024;

/// The waiting packets.
#[derive(Debug)]
pub(super) struct Unresolved {
    waiting: BTreeMap<Neighbour, VecDeque<(Instant, Packet)>>,
    count: usize,
    /// Those of all stages of the table.
    count_of_all: Arc<AtomicUsize>,
    /// Those that wait no longer, and why.
    dropped: VecDeque<(Packet, DropReason)>,
}

impl Drop for Unresolved {
    fn drop(&mut self) {
        self.remove(self.count);
    }
}

impl Unresolved {
    pub(super) const fn new(count_of_all: Arc<AtomicUsize>) -> Self {
        Self { waiting: BTreeMap::new(), count: 0, count_of_all, dropped: VecDeque::new() }
    }

    fn remove(&mut self, count: usize) {
        self.count -= count;
        // It guards nothing: a program that reads it late takes its packets a moment later, or the order of a few changes.
        self.count_of_all.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn len(&self) -> usize {
        self.count + self.dropped.len()
    }

    /// Returns whether a packet waits for any neighbour.
    pub(super) const fn has_waiting(&self) -> bool {
        self.count > 0
    }

    /// Returns whether a packet waits for this neighbour.
    pub(super) fn waits_for(&self, neighbour: Neighbour) -> bool {
        self.waiting.contains_key(&neighbour)
    }

    /// Adds a packet. If there is no room, drops the oldest packet for the same neighbour; if none waits for it, drops the new one.
    /// Returns whether it is the only one for its neighbour.
    pub(super) fn add(&mut self, neighbour: Neighbour, packet: Packet, now: Instant) -> bool {
        let waiting = self.waiting.entry(neighbour).or_default();
        let is_first = waiting.is_empty();
        waiting.push_back((now + WAITS, packet));
        self.count += 1;
        self.count_of_all.fetch_add(1, Ordering::Relaxed);
        if waiting.len() > OF_ONE_MAX || self.count > ALL_MAX {
            let oldest = waiting.pop_front();
            self.dropped.extend(oldest.map(|(_, packet)| (packet, DropReason::UnresolvedFull)));
            self.remove(1);
            self.forget(neighbour);
        }
        is_first
    }

    /// Takes the next packet whose neighbour is known, in order of arrival for each neighbour.
    pub(super) fn take_known(&mut self, is_known: impl Fn(Neighbour) -> bool) -> Option<Packet> {
        let neighbour = self.waiting.keys().copied().find(|neighbour| is_known(*neighbour))?;
        let (_, packet) = self.waiting.get_mut(&neighbour)?.pop_front()?;
        self.remove(1);
        self.forget(neighbour);
        Some(packet)
    }

    /// Takes the next packet that has no room, or has waited in vain, like all that wait for its neighbour.
    pub(super) fn take_dropped(&mut self, now: Instant) -> Option<(Packet, DropReason)> {
        let is_over = |waiting: &VecDeque<(Instant, Packet)>| {
            waiting.front().is_some_and(|(end, _)| *end <= now)
        };
        if let Some((neighbour, waiting)) =
            self.waiting.iter_mut().find(|(_, waiting)| is_over(waiting))
        {
            let (neighbour, count) = (*neighbour, waiting.len());
            let waited = waiting.drain(..);
            self.dropped.extend(waited.map(|(_, packet)| (packet, DropReason::NoNeighbour)));
            self.remove(count);
            self.forget(neighbour);
        }
        self.dropped.pop_front()
    }

    fn forget(&mut self, neighbour: Neighbour) {
        if self.waiting.get(&neighbour).is_some_and(VecDeque::is_empty) {
            self.waiting.remove(&neighbour);
        }
    }
}
