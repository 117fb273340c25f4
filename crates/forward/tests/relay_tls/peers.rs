//! Clients and servers with rustls' own streams, which the relay does not use.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Arc,
};

use rustls::{
    ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned,
    SupportedProtocolVersion, crypto::ring, pki_types::ServerName, server::WebPkiClientVerifier,
};

use crate::{
    certificates::{Authority, Signed},
    serve,
};

/// A client's stream.
pub(crate) type ClientStream = StreamOwned<ClientConnection, TcpStream>;

/// The configuration of a client that trusts `authority`.
pub(crate) fn client_config(
    authority: &Authority,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(versions).expect("versions");
    builder.with_root_certificates(authority.roots()).with_no_client_auth()
}

/// The same, of a client that has a certificate.
pub(crate) fn client_with(
    authority: &Authority,
    version: &'static SupportedProtocolVersion,
    own: Option<&Signed>,
) -> ClientConfig {
    let Some(own) = own else { return client_config(authority, &[version]) };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(&[version]).expect("a version");
    let (chain, key) = own.der();
    let builder = builder.with_root_certificates(authority.roots());
    builder.with_client_auth_cert(chain, key).expect("a certificate and its key")
}

/// Puts TLS around a client's connection. The handshake comes with the first byte.
pub(crate) fn client(config: ClientConfig, name: &str, socket: TcpStream) -> ClientStream {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a configuration");
    StreamOwned::new(connection, socket)
}

/// Sends the end: TLS's and TCP's.
pub(crate) fn finish(stream: &mut ClientStream) -> io::Result<()> {
    stream.conn.send_close_notify();
    while stream.conn.wants_write() {
        stream.conn.write_tls(&mut stream.sock)?;
    }
    stream.sock.shutdown(Shutdown::Write)
}

/// The configuration of a server; it asks for certificates of `clients`, if given.
pub(crate) fn server_config(signed: &Signed, clients: Option<&Authority>) -> Arc<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let builder = match clients {
        Some(authority) => {
            let roots = Arc::new(authority.roots());
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            builder.with_client_cert_verifier(verifier.build().expect("an authority"))
        }
        None => builder.with_no_client_auth(),
    };
    let (chain, key) = signed.der();
    Arc::new(builder.with_single_cert(chain, key).expect("a certificate and its key"))
}

/// Serves TLS: each connection's bytes come back, and its end behind them.
pub(crate) fn tls_echo(config: Arc<ServerConfig>) -> SocketAddr {
    serve(move |socket| {
        let connection = ServerConnection::new(Arc::clone(&config)).expect("a configuration");
        let mut stream = StreamOwned::new(connection, socket);
        if echo(&mut stream).is_ok() {
            stream.conn.send_close_notify();
            while stream.conn.wants_write() && stream.conn.write_tls(&mut stream.sock).is_ok() {}
        }
    })
}

/// Serves without TLS, in the same way.
pub(crate) fn plain_echo() -> SocketAddr {
    serve(|mut socket| {
        if echo(&mut socket).is_ok() {
            let _ = socket.shutdown(Shutdown::Write);
        }
    })
}

/// Sends each connection a letter first, and then its bytes back.
pub(crate) fn lettered_echo(letter: u8) -> SocketAddr {
    serve(move |mut socket| {
        let _ = socket.write_all(&[letter]).and_then(|()| echo(&mut socket));
    })
}

fn echo<S: Read + Write>(stream: &mut S) -> io::Result<()> {
    let mut room = vec![0; 64 << 10];
    loop {
        match stream.read(&mut room)? {
            0 => return Ok(()),
            count => {
                stream.write_all(&room[..count])?;
                stream.flush()?;
            }
        }
    }
}
