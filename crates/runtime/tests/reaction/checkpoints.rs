//! Checkpoints let events through, and yield only then.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream as StdUnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::UnixStream;
use vigie_runtime::{
    Flavor, KernelHelp, Runtime,
    task::{checkpoint, need_yield, yield_now},
};

use crate::kit::guard::against_hang;

/// Runtimes on which only checkpoints help: one thread and no reserve.
fn each_alone(test: fn(&Runtime)) {
    for flavor in [Flavor::UserLevel, Flavor::Hybrid] {
        for help in [KernelHelp::default(), KernelHelp::NONE] {
            let builder = Runtime::builder().flavor(flavor).workers(1).reserve_threads(0);
            test(&builder.kernel_help(help).build().expect("a runtime"));
        }
    }
}

/// Goal: a task that computes without end, but calls `checkpoint` or asks `need_yield`, delays no event.
/// Method: no other thread can serve; it goes on until the peer has had its echoes.
#[test]
fn events_come_through() {
    against_hang(|| {
        each_alone(|runtime| {
            let (stream, mut peer) = StdUnixStream::pair().expect("a pair of sockets");
            let mut stream = UnixStream::from_std_on(runtime.server(), stream).expect("watched");
            runtime
                .spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        stream.write_u8(byte).await.expect("open");
                    }
                })
                .detach();
            let is_over = Arc::new(AtomicBool::new(false));
            let end = Arc::clone(&is_over);
            let client = thread::spawn(move || {
                for _ in 0..100 {
                    peer.write_all(&[5]).expect("open");
                    peer.read_exact(&mut [0]).expect("echoed");
                }
                end.store(true, Ordering::SeqCst);
            });
            let also_over = Arc::clone(&is_over);
            let asking = runtime.spawn(async move {
                while !also_over.load(Ordering::SeqCst) {
                    if need_yield() {
                        yield_now().await;
                    }
                }
            });
            runtime
                .block_on(runtime.spawn(async move {
                    while !is_over.load(Ordering::SeqCst) {
                        checkpoint().await;
                    }
                }))
                .expect("no panic");
            runtime.block_on(asking).expect("no panic");
            client.join().expect("all is echoed");
        });
    });
}

/// Goal: a checkpoint does not yield while nothing waits. Method: another task counts its turns; it has
/// one before the first checkpoint, and no more.
#[test]
fn no_yield_without_reason() {
    against_hang(|| {
        each_alone(|runtime| {
            let turns = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&turns);
            let computing = runtime.spawn(async move {
                let other = Arc::clone(&counted);
                vigie_runtime::spawn(async move {
                    other.fetch_add(1, Ordering::SeqCst);
                })
                .detach();
                while counted.load(Ordering::SeqCst) == 0 {
                    yield_now().await;
                }
                let before = counted.load(Ordering::SeqCst);
                let mut asked = 0;
                for _ in 0..1_000_000 {
                    checkpoint().await;
                    asked += usize::from(need_yield());
                }
                (counted.load(Ordering::SeqCst) - before, asked)
            });
            let (turns, asked) = runtime.block_on(computing).expect("no panic");
            assert_eq!((turns, asked), (0, 0));
        });
    });
}

/// Goal: outside of a runtime there is no other task to yield to. Method: asked on a plain thread.
#[test]
fn outside_of_a_runtime() {
    assert!((0..10_000).all(|_| !need_yield()));
}
