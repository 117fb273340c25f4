//! How long a barrier over the network takes, with one algorithm after the other.
//!
//! ```text
//! cargo run --release --features barrier --example barrier
//! ```
//!
//! Members are threads at loopback addresses, each with a runtime of its own, as on eight hosts. They meet where rank 0
//! listens. `vigie-bench barrier` has more.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use vigie::barrier::{Algorithm, Rank, net::NetBarrier};
use vigie::via::datagram::UdpConfig;
use vigie::{Flavor, Instant, Runtime};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const MEMBERS: u32 = 8;
const BARRIERS: u32 = 300;

fn main() -> Result<()> {
    for name in ["concurrent", "ternary", "binary", "dissemination", "central"] {
        let algorithm: Algorithm = name.parse()?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let members: Vec<_> =
            (0..MEMBERS).map(|rank| thread::spawn(move || run(rank, port, algorithm))).collect();
        let mut sum = Duration::ZERO;
        for member in members {
            sum += member.join().map_err(|_| "a member panicked")??;
        }
        println!("{name:<16}{:>10.1} µs", (sum / MEMBERS / BARRIERS).as_secs_f64() * 1e6);
    }
    Ok(())
}

/// One member. Returns the time that it took for all barriers.
fn run(rank: u32, port: u16, algorithm: Algorithm) -> Result<Duration> {
    // The port is in the address, so that concurrent runs do not meet.
    let [high, low] = port.to_be_bytes();
    let own = Ipv4Addr::new(127, high, low, u8::try_from(rank + 1)?);
    Runtime::builder().flavor(Flavor::UserLevel).build()?.block_on(async {
        let builder =
            NetBarrier::builder().network(UdpConfig::new(own.into())).algorithm(algorithm);
        let place = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let mut barrier = builder.form_at(place, Rank(rank), MEMBERS).await?;
        let began = Instant::now();
        for _ in 0..BARRIERS {
            barrier.wait().await?;
        }
        let took = began.elapsed();
        barrier.leave(Duration::from_secs(2)).await?;
        Ok(took)
    })
}
