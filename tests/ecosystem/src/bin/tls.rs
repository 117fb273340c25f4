//! HTTPS by rustls: a task for each connection, in which the handshake runs, too.
//!
//! `cargo run --bin tls CERTIFICATE.pem KEY.pem 127.0.0.1:8443`, then `curl --cacert CERTIFICATE.pem https://localhost:8443/`.

use std::{convert::Infallible, env, error::Error, sync::Arc, time::Duration};

use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::{rt::TokioIo, server::conn::auto};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;
use vigie::{
    http,
    net::{TcpListener, TcpStream},
    time::timeout,
};

async fn answer(_: Request<Incoming>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("secret".to_owned()))
}

async fn serve(
    stream: TcpStream,
    acceptor: TlsAcceptor,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let stream = timeout(Duration::from_secs(10), acceptor.accept(stream)).await??;
    let mut server = auto::Builder::new(http::Executor::default());
    server.http1().timer(http::Timer::default());
    server.serve_connection(TokioIo::new(stream), service_fn(answer)).await
}

#[vigie::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(certificate), Some(key)) = (arguments.next(), arguments.next()) else {
        return Err("usage: tls CERTIFICATE.pem KEY.pem [ADDRESS]".into());
    };
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(arguments.next().unwrap_or("127.0.0.1:0".to_owned())).await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        let acceptor = acceptor.clone();
        vigie::spawn(async move {
            if let Err(error) = serve(stream, acceptor).await {
                eprintln!("{peer}: {error}");
            }
        })
        .detach();
    }
}
