//! Libraries that need tokio's context, inside a runtime of ours.

#![cfg(feature = "tokio")]

#[path = "flavors/mod.rs"]
mod flavors;
#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_runtime::{Flavor, Runtime, RuntimeBuilder, spawn, spawn_blocking, yield_now};

use self::{
    flavors::{FLAVORS, runtime},
    kit::guard::against_hang,
};

fn builder(flavor: Flavor) -> RuntimeBuilder {
    Runtime::builder().flavor(flavor).workers(2).tokio_context(true)
}

/// Everything of tokio's that needs its context.
async fn use_tokio() -> io::Result<()> {
    tokio::time::sleep(Duration::from_millis(1)).await;
    let late = tokio::time::timeout(Duration::from_millis(1), std::future::pending::<()>());
    assert!(late.await.is_err());

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).await?;
        stream.write_all(&bytes).await
    });
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(b"ahoy").await?;
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).await?;
    assert_eq!(&bytes, b"ahoy");
    served.await.expect("no panic")?;

    assert!(tokio::fs::read_to_string("/proc/self/comm").await?.ends_with('\n'));
    assert!(tokio::process::Command::new("true").status().await?.success());
    assert_eq!(tokio::task::spawn_blocking(|| 3).await.expect("no panic"), 3);
    let mut set = tokio::task::JoinSet::new();
    (0..10).for_each(|n| drop(set.spawn(async move { n })));
    assert_eq!(set.join_all().await.into_iter().sum::<i32>(), 45);
    Ok(())
}

/// Goal: what needs tokio's context works wherever a runtime with it runs code, on each flavor. Method: all of
/// it in `block_on`, in a task, in a task that another one spawns after a wait, and in a blocking closure.
#[test]
fn everything_of_tokio_works() {
    against_hang(|| {
        for flavor in FLAVORS {
            let runtime = builder(flavor).build().expect("a runtime");
            runtime.block_on(use_tokio()).expect("in `block_on`");
            let nested = runtime.spawn(async {
                yield_now().await;
                use_tokio().await.expect("in a task");
                spawn(use_tokio()).await.expect("no panic")
            });
            runtime.block_on(nested).expect("no panic").expect("in a task of a task");
            let closure = runtime.block_on(async {
                spawn_blocking(|| tokio::runtime::Handle::current().block_on(use_tokio())).await
            });
            closure.expect("no panic").expect("in a closure");
        }
    });
}

/// Goal: without the option there is no context, as before, and none is left on a thread that has been inside.
/// Method: ask tokio.
#[test]
fn there_is_no_context_unless_asked_for() {
    let has_context = || tokio::runtime::Handle::try_current().is_ok();
    for flavor in FLAVORS {
        let plain = runtime(flavor);
        assert!(!plain.block_on(async { has_context() }));
        assert!(!plain.block_on(plain.spawn(async move { has_context() })).expect("no panic"));
        let with = builder(flavor).build().expect("a runtime");
        assert!(with.block_on(async { has_context() }));
        assert!(!has_context(), "{flavor}");
        drop(with);
        assert!(!has_context(), "{flavor}");
    }
}

/// Goal: tasks of ours that never yield do not keep tokio's tasks and timers from running, nor from waking a task
/// of ours. Method: as many tasks as workers compute until they are told to stop; they are told by one more task
/// of ours, which waits for a task of tokio's, which waits for a timer and a socket.
#[test]
fn hogs_delay_nothing_of_tokio() {
    against_hang(|| {
        let runtime = builder(Flavor::Hybrid).build().expect("a runtime");
        let stop = Arc::new(AtomicBool::new(false));
        let (begun, begins) = mpsc::channel();
        let hogs: Vec<_> = (0..2)
            .map(|_| {
                let (stop, begun) = (Arc::clone(&stop), begun.clone());
                runtime.spawn(async move {
                    begun.send(()).expect("it is counted");
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect();
        (0..2).for_each(|_| begins.recv().expect("it begins"));
        let stopper = runtime.spawn(async move {
            tokio::spawn(use_tokio()).await.expect("no panic").expect("it works");
            stop.store(true, Ordering::Relaxed);
        });
        runtime.block_on(stopper).expect("no panic");
        hogs.into_iter().for_each(|hog| runtime.block_on(hog).expect("it is stopped"));
    });
}

/// Goal: a library that panics or blocks for ever in tokio's runtime harms only its own tasks, and a runtime that
/// ends does not wait for it. Method: a task of tokio's that panics; then one, and a closure, that block until
/// the test lets them go, which it does after the shutdown.
#[test]
fn a_library_that_blocks_or_panics() {
    against_hang(|| {
        for flavor in FLAVORS {
            let timeout = Duration::from_millis(20);
            let runtime = builder(flavor).shutdown_timeout(timeout).build().expect("a runtime");
            let panicked =
                runtime.block_on(async { tokio::spawn(async { panic!("planned") }).await });
            assert!(panicked.expect_err("it panics").is_panic());
            let (hold, held) = mpsc::channel::<()>();
            let (begun, begins) = mpsc::channel();
            let closure_begun = begun.clone();
            runtime.block_on(async {
                let closure = move || closure_begun.send(());
                tokio::task::spawn_blocking(closure).await.expect("no panic").expect("counted");
                tokio::spawn(async move {
                    begun.send(()).expect("it is counted");
                    held.recv().expect_err("it is let go");
                });
            });
            (0..2).for_each(|_| begins.recv().expect("it begins"));
            drop(runtime);
            drop(hold);
        }
    });
}

/// Goal: while a library holds tokio's only thread and leaks tasks that never end, tasks of ours go on, and the runtime ends in the time
/// that it was given. Method: tasks of tokio's that wait for ever and that are woken for ever, and one that blocks until the test lets it
/// go, after the shutdown; meanwhile an echo on sockets of ours.
#[test]
fn a_library_that_leaks_tasks() {
    against_hang(|| {
        for flavor in FLAVORS {
            let timeout = Duration::from_millis(20);
            let runtime = builder(flavor).shutdown_timeout(timeout).build().expect("a runtime");
            let (hold, held) = mpsc::channel::<()>();
            let (begun, begins) = mpsc::channel();
            let witness = Arc::new(());
            runtime.block_on(async {
                for n in 0..100 {
                    let witness = Arc::clone(&witness);
                    tokio::spawn(async move {
                        let _witness = witness;
                        if n % 2 == 0 {
                            std::future::pending::<()>().await;
                        }
                        loop {
                            tokio::task::yield_now().await;
                        }
                    });
                }
                tokio::spawn(async move {
                    begun.send(()).expect("the test waits");
                    held.recv().expect_err("it is let go");
                });
            });
            begins.recv().expect("it begins");
            let echo = runtime.spawn(async {
                let (mut one, mut other) = vigie_detect::net::UnixStream::pair().expect("a pair");
                let echo = spawn(async move {
                    while let Ok(byte) = other.read_u8().await {
                        other.write_u8(byte).await.expect("it is read");
                    }
                });
                for byte in 0..100 {
                    one.write_u8(byte).await.expect("it is read");
                    assert_eq!(one.read_u8().await.expect("echoed"), byte);
                    vigie_runtime::time::sleep(Duration::from_micros(10)).await;
                }
                drop(one);
                echo.await.expect("no panic");
            });
            runtime.block_on(echo).expect("no panic");
            drop(runtime);
            drop(hold);
            while Arc::strong_count(&witness) > 1 {
                std::thread::yield_now();
            }
        }
    });
}

/// Goal: a runtime of tokio's that the user has started himself, with threads of its own, works with ours, which has one too. Method: tasks
/// of both talk over channels and connect to each other, then either ends first.
#[test]
fn a_runtime_of_the_users_own_works_beside() {
    against_hang(|| {
        for (flavor, is_ours_first) in FLAVORS.into_iter().flat_map(|it| [(it, true), (it, false)])
        {
            let mut users = tokio::runtime::Builder::new_multi_thread();
            let users = users.worker_threads(2).enable_all().build().expect("a runtime of tokio's");
            let runtime = builder(flavor).build().expect("a runtime");
            let (ask, mut asked) = tokio::sync::mpsc::channel::<u32>(1);
            let (reply, mut replies) = tokio::sync::mpsc::channel::<u32>(1);
            let theirs = users.spawn(async move {
                while let Some(n) = asked.recv().await {
                    tokio::task::yield_now().await;
                    reply.send(n + 1).await.expect("ours waits");
                }
                use_tokio().await
            });
            let ours = runtime.spawn(async move {
                for n in 0..100 {
                    ask.send(n).await.expect("theirs waits");
                    assert_eq!(replies.recv().await, Some(n + 1));
                }
                drop(ask);
                theirs.await.expect("no panic").expect("it works in theirs");
                use_tokio().await
            });
            runtime.block_on(ours).expect("no panic").expect("it works in ours");
            if is_ours_first {
                drop(runtime);
                users.block_on(use_tokio()).expect("theirs still works");
            } else {
                drop(users);
                runtime.block_on(use_tokio()).expect("ours still works");
            }
        }
    });
}

/// Goal: what a waiting task holds of tokio's is dropped with the task, while tokio still runs, and a runtime of
/// the user's own is not disturbed by ours. Method: tasks that own a socket and a timer when the runtime ends,
/// inside a `block_on` of another tokio runtime, and inside a task of a runtime of ours.
#[test]
fn runtimes_nest() {
    async fn wait_with_sockets() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let timer = tokio::time::sleep(Duration::from_secs(3600));
        let (accepted, ()) = tokio::join!(listener.accept(), timer);
        drop(accepted);
    }
    against_hang(|| {
        let users = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let users = users.expect("a runtime of tokio's");
        for flavor in FLAVORS {
            let run = move || {
                let runtime = builder(flavor).build().expect("a runtime");
                let waiting = runtime.spawn(wait_with_sockets());
                let spawned = runtime.spawn(async { tokio::spawn(use_tokio()).await });
                spawned.detach();
                drop(runtime);
                assert!(waiting.is_finished() || flavor != Flavor::UserLevel);
            };
            users.block_on(async {
                run();
                assert!(tokio::spawn(async { true }).await.expect("its own task runs"));
            });
            let outer = builder(Flavor::Hybrid).build().expect("a runtime");
            outer.block_on(outer.spawn(async move { run() })).expect("no panic");
            outer.block_on(use_tokio()).expect("it still works");
        }
    });
}
