//! Measures relays that end TLS: `vigie-forward`, HAProxy and nginx, with the same certificate (ECDSA P-256), TLS 1.3 and
//! AES-128-GCM, one after the other in alternating turns.
//!
//! ```text
//! cargo build --profile measure --features cli-forward --bin vigie-forward
//! cargo run --profile measure -p vigie-forward --features tls --example relay_tls -- target/measure/vigie-forward
//! ```
//! A second argument chooses the relays, as in `vigie,haproxy`.
//!
//! The relay has core 1, this program (source and clients) core 0, both by `taskset`. The client decrypts all that the relay encrypts, so the
//! relay may not be the slowest of the two: therefore the relay's processor time stands beside the rates. Peers that are not
//! installed are left out, which is said.

use std::{
    env, fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    client::Resumption,
    crypto::{CryptoProvider, ring},
    pki_types::ServerName,
};
use vigie_detect::Instant;

const TURNS: usize = 5;
const RUN: Duration = Duration::from_millis(1500);
const CONNECTIONS: [usize; 2] = [1, 16];

fn main() -> io::Result<()> {
    let program = env::args().nth(1).unwrap_or_else(|| "target/measure/vigie-forward".to_owned());
    let folder = env::temp_dir().join(format!("vigie-relay-tls-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let config = certificates(&folder)?;
    let source = source()?;
    // This program itself, and the threads that it will have.
    let own = std::process::id().to_string();
    Command::new("taskset").args(["-acp", "0", &own]).stdout(Stdio::null()).status()?;
    let peers = env::args().nth(2).unwrap_or_else(|| "vigie,haproxy,nginx".to_owned());
    let mut relays = Vec::new();
    for peer in peers.split(',') {
        match start(peer, &program, &folder, source) {
            Ok(relay) => relays.push((peer, relay)),
            Err(error) => eprintln!("SKIPPED: {peer}: {error}"),
        }
    }
    println!(
        "| relay | connections | GB/s | relay's time, s/GB | handshakes/s | relay's time, µs |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for count in CONNECTIONS {
        let mut results = vec![Vec::new(); relays.len()];
        for _ in 0..TURNS {
            for ((_, relay), results) in relays.iter().zip(&mut results) {
                let (bytes, seconds, busy) = run(relay, count, &config, stream);
                let (shakes, shaken, shook) = run(relay, count, &config, handshake);
                let gigabytes = bytes / 1e9;
                results.push([
                    gigabytes / seconds,
                    busy / gigabytes,
                    shakes / shaken,
                    shook / shakes * 1e6,
                ]);
            }
        }
        for ((peer, _), results) in relays.iter().zip(results) {
            let [rate, cost, shakes, shook] =
                [0, 1, 2, 3].map(|at| median(results.iter().map(|one| one[at])));
            println!("| {peer} | {count} | {rate:.2} | {cost:.2} | {shakes:.0} | {shook:.0} |");
        }
    }
    for (_, mut relay) in relays {
        relay.child.kill().and_then(|()| relay.child.wait())?;
    }
    fs::remove_dir_all(folder)
}

struct Relay {
    child: Child,
    address: SocketAddr,
}

/// Makes the certificate, and the configuration of a client that trusts it.
fn certificates(folder: &Path) -> io::Result<Arc<ClientConfig>> {
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let params = CertificateParams::new(vec!["web.test".to_owned()]).map_err(io::Error::other)?;
    let certificate = params.self_signed(&key).map_err(io::Error::other)?;
    fs::write(folder.join("web.pem"), certificate.pem() + &key.serialize_pem())?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).map_err(io::Error::other)?;
    let suites = vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256];
    let provider = CryptoProvider { cipher_suites: suites, ..ring::default_provider() };
    let builder = ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    // Each handshake is a whole one.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Sends as much as it can on each connection that sends a byte.
fn source() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let bytes = vec![7; 256 << 10];
                if stream.read_exact(&mut [0]).is_ok() {
                    while stream.write_all(&bytes).is_ok() {}
                }
            });
        }
    });
    Ok(address)
}

/// Starts a relay on core 1, and waits until it accepts.
fn start(peer: &str, program: &str, folder: &Path, source: SocketAddr) -> io::Result<Relay> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let pem = folder.join("web.pem");
    let pem = pem.display();
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]);
    let write = |name: &str, text: String| -> io::Result<PathBuf> {
        let path = folder.join(name);
        fs::write(&path, text).map(|()| path)
    };
    match peer {
        "haproxy" => {
            let text = format!(
                "global\n  nbthread 1\n  maxconn 1000\n  tune.bufsize 65536\n\
                 defaults\n  mode tcp\n  timeout connect 9s\n  timeout client 1m\n  timeout server 1m\n\
                 frontend f\n  bind {address} ssl crt {pem} ssl-min-ver TLSv1.3\n  default_backend b\n\
                 backend b\n  server s {source}\n"
            );
            command.args(["haproxy", "-db", "-f"]).arg(write("haproxy.cfg", text)?);
        }
        "nginx" => {
            let text = format!(
                "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off;\nmaster_process off;\n\
                 error_log /dev/null crit;\npid nginx.pid;\nevents {{ worker_connections 4096; }}\n\
                 stream {{\n  server {{\n    listen {address} ssl;\n    ssl_certificate {pem};\n\
                 ssl_certificate_key {pem};\n    ssl_protocols TLSv1.3;\n    proxy_buffer_size 64k;\n\
                 proxy_pass {source};\n  }}\n}}\n"
            );
            let path = write("nginx.conf", text)?;
            command.arg("nginx").arg("-p").arg(folder).arg("-c").arg(path);
        }
        _ => {
            let (listen, to) = (format!("tcp://{address}"), format!("tcp://{source}"));
            command.args([program, "relay", "--listen", &listen, "--to", &to]);
            let pem = pem.to_string();
            command.args(["--tls-certificate", &pem, "--tls-key", &pem]);
            command.env("XDG_RUNTIME_DIR", folder);
        }
    }
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    for _ in 0..500 {
        if TcpStream::connect(address).is_ok() {
            return Ok(Relay { child, address });
        }
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("it has ended: {status}")));
        }
        thread::park_timeout(Duration::from_millis(10));
    }
    child.kill()?;
    Err(io::Error::other("it does not listen"))
}

/// Lets as many clients work as `count` says. Returns what they have counted, the seconds, and the relay's processor time in seconds.
fn run(
    relay: &Relay,
    count: usize,
    config: &Arc<ClientConfig>,
    client: fn(SocketAddr, &Arc<ClientConfig>, Instant, &AtomicU64) -> io::Result<()>,
) -> (f64, f64, f64) {
    let total = AtomicU64::new(0);
    let (busy, begin) = (processor_time(relay), Instant::now());
    let end = begin + RUN;
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                if let Err(error) = client(relay.address, config, end, &total) {
                    eprintln!("a client failed: {error}");
                }
            });
        }
    });
    let total = total.into_inner();
    #[expect(clippy::cast_precision_loss, reason = "few enough")]
    (total as f64, (Instant::now() - begin).as_secs_f64(), processor_time(relay) - busy)
}

fn connect(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let name = ServerName::try_from("web.test").map_err(io::Error::other)?;
    let connection = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    Ok(StreamOwned::new(connection, socket))
}

/// Counts bytes.
fn stream(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    end: Instant,
    total: &AtomicU64,
) -> io::Result<()> {
    let mut stream = connect(address, config)?;
    stream.write_all(&[1])?;
    let mut room = vec![0; 256 << 10];
    while Instant::now() < end {
        total.fetch_add(stream.read(&mut room)? as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Counts handshakes.
fn handshake(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    end: Instant,
    total: &AtomicU64,
) -> io::Result<()> {
    while Instant::now() < end {
        let mut stream = connect(address, config)?;
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        total.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// The processor time of a relay in seconds: fields 14 and 15 of its `stat`, in hundredths.
fn processor_time(relay: &Relay) -> f64 {
    let text = fs::read_to_string(format!("/proc/{}/stat", relay.child.id())).unwrap_or_default();
    let behind = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = behind.split(' ').skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
