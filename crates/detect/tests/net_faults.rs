//! The sockets of `net` under failures: typed errors, nothing hangs, and everything that can continue
//! does.

#![cfg(not(loom))]

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{
    fs::Permissions,
    future::{Future, poll_fn},
    io::{self, ErrorKind, IoSlice, Read, Write},
    mem::MaybeUninit,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::{
        fd::AsFd,
        unix::{fs::PermissionsExt, net},
    },
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};
use vigie_detect::{
    Adaptive, AsyncFd, Flavor, HostThread, Interest, Reactivity, Server, Simulation, WaitError,
    detectors::readiness::{Direction, ReadinessRequest},
    net::{
        Stream, StreamSocket, TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener,
        UnixStream, lookup_host,
    },
};

use crate::kit::{
    child::{command, is_child, run as run_child},
    folder::Folder,
    guard::against_hang,
};

const HANG: Duration = Duration::from_secs(30);
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Runs `test` in tokio beside a host thread, on its own thread, so that a task that never yields
/// is noticed as a hang too.
fn run<F>(test: impl FnOnce(Server) -> F + Send + 'static)
where
    F: Future<Output = ()>,
{
    run_with(Reactivity::default(), test);
}

/// Like [`run`], with a host that polls according to `reactivity`.
fn run_with<F>(reactivity: Reactivity, test: impl FnOnce(Server) -> F + Send + 'static)
where
    F: Future<Output = ()>,
{
    against_hang(move || {
        let policy = || Adaptive::new(reactivity);
        let server = Server::with_policies(Flavor::KernelLevel, policy(), policy());
        let host = HostThread::spawn(server.expect("a server")).expect("a host thread");
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

/// Polls `future` once and drops it. Returns whether it was pending.
async fn poll_and_drop(future: impl Future) -> bool {
    let mut future = pin!(future);
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(ANY_PORT).await.expect("bind");
    let address = listener.local_addr().expect("an address");
    let (client, accepted) =
        tokio::try_join!(TcpStream::connect(address), listener.accept()).expect("a connection");
    (client, accepted.0)
}

/// A connection whose one end is the standard library's, and blocks.
async fn tcp_pair_with_std() -> (std::net::TcpStream, TcpStream) {
    let listener = TcpListener::bind(ANY_PORT).await.expect("bind");
    let address = listener.local_addr().expect("an address");
    let client = std::net::TcpStream::connect(address).expect("connected");
    let (served, _) = listener.accept().await.expect("accepted");
    (client, served)
}

/// Makes closing `stream` reset the connection.
fn reset_on_close(stream: &impl AsFd) {
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).expect("SO_LINGER");
}

/// Writes until the queues of both ends are full.
fn fill<S: StreamSocket>(stream: &Stream<S>) {
    let error = loop {
        if let Err(error) = stream.try_write(&[0; 64 << 10]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_refused_connection_is_told() {
    // Goal: connecting without a listener is refused. Method: ports that are bound, but do not
    // listen.
    run(|_| async {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&ANY_PORT.into()).expect("bind");
        let address = socket.local_addr().expect("an address").as_socket().expect("IPv4");
        let error = TcpStream::connect(address).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);

        let directory = Folder::new();
        let path = directory.path("socket");
        let error = UnixStream::connect(&path).await.expect_err("no file");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        drop(UnixListener::bind(&path).expect("bind"));
        let error = UnixStream::connect(&path).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn an_address_in_use_is_told() {
    // Goal: the second bind to a port is refused; the error says where and what to do, also as `main` prints it, and
    // the kernel's error is its source. Method: bind twice.
    run(|_| async {
        let listener = TcpListener::bind(ANY_PORT).await.expect("bind");
        let address = listener.local_addr().expect("an address");
        let error = TcpListener::bind(address).await.expect_err("in use");
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let socket = UdpSocket::bind(ANY_PORT).await.expect("bind");
        let error =
            UdpSocket::bind(socket.local_addr().expect("an address")).await.expect_err("in use");
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let message = format!("cannot bind to {}: ", socket.local_addr().expect("an address"));
        for printed in [error.to_string(), format!("{error:?}")] {
            assert!(printed.contains(&message) && printed.contains("ss -tulpn"), "{printed}");
        }
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
        let code = source.and_then(io::Error::raw_os_error);
        assert_eq!(code, Some(Errno::ADDRINUSE.raw_os_error()));
        // The first listener is unaffected.
        let connecting = tokio::try_join!(TcpStream::connect(address), listener.accept());
        connecting.expect("connected");
    });
}

#[test]
fn refused_paths_are_named_with_the_remedy() {
    // Goal: an error of a Unix socket's bind or connect has the kernel's kind, names the path and says what to do, as `main` prints it,
    // too. Method: every refusal that needs no other user, and a folder without permissions for all but root.
    run(|_| async {
        let folder = Folder::new();
        let path = folder.path("socket");
        let _listener = UnixListener::bind(&path).expect("bind");
        let _datagrams = UnixDatagram::bind(folder.path("datagrams")).expect("bind");
        let file = folder.path("file");
        std::fs::write(&file, "no socket").expect("a file");
        let bind = |path: &Path| UnixListener::bind(path).expect_err("refused");
        let connect = async |path: &Path| UnixStream::connect(path).await.expect_err("refused");

        let missing = folder.path("missing");
        let long = folder.path("x".repeat(108));
        let below_file = file.join("socket");
        let abstract_name = PathBuf::from(format!("\0{}", folder.path("name").display()));
        let _abstract = UnixListener::bind(&abstract_name).expect("bind");
        let mut cases = vec![
            (&path, bind(&path), ErrorKind::AddrInUse, "remove the file"),
            (&abstract_name, bind(&abstract_name), ErrorKind::AddrInUse, "take another name"),
            (
                &below_file,
                bind(&below_file),
                ErrorKind::NotADirectory,
                "a part of the path is a file",
            ),
            (&long, bind(&long), ErrorKind::InvalidFilename, "107 bytes"),
            (&long, connect(&long).await, ErrorKind::InvalidFilename, "107 bytes"),
            (&missing, connect(&missing).await, ErrorKind::NotFound, "start the program"),
            (&file, connect(&file).await, ErrorKind::ConnectionRefused, "no program listens"),
        ];
        let in_missing = missing.join("socket");
        cases.push((&in_missing, bind(&in_missing), ErrorKind::NotFound, "make it first"));
        let closed = folder.path("closed");
        std::fs::create_dir(&closed).expect("a folder");
        std::fs::set_permissions(&closed, Permissions::from_mode(0o000)).expect("permissions");
        let in_closed = closed.join("socket");
        if !rustix::process::geteuid().is_root() {
            let denied = ErrorKind::PermissionDenied;
            cases.push((&in_closed, bind(&in_closed), denied, "may not create files"));
            cases.push((&in_closed, connect(&in_closed).await, denied, "needs the permission"));
        }
        std::fs::set_permissions(&closed, Permissions::from_mode(0o700)).expect("permissions");
        for (path, error, kind, remedy) in cases {
            let shown = path.display().to_string().replacen('\0', "@", 1);
            assert_eq!(error.kind(), kind, "{error}");
            for printed in [error.to_string(), format!("{error:?}")] {
                assert!(printed.contains(&shown) && printed.contains(remedy), "{printed}");
            }
            let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
            assert!(source.and_then(io::Error::raw_os_error).is_some(), "{error:?}");
        }
        // The kernel's error for a socket of the other kind has no kind of its own.
        let error = connect(&folder.path("datagrams")).await;
        assert!(error.to_string().contains("of another kind"), "{error}");
    });
}

#[test]
fn what_cannot_be_watched_is_told() {
    // Goal: typed errors for descriptors that epoll does not accept.
    run(|_| async {
        let file = std::fs::File::open("/proc/self/exe").expect("a regular file");
        let error = AsyncFd::new(file).expect_err("a regular file is always ready");
        assert_eq!(error.raw_os_error(), Some(Errno::PERM.raw_os_error()));
        // To calls that need an open descriptor, a path-only one counts as closed.
        let path = rustix::fs::open("/", OFlags::PATH, Mode::empty()).expect("a path");
        let error = AsyncFd::new(path).expect_err("not open for use");
        assert_eq!(error.raw_os_error(), Some(Errno::BADF.raw_os_error()));
        // The same descriptor twice.
        let (stream, _other) = UnixStream::pair().expect("a pair");
        let error = AsyncFd::new(stream.as_fd()).expect_err("watched already");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    });
}

#[test]
fn a_descriptor_closed_behind_our_back_is_survived() {
    // Goal: a wait for it ends, its number can be reused, and nothing of it reaches the new owner.
    run(|server| async move {
        let readiness = server.readiness();
        let (one, other) = net::UnixStream::pair().expect("a pair");
        let source = readiness.watch(one.as_fd(), Interest::Both).expect("watched");
        let awaited = ReadinessRequest { source: Arc::clone(&source), direction: Direction::Read };
        let waiting = tokio::spawn(readiness.wait_owned(awaited.clone()));
        tokio::task::yield_now().await;
        drop(one);
        let (mut next, mut peer) = UnixStream::pair().expect("a pair");
        readiness.unwatch(other.as_fd(), &source);
        readiness.unwatch(other.as_fd(), &source);
        let error = waiting.await.expect("joined").expect_err("watched no more");
        assert_eq!(io::Error::from(error).kind(), ErrorKind::NotConnected);
        let error = readiness.wait(awaited).await.expect_err("watched no more");
        assert_eq!(io::Error::from(error).kind(), ErrorKind::NotConnected);
        let mut heard = [0; 4];
        let (read, written) = tokio::join!(next.read_exact(&mut heard), peer.write_all(b"next"));
        read.expect("read");
        written.expect("written");
    });
}

#[test]
fn without_a_server_nothing_is_opened() {
    // Goal: without a server the constructors return an error.
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        for error in [
            TcpListener::bind(ANY_PORT).await.expect_err("no server"),
            UdpSocket::bind(ANY_PORT).await.expect_err("no server"),
            UnixStream::pair().expect_err("no server"),
            TcpStream::connect(ANY_PORT).await.expect_err("no server"),
        ] {
            assert_eq!(error.kind(), ErrorKind::NotConnected);
            assert!(error.to_string().contains("no vigie runtime runs here"));
        }
    });
}

#[test]
fn a_reset_mid_message_is_told() {
    // Goal: bytes before the reset are not taken for a whole message.
    run(|_| async {
        let (mut client, mut served) = tcp_pair_with_std().await;
        client.write_all(b"half a mess").expect("written");
        let mut message = [0; 64];
        let (first, rest) = message.split_at_mut(11);
        served.read_exact(first).await.expect("the first half");
        let waiting = async {
            let error = served.read_exact(rest).await.expect_err("reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            let error = served.write(b"answer").await.expect_err("reset");
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            assert_eq!(served.read(&mut [0; 8]).await.expect("the end"), 0);
            // The connection has ended: nothing is left to shut down.
            served.shutdown().await.expect("shut down");
        };
        let mut waiting = pin!(waiting);
        let is_pending = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending()));
        assert!(is_pending.await);
        reset_on_close(&client);
        drop(client);
        waiting.await;
    });
}

#[test]
fn a_reset_wakes_the_writer() {
    // Goal: a task that waits for room learns that there will be none.
    run(|_| async {
        let (client, mut served) = tcp_pair_with_std().await;
        fill(&served);
        let writing = tokio::spawn(async move { served.write(b"no room").await });
        tokio::task::yield_now().await;
        reset_on_close(&client);
        drop(client);
        let error = writing.await.expect("joined").expect_err("reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);

        let (one, other) = UnixStream::pair().expect("a pair");
        fill(&one);
        let writing = tokio::spawn(async move {
            let mut one = one;
            one.write(b"no room").await
        });
        tokio::task::yield_now().await;
        drop(other);
        let error = writing.await.expect("joined").expect_err("closed");
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn an_error_of_a_datagram_is_told_once() {
    // Goal: the refusal of a datagram reaches the sender, and then the socket waits again instead of
    // retrying for ever: epoll announces the error as a closed direction.
    run(|_| async {
        let gone = UdpSocket::bind(ANY_PORT).await.expect("bind");
        let address = gone.local_addr().expect("an address");
        let socket = UdpSocket::bind(ANY_PORT).await.expect("bind");
        socket.connect(address).await.expect("connected");
        assert!(poll_and_drop(socket.recv(&mut [0; 8])).await);
        drop(gone);
        for _ in 0..3 {
            socket.send(b"anybody?").await.expect("sent");
            let error = socket.recv(&mut [0; 8]).await.expect_err("no receiver");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert!(poll_and_drop(socket.recv(&mut [0; 8])).await, "the error is over");
            let polling = poll_fn(|cx| socket.poll_recv(cx, &mut ReadBuf::new(&mut [0; 8])));
            assert!(poll_and_drop(polling).await, "the error is over for polls too");
        }
        let late = UdpSocket::bind(address).await.expect("bind");
        late.connect(socket.local_addr().expect("an address")).await.expect("connected");
        let mut buffer = [0; 8];
        let (received, sent) = tokio::join!(socket.recv(&mut buffer), late.send(b"I"));
        assert_eq!((received.expect("received"), sent.expect("sent")), (1, 1));
    });
}

#[test]
fn a_short_read_before_descriptors_is_not_the_end() {
    // Goal: a read of a Unix stream ends where descriptors were sent along; the bytes behind them are
    // read without another edge.
    run(|_| async {
        let (peer, stream) = net::UnixStream::pair().expect("a pair");
        let mut stream = UnixStream::from_std(stream).expect("watched");
        assert!(poll_and_drop(stream.read(&mut [0; 8])).await);
        for _ in 0..100 {
            let sent = [peer.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
            let first = [IoSlice::new(b"one")];
            rustix::net::sendmsg(&peer, &first, &mut control, SendFlags::empty()).expect("sent");
            (&peer).write_all(b"two").expect("written");
            let mut heard = [0; 64];
            let mut count = 0;
            while count < 6 {
                count += stream.read(&mut heard[count..]).await.expect("read");
            }
            assert_eq!(&heard[..6], b"onetwo");
        }
    });
}

#[test]
fn a_short_read_before_urgent_data_is_not_the_end() {
    // Goal: a TCP read ends where urgent data was sent; the bytes behind it are read without
    // another edge.
    run(|_| async {
        for _ in 0..100 {
            let (peer, mut stream) = tcp_pair_with_std().await;
            assert!(poll_and_drop(stream.read(&mut [0; 8])).await);
            let socket = SockRef::from(&peer);
            socket.send(b"one").expect("sent");
            socket.send_out_of_band(b"!").expect("sent");
            socket.send(b"two").expect("sent");
            // Until the readiness event has come, so that a later one cannot stand in for it.
            while poll_and_drop(stream.readable()).await {}
            let mut heard = [0; 64];
            let mut count = 0;
            while count < 6 {
                count += stream.read(&mut heard[count..]).await.expect("read");
            }
            assert_eq!(&heard[..6], b"onetwo");
        }
    });
}

#[test]
fn a_client_with_the_longest_path_is_accepted() {
    // Goal: a path that fills its field, without an end mark, neither panics nor loses a connection.
    run(|_| async {
        let directory = Folder::new();
        let path = directory.path("listener");
        let listener = UnixListener::bind(&path).expect("bind");
        let room = 108 - directory.path("").as_os_str().len();
        let longest = directory.path("x".repeat(room));
        assert_eq!(longest.as_os_str().len(), 108);
        let client = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        rustix::net::bind(&client, &SocketAddrUnix::new(&longest).expect("it fits")).expect("bind");
        client.connect(&SockAddr::unix(&path).expect("an address")).expect("connected");
        let (mut served, _name) = listener.accept().await.expect("accepted");
        (&client).write_all(b"named").expect("written");
        let mut heard = [0; 5];
        served.read_exact(&mut heard).await.expect("read");
        assert_eq!(&heard, b"named");
    });
}

#[test]
fn a_full_listener_is_told_at_once() {
    // Goal: the kernel has no readiness for room in a Unix listener's queue, so connecting does not
    // wait for it.
    run(|_| async {
        let directory = Folder::new();
        let path = directory.path("listener");
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        listener.bind(&SockAddr::unix(&path).expect("an address")).expect("bind");
        listener.listen(0).expect("listening");
        let mut queued = Vec::new();
        let error = loop {
            match UnixStream::connect(&path).await {
                Ok(stream) => queued.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(!queued.is_empty());
    });
}

#[test]
fn a_socket_that_does_not_listen_is_told() {
    // Goal: accepting on the wrong kind of socket returns the kernel's error.
    run(|_| async {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let listener = TcpListener::from_std(socket.into()).expect("watched");
        let error = listener.accept().await.expect_err("it does not listen");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
        let listener = TcpListener::from_std(socket.into()).expect("watched");
        let error = listener.accept().await.expect_err("it has no connections");
        assert_eq!(error.raw_os_error(), Some(Errno::OPNOTSUPP.raw_os_error()));
        // An unconnected socket, too, always gets an error.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let mut stream = TcpStream::from_std(socket.into()).expect("watched");
        let error = stream.read(&mut [0; 8]).await.expect_err("not connected");
        assert_eq!(error.kind(), ErrorKind::NotConnected);
        let socket = UnixDatagram::unbound().expect("a socket");
        let error = socket.send(b"to whom?").await.expect_err("not connected");
        assert_eq!(error.kind(), ErrorKind::NotConnected);
    });
}

#[test]
fn futures_are_dropped_at_any_point() {
    // Goal: a future that was polled and dropped leaves its socket as it was.
    run(|_| async {
        let listener = TcpListener::bind(ANY_PORT).await.expect("bind");
        let address = listener.local_addr().expect("an address");
        assert!(poll_and_drop(listener.accept()).await);
        for _ in 0..20 {
            poll_and_drop(TcpStream::connect(address)).await;
        }
        // Those connections were closed by their drop; the listener may still queue some of them.
        let mut client = TcpStream::connect(address).await.expect("connected");
        let local = client.local_addr().expect("an address");
        let mut served = loop {
            let (stream, peer) = listener.accept().await.expect("accepted");
            if peer == local {
                break stream;
            }
        };

        for round in 0..50u8 {
            assert!(poll_and_drop(served.read(&mut [0; 8])).await);
            assert!(poll_and_drop(served.peek(&mut [0; 8])).await);
            assert!(poll_and_drop(served.readable()).await);
            assert!(poll_and_drop(served.ready(Interest::Readable)).await);
            assert!(!poll_and_drop(served.writable()).await);
            client.write_all(&[round; 3]).await.expect("written");
            // Neither takes anything, whether or not the bytes are there.
            poll_and_drop(served.peek(&mut [0; 8])).await;
            poll_and_drop(served.readable()).await;
            let mut heard = [0; 3];
            served.read_exact(&mut heard).await.expect("read");
            assert_eq!(heard, [round; 3]);
        }

        fill(&client);
        assert!(poll_and_drop(client.write(b"more")).await);
        assert!(poll_and_drop(client.writable()).await);
        let reading = tokio::spawn(async move {
            let mut buffer = vec![0; 1 << 16];
            while served.read(&mut buffer).await.expect("read") > 0 {}
        });
        client.writable().await.expect("writable");
        client.write_all(b"more").await.expect("written");
        drop(client);
        reading.await.expect("joined");
    });
}

#[test]
fn datagram_futures_are_dropped_at_any_point() {
    // Goal: as for streams: no datagram is lost with a future.
    run(|_| async {
        let one = UdpSocket::bind(ANY_PORT).await.expect("bind");
        let other = UdpSocket::bind(ANY_PORT).await.expect("bind");
        let to = other.local_addr().expect("an address");
        for number in 0..50u8 {
            assert!(poll_and_drop(other.recv(&mut [0; 8])).await);
            assert!(poll_and_drop(other.recv_from(&mut [0; 8])).await);
            assert!(poll_and_drop(other.peek_from(&mut [0; 8])).await);
            assert!(!poll_and_drop(one.send_to(&[number], to)).await);
            poll_and_drop(other.peek(&mut [0; 8])).await;
            poll_and_drop(other.readable()).await;
            let mut buffer = [0; 8];
            assert_eq!(other.recv(&mut buffer).await.expect("received"), 1);
            assert_eq!(buffer[0], number);
        }
        let (one, other) = UnixDatagram::pair().expect("a pair");
        while one.try_send(&[1; 1000]).is_ok() {}
        assert!(poll_and_drop(one.send(&[2; 1000])).await);
        let mut received = 0;
        while other.try_recv(&mut [0; 1000]).is_ok() {
            received += 1;
        }
        assert!(received > 0);
        one.send(&[3; 1000]).await.expect("sent");
        let mut buffer = [0; 1000];
        assert_eq!(other.recv(&mut buffer).await.expect("received"), 1000);
        assert_eq!(buffer[0], 3, "the dropped one was not sent");
    });
}

#[test]
fn a_cancelled_receiver_leaves_its_datagram_to_the_others() {
    // Goal: a waiter that is dropped after its readiness event and before its turn loses nothing.
    run(|_| async {
        let socket = Arc::new(UdpSocket::bind(ANY_PORT).await.expect("bind"));
        let sender = UdpSocket::bind(ANY_PORT).await.expect("bind");
        let to = socket.local_addr().expect("an address");
        for _ in 0..100 {
            let receivers: Vec<_> = (0..3)
                .map(|_| {
                    let socket = Arc::clone(&socket);
                    tokio::spawn(async move { socket.recv(&mut [0; 8]).await })
                })
                .collect();
            tokio::task::yield_now().await;
            sender.send_to(b"x", to).await.expect("sent");
            // All three are woken and none has run, since the test does not yield here.
            while poll_and_drop(socket.readable()).await {}
            let [first, second, last] = <[_; 3]>::try_from(receivers).expect("three");
            first.abort();
            second.abort();
            assert_eq!(last.await.expect("joined").expect("received"), 1);
            assert!(first.await.is_err() && second.await.is_err(), "aborted");
        }
    });
}

#[test]
fn a_shutdown_of_the_server_ends_all_waits() {
    // Goal: every kind of wait ends with `NotConnected`, and so does every later one.
    run(|server| async move {
        let listener = Arc::new(TcpListener::bind(ANY_PORT).await.expect("bind"));
        let (mut reader, _peer) = tcp_pair().await;
        let (mut writer, _other) = UnixStream::pair().expect("a pair");
        let socket = Arc::new(UdpSocket::bind(ANY_PORT).await.expect("bind"));
        fill(&writer);
        let (accepting, polling, receiving, peeking) = (
            Arc::clone(&listener),
            Arc::clone(&listener),
            Arc::clone(&socket),
            Arc::clone(&socket),
        );
        let waits = [
            tokio::spawn(async move { accepting.accept().await.map(drop) }),
            tokio::spawn(async move { poll_fn(|cx| polling.poll_accept(cx)).await.map(drop) }),
            tokio::spawn(async move { reader.read(&mut [0; 8]).await.map(drop) }),
            tokio::spawn(async move { writer.write(b"more").await.map(drop) }),
            tokio::spawn(async move { receiving.recv(&mut [0; 8]).await.map(drop) }),
            tokio::spawn(async move { peeking.peek_from(&mut [0; 8]).await.map(drop) }),
        ];
        tokio::task::yield_now().await;
        server.shutdown();
        for wait in waits {
            let error = wait.await.expect("joined").expect_err("the server is gone");
            assert_eq!(error.kind(), ErrorKind::NotConnected);
            let source = error.get_ref().and_then(|source| source.downcast_ref::<WaitError>());
            assert!(source.is_some_and(WaitError::is_closed), "{error:?}");
        }
        let later = [
            listener.accept().await.map(drop),
            poll_fn(|cx| listener.poll_accept(cx)).await.map(drop),
            socket.recv(&mut [0; 8]).await.map(drop),
            socket.readable().await,
            TcpStream::connect(listener.local_addr().expect("an address")).await.map(drop),
            UnixStream::pair().map(drop),
        ];
        for result in later {
            assert_eq!(result.expect_err("the server is gone").kind(), ErrorKind::NotConnected);
        }
        // Operations that need not wait still work, and sockets return to the standard library.
        let address = socket.local_addr().expect("an address");
        let socket =
            Arc::into_inner(socket).expect("the tasks are gone").into_std().expect("a socket");
        socket.send_to(b"x", address).expect("sent");
        assert_eq!(socket.recv(&mut [0; 8]).expect("received"), 1);
    });
}

#[test]
fn a_listener_out_of_descriptors_goes_on() {
    // Goal: EMFILE is returned on each try, without a hang; the connection stays queued, and is
    // accepted once a descriptor is free. Method: in its own process, with a lowered limit and a host
    // that never polls before it sleeps, since it would open files to measure the load.
    const TEST: &str = "a_listener_out_of_descriptors_goes_on";
    if !is_child(TEST) {
        return run_child(command(&[], TEST), TEST);
    }
    run_with(Reactivity::LowCpu, |_| async {
        let listener = TcpListener::bind(ANY_PORT).await.expect("bind");
        let address = listener.local_addr().expect("an address");
        let mut clients: Vec<_> =
            (0..3).map(|_| std::net::TcpStream::connect(address).expect("connected")).collect();
        let hard = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: hard }).expect("lowered");
        let mut hoard = Vec::new();
        let error = loop {
            match rustix::fs::open("/dev/null", OFlags::RDONLY, Mode::empty()) {
                Ok(descriptor) => hoard.push(descriptor),
                Err(error) => break error,
            }
        };
        assert_eq!(error, Errno::MFILE);
        for client in &mut clients {
            for _ in 0..3 {
                let error = listener.accept().await.expect_err("out of descriptors");
                assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
                let error = poll_fn(|cx| listener.poll_accept(cx)).await.expect_err("still");
                assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
            }
            for error in [
                TcpStream::connect(address).await.expect_err("out of descriptors"),
                UnixStream::pair().expect_err("out of descriptors"),
                UdpSocket::bind(ANY_PORT).await.expect_err("out of descriptors"),
            ] {
                assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
            }
            drop(hoard.pop());
            let (mut served, peer) = listener.accept().await.expect("accepted");
            assert_eq!(peer, client.local_addr().expect("an address"), "the oldest in the queue");
            served.write_all(b"welcome").await.expect("written");
            let mut heard = [0; 7];
            client.read_exact(&mut heard).expect("read");
            // The next one finds no free descriptor again.
            drop(served);
            hoard.push(rustix::io::fcntl_dupfd_cloexec(&hoard[0], 0).expect("one is free"));
        }
    });
}

#[test]
fn a_text_without_a_port_is_named() {
    // Goal: the error of a text that is no address names the text and the form, with the kernel's sockets and in a simulation.
    // Method: what users forget, to the calls that take addresses; nothing is looked up. An IPv6 address without brackets and with a
    // port is read as std does.
    async fn each_is_named() {
        for text in ["127.0.0.1", "::1", "[::1]", "localhost", "localhost:", "localhost:65536"] {
            let connected = TcpStream::connect(text).await.map(drop);
            for result in [connected, TcpListener::bind(text).await.map(drop)] {
                let error = result.expect_err(text);
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
                let message = error.to_string();
                assert!(message.contains(&format!("{text:?}")), "{message}");
                assert!(message.contains("host:port"), "{message}");
                let has_port = text.starts_with("localhost:");
                assert_eq!(message.contains("not a number of 0 to 65535"), has_port, "{message}");
            }
        }
    }
    run(|_| async {
        each_is_named().await;
        let found = lookup_host("::1:80").await.expect("it is a number");
        assert_eq!(found.collect::<Vec<_>>(), [SocketAddr::from((Ipv6Addr::LOCALHOST, 80))]);
        let error = lookup_host("no-host.invalid:80").await.expect_err("reserved for no host");
        assert!(error.to_string().starts_with("no-host.invalid: "), "{error}");
    });
    Simulation::new(1).block_on(each_is_named()).expect("it ends");
}
