//! Services on hyper, tower and axum, and a WebSocket server: asked by curl, by reqwest and by WebSocket clients.

use std::{
    io::{Read, Write},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::ws::{WebSocket, WebSocketUpgrade},
    routing::{any, get},
};
use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::{self, Message};
use vigie::{
    Runtime, http,
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task,
};
use vigie_ecosystem::Service;

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
    let (text, has_succeeded) =
        task::spawn_blocking(move || vigie_ecosystem::curl(&arguments)).await.unwrap();
    assert!(has_succeeded, "{text}");
    text
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

#[test]
fn curl_asks_hyper_and_it_ends_in_order() {
    let service = Service::start(env!("CARGO_BIN_EXE_hyper"), &[]);
    let url = |path: &str| format!("http://{}{path}", service.address);
    let (text, _) = vigie_ecosystem::curl(&[url("/one"), url("/two")]);
    assert_eq!(text, "this is /onethis is /two");
    let (text, _) = vigie_ecosystem::curl(&["--http2-prior-knowledge".to_owned(), url("/work")]);
    text.parse::<u64>().unwrap();
    assert!(service.terminate());
}

#[test]
fn tower_sheds_what_comes_beside_an_upload() {
    let service = Service::start(env!("CARGO_BIN_EXE_tower"), &[]);
    let url = format!("http://{}/", service.address);
    let upload = || vigie_ecosystem::curl(&["--data-binary", "abc", &url]).0;
    assert_eq!(upload(), "3 bytes");

    let mut slow = std::net::TcpStream::connect(&service.address).unwrap();
    let head = "POST / HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
    slow.write_all(head.as_bytes()).unwrap();
    // Comes when the handler asks for the body.
    let mut go_on = [0; 25];
    slow.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(upload(), "service overloaded");
    slow.write_all(b"12345").unwrap();
    let mut status = [0; 15];
    slow.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200 OK");
    assert_eq!(upload(), "3 bytes");
}

#[test]
fn curl_visits_axum() {
    let service = Service::start(env!("CARGO_BIN_EXE_axum"), &[]);
    let url = |name: &str| format!("http://{}/visits/{name}", service.address);
    let visit = |name| vigie_ecosystem::curl(&["-X", "POST", &url(name)]).0;
    assert_eq!([visit("ada"), visit("bob"), visit("ada")], ["1", "1", "2"]);
    let (text, _) = vigie_ecosystem::curl(&[url("ada")]);
    assert_eq!(text, "2");
    let (text, has_succeeded) = vigie_ecosystem::curl(&["-f", &url("eve")]);
    assert!(!has_succeeded && text.contains("404"), "{text}");
}

/// The clients are tungstenite's own, on plain threads.
#[test]
fn what_one_says_all_hear() {
    let service = Service::start(env!("CARGO_BIN_EXE_websocket"), &[]);
    let connect = || {
        let stream = std::net::TcpStream::connect(&service.address).unwrap();
        tungstenite::client(format!("ws://{}/", service.address), stream).unwrap().0
    };
    let mut clients = [connect(), connect(), connect()];
    // Who has heard himself is subscribed; so each says one thing before anything is compared.
    for (number, client) in clients.iter_mut().enumerate() {
        let own = Message::text(format!("i am {number}"));
        client.send(own.clone()).unwrap();
        while client.read().unwrap() != own {}
    }
    for number in 0..clients.len() {
        let said = Message::text(format!("ahoy from {number}"));
        clients[number].send(said.clone()).unwrap();
        for client in &mut clients {
            while client.read().unwrap() != said {}
        }
    }
    let mut rude = std::net::TcpStream::connect(&service.address).unwrap();
    rude.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    rude.read_to_end(&mut Vec::new()).unwrap();
    let [mut first, ..] = clients;
    first.close(None).unwrap();
    while first.read().is_ok() {}
}
