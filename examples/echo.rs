//! An echo service that keeps answering while tasks compute in the same runtime, on vigie and on tokio.
//!
//! Both runtimes have two workers. N tasks compute for ever and yield every 10 ms, like a service that parses,
//! compresses or renders. A client on a thread of its own sends a message every few milliseconds, and measures the time
//! until its echo.
//!
//! On tokio a message waits for the tasks before it in the queue. On vigie the scheduler itself polls for events: while
//! all workers compute, a reserve thread watches, and the task that an event is for runs first.
//!
//! ```text
//! cargo run --release --example echo
//! ```
#![expect(
    clippy::disallowed_methods,
    reason = "the client is a plain thread, and tokio has no clock of ours"
)]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const WORKERS: usize = 2;
const COMPUTE: Duration = Duration::from_millis(10);
const MESSAGES: u32 = 200;
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn main() -> Result<(), Box<dyn Error>> {
    println!("Round trips of an echo beside N tasks that compute and yield every {COMPUTE:?}");
    println!("  N      vigie: median     slowest      tokio: median     slowest");
    for tasks in [0, 2, 10] {
        let (vigie, tokio) = (on_vigie(tasks)?, on_tokio(tasks)?);
        println!(
            "{tasks:3} {:>18.1?} {:>11.1?} {:>18.1?} {:>11.1?}",
            vigie.0, vigie.1, tokio.0, tokio.1
        );
    }
    Ok(())
}

/// Echoes all input, until the peer closes.
async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Computes for ever, and yields now and then.
async fn compute<Yielded: Future>(yield_now: impl Fn() -> Yielded) {
    loop {
        let began = Instant::now();
        while began.elapsed() < COMPUTE {}
        yield_now().await;
    }
}

fn on_vigie(tasks: u32) -> Result<(Duration, Duration), Box<dyn Error>> {
    let runtime = vigie::Runtime::builder().workers(WORKERS).build()?;
    let listener = runtime.block_on(vigie::net::TcpListener::bind(ANY_PORT))?;
    let address = listener.local_addr()?;
    for _ in 0..tasks {
        runtime.spawn(compute(vigie::yield_now)).detach();
    }
    let serve = async move {
        while let Ok((stream, _)) = listener.accept().await {
            vigie::spawn(echo(stream)).detach();
        }
    };
    runtime.spawn(serve).detach();
    measure(address)
}

fn on_tokio(tasks: u32) -> Result<(Duration, Duration), Box<dyn Error>> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind(ANY_PORT))?;
    let address = listener.local_addr()?;
    for _ in 0..tasks {
        runtime.spawn(compute(tokio::task::yield_now));
    }
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(echo(stream));
        }
    });
    measure(address)
}

/// Returns the median and the longest of some round trips.
fn measure(address: SocketAddr) -> Result<(Duration, Duration), Box<dyn Error>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    for message in 0..MESSAGES {
        // Not in step with the tasks that compute.
        thread::sleep(Duration::from_micros(2_000 + 700 * u64::from(message % 7)));
        let (sent, mut answer) = (Instant::now(), [0; 5]);
        stream.write_all(b"hello")?;
        stream.read_exact(&mut answer)?;
        times.push(sent.elapsed());
    }
    times.sort_unstable();
    Ok((times[times.len() / 2], times[times.len() - 1]))
}
