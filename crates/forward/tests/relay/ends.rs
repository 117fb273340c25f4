//! Abnormal ends: resets, drains, missing upstreams.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Notify,
};
use vigie_detect::{
    Server,
    net::{TcpListener, TcpStream},
};
use vigie_forward::relay::{
    BindError, FrameMode, Framing, LengthFormat, Relay, RelayBuilder, Transfer,
};
use vigie_runtime::{spawn, time};

use crate::{Serving, echo, exchange, local, path, pattern, run, tcp};

/// Goal: a reset reaches the other side as a reset, in both directions, and is counted. Method: close with
/// linger 0 at either end, and read at the other.
#[test]
fn resets_are_passed_on() {
    run(async {
        let listener = TcpListener::bind(local()).await?;
        let relay = Serving::start(tcp(listener.local_addr()?));
        for side in 0..2_u64 {
            let mut client = relay.connect().await?;
            let (mut served, _) = listener.accept().await?;
            client.write_all(b"x").await?;
            served.read_exact(&mut [0; 1]).await?;
            let (gone, mut left) = if side == 0 { (client, served) } else { (served, client) };
            gone.set_linger(Some(Duration::ZERO))?;
            drop(gone);
            let error = left.read(&mut [0; 1]).await.expect_err("no end of a stream");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{side}");
            relay.until(|stats| stats.reset == side + 1).await;
        }
        assert_eq!(relay.handle.stats().active, 0);
        Ok(())
    });
}

/// Goal: at whatever byte of its answer a target resets, the client gets the bytes before it, no other ones, and then a reset; each such connection is
/// counted, and nothing is left open. Method: a target that resets after k bytes, for k from 0 to 64, once the client has them, and at once.
#[test]
fn a_reset_at_any_byte_is_passed_on() {
    const BYTES_MAX: usize = 64;
    for way in 0..2 {
        for is_at_once in [false, true] {
            run(async {
                let listener = TcpListener::bind(local()).await?;
                let [(name, builder), ..] = {
                    let mut all = ways(listener.local_addr()?);
                    all.rotate_left(way);
                    all
                };
                let relay = Serving::start(builder);
                let (answer, mut arrived) = (pattern(3, BYTES_MAX), 0);
                for bytes in 0..=BYTES_MAX {
                    let mut client = relay.connect().await?;
                    client.write_all(b"?").await?;
                    let (mut served, _) = listener.accept().await?;
                    served.read_exact(&mut [0]).await?;
                    served.write_all(&answer[..bytes]).await?;
                    let mut heard = vec![0; if is_at_once { 0 } else { bytes }];
                    client.read_exact(&mut heard).await?;
                    served.set_linger(Some(Duration::ZERO))?;
                    drop(served);
                    let error =
                        client.read_to_end(&mut heard).await.expect_err("no end of a stream");
                    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{name} {bytes}");
                    assert!(answer[..bytes].starts_with(&heard), "{name} {bytes}");
                    assert!(is_at_once || heard.len() == bytes, "{name} {bytes}");
                    arrived += heard.len() as u64;
                }
                let connections = BYTES_MAX as u64 + 1;
                relay.until(|stats| stats.reset == connections && stats.active == 0).await;
                let stats = relay.handle.stats();
                assert_eq!(
                    (stats.accepted, stats.bytes_up),
                    (connections, connections),
                    "{stats:?}"
                );
                assert_eq!(
                    (stats.finished, stats.refused, stats.connects_failed),
                    (0, 0, 0),
                    "{stats:?}"
                );
                // At once, some may have been in the client's queue that it could no longer read.
                assert!(stats.bytes_down >= arrived, "{stats:?}");
                assert!(is_at_once || stats.bytes_down == arrived, "{stats:?}");
                let target = &relay.handle.targets()[0];
                assert_eq!(
                    (target.connections, target.active, target.failures),
                    (connections, 0, 0),
                    "{target:?}"
                );
                Ok(())
            });
        }
    }
}

/// One relay for each way of moving bytes.
fn ways(upstream: SocketAddr) -> [(&'static str, RelayBuilder); 3] {
    let framing = Framing::new(LengthFormat::U64Be).message_bytes_max(1 << 40);
    [
        ("copied", tcp(upstream).transfer(Transfer::Copy)),
        ("spliced", tcp(upstream).transfer(Transfer::Splice)),
        ("framed", tcp(upstream).framing(framing.mode(FrameMode::CutThrough))),
    ]
}

/// Sends a message of 2^39 bytes, or at least its start, until the connection fails.
async fn send_endlessly(stream: &mut TcpStream) -> io::Error {
    let mut piece = vec![0; 256 << 10];
    piece[..8].copy_from_slice(&(1_u64 << 39).to_be_bytes());
    loop {
        if let Err(error) = stream.write_all(&piece).await {
            return error;
        }
        piece[..8].fill(0);
    }
}

/// Goal: a reset in the middle of a stream is a reset at the other side, with each way of moving bytes. Method: 4 MiB
/// of an endless stream, then linger 0 at its sender or its receiver.
#[test]
fn resets_in_the_middle_are_passed_on() {
    for sender_resets in [true, false] {
        for way in 0..3 {
            run(async {
                let listener = TcpListener::bind(local()).await?;
                let [(name, builder), ..] = {
                    let mut all = ways(listener.local_addr()?);
                    all.rotate_left(way);
                    all
                };
                let relay = Serving::start(builder);
                let mut client = relay.connect().await?;
                let (mut served, _) = listener.accept().await?;
                let stop = Arc::new(Notify::new());
                let told = Arc::clone(&stop);
                let sending = spawn(async move {
                    tokio::select! {
                        error = send_endlessly(&mut client) => Some(error),
                        () = told.notified() => {
                            let _ = client.set_linger(Some(Duration::ZERO));
                            None
                        }
                    }
                });
                served.read_exact(&mut vec![0; 4 << 20]).await?;
                if sender_resets {
                    stop.notify_one();
                    let error = tokio::io::copy(&mut served, &mut tokio::io::sink()).await;
                    let error = error.expect_err("no end of a stream");
                    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{name}");
                } else {
                    served.set_linger(Some(Duration::ZERO))?;
                    drop(served);
                    let error = sending.await.expect("no panic").expect("it is not told to stop");
                    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{name}");
                }
                relay.until(|stats| stats.reset == 1).await;
                let stats = relay.handle.stats();
                assert_eq!(stats.bytes_spliced > 0, name == "spliced", "{stats:?}");
                Ok(())
            });
        }
    }
}

/// Goal: a panic in the task of a connection is a reset for both peers, with each way of moving bytes, and the relay
/// continues. Method: tasks that panic when told to, in the middle of a stream, and before there is an upstream.
#[test]
fn a_panic_is_no_end() {
    for way in 0..3 {
        run(async {
            let listener = TcpListener::bind(local()).await?;
            let [(name, builder), ..] = {
                let mut all = ways(listener.local_addr()?);
                all.rotate_left(way);
                all
            };
            let relay =
                builder.bind_on(&Server::current().expect("a runtime")).expect("it listens");
            let (handle, endpoint) = (relay.handle(), relay.endpoint().clone());
            let panics = Arc::new(Notify::new());
            let told = Arc::clone(&panics);
            let serving = spawn(relay.serve(move |connection| {
                let told = Arc::clone(&told);
                drop(spawn(async move {
                    tokio::select! {
                        () = connection => {}
                        () = told.notified() => panic!("as the test wants it"),
                    }
                }));
            }));
            let address = endpoint.address().expect("it listens on TCP");
            let mut client = TcpStream::connect(address).await?;
            let (mut served, _) = listener.accept().await?;
            let sending = spawn(async move { send_endlessly(&mut client).await });
            served.read_exact(&mut vec![0; 1 << 20]).await?;
            panics.notify_one();
            let error = tokio::io::copy(&mut served, &mut tokio::io::sink()).await;
            let error = error.expect_err("no end of a stream");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{name}");
            let error = sending.await.expect("no panic");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{name}");

            // The next one panics at once, perhaps before its client has seen that it is connected.
            panics.notify_one();
            let heard = match TcpStream::connect(address).await {
                Ok(mut client) => client.read(&mut [0; 1]).await,
                Err(error) => Err(error),
            };
            let error = heard.expect_err("no end of a stream");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{name}");
            handle.drain(crate::PATIENCE);
            assert_eq!(serving.await.expect("no panic")?.cut, 0);
            Ok(())
        });
    }
}

/// Goal: upstreams are tried in order, and a client without any is closed and counted. Method: a closed port and a
/// missing path before one that listens, then without it.
#[test]
fn upstreams_are_tried_in_order() {
    run(async {
        let closed = TcpListener::bind(local()).await?.local_addr()?;
        let relay = Serving::start(tcp(closed).upstream(path()).upstream(echo().await?));
        let bytes = pattern(5, 1000);
        assert!(exchange(relay.connect().await?, bytes.clone()).await? == bytes);

        let relay = Serving::start(tcp(closed).upstream(path()));
        let mut client = relay.connect().await?;
        assert_eq!(client.read(&mut [0; 1]).await?, 0);
        relay.until(|stats| stats.refused == 1).await;
        assert_eq!(relay.handle.stats().connects_failed, 2);
        Ok(())
    });
}

/// Goal: an upstream that accepts data but never answers is counted; one that answers is not. Method: both let a
/// connection idle.
#[test]
fn silent_upstreams_are_counted() {
    run(async {
        let silent = TcpListener::bind(local()).await?;
        for (upstream, expected) in [(silent.local_addr()?, 1), (echo().await?, 0)] {
            let relay = Serving::start(tcp(upstream).idle_timeout(Some(Duration::from_millis(50))));
            let mut client = relay.connect().await?;
            client.write_all(b"anybody?").await?;
            relay.until(|stats| stats.timed_out == 1).await;
            assert_eq!(relay.handle.stats().unanswered, expected);
        }
        Ok(())
    });
}

/// Goal: a drain lets existing connections end, refuses new ones, and cuts the rest at its deadline. Method: one
/// connection that ends and one that does not, and a deadline that is moved forward.
#[test]
fn a_drain_lets_connections_end() {
    run(async {
        let relay = Serving::start(tcp(echo().await?));
        let mut ends = relay.connect().await?;
        let mut stays = relay.connect().await?;
        for stream in [&mut ends, &mut stays] {
            stream.write_all(b"x").await?;
            stream.read_exact(&mut [0; 1]).await?;
        }
        relay.handle.drain(crate::PATIENCE);
        let address = relay.endpoint.address().expect("it listens on TCP");
        // The listener closes once the relay notices the drain.
        while TcpStream::connect(address).await.is_ok() {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert!(exchange(ends, vec![7; 100]).await? == [7; 100]);
        relay.until(|stats| stats.active == 1).await;
        relay.handle.drain(Duration::from_millis(1));
        let drained = relay.task.await.expect("no panic")?;
        assert_eq!((drained.cut, relay.handle.stats().cut), (1, 1));
        let error = stays.read(&mut [0; 1]).await.expect_err("a reset, not an end");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        Ok(())
    });
}

/// Goal: invalid settings are refused with advice. Method: one of each.
#[test]
fn impossible_relays_are_refused() {
    run(async {
        let upstream = local();
        assert!(matches!(Relay::builder(local()).bind(), Err(BindError::NoUpstream)));
        let none = tcp(upstream).connections_max(0).bind();
        assert!(matches!(none, Err(BindError::NoConnections)));
        let hasty = tcp(upstream).setup_timeout(Duration::ZERO).bind();
        assert!(matches!(hasty, Err(BindError::SetupTimeout { .. })));
        let idle = tcp(upstream).idle_timeout(Some(Duration::ZERO)).bind();
        assert!(matches!(idle, Err(BindError::IdleTimeout)));
        let framing = Framing::new(LengthFormat::U32Be).message_bytes_max(1 << 20);
        let small = tcp(upstream).framing(framing).memory_bytes_max(1 << 20).bind();
        assert!(matches!(small, Err(BindError::Memory { .. })));
        let taken = TcpListener::bind(local()).await?;
        let listen = Relay::builder(taken.local_addr()?).upstream(upstream).bind();
        assert!(matches!(listen, Err(BindError::Listen { .. })), "{listen:?}");
        Ok(())
    });
}

/// Goal: a target that takes connections to nowhere is passed over once a connection has met that, not tried by each.
/// Method: a listener whose queue is full comes first, an echo second; many connections one after the other, all of which are
/// served, with few attempts at the first.
#[test]
fn a_black_hole_is_passed_over() {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
    run(async {
        let full = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&full, &local())?;
        listen(&full, 0)?;
        let hole: SocketAddr = getsockname(&full)?.try_into()?;
        // The queue has room for one; further ones are not answered.
        let _queued = std::net::TcpStream::connect(hole)?;
        let builder = Relay::builder(vigie_forward::relay::Endpoint::Tcp(local()))
            .upstream(hole)
            .upstream(echo().await?)
            .setup_timeout(Duration::from_millis(1500));
        let relay = Serving::start(builder);
        for number in 0..50 {
            let sent = pattern(number, 100);
            assert_eq!(exchange(relay.connect().await?, sent.clone()).await?, sent);
        }
        relay.until(|stats| stats.finished == 50).await;
        let stats = relay.handle.stats();
        assert_eq!((stats.refused, stats.connects_failed), (0, stats.connects_timed_out));
        assert!((1..25).contains(&stats.connects_failed), "{stats:?}");
        relay.drain().await.map(drop)
    });
}
