//! hyper's pooled client: asks for each URL, ten requests at a time, and prints how many answers had which status.
//!
//! `cargo run --bin client URL...`, for example `client http://localhost:8080/{a,b,c}`.

use std::{collections::BTreeMap, env, error::Error};

use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use hyper::{StatusCode, Uri};
use vigie::http;

#[vigie::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let urls = env::args().skip(1).map(|url| url.parse()).collect::<Result<Vec<Uri>, _>>()?;
    let client = http::client::<String>();
    let mut answers = stream::iter(urls)
        .map(|url| {
            let request = client.get(url);
            async move {
                let response = request.await?;
                let status = response.status();
                // Read to its end, so that the connection serves the next request.
                let bytes = response.into_body().collect().await?.to_bytes();
                Ok::<_, Box<dyn Error>>((status, bytes.len()))
            }
        })
        .buffer_unordered(10);
    let mut counts = BTreeMap::<StatusCode, (u32, usize)>::new();
    while let Some(answer) = answers.next().await {
        let (status, bytes) = answer?;
        let (answers, sum_bytes) = counts.entry(status).or_default();
        *answers += 1;
        *sum_bytes += bytes;
    }
    for (status, (answers, bytes)) in counts {
        println!("{status}: {answers} answers, {bytes} bytes");
    }
    Ok(())
}
