//! Relays over real sockets, under vigie's runtimes and under tokio.
//!
//! No test here asserts a time: time-outs are tested in virtual time, in the unit tests of `relay::session`. Every test
//! has a bound, after which it fails.

#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

mod access;
mod balance;
mod datagrams;
mod ends;
mod framed;
mod handover;
mod limits;
mod own_listener;
mod proxy;
mod retries;
mod streams;

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::{
    Server,
    net::{TcpListener, TcpStream},
};
use vigie_forward::relay::{Endpoint, Relay, RelayBuilder, RelayHandle};
use vigie_runtime::{Flavor, JoinHandle, Runtime, spawn, time};

/// After this time a test counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on two workers.
fn run(test: impl Future<Output = io::Result<()>>) {
    // All tests of this process together may exceed the usual limit of connections.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)
        .expect("up to the maximum");
    let runtime = Runtime::builder().flavor(Flavor::Hybrid).workers(2).build().expect("a runtime");
    let ended = runtime.block_on(async { time::timeout(PATIENCE, test).await });
    ended.expect("within the test's bound").expect("the test's sockets");
}

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A path for a socket that no other test uses.
fn path() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("vigie-relay-{}-{count}", std::process::id()))
}

/// A relay that serves on the test's runtime.
struct Serving {
    endpoint: Endpoint,
    handle: RelayHandle,
    task: JoinHandle<io::Result<vigie_forward::relay::Drained>>,
}

impl Serving {
    fn start(builder: RelayBuilder) -> Self {
        let relay = builder.bind_on(&Server::current().expect("a runtime")).expect("it listens");
        let (endpoint, handle) = (relay.endpoint().clone(), relay.handle());
        let task = spawn(relay.serve(|connection| drop(spawn(connection))));
        Self { endpoint, handle, task }
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        TcpStream::connect(self.endpoint.address().expect("it listens on TCP")).await
    }

    /// Waits until a counter of the relay has the expected value.
    async fn until(&self, is_so: impl Fn(&vigie_forward::relay::RelayStats) -> bool) {
        while !is_so(&self.handle.stats()) {
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn drain(self) -> io::Result<vigie_forward::relay::Drained> {
        self.handle.drain(Duration::from_secs(30));
        self.task.await.expect("it does not panic")
    }
}

fn tcp(upstream: SocketAddr) -> RelayBuilder {
    Relay::builder(local()).upstream(upstream)
}

/// Starts a server that echoes its input, until the end of each stream.
async fn echo() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(local()).await?;
    let address = listener.local_addr()?;
    drop(spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            drop(spawn(async move {
                let mut buffer = vec![0; 32 << 10];
                loop {
                    match stream.read(&mut buffer).await {
                        Ok(0) | Err(_) => break,
                        Ok(bytes) if stream.write_all(&buffer[..bytes]).await.is_err() => break,
                        Ok(_) => {}
                    }
                }
                let _ = stream.shutdown().await;
            }));
        }
    }));
    Ok(address)
}

/// Bytes that reveal their position.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

/// Sends everything, ends, and returns the answer until its end.
async fn exchange<S>(stream: S, bytes: Vec<u8>) -> io::Result<Vec<u8>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sending = spawn(async move {
        writer.write_all(&bytes).await?;
        writer.shutdown().await
    });
    let mut heard = Vec::new();
    reader.read_to_end(&mut heard).await?;
    sending.await.expect("it does not panic")?;
    Ok(heard)
}
