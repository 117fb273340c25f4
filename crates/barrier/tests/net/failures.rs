//! Members that leave or fall silent.

use std::{
    future::{self, Future},
    panic::{self, AssertUnwindSafe},
    pin::pin,
    sync::atomic::{AtomicU32, Ordering},
    task::Poll,
    thread,
    time::Duration,
};

use vigie_barrier::{
    Algorithm, BarrierError, Rank,
    net::{NetBuilder, WaitMode},
    reduction::{Counting, Reduction},
};
use vigie_detect::WaitError;

use crate::stage::play;

/// Goal: a member that leaves early is named on all others at once, they shrink, and the smaller group works, twice. Method: the
/// member of each rank leaves after some barriers; the timeout is longer than the test may last.
#[test]
fn those_who_leave_are_named_and_the_rest_goes_on() {
    for name in ["concurrent", "ternary", "pairwise", "shuffle-exchange"] {
        let algorithm: Algorithm = name.parse().expect("a name");
        for gone in 0..4 {
            let builder = |_, builder: NetBuilder| {
                builder
                    .algorithm(algorithm)
                    .failure_timeout(Duration::from_secs(300))
                    .quorum(vigie_barrier::member::Quorum::Any)
            };
            play(4, builder, move |mut barrier| async move {
                let own = barrier.rank();
                let mut error = None;
                for epoch in 0..6 {
                    if epoch == 5 && own == Rank(gone) {
                        return Ok(());
                    }
                    if let Err(lost) = barrier.wait().await {
                        // Others may be told of it in the barrier before, which all have entered.
                        assert!(epoch >= 4, "{epoch}");
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
                for epoch in 0..21 {
                    // And once more: the new rank 0 goes.
                    if epoch == 20 && own == Rank(0) {
                        return Ok(());
                    }
                    match barrier.wait().await {
                        Ok(passed) => assert_eq!(passed.epoch, epoch, "{name}"),
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
                barrier.wait().await.expect_err("a member has left");
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

/// The result of a future that may panic when it is polled.
async fn caught<T>(future: impl Future<Output = T>) -> thread::Result<T> {
    let mut future = pin!(future);
    future::poll_fn(|cx| match panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(panicked) => Poll::Ready(Err(panicked)),
    })
    .await
}

/// Goal: a panic in the user's function of a reduction, inside the engine, hangs no member: its own member is told of it,
/// whether the host or the caller meets it, and the others that this member is lost. Method: rank 0 of a central barrier
/// reduces for all, and panics in the second barrier; members that poll, and members that sleep.
#[test]
fn a_panic_in_the_engine_is_told() {
    const WHAT: &str = "a reduction that panics";
    for waiting in [WaitMode::Adaptive, WaitMode::Sleeping] {
        let builder = move |rank, builder: NetBuilder| {
            let reduced = AtomicU32::new(0);
            let reduction = Reduction::user(1, Counting::Once, move |_: &mut [u8], _: &[u8]| {
                // Two values of others in each barrier.
                let count = reduced.fetch_add(1, Ordering::Relaxed);
                assert!(rank != 0 || count < 2, "{WHAT}");
            });
            builder
                .algorithm(Algorithm::Central)
                .wait_mode(waiting)
                .reduction(reduction.expect("short"))
                .repeat_after(Duration::from_millis(5))
                .failure_timeout(Duration::from_secs(2))
        };
        play(3, builder, |mut barrier| async move {
            barrier.reduce(&[1]).await?;
            let second = caught(barrier.reduce(&[1])).await;
            if barrier.rank() != Rank(0) {
                let error = second.expect("another member panics").expect_err("one is lost");
                assert_eq!(error.lost(), [Rank(0)]);
                return Ok(());
            }
            match second {
                Ok(Err(BarrierError::Wait(WaitError::Panicked { message, .. }))) => {
                    assert_eq!(message, WHAT);
                }
                Err(panicked) => {
                    assert_eq!(panicked.downcast_ref::<String>().map(String::as_str), Some(WHAT));
                }
                Ok(other) => panic!("{other:?}"),
            }
            Ok(())
        });
    }
}
