//! Packets that no correct member sends.

use vigie_barrier::{
    Algorithm, Rank, Round,
    packet::{Body, GroupId, Key, Packet},
};

use crate::{
    kit::seeds::for_each_seed,
    quiet::algorithms,
    world::{MILLISECOND, SECOND, World, config, group, schedule, sums},
};

/// Goal: strangers that can hear everything, but have no key, neither hurry nor stop any member: forged, cut, prolonged and
/// replayed packets, and those of other groups, are dropped and counted by kind, and no member is believed dead. Method:
/// everything that members send comes back in each of these ways while barriers go on; in the end their sums are right.
#[test]
fn strangers_are_ignored() {
    let mut totals = [0_u64; 6];
    for_each_seed(30, |seed| {
        let of_size = algorithms(5);
        let mut config = config(seed);
        let key = Key::new([9; 16]);
        config = config.key(key.clone());
        let mut random = fastrand::Rng::with_seed(seed);
        let mut algorithm = of_size[random.usize(..of_size.len())];
        if vigie_barrier::checker::prove(&schedule(algorithm, 5))
            .is_ok_and(|proof| !proof.is_exact())
        {
            algorithm = Algorithm::Pairwise;
        }
        config = config.reduction(sums());
        let mut world = World::new(seed, algorithm, 5, &config);
        world.record = Some(Vec::new());
        world.begin(20);
        for _ in 0..40 {
            world.run(MILLISECOND, World::is_done);
            let recorded = world.record.clone().expect("recorded");
            for packet in recorded.iter().rev().take(50) {
                let to = random.usize(..5);
                let mut forged = packet.clone();
                match random.u8(..6) {
                    0 => forged.truncate(random.usize(..packet.len())),
                    1 => forged.push(random.u8(..)),
                    2 => {
                        let bit = random.usize(..packet.len() * 8);
                        forged[bit / 8] ^= 1 << (bit % 8);
                    }
                    // As it was, perhaps to another member.
                    3 => {}
                    4 => {
                        let body = Body::Signal { round: Round(0), value: &[1; 8] };
                        forged = Packet::new(group(seed), random.u32(..40), Rank(1), body)
                            .encode(Some(&Key::new([8; 16])));
                    }
                    _ => {
                        let body = Body::Signal { round: Round(0), value: &[1; 8] };
                        forged = Packet::new(GroupId(1), 3, Rank(1), body).encode(Some(&key));
                    }
                }
                world.inject(to, forged);
            }
        }
        assert!(world.run(20 * SECOND, World::is_done), "{algorithm}");
        for node in &world.nodes {
            assert!(node.failures.is_empty(), "{algorithm}: {:?}", node.failures);
            let c = node.member.counters();
            let counts = [
                c.malformed,
                c.forged,
                c.foreign,
                c.stale,
                c.duplicates + c.unexpected,
                // A member's own packets come back to it, too.
                c.unknown_senders,
            ];
            for (total, count) in totals.iter_mut().zip(counts) {
                *total += count;
            }
        }
    });
    assert!(totals.iter().all(|total| *total > 0), "{totals:?}");
}

/// Goal: without a key, impossible packets are still dropped and counted. Method: each such packet to a member
/// inside its first barrier; nothing changes but one counter.
#[test]
fn what_cannot_be_is_dropped() {
    let config = config(1).reduction(sums());
    let mut world = World::new(1, Algorithm::BINARY, 4, &config);
    let now = world.instant(0);
    world.nodes[0].member.enter(now, &[0; 8]).expect("outside");
    let member = &mut world.nodes[0].member;
    let list = |rank: u16| rank.to_le_bytes();
    fn signal(round: u16, value: &[u8]) -> Body<'_> {
        Body::Signal { round: Round(round), value }
    }
    let view = |bytes: &[u8]| {
        // A packet of that kind, with its list behind the header.
        let mut packet = Packet::new(group(1), 0, Rank(1), signal(0, bytes)).encode(None);
        packet[3] = 4;
        packet
    };
    let of = |epoch, sender, body| Packet::new(group(1), epoch, Rank(sender), body).encode(None);
    let cases = [
        (of(0, 0, signal(0, &[0; 8])), "not in the group"),
        (of(0, 4, signal(0, &[0; 8])), "not in the group"),
        (of(0, 3, signal(0, &[0; 8])), "not in the schedule"),
        (of(0, 1, signal(1, &[0; 8])), "not in the schedule"),
        (of(0, 1, signal(0, &[0; 7])), "length"),
        (of(0, 1, signal(0, &[])), "length"),
        (of(2, 1, signal(0, &[0; 8])), "cannot have begun"),
        (of(u32::MAX, 1, signal(0, &[0; 8])), "outdated"),
        (of(7, 1, Body::Nack { round: Round(0), attempt: 0 }), "cannot have begun"),
        (of(u32::MAX, 1, Body::Nack { round: Round(0), attempt: 0 }), "outdated"),
        (of(0, 1, Body::Nack { round: Round(1), attempt: 0 }), "not in the schedule"),
        (of(0, 1, Body::AliveReply { attempt: 0 }), "outdated"),
        (of(0, 1, Body::LeaveAck), "not in the schedule"),
        (view(&[]), "not in the schedule"),
        (view(&list(4)), "not in the schedule"),
        (view(&[list(2), list(2)].concat()), "invalid contents"),
        (Vec::new(), "cannot be a packet"),
    ];
    let count = u64::try_from(cases.len()).expect("few");
    for (packet, what) in cases {
        let why = member.receive(now, &packet).expect_err(what).to_string();
        assert!(why.contains(what), "{why}: {packet:?}");
    }
    assert!(member.poll_event().is_none() && member.poll_transmit().is_none());
    assert!(member.is_inside() && member.counters().dropped() == count);
    assert_eq!(member.counters().accepted, 0);
}

/// Goal: replayed answers do not keep a dead member alive. Method: a member dies; all that it has ever said is told
/// again and again while the others wait for it; it is reported in time.
#[test]
fn replays_do_not_revive_the_dead() {
    for_each_seed(5, |seed| {
        let mut world = World::new(seed, Algorithm::Central, 3, &config(seed));
        world.record = Some(Vec::new());
        // The victim answers for a while that it is alive.
        world.begin(1);
        world.nodes[2].entered = 1;
        world.run(SECOND, |_| false);
        assert!(world.nodes[2].member.counters().alive_replies > 0);
        world.kill(2);
        let said: Vec<Vec<u8>> = world.record.clone().expect("recorded");
        let heres: Vec<_> = said.into_iter().filter(|packet| packet[3] == 3).collect();
        let start = world.now;
        let known = |world: &World| !world.nodes[0].failures.is_empty();
        while !world.run(20 * MILLISECOND, known) {
            assert!(world.now < start + 4 * SECOND, "never found dead");
            for packet in &heres {
                world.inject(0, packet.clone());
            }
        }
        assert_eq!(world.nodes[0].failures[0].1, [Rank(2)]);
    });
}

/// Goal: two groups on one multicast address do not hear each other. Method: each packet of one also reaches the other,
/// both ways; both come to their end, with nothing asked and everything foreign counted.
#[test]
fn two_groups_on_one_address_are_apart() {
    let mut one = World::new(1, Algorithm::BINARY, 4, &config(1));
    let mut other = World::new(2, Algorithm::TERNARY, 4, &config(2));
    for world in [&mut one, &mut other] {
        world.record = Some(Vec::new());
        world.begin(10);
    }
    for _ in 0..500 {
        one.run(MILLISECOND / 10, |_| false);
        other.run(MILLISECOND / 10, |_| false);
        let of_one = one.record.replace(Vec::new()).expect("recorded");
        let of_other = other.record.replace(Vec::new()).expect("recorded");
        for node in 0..4 {
            of_one.iter().for_each(|packet| other.inject(node, packet.clone()));
            of_other.iter().for_each(|packet| one.inject(node, packet.clone()));
        }
    }
    for world in [&one, &other] {
        assert!(world.is_done());
        let foreign: u64 = world.nodes.iter().map(|node| node.member.counters().foreign).sum();
        let dropped: u64 = world.nodes.iter().map(|node| node.member.counters().dropped()).sum();
        assert!(foreign >= 10 * 4 * 4 && foreign == dropped, "{foreign} {dropped}");
        assert_eq!(world.total().nacks, 0);
    }
}
