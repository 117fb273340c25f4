//! Reading headers, with the same errors as `packet::Headers`.

use super::emitter::{
    CONTEXT, END, ETHER_TYPE, Emitter, FIRST, FRAGMENT, ICMP, LATER, LENGTH, NetworkKind, OTHER,
    PACKET_LENGTH, PROTOCOL, TCP, TRANSPORT, TRANSPORT_LENGTH, UDP, WHOLE,
};
use crate::{
    bpf::{
        Condition, Label, Operation,
        Register::{R0, R1, R2, R3, R4, R5, R7, R8, R9},
        Size,
    },
    packet::{self, TAGS_MAX},
    pipeline::DropReason,
};

/// A number as it appears in a frame, read in native order.
pub(super) fn half(number: u16) -> i32 {
    i32::from(number.to_be())
}

const TAGS: [u16; 2] = [0x8100, 0x88a8];
pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
/// The protocol numbers of IPv6 extension headers below 64, as bits; and the others.
const EXTENSIONS_LOW: u64 = 1 | 1 << 43 | 1 << 44 | 1 << 51 | 1 << 60;
const EXTENSIONS_HIGH: [i32; 3] = [135, 139, 140];

impl Emitter<'_> {
    /// Reads the tags, and branches to a separate part for each kind of packet.
    pub(super) fn headers(&mut self) -> [(NetworkKind, Label); 4] {
        let kinds = [NetworkKind::V4, NetworkKind::V6, NetworkKind::Arp, NetworkKind::Other];
        let labels = kinds.map(|kind| (kind, self.a.label()));
        let [(_, v4), (_, v6), (_, arp), (_, other)] = labels;
        let (malformed, end) = (self.drop_label(DropReason::Malformed), self.a.label());
        self.a.set(R8, R7).add(R8, 14);
        if self.is_headerless() {
            self.get(R1, CONTEXT);
        }
        self.ether_type(R0, R1);
        let with_tag = if self.config.own_frames {
            self.up
        } else {
            self.skip_tags(malformed, end);
            malformed
        };
        for tag in TAGS {
            self.a.branch(Condition::Equal, R0, half(tag), with_tag);
        }
        self.a.bind(end);
        self.keep(ETHER_TYPE, R0);
        self.a.branch(Condition::Equal, R0, half(IPV4), v4);
        self.a.branch(Condition::Equal, R0, half(IPV6), v6);
        self.a.branch(Condition::Equal, R0, half(ARP), arp).jump(other);
        labels
    }

    /// Moves R8 behind as many tags as a packet may have. R0 = the EtherType.
    fn skip_tags(&mut self, malformed: Label, end: Label) {
        for _ in 0..TAGS_MAX {
            let tagged = self.a.label();
            for tag in TAGS {
                self.a.branch(Condition::Equal, R0, half(tag), tagged);
            }
            self.a.jump(end).bind(tagged);
            self.get(R2, END);
            self.a.add(R8, 4).branch(Condition::Greater, R8, R2, malformed);
            self.a.load(Size::Half, R0, R8, -2);
        }
    }

    /// Reads the headers of one kind.
    pub(super) fn read(&mut self, kind: NetworkKind) {
        match kind {
            NetworkKind::V4 => self.read_v4(),
            NetworkKind::V6 => self.read_v6(),
            NetworkKind::Arp => self.read_arp(),
            NetworkKind::Unread | NetworkKind::Other => {}
        }
    }

    /// Fails if fewer bytes follow R8.
    fn needs(&mut self, bytes: i32, malformed: Label) {
        self.get(R2, END);
        self.a.set(R1, R8).add(R1, bytes).branch(Condition::Greater, R1, R2, malformed);
    }

    /// Fails if fewer than R1 bytes of the frame follow R3, which is clobbered. R2 = the end of what can be read, which at
    /// tcx is not all of the frame.
    fn is_whole(&mut self, malformed: Label) {
        if self.is_tcx() {
            self.a.compute(Operation::Subtract, R3, R7).add(R3, R1);
            self.get(R4, LENGTH);
            self.a.branch(Condition::Greater, R3, R4, malformed);
        } else {
            // Verifiers before Linux 6.18 forget the bounds of a number whose bytes are swapped.
            self.a.compute(Operation::And, R1, 0xffff);
            self.a.add(R3, R1).branch(Condition::Greater, R3, R2, malformed);
        }
    }

    fn read_arp(&mut self) {
        let malformed = self.drop_label(DropReason::Malformed);
        self.needs(28, malformed);
        for (offset, wanted) in [(0, 1), (2, IPV4), (4, 0x0604)] {
            self.a.load(Size::Half, R0, R8, offset);
            self.a.branch(Condition::NotEqual, R0, half(wanted), malformed);
        }
    }

    fn read_v4(&mut self) {
        let malformed = self.drop_label(DropReason::Malformed);
        self.needs(20, malformed);
        // R0 = bytes of the header, R1 = bytes of the packet, R2 = the frame's end.
        self.a.load(Size::Byte, R0, R8, 0).set(R1, R0).compute(Operation::ShiftRight, R1, 4);
        self.a.branch(Condition::NotEqual, R1, 4, malformed);
        self.a.compute(Operation::And, R0, 15).compute(Operation::ShiftLeft, R0, 2);
        self.a.branch(Condition::Less, R0, 20, malformed);
        self.a.load(Size::Half, R1, R8, 2).network_order(Size::Half, R1);
        self.a.branch(Condition::Less, R1, R0, malformed);
        self.a.set(R3, R8);
        self.is_whole(malformed);
        self.keep(PACKET_LENGTH, R1);
        self.read_fragment(malformed);
        self.a.set(R9, R8).add(R9, R0).compute(Operation::Subtract, R1, R0);
        self.keep(TRANSPORT_LENGTH, R1);
        self.a.load(Size::Byte, R0, R8, 9);
        self.keep(PROTOCOL, R0);
        self.keep(TRANSPORT, OTHER);
        let end = self.a.label();
        self.get(R3, FRAGMENT);
        self.a.branch(Condition::Equal, R3, LATER, end);
        self.read_transport(packet::ICMP, malformed, end);
        self.a.bind(end);
    }

    /// R4 = the kind of fragment. The packet's length stays in R1, and R0 is kept.
    fn read_fragment(&mut self, malformed: Label) {
        let [later, first, end] = [(); 3].map(|()| self.a.label());
        self.a.load(Size::Half, R4, R8, 6).network_order(Size::Half, R4).set(R5, R4);
        self.a.compute(Operation::And, R5, 0x1fff).branch(Condition::NotEqual, R5, 0, later);
        self.a.compute(Operation::And, R4, 0x2000).branch(Condition::NotEqual, R4, 0, first);
        self.keep(FRAGMENT, WHOLE);
        self.a.jump(end).bind(first);
        self.keep(FRAGMENT, FIRST);
        self.a.jump(end).bind(later);
        self.a.compute(Operation::ShiftLeft, R5, 3).add(R5, R1);
        self.a.branch(Condition::Greater, R5, 65_535, malformed);
        self.keep(FRAGMENT, LATER);
        self.a.bind(end);
    }

    fn read_v6(&mut self) {
        let malformed = self.drop_label(DropReason::Malformed);
        let (exception, end) = (self.exception(DropReason::Malformed), self.a.label());
        self.needs(40, malformed);
        self.a.load(Size::Byte, R0, R8, 0).compute(Operation::ShiftRight, R0, 4);
        self.a.branch(Condition::NotEqual, R0, 6, malformed);
        self.a.load(Size::Half, R1, R8, 4).network_order(Size::Half, R1);
        self.a.set(R9, R8).add(R9, 40);
        self.a.set(R3, R9);
        self.is_whole(malformed);
        self.keep(TRANSPORT_LENGTH, R1);
        self.a.set(R3, R1).add(R3, 40);
        self.keep(PACKET_LENGTH, R3);
        self.a.load(Size::Byte, R0, R8, 6);

        // Extension headers are left to the host: a program of bounded length could follow only some of them.
        for number in EXTENSIONS_HIGH {
            self.a.branch(Condition::Equal, R0, number, exception);
        }

        let high = self.a.label();
        self.a.branch(Condition::Greater, R0, 63, high);
        self.a.constant(R3, EXTENSIONS_LOW).compute(Operation::ShiftRight, R3, R0);
        self.a.branch(Condition::HasBits, R3, 1, exception).bind(high);
        self.keep(PROTOCOL, R0);
        self.keep(FRAGMENT, WHOLE);
        self.keep(TRANSPORT, OTHER);
        self.read_transport(packet::ICMPV6, malformed, end);
        self.a.bind(end);
    }

    /// R0 = protocol, R1 = bytes after the IP header, R9 = where they start. Ends with a jump.
    fn read_transport(&mut self, icmp: u8, malformed: Label, end: Label) {
        let [tcp, udp] = [(); 2].map(|()| self.a.label());
        self.get(R2, END);
        self.a.branch(Condition::Equal, R0, i32::from(packet::TCP), tcp);
        self.a.branch(Condition::Equal, R0, i32::from(packet::UDP), udp);
        self.a.branch(Condition::NotEqual, R0, i32::from(icmp), end);
        self.has_transport(8, malformed);
        self.keep(TRANSPORT, ICMP);
        self.a.jump(end).bind(tcp);
        self.has_transport(20, malformed);
        self.a.load(Size::Byte, R3, R9, 12).compute(Operation::ShiftRight, R3, 4);
        self.a.compute(Operation::ShiftLeft, R3, 2).branch(Condition::Less, R3, 20, malformed);
        self.a.branch(Condition::Greater, R3, R1, malformed);
        self.keep(TRANSPORT, TCP);
        self.a.jump(end).bind(udp);
        self.has_transport(8, malformed);
        self.a.load(Size::Half, R3, R9, 4).network_order(Size::Half, R3);
        self.a.branch(Condition::Less, R3, 8, malformed);
        self.keep(TRANSPORT, UDP);
        self.get(R4, FRAGMENT);
        self.a.branch(Condition::NotEqual, R4, WHOLE, end);
        self.a.branch(Condition::Greater, R3, R1, malformed).jump(end);
    }

    fn has_transport(&mut self, bytes: i32, malformed: Label) {
        self.a.branch(Condition::Less, R1, bytes, malformed);
        self.a.set(R3, R9).add(R3, bytes).branch(Condition::Greater, R3, R2, malformed);
    }
}
