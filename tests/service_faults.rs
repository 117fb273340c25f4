//! A whole HTTP service in a process of its own: more connections than it has descriptors, and SIGTERM under load.

#[path = "kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{
    convert::Infallible,
    fs,
    io::{BufRead, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use hyper::{Request, Response, body::Incoming};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType},
    process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit},
};
use vigie::{
    Runtime, http,
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use crate::kit::{
    child::{command_in, role},
    speaker::Speaker,
};

/// The test that is the service in a child; its role is how many descriptors it may have.
const SERVICE: &str = "service";

/// Only for what hangs.
const HANG: Duration = Duration::from_secs(60);

/// Within this time, all that can end after SIGTERM must end.
const DRAIN: Duration = Duration::from_secs(4);

/// Not a test: the service. It writes its address, and how it has ended; a line of its input lets `/block` go on.
#[test]
#[ignore = "run by other tests"]
fn service() {
    let Some(descriptors) = role(SERVICE).and_then(|text| text.parse().ok()) else { return };
    let limit = Rlimit { current: Some(descriptors), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).expect("lower is allowed");
    let (hold, held) = mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    thread::spawn(move || {
        let _ = std::io::stdin().lock().read_line(&mut String::new());
        drop(hold);
    });
    let answer = move |request: Request<Incoming>| {
        let held = Arc::clone(&held);
        async move {
            let path = request.uri().path().to_owned();
            println!("begins {path}");
            match &*path {
                // Blocks its thread until the other end is dropped.
                "/block" => drop(held.lock().unwrap_or_else(PoisonError::into_inner).recv()),
                "/pend" => std::future::pending().await,
                _ => {}
            }
            Ok::<_, Infallible>(Response::new(path))
        }
    };
    let runtime = Runtime::builder().workers(2).build().expect("a runtime");
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).expect("a handler");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("\naddress {}", listener.local_addr().expect("it is bound"));
        let ended = http::serve(listener, http::service_fn(answer))
            // Clients pause while 20 000 connections are begun, which takes more than 30 s on a machine that is busy elsewhere.
            .head_timeout(10 * HANG)
            .drain_timeout(DRAIN)
            .with_graceful_shutdown(async move {
                terminate.recv().await;
            })
            .await;
        match ended {
            Ok(()) => println!("ended"),
            Err(error) => println!("ended: {error}"),
        }
    });
}

/// The service's process.
struct Service {
    child: Speaker,
    address: SocketAddr,
}

impl Service {
    fn start(descriptors: u64) -> Self {
        let child = Speaker::start(command_in(&descriptors.to_string(), &[], SERVICE));
        let address = child.line("address ").parse().expect("an address");
        Self { child, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(HANG)).expect("a socket");
        stream
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a process")).expect("not 0")
    }

    /// Returns how much processor time the process has used, in ticks, usually of 10 ms.
    fn ticks(&self) -> u64 {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = fs::read_to_string(path).expect("it lives");
        let fields = stat.rsplit(')').next().expect("its name is in brackets").split_whitespace();
        fields.skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
    }
}

fn send(stream: &mut TcpStream, path: &str) {
    // At once: of several small writes, the kernel holds back the second until the first is acknowledged, 40 ms later.
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it is connected");
}

/// Reads an answer, and returns its body.
fn answer(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer comes");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("text").to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.expect("a length").parse().expect("a number")];
    stream.read_exact(&mut body).expect("the body follows");
    String::from_utf8(body).expect("text")
}

fn ask(stream: &mut TcpStream, path: &str) -> String {
    send(stream, path);
    answer(stream)
}

/// Goal: a service with 256 descriptors survives 20 000 connections at once: those that it had accepted go on, it neither dies nor
/// spins, and after the burst it accepts again. Method: 20 000 connections are begun and held, twice; meanwhile the early ones ask, and the
/// service's processor time is counted while no client asks: at most half of what a loop without pause would use.
#[test]
fn more_connections_than_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("up to there");
    let count = limit.maximum.map_or(20_000, |maximum| maximum.saturating_sub(200).min(20_000));

    let service = Service::start(256);
    let mut early: Vec<_> = (0..20).map(|_| service.connect()).collect();
    let mut ask_early = || {
        for client in &mut early {
            assert_eq!(ask(client, "/early"), "/early");
        }
    };
    ask_early();
    for _ in 0..2 {
        let burst: Vec<OwnedFd> = (0..count).map(|_| begin_to_connect(service.address)).collect();
        (0..20).for_each(|_| ask_early());
        let before = service.ticks();
        // The counted time is processor time: a machine that is busy elsewhere only makes it less.
        let (_open, nothing) = mpsc::channel::<()>();
        nothing.recv_timeout(Duration::from_secs(1)).expect_err("nothing comes");
        let used = service.ticks() - before;
        assert!(used < 50, "{used} ticks in a second without a request");
        ask_early();
        drop(burst);
        assert_eq!(ask(&mut service.connect(), "/late"), "/late");
    }
    ask_early();
}

fn begin_to_connect(address: SocketAddr) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .expect("one");
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => socket,
        Err(error) => panic!("{error}"),
    }
}

/// Goal: SIGTERM under load: what has begun is answered, idle connections are closed, nothing new is accepted, and what does not end is
/// named, and nothing else. Method: handlers that block or pend in a process that is told to stop; then the blocked ones may go on.
#[test]
fn sigterm_drains_and_names_what_is_left() {
    let mut service = Service::start(1_024);
    let mut idle: Vec<_> = (0..30).map(|_| service.connect()).collect();
    idle.iter_mut().for_each(|client| assert_eq!(ask(client, "/idle"), "/idle"));
    let begun = |path, count| {
        let mut clients: Vec<_> = (0..count).map(|_| service.connect()).collect();
        clients.iter_mut().for_each(|client| send(client, path));
        (0..count).for_each(|_| drop(service.child.line(&format!("begins {path}"))));
        clients
    };
    let stuck = begun("/pend", 2);
    let mut busy = begun("/block", 50);
    kill_process(service.pid(), Signal::TERM).expect("it lives");
    for client in &mut idle {
        assert_eq!(client.read(&mut [0]).expect("closed in order"), 0);
    }
    assert!(TcpStream::connect(service.address).is_err(), "nothing listens any more");
    service.child.tell("go on");
    busy.iter_mut().for_each(|client| assert_eq!(answer(client), "/block"));
    let end = service.child.line("ended");
    let named = |client: &TcpStream| {
        end.contains(&client.local_addr().expect("it is connected").to_string())
    };
    assert!(end.contains(" 2 connections ") && stuck.iter().all(named), "{end}");
    assert!(!idle.iter().chain(&busy).any(named), "{end}");
    assert!(service.child.finish().success());
}
