//! A task whose socket is always ready gives way to others.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    panic::catch_unwind,
    pin::pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::{
    Instant, budget, clock::monotonic_now, detectors::channel::channel, net::UnixStream,
};
use vigie_runtime::{
    Flavor, Runtime, spawn, spawn_local,
    task::unconstrained,
    time::{interval, sleep, timeout},
    yield_now,
};

/// The most that a greedy task does, so that a test without budgets fails instead of hanging.
const GREEDY_MAX: u64 = 2_000_000;

/// How often the other task must have run.
const STEPS: u64 = 100;

fn user_level() -> Runtime {
    Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime")
}

fn pair() -> (UnixStream, UnixStream) {
    let (a, b) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    (UnixStream::from_std(a).expect("watched"), UnixStream::from_std(b).expect("watched"))
}

/// Runs `step` again and again beside a task that takes [`STEPS`] turns, until it has.
async fn beside_another(step: &mut impl AsyncFnMut()) {
    let steps = Rc::new(Cell::new(0));
    let counted = Rc::clone(&steps);
    let other = spawn_local(async move {
        while counted.get() < STEPS {
            counted.set(counted.get() + 1);
            yield_now().await;
        }
    });
    let mut count = 0;
    while steps.get() < STEPS && count < GREEDY_MAX {
        step().await;
        count += 1;
    }
    assert_eq!(steps.get(), STEPS, "the other task must have run meanwhile");
    other.await.expect("it ends");
}

/// Goal: a task that reads for ever from a socket which is always readable does not keep its thread,
/// and reads every byte in order. Method: a task on the user-level flavor fills its socket itself, byte
/// by byte; another task counts its turns.
#[test]
fn a_reader_gives_way() {
    user_level().block_on(async {
        let (mut near, mut far) = pair();
        near.write_all(&[0]).await.expect("there is room");
        let mut count = 0;
        let mut read = async || {
            near.write_all(&[byte(count + 1)]).await.expect("there is room");
            assert_eq!(far.read_u8().await.expect("a byte is there"), byte(count));
            count += 1;
        };
        beside_another(&mut read).await;
        assert_eq!(far.read_u8().await.expect("the last byte"), byte(count));
    });
}

/// Goal: the same for a task that waits for what is over already: sleeps, time-outs, and ticks of a period that are late. Method: as above.
#[test]
fn timers_that_are_over_give_way() {
    user_level().block_on(async {
        beside_another(&mut async || sleep(Duration::ZERO).await).await;
        let mut outdated = async || {
            let elapsed = timeout(Duration::ZERO, std::future::pending::<()>()).await;
            elapsed.expect_err("it never ends");
        };
        beside_another(&mut outdated).await;
        let mut period = interval(Duration::from_nanos(1));
        let mut ticks = async || {
            period.tick().await;
        };
        beside_another(&mut ticks).await;
    });
}

fn byte(count: u64) -> u8 {
    count.to_le_bytes()[0]
}

/// Goal: the same for a task that receives from a channel that is always full. Method: each value received is
/// followed by one sent.
#[test]
fn a_receiver_gives_way() {
    user_level().block_on(async {
        let server = vigie_detect::Server::current().expect("inside a runtime");
        let (sender, receiver) = channel(&server, 4).expect("registered");
        sender.try_send(0).expect("there is room");
        let mut next = 0;
        let mut receive = async || {
            sender.try_send(next + 1).expect("there is room");
            assert_eq!(receiver.recv().await.expect("no error"), Some(next));
            next += 1;
        };
        beside_another(&mut receive).await;
    });
}

/// Goal: the main future has a budget as well, since it shares its thread with the tasks; and so has a
/// spawned one. Method: the tests above run in the main future; here the same in a task.
#[test]
fn a_task_gives_way() {
    user_level().block_on(async {
        let task = spawn_local(async {
            let (mut near, mut far) = pair();
            let mut read = async || {
                near.write_all(&[7]).await.expect("there is room");
                far.read_u8().await.expect("a byte is there");
            };
            beside_another(&mut read).await;
        });
        task.await.expect("no panic");
    });
}

/// Goal: a worker of the hybrid flavor gives its tasks budgets too. Method: one worker and no reserve
/// threads; a task of it reads for ever, another one counts its turns.
#[test]
fn a_worker_gives_budgets() {
    let builder = Runtime::builder().flavor(Flavor::Hybrid).workers(1).reserve_threads(0);
    builder.build().expect("a runtime").block_on(async {
        let steps = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&steps);
        let greedy = spawn(async move {
            let (mut near, mut far) = pair();
            let other = spawn(async move {
                while counted.fetch_add(1, Ordering::Relaxed) < STEPS {
                    yield_now().await;
                }
            });
            for _ in 0..GREEDY_MAX {
                if steps.load(Ordering::Relaxed) > STEPS {
                    return other.await.expect("it ends");
                }
                near.write_all(&[7]).await.expect("there is room");
                far.read_u8().await.expect("a byte is there");
            }
            panic!("the other task must have run meanwhile");
        });
        greedy.await.expect("no panic");
    });
}

/// Goal: an unconstrained future never yields. Method: far more reads than a budget allows, in one
/// poll of the future.
#[test]
fn an_unconstrained_reader_does_not_give_way() {
    user_level().block_on(async {
        let (mut near, mut far) = pair();
        let mut reads = pin!(unconstrained(async {
            for _ in 0..20_000 {
                near.write_all(&[7]).await.expect("there is room");
                far.read_u8().await.expect("a byte is there");
            }
        }));
        let first = poll_fn(|cx| Poll::Ready(reads.as_mut().poll(cx))).await;
        assert!(first.is_ready(), "one poll suffices");
    });
}

/// Goal: an executor that runs inside a poll, and polls again without leaving it, makes progress.
/// Method: a loop that polls a reader many times over what one budget allows, inside one poll of a task.
#[test]
fn an_executor_inside_a_poll_makes_progress() {
    user_level().block_on(async {
        let (mut near, mut far) = pair();
        let mut refused = 0;
        let mut reads = pin!(async {
            for _ in 0..20_000 {
                near.write_all(&[7]).await.expect("there is room");
                far.read_u8().await.expect("a byte is there");
            }
        });
        poll_fn(|cx| {
            while reads.as_mut().poll(cx).is_pending() {
                refused += 1;
            }
            Poll::Ready(())
        })
        .await;
        assert!(refused > 0, "it had a budget");
    });
}

/// Goal: a thread that leaves the runtime has no budget any more, however it leaves. Method: a main
/// future uses its budget up and then ends, or panics.
#[test]
fn a_budget_does_not_outlive_its_poll() {
    for panics in [false, true] {
        let left = catch_unwind(|| {
            user_level().block_on(async move {
                exhaust().await;
                assert!(!panics, "planted");
            });
        });
        assert_eq!(left.is_err(), panics);
        let cx = &Context::from_waker(Waker::noop());
        for _ in 0..1_000 {
            assert!(budget::poll_proceed(cx).is_ready());
        }
    }
}

/// Uses the poll's budget up, with one that is over for longer than any test takes.
async fn exhaust() {
    let half = monotonic_now().as_nanos() / 2;
    budget::begin_with(Instant::from_nanos(half), Duration::from_nanos(half));
    poll_fn(|cx| {
        while budget::poll_proceed(cx).is_ready() {}
        Poll::Ready(())
    })
    .await;
}

/// Goal: a task that ignores the `Pending` of one source for another loses nothing of either. Method: a select
/// of two sockets that are always readable, polled in turn within each poll; all bytes arrive in order.
#[test]
fn a_select_loses_nothing() {
    user_level().block_on(async {
        let (mut near_a, mut far_a) = pair();
        let (mut near_b, mut far_b) = pair();
        let (mut count_a, mut count_b) = (0, 0);
        for count in 0..2 {
            near_a.write_all(&[byte(count)]).await.expect("there is room");
            near_b.write_all(&[byte(count)]).await.expect("there is room");
        }
        let mut either = async || {
            tokio::select! {
                value = far_a.read_u8() => {
                    assert_eq!(value.expect("a byte is there"), byte(count_a));
                    near_a.write_all(&[byte(count_a + 2)]).await.expect("there is room");
                    count_a += 1;
                }
                value = far_b.read_u8() => {
                    assert_eq!(value.expect("a byte is there"), byte(count_b));
                    near_b.write_all(&[byte(count_b + 2)]).await.expect("there is room");
                    count_b += 1;
                }
            }
        };
        beside_another(&mut either).await;
        assert!(count_a > 0 && count_b > 0);
    });
}
