//! Packets to an address of this host that its kernel must not answer.

use std::{net::Ipv4Addr, ops::RangeInclusive};

use crate::{
    bpf::{
        Assembler, Condition, Helper, Label, MapId, MapKind, MapSpec, Operation, Program,
        ProgramError, ProgramKind,
        Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10},
        Size, TCX_NEXT,
    },
    packet::{TCP, UDP},
};

/// The ports of one of this host's addresses whose packets belong to a pipeline: those of translations.
///
/// The kernel has a copy of every packet that a program does not handle itself. It would answer one to an address of its own for which it
/// has no socket: by a reset (TCP), or by an ICMP error. So another program, always at tcx and behind the pipeline's, marks packets to these
/// ports as meant for another host (`PACKET_OTHERHOST`); the kernel's IP drops such without a word, and packet sockets of IP still get them.
///
/// Later fragments, which have no ports, are marked if the first one was: else the kernel would keep them until they have waited in
/// vain for it, and would soon have no room for those of its own sockets. It leaves to the kernel ICMP, fragments that come before their first
/// one, and frames with VLAN tags.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "`NicPipelineBuilder::take_from_kernel` has it"]
pub struct TakenPorts {
    address: Ipv4Addr,
    tcp: Vec<RangeInclusive<u16>>,
    udp: Vec<RangeInclusive<u16>>,
}

/// A number as the network has it, in memory.
fn half(number: u16) -> i32 {
    i32::from(number.to_be())
}

/// `PACKET_OTHERHOST`.
const OTHER_HOST: i32 = 3;
/// Offsets in `struct __sk_buff`.
const SKB_PACKET_TYPE: i16 = 4;
const SKB_PROTOCOL: i16 = 16;
const SKB_TAGGED: i16 = 20;
const SKB_DATA: i16 = 76;
const SKB_DATA_END: i16 = 80;
/// Bytes of an Ethernet header, and of the fields at its end that the program reads: an IPv4 header without options; the ports.
const ETHERNET: i32 = 14;
const IPV4: i32 = 20;
const PORTS: i32 = 4;
/// Offsets in a frame: of a packet's identification, its flags and place as a fragment, and its source.
const IDENTIFICATION: i16 = 18;
const FRAGMENT: i16 = 20;
const PROTOCOL: i16 = 23;
const SOURCE: i16 = 26;
/// Bytes of a fragment's key (source, identification and protocol) and of a value, below the end of the stack.
const KEY: i16 = 8;
const VALUE: i16 = 16;
/// The number of packets whose first fragment was marked that are remembered; the oldest is forgotten.
const FRAGMENTED_MAX: u32 = 4096;

impl TakenPorts {
    /// Takes no ports of `address` yet.
    pub const fn new(address: Ipv4Addr) -> Self {
        Self { address, tcp: Vec::new(), udp: Vec::new() }
    }

    /// Adds ports of TCP.
    pub fn tcp(mut self, ports: RangeInclusive<u16>) -> Self {
        self.tcp.push(ports);
        self
    }

    /// Adds ports of UDP.
    pub fn udp(mut self, ports: RangeInclusive<u16>) -> Self {
        self.udp.push(ports);
        self
    }

    /// Builds the program that marks the packets, of interfaces with Ethernet headers or without.
    pub(super) fn program(&self, is_headerless: bool) -> Result<Program, ProgramError> {
        // R7 is where the header is, or would be.
        let absent = if is_headerless { ETHERNET } else { 0 };
        let bounds = |a: &mut Assembler| {
            a.load(Size::Word, R7, R6, SKB_DATA).load(Size::Word, R8, R6, SKB_DATA_END);
            a.add(R7, -absent);
        };
        let mut a = Assembler::new("vigie_taken", ProgramKind::Tcx).without_dead_code();
        let fragmented = a.map(MapSpec::new(MapKind::LruHash, 8, 8, FRAGMENTED_MAX));
        let [next, hide, mark, later] = [(); 4].map(|()| a.label());
        a.set(R6, R1);
        for (field, expected) in
            [(SKB_TAGGED, 0), (SKB_PACKET_TYPE, 0), (SKB_PROTOCOL, half(0x0800))]
        {
            a.load(Size::Word, R2, R6, field).branch(Condition::NotEqual, R2, expected, next);
        }
        let readable = a.label();
        for last in [false, true] {
            bounds(&mut a);
            a.set(R1, R7).add(R1, ETHERNET + IPV4);
            if last {
                a.branch(Condition::Greater, R1, R8, next);
            } else {
                a.branch(Condition::AtMost, R1, R8, readable);
                pull(&mut a, next, |a| a.set(R2, ETHERNET + IPV4 - absent));
            }
        }
        a.bind(readable);

        a.load(Size::Word, R1, R7, 30);
        let address = i32::from_ne_bytes(self.address.octets());
        a.branch32(Condition::NotEqual, R1, address, next);
        a.load(Size::Half, R1, R7, FRAGMENT).compute(Operation::And, R1, half(0x1fff));
        a.branch(Condition::NotEqual, R1, 0, later).load(Size::Byte, R9, R7, PROTOCOL);
        let with_ports = a.label();
        for last in [false, true] {
            header_length(&mut a);
            a.branch(Condition::Less, R1, IPV4, next).add(R1, R7);
            a.set(R2, R1).add(R2, ETHERNET + PORTS);
            if last {
                a.branch(Condition::Greater, R2, R8, next);
            } else {
                a.branch(Condition::AtMost, R2, R8, with_ports);
                let bytes = ETHERNET + PORTS - absent;
                pull(&mut a, next, |a| header_length(a).set(R2, R1).add(R2, bytes));
                bounds(&mut a);
                a.set(R1, R7).add(R1, ETHERNET + IPV4).branch(Condition::Greater, R1, R8, next);
            }
        }
        a.bind(with_ports).load(Size::Half, R2, R1, 16).network_order(Size::Half, R2);

        for (protocol, ranges) in [(TCP, &self.tcp), (UDP, &self.udp)] {
            let other = a.label();
            a.branch(Condition::NotEqual, R9, i32::from(protocol), other);
            for range in ranges {
                let miss = a.label();
                a.branch(Condition::Less, R2, i32::from(*range.start()), miss);
                a.branch(Condition::AtMost, R2, i32::from(*range.end()), hide).bind(miss);
            }
            a.bind(other);
        }
        a.jump(next).bind(later);
        key_of_fragment(&mut a, fragmented).call(Helper::MapLookup);
        a.branch(Condition::Equal, R0, 0, next).jump(mark);

        // A whole packet, or the first of its fragments.
        a.bind(hide).load(Size::Half, R1, R7, FRAGMENT);
        a.compute(Operation::And, R1, half(0x2000)).branch(Condition::Equal, R1, 0, mark);
        a.store(Size::Double, R10, -VALUE, 1);
        key_of_fragment(&mut a, fragmented).set(R3, R10).add(R3, i32::from(-VALUE)).set(R4, 0);
        a.call(Helper::MapUpdate);
        a.bind(mark).set(R1, R6).set(R2, OTHER_HOST).call(Helper::ChangePacketType);
        a.bind(next).set(R0, TCX_NEXT).exit();
        a.finish()
    }
}

/// Has the kernel make as many bytes readable as `bytes` puts into R2.
fn pull(a: &mut Assembler, otherwise: Label, bytes: impl FnOnce(&mut Assembler) -> &mut Assembler) {
    bytes(a).set(R1, R6).call(Helper::PullData);
    a.branch(Condition::NotEqual, R0, 0, otherwise);
}

/// Puts the map into R1, and the address of the key of a packet's fragments into R2.
fn key_of_fragment(a: &mut Assembler, map: MapId) -> &mut Assembler {
    a.load(Size::Word, R1, R7, SOURCE).store(Size::Word, R10, -KEY, R1);
    a.load(Size::Half, R1, R7, IDENTIFICATION).store(Size::Half, R10, -KEY + 4, R1);
    a.load(Size::Byte, R1, R7, PROTOCOL).store(Size::Half, R10, -KEY + 6, R1);
    a.load_map(R1, map).set(R2, R10).add(R2, i32::from(-KEY))
}

/// Puts the length of the IPv4 header into R1, at most 60 bytes.
fn header_length(a: &mut Assembler) -> &mut Assembler {
    a.load(Size::Byte, R1, R7, 14).compute(Operation::ShiftLeft, R1, 2);
    a.compute(Operation::And, R1, 0x3c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::{Interpreter, PacketBuffer, RunContext, UserMap};

    const OWN: [u8; 4] = [198, 51, 100, 9];

    /// A packet to a port, with so many bytes of options.
    fn frame(protocol: u8, to: [u8; 4], port: u16, options: u8, fragment: u16) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([0x08, 0x00, 0x45 + options / 4, 0, 0, 28 + options, 0, 0]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, protocol, 0, 0, 10, 0, 0, 2]);
        frame.extend(to);
        frame.extend(vec![1; usize::from(options)]);
        frame.extend([0, 7]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 8, 0, 0]);
        frame
    }

    /// Goal: packets to the taken ports, and no others, are marked as meant for another host; none is dropped. Method: the interpreter,
    /// both ends of each range, the ports beside them, and what differs in one field; each with an Ethernet header and without.
    #[test]
    fn packets_to_taken_ports_are_marked() {
        let taken = TakenPorts::new(OWN.into()).tcp(2000..=2999).tcp(80..=80).udp(3000..=u16::MAX);
        let is_marked = |frame: &[u8]| {
            let by = |is_headerless, context: RunContext, bytes: &[u8]| {
                let program = taken.program(is_headerless).unwrap();
                let maps = program.maps().iter().map(|spec| UserMap::new(*spec).unwrap());
                let mut maps: Vec<UserMap> = maps.collect();
                let mut packet = PacketBuffer::new(bytes);
                let interpreter = Interpreter::new(&program);
                let outcome = interpreter.run(&context, &mut packet, &mut maps).unwrap();
                assert_eq!((outcome.action.cast_signed(), packet.frame()), (TCX_NEXT, bytes));
                outcome.packet_type == 3
            };
            let marked = by(false, RunContext::on(1), frame);
            if frame[12..14] == [0x08, 0x00] {
                assert_eq!(by(true, RunContext::on(1).headerless(), &frame[14..]), marked);
            }
            marked
        };
        for options in [0, 4, 40] {
            for (protocol, port, expected) in [
                (TCP, 2000, true),
                (TCP, 2999, true),
                (TCP, 80, true),
                (TCP, 1999, false),
                (TCP, 3000, false),
                (TCP, 81, false),
                (UDP, 3000, true),
                (UDP, 65535, true),
                (UDP, 2999, false),
                (UDP, 80, false),
                (1, 2000, false),
            ] {
                let whole = frame(protocol, OWN, port, options, 0x4000);
                assert_eq!(is_marked(&whole), expected, "{protocol} {port} {options}");
                // The first fragment has the ports, a later one may seem to.
                assert_eq!(is_marked(&frame(protocol, OWN, port, options, 0x2000)), expected);
                assert!(!is_marked(&frame(protocol, OWN, port, options, 0x2001)));
                assert!(!is_marked(&frame(protocol, [198, 51, 100, 8], port, options, 0)));
                for length in 14..whole.len() - 4 {
                    assert!(!is_marked(&whole[..length]), "cut at {length}");
                }
            }
        }
        let mut other = frame(TCP, OWN, 80, 0, 0);
        other[12..14].copy_from_slice(&[0x86, 0xdd]);
        assert!(!is_marked(&other));
        let mut short = frame(TCP, OWN, 80, 0, 0);
        short[14] = 0x44;
        assert!(!is_marked(&short));
    }
    /// Goal: later fragments are marked if the first one was, and those of other packets are not. Method: the first fragments of a packet to a
    /// taken port and of one to another port, then later ones that differ in one field.
    #[test]
    fn fragments_follow_their_first() {
        let program = TakenPorts::new(OWN.into()).udp(2000..=2999).program(false).unwrap();
        let interpreter = Interpreter::new(&program);
        let maps = program.maps().iter().map(|spec| UserMap::new(*spec).unwrap());
        let mut maps: Vec<UserMap> = maps.collect();
        let mut is_marked = |protocol, source: u8, number: u8, port, place| {
            let mut frame = frame(protocol, OWN, port, 0, place);
            (frame[19], frame[29]) = (number, source);
            let mut packet = PacketBuffer::new(&frame);
            interpreter.run(&RunContext::on(1), &mut packet, &mut maps).unwrap().packet_type == 3
        };
        assert!(!is_marked(UDP, 2, 1, 0, 0x2010));
        assert!(is_marked(UDP, 2, 1, 2000, 0x2000));
        assert!(!is_marked(UDP, 2, 2, 80, 0x2000));
        assert!(is_marked(UDP, 2, 1, 0, 0x2010) && is_marked(UDP, 2, 1, 0, 0x0020));
        assert!(!is_marked(UDP, 2, 2, 0, 0x2010) && !is_marked(UDP, 3, 1, 0, 0x2010));
        assert!(!is_marked(TCP, 2, 1, 0, 0x2010));
        // A whole packet is not remembered.
        assert!(is_marked(UDP, 2, 7, 2000, 0x4000) && !is_marked(UDP, 2, 7, 0, 0x2010));
    }
}
