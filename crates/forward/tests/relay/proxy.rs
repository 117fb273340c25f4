//! The PROXY protocol over real sockets.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::{TcpListener, TcpStream};
use vigie_forward::relay::{ProxyHeader, ProxyParse, Relay};

use crate::{Serving, local, run, tcp};

async fn header_of(stream: &mut TcpStream) -> io::Result<ProxyHeader> {
    let mut bytes = Vec::new();
    loop {
        match ProxyHeader::read(&bytes).expect("a header") {
            ProxyParse::Complete(header, length) => {
                assert_eq!(length, bytes.len());
                return Ok(header);
            }
            ProxyParse::Needs(needed) => {
                let known = bytes.len();
                bytes.resize(needed, 0);
                stream.read_exact(&mut bytes[known..]).await?;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Goal: an upstream learns the first client's address through two relays, and then gets its bytes. Method: the
/// first relay sends a header, the second accepts it and sends one on.
#[test]
fn a_header_passes_through_two_relays() {
    run(async {
        let listener = TcpListener::bind(local()).await?;
        let second = tcp(listener.local_addr()?)
            .trust_proxy_header(
                "127.0.0.0/8".parse::<vigie_forward::relay::AddressRange>().expect("a network"),
            )
            .send_proxy_header();
        let second = Serving::start(second);
        let inner = second.endpoint.address().expect("it listens on TCP");
        let first = Serving::start(tcp(inner).send_proxy_header());

        let mut client = first.connect().await?;
        client.write_all(b"hello").await?;
        let (mut served, _) = listener.accept().await?;
        let source = client.local_addr()?;
        let destination = client.peer_addr()?;
        let header = header_of(&mut served).await?;
        let ProxyHeader::Tcp { source: seen, destination: to } = header else {
            panic!("{header:?}")
        };
        assert_eq!((seen, to), (source, destination));
        let mut heard = [0; 5];
        served.read_exact(&mut heard).await?;
        assert_eq!(&heard, b"hello");
        Ok(())
    });
}

/// Goal: a target learns the IPv4 address of a client of a dual-stack listener as one of IPv4. Method: a relay at `[::]`, and a client of IPv4.
#[test]
fn clients_of_ipv4_stay_so() {
    run(async {
        let listener = TcpListener::bind(local()).await?;
        let all = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let relay = Relay::builder(all).upstream(listener.local_addr()?).send_proxy_header();
        let relay = Serving::start(relay);
        let port = relay.endpoint.address().expect("it listens on TCP").port();
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        let (mut served, _) = listener.accept().await?;
        let header = header_of(&mut served).await?;
        let ProxyHeader::Tcp { source, destination } = header else { panic!("{header:?}") };
        assert_eq!((source, destination), (client.local_addr()?, client.peer_addr()?));
        Ok(())
    });
}

/// Goal: a trusted client without a valid header is refused, and the upstream sees nothing; the header of an untrusted
/// client is relayed as ordinary bytes. Method: version 1, other text, a truncated header; then an address range that
/// this host is not in.
#[test]
fn headers_are_taken_from_the_trusted_alone() {
    run(async {
        let listener = TcpListener::bind(local()).await?;
        let all: vigie_forward::relay::AddressRange = "0.0.0.0/0".parse().expect("a network");
        let relay = Serving::start(tcp(listener.local_addr()?).trust_proxy_header(all));
        let openings: [&[u8]; 3] = [
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
            b"GET / HTTP/1.1\r\n",
            b"\r\n\r\n\0\r\nQUIT\n\x21",
        ];
        for (index, opening) in (1..).zip(openings) {
            let mut client = relay.connect().await?;
            client.write_all(opening).await?;
            client.shutdown().await?;
            relay.until(|stats| stats.malformed == index).await;
        }
        assert!(listener.try_accept().is_err(), "the upstream was left alone");

        let other: vigie_forward::relay::AddressRange = "192.0.2.0/24".parse().expect("a network");
        let relay = Serving::start(tcp(listener.local_addr()?).trust_proxy_header(other));
        let mut client = relay.connect().await?;
        let mut room = [0; ProxyHeader::WRITTEN_BYTES_MAX];
        let source = SocketAddr::from(([192, 0, 2, 1], 5));
        let bytes = ProxyHeader::of(Some((source, source))).write(&mut room);
        client.write_all(&room[..bytes]).await?;
        let (mut served, _) = listener.accept().await?;
        assert_eq!(header_of(&mut served).await?, ProxyHeader::of(Some((source, source))));
        Ok(())
    });
}
