//! hyper's pooled client on vigie's sockets.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use http_body_util::BodyExt;
use hyper::{Response, service::service_fn};
use hyper_util::{rt::TokioIo, server::conn::auto};
use vigie::{Runtime, http, net::TcpListener};
use vigie_ecosystem::Service;

#[test]
fn connections_are_kept_for_the_next_request() {
    Runtime::new().unwrap().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepted = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&accepted);
        vigie::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                vigie::spawn(async move {
                    let answer = service_fn(|_| async {
                        Ok::<_, String>(Response::new("hello".to_owned()))
                    });
                    let server = auto::Builder::new(http::Executor::default());
                    server.serve_connection(TokioIo::new(stream), answer).await.unwrap();
                })
                .detach();
            }
        })
        .detach();

        let client = http::client::<String>();
        for _ in 0..100 {
            // By name: it is looked up on the blocking pool.
            let url = format!("http://localhost:{port}/").parse().unwrap();
            let response = client.get(url).await.unwrap();
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
        }
        // One or two more when an answer is read before its connection is back.
        let accepted = accepted.load(Ordering::SeqCst);
        assert!(accepted < 10, "{accepted} connections for 100 requests");

        let refused = client.get("http://127.0.0.1:1/".parse().unwrap()).await.unwrap_err();
        assert!(refused.is_connect(), "{refused}");
    });
}

#[test]
fn many_answers_are_counted() {
    let server = Service::start(env!("CARGO_BIN_EXE_axum"), &[]);
    let (hello, missing) =
        (format!("http://{}/", server.address), format!("http://{}/missing", server.address));
    let mut command = Command::new(env!("CARGO_BIN_EXE_client"));
    command.args(vec![&hello; 200]).args(vec![&missing; 3]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text,
        "200 OK: 200 answers, 1000 bytes\n404 Not Found: 3 answers, 0 bytes\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
