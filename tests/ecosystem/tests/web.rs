//! An axum service on vigie's tasks, asked by curl, by reqwest and by a WebSocket client.

use std::{process::Command, time::Duration};

use axum::{
    Json, Router,
    extract::ws::{WebSocket, WebSocketUpgrade},
    routing::{any, get},
};
use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::Message;
use vigie::{
    Runtime, http,
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task,
};

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

/// `/hold` blocks the thread that runs it until `/release` is asked for: the service must answer meanwhile.
fn router() -> Router {
    let (release, held) = std::sync::mpsc::channel();
    let held = std::sync::Arc::new(std::sync::Mutex::new(held));
    let hold = move || async move {
        held.lock()
            .unwrap()
            .recv_timeout(Duration::from_secs(60))
            .map_err(|error| error.to_string())?;
        Ok::<_, String>("held")
    };
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/json", get(|| async { Json([1, 2, 3]) }))
        .route("/hold", get(hold))
        .route(
            "/release",
            get(move || async move { release.send(()).map_err(|error| error.to_string()) }),
        )
        .route("/echo", any(|upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(echo) }))
}

/// Starts the service. Returns its address.
async fn start() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    vigie::spawn(async move { http::serve(listener, router()).await }).detach();
    address
}

/// One worker, so that what blocks would block all.
fn runtime() -> Runtime {
    Runtime::builder().workers(1).tokio_context(true).build().unwrap()
}

async fn curl(arguments: Vec<String>) -> String {
    task::spawn_blocking(move || {
        let output =
            Command::new("curl").args(["-sS", "--max-time", "30"]).args(&arguments).output();
        let output = output.expect("curl is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    })
    .await
    .unwrap()
}

#[test]
fn curl_is_answered_beside_a_handler_that_blocks() {
    runtime().block_on(async {
        let address = start().await;
        let url = |path: &str| format!("http://{address}{path}");
        assert_eq!(curl(vec![url("/")]).await, "hello");
        assert_eq!(curl(vec!["--http2-prior-knowledge".into(), url("/json")]).await, "[1,2,3]");
        let held = vigie::spawn(curl(vec![url("/hold")]));
        assert_eq!(curl(vec![url("/")]).await, "hello");
        curl(vec![url("/release")]).await;
        assert_eq!(held.await.unwrap(), "held");
    });
}

#[test]
fn reqwest_runs_in_tokios_context() {
    runtime().block_on(async {
        let address = start().await;
        let numbers: Vec<u32> =
            reqwest::get(format!("http://{address}/json")).await.unwrap().json().await.unwrap();
        assert_eq!(numbers, [1, 2, 3]);
    });
}

#[test]
fn axums_own_server_runs_in_tokios_context() {
    runtime().block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, mut stopped) = mpsc::channel::<()>(1);
        let server = axum::serve(listener, router()).with_graceful_shutdown(async move {
            let _ = stopped.recv().await;
        });
        let server = vigie::spawn(async move { server.await });
        assert_eq!(curl(vec![format!("http://{address}/")]).await, "hello");
        drop(stop);
        server.await.unwrap().unwrap();
    });
}

#[test]
fn websocket_messages_come_back() {
    runtime().block_on(async {
        let address = start().await;
        let stream = TcpStream::connect(&*address).await.unwrap();
        let (mut socket, _) =
            tokio_tungstenite::client_async(format!("ws://{address}/echo"), stream).await.unwrap();
        for number in 0..100 {
            let message = Message::text(number.to_string());
            socket.send(message.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), message);
        }
        socket.close(None).await.unwrap();
    });
}
