//! Handshakes that succeed, and those that must not.

use std::io::{Read, Write};

use rustls::{
    pki_types::{CertificateDer, pem::PemObject},
    version::{TLS12, TLS13},
};
use vigie_forward::relay::{
    HealthCheckConfig, ProxyHeader, RelayStats, SniRoute, TargetState, TlsConfigError, TlsIdentity,
    TlsOrigination, TlsRouter, TlsTermination, Upstream,
};

use crate::{
    Serving, at,
    certificates::{Authority, EXPIRED, FUTURE, Kit, Signed, VALID, Years, write},
    kit::{folder::Folder, skip::skip},
    peers::{
        client, client_config, client_with, finish, lettered_echo, plain_echo, server_config,
        tls_echo,
    },
    relay, serve,
};

/// Goal: TLS ends at the relay, begins there, or both, in both versions, and bytes and ends pass. Method: an echo behind each combination; the
/// client says something, ends, and hears it with an end.
#[test]
fn all_combinations_work() {
    let kit = Kit::shared();
    let secret = tls_echo(server_config(&kit.web, None));
    let plain = plain_echo();
    for version in [&TLS12, &TLS13] {
        for to in [Upstream::from(plain), Upstream::from(secret).tls(kit.origination("web.test"))] {
            let router = TlsRouter::terminate(kit.termination());
            let relay = Serving::start(relay().upstream(to).tls(router));
            let config = client_config(&kit.authority, &[version]);
            let mut stream = client(config, "web.test", relay.connect());
            stream.write_all(b"hello").expect("a handshake");
            finish(&mut stream).expect("it is connected");
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).expect("a whole answer");
            assert_eq!(heard, b"hello");
            let stats = relay.until(|stats| stats.finished == 1);
            assert_eq!((stats.tls_clients_ok, stats.bytes_up, stats.bytes_down), (1, 5, 5));
        }
    }
    let to = Upstream::from(secret).tls(kit.origination("web.test"));
    let relay = Serving::start(relay().upstream(to));
    let mut stream = relay.connect();
    stream.write_all(b"hello").expect("it is connected");
    stream.shutdown(std::net::Shutdown::Write).expect("it is connected");
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).expect("a whole answer");
    assert_eq!(heard, b"hello");
    let stats = relay.until(|stats| stats.finished == 1);
    assert_eq!((stats.tls_clients_ok, stats.tls_upstreams_ok), (0, 1), "{stats:?}");
}

/// A counter of failures.
type Counted = fn(&RelayStats) -> u64;

/// Goal: a target whose certificate is not all right gets no byte, whatever is wrong with it, and the reason is counted. Method: an expired one,
/// one of the future, one for another name, one of an unknown authority, and a right one; the client hears an echo from the right one alone. By an address, too.
#[test]
fn wrong_certificates_of_targets_are_refused() {
    let kit = Kit::shared();
    let stranger = Authority::new();
    let cases: [(&Authority, &str, Years, Option<Counted>); 6] = [
        (&kit.authority, "web.test", EXPIRED, Some(|stats| stats.tls_upstreams_expired)),
        (&kit.authority, "web.test", FUTURE, Some(|stats| stats.tls_upstreams_expired)),
        (&kit.authority, "mail.test", VALID, Some(|stats| stats.tls_upstreams_wrong_name)),
        (&stranger, "web.test", VALID, Some(|stats| stats.tls_upstreams_unknown_issuer)),
        (&kit.authority, "web.test", VALID, None),
        (&kit.authority, "WEB.test", VALID, None),
    ];
    for (authority, name, years, counted) in cases {
        let target = tls_echo(server_config(&authority.sign(&[name], years), None));
        let to = Upstream::from(target).tls(kit.origination("web.test"));
        let relay = Serving::start(relay().upstream(to));
        let mut stream = relay.connect();
        stream.write_all(b"secret").expect("it is connected");
        stream.shutdown(std::net::Shutdown::Write).expect("it is connected");
        let mut heard = Vec::new();
        let ended = stream.read_to_end(&mut heard);
        match counted {
            Some(counted) => {
                assert_eq!(heard, b"", "{name} {years:?}");
                let stats = relay.until(|stats| stats.active == 0);
                assert_eq!((counted(&stats), stats.tls_upstreams_ok), (1, 0), "{stats:?}");
                assert_eq!((stats.refused, stats.connects_failed, stats.bytes_up), (1, 1, 0));
            }
            None => {
                ended.expect("a whole answer");
                assert_eq!(heard, b"secret", "{name} {years:?}");
            }
        }
    }
    // An address as the name: in the certificate, and not.
    for (signed, is_served) in [(&["127.0.0.1"], true), (&["127.0.0.2"], false)] {
        let target = tls_echo(server_config(&kit.authority.sign(signed, VALID), None));
        let to = Upstream::from(target).tls(kit.origination("127.0.0.1"));
        let relay = Serving::start(relay().upstream(to));
        drop(relay.connect());
        let stats = relay.until(|stats| stats.accepted == 1 && stats.active == 0);
        assert_eq!(stats.tls_upstreams_ok, u64::from(is_served), "{stats:?}");
        assert_eq!(stats.tls_upstreams_wrong_name, u64::from(!is_served), "{stats:?}");
    }
}

/// Goal: a target whose certificate is refused is passed over, and its checks fail. Method: two targets, the first with an expired certificate;
/// each client is served by the second; with checks, the first is down after the first of them, and the client comes then.
#[test]
fn a_wrong_certificate_is_passed_over() {
    let kit = Kit::shared();
    let expired = kit.authority.sign(&["web.test"], EXPIRED);
    let targets = [&expired, &kit.web].map(|signed| tls_echo(server_config(signed, None)));
    for is_checked in [false, true] {
        let mut builder = relay();
        for target in targets {
            builder = builder.upstream(Upstream::from(target).tls(kit.origination("web.test")));
        }
        if is_checked {
            builder = builder.check(HealthCheckConfig::default());
        }
        let relay = Serving::start(builder);
        if is_checked {
            relay.until(|_| relay.handle.targets()[0].state == TargetState::Down);
        }
        let mut stream = relay.connect();
        stream.write_all(b"x").expect("it is connected");
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("the second target");
        let states = relay.handle.targets();
        let expected = if is_checked { TargetState::Down } else { TargetState::Avoided };
        assert_eq!(states[0].state, expected);
        assert_eq!((states[1].state, states[1].connections), (TargetState::Available, 1));
        let stats = relay.stats();
        assert_eq!(stats.connects_failed, u64::from(!is_checked), "{stats:?}");
        assert!(stats.tls_upstreams_expired >= 1, "{stats:?}");
    }
}

/// Goal: where clients are asked for certificates, those alone are served that have a valid one of a trusted authority, in both versions, and the others reach no
/// target and are counted. Method: clients with a right certificate, one of a stranger's authority, an expired one, and none; the target is an echo. A file
/// without a certificate is refused.
#[test]
fn clients_may_be_asked_who_they_are() {
    let kit = Kit::shared();
    let to = plain_echo();
    let asking = || kit.termination().client_authorities(kit.authority_file());
    let right = kit.authority.sign(&["client.test"], VALID);
    let strange = Authority::new().sign(&["client.test"], VALID);
    let expired = kit.authority.sign(&["client.test"], EXPIRED);
    for version in [&TLS12, &TLS13] {
        for (own, is_served) in
            [(Some(&right), true), (Some(&strange), false), (Some(&expired), false), (None, false)]
        {
            let router = TlsRouter::terminate(asking().expect("an authority"));
            let relay = Serving::start(relay().upstream(Upstream::from(to)).tls(router));
            let config = client_with(&kit.authority, version, own);
            let mut stream = client(config, "web.test", relay.connect());
            let mut heard = [0; 5];
            let echoed = stream.write_all(b"hello").and_then(|()| stream.read_exact(&mut heard));
            assert_eq!(echoed.is_ok().then_some(heard), is_served.then_some(*b"hello"));
            drop(stream);
            let stats = relay.until(|stats| stats.accepted == 1 && stats.active == 0);
            let counted = (stats.tls_clients_ok, stats.tls_clients_bad_certificate);
            assert_eq!(counted, (u64::from(is_served), u64::from(!is_served)), "{stats:?}");
            assert_eq!(stats.bytes_up, if is_served { 5 } else { 0 });
        }
    }
    let key = kit.folder.path("web.key.pem");
    let wrong = kit.termination().client_authorities(key);
    assert!(matches!(wrong, Err(TlsConfigError::NoCertificate { .. })));
}

/// Goal: a target that asks for a certificate gets the relay's, and one whose authority it does not know serves nothing. Method: a target that serves only
/// clients with a certificate; with the right identity, a stranger's, and none.
#[test]
fn targets_may_ask_who_the_relay_is() {
    let kit = Kit::shared();
    let folder = Folder::new();
    let target = tls_echo(server_config(&kit.web, Some(&kit.authority)));
    let own = kit.authority.sign(&["relay.test"], VALID).identity(&folder, "own");
    let strange = Authority::new().sign(&["relay.test"], VALID).identity(&folder, "strange");
    for (identity, is_served) in [(Some(own), true), (Some(strange), false), (None, false)] {
        let tls = kit.origination("web.test");
        let tls = match identity {
            Some(identity) => tls.identity(identity),
            None => tls,
        };
        let relay = Serving::start(relay().upstream(Upstream::from(target).tls(tls)));
        let mut stream = relay.connect();
        let mut byte = [0];
        let heard = stream.write_all(b"x").and_then(|()| stream.read_exact(&mut byte));
        assert_eq!(heard.is_ok(), is_served);
    }
}

/// Goal: a PROXY protocol header comes before TLS, in plain, and TLS begins behind it. Method: a target that reads the header, and then serves TLS on the
/// same connection.
#[test]
fn a_proxy_header_comes_before_tls() {
    let kit = Kit::shared();
    let config = server_config(&kit.web, None);
    let target = serve(move |mut socket| {
        let mut header = [0; 28];
        socket.read_exact(&mut header).expect("a header of IPv4");
        let header = ProxyHeader::read(&header).expect("a header");
        let connection = rustls::ServerConnection::new(std::sync::Arc::clone(&config));
        let mut stream = rustls::StreamOwned::new(connection.expect("a configuration"), socket);
        stream.write_all(format!("{header:?}").as_bytes()).expect("a handshake");
        stream.conn.send_close_notify();
        let _ = stream.conn.complete_io(&mut stream.sock);
    });
    let to = Upstream::from(target).tls(kit.origination("web.test"));
    let router = TlsRouter::terminate(kit.termination());
    let relay = Serving::start(relay().upstream(to).tls(router).send_proxy_header());
    let socket = relay.connect();
    let own = socket.local_addr().expect("connected");
    let mut stream = client(client_config(&kit.authority, &[&TLS13]), "web.test", socket);
    stream.flush().expect("a handshake");
    let mut heard = String::new();
    stream.read_to_string(&mut heard).expect("a whole answer");
    assert!(heard.contains(&own.to_string()), "{heard} and {own}");
}

/// Goal: protocols are agreed on by ALPN: the relay's first that the client offers; a client that offers others alone is refused. Method: three clients.
#[test]
fn protocols_are_agreed_on() {
    let kit = Kit::shared();
    let termination = kit.termination().alpn(["h2", "http/1.1"]).expect("protocols");
    let router = TlsRouter::terminate(termination);
    let relay = Serving::start(relay().upstream(plain_echo()).tls(router));
    let connect = |offered: &[&str]| {
        let mut config = client_config(&kit.authority, &[&TLS13]);
        config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let mut stream = client(config, "web.test", relay.connect());
        stream.write_all(b"x").and_then(|()| stream.read_exact(&mut [0]))?;
        Ok::<_, std::io::Error>(stream.conn.alpn_protocol().map(<[u8]>::to_vec))
    };
    assert_eq!(connect(&["http/1.1", "h2"]).expect("served"), Some(b"h2".to_vec()));
    assert_eq!(connect(&["http/1.1"]).expect("served"), Some(b"http/1.1".to_vec()));
    assert_eq!(connect(&[]).expect("served"), None);
    connect(&["smtp"]).expect_err("nothing in common");
    relay.until(|stats| stats.tls_clients_incompatible == 1 && stats.tls_clients_failed == 1);
}

/// Goal: a client that does not trust the relay is counted as such. Method: a client of another authority.
#[test]
fn clients_may_refuse_the_relay() {
    let kit = Kit::shared();
    let router = TlsRouter::terminate(kit.termination());
    let relay = Serving::start(relay().upstream(plain_echo()).tls(router));
    let config = client_config(&Authority::new(), &[&TLS13]);
    let mut stream = client(config, "web.test", relay.connect());
    stream.write_all(b"x").expect_err("an unknown authority");
    relay.until(|stats| stats.tls_clients_alert == 1);
}

/// Goal: a renewed certificate is served without a restart, a broken one changes nothing, and open connections go on. Method: the files of an identity are
/// replaced between connections; by a wrong key, too.
#[test]
fn certificates_are_read_again() {
    let kit = Kit::shared();
    let folder = Folder::new();
    let [first, second, third] = [(); 3].map(|()| kit.authority.sign(&["web.test"], VALID));
    let identity = first.identity(&folder, "own");
    let router = TlsRouter::terminate(TlsTermination::new(identity.clone()));
    let relay = Serving::start(relay().upstream(plain_echo()).tls(router));
    let connect = || {
        let config = client_config(&kit.authority, &[&TLS13]);
        let mut stream = client(config, "web.test", relay.connect());
        stream.write_all(b"x").and_then(|()| stream.read_exact(&mut [0])).expect("served");
        let seen = stream.conn.peer_certificates().expect("its chain")[0].clone().into_owned();
        (stream, seen)
    };
    let der = |signed: &Signed| {
        CertificateDer::from_pem_slice(signed.chain.as_bytes()).expect("PEM").into_owned()
    };
    let (mut open, seen) = connect();
    assert_eq!(seen, der(&first));
    assert!(!identity.reload().expect("the same files"));
    second.write(&folder, "own");
    assert_eq!(connect().1, der(&first), "not read yet");
    assert!(identity.reload().expect("renewed files"));
    assert_eq!(connect().1, der(&second));

    write(&folder, "own.chain.pem", &third.chain);
    let refused = identity.reload().expect_err("the key of another");
    assert!(matches!(refused, TlsConfigError::KeyMismatch { .. }), "{refused}");
    assert_eq!(connect().1, der(&second));
    open.write_all(b"y").and_then(|()| open.read_exact(&mut [0])).expect("it goes on");
}

/// Goal: files that cannot be used are named, with what to do. Method: one of each kind.
#[test]
fn wrong_files_are_named() {
    let kit = Kit::shared();
    let folder = Folder::new();
    let (chain, key) = kit.web.write(&folder, "web");
    let empty = write(&folder, "empty", "");
    let damaged =
        write(&folder, "damaged", "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n");
    let nonsense = write(
        &folder,
        "nonsense",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    let other = Authority::new().sign(&["web.test"], VALID).write(&folder, "other").1;
    let said = |error: TlsConfigError, words: &[&str]| {
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}: {words:?}");
    };
    let read = |chain: &std::path::Path, key: &std::path::Path| {
        TlsIdentity::from_pem_files(chain, key).expect_err("a wrong file")
    };
    said(read(&folder.path("none"), &key), &["none", "cannot be read"]);
    said(read(&empty, &key), &["empty", "no certificate", "BEGIN CERTIFICATE"]);
    said(read(&damaged, &key), &["damaged", "not PEM"]);
    said(read(&chain, &chain), &["web.chain.pem", "no private key"]);
    said(read(&chain, &other), &["other.key.pem", "does not belong"]);
    let trusting = |name: &str, path: &std::path::Path| {
        TlsOrigination::trusting(name, path).expect_err("a wrong setting")
    };
    said(trusting("a b", &chain), &["`a b`", "web.example"]);
    said(trusting("web.test", &nonsense), &["nonsense", "cannot be used"]);
    said(trusting("web.test", &empty), &["no certificate"]);
    said(kit.termination().alpn([""]).expect_err("empty"), &["ALPN", "h2"]);
    let route = SniRoute::pass_through().name("web_test.example").upstream(at(crate::local()));
    drop(TlsRouter::by_name_only().route(route).expect("an underscore is usual"));
}

/// Goal: what the system trusts is what counts if no file is named. Method: a target of an authority that no system trusts is refused; where there is no
/// bundle, the error says so.
#[test]
fn the_system_trusts_no_test() {
    let kit = Kit::shared();
    let tls = match TlsOrigination::to("web.test") {
        Ok(tls) => tls,
        Err(error) => {
            assert!(error.to_string().contains("ca-certificates"), "{error}");
            skip("the_system_trusts_no_test", "a bundle of trusted certificates");
            return;
        }
    };
    let target = tls_echo(server_config(&kit.web, None));
    let relay = Serving::start(relay().upstream(Upstream::from(target).tls(tls)));
    drop(relay.connect());
    relay.until(|stats| stats.tls_upstreams_unknown_issuer == 1);
}

/// Goal: an idle connection ends as TLS ends, for both peers. Method: an idle time-out, after a byte there and back.
#[test]
fn idle_connections_end_properly() {
    let kit = Kit::shared();
    let router = TlsRouter::terminate(kit.termination());
    let builder = relay().upstream(lettered_echo(b'a')).tls(router);
    let builder = builder.idle_timeout(Some(std::time::Duration::from_millis(50)));
    let relay = Serving::start(builder);
    let config = client_config(&kit.authority, &[&TLS13]);
    let mut stream = client(config, "web.test", relay.connect());
    let mut heard = Vec::new();
    stream.flush().expect("a handshake");
    stream.read_to_end(&mut heard).expect("an end, and no cut");
    assert_eq!(heard, b"a");
    relay.until(|stats| stats.timed_out == 1);
}
