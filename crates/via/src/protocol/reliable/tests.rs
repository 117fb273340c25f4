//! Error control packet by packet, in virtual time.

use super::*;
use crate::{
    protocol::{
        Envelope, FrameKind, MessageEngine,
        envelope::ENVELOPE_BYTES,
        peer::PeerLink,
        tests::{Pair, small},
    },
    sim::SimNic,
    vi::{MemoryHandle, NicAttributes, Reliability},
};

const MILLISECOND: Duration = Duration::from_millis(1);
const NANOSECOND: Duration = Duration::from_nanos(1);

fn unreliable() -> EngineConfig {
    EngineConfig { reliability: Reliability::Unreliable, ..small() }
}

/// Returns an engine's link to the other rank, and what it needs.
fn parts(engine: &mut MessageEngine<SimNic>) -> (&mut UnreliableLink, &mut SimNic, &mut Staging) {
    let other = 1 - engine.rank as usize;
    let MessageEngine { nic, staging, peers, .. } = engine;
    let PeerLink::Unreliable(lossy) = &mut peers[other].link else {
        panic!("another kind of link")
    };
    (lossy, nic, staging)
}

/// Sends a frame of `length` bytes, which is a whole message.
fn send(engine: &mut MessageEngine<SimNic>, now: Instant, frame_bytes: usize) -> SendOutcome {
    let body = vec![7; frame_bytes - ENVELOPE_BYTES];
    let length = u32::try_from(body.len()).expect("short");
    let kind = FrameKind::Eager;
    let head = Envelope { kind, flags: 0, context: 0, tag: 0, id: u32::MAX, length }.encode();
    let (lossy, nic, staging) = parts(engine);
    lossy.send(nic, staging, now, false, &[IoSlice::new(&head), IoSlice::new(&body)])
}

fn service(engine: &mut MessageEngine<SimNic>, now: Instant) -> Result<bool, ()> {
    let (lossy, nic, staging) = parts(engine);
    lossy.service(nic, staging, now)
}

fn counters(engine: &mut MessageEngine<SimNic>) -> ErrorControlCounters {
    parts(engine).0.counters
}

/// Returns how many staging buffers are free.
fn free(staging: &mut Staging) -> usize {
    let taken: Vec<_> =
        std::iter::from_fn(|| staging.stage(&[], 0, 0, Some(MemoryHandle(0)))).collect();
    taken.iter().for_each(|(cookie, _)| staging.give_back(*cookie));
    taken.len()
}

fn sealed(kind: u32, number: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes.extend_from_slice(payload);
    let length = u32::try_from(payload.len()).expect("short");
    ReliableHeader { kind, length, number, acknowledged: 0, selective: 0 }.seal(&mut bytes);
    bytes
}

/// Goal: the checksum is CRC-32C. Method: the check value of its definition, and any flipped bit.
#[test]
fn the_checksum_is_crc32c() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    let mut bytes = [7; HEADER_BYTES];
    ReliableHeader { kind: 1, length: 2, number: 3, acknowledged: 4, selective: 5 }
        .seal(&mut bytes);
    let sum = crc32c(&bytes[4..]);
    for bit in 32..HEADER_BYTES * 8 {
        let mut damaged = bytes;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(crc32c(&damaged[4..]), sum, "bit {bit}");
    }
}

/// Goal: a slot holds the longest frame with its header, and the area is used as far as an acknowledgement
/// can report. Method: lengths around a unit; areas with few and with many slots.
#[test]
fn the_area_is_divided_into_slots() {
    assert_eq!([0, 24, 25, 512, 536, 537].map(slot_bytes), [64, 64, 128, 576, 576, 640]);
    for (area_bytes, frame_bytes_max, slots) in [(4096, 512, 7), (65_536, 128, 64), (4096, 2000, 2)]
    {
        let mut pair = Pair::new(EngineConfig { area_bytes, frame_bytes_max, ..unreliable() });
        let (lossy, ..) = parts(pair.engine(0));
        assert_eq!((lossy.slots_in, lossy.slots_out), (slots, slots));
    }
}

/// Goal: packets are sent at once until the window is full, and the window is empty when all are
/// acknowledged. Method: one packet after the other, to a rank that takes them all at the end.
#[test]
fn packets_leave_until_the_window_is_full() {
    let mut pair = Pair::new(unreliable());
    assert!(pair.engine(0).has_all_left() && parts(pair.engine(0)).0.is_idle());
    for _ in 0..7 {
        assert!(parts(pair.engine(0)).0.has_room());
        let now = pair.network.now();
        assert_eq!(send(pair.engine(0), now, 20), SendOutcome::Done);
        assert_eq!(pair.travel(0), 1, "at once");
    }
    let now = pair.network.now();
    assert!(!parts(pair.engine(0)).0.has_room() && !pair.engine(0).has_all_left());
    assert_eq!(send(pair.engine(0), now, 20), SendOutcome::Blocked);
    assert_eq!(counters(pair.engine(0)).packets, 7);
    assert_eq!(pair.take(1), 7);
    assert_eq!(service(pair.engine(1), now), Ok(false), "it has sent nothing");
    let (lossy, nic, _) = parts(pair.engine(1));
    assert_eq!(lossy.acknowledge(nic), SendOutcome::Done);
    assert_eq!(pair.travel(1), 1);
    assert!(!pair.engine(0).has_all_left(), "not polled yet");
    pair.take(0);
    assert!(parts(pair.engine(0)).0.has_room() && pair.engine(0).has_all_left());
    assert_eq!(parts(pair.engine(0)).0.next_deadline(), None);
}

/// Goal: a packet is sent again when its time is over, which doubles up to 64 times. Method: a packet that is
/// never acknowledged, a nanosecond before each deadline and at it.
#[test]
fn timeouts_double_up_to_their_limit() {
    let mut pair = Pair::new(unreliable());
    let mut due = pair.network.now();
    assert_eq!(send(pair.engine(0), due, 20), SendOutcome::Done);
    assert_eq!(pair.travel(0), 1);
    for (count, factor) in (1..).zip([1, 2, 4, 8, 16, 32, 64, 64, 64]) {
        let early = due.saturating_add(2 * factor * MILLISECOND - NANOSECOND);
        due = due.saturating_add(2 * factor * MILLISECOND);
        assert_eq!(parts(pair.engine(0)).0.next_deadline(), Some(due), "{factor}");
        assert_eq!(service(pair.engine(0), early), Ok(false), "{factor}");
        assert_eq!(service(pair.engine(0), due), Ok(true), "{factor}");
        assert_eq!((pair.travel(0), counters(pair.engine(0)).retransmissions), (1, count));
    }
    assert_eq!(counters(pair.engine(0)).packets, 1);
}

/// Goal: a peer fails after the configured time of silence, and not before. Method: the deadlines up to that
/// time, which is the eighth one, or a nanosecond more.
#[test]
fn a_silent_peer_is_given_up() {
    for (more, ends) in [(Duration::ZERO, true), (NANOSECOND, false)] {
        let mut pair = Pair::new(unreliable());
        let begin = pair.network.now();
        parts(pair.engine(0)).0.give_up_after = 382 * MILLISECOND + more;
        assert_eq!(send(pair.engine(0), begin, 20), SendOutcome::Done);
        for after in [2, 6, 14, 30, 62, 126, 254] {
            assert_eq!(
                service(pair.engine(0), begin.saturating_add(after * MILLISECOND)),
                Ok(true)
            );
        }
        let served = service(pair.engine(0), begin.saturating_add(382 * MILLISECOND));
        assert_eq!(served.is_err(), ends);
    }
}

/// Goal: packets that the queue or the staging buffers do not take are due soon, and do not count as
/// retransmitted. Method: fill the queue, then the buffers; then make room.
#[test]
fn what_finds_no_descriptor_is_due_soon() {
    let config = EngineConfig { area_bytes: 65_536, frame_bytes_max: 512, ..unreliable() };
    let mut attributes = NicAttributes::named("sim");
    attributes.descriptors_max = 40;
    let mut pair = Pair::with(config, attributes);
    let now = pair.network.now();
    let (soon, late) = (now.saturating_add(MILLISECOND / 4), now.saturating_add(2 * MILLISECOND));
    for _ in 0..41 {
        assert_eq!(send(pair.engine(0), now, 20), SendOutcome::Done);
    }
    // A long packet, which finds a buffer and no descriptor.
    assert_eq!(send(pair.engine(0), now, 400), SendOutcome::Done);
    let (lossy, _, staging) = parts(pair.engine(0));
    let found: Vec<_> = lossy.packets.iter().map(|packet| (packet.due, packet.tries)).collect();
    assert_eq!(found[..40], [(late, 1); 40]);
    assert_eq!(found[40..], [(soon, 0); 2]);
    assert_eq!(free(staging), 2, "its buffer is free again");
    assert_eq!(pair.travel(0), 40);
    pair.take(0);
    assert_eq!(service(pair.engine(0), soon), Ok(true));
    assert_eq!((pair.travel(0), counters(pair.engine(0)).retransmissions), (2, 0));
    pair.take(0);

    // Two find buffers, the third does not.
    let now = pair.network.now();
    for _ in 0..3 {
        assert_eq!(send(pair.engine(0), now, 400), SendOutcome::Done);
    }
    let (lossy, _, staging) = parts(pair.engine(0));
    let tries: Vec<_> = lossy.packets.iter().skip(42).map(|packet| packet.tries).collect();
    assert_eq!((tries, free(staging)), (vec![1, 1, 0], 0));
    assert_eq!(lossy.packets[44].due, now.saturating_add(MILLISECOND / 4));
    assert_eq!(pair.travel(0), 2);
    pair.take(0);
    assert_eq!(free(parts(pair.engine(0)).2), 2, "each once");
}

/// Goal: an acknowledgement reports exactly what has arrived; duplicates and strays are counted. Method:
/// packets out of order, twice, and from beyond the window.
#[test]
fn what_has_arrived_is_told() {
    let mut pair = Pair::new(unreliable());
    let (lossy, ..) = parts(pair.engine(1));
    assert_eq!((lossy.received(), lossy.owes_ack), ((0, 0), false));
    let mut arrive = |number: u64| {
        let bytes = sealed(FRAME, number, &[1]);
        let header = ReliableHeader::read(bytes.first_chunk().expect("a header"));
        lossy.packet(&header, bytes);
        (lossy.received(), lossy.whole.len())
    };
    assert_eq!(arrive(0), ((1, 0), 1));
    assert_eq!(arrive(2), ((1, 0b1), 1));
    assert_eq!(arrive(3), ((1, 0b11), 1));
    assert_eq!(arrive(5), ((1, 0b1011), 1));
    assert_eq!(arrive(7), ((1, 0b10_1011), 1), "the last slot");
    assert_eq!(arrive(8), ((1, 0b10_1011), 1), "that of the first again");
    assert_eq!(arrive(0), ((1, 0b10_1011), 1), "it was here before");
    assert_eq!(arrive(2), ((1, 0b10_1011), 1), "and this");
    assert_eq!(arrive(1), ((4, 0b101), 4));
    assert_eq!(arrive(4), ((6, 0b1), 6));
    assert_eq!(arrive(6), ((8, 0), 8));
    let expected =
        ErrorControlCounters { duplicates: 2, damaged: 1, out_of_order: 4, ..Default::default() };
    assert_eq!((lossy.counters, lossy.owes_ack), (expected, true));
    let numbers: Vec<u64> = std::iter::from_fn(|| lossy.whole.pop_front())
        .map(|bytes| ReliableHeader::read(bytes.first_chunk().expect("a header")).number)
        .collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// Goal: packets that three acknowledged ones have overtaken are sent again at once; packets that have
/// arrived are not. Method: the same acknowledgement repeatedly, without any time passing.
#[test]
fn overtaken_packets_are_sent_again() {
    let mut pair = Pair::new(unreliable());
    let now = pair.network.now();
    for _ in 0..7 {
        assert_eq!(send(pair.engine(0), now, 20), SendOutcome::Done);
    }
    pair.travel(0);
    let header = |acknowledged, selective| ReliableHeader {
        kind: ACK,
        length: 0,
        number: 0,
        acknowledged,
        selective,
    };
    for round in 1..=3 {
        assert_eq!(service(pair.engine(0), now), Ok(false), "{round}");
        let (lossy, ..) = parts(pair.engine(0));
        // An acknowledgement that reports no later packet overtakes none.
        assert_eq!(lossy.acknowledged(&header(1, 0)), Ok(()));
        assert_eq!(lossy.acknowledged(&header(1, 0b1011)), Ok(()));
        let found: Vec<_> =
            lossy.packets.iter().map(|one| (one.number, one.has_arrived, one.overtaken)).collect();
        let (yes, no) = (true, false);
        let expected =
            [(1, no, round), (2, yes, 0), (3, yes, 0), (4, no, round), (5, yes, 0), (6, no, 0)];
        assert_eq!(found, expected);
    }
    assert_eq!(service(pair.engine(0), now), Ok(true));
    assert_eq!((pair.travel(0), counters(pair.engine(0)).retransmissions), (2, 2));
    assert_eq!(service(pair.engine(0), now), Ok(false), "once");
    // Packets that have arrived are not sent again when their time is over.
    let late = now.saturating_add(2 * MILLISECOND);
    assert_eq!(parts(pair.engine(0)).0.next_deadline(), Some(late), "that of number 6");
    assert_eq!(service(pair.engine(0), late), Ok(true));
    assert_eq!((pair.travel(0), counters(pair.engine(0)).retransmissions), (1, 3));
    let (lossy, ..) = parts(pair.engine(0));
    assert!(lossy.acknowledged(&header(8, 0)).is_err(), "it was never sent");
    assert_eq!((lossy.acknowledged(&header(7, 0)), lossy.is_idle()), (Ok(()), true));
    assert_eq!(lossy.acknowledged(&header(2, 0)), Ok(()), "an old one says nothing new");
}

/// Goal: an arrival is trusted only if it is whole and of its kind. Method: the longest packet, one byte more,
/// acknowledgements in the place of packets and vice versa, and damage in the header and behind it.
#[test]
fn only_whole_packets_are_believed() {
    let mut pair = Pair::new(unreliable());
    let (lossy, ..) = parts(pair.engine(1));
    let mut arrive = |immediate: i32, bytes: &[u8]| {
        match u64::try_from(immediate) {
            Ok(number) => lossy.own.area.memory.write(number % 7 * 576, bytes),
            Err(_) => lossy.own.control.memory.write(0, bytes),
        }
        .expect("inside");
        assert_eq!(lossy.arrived(immediate), Ok(()));
        (lossy.counters.damaged, lossy.next_in, lossy.owes_ack)
    };
    let longest = [3; 536];
    assert_eq!(arrive(-1, &sealed(ACK, 0, &[])), (0, 0, false));
    assert_eq!(arrive(-1, &sealed(FRAME, 0, &[])), (1, 0, false));
    assert_eq!(arrive(-1, &sealed(ACK, 0, &[1])), (2, 0, false));
    assert_eq!(arrive(0, &sealed(ACK, 0, &[])), (3, 0, false));
    assert_eq!(arrive(0, &sealed(FRAME, 0, &[3; 537])), (4, 0, false));
    for at in [0, 5, 9, 20, HEADER_BYTES, HEADER_BYTES + 535] {
        let mut bytes = sealed(FRAME, 0, &longest);
        bytes[at] ^= 1;
        assert!(!arrive(0, &bytes).2, "{at}");
    }
    assert_eq!(arrive(0, &sealed(FRAME, 0, &longest)), (10, 1, true));
    assert_eq!(arrive(6, &sealed(CONTROL, 1, &Control::Resume.encode())), (10, 2, true));
    assert_eq!(arrive(2, &sealed(CONTROL, 2, &[9; CONTROL_BYTES])), (10, 3, true));
    assert_eq!(arrive(3, &sealed(ACK + 1, 3, &[])), (10, 4, true));
    let Some(Ok(LoopbackItem::Frame(frame))) = lossy.take() else { panic!("a frame came first") };
    assert_eq!(frame[HEADER_BYTES..], longest);
    assert!(matches!(lossy.take(), Some(Ok(LoopbackItem::Control(Control::Resume)))));
    assert!(matches!(lossy.take(), Some(Err("an unknown control entry"))));
    assert!(matches!(lossy.take(), Some(Err("an unknown kind of packet"))));
    assert!(lossy.take().is_none());
}

/// Goal: an arrival is acknowledged once, by an acknowledgement or by the next packet. Method: a packet, after
/// which nothing or another packet is sent; count what is sent.
#[test]
fn an_arrival_is_acknowledged_once() {
    for sends in [false, true] {
        let mut pair = Pair::new(unreliable());
        let now = pair.network.now();
        assert_eq!(send(pair.engine(0), now, 20), SendOutcome::Done);
        pair.travel(0);
        assert_eq!(pair.take(1), 1);
        assert!(parts(pair.engine(1)).0.owes_ack);
        if sends {
            assert_eq!(send(pair.engine(1), now, 20), SendOutcome::Done);
            assert!(!parts(pair.engine(1)).0.owes_ack);
        }
        for _ in 0..2 {
            let (lossy, nic, _) = parts(pair.engine(1));
            assert_eq!((lossy.acknowledge(nic), lossy.owes_ack), (SendOutcome::Done, false));
        }
        assert_eq!(pair.travel(1), 1);
        pair.take(0);
        assert!(pair.engine(0).has_all_left());
    }
}
