//! One-way latency of messages between two processes, by size.
//!
//! ```text
//! cargo build --release -p vigie --features cli-run --bins --examples
//! target/release/vigie-run -n 2 --bind-to core target/release/examples/ping_pong 8 4096 65536
//! ```
//!
//! Rank 0 sends a message and waits for the answer; half of the round trip is the latency [via-lam, §5]. `vigie-bench
//! pingpong` compares it with other ways.

use std::{env, error::Error, time::Duration};

use vigie::via::message::{Communicator, Endpoint};
use vigie::via::{shm::Shm, world::World};
use vigie::{Flavor, Instant, Runtime};

const GROUPS: usize = 101;

fn main() -> Result<(), Box<dyn Error>> {
    let size = |text: String| {
        text.parse().map_err(|error| format!("`{text}` is no size in bytes: {error}"))
    };
    let mut sizes = env::args().skip(1).map(size).collect::<Result<Vec<_>, _>>()?;
    if sizes.is_empty() {
        sizes = vec![1, 64, 4096, 32 << 10, 4 << 20];
    }
    // One thread per rank: nothing else runs in it.
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build()?;
    runtime.block_on(async {
        let deadline = Instant::now() + Duration::from_secs(30);
        let world = World::join(deadline).await?;
        if world.size() != 2 {
            return Err("start two of me: vigie-run -n 2 --bind-to core ping_pong".into());
        }
        let all = Endpoint::join(&world, deadline).await?.communicator();
        for size in sizes {
            let micros = exchange(&all, size).await?;
            if all.rank() == 0 {
                println!("{size:>8} bytes {micros:>12.3} µs");
            }
        }
        world.leave(deadline).await?;
        Ok(())
    })
}

/// Sends messages of `size` bytes to and fro. Returns the median of the one-way times, in microseconds, of groups of
/// round trips.
async fn exchange(all: &Communicator<Shm>, size: usize) -> Result<f64, Box<dyn Error>> {
    let (out, mut back) = (vec![1; size], vec![0; size]);
    let rounds = ((64 << 20) / (size + 1024) / GROUPS).clamp(1, 200);
    let mut times = Vec::with_capacity(GROUPS);
    for _ in 0..GROUPS {
        let began = Instant::now();
        for _ in 0..rounds {
            if all.rank() == 0 {
                all.send(1, 0, &out).await?;
            }
            all.recv_into(1 - all.rank(), 0, &mut back[..]).await?;
            if all.rank() == 1 {
                all.send(0, 0, &out).await?;
            }
        }
        times.push(began.elapsed().as_secs_f64() * 1e6 / (2 * rounds) as f64);
    }
    assert!(back == out, "the message came back changed");
    times.sort_by(f64::total_cmp);
    Ok(times[GROUPS / 2])
}
