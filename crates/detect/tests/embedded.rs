//! A server that another library's event loop drives: tokio's reactor, whose epoll is edge-triggered, and a loop around poll(2),
//! which is level-triggered.

use std::{
    future::Future,
    os::fd::AsFd,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, poll};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::timeout,
};
use vigie_detect::{
    Flavor, Server, WaitError,
    clock::monotonic_now,
    detectors::channel::channel,
    net::{TcpListener, TcpStream},
};

const HANG: Duration = Duration::from_secs(30);

fn in_tokio<F: Future<Output = ()>>(workers: usize, test: impl FnOnce() -> F) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(workers).enable_all().build().expect("a runtime");
    runtime.block_on(async { timeout(HANG, test()).await.expect("no hang") });
}

/// Goal: sockets, timers and notifications of threads reach tokio's tasks, whichever worker waits, and nothing is lost between
/// edges. Method: 16 connections whose both ends are detectors, each with 200 messages of random size; 8 tasks that sleep
/// 50 times; a channel fed by a thread. All must end.
#[test]
fn everything_is_detected_inside_tokio() {
    for workers in [1, 3] {
        in_tokio(workers, || async {
            let host = Server::spawn_in_tokio().expect("a server");
            let server = host.server().clone();
            let listener =
                TcpListener::bind_on(&server, ([127, 0, 0, 1], 0).into()).expect("a free port");
            let address = listener.local_addr().expect("an address");
            let mut tasks = JoinSet::new();
            tasks.spawn(async move {
                for _ in 0..16 {
                    let (stream, _) = listener.accept().await.expect("a connection");
                    tokio::spawn(async move {
                        let (mut read, mut write) = stream.into_split();
                        tokio::io::copy(&mut read, &mut write).await
                    });
                }
            });
            for seed in 0..16 {
                let server = server.clone();
                tasks.spawn(async move {
                    let mut random = fastrand::Rng::with_seed(seed);
                    let mut stream =
                        TcpStream::connect_on(&server, address).await.expect("a connection");
                    for _ in 0..200 {
                        let sent: Vec<u8> =
                            (0..random.usize(1..5_000)).map(|_| random.u8(..)).collect();
                        let mut echoed = vec![0; sent.len()];
                        stream.write_all(&sent).await.expect("written");
                        stream.read_exact(&mut echoed).await.expect("echoed");
                        assert_eq!(sent, echoed);
                    }
                });
            }
            for _ in 0..8 {
                let server = server.clone();
                tasks.spawn(async move {
                    for millis in 0..50_u64 {
                        let deadline = monotonic_now() + Duration::from_micros(millis * 37);
                        server.timers().wait(deadline).await.expect("a timer");
                        assert!(monotonic_now() >= deadline);
                    }
                });
            }
            let (sender, receiver) = channel(&server, 4).expect("a channel");
            let foreign = thread::spawn(move || {
                (0..2_000).for_each(|value| sender.send_blocking(value).expect("received"));
            });
            tasks.spawn(async move {
                for expected in 0..2_000 {
                    assert_eq!(receiver.recv().await.expect("a value"), Some(expected));
                }
            });
            while let Some(task) = tasks.join_next().await {
                task.expect("no panic");
            }
            foreign.join().expect("no panic");
            drop(host);
            let late = server.timers().wait(monotonic_now()).await;
            assert!(matches!(late, Err(WaitError::ServerClosed)), "{late:?}");
        });
    }
}

/// A loop around poll(2), as a GUI has one.
struct Loop(AtomicBool);

impl Wake for Loop {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Goal: a loop that only polls the descriptor without a time-out sees timers and notifications, and rests in between. Method: ten
/// timers in turn, and a thread that sends; the loop polls its futures only when woken, and ticks only when the
/// descriptor is readable, which it must be no more often than a few times for each event.
#[test]
fn a_loop_around_poll_needs_no_timeout() {
    let server = Server::new(Flavor::UserLevel).expect("a server");
    let mut driver = server.embed();
    let (sender, receiver) = channel(&server, 1).expect("a channel");
    let sent = Arc::new(Mutex::new(0));
    let count = Arc::clone(&sent);
    let foreign = thread::spawn(move || {
        for value in 0..10 {
            *count.lock().expect("no panic") += 1;
            sender.send_blocking(value).expect("received");
        }
    });
    let mut work = pin!(async {
        for value in 0..10 {
            let deadline = monotonic_now() + Duration::from_millis(2);
            server.timers().wait(deadline).await.expect("a timer");
            assert!(monotonic_now() >= deadline);
            assert_eq!(receiver.recv().await.expect("a value"), Some(value));
        }
    });
    let woken = Arc::new(Loop(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut ticks = 0;
    loop {
        if woken.0.swap(false, Ordering::SeqCst)
            && let Poll::Ready(()) = work.as_mut().poll(&mut Context::from_waker(&waker))
        {
            break;
        }
        if !woken.0.load(Ordering::SeqCst) {
            poll(&mut [PollFd::new(&driver.as_fd(), PollFlags::IN)], None).expect("poll(2)");
            assert!(driver.tick());
            ticks += 1;
        }
    }
    foreign.join().expect("no panic");
    assert!(ticks <= 200, "{ticks} ticks for 20 events: the descriptor stays readable");
    server.shutdown();
    poll(&mut [PollFd::new(&driver.as_fd(), PollFlags::IN)], None).expect("poll(2)");
    assert!(!driver.tick());
}
