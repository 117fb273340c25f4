//! Every kind of event reaches its task while all workers hog.

use std::{
    io::{Read, Write},
    net::TcpStream as StdTcpStream,
    os::unix::net::UnixStream as StdUnixStream,
    thread,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{mpsc, oneshot},
};
use vigie_detect::{
    detectors::doorbell::doorbell,
    net::{TcpListener, TcpStream, UnixStream},
};
use vigie_runtime::{spawn, spawn_blocking, time};

use crate::{
    hogs::{Hogs, each},
    kit::guard::against_hang,
};

/// Sends a byte and waits for its echo, `count` times.
fn ping(stream: &mut (impl Read + Write), count: usize) {
    for _ in 0..count {
        stream.write_all(&[7]).expect("open");
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("echoed");
        assert_eq!(byte, [7]);
    }
}

async fn echo(mut stream: TcpStream) {
    while let Ok(byte) = stream.read_u8().await {
        if stream.write_u8(byte).await.is_err() {
            return;
        }
    }
}

/// Goal: a socket's bytes are echoed while all workers hog. Method: one and two workers; the hogs end
/// after the last echo.
#[test]
fn sockets() {
    against_hang(|| {
        each(|runtime| {
            let (stream, mut peer) = StdUnixStream::pair().expect("a pair of sockets");
            let mut stream = UnixStream::from_std_on(runtime.server(), stream).expect("watched");
            runtime
                .spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        stream.write_u8(byte).await.expect("open");
                    }
                })
                .detach();
            let hogs = Hogs::everywhere(runtime);
            ping(&mut peer, 200);
            drop(hogs);
        });
    });
}

/// Goal: connections that come while all workers hog are accepted and served, whether a task or the
/// future of `block_on` accepts them. Method: both, each with several connections.
#[test]
fn new_connections() {
    against_hang(|| {
        each(|runtime| {
            let hogs = Hogs::everywhere(runtime);
            let (tell, told) = std::sync::mpsc::channel();
            let accept = move || {
                let tell = tell.clone();
                async move {
                    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                    tell.send(listener.local_addr().expect("bound")).expect("the test waits");
                    for _ in 0..8 {
                        let (stream, _) = listener.accept().await.expect("a connection");
                        spawn(echo(stream)).detach();
                    }
                }
            };
            runtime.spawn(accept()).detach();
            let client = thread::spawn(move || {
                for _ in 0..2 {
                    let address = told.recv().expect("it listens");
                    let mut streams: Vec<_> = (0..8)
                        .map(|_| StdTcpStream::connect(address).expect("it accepts"))
                        .collect();
                    streams.iter_mut().for_each(|stream| ping(stream, 5));
                }
            });
            runtime.block_on(accept());
            client.join().expect("all are served");
            drop(hogs);
        });
    });
}

/// Goal: an actor that a reaction reaches through a channel, and its answer, take part in the reaction.
/// Method: each byte is sent to an actor, whose answer is echoed.
#[test]
fn actors() {
    against_hang(|| {
        each(|runtime| {
            let (ask, mut asked) = mpsc::channel::<(u8, oneshot::Sender<u8>)>(1);
            runtime
                .spawn(async move {
                    while let Some((byte, answer)) = asked.recv().await {
                        answer.send(byte).expect("waited for");
                    }
                })
                .detach();
            let (stream, mut peer) = StdUnixStream::pair().expect("a pair of sockets");
            let mut stream = UnixStream::from_std_on(runtime.server(), stream).expect("watched");
            runtime
                .spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        let (answer, answered) = oneshot::channel();
                        ask.send((byte, answer)).await.expect("the actor lives");
                        let byte = answered.await.expect("it answers");
                        stream.write_u8(byte).await.expect("open");
                    }
                })
                .detach();
            let hogs = Hogs::everywhere(runtime);
            ping(&mut peer, 100);
            drop(hogs);
        });
    });
}

/// Goal: timers end while all workers hog, one after the other. Method: twenty sleeps.
#[test]
fn timers() {
    against_hang(|| {
        each(|runtime| {
            let hogs = Hogs::everywhere(runtime);
            let sleeper = runtime.spawn(async {
                for _ in 0..20 {
                    time::sleep(Duration::from_micros(200)).await;
                }
            });
            runtime.block_on(sleeper).expect("no panic");
            drop(hogs);
        });
    });
}

/// Goal: events from plain threads (wake-ups, spawns, bells, sends) and from blocking threads are
/// served while all workers hog. Method: each in turn, many times.
#[test]
fn wakes_from_outside() {
    against_hang(|| {
        each(|runtime| {
            let hogs = Hogs::everywhere(runtime);
            let (button, bell) = doorbell(runtime.server()).expect("a doorbell");
            let (send, mut receive) = mpsc::unbounded_channel();
            let (tell, told) = std::sync::mpsc::channel();
            let told_of_ring = tell.clone();
            runtime
                .spawn(async move {
                    while bell.rung().await.is_ok() {
                        told_of_ring.send("rung").expect("the test waits");
                    }
                })
                .detach();
            let told_of_message = tell.clone();
            runtime
                .spawn(async move {
                    while receive.recv().await.is_some() {
                        told_of_message.send("sent").expect("the test waits");
                    }
                })
                .detach();
            for _ in 0..50 {
                button.press();
                assert_eq!(told.recv(), Ok("rung"));
                send.send(()).expect("it receives");
                assert_eq!(told.recv(), Ok("sent"));
                let tell = tell.clone();
                runtime.spawn(async move { tell.send("spawned").expect("it waits") }).detach();
                assert_eq!(told.recv(), Ok("spawned"));
            }
            let blocking = runtime.spawn(async {
                let mut sum = 0;
                for number in 0..20 {
                    sum += spawn_blocking(move || number).await.expect("no panic");
                }
                sum
            });
            assert_eq!(runtime.block_on(blocking).expect("no panic"), 190);
            drop(hogs);
        });
    });
}

/// Goal: the reaction lane does not starve computing tasks. Method: a peer that pings without pause,
/// until the hogs have gone round many times more.
#[test]
fn those_who_compute_go_on() {
    against_hang(|| {
        each(|runtime| {
            let (stream, mut peer) = StdUnixStream::pair().expect("a pair of sockets");
            let mut stream = UnixStream::from_std_on(runtime.server(), stream).expect("watched");
            runtime
                .spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        stream.write_u8(byte).await.expect("open");
                    }
                })
                .detach();
            let hogs = Hogs::everywhere(runtime);
            let before = hogs.iterations();
            while hogs.iterations() < before + 100_000 {
                ping(&mut peer, 10);
            }
            drop(hogs);
        });
    });
}

/// Goal: a task that blocks its thread in the kernel delays no other task either. Method: the workers block in
/// reads from pipes that are written to after the pings.
#[test]
fn tasks_that_block_in_the_kernel() {
    against_hang(|| {
        each(|runtime| {
            let (stream, mut peer) = StdUnixStream::pair().expect("a pair of sockets");
            let mut stream = UnixStream::from_std_on(runtime.server(), stream).expect("watched");
            runtime
                .spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        stream.write_u8(byte).await.expect("open");
                    }
                })
                .detach();
            let (pipes, mut ends): (Vec<_>, Vec<_>) =
                (0..4).map(|_| std::io::pipe().expect("a pipe")).unzip();
            let blocked: Vec<_> = pipes
                .into_iter()
                .map(|mut pipe| {
                    runtime.spawn(async move {
                        let mut byte = [0];
                        pipe.read_exact(&mut byte).map(|()| byte)
                    })
                })
                .collect();
            ping(&mut peer, 100);
            for end in &mut ends {
                end.write_all(&[3]).expect("it is read");
            }
            for task in blocked {
                assert_eq!(runtime.block_on(task).expect("no panic").expect("a byte"), [3]);
            }
        });
    });
}
