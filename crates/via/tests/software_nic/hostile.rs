//! Packets that no correct NIC sends.

use fastrand::Rng;
use vigie_detect::Instant;
use vigie_via::{
    software_nic::SoftwareNicConfig,
    vi::{Connect, NicEvent, Provider, Reliability, ViState},
};

use crate::{
    kit::seeds::for_each_seed,
    network::{Faults, Network, Node, SECOND},
    pair::{Cluster, End},
};

/// A node without a NIC.
const STRANGER: Node = Node(99);

fn cluster(seed: u64, is_tagged: bool) -> (Cluster, [End; 2], [End; 2]) {
    let config = SoftwareNicConfig::default().is_tagged(is_tagged);
    let network = Network::new(seed, Faults::default());
    network.lock().record = Some(Vec::new());
    let mut cluster = Cluster::new(network, 3, config);
    let target = cluster.connect(0, 1, Reliability::ReliableReception);
    let bystander = cluster.connect(0, 2, Reliability::ReliableDelivery);
    for word in 0..5 {
        assert!(cluster.says(&target[0], &target[1], word));
        assert!(cluster.says(&bystander[1], &bystander[0], word));
    }
    (cluster, target, bystander)
}

fn node(cluster: &Cluster, nic: usize) -> Node {
    cluster.nics[nic].wire().node
}

fn packets(cluster: &Cluster) -> Vec<(Node, Node, Vec<u8>)> {
    cluster.network.lock().record.clone().expect("recorded")
}

fn is_well(cluster: &mut Cluster, [one, other]: &[End; 2], word: u64) {
    for end in [one, other] {
        let state = cluster.nics[end.nic].state(end.vi).expect("a VI");
        assert_eq!(state, ViState::Connected, "{:?}", cluster.events);
    }
    assert!(cluster.says(one, other, word) && cluster.says(other, one, word + 1));
}

/// Goal: garbage changes nothing, is counted, and is not answered. Method: random bytes of all lengths,
/// and random bytes behind the beginnings of real packets, from a stranger and under a peer's name.
#[test]
fn rubbish_is_dropped_in_silence() {
    for_each_seed(4, |seed| {
        let (mut cluster, target, bystander) = cluster(seed, false);
        let mut random = Rng::with_seed(seed);
        let real = packets(&cluster);
        let sent: Vec<_> = cluster.nics.iter().map(|nic| nic.counters().packets_sent).collect();
        for _ in 0..3000 {
            let to = node(&cluster, random.usize(..3));
            let from = if random.bool() { STRANGER } else { node(&cluster, random.usize(..3)) };
            let length = random.usize(..200);
            let mut packet: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            if random.bool() && length > 4 {
                let (_, _, like) = &real[random.usize(..real.len())];
                // A valid kind and length.
                packet[..2].copy_from_slice(&like[..2]);
                let length = u16::try_from(length).expect("short");
                packet[2..4].copy_from_slice(&length.to_le_bytes());
            }
            cluster.network.inject(from, to, packet);
        }
        let now = cluster.network.now();
        cluster.until(SECOND / 10, |cluster| cluster.network.now() > now + SECOND / 20);
        for (nic, before) in cluster.nics.iter().zip(sent) {
            let counters = nic.counters();
            assert!(counters.packets_refused > 100, "{counters:?}");
            assert_eq!(counters.packets_sent, before, "no answers");
        }
        is_well(&mut cluster, &target, 100);
        is_well(&mut cluster, &bystander, 200);
    });
}

/// Goal: packets that were changed or cut in transit are not accepted as the originals. Method: with tags and
/// without, every packet ever sent, with a wrong bit, cut short or extended.
#[test]
fn forgeries_are_refused() {
    for is_tagged in [true, false] {
        for_each_seed(2, |seed| {
            let (mut cluster, target, bystander) = cluster(seed, is_tagged);
            let mut random = Rng::with_seed(seed);
            let before: Vec<_> = cluster.events.iter().map(Vec::len).collect();
            for (from, to, packet) in packets(&cluster) {
                for _ in 0..8 {
                    let mut forged = packet.clone();
                    match random.u8(..3) {
                        0 => forged.truncate(random.usize(..packet.len())),
                        1 => forged.push(random.u8(..)),
                        _ => {
                            let bit = random.usize(..packet.len() * 8);
                            forged[bit / 8] ^= 1 << (bit % 8);
                        }
                    }
                    cluster.network.inject(from, to, forged);
                }
            }
            let now = cluster.network.now();
            cluster.until(SECOND, |cluster| cluster.network.now() > now + SECOND / 4);
            assert!(cluster.nics[0].counters().packets_refused > 20);
            let after: Vec<_> = cluster.events.iter().map(Vec::len).collect();
            assert_eq!(before, after, "{:?}", cluster.events);
            is_well(&mut cluster, &target, 100);
            is_well(&mut cluster, &bystander, 200);
        });
    }
}

/// Goal: without tags, an attacker that can read a connection's packets can break that connection, but
/// causes no panic and disturbs no other. Method: every packet sent on one, with wrong bits behind its
/// name, and half of them with the right CRC.
#[test]
fn a_forged_connection_suffers_alone() {
    for_each_seed(6, |seed| {
        let (mut cluster, target, bystander) = cluster(seed, false);
        let mut random = Rng::with_seed(seed);
        let (a, b) = (node(&cluster, 0), node(&cluster, 1));
        for (from, to, packet) in packets(&cluster) {
            if ![(a, b), (b, a)].contains(&(from, to)) || packet[0] != 1 {
                continue;
            }
            for _ in 0..200 {
                let mut forged = packet.clone();
                for _ in 0..random.usize(1..6) {
                    let at = random.usize(12..packet.len());
                    forged[at] = random.u8(..);
                }
                let (body, sum) = forged.split_last_chunk_mut::<4>().expect("longer");
                if random.bool() {
                    *sum = crc_fast::crc32_iscsi(body).to_le_bytes();
                }
                cluster.network.inject(from, to, forged);
            }
            cluster.step();
        }
        let now = cluster.network.now();
        cluster.until(SECOND, |cluster| cluster.network.now() > now + SECOND / 4);
        is_well(&mut cluster, &bystander, 200);
        // It may survive or not; it must not hang either way.
        let _ = cluster.says(&target[0], &target[1], 7);
    });
}

/// Goal: replayed packets have no effect: no connection is made or broken, no data is written twice.
/// Method: replay everything, to its destination, from its source and from elsewhere; while the
/// connections exist, and after they are gone.
#[test]
fn replays_change_nothing() {
    for_each_seed(2, |seed| {
        let (mut cluster, target, bystander) = cluster(seed, false);
        cluster.nics[1].listen(b"door").expect("listens");
        let caller = cluster.end(0, Reliability::ReliableDelivery);
        let deadline = Instant::from_nanos(cluster.network.now() + 60 * SECOND);
        let address = cluster.nics[1].address();
        cluster.nics[0]
            .connect(Connect::new(caller.vi, &address, b"door", deadline))
            .expect("asked");
        let is_request = |event: &NicEvent| matches!(event, NicEvent::Requested { .. });
        assert!(cluster.until(SECOND, |cluster| cluster.events[1].iter().any(is_request)));
        let request = cluster.events[1].iter().find_map(|event| match event {
            NicEvent::Requested { request, .. } => Some(*request),
            _ => None,
        });
        cluster.nics[1].reject(request.expect("a request")).expect("rejected");
        for is_gone in [false, true] {
            if is_gone {
                for end in target.iter() {
                    cluster.nics[end.nic].disconnect(end.vi).expect("a VI");
                }
            }
            cluster.until(SECOND, |_| false);
            target[1].region.memory.store(64, 77).expect("inside");
            let before: Vec<_> = cluster.events.iter().map(Vec::len).collect();
            for (from, to, packet) in packets(&cluster) {
                cluster.network.inject(from, to, packet.clone());
                cluster.network.inject(STRANGER, to, packet);
            }
            let now = cluster.network.now();
            cluster.until(20 * SECOND, |cluster| cluster.network.now() > now + 15 * SECOND);
            let after: Vec<_> = cluster.events.iter().map(Vec::len).collect();
            assert_eq!(before, after, "{:?}", cluster.events);
            assert_eq!(target[1].region.memory.load(64).expect("inside"), 77);
            if !is_gone {
                is_well(&mut cluster, &target, 100);
            }
            is_well(&mut cluster, &bystander, 200);
        }
    });
}

/// Goal: a NIC that does not know the world's secret is ignored. Method: a NIC with another secret
/// calls, and gets no packet back.
#[test]
fn another_secret_gets_no_answer() {
    let network = Network::new(1, Faults::default());
    let mut cluster = Cluster::new(network.clone(), 1, SoftwareNicConfig::default());
    cluster.nics.push(network.nic(4, SoftwareNicConfig::default()));
    cluster.events.push(Vec::new());
    cluster.nics[0].listen(b"door").expect("listens");
    let caller = cluster.end(1, Reliability::ReliableDelivery);
    let address = cluster.nics[0].address();
    let deadline = Instant::from_nanos(network.now() + 2 * SECOND);
    cluster.nics[1].connect(Connect::new(caller.vi, &address, b"door", deadline)).expect("asked");
    cluster.until(3 * SECOND, |_| false);
    assert!(matches!(cluster.events[1][..], [NicEvent::Refused { .. }]), "{:?}", cluster.events);
    assert!(cluster.events[0].is_empty());
    assert_eq!(cluster.nics[0].counters().packets_sent, 0);
    assert!(cluster.nics[0].counters().packets_refused > 2);
}
