//! A runtime whose tasks run in ticks of a foreign event loop: a loop around poll(2).

use std::{
    os::fd::AsFd,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_runtime::{
    EmbeddedRuntime, Flavor, JoinHandle, Runtime, spawn, spawn_local, time, yield_now,
};

fn embedded() -> EmbeddedRuntime {
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    runtime.embed().expect("the flavor can be embedded")
}

/// Calls `tick` until `is_over`, sleeping in poll(2) without a time-out between two ticks. Returns how many there were.
fn run(runtime: &EmbeddedRuntime, is_over: impl Fn() -> bool) -> u32 {
    let mut ticks = 0;
    while !is_over() {
        runtime.tick();
        ticks += 1;
        if !is_over() {
            poll(&mut [PollFd::new(&runtime.as_fd(), PollFlags::IN)], None).expect("poll(2)");
        }
    }
    ticks
}

/// Goal: whatever makes a task ready between two ticks makes the descriptor readable. Method: tasks that sleep, that are woken by
/// threads, that are spawned by the loop's own thread between ticks and by others, local tasks woken from elsewhere, and sockets;
/// the loop never has a time-out, so a lost wake-up hangs.
#[test]
fn nothing_that_becomes_ready_is_missed() {
    let runtime = embedded();
    let mut tasks = Vec::new();
    tasks.push(runtime.spawn(async move {
        for _ in 0..20 {
            time::sleep(Duration::from_millis(1)).await;
        }
    }));

    let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
    tasks.push(runtime.spawn(async move {
        for expected in 0..200 {
            assert_eq!(receiver.recv().await, Some(expected));
        }
    }));
    let foreign = thread::spawn(move || {
        (0..200).for_each(|value| sender.blocking_send(value).expect("received"));
    });

    let (sender, receiver) = tokio::sync::oneshot::channel();
    tasks.push(runtime.spawn(async move {
        // A local task of this thread, which another thread wakes while the loop is in poll(2).
        let local = spawn_local(async move {
            let seen = Rc::new(receiver);
            yield_now().await;
            Rc::into_inner(seen).expect("ours alone").await.expect("sent")
        });
        assert_eq!(local.await.expect("no panic"), 7);
    }));
    let is_spawned = Arc::new(AtomicBool::new(false));
    let (handle, set) = (runtime.handle().clone(), Arc::clone(&is_spawned));
    let waker = thread::spawn(move || {
        // Most likely the loop is in poll(2) by then; it is right if it is not.
        let while_it_sleeps = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        poll(&mut [], Some(&while_it_sleeps)).expect("poll(2)");
        sender.send(7).expect("awaited");
        drop(handle.spawn(async move { set.store(true, Ordering::SeqCst) }));
    });

    tasks.push(runtime.spawn(async move {
        let listener = vigie_detect::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut bytes = [0; 5];
            stream.read_exact(&mut bytes).await.expect("five bytes");
            stream.write_all(&bytes).await.expect("written");
        });
        let mut stream = vigie_detect::net::TcpStream::connect(address).await.expect("connected");
        stream.write_all(b"vigie").await.expect("written");
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).await.expect("echoed");
        assert_eq!(&bytes, b"vigie");
        server.await.expect("no panic");
    }));

    let ticks = run(&runtime, || {
        is_spawned.load(Ordering::SeqCst) && tasks.iter().all(JoinHandle::is_finished)
    });
    assert!(ticks < 2_000, "{ticks} ticks: the descriptor is readable for nothing");
    foreign.join().expect("no panic");
    waker.join().expect("no panic");
    for task in tasks {
        runtime.block_on(task).expect("no panic");
    }

    // Between two ticks, on the loop's own thread.
    let spawned = runtime.spawn(async { yield_now().await });
    run(&runtime, || spawned.is_finished());
}

/// Goal: a tick ends although tasks are always ready, and the rest follows. Method: a task that yields for ever; ticks must
/// return, and each leaves the descriptor readable.
#[test]
fn a_tick_ends_although_a_task_is_always_ready() {
    let runtime = embedded();
    let is_over = Arc::new(AtomicBool::new(false));
    let task = runtime.spawn({
        let is_over = Arc::clone(&is_over);
        async move {
            while !is_over.load(Ordering::SeqCst) {
                yield_now().await;
            }
        }
    });
    for _ in 0..5 {
        runtime.tick();
        assert!(!task.is_finished());
        poll(&mut [PollFd::new(&runtime.as_fd(), PollFlags::IN)], None).expect("poll(2)");
    }
    is_over.store(true, Ordering::SeqCst);
    run(&runtime, || task.is_finished());
}

/// Goal: `block_on` runs the tasks meanwhile, here or on another thread, and ticks go on after it. Method: `block_on` between
/// ticks and beside them, then a timer in ticks.
#[test]
fn block_on_takes_over_and_hands_back() {
    let runtime = Arc::new(embedded());
    runtime.tick();
    assert_eq!(runtime.block_on(async { spawn(async { 1 }).await.expect("no panic") }), 1);
    let timer = runtime.spawn(time::sleep(Duration::from_millis(1)));
    run(&runtime, || timer.is_finished());

    let other = thread::spawn({
        let runtime = Arc::clone(&runtime);
        move || runtime.block_on(time::sleep(Duration::from_millis(5)))
    });
    let timer = runtime.spawn(time::sleep(Duration::from_millis(20)));
    run(&runtime, || timer.is_finished());
    other.join().expect("no panic");
}

/// Goal: what cannot be embedded says so. Method: the other flavors.
#[test]
fn other_flavors_cannot_be_embedded() {
    for flavor in [Flavor::Hybrid, Flavor::KernelLevel] {
        let runtime = Runtime::builder().flavor(flavor).build().expect("a runtime");
        let error = runtime.embed().expect_err("its tasks have threads of their own");
        assert!(error.to_string().contains("user-level"), "{error}");
    }
}
