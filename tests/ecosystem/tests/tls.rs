//! TLS by rustls: hyper behind it, asked by curl; clients that speak something else; a certificate that has expired.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    sync::Arc,
};

use rcgen::{CertificateParams, CertifiedKey, KeyPair, date_time_ymd};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use vigie_ecosystem::{PemFiles, Service, curl};

fn certificate(is_expired: bool) -> CertifiedKey<KeyPair> {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    if is_expired {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    }
    let signing_key = KeyPair::generate().unwrap();
    CertifiedKey { cert: params.self_signed(&signing_key).unwrap(), signing_key }
}

/// Starts the server with this certificate.
fn start(key: &CertifiedKey<KeyPair>) -> (Service, PemFiles) {
    let files = PemFiles::write(key.cert.pem(), key.signing_key.serialize_pem());
    let service = Service::start(
        env!("CARGO_BIN_EXE_tls"),
        &[files.certificate.as_ref(), files.key.as_ref()],
    );
    (service, files)
}

#[test]
fn curl_speaks_https() {
    let (service, files) = start(&certificate(false));
    let name = format!("localhost:{}", service.port());
    let resolve = format!("{name}:127.0.0.1");
    for version in ["--http1.1", "--http2"] {
        let (text, _) = curl(&[
            version.as_ref(),
            "--cacert".as_ref(),
            files.certificate.as_os_str(),
            "--resolve".as_ref(),
            resolve.as_ref(),
            format!("https://{name}/").as_ref(),
        ]);
        assert_eq!(text, "secret");
    }
    let (text, is_trusted) = curl(&[format!("https://{}/", service.address)]);
    assert!(!is_trusted && text.contains("certificate"), "{text}");
}

#[test]
fn garbage_and_silence_end_their_connection_alone() {
    let (service, files) = start(&certificate(false));
    let mut silent = TcpStream::connect(&service.address).unwrap();
    silent.write_all(b"\x16\x03").unwrap();
    let mut rude = TcpStream::connect(&service.address).unwrap();
    rude.write_all(&[0x47; 4096]).unwrap();
    match rude.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.certificate).unwrap()).unwrap();
    assert!(handshake(&service, roots).is_ok());
    silent.write_all(b"\x01").unwrap();
}

/// Shakes hands as rustls's own client does, on a plain thread.
fn handshake(service: &Service, roots: RootCertStore) -> std::io::Result<()> {
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = TcpStream::connect(&service.address).unwrap();
    while client.is_handshaking() {
        client.complete_io(&mut stream)?;
    }
    Ok(())
}

#[test]
fn an_expired_certificate_is_refused() {
    let key = certificate(true);
    let (service, _files) = start(&key);
    let mut roots = RootCertStore::empty();
    roots.add(key.cert.der().clone()).unwrap();
    let refused = handshake(&service, roots).unwrap_err();
    assert!(refused.to_string().contains("expired"), "{refused}");
}
