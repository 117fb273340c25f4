//! Nat: complete packets of flows that the host has begun. All others are exceptions.

use super::{
    edit::NewValue,
    emitter::{
        Emitter, FRAGMENT, ICMP, KEY, NetworkKind, PROTOCOL, RECENT, TCP, TRANSPORT, UDP, VALUE,
        WHOLE,
    },
    recent::KeyWords,
};
use crate::{
    bpf::{
        Condition, Helper, Label, Operation,
        Register::{R0, R1, R2, R3, R5, R8, R9, R10},
        Size,
    },
    nic::layout::{
        self, FLOW_KEY_BYTES, HANDING_OVER_AT, HANDOVER_GAP_NS, RECENT_BECOMES, RECENT_KEY,
        RECENT_TICK, RECENT_TICKS_MAX, TCP_SEEN_AT, TCP_SEEN_FROM, USED_AT,
    },
    pipeline::DropReason,
};

/// FIN, SYN, RST: the host must see what opens and closes a connection.
const TURNING_POINTS: i32 = 1 | 2 | 4;

/// The key of the packet's flow.
const fn flow_key(version: usize) -> KeyWords {
    (R10, KEY, if version == 0 { 4 } else { 10 })
}

impl Emitter<'_> {
    pub(super) fn nat(&mut self, kind: NetworkKind) {
        let Some(version) = kind.version() else { return };
        let exception = self.exception(DropReason::NatUnknown);
        // The host keeps the state for later fragments.
        self.get(R0, FRAGMENT);
        self.a.branch(Condition::NotEqual, R0, WHOLE, exception);
        self.put_key(kind, version, exception);
        let [asked, waits, found] = [(); 3].map(|()| self.a.label());
        if self.layout.has_recent {
            self.recall_flow(version, asked, found);
        }
        self.a.bind(asked);
        self.look_up(self.layout.flows[version]);
        self.a.branch(Condition::Equal, R0, 0, exception);
        self.keep(VALUE, R0);
        self.a.load(Size::Word, R3, R0, HANDING_OVER_AT[version]);
        self.a.branch(Condition::NotEqual, R3, 0, waits);
        // Seconds count for those that are used.
        self.a.call(self.coarse_time()).set(R1, R0);
        self.get(R0, VALUE);
        self.a.store(Size::Double, R0, USED_AT[version], R1);
        let other = self.a.label();
        self.get(R2, TRANSPORT);
        self.a.branch(Condition::NotEqual, R2, TCP, other);
        self.copy(Size::Double, (R9, TCP_SEEN_FROM), (R0, TCP_SEEN_AT[version]));
        self.a.jump(found).bind(other);
        if self.layout.has_recent {
            self.note_flow(version);
        }
        self.a.jump(found).bind(waits);
        self.wait_for_host(version, exception);
        self.a.bind(found);
        self.translate(kind, version);
    }

    /// [`VALUE`] = what the packet becomes, if its flow was noted; `asked` for others, and for TCP, of which the host wants to know each segment.
    fn recall_flow(&mut self, version: usize, asked: Label, found: Label) {
        self.get(R1, TRANSPORT);
        self.a.branch(Condition::Equal, R1, TCP, asked);
        let entries = (self.layout.recent_flows[version], layout::FLOWS);
        self.recall(entries, flow_key(version), RECENT_KEY[version], asked);
        self.a.call(Helper::Ticks);
        self.get(R2, RECENT);
        self.a.load(Size::Double, R1, R2, RECENT_TICK).compute(Operation::Subtract, R0, R1);
        self.a.branch(Condition::Greater, R0, RECENT_TICKS_MAX, asked);
        self.a.add(R2, i32::from(RECENT_BECOMES));
        self.keep(VALUE, R2);
        self.a.jump(found);
    }

    /// Notes for the flow's next packet what it becomes.
    fn note_flow(&mut self, version: usize) {
        self.a.call(Helper::Ticks).set(R3, R0);
        self.note(flow_key(version), RECENT_KEY[version]);
        self.get(R0, VALUE);
        self.a.store(Size::Double, R2, RECENT_TICK, R3);
        let words = if version == 0 { 3 } else { 9 };
        self.copy_words(words, (R0, 0), (R2, RECENT_BECOMES));
    }

    /// Notes the packet's time; the address of the translation is in [`VALUE`]. While the host may have packets of the flow, which
    /// this one would overtake, it follows them.
    fn wait_for_host(&mut self, version: usize, exception: Label) {
        let taken_over = self.a.label();
        let (used, handing_over) = (USED_AT[version], HANDING_OVER_AT[version]);
        self.a.call(Helper::MonotonicTime).set(R1, R0);
        self.get(R0, VALUE);
        self.a.load(Size::Double, R2, R0, used).load(Size::Word, R3, R0, handing_over);
        // Another processor may have ended it.
        self.a.store(Size::Double, R0, used, R1).branch(Condition::Equal, R3, 0, taken_over);
        self.a.add(R2, HANDOVER_GAP_NS).add(R3, -1).store(Size::Word, R0, handing_over, R3);
        self.a.branch(Condition::Equal, R3, 0, taken_over);
        self.a.branch(Condition::AtMost, R1, R2, exception);
        self.a.store(Size::Word, R0, handing_over, 0).bind(taken_over);
    }

    /// Writes the key of the packet's flow. A packet without one is an exception: an error that quotes a packet, for
    /// instance.
    fn put_key(&mut self, kind: NetworkKind, version: usize, exception: Label) {
        let (from, words): (i16, i16) = if kind == NetworkKind::V4 { (12, 2) } else { (8, 8) };
        self.copy_words(words, (R8, from), (R10, KEY));

        let ports = KEY + words * 4;
        let [tcp, udp, asks, done] = [(); 4].map(|()| self.a.label());

        // Whether it is an echo reply.
        self.a.set(R3, 0);
        self.get(R0, TRANSPORT);
        self.a.branch(Condition::Equal, R0, TCP, tcp).branch(Condition::Equal, R0, UDP, udp);
        self.a.branch(Condition::NotEqual, R0, ICMP, exception);
        let (ask, answer) = if kind == NetworkKind::V4 { (8, 0) } else { (128, 129) };
        self.a.load(Size::Byte, R1, R9, 0).load(Size::Half, R2, R9, 4);
        self.a.branch(Condition::Equal, R1, ask, asks);
        self.a.branch(Condition::NotEqual, R1, answer, exception);
        self.a.set(R3, 1).store(Size::Half, R10, ports, 0);
        self.a.store(Size::Half, R10, ports + 2, R2).jump(done);
        self.a.bind(asks).store(Size::Half, R10, ports, R2).store(Size::Half, R10, ports + 2, 0);
        self.a.jump(done).bind(tcp).load(Size::Byte, R1, R9, 13);
        self.a.branch(Condition::HasBits, R1, TURNING_POINTS, exception).bind(udp);
        self.a.load(Size::Word, R1, R9, 0).store(Size::Word, R10, ports, R1).bind(done);
        self.get(R1, PROTOCOL);

        // A byte each and two zeros, in one piece: a part that is stored later would delay the load of the whole.
        let (first, second) = if cfg!(target_endian = "big") { (24, 16) } else { (0, 8) };
        self.a.compute(Operation::ShiftLeft, R1, first).compute(Operation::ShiftLeft, R3, second);
        self.a.compute(Operation::Or, R1, R3).store(Size::Word, R10, ports + 4, R1);
        debug_assert_eq!(u32::try_from(words * 4 + 8), Ok(FLOW_KEY_BYTES[version]));
    }

    /// Rewrites the packet by its translation; unchanged fields are left alone.
    fn translate(&mut self, kind: NetworkKind, version: usize) {
        let bytes: i16 = if version == 0 { 4 } else { 16 };
        let places: [i16; 2] = if version == 0 { [12, 16] } else { [8, 24] };
        for (at, from) in places.into_iter().zip([0, bytes]) {
            let [differs, same] = [(); 2].map(|()| self.a.label());
            self.get(R5, VALUE);
            for word in (0..bytes).step_by(4) {
                self.a.load(Size::Word, R1, R8, at + word).load(Size::Word, R2, R5, from + word);
                self.a.branch(Condition::NotEqual, R1, R2, differs);
            }
            self.a.jump(same).bind(differs);
            self.replace_address(kind, at, NewValue::Value(from));
            self.a.bind(same);
        }

        let ports = 2 * bytes;
        let [echo, end, first] = [(); 3].map(|()| self.a.label());
        self.get(R0, TRANSPORT);
        self.a.branch(Condition::Equal, R0, ICMP, echo);
        for offset in [0, 2] {
            let same = self.a.label();
            self.get(R5, VALUE);
            self.a.load(Size::Half, R1, R9, offset).load(Size::Half, R2, R5, ports + offset);
            self.a.branch(Condition::Equal, R1, R2, same);
            self.replace_word(kind, offset, ports + offset);
            self.a.bind(same);
        }

        self.a.jump(end).bind(echo);
        self.get(R5, VALUE);
        self.a.load(Size::Half, R3, R5, ports).branch(Condition::NotEqual, R3, 0, first);
        self.a.load(Size::Half, R3, R5, ports + 2).bind(first);
        self.replace_identifier(kind);
        self.a.bind(end);
    }
}
