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

/// Another host that has an address, or wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Has(MacAddress),
    /// It probes at the same time (RFC 5227, section 2.1.1), and has the lower Ethernet address: of two that probe, one begins.
    GoesFirst(MacAddress),
    /// It probes at the same time, and has the higher one.
    GoesSecond(MacAddress),
}

/// Asks at each interface whether another host has the address, by the probes of RFC 5227 (section 2.1.1), and returns one that answers or that probes, too. What `own`
/// addresses send is ignored. Blocks for at most half a second in all.
pub(super) fn holders(
    asked: &[(&str, Ipv4Addr)],
    own: &[MacAddress],
) -> Vec<Result<Option<Holder>, String>> {
    let open = |(interface, address): &(&str, Ipv4Addr)| Question::open(interface, *address);
    let mut questions: Vec<_> = asked.iter().map(open).collect();
    for _ in 0..PROBES {
        questions.iter_mut().for_each(Question::ask);
        let until = monotonic_now() + ANSWER_TIME;
        loop {
            let left = until - monotonic_now();
            let links = questions.iter().filter_map(|one| one.link.as_ref());
            let descriptors: Vec<_> = links.map(Link::descriptor).collect();
            if descriptors.is_empty() || left.is_zero() {
                break;
            }
            let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let polled = descriptors.iter().map(|one| PollFd::new(one, PollFlags::IN));
            // A signal is as if something had come.
            let _ = poll(&mut polled.collect::<Vec<_>>(), Some(&left));
            questions.iter_mut().for_each(|one| one.hear(own));
        }
    }
    questions.into_iter().map(|one| one.answer).collect()
}

/// A question for the holder of an address.
struct Question {
    address: Ipv4Addr,
    /// `None` once the answer is known.
    link: Option<Link>,
    answer: Result<Option<Holder>, String>,
}

impl Question {
    fn open(interface: &str, address: Ipv4Addr) -> Self {
        let mut this = Self { address, link: None, answer: Ok(None) };
        match Link::builder(interface).ether_type(EtherType::ARP).open() {
            Ok(link) => this.link = Some(link),
            Err(error) => this.answer = Err(error.to_string()),
        }
        this
    }

    fn settle(&mut self, answer: Result<Option<Holder>, String>) {
        (self.link, self.answer) = (None, answer);
    }

    fn ask(&mut self) {
        let Some(link) = &mut self.link else { return };
        let probe = probe(link.address(), self.address);
        let sent = link.send(MacAddress::BROADCAST, &[&probe]).and_then(|()| link.flush());
        if let Err(error) = sent {
            self.settle(Err(error.to_string()));
        }
    }

    /// Reads what has arrived.
    fn hear(&mut self, own: &[MacAddress]) {
        let (address, Some(link)) = (self.address, &mut self.link) else { return };
        let by_itself = link.address();
        let (mut has, mut wants) = (None, None);
        let received = link.recv_each(PACKETS_MAX, |frame| {
            let mut bytes = vec![0; frame.len()];
            frame.read(0, &mut bytes);
            let is_other = |mac: &MacAddress| *mac != by_itself && !own.contains(mac);
            match holder(&bytes, address, by_itself) {
                Some(Holder::Has(mac)) if is_other(&mac) => has = Some(Holder::Has(mac)),
                Some(found @ (Holder::GoesFirst(mac) | Holder::GoesSecond(mac)))
                    if is_other(&mac) =>
                {
                    wants = Some(found);
                }
                _ => {}
            }
        });
        match received {
            Err(error) => self.settle(Err(error.to_string())),
            Ok(_) if has.is_some() => self.settle(Ok(has)),
            // One that has it may still answer, and one that goes first decides.
            Ok(_) if !matches!(self.answer, Ok(Some(Holder::GoesFirst(_)))) && wants.is_some() => {
                self.answer = Ok(wants);
            }
            Ok(_) => {}
        }
    }
}

/// The last other host from which a pipeline has heard that it has the address (RFC 5227, section 2.4). Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Rival(Arc<AtomicU64>);

impl Rival {
    /// Takes note of its Ethernet address.
    pub(super) fn note(&self, mac: MacAddress) {
        let [a, b, c, d, e, f] = mac.0;
        // Never 0, which stands for no rival.
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
pub(super) fn probe(own: MacAddress, address: Ipv4Addr) -> Vec<u8> {
    request(own, Ipv4Addr::UNSPECIFIED, address)
}

/// A request for an address from itself, by which those who know it learn where it is (RFC 5227, section 2.3).
pub(super) fn announcement(own: MacAddress, address: Ipv4Addr) -> Vec<u8> {
    request(own, address, address)
}

fn request(own: MacAddress, from: Ipv4Addr, address: Ipv4Addr) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4, 0, 1], &own.0[..], &from.octets(), &[0; 6], &address.octets()].concat()
}

/// Returns the sender of a frame that says that it has the address (an answer, or a request), or that asks whether it is free.
fn holder(frame: &[u8], address: Ipv4Addr, own: MacAddress) -> Option<Holder> {
    let payload = frame.get(14..)?;
    let arp = Arp::parse(payload).ok()?;
    let is_probe = arp.operation == 1 && arp.sender_ip.is_unspecified() && arp.target_ip == address;
    match arp.sender {
        other if arp.sender_ip == address => Some(Holder::Has(other)),
        other if is_probe && other.0 < own.0 => Some(Holder::GoesFirst(other)),
        other if is_probe => Some(Holder::GoesSecond(other)),
        _ => None,
    }
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

    /// Goal: probes and announcements are as RFC 5227 has them, only packets from the address count as an answer, and of two that probe one goes first. Method: an answer, a probe,
    /// and packets that differ in one field.
    #[test]
    fn answers_are_told_apart() {
        let (own, other) = (MacAddress([2; 6]), MacAddress([4; 6]));
        let address = Ipv4Addr::new(10, 2, 0, 9);
        let asked = Arp::parse(&probe(own, address)).expect("it is whole");
        assert_eq!((asked.operation, asked.sender, asked.sender_ip), (1, own, [0; 4].into()));
        assert_eq!((asked.target, asked.target_ip), (MacAddress([0; 6]), address));
        let announced = Arp::parse(&announcement(own, address)).expect("it is whole");
        assert_eq!((announced.operation, announced.sender), (1, own));
        assert_eq!((announced.sender_ip, announced.target_ip), (address, address));
        let sender = |frame: &[u8]| holder(frame, address, own);
        let frame = |operation, from: [u8; 4]| {
            let mut frame = [&own.0[..], &other.0, &[8, 6]].concat();
            frame.extend(probe(other, address));
            frame[21] = operation;
            frame[28..32].copy_from_slice(&from);
            frame
        };
        for operation in [1, 2] {
            assert_eq!(sender(&frame(operation, address.octets())), Some(Holder::Has(other)));
            assert_eq!(sender(&frame(operation, [10, 2, 0, 8])), None);
        }
        assert_eq!(sender(&frame(2, address.octets())[..30]), None);
        // Probes: the higher Ethernet address gives way.
        let probed = frame(1, [0; 4]);
        assert_eq!(sender(&probed), Some(Holder::GoesSecond(other)));
        let second = holder(&probed, address, MacAddress([6; 6]));
        assert_eq!(second, Some(Holder::GoesFirst(other)));
        assert_eq!(holder(&probed, [10, 2, 0, 8].into(), own), None);
        assert_eq!(sender(&frame(2, [0; 4])), None);
    }
}
