//! Several targets: who gets which connection, and what is counted for each.

use std::{io, net::SocketAddr, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::{
    Server,
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
};
use vigie_forward::relay::{
    Balance, BindError, Relay, RelayBuilder, TargetState, TargetStats, UdpRelay, Upstream,
};
use vigie_runtime::{spawn, time};

use crate::{Serving, datagrams, echo, exchange, local, pattern, run};

/// A server that sends its number to each client, and keeps the connection until the client ends it.
async fn numbered(number: u8) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(local()).await?;
    let address = listener.local_addr()?;
    drop(spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            drop(spawn(async move {
                let _ = stream.write_all(&[number]).await;
                let _ = stream.read(&mut [0; 1]).await;
            }));
        }
    }));
    Ok(address)
}

async fn relay_to(weights: &[u16]) -> io::Result<RelayBuilder> {
    let mut builder = Relay::builder(local());
    for (number, weight) in (0..).zip(weights) {
        builder = builder.upstream(Upstream::from(numbered(number).await?).weight(*weight));
    }
    Ok(builder)
}

/// Connects, and returns the connection with the number of its target.
async fn ask(relay: &Serving) -> io::Result<(TcpStream, usize)> {
    let mut client = relay.connect().await?;
    let number = client.read_u8().await?;
    Ok((client, number.into()))
}

fn numbers(targets: &[TargetStats], of: impl Fn(&TargetStats) -> u64) -> Vec<u64> {
    targets.iter().map(of).collect()
}

/// Goal: connections go round by weight, and each target's are counted, open ones too. Method: weights 3 and 1, eight
/// connections, of which two are then closed.
#[test]
fn connections_go_round() {
    run(async {
        let relay = Serving::start(relay_to(&[3, 1]).await?.balance(Balance::RoundRobin));
        let mut open = Vec::new();
        for _ in 0..8 {
            open.push(ask(&relay).await?);
        }
        let order: Vec<_> = open.iter().map(|(_, number)| *number).collect();
        assert_eq!(order, [0, 0, 1, 0, 0, 0, 1, 0]);
        let targets = relay.handle.targets();
        assert_eq!(numbers(&targets, |one| one.connections), [6, 2]);
        assert_eq!(numbers(&targets, |one| one.active), [6, 2]);
        open.drain(2..4);
        relay.until(|stats| stats.active == 6).await;
        let targets = relay.handle.targets();
        assert_eq!(numbers(&targets, |one| one.active), [5, 1]);
        assert_eq!(numbers(&targets, |one| one.connections), [6, 2]);
        Ok(())
    });
}

/// Goal: the target with the fewest open connections is taken. Method: three targets; the connections of one end, and the next
/// ones all go there.
#[test]
fn the_least_busy_target_is_taken() {
    for balance in [Balance::LeastConnections, Balance::RandomTwo] {
        run(async move {
            let relay = Serving::start(relay_to(&[1, 1]).await?.balance(balance));
            let mut open = Vec::new();
            for _ in 0..12 {
                open.push(ask(&relay).await?);
            }
            assert_eq!(numbers(&relay.handle.targets(), |one| one.active), [6, 6], "{balance}");
            open.retain(|(_, number)| *number == 0);
            relay.until(|stats| stats.active == 6).await;
            for _ in 0..6 {
                open.push(ask(&relay).await?);
                assert_eq!(open.last().map(|(_, number)| *number), Some(1), "{balance}");
            }
            Ok(())
        });
    }
}

/// Goal: a client's address decides, so that all of its connections go to one target; others go elsewhere. Method: connections from
/// several addresses of the loopback network, three each.
#[test]
fn a_client_stays_with_its_target() {
    run(async {
        let relay = Serving::start(relay_to(&[1, 1, 1]).await?.balance(Balance::Hash));
        let to = relay.endpoint.address().expect("it listens on TCP");
        let mut seen = std::collections::BTreeSet::new();
        for last in 1..=20 {
            let mut first = None;
            for _ in 0..3 {
                let socket = TcpSocket::new_v4()?;
                socket.bind(SocketAddr::from(([127, 0, 0, last], 0)))?;
                let number = socket.connect(to).await?.read_u8().await?;
                assert_eq!(*first.get_or_insert(number), number, "127.0.0.{last}");
                seen.insert(number);
            }
        }
        assert_eq!(seen.len(), 3, "all are used");
        Ok(())
    });
}

/// Goal: each policy serves all clients while a target is down, and counts its failures there. Method: a closed port among three
/// targets.
#[test]
fn every_policy_passes_over_what_is_down() {
    for balance in [
        Balance::First,
        Balance::RoundRobin,
        Balance::LeastConnections,
        Balance::RandomTwo,
        Balance::Hash,
    ] {
        run(async move {
            let closed = TcpListener::bind(local()).await?.local_addr()?;
            let builder = Relay::builder(local()).upstream(closed).balance(balance);
            let relay = Serving::start(builder.upstream(echo().await?).upstream(echo().await?));
            for number in 0..30 {
                let sent = pattern(number, 100);
                assert_eq!(exchange(relay.connect().await?, sent.clone()).await?, sent);
            }
            relay.until(|stats| stats.finished == 30).await;
            let targets = relay.handle.targets();
            let failures = relay.handle.stats().connects_failed;
            assert_eq!(numbers(&targets, |one| one.failures), [failures, 0, 0], "{balance}");
            assert_eq!(numbers(&targets, |one| one.connections).iter().sum::<u64>(), 30);
            assert!(failures < 30, "{balance}: {targets:?}");
            assert_eq!(targets[0].state == TargetState::Available, failures == 0, "{balance}");
            Ok(())
        });
    }
}

/// Goal: weights out of range are refused. Method: 0 and 257, of streams and of datagrams.
#[test]
fn impossible_weights_are_refused() {
    run(async {
        let server = Server::current().expect("a runtime");
        for weight in [0, 257] {
            let relay = Relay::builder(local()).upstream(Upstream::from(local()).weight(weight));
            assert!(matches!(relay.bind_on(&server), Err(BindError::Weight)), "{weight}");
            let to = Upstream::<SocketAddr>::from(local()).weight(weight);
            let relay = UdpRelay::builder(local(), to).bind_on(&server);
            assert!(matches!(relay, Err(BindError::Weight)), "{weight}");
        }
        Ok(())
    });
}

/// Goal: sessions of datagrams are divided, too, and a client keeps its target. Method: two echoes that go round, four clients,
/// each of which asks three times.
#[test]
fn sessions_go_round() {
    run(async {
        let to = [datagrams::echo().await?, datagrams::echo().await?];
        let builder = UdpRelay::builder(local(), to[0]).upstream(to[1]);
        let relay = builder.balance(Balance::RoundRobin);
        let relay = relay.bind_on(&Server::current().expect("a runtime")).expect("it listens");
        let (address, handle) = (relay.address(), relay.handle());
        drop(spawn(relay.serve(|session| drop(spawn(session)))));
        for _ in 0..4 {
            let client = UdpSocket::bind(local()).await?;
            for _ in 0..3 {
                assert_eq!(datagrams::ask(&client, address, b"who?").await?, b"who?");
            }
        }
        let targets = handle.targets();
        assert_eq!(numbers(&targets, |one| one.connections), [2, 2]);
        assert_eq!(numbers(&targets, |one| one.active), [2, 2]);
        Ok(())
    });
}

/// Goal: a session whose target cannot be reached ends, and its client gets another target, without losing its place. Method: a
/// closed port before an echo; the client asks until it is answered, in one session at a time.
#[test]
fn sessions_leave_a_target_that_is_gone() {
    run(async {
        let closed = UdpSocket::bind(local()).await?.local_addr()?;
        let builder = UdpRelay::builder(local(), closed).upstream(datagrams::echo().await?);
        let builder = builder.sessions_max(1).expire_after(Duration::from_secs(600));
        let relay = builder.bind_on(&Server::current().expect("a runtime")).expect("it listens");
        let (address, handle) = (relay.address(), relay.handle());
        drop(spawn(relay.serve(|session| drop(spawn(session)))));
        let client = UdpSocket::bind(local()).await?;
        let mut answer = [0; 16];
        loop {
            client.send_to(b"who?", address).await?;
            let received = time::timeout(Duration::from_millis(10), client.recv(&mut answer)).await;
            if received.is_ok() {
                break;
            }
        }
        while handle.stats().active > 1 {
            time::sleep(Duration::from_millis(1)).await;
        }
        let (stats, targets) = (handle.stats(), handle.targets());
        assert_eq!((stats.opened, stats.refused, stats.expired), (2, 0, 0), "{stats:?}");
        assert_eq!(numbers(&targets, |one| one.active), [0, 1]);
        assert!(targets[0].failures > 0 && targets[0].state != TargetState::Available);
        Ok(())
    });
}
