//! Messages between two processes whose tasks run in tokio: the detection server has a thread of its own.
//!
//! ```text
//! cargo build --features cli-run --bins --examples
//! target/debug/vigie-run -n 2 target/debug/examples/via_inside_tokio
//! ```
//!
//! Rank 0 asks for squares of numbers, from many concurrent tokio tasks, each with its own tag; rank 1 answers them,
//! and counts with tokio's timer meanwhile. It prints:
//!
//! ```text
//! rank 0: 100 tasks of tokio have got 1000 answers, all of them right
//! rank 1: answered 1000 questions, and tokio's clock ticked beside
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use tokio::task::JoinSet;
use vigie::Instant;
use vigie::detect::Server;
use vigie::via::message::{Communicator, Endpoint, MessageError, Source, Tag};
use vigie::via::protocol::Config;
use vigie::via::shm::Shm;
use vigie::via::world::World;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SECONDS: Duration = Duration::from_secs(30);
const TASKS: u32 = 100;
const QUESTIONS: u64 = 10;
/// A tag beyond those of the tasks: no more questions.
const END: u32 = TASKS;

fn main() -> ExitCode {
    // A `main` that returned the error would print its fields, not its text, which says what to do.
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("via_inside_tokio: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    // Drives the detection server, and sleeps while no wait is pending. Dropped last.
    let host = Server::spawn_thread()?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_time().build()?;
    runtime.block_on(async {
        let deadline = Instant::now() + SECONDS;
        let world = World::join_on(host.server(), deadline).await?;
        if world.size() != 2 {
            return Err("start two of me: vigie-run -n 2 via_inside_tokio".into());
        }
        let (nic, config) = (Shm::open()?, Config::default());
        let endpoint = Endpoint::join_over(host.server(), &world, nic, config, deadline).await?;
        let all = endpoint.communicator();
        if all.rank() == 0 {
            let answers = ask(&all).await?;
            println!(
                "rank 0: {TASKS} tasks of tokio have got {answers} answers, all of them right"
            );
        } else {
            let mut ticks = 0;
            let mut clock = tokio::time::interval(Duration::from_micros(100));
            let mut answering = tokio::spawn(answer(all.clone()));
            let answered = loop {
                tokio::select! {
                    answered = &mut answering => break answered??,
                    _ = clock.tick() => ticks += 1,
                }
            };
            let ticked = if ticks > 0 { "ticked beside" } else { "had no time to tick" };
            println!("rank 1: answered {answered} questions, and tokio's clock {ticked}");
        }
        world.leave(Instant::now() + SECONDS).await?;
        Ok(())
    })
}

/// Asks from many tasks at once.
async fn ask(all: &Communicator<Shm>) -> Result<u64> {
    let mut tasks = JoinSet::new();
    for tag in 0..TASKS {
        let all = all.clone();
        tasks.spawn(async move {
            for question in 0..QUESTIONS {
                let number = u64::from(tag) * QUESTIONS + question;
                all.send(1, tag, &number.to_le_bytes()).await?;
                let mut square = [0; 8];
                all.receive_into(1, tag, &mut square[..]).await?;
                assert_eq!(u64::from_le_bytes(square), number * number, "of {number}");
            }
            Ok::<_, MessageError>(QUESTIONS)
        });
    }
    let mut answers = 0;
    while let Some(task) = tasks.join_next().await {
        answers += task??;
    }
    all.send(1, END, &[]).await?;
    Ok(answers)
}

/// Answers all questions, until there are no more.
async fn answer(all: Communicator<Shm>) -> std::result::Result<u64, MessageError> {
    let mut answered = 0;
    loop {
        let mut number = [0; 8];
        let status = all.receive_into(Source::Any, Tag::Any, &mut number[..]).await?;
        if status.tag == END {
            return Ok(answered);
        }
        let number = u64::from_le_bytes(number);
        all.send(status.source, status.tag, &(number * number).to_le_bytes()).await?;
        answered += 1;
    }
}
