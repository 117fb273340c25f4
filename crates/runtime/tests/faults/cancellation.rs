//! Aborting a task, or dropping a future, at any point: nothing is lost, and nothing is left.

use std::{
    future::{Future, pending, poll_fn},
    io::Write,
    os::unix::net::UnixStream as StdUnixStream,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    thread,
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::{
    Server,
    detectors::{channel::channel, doorbell::doorbell},
    net::{TcpListener, TcpStream, UdpSocket, UnixStream},
};
use vigie_runtime::{Flavor, JoinHandle, Runtime, spawn, spawn_blocking, time, yield_now};

use crate::{
    census::Census,
    flavors::{FLAVORS, runtime},
    kit::{guard::against_hang, seeds},
    settle::until,
};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

fn for_each_flavor(test: impl Fn(&Runtime) + Clone + Send + 'static) {
    for flavor in FLAVORS {
        let test = test.clone();
        against_hang(move || test(&runtime(flavor)));
    }
}

/// Polls a future a number of times, each time that it is woken, and then drops it: its value, or
/// nothing if it was not ready by then.
struct PollTimes<T> {
    future: Option<Boxed<T>>,
    left: usize,
}

fn poll_times<T>(left: usize, future: impl Future<Output = T> + Send + 'static) -> PollTimes<T> {
    PollTimes { future: Some(Box::pin(future)), left }
}

impl<T> Future for PollTimes<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let this = &mut *self;
        if let Some(left) = this.left.checked_sub(1) {
            this.left = left;
            let future = this.future.as_mut().expect("not dropped yet");
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                this.future = None;
                return Poll::Ready(Some(value));
            }
            if left > 0 {
                return Poll::Pending;
            }
        }
        this.future = None;
        Poll::Ready(None)
    }
}

/// Goal: a future dropped after any number of polls loses nothing: what it waited for comes to the
/// next one. Method: each kind of wait, given up after 0, 1 and 2 polls, the event before or after;
/// then waited for in earnest.
#[test]
fn futures_dropped_at_any_poll() {
    for_each_flavor(|runtime| {
        for polls in 0..3 {
            for is_early in [true, false] {
                for drop_at in [dropped_bell, dropped_value, dropped_read, dropped_accept] {
                    let task = runtime.spawn(drop_at(polls, is_early));
                    runtime.block_on(task).expect("it does not panic");
                }
            }
        }
        assert_eq!(runtime.handle().live_task_count(), 0);
        let server = runtime.server();
        assert_eq!((server.timers().pending_count(), server.readiness().pending_count()), (0, 0));
    });
}

fn dropped_bell(polls: usize, is_early: bool) -> Boxed<()> {
    Box::pin(async move {
        let server = Server::current().expect("in a runtime");
        let (button, bell) = doorbell(&server).expect("a doorbell");
        if is_early {
            button.press();
        }
        let waiting = bell.clone();
        let rung = poll_times(polls, async move { waiting.wait(()).await.is_ok() });
        let attempt = spawn(rung);
        if polls < 2 {
            assert_eq!(attempt.await.expect("no panic").is_some(), is_early && polls > 0);
            button.press();
        } else {
            // Woken by the event: the second poll takes it.
            button.press();
            assert_eq!(attempt.await.expect("no panic"), Some(true));
            button.press();
        }
        bell.rung().await.expect("the ring is not lost");
        assert_eq!(bell.pending_count(), 0);
    })
}

fn dropped_value(polls: usize, is_early: bool) -> Boxed<()> {
    Box::pin(async move {
        let server = Server::current().expect("in a runtime");
        let (sender, receiver) = channel::<usize>(&server, 8).expect("a channel");
        let mut sent = 0;
        if is_early {
            sender.try_send(sent).expect("there is room");
            sent += 1;
        }
        let waiting = receiver.clone();
        let attempt = spawn(poll_times(polls, async move { waiting.wait(()).await }));
        if polls >= 2 {
            sender.try_send(sent).expect("there is room");
            sent += 1;
        }
        let mut received = 0;
        if let Some(value) = attempt.await.expect("no panic") {
            assert_eq!(value.expect("open"), Some(received));
            received += 1;
        }
        sender.try_send(sent).expect("there is room");
        for expected in received..=sent {
            assert_eq!(receiver.recv().await.expect("open"), Some(expected), "in order, once");
        }
        assert_eq!(receiver.pending_count(), 0);
    })
}

fn dropped_read(polls: usize, is_early: bool) -> Boxed<()> {
    Box::pin(async move {
        let (stream, mut peer) = StdUnixStream::pair().expect("a pair of sockets");
        let stream = UnixStream::from_std(stream).expect("watched");
        if is_early {
            peer.write_all(&[1]).expect("there is room");
        }
        let (read, mut write) = stream.into_split();
        let read = Arc::new(tokio::sync::Mutex::new(read));
        let mine = Arc::clone(&read);
        let attempt = spawn(poll_times(polls, async move { mine.lock().await.read_u8().await }));
        if !is_early && polls >= 2 {
            peer.write_all(&[1]).expect("there is room");
        }
        let first = attempt.await.expect("no panic");
        if !is_early && polls < 2 {
            peer.write_all(&[1]).expect("there is room");
        }
        match first {
            Some(byte) => assert_eq!(byte.expect("open"), 1),
            None => assert_eq!(read.lock().await.read_u8().await.expect("open"), 1, "not lost"),
        }
        peer.write_all(&[2]).expect("there is room");
        assert_eq!(read.lock().await.read_u8().await.expect("open"), 2);
        assert_eq!(poll_times(1, async move { write.write_u8(1).await.is_ok() }).await, Some(true));
    })
}

fn dropped_accept(polls: usize, is_early: bool) -> Boxed<()> {
    Box::pin(async move {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.expect("a port"));
        let address = listener.local_addr().expect("bound");
        let mut clients = Vec::new();
        if is_early {
            clients.push(TcpStream::connect(address).await.expect("connected"));
        }
        let mine = Arc::clone(&listener);
        let attempt = spawn(poll_times(polls, async move { mine.accept().await }));
        if polls >= 2 || !is_early {
            // Of which one is given up after its first poll.
            drop(poll_times(1, TcpStream::connect(address)).await);
            clients.push(TcpStream::connect(address).await.expect("connected"));
        }
        let mut accepted = Vec::new();
        accepted.extend(attempt.await.expect("no panic").map(|result| result.expect("a client")));
        while accepted.len() < clients.len() {
            accepted.push(listener.accept().await.expect("a client"));
        }
    })
}

/// Goal: timers, time-outs, join handles, datagrams and closures may be given up at any poll as well.
/// Method: each, given up after 0, 1 and 2 polls; nothing stays pending.
#[test]
fn timers_and_handles_dropped_at_any_poll() {
    for_each_flavor(|runtime| {
        for polls in 0..3 {
            let task = runtime.spawn(async move {
                let short = Duration::from_micros(100);
                poll_times(polls, time::sleep(short)).await;
                poll_times(polls, time::sleep(Duration::from_secs(3600))).await_for(1).await;
                poll_times(polls, time::timeout(short, pending::<()>())).await;
                poll_times(polls, yield_now()).await;
                poll_times(polls, async {
                    let mut ticks = time::interval(Duration::from_micros(50));
                    ticks.tick().await;
                    ticks.tick().await;
                })
                .await;
                let ended = spawn(async { 1 });
                poll_times(polls, ended).await;
                let waiting = spawn(pending::<()>());
                poll_times(polls.min(1), waiting).await;
                poll_times(polls, spawn_blocking(|| 2)).await;
                let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a port"));
                let address = socket.local_addr().expect("bound");
                let mine = Arc::clone(&socket);
                poll_times(polls.min(1), async move { mine.recv(&mut [0; 8]).await }).await;
                socket.send_to(&[9], address).await.expect("sent");
                let mut buffer = [0; 8];
                assert_eq!(socket.recv(&mut buffer).await.expect("received"), 1);
            });
            runtime.block_on(task).expect("it does not panic");
        }
        let server = runtime.server();
        assert_eq!((server.timers().pending_count(), server.readiness().pending_count()), (0, 0));
        // Tasks that wait for ever, handles dropped: one task for each number of polls.
        assert_eq!(runtime.handle().live_task_count(), 3);
    });
}

impl<T> PollTimes<T> {
    /// Bounds the number of polls: for what is never woken.
    fn await_for(mut self, polls: usize) -> Self {
        self.left = self.left.min(polls);
        self
    }
}

/// Where an aborted task may be.
async fn wander(mut random: fastrand::Rng, census: Census, steps: Arc<AtomicUsize>) {
    let _witness = census.witness();
    let server = Server::current().expect("in a runtime");
    let (button, bell) = doorbell(&server).expect("a doorbell");
    let (stream, peer) = StdUnixStream::pair().expect("a pair of sockets");
    let mut stream = UnixStream::from_std(stream).expect("watched");
    let mut peer = UnixStream::from_std(peer).expect("watched");
    loop {
        let _inner = census.witness();
        steps.fetch_add(1, Ordering::SeqCst);
        match random.u32(..9) {
            0 => yield_now().await,
            1 => time::sleep(Duration::from_micros(random.u64(..200))).await,
            2 => {
                button.press();
                bell.rung().await.expect("it rings");
            }
            3 => {
                peer.write_u8(1).await.expect("open");
                stream.read_u8().await.expect("open");
            }
            4 => {
                let witness = census.witness();
                let inner = spawn(async move {
                    let _witness = witness;
                    yield_now().await;
                });
                inner.await.expect("no panic");
            }
            5 => {
                let witness = census.witness();
                spawn_blocking(move || drop(witness)).await.expect("no panic");
            }
            6 => {
                let ended = time::timeout(Duration::from_micros(50), pending::<()>()).await;
                ended.expect_err("it takes for ever");
            }
            7 => {
                let one = census.witness();
                // Ends on its own if this task is aborted first.
                let (_parent, parent_ends) = tokio::sync::oneshot::channel::<()>();
                let aborted = spawn(async move {
                    let _one = one;
                    parent_ends.await.expect_err("nothing is sent");
                });
                if random.bool() {
                    yield_now().await;
                }
                aborted.abort();
                assert!(aborted.await.expect_err("aborted").is_cancelled());
            }
            _ => {
                let mut is_first = true;
                poll_fn(|cx| {
                    if std::mem::take(&mut is_first) {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Poll::Ready(())
                })
                .await;
            }
        }
    }
}

/// Goal: a task may be aborted at any point, from anywhere; its future is dropped once and nothing is
/// left pending. Method: tasks that wander through all kinds of waits, aborted after a random number of
/// steps by other threads and by tasks.
#[test]
fn abort_at_any_point() {
    let mut random = seeds::random("abort_at_any_point");
    let seeds: [u64; 2] = [random.u64(..), random.u64(..)];
    for (flavor, seed) in FLAVORS.into_iter().zip(seeds) {
        against_hang(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            let runtime = runtime(flavor);
            let census = Census::default();
            let tasks: Vec<_> = (0..200)
                .map(|_| {
                    let steps = Arc::new(AtomicUsize::new(0));
                    let future = wander(random.fork(), census.clone(), Arc::clone(&steps));
                    (runtime.spawn(future), steps, random.usize(..12))
                })
                .collect();
            abort_all(&runtime, tasks);
            // Children of aborted tasks run to their end.
            runtime.block_on(async {
                while runtime.handle().live_task_count() > 0 {
                    yield_now().await;
                }
            });
            until(|| census.is_settled());
            let server = runtime.server();
            let pending = (server.timers().pending_count(), server.readiness().pending_count());
            assert_eq!(pending, (0, 0), "{flavor}");
        });
    }
}

/// Aborts each task once it has made its steps: half of them from another thread, half from a task.
fn abort_all(runtime: &Runtime, tasks: Vec<(JoinHandle<()>, Arc<AtomicUsize>, usize)>) {
    let is_over = AtomicBool::new(false);
    let (outside, inside): (Vec<_>, Vec<_>) =
        tasks.into_iter().enumerate().partition(|(number, _)| number % 2 == 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            runtime.block_on(async {
                for (_, (task, steps, count)) in inside {
                    while steps.load(Ordering::SeqCst) < count {
                        yield_now().await;
                    }
                    task.abort();
                    assert!(task.await.expect_err("aborted").is_cancelled());
                }
                // The other thread needs a thread that runs its tasks.
                while !is_over.load(Ordering::SeqCst) {
                    yield_now().await;
                }
            });
        });
        for (_, (task, steps, count)) in outside {
            until(|| steps.load(Ordering::SeqCst) >= count);
            task.abort();
            until(|| task.is_finished());
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

/// Goal: an abort that meets the moment at which a worker begins to poll is not lost. Method: many tasks
/// that would wait for ever, each aborted a little later than the one before; all of them end.
#[test]
fn an_abort_meets_the_beginning_of_a_poll() {
    for_each_flavor(|runtime| {
        if runtime.handle().flavor() == Flavor::UserLevel {
            // One thread polls and aborts there.
            return;
        }
        for round in 0..20_000_u32 {
            let task = runtime.spawn(pending::<()>());
            for _ in 0..round % 500 {
                std::hint::spin_loop();
            }
            task.abort();
            let error = runtime.block_on(task).expect_err("it waits for ever otherwise");
            assert!(error.is_cancelled(), "{error}");
        }
    });
}
