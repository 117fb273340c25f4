//! A service behind layers of tower's: one upload at a time, and who comes meanwhile is told so at once.
//!
//! `cargo run --bin tower 127.0.0.1:8080`, then `curl --data-binary @FILE http://127.0.0.1:8080/`.

use std::{env, error::Error};

use http_body_util::BodyExt;
use hyper::{Request, Response, StatusCode, body::Incoming};
use tower::{BoxError, ServiceBuilder};
use vigie::{http, net::TcpListener};

async fn upload(request: Request<Incoming>) -> Result<Response<String>, hyper::Error> {
    let bytes = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(format!("{} bytes", bytes.len())))
}

/// Errors, also those of the layers, as answers.
fn answer(result: Result<Response<String>, BoxError>) -> Result<Response<String>, BoxError> {
    Ok(result.unwrap_or_else(|error| {
        let mut response = Response::new(error.to_string());
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
    }))
}

#[vigie::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or("127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    let service = ServiceBuilder::new()
        .map_result(answer)
        .load_shed()
        .concurrency_limit(1)
        .service(http::service_fn(upload));
    http::serve(listener, service).await?;
    Ok(())
}
