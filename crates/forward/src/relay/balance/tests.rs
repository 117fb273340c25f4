use std::net::SocketAddr;

use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::relay::{
    availability::TRIAL,
    target::{TargetKind, TargetUse},
};

type TestTarget = Arc<Target<SocketAddr>>;

const POLICIES: [Balance; 5] = [
    Balance::First,
    Balance::RoundRobin,
    Balance::LeastConnections,
    Balance::RandomTwo,
    Balance::Hash,
];

fn targets(weights: &[u16]) -> Vec<TestTarget> {
    let address = |at: usize| SocketAddr::from(([192, 0, 2, u8::try_from(at).unwrap()], 80));
    let target = |(at, weight): (usize, &u16)| {
        Arc::new(Target::new(
            address(at),
            TargetKind { weight: *weight, ..TargetKind::default() },
            None,
        ))
    };
    weights.iter().enumerate().map(target).collect()
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn client(number: u32) -> Option<IpAddr> {
    Some(IpAddr::from(number.to_be_bytes()))
}

fn index(all: &[TestTarget], of: &TestTarget) -> usize {
    all.iter().position(|one| Arc::ptr_eq(one, of)).expect("one of them")
}

/// How often each target is the first, in `count` choices for different clients.
fn firsts(balancer: &Balancer, all: &[TestTarget], count: u32) -> Vec<u32> {
    let mut firsts = vec![0; all.len()];
    for number in 0..count {
        firsts[index(all, &balancer.order(all, client(number), at(0))[0])] += 1;
    }
    firsts
}

/// Each share is within a tenth of what the weights say.
#[track_caller]
fn assert_shares(firsts: &[u32], weights: &[u16]) {
    let (count, sum) =
        (firsts.iter().sum::<u32>(), weights.iter().map(|one| u32::from(*one)).sum::<u32>());
    for (first, weight) in firsts.iter().zip(weights) {
        let expected = count * u32::from(*weight) / sum;
        assert!(first.abs_diff(expected) <= expected / 10, "{firsts:?} for {weights:?}");
    }
}

fn some_weights() -> impl Strategy<Value = Vec<u16>> {
    prop::collection::vec(1_u16..=20, 1..8)
}

proptest! {
    /// Goal: each policy's order has every target once. Method: any weights, loads, failures and clients.
    #[test]
    fn orders_are_whole(
        weights in some_weights(),
        failed in any::<u8>(),
        loads in any::<[u8; 8]>(),
        number in any::<u32>(),
    ) {
        for balance in POLICIES {
            let all = targets(&weights);
            let mut uses = Vec::new();
            for (at_index, target) in all.iter().enumerate() {
                uses.extend((0..loads[at_index] % 8).map(|_| TargetUse::of(target)));
                if failed & (1 << at_index) != 0 {
                    target.availability().failed(at(0));
                }
            }
            let order = Balancer::new(balance, 1).order(&all, client(number), at(1));
            let mut found: Vec<_> = order.iter().map(|one| index(&all, one)).collect();
            // Those that have failed are behind the others.
            let has_failed: Vec<_> = found.iter().map(|one| failed & (1 << one) != 0).collect();
            prop_assert!(all.len() < 2 || has_failed.is_sorted(), "{balance}: {found:?}");
            found.sort_unstable();
            prop_assert_eq!(found, (0..all.len()).collect::<Vec<_>>());
        }
    }

    /// Goal: in turn means exactly in proportion to the weights, and evenly spread: in each stretch as long as the sum of the
    /// weights, and the heaviest does not get all its turns at once. Method: any weights, three stretches.
    #[test]
    fn turns_are_fair(weights in some_weights()) {
        let (all, balancer) = (targets(&weights), Balancer::new(Balance::RoundRobin, 1));
        let sum: u32 = weights.iter().map(|one| u32::from(*one)).sum();
        for _ in 0..3 {
            let shares = firsts(&balancer, &all, sum);
            prop_assert_eq!(&shares, &weights.iter().map(|one| u32::from(*one)).collect::<Vec<_>>());
        }
        // The heaviest never waits twice as long as its share says.
        let heaviest = weights.iter().enumerate().max_by_key(|(_, one)| **one).map(|(at, _)| at);
        let heaviest = heaviest.expect("some");
        let (mut waits, mut longest) = (0, 0);
        for _ in 0..2 * sum {
            let first = index(&all, &balancer.order(&all, None, at(0))[0]);
            waits = if first == heaviest { 0 } else { waits + 1 };
            longest = longest.max(waits);
        }
        let share = sum.div_ceil(weights[heaviest].into());
        prop_assert!(longest < 2 * share, "{:?}: {}", weights, longest);
    }

    /// Goal: a connection goes to a target with the fewest connections for its weight, whatever ended before. Method: connections
    /// that begin and end at random, compared with the smallest load at each choice.
    #[test]
    fn the_fewest_connections_win(
        weights in some_weights(),
        ends in prop::collection::vec(any::<Option<prop::sample::Index>>(), 1..200),
    ) {
        let (all, balancer) = (targets(&weights), Balancer::new(Balance::LeastConnections, 1));
        let mut open: Vec<TargetUse<SocketAddr>> = Vec::new();
        for end in ends {
            if let (Some(end), false) = (end, open.is_empty()) {
                drop(open.swap_remove(end.index(open.len())));
            }
            let first = Arc::clone(&balancer.order(&all, None, at(0))[0]);
            let is_least = all.iter().all(|other| load_order(&first, other) != Ordering::Greater);
            prop_assert!(is_least);
            open.push(TargetUse::of(&first));
        }
    }

    /// Goal: the client's address decides alone, and if a target goes, only its clients move, each to the target that it had second;
    /// if it comes back, they return. Method: any clients and weights, with each target taken away in turn, and in another order.
    #[test]
    fn a_hash_moves_only_the_clients_of_what_is_gone(
        weights in prop::collection::vec(1_u16..=20, 2..8),
        clients in prop::collection::vec(any::<u32>(), 1..50),
        gone in any::<prop::sample::Index>(),
    ) {
        let all = targets(&weights);
        let gone = gone.index(all.len());
        let mut rest = all.clone();
        rest.remove(gone);
        rest.reverse();
        let balancers = [Balancer::new(Balance::Hash, 1), Balancer::new(Balance::Hash, 2)];
        for number in clients {
            let of = |balancer: &Balancer, among: &[TestTarget]| -> Vec<usize> {
                let order = balancer.order(among, client(number), at(0));
                order.iter().map(|one| index(&all, one)).collect()
            };
            let mut order = of(&balancers[0], &all);
            prop_assert_eq!(&order, &of(&balancers[1], &all), "another relay");
            order.retain(|one| *one != gone);
            prop_assert_eq!(order, of(&balancers[0], &rest));
        }
    }
}

/// Goal: connections are divided as the weights say where chance or a hash decides. Method: 20 000 clients without load; the
/// seeds are fixed.
#[test]
fn weights_are_odds() {
    for weights in [&[1, 1, 1][..], &[1, 2, 5], &[3, 1], &[10, 10, 1]] {
        let all = targets(weights);
        for balance in [Balance::Hash, Balance::RandomTwo] {
            assert_shares(&firsts(&Balancer::new(balance, 7), &all, 20_000), weights);
        }
    }
}

/// Goal: clients without an address are spread, too. Method: as before, with `None`.
#[test]
fn clients_without_an_address_are_spread() {
    let (weights, balancer) = ([1, 3], Balancer::new(Balance::Hash, 7));
    let all = targets(&weights);
    let mut firsts = [0; 2];
    for _ in 0..20_000 {
        firsts[index(&all, &balancer.order(&all, None, at(0))[0])] += 1;
    }
    assert_shares(&firsts, &weights);
}

/// Goal: of two at random, the less busy one is taken, so that the busiest never is, and the difference of open connections stays
/// small where one at random lets it grow. Method: 8 targets, 4000 connections that stay; the load of the busiest beside the mean.
#[test]
fn the_busiest_of_two_is_spared() {
    let all = targets(&[1; 8]);
    let balancer = Balancer::new(Balance::RandomTwo, 3);
    let mut open = Vec::new();
    for _ in 0..4000 {
        let first = Arc::clone(&balancer.order(&all, None, at(0))[0]);
        let load = first.counters.active.value();
        let busier = all.iter().filter(|one| one.counters.active.value() >= load).count();
        assert!(busier > 1, "it was the only one with most");
        open.push(TargetUse::of(&first));
    }
    let most = all.iter().map(|one| one.counters.active.value()).max();
    assert!(most <= Some(500 + 5), "{most:?}");
}

/// Goal: a target that has failed is passed over by every policy, and its turn comes again when its time is up, for one connection
/// that claims it. Method: two targets, of which the one that would be chosen fails; times by hand.
#[test]
fn what_has_failed_is_passed_over_and_tried_again() {
    for balance in POLICIES {
        let (all, balancer) = (targets(&[1, 1]), Balancer::new(balance, 5));
        let first = |now| Arc::clone(&balancer.order(&all, client(9), now)[0]);
        let failed = first(at(0));
        failed.availability().failed(at(0));
        for millis in 0..1000 {
            assert!(!Arc::ptr_eq(&first(at(millis)), &failed), "{balance}");
        }
        let is_tried = (0..20).any(|_| Arc::ptr_eq(&first(at(1000)), &failed));
        assert!(is_tried, "{balance}");
        assert_eq!(failed.availability().choose(at(1000)), Choice::Try);
        let during = at(1000) + TRIAL / 2;
        assert!((0..20).all(|_| !Arc::ptr_eq(&first(during), &failed)), "{balance}: one tries");
    }
}

/// Goal: other instances, also of other versions, choose the same target for a client, so the hash must never change. Method: the
/// choices of some clients, as they were when this was written.
#[test]
fn the_hash_stays_what_it_was() {
    let all = targets(&[1, 1, 1, 1]);
    let balancer = Balancer::new(Balance::Hash, 0);
    let chosen = ["192.0.2.1", "::ffff:192.0.2.1", "198.51.100.7", "2001:db8::1", "10.0.0.1"]
        .map(|text| index(&all, &balancer.order(&all, text.parse().ok(), at(0))[0]));
    assert_eq!(chosen, [2, 2, 3, 1, 1]);
}
