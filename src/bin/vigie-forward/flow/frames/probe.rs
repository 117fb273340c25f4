//! Whether another host of the outside network has an address for which translations answer: asked at the start, and heard of later.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vigie::{
    detect::clock::monotonic_now,
    forward::packet::Arp,
    via::link::{EtherType, Link, MacAddress},
};

/// The number of probes, and the time for answers after each: RFC 5227 (section 1.1) waits for 4 to 7 s in all, for which no start should wait.
const PROBES: u32 = 3;
const ANSWER_TIME: Duration = Duration::from_millis(150);
/// The number of packets that are read at once.
const PACKETS_MAX: usize = 64;

/// Returns the Ethernet address of the host that answers for `address`, by the probes of RFC 5227 (section 2.1.1). Blocks for at most half a second.
pub(super) fn holder(interface: &str, address: Ipv4Addr) -> Result<Option<MacAddress>, String> {
    let link = Link::builder(interface).ether_type(EtherType::ARP).open();
    let mut link = link.map_err(|error| error.to_string())?;
    let own = link.address();
    let probe = probe(own, address);
    for _ in 0..PROBES {
        let sent = link.send(MacAddress::BROADCAST, &[&probe]).and_then(|()| link.flush());
        sent.map_err(|error| error.to_string())?;
        let until = monotonic_now() + ANSWER_TIME;
        loop {
            let left = until - monotonic_now();
            if left.is_zero() {
                break;
            }
            let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            // A signal is as if something had come.
            let _ = poll(&mut [PollFd::new(&link.descriptor(), PollFlags::IN)], Some(&left));
            let mut found = None;
            let received = link.recv_each(PACKETS_MAX, |frame| {
                let mut bytes = vec![0; frame.len()];
                frame.read(0, &mut bytes);
                found = found.or_else(|| sender(&bytes, address)).filter(|mac| *mac != own);
            });
            received.map_err(|error| error.to_string())?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}

/// The last other host from which a pipeline has heard that it has the address (RFC 5227, section 2.4). Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Rival(Arc<AtomicU64>);

impl Rival {
    /// Takes note of its Ethernet address.
    pub(super) fn note(&self, mac: MacAddress) {
        let [a, b, c, d, e, f] = mac.0;
        // Not 0, which is none.
        let number = u64::from_be_bytes([0, 1, a, b, c, d, e, f]);
        self.0.store(number, Ordering::Relaxed);
    }

    /// Returns the address that was noted since the last call.
    pub(super) fn take(&self) -> Option<MacAddress> {
        let number = self.0.swap(0, Ordering::Relaxed);
        let [_, _, mac @ ..] = number.to_be_bytes();
        (number != 0).then_some(MacAddress(mac))
    }
}

/// A request for an address from none.
fn probe(own: MacAddress, address: Ipv4Addr) -> Vec<u8> {
    let none = Ipv4Addr::UNSPECIFIED.octets();
    [&[0, 1, 8, 0, 6, 4, 0, 1], &own.0[..], &none, &[0; 6], &address.octets()].concat()
}

/// Returns the sender of a frame that says that it has the address: of an answer, or of a request.
fn sender(frame: &[u8], address: Ipv4Addr) -> Option<MacAddress> {
    let payload = frame.get(14..)?;
    let arp = Arp::parse(payload).ok()?;
    (arp.sender_ip == address).then_some(arp.sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: another host is told once for each time that it was heard of. Method: two addresses, one of zeros.
    #[test]
    fn rivals_are_told() {
        let rival = Rival::default();
        assert_eq!(rival.take(), None);
        for mac in [MacAddress([0; 6]), MacAddress([2, 3, 4, 5, 6, 7])] {
            rival.clone().note(mac);
            assert_eq!((rival.take(), rival.take()), (Some(mac), None));
        }
    }

    /// Goal: a probe is as RFC 5227 has it, and only packets from its address count as an answer. Method: an answer, and packets that differ in one
    /// field.
    #[test]
    fn answers_are_told_apart() {
        let (own, other) = (MacAddress([2; 6]), MacAddress([4; 6]));
        let address = Ipv4Addr::new(10, 2, 0, 9);
        let asked = Arp::parse(&probe(own, address)).expect("it is whole");
        assert_eq!((asked.operation, asked.sender, asked.sender_ip), (1, own, [0; 4].into()));
        assert_eq!((asked.target, asked.target_ip), (MacAddress([0; 6]), address));
        let frame = |operation, from: [u8; 4]| {
            let mut frame = [&own.0[..], &other.0, &[8, 6]].concat();
            frame.extend(probe(other, [0; 4].into()));
            frame[21] = operation;
            frame[28..32].copy_from_slice(&from);
            frame
        };
        for operation in [1, 2] {
            assert_eq!(sender(&frame(operation, address.octets()), address), Some(other));
            assert_eq!(sender(&frame(operation, [10, 2, 0, 8]), address), None);
        }
        assert_eq!(sender(&frame(2, address.octets())[..30], address), None);
    }
}
