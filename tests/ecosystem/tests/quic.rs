//! QUIC by quinn on vigie's sockets: many streams, with megabytes each.

use std::{net::UdpSocket, sync::Arc};

use quinn::{ClientConfig, Endpoint, EndpointConfig, ServerConfig, rustls::RootCertStore};
use rustls::pki_types::PrivateKeyDer;
use vigie::{Runtime, quic::QuinnRuntime, task::JoinSet};

const BYTES: usize = 1 << 20;

fn endpoint(server: Option<ServerConfig>) -> Endpoint {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(QuinnRuntime)).unwrap()
}

#[test]
fn streams_are_echoed() {
    let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let private = PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
    let chain = vec![key.cert.der().clone()];
    let server = ServerConfig::with_single_cert(chain, private).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(key.cert.der().clone()).unwrap();
    let client = ClientConfig::with_root_certificates(Arc::new(roots)).unwrap();

    Runtime::new().unwrap().block_on(async {
        let server = endpoint(Some(server));
        let address = server.local_addr().unwrap();
        vigie::spawn(async move {
            while let Some(incoming) = server.accept().await {
                let connection = incoming.await.unwrap();
                while let Ok((mut send, mut receive)) = connection.accept_bi().await {
                    vigie::spawn(async move {
                        let bytes = receive.read_to_end(BYTES).await.unwrap();
                        send.write_all(&bytes).await.unwrap();
                        send.finish().unwrap();
                    })
                    .detach();
                }
            }
        })
        .detach();

        let mut endpoint = endpoint(None);
        endpoint.set_default_client_config(client);
        let connection = endpoint.connect(address, "localhost").unwrap().await.unwrap();
        let mut streams = JoinSet::new();
        for number in 0..20 {
            let connection = connection.clone();
            streams.spawn(async move {
                let (mut send, mut receive) = connection.open_bi().await.unwrap();
                let sent = vec![number; BYTES];
                let echo = vigie::spawn(async move { receive.read_to_end(BYTES).await.unwrap() });
                send.write_all(&sent).await.unwrap();
                send.finish().unwrap();
                assert_eq!(echo.await.unwrap(), sent);
            });
        }
        while let Some(stream) = streams.join_next().await {
            stream.unwrap();
        }
        connection.close(0_u32.into(), b"done");
        endpoint.wait_idle().await;
    });
}
