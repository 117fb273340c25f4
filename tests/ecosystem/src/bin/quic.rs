//! QUIC by quinn: each stream is echoed, by a task of its own.
//!
//! `cargo run --bin quic CERTIFICATE.pem KEY.pem 127.0.0.1:4433`

use std::{env, error::Error, net::UdpSocket, sync::Arc};

use quinn::{Connection, Endpoint, EndpointConfig, Incoming, RecvStream, SendStream, ServerConfig};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use vigie::quic::QuinnRuntime;

/// The longest stream, in bytes.
const BYTES_MAX: usize = 1 << 20;

async fn echo(
    mut send: SendStream,
    mut receive: RecvStream,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let bytes = receive.read_to_end(BYTES_MAX).await?;
    send.write_all(&bytes).await?;
    send.finish()?;
    Ok(())
}

async fn serve(incoming: Incoming) {
    let connection: Connection = match incoming.await {
        Ok(connection) => connection,
        Err(error) => return eprintln!("{error}"),
    };
    while let Ok((send, receive)) = connection.accept_bi().await {
        vigie::spawn(async move {
            if let Err(error) = echo(send, receive).await {
                eprintln!("{error}");
            }
        })
        .detach();
    }
}

#[vigie::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(certificate), Some(key)) = (arguments.next(), arguments.next()) else {
        return Err("usage: quic CERTIFICATE.pem KEY.pem [ADDRESS]".into());
    };
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let config = ServerConfig::with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    let socket = UdpSocket::bind(arguments.next().unwrap_or("127.0.0.1:0".to_owned()))?;
    let runtime = Arc::new(QuinnRuntime);
    let endpoint = Endpoint::new(EndpointConfig::default(), Some(config), socket, runtime)?;
    println!("{}", endpoint.local_addr()?);
    while let Some(incoming) = endpoint.accept().await {
        vigie::spawn(serve(incoming)).detach();
    }
    Ok(())
}
