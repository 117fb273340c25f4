//! One-way latency of messages between two processes, by size, with the paper's Table 1 beside it.
//!
//! ```text
//! cargo build --release --features cli-run --bins --examples
//! target/release/vigie-run -n 2 --bind-to core target/release/examples/ping_pong
//! ```
//!
//! Sizes in bytes may follow, and the RDMA area, its frames and the window can be set (`--help`). With `--loan`
//! messages are written in place instead: compare `--loan 1048576` with `--loan --cache 0 1048576` to see the gain of
//! buffer pools. Rank 0 sends a message and waits for the answer; half of the round trip is the latency [via-lam, §5].

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use vigie::detect::Server;
use vigie::via::message::{Communicator, Endpoint};
use vigie::via::protocol::Config;
use vigie::via::shm::Shm;
use vigie::via::world::World;
use vigie::{Flavor, Instant, Runtime};

/// The paper's Table 1, local: size in bytes, microseconds over TCP and over VIA.
const PAPER: [(usize, f64, f64); 16] = [
    (1, 63.0, 10.0),
    (2, 63.0, 10.0),
    (4, 63.0, 10.0),
    (8, 63.0, 10.0),
    (16, 63.0, 10.0),
    (32, 63.0, 10.0),
    (64, 63.0, 11.0),
    (128, 64.0, 12.0),
    (256, 65.0, 18.0),
    (512, 67.0, 21.0),
    (1024, 72.0, 27.0),
    (2048, 81.0, 32.0),
    (4096, 117.0, 49.0),
    (8192, 175.0, 106.0),
    (16384, 305.0, 210.0),
    (32768, 529.0, 407.0),
];

/// Sizes beyond the paper's.
const LONGER: [usize; 3] = [256 << 10, 4 << 20, 64 << 20];

const SECONDS: Duration = Duration::from_secs(30);

/// One-way latency of messages between two processes.
#[derive(Debug, Parser)]
struct Arguments {
    /// Sizes of messages, in bytes. Default: the paper's, and some beyond
    sizes: Vec<usize>,
    /// The RDMA area for each peer, in bytes
    #[arg(long, default_value_t = Config::default().area_bytes)]
    area: u32,
    /// The longest frame, in bytes
    #[arg(long, default_value_t = Config::default().frame_bytes_max)]
    frame: u32,
    /// The bytes of a message in flight before its receiver must grant more
    #[arg(long, default_value_t = Config::default().window_bytes)]
    window: u32,
    /// Receive descriptors posted in advance
    #[arg(long, default_value_t = Config::default().descriptors)]
    descriptors: u32,
    /// Write each message in place instead of sending a copy of it
    #[arg(long)]
    loan: bool,
    /// The registered memory kept for reuse, in bytes
    #[arg(long, default_value_t = Config::default().cache_bytes_max)]
    cache: u64,
}

fn main() -> ExitCode {
    // A `main` that returned the error would print its fields, not its text, which says what to do.
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ping_pong: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    // One thread per rank: nothing else runs in it.
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build()?;
    runtime.block_on(async {
        let world = World::join(Instant::now() + SECONDS).await?;
        if world.size() != 2 {
            return Err("start two of me: vigie-run -n 2 --bind-to core ping_pong".into());
        }
        let mut config = Config::default();
        config.area_bytes = arguments.area;
        config.frame_bytes_max = arguments.frame;
        config.window_bytes = arguments.window;
        config.descriptors = arguments.descriptors;
        config.cache_bytes_max = arguments.cache;
        let (server, deadline) = (Server::current()?, Instant::now() + SECONDS);
        let endpoint = Endpoint::join_over(&server, &world, Shm::open()?, config, deadline).await?;
        let all = endpoint.communicator();
        if all.rank() == 0 {
            println!("   bytes   one way µs   paper: VIA   paper: TCP");
        }
        let usual = PAPER.iter().map(|row| row.0).chain(LONGER);
        let sizes =
            if arguments.sizes.is_empty() { usual.collect() } else { arguments.sizes.clone() };
        for size in sizes {
            let paper = PAPER.iter().find(|row| row.0 == size).map(|&(_, tcp, via)| (via, tcp));
            let one_way = exchange(&all, size, arguments.loan).await?;
            if all.rank() == 0 {
                let [via, tcp] = paper.map_or_else(
                    || ["–", "–"].map(str::to_owned),
                    |(via, tcp)| [via.to_string(), tcp.to_string()],
                );
                println!("{size:>8} {:>12.3} {via:>12} {tcp:>12}", one_way);
            }
        }
        world.leave(Instant::now() + SECONDS).await?;
        Ok(())
    })
}

/// Sends messages of `size` bytes to and fro. Returns the median of the one-way times, in microseconds, of
/// groups of round trips.
async fn exchange(
    all: &Communicator<Shm>,
    size: usize,
    is_loaned: bool,
) -> Result<f64, Box<dyn Error>> {
    let (out, mut back) = (vec![1; size], vec![0; size]);
    let groups = 101;
    let rounds = ((64 << 20) / (size + 1024) / groups).clamp(1, 200);
    let mut times = Vec::with_capacity(groups);
    for _ in 0..groups {
        let began = Instant::now();
        for _ in 0..rounds {
            if all.rank() == 0 {
                send(all, 1, &out, is_loaned).await?;
                all.receive_into(1, 0, &mut back[..]).await?;
            } else {
                all.receive_into(0, 0, &mut back[..]).await?;
                send(all, 0, &out, is_loaned).await?;
            }
        }
        let elapsed = Instant::now() - began;
        times.push(elapsed.as_secs_f64() * 1e6 / (2 * rounds) as f64);
    }
    if back != out {
        return Err("the message came back changed".into());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[groups / 2])
}

async fn send(
    all: &Communicator<Shm>,
    dest: u32,
    bytes: &[u8],
    is_loaned: bool,
) -> Result<(), Box<dyn Error>> {
    if !is_loaned {
        return Ok(all.send(dest, 0, bytes).await?);
    }
    let loan = all.loan(dest, u32::try_from(bytes.len())?)?;
    loan.write_at(0, bytes)?;
    Ok(all.send_loaned(loan, 0).await?)
}
