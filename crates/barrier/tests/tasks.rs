//! Barriers of tasks, under vigie's flavors and another runtime.

#![cfg(not(loom))]

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use vigie_barrier::{
    BarrierError, Group, Rank,
    local::{TaskBarrier, TaskMember},
};
use vigie_runtime::{Flavor, Runtime};

fn members(size: u32) -> Vec<TaskMember> {
    TaskBarrier::new(Group::new(size).expect("small")).into_members().collect()
}

/// A member's part in a test: raises its own counter, waits, and reads all counters.
async fn play(
    mut member: TaskMember,
    counters: Arc<Vec<AtomicU32>>,
    epochs: u32,
) -> Result<(), BarrierError> {
    for epoch in 0..epochs {
        counters[member.rank().index()].fetch_add(1, Ordering::Relaxed);
        let passed = if epoch % 3 == 0 {
            let token = member.arrive()?;
            assert_eq!(token.epoch(), 2 * epoch);
            member.depart(token).await?
        } else {
            member.wait().await?
        };
        assert_eq!(passed.epoch, 2 * epoch);
        for counter in &*counters {
            assert_eq!(counter.load(Ordering::Relaxed), epoch + 1);
        }
        // All have read them, before anybody goes on.
        member.wait().await?;
        if epoch % 5 == member.rank().0 % 5 {
            YieldNow(false).await;
        }
    }
    Ok(())
}

struct YieldNow(bool);

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

fn counters(size: u32) -> Arc<Vec<AtomicU32>> {
    Arc::new((0..size).map(|_| AtomicU32::new(0)).collect())
}

/// Goal: no member leaves before all have entered, in both forms, for sizes around powers of two, on every flavor.
/// Method: counters of all members, read after each barrier.
#[test]
fn nobody_leaves_early() {
    for flavor in [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel] {
        for size in [1, 2, 3, 8, 33] {
            let runtime = Runtime::builder().flavor(flavor).build().expect("a runtime");
            let counters = counters(size);
            let play = |member| play(member, Arc::clone(&counters), 50);
            let tasks: Vec<_> =
                members(size).into_iter().map(|member| runtime.spawn(play(member))).collect();
            runtime.block_on(async {
                for task in tasks {
                    task.await.expect("no panic").expect("all live");
                }
            });
            assert!(counters.iter().all(|count| count.load(Ordering::Relaxed) == 50));
        }
    }
}

/// Goal: the same under another runtime. Method: as above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_leaves_early_under_another_runtime() {
    let counters = counters(17);
    let play = |member| play(member, Arc::clone(&counters), 200);
    let tasks: Vec<_> = members(17).into_iter().map(|member| tokio::spawn(play(member))).collect();
    for task in tasks {
        task.await.expect("no panic").expect("all live");
    }
}

struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Goal: a wait that is dropped before it was polled has not entered; one that was polled stays entered, and the next
/// call goes on with the same barrier, also if that was passed meanwhile; nothing is entered twice. Method: by hand.
#[test]
fn a_dropped_wait_stays_entered_if_it_was_polled() {
    let mut all = members(2).into_iter();
    let (mut one, mut other) = (all.next().expect("0"), all.next().expect("1"));
    let waker = Waker::noop();
    let passes = |member: &mut TaskMember, expected| match poll(&mut member.wait(), waker) {
        Poll::Ready(outcome) => assert_eq!(outcome.expect("all live").epoch, expected),
        Poll::Pending => panic!("barrier {expected} is passed"),
    };
    drop(other.wait());
    assert!(poll(&mut one.wait(), waker).is_pending(), "rank 1 has not entered");
    assert!(matches!(one.arrive(), Err(BarrierError::AlreadyEntered { epoch: 0 })));
    passes(&mut other, 0);
    assert!(poll(&mut other.wait(), waker).is_pending(), "rank 0 is in the barrier before");
    passes(&mut one, 0);
    assert!(poll(&mut other.wait(), waker).is_pending(), "rank 0 has not entered");
    passes(&mut one, 1);
    passes(&mut other, 1);
}

/// Goal: only the waker of the latest poll is woken, and each wait wakes once. Method: two wakers that count.
#[test]
fn the_latest_waker_is_woken() {
    let mut all = members(2).into_iter();
    let (mut one, mut other) = (all.next().expect("0"), all.next().expect("1"));
    let counts = [0, 1].map(|_| Arc::new(Count(AtomicU32::new(0))));
    let wakers = counts.clone().map(Waker::from);
    let mut wait = one.wait();
    assert!(poll(&mut wait, &wakers[0]).is_pending());
    assert!(poll(&mut wait, &wakers[1]).is_pending());
    assert!(poll(&mut other.wait(), Waker::noop()).is_ready());
    assert_eq!(counts.map(|count| count.0.load(Ordering::Relaxed)), [0, 1]);
    assert!(poll(&mut wait, &wakers[1]).is_ready());
}

/// Goal: tokens are taken in their own barrier alone. Method: a token of another member, of another barrier, and of
/// one that is over; each comes back in the error.
#[test]
fn foreign_tokens_are_refused() {
    let mut all = members(2).into_iter();
    let (mut one, mut other) = (all.next().expect("0"), all.next().expect("1"));
    let mut stranger = members(1).remove(0);
    let [token, wrong] = [one.arrive(), other.arrive()].map(|token| token.expect("all live"));
    let refused = |outcome| match outcome {
        Poll::Ready(Err(BarrierError::ForeignToken { token })) => token,
        other => panic!("{other:?}"),
    };
    let waker = Waker::noop();
    let wrong = refused(poll(&mut one.depart(wrong), waker));
    let own = stranger.arrive().expect("alone");
    let own = refused(poll(&mut one.depart(own), waker));
    assert!(matches!(poll(&mut stranger.depart(own), waker), Poll::Ready(Ok(_))));
    assert!(matches!(poll(&mut one.depart(token), waker), Poll::Ready(Ok(_))));
    // Its own, but not entered since.
    assert!(poll(&mut other.depart(wrong), waker).is_ready());
    let late = one.arrive().expect("all live");
    assert!(poll(&mut one.wait(), waker).is_pending());
    let _ = other.arrive().expect("all live");
    assert!(poll(&mut one.wait(), waker).is_ready());
    let _ = refused(poll(&mut one.depart(late), waker));
}

/// Goal: a member that is dropped, or whose task panics, ends the wait of all others with its rank; one that had entered
/// before it left is not missing from that barrier, and those that were passed stay passed. Method: each case, for
/// every rank, on a runtime.
#[test]
fn a_member_that_leaves_is_named() {
    let runtime = Runtime::builder().flavor(Flavor::Hybrid).build().expect("a runtime");
    for leaver in 0..5 {
        for panics in [false, true] {
            let tasks: Vec<_> = members(5)
                .into_iter()
                .map(|mut member| {
                    runtime.spawn(async move {
                        for epoch in 0..10 {
                            if member.rank().0 == leaver && epoch == 7 {
                                assert!(!panics, "planted");
                                return None;
                            }
                            if let Err(error) = member.wait().await {
                                assert_eq!(epoch, 7);
                                assert!(error.is_final());
                                // It stays so; others that have heard may be gone since.
                                let again = member.wait().await.expect_err("unusable");
                                assert!(
                                    error.lost().iter().all(|rank| again.lost().contains(rank))
                                );
                                return Some(error.lost().to_vec());
                            }
                        }
                        unreachable!("one leaves");
                    })
                })
                .collect();
            runtime.block_on(async {
                for (rank, task) in (0..).zip(tasks) {
                    match task.await {
                        // Survivors that have heard may have left before the last one checked.
                        Ok(Some(lost)) => {
                            assert!(lost.contains(&Rank(leaver)) && !lost.contains(&Rank(rank)));
                        }
                        Ok(None) => assert!(rank == leaver && !panics),
                        Err(_) => assert!(rank == leaver && panics),
                    }
                }
            });
        }
    }
}

/// Goal: a member that leaves after it has entered does not keep the others from passing; the barrier after that fails.
/// Method: by hand.
#[test]
fn leaving_after_entering_counts() {
    let mut all = members(3);
    let (mut last, mut gone, mut one) =
        (all.pop().expect("2"), all.pop().expect("1"), all.pop().expect("0"));
    let waker = Waker::noop();
    let _ = gone.arrive().expect("all live");
    let mut wait = one.wait();
    assert!(poll(&mut wait, waker).is_pending());
    drop(gone);
    assert!(poll(&mut wait, waker).is_pending(), "it had entered");
    assert!(matches!(poll(&mut last.wait(), waker), Poll::Ready(Ok(_))));
    assert!(matches!(poll(&mut wait, waker), Poll::Ready(Ok(_))));
    let Poll::Ready(Err(error)) = poll(&mut last.wait(), waker) else { panic!("rank 1 is gone") };
    assert_eq!(error.lost(), [Rank(1)]);
    assert!(error.to_string().contains("rank 1 is gone before entering barrier 1"), "{error}");
}

/// Goal: a member's waker is dropped when the member leaves. Method: count references to a waker.
#[test]
fn a_member_that_leaves_forgets_its_waker() {
    let count = Arc::new(Count(AtomicU32::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let mut all = members(2).into_iter();
    let (mut one, other) = (all.next().expect("0"), all.next().expect("1"));
    assert!(pin!(one.wait()).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(one);
    drop(waker);
    assert_eq!(Arc::strong_count(&count), 1);
    drop(other);
}
