//! Time-outs of handshakes, in virtual time.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::{TcpListener, TcpStream};
use vigie_forward::relay::{
    Endpoint, Relay, RelayBuilder, RelayHandle, TlsRouter, Transfer, Upstream,
};
use vigie_runtime::{simulation::World, spawn, time};

use crate::certificates::Kit;

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn endpoint(text: &str) -> Endpoint {
    text.parse().expect("an endpoint")
}

/// A node with a relay as `made` makes it, and its handle once it listens.
fn relay(
    world: &mut World,
    made: impl Fn(RelayBuilder) -> RelayBuilder + Send + Sync + 'static,
) -> Arc<OnceLock<RelayHandle>> {
    let handle = Arc::new(OnceLock::new());
    let (told, made) = (Arc::clone(&handle), Arc::new(made));
    world.node("relay").run(move || {
        let (told, made) = (Arc::clone(&told), Arc::clone(&made));
        async move {
            let builder = Relay::builder(endpoint("0.0.0.0:443")).transfer(Transfer::Copy);
            let builder = made(builder.setup_timeout(seconds(5)));
            let relay = builder.bind().map_err(io::Error::other)?;
            told.set(relay.handle()).expect("it starts once");
            relay.serve(|task| spawn(task).detach()).await.map(drop)
        }
    });
    handle
}

/// Accepts connections and says nothing.
async fn silent() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7").await?;
    let mut all = Vec::new();
    loop {
        all.push(listener.accept().await?);
    }
}

/// A service without TLS that sends its letter.
async fn lettered() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7").await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.write_all(b"b").await?;
    }
}

/// Goal: a client that stops in the middle of its handshake loses its connection at the set-up time-out, and counts as a connection until then. Method: a relay for two connections; clients that
/// send nothing, and half of a first message; a third waits in the kernel's queue until then, and is told what it does wrong.
#[test]
fn clients_that_stop_are_timed_out() {
    let kit = Kit::shared();
    let mut world = World::new(1);
    world.node("b").ip([10, 1, 0, 2]).run(lettered);
    let termination = kit.termination();
    let handle = relay(&mut world, move |builder| {
        let router = TlsRouter::terminate(termination.clone());
        builder.upstream(endpoint("10.1.0.2:7")).tls(router).connections_max(2)
    });
    world
        .block_on(async {
            time::sleep(Duration::from_millis(100)).await;
            let begin = time::Instant::now();
            let mut mute = TcpStream::connect("relay:443").await?;
            let mut half = TcpStream::connect("relay:443").await?;
            half.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]).await?;
            let mut third = TcpStream::connect("relay:443").await?;
            third.write_all(b"GET /").await?;
            // Each waits for its end. What is sent now and then does not make the time longer.
            let slowly = async {
                for _ in 0..3 {
                    time::sleep(seconds(1)).await;
                    half.write_all(&[7]).await?;
                }
                half.read_to_end(&mut Vec::new()).await?;
                Ok::<_, io::Error>(begin.elapsed())
            };
            let mutely = async {
                mute.read_to_end(&mut Vec::new()).await?;
                Ok::<_, io::Error>(begin.elapsed())
            };
            let (slowly, mutely) = tokio::join!(biased; slowly, mutely);
            for after in [slowly?, mutely?] {
                assert!((seconds(5)..seconds(6)).contains(&after), "{after:?}");
            }
            let mut told = Vec::new();
            third.read_to_end(&mut told).await?;
            assert_eq!(told, [21, 3, 3, 0, 2, 2, 10]);
            assert!(begin.elapsed() >= seconds(5), "it has waited for a place");
            let stats = handle.get().expect("it has started").stats();
            assert_eq!(
                (stats.tls_clients_timed_out, stats.tls_clients_not_tls),
                (2, 1),
                "{stats:?}"
            );
            assert_eq!((stats.tls_clients_failed, stats.active), (3, 0), "{stats:?}");
            Ok::<(), io::Error>(())
        })
        .expect("sockets of the world");
}

/// Goal: a target that accepts and says nothing costs the connect time-out of the first client, and the next target is taken; later clients do not wait. Method: a silent target with TLS before a
/// plain one that works.
#[test]
fn silent_targets_are_passed_over() {
    let kit = Kit::shared();
    let mut world = World::new(1);
    world.node("a").ip([10, 1, 0, 1]).run(silent);
    world.node("b").ip([10, 1, 0, 2]).run(lettered);
    let handle = relay(&mut world, move |builder| {
        let silent = Upstream::from(endpoint("10.1.0.1:7")).tls(kit.origination("web.test"));
        builder.upstream(silent).upstream(endpoint("10.1.0.2:7"))
    });
    world
        .block_on(async {
            time::sleep(Duration::from_millis(100)).await;
            let mut waits = Vec::new();
            for _ in 0..2 {
                let begin = time::Instant::now();
                let letter = TcpStream::connect("relay:443").await?.read_u8().await?;
                assert_eq!(letter, b'b');
                waits.push(begin.elapsed());
            }
            assert!((seconds(5)..seconds(6)).contains(&waits[0]), "{waits:?}");
            assert!(waits[1] < seconds(2), "{waits:?}");
            let stats = handle.get().expect("it has started").stats();
            assert_eq!(stats.connects_timed_out, 1, "{stats:?}");
            Ok::<(), io::Error>(())
        })
        .expect("sockets of the world");
}
