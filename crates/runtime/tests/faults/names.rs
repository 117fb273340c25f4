//! Names that do not resolve, or not yet, beside connections that need none.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, mpsc},
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::{TcpListener, TcpStream, lookup_host};
use vigie_runtime::{Runtime, spawn, spawn_blocking};

use super::alive::assert_alive;
use crate::{
    flavors::{FLAVORS, runtime},
    kit::guard::against_hang,
};

/// Echoes bytes to anybody who connects.
async fn start_echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            spawn(async move {
                while let Ok(byte) = stream.read_u8().await {
                    stream.write_u8(byte).await.expect("it is read");
                }
            })
            .detach();
        }
    })
    .detach();
    address
}

async fn ask_echo(address: SocketAddr) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    for byte in 0..100 {
        stream.write_u8(byte).await.expect("it is read");
        assert_eq!(stream.read_u8().await.expect("echoed"), byte);
    }
}

/// A name that the resolver itself refuses, since a label has at most 63 letters: the answer does not depend on the network.
fn no_name(n: u32) -> String {
    format!("{}{n}.invalid:80", "x".repeat(64))
}

/// Goal: names that do not resolve are errors of those who asked, on each flavor. Method: 100 lookups at once, beside an echo.
#[test]
fn names_that_do_not_resolve() {
    against_hang(|| {
        for flavor in FLAVORS {
            let runtime = runtime(flavor);
            runtime.block_on(async {
                let address = start_echo().await;
                let lookups: Vec<_> = (0..100)
                    .map(|n| spawn(async move { lookup_host(no_name(n)).await.is_err() }))
                    .collect();
                ask_echo(address).await;
                for lookup in lookups {
                    assert!(lookup.await.expect("no panic"), "{flavor}");
                }
                let error = TcpStream::connect(no_name(0)).await;
                error.expect_err("there is no such host");
            });
            assert_alive(&runtime);
        }
    });
}

/// Goal: lookups that take long hold up only those who wait for a name: an address as a number, and an echo, need no thread of the pool;
/// a lookup that was queued or cancelled behind them does no harm. Method: all threads of a small pool and 100 more calls are held until
/// the echo has answered.
#[test]
fn names_that_resolve_slowly() {
    against_hang(|| {
        for flavor in FLAVORS {
            let runtime = Runtime::builder().flavor(flavor).workers(2).blocking_threads(4);
            let runtime = runtime.build().expect("a runtime");
            let (hold, held) = mpsc::channel::<()>();
            let held = Arc::new(Mutex::new(held));
            runtime.block_on(async {
                let address = start_echo().await;
                let slow: Vec<_> = (0..100)
                    .map(|_| {
                        let held = Arc::clone(&held);
                        spawn_blocking(move || {
                            let held = held.lock().unwrap_or_else(PoisonError::into_inner);
                            held.recv().expect_err("the other end is dropped");
                        })
                    })
                    .collect();
                let queued = spawn(async { lookup_host("localhost:80").await });
                let cancelled = spawn(async { lookup_host("localhost:80").await });
                ask_echo(address).await;
                let by_number = TcpStream::connect(address.to_string()).await;
                by_number.expect("it needs no lookup");
                cancelled.abort();
                assert!(cancelled.await.is_err(), "{flavor}");
                assert!(!queued.is_finished(), "{flavor}");
                drop(hold);
                for call in slow {
                    call.await.expect("no panic");
                }
                queued.await.expect("no panic").expect("it has an address");
            });
            assert_alive(&runtime);
        }
    });
}
