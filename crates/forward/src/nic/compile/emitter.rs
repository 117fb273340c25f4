//! The frame of a program: its prologue, its exits, and its register and stack allocation.
//!
//! Registers: R6 counters, R7 the frame, R8 the network header, R9 the transport header. On an interface without Ethernet headers, R7 points 14
//! bytes before the packet. The stack:

use std::collections::BTreeMap;

use super::{
    Exceptions, NicConfig,
    headers::{IPV4, IPV6, half},
};
use crate::{
    bpf::{
        Assembler, ChecksumState, Condition, Helper, Label, MapId, Operand, Operation, Program,
        ProgramError, ProgramKind,
        Register::{self, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10},
        Size, TCX_DROP, TCX_NEXT, XDP_DROP, XDP_PASS, XDP_REDIRECT,
    },
    nic::layout::{self, Layout},
    packet::Port,
    pipeline::DropReason,
};

/// The length of the frame in bytes.
pub(super) const LENGTH: i16 = -8;
/// The end of the frame.
pub(super) const END: i16 = -16;
/// The length of the IP packet, and of what follows its header, in bytes.
pub(super) const PACKET_LENGTH: i16 = -24;
pub(super) const TRANSPORT_LENGTH: i16 = -32;
/// The protocol number in IP, the transport found, and the kind of fragment.
pub(super) const PROTOCOL: i16 = -40;
pub(super) const TRANSPORT: i16 = -48;
pub(super) const FRAGMENT: i16 = -56;
/// The outgoing port, or [`NOWHERE`].
pub(super) const OUT: i16 = -64;
/// The time, for meters.
pub(super) const NOW: i16 = -72;
/// True if a copy is to be sent.
pub(super) const COPY: i16 = -80;
/// The EtherType after the tags, in network order.
pub(super) const ETHER_TYPE: i16 = -88;
/// The address of the context.
pub(super) const CONTEXT: i16 = -96;
/// A value of a map.
pub(super) const VALUE: i16 = -104;
/// Scratch space of a stage: four words of 8 bytes.
pub(super) const WORK: [i16; 4] = [-112, -120, -128, -136];
/// A key of at most 48 bytes.
pub(super) const KEY: i16 = -184;
/// Saved fields, restored before a packet goes up. Where packets have no Ethernet header, the addresses of one that they may get: the
/// destination, and 8 bytes behind it the source.
pub(super) const SAVED_MACS: i16 = -200;
pub(super) const SAVED_NETWORK: i16 = -240;
pub(super) const SAVED_TRANSPORT: i16 = -256;

/// At tcx: what was added, in one's complement, to the addresses that the transport's checksum covers, and to what
/// follows the IP header. Then the offset of that checksum, 0 if there is none, and the flags for the kernel.
pub(super) const ADDRESSES_ADDED: i16 = -264;
pub(super) const PAYLOAD_ADDED: i16 = -272;
const CHECKSUM_AT: i16 = -280;
const CHECKSUM_FLAGS: i16 = -288;
/// The entry of a recent packet's key, and the generation of the tables before they were asked.
pub(super) const RECENT: i16 = -296;
pub(super) const GENERATION: i16 = -304;
/// `BPF_F_PSEUDO_HDR`, `BPF_F_MARK_MANGLED_0`.
const PSEUDO_HEADER: i32 = 16;
const MARK_MANGLED_0: i32 = 32;

/// Fields of `struct __sk_buff`: whether the frame is for this interface (0), for others or for a group; whether a tag was
/// removed; bytes in each segment of a packet of several, else 0.
const SKB_PACKET_TYPE: i16 = 4;
const SKB_PROTOCOL: i16 = 16;
const SKB_TAGGED: i16 = 20;
pub(super) const SKB_SEGMENT_BYTES: i16 = 176;
const SKB_DATA: i16 = 76;
const SKB_DATA_END: i16 = 80;
/// Bytes of an Ethernet header.
const ETHERNET: i32 = 14;
/// The longest packet without segments that every kernel gives a header to, with some room: `BPF_SKB_MAX_LEN` is 15 616 or more with pages of 4 KiB.
const WITHOUT_HEADER_MAX: i32 = ETHERNET + 15_500;
/// All that is read of a frame: two tags, and the longest headers of IPv4 and TCP without options.
const HEADERS_MAX: i32 = ETHERNET + 8 + 60 + 20;
/// The same without tags and options.
const HEADERS_V4: i32 = ETHERNET + 20 + 20;
const HEADERS_V6: i32 = ETHERNET + 40 + 20;

/// The values of [`TRANSPORT`].
pub(super) const OTHER: i32 = 0;
pub(super) const TCP: i32 = 1;
pub(super) const UDP: i32 = 2;
pub(super) const ICMP: i32 = 3;
/// The values of [`FRAGMENT`].
pub(super) const WHOLE: i32 = 0;
pub(super) const FIRST: i32 = 1;
pub(super) const LATER: i32 = 2;

const NOWHERE: i32 = -1;

/// The kind of packets in a part of the program, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NetworkKind {
    /// Nothing: headers were not read.
    Unread,
    V4,
    V6,
    Arp,
    /// Neither IP nor ARP.
    Other,
}

impl NetworkKind {
    /// 0 or 1 for IP.
    pub(super) const fn version(self) -> Option<usize> {
        match self {
            Self::V4 => Some(0),
            Self::V6 => Some(1),
            _ => None,
        }
    }
}

/// The needs of a program's stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    pub(super) headers: bool,
    pub(super) time: bool,
    /// They change bytes, which are put back before a packet goes up.
    pub(super) saving: bool,
    /// They change bytes that the checksum of the transport covers.
    pub(super) transport: bool,
    /// By how much they decrease hop limits.
    pub(super) hops: i32,
    /// Packets arrive without an Ethernet header, and some port has headers.
    pub(super) added_header: bool,
}

/// The amount that a decreased hop limit adds to the sum over a packet, in native order: it is the second byte of a word.
const HOP_LESS: i32 = if cfg!(target_endian = "little") { 0xfeff } else { 0xfffe };

/// Writes a program.
pub(super) struct Emitter<'a> {
    pub(super) a: Assembler,
    pub(super) maps: Vec<MapId>,
    pub(super) ingress: Port,
    pub(super) config: &'a NicConfig,
    pub(super) layout: &'a Layout,
    program: ProgramKind,
    /// Packets that arrive have no Ethernet header.
    is_headerless: bool,
    needs: Needs,
    /// The exits for dropping, by reason.
    drops: BTreeMap<DropReason, Label>,
    /// The exit for packets that go up unchanged.
    pub(super) up: Label,
    /// The same before anything was read, and where nothing was changed yet.
    up_unread: Label,
    pass: Label,
    send: Label,
    pub(super) abort: Label,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(
        ingress: Port,
        config: &'a NicConfig,
        layout: &'a Layout,
        program: ProgramKind,
        needs: Needs,
    ) -> Self {
        let mut a = Assembler::new(format!("vigie_nic_{}", ingress.0), program).without_dead_code();
        let maps = layout.put(&mut a);
        let [up_unread, pass, send, abort] = [(); 4].map(|()| a.label());
        let (drops, up) = (BTreeMap::new(), pass);
        Self {
            a,
            maps,
            ingress,
            config,
            layout,
            program,
            is_headerless: config.is_headerless(ingress),
            needs,
            drops,
            up,
            up_unread,
            pass,
            send,
            abort,
        }
    }

    pub(super) fn is_tcx(&self) -> bool {
        self.program == ProgramKind::Tcx
    }

    /// Returns the function that tells the time of the kernel's last tick, which takes some 30 ns less. Only at tcx: every kernel with
    /// tcx has it.
    pub(super) fn coarse_time(&self) -> Helper {
        if self.is_tcx() { Helper::MonotonicTimeCoarse } else { Helper::MonotonicTime }
    }

    pub(super) fn map(&self, place: usize) -> MapId {
        self.maps[place]
    }

    /// Loads what a stack slot holds.
    pub(super) fn get(&mut self, to: Register, slot: i16) {
        self.a.load(Size::Double, to, R10, slot);
    }

    /// Stores into a stack slot.
    pub(super) fn keep(&mut self, slot: i16, value: impl Into<Operand>) {
        self.a.store(Size::Double, R10, slot, value);
    }

    /// Looks up the key whose first byte is at this offset in [`KEY`]. The value's address is in R0.
    pub(super) fn look_up(&mut self, map: usize) {
        self.look_up_at(map, KEY);
    }

    /// As [`look_up`](Self::look_up), with the key in another place of the stack.
    pub(super) fn look_up_at(&mut self, map: usize, key: i16) {
        let map = self.map(map);
        self.a.load_map(R1, map).set(R2, R10).add(R2, i32::from(key)).call(Helper::MapLookup);
    }

    /// Adds to a counter.
    pub(super) fn count(&mut self, counter: u32, by: impl Into<Operand>) {
        let offset = i16::try_from(counter * 8).unwrap_or(0);
        self.a.load(Size::Double, R1, R6, offset).add(R1, by).store(Size::Double, R6, offset, R1);
    }

    /// Loads the frame's address into R7, the end of what can be read of it into R2. The context's address is in R9.
    fn bounds(&mut self) {
        let (start, end) = if self.is_tcx() { (SKB_DATA, SKB_DATA_END) } else { (0, 4) };
        self.a.load(Size::Word, R7, R9, start).load(Size::Word, R2, R9, end);
        if self.is_headerless {
            self.a.add(R7, -ETHERNET);
        }
        self.keep(END, R2);
    }

    /// Counts the packet and locates its bytes.
    pub(super) fn prologue(&mut self) {
        self.a.set(R9, R1).store(Size::Word, R10, KEY, 0);
        self.look_up(self.layout.counters);
        self.a.branch(Condition::Equal, R0, 0, self.abort).set(R6, R0);
        if self.is_tcx() {
            self.a.load(Size::Word, R8, R9, 0);
            if self.is_headerless {
                // As the host counts it.
                self.a.add(R8, ETHERNET);
            }
        } else {
            self.a.set(R1, R9).call(Helper::FrameLength).set(R8, R0);
        }

        self.keep(LENGTH, R8);
        self.count(layout::RECEIVED_PACKETS, 1);
        self.count(layout::RECEIVED_BYTES, R8);
        if self.is_tcx() {
            self.prologue_of_tcx();
        }

        self.keep(OUT, NOWHERE);
        if self.layout.needs.copies.is_some() {
            self.keep(COPY, 0);
        }

        if self.needs.time {
            self.a.call(Helper::MonotonicTime);
            self.keep(NOW, R0);
        }

        self.bounds();
        if self.is_headerless {
            self.keep(SAVED_MACS, 0);
            self.keep(SAVED_MACS + 8, 0);
            return;
        }
        self.a.set(R1, R7).add(R1, ETHERNET);
        let malformed = self.drop_label(DropReason::Malformed);
        self.a.branch(Condition::Greater, R1, R2, malformed);
        if self.needs.saving {
            self.a.load(Size::Double, R1, R7, 0);
            self.keep(SAVED_MACS, R1);
            self.a.load(Size::Word, R1, R7, 8);
            self.keep(SAVED_MACS + 8, R1);
            self.up = self.up_unread;
        }
    }

    /// Makes the headers readable, which the kernel may hold apart; the rest of a long packet stays where it is.
    fn prologue_of_tcx(&mut self) {
        // A tag that the driver stripped is not in the frame.
        self.a.load(Size::Word, R1, R9, SKB_TAGGED).branch(Condition::NotEqual, R1, 0, self.pass);
        if self.config.own_frames {
            self.a.load(Size::Word, R1, R9, SKB_PACKET_TYPE);
            self.a.branch(Condition::NotEqual, R1, 0, self.pass);
        }
        if self.needs.added_header {
            let (exception, fits) = (self.exception(DropReason::TooLong), self.a.label());
            self.a.branch(Condition::AtMost, R8, WITHOUT_HEADER_MAX, fits);
            self.a.load(Size::Word, R1, R9, SKB_SEGMENT_BYTES);
            self.a.branch(Condition::Equal, R1, 0, exception).bind(fits);
        }
        if self.needs.headers || self.needs.added_header {
            self.keep(CONTEXT, R9);
        }
        if !self.needs.headers {
            return;
        }

        if self.needs.transport {
            for slot in [ADDRESSES_ADDED, PAYLOAD_ADDED, CHECKSUM_AT] {
                self.keep(slot, 0);
            }
        }

        let [v6, pull, ready] = [(); 3].map(|()| self.a.label());
        self.bounds();
        self.a.set(R1, R7).add(R1, HEADERS_V4).branch(Condition::Greater, R1, R2, pull);
        self.ether_type(R1, R9);
        self.a.branch(Condition::Equal, R1, half(IPV6), v6);
        self.a.branch(Condition::NotEqual, R1, half(IPV4), pull).load(Size::Byte, R1, R7, 14);
        self.a.branch(Condition::Equal, R1, 0x45, ready).jump(pull).bind(v6);
        self.a.set(R1, R7).add(R1, HEADERS_V6).branch(Condition::AtMost, R1, R2, ready).bind(pull);
        let short = self.a.label();
        self.a.set(R1, R9).set(R2, R8).branch(Condition::AtMost, R2, HEADERS_MAX, short);
        self.a.set(R2, HEADERS_MAX).bind(short);
        if self.is_headerless {
            self.a.add(R2, -ETHERNET);
        }
        self.a.call(Helper::PullData);
        self.a.branch(Condition::NotEqual, R0, 0, self.pass).bind(ready);
    }

    /// Loads the EtherType in the frame's header, or what the kernel has for it, with the context's address.
    pub(super) fn ether_type(&mut self, to: Register, context: Register) {
        if self.is_headerless {
            self.a.load(Size::Word, to, context, SKB_PROTOCOL);
        } else {
            self.a.load(Size::Half, to, R7, 12);
        }
    }

    pub(super) const fn is_headerless(&self) -> bool {
        self.is_headerless
    }

    /// The places of the frame's addresses, or of those that it gets: destination and source.
    pub(super) const fn macs(&self) -> [(Register, i16); 2] {
        if self.is_headerless {
            [(R10, SAVED_MACS), (R10, SAVED_MACS + 8)]
        } else {
            [(R7, 0), (R7, 6)]
        }
    }

    /// Starts the part for one kind of packet.
    pub(super) fn begin(&mut self, kind: NetworkKind, label: Label) {
        self.a.bind(label);
        self.read(kind);
        if self.needs.saving && kind.version().is_some() {
            self.up = self.a.label();
            self.save(kind);
        }
    }

    /// Ends the part: packets that reach its end are sent.
    pub(super) fn end(&mut self, kind: NetworkKind) {
        if self.is_tcx() {
            self.mend_checksums(kind);
        }
        self.a.jump(self.send);
        if self.needs.saving && kind.version().is_some() {
            self.a.bind(self.up);
            self.put_back(kind);
            self.a.jump(self.up_unread);
            self.up = self.up_unread;
        }
    }

    /// Mends the checksum of the transport. If a network card has summed up the packet, that sum changes too, and the kernel mends both (some 30 ns).
    fn mend_checksums(&mut self, kind: NetworkKind) {
        let is_v6 = kind == NetworkKind::V6;
        let is_wanted = self.needs.transport || is_v6 && self.needs.hops != 0;
        if kind.version().is_none() || !is_wanted {
            return;
        }
        let [by_kernel, end] = [(); 2].map(|()| self.a.label());
        self.get(R1, CONTEXT);
        self.a.checksum_state();
        let complete = ChecksumState::Complete.number();
        self.a.branch(Condition::Equal, R0, complete, by_kernel);
        if self.needs.transport {
            self.mend_transport();
        }
        self.a.jump(end).bind(by_kernel);
        if self.needs.transport {
            self.keep_checksum_place();
        }
        if is_v6 {
            self.mend_complete_checksum();
        }
        self.a.bind(end);
    }

    /// Notes where the checksum of the transport is.
    fn keep_checksum_place(&mut self) {
        let end = self.a.label();
        self.a.set(R1, R9).compute(Operation::Subtract, R1, R7);
        if self.is_headerless {
            self.a.add(R1, -ETHERNET);
        }
        self.get(R0, TRANSPORT);
        for (transport, offset, flags) in [(TCP, 16, 0), (UDP, 6, MARK_MANGLED_0), (ICMP, 2, 0)] {
            let next = self.a.label();
            self.a.branch(Condition::NotEqual, R0, transport, next).add(R1, offset);
            self.keep(CHECKSUM_AT, R1);
            self.keep(CHECKSUM_FLAGS, flags);
            self.a.jump(end).bind(next);
        }
        self.a.bind(end);
    }

    /// Tells the kernel by how much the sum over an IPv6 packet changes, which its network card may have computed
    /// (`CHECKSUM_COMPLETE`) and the receiver's kernel compares. IPv6 has no checksum of its header that would make up for a
    /// changed hop limit. With addresses, the checksum of the transport does, but the kernel, when it mends that, takes it for
    /// IPv4's, where two checksums change.
    fn mend_complete_checksum(&mut self) {
        self.a.set(R2, 0);
        if self.needs.transport {
            self.get(R2, ADDRESSES_ADDED);
        }
        self.a.add(R2, self.needs.hops * HOP_LESS);
        self.get(R1, CONTEXT);
        self.a.call(Helper::UpdateCompleteChecksum);
    }

    /// Has the kernel mend the checksum of the transport, which knows whether the sender has computed it. From here on the
    /// packet's bytes are out of reach.
    fn mend_checksum(&mut self, failed: Label) {
        let end = self.a.label();
        self.get(R1, CHECKSUM_AT);
        self.a.branch(Condition::Equal, R1, 0, end);
        for (added, flag) in [(ADDRESSES_ADDED, PSEUDO_HEADER), (PAYLOAD_ADDED, 0)] {
            let next = self.a.label();
            self.get(R4, added);
            self.a.branch(Condition::Equal, R4, 0, next);
            self.get(R1, CONTEXT);
            self.get(R2, CHECKSUM_AT);
            self.get(R5, CHECKSUM_FLAGS);
            self.a.set(R3, 0).compute(Operation::Or, R5, flag);
            self.a.call(Helper::ReplaceTransportChecksum);
            self.a.branch(Condition::NotEqual, R0, 0, failed).bind(next);
        }
        self.a.bind(end);
    }

    /// The exit where packets are dropped, or go up, for a reason.
    pub(super) fn drop_label(&mut self, reason: DropReason) -> Label {
        if self.config.pass_up.contains(&reason) {
            return self.up;
        }
        let a = &mut self.a;
        *self.drops.entry(reason).or_insert_with(|| a.label())
    }

    /// Drops the packet.
    pub(super) fn drop_now(&mut self, reason: DropReason) {
        let label = self.drop_label(reason);
        self.a.jump(label);
    }

    /// The exit for exceptions.
    pub(super) fn exception(&mut self, reason: DropReason) -> Label {
        match self.config.exceptions {
            Exceptions::PassUp => self.up,
            Exceptions::Drop => self.drop_label(reason),
        }
    }

    /// The exit for packets that are already changed and that the kernel refuses to change further: always a drop.
    fn refused(&mut self) -> Label {
        let a = &mut self.a;
        *self.drops.entry(DropReason::TooLong).or_insert_with(|| a.label())
    }

    fn leave(&mut self, xdp: i32, tcx: i32) {
        self.a.set(R0, if self.is_tcx() { tcx } else { xdp }).exit();
    }

    /// Writes the exits, and returns the program.
    pub(super) fn finish(mut self) -> Result<Program, ProgramError> {
        self.write_send();
        // Reached only if fields were saved.
        self.a.bind(self.up_unread);
        if !self.is_headerless {
            self.get(R1, SAVED_MACS);
            self.a.store(Size::Double, R7, 0, R1);
            self.get(R1, SAVED_MACS + 8);
            self.a.store(Size::Word, R7, 8, R1);
        }
        self.a.bind(self.pass);
        self.count(layout::PASSED_UP, 1);
        self.leave(XDP_PASS, TCX_NEXT);
        for (reason, label) in std::mem::take(&mut self.drops) {
            self.a.bind(label);
            self.count(layout::dropped(reason), 1);
            self.drop_or_copy();
        }
        self.a.bind(self.abort);
        self.leave(0, TCX_DROP);
        self.a.finish()
    }

    /// Ends a dropped packet: its copy, if there is one, is still sent.
    fn drop_or_copy(&mut self) {
        let Some(port) = self.layout.needs.copies else { return self.leave(XDP_DROP, TCX_DROP) };
        let drop = self.a.label();
        self.get(R1, COPY);
        self.a.branch(Condition::Equal, R1, 0, drop).set(R2, i32::from(port.0));
        let ports = self.map(self.layout.ports);
        self.a.load_map(R1, ports).set(R3, XDP_DROP).call(Helper::RedirectMap);
        self.a.branch(Condition::NotEqual, R0, XDP_REDIRECT, drop);
        self.count_sent(1);
        self.a.set(R0, XDP_REDIRECT).exit();
        self.a.bind(drop);
        self.leave(XDP_DROP, TCX_DROP);
    }

    fn count_sent(&mut self, times: i32) {
        self.count(layout::SENT_PACKETS, times);
        self.get(R2, LENGTH);
        if times > 1 {
            self.a.compute(Operation::Multiply, R2, times);
        }
        self.count(layout::SENT_BYTES, R2);
    }

    fn write_send(&mut self) {
        self.a.bind(self.send);
        let (go, gone) = (self.a.label(), self.drop_label(DropReason::Gone));
        self.get(R2, OUT);
        self.a.branch(Condition::NotEqual, R2, NOWHERE, go);
        if let Some(port) = self.config.default_port {
            self.a.set(R2, i32::from(port.0));
        } else {
            let nowhere = self.drop_label(DropReason::NoPort);
            self.a.jump(nowhere);
        }

        self.a.bind(go);
        if self.layout.needs.copies.is_some() {
            self.write_copies();
        }

        let ports = self.map(self.layout.ports);
        if !self.is_tcx() {
            self.a.load_map(R1, ports).set(R3, XDP_DROP).call(Helper::RedirectMap);
            self.a.branch(Condition::NotEqual, R0, XDP_REDIRECT, gone);
            self.count_sent(1);
            self.a.set(R0, XDP_REDIRECT).exit();
        } else {
            self.a.store(Size::Word, R10, KEY, R2);
            self.look_up(self.layout.ports);
            self.a.branch(Condition::Equal, R0, 0, gone).load(Size::Word, R8, R0, 0);
            self.a.branch(Condition::Equal, R8, 0, gone);
            if self.needs.transport {
                let refused = self.refused();
                self.mend_checksum(refused);
            }
            if self.needs.added_header {
                let refused = self.refused();
                self.add_header(refused);
            }
            self.count_sent(1);
            self.a.set(R1, R8).set(R2, 0).call(Helper::Redirect).exit();
        }
    }

    /// Gives the packet an Ethernet header, unless it leaves by a port without; the port is in [`KEY`]. (A header that is not wanted there, the
    /// kernel removes itself.) R8 stays.
    fn add_header(&mut self, failed: Label) {
        let end = self.a.label();
        self.a.load(Size::Word, R1, R10, KEY).constant(R2, self.config.headerless_bits());
        self.a.compute(Operation::ShiftRight, R2, R1).branch(Condition::HasBits, R2, 1, end);
        self.get(R1, CONTEXT);
        self.a.set(R2, ETHERNET).set(R3, 0).call(Helper::ChangeHead);
        self.a.branch(Condition::NotEqual, R0, 0, failed);
        self.get(R3, CONTEXT);
        self.a.load(Size::Word, R7, R3, SKB_DATA).load(Size::Word, R2, R3, SKB_DATA_END);
        self.a.set(R1, R7).add(R1, ETHERNET).branch(Condition::Greater, R1, R2, failed);
        for (from, to) in self.macs().into_iter().zip([0, 6]) {
            self.copy(Size::Word, from, (R7, to));
            self.copy(Size::Half, (from.0, from.1 + 4), (R7, to + 4));
        }
        self.ether_type(R1, R3);
        self.a.store(Size::Half, R7, 12, R1).bind(end);
    }

    /// Sends a packet and its copy, by the map that has both interfaces. The port is in R2.
    fn write_copies(&mut self) {
        let (plain, both) = (self.a.label(), self.a.label());
        self.get(R3, COPY);
        self.a.branch(Condition::Equal, R3, 0, plain);
        for port in 0..self.layout.sizes.ports {
            let next = self.a.label();
            let map = self.map(self.layout.pairs + usize::from(port));
            self.a.branch(Condition::NotEqual, R2, i32::from(port), next);
            self.a.load_map(R1, map).jump(both);
            self.a.bind(next);
        }
        let gone = self.drop_label(DropReason::Gone);
        self.a.jump(gone).bind(both);
        // BPF_F_BROADCAST.
        self.a.set(R2, 0).set(R3, 8).call(Helper::RedirectMap);
        self.a.branch(Condition::NotEqual, R0, XDP_REDIRECT, gone);
        self.count_sent(2);
        self.a.set(R0, XDP_REDIRECT).exit();
        self.a.bind(plain);
    }

    /// Copies a part from one place to another, each a register and an offset. Clobbers R1.
    pub(super) fn copy(&mut self, size: Size, from: (Register, i16), to: (Register, i16)) {
        self.a.load(size, R1, from.0, from.1).store(size, to.0, to.1, R1);
    }

    /// As [`copy`](Self::copy), for several words.
    pub(super) fn copy_words(&mut self, words: i16, from: (Register, i16), to: (Register, i16)) {
        for at in (0..words * 4).step_by(4) {
            self.copy(Size::Word, (from.0, from.1 + at), (to.0, to.1 + at));
        }
    }

    /// Saves what later stages may change of an IP packet.
    fn save(&mut self, kind: NetworkKind) {
        self.each_saved(kind, |this, size, packet, saved| this.copy(size, packet, saved));
    }

    fn put_back(&mut self, kind: NetworkKind) {
        self.each_saved(kind, |this, size, packet, saved| this.copy(size, saved, packet));
    }

    /// Writes code for each part that later stages may change: `write` gets its size, its place in the packet, and the
    /// one where it is saved. The program finds out as it runs which parts of the transport's header these are.
    fn each_saved(
        &mut self,
        kind: NetworkKind,
        mut write: impl FnMut(&mut Self, Size, (Register, i16), (Register, i16)),
    ) {
        let (from, words): (i16, i16) = if kind == NetworkKind::V4 { (8, 3) } else { (4, 9) };
        for at in (0..words * 4).step_by(4) {
            write(self, Size::Word, (R8, from + at), (R10, SAVED_NETWORK + at));
        }
        let end = self.a.label();
        for (transport, checksum) in [(TCP, 16), (UDP, 6), (ICMP, 2)] {
            let next = self.a.label();
            self.get(R0, TRANSPORT);
            self.a.branch(Condition::NotEqual, R0, transport, next);
            // Ports, checksum, and the identifier of an echo.
            for (size, at, saved) in
                [(Size::Word, 0, 0), (Size::Half, checksum, 4), (Size::Half, 4, 6)]
            {
                write(self, size, (R9, at), (R10, SAVED_TRANSPORT + saved));
            }
            self.a.jump(end).bind(next);
        }
        self.a.bind(end);
    }
}
