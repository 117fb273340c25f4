//! Packets to an address of this host that its kernel must not answer.

use std::{net::Ipv4Addr, ops::RangeInclusive};

use crate::{
    bpf::{
        Assembler, Condition, Helper, Label, Operation, Program, ProgramError, ProgramKind,
        Register::{R0, R1, R2, R6, R7, R8, R9},
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
/// It leaves to the kernel ICMP, fragments but the first (which have no ports), and frames with VLAN tags.
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

    /// Builds the program that marks the packets.
    pub(super) fn program(&self) -> Result<Program, ProgramError> {
        let mut a = Assembler::new("vigie_taken", ProgramKind::Tcx).without_dead_code();
        let [next, hide] = [(); 2].map(|()| a.label());
        a.set(R6, R1);
        for (field, expected) in
            [(SKB_TAGGED, 0), (SKB_PACKET_TYPE, 0), (SKB_PROTOCOL, half(0x0800))]
        {
            a.load(Size::Word, R2, R6, field).branch(Condition::NotEqual, R2, expected, next);
        }
        let readable = a.label();
        for last in [false, true] {
            a.load(Size::Word, R7, R6, SKB_DATA).load(Size::Word, R8, R6, SKB_DATA_END);
            a.set(R1, R7).add(R1, ETHERNET + IPV4);
            if last {
                a.branch(Condition::Greater, R1, R8, next);
            } else {
                a.branch(Condition::AtMost, R1, R8, readable);
                pull(&mut a, next, |a| a.set(R2, ETHERNET + IPV4));
            }
        }
        a.bind(readable);

        a.load(Size::Word, R1, R7, 30);
        let address = i32::from_ne_bytes(self.address.octets());
        a.branch32(Condition::NotEqual, R1, address, next);
        // A later fragment.
        a.load(Size::Half, R1, R7, 20).compute(Operation::And, R1, half(0x1fff));
        a.branch(Condition::NotEqual, R1, 0, next).load(Size::Byte, R9, R7, 23);
        let with_ports = a.label();
        for last in [false, true] {
            header_length(&mut a);
            a.branch(Condition::Less, R1, IPV4, next).add(R1, R7);
            a.set(R2, R1).add(R2, ETHERNET + PORTS);
            if last {
                a.branch(Condition::Greater, R2, R8, next);
            } else {
                a.branch(Condition::AtMost, R2, R8, with_ports);
                pull(&mut a, next, |a| header_length(a).set(R2, R1).add(R2, ETHERNET + PORTS));
                a.load(Size::Word, R7, R6, SKB_DATA).load(Size::Word, R8, R6, SKB_DATA_END);
                a.set(R1, R7).add(R1, ETHERNET + IPV4).branch(Condition::Greater, R1, R8, next);
            }
        }
        a.bind(with_ports).load(Size::Half, R2, R1, 16).network_order(Size::Half, R2);

        let of_udp = a.label();
        a.branch(Condition::Equal, R9, i32::from(UDP), of_udp);
        a.branch(Condition::NotEqual, R9, i32::from(TCP), next);
        for ranges in [&self.tcp, &self.udp] {
            for range in ranges {
                let miss = a.label();
                a.branch(Condition::Less, R2, i32::from(*range.start()), miss);
                a.branch(Condition::AtMost, R2, i32::from(*range.end()), hide).bind(miss);
            }
            a.jump(next);
            if std::ptr::eq(ranges, &raw const self.tcp) {
                a.bind(of_udp);
            }
        }
        a.bind(hide).set(R1, R6).set(R2, OTHER_HOST).call(Helper::ChangePacketType);
        a.bind(next).set(R0, TCX_NEXT).exit();
        a.finish()
    }
}

/// Has the kernel make as many bytes readable as `bytes` puts into R2.
fn pull(a: &mut Assembler, otherwise: Label, bytes: impl FnOnce(&mut Assembler) -> &mut Assembler) {
    bytes(a).set(R1, R6).call(Helper::PullData);
    a.branch(Condition::NotEqual, R0, 0, otherwise);
}

/// Puts the length of the IPv4 header into R1, at most 60 bytes.
fn header_length(a: &mut Assembler) -> &mut Assembler {
    a.load(Size::Byte, R1, R7, 14).compute(Operation::ShiftLeft, R1, 2);
    a.compute(Operation::And, R1, 0x3c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::{Interpreter, PacketBuffer, RunContext};

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
    /// both ends of each range, the ports beside them, and what differs in one field.
    #[test]
    fn packets_to_taken_ports_are_marked() {
        let taken = TakenPorts::new(OWN.into()).tcp(2000..=2999).tcp(80..=80).udp(3000..=u16::MAX);
        let interpreter = Interpreter::new(&taken.program().unwrap());
        let is_marked = |frame: &[u8]| {
            let mut packet = PacketBuffer::new(frame);
            let outcome = interpreter.run(&RunContext::on(1), &mut packet, &mut []).unwrap();
            assert_eq!((outcome.action.cast_signed(), packet.frame()), (TCX_NEXT, frame));
            outcome.packet_type == 3
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
}
