//! Connections that are made when ranks first need each other, over the simulated network.

use std::task::Poll;

use vigie_via::{
    protocol::{EngineEvent, Pattern, Payload, RequestError, SendError, SendMode, SendState},
    sim::FaultPlan,
    vi::{Attributes, Connect, Provider, Reason, Reliability, ViAttributes},
};

use crate::{
    cluster::{Cluster, from, small},
    kit::seeds::for_each_seed,
    pattern::pattern,
};

fn cluster(seed: u64, plan: FaultPlan, size: u32) -> Cluster {
    Cluster::on_demand(seed, plan, size, small(), Attributes::named("sim"))
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
        let mut cluster = Cluster::on_demand(seed, plan, 3, config, Attributes::named("sim"));
        let mut receives = Vec::new();
        let mut sends = Vec::new();
        for side in [0_u32, 2] {
            for tag in 0..3 {
                let body = pattern(random.usize(0..3000), tag as usize);
                let mode = SendMode::Standard;
                for _ in 0..random.u32(0..3) {
                    cluster.turn();
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
    let error = RequestError::PeerFailed { rank: 3, reason: Reason::PeerDied };
    for request in [lost, any] {
        let ended = cluster.engine(0).poll_receive(request, &mut Vec::new());
        assert_eq!(ended, Poll::Ready(Err(error)));
    }
    assert_eq!(cluster.engine(0).poll_receive(named, &mut Vec::new()), Poll::Pending);
    let sent = cluster.engine(0).send(3, 0, 1, SendMode::Standard, Payload::Owned(vec![1]));
    assert_eq!(sent, Err(SendError::PeerFailed { rank: 3, reason: Reason::PeerDied }));
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
        [vec![], vec![7; 56], greeting[..40].to_vec(), says(0), says(3), says(u32::MAX), says(1)];
    let address = cluster.engine(0).nic().address();
    let mut stranger = cluster.network.nic();
    let tag = stranger.create_tag();
    for greeting in calls {
        let vi = ViAttributes {
            reliability: Reliability::ReliableDelivery,
            tag,
            send_cq: None,
            receive_cq: None,
            allows_write: true,
            allows_read: true,
        };
        let vi = stranger.create_vi(vi).expect("a VI");
        let call = Connect::new(vi, &address, b"messages", vigie_detect::Instant::MAX);
        stranger.connect(call.greeting(&greeting)).expect("idle");
        cluster.settle();
        stranger.progress(cluster.network.now());
        let event = stranger.next_event();
        let is_refused = matches!(event, Some(vigie_via::vi::NicEvent::Refused { .. }));
        assert!(is_refused, "{greeting:?}: {event:?}");
        assert!(!matches!(cluster.engine(0).next_event(), Some(EngineEvent::Requested { .. })));
    }
    let _ = cluster.send(2, 0, 2, SendMode::Standard, b"late");
    let any = Pattern { context: 0, source: None, tag: None };
    assert_eq!(cluster.receive(0, any).1, b"early");
    assert_eq!(cluster.receive(0, any).1, b"late");
}
