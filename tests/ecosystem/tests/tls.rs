//! TLS by rustls: hyper behind it, asked by curl; clients that speak something else; a certificate that has expired.

use std::{fs, io::ErrorKind, process::Command, sync::Arc};

use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::{rt::TokioIo, server::conn::auto};
use rcgen::{CertificateParams, CertifiedKey, KeyPair, date_time_ymd};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use vigie::{
    Runtime, http,
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task,
};

fn certificate(is_expired: bool) -> CertifiedKey<KeyPair> {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    if is_expired {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    }
    let signing_key = KeyPair::generate().unwrap();
    CertifiedKey { cert: params.self_signed(&signing_key).unwrap(), signing_key }
}

async fn answer(_: Request<Incoming>) -> Result<Response<String>, hyper::Error> {
    Ok(Response::new("secret".to_owned()))
}

/// Serves HTTPS: a task for each connection, in which the handshake runs, too. Returns the address.
async fn start(key: &CertifiedKey<KeyPair>) -> String {
    let chain: Vec<CertificateDer<'static>> = vec![key.cert.der().clone()];
    let private = PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(chain, private).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    vigie::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            vigie::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let server = auto::Builder::new(http::Executor::default());
                let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            })
            .detach();
        }
    })
    .detach();
    address
}

#[test]
fn curl_speaks_https() {
    Runtime::new().unwrap().block_on(async {
        let key = certificate(false);
        let address = start(&key).await;
        let file = std::env::temp_dir().join(format!("vigie-{}.pem", std::process::id()));
        fs::write(&file, key.cert.pem()).unwrap();
        let port = address.rsplit_once(':').unwrap().1.to_owned();
        let output = task::spawn_blocking(move || {
            let mut curl = Command::new("curl");
            curl.args(["-sS", "--max-time", "30", "--cacert"]).arg(&file);
            curl.args(["--resolve", &format!("localhost:{port}:127.0.0.1")]);
            let output =
                curl.arg(format!("https://localhost:{port}/")).output().expect("curl is installed");
            fs::remove_file(file).unwrap();
            output
        });
        let output = output.await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "secret", "{output:?}");
    });
}

#[test]
fn garbage_and_silence_end_their_connection_alone() {
    Runtime::new().unwrap().block_on(async {
        let address = start(&certificate(false)).await;
        let mut silent = TcpStream::connect(&*address).await.unwrap();
        let mut rude = TcpStream::connect(&*address).await.unwrap();
        rude.write_all(&[0x47; 4096]).await.unwrap();
        let mut rest = Vec::new();
        match rude.read_to_end(&mut rest).await {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        silent.write_all(b"\x16\x03").await.unwrap();
    });
}

#[test]
fn an_expired_certificate_is_refused() {
    Runtime::new().unwrap().block_on(async {
        let key = certificate(true);
        let address = start(&key).await;
        let mut roots = RootCertStore::empty();
        roots.add(key.cert.der().clone()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let stream = TcpStream::connect(&*address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let refused = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap_err();
        assert!(refused.to_string().contains("expired"), "{refused}");
    });
}
