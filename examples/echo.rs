//! A TCP echo server that keeps answering while compute tasks run in the same runtime.
//!
//! N compute tasks take all the processor time they get, and yield every 100 µs: well-behaved, but
//! numerous. A client in another process (this program, started again) sends a message every few
//! milliseconds and times its echo; vigie and tokio serve the same work in turns. With tokio a message
//! waits for the compute tasks before it in the queue; with vigie a thread that watches for events
//! serves it at once, so that its time depends neither on the length of the queue nor on how long a
//! task computes. (With an idle worker both answer at once; tokio is the faster one there.)
//!
//! Run it, for about half a minute:
//!
//! ```text
//! cargo run --release --example echo
//! ```
//!
//! It prints a table like this (2 cores, with other programs beside):
//!
//! ```text
//! Round trip beside N compute tasks (100µs between yields)
//! ───────────────────────────────────────────────────────────────────────
//!  compute tasks   vigie p50       p99   tokio p50       p99   p50 ratio
//! ═══════════════════════════════════════════════════════════════════════
//!  0                 22.8 µs    197 µs     14.7 µs    177 µs        1.55
//!  1                 17.6 µs   1.41 ms     14.0 µs   2.35 ms        1.26
//!  2                 9.96 µs    239 µs      106 µs    289 µs        0.09
//!  5                 15.0 µs    111 µs      186 µs    595 µs        0.08
//!  10                10.1 µs    232 µs      362 µs   2.35 ms        0.03
//! ───────────────────────────────────────────────────────────────────────
//! ```
//!
//! Another load: `--yield-every 10ms`, compute tasks that rarely yield. As a server for any client,
//! until it is interrupted:
//!
//! ```text
//! cargo run --release --example echo -- --serve 127.0.0.1:7007 --flavor user-level --compute 2
//! ```

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie::net::{TcpListener, TcpStream};
use vigie::{Flavor, Runtime};
use vigie_bench::BenchError;
use vigie_bench::client::PingPong;
use vigie_bench::compute::{YieldEvery, busy};
use vigie_bench::progress::Progress;
use vigie_bench::statistics::Samples;
use vigie_bench::table::{Table, time};

// ---- the server -------------------------------------------------------------------------------

/// Accepts connections for ever; each gets a task of its own.
async fn serve(listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _peer)) => vigie::spawn(echo(stream)).detach(),
            Err(error) => {
                // Out of descriptors, perhaps: the next one may find some.
                eprintln!("cannot accept: {error}");
                vigie::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Sends back whatever comes, until the peer closes.
async fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count]).await?,
        }
    }
}

/// Computes for ever, and yields now and then.
async fn compute(every: YieldEvery) {
    loop {
        busy(every.step());
        if every.yields() {
            vigie::yield_now().await;
        }
    }
}

/// Listens on `address`, and starts the compute tasks.
fn listen(address: SocketAddr, load: Load) -> io::Result<(SocketAddr, TcpListener)> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    for _ in 0..load.compute {
        vigie::spawn(compute(load.yield_every)).detach();
    }
    Ok((address, listener))
}

/// Serves on `address` until the process is interrupted.
fn serve_forever(address: SocketAddr, flavor: Flavor, load: Load) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder().flavor(flavor).workers(WORKERS).build()?;
    runtime.block_on(async {
        let (address, listener) = listen(address, load).map_err(|error| {
            format!("cannot listen on {address}: {error}; choose another (port 0 takes a free one)")
        })?;
        println!("echoing on {address} beside {} compute tasks; Ctrl-C ends it", load.compute);
        serve(listener).await;
        Ok(())
    })
}

/// Measures the round trips that vigie serves.
fn measure_vigie(load: Load, client: &Client<'_>) -> Result<Samples, Box<dyn Error>> {
    let runtime = Runtime::builder().flavor(Flavor::Hybrid).workers(WORKERS).build()?;
    let (address, listener) = runtime.block_on(async { listen(ANY_PORT, load) })?;
    runtime.spawn(serve(listener)).detach();
    Ok(client.measure(address)?)
    // Dropping the runtime ends its tasks.
}

// ---- the same on tokio --------------------------------------------------------------------------

mod on_tokio {
    use super::*;
    use tokio::net::{TcpListener, TcpStream};

    async fn serve(listener: TcpListener) -> io::Result<()> {
        loop {
            let (stream, _peer) = listener.accept().await?;
            tokio::spawn(echo(stream));
        }
    }

    async fn echo(mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut buffer = [0; 4096];
        loop {
            match stream.read(&mut buffer).await? {
                0 => return Ok(()),
                count => stream.write_all(&buffer[..count]).await?,
            }
        }
    }

    async fn compute(every: YieldEvery) {
        loop {
            busy(every.step());
            if every.yields() {
                tokio::task::yield_now().await;
            }
        }
    }

    pub(super) fn measure(load: Load, client: &Client<'_>) -> Result<Samples, Box<dyn Error>> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(WORKERS).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(ANY_PORT))?;
        let address = listener.local_addr()?;
        for _ in 0..load.compute {
            runtime.spawn(compute(load.yield_every));
        }
        runtime.spawn(serve(listener));
        let samples = client.measure(address);
        // A task that never yields cannot be waited for.
        runtime.shutdown_background();
        Ok(samples?)
    }
}

// ---- the comparison -----------------------------------------------------------------------------

const WORKERS: usize = 2;
const COMPUTE: [u32; 5] = [0, 1, 2, 5, 10];
const ROUNDS: u32 = 2;
const YIELD_EVERY_MAX: Duration = Duration::from_millis(20);
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The client's side of one measurement.
struct Client<'a> {
    progress: &'a Progress,
    samples: u32,
    cycle: Duration,
    seed: u64,
}

impl Client<'_> {
    /// Starts the client process and returns its round trips: all of them, or an error.
    fn measure(&self, address: SocketAddr) -> Result<Samples, BenchError> {
        let samples = self.samples as usize;
        let echoes = PingPong::new(address)
            .samples(self.samples)
            // Messages must meet the compute tasks at every point of their turn alike.
            .spacing(Duration::from_millis(1), self.cycle.max(Duration::from_millis(2)))
            .budget(Duration::from_secs(2))
            .patience(Duration::from_secs(5))
            .seed(self.seed)
            .run(&mut |done| self.progress.part(done, samples))?;
        assert_eq!(echoes.samples.len() as u64, echoes.sent, "every message came back");
        Ok(echoes.samples)
    }
}

fn compare(yield_every: YieldEvery) -> Result<(), Box<dyn Error>> {
    let headings = ["compute tasks", "vigie p50", "p99", "tokio p50", "p99", "p50 ratio"];
    let title = format!("Round trip beside N compute tasks ({yield_every} between yields)");
    let mut table = Table::new(title, headings.map(str::to_owned));
    let mut progress = Progress::new(COMPUTE.len() * 2 * ROUNDS as usize);
    for compute in COMPUTE {
        let load = Load { compute, yield_every };
        let cycle = yield_every.step() * compute;
        // Less often where each message takes long.
        let samples = if cycle > Duration::from_millis(5) { 25 } else { 500 };
        let (mut on_vigie, mut on_tokio) = (Samples::new(), Samples::new());
        for round in 0..ROUNDS {
            for (name, samples_of) in [("vigie", &mut on_vigie), ("tokio", &mut on_tokio)] {
                progress.case(format!("{name}, {compute} compute tasks"));
                let client = Client { progress: &progress, samples, cycle, seed: round.into() };
                let measured = match name {
                    "vigie" => measure_vigie(load, &client)?,
                    _ => on_tokio::measure(load, &client)?,
                };
                samples_of.extend(measured.as_nanoseconds().iter().copied());
                progress.case_done();
            }
        }
        table.row(row(compute, &on_vigie, &on_tokio).ok_or("no samples")?);
    }
    progress.finish();
    println!("{table}");
    println!(
        "p50 ratio: vigie / tokio, below 1 where vigie is faster. –: fewer than 1000 samples."
    );
    Ok(())
}

fn row(compute: u32, on_vigie: &Samples, on_tokio: &Samples) -> Option<[String; 6]> {
    let (vigie, tokio) = (on_vigie.summary()?, on_tokio.summary()?);
    let p50 = |p50: u64| time(p50 as f64);
    let p99 = |p99: Option<u64>| p99.map_or_else(|| "–".to_owned(), |p99| time(p99 as f64));
    let ratio = format!("{:.2}", vigie.p50 as f64 / tokio.p50 as f64);
    let (of_vigie, of_tokio) = (p50(vigie.p50), p50(tokio.p50));
    Some([compute.to_string(), of_vigie, p99(vigie.p99), of_tokio, p99(tokio.p99), ratio])
}

// ---- the command line ---------------------------------------------------------------------------

/// A TCP echo server beside compute tasks: compares vigie with tokio, or serves until interrupted.
#[derive(Debug, Parser)]
struct Arguments {
    /// Echo on this address until interrupted, instead of comparing (port 0 takes a free one).
    #[arg(long, value_name = "ADDR")]
    serve: Option<SocketAddr>,
    /// Flavor of the server.
    #[arg(long, requires = "serve", default_value = "hybrid")]
    flavor: FlavorName,
    /// Compute tasks beside the server.
    #[arg(long, requires = "serve", value_name = "N", default_value_t = 0)]
    compute: u32,
    /// How often each compute task yields: a duration such as 10ms or 100us, or never.
    #[arg(long, value_name = "TIME", default_value = "100us")]
    yield_every: YieldEvery,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FlavorName {
    UserLevel,
    Hybrid,
}

/// Compute tasks beside the server.
#[derive(Clone, Copy)]
struct Load {
    compute: u32,
    yield_every: YieldEvery,
}

/// An error that `main` shows as a text.
struct Shown(Box<dyn Error>);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

fn main() -> Result<(), Shown> {
    vigie_bench::child::maybe_run_child();
    run(Arguments::parse()).map_err(Shown)
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let Some(address) = arguments.serve else {
        if !arguments.yield_every.yields() || arguments.yield_every.step() > YIELD_EVERY_MAX {
            // Tasks that never yield could not be stopped between two measurements, and those that
            // yield once a second would let tokio answer after ten.
            let limit = YIELD_EVERY_MAX;
            return Err(format!(
                "to compare, tasks must yield every {limit:?} at least; `--serve` takes any"
            )
            .into());
        }
        return compare(arguments.yield_every);
    };
    let flavor = match arguments.flavor {
        FlavorName::UserLevel => Flavor::UserLevel,
        FlavorName::Hybrid => Flavor::Hybrid,
    };
    let load = Load { compute: arguments.compute, yield_every: arguments.yield_every };
    serve_forever(address, flavor, load)
}
