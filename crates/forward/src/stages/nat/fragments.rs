//! Fragments of translated packets: later ones have no ports, and follow their first.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use vigie_detect::Instant;

use crate::packet::{Headers, Ipv4, Ipv6, Network};

/// The maximum number of packets with expected fragments; the oldest is evicted.
const PACKETS_MAX: usize = 1024;
/// How long fragments are expected: as long as receivers wait for the rest (RFC 1122, §3.3.2, at the lower end; RFC
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
    }

    /// Returns the addresses for a later fragment.
    pub(super) fn find(&self, key: &FragmentKey, now: Instant) -> Option<(IpAddr, IpAddr)> {
        let (source, destination, end) = self.packets.get(key)?;
        (*end > now).then_some((*source, *destination))
    }
}
