//! The cost of a runtime's small operations.
//!
//! **Question.** Being safe against tasks that hog must not cost the ordinary case. What do spawn,
//! yield, wake, timers and a detection round cost, beside tokio?
//!
//! **Prediction.** From the parts: a spawn is one allocation and two queue operations (200 ns); a
//! yield is one queue operation and, now and then, a poll (under 100 ns on the user-level flavor;
//! tokio polls epoll at every yield, 300 ns and more); a wake-up is two queue operations (100–200 ns
//! a turn); a timer that is dropped is two operations on the timer heap (100–200 ns); a detection
//! round is dominated by the kernel: write, failed read, epoll and read, 4 to 6 µs for both
//! directions.
//!
//! **Method.** Each operation runs `n` times inside one task of a runtime with one worker (two for
//! `detect`), Criterion chooses `n` and repeats; nothing else runs in the process. The waiting between
//! tasks is the same code for all runtimes (`vigie_bench::turns`). Clock: `CLOCK_MONOTONIC`. Unit: time
//! per operation.
//!
//! | group | one operation |
//! | --- | --- |
//! | `spawn` | spawn an empty task and await it |
//! | `yield` | one task yields once |
//! | `wake` | two tasks pass a turn to each other and back |
//! | `timer-drop` | create a timer of an hour, poll it once, drop it |
//! | `timer-fire` | one of up to 1000 tasks sleeps 1 ms; all sleep at once, so the millisecond itself is shared |
//! | `timer-late` | how much later than 1 ms a sleep of 1 ms ends, with nothing else to do |
//! | `detect` | two tasks send a byte to each other and back over TCP: two detection rounds |

use std::future::poll_fn;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use criterion::Criterion;
use vigie_bench::clock;
use vigie_bench::system::AsyncSystem;
use vigie_bench::system::tokio::{TokioCurrentThread, TokioMultiThread};
use vigie_bench::system::vigie::{VigieHybrid, VigieUserLevel};
use vigie_bench::turns::{Countdown, Player, Turns};

/// Sleeping tasks at a time.
const SLEEPERS: u64 = 1_000;

/// The sleep of a sleeping task.
const SLEEP: Duration = Duration::from_millis(1);

async fn spawn<S: AsyncSystem>(count: u64) -> Duration {
    let start = clock::now();
    for index in 0..count {
        S::call(async move { black_box(index) }).await;
    }
    start.elapsed()
}

async fn yields<S: AsyncSystem>(count: u64) -> Duration {
    let start = clock::now();
    for _ in 0..count {
        S::yield_now().await;
    }
    start.elapsed()
}

async fn wake<S: AsyncSystem>(count: u64) -> Duration {
    let turns = Arc::new(Turns::new());
    let partner = turns.clone();
    S::spawn(async move {
        for _ in 0..count {
            partner.take(Player::Second).await;
        }
    });
    let start = clock::now();
    for _ in 0..count {
        turns.take(Player::First).await;
    }
    start.elapsed()
}

async fn timer_drop<S: AsyncSystem>(count: u64) -> Duration {
    let start = clock::now();
    for _ in 0..count {
        let mut timer = pin!(S::sleep(Duration::from_secs(3_600)));
        poll_fn(|context| {
            assert!(timer.as_mut().poll(context).is_pending(), "an hour has not passed");
            Poll::Ready(())
        })
        .await;
    }
    start.elapsed()
}

async fn timer_fire<S: AsyncSystem>(count: u64) -> Duration {
    let start = clock::now();
    let mut left = count;
    while left > 0 {
        let batch = left.min(SLEEPERS);
        let countdown = Arc::new(Countdown::new(batch));
        for _ in 0..batch {
            let countdown = countdown.clone();
            S::spawn(async move {
                S::sleep(SLEEP).await;
                countdown.done();
            });
        }
        countdown.wait().await;
        left -= batch;
    }
    start.elapsed()
}

async fn timer_late<S: AsyncSystem>(count: u64) -> Duration {
    let mut late = Duration::ZERO;
    for _ in 0..count {
        let start = clock::now();
        S::sleep(SLEEP).await;
        late += start.elapsed().saturating_sub(SLEEP);
    }
    late
}

async fn detect<S: AsyncSystem>(count: u64) -> Duration {
    const WHY: &str = "the loopback interface is up, and the partner reads to the end";
    let (listener, address) = S::listen().expect(WHY);
    S::spawn(async move {
        let mut stream = S::accept(&listener).await.expect(WHY);
        let mut byte = [0];
        while S::read(&mut stream, &mut byte).await.is_ok_and(|count| count == 1) {
            S::write_all(&mut stream, &byte).await.expect(WHY);
        }
    });
    let mut stream = S::connect(address).await.expect(WHY);
    let mut byte = [0];
    let start = clock::now();
    for _ in 0..count {
        S::write_all(&mut stream, &byte).await.expect(WHY);
        S::read(&mut stream, &mut byte).await.expect(WHY);
    }
    start.elapsed()
}

/// Measures `operation` on `S`; Criterion chooses how often.
fn measure<S, F>(
    criterion: &mut Criterion,
    (group, name): (&str, &str),
    workers: usize,
    operation: fn(u64) -> F,
) where
    S: AsyncSystem,
    F: Future<Output = Duration> + Send + 'static,
{
    let system = S::start(workers).expect("a runtime can be built");
    let mut group = criterion.benchmark_group(group);
    group.sample_size(20).warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_secs(1));
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|count| {
            system.block_on(async move { S::call(async move { operation(count).await }).await })
        });
    });
    group.finish();
}

fn all<S: AsyncSystem>(criterion: &mut Criterion, name: &str) {
    measure::<S, _>(criterion, ("spawn", name), 1, spawn::<S>);
    measure::<S, _>(criterion, ("yield", name), 1, yields::<S>);
    measure::<S, _>(criterion, ("wake", name), 1, wake::<S>);
    measure::<S, _>(criterion, ("timer-drop", name), 1, timer_drop::<S>);
    measure::<S, _>(criterion, ("timer-fire", name), 1, timer_fire::<S>);
    measure::<S, _>(criterion, ("timer-late", name), 1, timer_late::<S>);
    measure::<S, _>(criterion, ("detect", name), 2, detect::<S>);
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    all::<VigieUserLevel>(&mut criterion, "vigie-user-level");
    all::<TokioCurrentThread>(&mut criterion, "tokio-current-thread");
    all::<VigieHybrid>(&mut criterion, "vigie-hybrid");
    all::<TokioMultiThread>(&mut criterion, "tokio-multi-thread");
    criterion.final_summary();
}
