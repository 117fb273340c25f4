//! Members that leave or fall silent.

use std::time::Duration;

use vigie_barrier::{Algorithm, Rank};

use crate::stage::play;

/// Goal: who leaves early is named on all others at once, they shrink, and the smaller group works, twice. Method: the
/// member of each rank leaves after some barriers; the timeout is longer than the test may last.
#[test]
fn those_who_leave_are_named_and_the_rest_goes_on() {
    for name in ["concurrent", "ternary", "pairwise", "shuffle-exchange"] {
        let algorithm: Algorithm = name.parse().expect("a name");
        for gone in 0..4 {
            let builder = |_, builder: vigie_barrier::net::NetBuilder| {
                builder
                    .algorithm(algorithm)
                    .failure_timeout(Duration::from_secs(300))
                    .quorum(vigie_barrier::member::Quorum::Any)
            };
            play(4, builder, move |mut barrier| async move {
                let own = barrier.rank();
                let mut error = None;
                for turn in 0..6 {
                    if turn == 5 && own == Rank(gone) {
                        return Ok(());
                    }
                    if let Err(lost) = barrier.wait().await {
                        // Others may be told of it in the barrier before, which all have entered.
                        assert!(turn >= 4, "{turn}");
                        error = Some(lost);
                        break;
                    }
                }
                let error = error.expect("one has left");
                assert_eq!(error.lost(), [Rank(gone)], "{name}: {error}");
                let again = barrier.wait().await.expect_err("of no use until it is shrunk");
                assert_eq!(again.lost(), [Rank(gone)]);
                let survivors = barrier.shrink().await?;
                assert!(survivors.len() == 3 && !survivors.contains(&Rank(gone)));
                assert_eq!(barrier.group().size(), 3);
                let own = barrier.rank();
                let mut error = None;
                for turn in 0..21 {
                    // And once more: the new rank 0 goes.
                    if turn == 20 && own == Rank(0) {
                        return Ok(());
                    }
                    match barrier.wait().await {
                        Ok(passed) => assert_eq!(passed.epoch, turn, "{name}"),
                        Err(lost) => error = Some(lost),
                    }
                }
                let error = error.expect("another one has left");
                assert_eq!(error.lost(), [Rank(0)], "{name}: {error}");
                assert_eq!(barrier.shrink().await?, [Rank(1), Rank(2)]);
                for _ in 0..20 {
                    barrier.wait().await?;
                }
                Ok(())
            });
        }
    }
}

/// Goal: who is late is waited for, not taken for dead, also where everybody asks it all the time; its host answers.
/// Method: each member in turn comes three failure timeouts late.
#[test]
fn who_is_late_is_waited_for() {
    let timeout = Duration::from_millis(500);
    for late in 0..3 {
        let builder = |_, builder: vigie_barrier::net::NetBuilder| {
            builder.failure_timeout(timeout).repeat_after(Duration::from_millis(10))
        };
        let answered = play(3, builder, move |mut barrier| async move {
            for _ in 0..50 {
                barrier.wait().await?;
            }
            if barrier.rank() == Rank(late) {
                tokio::time::sleep(3 * timeout).await;
            }
            barrier.wait().await?;
            barrier.wait().await?;
            Ok(barrier.counters().member.answered)
        });
        assert!(answered[usize::try_from(late).expect("small")] > 0, "{answered:?}");
    }
}

/// Goal: too few members are told how many they are of the group as it was formed, by which a majority counts. Method: one
/// of five leaves, the rest shrink and pass a barrier; then two more leave.
#[test]
fn a_minority_counts_by_the_first_group() {
    let told = play(
        5,
        |_, builder| builder,
        |mut barrier| async move {
            barrier.wait().await?;
            if barrier.rank().0 == 4 {
                return Ok(None);
            }
            barrier.wait().await.expect_err("one has left");
            barrier.shrink().await?;
            barrier.wait().await?;
            if barrier.rank().0 >= 2 {
                return Ok(None);
            }
            loop {
                barrier.wait().await.expect_err("somebody has left");
                if let Err(error) = barrier.shrink().await {
                    return Ok(Some(error.to_string()));
                }
            }
        },
    );
    for error in told.into_iter().flatten() {
        assert!(error.starts_with("2 of the first 5 members are left"), "{error}");
    }
}
