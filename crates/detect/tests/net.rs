//! The sockets of `net` on a host thread, in tokio: data sent arrives.

#![cfg(not(loom))]

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{
    future::Future,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::{Ipv4Addr, SocketAddr},
    os::fd::AsFd,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use proptest::{prelude::*, test_runner::FileFailurePersistence};
use rustix::net::Shutdown;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};
use vigie_detect::{
    Interest, Ready, Server,
    net::{
        OwnedReadHalf, OwnedWriteHalf, Stream, StreamSocket, TcpListener, TcpStream, UdpSocket,
        UnixDatagram, UnixListener, UnixStream,
    },
};

use crate::kit::{folder::Folder, guard::against_hang};

const HANG: Duration = Duration::from_secs(30);
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Runs `test` in tokio beside a host thread, on its own thread, so that a task that never yields
/// is noticed as a hang too.
fn run<F>(test: impl FnOnce(Server) -> F + Send + 'static)
where
    F: Future<Output = ()>,
{
    against_hang(move || {
        let host = Server::spawn_thread().expect("a host thread");
        let _entered = host.server().enter();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a tokio runtime");
        runtime.block_on(async {
            tokio::time::timeout(HANG, test(host.server().clone())).await.expect("no hang");
        });
    });
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(ANY_PORT).await.expect("bind");
    let address = listener.local_addr().expect("an address");
    let (client, accepted) =
        tokio::try_join!(TcpStream::connect(address), listener.accept()).expect("a connection");
    let (served, peer) = accepted;
    assert_eq!(peer, client.local_addr().expect("an address"));
    (client, served)
}

/// Makes the kernel's queues of a stream so small that a long transfer waits many times.
fn narrow(stream: &impl AsFd, size_bytes: usize) {
    let socket = SockRef::from(stream);
    socket.set_send_buffer_size(size_bytes).expect("SO_SNDBUF");
    socket.set_recv_buffer_size(size_bytes).expect("SO_RCVBUF");
}

/// Bytes that depend on their place: no two neighbouring blocks are alike.
fn pattern(seed: u64, count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| random.u8(..)).collect()
}

async fn send_all<S: StreamSocket>(mut half: OwnedWriteHalf<S>, bytes: Arc<Vec<u8>>) {
    half.write_all(&bytes).await.expect("written");
    half.shutdown().await.expect("shut down");
}

async fn expect_all<S: StreamSocket>(mut half: OwnedReadHalf<S>, bytes: Arc<Vec<u8>>) {
    let mut received = Vec::new();
    half.read_to_end(&mut received).await.expect("read");
    assert!(received == *bytes, "what was sent arrives");
}

/// Sends in both directions at once, from four tasks.
async fn cross<S: StreamSocket>(one: Stream<S>, other: Stream<S>, size_bytes: usize) {
    let (there, back) = (Arc::new(pattern(1, size_bytes)), Arc::new(pattern(2, size_bytes)));
    let (one_read, one_write) = one.into_split();
    let (other_read, other_write) = other.into_split();
    let tasks = [
        tokio::spawn(send_all(one_write, Arc::clone(&there))),
        tokio::spawn(expect_all(other_read, there)),
        tokio::spawn(send_all(other_write, Arc::clone(&back))),
        tokio::spawn(expect_all(one_read, back)),
    ];
    for task in tasks {
        task.await.expect("the task ends well");
    }
}

#[test]
fn tcp_carries_8_mib_both_ways() {
    // Goal: many waits for bytes and for room, in both directions of both ends, lose no edge.
    run(|_| async {
        let (one, other) = tcp_pair().await;
        narrow(&one, 32 << 10);
        narrow(&other, 32 << 10);
        cross(one, other, 8 << 20).await;
    });
}

#[test]
fn unix_carries_8_mib_both_ways() {
    // Goal: as for TCP, with queues of a page.
    run(|_| async {
        let (one, other) = UnixStream::pair().expect("a pair");
        narrow(&one, 4 << 10);
        narrow(&other, 4 << 10);
        cross(one, other, 8 << 20).await;
    });
}

#[test]
fn split_serves_both_directions_in_one_task() {
    // Goal: the borrowed halves wait independently of each other.
    run(|_| async {
        let (mut one, other) = tcp_pair().await;
        narrow(&one, 32 << 10);
        let bytes = Arc::new(pattern(3, 1 << 20));
        let (other_read, other_write) = other.into_split();
        let echo = tokio::spawn(async move {
            let (mut read, mut write) = (other_read, other_write);
            let mut buffer = vec![0; 10_000];
            loop {
                let count = read.read(&mut buffer).await.expect("read");
                if count == 0 {
                    break;
                }
                write.write_all(&buffer[..count]).await.expect("written");
            }
        });
        {
            let (mut read, mut write) = one.split();
            let send = async {
                write.write_all(&bytes).await?;
                write.shutdown().await
            };
            let mut echoed = Vec::new();
            let (sent, received) = tokio::join!(send, read.read_to_end(&mut echoed));
            sent.expect("sent");
            received.expect("received");
            assert!(echoed == *bytes, "the echo is what was sent");
        }
        echo.await.expect("the echo ends well");
    });
}

async fn half_close<S: StreamSocket>(mut one: Stream<S>, mut other: Stream<S>) {
    one.write_all(b"question").await.expect("written");
    one.shutdown().await.expect("shut down");
    let mut question = String::new();
    other.read_to_string(&mut question).await.expect("read to the end");
    assert_eq!(question, "question");
    // The end is seen on every further read.
    assert_eq!(other.read(&mut [0; 8]).await.expect("the end"), 0);
    other.write_all(b"answer").await.expect("the other direction is open");
    drop(other);
    let mut answer = String::new();
    one.read_to_string(&mut answer).await.expect("read to the end");
    assert_eq!(answer, "answer");
    let error = one.write(b"late").await.expect_err("shut down");
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn a_direction_is_closed_alone() {
    // Goal: a half-close ends one direction and leaves the other open.
    run(|_| async {
        let (one, other) = tcp_pair().await;
        half_close(one, other).await;
        let (one, other) = UnixStream::pair().expect("a pair");
        half_close(one, other).await;
    });
}

#[test]
fn a_local_shutdown_wakes_the_reader() {
    // Goal: a task that reads ends when its own side shuts that direction down.
    run(|_| async {
        let (one, _other) = tcp_pair().await;
        let one = Arc::new(one);
        let reader = Arc::clone(&one);
        let task = tokio::spawn(async move { reader.peek(&mut [0; 8]).await });
        tokio::task::yield_now().await;
        rustix::net::shutdown(&*one, Shutdown::Read).expect("shut down");
        assert_eq!(task.await.expect("the task ends well").expect("the end"), 0);
    });
}

#[test]
fn dropping_the_write_half_ends_the_stream() {
    // Goal: the owned write half shuts down when dropped, but not when forgotten.
    run(|_| async {
        let (one, other) = tcp_pair().await;
        let (mut read, write) = one.into_split();
        drop(write);
        let (mut other_read, other_write) = other.into_split();
        assert_eq!(other_read.read(&mut [0; 8]).await.expect("the end"), 0);
        other_write.forget();
        other_read.as_ref().try_write(b"still open").expect("written");
        let mut heard = [0; 10];
        read.read_exact(&mut heard).await.expect("read");
        assert_eq!(&heard, b"still open");
    });
}

#[test]
fn halves_are_reunited() {
    // Goal: two halves of one stream can be reunited; halves of two streams are returned.
    run(|_| async {
        let (one, other) = tcp_pair().await;
        let (one_read, one_write) = one.into_split();
        let (other_read, other_write) = other.into_split();
        let error = one_read.reunite(other_write).expect_err("halves of two streams");
        assert_eq!(error.to_string(), "the two halves belong to different streams");
        let mut one = error.0.reunite(one_write).expect("halves of one stream");
        let mut other = error.1.reunite(other_read).expect("halves of one stream");
        one.write_all(b"whole").await.expect("written");
        let mut heard = [0; 5];
        other.read_exact(&mut heard).await.expect("read");
        assert_eq!(&heard, b"whole");
    });
}

#[test]
fn vectored_calls_keep_the_order() {
    // Goal: slices are sent in order, including empty ones and more than the kernel takes at once, and
    // filled in order.
    run(|_| async {
        let (mut one, other) = tcp_pair().await;
        assert!(tokio::io::AsyncWrite::is_write_vectored(&one));
        let parts: Vec<Vec<u8>> =
            (0..3000u32).map(|part| part.to_le_bytes().repeat(part as usize % 3)).collect();
        let expected = parts.concat();
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let count = one.write_vectored(rest).await.expect("written");
            if count == 0 {
                // The first 1024 are empty, or all are.
                assert!(rest.iter().take(1024).all(|slice| slice.is_empty()));
                break;
            }
            IoSlice::advance_slices(&mut rest, count);
        }
        drop(one);
        let mut received = Vec::new();
        loop {
            other.readable().await.expect("readable");
            let (mut small, mut large) = ([0; 7], [0; 400]);
            let mut buffers = [
                IoSliceMut::new(&mut []),
                IoSliceMut::new(&mut small),
                IoSliceMut::new(&mut large),
            ];
            match other.try_read_vectored(&mut buffers) {
                Ok(0) => break,
                Ok(count) => {
                    received.extend_from_slice(&small[..count.min(7)]);
                    received.extend_from_slice(&large[..count.saturating_sub(7)]);
                }
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert!(received == expected, "all slices arrive in order");
    });
}

#[test]
fn try_methods_say_when_they_would_block() {
    // Goal: the try methods never wait, and their results let the next wait work.
    run(|_| async {
        let (one, other) = UnixStream::pair().expect("a pair");
        narrow(&one, 4 << 10);
        let block = [7; 1 << 10];
        let mut sent = 0;
        let error = loop {
            let slices = [IoSlice::new(&block[..500]), IoSlice::new(&block[500..])];
            let is_plain = sent % 2 == 0;
            let written =
                if is_plain { one.try_write(&block) } else { one.try_write_vectored(&slices) };
            match written {
                Ok(count) => sent += count,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let mut received = 0;
        while received < sent {
            other.readable().await.expect("readable");
            match other.try_read(&mut [0; 700]) {
                Ok(count) => received += count,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        let error = other.try_read(&mut [0; 700]).expect_err("empty");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        one.writable().await.expect("there is room again");
        one.try_write(&block).expect("written");
        // No system call is made for nothing.
        assert_eq!(one.try_read(&mut []).expect("nothing"), 0);
        assert_eq!(one.try_write(&[]).expect("nothing"), 0);
    });
}

#[test]
fn ready_tells_both_directions() {
    // Goal: `ready` waits for either direction and returns everything that is ready; an event during an attempt stays.
    run(|_| async {
        let (one, other) = tcp_pair().await;
        let mut ready = Ready::READABLE;
        while ready.intersects(Ready::READABLE) {
            let _ = other.try_read(&mut [0; 8]).expect_err("empty");
            ready = other.ready(Interest::Both).await.expect("ready");
        }
        assert!(ready.intersects(Ready::WRITABLE));
        one.try_write(b"x").expect("written");
        assert!(other.ready(Interest::Readable).await.expect("ready").intersects(Ready::READABLE));
        let ready = other.ready(Interest::Both).await.expect("ready");
        assert!(ready.intersects(Ready::READABLE) && ready.intersects(Ready::WRITABLE));
        assert!(other.ready(Interest::Writable).await.expect("ready").intersects(Ready::WRITABLE));
    });
}

#[test]
fn peeked_bytes_are_read_again() {
    // Goal: peeking waits, shows the bytes, and takes none.
    run(|_| async {
        let (mut one, mut other) = tcp_pair().await;
        let mut peeked = [0; 16];
        let (count, written) = tokio::join!(other.peek(&mut peeked), one.write_all(b"look"));
        written.expect("written");
        let count = count.expect("peeked");
        assert!(count > 0 && b"look".starts_with(&peeked[..count]));
        let mut room = [std::mem::MaybeUninit::uninit(); 2];
        let mut buffer = ReadBuf::uninit(&mut room);
        let count = std::future::poll_fn(|cx| other.poll_peek(cx, &mut buffer)).await;
        assert!(count.expect("peeked") >= 1 && b"look".starts_with(buffer.filled()));
        let mut read = [0; 4];
        other.read_exact(&mut read).await.expect("read");
        assert_eq!(&read, b"look");
        drop(one);
        assert_eq!(other.peek(&mut peeked).await.expect("the end"), 0);
    });
}

#[test]
fn a_large_buffer_is_read_into_at_once() {
    // Goal: a read takes everything that is there, into fresh memory and into reused memory.
    run(|_| async {
        let (one, mut other) = UnixStream::pair().expect("a pair");
        one.try_write(&[1; 10_000]).expect("written");
        let mut fresh = Vec::with_capacity(1 << 20);
        assert_eq!(other.read_buf(&mut fresh).await.expect("read"), 10_000, "all in one call");
        let bytes = Arc::new(pattern(4, 300 << 10));
        let (_one_read, one_write) = one.into_split();
        tokio::spawn(send_all(one_write, Arc::clone(&bytes)));
        let mut received = Vec::with_capacity(1 << 20);
        while other.read_buf(&mut received).await.expect("read") > 0 {}
        assert!(received == *bytes, "what was sent arrives");
    });
}

#[test]
fn several_tasks_accept_at_one_listener() {
    // Goal: each connection goes to one of the accepting tasks, and none is forgotten.
    run(|_| async {
        let listener = Arc::new(TcpListener::bind(ANY_PORT).await.expect("bind"));
        let address = listener.local_addr().expect("an address");
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let listener = Arc::clone(&listener);
                tokio::spawn(async move {
                    let (mut stream, _) = listener.accept().await.expect("accepted");
                    let mut name = [0];
                    stream.read_exact(&mut name).await.expect("read");
                    name[0]
                })
            })
            .collect();
        for name in 0..8 {
            let mut stream = TcpStream::connect(address).await.expect("connected");
            stream.write_all(&[name]).await.expect("written");
        }
        let mut names = Vec::new();
        for task in tasks {
            names.push(task.await.expect("the task ends well"));
        }
        names.sort_unstable();
        assert_eq!(names, [0, 1, 2, 3, 4, 5, 6, 7]);
        let error = listener.try_accept().expect_err("no more connections");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let accepted =
            std::future::poll_fn(|cx| Poll::Ready(listener.poll_accept(cx).is_pending()));
        assert!(accepted.await);
    });
}

#[test]
fn connections_are_watched_where_their_listener_is() {
    // Goal: with the `_on` constructors a thread need not have entered the server, so that workers of
    // any runtime can use it.
    let host = Server::spawn_thread().expect("a host thread");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a tokio runtime");
    let server = host.server().clone();
    let test = async move {
        let listener = TcpListener::bind_on(&server, ANY_PORT).expect("bind");
        let address = listener.local_addr().expect("an address");
        let accepting = tokio::spawn(async move { listener.accept().await });
        let mut client = TcpStream::connect_on(&server, address).await.expect("connected");
        client.write_all(b"hello").await.expect("written");
        let (mut served, _) = accepting.await.expect("joined").expect("accepted");
        let mut heard = [0; 5];
        served.read_exact(&mut heard).await.expect("read");
        assert_eq!(&heard, b"hello");
    };
    runtime.block_on(async {
        tokio::time::timeout(HANG, tokio::spawn(test)).await.expect("no hang").expect("joined");
    });
}

#[test]
fn sockets_come_from_std_and_go_back() {
    // Goal: a socket can move to and from the standard library.
    run(|_| async {
        let listener = std::net::TcpListener::bind(ANY_PORT).expect("bind");
        let address = listener.local_addr().expect("an address");
        let listener = TcpListener::from_std(listener).expect("watched");
        let mut client = std::net::TcpStream::connect(address).expect("connected");
        let (mut served, _) = listener.accept().await.expect("accepted");
        client.write_all(b"ping").expect("written");
        let mut heard = [0; 4];
        served.read_exact(&mut heard).await.expect("read");
        let mut served = served.into_std().expect("a stream");
        served.set_nonblocking(false).expect("blocking");
        served.write_all(b"pong").expect("written");
        client.read_exact(&mut heard).expect("read");
        assert_eq!(&heard, b"pong");
        let served = TcpStream::from_std(served).expect("watched again");
        drop(client);
        served.readable().await.expect("readable");
        assert_eq!(served.try_read(&mut heard).expect("the end"), 0);
        assert_eq!(
            listener.into_std().expect("a listener").local_addr().expect("an address"),
            address
        );
    });
}

#[test]
fn options_are_kept() {
    // Goal: options read back as they were set.
    run(|_| async {
        let (one, other) = tcp_pair().await;
        one.set_nodelay(true).expect("set");
        one.set_ttl(33).expect("set");
        one.set_linger(Some(Duration::from_millis(1500))).expect("set");
        assert!(one.nodelay().expect("read"));
        assert_eq!(one.ttl().expect("read"), 33);
        assert_eq!(one.linger().expect("read"), Some(Duration::from_secs(2)));
        one.set_linger(None).expect("set");
        assert_eq!(one.linger().expect("read"), None);
        assert_eq!(one.peer_addr().expect("an address"), other.local_addr().expect("an address"));
        assert!(one.take_error().expect("asked").is_none());
        let socket = UdpSocket::bind(ANY_PORT).await.expect("bind");
        socket.set_broadcast(true).expect("set");
        socket.set_ttl(7).expect("set");
        socket.set_multicast_loop_v4(false).expect("set");
        socket.set_multicast_ttl_v4(2).expect("set");
        assert!(socket.broadcast().expect("read"));
        assert_eq!(socket.ttl().expect("read"), 7);
        let (group, lo) = (Ipv4Addr::new(239, 1, 2, 3), Ipv4Addr::LOCALHOST);
        let error = socket.leave_multicast_v4(group, lo).expect_err("not joined");
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        socket.join_multicast_v4(group, lo).expect("joined");
        socket.leave_multicast_v4(group, lo).expect("left");
        assert!(format!("{one:?} {socket:?}").contains("fd"), "debug output names the socket");
    });
}

#[test]
fn udp_carries_datagrams() {
    // Goal: datagrams to an address and on a connected socket arrive whole, or cut to the buffer.
    run(|_| async {
        let one = UdpSocket::bind(ANY_PORT).await.expect("bind");
        let other = UdpSocket::bind(ANY_PORT).await.expect("bind");
        let to = other.local_addr().expect("an address");
        let from = one.local_addr().expect("an address");
        let mut buffer = [0; 64];
        let (sent, received) =
            tokio::join!(one.send_to(b"first", to), other.recv_from(&mut buffer));
        assert_eq!(sent.expect("sent"), 5);
        assert_eq!(received.expect("received"), (5, from));
        assert_eq!(&buffer[..5], b"first");

        one.connect(to).await.expect("connected");
        other.connect(from).await.expect("connected");
        assert_eq!(one.peer_addr().expect("an address"), to);
        one.send(b"second").await.expect("sent");
        assert_eq!(other.peek_from(&mut buffer).await.expect("peeked"), (6, from));
        assert_eq!(other.peek(&mut buffer[..3]).await.expect("peeked"), 3);
        assert_eq!(other.recv(&mut buffer[..4]).await.expect("received"), 4);
        assert_eq!(&buffer[..4], b"seco");
        let error = other.try_recv(&mut buffer).expect_err("the rest is lost");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);

        // An empty datagram counts too.
        one.try_send(b"").expect("sent");
        other.readable().await.expect("readable");
        assert_eq!(other.try_recv_from(&mut buffer).expect("received"), (0, from));
        let _ = other.try_recv(&mut buffer).expect_err("nothing more");
    });
}

#[test]
fn udp_polls() {
    // Goal: the poll methods wait, and leave the received bytes in the buffer.
    run(|_| async {
        let one = UdpSocket::bind(ANY_PORT).await.expect("bind");
        let other = UdpSocket::bind(ANY_PORT).await.expect("bind");
        let to = other.local_addr().expect("an address");
        let mut room = [std::mem::MaybeUninit::uninit(); 64];
        let mut buffer = ReadBuf::uninit(&mut room);
        buffer.put_slice(b"> ");
        {
            let mut receiving = pin!(std::future::poll_fn(|cx| {
                std::task::ready!(other.poll_peek_from(cx, &mut buffer.take(0)))?;
                other.poll_recv_from(cx, &mut buffer)
            }));
            let pending =
                std::future::poll_fn(|cx| Poll::Ready(receiving.as_mut().poll(cx).is_pending()));
            assert!(pending.await);
            std::future::poll_fn(|cx| one.poll_send_to(cx, b"a", to)).await.expect("sent");
            assert_eq!(receiving.await.expect("received"), one.local_addr().expect("an address"));
        }
        one.connect(to).await.expect("connected");
        std::future::poll_fn(|cx| one.poll_send(cx, b"b")).await.expect("sent");
        std::future::poll_fn(|cx| other.poll_recv(cx, &mut buffer)).await.expect("received");
        assert_eq!(buffer.filled(), b"> ab");
    });
}

#[test]
fn several_tasks_receive_at_one_socket() {
    // Goal: each datagram goes to one of many waiting tasks, and no task is left behind.
    run(|_| async {
        let receiver = Arc::new(UdpSocket::bind(ANY_PORT).await.expect("bind"));
        let to = receiver.local_addr().expect("an address");
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let receiver = Arc::clone(&receiver);
                tokio::spawn(async move {
                    let mut received = Vec::new();
                    for _ in 0..4 {
                        let mut buffer = [0; 8];
                        let count = receiver.recv(&mut buffer).await.expect("received");
                        assert_eq!(count, 1);
                        received.push(buffer[0]);
                    }
                    received
                })
            })
            .collect();
        let sender = UdpSocket::bind(ANY_PORT).await.expect("bind");
        for datagram in 0..64 {
            sender.send_to(&[datagram], to).await.expect("sent");
            if datagram % 5 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let mut received = Vec::new();
        for task in tasks {
            received.extend(task.await.expect("the task ends well"));
        }
        received.sort_unstable();
        assert_eq!(received, (0..64).collect::<Vec<u8>>());
    });
}

#[test]
fn dropped_receivers_leave_datagrams_to_others() {
    // Goal: receivers on several threads, most of whose waits are dropped, lose no wake-up: everything sent is received. Method:
    // each wait is dropped after a few polls, whose number is drawn from a seed; the sender waits for room all the time.
    const TASKS: u64 = 8;
    const COUNT: usize = 2_000;
    run(|server| async move {
        let _entered = server.enter();
        let (sender, receiver) = UnixDatagram::pair().expect("a pair");
        let receiver = Arc::new(receiver);
        let received = Arc::new(AtomicUsize::new(0));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(3)
            .build()
            .expect("a tokio runtime");
        let tasks: Vec<_> = (0..TASKS)
            .map(|seed| {
                let (receiver, received) = (Arc::clone(&receiver), Arc::clone(&received));
                runtime.spawn(async move {
                    let mut state = seed + 1;
                    while received.load(Ordering::Relaxed) < COUNT {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let mut polls = state >> 61;
                        let mut byte = [0];
                        let mut wait = pin!(receiver.recv(&mut byte));
                        let is_received = std::future::poll_fn(|cx| match wait.as_mut().poll(cx) {
                            Poll::Ready(count) => Poll::Ready(count.expect("received") == 1),
                            Poll::Pending if polls == 0 => Poll::Ready(false),
                            Poll::Pending => {
                                polls -= 1;
                                cx.waker().wake_by_ref();
                                Poll::Pending
                            }
                        });
                        if is_received.await {
                            received.fetch_add(1, Ordering::Relaxed);
                        }
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for _ in 0..COUNT {
            sender.send(&[7]).await.expect("sent");
        }
        for task in tasks {
            task.await.expect("the task ends well");
        }
        assert_eq!(received.load(Ordering::Relaxed), COUNT);
        runtime.shutdown_background();
    });
}

#[test]
fn unix_streams_connect_by_path() {
    // Goal: listener and stream meet at a path, and know each other.
    run(|_| async {
        let directory = Folder::new();
        let path = directory.path("listener");
        let listener = UnixListener::bind(&path).expect("bind");
        assert_eq!(listener.local_addr().expect("an address").as_pathname(), Some(&*path));
        let (client, accepted) =
            tokio::try_join!(UnixStream::connect(&path), listener.accept()).expect("connected");
        let (mut served, peer) = accepted;
        assert!(peer.is_unnamed());
        assert_eq!(client.peer_addr().expect("an address").as_pathname(), Some(&*path));
        drop(client);
        assert_eq!(served.read(&mut [0; 1]).await.expect("the end"), 0);

        // A client bound to a path is identified by it.
        let client_path = directory.path("client");
        let client = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)
            .expect("a socket");
        client.bind(&socket2::SockAddr::unix(&client_path).expect("an address")).expect("bind");
        client.connect(&socket2::SockAddr::unix(&path).expect("an address")).expect("connected");
        let (_, peer) = listener.accept().await.expect("accepted");
        assert_eq!(peer.as_pathname(), Some(&*client_path));
        drop(listener);
        assert!(path.exists(), "nothing is removed unasked");
    });
}

#[test]
fn unix_datagrams_wait_for_room() {
    // Goal: a connected sender waits for a full receiver; an unconnected one gets an error.
    run(|_| async {
        let directory = Folder::new();
        let path = directory.path("receiver");
        let receiver = UnixDatagram::bind(&path).expect("bind");
        let sender = UnixDatagram::bind(directory.path("sender")).expect("bind");
        let stranger = UnixDatagram::unbound().expect("a socket");
        sender.connect(&path).expect("connected");
        assert_eq!(sender.peer_addr().expect("an address").as_pathname(), Some(&*path));
        let sending = tokio::spawn(async move {
            for number in 0..1000u32 {
                sender.send(&number.to_le_bytes()).await.expect("sent");
            }
        });
        // The sender runs until the queue is full.
        tokio::task::yield_now().await;
        let error = stranger.try_send_to(b"full", &path).expect_err("the queue is full");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        for number in 0..1000u32 {
            let mut buffer = [0; 16];
            let (count, from) = receiver.recv_from(&mut buffer).await.expect("received");
            assert_eq!(buffer[..count], number.to_le_bytes());
            assert!(from.as_pathname().is_some_and(|path| path.ends_with("sender")));
        }
        sending.await.expect("the task ends well");
        stranger.try_send_to(b"room", &path).expect("sent");
        let (count, from) = receiver.recv_from(&mut [0; 16]).await.expect("received");
        assert!(count == 4 && from.is_unnamed());

        let (one, other) = UnixDatagram::pair().expect("a pair");
        let mut buffer = [0; 16];
        let (sent, received) = tokio::join!(one.send(b"pair"), other.recv(&mut buffer));
        assert_eq!((sent.expect("sent"), received.expect("received")), (4, 4));
    });
}

/// One step of a sender or receiver.
#[derive(Clone, Copy, Debug)]
enum Step {
    Plain(usize),
    Vectored(usize, usize),
    Try(usize),
    Yield,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![4 => 1..64usize, 4 => 1..9000usize, 1 => 1..100_000usize];
    let step = prop_oneof![
        4 => size.clone().prop_map(Step::Plain),
        2 => (size.clone(), size.clone()).prop_map(|(a, b)| Step::Vectored(a, b)),
        2 => size.prop_map(Step::Try),
        1 => Just(Step::Yield),
    ];
    // At least one step makes progress, however the others are drawn.
    prop::collection::vec(step, 0..40).prop_map(|mut steps| {
        steps.push(Step::Plain(5000));
        steps
    })
}

/// Sends `bytes` by the steps, repeatedly, and then the end.
async fn send_by<S: StreamSocket>(mut half: OwnedWriteHalf<S>, bytes: Vec<u8>, steps: Vec<Step>) {
    let mut rest = &bytes[..];
    for step in steps.iter().cycle() {
        if rest.is_empty() {
            return;
        }
        let count = match *step {
            Step::Plain(size) => half.write(&rest[..size.min(rest.len())]).await.expect("written"),
            Step::Vectored(first, second) => {
                let (one, others) = rest.split_at(first.min(rest.len()));
                let two = &others[..second.min(others.len())];
                let slices = [IoSlice::new(one), IoSlice::new(two)];
                half.write_vectored(&slices).await.expect("written")
            }
            Step::Try(size) => match half.as_ref().try_write(&rest[..size.min(rest.len())]) {
                Ok(count) => count,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    half.as_ref().writable().await.expect("writable");
                    0
                }
            },
            Step::Yield => {
                tokio::task::yield_now().await;
                0
            }
        };
        rest = &rest[count..];
    }
}

/// Receives by the steps, repeatedly, until the end.
async fn receive_by<S: StreamSocket>(mut half: OwnedReadHalf<S>, steps: Vec<Step>) -> Vec<u8> {
    let mut received = Vec::new();
    for step in steps.iter().cycle() {
        let read = match *step {
            Step::Plain(size) => {
                let mut buffer = vec![0; size];
                let count = half.read(&mut buffer).await.expect("read");
                Ok((buffer, count))
            }
            Step::Vectored(first, second) => {
                let (mut one, mut two) = (vec![0; first], vec![0; second]);
                let mut slices = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
                let read = half.as_ref().try_read_vectored(&mut slices);
                one.extend_from_slice(&two);
                read.map(|count| (one, count))
            }
            Step::Try(size) => {
                let mut buffer = vec![0; size];
                half.as_ref().try_read(&mut buffer).map(|count| (buffer, count))
            }
            Step::Yield => {
                tokio::task::yield_now().await;
                let mut buffer = vec![0; 50];
                let count = half.as_ref().peek(&mut buffer).await.expect("peeked");
                assert!(received.is_empty() || count <= 50);
                continue;
            }
        };
        match read {
            Ok((_, 0)) => break,
            Ok((buffer, count)) => received.extend_from_slice(&buffer[..count]),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                half.as_ref().readable().await.expect("readable");
            }
        }
    }
    received
}

async fn exchange<S: StreamSocket>(
    one: Stream<S>,
    other: Stream<S>,
    bytes: Vec<u8>,
    plans: [Vec<Step>; 4],
) {
    let [send, receive, send_back, receive_back] = plans;
    let (one_read, one_write) = one.into_split();
    let (other_read, other_write) = other.into_split();
    let sending = tokio::spawn(send_by(one_write, bytes.clone(), send));
    let sending_back = tokio::spawn(send_by(other_write, bytes.clone(), send_back));
    let receiving = tokio::spawn(receive_by(other_read, receive));
    let receiving_back = tokio::spawn(receive_by(one_read, receive_back));
    sending.await.expect("sent");
    sending_back.await.expect("sent");
    assert!(receiving.await.expect("received") == bytes, "there");
    assert!(receiving_back.await.expect("received") == bytes, "and back");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    /// Goal: bytes arrive intact and in order however they are split. Method: random steps on the
    /// four sides of a connection, with small queues; the bytes come from the seed too.
    #[test]
    fn any_chunking_arrives_intact(
        plans in [steps(), steps(), steps(), steps()],
        seed in any::<u64>(),
        size_bytes in 0..200_000usize,
        queue_bytes in (4usize << 10)..(64 << 10),
    ) {
        run(move |_| async move {
            let bytes = pattern(seed, size_bytes);
            let (one, other) = tcp_pair().await;
            narrow(&one, queue_bytes.max(16 << 10));
            exchange(one, other, bytes.clone(), plans.clone()).await;
            let (one, other) = UnixStream::pair().expect("a pair");
            narrow(&one, queue_bytes);
            exchange(one, other, bytes, plans).await;
        });
    }
}

/// The sockets move with their tasks.
const _: fn() = || {
    fn is_send_and_sync<T: Send + Sync + Unpin>(_: Option<T>) {}
    is_send_and_sync(None::<TcpStream>);
    is_send_and_sync(None::<TcpListener>);
    is_send_and_sync(None::<UdpSocket>);
    is_send_and_sync(None::<UnixStream>);
    is_send_and_sync(None::<OwnedReadHalf<std::net::TcpStream>>);
    is_send_and_sync(None::<OwnedWriteHalf<std::net::TcpStream>>);
};
