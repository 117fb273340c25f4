//! What a simulation has, and what it refuses.

#![cfg(not(loom))]

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdListener, UdpSocket as StdUdp},
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    sync::Arc,
};

use rustix::process::{Signal, getpid, kill_process};
use vigie_detect::{
    AsyncFd, Flavor, HostThread, RegisterError, Server, Simulation,
    detectors::{
        blocking::{blocking, interruptible},
        readiness::Direction,
        signal::{SignalKind, signal},
        signal_io::{SignalIoRequest, signal_io},
    },
    net::{
        TcpListener, TcpSocket, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream,
        lookup_host, pipe,
    },
    refuse_in_simulation,
};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What an operation answers: `None` for a success.
type Answer = (&'static str, Option<io::Error>);

fn answer<T>(what: &'static str, result: io::Result<T>) -> Answer {
    (what, result.err())
}

fn registered<T>(what: &'static str, result: Result<T, RegisterError>) -> Answer {
    let error = |error| match error {
        RegisterError::Attach(error) => error,
        other => io::Error::other(other),
    };
    answer(what, result.map_err(error))
}

/// Every operation that reaches the kernel outside of a simulation. `outside` is a server in real time.
async fn operations(outside: &Server) -> Vec<Answer> {
    let here = Server::current().expect("the task's server");
    let (near, far) = StdStream::pair().expect("a pair");
    near.set_nonblocking(true).expect("a socket");
    let stream = StdListener::bind(ANY).expect("a port");
    let connected = std::net::TcpStream::connect(stream.local_addr().expect("an address"));
    let request = || SignalIoRequest {
        descriptor: Arc::new(OwnedFd::from(File::open("/dev/null").expect("a file"))),
        direction: Direction::Read,
    };
    vec![
        answer("Server::new", Server::new(Flavor::Hybrid)),
        answer("Server::spawn_thread", Server::spawn_thread()),
        answer("AsyncFd::new", AsyncFd::new(near.try_clone().expect("a duplicate"))),
        answer("pipe::pipe", pipe::pipe()),
        answer("pipe::Receiver::from_owned_fd", pipe::Receiver::from_owned_fd(far.into())),
        answer("TcpListener::from_std", TcpListener::from_std(stream)),
        answer(
            "TcpStream::from_std",
            TcpStream::from_std(connected.and_then(|it| it.try_clone()).expect("it listens")),
        ),
        answer("UnixStream::from_std", UnixStream::from_std(near)),
        answer("UdpSocket::from_std", UdpSocket::from_std(StdUdp::bind(ANY).expect("a port"))),
        answer("TcpListener::bind_on", TcpListener::bind_on(outside, ANY)),
        answer("TcpStream::connect_on", TcpStream::connect_on(outside, ANY).await),
        answer("UdpSocket::bind_on", UdpSocket::bind_on(outside, ANY)),
        answer("UnixListener::bind_on", UnixListener::bind_on(outside, "\0refused")),
        answer("UnixStream::pair_on", UnixStream::pair_on(outside)),
        answer("UnixDatagram::unbound_on", UnixDatagram::unbound_on(outside)),
        answer("into_std", UdpSocket::bind(ANY).await.and_then(UdpSocket::into_std)),
        registered("blocking", blocking(&here, || Ok(()))),
        registered("interruptible", interruptible(&here, || Ok(Some(())), || {})),
        match signal_io(&here, SignalKind::real_time(5).expect("it exists")) {
            Ok(handle) => {
                answer("signal_io", handle.wait(request()).await.map_err(io::Error::from))
            }
            Err(error) => registered::<()>("signal_io", Err(error)),
        },
        answer("refuse_in_simulation", refuse_in_simulation("anchors", "stay afloat")),
        // Last: its end is that of the server.
        answer("HostThread::spawn", HostThread::spawn(outside.clone())),
    ]
}

/// Goal: what a simulation cannot have is refused with a typed error that names a remedy, and nothing of it happens; the same
/// operations work outside. Method: each of them, in both.
#[test]
fn what_leaves_a_simulation_is_refused() {
    let outside = Server::spawn_thread().expect("a thread");
    let outside = outside.server();
    let mut simulation = Simulation::new(1);
    let answers = simulation.block_on(operations(outside)).expect("nothing waits");
    for (what, error) in &answers {
        let error = error.as_ref().unwrap_or_else(|| panic!("{what} leaves the simulation"));
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{what}: {error}");
        let text = error.to_string();
        assert!(text.contains("simulat") && text.contains(':'), "{what}: {text}");
    }

    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let host = Server::spawn_thread().expect("a thread");
    let _entered = host.server().enter();
    for (what, error) in runtime.block_on(operations(outside)) {
        // Port 0 has no listener.
        let is_connect = what == "TcpStream::connect_on";
        let expected = is_connect.then_some(io::ErrorKind::ConnectionRefused);
        let kind = error.as_ref().map(io::Error::kind);
        assert_eq!(kind, expected, "{what}: {error:?}");
    }
}

/// Goal: names of other hosts are not asked for, and a signal of the kernel reaches no simulated process, nor installs a handler.
/// Method: a name that only a resolver knows; SIGWINCH, which does nothing by default, sent to this process while a simulated task
/// listens; the same signal raised at its server.
#[test]
fn names_and_signals_are_the_simulations() {
    let mut simulation = Simulation::new(2);
    simulation
        .block_on(async {
            let here = Server::current().expect("the task's server");
            let error =
                lookup_host("localhost.localdomain:80").await.map(drop).expect_err("unknown");
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            TcpSocket::new_v4().expect("a simulated socket").bind(ANY).expect("a port");

            let window = SignalKind::WINDOW_CHANGE;
            assert!(!here.has_caught(window.as_raw()));
            let changes = signal(&here, window).expect("it can be caught");
            assert!(here.has_caught(window.as_raw()));
            kill_process(getpid(), Signal::WINCH).expect("it is this process");
            let late = here.now() + std::time::Duration::from_secs(5);
            let mut arrival = std::pin::pin!(changes.recv());
            let mut timer = std::pin::pin!(here.timers().wait(late));
            let first = std::future::poll_fn(|cx| match arrival.as_mut().poll(cx) {
                std::task::Poll::Ready(_) => std::task::Poll::Ready("the kernel's signal"),
                std::task::Poll::Pending => timer.as_mut().poll(cx).map(|_| "the timer"),
            });
            assert_eq!(first.await, "the timer");
            here.raise(SignalKind::HANGUP.as_raw());
            here.raise(window.as_raw());
            assert_eq!(arrival.await.expect("the server is open").count, 1);
        })
        .expect("no deadlock");
    for forbidden in [libc::SIGKILL, libc::SIGSEGV] {
        let refused = signal(simulation.server(), SignalKind::from_raw(forbidden));
        assert!(matches!(refused, Err(RegisterError::ForbiddenSignal { .. })));
    }
}
