//! hyper's pooled client on vigie's sockets.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use http_body_util::BodyExt;
use hyper::{Response, service::service_fn};
use hyper_util::{rt::TokioIo, server::conn::auto};
use vigie::{Runtime, http, net::TcpListener};

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
