//! Plain kernel threads: one per connection, one per compute task, blocking calls everywhere.
//!
//! The result of the kernel's scheduler is the mark for a runtime under load.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process;
use std::thread;
use std::time::Duration;

use super::interface::Runner;
use crate::clock;
use crate::compute::{YieldEvery, busy, counted};
use crate::error::Failure;
use crate::mix::{self, LoadServer};
use crate::process::Message;
use crate::schedulers::System;
use crate::server::{COMMAND_BYTES, LoadCommand, ServerPlan, asks_to_compute};
use crate::system::blocking_calls::{STACK_BYTES, accept, serve_blocking};
use crate::workload::switches::{SwitchCounts, SwitchPlan};

/// Runs the workloads without any runtime.
#[derive(Debug)]
pub(crate) struct Threads;

impl Runner for Threads {
    fn serve(&self, plan: &ServerPlan) -> Result<(), Failure> {
        let listener = begin(plan)?;
        if let Some(step) = plan.request {
            loop {
                let stream = accept(&listener).map_err(Failure::io("accepting"))?;
                spawn(move || answer(stream, step))?;
            }
        }
        for _ in 0..plan.connections {
            let stream = accept(&listener).map_err(Failure::io("accepting"))?;
            spawn(move || serve_blocking(stream))?;
        }
        if plan.is_compute_last {
            start_compute(plan)?;
        }
        drop(listener);
        loop {
            thread::park();
        }
    }

    fn load(&self, plan: &LoadServer) -> Result<(), Failure> {
        mix::serve_on_threads(plan)
    }

    fn switch(&self, _plan: &SwitchPlan) -> Result<SwitchCounts, Failure> {
        Err(Failure::Unsupported {
            system: System::Threads.name().to_owned(),
            reason: "the kernel switches its threads".to_owned(),
        })
    }
}

/// Starts all but the echo, each part on threads of its own, says that the server listens, and returns
/// where.
pub(super) fn begin(plan: &ServerPlan) -> Result<TcpListener, Failure> {
    let (listener, echo) = listen()?;
    let mut control = None;
    if plan.has_control {
        let (listener, address) = listen()?;
        control = Some(address);
        spawn(move || {
            if let Err(error) = serve_control(&listener) {
                eprintln!("control connection: {error}");
            }
        })?;
    }
    if !plan.is_compute_last {
        start_compute(plan)?;
    }
    Message::Listening { process: process::id(), echo, control }.print();
    Ok(listener)
}

/// Starts the compute tasks, a thread for each.
pub(super) fn start_compute(plan: &ServerPlan) -> Result<(), Failure> {
    let (every, rest) = (plan.yield_every, plan.rest);
    for _ in 0..plan.compute {
        spawn(move || compute(every, rest))?;
    }
    Ok(())
}

/// Answers messages of eight bytes as a service does, until the peer closes or fails.
fn answer(mut stream: TcpStream, step: Duration) {
    let mut message = [0; 8];
    while stream.read_exact(&mut message).is_ok() {
        if asks_to_compute(message) {
            counted(step);
        }
        if stream.write_all(&message).is_err() {
            return;
        }
    }
}

fn listen() -> Result<(TcpListener, SocketAddr), Failure> {
    let bind = || -> io::Result<_> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    bind().map_err(Failure::io("listening on 127.0.0.1"))
}

fn spawn(body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(body);
    thread.map(drop).map_err(Failure::io("starting a thread (see `ulimit -u`)"))
}

fn compute(every: YieldEvery, rest: Option<Duration>) {
    loop {
        counted(every.step());
        match rest {
            Some(rest) => clock::sleep(rest),
            None if every.yields() => thread::yield_now(),
            None => {}
        }
    }
}

fn serve_control(listener: &TcpListener) -> io::Result<()> {
    let mut stream = accept(listener)?;
    loop {
        let mut bytes = [0; COMMAND_BYTES];
        if stream.read_exact(&mut bytes).is_err() {
            return Ok(());
        }
        let elapsed = run_steps(LoadCommand::from_bytes(bytes));
        stream.write_all(&clock::nanoseconds(elapsed).to_le_bytes())?;
    }
}

fn run_steps(command: LoadCommand) -> Duration {
    let start = clock::now();
    for _ in 0..command.steps {
        busy(command.step);
        thread::yield_now();
    }
    start.elapsed()
}
