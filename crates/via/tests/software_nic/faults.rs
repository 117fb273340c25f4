//! Peers that vanish, and paths that break.

use std::time::Duration;

use vigie_via::{
    software_nic::SoftwareNicConfig,
    vi::{DisconnectReason, Provider, Reliability},
};

use crate::{
    network::{Faults, Network, Node, SECOND},
    pair::Cluster,
};

fn cluster(count: usize) -> Cluster {
    let config = SoftwareNicConfig::default()
        .keep_alive(Duration::from_secs(1))
        .dead_after(Duration::from_secs(3));
    Cluster::new(Network::new(1, Faults::default()), count, config)
}

fn node(cluster: &Cluster, nic: usize) -> Node {
    cluster.nics[nic].wire().node
}

/// Goal: a peer that vanishes silently is noticed in time by NICs that send to it and by those that only
/// listen, and no other NIC suffers. Method: cut one of three NICs off in both directions.
#[test]
fn a_peer_vanishes() {
    for talks in [false, true] {
        let mut cluster = cluster(3);
        let [one, _] = cluster.connect(0, 2, Reliability::ReliableDelivery);
        let [same, other] = cluster.connect(0, 1, Reliability::ReliableDelivery);
        for nic in 0..2 {
            let (gone, here) = (node(&cluster, 2), node(&cluster, nic));
            cluster.network.lock().cut.extend([(gone, here), (here, gone)]);
        }
        if talks {
            assert!(!cluster.says(&one, &one, 1), "the peer is gone");
        }
        let noticed = cluster.until(8 * SECOND, |cluster| cluster.broken(&one).is_some());
        assert!(noticed, "{:?}", cluster.events);
        assert_eq!(cluster.broken(&one), Some(DisconnectReason::TransportFailed));
        assert_eq!(cluster.nics[0].counters().peers_silent, 1);
        assert!(cluster.says(&same, &other, 2));
        assert!(cluster.says(&other, &same, 3));
    }
}

/// Goal: a path that works in one direction only makes no connection, for either side. Method: cut one
/// direction.
#[test]
fn one_direction_is_cut() {
    for (from, to) in [(0, 1), (1, 0)] {
        let mut cluster = cluster(2);
        let [one, other] = cluster.connect(0, 1, Reliability::ReliableReception);
        let direction = (node(&cluster, from), node(&cluster, to));
        cluster.network.lock().cut.insert(direction);
        let noticed = cluster.until(10 * SECOND, |cluster| {
            cluster.broken(&one).is_some() && cluster.broken(&other).is_some()
        });
        assert!(noticed, "{:?}", cluster.events);
        assert!(cluster.network.lock().seen.cut > 0);
    }
}

/// Goal: an outage shorter than the limit loses nothing. Method: cut the path for two seconds during
/// transfers, at all levels that guarantee delivery.
#[test]
fn a_path_is_down_for_a_while() {
    for level in [Reliability::ReliableDelivery, Reliability::ReliableReception] {
        let mut cluster = cluster(2);
        let [one, other] = cluster.connect(0, 1, level);
        let (a, b) = (node(&cluster, 0), node(&cluster, 1));
        for word in 0..5 {
            cluster.network.lock().cut.extend([(a, b), (b, a)]);
            cluster.network.lock().heals_at = cluster.network.now() + 2 * SECOND;
            let before = cluster.network.now();
            assert!(cluster.says(&one, &other, word), "{:?}", cluster.events);
            assert!(cluster.network.now() >= before + 2 * SECOND);
        }
        assert!(cluster.network.lock().seen.cut > 0);
    }
}

/// Goal: a NIC that ends tells its peers. Method: drop one.
#[test]
fn a_nic_ends() {
    let mut cluster = cluster(2);
    let [one, _] = cluster.connect(0, 1, Reliability::ReliableDelivery);
    drop(cluster.nics.pop());
    assert!(cluster.until(SECOND, |cluster| cluster.broken(&one).is_some()));
    assert_eq!(cluster.broken(&one), Some(DisconnectReason::PeerDied));
}

/// Goal: idle connections stay up, at the cost of an occasional packet. Method: a minute of silence.
#[test]
fn an_idle_connection_stays() {
    let mut cluster = cluster(2);
    let [one, other] = cluster.connect(0, 1, Reliability::ReliableDelivery);
    let before = cluster.nics[0].counters().packets_sent;
    cluster.until(60 * SECOND, |_| false);
    assert!(cluster.says(&one, &other, 1));
    let sent = cluster.nics[0].counters().packets_sent - before;
    assert!((10..200).contains(&sent), "{sent} packets in a minute");
    assert_eq!(cluster.nics[0].attributes().name, "simulated wire");
}
