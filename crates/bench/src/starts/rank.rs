//! A rank of a job that `vigie-run` has started.

use std::env;
use std::error::Error;
use std::fs;
use std::process;
use std::time::Duration;

use vigie_detect::{Instant, Server};
use vigie_runtime::{Flavor, Runtime};
use vigie_via::message::Endpoint;
use vigie_via::protocol::EngineConfig;
use vigie_via::shm::Shm;
use vigie_via::world::World;

/// The time within which the other ranks must have come.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Plays a rank if this process was started as one, and ends the process; returns at once otherwise.
pub(crate) fn play_if_rank() {
    if env::var_os(super::VARIABLE).is_none() {
        return;
    }
    let played = Runtime::builder().flavor(Flavor::UserLevel).build().map_err(Into::into);
    let played = played.and_then(|runtime| runtime.block_on(play()));
    if let Err(error) = &played {
        eprintln!("vigie-bench: a rank: {error}");
    }
    process::exit(i32::from(played.is_err()));
}

/// Returns the anonymous memory of this process: what it has for its own use.
fn anonymous_kib() -> Result<u64, Box<dyn Error>> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    Ok(line.and_then(|line| line.split_whitespace().next()).ok_or("no such line")?.parse()?)
}

async fn play() -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + TIMEOUT;
    let world = World::join(deadline).await?;
    let server = Server::current()?;
    let config = EngineConfig::default();
    let endpoint = Endpoint::join_over(&server, &world, Shm::open()?, config, deadline).await?;
    let communicator = endpoint.communicator();
    let (own, size) = (communicator.rank(), communicator.size());
    if own == 1 {
        println!("{} {}", super::ANONYMOUS, anonymous_kib()?);
    }
    communicator.send((own + 1) % size, 0, b"neighbor").await?;
    communicator.recv((own + size - 1) % size, 0).await?;
    // Waits for the others: no rank ends while one still needs it.
    world.leave(deadline).await?;
    Ok(())
}
