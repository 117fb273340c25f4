//! Fragments of packets that are translated: later ones have no ports, and follow their first.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use vigie_detect::Instant;

use crate::packet::{Headers, Ipv4, Ipv6, Network};

/// Packets whose fragments are awaited, at most; the oldest gives way.
const PACKETS_MAX: usize = 1024;
/// How long they are: what receivers wait for the rest (RFC 1122, §3.3.2, at the lower end; RFC 8200, §4.5).
const WAITED: Duration = Duration::from_secs(60);

/// What all fragments of a packet share: addresses, number, protocol.
pub(super) type FragmentKey = (IpAddr, IpAddr, u32, u8);

/// Reads what all fragments of a packet share.
pub(super) fn key(headers: &Headers, frame: &[u8]) -> Option<FragmentKey> {
    let (source, destination) = headers.addresses(frame)?;
    let bytes = frame.get(headers.network_at..)?;
    let (number, protocol) = match headers.network {
        Network::Ipv4 => {
            let packet = Ipv4::parse(bytes).ok()?;
            (u32::from(packet.identification()), packet.protocol())
        }
        // The protocol behind the fragment header may differ from one to the next (RFC 8200, §4.5).
        _ => (Ipv6::parse(bytes).ok()?.identification(), 0),
    };
    Some((source, destination, number, protocol))
}

/// Where the later fragments of packets go whose first was translated.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    packets: BTreeMap<FragmentKey, (IpAddr, IpAddr, Instant)>,
    /// In the order of their ends; a packet whose number came again is in it twice.
    ends: VecDeque<(Instant, FragmentKey)>,
}

impl Fragments {
    /// Notes what the first fragment became: its addresses.
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

    /// Returns the addresses that a later fragment gets.
    pub(super) fn find(&self, key: &FragmentKey, now: Instant) -> Option<(IpAddr, IpAddr)> {
        let (source, destination, end) = self.packets.get(key)?;
        (*end > now).then_some((*source, *destination))
    }
}
