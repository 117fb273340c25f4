//! Ranks on any number of hosts, started by any launcher, send messages to each other: all to all.
//!
//! ```text
//! cargo build --release -p vigie --features cli-run --bins --examples
//! target/release/vigie-run -n 4 target/release/examples/all_to_all
//! mpiexec.hydra -n 4 target/release/examples/all_to_all
//! srun -N2 -n4 --mpi=pmi2 target/release/examples/all_to_all --toward 192.0.2.1
//! ```
//!
//! With `--toward ADDRESS` messages go over UDP, from this host's address in the network of ADDRESS: any host of the
//! shared network will do. Without it, over shared memory, which all ranks must have in common.

use std::{
    env,
    error::Error,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use vigie::detect::Server;
use vigie::via::software_nic::SoftwareNicConfig;
use vigie::via::{
    message::Endpoint, protocol::EngineConfig, shm::Shm, udp::Udp, vi::Provider, world::World,
};
use vigie::{Flavor, Instant, Runtime};

const ROUNDS: u32 = 10;
const MESSAGE_BYTES: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    Runtime::builder().flavor(Flavor::UserLevel).build()?.block_on(async {
        let world = World::join(Instant::now() + Duration::from_secs(60)).await?;
        match &arguments[..] {
            [] => exchange(&world, Shm::open()?).await,
            [option, there] if option == "--toward" => {
                let there = there.parse().map_err(|error| format!("`{there}`: {error}"))?;
                exchange(&world, udp(&world, there)?).await
            }
            _ => Err("usage: all_to_all [--toward ADDRESS]".into()),
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
    Ok(Udp::bind(here, world.secret(), SoftwareNicConfig::default())?)
}

/// Sends to all and receives from all.
async fn exchange<P: Provider + Send + 'static>(
    world: &World,
    nic: P,
) -> Result<(), Box<dyn Error>> {
    let (server, deadline) = (Server::current()?, Instant::now() + Duration::from_secs(60));
    let endpoint =
        Endpoint::join_over(&server, world, nic, EngineConfig::default(), deadline).await?;
    let (all, own, size) = (endpoint.communicator(), world.rank().0, world.size());
    for round in 0..ROUNDS {
        for to in (0..size).filter(|to| *to != own) {
            all.send(to, 0, &message(round, own, to)).await?;
        }
        for from in (0..size).filter(|from| *from != own) {
            let found = all.recv(from, 0).await?.bytes;
            assert!(found == message(round, from, own), "rank {from} has sent something else");
        }
    }
    if own == 0 {
        let count = u64::from(ROUNDS) * u64::from(size) * u64::from(size - 1);
        println!("{size} ranks: {count} messages of {MESSAGE_BYTES} bytes came as they were sent");
    }
    world.leave(deadline).await?;
    Ok(())
}

/// The message from `from` to `to`, different for each pair and round.
fn message(round: u32, from: u32, to: u32) -> Vec<u8> {
    let words = [round, from, to].map(u32::to_le_bytes).concat();
    words.into_iter().cycle().take(MESSAGE_BYTES).collect()
}
