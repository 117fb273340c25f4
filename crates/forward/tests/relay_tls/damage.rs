//! Peers that break off, and bytes that are not TLS.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use rustls::version::TLS13;
use vigie_forward::relay::{SniRoute, TlsRouter, Upstream};

use crate::{
    Serving, bounded,
    certificates::Kit,
    pattern,
    peers::{client, client_config, finish, plain_echo, server_config, tls_echo},
    relay, serve,
};

/// How a connection is broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    Reset,
    End,
}

/// Passes on connections to `target`, of which the answers break off behind `cut` bytes.
fn breaking(target: SocketAddr, cut: Arc<AtomicUsize>, how: Break) -> SocketAddr {
    serve(move |from: TcpStream| {
        let mut left = cut.load(Ordering::SeqCst);
        let to = bounded(TcpStream::connect(target).expect("it listens"));
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| forward_until(&from, &to, &is_over));
            let mut room = [0; 4096];
            while left > 0 {
                let most = room.len().min(left);
                let Ok(count @ 1..) = (&to).read(&mut room[..most]) else { break };
                if (&from).write_all(&room[..count]).is_err() {
                    break;
                }
                left -= count;
            }
            if how == Break::End {
                let _ = from.shutdown(Shutdown::Write);
                // Not closed before the relay has closed: that would be a reset.
                drop(to.shutdown(Shutdown::Read));
            } else {
                let _ = socket2::SockRef::from(&from).set_linger(Some(Duration::ZERO));
                is_over.store(true, Ordering::SeqCst);
            }
        });
    })
}

/// Passes on bytes until their end, or until it is over.
fn forward_until(mut from: &TcpStream, mut to: &TcpStream, is_over: &AtomicBool) {
    from.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket");
    let mut room = [0; 4096];
    while !is_over.load(Ordering::SeqCst) {
        match from.read(&mut room) {
            Ok(0) => break,
            // What the target does not take is of no interest.
            Ok(count) => drop(to.write_all(&room[..count])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Goal: wherever a target breaks off, in its handshake or behind it, by a reset or an end, the client is never told that it has got everything, never gets
/// a wrong byte, and nothing hangs. Method: a proxy before the target breaks off at every byte of what the target sends; the client compares what it gets.
fn break_everywhere(how: Break) {
    let kit = Kit::shared();
    let target = tls_echo(server_config(&kit.web, None));
    let cut = Arc::new(AtomicUsize::new(0));
    let proxy = breaking(target, Arc::clone(&cut), how);
    let to = Upstream::from(proxy).tls(kit.origination("web.test"));
    let relay = Serving::start(relay().upstream(to));
    let sent = pattern(3, 400);
    let mut whole_at = None;
    let mut in_handshake = 0;
    for offset in 0..4000 {
        cut.store(offset, Ordering::SeqCst);
        let mut stream = relay.connect();
        // The relay may reset it at any time.
        let _ = stream.write_all(&sent).and_then(|()| stream.shutdown(Shutdown::Write));
        let mut heard = Vec::new();
        let ended = stream.read_to_end(&mut heard);
        assert!(sent.starts_with(&heard), "wrong bytes, at {offset}");
        let stats = relay.stats();
        if stats.tls_upstreams_ok == 0 {
            in_handshake = offset;
            assert!(heard.is_empty(), "bytes before the handshake's end, at {offset}");
        } else if ended.is_ok() {
            assert!(heard == sent, "an end behind {} bytes, at {offset}", heard.len());
            whole_at = Some(offset);
            break;
        }
    }
    let whole_at = whole_at.expect("at last all arrives");
    assert!(in_handshake > 500, "{in_handshake}");
    // The bytes of the answer, and a handshake before, which is shorter for a session that is resumed.
    assert!(whole_at > 100 + sent.len(), "{whole_at}");
    let stats = relay.until(|stats| stats.active == 0);
    assert_eq!(stats.finished, 1, "{stats:?}");
    assert!(stats.tls_upstreams_closed >= in_handshake as u64, "{stats:?}");
}

/// As [`break_everywhere`] says, by resets.
#[test]
fn targets_reset_at_every_byte() {
    break_everywhere(Break::Reset);
}

/// As [`break_everywhere`] says, by ends.
#[test]
fn targets_end_at_every_byte() {
    break_everywhere(Break::End);
}

/// Goal: wherever a client breaks off, the target never takes what it got for everything, and nothing hangs. Method: a client's whole stream is recorded by its length; a proxy before
/// the relay ends it behind every seventh byte; the target says whether it got an end.
#[test]
fn clients_end_at_many_bytes() {
    let kit = Kit::shared();
    let sent = pattern(4, 300);
    let (sender, receiver) = std::sync::mpsc::channel();
    let target = serve(move |mut socket: TcpStream| {
        let mut heard = Vec::new();
        let ended = socket.read_to_end(&mut heard);
        sender.send((ended.is_ok(), heard)).expect("the test waits");
    });
    let router = TlsRouter::terminate(kit.termination());
    let relay = Serving::start(relay().upstream(target).tls(router));
    let mut is_whole = false;
    for offset in (0..2000).step_by(7) {
        let relay_address = relay.address;
        let proxy = serve(move |from: TcpStream| {
            let to = bounded(TcpStream::connect(relay_address).expect("it listens"));
            let (mut answers, mut back) =
                (to.try_clone().expect("one"), from.try_clone().expect("one"));
            thread::spawn(move || {
                let _ = io::copy(&mut answers, &mut back);
                let _ = back.shutdown(Shutdown::Both);
            });
            let _ = io::copy(&mut (&from).take(offset), &mut &to);
            let _ = to.shutdown(Shutdown::Write);
            // Not closed before the relay has closed.
            let _ = io::copy(&mut &from, &mut io::sink());
        });
        let config = client_config(&kit.authority, &[&TLS13]);
        let mut stream =
            client(config, "web.test", bounded(TcpStream::connect(proxy).expect("it listens")));
        let _ = stream.write_all(&sent).and_then(|()| finish(&mut stream));
        let _ = stream.read_to_end(&mut Vec::new());
        relay.until(|stats| stats.active == 0);
        while let Ok((ended, heard)) = receiver.try_recv() {
            assert!(sent.starts_with(&heard));
            assert!(!ended || heard == sent, "an end behind {} bytes, at {offset}", heard.len());
            is_whole |= ended;
        }
        if is_whole {
            assert!(offset > 300, "{offset}");
            break;
        }
    }
    // The target's thread may tell it a moment later.
    is_whole = is_whole || receiver.recv_timeout(crate::PATIENCE).is_ok_and(|(ended, _)| ended);
    assert!(is_whole, "at last all arrives");
}

/// Goal: what is not TLS is answered by an alert, counted, and no target learns of it. Method: HTTP, SSH, a TLS alert, noise, an endless and a contradictory first message; with a relay that terminates and
/// one that passes through.
#[test]
fn what_is_not_tls_is_refused() {
    let kit = Kit::shared();
    let endless: Vec<u8> = [&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff][..], &[0; 16_380]].concat();
    let openings: [(&[u8], u8); 6] = [
        (b"GET / HTTP/1.1\r\nhost: web.test\r\n\r\n", 10),
        (b"SSH-2.0-OpenSSH_9.6\r\n", 10),
        (&[21, 3, 1, 0, 2, 1, 0], 10),
        (&[0x9e, 0x37, 0x79, 0xb9, 0x7f, 0x4a, 0x7c, 0x15], 10),
        (&endless, 22),
        (&[22, 3, 1, 0, 5, 1, 0, 0, 1, 3], 50),
    ];
    for router in [
        TlsRouter::terminate(kit.termination()),
        TlsRouter::pass_through(),
        TlsRouter::by_name_only().route(SniRoute::pass_through().name("web.test")).expect("a name"),
    ] {
        let relay = Serving::start(relay().upstream(plain_echo()).tls(router));
        for (opening, description) in openings {
            let mut socket = relay.connect();
            socket.write_all(opening).expect("it is connected");
            let mut heard = Vec::new();
            // A reset behind it, if the relay has not read all.
            let _ = socket.read_to_end(&mut heard);
            assert_eq!(heard, [21, 3, 3, 0, 2, 2, description], "{opening:?}");
        }
        // One that says nothing and ends, and one in the middle.
        for opening in [&[][..], &[22, 3, 1]] {
            let mut socket = relay.connect();
            socket
                .write_all(opening)
                .and_then(|()| socket.shutdown(Shutdown::Write))
                .expect("it is connected");
            let _ = socket.read_to_end(&mut Vec::new());
        }
        let stats = relay.until(|stats| stats.accepted == 8 && stats.active == 0);
        assert_eq!((stats.tls_clients_not_tls, stats.tls_clients_closed), (6, 2), "{stats:?}");
        assert_eq!((stats.tls_clients_failed, stats.bytes_up), (8, 0), "{stats:?}");
        assert_eq!(relay.handle.targets()[0].connections, 0);
    }
}

/// Goal: noise behind the handshake, from either side, breaks the connection, and nothing of it is passed on. Method: peers that send bytes that are no records, behind a byte that is.
#[test]
fn noise_behind_the_handshake_is_not_passed_on() {
    let kit = Kit::shared();
    let router = TlsRouter::terminate(kit.termination());
    let relay_of_client = Serving::start(relay().upstream(plain_echo()).tls(router));
    let config = client_config(&kit.authority, &[&TLS13]);
    let mut stream = client(config, "web.test", relay_of_client.connect());
    stream.write_all(b"x").and_then(|()| stream.read_exact(&mut [0])).expect("served");
    stream
        .sock
        .write_all(&[23, 3, 3, 0, 40])
        .and_then(|()| stream.sock.write_all(&[7; 40]))
        .expect("it is connected");
    stream.read_to_end(&mut Vec::new()).expect_err("no end");
    let stats = relay_of_client.until(|stats| stats.active == 0);
    assert_eq!((stats.reset, stats.bytes_up), (1, 1), "{stats:?}");

    let config = server_config(&kit.web, None);
    let target = serve(move |socket| {
        let connection = rustls::ServerConnection::new(Arc::clone(&config)).expect("settings");
        let mut stream = rustls::StreamOwned::new(connection, socket);
        stream.write_all(b"y").and_then(|()| stream.flush()).expect("a handshake");
        let _ = stream.sock.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let _ = stream.sock.read(&mut [0; 99]);
    });
    let to = Upstream::from(target).tls(kit.origination("web.test"));
    let relay = Serving::start(relay().upstream(to));
    let mut heard = Vec::new();
    relay.connect().read_to_end(&mut heard).expect_err("no end");
    assert!(b"y".starts_with(&heard), "{heard:?}");
    relay.until(|stats| stats.reset == 1 && stats.active == 0);
}
