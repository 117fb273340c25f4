//! Sockets of the simulated network: what the kernel promises of real ones, in virtual time.

#![cfg(not(loom))]

use std::{
    cell::RefCell,
    future::Future,
    io,
    net::SocketAddr,
    panic,
    pin::pin,
    rc::Rc,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::{
    DropReason, Instant, Link, Server, SimulatedNetwork, Simulation, TraceDetail, TraceEvent,
    TraceEventKind,
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
};

/// Runs a future in a simulation whose network has `link` from its node to itself.
fn simulate<T>(seed: u64, link: Link, future: impl Future<Output = T>) -> T {
    simulate_recorded(seed, link, |_| future)
}

/// The same for a future that reads what the network has recorded.
fn simulate_recorded<F: Future>(
    seed: u64,
    link: Link,
    make: impl FnOnce(SimulatedNetwork) -> F,
) -> F::Output {
    let mut simulation = Simulation::new(seed);
    let network = simulation.network().clone();
    let node = network.node("main").expect("the first node");
    network.link(node, node, link);
    network.log().start_recording(TraceDetail::Events, 1 << 20);
    let future = make(network);
    let entered = simulation.server().clone();
    let _entered = entered.enter();
    simulation.block_on(future).unwrap_or_else(|deadlock| panic!("{deadlock}"))
}

async fn sleep(time: Duration) {
    let server = Server::current().expect("a simulation");
    server.timers().wait(server.now() + time).await.expect("the server is open");
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A link on which each packet takes 10 ms.
fn steady() -> Link {
    Link::new().delay(millis(10)).jitter(Duration::ZERO)
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

/// Connects two streams.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(any()).await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (client, accepted) = both(TcpStream::connect(address), listener.accept()).await;
    (client.expect("a connection"), accepted.expect("a connection").0)
}

async fn both<A: Future, B: Future>(one: A, other: B) -> (A::Output, B::Output) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(value) = one.as_mut().poll(cx)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Poll::Ready(value) = other.as_mut().poll(cx)
        {
            second = Some(value);
        }
        if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (first.expect("it is ready"), second.expect("it is ready"))
}

fn kind<T>(result: io::Result<T>) -> Option<io::ErrorKind> {
    result.err().map(|error| error.kind())
}

/// Goal: packets take the link's time, and nothing else does. Method: a handshake of two packets until `connect` returns, and
/// of three until `accept` does; a message and its answer; all by the virtual clock.
#[test]
fn packets_take_the_links_time() {
    simulate(1, steady(), async {
        let listener = TcpListener::bind(any()).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let begin = Instant::now();
        let connect = async {
            let client = TcpStream::connect(address).await.expect("it listens");
            assert_eq!(begin.elapsed(), millis(20));
            client
        };
        let (mut client, accepted) = both(connect, listener.accept()).await;
        assert_eq!(begin.elapsed(), millis(30));
        let (mut served, peer) = accepted.expect("a connection");
        assert_eq!(peer, client.local_addr().expect("an address"));
        assert_eq!(served.local_addr().expect("an address"), address);
        assert_eq!(served.peer_addr().expect("an address"), peer);

        let begin = Instant::now();
        client.write_all(b"a").await.expect("there is room");
        let mut byte = [0];
        served.read_exact(&mut byte).await.expect("it arrives");
        served.write_all(b"b").await.expect("there is room");
        client.read_exact(&mut byte).await.expect("it arrives");
        assert_eq!((begin.elapsed(), byte), (millis(20), *b"b"));
    });
}

/// Goal: bytes arrive once and in order whatever the link does, in both directions, and half-closing ends one direction.
/// Method: 200 kB each way in drawn pieces over a link that loses a fifth, duplicates a tenth and reorders, by 40 seeds; each
/// run twice, whose times must be equal.
#[test]
fn a_bad_link_is_repaired() {
    const COUNT: usize = 200_000;
    async fn transfer(stream: TcpStream, mut random: fastrand::Rng) {
        let (mut reader, mut writer) = stream.into_split();
        let mut draw = random.fork();
        let write = async move {
            let mut sent = 0;
            while sent < COUNT {
                let count = draw.usize(1..40_000).min(COUNT - sent);
                let bytes: Vec<u8> = (sent..sent + count).map(pattern).collect();
                writer.write_all(&bytes).await.expect("it is read");
                sent += count;
            }
            writer.shutdown().await.expect("it is open");
            assert_eq!(kind(writer.write_all(b"more").await), Some(io::ErrorKind::BrokenPipe));
        };
        let read = async move {
            let mut seen = 0;
            loop {
                let mut room = vec![0; random.usize(1..40_000)];
                let count = reader.read(&mut room).await.expect("it is written");
                let is_right =
                    room[..count].iter().zip(seen..).all(|(byte, n)| *byte == pattern(n));
                assert!(is_right, "the bytes behind {seen}");
                seen += count;
                if count == 0 {
                    break;
                }
            }
            assert_eq!(seen, COUNT);
        };
        both(write, read).await;
    }
    fn pattern(number: usize) -> u8 {
        (number.wrapping_mul(0x9E37_79B9) >> 13).to_le_bytes()[0]
    }
    let run = |seed: u64| {
        let link = Link::new().delay(millis(5)).jitter(millis(20)).loss(0.2).duplication(0.1);
        simulate(seed, link, async {
            let (client, served) = pair().await;
            let random = fastrand::Rng::with_seed(seed);
            both(transfer(client, random.clone()), transfer(served, random)).await;
            Instant::now()
        })
    };
    let mut times = Vec::new();
    for seed in 0..40 {
        let time = run(seed);
        assert_eq!(time, run(seed), "seed {seed}");
        times.push(time);
    }
    times.sort();
    times.dedup();
    assert!(times.len() > 30, "the seeds differ: {times:?}");
}

/// Goal: a writer is stopped by the window of a reader that does not read, and goes on when it does. Method: the buffers'
/// sizes; how much can be written; a write that waits, and ends at the time at which the reader begins.
#[test]
fn a_full_window_stops_the_writer() {
    simulate(2, steady(), async {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(any()).expect("a free port");
        socket.set_recv_buffer_size(1000).expect("before it listens");
        let listener = socket.listen(1).expect("it is bound");
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_send_buffer_size(500).expect("before it connects");
        assert_eq!(socket.send_buffer_size().expect("it is set"), 500);
        let address = listener.local_addr().expect("an address");
        let (client, accepted) = both(socket.connect(address), listener.accept()).await;
        let (client, mut served) = (client.expect("it listens"), accepted.expect("a client").0);

        let mut written = 0;
        for _ in 0..10 {
            match client.try_write(&[7; 4000]) {
                Ok(count) => written += count,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            sleep(millis(50)).await;
        }
        assert_eq!(written, 1500);
        assert_eq!(kind(client.try_write(&[7])), Some(io::ErrorKind::WouldBlock));

        let begin = Instant::now();
        let write = async {
            client.writable().await.expect("it is open");
            begin.elapsed()
        };
        let read = async {
            sleep(Duration::from_secs(60)).await;
            served.read_exact(&mut [0; 1000]).await.expect("it was written");
        };
        let (waited, ()) = both(write, read).await;
        // The window's update, the bytes, and their ACK, which waits for 40 ms; or a probe meanwhile.
        assert!(waited >= Duration::from_secs(60) + millis(30), "{waited:?}");
        assert!(waited <= Duration::from_secs(60) + millis(80), "{waited:?}");
    });
}

/// Goal: the ends of connections are those of TCP. Method: a refusal; a close after everything was read, and with unread data;
/// a write to a closed peer; a linger time of zero.
#[test]
fn connections_end_as_with_the_kernel() {
    simulate(3, steady(), async {
        let free = TcpListener::bind(any()).await.expect("a port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let begin = Instant::now();
        assert_eq!(kind(TcpStream::connect(address).await), Some(io::ErrorKind::ConnectionRefused));
        assert_eq!(begin.elapsed(), millis(20));
        let nowhere = TcpStream::connect("10.9.9.9:1").await;
        assert_eq!(kind(nowhere), Some(io::ErrorKind::HostUnreachable));

        // Closed: what was written arrives, then the end; then the peer's writes are in vain.
        let (mut client, mut served) = pair().await;
        served.write_all(b"last words").await.expect("there is room");
        drop(served);
        let mut heard = String::new();
        client.read_to_string(&mut heard).await.expect("it ends");
        assert_eq!(heard, "last words");
        client.write_all(b"x").await.expect("the peer has not answered yet");
        sleep(millis(50)).await;
        assert_eq!(kind(client.write_all(b"y").await), Some(io::ErrorKind::ConnectionReset));
        assert_eq!(kind(client.write_all(b"z").await), Some(io::ErrorKind::BrokenPipe));
        assert_eq!(kind(client.peer_addr()), Some(io::ErrorKind::NotConnected));

        // Closed with unread bytes: reset.
        let (mut client, served) = pair().await;
        client.write_all(b"unread").await.expect("there is room");
        sleep(millis(50)).await;
        drop(served);
        assert_eq!(kind(client.read(&mut [0; 9]).await), Some(io::ErrorKind::ConnectionReset));
        assert_eq!(client.read(&mut [0; 9]).await.expect("it has ended"), 0);

        let (mut client, served) = pair().await;
        served.set_linger(Some(Duration::ZERO)).expect("an option");
        drop(served);
        assert_eq!(kind(client.read(&mut [0; 9]).await), Some(io::ErrorKind::ConnectionReset));
    });
}

/// Goal: addresses are taken, given and freed as by the kernel, and a listener's queue has its bound. Method: the same port
/// twice, foreign addresses, a port by a dropped listener; three clients at a listener for two, of which the third comes in
/// when one has been accepted.
#[test]
fn ports_and_backlog_have_their_bounds() {
    simulate(4, steady(), async {
        let listener = TcpListener::bind("0.0.0.0:80").await.expect("a port");
        for taken in ["0.0.0.0:80", "127.0.0.1:80", "10.0.0.1:80"] {
            let result = TcpListener::bind(taken).await;
            assert_eq!(kind(result), Some(io::ErrorKind::AddrInUse), "{taken}");
        }
        let foreign = TcpListener::bind("10.0.0.2:80").await;
        assert_eq!(kind(foreign), Some(io::ErrorKind::AddrNotAvailable));
        UdpSocket::bind("0.0.0.0:80").await.expect("the other protocol");
        drop(listener);

        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind("10.0.0.1:80".parse().expect("an address")).expect("it is free again");
        let listener = socket.listen(2).expect("it is bound");
        let done = Rc::new(RefCell::new(Vec::new()));
        let connect = |name: &'static str| {
            let done = Rc::clone(&done);
            async move {
                let stream = TcpStream::connect("main:80").await.expect("it comes in");
                done.borrow_mut().push(name);
                stream
            }
        };
        let accept = async {
            sleep(Duration::from_secs(2)).await;
            assert_eq!(done.borrow().len(), 2);
            for _ in 0..3 {
                listener.accept().await.expect("a client");
            }
        };
        let clients = both(both(connect("a"), connect("b")), connect("c"));
        both(clients, accept).await;
        assert_eq!(done.borrow().len(), 3);
    });
}

/// Goal: peeks take nothing, vectored calls use all their buffers, and shutting down reading ends it. Method: each once.
#[test]
fn bytes_are_moved_in_every_way() {
    simulate(5, steady(), async {
        let (mut client, mut served) = pair().await;
        let parts = [io::IoSlice::new(b"sail"), io::IoSlice::new(b" ho!")];
        assert_eq!(client.write_vectored(&parts).await.expect("there is room"), 8);
        sleep(millis(50)).await;
        let mut seen = [0; 4];
        assert_eq!(served.peek(&mut seen).await.expect("bytes"), 4);
        let (mut one, mut other) = ([0; 3], [0; 9]);
        let count = served
            .try_read_vectored(&mut [
                io::IoSliceMut::new(&mut one),
                io::IoSliceMut::new(&mut other),
            ])
            .expect("bytes");
        assert_eq!((count, &seen, &one, &other[..5]), (8, b"sail", b"sai", &b"l ho!"[..]));
        assert_eq!(kind(served.try_read(&mut one)), Some(io::ErrorKind::WouldBlock));
        drop(client.shutdown().await);
        assert_eq!(served.read(&mut one).await.expect("the end"), 0);
        assert_eq!(kind(client.into_std()), Some(io::ErrorKind::Unsupported));
    });
}

/// Goal: datagrams keep their bounds, are lost and doubled by the link alone, and a connected socket learns that nothing
/// receives. Method: counts over a link that loses a fifth and doubles a tenth; a receiver that does not receive; a closed
/// port.
#[test]
fn datagrams_are_lost_and_bounded() {
    simulate(6, steady().loss(0.2).duplication(0.1), async {
        let receiver = UdpSocket::bind(any()).await.expect("a port");
        let address = receiver.local_addr().expect("an address");
        let sender = UdpSocket::bind("0.0.0.0:0").await.expect("a port");
        let mut counts = [0_u32; 1000];
        for number in 0..1000_u32 {
            sender.send_to(&number.to_le_bytes(), address).await.expect("it never waits");
        }
        sleep(millis(50)).await;
        let mut room = [0; 9];
        while let Ok((count, from)) = receiver.try_recv_from(&mut room) {
            assert_eq!((count, from.ip()), (4, address.ip()));
            let number = u32::from_le_bytes(room[..4].try_into().expect("four bytes"));
            counts[number as usize] += 1;
        }
        let of = |wanted: u32| counts.iter().filter(|count| **count == wanted).count();
        assert!((150..250).contains(&of(0)), "lost: {}", of(0));
        assert!((50..120).contains(&of(2)), "doubled: {}", of(2));
        assert_eq!(of(0) + of(1) + of(2), 1000);
    });
    simulate(6, steady(), async {
        let receiver = UdpSocket::bind(any()).await.expect("a port");
        let address = receiver.local_addr().expect("an address");
        let sender = UdpSocket::bind(any()).await.expect("a port");
        sender.connect(address).await.expect("a route");
        let too_long = sender.send(&[0; 65_508]).await.expect_err("over the limit");
        assert_eq!(too_long.raw_os_error(), Some(90), "EMSGSIZE");
        for _ in 0..10 {
            sender.send(&[0; 50_000]).await.expect("it never waits");
        }
        sleep(millis(50)).await;
        assert_eq!(receiver.peek_sender().await.expect("a datagram"), sender.local_addr().unwrap());
        let mut count = 0;
        while receiver.try_recv(&mut [0; 9]).is_ok() {
            count += 1;
        }
        assert_eq!(count, 4, "212 992 bytes have room");
        drop(receiver);
        sender.send(b"x").await.expect("nothing is known yet");
        assert_eq!(kind(sender.recv(&mut [0; 9]).await), Some(io::ErrorKind::ConnectionRefused));
    });
}

/// Goal: a partition is silence: TCP tries again until it is healed, or gives up after the time of Linux's settings. Method: a
/// message during a cut of ten seconds; a connect through a lasting one; a message through a lasting one.
#[test]
fn a_cut_is_outlived_or_times_out() {
    let mut simulation = Simulation::new(7);
    let network = simulation.network().clone();
    let node = network.node("main").expect("the first node");
    network.link(node, node, steady());
    let server = simulation.server().clone();
    let _entered = server.enter();
    simulation
        .block_on(async {
            let (mut client, mut served) = pair().await;
            network.cut(node, node);
            let begin = Instant::now();
            client.write_all(b"late").await.expect("there is room");
            let heal = async {
                sleep(Duration::from_secs(10)).await;
                network.heal(node, node);
            };
            let mut room = [0; 4];
            both(heal, served.read_exact(&mut room)).await.1.expect("it arrives at last");
            assert_eq!(&room, b"late");
            // Sent again after 0.2 s, 0.4 s and so on: at 12.6 s.
            assert_eq!(begin.elapsed(), millis(12_610));

            // Its ACK waits.
            sleep(millis(100)).await;
            network.cut(node, node);
            let begin = Instant::now();
            let address = served.local_addr().expect("an address");
            assert_eq!(kind(TcpStream::connect(address).await), Some(io::ErrorKind::TimedOut));
            assert_eq!(begin.elapsed(), Duration::from_secs(127));

            let begin = Instant::now();
            client.write_all(b"never").await.expect("there is room");
            assert_eq!(kind(client.read(&mut room).await), Some(io::ErrorKind::TimedOut));
            assert!((900..1000).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
        })
        .expect("timers are left");
}

/// Goal: an ACK travels with an answer, waits for 40 ms if there is none, and does not wait for a second packet nor out of order. Method:
/// single bytes, and the times at which ACKs were sent; a byte that is lost once, and the one behind it.
#[test]
fn an_ack_waits_for_company() {
    let mut simulation = Simulation::new(11);
    let network = simulation.network().clone();
    let node = network.node("main").expect("the first node");
    network.link(node, node, steady());
    network.log().start_recording(TraceDetail::Events, 10_000);
    let server = simulation.server().clone();
    let _entered = server.enter();
    let acks = |since: Instant| -> Vec<Duration> {
        let events = network.log().events().into_iter().filter(|event| event.at >= since);
        let is_ack = |event: &TraceEvent| matches!(event.kind, TraceEventKind::Sent { what, .. } if what.kind == "ACK");
        events.filter(is_ack).map(|event| event.at - since).collect()
    };
    simulation
        .block_on(async {
            let (mut client, mut served) = pair().await;
            sleep(millis(100)).await;
            let mut room = [0; 1];

            let begin = Instant::now();
            client.write_all(b"a").await.expect("there is room");
            sleep(millis(100)).await;
            assert_eq!(acks(begin), [millis(50)], "a link's 10 ms, and 40 ms");

            let begin = Instant::now();
            served.read_exact(&mut room).await.expect("it has arrived");
            served.write_all(b"b").await.expect("there is room");
            sleep(millis(15)).await;
            client.write_all(b"c").await.expect("there is room");
            sleep(millis(15)).await;
            assert!(acks(begin).is_empty(), "they travel with bytes");
            client.write_all(b"d").await.expect("there is room");
            sleep(millis(15)).await;
            assert!(acks(begin).is_empty(), "two bytes are not two packets");
            client.write_all(&[b'd'; 2 * 1460]).await.expect("there is room");
            sleep(millis(15)).await;
            assert_eq!(acks(begin), [millis(55)], "two packets without an answer");

            sleep(millis(100)).await;
            network.cut(node, node);
            let begin = Instant::now();
            client.write_all(b"e").await.expect("there is room");
            network.heal(node, node);
            client.write_all(b"f").await.expect("there is room");
            sleep(millis(100)).await;
            assert_eq!(acks(begin), [millis(10)], "one is missing");
        })
        .expect("timers are left");
}

/// Goal: two peers that both wait for the other are a deadlock, although their connections could probe for ever. Method: both
/// write until they must wait.
#[test]
fn mutual_back_pressure_is_a_deadlock() {
    let mut simulation = Simulation::new(8);
    let server = simulation.server().clone();
    let _entered = server.enter();
    let deadlock = simulation
        .block_on(async {
            let (mut client, mut served) = pair().await;
            let bytes = vec![0; 1_000_000];
            both(client.write_all(&bytes), served.write_all(&bytes)).await
        })
        .expect_err("neither reads");
    assert_eq!(deadlock.seed, 8);
}

/// Returns how many packets were sent, and how many of them the queue of their link had no room for.
fn fates(network: &SimulatedNetwork) -> (usize, usize) {
    let events = network.log().events();
    let is_sent = |kind: &TraceEventKind| matches!(kind, TraceEventKind::Sent { .. });
    let is_full = |kind: &TraceEventKind| {
        matches!(kind, TraceEventKind::Dropped { reason: DropReason::Full, .. })
    };
    let count = |is_it: &dyn Fn(&TraceEventKind) -> bool| {
        events.iter().filter(|event| is_it(&event.kind)).count()
    };
    (count(&is_sent) + count(&is_full), count(&is_full))
}

/// Goal: a link with a bandwidth sends one packet after the other, and loses those that its queue has no room for. Method: 100 kB/s;
/// the arrivals of two datagrams, and how many of a burst arrive, by a queue of 10 kB and one of nothing.
#[test]
fn a_slow_link_delays_and_drops() {
    let slow = steady().bandwidth(100_000);
    for (queue_bytes, kept) in [(10_000, 11), (0, 1)] {
        simulate_recorded(9, slow.queue(queue_bytes), async |network| {
            let (one, other) = (UdpSocket::bind(any()).await, UdpSocket::bind(any()).await);
            let (one, other) = (one.expect("a port"), other.expect("a port"));
            other.connect(one.local_addr().expect("an address")).await.expect("a route");
            let begin = Instant::now();
            let mut room = [0; 2000];
            if queue_bytes > 0 {
                for _ in 0..2 {
                    // With its headers, 10 ms.
                    other.send(&[1; 972]).await.expect("it is sent");
                }
                for arrival in [20, 30] {
                    one.recv(&mut room).await.expect("it arrives");
                    assert_eq!(begin.elapsed(), millis(arrival));
                }
                assert_eq!(fates(&network), (2, 0));
            }
            let before = fates(&network).0;
            for _ in 0..100 {
                other.send(&[2; 972]).await.expect("it is sent");
            }
            sleep(millis(2000)).await;
            let mut count = 0;
            while one.try_recv(&mut room).is_ok() {
                count += 1;
            }
            assert_eq!(count, kept, "one that leaves, and those that wait");
            assert_eq!(fates(&network), (before + 100, 100 - kept));
        });
    }
}

/// Sends bytes over new streams at once, and returns when each of them has been read to its end.
async fn transfer(streams: usize, count: usize) -> Vec<Duration> {
    let begin = Instant::now();
    let mut ends = Vec::new();
    let mut pairs = Vec::new();
    for _ in 0..streams {
        pairs.push(pair().await);
    }
    let mut running: Vec<_> = pairs
        .into_iter()
        .map(|(mut writer, mut reader)| {
            Box::pin(async move {
                let write = async {
                    writer.write_all(&vec![3; count]).await.expect("it is read");
                    drop(writer);
                };
                let mut bytes = Vec::new();
                let read = both(write, reader.read_to_end(&mut bytes)).await.1;
                assert_eq!((read.expect("it ends"), bytes.len()), (count, count));
                begin.elapsed()
            })
        })
        .collect();
    std::future::poll_fn(|cx| {
        running.retain_mut(|it| match it.as_mut().poll(cx) {
            Poll::Ready(end) => {
                ends.push(end);
                false
            }
            Poll::Pending => true,
        });
        if running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    ends
}

/// Goal: TCP fills a slow link and does not flood it: its congestion window follows the queue. Method: 1 MB at 100 kB/s through
/// queues below a window's size, by ten seeds: how long it takes, and how much of what is sent the queue loses. Two connections
/// share the link.
#[test]
fn congestion_control_fills_a_slow_link() {
    let slow = Link::new().delay(millis(20)).jitter(Duration::ZERO).bandwidth(100_000);
    for queue_bytes in [12_000, 30_000] {
        for seed in 0..10 {
            simulate_recorded(seed, slow.queue(queue_bytes), async |network| {
                let end = transfer(1, 1_000_000).await[0];
                let (sent, full) = fates(&network);
                assert!(end > Duration::from_secs(10), "seed {seed}: {end:?}");
                assert!(end < Duration::from_secs(15), "seed {seed}: {end:?}");
                assert!(full > 0, "seed {seed}: the window grows until the queue is full");
                assert!(full * 10 < sent, "seed {seed}: {full} of {sent} are lost");
            });
        }
    }
    simulate(11, slow.queue(30_000), async {
        let ends = transfer(2, 500_000).await;
        assert!(ends[1] < Duration::from_secs(16), "{ends:?}");
        assert!(ends[0] > Duration::from_secs(6), "neither has the link for itself: {ends:?}");
    });
}

/// Goal: what is no share, and no bandwidth, is refused where it is set. Method: shares below, above and beside the range; its ends are
/// taken.
#[test]
fn impossible_links_are_refused() {
    let refuses = |set: fn(f64) -> Link, share: f64| {
        let panic = panic::catch_unwind(|| set(share)).expect_err("no share");
        let text = panic.downcast_ref::<&str>().expect("a text");
        assert!(text.contains("from 0 to 1"), "{text}");
    };
    for set in [|share| Link::new().loss(share), |share| Link::new().duplication(share)] {
        for share in [1.5, -0.1, f64::NAN, f64::INFINITY] {
            refuses(set, share);
        }
        let _ = (set(0.0), set(1.0));
    }
    panic::catch_unwind(|| Link::new().bandwidth(0)).expect_err("nothing would pass");
}

/// Plans calls, of which one plans another and one is cancelled. Returns the numbers and times of those that are made.
fn planned(network: &SimulatedNetwork) -> Arc<Mutex<Vec<(u32, Instant)>>> {
    let made = Arc::new(Mutex::new(Vec::new()));
    let note = |number: u32| {
        let (network, made) = (network.clone(), Arc::clone(&made));
        move || made.lock().expect("no panic").push((number, network.now()))
    };
    let at = |time: u64| Instant::from_nanos(0) + millis(time);
    let first = network.call_at(at(1), 0, note(0));
    network.call_at(at(9), 0, note(5));
    network.call_at(at(3), 0, note(2));
    network.call_at(at(3), 0, note(3));
    let (inner, nested, late) = (network.clone(), note(1), note(4));
    network.call_at(at(2), 0, move || {
        // Its place is free by now, and may be the next one's.
        inner.cancel_call(first);
        inner.call_at(at(0), 0, nested);
        inner.call_at(at(3), 0, late);
        inner.cancel_call(first);
    });
    let cancelled = network.call_at(at(20), 0, note(99));
    network.cancel_call(cancelled);
    made
}

/// Goal: what devices plan happens at its time, in the order in which it was planned, and not if it was cancelled; a network
/// without a host is driven by hand, and one in a simulation by it. Method: the same calls, driven by steps, in one piece, and
/// by a simulation whose task waits for a timer behind them.
#[test]
fn planned_calls_happen_in_order() {
    let expected: Vec<_> = [(0, 1), (1, 2), (2, 3), (3, 3), (4, 3), (5, 9)]
        .map(|(number, time)| (number, Instant::from_nanos(0) + millis(time)))
        .to_vec();
    let network = SimulatedNetwork::new(1);
    let made = planned(&network);
    for (index, (number, time)) in expected.iter().enumerate() {
        assert!(network.next_event().is_some_and(|next| next <= *time), "{number}");
        // One more step, for the call that plans.
        while made.lock().expect("no panic").len() == index {
            assert!(network.step());
        }
        assert_eq!(network.now(), *time, "{number}");
    }
    assert_eq!((network.next_event(), network.step()), (None, false), "one was cancelled");
    assert_eq!(*made.lock().expect("no panic"), expected);

    let network = SimulatedNetwork::new(1);
    let made = planned(&network);
    assert!(network.advance_to(Instant::from_nanos(0) + millis(3)));
    assert_eq!(*made.lock().expect("no panic"), expected[..5]);
    assert!(!network.advance_to(Instant::from_nanos(0) + millis(8)));
    assert_eq!(network.now(), Instant::from_nanos(0) + millis(8));
    assert!(network.advance_to(Instant::MAX));
    assert_eq!(*made.lock().expect("no panic"), expected);

    let mut simulation = Simulation::new(1);
    let made = planned(simulation.network());
    simulation.run(millis(30));
    assert_eq!(*made.lock().expect("no panic"), expected);
}

/// Goal: the hash of a network's events tells what devices did and when. Method: calls that differ in one of both.
#[test]
fn planned_calls_are_in_the_trace() {
    let trace = |at, digest| {
        let network = SimulatedNetwork::new(1);
        network.call_at(Instant::from_nanos(at), digest, || {});
        assert!(network.step());
        network.trace_hash()
    };
    let all = [trace(5, 7), trace(5, 8), trace(6, 7)];
    assert_eq!(all[0], trace(5, 7));
    assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2], "{all:?}");
}
