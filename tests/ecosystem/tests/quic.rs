//! QUIC by quinn on vigie's sockets: many streams, with megabytes each, of which a client on vigie's and one on tokio's sockets are echoed.

use std::{net::UdpSocket, sync::Arc};

use quinn::{ClientConfig, Endpoint, EndpointConfig, TokioRuntime, rustls::RootCertStore};
use vigie::quic::QuinnRuntime;
use vigie_ecosystem::{PemFiles, Service};

const BYTES: usize = 1 << 20;

/// Starts the server. Returns it, and what its clients must know.
fn start() -> (Service, ClientConfig) {
    let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let files = PemFiles::write(key.cert.pem(), key.signing_key.serialize_pem());
    let mut roots = RootCertStore::empty();
    roots.add(key.cert.der().clone()).unwrap();
    let program = env!("CARGO_BIN_EXE_quic");
    let service = Service::start(program, &[files.certificate.as_ref(), files.key.as_ref()]);
    (service, ClientConfig::with_root_certificates(Arc::new(roots)).unwrap())
}

/// Twenty streams at once.
async fn check_echoes(service: &Service, config: ClientConfig, runtime: impl quinn::Runtime) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut endpoint =
        Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(runtime)).unwrap();
    endpoint.set_default_client_config(config);
    let address = service.address.parse().unwrap();
    let connection = endpoint.connect(address, "localhost").unwrap().await.unwrap();
    let echoes = (0..20).map(|number| stream(&connection, number));
    futures_util::future::join_all(echoes).await;
    connection.close(0_u32.into(), b"done");
    endpoint.wait_idle().await;
}

async fn stream(connection: &quinn::Connection, number: u8) {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    let sent = vec![number; BYTES];
    send.write_all(&sent).await.unwrap();
    send.finish().unwrap();
    assert_eq!(receive.read_to_end(BYTES).await.unwrap(), sent);
}

#[test]
fn streams_are_echoed() {
    let (service, config) = start();
    let runtime = vigie::Runtime::new().unwrap();
    runtime.block_on(check_echoes(&service, config, QuinnRuntime));
}

#[test]
fn a_client_on_tokio_is_echoed() {
    let (service, config) = start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(check_echoes(&service, config, TokioRuntime));
}
