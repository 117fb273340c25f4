//! A gRPC server: tonic's health service, on vigie's tasks.
//!
//! `cargo run --bin tonic 127.0.0.1:8080`, then `grpc_health_probe -addr 127.0.0.1:8080 -service ship`.

use std::{env, error::Error, time::Duration};

use tonic::service::Routes;
use tonic_health::{ServingStatus, server::health_reporter};
use vigie::{
    http,
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

#[vigie::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or("127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    let (reporter, health) = health_reporter();
    reporter.set_service_status("ship", ServingStatus::Serving).await;
    let mut terminated = signal(SignalKind::terminate())?;
    let shutdown = async move {
        terminated.recv().await;
        // Those who watch are told before their connections are drained.
        reporter.set_service_status("ship", ServingStatus::NotServing).await;
    };
    http::serve(listener, Routes::new(health).prepare().into_axum_router())
        .with_graceful_shutdown(shutdown)
        // Who watches does so for ever.
        .drain_timeout(Duration::from_millis(500))
        .await?;
    Ok(())
}
