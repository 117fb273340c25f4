//! Connections that are made when ranks first need each other, over the simulated network.

use std::task::Poll;

use vigie_via::{
    Secret,
    protocol::{MessageEngine, Pattern, Payload, RequestError, SendError, SendMode, SendState},
    sim::FaultPlan,
    vi::{
        Address, Connect, DisconnectReason, NicAttributes, NicEvent, Provider, Reliability,
        ViAttributes,
    },
};

use crate::{
    cluster::{Cluster, from, pair_key, small},
    kit::seeds::for_each_seed,
    pattern::pattern,
};

fn cluster(seed: u64, plan: FaultPlan, size: u32) -> Cluster {
    Cluster::on_demand(seed, plan, size, small(), NicAttributes::named("sim"))
}

/// Goal: ranks that need each other at the same time, or one after the other, get one connection, and everything that was
/// sent before it was there arrives in order; no other rank is connected. Method: sends and receives of both sides at random
/// times around the first one, with random delays of the network; over VIs of both kinds, also lossy ones.
#[test]
fn both_sides_may_call_at_once() {
    let mut both = 0;
    for_each_seed(300, |seed| {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (mut config, mut plan) = (small(), FaultPlan::reliable());
        if random.bool() {
            config = config.reliability(Reliability::Unreliable);
            plan = FaultPlan::lossy(0.1);
        }
        let mut cluster = Cluster::on_demand(seed, plan, 3, config, NicAttributes::named("sim"));
        if random.bool() {
            cluster.require_proofs();
        }
        let mut receives = Vec::new();
        let mut sends = Vec::new();
        for side in [0_u32, 2] {
            for tag in 0..3 {
                let body = pattern(random.usize(0..3000), tag as usize);
                let mode = SendMode::Standard;
                for _ in 0..random.u32(0..3) {
                    cluster.tick();
                }
                let payload = Payload::Owned(body.clone());
                let sent = cluster.engine(side).send(2 - side, 0, tag, mode, payload);
                if let SendState::Pending(id) = sent.expect("it is introduced") {
                    sends.push((side, id));
                }
                receives.push((2 - side, from(side, tag), body));
            }
        }
        both += usize::from(
            sends.iter().any(|(side, _)| *side == 0) && sends.iter().any(|(side, _)| *side == 2),
        );
        for (rank, pattern, body) in receives {
            assert!(cluster.receive(rank, pattern).1 == body, "seed {seed}");
        }
        cluster.settle();
        for (rank, id) in sends {
            assert_eq!(cluster.engine(rank).poll_send(id, None), Poll::Ready(Ok(())));
        }
        for engine in &cluster.engines {
            assert_eq!((engine.kept(), engine.has_all_left()), (0, true));
            assert!((0..3).all(|rank| engine.failure(rank).is_none()));
        }
        // Rank 1 has not been needed: a connection to it would have taken a packet.
        assert_eq!(cluster.network.transmissions(cluster.engines[1].nic().id()), 0);
    });
    assert!(both > 0, "they never called at once");
}

/// Goal: a receive and a probe that name a rank connect to it, one from any source does not; a rank whose launcher says that
/// it has ended fails only if it is not connected, and what waits for it then ends with an error that names it. Method: each
/// call, and then the word of the launcher.
#[test]
fn a_rank_may_end_before_it_is_connected() {
    let mut cluster = cluster(1, FaultPlan::reliable(), 4);
    let transmissions = |cluster: &Cluster| {
        let engines = cluster.engines.iter();
        engines.map(|engine| cluster.network.transmissions(engine.nic().id())).collect::<Vec<_>>()
    };
    let any = cluster.engine(0).post_receive(from(None, 1));
    cluster.settle();
    assert_eq!(transmissions(&cluster), [0; 4]);
    assert_eq!(cluster.engine(0).probe(from(1, 1)), None);
    cluster.settle();
    let after_probe = transmissions(&cluster);
    assert!(after_probe[0] > 0 && after_probe[1] > 0 && after_probe[2] == 0, "{after_probe:?}");
    let named = cluster.engine(0).post_receive(from(2, 1));
    cluster.settle();
    assert!(transmissions(&cluster)[2] > 0);

    cluster.engine(0).rank_is_gone(1);
    assert_eq!(cluster.engine(0).failure(1), None, "its connection tells");
    let lost = cluster.engine(0).post_receive(from(3, 1));
    cluster.engine(0).rank_is_gone(3);
    let error = RequestError::PeerFailed { rank: 3, reason: DisconnectReason::PeerDied };
    for request in [lost, any] {
        let ended = cluster.engine(0).poll_receive(request, &mut Vec::new());
        assert_eq!(ended, Poll::Ready(Err(error)));
    }
    assert_eq!(cluster.engine(0).poll_receive(named, &mut Vec::new()), Poll::Pending);
    let sent = cluster.engine(0).send(3, 0, 1, SendMode::Standard, Payload::Owned(vec![1]));
    assert_eq!(sent, Err(SendError::PeerFailed { rank: 3, reason: DisconnectReason::PeerDied }));
}

/// Goal: whenever a rank dies while it and others connect, what they want of it ends in an error that names it, and they reach
/// each other. Method: a crash at each transmission of one of three ranks, all of which call all others at once; where only
/// the launcher can know of it, it says so.
#[test]
fn a_crash_at_every_step_of_a_call() {
    let start = |seed| {
        let mut cluster = cluster(seed, FaultPlan::reliable(), 3);
        let mut requests = Vec::new();
        for own in 0..3 {
            for to in (0..3).filter(|to| *to != own) {
                requests.push((own, to, cluster.engine(own).post_receive(from(to, 1))));
            }
        }
        for own in 0..3 {
            for to in (0..3).filter(|to| *to != own) {
                let payload = Payload::Owned(pattern(900, 1));
                let sent = cluster.engine(own).send(to, 0, 1, SendMode::Standard, payload);
                if let Ok(SendState::Pending(id)) = sent {
                    cluster.engine(own).drop_send(id);
                }
            }
        }
        (cluster, requests)
    };
    let mut told = 0;
    for_each_seed(20, |seed| {
        let (mut whole, _) = start(seed);
        let nic = whole.engine(1).nic().id();
        whole.settle();
        let last = whole.network.transmissions(nic);
        for index in 0..last {
            let (mut cluster, requests) = start(seed);
            let nic = cluster.engine(1).nic().id();
            cluster.network.crash_at_transmission(nic, index);
            cluster.settle();
            for own in [0, 2] {
                cluster.engine(own).rank_is_gone(1);
            }
            cluster.settle();
            for (own, of, id) in requests.into_iter().filter(|(own, ..)| *own != 1) {
                let mut found = Vec::new();
                match cluster.engine(own).poll_receive(id, &mut found) {
                    Poll::Ready(Ok(_)) => assert!(found == pattern(900, 1)),
                    Poll::Ready(Err(RequestError::PeerFailed { rank: 1, .. })) if of == 1 => {
                        told += 1;
                    }
                    other => panic!("seed {seed}, step {index}: {own} of {of}: {other:?}"),
                }
            }
        }
    });
    assert!(told > 0, "no crash was early enough");
}

/// Calls an engine of the cluster from a stranger's NIC. Returns whether that is refused.
fn is_turned_away(cluster: &mut Cluster, address: &Address, greeting: &[u8]) -> bool {
    let mut stranger = cluster.network.nic();
    let tag = stranger.create_tag();
    let vi = ViAttributes {
        reliability: Reliability::ReliableDelivery,
        tag,
        send_cq: None,
        receive_cq: None,
        allows_write: true,
        allows_read: true,
    };
    let vi = stranger.create_vi(vi).expect("a VI");
    let call = Connect::new(vi, address, b"messages", vigie_detect::Instant::MAX);
    stranger.connect(call.greeting(greeting)).expect("idle");
    cluster.settle();
    stranger.progress(cluster.network.now());
    match stranger.next_event() {
        Some(NicEvent::Refused { .. }) => true,
        Some(NicEvent::Connected { .. }) => false,
        event => panic!("{greeting:?}: {event:?}"),
    }
}

/// Goal: a caller with a malformed greeting, one that says to be a rank that does not exist, this rank itself, or one that is
/// connected, gets nothing; and the ranks still reach each other. Method: a stranger's NIC that calls with each greeting.
#[test]
fn strangers_are_turned_away() {
    let mut cluster = cluster(1, FaultPlan::reliable(), 3);
    let _ = cluster.send(1, 0, 1, SendMode::Standard, b"early");
    cluster.settle();
    let greeting = cluster.engine(2).greeting(0).expect("a greeting").1;
    let says = |rank: u32| [&greeting[..4], &rank.to_le_bytes(), &greeting[8..]].concat();
    let calls =
        [vec![], vec![7; 72], greeting[..40].to_vec(), says(0), says(3), says(u32::MAX), says(1)];
    let address = cluster.engine(0).nic().address();
    for greeting in calls {
        assert!(is_turned_away(&mut cluster, &address, &greeting), "{greeting:?}");
    }
    let _ = cluster.send(2, 0, 2, SendMode::Standard, b"late");
    let any = Pattern { context: 0, source: None, tag: None };
    assert_eq!(cluster.receive(0, any).1, b"early");
    assert_eq!(cluster.receive(0, any).1, b"late");
}

/// Goal: a rank cannot pass for another one that is not connected yet, although it knows all but the key of those two, nor can it
/// answer in its place; and the real one is connected afterwards. Method: calls with each bit of the real greeting changed, and
/// with that for another rank; engines of rank 1 with no key and with each key that rank 2 has, which call rank 0, and which
/// are called by a rank that is told that rank 1 is there.
#[test]
fn ranks_prove_who_they_are() {
    let mut cluster = cluster(1, FaultPlan::reliable(), 3);
    cluster.require_proofs();
    let address = cluster.engine(0).nic().address();
    let greeting = cluster.engine(1).greeting(0).expect("a greeting").1;
    let other = cluster.engine(1).greeting(2).expect("a greeting").1;
    for bit in 0..8 * greeting.len() {
        let mut changed = greeting.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(is_turned_away(&mut cluster, &address, &changed), "bit {bit}");
    }
    assert!(is_turned_away(&mut cluster, &address, &other));

    for key in [None, Some(Secret::new([0; 16])), Some(pair_key(0, 2)), Some(pair_key(1, 2))] {
        let mut posing =
            MessageEngine::new(cluster.network.nic(), 1, 3, small()).expect("an engine");
        posing.connect_on_demand(b"messages").expect("listens");
        posing.introduce(0, address.clone()).expect("a rank");
        if let Some(key) = &key {
            posing.require_proof(0, key.clone()).expect("a rank");
        }
        let (there, payload) = (posing.nic().address(), Payload::Owned(b"lies".to_vec()));
        let _ = posing.send(0, 0, 1, SendMode::Standard, payload).expect("it waits");
        cluster.engines.push(posing);
        cluster.settle();
        let posing = cluster.engines.pop().expect("the last one");
        assert_eq!(posing.failure(0), Some(DisconnectReason::TransportFailed), "{key:?}");
        assert_eq!((cluster.engine(0).failure(1), cluster.engine(0).failure(2)), (None, None));
        assert_eq!(cluster.engine(0).probe(from(None, None)), None);

        let mut caller =
            MessageEngine::new(cluster.network.nic(), 0, 3, small()).expect("an engine");
        caller.connect_on_demand(b"messages").expect("listens");
        caller.introduce(1, there).expect("a rank");
        caller.require_proof(1, pair_key(0, 1)).expect("a rank");
        let wanted = caller.post_receive(from(1, 1));
        cluster.engines.extend([posing, caller]);
        cluster.settle();
        let mut caller = cluster.engines.pop().expect("the last one");
        let ended = caller.poll_receive(wanted, &mut Vec::new());
        let has_failed =
            matches!(ended, Poll::Ready(Err(RequestError::PeerFailed { rank: 1, .. })));
        assert!(has_failed, "{key:?}: {ended:?}");
        cluster.engines.pop();
    }

    let _ = cluster.send(1, 0, 1, SendMode::Standard, b"truth");
    assert_eq!(cluster.receive(0, from(1, 1)).1, b"truth");
}
