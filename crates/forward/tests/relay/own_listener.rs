//! Relays at all addresses of a host, whose target is one of them, or becomes one.
//!
//! ```text
//!   relay, at port 7000 of all addresses   r0 ── p0   peer, an echo at port 7000
//!                         10.9.0.5, sometimes          10.9.0.5, otherwise
//! ```

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, UdpSocket},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use tokio::io::AsyncReadExt;
use vigie_detect::{Server, net};
use vigie_forward::relay::{Relay, UdpRelay};
use vigie_runtime::{spawn, time};

use crate::{
    PATIENCE, Serving, exchange,
    kit::namespace::{Namespace, WAYS, inside, near},
    local, pattern, run,
};

/// In namespaces of these tests, nothing else has the port.
const EVERYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7000);
const MOVING: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 0, 5)), 7000);

const RELAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7000);

const CLIENTS: u64 = 10;

/// Runs `body` on the relay's side.
#[track_caller]
fn with_peer(test: &str, body: impl FnOnce(&Namespace)) {
    inside(test, WAYS, || {
        let peer = Namespace::new();
        near(&format!("ip link add r0 type veth peer name p0 netns {}", peer.id()));
        near("ip link set lo up; ip addr add 10.9.1.1/24 dev r0; ip link set r0 up");
        peer.run("ip link set lo up; ip addr add 10.9.1.2/24 dev p0; ip link set p0 up; ip addr add 10.9.0.5/32 dev lo");
        near("ip route add 10.9.0.5/32 via 10.9.1.2");
        body(&peer);
    });
}

fn move_here(peer: &Namespace) {
    peer.run("ip addr del 10.9.0.5/32 dev lo");
    near("ip addr add 10.9.0.5/32 dev lo");
}

fn move_back(peer: &Namespace) {
    near("ip addr del 10.9.0.5/32 dev lo");
    peer.run("ip addr add 10.9.0.5/32 dev lo");
}

/// The errors that connections and sessions ended with.
type Errors = Arc<Mutex<Vec<String>>>;

#[track_caller]
fn assert_all_itself(errors: &Errors) {
    let errors = std::mem::take(&mut *errors.lock().unwrap_or_else(PoisonError::into_inner));
    assert!(!errors.is_empty());
    for error in errors {
        assert!(error.contains("10.9.0.5:7000: this relay itself listens there"), "{error}");
    }
}

/// Goal: a relay does not connect to itself by an address of this host: of one that the host has from the start, never; of one that it gets later,
/// not again once it has. When another host has the address, it is a target as any other. Method: an address that moves twice; while it is here, clients are
/// refused, and each is one connection of the relay.
#[test]
fn streams_do_not_come_back() {
    with_peer("own_listener::streams_do_not_come_back", |peer| {
        let listener = peer.enter(|| TcpListener::bind(EVERYWHERE).expect("a port"));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                thread::spawn(move || {
                    let mut back = stream.try_clone().expect("a descriptor");
                    drop(io::copy(&mut stream, &mut back));
                    drop(back.shutdown(Shutdown::Write));
                });
            }
        });
        move_here(peer);
        run(async {
            let errors = Errors::default();
            let observed = Arc::clone(&errors);
            let builder = Relay::builder(EVERYWHERE).upstream(MOVING).observe(move |record| {
                let error = record.error.map(ToString::to_string);
                observed.lock().unwrap_or_else(PoisonError::into_inner).extend(error);
            });
            let relay = Serving::start(builder);
            let refused = async || {
                let before = relay.handle.stats();
                for _ in 0..CLIENTS {
                    let mut client = net::TcpStream::connect(RELAY).await?;
                    assert_eq!(client.read(&mut [0]).await?, 0);
                }
                relay.until(|stats| stats.active == 0).await;
                let after = relay.handle.stats();
                assert_eq!(after.refused - before.refused, after.accepted - before.accepted);
                io::Result::Ok(after.accepted - before.accepted)
            };
            assert_eq!(refused().await?, CLIENTS, "it has connected to itself");
            assert_all_itself(&errors);
            for _ in 0..2 {
                move_back(peer);
                let bytes = pattern(1, 10_000);
                let client = net::TcpStream::connect(RELAY).await?;
                assert!(exchange(client, bytes.clone()).await? == bytes);
                relay.until(|stats| stats.active == 0).await;
                errors.lock().unwrap_or_else(PoisonError::into_inner).clear();

                move_here(peer);
                assert!(refused().await? >= CLIENTS);
                // One that was on its way may come later.
                while refused().await? != CLIENTS {}
                assert_all_itself(&errors);
            }
            relay.drain().await.map(drop)
        });
    });
}

/// Goal: as above, of datagrams, which never come back. Method: the same; each client is another session.
#[test]
fn datagrams_do_not_come_back() {
    with_peer("own_listener::datagrams_do_not_come_back", |peer| {
        // At all addresses, it would answer from the one of its interface.
        let socket = peer.enter(|| UdpSocket::bind(MOVING).expect("a port"));
        thread::spawn(move || {
            let mut bytes = [0; 100];
            while let Ok((count, from)) = socket.recv_from(&mut bytes) {
                drop(socket.send_to(&bytes[..count], from));
            }
        });
        move_here(peer);
        run(async {
            let errors = Errors::default();
            let observed = Arc::clone(&errors);
            let relay = UdpRelay::builder(EVERYWHERE, MOVING).observe(move |record| {
                let error = record.error.map(ToString::to_string);
                observed.lock().unwrap_or_else(PoisonError::into_inner).extend(error);
            });
            let relay = relay.bind_on(&Server::current().expect("a runtime")).expect("it listens");
            let handle = relay.handle();
            let serving = spawn(relay.serve(|session| drop(spawn(session))));
            let send = async || {
                let client = net::UdpSocket::bind(local()).await?;
                client.send_to(b"x", RELAY).await?;
                io::Result::Ok(client)
            };
            for round in 0..3 {
                if round > 0 {
                    move_back(peer);
                    let client = send().await?;
                    let received = time::timeout(PATIENCE, client.recv_from(&mut [0; 9])).await;
                    assert_eq!(received.expect("an answer")?.0, 1);
                    move_here(peer);
                }
                let before = handle.stats();
                for _ in 0..CLIENTS {
                    send().await?;
                }
                while handle.stats().refused < before.refused + CLIENTS {
                    time::sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(handle.stats().opened, before.opened);
                assert_all_itself(&errors);
            }
            handle.drain(Duration::ZERO);
            serving.await.expect("it does not panic")
        });
    });
}
