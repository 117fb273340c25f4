//! Raw streams of both families: every byte, in order, by every engine.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::{
    Server,
    net::{TcpStream, UnixListener, UnixStream},
};
use vigie_forward::relay::{Endpoint, Relay, Transfer};
use vigie_runtime::spawn;

use crate::{Serving, echo, exchange, local, path, pattern, run, tcp};

/// Goal: every byte arrives in order with each engine, and the counters show which one moved it. Method: 24 MiB there
/// and back by each engine; adaptive relays learn on the way.
#[test]
fn every_byte_arrives_by_every_engine() {
    for transfer in [Transfer::Adaptive, Transfer::Copy, Transfer::Splice] {
        run(async {
            let relay = Serving::start(tcp(echo().await?).transfer(transfer));
            let bytes = pattern(1, 24 << 20);
            let heard = exchange(relay.connect().await?, bytes.clone()).await?;
            assert!(heard == bytes, "{transfer:?}: {} bytes", heard.len());
            relay.until(|stats| stats.finished == 1).await;
            let stats = relay.handle.stats();
            assert_eq!([stats.bytes_up, stats.bytes_down], [24 << 20; 2]);
            assert_eq!(stats.bytes_copied + stats.bytes_spliced, 48 << 20);
            match transfer {
                Transfer::Copy => assert_eq!(stats.bytes_spliced, 0),
                _ => assert!(stats.bytes_spliced > 0, "{stats:?}"),
            }
            Ok(())
        });
    }
}

/// Goal: Unix and TCP in all four pairs, and a path is taken over from a listener that is gone, but not from a
/// living one. Method: relays in a chain: TCP → Unix → Unix → TCP.
#[test]
fn unix_and_tcp_are_relayed_to_each_other() {
    run(async {
        let echo = echo().await?;
        let paths = [path(), path()];
        drop(std::os::unix::net::UnixListener::bind(&paths[1])?);
        // Unix sockets are spliced too.
        let last = Relay::builder(paths[1].clone()).upstream(echo).transfer(Transfer::Splice);
        let last = Serving::start(last);
        let middle = Serving::start(
            Relay::builder(paths[0].clone()).upstream(Endpoint::Unix(paths[1].clone())),
        );
        let first = Serving::start(Relay::builder(local()).upstream(paths[0].clone()));
        assert!(Relay::builder(paths[0].clone()).upstream(echo).bind().is_err(), "it lives");

        let bytes = pattern(2, 3 << 20);
        assert!(exchange(first.connect().await?, bytes.clone()).await? == bytes);
        assert!(exchange(UnixStream::connect(&paths[0]).await?, bytes.clone()).await? == bytes);
        assert!(exchange(UnixStream::connect(&paths[1]).await?, bytes.clone()).await? == bytes);
        for relay in [first, middle, last] {
            relay.until(|stats| stats.active == 0).await;
            assert_eq!(relay.drain().await?.cut, 0);
        }
        assert!(!paths[0].exists() && !paths[1].exists(), "the files go with the relays");
        Ok(())
    });
}

/// Goal: an end in one direction leaves the other open, for as long as it takes. Method: an upstream that answers
/// only after the client's end, and a client that sends only after the upstream's.
#[test]
fn half_closed_streams_stay_half_open() {
    run(async {
        let path = path();
        let listener = UnixListener::bind(&path)?;
        let relay = Serving::start(Relay::builder(local()).upstream(path.clone()));

        let mut client = relay.connect().await?;
        client.write_all(b"question").await?;
        client.shutdown().await?;
        let (mut served, _) = listener.accept().await?;
        let mut heard = String::new();
        served.read_to_string(&mut heard).await?;
        assert_eq!(heard, "question");
        served.write_all(b"answer").await?;
        drop(served);
        heard.clear();
        client.read_to_string(&mut heard).await?;
        assert_eq!(heard, "answer");

        let mut client = relay.connect().await?;
        let (mut served, _) = listener.accept().await?;
        served.write_all(b"greeting").await?;
        served.shutdown().await?;
        heard.clear();
        client.read_to_string(&mut heard).await?;
        assert_eq!(heard, "greeting");
        client.write_all(b"reply").await?;
        client.shutdown().await?;
        heard.clear();
        served.read_to_string(&mut heard).await?;
        assert_eq!(heard, "reply");
        relay.until(|stats| stats.finished == 2).await;
        std::fs::remove_file(path)
    });
}

/// Goal: connections do not mix, and all are served. Method: 200 concurrently, with sizes around those of buffers.
#[test]
fn many_connections_do_not_mix() {
    run(async {
        let relay = Serving::start(tcp(echo().await?));
        let mut tasks = Vec::new();
        for index in 0..200_u64 {
            let stream = relay.connect().await?;
            let sizes = [0, 1, 4095, 4096, 16_384, 16_385, 65_536, 300_000];
            let bytes = pattern(index, sizes[usize::try_from(index).unwrap_or(0) % sizes.len()]);
            tasks.push(spawn(async move {
                let heard = exchange(stream, bytes.clone()).await?;
                assert!(heard == bytes, "connection {index}");
                io::Result::Ok(())
            }));
        }
        for task in tasks {
            task.await.expect("no connection mixes")?;
        }
        relay.until(|stats| stats.finished == 200).await;
        assert_eq!(relay.handle.stats().active, 0);
        Ok(())
    });
}

/// Goal: the same futures run under tokio. Method: an echo through a relay in a tokio runtime of two threads, with a
/// host thread for the detection server.
#[test]
fn tokio_runs_relays_too() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
    runtime.expect("a runtime").block_on(async {
        let host = Server::spawn_thread().expect("a server");
        let server = host.server();
        let upstream = std::net::TcpListener::bind(local()).expect("a listener");
        let address = upstream.local_addr().expect("its address");
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = upstream.accept()?;
            io::copy(&mut stream.try_clone()?, &mut stream)?;
            stream.shutdown(std::net::Shutdown::Write)
        });
        let relay = tcp(address).bind_on(server).expect("it listens");
        let (endpoint, handle) = (relay.endpoint().clone(), relay.handle());
        let serving = tokio::spawn(relay.serve(|connection| drop(tokio::spawn(connection))));

        let address = endpoint.address().expect("it listens on TCP");
        let stream = TcpStream::connect_on(server, address).await.expect("it accepts");
        let (mut reader, mut writer) = tokio::io::split(stream);
        let bytes = pattern(3, 2 << 20);
        let sent = bytes.clone();
        let sending = tokio::spawn(async move {
            writer.write_all(&sent).await?;
            writer.shutdown().await
        });
        let mut heard = Vec::new();
        reader.read_to_end(&mut heard).await.expect("an echo");
        sending.await.expect("no panic").expect("all is sent");
        assert!(heard == bytes);
        echo.join().expect("no panic").expect("the echo's sockets");
        handle.drain(crate::PATIENCE);
        assert_eq!(serving.await.expect("no panic").expect("it serves").cut, 0);
    });
}
