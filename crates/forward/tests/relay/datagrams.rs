//! Datagrams: sessions, bounds, ends.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    task::Poll,
    time::Duration,
};

use socket2::{MsgHdr, SockAddr, SockRef};

use vigie_detect::{Server, net::UdpSocket};
use vigie_forward::relay::{UdpRelay, UdpRelayHandle, UdpRelayStats};
use vigie_runtime::{JoinHandle, spawn, time};

use crate::{local, run};

pub(crate) async fn echo() -> io::Result<SocketAddr> {
    let socket = UdpSocket::bind(local()).await?;
    let address = socket.local_addr()?;
    drop(spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok((bytes, from)) = socket.recv_from(&mut buffer).await {
            let _ = socket.send_to(&buffer[..bytes], from).await;
        }
    }));
    Ok(address)
}

fn start(
    upstream: SocketAddr,
    expire_after: Duration,
    sessions: usize,
) -> (SocketAddr, UdpRelayHandle, JoinHandle<io::Result<()>>) {
    let server = Server::current().expect("a runtime");
    let builder = UdpRelay::builder(local(), upstream).expire_after(expire_after);
    let relay = builder.sessions_max(sessions).bind_on(&server).expect("it listens");
    let (address, handle) = (relay.address(), relay.handle());
    let task = spawn(relay.serve(|session| drop(spawn(session))));
    (address, handle, task)
}

pub(crate) async fn ask(
    socket: &UdpSocket,
    relay: SocketAddr,
    question: &[u8],
) -> io::Result<Vec<u8>> {
    let mut answer = vec![0; 64 << 10];
    loop {
        socket.send_to(question, relay).await?;
        // A datagram may be lost; the question is asked again.
        let received = time::timeout(Duration::from_secs(2), socket.recv(&mut answer)).await;
        if let Ok(received) = received {
            answer.truncate(received?);
            return Ok(answer);
        }
    }
}

/// Goal: clients have sessions of their own, datagrams of all sizes keep their boundaries, and a further client is
/// refused and counted. Method: two clients of a relay for two; sizes from zero to the maximum.
#[test]
fn clients_have_sessions_of_their_own() {
    run(async {
        let (relay, handle, task) = start(echo().await?, Duration::from_secs(600), 2);
        let clients = [UdpSocket::bind(local()).await?, UdpSocket::bind(local()).await?];
        for bytes in [0, 1, 2047, 2048, 2049, 65_507] {
            for (client, mark) in clients.iter().zip(*b"ab") {
                assert_eq!(ask(client, relay, &vec![mark; bytes]).await?, vec![mark; bytes]);
            }
        }
        let third = UdpSocket::bind(local()).await?;
        third.send_to(b"x", relay).await?;
        while handle.stats().refused == 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        let stats = handle.stats();
        assert_eq!((stats.opened, stats.active), (2, 2), "{stats:?}");
        assert!(stats.datagrams_up >= 12 && stats.datagrams_down >= 12, "{stats:?}");
        handle.drain(Duration::from_millis(1));
        task.await.expect("no panic")?;
        while handle.stats().active > 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    });
}

/// Goal: what one poll of the relay leaves is sent by the next one, also if a drain begins in between, whose new clients are refused; what is left when the
/// relay is dropped is counted. Method: 32 clients, whose sessions take longer to open than a poll may last; the relay is polled by hand.
#[test]
fn what_a_poll_leaves_is_not_forgotten() {
    type Serving = Pin<Box<dyn Future<Output = io::Result<()>>>>;
    const CLIENTS: u64 = 32;
    run(async {
        let server = Server::current().expect("a runtime");
        for drains in [false, true] {
            let upstream = UdpSocket::bind(local()).await?;
            let builder = UdpRelay::builder(local(), upstream.local_addr()?);
            let relay = builder.bind_on(&server).expect("it listens");
            let (address, handle) = (relay.address(), relay.handle());
            let mut serving: Serving = Box::pin(relay.serve(|session| drop(spawn(session))));
            let mut clients = Vec::new();
            for client in 0..CLIENTS {
                let socket = std::net::UdpSocket::bind(local())?;
                socket.send_to(&client.to_ne_bytes(), address)?;
                clients.push(socket);
            }
            let poll_once = async |serving: &mut Serving| {
                let _ = poll_fn(|cx| Poll::Ready(serving.as_mut().poll(cx))).await;
                handle.stats()
            };
            // The first polls may find nothing: the socket becomes readable by an event.
            let mut stats = poll_once(&mut serving).await;
            while stats.datagrams_up == 0 {
                time::sleep(Duration::from_millis(1)).await;
                stats = poll_once(&mut serving).await;
            }
            assert!(stats.datagrams_up < CLIENTS, "one poll sends only some: {stats:?}");
            if drains {
                handle.drain(Duration::from_secs(600));
                let late = std::net::UdpSocket::bind(local())?;
                late.send_to(b"late", address)?;
                while stats.refused == 0 {
                    stats = poll_once(&mut serving).await;
                    time::sleep(Duration::from_millis(1)).await;
                }
                assert_eq!((stats.datagrams_up, stats.refused), (CLIENTS, 1), "{stats:?}");
            }
            drop(serving);
            let stats = handle.stats();
            assert_eq!(stats.datagrams_up + stats.dropped, CLIENTS, "{stats:?}");
            assert_eq!(stats.dropped == 0, drains, "{stats:?}");
        }
        Ok(())
    });
}

/// Goal: a session expires and frees its slot, and its client gets a new one. Method: sessions of 20 ms, and room for
/// one.
#[test]
fn sessions_expire() {
    run(async {
        let (relay, handle, _) = start(echo().await?, Duration::from_millis(20), 1);
        for round in 1..=3 {
            let client = UdpSocket::bind(local()).await?;
            assert_eq!(ask(&client, relay, b"hello").await?, b"hello");
            while handle.stats().expired < round || handle.stats().active > 0 {
                time::sleep(Duration::from_millis(1)).await;
            }
        }
        assert_eq!(handle.stats().opened, handle.stats().expired);
        Ok(())
    });
}

/// Goal: a missing upstream does no harm. Method: a closed port, which the network reports; then an upstream that
/// answers at the same port.
#[test]
fn an_upstream_may_come_later() {
    run(async {
        let closed = UdpSocket::bind(local()).await?.local_addr()?;
        let (relay, handle, _) = start(closed, Duration::from_secs(600), 8);
        let client = UdpSocket::bind(local()).await?;
        while handle.stats().unreachable == 0 {
            client.send_to(b"anybody?", relay).await?;
            time::sleep(Duration::from_millis(1)).await;
        }
        let upstream = UdpSocket::bind(closed).await?;
        client.send_to(b"now", relay).await?;
        let mut buffer = [0; 16];
        loop {
            let (bytes, from) = upstream.recv_from(&mut buffer).await?;
            if &buffer[..bytes] == b"now" {
                upstream.send_to(b"here", from).await?;
                break;
            }
        }
        let bytes = client.recv(&mut buffer).await?;
        assert_eq!(&buffer[..bytes], b"here");
        Ok(())
    });
}

/// Goal: datagrams that the kernel drops at the relay's sockets are counted, on both sides, and stay counted after
/// their session. Method: more than any queue holds, before the relay polls its socket, and before a session's task
/// runs; every datagram was relayed or counted.
#[test]
fn overflows_are_counted() {
    const COUNT: u64 = 4000;
    run(async {
        let upstream = UdpSocket::bind(local()).await?;
        let server = Server::current().expect("a runtime");
        let relay = UdpRelay::builder(local(), upstream.local_addr()?).bind_on(&server);
        let relay = relay.expect("it listens");
        let (address, handle) = (relay.address(), relay.handle());
        let client = UdpSocket::bind(local()).await?;
        for _ in 0..COUNT {
            client.send_to(&[1; 1000], address).await?;
        }
        let overflowed = handle.stats().overflowed;
        assert!(overflowed > 0);
        let (sender, mut tasks) = tokio::sync::mpsc::unbounded_channel();
        let serving = spawn(relay.serve(move |task| drop(sender.send(task))));
        let task = tasks.recv().await.expect("a session");
        while handle.stats().datagrams_up + handle.stats().dropped + overflowed < COUNT {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(handle.stats().overflowed, overflowed);

        let (_, session) = upstream.recv_from(&mut [0; 1000]).await?;
        for _ in 0..COUNT {
            upstream.send_to(&[2; 1000], session).await?;
        }
        let both = handle.stats().overflowed;
        assert!(both > overflowed);
        let answering = spawn(task);
        let relayed = |stats: UdpRelayStats| stats.datagrams_down + stats.dropped;
        while relayed(handle.stats()) + (both - overflowed) < COUNT {
            time::sleep(Duration::from_millis(1)).await;
        }
        handle.drain(Duration::from_millis(1));
        serving.await.expect("no panic")?;
        answering.await.expect("no panic");
        assert_eq!((handle.stats().active, handle.stats().overflowed), (0, both));
        Ok(())
    });
}

/// Goal: a session in which the upstream says nothing is counted, and one in which it answers is not. Method: a
/// silent upstream, then an echo, with sessions of 20 ms.
#[test]
fn silent_upstreams_are_counted() {
    run(async {
        for answers in [false, true] {
            let silent = UdpSocket::bind(local()).await?;
            let upstream = if answers { echo().await? } else { silent.local_addr()? };
            let (relay, handle, _) = start(upstream, Duration::from_millis(20), 8);
            let client = UdpSocket::bind(local()).await?;
            client.send_to(b"anybody?", relay).await?;
            while handle.stats().expired == 0 {
                time::sleep(Duration::from_millis(1)).await;
            }
            let stats = handle.stats();
            assert_eq!(stats.unanswered, u64::from(stats.datagrams_down == 0), "{stats:?}");
            assert!(answers || stats.unanswered == 1, "{stats:?}");
        }
        Ok(())
    });
}

/// Sends `bytes` to `to` as datagrams of `segment` bytes, in one call that the kernel passes on as one train.
fn send_train(socket: &UdpSocket, to: SocketAddr, bytes: &[u8], segment: u16) -> io::Result<usize> {
    // A control message: its length, its level and type (SOL_UDP and UDP_SEGMENT), and the number.
    let mut control = 18_usize.to_ne_bytes().to_vec();
    control.extend([17_i32.to_ne_bytes(), 103_i32.to_ne_bytes()].concat());
    control.extend(segment.to_ne_bytes());
    control.resize(24, 0);
    let (to, parts) = (SockAddr::from(to), [IoSlice::new(bytes)]);
    let message = MsgHdr::new().with_addr(&to).with_buffers(&parts).with_control(&control);
    SockRef::from(socket.as_async_fd()).sendmsg(&message, 0)
}

/// Goal: datagrams that come as a train, as from a sender or an interface that merges them, keep their boundaries, order and number in both directions.
/// Method: trains of several lengths, with a shorter last datagram and without, from a client and from the target, each of whose datagrams the other end
/// receives alone; the relay has counted each.
#[test]
fn trains_keep_their_boundaries() {
    run(async {
        let target = UdpSocket::bind(local()).await?;
        let (relay, handle, task) = start(target.local_addr()?, Duration::from_secs(600), 2);
        let client = UdpSocket::bind(local()).await?;
        let mut room = vec![0; 64 << 10];
        let mut datagrams = 0;
        for (segment, bytes) in [(100, 1_050), (100, 1_000), (1, 40), (1_400, 64_400), (700, 701)] {
            let train: Vec<u8> = (0..bytes).map(|at| u8::try_from(at % 251).unwrap_or(0)).collect();
            let parts = || train.chunks(usize::from(segment));
            send_train(&client, relay, &train, segment)?;
            let mut session = None;
            for part in parts() {
                let (count, from) = target.recv_from(&mut room).await?;
                assert_eq!(&room[..count], part);
                session = Some(from);
            }
            send_train(&target, session.expect("at least one"), &train, segment)?;
            for part in parts() {
                let count = client.recv(&mut room).await?;
                assert_eq!(&room[..count], part);
            }
            datagrams += parts().count() as u64;
            // They are counted once they are sent.
            let counted = |stats: UdpRelayStats| (stats.datagrams_up, stats.datagrams_down);
            while counted(handle.stats()) != (datagrams, datagrams) {
                time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(handle.stats().dropped, 0);
        }
        handle.drain(Duration::from_millis(1));
        task.await.expect("no panic")?;
        Ok(())
    });
}

/// Goal: datagrams that have come one by one, and are received and sent together, keep their boundaries, their number, and the order of each client's.
/// Method: three clients send datagrams of drawn lengths by turns before the relay is polled; the target receives all of them from three sessions, and
/// sends them back.
#[test]
fn what_has_come_together_is_sent_apart() {
    run(async {
        let target = UdpSocket::bind(local()).await?;
        let server = Server::current().expect("a runtime");
        let relay = UdpRelay::builder(local(), target.local_addr()?).bind_on(&server);
        let relay = relay.expect("it listens");
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(UdpSocket::bind(local()).await?);
        }
        let mut random = fastrand::Rng::with_seed(1);
        let mut sent = [const { Vec::new() }; 3];
        for number in 0..150_u8 {
            let client = random.usize(..3);
            // The last byte of each tells them apart.
            let length = if random.bool() { 64 } else { random.usize(1..200) };
            let datagram = vec![number; length];
            clients[client].send_to(&datagram, relay.address()).await?;
            sent[client].push(datagram);
        }
        sent[1].push(Vec::new());
        clients[1].send_to(&[], relay.address()).await?;

        let handle = relay.handle();
        let task = spawn(relay.serve(|session| drop(spawn(session))));
        let mut came = BTreeMap::<SocketAddr, Vec<Vec<u8>>>::new();
        let mut room = [0; 1 << 10];
        for _ in 0..151 {
            let (count, from) = target.recv_from(&mut room).await?;
            came.entry(from).or_default().push(room[..count].to_vec());
        }
        let mut all: Vec<_> = came.values().cloned().collect();
        all.sort_unstable();
        let mut expected = sent.to_vec();
        expected.sort_unstable();
        assert_eq!(all, expected);

        for (session, datagrams) in came {
            for datagram in datagrams {
                target.send_to(&datagram, session).await?;
            }
        }
        for (client, datagrams) in clients.iter().zip(sent) {
            for datagram in datagrams {
                let count = client.recv(&mut room).await?;
                assert_eq!(room[..count], datagram);
            }
        }
        handle.drain(Duration::from_millis(1));
        task.await.expect("no panic")?;
        let stats = handle.stats();
        assert_eq!((stats.datagrams_up, stats.datagrams_down, stats.dropped), (151, 151, 0));
        Ok(())
    });
}
