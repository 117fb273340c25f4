//! Messages between two processes whose tasks run in tokio: the detection server has a thread of its own.
//!
//! ```text
//! cargo build -p vigie --features cli-run --bins --examples
//! target/debug/vigie-run -n 2 target/debug/examples/via_inside_tokio
//! ```
//!
//! Rank 0 asks for squares of numbers, from a hundred tokio tasks, each with its own tag; rank 1 answers them.

use std::{error::Error, time::Duration};

use tokio::task::JoinSet;
use vigie::Instant;
use vigie::detect::Server;
use vigie::via::message::{Communicator, Endpoint, MessageError, SourceFilter, TagFilter};
use vigie::via::{protocol::EngineConfig, shm::Shm, world::World};

const TASKS: u32 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    // Drives the detection server, and sleeps while no wait is pending. Dropped last.
    let host = Server::spawn_thread()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    runtime.block_on(async {
        let deadline = Instant::now() + Duration::from_secs(30);
        let world = World::join_on(host.server(), deadline).await?;
        assert_eq!(world.size(), 2, "start two of me: vigie-run -n 2 via_inside_tokio");
        let (nic, config) = (Shm::open()?, EngineConfig::default());
        let endpoint = Endpoint::join_over(host.server(), &world, nic, config, deadline).await?;
        let all = endpoint.communicator();
        if all.rank() == 1 {
            for _ in 0..TASKS {
                let question = all.recv(SourceFilter::Any, TagFilter::Any).await?;
                let number = u32::from_le_bytes(question.bytes.as_slice().try_into()?);
                all.send(0, question.status.tag, &(number * number).to_le_bytes()).await?;
            }
        } else {
            let mut tasks: JoinSet<_> = (0..TASKS).map(|number| ask(all.clone(), number)).collect();
            while let Some(task) = tasks.join_next().await {
                task??;
            }
            println!("{TASKS} tasks of tokio have got their answers, all of them right");
        }
        world.leave(deadline).await?;
        Ok(())
    })
}

/// Asks for the square of a number; the tag tells this task's answer from those to the others.
async fn ask(all: Communicator<Shm>, number: u32) -> Result<(), MessageError> {
    all.send(1, number, &number.to_le_bytes()).await?;
    let mut square = [0; 4];
    all.recv_into(1, number, &mut square[..]).await?;
    assert_eq!(u32::from_le_bytes(square), number * number, "of {number}");
    Ok(())
}
