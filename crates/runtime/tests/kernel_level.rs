//! Features of the kernel-level flavor only: a thread for each task, which the kernel wakes for
//! its own descriptors, and the bounds of that.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{
    future::{Future, poll_fn},
    io::{Read, Write},
    net::TcpStream as StdTcpStream,
    os::unix::net::UnixStream as StdUnixStream,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::{TcpListener, UnixStream};
use vigie_runtime::{BuildError, Flavor, Runtime, RuntimeBuilder, spawn, time};

use crate::kit::{child::in_child, guard::against_hang};

fn builder() -> RuntimeBuilder {
    Runtime::builder().flavor(Flavor::KernelLevel)
}

fn runtime() -> Runtime {
    builder().build().expect("a runtime")
}

/// Goal: an event wakes the task's own thread and no other: the server's host stays out of it. Method: an
/// echo, whose rounds of detection the server would count.
#[test]
fn the_kernel_wakes_the_tasks_thread() {
    against_hang(|| {
        const MESSAGES: u64 = 200;
        let runtime = runtime();
        let (give, address) = mpsc::channel();
        let server = runtime.spawn(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            give.send(listener.local_addr()?).expect("the test waits");
            let (mut stream, _) = listener.accept().await?;
            spawn(async move {
                let mut message = [0; 16];
                while stream.read_exact(&mut message).await.is_ok() {
                    stream.write_all(&message).await?;
                }
                std::io::Result::Ok(())
            })
            .await
            .expect("the handler ends")
        });
        let mut client = StdTcpStream::connect(address.recv().expect("bound")).expect("connected");
        let mut exchange = || {
            let mut back = [0; 16];
            client.write_all(&[7; 16]).expect("sent");
            client.read_exact(&mut back).expect("echoed");
            assert_eq!(back, [7; 16]);
        };
        exchange();
        let before = runtime.server().metrics().polls;
        for _ in 0..MESSAGES {
            exchange();
        }
        let rounds = runtime.server().metrics().polls - before;
        assert!(rounds < MESSAGES / 10, "the host polled {rounds} times for {MESSAGES} messages");
        drop(client);
        runtime.block_on(server).expect("it ends").expect("no error");
    });
}

/// Goal: a task may block its thread; the others run. Method: more tasks than cores that wait for the last
/// one by a channel of the standard library.
#[test]
fn tasks_may_block() {
    against_hang(|| {
        let runtime = runtime();
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let blocked: Vec<_> = (0..16)
            .map(|_| {
                let released = Arc::clone(&released);
                runtime.spawn(async move { released.lock().expect("no panic").recv().is_ok() })
            })
            .collect();
        let releaser = runtime.spawn(async move { (0..16).all(|_| release.send(()).is_ok()) });
        runtime.block_on(async {
            assert!(releaser.await.expect("it runs"));
            for task in blocked {
                assert!(task.await.expect("it is released"));
            }
        });
    });
}

/// Goal: one task may wait for more descriptors than its own thread watches. Method: 200 sockets in
/// one task, written to in reverse order.
#[test]
fn many_descriptors_in_one_task() {
    against_hang(|| {
        let runtime = runtime();
        let sum = runtime.block_on(async {
            let mut peers = Vec::new();
            let mut reads: Vec<Pin<Box<dyn Future<Output = u8> + Send>>> = Vec::new();
            for _ in 0..200 {
                let (near, far) = StdUnixStream::pair().expect("a pair of sockets");
                let mut near = UnixStream::from_std(near).expect("watched");
                peers.push(far);
                reads.push(Box::pin(async move { near.read_u8().await.expect("a byte") }));
            }
            let (begin, has_begun) = mpsc::channel::<()>();
            let writer = thread::spawn(move || {
                has_begun.recv().expect("it begins");
                peers.iter().rev().for_each(|mut peer| peer.write_all(&[1]).expect("room"));
                peers
            });
            let mut sum = 0u32;
            poll_fn(|cx| {
                reads.retain_mut(|read| match read.as_mut().poll(cx) {
                    Poll::Ready(byte) => {
                        sum += u32::from(byte);
                        false
                    }
                    Poll::Pending => true,
                });
                let _ = begin.send(());
                if reads.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            drop(writer.join().expect("it has written"));
            sum
        });
        assert_eq!(sum, 200);
    });
}

/// Remembers that it was woken, and passes that on.
struct Relay {
    is_woken: AtomicBool,
    outer: Mutex<Option<Waker>>,
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        if let Some(outer) = self.outer.lock().expect("no panic").take() {
            outer.wake();
        }
    }
}

/// Goal: a read that a task has begun and handed on, under a waker of its own that the next task does not
/// replace, is watched when the first task has ended. Method: as such sets of futures do it, by hand.
#[test]
fn a_wait_outlives_its_thread() {
    against_hang(|| {
        let runtime = runtime();
        let (near, mut far) = StdUnixStream::pair().expect("a pair of sockets");
        let relay = Arc::new(Relay { is_woken: AtomicBool::new(false), outer: Mutex::new(None) });
        let begun = Arc::clone(&relay);
        let first = runtime.spawn(poll_fn(move |_| {
            let near = near.try_clone().expect("a descriptor");
            let mut near = UnixStream::from_std(near).expect("watched");
            let mut read = Box::pin(async move { near.read_u8().await });
            let waker = Waker::from(Arc::clone(&begun));
            assert!(read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            Poll::Ready(read)
        }));
        let mut read = runtime.block_on(first).expect("it ends");
        let second = runtime.spawn(poll_fn(move |cx| {
            *relay.outer.lock().expect("no panic") = Some(cx.waker().clone());
            if !relay.is_woken.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
            pin!(&mut read).poll(cx)
        }));
        far.write_all(&[9]).expect("room");
        assert_eq!(runtime.block_on(second).expect("it ends").expect("a byte"), 9);
    });
}

/// Goal: the event of a read that was handed on wakes the task that has it now, also while the thread that
/// began it is still inside the same poll. Method: the first task begins the read under a waker of its own,
/// as sets of futures do, hands it on and then blocks until the second task has read.
#[test]
fn a_wait_reaches_its_new_task_while_the_old_thread_is_busy() {
    against_hang(|| {
        let runtime = runtime();
        let (near, mut far) = StdUnixStream::pair().expect("a pair of sockets");
        let relay = Arc::new(Relay { is_woken: AtomicBool::new(false), outer: Mutex::new(None) });
        let begun = Arc::clone(&relay);
        let (hand_on, handed_on) = tokio::sync::oneshot::channel();
        let (finish, finished) = mpsc::channel::<()>();
        let first = runtime.spawn(async move {
            let mut near = UnixStream::from_std(near).expect("watched");
            let mut read = Box::pin(async move { near.read_u8().await });
            let waker = Waker::from(begun);
            assert!(read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert!(hand_on.send(read).is_ok(), "the second task waits");
            finished.recv().expect("the second task has read");
        });
        let second = runtime.spawn(async move {
            let mut read = handed_on.await.expect("the first task hands it on");
            far.write_all(&[9]).expect("room");
            let byte = poll_fn(move |cx| {
                *relay.outer.lock().expect("no panic") = Some(cx.waker().clone());
                if !relay.is_woken.load(Ordering::SeqCst) {
                    return Poll::Pending;
                }
                read.as_mut().poll(cx)
            })
            .await;
            finish.send(()).expect("the first task waits");
            byte
        });
        assert_eq!(runtime.block_on(second).expect("it ends").expect("a byte"), 9);
        runtime.block_on(first).expect("it ends");
    });
}

/// Goal: the event of a read that was polled on one thread and then on another wakes the second one, while
/// the first is busy, asleep, and over. Method: the first task polls the read once under its own waker and
/// hands it on; the second task polls it; the byte comes after that.
#[test]
fn a_wait_reaches_the_task_that_polled_last() {
    for first_is in ["busy", "asleep", "over"] {
        against_hang(move || {
            let runtime = runtime();
            let (near, mut far) = StdUnixStream::pair().expect("a pair of sockets");
            let (hand_on, handed_on) = tokio::sync::oneshot::channel();
            let (finish, finished) = mpsc::channel::<()>();
            let (release, released) = tokio::sync::oneshot::channel::<()>();
            let first = runtime.spawn(async move {
                let mut near = UnixStream::from_std(near).expect("watched");
                let mut read = Box::pin(async move { near.read_u8().await });
                let begun = poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx).is_pending()));
                assert!(begun.await, "nothing was sent");
                assert!(hand_on.send(read).is_ok(), "the second task waits");
                match first_is {
                    "busy" => finished.recv().expect("the second task has read"),
                    "asleep" => released.await.expect("the second task has read"),
                    _ => {}
                }
            });
            let second = runtime.spawn(async move {
                let mut read = handed_on.await.expect("the first task hands it on");
                let is_pending = poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx).is_pending()));
                assert!(is_pending.await, "nothing was sent");
                far.write_all(&[9]).expect("room");
                let byte = read.await;
                // The first task may be over.
                let _ = (finish.send(()), release.send(()));
                byte
            });
            let byte = runtime.block_on(second).expect("it ends").expect("a byte");
            assert_eq!(byte, 9, "the first task is {first_is}");
            runtime.block_on(first).expect("it ends");
        });
    }
}

/// Goal: the events of a task, and of the main future, that are ready again after each poll are seen all
/// the same. Method: each polls a read and yields until the read is over; the byte is sent after the first
/// poll.
#[test]
fn a_thread_that_never_sleeps_sees_its_events() {
    /// Polls `read` again and again, without sleeping in between.
    async fn read_busily(near: StdUnixStream, mut far: StdUnixStream) -> u8 {
        let mut near = UnixStream::from_std(near).expect("watched");
        let mut read = pin!(async move { near.read_u8().await });
        let mut is_sent = false;
        poll_fn(move |cx| {
            let polled = read.as_mut().poll(cx);
            if !is_sent {
                assert!(polled.is_pending(), "nothing was sent");
                far.write_all(&[5]).expect("room");
                is_sent = true;
            }
            cx.waker().wake_by_ref();
            polled
        })
        .await
        .expect("a byte")
    }

    against_hang(|| {
        let runtime = runtime();
        let (near, far) = StdUnixStream::pair().expect("a pair of sockets");
        assert_eq!(runtime.block_on(read_busily(near, far)), 5);
        let (near, far) = StdUnixStream::pair().expect("a pair of sockets");
        let task = runtime.spawn(read_busily(near, far));
        assert_eq!(runtime.block_on(task).expect("it ends"), 5);
    });
}

/// Goal: a read that a task waits for inside a foreign executor, which parks the thread its own way, is
/// watched. Method: an executor of a few lines.
#[test]
fn a_foreign_executor_inside_a_task() {
    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn foreign_block_on<F: Future>(future: F) -> F::Output {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut future = pin!(future);
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(value) => return value,
                Poll::Pending => thread::park(),
            }
        }
    }

    against_hang(|| {
        let runtime = runtime();
        let (near, mut far) = StdUnixStream::pair().expect("a pair of sockets");
        let (begin, has_begun) = mpsc::channel::<()>();
        let task = runtime.spawn(async move {
            let mut near = UnixStream::from_std(near).expect("watched");
            foreign_block_on(async move {
                let mut read = pin!(near.read_u8());
                poll_fn(|cx| {
                    let polled = read.as_mut().poll(cx);
                    let _ = begin.send(());
                    polled
                })
                .await
            })
        });
        has_begun.recv().expect("it has begun");
        far.write_all(&[3]).expect("room");
        assert_eq!(runtime.block_on(task).expect("it ends").expect("a byte"), 3);
    });
}

/// Goal: a task for which there is no thread is cancelled, and its handle says why; the next one runs.
/// Method: a bound of one thread.
#[test]
fn more_tasks_than_threads_are_refused() {
    against_hang(|| {
        let runtime = builder().task_threads(1).build().expect("a runtime");
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let first = runtime.spawn(released);
        let dropped = Arc::new(());
        let witness = Arc::clone(&dropped);
        let error = runtime
            .block_on(runtime.spawn(async move { drop(witness) }))
            .expect_err("there is one thread");
        assert!(error.is_refused() && error.is_cancelled() && !error.is_panic(), "{error}");
        assert_eq!(Arc::strong_count(&dropped), 1, "the future was dropped");
        assert_eq!(runtime.handle().live_task_count(), 1);
        release.send(()).expect("it waits");
        runtime.block_on(first).expect("it ends").expect("released");
    });
}

/// Goal: the same where the kernel refuses. Method: a process whose address space has no room for another
/// stack, for a while.
#[test]
fn a_thread_that_the_kernel_refuses() {
    in_child("a_thread_that_the_kernel_refuses", || {
        let runtime = runtime();
        // The host's thread, which ends the sleep, has begun: it needs memory for that. A shorter sleep may be over
        // before it is polled.
        let sleep = time::sleep(Duration::from_millis(20));
        runtime.block_on(runtime.spawn(sleep)).expect("no panic");
        let limit = getrlimit(Resource::As);
        let none = Rlimit { current: Some(1 << 20), maximum: limit.maximum };
        setrlimit(Resource::As, none).expect("the limit may be lowered");
        let refused = runtime.spawn(async { 1 });
        setrlimit(Resource::As, limit).expect("the limit may be raised again");
        let error = runtime.block_on(refused).expect_err("there was no thread");
        assert!(error.is_refused(), "{error}");
        assert_eq!(runtime.block_on(runtime.spawn(async { 2 })).expect("there is one now"), 2);
    });
}

/// Goal: options out of range are errors. Method: one beyond each border; the smallest allowed ones work.
#[test]
fn options_are_checked() {
    let refused = builder().task_stack_bytes(16 * 1024 - 1).build();
    assert!(matches!(refused, Err(BuildError::TaskStack { bytes: 16383, .. })));
    let refused = builder().task_stack_bytes(usize::MAX).build();
    assert!(matches!(refused, Err(BuildError::TaskStack { bytes: usize::MAX, .. })));
    assert!(matches!(builder().task_threads(0).build(), Err(BuildError::TaskThreads)));
    assert!(matches!(builder().thread_name("a\0b").build(), Err(BuildError::ThreadName)));
    against_hang(|| {
        let runtime = builder().task_stack_bytes(64 * 1024).task_threads(1).build().expect("ok");
        assert_eq!(runtime.block_on(runtime.spawn(async { 3 })).expect("it runs"), 3);
    });
}
