//! The HTTP server, by clients that speak by hand: good ones, slow ones, rude ones.

use std::{
    convert::Infallible,
    fs,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use hyper::{Request, Response, body::Incoming};
use tokio::sync::oneshot;
use vigie::{
    Flavor, Runtime,
    http::{self, PeerAddress, ServeError},
    net::{TcpListener, UnixListener},
};

/// Only for what hangs.
const HANG: Duration = Duration::from_secs(60);

/// What the handlers wait for and report.
#[derive(Clone)]
struct Doors {
    /// `/block` reports here that it has begun.
    begun: Sender<()>,
    /// `/block` blocks its thread until something comes from here.
    held: Arc<Mutex<Receiver<()>>>,
}

async fn answer(request: Request<Incoming>, doors: Doors) -> Result<Response<String>, Infallible> {
    let text = match request.uri().path() {
        "/peer" => {
            let peer = request.extensions().get::<PeerAddress<SocketAddr>>();
            peer.map(|peer| peer.0.to_string()).unwrap_or_default()
        }
        "/block" => {
            doors.begun.send(()).expect("the test counts it");
            let _ = doors.held.lock().expect("no panic").recv();
            "unblocked".to_owned()
        }
        "/pend" => {
            doors.begun.send(()).expect("the test counts it");
            std::future::pending().await
        }
        "/panic" => panic!("planned"),
        path => path.to_owned(),
    };
    Ok(Response::new(text))
}

/// A server on a runtime with one worker.
struct Server {
    runtime: Runtime,
    address: SocketAddr,
    begun: Receiver<()>,
    hold: Sender<()>,
    stop: oneshot::Sender<()>,
    ended: vigie::JoinHandle<Result<(), ServeError>>,
}

fn start(head_timeout: Duration, drain_timeout: Duration) -> Server {
    let runtime = Runtime::builder().workers(1).build().expect("a runtime");
    start_on(runtime, head_timeout, drain_timeout, false)
}

fn start_on(
    runtime: Runtime,
    head_timeout: Duration,
    drain_timeout: Duration,
    half_close: bool,
) -> Server {
    let (begun, begins) = mpsc::channel();
    let (hold, held) = mpsc::channel();
    let doors = Doors { begun, held: Arc::new(Mutex::new(held)) };
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let (stop, stopped) = oneshot::channel::<()>();
    let service = http::service_fn(move |request| answer(request, doors.clone()));
    let serve = http::serve(listener, service)
        .head_timeout(head_timeout)
        .drain_timeout(drain_timeout)
        .half_close(half_close)
        .with_graceful_shutdown(async move { drop(stopped.await) });
    let ended = runtime.spawn(async move { serve.await });
    Server { runtime, address, begun: begins, hold, stop, ended }
}

impl Server {
    fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    fn stop(self) -> Result<(), ServeError> {
        self.stop.send(()).expect("the server waits for it");
        self.runtime.block_on(self.ended).expect("no panic")
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(HANG)).expect("a socket");
    stream
}

fn ask(stream: &mut (impl Read + Write), path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").expect("it is connected");
    read_answer(stream)
}

/// Reads one answer: the status line and the body.
fn read_answer(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return format!("the end, after {:?}", String::from_utf8_lossy(&head)),
        }
    }
    let head = String::from_utf8(head).expect("text").to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
    stream.read_exact(&mut body).expect("the body follows");
    let status = head.lines().next().unwrap_or_default();
    format!("{status}: {}", String::from_utf8_lossy(&body))
}

/// Goal: a connection serves request after request, and a handler sees its client's address. Method: by hand.
#[test]
fn requests_are_answered() {
    let server = start(HANG, HANG);
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "/one"), "http/1.1 200 ok: /one");
    assert_eq!(ask(&mut client, "/two"), "http/1.1 200 ok: /two");
    let own = client.local_addr().expect("it is connected");
    assert_eq!(ask(&mut client, "/peer"), format!("http/1.1 200 ok: {own}"));
    drop(client);
    server.stop().expect("nothing is left");
}

/// Goal: while a handler blocks the only worker, another connection is accepted and answered. Method: the handler is
/// held until the other client has its answer.
#[test]
fn a_handler_that_blocks_delays_no_other() {
    let server = start(HANG, HANG);
    let mut blocked = server.connect();
    write!(blocked, "GET /block HTTP/1.1\r\nhost: test\r\n\r\n").expect("it is connected");
    server.begun.recv().expect("the handler begins");
    assert_eq!(ask(&mut server.connect(), "/ping"), "http/1.1 200 ok: /ping");
    server.hold.send(()).expect("the handler waits");
    assert_eq!(read_answer(&mut blocked), "http/1.1 200 ok: unblocked");
    server.stop().expect("nothing is left");
}

/// Goal: a graceful shutdown lets a request that has begun end, closes an idle connection and accepts no new one.
/// Method: one connection of each kind; the request ends after the listener is gone.
#[test]
fn a_shutdown_drains() {
    let server = start(HANG, HANG);
    let (mut idle, mut busy) = (server.connect(), server.connect());
    assert_eq!(ask(&mut idle, "/"), "http/1.1 200 ok: /");
    write!(busy, "GET /block HTTP/1.1\r\nhost: test\r\n\r\n").expect("it is connected");
    server.begun.recv().expect("the handler begins");
    server.stop.send(()).expect("the server waits for it");
    assert_eq!(idle.read(&mut [0]).expect("it is closed in order"), 0);
    // The listener was dropped before the idle connection was told.
    assert!(TcpStream::connect(server.address).is_err(), "nothing listens any more");
    assert!(!server.ended.is_finished(), "a request is under way");
    server.hold.send(()).expect("the handler waits");
    assert_eq!(read_answer(&mut busy), "http/1.1 200 ok: unblocked");
    server.runtime.block_on(server.ended).expect("no panic").expect("nothing is left");
}

/// Goal: a request that the kernel has received when the shutdown begins is answered, also on a connection that waits to be accepted, and
/// nothing is reset; in HTTP/2, the client is told. Method: a runtime that runs only while the test lets it, so that the server has
/// read none of it before.
#[test]
fn a_shutdown_answers_what_has_come() {
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    let server = start_on(runtime, HANG, HANG, false);
    let [mut kept, mut idle] = [(), ()].map(|()| {
        let mut client = server.connect();
        let asked = async move {
            let asks = vigie::spawn_blocking(move || (ask(&mut client, "/one"), client));
            asks.await.expect("no panic")
        };
        let (answer, client) = server.runtime.block_on(asked);
        assert_eq!(answer, "http/1.1 200 ok: /one");
        client
    });
    let request = b"GET /two HTTP/1.1\r\nhost: test\r\n\r\n";
    kept.write_all(request).expect("it is connected");
    let mut queued = server.connect();
    queued.write_all(request).expect("it is connected");
    let mut silent = server.connect();
    let mut opened = server.connect();
    opened.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("it is connected");
    opened.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).expect("its settings");
    let frames = thread::spawn(move || frames_until_end(opened));
    let address = server.address;
    server.stop().expect("nothing is left");

    for client in [&mut kept, &mut queued] {
        assert_eq!(read_answer(client), "http/1.1 200 ok: /two");
    }
    for client in [&mut kept, &mut queued, &mut idle, &mut silent] {
        assert_eq!(client.read(&mut [0]).expect("it is closed in order"), 0);
    }
    let frames = frames.join().expect("no panic");
    assert!(frames.contains(&7), "no GOAWAY among frames of types {frames:?}");
    assert!(TcpStream::connect(address).is_err(), "nothing listens any more");
}

/// Reads frames of HTTP/2 and answers pings, as the server expects after a GOAWAY. Returns the types of the frames.
fn frames_until_end(mut client: TcpStream) -> Vec<u8> {
    let mut types = Vec::new();
    let mut head = [0; 9];
    while client.read_exact(&mut head).is_ok() {
        let [a, b, c, kind, flags, ..] = head;
        types.push(kind);
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        client.read_exact(&mut payload).expect("a whole frame");
        if kind == 6 && flags == 0 {
            head[4] = 1;
            client.write_all(&[&head, &*payload].concat()).expect("it is connected");
        }
    }
    types
}

/// Goal: what has not ended in time is cut off and named. Method: a handler that never ends.
#[test]
fn what_is_left_is_named() {
    let server = start(HANG, Duration::from_millis(10));
    let mut stuck = server.connect();
    let own = stuck.local_addr().expect("it is connected").to_string();
    write!(stuck, "GET /pend HTTP/1.1\r\nhost: test\r\n\r\n").expect("it is connected");
    server.begun.recv().expect("the handler begins");
    let error = server.stop().expect_err("one is left");
    assert!(error.to_string().contains(&own), "{error}");
    assert!(matches!(error, ServeError::Undrained { peers, .. } if peers == [own]));
    assert!(matches!(stuck.read(&mut [0]), Ok(0) | Err(_)), "it is cut off");
}

/// Goal: clients that are slow or rude lose their connection and disturb no other. Method: half a head and then
/// nothing; garbage; a head without end; one that hangs up in the middle; a handler that panics.
#[test]
fn bad_clients_are_cut_off() {
    let server = start(Duration::from_millis(50), HANG);
    let mut slow = server.connect();
    write!(slow, "GET / HTT").expect("it is connected");
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.is_empty() || rest.contains(" 408 "), "{rest}");

    let mut garbage = server.connect();
    garbage.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3]).expect("it is connected");
    let text = read_answer(&mut garbage);
    assert!(text.contains("400") || text.starts_with("the end"), "{text}");

    let mut endless = server.connect();
    let line = format!("x: {}\r\n", "y".repeat(1000));
    let _ = write!(endless, "GET / HTTP/1.1\r\n");
    // Until the server closes the connection.
    while endless.write_all(line.as_bytes()).is_ok() {}

    let mut leaving = server.connect();
    write!(leaving, "POST / HTTP/1.1\r\ncontent-length: 1000\r\n\r\nabc").expect("connected");
    drop(leaving);

    let mut panicking = server.connect();
    let text = ask(&mut panicking, "/panic");
    assert!(text.starts_with("the end"), "{text}");

    assert_eq!(ask(&mut server.connect(), "/fine"), "http/1.1 200 ok: /fine");
    server.stop().expect("nothing is left");
}

/// Goal: the same server listens on a Unix socket. Method: by hand.
#[test]
fn a_unix_socket_is_served() {
    let path = std::env::temp_dir().join(format!("vigie-http-{}.sock", std::process::id()));
    let runtime = Runtime::builder().workers(1).build().expect("a runtime");
    let listener = {
        let _entered = runtime.enter();
        UnixListener::bind(&path).expect("a path")
    };
    let hello = |_request: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new("ahoy".to_owned()))
    };
    let serve = http::serve(listener, http::service_fn(hello));
    runtime.spawn(async move { serve.await }).detach();
    let mut client = UnixStream::connect(&path).expect("it listens");
    client.set_read_timeout(Some(HANG)).expect("a socket");
    assert_eq!(ask(&mut client, "/"), "http/1.1 200 ok: ahoy");
    fs::remove_file(&path).expect("it is there");
}

/// Goal: many connections at once, more than there are threads, are all answered. Method: from several threads.
#[test]
fn many_clients_are_answered() {
    let server = start(HANG, HANG);
    thread::scope(|scope| {
        for thread in 0..4 {
            let address = server.address;
            scope.spawn(move || {
                let mut clients: Vec<_> = (0..50).map(|_| connect(address)).collect();
                for round in 0..3 {
                    for client in &mut clients {
                        let path = format!("/{thread}/{round}");
                        assert_eq!(ask(client, &path), format!("http/1.1 200 ok: {path}"));
                    }
                }
            });
        }
    });
    server.stop().expect("nothing is left");
}

/// Goal: who sends nothing is cut off in time, whatever the server still had to learn from him. Method: connections that send nothing at
/// all, the beginning of what tells HTTP/2 from HTTP/1, nothing after an answer, and, in HTTP/2, nothing after the opening.
#[test]
fn silent_clients_are_cut_off() {
    let server = start(Duration::from_millis(50), HANG);
    let nothing = server.connect();
    let mut beginning = server.connect();
    write!(beginning, "PRI * HT").expect("it is connected");
    let mut answered = server.connect();
    assert_eq!(ask(&mut answered, "/"), "http/1.1 200 ok: /");
    let mut opened = server.connect();
    opened.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("it is connected");
    opened.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).expect("its settings");
    for (what, mut client) in
        [("nothing", nothing), ("PRI", beginning), ("answered", answered), ("HTTP/2", opened)]
    {
        let end = client.read_to_end(&mut Vec::new());
        let is_cut = end.as_ref().map_or_else(|error| !is_timeout(error), |_| true);
        assert!(is_cut, "{what}: {end:?}");
    }
    server.stop().expect("nothing is left");
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Goal: a graceful shutdown does not wait for clients that have sent nothing. Method: one of them, with a time for heads that never ends.
#[test]
fn a_shutdown_closes_silent_connections() {
    let server = start(10 * HANG, 10 * HANG);
    let mut silent = server.connect();
    // Accepted after it.
    assert_eq!(ask(&mut server.connect(), "/"), "http/1.1 200 ok: /");
    server.stop().expect("nothing is left");
    assert_eq!(silent.read(&mut [0]).expect("it is closed in order"), 0);
}

/// Goal: a head that is too large is answered so, and one that is large is answered. Method: one field of either size, and very many.
#[test]
fn large_heads_are_answered() {
    let server = start(HANG, HANG);
    for (fields, length, status) in [(1, 16_000, "200"), (1, 1_000_000, "431"), (1_000, 8, "431")] {
        let mut client = server.connect();
        let field = format!("x: {}\r\n", "y".repeat(length)).repeat(fields);
        // The server answers before it has read all, and reads on.
        write!(client, "GET / HTTP/1.1\r\nhost: test\r\n{field}\r\n").expect("it is connected");
        let text = read_answer(&mut client);
        assert!(text.contains(status), "{text}");
    }
    server.stop().expect("nothing is left");
}

/// Goal: a client that closes its sending side, or its connection, while its request is answered holds no other client up. Method: such
/// clients, whose handlers never end; then another one. (hyper takes the end of the client's bytes as its leaving.)
#[test]
fn clients_that_leave_are_forgotten() {
    let server = start(HANG, HANG);
    for leaving in [true, false] {
        let mut client = server.connect();
        write!(client, "GET /pend HTTP/1.1\r\nhost: test\r\n\r\n").expect("it is connected");
        server.begun.recv_timeout(HANG).expect("the handler begins");
        if leaving {
            client.shutdown(Shutdown::Write).expect("it is connected");
            let end = client.read(&mut [0]);
            assert_eq!(end.expect("it is closed in order"), 0);
        }
    }
    assert_eq!(ask(&mut server.connect(), "/fine"), "http/1.1 200 ok: /fine");
    server.stop().expect("nothing is left");
}

/// Goal: with `half_close`, a client that has closed only its sending side gets its answer, and the connection is closed after it.
/// Method: the client closes that side before the handler has answered.
#[test]
fn half_closed_connections_are_answered() {
    let runtime = Runtime::builder().workers(1).build().expect("a runtime");
    let server = start_on(runtime, HANG, HANG, true);
    let mut client = server.connect();
    write!(client, "GET /block HTTP/1.1\r\nhost: test\r\n\r\n").expect("it is connected");
    server.begun.recv_timeout(HANG).expect("the handler begins");
    client.shutdown(Shutdown::Write).expect("it is connected");
    server.hold.send(()).expect("the handler waits");
    assert_eq!(read_answer(&mut client), "http/1.1 200 ok: unblocked");
    assert_eq!(client.read(&mut [0]).expect("it is closed in order"), 0);
    server.stop().expect("nothing is left");
}
