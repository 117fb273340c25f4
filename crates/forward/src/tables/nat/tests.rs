use std::{
    collections::{BTreeMap, BTreeSet},
    hash::Hasher,
    net::{IpAddr, Ipv4Addr},
    sync::Weak,
    time::Duration,
};

use fastrand::Rng;
use proptest::prelude::*;
use siphasher::sip::SipHasher13;
use vigie_detect::Instant;

use super::*;
use crate::{
    packet::{ICMP, TCP, TcpFlags, UDP},
    tables::Prefix,
};

const START: Instant = Instant::from_nanos(0);
const EXTERNAL: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 9));

fn end(last: u8, port: u16) -> NatEndpoint {
    NatEndpoint::new([10, 0, 0, last].into(), port)
}

fn peer(number: u32, port: u16) -> NatEndpoint {
    NatEndpoint::new(Ipv4Addr::from(0xcb00_7100_u32.wrapping_add(number)).into(), port)
}

const fn tuple(protocol: u8, source: NatEndpoint, destination: NatEndpoint) -> NatTuple {
    NatTuple { protocol, source, destination, is_echo_reply: false }
}

fn syn() -> TcpProgress {
    TcpProgress::new(TcpFlags::SYN, 1, 0, 1000)
}

fn open(table: &NatTable, of: NatTuple, now: Instant) -> Result<NatTuple, NatError> {
    let tcp = (of.protocol == TCP).then(syn);
    table.open(of, (Some(EXTERNAL), None), tcp.as_ref(), now)
}

/// Sends a packet of a flow there, one back, and one there.
fn establish(table: &NatTable, of: NatTuple, becomes: NatTuple) {
    assert!(table.translate(&becomes.reversed(), None, START).is_some());
    assert!(table.translate(&of, None, START).is_some());
}

/// The ports of the command.
fn table() -> NatTable {
    NatTable::builder().seed(3).ports(32_768, 60_999).build()
}

/// Goal: what one host begins, in whatever numbers, stops no new flow of another host, ends no established one, and
/// stays within its share. Method: 40 000 unanswered SYNs from their own ports, then as many answered queries of DNS;
/// after each thousand another host begins a flow of each protocol.
#[test]
fn a_flood_stops_no_other_host() {
    let table = table();
    let of_other = tuple(TCP, end(3, 999), peer(1, 443));
    let kept = open(&table, of_other, START).unwrap();
    establish(&table, of_other, kept);
    let of_flooder = tuple(TCP, end(2, 1), peer(1, 22));
    let long = open(&table, of_flooder, START).unwrap();
    establish(&table, of_flooder, long);
    let mut rng = Rng::with_seed(1);
    for number in 0..80_000_u32 {
        let is_query = number >= 40_000;
        let source = end(2, rng.u16(2..));
        let (protocol, to) = if is_query { (UDP, 53) } else { (TCP, 80) };
        let flow = tuple(protocol, source, peer(rng.u32(0..1 << 20), to));
        if table.peek(&flow).is_some() {
            continue;
        }
        let becomes = open(&table, flow, START).expect("its own are evicted");
        if is_query {
            assert!(table.translate(&becomes.reversed(), None, START).is_some());
        }
        if number % 1000 == 0 {
            let port = 1000 + u16::try_from(number / 1000).unwrap();
            for protocol in [TCP, UDP] {
                let flow = tuple(protocol, end(4, port), peer(7, 80));
                let becomes = open(&table, flow, START).expect("another host has room");
                assert!(table.translate(&becomes.reversed(), None, START).is_some());
            }
        }
    }
    let usage = table.usage();
    assert!(usage.ports <= usage.ports_max / 2 + 82, "{usage:?}");
    assert!(usage.evicted > 40_000 && usage.refused == 0, "{usage:?}");
    assert_eq!(table.peek(&of_other), Some(kept));
    assert_eq!(table.peek(&of_flooder), Some(long));
    for port in 1000..1080 {
        assert!(table.peek(&tuple(TCP, end(4, port), peer(7, 80))).is_some(), "{port}");
    }
}

/// Goal: where several hosts use up all ports, the largest loses unanswered flows, not the one that is new. Method:
/// three hosts fill the ports; others begin flows; then everything is established, and the next one is refused.
#[test]
fn the_largest_host_loses_first() {
    let table = NatTable::builder().seed(5).ports(1024, 1323).build();
    for (host, count) in [(2, 150), (3, 100), (4, 50)] {
        for port in 0..count {
            open(&table, tuple(UDP, end(host, port), peer(1, 9)), START).unwrap();
        }
    }
    assert_eq!(table.usage().percent(), 100);
    let counts = |table: &NatTable| {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for flow in table.flows() {
            *counts.entry(flow.original.source.address).or_default() += 1;
        }
        counts
    };
    for port in 0..60 {
        open(&table, tuple(UDP, end(5, port), peer(1, 9)), START).unwrap();
    }
    let (left, of) = (counts(&table), |last| IpAddr::from([10, 0, 0, last]));
    let found = [2, 3, 4, 5].map(|last| left.get(&of(last)).copied());
    assert_eq!(found, [Some(95), Some(95), Some(50), Some(60)]);
    for flow in table.flows() {
        establish(&table, flow.original, flow.translated);
    }
    let another = tuple(UDP, end(6, 1), peer(1, 9));
    let refused = NatError::Ports { address: EXTERNAL, protocol: UDP };
    assert_eq!(open(&table, another, START), Err(refused));
    assert_eq!(table.usage().refused, 1);
    // Its own share: 150 of 300 ports.
    let full = NatTable::builder().seed(5).ports(1024, 1323).build();
    for port in 0..150 {
        let flow = tuple(UDP, end(2, port), peer(1, 9));
        establish(&full, flow, open(&full, flow, START).unwrap());
    }
    let refused = NatError::Host { host: of(2), max: 150 };
    assert_eq!(open(&full, tuple(UDP, end(2, 150), peer(1, 9)), START), Err(refused));
    assert!(open(&full, tuple(UDP, end(3, 150), peer(1, 9)), START).is_ok());
}

/// A processor that has translated packets of these tuples, and counts how often it is asked.
#[derive(Default)]
struct Program {
    used: Mutex<BTreeMap<NatTuple, Instant>>,
    asked: AtomicU64,
}

impl FlowProcessor for Program {
    fn last_used(&self, tuple: &NatTuple) -> Option<Instant> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.used.lock().unwrap().get(tuple).copied()
    }
}

/// Goal: what only another processor has seen of a flow counts when the flow is to be evicted, at each limit, and at no other time; old
/// times and processors that are gone count for nothing; a flood costs one question for each eviction. Method: of 40 flows, all but one
/// were answered and used again, or answered, or only used again; then more flows.
#[test]
fn flows_in_use_elsewhere_are_kept() {
    let of = |number: u16| tuple(UDP, end(2, number), peer(1, 9));
    let began = START + Duration::from_secs(5);
    let builder = || NatTable::builder().seed(7).host_percent(100);
    let block = PortBlocks::new(vec!["10.0.0.2/32".parse().unwrap()], 40.try_into().unwrap());
    for full in [
        builder().ports(2000, 2039),
        builder().ports(2000, 2079).host_percent(50),
        builder().ports(2000, 2039).port_blocks(block),
        builder().flows_max(40),
        builder().flows_max(80).host_percent(50),
    ] {
        let (table, program) = (full.build(), Arc::new(Program::default()));
        let gone = Arc::new(Program::default());
        gone.used.lock().unwrap().extend([20, 21].map(|number| (of(number), began)));
        for processor in [&program, &gone] {
            let processor: Weak<Program> = Arc::downgrade(processor);
            table.add_processor(processor);
        }
        let asked = || program.asked.swap(0, Ordering::Relaxed);
        let use_at = |tuple, at| program.used.lock().unwrap().extend([(tuple, at)]);
        let answered = |flow: NatTuple, at| use_at(table.peek(&flow).unwrap().reversed(), at);
        let is_there = |number| table.peek(&of(number)).is_some();
        for number in 0..40 {
            open(&table, of(number), began).unwrap();
            // The last one of these times is another flow's.
            let at = if number == 20 { START } else { began };
            use_at(of(number), at);
            if number != 21 {
                answered(of(number), at);
            }
        }
        assert_eq!((table.usage().evicted, asked()), (0, 0));
        gone.used
            .lock()
            .unwrap()
            .extend([20, 21].map(|number| (table.peek(&of(number)).unwrap().reversed(), began)));
        drop(gone);
        open(&table, of(40), began).unwrap();
        assert!(is_there(19) && !is_there(20) && is_there(21));
        // Both ways of the first 20, and back of the next one.
        assert_eq!(asked(), 41);
        open(&table, of(41), began).unwrap();
        assert!(!is_there(21) && is_there(22));
        assert_eq!(asked(), 1);

        // The other 18 flows in use are examined once; after that, each new flow evicts the oldest unused one.
        for number in 42..1042 {
            open(&table, of(number), began).unwrap();
        }
        assert_eq!(asked(), 18 * 2 + 1000);
        assert!((0..20).chain(22..40).all(is_there));

        // The host has heard an answer, and the program what came after it.
        for number in [1040, 1041] {
            table.translate(&table.peek(&of(number)).unwrap().reversed(), None, began).unwrap();
        }
        use_at(of(1040), began);
        open(&table, of(1042), began).unwrap();
        assert!(is_there(1040) && !is_there(1041));
        // Its first packet back only: it goes when nothing has less to lose.
        answered(of(1042), began);
        open(&table, of(1043), began).unwrap();
        assert!(!is_there(1042));
        use_at(of(1043), began);
        answered(of(1043), began);
        assert!(open(&table, of(1044), began).is_err());
        assert_eq!((table.len(), is_there(1043)), (40, true));
    }
}

/// Goal: a new flow examines a bounded number of others. Method: 100 that only a processor knows to be established.
#[test]
fn a_new_flow_examines_few_others() {
    let builder = || NatTable::builder().seed(7).host_percent(100);
    for full in [builder().flows_max(100), builder().ports(2000, 2099)] {
        let table = full.build();
        let program = Arc::new(Program::default());
        let processor: Weak<Program> = Arc::downgrade(&program);
        table.add_processor(processor);
        let of = |number: u16| tuple(UDP, end(2, 2000 + number), peer(1, 9));
        let open_used = |number| {
            let back = open(&table, of(number), START).unwrap().reversed();
            program.used.lock().unwrap().extend([(of(number), START), (back, START)]);
        };
        (0..100).for_each(open_used);
        for asked in [64, 128, 192, 200, 200] {
            let refused = open(&table, of(100), START).unwrap_err();
            assert_eq!(refused, NatError::Host { host: [10, 0, 0, 2].into(), max: 100 });
            assert_eq!(program.asked.load(Ordering::Relaxed), asked);
        }
        assert_eq!((table.len(), table.usage().evicted), (100, 0));
    }

    // The last candidate of 32 makes room.
    let table = builder().ports(2000, 2031).build();
    let program = Arc::new(Program::default());
    let processor: Weak<Program> = Arc::downgrade(&program);
    table.add_processor(processor);
    for number in 0..32 {
        let flow = tuple(UDP, end(2, 2000 + number), peer(1, 9));
        let back = open(&table, flow, START).unwrap().reversed();
        if number < 31 {
            program.used.lock().unwrap().extend([(flow, START), (back, START)]);
        }
    }
    open(&table, tuple(UDP, end(2, 2032), peer(1, 9)), START).unwrap();
    assert_eq!((table.len(), table.usage().evicted), (32, 1));
}

/// Blocks of 4 of the ports 2000 to 2030, for the hosts 10.0.0.2 and 3, and 10.0.0.8 to 15; the last 3 hosts and 3 ports are left over.
fn blocks() -> PortBlocks {
    let networks = ["10.0.0.2/31", "10.0.0.8/29"].map(|text| text.parse().unwrap());
    PortBlocks::new(networks.to_vec(), 4.try_into().unwrap())
}

fn table_of_blocks() -> NatTable {
    NatTable::builder().seed(7).ports(2000, 2030).low_ports(600, 700).port_blocks(blocks()).build()
}

/// Goal: hosts have blocks in the order of networks and addresses, as many as there are whole ones. Method: the first, the last, and hosts
/// beside them; networks of all addresses.
#[test]
fn hosts_have_blocks_in_order() {
    let of = |last: u8| {
        let block = blocks().of_host([10, 0, 0, last].into(), (2000, 2030));
        block.map(|block| (block.first, block.last))
    };
    assert_eq!((blocks().hosts(), blocks().count((2000, 2030))), (10, 7));
    assert_eq!(
        [2, 3, 8, 12].map(of),
        [(2000, 2003), (2004, 2007), (2008, 2011), (2024, 2027)].map(Some)
    );
    assert_eq!([1, 4, 7, 13, 15, 16].map(of), [None; 6]);
    assert_eq!(blocks().of_host("fd00::1".parse().unwrap(), (2000, 2030)), None);
    let of = |networks: &[Prefix], size: u16| {
        PortBlocks::new(networks.to_vec(), size.try_into().unwrap())
    };
    assert_eq!(of(&[Prefix::ALL_V4], 1).hosts(), 1 << 32);
    assert_eq!(of(&[Prefix::ALL_V6, Prefix::ALL_V6], 1).hosts(), u128::MAX);
    let all =
        of(&["10.0.0.0/24".parse().unwrap()], 256).of_host([10, 0, 0, 255].into(), (0, u16::MAX));
    assert_eq!(
        all,
        Some(PortBlock { host: [10, 0, 0, 255].into(), first: 65_280, last: u16::MAX })
    );
}

/// Goal: a host with a full block loses its own oldest unanswered flow, or is refused, and others are not touched; so is one without a
/// block. Restored flows keep their ports, and those outside of the host's block are left. Method: a host with five flows, unanswered and
/// then in use; a table with other blocks.
#[test]
fn a_full_block_is_its_hosts() {
    let table = table_of_blocks();
    let flow = |last, port| tuple(UDP, end(last, port), peer(1, 9));
    let other = open(&table, flow(3, 1), START).unwrap();
    assert!((2004..=2007).contains(&other.source.port));
    let mut flows: Vec<_> =
        (0..4).map(|port| (flow(2, port), open(&table, flow(2, port), START).unwrap())).collect();
    assert_eq!(table.usage().limit, None);
    flows.push((flow(2, 4), open(&table, flow(2, 4), START).unwrap()));
    assert_eq!((table.peek(&flow(2, 0)), table.usage().evicted), (None, 1));
    let full = PortBlock { host: [10, 0, 0, 2].into(), first: 2000, last: 2003 };
    assert_eq!(table.usage().limit, Some(NatLimit::Block(full)));
    for (of, becomes) in &flows[1..] {
        establish(&table, *of, *becomes);
    }
    let refused = NatError::Host { host: full.host, max: 4 };
    assert_eq!(open(&table, flow(2, 5), START), Err(refused));
    assert!(open(&table, flow(3, 2), START).is_ok());
    assert_eq!(table.usage().limit, Some(NatLimit::Block(full)), "of the last eviction or refusal");
    let none = NatError::NoBlock { host: [10, 0, 0, 13].into() };
    assert_eq!(open(&table, flow(13, 5), START), Err(none));
    assert_eq!((table.peek(&flow(3, 1)), table.usage().limit), (Some(other), None));

    let saved = table.save(START);
    let same = table_of_blocks();
    assert_eq!(same.restore(&saved, Duration::ZERO, |_| true, START), Ok((6, 0)));
    assert!(flows[1..].iter().all(|(of, becomes)| same.peek(of) == Some(*becomes)));
    let refused = NatError::Host { host: full.host, max: 4 };
    assert_eq!(open(&same, flow(2, 5), START), Err(refused));
    let moved = NatTable::builder().ports(2004, 2030).port_blocks(blocks()).build();
    assert_eq!(moved.restore(&saved, Duration::ZERO, |_| true, START), Ok((0, 6)));
    assert_eq!(moved.usage().ports, 0);
}

/// Goal: unanswered flows go before answered ones, and within each kind the oldest. Method: a host with room for four.
#[test]
fn the_unanswered_go_first() {
    let table = NatTable::builder().seed(6).ports(1024, 1031).build();
    let flow = |port| tuple(UDP, end(2, port), peer(1, 9));
    let begin = |port| open(&table, flow(port), START).unwrap();
    let answer = |becomes: NatTuple| table.translate(&becomes.reversed(), None, START).unwrap();
    let opened = [0, 1, 2, 3].map(begin);
    answer(opened[0]);
    answer(opened[2]);
    let alive = || [0, 1, 2, 3, 4, 5, 6].map(|port| table.peek(&flow(port)).is_some());
    answer(begin(4));
    assert_eq!(alive(), [true, false, true, true, true, false, false]);
    answer(begin(5));
    assert_eq!(alive(), [true, false, true, false, true, true, false]);
    begin(6);
    assert_eq!(alive(), [false, false, true, false, true, true, true]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Goal: an inside end has one external port for all its peers while one of its flows lives, no two ends share one,
    /// ports keep their parity while there are such, reserved ones are not assigned, and shares are kept. Method: random
    /// beginnings, answers and ends, compared with the flows that the table lists.
    #[test]
    fn mappings_are_of_ends(seed in any::<u64>()) {
        let mut rng = Rng::with_seed(seed);
        let table = NatTable::builder().seed(seed).ports(2000, 2063).flows_max(120).build();
        for protocol in [TCP, UDP] {
            table.reserve(protocol, NatEndpoint::new(EXTERNAL, 2001));
        }
        let mut now = START;
        for _ in 0..300 {
            let protocol = [TCP, UDP][rng.usize(..2)];
            let flow = tuple(protocol, end(rng.u8(2..5), rng.u16(..20)), peer(rng.u32(..6), rng.u16(..3)));
            now += Duration::from_secs(rng.u64(0..8));
            let known = table.peek(&flow);
            let free = 63 - table.flows().iter().filter(|one| one.original.protocol == protocol)
                .map(|one| one.translated.source).collect::<BTreeSet<_>>().len();
            match table.translate(&flow, None, now) {
                Some(becomes) => {
                    prop_assert_eq!(Some(becomes), known);
                    if rng.bool() {
                        prop_assert_eq!(table.translate(&becomes.reversed(), None, now), Some(flow.reversed()));
                    }
                }
                None => {
                    if let Ok(becomes) = open(&table, flow, now) {
                        let parity = becomes.source.port & 1 == flow.source.port & 1;
                        prop_assert!(parity || free < 40, "{free} were free");
                    }
                }
            }
            let mut there = BTreeMap::new();
            let mut back = BTreeMap::new();
            let mut hosts = BTreeMap::<_, usize>::new();
            for NatFlow { original, translated } in table.flows() {
                let (inside, outside) = ((original.protocol, original.source), translated.source);
                prop_assert_eq!(*there.entry(inside).or_insert(outside), outside);
                prop_assert_eq!(*back.entry((original.protocol, outside)).or_insert(inside), inside);
                prop_assert!((2000..=2063).contains(&outside.port) && outside.port != 2001);
                *hosts.entry((original.protocol, original.source.address)).or_default() += 1;
                let found = table.internal(original.protocol, outside, Some(original.destination.address));
                prop_assert_eq!(found, Some(original.source));
                prop_assert_eq!(table.internal(original.protocol, outside, Some(EXTERNAL)), None);
            }
            prop_assert!(hosts.values().all(|count| *count <= 60), "{hosts:?}");
            prop_assert!(table.len() <= 120);
        }
        table.expire(now + Duration::from_secs(10_000));
        prop_assert!(table.is_empty());
        prop_assert_eq!(table.usage().ports, 1, "the reserved one");
    }

    /// Goal: the ports of a host are of its block alone, whatever else happens, also low ones; and no port is lost. Method: random
    /// beginnings, answers and ends of five hosts with blocks, and of one without.
    #[test]
    fn ports_are_of_the_hosts_block(seed in any::<u64>()) {
        let mut rng = Rng::with_seed(seed);
        let table = table_of_blocks();
        let mut now = START;
        for _ in 0..300 {
            let protocol = [TCP, UDP, ICMP][rng.usize(..3)];
            let host = [2, 3, 8, 9, 12, 13][rng.usize(..6)];
            let flow = tuple(protocol, end(host, rng.u16(..8) * 300), peer(rng.u32(..3), 0));
            now += Duration::from_secs(rng.u64(0..20));
            match table.translate(&flow, None, now) {
                Some(becomes) if rng.bool() => {
                    prop_assert!(table.translate(&becomes.reversed(), None, now).is_some());
                }
                Some(_) => {}
                None => {
                    let opened = open(&table, flow, now);
                    prop_assert_eq!(matches!(opened, Err(NatError::NoBlock { .. })), host == 13);
                }
            }
            for NatFlow { original, translated } in table.flows() {
                let block = blocks().of_host(original.source.address, (2000, 2030)).unwrap();
                prop_assert!((block.first..=block.last).contains(&translated.source.port));
            }
        }
        table.expire(now + Duration::from_secs(10_000));
        prop_assert_eq!((table.len(), table.usage().ports, table.usage().ports_max), (0, 0, 28));
    }

    /// Goal: of all RSTs, from either side, those that end a connection are those inside the window of the other end, and
    /// others change nothing. Method: random numbers and windows, the distance computed in 64 bits.
    #[test]
    fn only_segments_in_the_window_end(
        starts in any::<[u32; 2]>(), windows in any::<[u16; 2]>(), shift in proptest::option::of(0..20_u8),
        sequences in proptest::collection::vec(any::<u32>(), 1..40), near in -3..3_i64, is_reply in any::<bool>(),
    ) {
        let table = table();
        let flow = tuple(TCP, end(2, 5), peer(1, 80));
        let mut syn = TcpProgress::new(TcpFlags::SYN, starts[0], 0, windows[0]);
        syn.shift = shift;
        let becomes = table.open(flow, (Some(EXTERNAL), None), Some(&syn), START).unwrap();
        let ways = [flow, becomes.reversed()];
        let next = starts.map(|start| start.wrapping_add(1));
        let syn_ack = TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0);
        let mut answer = TcpProgress::new(syn_ack, starts[1], next[0], windows[1]);
        answer.shift = shift;
        let pass = |way: usize, tcp: &TcpProgress| table.translate(&ways[way], Some(tcp), START).unwrap();
        pass(1, &answer);
        for way in [0, 1] {
            pass(way, &TcpProgress::new(TcpFlags::ACK, next[way], next[1 - way], windows[way]));
        }
        let way = usize::from(is_reply);
        let window = u64::from(windows[1 - way]) << shift.unwrap_or(0).min(14);
        let edge = i64::from(next[way]) + i64::try_from(window).unwrap() + near;
        let edge = u32::try_from(edge.rem_euclid(1 << 32)).unwrap();
        for sequence in sequences.into_iter().chain([edge, next[way].wrapping_sub(1), next[way]]) {
            let distance = (u64::from(sequence) + (1 << 32) - u64::from(next[way])) % (1 << 32);
            pass(way, &TcpProgress::new(TcpFlags::RST, sequence, 0, 0));
            let is_short = table.timeout_of(&flow) == Some(NatTimeouts::default().tcp_transitory);
            prop_assert_eq!(is_short, distance <= window, "{} of {}", distance, window);
            if is_short {
                break;
            }
        }
    }
}

/// Goal: a TCP connection has a long time-out once its initiator has acknowledged the answer, and a short one before and
/// after; one that begins again is a new one. Method: the table itself, just before and after each time-out.
#[test]
fn connections_live_by_their_state() {
    let table = NatTable::builder().seed(1).build();
    let flow = tuple(TCP, end(2, 5), peer(1, 80));
    let times = NatTimeouts::default();
    let seconds = Duration::from_secs;
    let open = |now| open(&table, flow, now).unwrap().reversed();
    let there = |flags, now| {
        table.translate(&flow, Some(&TcpProgress::new(flags, 2, 2, 1000)), now).is_some()
    };
    let back = |way: NatTuple, flags, now| {
        table.translate(&way, Some(&TcpProgress::new(flags, 2, 2, 1000)), now).is_some()
    };
    let at = |time| START + time;
    open(START);
    assert_eq!(table.expire(at(times.tcp_transitory - Duration::from_nanos(1))), 0);
    assert!(!there(TcpFlags::ACK, at(times.tcp_transitory)), "no answer yet");
    let way = open(START);
    assert!(back(way, TcpFlags::ACK, START));
    assert_eq!(table.expire(at(times.tcp_transitory)), 1, "the answer is not acknowledged");
    let way = open(START);
    assert!(back(way, TcpFlags::ACK, START) && there(TcpFlags::ACK, START));
    let now = Instant::from_nanos(at(times.tcp_established).as_nanos() - 1);
    assert!(there(TcpFlags::ACK, now), "established connections are kept for long");
    assert_eq!(table.expire(now + seconds(100)), 0);
    assert!(there(TcpFlags::FIN, now) && back(way, TcpFlags::FIN, now));
    assert_eq!(table.expire(now + (times.tcp_transitory - seconds(1))), 0);
    let later = now + (times.tcp_transitory - seconds(1));
    assert!(there(TcpFlags::SYN, later) && back(way, TcpFlags::ACK, later));
    assert!(there(TcpFlags::ACK, later));
    assert_eq!(table.expire(later + times.tcp_transitory), 0, "it is established again");
    assert_eq!(table.expire(later + times.tcp_established), 1);
    assert!(table.is_empty());
}

/// Goal: RFC 5508, REQ-2: a query's flow lives for 60 s after its last packet, answered or not. Method: flows of echoes, just before and after that.
#[test]
fn echoes_live_for_a_minute() {
    let table = table();
    let after = |seconds| START + Duration::from_secs(seconds);
    let [silent, answered] = [7, 8].map(|id| tuple(ICMP, end(2, id), peer(1, id)));
    open(&table, silent, START).unwrap();
    let becomes = open(&table, answered, START).unwrap();
    assert!(table.translate(&becomes.reversed(), None, after(50)).is_some());
    table.expire(after(59));
    assert!(table.peek(&silent).is_some() && table.peek(&answered).is_some());
    table.expire(after(61));
    assert!(table.peek(&silent).is_none() && table.peek(&answered).is_some());
    table.expire(after(109));
    assert!(table.peek(&answered).is_some());
    table.expire(after(111));
    assert_eq!((table.len(), table.usage().ports), (0, 0));
}

/// Goal: where a program has forwarded the segments, an RST is judged by what the program saw, once; and a forged one
/// stays forged. Method: the window moves on without the table; an RST at its new place, and one elsewhere.
#[test]
fn what_a_program_saw_counts() {
    for (sequence, ends) in [(900_000, true), (900_000_000, false)] {
        let table = NatTable::builder().seed(1).build();
        let flow = tuple(TCP, end(2, 5), peer(1, 80));
        let becomes = open(&table, flow, START).unwrap();
        let back = becomes.reversed();
        let ack = |acknowledged| TcpProgress::new(TcpFlags::ACK, 2, acknowledged, 1000);
        assert!(table.translate(&back, Some(&ack(2)), START).is_some());
        assert!(table.translate(&flow, Some(&ack(2)), START).is_some());
        let rst = TcpProgress::new(TcpFlags::RST, sequence, 0, 0);
        assert!(table.translate(&back, Some(&rst), START).is_some());
        let established = Some(NatTimeouts::default().tcp_established);
        assert_eq!(table.timeout_of(&flow), established);
        assert!(table.touch(&flow, Some(&ack(899_500)), START));
        assert_eq!(table.timeout_of(&flow) != established, ends);
        // It is judged once: the window may come by later.
        assert!(table.touch(&flow, Some(&ack(899_999_900)), START));
        assert_eq!(table.timeout_of(&flow) != established, ends);
    }
}

/// Goal: all of 10 000 flows go on after a restart, with their ports, states and time-outs, and new ones get other ports; of those
/// that have expired, or that another table holds no port for, none comes back. Method: a table of each protocol saved, and restored
/// into new ones.
#[test]
fn flows_outlive_a_restart() {
    let before = table();
    let mut flows = Vec::new();
    for number in 0..10_000_u16 {
        let protocol = if number.is_multiple_of(2) { TCP } else { UDP };
        let of =
            tuple(protocol, end(u8::try_from(number % 50).unwrap(), 1000 + number), peer(1, 443));
        let becomes = open(&before, of, START).unwrap();
        if number.is_multiple_of(3) {
            establish(&before, of, becomes);
        }
        flows.push((of, becomes, before.timeout_of(&of)));
    }
    let saved = before.save(START + Duration::from_secs(1));
    let now = START + Duration::from_secs(100);
    let after = table();
    let age = Duration::from_secs(20);
    assert_eq!(after.restore(&saved, age, |_| true, now), Ok((10_000, 0)));
    for (of, becomes, timeout) in &flows {
        assert_eq!(after.peek(of), Some(*becomes));
        assert_eq!(after.peek(&becomes.reversed()), Some(of.reversed()));
        assert_eq!(after.timeout_of(of), *timeout);
    }
    let fresh = open(&after, tuple(UDP, end(60, 9), peer(1, 443)), now).unwrap();
    let mut same_protocol = flows.iter().filter(|(of, ..)| of.protocol == UDP);
    assert!(same_protocol.all(|(_, becomes, _)| becomes.source != fresh.source));
    // Again, nothing is there twice.
    assert_eq!(after.restore(&saved, age, |_| true, now), Ok((0, 10_000)));
    assert_eq!(after.len(), 10_001);

    // Those that were not established have expired after five minutes, those of TCP that were live for two hours.
    let late = table();
    let (restored, lost) =
        late.restore(&saved, Duration::from_secs(301), |_| true, now).expect("it is whole");
    let lasting = flows.iter().filter(|(.., timeout)| *timeout > Some(Duration::from_secs(400)));
    assert_eq!((restored, restored + lost), (lasting.count(), 10_000));
    assert_eq!(late.usage().flows, restored);
    let other = NatTable::builder().seed(1).ports(1024, 2000).build();
    assert_eq!(other.restore(&saved, age, |_| true, now), Ok((0, 10_000)));
    assert_eq!(other.usage().ports, 0);
    assert_eq!(table().restore(&saved, age, |_| false, now), Ok((0, 10_000)));
}

/// Goal: the age of a flow is the time since it began, whenever its last packet came. Method: two flows, of which one is used.
#[test]
fn flows_have_ages() {
    let table = table();
    let [first, second] = [1, 2].map(|last| tuple(UDP, end(last, 1000), peer(1, 443)));
    let at = |seconds| START + Duration::from_secs(seconds);
    open(&table, first, at(1)).unwrap();
    open(&table, second, at(3)).unwrap();
    assert!(table.translate(&first, None, at(4)).is_some());
    let ages = table.flows_with_ages(at(5));
    let ages = ages.iter().map(|(flow, age)| (flow.original, age.as_secs())).collect::<Vec<_>>();
    assert_eq!(ages, [(first, 4), (second, 2)]);
}

/// Goal: what is cut off, changed, of another version or something else is a typed error, and leaves the table as it was. Method:
/// every prefix of a small table, every changed byte, and other bytes.
#[test]
fn damaged_flows_are_refused() {
    let before = table();
    for number in 0..5 {
        open(&before, tuple(UDP, end(1, 1000 + number), peer(1, 443)), START).unwrap();
    }
    let saved = before.save(START);
    let after = table();
    let restore = |bytes: &[u8]| after.restore(bytes, Duration::ZERO, |_| true, START);
    for length in 0..saved.len() {
        let error = if length < 8 { NatRestoreError::Foreign } else { NatRestoreError::Damaged };
        assert_eq!(restore(&saved[..length]), Err(error), "{length}");
    }
    for at in 0..saved.len() {
        let mut changed = saved.clone();
        changed[at] ^= 1;
        let error = restore(&changed).expect_err("it was changed");
        match at {
            0..8 => assert_eq!(error, NatRestoreError::Foreign),
            8..12 => assert!(matches!(error, NatRestoreError::Version { .. }), "{at}: {error}"),
            _ => assert_eq!(error, NatRestoreError::Damaged, "{at}"),
        }
    }
    assert_eq!(restore(b"[[nat]]\n"), Err(NatRestoreError::Foreign));
    assert!(after.is_empty());
    assert_eq!(restore(&saved), Ok((5, 0)));
}

/// Goal: a source with a port below 1024 gets such a port of the same parity while there are any, other sources do when there are no
/// others, and a freed one goes back to the low ones. Method: more low sources than there are low ports, between others; then two tables
/// that are small, one filled by others, the other by low sources whose flows are evicted for them.
#[test]
fn low_ports_keep_their_range() {
    let builder = NatTable::builder().seed(5).ports(32_768, 60_999).low_ports(600, 1023);
    let table = builder.host_percent(100).build();
    let port_of = |number: u16, port: u16, now| {
        let host = end(u8::try_from(number % 200).unwrap(), port);
        open(&table, tuple(UDP, host, peer(1, 443)), now).unwrap().source.port
    };
    let mut lows = BTreeSet::new();
    for number in 0..424 {
        let like = 100 + number;
        let low = port_of(number, like, START);
        assert!((600..=1023).contains(&low) && low % 2 == like % 2, "{like} became {low}");
        assert!(lows.insert(low));
        assert!(port_of(number, 2000 + number, START) >= 32_768);
    }
    assert!(port_of(1, 999, START) >= 32_768);
    let later = START + Duration::from_secs(301);
    assert!(table.expire(later) > 800);
    assert!((600..=1023).contains(&port_of(2, 998, later)));
    let usage = table.usage();
    assert_eq!((usage.ports, usage.ports_max), (1, 28_232 + 424));

    let small = NatTable::builder().seed(5).ports(1020, 1027).low_ports(1016, 1023);
    for first in [5000, 500] {
        let table = small.clone().host_percent(100).build();
        let fill = |from: u16| {
            (from..from + 12).map(|port| {
                let flow = tuple(UDP, end(1, port), peer(1, 443));
                open(&table, flow, START).unwrap().source.port
            })
        };
        assert_eq!(fill(first).collect::<BTreeSet<_>>(), (1016..=1027).collect());
        assert_eq!((table.usage().percent(), table.usage().evicted), (100, 0));
        assert_eq!(fill(6000).collect::<BTreeSet<_>>(), (1016..=1027).collect());
        assert_eq!((table.usage().refused, table.usage().evicted), (0, 12));
    }
}

/// Goal: flows that no table has written are taken over or left, and what is taken over is one table's: no end twice, no port without a flow; with any age, as
/// when the wall clock was set. Method: saved tables with mutations below a checksum that is right again, from 3000 seeds.
#[test]
fn any_saved_flows_are_read_safely() {
    let before = table();
    for number in 0..8 {
        let protocol = [TCP, UDP, ICMP][usize::from(number % 3)];
        open(&before, tuple(protocol, end(1, 1000 + number), peer(1, 443)), START).unwrap();
    }
    let saved = before.save(START);
    let (mut kept, mut refused) = (0, 0);
    for seed in 0..3000 {
        let mut rng = Rng::with_seed(seed);
        let mut bytes = saved[..saved.len() - 8].to_vec();
        for _ in 0..rng.usize(1..6) {
            let at = rng.usize(12..bytes.len());
            match rng.u8(..4) {
                0 => bytes.truncate(at.max(16)),
                1 => {
                    let piece = bytes[at..].to_vec();
                    bytes.splice(at..at, piece);
                }
                2 => bytes[at] = [0, 4, 16, 0xff][rng.usize(..4)],
                _ => bytes[at] = rng.u8(..),
            }
        }
        let mut hasher = SipHasher13::new();
        hasher.write(&bytes);
        bytes.extend(hasher.finish().to_be_bytes());
        let age =
            [Duration::ZERO, Duration::from_secs(rng.u64(..400)), Duration::MAX][rng.usize(..3)];
        let table = table();
        let now = [START, START + Duration::from_secs(1000)][rng.usize(..2)];
        match table.restore(&bytes, age, |_| true, now) {
            Ok((restored, _)) => {
                kept += restored;
                assert_eq!((table.len(), table.usage().flows), (restored, restored), "{seed}");
                let flows: BTreeSet<_> =
                    table.flows().iter().map(|flow| format!("{:?}", flow.translated)).collect();
                assert_eq!(flows.len(), restored, "{seed}");
                table.expire(now + Duration::from_secs(1 << 20));
                assert_eq!((table.len(), table.usage().ports), (0, 0), "{seed}");
            }
            Err(error) => {
                refused += 1;
                assert_eq!((error, table.len()), (NatRestoreError::Damaged, 0), "{seed}");
            }
        }
    }
    assert!(kept > 1000 && refused > 1000, "{kept} {refused}");
}

/// Goal: with an age that a changed wall clock made wrong, flows live no longer than their time-out from the start on, and none comes back that is too old. Method:
/// flows of UDP that are 100 s old, with the ages of a clock that was set back, right, and set ahead; also just after the machine has started.
#[test]
fn a_wrong_age_keeps_no_flow_for_longer() {
    let before = table();
    let flow = tuple(UDP, end(1, 1000), peer(1, 443));
    open(&before, flow, START).unwrap();
    let saved = before.save(START + Duration::from_secs(100));
    for boot in [0, 50, 100_000] {
        let now = START + Duration::from_secs(boot);
        for (age, lives) in [(0, 200), (100, 100), (199, 1)] {
            let table = table();
            let age = Duration::from_secs(age);
            assert_eq!(table.restore(&saved, age, |_| true, now), Ok((1, 0)));
            // Before the clock's origin there is no time: after a start of the machine it may live up to its whole time-out.
            let idle = Duration::from_secs(300 - lives).min(Duration::from_secs(boot));
            let end = now + Duration::from_secs(300) - idle;
            table.expire(end - Duration::from_secs(1));
            assert!(table.peek(&flow).is_some(), "{boot} {age:?}");
            table.expire(end + Duration::from_secs(1));
            assert!(table.peek(&flow).is_none(), "{boot} {age:?}");
        }
        for age in [Duration::from_secs(200), Duration::from_secs(1 << 40), Duration::MAX] {
            assert_eq!(table().restore(&saved, age, |_| true, now), Ok((0, 1)), "{boot} {age:?}");
        }
    }
}

/// Goal: each flow's beginning and end is observed once, with the reason, and flows to a reserved end are counted. Method: one flow of each
/// fate: a time-out, a reset, a second connection from the same port, an eviction, and one that comes to a published port.
#[test]
fn beginnings_and_ends_are_observed() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&seen);
    let observe = move |event: &NatEvent| into.lock().unwrap().push(*event);
    let table = NatTable::builder().flows_max(2).host_percent(100).seed(3).observe(observe).build();
    let take = || std::mem::take(&mut *seen.lock().unwrap());
    let ends = || {
        let events = take().into_iter();
        events
            .map(|event| match event {
                NatEvent::Began(_) => "began".to_owned(),
                NatEvent::Ended { end, duration, .. } => format!("{end} {}", duration.as_secs()),
            })
            .collect::<Vec<_>>()
    };
    let at = |seconds| START + Duration::from_secs(seconds);

    let udp = tuple(UDP, end(2, 5), peer(1, 53));
    let becomes = open(&table, udp, at(0)).unwrap();
    assert_eq!(take(), [NatEvent::Began(NatFlow::new(udp, becomes))]);
    assert!(table.translate(&udp, None, at(400)).is_none());
    assert_eq!(ends(), ["timed_out 400"]);

    let tcp = tuple(TCP, end(2, 6), peer(1, 80));
    let becomes = open(&table, tcp, at(400)).unwrap();
    let reset = |now| {
        let [ack, reset] =
            [TcpFlags::ACK, TcpFlags::RST].map(|flags| TcpProgress::new(flags, 2, 2, 1000));
        table.translate(&becomes.reversed(), Some(&ack), now).is_some()
            && table.translate(&tcp, Some(&reset), now).is_some()
    };
    assert!(reset(at(401)));
    assert!(table.translate(&tcp, Some(&syn()), at(402)).is_some());
    assert_eq!(ends(), ["began", "replaced 2", "began"]);
    assert!(reset(at(403)));
    assert_eq!(table.expire(at(1000)), 1);
    assert_eq!(ends(), ["closed 598"]);

    let published = NatEndpoint::new(EXTERNAL, 80);
    table.reserve(TCP, published);
    let to_it = tuple(TCP, peer(1, 9), published);
    table.open(to_it, (None, Some(end(3, 8080))), Some(&syn()), at(1000)).unwrap();
    assert_eq!(table.reserved(), [((TCP, published), 1)]);
    for (port, second) in [(7, 1001), (8, 1003)] {
        open(&table, tuple(UDP, end(2, port), peer(1, 53)), at(second)).unwrap();
    }
    assert_eq!(ends(), ["began", "began", "evicted 2", "began"]);
}
