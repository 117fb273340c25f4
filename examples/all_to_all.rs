//! Ranks on any number of hosts, started by any launcher, send messages to each other: all to all.
//!
//! ```text
//! cargo build --release --features cli-run --bins --examples
//! target/release/vigie-run -n 4 target/release/examples/all_to_all
//! mpiexec.hydra -n 4 target/release/examples/all_to_all
//! srun -N2 -n4 --mpi=pmi2 target/release/examples/all_to_all --toward 192.0.2.1
//! ```
//!
//! With `--toward ADDRESS` messages go over UDP, from this host's address in the network of ADDRESS: any host of the
//! shared network will do. Without it, over shared memory, which all ranks must have in common. After the exchange all
//! ranks wait for rank 0, which pauses for half a second. Expected output: one line of rank 0, with the number of
//! messages, all of them checked, and the largest share of a processor that any rank used while waiting.

use std::{
    error::Error,
    net::{IpAddr, SocketAddr, UdpSocket},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use vigie::{
    Flavor, Instant, Runtime,
    detect::Server,
    time::sleep,
    via::{
        message::{Communicator, Endpoint},
        protocol::Config,
        shm::Shm,
        software_nic::{self, Secret},
        udp::Udp,
        vi::Provider,
        world::World,
    },
};

const PATIENCE: Duration = Duration::from_secs(60);
/// How long rank 0 lets the others wait.
const PAUSE: Duration = Duration::from_millis(500);
/// The length of a message, in bytes.
const MESSAGE_BYTES: usize = 1024;

/// All ranks send messages to each other.
#[derive(Debug, Parser)]
struct Arguments {
    /// Use UDP, from this host's address in the network of this one
    #[arg(long, value_name = "ADDRESS")]
    toward: Option<IpAddr>,
    /// How often every rank sends to every other
    #[arg(long, default_value_t = 10)]
    rounds: u32,
}

fn main() -> ExitCode {
    // A `main` that returned the error would print its fields, not its text, which says what to do.
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("all_to_all: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build()?;
    runtime.block_on(async {
        let (server, deadline) = (Server::current()?, Instant::now() + PATIENCE);
        let world = World::join(deadline).await?;
        match arguments.toward {
            None => meet(&server, &world, Shm::open()?, arguments.rounds).await,
            Some(there) => {
                let nic = udp(&world, there)?;
                meet(&server, &world, nic, arguments.rounds).await
            }
        }
    })
}

/// Creates a NIC at this host's address in the network of `there`, only for ranks of this world.
fn udp(world: &World, there: IpAddr) -> Result<Udp, Box<dyn Error>> {
    let any: IpAddr = if there.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    // Connecting sends nothing: the kernel looks up the route, and with that the address.
    let way = UdpSocket::bind(SocketAddr::new(any, 0))?;
    way.connect(SocketAddr::new(there, 9))?;
    let here = SocketAddr::new(way.local_addr()?.ip(), 0);
    let (secret, _) = world.identity().secret.split_first_chunk().ok_or("secrets are longer")?;
    Ok(Udp::bind(here, Secret::new(*secret), software_nic::Config::default())?)
}

async fn meet<P: Provider + Send + 'static>(
    server: &Server,
    world: &World,
    nic: P,
    rounds: u32,
) -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + PATIENCE;
    let endpoint = Endpoint::join_over(server, world, nic, Config::default(), deadline).await?;
    let all = endpoint.communicator();
    let (own, size) = (world.rank().0, world.size());
    for round in 0..rounds {
        exchange(&all, round, own, size).await?;
    }
    let share = wait_for_first(&all, own, size).await?;
    // Shares travel through the launcher: no rank has to be waited for any more.
    let shares = world.all_gather("share", &share.to_le_bytes(), deadline).await?;
    let shares = shares.into_iter().flatten().filter_map(|bytes| bytes.try_into().ok());
    let largest = shares.map(f64::from_le_bytes).fold(0.0, f64::max);
    if own == 0 {
        let count = u64::from(rounds) * u64::from(size) * u64::from(size - 1);
        println!(
            "{size} ranks: {count} messages of {MESSAGE_BYTES} bytes came as they were sent; waiting \
             took at most {:.1} % of a processor",
            100.0 * largest
        );
    }
    world.leave(deadline).await?;
    Ok(())
}

/// Sends to all and receives from all.
async fn exchange<P: Provider>(
    all: &Communicator<P>,
    round: u32,
    own: u32,
    size: u32,
) -> Result<(), Box<dyn Error>> {
    for step in 1..size {
        let to = (own + step) % size;
        all.send(to, 0, &message(round, own, to)).await?;
    }
    for step in 1..size {
        let from = (own + size - step) % size;
        let mut found = [0; MESSAGE_BYTES];
        all.receive_into(from, 0, &mut found[..]).await?;
        if found[..] != message(round, from, own) {
            return Err(format!("a message of rank {from} is not what was sent").into());
        }
    }
    Ok(())
}

/// The message from `from` to `to`, different for each pair and round.
fn message(round: u32, from: u32, to: u32) -> Vec<u8> {
    let words = [round, from, to].map(u32::to_le_bytes).concat();
    words.into_iter().cycle().take(MESSAGE_BYTES).collect()
}

/// Waits for rank 0. Returns the share of a processor that this took.
async fn wait_for_first<P: Provider>(
    all: &Communicator<P>,
    own: u32,
    size: u32,
) -> Result<f64, Box<dyn Error>> {
    if own == 0 {
        sleep(PAUSE).await;
        for to in 1..size {
            all.send(to, 1, b"now").await?;
        }
        return Ok(0.0);
    }
    let used = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::try_from(time).map_err(|_| "time does not run backwards")
    };
    let (began, used_before) = (Instant::now(), used()?);
    all.receive_into(0, 1, &mut [0; 3][..]).await?;
    let used_by_waiting = used()?.saturating_sub(used_before);
    Ok(used_by_waiting.as_secs_f64() / (Instant::now() - began).as_secs_f64())
}
