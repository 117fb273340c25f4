//! Members that leave, together and one by one. The timeout is longer than any test may last: a member that uses it up hangs.

use std::{sync::Arc, time::Duration};

use tokio::sync::Barrier;
use vigie_barrier::{
    Algorithm,
    net::{Faults, NetBuilder},
};

use crate::stage::play;

const FOR_EVER: Duration = Duration::from_secs(3600);

fn with(name: &str) -> impl Fn(u32, NetBuilder) -> NetBuilder + use<> {
    let algorithm: Algorithm = name.parse().expect("a name");
    move |_, builder| builder.algorithm(algorithm)
}

/// Goal: many members that leave together need none of their timeout. Method: 200 of them, whose leave messages all come at
/// once.
#[test]
fn many_leave_together() {
    let build = with("concurrent");
    // On a busy machine this many need long to meet, and to answer.
    let builder = move |rank, builder| {
        let builder = build(rank, builder).formation_timeout(FOR_EVER);
        builder.failure_timeout(FOR_EVER)
    };
    play(200, builder, |mut barrier| async move {
        for _ in 0..3 {
            barrier.wait().await?;
        }
        Ok(barrier.leave(FOR_EVER).await?)
    });
}

/// Goal: leave messages that are lost are repeated, and no member waits for one that has got none of them and is gone. Method: a
/// fifth of all packets is lost, for an algorithm of each family; no member is believed dead meanwhile.
#[test]
fn lost_farewells_are_repeated() {
    for (seed, name) in (0..).zip(["concurrent", "dissemination", "ternary", "pairwise"]) {
        let build = with(name);
        let builder = move |rank, builder| {
            let faults = Faults::losing(90 + seed, 200).with_duplicates_and_delays(50, 50);
            let builder = build(rank, builder).faults(faults);
            builder.repeat_after(Duration::from_millis(2)).failure_timeout(FOR_EVER)
        };
        play(12, builder, |mut barrier| async move {
            for _ in 0..5 {
                barrier.wait().await?;
            }
            Ok(barrier.leave(FOR_EVER).await?)
        });
    }
}

/// Goal: a leaving member does not wait for those that stay: they confirm. Method: one leaves, for each rank; the others do
/// nothing until it has left, and leave then one after the other, the last by dropping it.
#[test]
fn who_stays_confirms() {
    for name in ["concurrent", "dissemination", "ternary"] {
        for first in 0..4 {
            let turns = Arc::new(Barrier::new(4));
            play(4, with(name), move |mut barrier| {
                let turns = Arc::clone(&turns);
                async move {
                    let place = (barrier.rank().0 + 4 - first) % 4;
                    barrier.wait().await?;
                    barrier.wait().await?;
                    let mut barrier = Some(barrier);
                    for turn in 0..3 {
                        if turn == place
                            && let Some(barrier) = barrier.take()
                        {
                            barrier.leave(FOR_EVER).await?;
                        }
                        turns.wait().await;
                    }
                    Ok(())
                }
            });
        }
    }
}

/// Goal: members that are dropped hold up no leaving member, before and after. Method: every other one is dropped.
#[test]
fn who_is_dropped_is_not_waited_for() {
    for name in ["concurrent", "pairwise"] {
        for odd in [0, 1] {
            play(6, with(name), move |mut barrier| async move {
                for _ in 0..5 {
                    barrier.wait().await?;
                }
                if barrier.rank().0 % 2 == odd {
                    barrier.leave(FOR_EVER).await?;
                }
                Ok(())
            });
        }
    }
}
