//! What the simulated network promises beyond the contract of a provider: randomness from one seed,
//! faults that really happen, crashes and freezes exactly where requested.

use std::{io::IoSlice, time::Duration};

use vigie_detect::Instant;

use super::*;
use crate::vi::{
    Completion, Connect, Data, DisconnectReason, MemoryAttributes, NicEvent, Operation, Queue,
    ReceiveDescriptor, Region, Reliability, RemoteSegment, SendDescriptor, Status, ViAttributes,
    ViId, ViState,
};

/// Two connected VIs, the second of which has memory that the first may write.
struct Pair {
    network: SimNetwork,
    nics: [SimNic; 2],
    vis: [ViId; 2],
    region: Region,
}

const LENGTH: usize = 4096;

impl Pair {
    fn new(seed: u64, plan: FaultPlan, reliability: Reliability) -> Self {
        let network = SimNetwork::new(seed, FaultPlan::reliable());
        let mut nics = [network.nic(), network.nic()];
        let mut vis = Vec::new();
        let mut regions = Vec::new();
        for nic in &mut nics {
            let tag = nic.create_tag();
            let (allows_write, allows_read) = (true, true);
            let memory = MemoryAttributes { tag, allows_write, allows_read };
            regions.push(nic.allocate(LENGTH, memory).unwrap());
            let (send_cq, receive_cq) = (None, None);
            let attributes =
                ViAttributes { reliability, tag, send_cq, receive_cq, allows_write, allows_read };
            vis.push(nic.create_vi(attributes).unwrap());
        }

        let addresses = [nics[0].address(), nics[1].address()];
        let [first, second] = &mut nics;
        first.connect_peer(Connect::new(vis[0], &addresses[1], b"pair", Instant::MAX)).unwrap();
        second.connect_peer(Connect::new(vis[1], &addresses[0], b"pair", Instant::MAX)).unwrap();
        while network.step() {}
        for nic in &mut nics {
            assert!(matches!(nic.next_event(), Some(NicEvent::Connected { .. })));
        }
        network.set_plan(plan);
        let region = regions.pop().unwrap();
        Self { network, nics, vis: [vis[0], vis[1]], region }
    }

    fn post_receives(&mut self, count: usize) {
        for _ in 0..count {
            let descriptor = ReceiveDescriptor { cookie: 0, segments: &[] };
            self.nics[1].post_receive(self.vis[1], &descriptor).unwrap();
        }
    }

    fn write(&mut self, number: i32, offset: u64, bytes: &[u8]) {
        let descriptor = SendDescriptor {
            operation: Operation::RdmaWrite,
            cookie: u64::try_from(number).unwrap(),
            immediate: Some(number),
            is_signaled: true,
            remote: Some(RemoteSegment { key: self.region.key, offset }),
            data: Data::Inline(&[IoSlice::new(bytes)]),
        };
        self.nics[0].post_send(self.vis[0], &descriptor).unwrap();
    }

    fn completions(&mut self, side: usize, queue: Queue) -> Vec<Completion> {
        std::iter::from_fn(|| self.nics[side].poll_queue(self.vis[side], queue)).collect()
    }
}

/// Goal: without faults everything arrives, in order, at every level. Method: writes with immediate data
/// to places of their own.
#[test]
fn without_faults_all_arrives_in_order() {
    use Reliability::{ReliableDelivery, ReliableReception, Unreliable};
    for reliability in [Unreliable, ReliableDelivery, ReliableReception] {
        let mut pair = Pair::new(1, FaultPlan::reliable(), reliability);
        pair.post_receives(100);
        for number in 0..100_u8 {
            pair.write(number.into(), u64::from(number) * 8, &[number; 8]);
        }
        while pair.network.step() {}
        let received = pair.completions(1, Queue::Receive);
        let immediates: Vec<_> = received.iter().filter_map(|done| done.immediate).collect();
        assert_eq!(immediates, (0..100).collect::<Vec<_>>(), "{reliability:?}");
        let sent = pair.completions(0, Queue::Send);
        assert!(sent.iter().all(|done| done.status == Status::Done && done.length == 8));
        assert_eq!(sent.len(), 100);
        for number in 0..100_u8 {
            let found = pair.region.memory.read_to_vec(u64::from(number) * 8, 8).unwrap();
            assert_eq!(found, [number; 8]);
        }
    }
}

fn lossy_run(seed: u64) -> (u64, FaultCounts, Vec<Completion>) {
    let mut pair = Pair::new(seed, FaultPlan::lossy(0.1), Reliability::Unreliable);
    pair.post_receives(600);
    for number in 0..500 {
        pair.write(number, 0, &[7; 64]);
    }
    while pair.network.step() {}
    let received = pair.completions(1, Queue::Receive);
    (pair.network.trace_hash(), pair.network.counts(), received)
}

/// Goal: every kind of fault happens, the counters are right, and equal seeds give equal runs. Method:
/// runs of 500 writes with a tenth of each fault.
#[test]
fn faults_happen_are_counted_and_come_from_the_seed() {
    let (trace, counts, received) = lossy_run(5);
    assert_eq!((trace, counts, received.clone()), lossy_run(5));
    assert_ne!(trace, lossy_run(6).0);
    let FaultCounts { lost, duplicated, reordered, corrupted_data, corrupted_immediates, .. } =
        counts;
    for count in [lost, duplicated, reordered, corrupted_data, corrupted_immediates] {
        assert!((10..150).contains(&count), "{counts:?}");
    }
    // A lost copy is lost, but nothing is missed; a copy that arrives is one more.
    let received = u64::try_from(received.len()).unwrap();
    assert!(received + lost >= 500 + duplicated && received < 600, "{counts:?}, {received}");
}

/// Goal: reliable VIs are unaffected by the faults. Method: the same writes.
#[test]
fn reliable_connections_feel_only_delays() {
    let mut pair = Pair::new(9, FaultPlan::lossy(0.3), Reliability::ReliableDelivery);
    pair.post_receives(500);
    for number in 0..500 {
        pair.write(number, 0, &[7; 64]);
    }
    while pair.network.step() {}
    let received = pair.completions(1, Queue::Receive);
    let immediates: Vec<_> = received.iter().filter_map(|done| done.immediate).collect();
    assert_eq!(immediates, (0..500).collect::<Vec<_>>());
    let counts = pair.network.counts();
    assert_eq!((counts.lost, counts.duplicated, counts.reordered), (0, 0, 0));
}

/// Goal: a NIC crashes exactly where requested, and its peer notices in time. Method: every crash point
/// of ten writes.
#[test]
fn a_crash_is_at_its_point_and_is_noticed() {
    for point in 0..10 {
        let mut pair = Pair::new(3, FaultPlan::reliable(), Reliability::ReliableReception);
        pair.post_receives(10);
        let before = pair.network.transmissions(pair.nics[0].id());
        pair.network.crash_at_transmission(pair.nics[0].id(), before + point);
        for number in 0..10 {
            pair.write(number, 0, &[7; 8]);
        }
        while pair.network.step() {}
        assert!(pair.network.has_crashed(pair.nics[0].id()));
        let received = pair.completions(1, Queue::Receive);
        let done = received.iter().filter(|done| done.status == Status::Done).count();
        assert_eq!(u64::try_from(done).unwrap(), point);
        assert_eq!(received.len(), 10, "the rest is flushed");
        let reason = DisconnectReason::PeerDied;
        assert_eq!(pair.nics[1].next_event(), Some(NicEvent::Broken { vi: pair.vis[1], reason }));
        assert!(pair.nics[0].state(pair.vis[0]).is_err(), "it has crashed");
        // What it had sent arrived in microseconds; the last thing is the peer's notice.
        let noticed = pair.network.now();
        assert!(noticed >= Instant::from_nanos(1_000_000), "{noticed:?}");
        assert!(noticed < Instant::from_nanos(1_100_000), "{noticed:?}");
    }
}

/// Goal: a frozen NIC neither receives nor sends, loses nothing, and resumes. Method: freeze the
/// receiver, then the sender.
#[test]
fn a_frozen_nic_goes_on_where_it_was() {
    for frozen in [0, 1] {
        let mut pair = Pair::new(3, FaultPlan::reliable(), Reliability::ReliableDelivery);
        pair.post_receives(10);
        pair.network.freeze(pair.nics[frozen].id());
        for number in 0..10 {
            pair.write(number, 0, &[7; 8]);
        }
        pair.network.advance_to(pair.network.now() + Duration::from_secs(1));
        assert_eq!(pair.completions(1, Queue::Receive), []);
        pair.network.unfreeze(pair.nics[frozen].id());
        while pair.network.step() {}
        let received = pair.completions(1, Queue::Receive);
        let immediates: Vec<_> = received.iter().filter_map(|done| done.immediate).collect();
        assert_eq!(immediates, (0..10).collect::<Vec<_>>());
    }
}

/// Goal: a cut breaks both ends. Method: cut, and check both.
#[test]
fn a_cut_breaks_both_ends() {
    let mut pair = Pair::new(3, FaultPlan::reliable(), Reliability::ReliableDelivery);
    pair.network.cut(pair.nics[0].id(), pair.nics[1].id());
    for (nic, vi) in pair.nics.iter_mut().zip(pair.vis) {
        let reason = DisconnectReason::TransportFailed;
        assert_eq!(nic.next_event(), Some(NicEvent::Broken { vi, reason }));
        assert_eq!(nic.state(vi).unwrap(), ViState::Error);
    }
    assert_eq!(pair.network.counts().cuts, 1);
}

/// Goal: delays match the plan. Method: one write of 10 000 bytes at 1 ns each and 5 µs of latency.
#[test]
fn latency_and_bandwidth_are_those_of_the_plan() {
    let plan = FaultPlan::reliable().latency(Duration::from_micros(5)).picos_per_byte(1000);
    let mut pair = Pair::new(3, plan, Reliability::Unreliable);
    let begin = pair.network.now();
    pair.post_receives(1);
    pair.write(1, 0, &[1; 256]);
    while pair.network.step() {}
    assert_eq!(pair.network.now() - begin, Duration::from_nanos(5000 + 256 + 32));
}

/// Goal: a host that knows nothing of the simulation drives it: calling `progress` at each
/// `next_deadline` is enough. Method: such a host, with one NIC in its care.
#[test]
fn a_host_drives_it_by_deadlines() {
    let mut pair = Pair::new(4, FaultPlan::lossy(0.0), Reliability::ReliableReception);
    pair.post_receives(20);
    for number in 0..20 {
        pair.write(number, 0, &[7; 64]);
    }
    let mut rounds = 0;
    while let Some(deadline) = pair.nics[1].next_deadline() {
        assert!(pair.nics[1].progress(deadline), "a deadline without work");
        rounds += 1;
        assert!(rounds < 1000, "no end");
    }
    assert_eq!(pair.completions(1, Queue::Receive).len(), 20);
    assert_eq!(pair.completions(0, Queue::Send).len(), 20);
    assert!(!pair.nics[1].progress(pair.network.now()), "nothing is left to do");
}

fn bare_vi(nic: &mut SimNic) -> ViId {
    let tag = nic.create_tag();
    nic.create_vi(ViAttributes {
        reliability: Reliability::ReliableDelivery,
        tag,
        send_cq: None,
        receive_cq: None,
        allows_write: false,
        allows_read: false,
    })
    .unwrap()
}

/// Goal: VIs of one NIC connect with each other, in both ways. Method: three pairs of peers at once, then
/// a client and a server.
#[test]
fn a_nic_connects_to_itself() {
    let network = SimNetwork::new(1, FaultPlan::reliable().jitter(Duration::from_micros(9)));
    let mut nic = network.nic();
    let address = nic.address();
    let vis: Vec<ViId> = (0..6).map(|_| bare_vi(&mut nic)).collect();
    for vi in &vis {
        nic.connect_peer(Connect::new(*vi, &address, b"self", Instant::MAX)).unwrap();
    }
    while network.step() {}
    let (server, client) = (bare_vi(&mut nic), bare_vi(&mut nic));
    nic.listen(b"self").unwrap();
    nic.connect(Connect::new(client, &address, b"self", Instant::MAX)).unwrap();
    while network.step() {}
    let request = std::iter::from_fn(|| nic.next_event()).find_map(|event| match event {
        NicEvent::Requested { request, .. } => Some(request),
        _ => None,
    });
    nic.accept(request.unwrap(), server, b"").unwrap();
    while network.step() {}
    for vi in vis.into_iter().chain([server, client]) {
        assert_eq!(nic.state(vi).unwrap(), ViState::Connected, "{vi}");
    }
}

/// Goal: whichever side crashes while a connection is made, the other side is not left waiting. Method:
/// both ways to connect, every crash point of either side.
#[test]
fn a_crash_during_the_handshake_leaves_nobody_waiting() {
    for is_peer in [false, true] {
        for victim in [0, 1] {
            for point in 0..4 {
                let state = handshake_with_crash(is_peer, victim, point);
                assert_ne!(state, ViState::PendingConnect, "{is_peer} {victim} {point}");
            }
        }
    }
}

fn handshake_with_crash(is_peer: bool, victim: usize, point: u64) -> ViState {
    let network = SimNetwork::new(1, FaultPlan::reliable());
    let mut nics = [network.nic(), network.nic()];
    let vis = nics.each_mut().map(bare_vi);
    let addresses = nics.each_ref().map(Provider::address);
    network.crash_at_transmission(nics[victim].id(), point);
    let deadline = Instant::from_nanos(50_000_000);
    let [first, second] = &mut nics;
    if is_peer {
        second.connect_peer(Connect::new(vis[1], &addresses[0], b"x", deadline)).unwrap();
        // It may have crashed by now.
        let _ = first.connect_peer(Connect::new(vis[0], &addresses[1], b"x", deadline));
    } else {
        second.listen(b"x").unwrap();
        first.connect(Connect::new(vis[0], &addresses[1], b"x", deadline)).unwrap();
    }

    while network.step() {
        if let Some(NicEvent::Requested { request, .. }) = second.next_event() {
            second.accept(request, vis[1], b"").unwrap();
        }
    }

    // A point that was not reached in the handshake is reached here.
    network.crash(nics[victim].id());
    while network.step() {}
    let survivor = 1 - victim;
    nics[survivor].state(vis[survivor]).unwrap()
}

/// Goal: another network's NIC does no harm. Method: use one.
#[test]
fn a_nic_of_another_network_is_ignored() {
    let network = SimNetwork::new(1, FaultPlan::reliable());
    let stranger = network.nic().id();
    let empty = SimNetwork::new(1, FaultPlan::reliable());
    empty.crash(stranger);
    empty.freeze(stranger);
    empty.unfreeze(stranger);
    empty.cut(stranger, stranger);
    empty.crash_at(stranger, Instant::from_nanos(1));
    empty.crash_at_transmission(stranger, 1);
    assert_eq!((empty.transmissions(stranger), empty.has_crashed(stranger)), (0, false));
    assert!(!empty.step());
    assert_eq!(empty.counts(), FaultCounts::default());
}
