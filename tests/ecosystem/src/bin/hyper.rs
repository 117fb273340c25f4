//! A service on hyper, which ends in order at SIGTERM.
//!
//! `cargo run --bin hyper 127.0.0.1:8080`, then `curl http://127.0.0.1:8080/work`.

use std::{convert::Infallible, env, error::Error};

use hyper::{Request, Response, body::Incoming};
use vigie::{
    http,
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

/// Computes where it stands: the other connections are served meanwhile.
fn work() -> u64 {
    (0..1_000_000_u64).fold(0, |sum, number| sum ^ number.wrapping_mul(sum | 1))
}

async fn answer(request: Request<Incoming>) -> Result<Response<String>, Infallible> {
    Ok(Response::new(match request.uri().path() {
        "/work" => work().to_string(),
        path => format!("this is {path}"),
    }))
}

#[vigie::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or("127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    let mut terminated = signal(SignalKind::terminate())?;
    http::serve(listener, http::service_fn(answer))
        .with_graceful_shutdown(async move {
            terminated.recv().await;
        })
        .await?;
    Ok(())
}
