//! Whether a runtime still does everything that it should.

use std::{io::Write, os::unix::net::UnixStream as StdUnixStream, thread, time::Duration};

use tokio::io::AsyncReadExt;
use vigie_detect::{detectors::doorbell::doorbell, net::UnixStream};
use vigie_runtime::{Runtime, spawn, spawn_blocking, time, yield_now};

/// # Panics
/// Panics, or does not return, unless tasks, timers, sockets, bells and closures work on each worker.
pub(crate) fn assert_alive(runtime: &Runtime) {
    runtime.block_on(async {
        let tasks: Vec<_> = (0..8)
            .map(|n| {
                spawn(async move {
                    let server = vigie_detect::Server::current().expect("in a runtime");
                    let (button, bell) = doorbell(&server).expect("a doorbell");
                    let (stream, mut peer) = StdUnixStream::pair().expect("a pair of sockets");
                    let mut stream = UnixStream::from_std(stream).expect("watched");
                    yield_now().await;
                    let outside = thread::spawn(move || {
                        button.press();
                        peer.write_all(&[n]).expect("the task reads");
                    });
                    bell.rung().await.expect("the bell rings");
                    assert_eq!(stream.read_u8().await.expect("a byte comes"), n);
                    time::sleep(Duration::from_micros(100)).await;
                    let closure = spawn_blocking(move || {
                        outside.join().expect("it is over");
                        n
                    });
                    closure.await.expect("the closure ends")
                })
            })
            .collect();
        for (task, n) in tasks.into_iter().zip(0..) {
            assert_eq!(task.await.expect("the task ends"), n);
        }
    });
}
