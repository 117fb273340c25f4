//! Fragments of translated packets: later ones have no ports, and follow their first.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use vigie_detect::Instant;

use crate::packet::{Headers, Ipv4, Ipv6, Network, Packet};

/// The maximum number of packets with expected fragments; the oldest is evicted.
const PACKETS_MAX: usize = 1024;
/// The maximum number of later fragments that wait for their first, of all packets and of one sender; beyond it, the oldest
/// is dropped, or the new one. First fragments and whole packets need no room here (RFC 4787, REQ-14a).
const HELD_MAX: usize = 256;
const HELD_OF_SENDER_MAX: usize = 64;
/// The time that they wait.
const HELD: Duration = Duration::from_secs(2);
/// The time for which fragments are expected: as long as receivers wait for the rest (RFC 1122, §3.3.2, at the lower end; RFC
/// 8200, §4.5).
const WAITED: Duration = Duration::from_secs(60);

/// The fields that all fragments of a packet share: addresses, number, protocol.
pub(super) type FragmentKey = (IpAddr, IpAddr, u32, u8);

/// Reads the fields that all fragments of a packet share.
pub(super) fn key(headers: &Headers, frame: &[u8]) -> Option<FragmentKey> {
    let (source, destination) = headers.addresses(frame)?;
    let bytes = frame.get(headers.network_at..)?;
    let (number, protocol) = match headers.network {
        Network::Ipv4 => {
            let packet = Ipv4::parse(bytes).ok()?;
            (u32::from(packet.identification()), packet.protocol())
        }
        // The protocol after the fragment header may differ between fragments (RFC 8200, §4.5).
        _ => (Ipv6::parse(bytes).ok()?.identification(), 0),
    };
    Some((source, destination, number, protocol))
}

/// The translations for later fragments of packets whose first one was translated.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    packets: BTreeMap<FragmentKey, (IpAddr, IpAddr, Instant)>,
    /// In order of expiry; a packet whose number was reused is in it twice.
    ends: VecDeque<(Instant, FragmentKey)>,
    /// Later fragments that have come before their first one, with the end of their wait.
    held: VecDeque<(Instant, FragmentKey, Packet)>,
    /// Those whose first one has come, and those that wait no longer.
    followers: VecDeque<Packet>,
    dropped: VecDeque<Packet>,
}

impl Fragments {
    /// Records the translated addresses of a first fragment.
    pub(super) fn note(&mut self, key: FragmentKey, addresses: (IpAddr, IpAddr), now: Instant) {
        let end = now + WAITED;
        while let Some((at, oldest)) = self.ends.front().copied()
            && (at <= now || self.ends.len() >= PACKETS_MAX)
        {
            self.ends.pop_front();
            if self.packets.get(&oldest).is_some_and(|(_, _, end)| *end == at) {
                self.packets.remove(&oldest);
            }
        }
        self.packets.insert(key, (addresses.0, addresses.1, end));
        self.ends.push_back((end, key));
        for (until, of, packet) in std::mem::take(&mut self.held) {
            if of == key {
                self.followers.push_back(packet);
            } else {
                self.held.push_back((until, of, packet));
            }
        }
    }

    /// Holds a later fragment until its first one comes.
    pub(super) fn hold(&mut self, key: FragmentKey, packet: Packet, now: Instant) {
        let of_sender = |held: &(Instant, FragmentKey, Packet)| held.1.0 == key.0;
        if self.held.iter().filter(|held| of_sender(held)).count() >= HELD_OF_SENDER_MAX {
            return self.dropped.push_back(packet);
        }
        if self.held.len() >= HELD_MAX {
            self.dropped.extend(self.held.pop_front().map(|(_, _, packet)| packet));
        }
        self.held.push_back((now + HELD, key, packet));
    }

    /// Takes a fragment whose first one has come since.
    pub(super) fn take_follower(&mut self) -> Option<Packet> {
        self.followers.pop_front()
    }

    /// Takes a fragment that waits no longer.
    pub(super) fn take_dropped(&mut self, now: Instant) -> Option<Packet> {
        if self.held.front().is_some_and(|(until, ..)| *until <= now) {
            self.dropped.extend(self.held.pop_front().map(|(_, _, packet)| packet));
        }
        self.dropped.pop_front()
    }

    pub(super) fn held_packets(&self) -> usize {
        self.held.len() + self.followers.len() + self.dropped.len()
    }

    /// Returns when to take packets at the latest.
    pub(super) fn next_end(&self, now: Instant) -> Option<Instant> {
        if !self.followers.is_empty() || !self.dropped.is_empty() {
            return Some(now);
        }
        self.held.front().map(|(until, ..)| *until)
    }

    /// Returns the addresses for a later fragment.
    pub(super) fn find(&self, key: &FragmentKey, now: Instant) -> Option<(IpAddr, IpAddr)> {
        let (source, destination, end) = self.packets.get(key)?;
        (*end > now).then_some((*source, *destination))
    }
}
