//! A lock that a hog holds delays the tasks that need it, each on one thread, and no others.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream as StdUnixStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tracing::Level;
use vigie_detect::net::UnixStream;
use vigie_runtime::{JoinHandle, Runtime, task, time, yield_now};

use crate::{
    hogs::{Hogs, each, each_with, eventually},
    kit::{child::in_child, guard::against_hang},
    log::Log,
    settle,
};

/// The default of [`vigie_runtime::RuntimeBuilder::long_poll`].
const LONG_POLL: Duration = Duration::from_micros(200);

/// A poll that lasts for so long, and computes, makes a hog of its task by default.
const HOG: Duration = Duration::from_millis(10);

/// A lock, whose holder is in no hurry, and what has happened under it.
#[derive(Clone, Default)]
struct Locked {
    log: Arc<Mutex<Vec<&'static str>>>,
    is_held: Arc<AtomicBool>,
    /// How many are about to take the lock.
    comers: Arc<AtomicUsize>,
}

impl Locked {
    /// Starts the hog, and waits until it holds the lock. It lets go once `is_over`.
    fn hold(
        &self,
        runtime: &Runtime,
        is_over: impl Fn() -> bool + Send + 'static,
    ) -> JoinHandle<()> {
        let this = self.clone();
        let hog = task::Builder::new().name("holder").spawn_on(
            async move {
                let mut log = this.log.lock().expect("not poisoned");
                this.is_held.store(true, Ordering::SeqCst);
                while !is_over() {
                    std::hint::spin_loop();
                }
                log.push("holder");
            },
            runtime.handle(),
        );
        settle::until(|| self.is_held.load(Ordering::SeqCst));
        hog
    }

    /// A task that takes the lock for each byte from the peer that is returned, then answers.
    fn need(&self, runtime: &Runtime) -> StdUnixStream {
        let this = self.clone();
        let (mut stream, peer) = pair(runtime);
        task::Builder::new()
            .name("comer")
            .spawn_on(
                async move {
                    while let Ok(byte) = stream.read_u8().await {
                        this.comers.fetch_add(1, Ordering::SeqCst);
                        this.log.lock().expect("not poisoned").push("comer");
                        stream.write_u8(byte).await.expect("open");
                    }
                },
                runtime.handle(),
            )
            .detach();
        peer
    }

    /// Sends a byte to each of the tasks that need the lock, and waits until all of them are stuck.
    fn send_all_in(&self, peers: &mut [StdUnixStream]) {
        for (index, peer) in peers.iter_mut().enumerate() {
            peer.write_all(&[1]).expect("open");
            // One by one: so each is woken by its own event, behind those that are stuck.
            settle::until(|| self.comers.load(Ordering::SeqCst) == index + 1);
        }
    }

    fn log(&self) -> Vec<&'static str> {
        self.log.lock().expect("not poisoned").clone()
    }
}

fn pair(runtime: &Runtime) -> (UnixStream, StdUnixStream) {
    let (stream, peer) = StdUnixStream::pair().expect("a pair of sockets");
    (UnixStream::from_std_on(runtime.server(), stream).expect("watched"), peer)
}

fn receive(peer: &mut StdUnixStream) {
    peer.read_exact(&mut [0]).expect("answered");
}

/// Goal: tasks that block on a lock which a hog holds occupy a thread each; events of the others are
/// delivered, and when the hog lets go, everything ends. Method: the hog holds the lock until another
/// task has echoed, slept and spawned, which no thread outside the runtime could do for it. The log
/// says in which order the lock was had. One worker, so that only reserve threads can serve, and two.
#[test]
fn a_lock_that_a_hog_holds() {
    const COMERS: usize = 3;
    const ROUNDS: usize = 50;
    against_hang(|| {
        each(|runtime| {
            let locked = Locked::default();
            let mut peers: Vec<_> = (0..COMERS).map(|_| locked.need(runtime)).collect();
            let (mut stream, mut peer) = pair(runtime);
            let rounds = Arc::new(AtomicUsize::new(0));
            let served = Arc::clone(&rounds);
            let bystander = runtime.spawn(async move {
                for _ in 0..ROUNDS {
                    let byte = stream.read_u8().await.expect("a byte");
                    time::sleep(Duration::from_micros(50)).await;
                    vigie_runtime::spawn(yield_now()).await.expect("no panic");
                    stream.write_u8(byte).await.expect("open");
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
            let rounds_left = move || rounds.load(Ordering::SeqCst) < ROUNDS;
            let hog = locked.hold(runtime, move || !rounds_left());
            locked.send_all_in(&mut peers);
            for _ in 0..ROUNDS {
                peer.write_all(&[1]).expect("open");
                receive(&mut peer);
            }
            peers.iter_mut().for_each(receive);
            runtime.block_on(hog).expect("no panic");
            runtime.block_on(bystander).expect("no panic");
            // All came while the lock was held, and none had it before.
            assert_eq!(locked.log(), ["holder", "comer", "comer", "comer"]);
        });
    });
}

/// Goal: a task that blocks on a lock is seen as what it is: a long poll, on one thread. Method: the metrics
/// name the tasks that are polled while the lock is held, and count their polls afterwards.
#[test]
fn each_blocked_task_is_one_long_poll() {
    const COMERS: usize = 4;
    against_hang(|| {
        each(|runtime| {
            let locked = Locked::default();
            let mut peers: Vec<_> = (0..COMERS).map(|_| locked.need(runtime)).collect();
            let is_over = Arc::new(AtomicBool::new(false));
            let over = Arc::clone(&is_over);
            let hog = locked.hold(runtime, move || over.load(Ordering::SeqCst));
            locked.send_all_in(&mut peers);
            let caught = |name: &str| {
                let threads = runtime.handle().metrics().threads.into_iter();
                let polls = threads.filter_map(|thread| thread.current);
                let is_it = |poll: &vigie_runtime::metrics::CurrentPoll| {
                    poll.name.as_deref() == Some(name) && poll.elapsed > LONG_POLL
                };
                polls.filter(is_it).count()
            };
            eventually(|| caught("comer") >= COMERS && caught("holder") >= 1);
            assert_eq!((caught("comer"), caught("holder")), (COMERS, 1));
            let before = runtime.handle().metrics().long_polls;
            is_over.store(true, Ordering::SeqCst);
            peers.iter_mut().for_each(receive);
            runtime.block_on(hog).expect("no panic");
            // They have ended: the answers were written after them, or their successors have begun.
            eventually(|| caught("comer") == 0 && caught("holder") == 0);
            eventually(|| runtime.handle().metrics().long_polls > before + COMERS as u64);
            let latest = runtime.handle().metrics().latest_long_polls;
            let told = |name| latest.iter().any(|poll| poll.name.as_deref() == Some(name));
            assert!(told("comer") && told("holder"), "{latest:?}");
        });
    });
}

/// Goal: a task that has blocked on a lock once does not count as computing, and its next event is delivered
/// while the worker hogs. Method: the test holds the lock until the poll has lasted for longer than that of
/// any hog; then a hog holds the worker until the task has echoed.
#[test]
fn who_was_blocked_does_not_count_as_computing() {
    against_hang(|| {
        each(|runtime| {
            let locked = Locked::default();
            let held = locked.log.lock().expect("not poisoned");
            let (mut stream, mut peer) = pair(runtime);
            let (this, echoes) = (locked.clone(), Arc::new(AtomicUsize::new(0)));
            let count = Arc::clone(&echoes);
            runtime
                .spawn(async move {
                    this.log.lock().expect("not poisoned").push("comer");
                    while let Ok(byte) = stream.read_u8().await {
                        stream.write_u8(byte).await.expect("open");
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                })
                .detach();
            let is_long = || {
                let threads = runtime.handle().metrics().threads.into_iter();
                let mut polls = threads.filter_map(|thread| thread.current);
                polls.any(|poll| poll.elapsed > 2 * HOG)
            };
            eventually(is_long);
            drop(held);
            settle::until(|| !locked.log().is_empty());
            let over = Arc::clone(&echoes);
            let hog = locked.hold(runtime, move || over.load(Ordering::SeqCst) >= 3);
            let other = Hogs::start(runtime.handle(), 1, 1);
            for _ in 0..3 {
                peer.write_all(&[1]).expect("open");
                receive(&mut peer);
            }
            runtime.block_on(hog).expect("no panic");
            drop(other);
        });
    });
}

/// Goal: more tasks than threads may block on the lock: events then wait, but there is no deadlock, and
/// everything ends when the hog lets go. Method: six of them, for which one thread beside the workers is
/// not enough; the hog lets go when all threads are stuck.
#[test]
fn more_comers_than_threads() {
    const COMERS: usize = 6;
    against_hang(|| {
        each_with(|builder| builder.reserve_threads(1), &mut |runtime: &Runtime| {
            let locked = Locked::default();
            let mut peers: Vec<_> = (0..COMERS).map(|_| locked.need(runtime)).collect();
            let (mut stream, mut peer) = pair(runtime);
            let bystander = runtime.spawn(async move {
                let byte = stream.read_u8().await.expect("a byte");
                stream.write_u8(byte).await.expect("open");
            });
            let is_over = Arc::new(AtomicBool::new(false));
            let over = Arc::clone(&is_over);
            let hog = locked.hold(runtime, move || over.load(Ordering::SeqCst));
            for peer in &mut peers {
                peer.write_all(&[1]).expect("open");
            }
            // One thread is the hog's.
            let threads = runtime.handle().metrics().workers;
            settle::until(|| locked.comers.load(Ordering::SeqCst) == threads);
            peer.write_all(&[1]).expect("open");
            let refused = || runtime.handle().metrics().reserve.map(|reserve| reserve.refused);
            eventually(|| refused().is_some_and(|count| count > 0));
            assert!(!bystander.is_finished(), "there was a thread: this test shows nothing");
            is_over.store(true, Ordering::SeqCst);
            peers.iter_mut().for_each(receive);
            receive(&mut peer);
            runtime.block_on(hog).expect("no panic");
            runtime.block_on(bystander).expect("no panic");
            let log = locked.log();
            assert_eq!((log.len(), log[0]), (COMERS + 1, "holder"));
        });
    });
}

/// Keeps the warnings and errors of all threads.
fn log_warnings() -> Log {
    let log = Log::new(|metadata| *metadata.level() <= Level::WARN);
    tracing::subscriber::set_global_default(log.clone()).expect("there was none");
    log
}

/// Goal: a warning says once that the bound is reached. Method: one worker and one reserve thread hog, in a
/// process of its own, since the supervisor's events go to the listener of the process.
#[test]
fn the_bound_is_told_of_once() {
    in_child("locks::the_bound_is_told_of_once", || {
        let warnings = log_warnings();
        let runtime = Runtime::builder().workers(1).reserve_threads(1).build().expect("a runtime");
        let told = || warnings.with("every reserve thread");
        assert!(told().is_empty());
        let hogs = Hogs::start(runtime.handle(), 4, 2);
        let refused = || runtime.handle().metrics().reserve.map_or(0, |reserve| reserve.refused);
        eventually(|| refused() > 3);
        drop(hogs);
        runtime.block_on(runtime.spawn(async {})).expect("no panic");
        let told = told();
        assert_eq!(told.len(), 1, "{told:?}");
        let named = told[0].matches("the task spawned at ").count();
        assert!(named == 2 && told[0].contains("computes"), "{told:?}");
    });
}

/// Goal: a deadlock by the bound is an error of its own, which names which tasks sleep where, once for each time. Method: more
/// tasks than threads block on a lock whose holder waits for a task that has no thread, until the error has come
/// and the test lets the holder go; twice. In a process of its own, as above.
#[test]
#[expect(clippy::await_holding_lock, reason = "the mistake that is to be named")]
fn a_deadlock_by_the_bound_is_named() {
    in_child("locks::a_deadlock_by_the_bound_is_named", || {
        const THREADS: usize = 4;
        let warnings = log_warnings();
        let builder = Runtime::builder().workers(2).reserve_threads(THREADS - 2);
        let runtime = builder.build().expect("a runtime");
        let lock = Arc::new(Mutex::new(()));
        for round in 1..=2 {
            let (let_go, may_go) = tokio::sync::oneshot::channel();
            let outside = {
                let warnings = warnings.clone();
                std::thread::spawn(move || {
                    eventually(|| warnings.with("a deadlock").len() == round);
                    let_go.send(()).expect("the holder waits");
                })
            };
            runtime.block_on(async {
                let held = lock.lock().expect("not poisoned");
                let stuck = Arc::new(AtomicUsize::new(0));
                let comers: Vec<_> = (0..2 * THREADS)
                    .map(|_| {
                        let (lock, stuck) = (Arc::clone(&lock), Arc::clone(&stuck));
                        runtime.spawn(async move {
                            stuck.fetch_add(1, Ordering::SeqCst);
                            drop(lock.lock());
                        })
                    })
                    .collect();
                settle::until(|| stuck.load(Ordering::SeqCst) == THREADS);
                let mut needed = runtime.spawn(async {});
                tokio::select! {
                    _ = &mut needed => panic!("there was a thread: this test shows nothing"),
                    released = may_go => released.expect("not dropped"),
                }
                drop(held);
                needed.await.expect("no panic");
                for comer in comers {
                    comer.await.expect("no panic");
                }
            });
            outside.join().expect("no panic");
        }
        let told = warnings.with("a deadlock");
        assert_eq!(told.len(), 2, "{told:?}");
        for text in told {
            let named = text.matches("the task spawned at ").count();
            assert!(named == THREADS && text.contains("locks.rs"), "{text}");
            assert!(!text.contains("computes"), "{text}");
        }
        assert_eq!(
            warnings.with("every reserve thread").len(),
            1,
            "the bound is told of as before"
        );
    });
}

/// Goal: a hog is named while it lasts. Method: it ends once the warning has come; as above, in a process of its own.
#[test]
fn a_hog_is_named_while_it_lasts() {
    in_child("locks::a_hog_is_named_while_it_lasts", || {
        let warnings = log_warnings();
        let runtime = Runtime::builder().workers(1).reserve_threads(0).build().expect("a runtime");
        let greedy = async move {
            let is_named = |text: &String| text.contains("greedy") && text.contains("locks.rs");
            while !warnings.with("a task holds its thread").iter().any(is_named) {
                std::hint::spin_loop();
            }
        };
        let greedy = task::Builder::new().name("greedy").spawn_on(greedy, runtime.handle());
        runtime.block_on(greedy).expect("no panic");
    });
}

/// Goal: the future of `block_on`, too, may block on the lock: its thread is its own, and the runtime's
/// threads go on. Method: the hog lets go when another task has had its echoes while `block_on` is stuck.
#[test]
fn a_blocked_main_future() {
    const ROUNDS: usize = 20;
    against_hang(|| {
        each(|runtime| {
            let locked = Locked::default();
            let mut comer = locked.need(runtime);
            let (mut stream, mut peer) = pair(runtime);
            let rounds = Arc::new(AtomicUsize::new(0));
            let served = Arc::clone(&rounds);
            runtime
                .spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        stream.write_u8(byte).await.expect("open");
                        served.fetch_add(1, Ordering::SeqCst);
                    }
                })
                .detach();
            let hog = locked.hold(runtime, move || rounds.load(Ordering::SeqCst) >= ROUNDS);
            locked.send_all_in(std::slice::from_mut(&mut comer));
            let client = {
                let locked = locked.clone();
                std::thread::spawn(move || {
                    settle::until(|| locked.comers.load(Ordering::SeqCst) == 2);
                    for _ in 0..ROUNDS {
                        peer.write_all(&[1]).expect("open");
                        receive(&mut peer);
                    }
                })
            };
            runtime.block_on(async {
                locked.comers.fetch_add(1, Ordering::SeqCst);
                locked.log.lock().expect("not poisoned").push("main");
            });
            receive(&mut comer);
            runtime.block_on(hog).expect("no panic");
            client.join().expect("all is echoed");
            let mut log = locked.log();
            log[1..].sort_unstable();
            assert_eq!(log, ["holder", "comer", "main"]);
        });
    });
}
