//! What a TCP relay adds to a round trip: its bytes copied, and spliced in the kernel, beside no relay at all.
//!
//! ```text
//! cargo run --release --features forward --example forward
//! ```
//!
//! `vigie-forward relay` is such a relay as a command; `vigie-bench forward --live` measures packets between
//! interfaces.

use std::{error::Error, net::SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie::forward::relay::{Relay, Transfer};
use vigie::net::{TcpListener, TcpStream};
use vigie::{Instant, Runtime};

const CALLS: usize = 2000;

fn main() -> Result<(), Box<dyn Error>> {
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    Runtime::builder().build()?.block_on(async {
        let listener = TcpListener::bind(any_port).await?;
        let upstream = listener.local_addr()?;
        vigie::spawn(echo(listener)).detach();
        measure("direct", upstream).await?;
        for (name, transfer) in [("copy", Transfer::Copy), ("splice", Transfer::Splice)] {
            let relay = Relay::builder(any_port).upstream(upstream).transfer(transfer).bind()?;
            let address = relay.endpoint().address().ok_or("it listens on TCP")?;
            vigie::spawn(relay.serve(|connection| vigie::spawn(connection).detach())).detach();
            measure(name, address).await?;
        }
        Ok(())
    })
}

/// Echoes what its clients send.
async fn echo(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let serve = async move {
            let mut message = [0; 64];
            while stream.read_exact(&mut message).await.is_ok()
                && stream.write_all(&message).await.is_ok()
            {}
        };
        vigie::spawn(serve).detach();
    }
}

/// Prints the median and the 99th percentile of round trips.
async fn measure(path: &str, address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut times, mut message) = (Vec::new(), [7; 64]);
    for _ in 0..CALLS {
        let began = Instant::now();
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    println!("{path:<8} p50 {:>10.1?}  p99 {:>10.1?}", times[CALLS / 2], times[CALLS * 99 / 100]);
    Ok(())
}
