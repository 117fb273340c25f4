//! The load of relays that end TLS: bytes that they encrypt and this process decrypts, and whole handshakes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::echo::processor_time;
use super::programs::SERVER_NAME;
use super::role::{LoadResult, LoadRole, connect};
use crate::clock::now;
use crate::error::Failure;

const BLOCK_BYTES: usize = 256 << 10;

/// Lets clients read what the sink writes as fast as it can, and then lets them shake hands.
pub(super) fn tls(
    role: &LoadRole,
    listener: TcpListener,
    connections: u32,
) -> Result<LoadResult, Failure> {
    let broken = |error| Failure::io("speaking TLS with the relay")(error);
    let config = trusting(role).map_err(broken)?;
    write_without_end(listener);
    // A relay that does not listen yet.
    drop(connect(role)?);
    let clients = Clients { role, config, connections };
    let (bytes, seconds, cost) = clients.run(stream).map_err(broken)?;
    let (shakes, shaken, shook) = clients.run(handshake).map_err(broken)?;
    let gigabytes = bytes / 1e9;
    Ok(LoadResult::Encrypted {
        gb_per_s: gigabytes / seconds,
        relay_s_per_gb: cost / gigabytes,
        handshakes_per_s: shakes / shaken,
        relay_handshake_us: shook / shakes * 1e6,
    })
}

/// TLS 1.3 with AES-128-GCM, and each handshake a whole one.
pub(super) fn trusting(role: &LoadRole) -> io::Result<Arc<ClientConfig>> {
    let certificate = role.certificate.as_deref().ok_or(io::ErrorKind::NotFound)?;
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(certificate).map_err(io::Error::other)?;
    roots.add(certificate).map_err(io::Error::other)?;
    let suites = vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256];
    let provider = CryptoProvider { cipher_suites: suites, ..ring::default_provider() };
    let builder = ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Writes as fast as it can on each connection on which a byte has come.
fn write_without_end(listener: TcpListener) {
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let bytes = vec![7; BLOCK_BYTES];
                if stream.read_exact(&mut [0]).is_ok() {
                    while stream.write_all(&bytes).is_ok() {}
                }
            });
        }
    });
}

/// What a client does until a time, adding to a count.
type Client = fn(SocketAddr, &Arc<ClientConfig>, Duration, &AtomicU64) -> io::Result<()>;

struct Clients<'a> {
    role: &'a LoadRole,
    config: Arc<ClientConfig>,
    connections: u32,
}

impl Clients<'_> {
    /// Returns what the clients have counted, the seconds, and the relay's processor time in seconds.
    fn run(&self, client: Client) -> io::Result<(f64, f64, f64)> {
        let (total, role) = (AtomicU64::new(0), self.role);
        let (busy, begin) = (processor_time(role.relay), now());
        thread::scope(|scope| {
            let one = || client(role.target, &self.config, role.budget, &total);
            let clients: Vec<_> = (0..self.connections).map(|_| scope.spawn(one)).collect();
            clients.into_iter().try_for_each(|client| {
                client.join().map_err(|_panic| io::Error::other("a client panicked"))?
            })
        })?;
        let cost = processor_time(role.relay).zip(busy).map(|(after, before)| after - before);
        let seconds = (now() - begin).as_secs_f64();
        Ok((total.into_inner() as f64, seconds, cost.unwrap_or(f64::NAN)))
    }
}

/// An encrypted stream to the relay.
pub(super) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

fn connected(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Shakes hands over a socket that blocks.
pub(super) fn shaken(socket: TcpStream, config: &Arc<ClientConfig>) -> io::Result<TlsStream> {
    let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
    let conn = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(conn, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

/// Counts bytes.
fn stream(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    time: Duration,
    total: &AtomicU64,
) -> io::Result<()> {
    let end = now() + time;
    let mut stream = shaken(connected(address)?, config)?;
    stream.write_all(&[1])?;
    let mut room = vec![0; BLOCK_BYTES];
    while now() < end {
        total.fetch_add(stream.read(&mut room)? as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Counts handshakes.
fn handshake(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    time: Duration,
    total: &AtomicU64,
) -> io::Result<()> {
    let end = now() + time;
    while now() < end {
        shaken(connected(address)?, config)?;
        total.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
