//! A router of axum's on vigie's tasks: visitors are counted, by name.
//!
//! `cargo run --bin axum 127.0.0.1:8080`, then `curl -X POST http://127.0.0.1:8080/visits/ada`.

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::{get, post},
};
use vigie::{http, net::TcpListener};

type Visits = Arc<Mutex<BTreeMap<String, u32>>>;

async fn visit(State(visits): State<Visits>, Path(name): Path<String>) -> Json<u32> {
    let mut visits = visits.lock().unwrap();
    let count = visits.entry(name).or_default();
    *count += 1;
    Json(*count)
}

async fn count(
    State(visits): State<Visits>,
    Path(name): Path<String>,
) -> Result<Json<u32>, StatusCode> {
    visits.lock().unwrap().get(&name).copied().map(Json).ok_or(StatusCode::NOT_FOUND)
}

#[vigie::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or("127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/visits/{name}", post(visit).get(count))
        .with_state(Visits::default());
    http::serve(listener, router).await?;
    Ok(())
}
