//! Many bytes, ends of streams, and idle memory.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    thread,
};

use rustls::{
    ServerConnection, StreamOwned,
    version::{TLS12, TLS13},
};
use vigie_forward::relay::{ConnectionEnd, Framing, LengthFormat, TlsRouter, Upstream};

use crate::{
    Serving,
    certificates::Kit,
    pattern,
    peers::{client, client_config, finish, plain_echo, server_config, tls_echo},
    relay, serve,
};

const BYTES: usize = 6 << 20;

/// Writes as rustls lets it, and reads at the same time: one thread must do both.
fn exchange(stream: &mut crate::peers::ClientStream, sent: &[u8]) -> Vec<u8> {
    stream.sock.set_nonblocking(false).expect("a socket");
    let mut heard = Vec::with_capacity(sent.len());
    let mut room = vec![0; 64 << 10];
    let mut rest = sent;
    // As much is under way as queues hold, so both directions are full most of the time.
    while heard.len() < sent.len() {
        let ahead = sent.len() - rest.len() - heard.len();
        if !rest.is_empty() && ahead < 256 << 10 {
            let count = stream.write(&rest[..rest.len().min(100_000)]).expect("it is connected");
            rest = &rest[count..];
        } else {
            match stream.read(&mut room).expect("it is connected") {
                0 => break,
                count => heard.extend_from_slice(&room[..count]),
            }
        }
    }
    heard
}

/// Goal: long streams arrive in both directions at once, byte by byte, in both versions, with TLS at both sides of the relay or one. Method: six megabytes
/// there and back, in pieces that do not fit records; several clients at once.
#[test]
fn long_streams_arrive() {
    let kit = Kit::shared();
    let secret = tls_echo(server_config(&kit.web, None));
    for to in
        [Upstream::from(plain_echo()), Upstream::from(secret).tls(kit.origination("web.test"))]
    {
        let router = TlsRouter::terminate(kit.termination());
        let relay = Serving::start(relay().upstream(to).tls(router));
        thread::scope(|scope| {
            for (seed, version) in [(1, &TLS13), (2, &TLS12), (3, &TLS13)] {
                let (relay, kit) = (&relay, &kit);
                scope.spawn(move || {
                    let config = client_config(&kit.authority, &[version]);
                    let mut stream = client(config, "web.test", relay.connect());
                    let sent = pattern(seed, BYTES);
                    assert!(exchange(&mut stream, &sent) == sent);
                    finish(&mut stream).expect("it is connected");
                    assert_eq!(stream.read(&mut [0]).expect("an end"), 0);
                });
            }
        });
        let stats = relay.until(|stats| stats.finished == 3);
        let bytes = 3 * BYTES as u64;
        assert_eq!((stats.bytes_up, stats.bytes_down), (bytes, bytes), "{stats:?}");
        assert_eq!(stats.bytes_spliced, 0, "{stats:?}");
    }
}

/// Goal: each direction ends alone, from either side, and what follows in the other still arrives. Method: a target that ends first and then listens to
/// the end, with and without TLS; the client sends a megabyte after that. Then the other way round.
#[test]
fn directions_end_alone() {
    let kit = Kit::shared();
    let (sender, receiver) = std::sync::mpsc::channel();
    let config = server_config(&kit.web, None);
    let plain_sender = sender.clone();
    let secret = serve(move |socket| {
        let connection = ServerConnection::new(std::sync::Arc::clone(&config)).expect("settings");
        let mut stream = StreamOwned::new(connection, socket);
        stream.write_all(b"only this").expect("a handshake");
        stream.conn.send_close_notify();
        stream.flush().expect("it is connected");
        stream.sock.shutdown(Shutdown::Write).expect("it is connected");
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).expect("a whole stream");
        sender.send(heard).expect("the test waits");
    });
    let plain = serve(move |mut socket: TcpStream| {
        socket.write_all(b"only this").expect("it is connected");
        socket.shutdown(Shutdown::Write).expect("it is connected");
        let mut heard = Vec::new();
        socket.read_to_end(&mut heard).expect("a whole stream");
        plain_sender.send(heard).expect("the test waits");
    });
    for to in [Upstream::from(plain), Upstream::from(secret).tls(kit.origination("web.test"))] {
        let router = TlsRouter::terminate(kit.termination());
        let relay = Serving::start(relay().upstream(to).tls(router));
        let mut stream =
            client(client_config(&kit.authority, &[&TLS13]), "web.test", relay.connect());
        let mut heard = Vec::new();
        stream.flush().expect("a handshake");
        stream.read_to_end(&mut heard).expect("an end");
        assert_eq!(heard, b"only this");
        // The client's own direction goes on.
        let sent = pattern(5, 1 << 20);
        stream.write_all(&sent).expect("half is open");
        finish(&mut stream).expect("half is open");
        assert!(receiver.recv_timeout(crate::PATIENCE).expect("the target's bytes") == sent);
        relay.until(|stats| stats.finished == 1);
    }
}

/// Goal: closes are told from resets: a target that closes without TLS's end has finished if its client had ended before, as after a keep-alive connection; else its answer may be cut.
/// One that closes after its end, and is sent more, is told from one that breaks off. Method: targets that close in each way, and clients that end first, later, or send on.
#[test]
fn closes_are_named() {
    let kit = Kit::shared();
    let (sender, ends) = std::sync::mpsc::channel();
    let config = server_config(&kit.web, None);
    let target = serve(move |socket| {
        let connection = ServerConnection::new(std::sync::Arc::clone(&config)).expect("settings");
        let mut stream = StreamOwned::new(connection, socket);
        let mut order = [0];
        stream.read_exact(&mut order).expect("a handshake");
        stream.write_all(&order).expect("it is connected");
        stream.flush().expect("it is connected");
        match order[0] {
            // As nginx closes a connection that its client has ended.
            b'k' => assert_eq!(stream.read(&mut [0]).expect("the client's end"), 0),
            b'e' => {
                stream.conn.send_close_notify();
                stream.flush().expect("it is connected");
            }
            _ => {}
        }
    });
    let to = Upstream::from(target).tls(kit.origination("web.test"));
    let observed = relay().observe(move |record| {
        let _ = sender.send(record.end);
    });
    let relay = Serving::start(observed.upstream(to));
    for (order, end) in [
        (b'k', ConnectionEnd::Finished),
        (b'u', ConnectionEnd::TargetUnclean),
        (b'e', ConnectionEnd::TargetClosed),
    ] {
        let mut stream = relay.connect();
        stream.write_all(&[order]).expect("it is connected");
        stream.read_exact(&mut [0]).expect("an answer");
        if order == b'k' {
            stream.shutdown(Shutdown::Write).expect("it is connected");
            assert!(stream.read(&mut [0]).is_err(), "what the target sent may be cut");
        }
        if order == b'e' {
            assert_eq!(stream.read(&mut [0]).expect("an end"), 0);
            while stream.write_all(b"more").is_ok() {
                thread::yield_now();
            }
        }
        assert_eq!(ends.recv_timeout(crate::PATIENCE), Ok(end));
    }
}

/// Goal: a client that reads nothing stops its sender: the relay does not collect what it sends. Method: a target that sends as much as it can to a client that does
/// not read, until nothing moves any more; then the client reads all of it.
#[test]
fn slow_receivers_stop_senders() {
    const MUCH: usize = 32 << 20;
    let kit = Kit::shared();
    let target = serve(|mut socket: TcpStream| {
        let _ = socket.write_all(&pattern(9, MUCH)).and_then(|()| socket.shutdown(Shutdown::Write));
        let _ = socket.read(&mut [0]);
    });
    let router = TlsRouter::terminate(kit.termination());
    let builder = relay().upstream(target).tls(router).memory_bytes_max(1 << 20);
    let relay = Serving::start(builder);
    let mut stream = client(client_config(&kit.authority, &[&TLS13]), "web.test", relay.connect());
    stream.flush().expect("a handshake");
    let mut before = relay.until(|stats| stats.bytes_down > 0).bytes_down;
    loop {
        thread::park_timeout(std::time::Duration::from_millis(200));
        let now = relay.stats().bytes_down;
        if now == before {
            break;
        }
        before = now;
    }
    assert!(before < MUCH as u64, "{before} bytes, and the client has read none");
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).expect("an end");
    assert!(heard == pattern(9, MUCH));
}

/// Goal: messages with their length are relayed through TLS, too. Method: long and short ones there and back, through a framed relay with TLS at both sides.
#[test]
fn framed_streams_arrive() {
    let kit = Kit::shared();
    let secret = tls_echo(server_config(&kit.web, None));
    let to = Upstream::from(secret).tls(kit.origination("web.test"));
    let builder = relay().upstream(to).tls(TlsRouter::terminate(kit.termination()));
    let relay = Serving::start(builder.framing(Framing::new(LengthFormat::U32Be)));
    let mut stream = client(client_config(&kit.authority, &[&TLS13]), "web.test", relay.connect());
    let mut sent = Vec::new();
    for (seed, length) in (1..).zip([0_u32, 1, 5000, 300_000, 16_384, 3]) {
        sent.extend(length.to_be_bytes());
        sent.extend(pattern(seed, length as usize));
    }
    assert!(exchange(&mut stream, &sent) == sent);
    finish(&mut stream).expect("it is connected");
    assert_eq!(stream.read(&mut [0]).expect("an end"), 0);
    assert_eq!(relay.until(|stats| stats.finished == 1).messages, 12);
}
