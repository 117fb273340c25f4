//! Route: the longest prefix, the interface, the neighbour.

use super::{
    emitter::{
        CONTEXT, Emitter, FRAGMENT, KEY, LENGTH, NetworkKind, OUT, PACKET_LENGTH, PROTOCOL,
        SKB_SEGMENT_BYTES, TCP, TRANSPORT, UDP, VALUE, WHOLE, WORK,
    },
    recent::KeyWords,
};
use crate::{
    bpf::{
        Condition, Helper, Label, Operation,
        Register::{self, R0, R1, R2, R3, R4, R5, R8, R9, R10},
        Size,
    },
    nic::layout::{
        self, ADDRESS_BYTES, BUCKET_PORT_BITS, GROUP, HANDOVER_GAP_NS, HEADERLESS, IS_THERE_AT,
        NEIGHBOUR_HANDING_OVER_AT, NEIGHBOUR_USED_AT, RECENT_ADDRESS, RECENT_HOP, RECENT_MAC,
        RECENT_MTU, RECENT_PORT,
    },
    pipeline::DropReason,
    tables::{BUCKET_BITS, MULTIPLIER},
};

const DO_NOT_FRAGMENT: i32 = 0x40;

const PORT: i16 = WORK[0];
const HOP: i16 = WORK[1];
const MAC: i16 = WORK[2];
const MTU: i16 = WORK[3];

/// The destination address of a packet.
const fn destination(kind: NetworkKind) -> KeyWords {
    if matches!(kind, NetworkKind::V4) { (R8, 16, 1) } else { (R8, 24, 4) }
}

impl Emitter<'_> {
    pub(super) fn route(&mut self, kind: NetworkKind) {
        let Some(version) = kind.version() else { return self.drop_now(DropReason::NotIp) };
        let no_route = self.drop_label(DropReason::NoRoute);
        let no_neighbour = self.drop_label(DropReason::NoNeighbour);
        let [single, sent, noted, miss] = [(); 4].map(|()| self.a.label());
        if self.layout.has_recent {
            let entries = (self.layout.recent[version], layout::ROUTES);
            self.recall(entries, destination(kind), RECENT_ADDRESS, miss);
            self.a.load(Size::Word, R1, R0, RECENT_PORT).load(Size::Word, R2, R0, RECENT_MTU);
            self.keep(PORT, R1);
            self.keep(MTU, R2);
            self.a.load(Size::Double, R1, R0, RECENT_MAC).add(R0, i32::from(RECENT_HOP));
            self.keep(MAC, R1);
            self.a.jump(noted).bind(miss);
        }
        let bits = i32::try_from(ADDRESS_BYTES[version] * 8).unwrap_or(0);
        self.a.store(Size::Word, R10, KEY, bits);
        self.put_destination(kind, KEY + 4);
        self.look_up(self.layout.routes[version]);
        self.a.branch(Condition::Equal, R0, 0, no_route);
        self.a.load(Size::Word, R1, R0, 0).load(Size::Word, R2, R0, 4);
        self.a.branch(Condition::NotEqual, R1, i32::try_from(GROUP).unwrap_or(0), single);
        // All of it twice, so that single hops pay nothing for counting.
        self.choose_hop(kind, no_route);
        let hop = self.a.label();
        self.find_hop((kind, version), hop, no_route, no_neighbour);
        self.a.bind(hop);
        self.send_to_hop(kind);
        self.count_hop();
        self.a.jump(sent).bind(single);
        self.find_hop((kind, version), noted, no_route, no_neighbour);
        if self.layout.has_recent {
            self.note_hop(kind);
        }
        self.a.bind(noted);
        self.send_to_hop(kind);
        self.a.bind(sent);
    }

    /// R0 = the address of the Ethernet address of the next hop: the router in R2, at the port in R1. Jumps to `followed` if its packets have followed
    /// others to the host until now.
    fn find_hop(
        &mut self,
        (kind, version): (NetworkKind, usize),
        followed: Label,
        no_route: Label,
        no_neighbour: Label,
    ) {
        self.keep(PORT, R1);
        self.keep(HOP, R2);
        self.a.store(Size::Word, R10, KEY, R1);
        self.look_up(self.layout.interfaces);
        self.a.branch(Condition::Equal, R0, 0, no_route).load(Size::Word, R3, R0, IS_THERE_AT);
        self.a.branch(Condition::Equal, R3, 0, no_route);
        self.a.load(Size::Double, R1, R0, 0).load(Size::Word, R2, R0, 8);
        self.keep(MAC, R1);
        self.keep(MTU, R2);
        let has_hop = self.a.label();
        if !self.config.headerless.is_empty() {
            // Its own address, of zeros, stands for a neighbour's.
            self.a.branch(Condition::Equal, R3, HEADERLESS, has_hop);
        }
        self.next_hop(kind, version, no_neighbour);
        if self.config.held_neighbours {
            self.follow_to_host(followed);
        }
        self.a.bind(has_hop);
    }

    /// Notes for the next packet what its destination has led to. R0 stays.
    fn note_hop(&mut self, kind: NetworkKind) {
        self.note(destination(kind), RECENT_ADDRESS);
        for (slot, at) in [(PORT, RECENT_PORT), (MTU, RECENT_MTU)] {
            self.get(R1, slot);
            self.a.store(Size::Word, R2, at, R1);
        }
        self.copy(Size::Double, (R0, 0), (R2, RECENT_HOP));
        self.copy(Size::Double, (R10, MAC), (R2, RECENT_MAC));
    }

    /// Sends the packet to the next hop at R0.
    fn send_to_hop(&mut self, kind: NetworkKind) {
        self.get(R1, PACKET_LENGTH);
        self.get(R2, MTU);
        let too_long = self.drop_label(DropReason::TooLong);
        let fits = self.a.label();
        self.a.branch(Condition::AtMost, R1, R2, fits);
        if self.is_tcx() {
            self.segments_fit(fits);
        }
        if kind == NetworkKind::V4 {
            // The host makes fragments.
            let fragments = self.exception(DropReason::TooLong);
            self.a.load(Size::Byte, R1, R8, 6);
            self.a.branch(Condition::HasBits, R1, DO_NOT_FRAGMENT, too_long).jump(fragments);
        } else {
            self.a.jump(too_long);
        }
        self.a.bind(fits);
        for ((register, offset), from) in self.macs().into_iter().zip([(R0, 0), (R10, MAC)]) {
            self.copy(Size::Word, from, (register, offset));
            self.copy(Size::Half, (from.0, from.1 + 4), (register, offset + 4));
        }
        self.get(R1, PORT);
        self.keep(OUT, R1);
    }

    /// Counts the packet for its hop.
    fn count_hop(&mut self) {
        let [by_router, keyed, end] = [(); 3].map(|()| self.a.label());
        self.get(R1, HOP);
        self.a.branch(Condition::NotEqual, R1, 0, by_router);
        self.get(R1, PORT);
        let before_routers = i32::from(self.layout.sizes.ports) - 1;
        self.a.jump(keyed).bind(by_router).add(R1, before_routers).bind(keyed);
        self.a.store(Size::Word, R10, KEY, R1);
        self.look_up(self.layout.hop_traffic);
        self.a.branch(Condition::Equal, R0, 0, end);
        self.get(R2, LENGTH);
        self.a.load(Size::Double, R1, R0, 0).add(R1, 1).store(Size::Double, R0, 0, R1);
        self.a.load(Size::Double, R1, R0, 8).add(R1, R2).store(Size::Double, R0, 8, R1).bind(end);
    }

    /// R1 = the port, R2 = the router of the packet's flow in the group R2.
    fn choose_hop(&mut self, kind: NetworkKind, no_route: Label) {
        self.a.store(Size::Word, R10, KEY, R2);
        self.look_up(self.layout.groups);
        self.a.branch(Condition::Equal, R0, 0, no_route);
        self.flow_hash(kind);
        let bits = i32::try_from(u64::BITS - BUCKET_BITS).unwrap_or(0);
        self.a.compute(Operation::ShiftRight, R1, bits).compute(Operation::ShiftLeft, R1, 2);
        self.a.add(R0, R1).load(Size::Word, R1, R0, 0).set(R2, R1);
        let bits = i32::try_from(BUCKET_PORT_BITS).unwrap_or(0);
        self.a.compute(Operation::ShiftRight, R2, bits).compute(
            Operation::And,
            R1,
            (1 << bits) - 1,
        );
    }

    /// R1 = the hash of the packet's flow, as `tables::FlowHash` has it. R0 stays.
    fn flow_hash(&mut self, kind: NetworkKind) {
        let [is_flow, hashed, ports, end] = [(); 4].map(|()| self.a.label());
        self.a.constant(R4, MULTIPLIER);
        self.get(R5, TRANSPORT);
        self.get(R2, FRAGMENT);
        self.a.branch(Condition::NotEqual, R2, WHOLE, hashed);
        self.a.branch(Condition::Equal, R5, TCP, is_flow);
        self.a.branch(Condition::Equal, R5, UDP, is_flow);
        // Without ports.
        self.a.bind(hashed).set(R5, 0).set(R1, 0);
        let addresses = self.a.label();
        self.a.jump(addresses).bind(is_flow);
        self.get(R1, PROTOCOL);
        self.a.bind(addresses);
        let (from, bytes): (i16, i16) = if kind == NetworkKind::V4 { (12, 8) } else { (8, 32) };
        for at in (from..from + bytes).step_by(4) {
            self.mix((R8, at));
        }
        // The kernel's check knows the bounds of the header by its kind.
        for transport in [TCP, UDP] {
            self.a.branch(Condition::Equal, R5, transport, ports);
        }
        self.a.jump(end).bind(ports);
        self.mix((R9, 0));
        self.a.bind(end).compute(Operation::Multiply, R1, R4);
    }

    /// Mixes a word into the hash in R1.
    fn mix(&mut self, (register, offset): (Register, i16)) {
        self.a.load(Size::Word, R2, register, offset).compute(Operation::Xor, R1, R2);
        self.a.compute(Operation::Multiply, R1, R4).set(R2, R1);
        self.a.compute(Operation::ShiftRight, R2, 32).compute(Operation::Xor, R1, R2);
    }

    /// A packet of several segments is cut behind the program, by the outgoing interface or before it: branches if each
    /// segment has room in R2 bytes. R0 stays.
    fn segments_fit(&mut self, fits: Label) {
        let exception = self.exception(DropReason::TooLong);
        let [no_tcp, add, single] = [(); 3].map(|()| self.a.label());
        self.get(R3, CONTEXT);
        self.a.load(Size::Word, R3, R3, SKB_SEGMENT_BYTES).branch(Condition::Equal, R3, 0, single);
        self.get(R4, TRANSPORT);
        self.a.branch(Condition::NotEqual, R4, TCP, no_tcp).load(Size::Byte, R1, R9, 12);
        self.a.compute(Operation::ShiftRight, R1, 4).compute(Operation::ShiftLeft, R1, 2).jump(add);
        self.a.bind(no_tcp).branch(Condition::NotEqual, R4, UDP, exception).set(R1, 8).bind(add);
        self.a.add(R3, R1).set(R1, R9).compute(Operation::Subtract, R1, R8).add(R3, R1);
        self.a.branch(Condition::AtMost, R3, R2, fits).bind(single);
    }

    /// Copies the destination address to a place on the stack.
    fn put_destination(&mut self, kind: NetworkKind, to: i16) {
        let (register, from, words) = destination(kind);
        self.copy_words(words, (register, from), (R10, to));
    }

    /// R0 = the address of the next hop's Ethernet address.
    fn next_hop(&mut self, kind: NetworkKind, version: usize, no_neighbour: Label) {
        let [on_link, found] = [(); 2].map(|()| self.a.label());
        self.get(R3, HOP);
        self.a.branch(Condition::Equal, R3, 0, on_link);
        self.a.add(R3, -1).store(Size::Word, R10, KEY, R3);
        self.look_up(self.layout.hops);
        self.a.branch(Condition::Equal, R0, 0, no_neighbour);
        self.a.load(Size::Word, R1, R0, IS_THERE_AT);
        self.a.branch(Condition::Equal, R1, 0, no_neighbour).jump(found).bind(on_link);
        self.put_destination(kind, KEY);
        self.get(R1, PORT);
        let bytes = i16::try_from(ADDRESS_BYTES[version]).unwrap_or(0);
        self.a.store(Size::Word, R10, KEY + bytes, R1);
        self.look_up(self.layout.neighbours[version]);
        self.a.branch(Condition::Equal, R0, 0, no_neighbour).bind(found);
    }

    /// While the host may still have packets for the neighbour at R0, which this one would overtake, it follows them; jumps to `handed_over` if it
    /// need not. (Of a new TCP connection the host has one, for whose answer the next one waits.) R0 stays.
    fn follow_to_host(&mut self, handed_over: Label) {
        let exception = self.exception(DropReason::NoNeighbour);
        let no_others = self.a.label();
        self.a.load(Size::Word, R3, R0, NEIGHBOUR_HANDING_OVER_AT);
        self.a.branch(Condition::Equal, R3, 0, no_others);
        self.get(R1, TRANSPORT);
        self.a.branch(Condition::Equal, R1, TCP, handed_over);
        self.keep(VALUE, R0);
        self.a.call(Helper::MonotonicTime).set(R1, R0);
        self.get(R0, VALUE);
        // Another processor may have ended it.
        self.a.load(Size::Word, R3, R0, NEIGHBOUR_HANDING_OVER_AT);
        self.a.branch(Condition::Equal, R3, 0, handed_over).add(R3, -1);
        self.a.store(Size::Word, R0, NEIGHBOUR_HANDING_OVER_AT, R3);
        self.a.load(Size::Double, R2, R0, NEIGHBOUR_USED_AT);
        self.a.store(Size::Double, R0, NEIGHBOUR_USED_AT, R1);
        self.a.branch(Condition::Equal, R3, 0, handed_over);
        // It is the first.
        self.a.branch(Condition::Equal, R2, 0, exception).add(R2, HANDOVER_GAP_NS);
        self.a.branch(Condition::AtMost, R1, R2, exception);
        self.a.store(Size::Word, R0, NEIGHBOUR_HANDING_OVER_AT, 0).jump(handed_over);
        self.a.bind(no_others);
    }
}
