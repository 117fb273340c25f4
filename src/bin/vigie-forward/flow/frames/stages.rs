//! Stages of this command, in addition to the library's.

use std::{net::Ipv4Addr, sync::Arc};

use vigie::{
    Instant,
    forward::{
        model::{Sees, StageModel, Writes},
        packet::{ARP_BYTES, Arp, Ethernet, Packet, Port, Transport},
        pipeline::{DropReason, Offload, Stage, Verdict},
        stages::{Nat as NatStage, RouteStage},
        tables::{Fib, FibReader, FlowHash, NatFlow, NatTuple},
    },
    via::link::{EtherType, MacAddress},
};

use super::{
    probe::Rival, program::FlowTaker, questions::Questions, untranslated::UntranslatedCounter,
};

/// The port of packets for this host. It has no interface: a program passes such packets up to the kernel; the host's
/// own pipeline drops them, since the kernel has its own copy.
pub(super) const KERNEL: Port = Port(u16::MAX);

/// The reason for packets that a pipeline leaves to the kernel; nothing else uses it.
pub(super) const LEFT_TO_KERNEL: DropReason = DropReason::User;

/// Leaves to the kernel the frames that are not to be routed: those not addressed to the interface, with VLAN tags, or
/// of other protocols than IP. Answers ARP for an address that no host has. The rest passes through the stages behind
/// it, which so only see IP.
pub(super) struct Guard {
    reader: FibReader,
    answers_for: Option<AnsweredAddress>,
    behind: Vec<Box<dyn Stage>>,
}

/// An address that no host has.
pub(super) struct AnsweredAddress {
    pub(super) address: Ipv4Addr,
    /// The port on whose link it is.
    pub(super) port: Port,
    /// A host that has it nevertheless.
    pub(super) rival: Rival,
}

impl Guard {
    pub(super) fn new(
        fib: &Fib,
        answers_for: Option<AnsweredAddress>,
        behind: Vec<Box<dyn Stage>>,
    ) -> Self {
        Self { reader: fib.reader(), answers_for, behind }
    }

    /// Passes a packet through the stages behind, from one on; none of them makes copies.
    fn go_on(&mut self, from: usize, packet: &mut Packet, now: Instant) -> Verdict {
        let mut last = Verdict::Pass;
        for at in from..self.behind.len() {
            let Some(stage) = self.behind.get_mut(at) else { break };
            match stage.process(packet, now) {
                Verdict::Pass => {}
                Verdict::Drop(reason) => return Verdict::Drop(self.unless_kernels(packet, reason)),
                Verdict::Hold => return Verdict::Hold,
                verdict => last = verdict,
            }
        }
        last
    }

    /// Returns the reason for a drop, unless the packet is the kernel's: for this host, and impossible or unknown only to a router, as
    /// are those that find link-local neighbours, and those to a public address that this host has itself.
    fn unless_kernels(&mut self, packet: &mut Packet, reason: DropReason) -> DropReason {
        let may_be = matches!(
            reason,
            DropReason::Martian
                | DropReason::NatUnknown
                | DropReason::NatProtocol
                | DropReason::NatFragment
        );
        if may_be && self.is_kernels(packet) { LEFT_TO_KERNEL } else { reason }
    }

    /// Returns whether a packet is for this host.
    #[cold]
    fn is_kernels(&mut self, packet: &mut Packet) -> bool {
        let headers = packet.headers().ok();
        let addresses = headers.and_then(|headers| headers.addresses(packet.bytes()));
        let route = addresses
            .and_then(|(_, destination)| self.reader.get().route(destination, FlowHash::default));
        route.is_some_and(|route| route.port == KERNEL)
    }

    /// Answers an ARP request for our address.
    fn answer(&mut self, packet: &mut Packet, payload_at: usize) -> Verdict {
        let left = Verdict::Drop(LEFT_TO_KERNEL);
        let Some(AnsweredAddress { address, port, rival }) = &self.answers_for else { return left };
        let (address, port) = (*address, *port);
        let (Some(own), Some(payload)) =
            (self.reader.get().interface(port), packet.bytes().get(payload_at..))
        else {
            return left;
        };
        let Ok(question) = Arp::parse(payload) else { return left };
        if packet.ingress() != port {
            return left;
        }
        if question.sender_ip == address {
            if question.sender != own.address {
                rival.note(question.sender);
            }
            return left;
        }
        if question.operation != 1 || question.target_ip != address {
            return left;
        }
        packet.resize(payload_at + ARP_BYTES);
        packet.set_destination_mac(question.sender);
        packet.set_source_mac(own.address);
        if let Some(answer) = packet.bytes_mut().get_mut(payload_at..) {
            write_answer(answer, &question, own.address);
        }
        Verdict::SetEgress(port)
    }
}

/// Writes operation, sender and target after the constant fields.
fn write_answer(answer: &mut [u8], question: &Arp, own: MacAddress) {
    let fields: [&[u8]; 5] = [
        &2_u16.to_be_bytes(),
        &own.0,
        &question.target_ip.octets(),
        &question.sender.0,
        &question.sender_ip.octets(),
    ];
    for (place, byte) in answer.iter_mut().skip(6).zip(fields.concat()) {
        *place = byte;
    }
}

impl Stage for Guard {
    fn model(&self) -> StageModel {
        StageModel::new("guard").sees(Sees::Header).writes(Writes::Yes)
    }

    fn process(&mut self, packet: &mut Packet, now: Instant) -> Verdict {
        let Ok(frame) = Ethernet::parse(packet.bytes()) else {
            return Verdict::Drop(DropReason::Malformed);
        };
        if frame.tags.iter().any(Option::is_some) {
            return Verdict::Drop(LEFT_TO_KERNEL);
        }
        match frame.ether_type {
            EtherType(0x0806) => self.answer(packet, frame.payload_at),
            EtherType(0x0800 | 0x86dd) => {
                let own = self.reader.get().interface(packet.ingress());
                if own.is_some_and(|own| own.address == frame.destination) {
                    self.go_on(0, packet, now)
                } else {
                    Verdict::Drop(LEFT_TO_KERNEL)
                }
            }
            _ => Verdict::Drop(LEFT_TO_KERNEL),
        }
    }

    fn release(&mut self, now: Instant) -> Option<(Packet, Verdict)> {
        let mut behind = self.behind.iter_mut().enumerate();
        let (at, (mut packet, verdict)) =
            behind.find_map(|(at, stage)| Some((at, stage.release(now)?)))?;
        let verdict = match verdict {
            Verdict::Pass => self.go_on(at + 1, &mut packet, now),
            Verdict::Drop(reason) => Verdict::Drop(self.unless_kernels(&mut packet, reason)),
            verdict => verdict,
        };
        Some((packet, verdict))
    }

    fn next_release(&self, now: Instant) -> Option<Instant> {
        self.behind.iter().filter_map(|stage| stage.next_release(now)).min()
    }

    fn held_packets(&self) -> usize {
        self.behind.iter().map(|stage| stage.held_packets()).sum()
    }

    fn offload(&self) -> Offload<'_> {
        Offload::host_only("the kernel gets those frames from a program")
    }
}

/// Lowers the longest segment that TCP connections announce to what the smallest MTU of the interfaces takes.
pub(super) struct SegmentLimit {
    reader: FibReader,
    last: Port,
}

/// The bytes of an MTU that a segment does not have: the headers of IPv4 and TCP.
const HEADERS_BYTES: usize = 20 + 20;

impl SegmentLimit {
    /// Makes the stage for the interfaces from 0 to the last one.
    pub(super) fn new(fib: &Fib, last: Port) -> Self {
        Self { reader: fib.reader(), last }
    }
}

impl Stage for SegmentLimit {
    fn model(&self) -> StageModel {
        StageModel::new("segment limit").sees(Sees::Header).writes(Writes::Yes)
    }

    fn process(&mut self, packet: &mut Packet, _: Instant) -> Verdict {
        let is_syn = packet.headers().is_ok_and(|headers| {
            headers.transport == Transport::Tcp
                && packet.bytes().get(headers.transport_at + 13).is_some_and(|flags| flags & 2 != 0)
        });
        if is_syn {
            let tables = self.reader.get();
            let interfaces = (0..=self.last.0).filter_map(|port| tables.interface(Port(port)));
            let limit = interfaces.map(|one| one.mtu.saturating_sub(HEADERS_BYTES)).min();
            let limit = limit.and_then(|bytes| u16::try_from(bytes).ok()).unwrap_or(u16::MAX);
            if packet.clamp_segment_bytes(limit).is_err() {
                return Verdict::Drop(DropReason::Malformed);
            }
        }
        Verdict::Pass
    }

    fn offload(&self) -> Offload<'_> {
        Offload::host_only("programs pass SYNs up to the host")
    }
}

/// Routes, and asks for neighbours that are unknown.
#[derive(Debug)]
pub(super) struct Router {
    route: RouteStage,
    questions: Arc<Questions>,
    /// Counts what translations should perhaps have changed.
    untranslated: Option<UntranslatedCounter>,
}

impl Router {
    pub(super) fn new(
        fib: Fib,
        questions: Arc<Questions>,
        untranslated: Option<UntranslatedCounter>,
    ) -> Self {
        Self { route: RouteStage::new(fib).hold_unresolved(), questions, untranslated }
    }

    /// Takes note of the verdict on a packet.
    fn note(&self, packet: &mut Packet, verdict: Verdict) -> Verdict {
        if let Some(untranslated) = &self.untranslated
            && let Verdict::SetEgress(egress) | Verdict::Fragment(egress, _) = verdict
        {
            untranslated.note(packet, egress);
        }
        verdict
    }

    /// Asks for the neighbour for which the first packet has just been held.
    fn ask(&mut self) {
        if let Some((port, address)) = self.route.wanted() {
            self.questions.ask(port, address);
        }
    }

    /// Packets for this host have a route without an interface.
    #[cold]
    fn explain(&self, packet: &mut Packet) -> DropReason {
        let headers = packet.headers().ok();
        let addresses = headers.and_then(|headers| headers.addresses(packet.bytes()));
        let fib = self.route.fib().snapshot();
        let route =
            addresses.and_then(|(_, destination)| fib.route(destination, FlowHash::default));
        if route.is_some_and(|route| route.port == KERNEL) {
            LEFT_TO_KERNEL
        } else {
            DropReason::NoRoute
        }
    }
}

impl Stage for Router {
    fn model(&self) -> StageModel {
        self.route.model()
    }

    fn process(&mut self, packet: &mut Packet, now: Instant) -> Verdict {
        match self.route.process(packet, now) {
            Verdict::Drop(DropReason::NoRoute) => Verdict::Drop(self.explain(packet)),
            Verdict::Hold => {
                self.ask();
                Verdict::Hold
            }
            verdict => self.note(packet, verdict),
        }
    }

    fn release(&mut self, now: Instant) -> Option<(Packet, Verdict)> {
        let released = self.route.release(now);
        self.ask();
        let (mut packet, verdict) = released?;
        let verdict = self.note(&mut packet, verdict);
        Some((packet, verdict))
    }

    fn next_release(&self, now: Instant) -> Option<Instant> {
        self.route.next_release(now)
    }

    fn held_packets(&self) -> usize {
        self.route.held_packets()
    }

    fn offload(&self) -> Offload<'_> {
        self.route.offload()
    }
}

/// Translates, and hands flows to the program before their second packet leaves: the flow's later packets all go one way,
/// and flows of a single packet cost the program nothing.
#[derive(Debug)]
pub(super) struct Translator {
    nat: NatStage,
    taker: FlowTaker,
}

impl Translator {
    pub(super) const fn new(nat: NatStage, taker: FlowTaker) -> Self {
        Self { nat, taker }
    }

    /// Returns the flow to which a packet belongs, if it has begun.
    fn flow(&self, packet: &mut Packet) -> Option<NatFlow> {
        let headers = packet.headers().ok()?;
        let tuple = NatTuple::of(&headers, packet.bytes())?;
        Some(NatFlow::new(tuple, self.nat.table().peek(&tuple)?))
    }
}

impl Stage for Translator {
    fn model(&self) -> StageModel {
        self.nat.model()
    }

    fn process(&mut self, packet: &mut Packet, now: Instant) -> Verdict {
        let flow = self.flow(packet);
        let verdict = self.nat.process(packet, now);
        if let (Some(flow), Verdict::Pass) = (flow, verdict) {
            self.taker.take(&flow, now);
        }
        verdict
    }

    fn release(&mut self, now: Instant) -> Option<(Packet, Verdict)> {
        self.nat.release(now)
    }

    fn next_release(&self, now: Instant) -> Option<Instant> {
        self.nat.next_release(now)
    }

    fn held_packets(&self) -> usize {
        self.nat.held_packets()
    }

    fn offload(&self) -> Offload<'_> {
        self.nat.offload()
    }
}

#[cfg(test)]
mod tests {
    use vigie::{
        detect::clock::monotonic_now,
        forward::{
            stages::Ttl,
            tables::{Interface, Route},
        },
    };

    use super::*;

    const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

    fn fib() -> Fib {
        let fib = Fib::default();
        fib.set_interface(Port(0), Some(Interface::new(OWN, 1500)));
        fib.set_interface(Port(1), Some(Interface::new(OWN, 1500)));
        fib.set_route("10.1.0.0/16".parse().unwrap(), Some(Route::on_link(Port(1))));
        fib.set_route("10.1.0.1/32".parse().unwrap(), Some(Route::on_link(KERNEL)));
        fib
    }

    fn frame(to: MacAddress, kind: u16, payload: &[u8]) -> Packet {
        let frame = [&to.0[..], &OTHER.0, &kind.to_be_bytes(), payload].concat();
        Packet::new(Port(0), &frame)
    }

    /// An empty UDP packet.
    fn ip(to: [u8; 4]) -> Packet {
        let mut header = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2];
        header.extend(to);
        header.extend([0, 7, 0, 7, 0, 8, 0, 0]);
        let mut packet = frame(OWN, 0x0800, &header);
        packet.fill_checksums().unwrap();
        packet
    }

    /// Goal: only IP to the interface itself, without tags, is routed. Method: one frame of each kind.
    #[test]
    fn the_guard_leaves_what_is_not_ours() {
        let (mut guard, now) = (Guard::new(&fib(), None, Vec::new()), monotonic_now());
        let mut verdict = |mut packet: Packet| guard.process(&mut packet, now);
        let left = Verdict::Drop(LEFT_TO_KERNEL);
        assert_eq!(verdict(ip([10, 1, 0, 5])), Verdict::Pass);
        assert_eq!(verdict(frame(OTHER, 0x0800, &[0; 20])), left);
        assert_eq!(verdict(frame(MacAddress::BROADCAST, 0x0800, &[0; 20])), left);
        assert_eq!(verdict(frame(OWN, 0x0806, &[0; 28])), left);
        assert_eq!(verdict(frame(OWN, 0x8100, &[0, 5, 8, 0, 0, 0])), left);
        assert_eq!(verdict(frame(OWN, 0x88b5, &[0; 4])), left);
        assert_eq!(verdict(Packet::new(Port(0), &[1, 2, 3])), Verdict::Drop(DropReason::Malformed));
    }

    /// Goal: ARP requests for the public address are answered as the standard says, and no others. Method: a request,
    /// and variants that differ in one field.
    #[test]
    fn the_guard_answers_for_its_address() {
        let address = Ipv4Addr::new(192, 0, 2, 1);
        let now = monotonic_now();
        let rival = Rival::default();
        let answers_for = AnsweredAddress { address, port: Port(0), rival: rival.clone() };
        let mut guard = Guard::new(&fib(), Some(answers_for), vec![Box::new(Ttl::new())]);
        let question = |operation: u8, target: [u8; 4]| {
            let mut payload = vec![0, 1, 8, 0, 6, 4, 0, operation];
            payload.extend(OTHER.0);
            payload.extend([192, 0, 2, 7]);
            payload.extend([0; 6]);
            payload.extend(target);
            // Frames are padded to Ethernet's minimum.
            payload.extend([0; 18]);
            frame(MacAddress::BROADCAST, 0x0806, &payload)
        };
        let mut asked = question(1, address.octets());
        assert_eq!(guard.process(&mut asked, now), Verdict::SetEgress(Port(0)));
        let header = Ethernet::parse(asked.bytes()).unwrap();
        assert_eq!((header.destination, header.source), (OTHER, OWN));
        let answer = Arp::parse(&asked.bytes()[header.payload_at..]).unwrap();
        assert_eq!((answer.operation, answer.sender, answer.sender_ip), (2, OWN, address));
        assert_eq!((answer.target, answer.target_ip), (OTHER, [192, 0, 2, 7].into()));
        for mut other in [question(2, address.octets()), question(1, [192, 0, 2, 2])] {
            assert_eq!(guard.process(&mut other, now), Verdict::Drop(LEFT_TO_KERNEL));
        }
        assert_eq!(rival.take(), None);
        // One who says that it has the address.
        for operation in [1, 2] {
            let mut announced = question(operation, address.octets());
            announced.bytes_mut()[28..32].copy_from_slice(&address.octets());
            assert_eq!(guard.process(&mut announced, now), Verdict::Drop(LEFT_TO_KERNEL));
            assert_eq!(rival.take(), Some(OTHER));
        }
    }

    /// Goal: packets to an unknown neighbour wait for it, and pass the stages behind once; packets for this host are not
    /// counted as lost. Method: a destination of each kind, within the guard.
    #[test]
    fn the_router_waits_for_neighbours() {
        let (fib, now) = (fib(), monotonic_now());
        let router = Router::new(fib.clone(), Arc::new(Questions::new()), None);
        let mut guard = Guard::new(&fib, None, vec![Box::new(Ttl::new()), Box::new(router)]);
        let mut verdict = |to| guard.process(&mut ip(to), now);
        assert_eq!(verdict([10, 1, 0, 5]), Verdict::Hold);
        assert_eq!(verdict([10, 1, 0, 1]), Verdict::Drop(LEFT_TO_KERNEL));
        assert_eq!(verdict([10, 9, 0, 1]), Verdict::Drop(DropReason::NoRoute));
        assert!(guard.release(now).is_none());
        fib.set_neighbour(Port(1), [10, 1, 0, 5].into(), Some(OTHER));
        let (packet, verdict) = guard.release(now).expect("it is known");
        assert_eq!((verdict, packet.bytes()[22]), (Verdict::SetEgress(Port(1)), 63));
        assert_eq!(guard.next_release(now), None);
    }
}
