//! Who may use a relay, and how much of it.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::{
    Server,
    net::{TcpSocket, TcpStream, UdpSocket},
};
use vigie_forward::relay::{AddressRange, ProxyHeader, UdpRelay};
use vigie_runtime::{spawn, time};

use crate::{Serving, datagrams, echo, local, run, tcp};

fn network(text: &str) -> AddressRange {
    text.parse().expect("a network")
}

/// Connects from 127.0.0.`last`.
async fn from(last: u8, relay: &Serving) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0)))?;
    socket.connect(relay.endpoint.address().expect("it listens on TCP")).await
}

/// Whether the relay serves a client. One that it does not is reset.
async fn is_served(client: io::Result<&mut TcpStream>) -> bool {
    let asked = async {
        let client = client?;
        client.write_all(b"x").await?;
        client.read_u8().await
    };
    match asked.await {
        Ok(byte) => byte == b'x',
        Err(error) => {
            let is_reset =
                [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe].contains(&error.kind());
            assert!(is_reset, "no end of a stream: {error}");
            false
        }
    }
}

/// Goal: clients that are not allowed, or denied, are reset and counted, and the others are served. Method: clients of several
/// addresses of the loopback network.
#[test]
fn lists_admit_and_refuse() {
    run(async {
        let builder = tcp(echo().await?).allow(network("127.0.0.0/28"));
        let relay = Serving::start(builder.deny(IpAddr::from([127, 0, 0, 3])));
        for (last, expected) in [(1, true), (3, false), (2, true), (16, false)] {
            let mut client = from(last, &relay).await;
            let served = is_served(client.as_mut().map_err(|error| error.kind().into())).await;
            assert_eq!(served, expected, "{last}");
        }
        relay.until(|stats| stats.denied == 2 && stats.finished == 2).await;
        let stats = relay.handle.stats();
        assert_eq!((stats.connects_failed, relay.handle.targets()[0].connections), (0, 2));
        Ok(())
    });
}

/// Goal: a source has at most so many connections, others are not affected, and what ends makes room. Method: two of one address, a third
/// one, one of another address; then one ends.
#[test]
fn a_source_has_its_share() {
    run(async {
        let relay = Serving::start(tcp(echo().await?).per_source_max(2));
        let (mut one, mut two) = (from(1, &relay).await?, from(1, &relay).await?);
        assert!(is_served(Ok(&mut one)).await && is_served(Ok(&mut two)).await);
        let mut third = from(1, &relay).await;
        assert!(!is_served(third.as_mut().map_err(|error| error.kind().into())).await);
        let mut other = from(2, &relay).await?;
        assert!(is_served(Ok(&mut other)).await);
        drop(one);
        relay.until(|stats| stats.active == 2).await;
        let mut next = from(1, &relay).await?;
        assert!(is_served(Ok(&mut next)).await && is_served(Ok(&mut two)).await);
        relay.until(|stats| stats.over_source_max == 1).await;
        Ok(())
    });
}

/// Goal: behind a trusted proxy, the address of its header decides. Method: headers with a denied address, and with another one.
#[test]
fn the_address_of_the_header_decides() {
    run(async {
        let builder = tcp(echo().await?).trust_proxy_header(network("127.0.0.0/8"));
        let relay = Serving::start(builder.deny(network("192.0.2.0/24")).per_source_max(1));
        let mut clients = Vec::new();
        for (source, expected) in
            [("192.0.2.9", false), ("198.51.100.9", true), ("198.51.100.9", false)]
        {
            let source = SocketAddr::new(source.parse().expect("an address"), 5);
            let header = ProxyHeader::Tcp { source, destination: local() };
            let mut room = [0; ProxyHeader::WRITTEN_BYTES_MAX];
            let bytes = header.write(&mut room);
            let mut client = relay.connect().await?;
            client.write_all(&room[..bytes]).await?;
            assert_eq!(is_served(Ok(&mut client)).await, expected, "{source}");
            clients.push(client);
        }
        relay.until(|stats| (stats.denied, stats.over_source_max) == (1, 1)).await;
        Ok(())
    });
}

/// Goal: the same for datagrams: those that may not begin a session are dropped and counted. Method: clients of several addresses, and
/// more of one than it may have.
#[test]
fn datagrams_are_admitted_too() {
    run(async {
        let builder = UdpRelay::builder(local(), datagrams::echo().await?);
        let builder = builder.deny(network("127.0.0.3")).per_source_max(1);
        let relay = builder.bind_on(&Server::current().expect("a runtime")).expect("it listens");
        let (address, handle) = (relay.address(), relay.handle());
        drop(spawn(relay.serve(|session| drop(spawn(session)))));
        let client = |last: u8| UdpSocket::bind(SocketAddr::from(([127, 0, 0, last], 0)));
        let (first, denied, second, other) =
            (client(1).await?, client(3).await?, client(1).await?, client(2).await?);
        assert_eq!(datagrams::ask(&first, address, b"who?").await?, b"who?");
        denied.send_to(b"x", address).await?;
        second.send_to(b"x", address).await?;
        assert_eq!(datagrams::ask(&other, address, b"who?").await?, b"who?");
        assert_eq!(datagrams::ask(&first, address, b"who?").await?, b"who?");
        while handle.stats().denied + handle.stats().over_source_max < 2 {
            time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let stats = handle.stats();
        assert_eq!((stats.denied, stats.over_source_max, stats.opened), (1, 1, 2), "{stats:?}");
        Ok(())
    });
}
