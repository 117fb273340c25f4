//! A key-value store on all ranks, which survives the death of one.
//!
//! ```text
//! cargo build -p vigie --features cli-run --bins --examples
//! target/debug/vigie-run -n 4 --keep-going target/debug/examples/kv
//! ```
//!
//! A write is acknowledged once all living ranks have it. Every rank writes its own keys, and half way the last one
//! kills itself. The others learn of it, go on, and check that each of them has all that was acknowledged. `vigie-run`
//! ends with the status of the rank that was killed, 137.

use std::{cell::RefCell, collections::BTreeMap, error::Error, rc::Rc, time::Duration};

use rustix::process::{Signal, getpid, kill_process};
use vigie::via::message::{Communicator, Endpoint, MessageError, SourceFilter};
use vigie::via::{shm::Shm, world::World};
use vigie::{Flavor, Instant, Runtime};

/// Tags of messages.
const WRITE: u32 = 0;
const DONE: u32 = 1;
/// Writes of each rank.
const WRITES: u32 = 200;

/// Values by the rank that wrote them, and their number.
type Store = RefCell<BTreeMap<(u32, u32), Vec<u8>>>;

fn main() -> Result<(), Box<dyn Error>> {
    Runtime::builder().flavor(Flavor::UserLevel).build()?.block_on(async {
        let deadline = Instant::now() + Duration::from_secs(30);
        let world = World::join(deadline).await?;
        let all = Endpoint::join(&world, deadline).await?.communicator();
        if all.size() < 2 {
            return Err("start several of me: vigie-run -n 4 --keep-going kv".into());
        }
        let (own, victim, store) = (all.rank(), all.size() - 1, Rc::new(Store::default()));
        vigie::spawn_local(serve(all.clone(), Rc::clone(&store))).detach();
        for number in 0..WRITES {
            if own == victim && number == WRITES / 2 {
                println!("rank {own}: killing myself after {number} acknowledged writes");
                kill_process(getpid(), Signal::KILL)?;
            }
            let value = format!("value {number} of rank {own}").into_bytes();
            for rank in (0..=victim).filter(|rank| *rank != own) {
                match write(&all, rank, number, &value).await {
                    // It has died, and does not count any more.
                    Err(error) if error.failed_rank().is_some() => {}
                    result => result?,
                }
            }
            store.borrow_mut().insert((own, number), value);
        }
        // All survivors have written; the launcher leaves out the dead.
        world.barrier(deadline).await?;
        for writer in 0..=victim {
            for number in 0..if writer == victim { WRITES / 2 } else { WRITES } {
                assert!(
                    store.borrow().contains_key(&(writer, number)),
                    "{writer}'s {number} is lost"
                );
            }
        }
        println!("rank {own}: all acknowledged writes are here, {} in all", store.borrow().len());
        world.leave(deadline).await?;
        Ok(())
    })
}

/// Sends a write to a rank, and waits until it is there.
async fn write(
    all: &Communicator<Shm>,
    rank: u32,
    number: u32,
    value: &[u8],
) -> Result<(), MessageError> {
    all.send(rank, WRITE, &[&number.to_le_bytes()[..], value].concat()).await?;
    all.recv(rank, DONE).await?;
    Ok(())
}

/// Stores what others write.
async fn serve(all: Communicator<Shm>, store: Rc<Store>) {
    loop {
        match all.recv(SourceFilter::Any, WRITE).await {
            Ok(message) => {
                let from = message.status.source;
                if let Some((number, value)) = message.bytes.split_first_chunk() {
                    let key = (from, u32::from_le_bytes(*number));
                    store.borrow_mut().insert(key, value.to_vec());
                }
                // A writer that has died needs no answer.
                drop(all.send(from, DONE, &[]).await);
            }
            Err(error) => match error.failed_rank() {
                // Nobody is left who could write: each further receive would fail at once.
                Some(_) if all.failures(0).len() + 1 >= all.size() as usize => return,
                Some((rank, reason)) => println!("rank {}: rank {rank}: {reason}", all.rank()),
                None => return,
            },
        }
    }
}
