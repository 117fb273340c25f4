//! Routes by the client's name for its server.

use std::io::{Read, Write};

use rustls::{ClientConfig, version::TLS13};
use vigie_forward::relay::{SniRoute, TlsRouter, TlsTermination, Upstream};

use crate::{
    Serving, at,
    certificates::{Kit, VALID},
    kit::folder::Folder,
    peers::{client, client_config, lettered_echo, server_config, tls_echo},
    relay, serve,
};

fn config(kit: &Kit) -> ClientConfig {
    client_config(&kit.authority, &[&TLS13])
}

/// Goal: each name gets its own certificate and its own targets, from one listener; upper case is the same; a name that no route has, and none at all, get
/// the default. Method: targets that say a letter, and clients that check the certificate's name.
#[test]
fn names_choose_certificates_and_targets() {
    let kit = Kit::shared();
    let folder = Folder::new();
    let [web, a, b, wild] = [b'w', b'a', b'b', b'*'].map(|letter| at(lettered_echo(letter)));
    let route = |name: &str, certificate: &str| {
        let signed = kit.authority.sign(&[certificate], VALID);
        let identity = signed.identity(&folder, &name.replace('*', "any"));
        SniRoute::terminate(TlsTermination::new(identity)).name(name)
    };
    let router = TlsRouter::terminate(kit.termination())
        .route(route("a.test", "a.test").upstream(a))
        .and_then(|router| router.route(route("B.test", "b.test").upstream(b)))
        .and_then(|router| router.route(route("*.c.test", "*.c.test").upstream(wild)))
        .and_then(|router| router.route(route("own.test", "own.test")))
        .expect("names");
    let relay = Serving::start(relay().upstream(web).tls(router));
    for (name, letter) in [
        ("a.test", b'a'),
        ("A.TEST", b'a'),
        ("b.test", b'b'),
        ("x.c.test", b'*'),
        ("own.test", b'w'),
        ("web.test", b'w'),
    ] {
        let mut stream = client(config(&kit), name, relay.connect());
        let mut heard = [0];
        stream.flush().and_then(|()| stream.read_exact(&mut heard)).expect(name);
        assert_eq!(heard[0], letter, "{name}");
    }
    // Without a name, and with one that no route has: the default's certificate, which is for another.
    let mut silent = config(&kit);
    silent.enable_sni = false;
    let mut stream = client(silent, "web.test", relay.connect());
    stream.flush().and_then(|()| stream.read_exact(&mut [0])).expect("the default");
    client(config(&kit), "other.test", relay.connect()).flush().expect_err("for web.test alone");
    let active: Vec<_> = relay.handle.targets().iter().map(|one| one.connections).collect();
    assert_eq!(active, [3, 2, 1, 1]);
}

/// Goal: a connection that is passed through reaches the target of its name with its own TLS, and one with a name that no route has is refused by an alert. Method: a target
/// with a certificate that the relay does not have; the client sees that one; clients with another name and without.
#[test]
fn connections_are_passed_through() {
    let kit = Kit::shared();
    let target = tls_echo(server_config(&kit.web, None));
    let route = SniRoute::pass_through().name("web.test").upstream(at(target));
    let router = TlsRouter::by_name_only().route(route).expect("a name");
    let relay = Serving::start(relay().tls(router));
    let mut stream = client(config(&kit), "WEB.test", relay.connect());
    let mut heard = [0; 5];
    stream.write_all(b"hello").and_then(|()| stream.read_exact(&mut heard)).expect("served");
    assert_eq!(&heard, b"hello");
    let stats = relay.stats();
    assert_eq!((stats.tls_passed_through, stats.tls_clients_ok), (1, 0), "{stats:?}");

    let refused = client(config(&kit), "other.test", relay.connect()).flush();
    let refused = refused.expect_err("no route").to_string();
    assert!(refused.contains("UnrecognisedName"), "{refused}");
    let mut silent = config(&kit);
    silent.enable_sni = false;
    client(silent, "web.test", relay.connect()).flush().expect_err("no route");
    relay.until(|stats| stats.tls_clients_no_route == 2 && stats.tls_clients_failed == 2);
}

/// Writes a client's first message by hand: with this name, as it is.
fn hello(name: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| u16::try_from(bytes).expect("short").to_be_bytes();
    let mut extension = vec![0, 0];
    extension.extend(length(name.len() + 5));
    extension.extend(length(name.len() + 3));
    extension.push(0);
    extension.extend(length(name.len()));
    extension.extend(name);
    let mut body = vec![3, 3];
    body.extend([9; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    body.extend(length(extension.len()));
    body.extend(extension);
    let mut message = vec![1, 0];
    message.extend(length(body.len()));
    message.extend(body);
    let mut records = Vec::new();
    // In pieces, as a client may send it.
    for part in message.chunks(40) {
        records.extend([22, 3, 1]);
        records.extend(length(part.len()));
        records.extend(part);
    }
    records
}

/// Goal: the target gets the client's bytes as they are, whether the name has a dot at its end or capitals, and however they arrive. Method: messages made by hand, sent at once and
/// byte by byte, with bytes behind them; the target compares.
#[test]
fn passed_bytes_are_unchanged() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let target = serve(move |mut socket| {
        let mut heard = Vec::new();
        socket.read_to_end(&mut heard).expect("a whole stream");
        sender.send(heard).expect("the test waits");
    });
    let router = TlsRouter::by_name_only();
    let route = SniRoute::pass_through().name("*.web.test").upstream(Upstream::from(target));
    let router = router.route(route).expect("a name");
    let relay = Serving::start(relay().tls(router));
    for name in ["a.web.test", "a.web.test.", "A.Web.TEST."] {
        let mut sent = hello(name.as_bytes());
        sent.extend(b"what comes next is not TLS, but that is the target's concern");
        for size in [1, 7, sent.len()] {
            let mut socket = relay.connect();
            for part in sent.chunks(size) {
                socket.write_all(part).expect("it is connected");
            }
            socket.shutdown(std::net::Shutdown::Write).expect("it is connected");
            let heard = receiver.recv_timeout(crate::PATIENCE).expect("the target's bytes");
            assert!(heard == sent, "{name} by {size}");
        }
    }
    let stats = relay.until(|stats| stats.active == 0);
    assert_eq!((stats.tls_passed_through, stats.tls_clients_failed), (9, 0), "{stats:?}");
    let sent: usize = ["a.web.test", "a.web.test.", "A.Web.TEST."]
        .iter()
        .map(|name| 3 * (hello(name.as_bytes()).len() + 60))
        .sum();
    assert_eq!(stats.bytes_up, sent as u64, "{stats:?}");
}
