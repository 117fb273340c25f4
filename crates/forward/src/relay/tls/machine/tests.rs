//! Two machines with a wire between them that delivers in pieces, without sockets.

use std::sync::Arc;

use fastrand::Rng;
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig,
    client::UnbufferedClientConnection, crypto::ring, pki_types::ServerName,
    server::UnbufferedServerConnection,
};

use super::*;

struct Settings {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: ServerName<'static>,
}

impl Settings {
    fn new() -> Self {
        Self::with_certificates(1)
    }

    /// A server that sends its certificate as often as this.
    fn with_certificates(count: usize) -> Self {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["web.test".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a key that signs");
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).expect("a certificate");
        let provider = Arc::new(ring::default_provider());
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let client = client.with_safe_default_protocol_versions().expect("versions");
        let client = client.with_root_certificates(roots).with_no_client_auth();
        let server = ServerConfig::builder_with_provider(provider);
        let server = server.with_safe_default_protocol_versions().expect("versions");
        let chain = vec![certificate.der().clone(); count];
        let key = key.serialize_der().try_into().expect("a key");
        let server = server.with_no_client_auth().with_single_cert(chain, key).expect("a pair");
        let name = ServerName::try_from("web.test").expect("a name");
        Self { client: Arc::new(client), server: Arc::new(server), name }
    }

    fn pair(&self, buffers: &Buffers) -> [TlsMachine; 2] {
        let client = UnbufferedClientConnection::new(Arc::clone(&self.client), self.name.clone());
        let server = UnbufferedServerConnection::new(Arc::clone(&self.server));
        [
            TlsMachine::client(client.expect("settings"), buffers.clone()),
            TlsMachine::server(server.expect("settings"), buffers.clone()),
        ]
    }
}

/// One direction: what is sent, and what has come.
struct Flow {
    sent: Vec<u8>,
    written: usize,
    heard: Vec<u8>,
    wire: Vec<u8>,
}

impl Flow {
    fn new(rng: &mut Rng) -> Self {
        let bytes = rng.usize(..150_000);
        let sent = (0..bytes).map(|_| rng.u8(..)).collect();
        Self { sent, written: 0, heard: Vec::new(), wire: Vec::new() }
    }
}

/// Lets one side do one thing, by chance: send what it has, take what has come, or write.
fn act(
    rng: &mut Rng,
    own: &mut TlsMachine,
    to: &mut Flow,
    from: &mut Flow,
) -> Result<(), TlsError> {
    match rng.u8(..4) {
        0 => {
            let count = own.outgoing().len().min(rng.usize(1..40_000));
            to.wire.extend_from_slice(&own.outgoing()[..count]);
            own.sent(count);
            own.rest();
        }
        1 if own.plain.is_empty() => {
            let room = own.room();
            let count = room.len().min(from.wire.len()).min(rng.usize(1..40_000));
            room[..count].copy_from_slice(&from.wire[..count]);
            from.wire.drain(..count);
            own.received(count);
        }
        2 if own.outgoing().is_empty() && !own.is_handshaking() && !own.has_ended => {
            if to.written == to.sent.len() {
                own.end()?;
            } else {
                let most = rng.usize(1..100_000).min(to.sent.len() - to.written);
                to.written += own.encrypt(&to.sent[to.written..to.written + most])?;
            }
        }
        _ => {
            let mut room = vec![0; if own.is_handshaking() { 0 } else { rng.usize(..50_000) }];
            let count = own.decrypt(&mut room)?;
            from.heard.extend_from_slice(&room[..count]);
        }
    }
    let bound = 3 * (64 << 10);
    assert!(own.incoming.len() + own.outgoing.len() + own.plain.bytes.len() <= bound);
    Ok(())
}

/// Goal: bytes and ends arrive in both directions, in whatever pieces and order, within bounded memory, and no memory is held at the end. Method: seeds choose lengths, pieces and
/// who acts; with a budget and without.
#[test]
fn all_orders_arrive() {
    let settings = Settings::new();
    for seed in 0..60 {
        let rng = &mut Rng::with_seed(seed);
        let buffers = Buffers::new(if rng.bool() { 1 << 20 } else { 0 });
        let [mut client, mut server] = settings.pair(&buffers);
        let (mut up, mut down) = (Flow::new(rng), Flow::new(rng));
        let mut steps = 0;
        while !(client.has_peer_ended() && server.has_peer_ended()) {
            let done = if rng.bool() {
                act(rng, &mut client, &mut up, &mut down)
            } else {
                act(rng, &mut server, &mut down, &mut up)
            };
            done.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            steps += 1;
            assert!(steps < 1_000_000, "seed {seed} stands still");
        }
        assert!(up.heard == up.sent && down.heard == down.sent, "seed {seed}");
        for machine in [&mut client, &mut server] {
            machine.rest();
            let held = [machine.incoming.capacity(), machine.plain.bytes.capacity()];
            assert_eq!(held, [0, 0], "seed {seed}");
        }
    }
}

/// Goal: a chain that is longer than any record arrives, also where the budget is used up. Method: a chain of some 40 KB, delivered in pieces.
#[test]
fn long_chains_arrive() {
    let settings = Settings::with_certificates(100);
    for budget_bytes in [0, 1 << 20] {
        let [mut client, mut server] = settings.pair(&Buffers::new(budget_bytes));
        let mut most = 0;
        while client.is_handshaking() || server.is_handshaking() {
            client.decrypt(&mut []).expect("all is well");
            pass(&mut client, &mut server);
            server.decrypt(&mut []).expect("all is well");
            most = most.max(server.outgoing().len());
            pass(&mut server, &mut client);
        }
        assert!((20_000..60_000).contains(&most), "{most}");
    }
}

/// Passes on a piece of what one machine has to say.
fn pass(from: &mut TlsMachine, to: &mut TlsMachine) {
    if !from.outgoing().is_empty() {
        let room = to.room();
        let count = room.len().min(from.outgoing().len()).min(1000);
        assert!(count > 0, "there is no room");
        room[..count].copy_from_slice(&from.outgoing()[..count]);
        to.received(count);
        from.sent(count);
    }
}

/// Goal: no damage on the wire passes for the peer's bytes, and none panics. Method: one byte of the wire is changed, dropped or doubled at a random place; what is heard is a beginning of what was
/// sent, and the machine fails, or waits for more.
#[test]
fn damage_is_never_taken_for_bytes() {
    let settings = Settings::new();
    let buffers = Buffers::new(1 << 20);
    let mut failed = 0;
    for seed in 0..300 {
        let rng = &mut Rng::with_seed(seed);
        let [mut client, mut server] = settings.pair(&buffers);
        let (mut up, mut down) = (Flow::new(rng), Flow::new(rng));
        let damage_at = rng.usize(..3000);
        let (mut passed, mut is_damaged) = (0, false);
        for _ in 0..4000 {
            let before = up.wire.len();
            let done = if rng.bool() {
                act(rng, &mut client, &mut up, &mut down)
            } else {
                act(rng, &mut server, &mut down, &mut up)
            };
            let new = up.wire.len().saturating_sub(before);
            if !is_damaged && new > 0 && passed + new > damage_at {
                is_damaged = true;
                let at = before + (damage_at - passed).min(new - 1);
                match rng.u8(..3) {
                    0 => up.wire[at] ^= 1 << rng.u8(..8),
                    1 => drop(up.wire.remove(at)),
                    _ => up.wire.insert(at, up.wire[at]),
                }
            }
            passed += new;
            failed += u32::from(done.is_err());
            // A machine that has ended meets damage with an assertion of rustls' debug builds: it takes its own `close_notify` for a
            // fatal alert, of which there may be one.
            if done.is_err() || server.has_ended {
                break;
            }
        }
        assert!(up.sent.starts_with(&up.heard) && down.sent.starts_with(&down.heard), "{seed}");
        // It stays failed, and says so again.
        for machine in [&mut client, &mut server] {
            if machine.failed.is_some() {
                // Behind what was whole before.
                machine.plain = PlainBytes::default();
                machine.decrypt(&mut [0]).expect_err("it has failed");
                assert!(machine.has_ended || machine.end().is_err(), "{seed}");
            }
        }
    }
    assert!(failed > 100, "{failed}");
}

/// Goal: a peer may change its keys and ask for new ones at any time, between and under bytes. Method: rustls' own client, which refreshes its keys after each
/// of many messages; the machine answers with the same bytes.
#[test]
fn keys_are_renewed() {
    let settings = Settings::new();
    let buffers = Buffers::new(1 << 20);
    let [_, mut server] = settings.pair(&buffers);
    let client = ClientConnection::new(Arc::clone(&settings.client), settings.name.clone());
    let mut client = Connection::from(client.expect("settings"));
    let mut heard = Vec::new();
    let mut sent = Vec::new();
    for number in 0..200 {
        if !client.is_handshaking() {
            let message = vec![u8::try_from(number).expect("small"); 500];
            std::io::Write::write_all(&mut client.writer(), &message).expect("memory");
            sent.extend(message);
            client.refresh_traffic_keys().expect("it is connected");
        }
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).expect("memory");
        }
        let mut wire = wire.as_slice();
        while !wire.is_empty() {
            let room = server.room();
            let (piece, rest) = wire.split_at(wire.len().min(room.len()).min(3000));
            room[..piece.len()].copy_from_slice(piece);
            server.received(piece.len());
            wire = rest;
            let mut room = vec![0; 2000];
            loop {
                let count = server.decrypt(&mut room).expect("all is well");
                if count == 0 {
                    break;
                }
                let mut rest = &room[..count];
                while !rest.is_empty() {
                    flush(&mut server, &mut client);
                    let taken = server.encrypt(rest).expect("all is well");
                    rest = &rest[taken..];
                }
            }
        }
        flush(&mut server, &mut client);
        let _ = std::io::Read::read_to_end(&mut client.reader(), &mut heard);
    }
    assert!(sent.len() > 90_000 && heard == sent);
}

fn flush(server: &mut TlsMachine, client: &mut Connection) {
    while !server.outgoing().is_empty() {
        let count = client.read_tls(&mut server.outgoing()).expect("memory");
        server.sent(count);
        client.process_new_packets().expect("all is well");
    }
}
