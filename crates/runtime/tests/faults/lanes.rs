//! Which ready task goes first. One thread runs all tasks here, so that the order is exact; and the
//! quantum and the slice of the reaction lane are so long that a busy machine does not matter.

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;
use vigie_detect::{
    Handle, Server,
    clock::{monotonic_now, thread_cpu_time},
    detectors::doorbell::{Button, Doorbell, doorbell},
};
use vigie_runtime::{Runtime, spawn, time, yield_now};

use crate::kit::guard::against_hang;

/// Those that decide whose turn it is; on the kernel-level flavor, the kernel does.
const FLAVORS: [vigie_runtime::Flavor; 2] =
    [vigie_runtime::Flavor::UserLevel, vigie_runtime::Flavor::Hybrid];

/// What happened, in order.
#[derive(Clone, Debug, Default)]
struct Log {
    entries: Arc<Mutex<Vec<&'static str>>>,
}

impl Log {
    fn add(&self, entry: &'static str) {
        self.entries.lock().expect("no panic").push(entry);
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.entries.lock().expect("no panic"))
    }
}

/// Runs `test` as a task, so that all it spawns and wakes is on the one worker.
fn for_each_flavor<F>(quantum: Duration, slice: Duration, test: fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    for flavor in FLAVORS {
        against_hang(move || {
            let builder = Runtime::builder().flavor(flavor).workers(1).reserve_threads(0);
            let runtime =
                builder.quantum(quantum).reaction_slice(slice).build().expect("a runtime");
            let task = runtime.spawn(test());
            runtime.block_on(task).unwrap_or_else(|error| panic!("{flavor}: {error}"));
        });
    }
}

const HOUR: Duration = Duration::from_secs(3600);
const LONG: Duration = Duration::from_secs(10);

fn bell() -> (Button, Handle<Doorbell>) {
    doorbell(&Server::current().expect("in a runtime")).expect("a doorbell")
}

/// Tasks that compute: they switch without end, and write so into the log.
fn compute(log: &Log, count: usize) -> Arc<AtomicBool> {
    let is_over = Arc::new(AtomicBool::new(false));
    for _ in 0..count {
        let (log, is_over) = (log.clone(), Arc::clone(&is_over));
        spawn(async move {
            while !is_over.load(Ordering::SeqCst) {
                log.add("compute");
                yield_now().await;
            }
        })
        .detach();
    }
    is_over
}

/// Gives all others many turns.
async fn many_switches() {
    for _ in 0..50 {
        yield_now().await;
    }
}

/// Goal: a task woken by an event goes before all that wake themselves, and so does what it wakes and
/// spawns in turn. Method: three tasks compute; another one presses a button, which no task is woken
/// by, but a poll pass; the log tells what ran next.
#[test]
fn reactions_go_first() {
    for_each_flavor(LONG, HOUR, || async {
        let log = Log::default();
        let is_over = compute(&log, 3);
        let (button, bell) = bell();
        let woken = Arc::new(Notify::new());
        let (notify, reacting) = (Arc::clone(&woken), log.clone());
        spawn(async move {
            loop {
                bell.rung().await.expect("it rings");
                reacting.add("reaction");
                notify.notify_one();
                let child = reacting.clone();
                spawn(async move { child.add("child") }).detach();
            }
        })
        .detach();
        let second = log.clone();
        spawn(async move {
            loop {
                woken.notified().await;
                second.add("woken");
            }
        })
        .detach();
        many_switches().await;
        for _ in 0..20 {
            // As seldom as the children can be paid.
            time::sleep(Duration::from_millis(5)).await;
            log.add("press");
            button.press();
            many_switches().await;
        }
        is_over.store(true, Ordering::SeqCst);
        let log = log.take();
        let presses: Vec<_> = (0..log.len()).filter(|&place| log[place] == "press").collect();
        assert_eq!(presses.len(), 20);
        for place in presses {
            assert_eq!(log[place + 1..place + 4], ["reaction", "woken", "child"]);
        }
    });
}

/// Goal: a task that keeps waking itself does not stand before one that an event wakes. Method: it has
/// credit and yields without end; an event must be served after a few of its turns at most.
#[test]
fn who_wakes_itself_computes() {
    for_each_flavor(LONG, HOUR, || async {
        let log = Log::default();
        let (button, bell) = bell();
        let reacting = log.clone();
        spawn(async move {
            loop {
                bell.rung().await.expect("it rings");
                reacting.add("reaction");
            }
        })
        .detach();
        let is_over = compute(&log, 1);
        for _ in 0..100 {
            many_switches().await;
            log.take();
            button.press();
            many_switches().await;
            let log = log.take();
            let turns = log.iter().position(|&entry| entry == "reaction").expect("it was woken");
            assert!(turns <= 3, "{log:?}");
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

/// Goal: a task that uses up its credit leaves the reaction lane, and comes back once it has some again. Method: its
/// event comes before that of another task, round by round; in the reaction lane it goes first, from the compute lane
/// after the other.
#[test]
fn a_hog_leaves_the_reaction_lane_and_comes_back() {
    const QUANTUM: Duration = Duration::from_millis(2);
    for_each_flavor(QUANTUM, HOUR, || async {
        let log = Log::default();
        let (is_hogging, rounds) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let [hog, other] = ["hog", "other"].map(|name| {
            let (button, bell) = bell();
            let (log, rounds) = (log.clone(), Arc::clone(&rounds));
            let is_hogging = Arc::clone(&is_hogging);
            spawn(async move {
                loop {
                    bell.rung().await.expect("it rings");
                    log.add(name);
                    if name == "hog" && is_hogging.swap(false, Ordering::SeqCst) {
                        burn(2 * QUANTUM);
                    }
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            })
            .detach();
            button
        });
        // A task computes, so the hogs are checked.
        let is_over = compute(&Log::default(), 1);
        many_switches().await;
        let round = async || {
            log.take();
            let before = rounds.load(Ordering::SeqCst);
            hog.press();
            other.press();
            while rounds.load(Ordering::SeqCst) < before + 2 {
                yield_now().await;
            }
            log.take() == ["hog", "other"]
        };
        // Until the spawning is forgotten.
        while !round().await {}
        let mut long_polls = 0;
        loop {
            is_hogging.store(true, Ordering::SeqCst);
            if !round().await {
                break;
            }
            long_polls += 1;
            assert!(long_polls < 8, "it hogs, and still goes before the other");
        }
        // It comes back, and stays: one round more or less is up to what else this machine does.
        let mut in_row = 0;
        while in_row < 10 {
            in_row = if round().await { in_row + 1 } else { 0 };
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

/// Keeps the processor for so long, by the clock and by what the thread has got of it.
fn burn(time: Duration) {
    let (began, used) = (monotonic_now(), thread_cpu_time());
    while monotonic_now() - began < time || thread_cpu_time().saturating_sub(used) < time {
        std::hint::spin_loop();
    }
}

/// Goal: reactions that cause each other without end do not starve those that compute. Method: two
/// tasks wake each other for ever, set off by an event, until a computing task has had its turns.
#[test]
fn reactions_do_not_starve_computation() {
    for_each_flavor(LONG, Duration::from_millis(1), || async {
        let (button, bell) = bell();
        let (ping, pong) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let is_over = Arc::new(AtomicBool::new(false));
        let (their_ping, their_pong) = (Arc::clone(&ping), Arc::clone(&pong));
        spawn(async move {
            bell.rung().await.expect("it rings");
            loop {
                their_pong.notify_one();
                their_ping.notified().await;
            }
        })
        .detach();
        let volleys = Arc::new(AtomicUsize::new(0));
        let (counted, ends) = (Arc::clone(&volleys), Arc::clone(&is_over));
        let rally = spawn(async move {
            while !ends.load(Ordering::SeqCst) {
                pong.notified().await;
                counted.fetch_add(1, Ordering::SeqCst);
                ping.notify_one();
            }
        });
        many_switches().await;
        button.press();
        while volleys.load(Ordering::SeqCst) < 100 {
            yield_now().await;
        }
        // This task computes by now.
        many_switches().await;
        is_over.store(true, Ordering::SeqCst);
        rally.await.expect("no panic");
    });
}
