//! The work of a server process: one source for all async systems.
//!
//! ```text
//!   main future:  listen ── accept `connections` times ──▶ one echo task each, then wait for ever
//!                 or, as a service: accept without end ──▶ one task each, which computes if asked to
//!   compute:      `compute` tasks, each: busy step, yield or sleep, busy step, …
//!   control:      command ──▶ a fresh task of `steps` steps ──▶ its time
//! ```

use std::future;
use std::io;
use std::process;
use std::time::Duration;

use crate::clock;
use crate::compute::{YieldEvery, busy, counted};
use crate::error::Failure;
use crate::inside;
use crate::process::Message;
use crate::server::{COMMAND_BYTES, LoadCommand, ServerPlan, asks_to_compute};
use crate::system::{AsyncSystem, fill};

/// Serves `plan` on `S` until the process is killed.
pub(crate) fn serve<S: AsyncSystem>(plan: &ServerPlan) -> Result<(), Failure> {
    let system = S::start(plan.workers)?;
    let plan = plan.clone();
    system.block_on(async move {
        inside::take_note();
        let listener = begin::<S>(&plan)?;
        if let Some(step) = plan.request {
            loop {
                let stream = S::accept(&listener).await.map_err(Failure::io("accepting"))?;
                S::spawn(answer::<S>(stream, step));
            }
        }
        for _ in 0..plan.connections {
            let stream = S::accept(&listener).await.map_err(Failure::io("accepting"))?;
            S::spawn_echo(stream);
        }
        if plan.is_compute_last {
            start_compute::<S>(&plan);
        }
        drop(listener);
        future::pending().await
    })
}

/// Listens, starts what does not wait for connections, and says where.
pub(crate) fn begin<S: AsyncSystem>(plan: &ServerPlan) -> Result<S::Listener, Failure> {
    let listen = || S::listen().map_err(Failure::io("listening on 127.0.0.1"));
    let (listener, echo) = listen()?;
    let mut control = None;
    if plan.has_control {
        let (listener, address) = listen()?;
        S::spawn(async move {
            if let Err(error) = serve_control::<S>(listener).await {
                eprintln!("control connection: {error}");
            }
        });
        control = Some(address);
    }
    if !plan.is_compute_last {
        start_compute::<S>(plan);
    }
    Message::Listening { process: process::id(), echo, control }.print();
    Ok(listener)
}

/// Starts the compute tasks.
pub(crate) fn start_compute<S: AsyncSystem>(plan: &ServerPlan) {
    for _ in 0..plan.compute {
        S::spawn(compute::<S>(plan.yield_every, plan.rest));
    }
}

/// Answers messages of eight bytes as a service does, until the peer closes or fails.
async fn answer<S: AsyncSystem>(mut stream: S::Stream, step: Duration) {
    loop {
        let mut message = [0; 8];
        if !matches!(fill::<S>(&mut stream, &mut message).await, Ok(true)) {
            return;
        }
        if asks_to_compute(message) {
            counted(step);
        }
        if S::write_all(&mut stream, &message).await.is_err() {
            return;
        }
    }
}

/// Computes as long as the process lives.
async fn compute<S: AsyncSystem>(every: YieldEvery, rest: Option<Duration>) {
    loop {
        counted(every.step());
        match rest {
            Some(rest) => S::sleep(rest).await,
            None if every.yields() => S::yield_now().await,
            None => {}
        }
    }
}

/// Runs the task of Table 2 on request of the control connection.
async fn serve_control<S: AsyncSystem>(listener: S::Listener) -> io::Result<()> {
    let mut stream = S::accept(&listener).await?;
    drop(listener);
    loop {
        let mut bytes = [0; COMMAND_BYTES];
        if !fill::<S>(&mut stream, &mut bytes).await? {
            return Ok(());
        }
        let elapsed = S::call(run_steps::<S>(LoadCommand::from_bytes(bytes))).await;
        S::write_all(&mut stream, &clock::nanoseconds(elapsed).to_le_bytes()).await?;
    }
}

/// "A computational task involving a lot of context switches" [bouge02, §4.2].
async fn run_steps<S: AsyncSystem>(command: LoadCommand) -> Duration {
    let start = clock::now();
    for _ in 0..command.steps {
        busy(command.step);
        S::yield_now().await;
    }
    start.elapsed()
}
