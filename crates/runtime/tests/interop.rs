//! Other crates' primitives work unchanged in vigie's tasks: tokio's channels, locks and I/O helpers.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    sync::{Mutex, Notify, Semaphore, mpsc, oneshot},
};
use vigie_detect::net::{TcpListener, TcpStream};
use vigie_runtime::{Flavor, Runtime, spawn, spawn_blocking, yield_now};

fn each_flavor<F: Future<Output = ()>>(test: impl Fn() -> F) {
    for flavor in [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel] {
        let runtime = Runtime::builder().flavor(flavor).workers(2).build().expect("a runtime");
        runtime.block_on(test());
    }
}

fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// Goal: tokio's channels and locks wake vigie's tasks. Method: senders on tasks and on a blocking
/// thread, a shared counter, a permit, a notification.
#[test]
fn tokio_sync() {
    each_flavor(|| async {
        let (sender, mut receiver) = mpsc::channel(4);
        let total = Arc::new(Mutex::new(0u64));
        let permits = Arc::new(Semaphore::new(2));
        let done = Arc::new(Notify::new());
        for n in 0..10u64 {
            let (sender, permits) = (sender.clone(), Arc::clone(&permits));
            spawn(async move {
                let _permit = permits.acquire().await.expect("open");
                yield_now().await;
                sender.send(n).await.expect("received");
            })
            .detach();
        }
        let blocking = spawn_blocking(move || {
            for n in 10..20 {
                sender.blocking_send(n).expect("received");
            }
        });
        let summing = {
            let (total, done) = (Arc::clone(&total), Arc::clone(&done));
            spawn(async move {
                while let Some(n) = receiver.recv().await {
                    *total.lock().await += n;
                }
                done.notify_one();
            })
        };
        done.notified().await;
        summing.await.expect("it ends");
        blocking.await.expect("it ends");
        assert_eq!(*total.lock().await, (0..20).sum());
        let (answer, question) = oneshot::channel();
        spawn(async move { answer.send(42).expect("awaited") }).detach();
        assert_eq!(question.await.expect("sent"), 42);
    });
}

/// Goal: tokio's I/O helpers work on vigie's sockets. Method: a relay by `copy_bidirectional` between
/// a client that writes lines and a server that answers each.
#[test]
fn tokio_io_helpers() {
    each_flavor(|| async {
        let upstream = TcpListener::bind(loopback()).await.expect("bind");
        let upstream_address = upstream.local_addr().expect("an address");
        let server = spawn(async move {
            let (stream, _) = upstream.accept().await.expect("accepted");
            let (read, mut write) = stream.into_split();
            let mut lines = BufReader::new(read).lines();
            while let Some(line) = lines.next_line().await.expect("a line") {
                write.write_all(line.to_uppercase().as_bytes()).await.expect("written");
                write.write_all(b"\n").await.expect("written");
            }
        });
        let relay = TcpListener::bind(loopback()).await.expect("bind");
        let relay_address = relay.local_addr().expect("an address");
        let relaying = spawn(async move {
            let (mut down, _) = relay.accept().await.expect("accepted");
            let mut up = TcpStream::connect(upstream_address).await.expect("connected");
            tokio::io::copy_bidirectional(&mut down, &mut up).await.expect("relayed")
        });
        let mut client = TcpStream::connect(relay_address).await.expect("connected");
        client.write_all(b"land\nahoy\n").await.expect("written");
        client.shutdown().await.expect("half-closed");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("answered");
        assert_eq!(answer, "LAND\nAHOY\n");
        assert_eq!(relaying.await.expect("it ends"), (10, 10));
        server.await.expect("it ends");
    });
}

/// Goal: `select!` over vigie's futures drops the loser cleanly. Method: an accept against a channel,
/// many times, then a real accept.
#[test]
fn select_drops_the_loser() {
    each_flavor(|| async {
        let listener = TcpListener::bind(loopback()).await.expect("bind");
        let address = listener.local_addr().expect("an address");
        for _ in 0..100 {
            let (sender, receiver) = oneshot::channel();
            spawn(async move { sender.send(()).expect("awaited") }).detach();
            tokio::select! {
                accepted = listener.accept() => panic!("no client connects: {accepted:?}"),
                received = receiver => received.expect("sent"),
            }
        }
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        drop((client.expect("connected"), accepted.expect("accepted")));
    });
}
