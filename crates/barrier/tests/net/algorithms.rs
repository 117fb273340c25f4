//! Every algorithm, for several sizes.

use vigie_barrier::{
    Algorithm,
    net::MulticastState,
    reduction::{Builtin, Element, Reduction},
};

use crate::stage::{Entries, Place, play};

const EPOCHS: u32 = 30;

fn all() -> Vec<Algorithm> {
    let names = [
        "shuffle-exchange",
        "pairwise",
        "dissemination",
        "dissemination-3",
        "binary",
        "nomial-3",
        "ternary",
        "ternary-two-networks",
        "concurrent",
        "concurrent-two-networks",
        "tournament",
        "central",
    ];
    names.iter().map(|name| name.parse().expect("a name")).collect()
}

/// Goal: with every algorithm, no member leaves before all have entered, nothing but the schedule's messages is sent, and
/// multicast is used where the algorithm has one. Method: groups of several sizes, entries counted before each wait and
/// checked after it; two loopback addresses for each member where there are two networks.
#[test]
fn every_algorithm_keeps_all_in() {
    for algorithm in all() {
        for size in [1, 2, 3, 5, 8, 13] {
            let Ok(group) = vigie_barrier::Group::new(size) else { panic!("a size") };
            if algorithm.check(group).is_err() {
                continue;
            }
            let (entries, second) = (Entries::default(), Place::new());
            let has_second = algorithm.networks() == vigie_barrier::algorithm::Networks::Two;
            let builder = |rank, mut builder: vigie_barrier::net::NetBuilder| {
                if has_second {
                    builder = builder.network(second.config(rank));
                }
                builder.algorithm(algorithm)
            };
            let sums = play(size, builder, move |mut barrier| {
                let entries = entries.clone();
                async move {
                    for epoch in 0..EPOCHS {
                        entries.enter();
                        let passed = barrier.wait().await?;
                        entries.check(epoch, size);
                        assert_eq!(passed.epoch, epoch);
                    }
                    if algorithm.is_multicast() && size > 1 {
                        assert_eq!(*barrier.multicast(), MulticastState::Works, "{algorithm}");
                    }
                    Ok(barrier.counters())
                }
            });
            let signals: u64 = sums.iter().map(|counters| counters.member.signals).sum();
            let messages = algorithm.messages(group);
            let expected = u64::from(EPOCHS) * (messages.unicast + messages.multicast);
            assert_eq!(signals, expected, "{algorithm} of {size}");
        }
    }
}

/// Goal: values are reduced on the way, in one phase and in two. Method: sums over several sizes and algorithms, with
/// and without multicast.
#[test]
fn values_are_reduced() {
    for name in ["pairwise", "binary", "concurrent", "tournament"] {
        let algorithm: Algorithm = name.parse().expect("a name");
        for size in [1, 4, 7] {
            let reduction = Reduction::builtin(Builtin::Sum, Element::U64, 2).expect("two numbers");
            let builder = |_, builder: vigie_barrier::net::NetBuilder| {
                builder.algorithm(algorithm).reduction(reduction.clone())
            };
            let sums = play(size, builder, |mut barrier| async move {
                let rank = u64::from(barrier.rank().0);
                let value = [rank.to_le_bytes(), 1_u64.to_le_bytes()].concat();
                let (_, at_once) = barrier.reduce(&value).await?;
                let token = barrier.arrive(&value)?;
                assert!(barrier.arrive(&value).is_err(), "entered twice");
                let (_, in_two) = barrier.depart(token).await?;
                assert_eq!(at_once, in_two);
                let wrong = barrier.reduce(&[0; 3]).await.expect_err("too short");
                assert!(!wrong.is_final(), "{wrong}");
                assert!(wrong.to_string().contains("3 bytes"), "{wrong}");
                let without = barrier.wait().await.expect_err("no value");
                assert!(!without.is_final(), "{without}");
                let last = barrier.reduce(&value).await?;
                assert_eq!(last.0.epoch, 2);
                Ok(at_once)
            });
            let size = u64::from(size);
            let expected = [(size * (size - 1) / 2).to_le_bytes(), size.to_le_bytes()].concat();
            assert!(sums.iter().all(|sum| *sum == expected), "{name} of {size}");
        }
    }
}

/// Goal: a reduction that is cancelled loses neither its value nor its result. Method: one member drops it after one poll,
/// before the other enters, and calls it again with another value, which does not count.
#[test]
fn a_cancelled_reduction_goes_on() {
    let reduction = Reduction::builtin(Builtin::Sum, Element::U64, 1).expect("a number");
    let dropped = std::sync::Arc::new(tokio::sync::Notify::new());
    let sums = play(
        2,
        |_, builder| builder.reduction(reduction.clone()),
        move |mut barrier| {
            let dropped = std::sync::Arc::clone(&dropped);
            async move {
                if barrier.rank().0 == 1 {
                    let value = 3_u64.to_le_bytes();
                    tokio::select! {
                        biased;
                        _ = barrier.reduce(&value) => panic!("alone"),
                        () = std::future::ready(()) => {}
                    }
                    dropped.notify_one();
                    return Ok(barrier.reduce(&100_u64.to_le_bytes()).await?);
                }
                dropped.notified().await;
                Ok(barrier.reduce(&4_u64.to_le_bytes()).await?)
            }
        },
    );
    for (passed, sum) in sums {
        assert_eq!((passed.epoch, sum), (0, 7_u64.to_le_bytes().to_vec()));
    }
}
