//! Listeners that pass from one relay to the next.

use std::{io, net::SocketAddr, path::Path, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::{
    Server,
    net::{TcpListener, UdpSocket, UnixStream},
};
use vigie_forward::relay::{Connection, Endpoint, Relay, UdpRelay};
use vigie_runtime::{spawn, time};

use crate::{Serving, datagrams::ask, local, path, run};

/// Sends its mark on each connection, and then what it hears.
async fn marked(mark: u8) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(local()).await?;
    let address = listener.local_addr()?;
    drop(spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            drop(spawn(async move {
                stream.write_u8(mark).await?;
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await
            }));
        }
    }));
    Ok(address)
}

async fn mark_at(endpoint: &Endpoint) -> io::Result<u8> {
    let server = Server::current()?;
    match Connection::connect_on(&server, endpoint).await? {
        Connection::Tcp(mut stream) => stream.read_u8().await,
        Connection::Unix(mut stream) => stream.read_u8().await,
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Hands a listener back and forth between two targets, while clients connect.
async fn pass_on(listen: Endpoint) -> io::Result<()> {
    const HANDOVERS: usize = 50;
    const CLIENTS: usize = 4;
    let targets = [marked(0).await?, marked(1).await?];
    let mut relay = Serving::start(Relay::builder(listen).upstream(targets[0]));
    let endpoint = relay.endpoint.clone();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (endpoint, stopped) = (endpoint.clone(), stopped.clone());
            spawn(async move {
                let mut asked = 0;
                while !*stopped.borrow() {
                    assert!(mark_at(&endpoint).await? < 2);
                    asked += 1;
                }
                io::Result::Ok(asked)
            })
        })
        .collect();

    let mut drained = Vec::new();
    for number in 1..=HANDOVERS {
        let listener = relay.handle.listener().expect("it accepts");
        assert_eq!(listener.endpoint(), &endpoint);
        let next = Relay::builder(local()).upstream(targets[number % 2]).listener(listener);
        // Before the one that has the listener now: a mistake of the settings would be known in time.
        let server = Server::current()?;
        let next = next.bind_on(&server).expect("it needs no socket");
        relay.handle.hand_over(Duration::from_secs(60)).await;
        let handle = next.handle();
        let task = spawn(next.serve(|connection| drop(spawn(connection))));
        let next = Serving { endpoint: endpoint.clone(), handle, task };
        drained.push(std::mem::replace(&mut relay, next));
        assert_eq!(usize::from(mark_at(&endpoint).await?), number % 2, "handover {number}");
    }
    stop.send_replace(true);
    let mut asked = HANDOVERS as u64;
    for client in clients {
        asked += client.await.expect("it does not panic")?;
    }
    drained.push(relay);
    let mut accepted = 0;
    for relay in drained {
        let handle = relay.handle.clone();
        assert!(handle.listener().is_some(), "the last relay has it");
        assert_eq!(relay.drain().await?.cut, 0);
        accepted += handle.stats().accepted;
    }
    assert_eq!(accepted, asked);
    assert!(mark_at(&endpoint).await.is_err());
    Ok(())
}

/// Goal: while a listener passes from relay to relay, no client is refused or reset, and each relay that has taken over is alone.
/// Method: clients that connect without a pause over 50 handovers, on TCP and on a Unix socket, whose file stays until the end.
#[test]
fn a_listener_passes_on() {
    run(pass_on(Endpoint::Tcp(local())));
    let path = path();
    run(pass_on(Endpoint::Unix(path.clone())));
    assert!(!path.exists());
}

/// Goal: connections in the kernel's queue are served by the next relay, and those of the one before go on. Method: a relay that
/// accepts one connection, and clients behind it; the listener is handed over twice before it is served.
#[test]
fn the_queue_passes_on() {
    run(async {
        let targets = [marked(0).await?, marked(1).await?];
        let path = path();
        let first = Relay::builder(path.clone()).upstream(targets[0]).connections_max(1);
        let first = Serving::start(first);
        let mut open = UnixStream::connect(&path).await?;
        assert_eq!(open.read_u8().await?, 0);
        let mut queued = Vec::new();
        for _ in 0..5 {
            queued.push(UnixStream::connect(&path).await?);
        }
        let listener = first.handle.listener().expect("it accepts");
        let server = Server::current()?;
        let unused = Relay::builder(path.clone()).upstream(targets[0]).listener(listener.clone());
        let unused = unused.bind_on(&server).expect("it needs no socket");
        let next = Relay::builder(path.clone()).upstream(targets[1]).listener(listener);
        let next = next.bind_on(&server).expect("it needs no socket");
        first.handle.hand_over(Duration::from_secs(60)).await;
        let handle = unused.handle();
        drop(unused);
        handle.hand_over(Duration::ZERO).await;
        let (endpoint, handle) = (next.endpoint().clone(), next.handle());
        let task = spawn(next.serve(|connection| drop(spawn(connection))));
        for mut stream in queued {
            assert_eq!(stream.read_u8().await?, 1);
        }
        open.write_all(b"x").await?;
        assert_eq!(open.read_u8().await?, b'x');
        drop(open);
        assert_eq!(first.drain().await?.cut, 0);
        assert!(Path::new(&path).exists());
        assert_eq!(Serving { endpoint, handle, task }.drain().await?.cut, 0);
        assert!(!Path::new(&path).exists());
        Ok(())
    });
}

/// Goal: the socket of datagrams passes on: no datagram is lost or refused, answers to earlier ones come, and later ones are the
/// next relay's. Method: a target that answers late, a client with a connected socket, which would learn of a closed port, and as
/// many datagrams as its queue holds.
#[test]
fn a_socket_of_datagrams_passes_on() {
    run(async {
        let server = Server::current()?;
        let (old, new) = (UdpSocket::bind(local()).await?, UdpSocket::bind(local()).await?);
        let first = UdpRelay::builder(local(), old.local_addr()?).bind_on(&server);
        let first = first.expect("it listens");
        let (address, first_handle) = (first.address(), first.handle());
        let serving = spawn(first.serve(|session| drop(spawn(session))));
        let client = UdpSocket::bind(local()).await?;
        client.connect_to(address)?;
        let mut room = [0; 16];
        client.send(b"early").await?;
        let (_, session) = old.recv_from(&mut room).await?;

        let next = UdpRelay::builder(local(), new.local_addr()?).listener(first_handle.listener());
        let next = next.bind_on(&server).expect("it needs no socket");
        assert_eq!(next.address(), address);
        let handle = next.handle();
        first_handle.hand_over(Duration::from_secs(60)).await;
        for number in 0..50 {
            client.send(&[number]).await?;
        }
        let next_serving = spawn(next.serve(|session| drop(spawn(session))));
        for number in 0..50 {
            let (bytes, from) = new.recv_from(&mut room).await?;
            assert_eq!(room[..bytes], [number]);
            new.send_to(&room[..bytes], from).await?;
            client.recv(&mut room).await?;
            assert_eq!(room[0], number);
        }
        old.send_to(b"late", session).await?;
        let bytes = client.recv(&mut room).await?;
        assert_eq!(&room[..bytes], b"late");
        assert_eq!((first_handle.stats().datagrams_up, handle.stats().datagrams_up), (1, 50));
        // It still receives nothing.
        first_handle.drain(Duration::from_secs(60));
        drop(spawn(async move {
            while let Ok((bytes, from)) = new.recv_from(&mut room).await {
                let _ = new.send_to(&room[..bytes], from).await;
            }
        }));
        let other = UdpSocket::bind(local()).await?;
        assert_eq!(ask(&other, address, b"who?").await?, b"who?");
        assert_eq!(first_handle.stats().refused, 0);
        for (handle, serving) in [(first_handle, serving), (handle, next_serving)] {
            handle.drain(Duration::from_millis(1));
            serving.await.expect("no panic")?;
            while handle.stats().active > 0 {
                time::sleep(Duration::from_millis(1)).await;
            }
        }
        Ok(())
    });
}
