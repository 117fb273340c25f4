//! Random traffic in virtual time: over reliable VIs, over lossy ones, and with a rank that dies.

use crate::{
    cluster::{Cluster, scarce, small},
    kit::seeds::for_each_seed,
    traffic::{Outcome, Traffic},
};
use vigie_via::{
    protocol::{EngineConfig, Pattern, RequestError, SendMode, SendState},
    sim::FaultPlan,
    vi::{NicAttributes, Reliability},
};

/// Returns a configuration with tight limits for every second seed, and mapped memory for every third.
fn config(seed: u64) -> (EngineConfig, NicAttributes) {
    let mut config = EngineConfig::default();
    let mut attributes =
        if seed.is_multiple_of(2) { NicAttributes::named("sim") } else { scarce() };
    attributes.has_window = seed.is_multiple_of(3);
    if seed.is_multiple_of(2) {
        return (config, attributes);
    }
    config = small();
    config = config.staging_frames(2);
    config = config.unexpected_bytes_max(16 << 10);
    config = config.buffered_bytes_max(8 << 10);
    (config, attributes)
}

const LENGTHS: [usize; 6] = [8, 64, 500, 2000, 20_000, 60_000];

fn traffic(
    seed: u64,
    plan: FaultPlan,
    size: u32,
    config: (EngineConfig, NicAttributes),
) -> Traffic {
    Traffic::new(seed, Cluster::with(seed, plan, size, config.0, config.1), LENGTHS)
}

/// Goal: every message sent is received once, whole and in order, and nothing is left behind. Method:
/// random sends of all modes and lengths, receives, probes and cancellations between 1 to 4 ranks.
#[test]
fn random_traffic_over_reliable_vis() {
    let mut all = Outcome::default();
    for_each_seed(40, |seed| {
        let size = u32::try_from(seed % 4).expect("small") + 1;
        let outcome = traffic(seed, FaultPlan::reliable(), size, config(seed)).run(150);
        all.messages += outcome.messages;
        all.cancelled += outcome.cancelled;
        assert_eq!(outcome.errors, 0, "no rank died");
    });
    println!("{all:?}");
    assert!(all.messages > 0, "nothing was tested");
}

/// Goal: requests that are dropped before they have ended leave nothing behind and delay no other;
/// messages that the engine already has are still delivered. Method: the same traffic, over VIs of both
/// kinds, in which sends and receives are dropped at random; then one more message between any two
/// ranks.
#[test]
fn random_traffic_whose_owners_go() {
    let mut dropped = 0;
    for_each_seed(40, |seed| {
        let (mut config, attributes) = config(seed);
        let mut plan = FaultPlan::reliable();
        if seed % 4 == 3 {
            config = config.reliability(Reliability::Unreliable);
            plan = FaultPlan::lossy(0.05);
        }
        let size = u32::try_from(seed % 3).expect("small") + 1;
        let mut traffic = traffic(seed, plan, size, (config, attributes)).with_drops();
        let outcome = traffic.run(150);
        assert_eq!(outcome.errors, 0, "no rank died");
        dropped += outcome.dropped;
        traffic.still_passes();
    });
    assert!(dropped > 100, "{dropped}");
}

/// Goal: equal seeds give equal runs. Method: the same seed twice; the traces of the network are the same.
#[test]
fn a_seed_is_replayed() {
    let run = |seed| {
        let mut traffic = traffic(seed, FaultPlan::reliable(), 3, config(seed));
        traffic.run(100);
        traffic.cluster.network.trace_hash()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(7));
}

/// Goal: when a rank dies at any point of the protocol, every request that depends on it ends in an
/// error that names it, and the others continue. Method: the same traffic, with a crash at each
/// transmission of one rank in turn.
#[test]
fn a_crash_at_every_transmission() {
    const COUNT: usize = 70;
    let mut errors = 0;
    for_each_seed(3, |seed| {
        let start = |seed| {
            let (mut config, attributes) = config(seed);
            let mut plan = FaultPlan::reliable();
            // On every third seed, also over lossy VIs.
            if seed % 3 == 2 {
                config = config.reliability(Reliability::Unreliable);
                plan = FaultPlan::lossy(0.05);
            }
            let cluster = Cluster::with(seed, plan, 3, config, attributes);
            Traffic::new(seed, cluster, [8, 8, 64, 600, 600, 3000])
        };
        let mut whole = start(seed);
        let nic = whole.cluster.engine(1).nic().id();
        let before = whole.cluster.network.transmissions(nic);
        whole.run(COUNT);
        let after = whole.cluster.network.transmissions(nic);
        assert!(after - before >= 10, "it sends too little to be worth a crash");
        for index in before..=after {
            let mut broken = start(seed);
            let nic = broken.cluster.engine(1).nic().id();
            broken.cluster.network.crash_at_transmission(nic, index);
            errors += broken.run(COUNT).errors;
        }
    });
    println!("{errors} operations were told");
    assert!(errors > 20, "{errors}");
}

/// Goal: a death that no receive from any source awaited is told by the next one of each context that finds no message, and once;
/// each pending one is told. Method: a crash between reliable and between lossy VIs while nothing is posted, and then another
/// while two receives are.
#[test]
fn a_death_is_told_once_to_each_context() {
    for reliability in [Reliability::ReliableDelivery, Reliability::Unreliable] {
        let config = EngineConfig::default().reliability(reliability);
        let mut cluster = Cluster::new(1, FaultPlan::reliable(), 4, config);
        let any = |context| Pattern { context, source: None, tag: None };
        let fails_with = |cluster: &mut Cluster, id, rank| {
            let result = cluster.receive_into(0, id, &mut Vec::new());
            let named = matches!(result, Err(RequestError::PeerFailed { rank: named, .. }) if named == rank);
            assert!(named, "{result:?} does not name {rank}");
        };
        let crash = |cluster: &mut Cluster, rank: u32| {
            let nic = cluster.engine(rank).nic().id();
            cluster.network.crash(nic);
            // What is sent to it finds out.
            let asked = cluster.send(0, rank, 0, SendMode::Standard, b"?");
            assert_eq!(asked, SendState::Done);
            while cluster.engine(0).failure(rank).is_none() {
                assert!(cluster.tick(), "nobody finds out");
            }
        };

        let early = cluster.send(1, 0, 0, SendMode::Standard, b"early");
        assert_eq!(early, SendState::Done);
        crash(&mut cluster, 2);
        assert_eq!(cluster.receive(0, any(0)).1, b"early");
        let mut pending = Vec::new();
        for context in 0..2 {
            // One that is dropped before it is polled has told nobody.
            let dropped = cluster.engine(0).post_receive(any(context));
            cluster.engine(0).drop_receive(dropped);
            let told = cluster.engine(0).post_receive(any(context));
            fails_with(&mut cluster, told, 2);
            pending.push(cluster.engine(0).post_receive(any(context)));
            pending.push(cluster.engine(0).post_receive(any(context)));
        }
        for id in &pending {
            assert!(cluster.engine(0).poll_receive(*id, &mut Vec::new()).is_pending());
        }
        crash(&mut cluster, 3);
        for id in pending {
            fails_with(&mut cluster, id, 3);
        }
        let waits = cluster.engine(0).post_receive(any(1));
        assert!(cluster.engine(0).poll_receive(waits, &mut Vec::new()).is_pending());
    }
}

/// Goal: over unreliable VIs no packet is longer than what the provider carries in one. Method: random
/// traffic with messages of many times that length, with and without the limit.
#[test]
fn frames_fit_one_packet_of_an_unreliable_vi() {
    const LIMIT: u64 = 1000;
    let longest = |limit| {
        let config = EngineConfig::default().reliability(Reliability::Unreliable);
        let mut attributes = NicAttributes::named("sim");
        attributes.unreliable_bytes = limit;
        let cluster = Cluster::with(1, FaultPlan::lossy(0.01), 2, config, attributes);
        let mut traffic = Traffic::new(1, cluster, [8, 500, 2000, 6000, 20_000, 60_000]);
        let outcome = traffic.run(150);
        assert!(outcome.errors == 0 && outcome.messages > 10, "{} messages", outcome.messages);
        traffic.cluster.network.counts().unreliable_bytes_max
    };
    let (bounded, free) = (longest(LIMIT), longest(u64::MAX));
    assert!(bounded <= LIMIT, "{bounded} bytes");
    assert!(bounded > LIMIT / 2 && free > 4 * LIMIT, "{bounded} and {free} bytes");
}

/// Goal: over unreliable VIs every message arrives once, whole and in order, at each rate of faults.
/// Method: the same random traffic; the counters show that each kind of fault happened and was repaired.
#[test]
fn random_traffic_over_unreliable_vis() {
    println!("loss %   messages  packets  again  lost  doubled  reordered  damaged");
    for (index, share) in (0_u64..).zip([0.001, 0.01, 0.1, 0.3]) {
        let mut all = [0_u64; 7];
        for_each_seed(8, |seed| {
            let (mut config, attributes) = config(seed);
            config = config.reliability(Reliability::Unreliable);
            let plan = FaultPlan::lossy(share);
            let cluster = Cluster::with(
                seed,
                plan,
                2 + u32::try_from(seed % 2).expect("small"),
                config,
                attributes,
            );
            let mut traffic = Traffic::new(seed, cluster, [8, 64, 500, 2000, 6000, 20_000]);
            let outcome = traffic.run(150);
            assert_eq!(outcome.errors, 0, "no rank died");
            let counts = traffic.cluster.network.counts();
            let faults = [counts.lost, counts.duplicated, counts.reordered, counts.corrupted_data];
            for (sum, one) in all[3..].iter_mut().zip(faults) {
                *sum += one;
            }
            all[0] += outcome.messages as u64;
            for rank in 0..traffic.cluster.engines.len() {
                for peer in 0..3 {
                    if let Some(one) = traffic.cluster.engines[rank].error_control_counters(peer) {
                        all[1] += one.packets;
                        all[2] += one.retransmissions;
                    }
                }
            }
        });
        let [messages, packets, again, lost, doubled, reordered, damaged] = all;
        println!(
            "{:>6}   {messages:>8}  {packets:>7}  {again:>5}  {lost:>4}  {doubled:>7}  {reordered:>9}  {damaged:>7}",
            share * 100.0
        );
        assert!(messages > 100);
        if index >= 1 {
            assert!(lost > 0 && doubled > 0 && reordered > 0 && damaged > 0, "no faults: {all:?}");
            assert!(again > 0, "nothing was sent again");
        }
    }
}
